"""The parent of a rank under MPICH's mpiexec: what it prints and passes on, how it ends, and how much memory
it takes.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import DEADLINE_S, poll_until

from mallob_py.runtime.world import guard
from mallob_py.runtime.world.guard import CRASHED, epitaph, is_needed

#: program of a rank that prints its process id, and executes lines of Python from its input
_RANK = """
import os, signal, sys
from mallob_py.runtime.world import guard
ballast = bytearray(16 << 20)
guard.stand_guard()
ballast[:] = b"x" * len(ballast)
print(os.getpid(), flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""

#: program of a guard with a short time limit, whose rank hangs
_RANK_THAT_HANGS = """
import os, signal
from mallob_py.runtime.world.guard_process import PASSED_ON, guard
signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
reader, writer = os.pipe()
if (rank := os.fork()) == 0:
    os.write(1, b"!")
    signal.alarm(300)
    signal.pause()
os.close(writer)
guard(rank, reader, grace_s=0.1)
"""


class Guarded:
    """A guard with its rank; the test is their process manager."""

    def __init__(self) -> None:
        self.manager, theirs = socket.socketpair()
        self.manager.settimeout(DEADLINE_S)
        with theirs:
            env = {"PMI_FD": str(theirs.fileno()), "HYDI_CONTROL_FD": "0", "PMI_RANK": "3"}
            assert is_needed(env)
            self.process = subprocess.Popen(
                [sys.executable, "-c", _RANK],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=dict(os.environ) | env,
                pass_fds=[theirs.fileno()],
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._input, self._output = self.process.stdin, self.process.stdout
        self._errors = self.process.stderr
        self.rank = int(self._output.readline())

    def have(self, line: str) -> None:
        """Have the rank execute this line of Python to its end."""
        self.start(line)
        assert self._output.readline() == "done\n"

    def start(self, line: str) -> None:
        print(line, file=self._input, flush=True)

    def end(self) -> tuple[int, str]:
        """Wait for the guard's end; return its exit code and its messages."""
        return self.process.wait(DEADLINE_S), self._errors.read()

    def taken_leave(self) -> bytes:
        """Return what the process manager has received, after the guard's end."""
        return self.manager.recv(1 << 10)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_S)
        for each in (self.manager, self._input, self._output, self._errors):
            each.close()


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    made = Guarded()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("line", "how"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "was ended by SIGKILL"),
        (f"os._exit({CRASHED})", "has crashed"),
    ],
    ids=["killed", "crashed"],
)
def test_when_a_rank_dies_that_may_be_lost_its_guard_takes_leave_for_it(
    line: str, how: str, guarded: Guarded
) -> None:
    guarded.have("guard.may_be_lost()")
    guarded.start(line)
    assert guarded.taken_leave() == b"cmd=finalize\n"
    guarded.manager.send(b"cmd=finalize_ack\n")
    code, said = guarded.end()
    assert code == 0
    assert f"mallob-py: rank 3 (process {guarded.rank}) {how}; the others go on\n" in said


def test_a_rank_that_the_others_wait_for_dies_with_all_of_them(guarded: Guarded) -> None:
    guarded.start("os.kill(os.getpid(), signal.SIGSEGV)")
    assert guarded.end() == (-signal.SIGSEGV, "")
    assert guarded.taken_leave() == b""


def test_what_a_rank_returns_is_what_its_guard_returns(guarded: Guarded) -> None:
    guarded.start("os._exit(2)")
    assert guarded.end() == (2, "")


def test_signals_are_passed_on_even_those_that_come_first(guarded: Guarded) -> None:
    guarded.have("signal.signal(signal.SIGTERM, lambda *_: os._exit(5))")
    guarded.process.send_signal(signal.SIGTERM)
    assert guarded.end() == (5, "")


def test_a_rank_that_hangs_when_it_is_asked_to_end_is_killed_after_a_grace() -> None:
    process = subprocess.Popen([sys.executable, "-c", _RANK_THAT_HANGS], stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"!"
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == -signal.SIGKILL


def test_a_rank_does_not_outlive_its_guard(guarded: Guarded) -> None:
    guarded.process.kill()
    poll_until(lambda: not Path(f"/proc/{guarded.rank}").exists(), "the rank is gone")


def test_a_guard_keeps_nothing_of_what_its_rank_has_in_memory(guarded: Guarded) -> None:
    def own_mb() -> float:
        lines = Path(f"/proc/{guarded.process.pid}/smaps_rollup").read_text().splitlines()[1:]
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty")) / 1024

    poll_until(lambda: 1 < own_mb() < 6, lambda: f"{own_mb()} MB")


@pytest.mark.parametrize("mark", ["HYDI_CONTROL_FD", "PMI_HOSTNAME"], ids=["here", "elsewhere"])
def test_ranks_of_mpiexec_have_guards_on_all_hosts_and_those_of_slurm_have_none(mark: str) -> None:
    assert is_needed({"PMI_FD": "9", "PMI_RANK": "3", mark: "host"})
    assert not is_needed({"PMI_FD": "9", "PMI_RANK": "3", "PMI_JOBID": "7"})


def test_a_rank_notices_that_nobody_reads_what_it_says_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_link", "_parent", "_takes_leave"):
        monkeypatch.setattr(guard, name, getattr(guard, name))
    assert not guard.needs_no_farewell()
    guard.report_to(7)
    assert not guard.needs_no_farewell()
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert guard.needs_no_farewell()


def test_a_rank_that_may_be_lost_needs_no_end_of_mpi_that_would_wait_for_the_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("_link", "_parent", "_takes_leave"):
        monkeypatch.setattr(guard, name, getattr(guard, name))
    guard.may_be_lost()
    assert not guard.needs_no_farewell()  # no process reads the farewell
    reader, writer = os.pipe()
    guard.report_to(writer)
    guard.may_be_lost()
    assert guard.needs_no_farewell()
    os.close(reader)
    os.close(writer)


def test_of_a_rank_that_found_no_room_in_shared_memory_it_is_said_what_to_do() -> None:
    told = epitaph(2, 77, -signal.SIGBUS)
    assert told.startswith("rank 2 (process 77) was ended by SIGBUS: /dev/shm has no room;")
    assert "--shm-size" in told
