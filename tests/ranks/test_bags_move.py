"""Bags whose workers are taken away or killed: their results are handed over, or saved in a file."""

import contextlib
import itertools
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults.processes import command_line, parent_of
from running import Running, needs_mpiexec, poll_until, run, serving, with_apps

pytestmark = needs_mpiexec

APPS = with_apps(NAPS="bag_apps:NapsApplication")
NAPS = 4000
SUM = sum(range(NAPS))


def naps_until(file: Path) -> dict[str, Any]:
    """Return the configuration of a bag that works for minutes until the file exists, and then soon ends."""
    return {"naps": NAPS, "nap_s": 0.0002, "until": str(file)}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("service"), ranks=4, env=APPS) as running:
        yield running
        assert running.stop() == 0
        assert "Traceback" not in running.output


def test_workers_that_are_taken_away_hand_over_what_they_have(service: Running, tmp_path: Path) -> None:
    naps = service.submit("naps", application="NAPS", configuration=naps_until(tmp_path / "go"))
    job = service.await_event("accepted", name="naps")["job"]
    takers = itertools.count()

    def left() -> list[dict[str, Any]]:
        return [event for event in service.events("left") if event["job"] == job]

    while not left() and not naps.exists():
        service.ask(f"taker{next(takers)}", application="SLEEP", priority=3.0, wallclock_limit="200ms")
    (tmp_path / "go").touch()
    result = service.reply(naps)["result"]
    assert (result["value"], result["tasks"]) == (SUM, NAPS)
    assert left()


def workers_of(service: Running) -> list[int]:
    """Return the worker processes: children of fork servers with the same command line."""

    def is_worker(pid: int) -> bool:
        return all("fork_server" in command_line(one) for one in (pid, parent_of(pid)))

    return [pid for pid in service.processes() if is_worker(pid)]


def checkpoints(service: Running) -> list[Path]:
    return list((service.box() / "checkpoints").glob("[0-9]*"))


def test_a_root_that_dies_goes_on_from_its_last_checkpoint(service: Running, tmp_path: Path) -> None:
    naps = service.submit("fatal", application="NAPS", configuration=naps_until(tmp_path / "go"))
    job = service.await_event("accepted", name="fatal")["job"]
    poll_until(lambda: checkpoints(service), "there is a checkpoint")
    for pid in workers_of(service):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    service.await_event("crashed", job=job, index=0)
    (tmp_path / "go").touch()
    result = service.reply(naps)["result"]
    assert (result["value"], result["tasks"]) == (SUM, NAPS)
    assert 0 < result["tasks_restored"] < NAPS
    poll_until(lambda: not checkpoints(service), "the checkpoint goes with the job")


def test_a_service_that_is_stopped_keeps_how_far_a_job_is_that_has_just_begun(tmp_path: Path) -> None:
    with serving(tmp_path, ranks=2, env=APPS) as service:
        service.submit("naps", application="NAPS", configuration=naps_until(tmp_path / "go"))
        job = service.await_event("accepted", name="naps")["job"]

        def started() -> list[dict[str, Any]]:
            return [each for each in service.events("started") if (each["job"], each["index"]) == (job, 1)]

        poll_until(started, "there are two workers")
        assert service.stop() == 0
        assert checkpoints(service)
        (tmp_path / "go").touch()
    with serving(tmp_path, ranks=2, env=APPS) as service:
        result = service.reply(service.box() / "out" / "u.naps.json")["result"]
        assert (result["value"], result["tasks"]) == (SUM, NAPS)
        assert service.stop() == 0


@pytest.mark.parametrize("durable", [False, True])
def test_a_service_that_is_killed_goes_on_from_the_last_checkpoint(tmp_path: Path, durable: bool) -> None:
    options = ["--durable"] if durable else []
    with serving(tmp_path, *options, ranks=2, env=APPS) as service:
        service.submit("naps", application="NAPS", configuration=naps_until(tmp_path / "go"))
        poll_until(lambda: checkpoints(service), "there is a checkpoint")
        service.kill()
        (tmp_path / "go").touch()
    with serving(tmp_path, *options, ranks=2, env=APPS) as service:
        result = service.reply(service.box() / "out" / "u.naps.json")["result"]
        assert (result["value"], result["tasks"]) == (SUM, NAPS)
        assert 0 < result["tasks_restored"] < NAPS
        poll_until(lambda: not checkpoints(service), "the checkpoint goes with the job")
        assert service.stop() == 0


def test_a_bag_whose_process_forks_is_counted_once_and_the_copies_are_named() -> None:
    apps = with_apps(FORKS="bag_apps:ForksApplication")
    done = run("run", "FORKS", "-n", "2", "--set", "naps=3000", "--set", "nap_s=0.0002", env=apps)
    result = json.loads(done.out)["result"]
    assert (result["tasks"], result["value"]) == (3000, sum(range(3000))), done.err
    assert "went on as if it were that worker, and was ended" in done.err
