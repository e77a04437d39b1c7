"""Workloads replayed by real processes, and the experiment that compares them with the simulator."""

import itertools
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from faults.processes import processes_with
from running import COMMAND
from waiting import DEADLINE_S, poll_until

from mallob_py.batch.costs import Delays
from mallob_py.batch.experiments import elastic, elastic_live
from mallob_py.batch.job import Job, Kind, Truth, Workload
from mallob_py.batch.live.launch import TOKEN
from mallob_py.batch.live.replay import Life, ReplayError, delays_of, replay, scaled
from mallob_py.batch.live.timed import Event, told
from mallob_py.batch.speedup import LINEAR, Linear
from mallob_py.experiments.output import Output

ROOT = Path(__file__).parents[3]


def test_a_scaled_workload_is_as_a_live_scheduler_sees_it() -> None:
    workload = Workload([Job(0, 50.0, 4, 800.0, Kind.MALLEABLE, 2, 8)], [Truth(100.0)], 8)
    (job,), (truth,) = (scaled(workload, 0.1).jobs, scaled(workload, 0.1).truths)
    assert (job.submit_s, job.estimate_s, job.estimate_on(8), truth.run_s) == (5.0, 80.0, 80.0, 10.0)
    assert isinstance(truth.speedup, Linear)


def test_delays_of_a_job_are_the_means_of_what_it_has_told() -> None:
    lines = (
        "1.5 2 works\n2.0 2 ready\n3.0 2 grows\n3.5 4 works\n4.0 3 shrinks\n4.25 3 has shrunk\n"
        "5.0 3 grows\n6.0 4 works\n9.0 4 done\n"
    )
    delays = delays_of(Life(0.5, 1.0, 9.5, told(lines)))
    assert delays == Delays(start_s=0.5, ready_s=1.0, grow_s=0.75, shrink_s=0.25, end_s=0.5)
    assert delays_of(Life(0.5, 1.0, 9.5, [])) == Delays()
    with pytest.raises(ValueError, match="is not a valid Event"):
        told("1.5 2 sleeps\n")


@pytest.mark.slow
def test_a_workload_is_played_by_real_processes() -> None:
    jobs = [
        Job(0, 0.0, 2, 600.0, Kind.MALLEABLE, 1, 4, LINEAR, 1),
        Job(1, 1.0, 3, 600.0, number=2),
        Job(2, 1.0, 1, 600.0, number=3),
    ]
    ended = list[int]()
    workload = scaled(Workload(jobs, [Truth(8.0), Truth(1.0), Truth(0.5)], 4), 1.0)
    lives = replay(workload, "elastic:cooldown-s=0.5,period-s=0.1", ended.append)
    assert (ended[-1], ended) == (3, sorted(ended))
    for life, job in zip(lives, jobs, strict=True):
        assert life.submit_s <= life.start_s < life.told[0].at_s < life.told[-1].at_s < life.end_s
        assert (life.told[0].event, life.told[-1].event) == (Event.WORKS, Event.DONE)
        assert all(job.low <= one.slots <= job.high for one in life.told)
    assert max(one.slots for one in lives[0].told) > 1
    # The job has done all of its 16 slot-seconds.
    marks = [one for one in lives[0].told if one.event in (Event.WORKS, Event.SHRINKS, Event.DONE)]
    work = sum((b.at_s - a.at_s) * a.slots for a, b in itertools.pairwise(marks))
    assert work >= 15.999


@pytest.mark.slow
def test_a_scheduler_or_a_job_that_fails_is_told_in_one_line() -> None:
    workload = scaled(Workload([Job(0, 0.0, 1, 600.0, number=1)], [Truth(0.1)], 1), 1.0)
    with pytest.raises(ReplayError, match="no policy 'magic'"):
        replay(workload, "magic", lambda ended: None)
    late = scaled(Workload([Job(0, 0.0, 1, 0.001, number=1)], [Truth(600.0)], 1), 1.0)
    with pytest.raises(ReplayError, match="job 1 under fcfs: over its required time; "):
        replay(late, "fcfs", lambda ended: None)


@pytest.mark.slow
def test_the_experiment_sets_what_was_measured_beside_what_the_simulator_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(elastic_live, "POLICIES", ("elastic",))
    monkeypatch.setattr(elastic_live, "SHARES", (1.0,))
    monkeypatch.setattr(elastic_live, "SECOND_S", 0.005)
    # On a busy machine, jobs start late.
    monkeypatch.setattr(elastic_live, "_REQUIRED", 100.0)
    elastic.run(Output(tmp_path, "elastic"), None, None, live=True)
    table, measured = json.loads((tmp_path / "elastic.json").read_text())
    (row,) = table["rows"]
    assert (row[0], row[1], row[5], row[9], row[13]) == ("elastic", "100%", 1006, 353, 141)
    assert all(cell > 0 for cell in (row[2], row[3], row[6], row[7]))
    assert all(float(cell.split(", ")[0]) > 0 for cell in measured["rows"][0][2:4])
    (kept,) = (tmp_path / "elastic-runs.jsonl").read_text().splitlines()
    assert len(json.loads(kept)["result"]["lives"]) == 25
    assert "1 of 1 runs done (elastic, 100% malleable)" in capsys.readouterr().err


def test_an_experiment_that_has_failed_goes_on_with_the_run_that_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = list[str]()

    def replayed(workload: Workload, policy: str, tell: Callable[[int], None]) -> list[Life]:
        played.append(policy)
        if len(played) == 2:
            raise ReplayError("the machine was busy")
        return [Life(0.0, 1.0, 2.0, [])] * len(workload.jobs)

    monkeypatch.setattr(elastic_live, "replay", replayed)
    monkeypatch.setattr(elastic_live, "POLICIES", ("backfilling", "fair"))
    monkeypatch.setattr(elastic_live, "SHARES", (1.0,))
    with pytest.raises(ReplayError, match="busy"):
        elastic.run(Output(tmp_path, "elastic"), None, None, live=True)
    elastic.run(Output(tmp_path, "elastic", resume=True), None, None, live=True)
    assert played == ["backfilling", "fair", "fair"]
    table, _ = json.loads((tmp_path / "elastic.json").read_text())
    assert [row[0] for row in table["rows"]] == ["backfilling", "fair"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_experiment_leaves_no_process_and_no_file(
    tmp_path: Path, number: signal.Signals
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    path = os.pathsep.join([str(ROOT), str(ROOT / "apps"), os.environ.get("PYTHONPATH", "")])
    arguments = ["batch", "experiment", "elastic", "--live", "--output", str(tmp_path / "out")]
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        env=dict(os.environ) | {"PYTHONPATH": path, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )

    def of_jobs() -> list[int]:
        folders = [jobs / str(job) for jobs in seen for job in range(1, 6)]
        return [pid for folder in folders for pid in processes_with(TOKEN, str(folder))]

    def one_works() -> bool:
        assert process.poll() is None, process.communicate()
        seen.update(temporary.glob("*/jobs"))
        return len(of_jobs()) >= 2

    seen = set[Path]()
    poll_until(one_works)
    process.send_signal(number)
    said, _ = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, said) == (130, "")
    assert list(temporary.iterdir()) == []
    assert not of_jobs()
