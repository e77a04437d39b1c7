"""A keeper: a process that looks after one job, even if the scheduler ends: `python -m ... FOLDER LOCK`.

The keeper holds the lock of the job's folder, which tells a restarted scheduler that the job has a keeper. It
writes `begun.json` before the program starts, and `status.json` when none of the job's processes is left, so
no job runs twice. It ends the job when the job's time is over, and on a signal: by SIGTERM to the job's
process group, and after some seconds by SIGKILL to all processes that are left. It adopts orphaned processes
of the job, and kills them when the job ends.

The program of a job on another node has a guard there (`remote`), which does the same by the keeper's orders.
If jobs are bound to cores, SIGUSR1 tells the keeper that the job has a new `allotment.json`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from mallob_py.batch.live.launch import (
    AGAIN_S,
    ALLOTMENT,
    SIGNALS,
    Begun,
    Launch,
    RunEnd,
    Status,
    is_passing,
    open_output,
    read_allotment,
    reserve,
    write_atomically,
    write_in_the_end,
)
from mallob_py.runtime.processes import STOP_SIGNALS, descendants, die_with, no_orphans

#: the environment variable that lists the cores that a bound job may use on its script's node
CORES_VARIABLE = "CORES"
#: the longest wait [s] that the system call accepts
_WAIT_MAX_S = 1e6


def main() -> int:
    folder, lock = Path(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(lock, False)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    launch = msgspec.json.decode((folder / "launch.json").read_bytes(), type=Launch)
    if not _announce(folder):
        with contextlib.suppress(OSError):  # the scheduler, which requested the end, assumes this status
            write_atomically(folder / "status.json", msgspec.json.encode(Status(RunEnd.CANCELLED)))
        return 0
    started_s = time.monotonic()
    with no_orphans():
        if launch.remote:  # imported late: keepers of local jobs do not need it
            from mallob_py.batch.live.remote import keep_remotely

            status = keep_remotely(folder, launch)
        else:
            status = _keep_here(folder, launch)
    status = msgspec.structs.replace(status, ran_s=time.monotonic() - started_s)
    write_in_the_end(folder / "status.json", msgspec.json.encode(status))
    return 0


def _keep_here(folder: Path, launch: Launch) -> Status:
    with contextlib.ExitStack() as stack:
        try:
            output = stack.enter_context(open_output(folder, launch.output))
            errors = stack.enter_context(open_output(folder, launch.errors)) if launch.errors else output
        except OSError as error:
            return Status(RunEnd.NOT_STARTED, error=f"{error.filename}: {error.strerror}")
        return keep(launch, output.fileno(), folder / ALLOTMENT, errors=errors.fileno())


def _announce(folder: Path) -> bool:
    """Write down that the program is about to start; wait while the disk is full.

    Return False if the job's end is requested meanwhile. Raises OSError for errors that do not pass.
    """
    while True:
        try:
            reserve(folder / "status.json")  # the job itself may fill the disk
            write_atomically(folder / "begun.json", msgspec.json.encode(Begun(os.getpid())))
        except OSError as error:
            if not is_passing(error):
                raise
        else:
            return True
        if signal.sigtimedwait(STOP_SIGNALS, AGAIN_S) is not None:
            return False


def keep(
    launch: Launch,
    output: int,
    allotment: Path,
    begun: Callable[[], object] = int,
    *,
    errors: int = subprocess.STDOUT,
) -> Status:
    """Run a job on this node until it ends or must be ended; return its status.

    `output`, `errors`: descriptors for its output. `begun` is called as soon as the program runs.
    """
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
            stderr=errors,
            start_new_session=True,
            preexec_fn=begin,
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return Status(RunEnd.NOT_STARTED, error=str(error))
    begun()
    begun_s, limit_s = time.monotonic(), launch.limit_s
    while (ending := _wait(program, begun_s + limit_s)) is None:
        now = read_allotment(allotment)
        limit_s = now.limit_s
        bind(keeper, now.cores(cores))
    if ending is not RunEnd.EXITED:
        _end(program, time.monotonic() + launch.grace_s)
    return Status(ending, program.returncode)


def _wait(program: subprocess.Popen[bytes], until_s: float) -> RunEnd | None:
    """Wait until the program ends or must be ended; return how it ends. None: its allotment has changed."""
    while not _has_ended(program):
        if (left_s := until_s - time.monotonic()) <= 0.0:
            return RunEnd.OVER_TIME
        came = signal.sigtimedwait(SIGNALS, min(left_s, _WAIT_MAX_S))
        if came is not None and came.si_signo == signal.SIGUSR1:
            return None
        if came is not None and came.si_signo != signal.SIGCHLD:
            return RunEnd.CANCELLED
    return RunEnd.EXITED


def _has_ended(program: subprocess.Popen[bytes]) -> bool:
    """Reap ended processes that were adopted; return whether the program has ended."""
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
    """Send SIGTERM to the process group and wait for its end; kill the program if it still runs.

    `no_orphans` kills the other processes.
    """
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


#: the greatest number of passes over the processes: a program may choose its own cores again and again
_PASSES_MAX = 20


def bind(root: int, cores: Sequence[int]) -> None:
    """Bind all descendants of a process to exactly these cores.

    A process forked during a pass may have its parent's old cores, so passes are repeated until a pass
    changes nothing.
    """
    wanted = set(cores)
    for _ in range(_PASSES_MAX):
        is_bound = True
        for pid in descendants(root):
            with contextlib.suppress(OSError):  # the process has just ended
                for thread in map(int, os.listdir(f"/proc/{pid}/task")):
                    if os.sched_getaffinity(thread) != wanted:
                        is_bound = False
                        os.sched_setaffinity(thread, wanted)
        if is_bound:
            return


if __name__ == "__main__":
    sys.exit(main())
