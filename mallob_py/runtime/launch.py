"""Starting a local MPI world from an ordinary process, and standing in for it.

The caller of `launch_world` behaves as the world does: it returns the exit code that rank 0
gave to `world.leave`, and what stops it stops the world. Details:

- mpiexec runs in a session of its own, so that Ctrl-C in a terminal reaches this process
  only. It is passed on as a signal that mpiexec forwards to the ranks instead of killing
  them: SIGTERM for MPICH and Intel (hydra), SIGUSR1 for Open MPI. Ranks listen to
  `world.stop_signals`. A second Ctrl-C, or ranks that are not gone after STOP_GRACE_S,
  end it all by force.
- If this process dies without a word, the kernel sends mpiexec the same signal.
- Exit codes travel in a file (see world.py). stdin is empty: mpiexec would swallow it.
  stdout and stderr of all ranks are ours.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from .world import EXIT_FILE_VARIABLE, STOP_SIGNAL_VARIABLE, LaunchError, in_mpi_world

__all__ = ["LaunchError", "Launcher", "default_ranks", "find_launcher", "in_mpi_world", "launch_world"]

#: how long ranks may take to end after they have been asked to
STOP_GRACE_S = 30.0
_FORCE_GRACE_S = 3.0
_LOOK_AFTER_S = 0.5
_VERSION_TIMEOUT_S = 20.0
_PR_SET_PDEATHSIG = 1
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Flavour(enum.Enum):
    """Families of mpiexec that differ in flags and signals."""

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
        """What ranks and launcher need beyond the inherited environment."""
        further = {STOP_SIGNAL_VARIABLE: self.stop_signal.name}
        if self.flavour is Flavour.OPEN_MPI and os.geteuid() == 0:
            further |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return further

    @property
    def stop_signal(self) -> signal.Signals:
        """What mpiexec forwards to its ranks without harming them."""
        return signal.SIGTERM if self.flavour is Flavour.HYDRA else signal.SIGUSR1


def default_ranks() -> int:
    """One rank per core that this process may use."""
    return len(os.sched_getaffinity(0))


def find_launcher() -> Launcher:
    """The mpiexec beside our Python if there is one (it fits the MPI wheel there), else PATH's."""
    beside = str(Path(sys.executable).parent)
    path = shutil.which("mpiexec", path=beside) or shutil.which("mpiexec") or shutil.which("mpirun")
    if path is None:
        raise LaunchError(
            "no mpiexec found beside Python or on PATH; pip install 'mallob-py[mpich]', "
            "or load your site's MPI module"
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

    `env` is the ranks' environment (default: ours). Must be called from the main thread. A
    world that was stopped before it could answer gives 128 + the signal's number, as in a
    shell; one that crashed gives what mpiexec returned.
    """
    launcher = find_launcher()
    environment = dict(os.environ if env is None else env) | launcher.environment()
    with tempfile.TemporaryDirectory(prefix="mallob-py.") as folder:
        exit_file = Path(folder) / "exit-code"
        environment[EXIT_FILE_VARIABLE] = str(exit_file)
        world = _World(launcher, [*launcher.command(ranks), sys.executable, *argv], environment)
        returned = world.wait()
        with contextlib.suppress(OSError, ValueError):
            return int(exit_file.read_text(encoding="ascii"))
    if world.stopped_by is not None:
        return 128 + world.stopped_by
    return returned if returned >= 0 else 128 - returned


class _World:
    """A running mpiexec and the signals that are forwarded to it while `wait` runs."""

    def __init__(self, launcher: Launcher, command: list[str], env: Mapping[str, str]) -> None:
        self.stopped_by: int | None = None
        self._stop_signal = launcher.stop_signal
        self._deadline_s: float | None = None
        self._process: subprocess.Popen[bytes] | None = None
        # Handlers come first: a signal that arrives while mpiexec starts must not be missed.
        self._previous: dict[signal.Signals, Any] = {
            each: signal.signal(each, self._on_signal) for each in _FORWARDED
        }
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                env=dict(env),
                start_new_session=True,
                preexec_fn=_die_with_parent(launcher.stop_signal),
            )
        except BaseException as error:
            self._restore_handlers()
            if isinstance(error, OSError):
                raise LaunchError(f"cannot run {command[0]}: {error}") from error
            raise
        if self.stopped_by is not None:
            self._process.send_signal(self._stop_signal)

    def wait(self) -> int:
        process = self._process
        assert process is not None
        try:
            while process.poll() is None:
                _wait_for_end(process.pid, _LOOK_AFTER_S)
                if self._deadline_s is not None and time.monotonic() > self._deadline_s:
                    self._end_by_force(process)
            return process.returncode
        finally:
            self._restore_handlers()
            if process.poll() is None:
                self._end_by_force(process)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.stopped_by is None:
            self.stopped_by = number
            self._deadline_s = time.monotonic() + STOP_GRACE_S
            if self._process is not None:
                self._process.send_signal(self._stop_signal)
        elif number == signal.SIGINT:
            self._deadline_s = 0.0

    def _end_by_force(self, process: subprocess.Popen[bytes]) -> None:
        # mpiexec's helpers see it vanish and kill the ranks.
        process.kill()
        process.wait(_FORCE_GRACE_S)

    def _restore_handlers(self) -> None:
        for each, handler in self._previous.items():
            signal.signal(each, handler)


def _wait_for_end(pid: int, timeout_s: float) -> None:
    """Wait until a child of ours ends; unlike `Popen.wait` without looking every 50 ms."""
    descriptor = os.pidfd_open(pid)
    try:
        select.select([descriptor], [], [], timeout_s)
    finally:
        os.close(descriptor)


def _die_with_parent(death_signal: signal.Signals) -> Any:
    """What the child runs before mpiexec: have the kernel signal it when we are gone."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
        if os.getppid() != parent:  # died before it could be arranged
            os.kill(os.getpid(), signal.SIGKILL)

    return prepare
