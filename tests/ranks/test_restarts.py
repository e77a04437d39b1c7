"""Ranks that crash or hang are noticed, named and started again; no job is lost, and no job can prevent all
starts.

The options here forbid that other ranks go on without them, which `test_rank_losses.py` tests.
"""

import contextlib
import os
import signal
from pathlib import Path

import pytest
from faults.processes import command_line, parent_of
from running import Running, needs_mpiexec, poll_until, serving, with_apps
from waiting import DEADLINE_S, PATIENCE

from mallob_py.service.telemetry.event_log import parts_of, runs_of

pytestmark = [needs_mpiexec, pytest.mark.slow]

RESTART = ("--rank-loss", "restart")
APPS = with_apps(POISON="rank_apps:Poison")
#: number of crashes after which a job that was running at each of them is not run again
CRASHES_MAX = 3


def ranks_of(service: Running) -> list[int]:
    """Return the ranks: all parents of fork servers that are not fork servers themselves; 0, the parent of an
    ended process, is left out.
    """
    forked = {pid for pid in service.processes() if "fork_server" in command_line(pid)}
    return sorted({parent_of(pid) for pid in forked} - forked - {0})


def starts(service: Running) -> int:
    return service.output.count("accepting jobs")


def await_restart(service: Running, number: int = 1) -> None:
    poll_until(lambda: starts(service) == 1 + number, f"restart {number}\n{service.output}")


@pytest.mark.parametrize(("ranks", "number"), [(1, signal.SIGSEGV), (4, signal.SIGKILL)])
def test_a_rank_that_dies_has_the_ranks_started_again_and_jobs_go_on(
    ranks: int, number: signal.Signals, tmp_path: Path
) -> None:
    with serving(tmp_path, *RESTART, ranks=ranks) as service:
        running = service.submit("running", application="SLEEP", wallclock_limit="1500ms")
        held = service.submit("held", application="NOOP", dependencies=["u.running"])
        service.await_event("started")
        before = ranks_of(service)
        assert len(before) == ranks
        os.kill(before[-1], number)
        await_restart(service)
        assert service.reply(running)["result"]["outcome"] == "wallclock-limit"
        assert service.reply(held)["result"]["resultcode"] == 10
        assert not set(before) & set(ranks_of(service))
        crashed, _ = runs_of(service.log_dir)
        assert '"event":"started"' in "".join(path.read_text() for path in parts_of(crashed))
        assert service.stop() == 0
        assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_rank_that_hangs_is_named_and_the_ranks_are_started_again(ranks: int, tmp_path: Path) -> None:
    with serving(tmp_path, *RESTART, "--rank-timeout", "4s", ranks=ranks) as service:
        running = service.submit("running", application="SLEEP", wallclock_limit="1500ms")
        service.await_event("started")
        hung = ranks_of(service)[-1]
        os.kill(hung, signal.SIGSTOP)
        await_restart(service)
        assert service.reply(running)["result"]["outcome"] == "wallclock-limit"
        named = f"process {hung} on {os.uname().nodename}) does not answer any more"
        assert ("no rank answers any more" if ranks == 1 else named) in service.output
        poll_until(lambda: not Path(f"/proc/{hung}").exists(), "it is ended")
        assert service.stop() == 0


def test_a_whole_service_that_was_stopped_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    timeout_s = 0.75 * PATIENCE
    with serving(tmp_path, "--rank-timeout", f"{timeout_s:g}s", ranks=3) as service:
        before = ranks_of(service)
        everybody = service.processes()
        for pid in everybody:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        # Wait much longer than ranks may be silent.
        with pytest.raises(AssertionError, match="not in time"):
            poll_until(lambda: False, timeout_s=timeout_s + 5.0)
        for pid in everybody:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        for number in range(30):
            assert service.ask(f"after-{number}", application="SLEEP", wallclock_limit="100ms")["result"]
        assert ranks_of(service) == before
        assert starts(service) == 1
        assert service.stop() == 0


@pytest.mark.parametrize("rank_loss", ["restart", "survive"])
def test_a_job_that_ends_the_service_each_time_gets_an_error_reply_and_others_their_answers(
    rank_loss: str, tmp_path: Path
) -> None:
    with serving(tmp_path, "--rank-loss", rank_loss, ranks=2, env=APPS) as service:
        # These jobs run at the first crashes, too, so they are suspects as well.
        innocent = [
            service.submit(f"innocent-{number}", application="SLEEP", wallclock_limit="3s")
            for number in range(2)
        ]
        poll_until(lambda: len(service.events("started")) >= 2)
        configuration = {"signal": "SIGSEGV"}
        poison = service.submit("poison", application="POISON", configuration=configuration)
        message = service.reply(poison)["error"]["message"]
        times = int(message.removeprefix("the service crashed ").split()[0])
        assert times >= CRASHES_MAX, message
        for path in innocent:
            assert service.reply(path)["result"]["outcome"] == "wallclock-limit"
        # The launching process reports crashes; messages of the ranks themselves may be lost.
        if rank_loss == "restart":
            assert times == service.output.count("the ranks have crashed") == CRASHES_MAX, service.output
        assert service.stop() == 0


def test_after_too_many_restarts_the_service_ends_with_an_error_and_keeps_its_jobs(tmp_path: Path) -> None:
    with serving(tmp_path, *RESTART, "--restarts", "1", ranks=2) as service:
        path = service.submit("kept", application="SLEEP", wallclock_limit="1h")
        poll_until(lambda: service.events("started"))
        os.kill(ranks_of(service)[0], signal.SIGKILL)
        await_restart(service)
        os.kill(poll_until(lambda: ranks_of(service))[0], signal.SIGKILL)
        assert service.process.wait(DEADLINE_S) != 0
        assert "not started again after 1 restarts" in service.output
        assert service.processes() == []
        assert not path.exists()
        assert list((service.box() / "journal").iterdir())


def test_a_service_that_waits_for_its_restart_ends_when_asked_to(tmp_path: Path) -> None:
    with serving(tmp_path, *RESTART, ranks=2) as service:
        os.kill(ranks_of(service)[0], signal.SIGKILL)
        poll_until(lambda: "restart 1" in service.output)
        assert service.stop() in (0, 128 + signal.SIGTERM)
        assert service.processes() == []
