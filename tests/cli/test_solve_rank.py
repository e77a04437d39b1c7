"""The desk of `solve` without ranks: the order of answers, and the limits of each file."""

import array
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from mallob_py.cli.one_shot_desk import Answered
from mallob_py.cli.solve_rank import SolveDesk
from mallob_py.protocol.effects import JobEnded, JobStats, Outcome
from mallob_py.runtime import worker_wire as wire
from mallob_py.runtime.workers.tasks import ReadDone, ReadFailed

SAT, UNSAT = 10, 20
ENDED_BY_SIGNAL = 130


class Desk:
    """A desk for `files` files, with its output and its orders to the rank; a quiet desk prints only
    answers.
    """

    def __init__(
        self,
        folder: Path,
        files: int,
        time_limit_s: float | None = None,
        at_once: int = 96,
        *,
        quiet: bool = True,
    ) -> None:
        self.files = [f"{number}.cnf" for number in range(1, files + 1)]
        self.used_s: dict[int, float] = {}
        self.jobs: dict[int, Any] = {}
        self.rank: Any = Mock(stopped_by=None)
        self.rank.now.return_value = 0.0
        self.rank.pool.read_used_s.side_effect = lambda job: (self.used_s.get(job, 0.0), 0.0)
        self.rank.node.pe.client.jobs = self.jobs
        self.rank.node.placement.size = self.rank.node.pe.balancer.volume.return_value = 1
        self.rank.node.config.residents_per_pe.return_value = at_once
        options: Any = Mock(files=self.files, results={}, quiet=quiet, time_limit_s=time_limit_s)
        options.configuration_with.return_value = {}
        options.application_of.return_value = "SAT"
        self._path, self.table = folder / "answers", folder / "table.csv"
        output, table = open(self._path, "w"), open(self.table, "w")  # noqa: SIM115
        self.desk = SolveDesk(self.rank, options, output, Answered(), Mock(), table)
        self.desk.turn(0.0)

    def read(self, *jobs: int, now: float = 0.0) -> None:
        for job in jobs:
            self.desk.worker_event(ReadDone(job, wire.Inline(b"")), now)
            self.jobs[job] = SimpleNamespace(started_s=now, interim=None, progression=None)

    def end(self, job: int, code: int = SAT, outcome: Outcome = Outcome.RESULT, now: float = 1.0) -> None:
        del self.jobs[job]
        stats = JobStats(0.0, 0.0, 0.0, now, now, now, 1)
        body = None
        if outcome is Outcome.RESULT:
            solution = array.array("i", [job]).tobytes() if code == SAT else b""
            name = "SAT" if code == SAT else "UNSAT"
            body = wire.encode_result(wire.ResultBody(code, b"{}", solution, name=name))
        self.desk.hear_of_job(JobEnded(job, outcome, body, None, stats), now)
        self.desk.turn(now)

    def answers(self) -> list[str]:
        lines = self._path.read_text().splitlines()
        return [line for line in lines if not line.startswith("v")]

    def asked(self) -> list[int]:
        """Return the files whose reading has begun."""
        return [call.args[0] for call in self.rank.pool.read.call_args_list]


def test_answers_are_in_the_order_of_files_each_as_soon_as_all_before_are_there(tmp_path: Path) -> None:
    desk = Desk(tmp_path, 3)
    assert desk.asked() == [1, 2, 3]
    desk.read(3, 1, 2)
    desk.end(3)
    assert desk.answers() == []
    desk.end(1, UNSAT)
    assert desk.answers() == ["c 1.cnf", "s UNSATISFIABLE"]
    assert not desk.rank.stop.called
    desk.end(2)
    assert desk.answers()[2:] == ["c 2.cnf", "s SATISFIABLE", "c 3.cnf", "s SATISFIABLE"]
    assert desk.rank.stop.called
    desk.desk.close()
    assert desk.desk.exit_code == 0
    assert desk.table.read_text().splitlines() == [
        "file,answer,time_s,pe_time_s,workers",
        *("1.cnf,UNSAT,1.0,0.0,1", "2.cnf,SAT,1.0,0.0,1", "3.cnf,SAT,1.0,0.0,1"),
    ]


def test_a_time_limit_that_comes_while_the_file_is_read_ends_the_command(tmp_path: Path) -> None:
    desk = Desk(tmp_path, 1, time_limit_s=2.0)
    desk.rank.interrupt.return_value = False
    desk.desk.turn(2.0)
    assert desk.answers() == ["s UNKNOWN"]
    desk.desk.turn(2.0)
    desk.rank.stop.assert_called()


def test_a_file_that_takes_long_to_read_is_told_of_each_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "1.cnf").write_bytes(bytes(4_000_000))
    monkeypatch.chdir(tmp_path)
    desk = Desk(tmp_path, 1, quiet=False)
    desk.rank.pool.pid_of.return_value = os.getpid()
    with open(tmp_path / "1.cnf", "rb", buffering=0) as file:
        for second, size in enumerate((1_000_000, 2_000_000), 1):
            assert desk.desk.deadline_s == second
            file.seek(size)
            desk.desk.turn(float(second))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:] == ["c read 1 MB of 4 MB", "c read 2 MB of 4 MB"]


def test_each_of_several_files_has_a_time_limit_of_its_own_for_its_reading_and_its_work(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path, 3, time_limit_s=10.0)
    desk.used_s = {2: 10.0}
    desk.read(1, now=8.0)
    (call,) = desk.rank.submit.call_args_list
    assert call.args[1].time_limit_s == 10.0
    assert desk.desk.deadline_s <= 10.0
    desk.desk.turn(10.0)
    desk.rank.pool.cancel_read.assert_called_once_with(2)
    assert desk.answers() == []
    desk.end(1, outcome=Outcome.TIME_LIMIT)
    assert desk.answers() == ["c 1.cnf", "s UNKNOWN", "c 2.cnf", "s UNKNOWN"]
    desk.read(3, now=30.0)  # file 3 is read only now, because its reader was busy
    desk.end(3)
    assert desk.answers()[4:] == ["c 3.cnf", "s SATISFIABLE"]


def test_a_file_that_cannot_be_read_is_one_error_and_keeps_no_other_from_its_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    desk = Desk(tmp_path, 3)
    desk.desk.worker_event(ReadFailed(2, "2.cnf, line 1: no header", "files"), 0.5)
    desk.read(1, 3)
    desk.end(3)
    desk.end(1)
    assert capsys.readouterr().err == "mallob-py solve: 2.cnf, line 1: no header\n"
    assert [line for line in desk.answers() if line.startswith("c")] == ["c 1.cnf", "c 3.cnf"]
    desk.desk.close()
    assert desk.desk.exit_code == 2


def test_unknown_is_the_answer_to_files_that_were_tried_alone(tmp_path: Path) -> None:
    """A signal comes while the first file is worked on, the second has its answer, and the others wait."""
    desk = Desk(tmp_path, 4, at_once=3)
    assert desk.asked() == [1, 2, 3]
    desk.read(1, 2)
    desk.end(2)
    assert desk.asked() == [1, 2, 3, 4]
    desk.rank.stopped_by = 2
    desk.desk.close()
    assert desk.answers() == ["c 1.cnf", "s UNKNOWN", "c 2.cnf", "s SATISFIABLE"]
    assert desk.desk.exit_code == ENDED_BY_SIGNAL
