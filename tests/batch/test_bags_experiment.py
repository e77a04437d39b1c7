"""The experiment of task bags under the live scheduler: batches and tables; the slow test runs a batch."""

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from mallob_py.batch.experiments import bags
from mallob_py.batch.job import Kind
from mallob_py.batch.live.replay import Life, ReplayError, _orders_in
from mallob_py.batch.speedup import Amdahl
from mallob_py.experiments.output import Output

ALONE = {program.name: [bags.Alone(1, [8.0]), bags.Alone(2, [5.0])] for program in bags.PROGRAMS}


def test_a_larger_share_has_the_malleable_jobs_of_a_smaller_one_and_the_same_programs() -> None:
    programs, some = bags.batch_of(1, 0.4, 2, ALONE)
    same, all_of_them = bags.batch_of(1, 1.0, 2, ALONE)
    assert programs == same
    assert {program.name for program in programs} == set(ALONE)
    assert [job.kind for job in some.jobs].count(Kind.MALLEABLE) == 4
    assert {job.kind for job in all_of_them.jobs} == {Kind.MALLEABLE}
    assert [job.submit_s for job in some.jobs[:2]] == [0.0, 0.0]
    # A program that takes 8 s on one slot and 5 s on two slots: a quarter is sequential.
    for job, truth in zip(some.jobs, some.truths, strict=True):
        assert truth.run_s == {1: 8.0, 2: 5.0}[job.nodes]
        assert isinstance(truth.speedup, Amdahl)
        assert truth.speedup.serial == pytest.approx(0.25)


def test_a_wrong_result_is_an_error_that_names_the_program() -> None:
    queens = bags.PROGRAMS[1]
    bags.check(queens, '{"result": {"value": 14772512}}\n')
    with pytest.raises(ReplayError, match="QUEENS16: value is 7, not 14772512"):
        bags.check(queens, 'noise\n{"result": {"value": 7}}\n')
    with pytest.raises(ReplayError, match="QUEENS16: value is None"):
        bags.check(queens, "no result\n")


def test_orders_are_counted_from_what_the_scheduler_says() -> None:
    log = "job 3 a: b: shrink 2\njob 3 a: b: grow 1 localhost\njob 3 x has ended: exited\nshrink 1\n"
    assert list(_orders_in(log)) == [(3, "shrink"), (3, "grow")]


def test_times_of_rigid_and_of_malleable_jobs_stand_apart() -> None:
    _, workload = bags.batch_of(1, 0.4, 2, ALONE)
    lives = [
        Life(1.0, 2.0, 12.0 if job.is_malleable else 6.0, [], "", 1 if job.is_malleable else 0, 0)
        for job in workload.jobs
    ]
    batch = bags._of_lives(workload, lives)
    assert (batch.makespan_s, batch.wait_s) == (11.0, 1.0)
    assert (batch.rigid_turnaround_s, batch.malleable_turnaround_s) == (5.0, 11.0)
    assert (batch.shrinks, batch.grows) == (1.0, 0.0)
    simulated = bags._simulated(workload, "fair")
    row = bags._row("fair", 0.4, 1, batch, simulated)
    assert len(row) == len(bags._HEADER)
    assert row[:4] == ("fair", "40%", 1, "11.0")


def test_a_command_that_fails_or_does_not_end_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ReplayError, match=r"^f\.cnf: no room$"):
        bags.done_of("f.cnf", ["sh", "-c", "echo no room >&2; exit 3"], 0)
    assert bags.done_of("f.cnf", ["sh", "-c", "exit 3"]).returncode == 3
    monkeypatch.setattr(bags, "_LIMIT_S", 0.1)
    with pytest.raises(ReplayError, match=r"^UTS14: it has not ended after 0\.1 s$"):
        bags.done_of("UTS14", ["sleep", "600"], 0)


def test_orders_are_given_until_one_is_taken_however_slow_the_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine, one try takes a minute, and the program begins to listen only meanwhile."""
    now_s, codes = 0.0, [1, 1, 0]

    def slow(_name: str, command: list[str]) -> subprocess.CompletedProcess[str]:
        nonlocal now_s
        now_s += 60.0
        return subprocess.CompletedProcess(command, codes.pop(0) if codes else 1)

    monkeypatch.setattr(bags, "done_of", slow)
    monkeypatch.setattr(bags, "time", SimpleNamespace(monotonic=lambda: now_s))
    with subprocess.Popen(["sleep", "600"]) as job:
        try:
            assert bags.ordered(tmp_path, 1, job) == 60.0
            with pytest.raises(ReplayError, match="a running program has taken no order for 300 s"):
                bags.ordered(tmp_path, 1, job)
        finally:
            job.kill()


@pytest.mark.slow
def test_bags_run_as_jobs_and_are_resized_with_exact_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = bags.Program("QUEENS12", ("QUEENS", "--set", "n=12"), "value", 14200)
    monkeypatch.setattr(bags, "PROGRAMS", (small,))
    monkeypatch.setattr(bags, "POLICIES", ("fair",))
    monkeypatch.setattr(bags, "SHARES", (1.0,))
    monkeypatch.setattr(bags, "JOBS", 2)
    monkeypatch.setattr(bags, "_TIMES", 1)
    monkeypatch.setattr(bags, "_LONG", 11)
    monkeypatch.setattr(bags, "_CHANGES", (1,))
    # A job must not reach its limit of ten times its run time because it waits a minute for its core.
    monkeypatch.setattr(bags, "_REQUIRED", 1000.0)
    bags.run(Output(tmp_path, "bags"), None, None)
    scaling, _, batches = json.loads((tmp_path / "bags.json").read_text())
    assert scaling["rows"][0][:2] == ["QUEENS12", 1]
    assert [row[:3] for row in batches["rows"]] == [["fair", "100%", 1]]
    # There is no upper bound: in such a short batch, the scheduler's own CPU time may exceed that of the
    # jobs.
    assert all(float(row[-1]) > 0.0 for row in batches["rows"])
    capsys.readouterr()
