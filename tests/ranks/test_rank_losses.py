"""Ranks that are lost while the others go on with their processes: no restart, and one reply for each job."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from faults.processes import command_line, parent_of
from running import Running, marked_processes, needs_mpiexec, poll_until, run, serving, started, with_apps
from test_bags_move import APPS, NAPS, SUM, naps_until
from waiting import DEADLINE_S

from mallob_py.runtime.world.launch import Flavour, find_launcher
from mallob_py.service.telemetry.event_log import read_events
from mallob_py.service.telemetry.status import JobInterim, read_status

try:
    IS_MPICH = find_launcher().flavour is Flavour.HYDRA
except Exception:
    IS_MPICH = False

pytestmark = [
    needs_mpiexec,
    pytest.mark.slow,
    pytest.mark.skipif(not IS_MPICH, reason="other launchers end all ranks when one dies"),
]


def is_fork_server(pid: int) -> bool:
    return "fork_server" in command_line(pid)


def number_of(pid: int) -> int | None:
    """Return the number of a rank in MPI's world; None: the process is no rank, or has just ended."""
    if (title := re.search(r": rank (\d+)", command_line(pid))) is not None:
        return int(title[1])
    words: list[bytes] = []
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    numbers = (int(word.removeprefix(b"PMI_RANK=")) for word in words if word.startswith(b"PMI_RANK="))
    return next(numbers, None)


def ranks_of(service: Running) -> dict[int, int]:
    """Return number -> process of the ranks: the parents of fork servers."""
    forked = {pid for pid in service.processes() if is_fork_server(pid)}
    pids = {parent_of(pid) for pid in forked} - forked - {0}
    return {number: pid for pid in pids if (number := number_of(pid)) is not None}


def await_ranks(service: Running, ranks: dict[int, int]) -> None:
    """Wait until exactly these ranks run; fork servers of lost ranks may end a little later."""
    poll_until(lambda: ranks_of(service) == ranks, lambda: f"{ranks}, not {ranks_of(service)}")


def workers_of(service: Running) -> dict[int, int]:
    """Return worker process -> process of its rank."""
    found = {}
    for pid in service.processes():
        server = parent_of(pid)
        if (
            is_fork_server(pid)
            and is_fork_server(server)
            and (rank := number_of(parent_of(server))) is not None
        ):
            found[pid] = rank
    return found


def client_rank(service: Running, ranks: dict[int, int]) -> int:
    holder = int((service.box() / ".lock").read_text().split()[0])
    return next(number for number, pid in ranks.items() if pid == holder)


def victims_of(service: Running, wanted: Sequence[str], ranks: dict[int, int]) -> list[int]:
    client = client_rank(service, ranks)
    other = next(number for number in ranks if number not in (0, client))
    return [{"first": 0, "client": client, "other": other}[each] for each in wanted]


def ended_children(parent: int) -> list[str]:
    """Return the ended children of a process that were not waited for."""
    listed = subprocess.run(
        ["ps", "--ppid", str(parent), "-o", "stat=,args="], capture_output=True, text=True, check=False
    )
    return [line for line in listed.stdout.splitlines() if line.startswith("Z")]


def await_generation(service: Running, ranks: int) -> None:
    """Wait until all remaining ranks are in a generation of `ranks` ranks."""
    poll_until(
        lambda: sum(len(event["members"]) == ranks for event in service.events("generation")) >= ranks,
        lambda: f"{ranks} ranks go on\n{service.output}",
    )


@pytest.mark.parametrize(
    "wanted", [("other",), ("first",), ("client",), ("first", "client")], ids=lambda wanted: "+".join(wanted)
)
def test_ranks_that_die_take_their_workers_with_them_and_nothing_else(
    wanted: tuple[str, ...], tmp_path: Path
) -> None:
    # There are no spare processes: all worker processes are at work.
    with serving(tmp_path, "--warm", "0", ranks=4) as service:
        running = service.submit("running", application="SLEEP", wallclock_limit="1h")
        held = service.submit("held", application="NOOP", dependencies=["u.running"])
        poll_until(lambda: set(workers_of(service).values()) == {0, 1, 2, 3}, "all ranks have a worker")
        ranks, workers = ranks_of(service), workers_of(service)
        victims = victims_of(service, wanted, ranks)
        for victim in victims:
            os.kill(ranks[victim], signal.SIGKILL)
        await_generation(service, 4 - len(victims))
        poll_until(
            lambda: service.events("resumed"), lambda: f"a worker goes on\n{service.output}\n{workers}"
        )
        service.interrupt("running")
        assert service.reply(running)["result"]["outcome"] == "interrupted"
        assert service.reply(held)["result"]["resultcode"] == 10
        await_ranks(service, {number: pid for number, pid in ranks.items() if number not in victims})
        poll_until(lambda: ended_children(service.process.pid) == [], "their fork servers are let go of")
        assert service.output.count("accepting jobs") == 1
        assert service.ask("later", application="NOOP")["result"]["resultcode"] == 10
        assert service.stop() == 0
        ended = [event["outcome"] for event in service.events("ended")]
        assert sorted(ended) == ["interrupted", "result", "result"]
        assert "Traceback" not in service.output
        assert "crashed" not in service.output
        assert service.processes() == []


@pytest.mark.parametrize("wanted", ["other", "client"])
def test_a_rank_that_hangs_is_found_out_and_the_others_go_on(wanted: str, tmp_path: Path) -> None:
    with serving(tmp_path, "--rank-timeout", "4s", ranks=3) as service:
        running = service.submit("running", application="SLEEP", wallclock_limit="3s")
        service.await_event("started")
        ranks = ranks_of(service)
        (victim,) = victims_of(service, [wanted], ranks)
        os.kill(ranks[victim], signal.SIGSTOP)
        await_generation(service, 2)
        named = f"rank {victim} (process {ranks[victim]} on {os.uname().nodename})"
        poll_until(lambda: named in service.output, lambda: service.output)
        poll_until(lambda: not Path(f"/proc/{ranks[victim]}").exists(), "it is ended")
        assert service.reply(running)["result"]["outcome"] == "wallclock-limit"
        assert service.ask("later", application="NOOP")["result"]["resultcode"] == 10
        assert service.output.count("accepting jobs") == 1
        assert service.stop() == 0


def test_several_clients_end_up_on_one_rank_and_all_their_jobs_are_answered(tmp_path: Path) -> None:
    with serving(tmp_path, "--clients", "3", ranks=3) as service:
        replies = [service.submit(f"job{client}", client, application="SLEEP") for client in range(3)]
        poll_until(lambda: len(service.events("accepted")) == 3)
        ranks = ranks_of(service)
        for left, victim in ((2, 0), (1, 2)):
            os.kill(ranks[victim], signal.SIGKILL)
            await_generation(service, left)
        for client, reply in enumerate(replies):
            assert not reply.exists()
            service.interrupt(f"job{client}", client)
            assert service.reply(reply)["result"]["outcome"] == "interrupted"
        for client in range(3):
            assert service.ask(f"later{client}", client, application="NOOP")["result"]["resultcode"] == 10
        assert service.output.count("accepting jobs") == 1
        assert service.stop() == 0


def test_a_bag_is_exact_whichever_ranks_are_lost(tmp_path: Path) -> None:
    with serving(tmp_path, ranks=4, env=APPS) as service:
        reply = service.submit("naps", application="NAPS", configuration=naps_until(tmp_path / "go"))
        poll_until(lambda: len(service.events("started")) >= 4, "four workers")
        for left, wanted in ((3, "other"), (2, "client")):
            ranks = ranks_of(service)
            (victim,) = victims_of(service, [wanted], ranks)
            os.kill(ranks[victim], signal.SIGKILL)
            await_generation(service, left)
        (tmp_path / "go").touch()
        result = service.reply(reply)["result"]
        assert (result["value"], result["tasks"]) == (SUM, NAPS)
        assert service.output.count("accepting jobs") == 1
        assert service.stop() == 0
        assert "Traceback" not in service.output


@pytest.mark.parametrize("wanted", ["other", "client"])
def test_the_best_offer_outlives_a_rank(wanted: str, tmp_path: Path) -> None:
    def interim() -> object:
        status = read_status(service.api_dir)
        job = None if status is None else status.job("u.descends", client=0)
        return job and job.interim

    with serving(tmp_path, ranks=3, env=with_apps(DESCEND="rank_apps:Descend")) as service:
        reply = service.submit("descends", application="DESCEND")
        poll_until(lambda: interim() == JobInterim("cost", True, 5, 3), "all have offered")
        ranks = ranks_of(service)
        (victim,) = victims_of(service, [wanted], ranks)
        os.kill(ranks[victim], signal.SIGKILL)
        await_generation(service, 2)
        # Ranks other than the client's repeat the interim results that the client may not have got.
        poll_until(lambda: interim() == JobInterim("cost", True, 5, 3), "the client knows")
        service.interrupt("descends")
        result = service.reply(reply)["result"]
        assert (result["resultcode"], result["value"], result["complete"]) == (10, 5, False)
        assert service.stop() == 0


@pytest.mark.parametrize("lost", [0, 1])
def test_jobs_of_two_clients_with_limits_go_on_when_one_rank_has_both(lost: int, tmp_path: Path) -> None:
    rules = tmp_path / "users.toml"
    rules.write_text("[default]\nactive-jobs = 2\n")
    with serving(tmp_path, "--clients", "2", "--users", str(rules), ranks=2) as service:
        first = service.submit("first", 1 - lost, application="SLEEP")
        service.await_event("started")
        waiting = [
            service.submit(f"next{client}", client, application="SLEEP", wallclock_limit="1s")
            for client in range(2)
        ]
        poll_until(lambda: len(service.events("accepted")) == 3)
        ranks = ranks_of(service)
        holder = int((service.box(lost) / ".lock").read_text().split()[0])
        os.kill(holder, signal.SIGKILL)
        assert holder in ranks.values()
        await_generation(service, 1)
        assert not first.exists()
        service.interrupt("first", 1 - lost)
        assert service.reply(first)["result"]["outcome"] == "interrupted"
        for reply in waiting:
            assert service.reply(reply)["result"]["outcome"] == "wallclock-limit"
        for client in range(2):
            assert service.ask(f"later{client}", client, application="NOOP")["result"]["resultcode"] == 10
        assert service.stop() == 0
        assert "Traceback" not in service.output


def test_ranks_that_all_die_are_started_again(tmp_path: Path) -> None:
    with serving(tmp_path, ranks=2) as service:
        running = service.submit("running", application="SLEEP")
        service.await_event("started")
        pids = ranks_of(service).values()
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: no rank goes on alone
            for pid in pids:
                os.kill(pid, number)
        poll_until(lambda: service.output.count("accepting jobs") == 2, lambda: service.output)
        service.interrupt("running")
        assert service.reply(running)["result"]["outcome"] == "interrupted"
        assert service.stop() == 0


def await_event_of_all(ranks: int, event: str, logs: Path) -> None:
    """Wait until all ranks have logged an event, because a rank that waits inside MPI cannot be lost."""

    def there() -> set[int]:
        events = read_events(logs) if logs.exists() else []
        return {one.rank for one in events if one.event == event}

    poll_until(lambda: len(there()) == ranks, f"all ranks log {event!r}")


@pytest.mark.parametrize("victim", [0, 2])
def test_a_program_that_loses_a_rank_still_gives_its_result(victim: int, tmp_path: Path) -> None:
    naps = json.dumps(naps_until(tmp_path / "go"))
    job = ("run", "NAPS", "-n", "4", "--configuration", naps, "--log-dir", tmp_path / "logs")
    with started(*job, env=APPS) as (process, mark):
        await_event_of_all(4, "started", tmp_path / "logs")
        titles = {command_line(pid).strip(): pid for pid in marked_processes(mark)}
        os.kill(titles[f"mallob-py run: rank {victim}"], signal.SIGKILL)
        (tmp_path / "go").touch()
        out, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, err
        assert json.loads(out)["result"]["value"] == SUM
        assert f"rank {victim}" in err


#: program that runs a command whose rank 0 dies when only its end is left to do
DIES_AT_THE_END = """
import os, signal, sys
from pathlib import Path
from test_rank_losses import await_event_of_all
from mallob_py.cli.main import main
from mallob_py.runtime.rank import Rank

stop = Rank.stop

def die_or_stop(rank):
    if rank.rank == 0:
        await_event_of_all(2, "start", Path(sys.argv[-1]))
        os.kill(os.getpid(), signal.SIGKILL)
    stop(rank)

Rank.stop = die_or_stop
sys.exit(main())
"""


@pytest.mark.parametrize("command", ["solve", "run"])
def test_who_takes_over_after_the_last_answer_does_not_give_it_again(command: str, tmp_path: Path) -> None:
    formula, proof = tmp_path / "formula.cnf", tmp_path / "proof.drat"
    formula.write_text("p cnf 1 2\n1 0\n-1 0\n")
    given = {"solve": ["--quiet", f"--proof={proof}", str(formula)], "run": ["NOOP"]}[command]
    done = run(
        *(command, "-n", "2", *given, "--log-dir", tmp_path / "logs"),
        command=[sys.executable, "-c", DIES_AT_THE_END],
        env={"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        cwd=Path(__file__).parent.parent,
    )
    assert "was ended by SIGKILL; the others go on" in done.err, done.err
    assert "does not answer" not in done.err
    assert len(done.out.splitlines()) == 1, (done.out, done.err)
    if command == "solve":
        assert (done.out, done.code) == ("s UNSATISFIABLE\n", 20)
        assert proof.stat().st_size > 0
    else:
        assert (json.loads(done.out)["result"]["outcome"], done.code) == ("result", 0)
