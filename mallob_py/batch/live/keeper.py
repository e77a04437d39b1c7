"""A process that looks after one job, whatever becomes of the scheduler: `python -m ... FOLDER LOCK`.

It holds the lock of the job's folder while it lives, so that a scheduler which has died and come again knows
whether the job is in good hands. What it does it writes down first: `begun.json` before the program starts,
and `status.json` when nothing of it is left; so nobody runs a job twice. It ends the job when its time is
over, and when it is told to by a signal: by SIGTERM to the job's process group, and by SIGKILL to all that
is left after a while. It is the parent of whatever the job leaves behind, which ends with the job.

The program of a job on another node has its guard there (`remote`), which does the same at this one's word.
Where jobs are bound to cores, SIGUSR1 says that `allotment.json` is another one for it.
"""

from __future__ import annotations

import contextlib
import enum
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from mallob_py.runtime.processes import STOP_SIGNALS, descendants, die_with, no_orphans

#: between SIGTERM and SIGKILL
GRACE_S = 5.0
#: the variable by which processes of a job are known if its keeper was killed
TOKEN = "MALLOB_PY_BATCH_JOB"
#: the variable with the numbers of the cores that a bound job may use where its script runs
CORES_VARIABLE = "CORES"
OUTPUT = "output"
ALLOTMENT = "allotment.json"
#: for which a keeper waits
SIGNALS = (signal.SIGCHLD, signal.SIGUSR1, *STOP_SIGNALS)
#: the system takes no number of seconds, however large
_WAIT_MAX_S = 1e6


class Allotment(msgspec.Struct, frozen=True):
    """Which cores of its node a job may use, and for how long it may run [s].

    The cores are divided into `of` parts, in their order. The job has these `parts`, each from where to where
    (0 to 1: all of it).
    """

    parts: list[tuple[int, float, float]]
    of: int
    limit_s: float

    def cores(self, all_cores: Sequence[int]) -> list[int]:
        """Of these. Raises ValueError."""
        each = len(all_cores) // self.of
        found = list[int]()
        for part, first, last in self.parts:
            own = all_cores[part * each : (part + 1) * each][round(first * each) : round(last * each)]
            if not own:
                raise ValueError(
                    f"{len(all_cores)} cores are too few for {self.of} slots with cores of their own"
                )
            found += own
        return found


class Launch(msgspec.Struct, frozen=True):
    """What to run, in which folder, with which environment, and how long at most.

    `remote`: the command that starts what follows it on another node; empty: the node is this one.
    `takes_orders`: it may say that it does. `allotment`: None if it may use all cores.
    """

    command: list[str]
    directory: str
    environment: dict[str, str]
    limit_s: float
    grace_s: float = GRACE_S
    remote: list[str] = []
    takes_orders: bool = False
    allotment: Allotment | None = None


class Begun(msgspec.Struct, frozen=True):
    """The program is about to start, or has."""

    keeper: int


class Ending(enum.Enum):
    """How a job has ended."""

    EXITED = "exited"
    CANCELLED = "cancelled"
    OVER_TIME = "over its required time"
    NOT_STARTED = "not started"
    KEEPER_KILLED = "keeper killed"
    #: it has not begun
    UNREACHABLE = "node not reached"
    NODE_LOST = "node lost"


class Status(msgspec.Struct, frozen=True):
    """`code`: the exit code, or less than 0 the signal that has ended it; None: none is known."""

    ending: Ending
    code: int | None = None
    ran_s: float = 0.0
    error: str = ""

    def __str__(self) -> str:
        if self.ending is not Ending.EXITED:
            return f"{self.ending.value}: {self.error}" if self.error else self.ending.value
        if self.code is not None and self.code < 0:
            return f"signal {-self.code}"
        return f"exit code {self.code}"


def write_atomically(path: Path, content: bytes) -> None:
    """It is there as a whole or not at all, also after a loss of power."""
    part = path.with_name(f".{path.name}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(part, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def main() -> int:
    folder, lock = Path(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(lock, False)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    launch = msgspec.json.decode((folder / "launch.json").read_bytes(), type=Launch)
    write_atomically(folder / "begun.json", msgspec.json.encode(Begun(os.getpid())))
    started_s = time.monotonic()
    with no_orphans():
        if launch.remote:
            from mallob_py.batch.live.remote import keep_remotely

            status = keep_remotely(folder, launch)
        else:
            with open(folder / OUTPUT, "ab") as output:
                status = keep(launch, output.fileno(), folder / ALLOTMENT)
    status = msgspec.structs.replace(status, ran_s=time.monotonic() - started_s)
    write_atomically(folder / "status.json", msgspec.json.encode(status))
    return 0


def keep(launch: Launch, output: int, allotment: Path, begun: Callable[[], object] = int) -> Status:
    """Run it on this node until it ends or is ended; `begun` is called when it runs."""
    keeper, cores = os.getpid(), sorted(os.sched_getaffinity(0))
    environment, own = launch.environment, cores

    def begin() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        die_with(keeper, signal.SIGKILL)
        os.sched_setaffinity(0, own)

    try:
        if launch.allotment is not None:
            own = launch.allotment.cores(cores)
            environment = environment | {CORES_VARIABLE: ",".join(map(str, own))}
        program = subprocess.Popen(
            launch.command,
            cwd=launch.directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=begin,
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return Status(Ending.NOT_STARTED, error=str(error))
    begun()
    begun_s, limit_s = time.monotonic(), launch.limit_s
    while (ending := _wait(program, begun_s + limit_s)) is None:
        now = read_allotment(allotment)
        limit_s = now.limit_s
        bind(keeper, now.cores(cores))
    if ending is not Ending.EXITED:
        _end(program, time.monotonic() + launch.grace_s)
    return Status(ending, program.returncode)


def _wait(program: subprocess.Popen[bytes], until_s: float) -> Ending | None:
    """For the program, its time, or somebody who asks for its end. None: for another allotment."""
    while not _has_ended(program):
        if (left_s := until_s - time.monotonic()) <= 0.0:
            return Ending.OVER_TIME
        came = signal.sigtimedwait(SIGNALS, min(left_s, _WAIT_MAX_S))
        if came is not None and came.si_signo == signal.SIGUSR1:
            return None
        if came is not None and came.si_signo != signal.SIGCHLD:
            return Ending.CANCELLED
    return Ending.EXITED


def _has_ended(program: subprocess.Popen[bytes]) -> bool:
    """Processes that the job has left to us are reaped meanwhile."""
    while program.returncode is None:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return False
        if found.si_pid == program.pid:
            program.wait()
        else:
            os.waitpid(found.si_pid, 0)
    return True


def _end(program: subprocess.Popen[bytes], until_s: float) -> None:
    """Ask the process group to end, and wait for all of it; no_orphans kills who is left then."""
    os.killpg(program.pid, signal.SIGTERM)
    while (left_s := until_s - time.monotonic()) > 0.0 and _group_lives(program):
        signal.sigtimedwait((signal.SIGCHLD,), left_s)
    if not _has_ended(program):
        program.kill()
        program.wait()


def _group_lives(program: subprocess.Popen[bytes]) -> bool:
    if not _has_ended(program):
        return True
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-program.pid, os.WNOHANG)[0]:
            pass
        return True
    return False


def read_allotment(path: Path) -> Allotment:
    return msgspec.json.decode(path.read_bytes(), type=Allotment)


def bind(root: int, cores: Sequence[int]) -> None:
    """All that has come from a process may use these cores, and no others, from now on."""
    for pid in descendants(root):
        with contextlib.suppress(OSError):  # it has just ended
            for thread in os.listdir(f"/proc/{pid}/task"):
                os.sched_setaffinity(int(thread), cores)


if __name__ == "__main__":
    sys.exit(main())
