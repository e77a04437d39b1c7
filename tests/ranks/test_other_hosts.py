"""Ranks that join on other hosts: here namespaces of this host, which a remote shell enters."""

import os
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from faults.processes import command_line, parent_of
from running import ROOT, Finished, Running, needs_mpiexec, run, serving, with_apps
from test_growth import SURVIVE, joined, workers_of
from test_rank_losses import IS_MPICH, await_generation
from waiting import poll_until

SHELL = ROOT / "tests/ranks/other_host.sh"


def _what_is_missing() -> str | None:
    try:
        with tempfile.TemporaryDirectory() as folder:
            env = os.environ | {"TMPDIR": folder}
            subprocess.run([SHELL, "node2", "true"], check=True, capture_output=True, env=env)
    except (OSError, subprocess.CalledProcessError):
        return "needs the right to make namespaces, as root has it"
    return None


pytestmark = [
    needs_mpiexec,
    pytest.mark.slow,
    pytest.mark.skipif(not IS_MPICH, reason="other launchers end all ranks when one dies"),
    pytest.mark.skipif(_what_is_missing() is not None, reason=str(_what_is_missing())),
]


def resize(service: Running, *arguments: str | Path) -> Finished:
    return run("resize", *arguments, "--api-dir", service.api_dir)


def grow(service: Running, change: str, hosts: str) -> dict[int, int]:
    """Let ranks join on these hosts; return rank -> process of each new rank."""
    before = joined(service)
    grown = resize(service, change, "--hosts", hosts, "--remote-shell", SHELL)
    assert (grown.code, grown.err) == (0, ""), service.output
    return {rank: pid for rank, pid in joined(service).items() if rank not in before}


def guards_of(service: Running) -> list[int]:
    return [pid for pid in service.processes() if "newcomer_process" in command_line(pid)]


def test_ranks_join_on_other_hosts_work_there_and_leave(tmp_path: Path) -> None:
    with serving(tmp_path, *SURVIVE, "--warm", "0", ranks=2, env=with_apps(BULK="rank_apps:Bulk")) as service:
        assert list(grow(service, "+3", "node2:2,node3")) == [2, 3, 4]
        assert list(grow(service, "+1", "node2")) == [5], "their host's folder is found again"
        configuration = {"size_bytes": 3 << 20, "folder": str(tmp_path), "workers": 6}
        reply = service.ask("bulk", application="BULK", configuration=configuration)
        (checksum,) = reply["result"]["solution"]
        found = {path.name: int(path.read_text()) for path in tmp_path.glob("[0-9]")}
        assert found == {str(index): checksum for index in range(6)}
        table = run("status", "--hosts", "--json", "--api-dir", service.api_dir).out
        assert '"node2"' in table
        left = run("drain", "node2", "--grace", "0", "--api-dir", service.api_dir)
        assert left.out.startswith("3 ranks, before 6"), left.err
        assert len(guards_of(service)) == 1
        assert service.ask("later", application="NOOP")["result"]["resultcode"] == 10
        assert service.stop() == 0
        assert service.processes() == []
        assert "Traceback" not in service.output


def test_a_host_that_is_lost_costs_its_own_ranks_only(tmp_path: Path) -> None:
    with serving(tmp_path, *SURVIVE, "--warm", "0", ranks=2) as service:
        running = service.submit("running", application="SLEEP", wallclock_limit="1h")
        service.await_event("started")
        first = grow(service, "+2", "node2")
        poll_until(lambda: all(workers_of(service, pid) for pid in first.values()), "they have work")
        for guard in guards_of(service):
            os.kill(guard, signal.SIGKILL)
        await_generation(service, 2)
        poll_until(lambda: not set(first.values()) & set(service.processes()), "nothing is left there")
        last = grow(service, "+1", "node2")
        poll_until(lambda: all(workers_of(service, pid) for pid in last.values()), "it has work")
        service.interrupt("running")
        assert service.reply(running)["result"]["outcome"] == "interrupted"
        assert service.stop() == 0
        assert service.processes() == []


def test_ranks_elsewhere_go_on_without_who_has_started_them_but_not_without_the_service(
    tmp_path: Path,
) -> None:
    with serving(tmp_path, *SURVIVE, "--warm", "0", ranks=3) as service:
        running = service.submit("running", application="SLEEP", wallclock_limit="1h")
        service.await_event("started")
        far = grow(service, "+1", "node2")
        os.kill(int((service.box() / ".lock").read_text().split()[0]), signal.SIGKILL)
        await_generation(service, 3)
        assert set(far.values()) < set(service.processes())
        service.interrupt("running")
        assert service.reply(running)["result"]["outcome"] == "interrupted"
        here = [pid for pid in service.processes() if not _is_below(pid, set(guards_of(service)))]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in here:
                with suppress(ProcessLookupError):  # a process may have ended meanwhile
                    os.kill(pid, number)
        poll_until(lambda: service.processes() == [], "nothing is left")


def _is_below(pid: int, guards: set[int]) -> bool:
    while pid > 1 and pid not in guards:
        pid = parent_of(pid)
    return pid in guards


def test_a_host_that_is_not_reached_is_named(tmp_path: Path) -> None:
    with serving(tmp_path, *SURVIVE, ranks=2) as service:
        shell = "sh -c 'echo no route to this host >&2; exit 3'"
        refused = resize(service, "+1", "--hosts", "node9", "--remote-shell", shell)
        assert refused.code == 2
        assert refused.err.endswith("rank 2 has ended on node9: no route to this host\n")
        refused = resize(service, "+3", "--hosts", "node9:2", "--remote-shell", shell)
        assert "3 further ranks are wanted, but the named hosts may have at most 2" in refused.err
        assert service.stop() == 0
