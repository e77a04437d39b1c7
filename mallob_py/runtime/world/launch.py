"""Launching: starting a local MPI world from an ordinary process, acting for the world, and restarting it.

A process that calls `launch_world` acts for the world: the call returns rank 0's exit code (`mpi.leave`), and
stop signals to the process stop the world. Details:

- mpiexec runs in a session of its own, so that Ctrl-C in a terminal reaches this process only. This process
  passes the signal on as one that mpiexec forwards to the ranks instead of killing them: SIGTERM for MPICH
  and Intel (hydra), SIGUSR1 for Open MPI. Ranks listen to `mpi.stop_signals`. After a second Ctrl-C, or if
  ranks have not ended after STOP_GRACE_S, all ranks are killed.
- If this process dies, the kernel sends mpiexec the same signal.
- All processes of a world that outlive mpiexec become children of this process, and are killed: so after a
  crash no old process still holds a lock or writes to a file.
- Exit codes travel in a file (see exit_file.py). Ranks get an empty stdin unless rank 0 needs this process's:
  mpiexec would read it all. All ranks share this process's stdout and stderr.

`supervise` restarts a world that has crashed or hung, because all ranks are lost, or one rank whose loss is
not survived; thanks to the service's journal, the restart is a pause of some seconds. Ranks notice when
another rank hangs (`failure_detector.py`). A world that was stopped, that reported its exit code, or that
never came up is not restarted: the next world would fare no better.
"""

from __future__ import annotations

import contextlib
import enum
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mallob_py.restarts import RestartLimit
from mallob_py.runtime.memory import oom_kills
from mallob_py.runtime.notices import tell
from mallob_py.runtime.processes import (
    StopRequests,
    bury_orphans,
    die_with,
    import_places,
    python,
)
from mallob_py.runtime.world.exit_file import ExitFile
from mallob_py.runtime.world.mpi import (
    AFTER_CRASH_VARIABLE,
    STOP_SIGNAL_VARIABLE,
    LaunchError,
    WorldEnd,
    in_mpi_world,
)
from mallob_py.runtime.world.session_folder import nothing_left, temporary_folder

__all__ = [
    "LaunchError",
    "Launcher",
    "StopRequests",
    "WorldEnd",
    "find_launcher",
    "in_mpi_world",
    "launch_world",
    "run_world",
]

#: how long ranks may take to end after a stop signal
STOP_GRACE_S = 30.0
_FORCE_GRACE_S = 3.0
_VERSION_TIMEOUT_S = 20.0


class Flavour(enum.Enum):
    """The families of mpiexec, which differ in flags and signals."""

    HYDRA = "MPICH"
    OPEN_MPI = "Open MPI"


@dataclass(frozen=True, slots=True)
class Launcher:
    path: str
    flavour: Flavour

    def command(self, ranks: int) -> list[str]:
        if self.flavour is Flavour.HYDRA:
            return [self.path, "-n", str(ranks)]
        return [self.path, "-n", str(ranks), "--oversubscribe", "--bind-to", "none"]

    def environment(self) -> dict[str, str]:
        """Return the environment variables that ranks and launcher need besides the inherited ones."""
        if self.flavour is Flavour.OPEN_MPI and os.geteuid() == 0:
            return {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return {}

    @property
    def stop_signal(self) -> signal.Signals:
        """Return the signal that mpiexec forwards to its ranks without killing them."""
        return signal.SIGTERM if self.flavour is Flavour.HYDRA else signal.SIGUSR1


def find_launcher() -> Launcher:
    """Return the launcher: `mpiexec` beside this Python, else `mpiexec` or `mpirun` on PATH.

    Wheels of MPI install their mpiexec beside Python. Raises LaunchError.
    """
    beside = str(Path(sys.executable).parent)
    path = shutil.which("mpiexec", path=beside) or shutil.which("mpiexec") or shutil.which("mpirun")
    if path is None:
        raise LaunchError(
            "no mpiexec found beside Python or on PATH; pip install mpich, or load your site's MPI module"
        )
    try:
        answer = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"{path} does not run: {error}") from error
    said = answer.stdout + answer.stderr
    is_open_mpi = any(name in said for name in ("Open MPI", "OpenRTE", "PRRTE", "prterun"))
    return Launcher(path, Flavour.OPEN_MPI if is_open_mpi else Flavour.HYDRA)


def launch_world(ranks: int, argv: Sequence[str], env: Mapping[str, str] | None = None) -> int:
    """Run `python argv...` on `ranks` ranks of this machine and return rank 0's exit code.

    `env`: the ranks' environment (default: this process's). Must be called from the main thread. For a world
    that was stopped before it could answer, returns 128 + the signal's number, as a shell does; for a world
    that crashed, mpiexec's exit code.
    """
    with StopRequests() as stops:
        return run_world(ranks, argv, os.environ if env is None else env, stops).exit_code


def run_world(
    ranks: int,
    argv: Sequence[str],
    env: Mapping[str, str],
    stops: StopRequests,
    rank_timeout_s: float | None = None,
    *,
    keep_input: bool = False,
) -> WorldEnd:
    """Run a world to its end; no process of it is left afterwards. A single rank needs no mpiexec.

    The world is killed if all ranks of this host, once they have come up, are silent for one and a half times
    `rank_timeout_s`: so the ranks, which know more, may react first.
    """
    if ranks > 1:
        launcher = find_launcher()
        command, further, stop_signal = launcher.command(ranks), launcher.environment(), launcher.stop_signal
    else:
        command, further, stop_signal = [], {}, signal.SIGTERM

    def run(exit_file: ExitFile) -> WorldEnd:
        environment = {**env, **further, **import_places(), **exit_file.environment}
        world = _World([*command, *python(), *argv], environment, stop_signal, stops, keep_input)
        returned = world.wait(exit_file)
        return WorldEnd(None, False, returned, stops.first, world.was_silent, ranks > 1)

    return with_exit_file(run, rank_timeout_s)


def with_exit_file(run: Callable[[ExitFile], WorldEnd], rank_timeout_s: float | None) -> WorldEnd:
    """Run a world whose ranks report their end in a file; no process of it is left afterwards."""
    with _own_folder() as folder:
        exit_file = ExitFile(folder, rank_timeout_s)
        kills = oom_kills()
        with nothing_left():
            end = run(exit_file)
        said = exit_file.said()
    return replace(
        end,
        code=said.code,
        had_come_up=said.had_come_up,
        was_out_of_memory=oom_kills() > kills,
    )


class _World:
    """A running mpiexec, or a single rank."""

    def __init__(
        self,
        command: list[str],
        env: Mapping[str, str],
        stop_signal: signal.Signals,
        stops: StopRequests,
        keep_input: bool,
    ) -> None:
        self._stop_signal = stop_signal
        self._stops = stops
        self.was_silent = False
        try:
            self._process = subprocess.Popen(
                command,
                stdin=None if keep_input else subprocess.DEVNULL,
                env={**env, STOP_SIGNAL_VARIABLE: stop_signal.name},
                start_new_session=True,
                preexec_fn=_die_with_parent(stop_signal),
            )
        except OSError as error:
            raise LaunchError(f"cannot run {command[0]}: {error}") from error

    def wait(self, exit_file: ExitFile) -> int:
        process, stops = self._process, self._stops
        deadline_s = math.inf
        descriptor = os.pidfd_open(process.pid)
        try:
            while process.poll() is None:
                now = time.monotonic()
                if stops.first is not None and deadline_s == math.inf:
                    deadline_s = now + STOP_GRACE_S
                    process.send_signal(self._stop_signal)
                if stops.insisted or now > deadline_s:
                    self._end_by_force()
                    break
                if exit_file.is_silent(now) and deadline_s == math.inf:
                    tell(exit_file.complaint)
                    self.was_silent = True
                    deadline_s = now + exit_file.grace_s
                    process.send_signal(self._stop_signal)
                bury_orphans({process.pid})  # reap processes that lost ranks have left, such as fork servers
                stops.wait(exit_file.look_s, descriptor)
        finally:
            os.close(descriptor)
            if process.poll() is None:
                self._end_by_force()
        return process.returncode

    def _end_by_force(self) -> None:
        # mpiexec's helpers notice mpiexec's end and kill the ranks; remaining processes soon become orphans.
        self._process.kill()
        self._process.wait(_FORCE_GRACE_S)


@contextlib.contextmanager
def _own_folder() -> Iterator[Path]:
    """Context manager with a folder for the ranks' reports. Raises LaunchError."""
    try:
        folder = temporary_folder()
    except OSError as error:
        raise LaunchError(str(error)) from None
    try:
        yield folder.path
    finally:
        folder.remove()


def _die_with_parent(death_signal: signal.Signals) -> Callable[[], None]:
    """Return a function for a forked child to call, so that it is signalled when this process ends."""
    parent = os.getpid()
    return lambda: die_with(parent, death_signal)


RESTART_WINDOW_S = 600.0
#: first delay before a restart, which doubles at each restart, and longest delay
_BACKOFF_S = (1.0, 30.0)


def supervise(
    ranks: int,
    run: Callable[[int, Mapping[str, str], StopRequests], WorldEnd],
    restarts_max: int,
    ranks_again: Callable[[int], int] = lambda ranks: ranks,
) -> int:
    """Run a world of `ranks` ranks by `run`, and again after each crash; return the last exit code.

    `run(ranks, environment, stops)` runs one world. `ranks_again(ranks)` returns the number of ranks for a
    restart, given the number before.
    """
    environment = dict(os.environ)
    limit = RestartLimit(restarts_max, RESTART_WINDOW_S, _BACKOFF_S)
    has_come_up = False
    with StopRequests() as stops:
        while True:
            end = run(ranks, environment, stops)
            has_come_up = has_come_up or end.had_come_up
            # Silent ranks that are told to end may still end in order, although nobody wanted their end.
            has_ended = end.code is not None and not end.was_silent
            if has_ended or stops.first is not None or not has_come_up:
                return end.exit_code
            delay_s = limit.next_delay_s(time.monotonic())
            if delay_s is None:
                tell(
                    f"the ranks have crashed (exit code {end.exit_code}) and are not started again after "
                    f"{limit.count} restarts; unanswered jobs go on at the next start"
                )
                return end.exit_code or 1
            number = limit.count
            tell(f"the ranks have crashed (exit code {end.exit_code}); restart {number} in {delay_s:g} s")
            deadline_s = time.monotonic() + delay_s
            while (left_s := deadline_s - time.monotonic()) > 0:
                stops.wait(left_s)
                if stops.first is not None:
                    return 128 + stops.first
            ranks = ranks_again(ranks)
            environment.pop(AFTER_CRASH_VARIABLE, None)
            if (crash := end.crash) is not None:
                environment[AFTER_CRASH_VARIABLE] = crash.value
