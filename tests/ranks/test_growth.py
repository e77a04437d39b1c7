"""Ranks that join a running service: they take work at once, and are lost or leave as all others do."""

import os
import re
import signal
from pathlib import Path

import pytest
from faults.processes import parent_of
from running import Finished, Running, needs_mpiexec, run, serving, session_folders_of, started, with_apps
from test_rank_losses import IS_MPICH, await_generation, is_fork_server
from waiting import DEADLINE_S, poll_until

from mallob_py.service.store.lock import is_locked
from mallob_sat.generate import commutativity

pytestmark = [
    needs_mpiexec,
    pytest.mark.slow,
    pytest.mark.skipif(not IS_MPICH, reason="other launchers end all ranks when one dies"),
]

SURVIVE = ("--rank-loss", "survive")


def resize(service: Running, change: str) -> Finished:
    return run("resize", change, "--api-dir", service.api_dir)


def grow(service: Running, by: int) -> dict[int, int]:
    """Let ranks join; return rank -> process of each new rank."""
    before = joined(service)
    grown = resize(service, f"+{by}")
    assert (grown.code, grown.err) == (0, ""), service.output
    return {rank: pid for rank, pid in joined(service).items() if rank not in before}


def joined(service: Running) -> dict[int, int]:
    """Return rank -> process of all ranks that have joined so far."""
    found = re.findall(r"rank (\d+) \(process (\d+) on", service.output)
    return dict(sorted((int(rank), int(pid)) for rank, pid in found))


def logged_as(service: Running) -> list[int]:
    """Return the numbers of the ranks that have logged `joined`."""
    return sorted(event["rank"] for event in service.events("joined"))


def workers_of(service: Running, rank: int) -> list[int]:
    """Return the worker processes of the rank whose process is `rank`."""
    forked = [pid for pid in service.processes() if is_fork_server(pid)]
    return [pid for pid in forked if is_fork_server(parent_of(pid)) and parent_of(parent_of(pid)) == rank]


def test_ranks_that_join_take_work_and_may_die_or_leave(tmp_path: Path) -> None:
    # There are no spare processes: all worker processes are at work.
    with serving(tmp_path, *SURVIVE, "--warm", "0", ranks=2) as service:
        running = service.submit("running", application="SLEEP", wallclock_limit="1h")
        service.await_event("started")
        first = grow(service, 2)
        assert list(first) == [2, 3]
        poll_until(lambda: all(workers_of(service, pid) for pid in first.values()), "they have work")
        poll_until(lambda: logged_as(service) == [2, 3], "their logs have begun")
        os.kill(first[2], signal.SIGKILL)
        await_generation(service, 3)
        assert list(grow(service, 1)) == [4], "numbers are not given twice"
        poll_until(lambda: logged_as(service) == [2, 3, 4], "nor in logs")
        left = resize(service, "-2")
        assert left.out.startswith("2 ranks, before 4; it took ")
        assert not [pid for pid in joined(service).values() if pid in service.processes()]
        service.interrupt("running")
        assert service.reply(running)["result"]["outcome"] == "interrupted"
        assert service.ask("later", application="NOOP")["result"]["resultcode"] == 10
        assert "Traceback" not in service.output
        assert service.stop() == 0
        assert service.processes() == []
        assert session_folders_of([*service.pids]) == []


def test_a_service_of_one_rank_grows_and_shrinks_by_default(tmp_path: Path) -> None:
    with serving(tmp_path, ranks=1) as service:
        assert resize(service, "-1").err == "mallob-py resize: there is 1 rank, and one has to stay\n"
        running = service.submit("running", application="SLEEP", wallclock_limit="1h")
        service.await_event("started")
        assert list(grow(service, 2)) == [1, 2]
        left = resize(service, "=1")
        assert left.out.startswith("1 rank, before 3; it took "), left.err
        service.interrupt("running")
        assert service.reply(running)["result"]["outcome"] == "interrupted"
        assert service.stop() == 0
        assert service.processes() == []
        assert service.output.count("accepting jobs") == 1


def test_jobs_go_on_with_those_who_joined_when_all_but_one_of_the_first_ranks_die(tmp_path: Path) -> None:
    with serving(tmp_path, *SURVIVE, ranks=2) as service:
        running = service.submit("running", application="SLEEP", wallclock_limit="1h")
        service.await_event("started")
        grow(service, 2)
        holder = int((service.box() / ".lock").read_text().split()[0])
        os.kill(holder, signal.SIGKILL)
        await_generation(service, 3)
        service.interrupt("running")
        assert service.reply(running)["result"]["outcome"] == "interrupted"
        assert service.ask("later", application="NOOP")["result"]["resultcode"] == 10
        assert service.stop() == 0
        ended = [event["outcome"] for event in service.events("ended")]
        assert sorted(ended) == ["interrupted", "result"]
        assert service.processes() == []


def test_ranks_that_joined_do_not_speak_for_the_first_ones_when_these_are_all_killed(tmp_path: Path) -> None:
    with serving(tmp_path, *SURVIVE, "--restarts", "5", ranks=2) as service:
        running = service.submit("running", application="SLEEP", wallclock_limit="1h")
        service.await_event("started")
        first = {parent_of(pid) for pid in service.processes() if is_fork_server(pid)}
        founders = {pid for pid in first if not is_fork_server(pid)}
        newcomers = set(grow(service, 1).values())
        assert len(founders) == 2
        assert not founders & newcomers
        for pid in founders:
            os.kill(pid, signal.SIGKILL)
        poll_until(lambda: service.output.count("accepting jobs") == 2, lambda: service.output)
        poll_until(lambda: not newcomers & set(service.processes()), "nothing is left of the ranks before")
        service.interrupt("running")
        assert service.reply(running)["result"]["outcome"] == "interrupted"
        assert service.stop() == 0


def test_a_rank_that_joins_a_host_whose_first_rank_has_left_gets_large_inputs(tmp_path: Path) -> None:
    env = {"MALLOB_PY_RANKS_PER_HOST": "2"} | with_apps(BULK="rank_apps:Bulk")
    with serving(tmp_path, *SURVIVE, ranks=3, env=env) as service:
        drained = run("drain", "0", "--api-dir", service.api_dir)
        assert (drained.code, drained.err) == (0, ""), service.output
        assert list(grow(service, 1)) == [3]
        holder = int((service.box() / ".lock").read_text().split()[0])
        os.kill(holder, signal.SIGKILL)  # rank 1, which holds the lock; rank 3 is then alone on its host
        await_generation(service, 2)
        configuration = {"size_bytes": 1 << 20, "folder": str(tmp_path), "workers": 2}
        reply = service.ask("bulk", application="BULK", configuration=configuration)
        assert reply["result"]["outcome"] == "result"
        assert service.stop() == 0
        assert session_folders_of([*service.pids]) == []


@pytest.mark.parametrize("standard_input", [False, True])
def test_a_single_job_takes_orders_too(standard_input: bool, tmp_path: Path) -> None:
    orders = tmp_path / "orders"
    formula = tmp_path / "hard.cnf"
    formula.write_text(commutativity(16).text(""))
    where = ("--orders", orders)
    assert "nobody takes orders in" in run("resize", "+1", *where).err
    job = ("solve", "-n", "2", *where, "-" if standard_input else formula)
    with formula.open() as text, started(*job, stdin=text) as (process, _):
        poll_until(lambda: is_locked(orders / "orders"), "it takes orders")
        assert "is in use" in run("solve", *where, formula).err
        assert run("resize", "+2", *where).out.startswith("4 ranks, before 2")
        first = run("drain", "0", "--grace", "0", *where)
        if standard_input:
            assert first.err == "mallob-py drain: rank 0 has to stay: it has standard input\n"
        else:
            assert first.out.startswith("3 ranks, before 4"), first.err
        left = run("resize", "=1", *where)
        assert left.out.startswith("1 rank, before "), left.err
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 128 + signal.SIGTERM
        assert "s UNKNOWN" in out
    assert "nobody takes orders in" in run("resize", "+1", *where).err
