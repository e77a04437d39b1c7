"""Deaths of all kinds: of solvers, ranks, launchers and whole services; no job may be lost by them."""

import contextlib
import itertools
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults.processes import command_line, parent_of
from running import (
    Running,
    needs_mpiexec,
    poll_until,
    run,
    serving,
    session_folders_of,
    shared_by_mpi,
    with_apps,
)
from test_rank_losses import ranks_of

from mallob_sat.generate import commutativity

pytestmark = needs_mpiexec

APPS = with_apps(FAIL="rank_apps:Fail")
CLOCK_TICKS_MIN = 10


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("service"), ranks=2, env=APPS) as running:
        yield running
        assert running.process.poll() is None, running.output
        assert running.stop() == 0


def cpu_ticks(pid: int) -> int:
    """Return the CPU ticks that a process has used; 0 if it has ended."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])
    return 0


def busy_solvers(service: Running) -> list[int]:
    """Return the solver processes: children of workers, which are children of fork servers."""

    def is_solver(pid: int) -> bool:
        line = (pid, parent_of(pid), parent_of(parent_of(pid)))
        return all("fork_server" in command_line(one) for one in line)

    return [pid for pid in service.processes() if is_solver(pid) and cpu_ticks(pid) >= CLOCK_TICKS_MIN]


def hard_job(folder: Path, bits: int = 16) -> dict[str, Any]:
    """Return the fields of a job whose formula takes about a second (7 bits), or practically for ever
    (16).
    """
    path = folder / "hard.cnf"
    path.write_text(commutativity(bits).text("hard"))
    return {"files": [str(path)]}


# --- workers that die -----------------------------------------------------------------------


def test_a_job_whose_solver_is_killed_still_gets_its_right_answer(service: Running, tmp_path: Path) -> None:
    killed: list[int] = []
    for number in itertools.count():  # again if a job's solvers ended before they were found
        path = service.submit(f"wounded-{number}", **hard_job(tmp_path, bits=7))
        poll_until(lambda at=path: busy_solvers(service) or at.exists(), "it is at work, or over")
        for pid in busy_solvers(service)[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
        assert service.reply(path)["result"]["resultcode"] == 20
        if killed:
            break


def test_the_death_of_a_worker_is_noticed_and_its_job_goes_on(service: Running, tmp_path: Path) -> None:
    poll_until(lambda: not busy_solvers(service), "the end of earlier jobs' solvers")
    path = service.submit("bereft", **hard_job(tmp_path))
    job = service.await_event("accepted", name="bereft")["job"]
    solvers = poll_until(lambda: (found := busy_solvers(service))[1:] and found, "a solver at each rank")
    os.kill(parent_of(solvers[0]), signal.SIGKILL)
    service.await_event("crashed", job=job)
    poll_until(lambda: len({*busy_solvers(service)} - {solvers[0]}) == 2, "another solver is at work")
    service.interrupt("bereft")
    assert service.reply(path)["result"]["outcome"] == "interrupted"


def test_an_exception_of_an_application_comes_with_its_traceback(service: Running) -> None:
    reply = service.ask("raises", application="FAIL", configuration={"how": "raise"})
    assert "ValueError: no such luck" in reply["error"]["message"]
    assert "rank_apps.py" in reply["error"]["message"]
    assert reply["result"]["resultcode"] == 0


def test_an_application_that_dies_again_and_again_gets_an_error_reply(service: Running) -> None:
    reply = service.ask("dies", application="FAIL", configuration={"how": "segfault"})
    assert "SIGSEGV" in reply["error"]["message"]
    assert reply["result"]["resultcode"] == 0


@pytest.mark.parametrize("how", ["raise", "kill"])
def test_an_application_that_fails_in_reading_gets_an_error_reply(how: str, service: Running) -> None:
    reply = service.ask(f"reads-{how}", application="FAIL", configuration={"how": how, "where": "read"})
    assert reply["error"]["message"]
    assert service.ask(f"after-{how}", application="NOOP")["result"]["resultcode"] == 10


def test_a_killed_fork_server_is_replaced_and_its_jobs_go_on(service: Running) -> None:
    path = service.submit("orphaned", application="SLEEP")
    job = service.await_event("accepted", name="orphaned")["job"]
    service.await_event("started", job=job, index=0)
    for pid in service.processes():
        parent = parent_of(pid)  # 0 if the process has just ended
        if parent and "fork_server" in command_line(pid) and "fork_server" not in command_line(parent):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert service.ask("next", application="NOOP")["result"]["resultcode"] == 10

    def starts() -> int:
        return sum((one["job"], one["index"]) == (job, 0) for one in service.events("started"))

    poll_until(lambda: starts() == 2, "the root is at work again")
    service.interrupt("orphaned")
    assert service.reply(path)["result"]["outcome"] == "interrupted"


# --- the whole service dies -------------------------------------------------------------------


def test_after_the_death_of_everything_each_accepted_job_gets_exactly_one_reply(tmp_path: Path) -> None:
    names = [f"short-{number}" for number in range(30)]
    with serving(tmp_path, ranks=2) as first:
        first.ask("done", application="NOOP")
        before = (first.box() / "out" / "u.done.json").read_bytes()
        first.submit("long", application="SLEEP", max_demand=1)
        first.submit("held", application="NOOP", dependencies=["u.short-29"])
        for name in names:
            first.submit(name, application="SLEEP", wallclock_limit="20ms", max_demand=1)
        first.reply(first.box() / "out" / f"u.{names[5]}.json")
        first.kill()
        replied = {path.name: path.read_bytes() for path in (first.box() / "out").glob("u.*.json")}
        dead = first.pids
    assert "u.long.json" not in replied
    with serving(tmp_path, ranks=2) as second:
        for name in names:
            reply = second.reply(second.box() / "out" / f"u.{name}.json")
            assert reply["result"]["outcome"] == "wallclock-limit"
        assert second.reply(second.box() / "out" / "u.held.json")["result"]["resultcode"] == 10
        second.interrupt("long")
        last = second.reply(second.box() / "out" / "u.long.json")
        assert last["result"]["outcome"] == "interrupted"
        # The service publishes the reply before it removes the interruption from the journal.
        poll_until(lambda: not list((second.box() / "journal").iterdir()), "nothing is left to be done")
        published = {path.name: path.read_bytes() for path in (second.box() / "out").iterdir()}
        assert published["u.done.json"] == before
        assert {name: published[name] for name in replied} == replied
        assert len(published) == len(names) + 3
        assert session_folders_of(list(dead)) == []
        assert second.stop() == 0


def test_a_job_is_not_lost_when_a_rank_is_killed_and_all_end(tmp_path: Path) -> None:
    with serving(tmp_path, "--rank-loss", "restart", "--restarts", "0", ranks=2) as first:
        path = first.submit("survivor", **hard_job(tmp_path, bits=7))
        poll_until(lambda: busy_solvers(first) or path.exists())
        forked = {pid for pid in first.processes() if "fork_server" in command_line(pid)}
        ranks = set(map(parent_of, forked)) - forked - {0}
        os.kill(max(ranks), signal.SIGKILL)
        poll_until(lambda: not first.processes(), "nothing is left of the service")
        assert first.process.wait() != 0
        assert path.exists() or list((first.box() / "journal").iterdir())
    with serving(tmp_path, ranks=2) as second:
        assert second.reply(path)["result"]["resultcode"] == 20
        assert second.stop() == 0


def test_nothing_outlives_the_launching_process(tmp_path: Path) -> None:
    with serving(tmp_path, ranks=2) as running:
        running.submit("hard", **hard_job(tmp_path))
        poll_until(lambda: busy_solvers(running))
        running.pids |= set(running.processes())
        shared = shared_by_mpi(ranks_of(running).values())
        assert {path.endswith(" (deleted)") for path in shared} == {True}
        running.process.kill()
        running.process.wait()
        poll_until(lambda: not running.processes(), "nothing is left of the service")
        assert session_folders_of(list(running.pids)) == []


def places_of(service: Running, temporary: Path) -> set[Path]:
    """Return the paths of a service's processes in folders that all users share."""
    service.pids |= set(service.processes())
    folders = session_folders_of(list(service.pids))
    numbers = {str(pid) for pid in service.pids}
    named = [path for path in temporary.iterdir() if numbers & set(re.findall("[0-9]+", path.name))]
    return {*folders, *named}


def test_the_next_start_removes_what_a_killed_service_left_and_nothing_of_a_living_one(
    tmp_path: Path,
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    env = {"TMPDIR": str(temporary)}
    with serving(tmp_path / "living", ranks=2, env=env) as living:
        long = living.submit("long", application="SLEEP")
        with serving(tmp_path / "killed", ranks=2, env=env) as killed:
            left = places_of(killed, temporary)
            killed.kill()
        # The paths may be gone: any start by this user removes them, also a start by another test.
        assert {"mallob", "edu"} == {re.split("[-_.]", path.name)[0] for path in left}
        assert len(left) == 4, left
        held = places_of(living, temporary)
        with serving(tmp_path / "next", ranks=2, env=env) as following:
            assert not any(path.exists() for path in left)
            assert all(path.exists() for path in held)
            assert following.stop() == 0
        living.interrupt("long")
        assert living.reply(long)["result"]["outcome"] == "interrupted"
        assert living.stop() == 0
    assert list(temporary.iterdir()) == []
    assert not any(path.exists() for path in held)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_stops_the_service_cleanly_and_its_jobs_run_again(
    number: signal.Signals, tmp_path: Path
) -> None:
    with serving(tmp_path, ranks=2) as first:
        path = first.submit("hard", **hard_job(tmp_path))
        held = first.submit("held", application="NOOP", arrival=1e6)
        poll_until(lambda: busy_solvers(first))
        assert session_folders_of(first.processes())
        assert first.stop(number) == 0, first.output
        assert first.processes() == []
        assert session_folders_of(list(first.pids)) == []
        assert "Traceback" not in first.output
        assert not path.exists()
        assert not list((tmp_path / "tmp").iterdir())
    with serving(tmp_path, ranks=2) as second:
        second.await_event("scheduled")
        for name in ("hard", "held"):
            second.interrupt(name)
        assert second.reply(path)["result"]["outcome"] == "interrupted"
        assert second.reply(held)["result"]["outcome"] == "interrupted"
        assert second.stop(number) == 0


def test_a_failed_rank_ends_the_service_with_one_line_that_names_it(tmp_path: Path) -> None:
    program = Path(__file__).parent / "programs" / "loses_a_peer.py"
    done = run(tmp_path / "api", command=[sys.executable, program])
    assert done.code != 0
    assert "rank 3 has failed" in done.err
    assert "Traceback" not in done.err
