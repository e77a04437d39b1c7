"""Starting a local MPI world from an ordinary process, and standing in for it.

The caller of `launch_world` behaves as the world does: it returns the exit code that rank 0
gave to `world.leave`, and what stops it stops the world. Details:

- mpiexec runs in a session of its own, so that Ctrl-C in a terminal reaches this process
  only. It is passed on as a signal that mpiexec forwards to the ranks instead of killing
  them: SIGTERM for MPICH and Intel (hydra), SIGUSR1 for Open MPI. Ranks listen to
  `world.stop_signals`. A second Ctrl-C, or ranks that are not gone after STOP_GRACE_S,
  end it all by force.
- If this process dies without a word, the kernel sends mpiexec the same signal.
- Whatever of a world outlives mpiexec becomes a child of this process, and is killed: after a
  crash, the next world meets nobody who still holds a lock or writes.
- Exit codes travel in a file (see world.py). stdin is empty: mpiexec would swallow it.
  stdout and stderr of all ranks are ours.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import math
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from ..notices import tell
from .private_folder import PrivateFolder, sweep
from .silence import Watch
from .world import EXIT_FILE_VARIABLE, RUNNING, STOP_SIGNAL_VARIABLE, LaunchError, in_mpi_world

__all__ = [
    "LaunchError",
    "Launcher",
    "StopRequests",
    "WorldEnd",
    "default_ranks",
    "find_launcher",
    "in_mpi_world",
    "launch_world",
    "run_world",
]

#: how long ranks may take to end after they have been asked to
STOP_GRACE_S = 30.0
_FORCE_GRACE_S = 3.0
_LOOK_AFTER_S = 0.5
_VERSION_TIMEOUT_S = 20.0
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
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
        if self.flavour is Flavour.OPEN_MPI and os.geteuid() == 0:
            return {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return {}

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


@dataclass(frozen=True, slots=True)
class WorldEnd:
    """How a world ended."""

    #: rank 0's; None if it did not come to that
    code: int | None
    #: whether the ranks came so far as to work
    had_come_up: bool
    #: by mpiexec
    returned: int
    stopped_by: int | None

    @property
    def exit_code(self) -> int:
        """As a shell has it: 128 + the signal's number of a world that was stopped before it could answer."""
        if self.code is not None:
            return self.code
        if self.stopped_by is not None:
            return 128 + self.stopped_by
        return self.returned if self.returned >= 0 else 128 - self.returned


def launch_world(ranks: int, argv: Sequence[str], env: Mapping[str, str] | None = None) -> int:
    """Run `python argv...` on `ranks` ranks of this machine and return rank 0's exit code.

    `env` is the ranks' environment (default: ours). Must be called from the main thread. A
    world that was stopped before it could answer gives 128 + the signal's number, as in a
    shell; one that crashed gives what mpiexec returned.
    """
    with StopRequests() as stops:
        return run_world(ranks, argv, os.environ if env is None else env, stops).exit_code


def run_world(
    ranks: int,
    argv: Sequence[str],
    env: Mapping[str, str],
    stops: StopRequests,
    rank_timeout_s: float | None = None,
) -> WorldEnd:
    """Run a world to its end; nothing of it is alive then. A single rank needs no mpiexec.

    It is ended by force if rank 0, once at work, is silent for half as long again as
    `rank_timeout_s` (the ranks come first: they know more).
    """
    if ranks > 1:
        launcher = find_launcher()
        command, further, stop_signal = launcher.command(ranks), launcher.environment(), launcher.stop_signal
    else:
        command, further, stop_signal = [], {}, signal.SIGTERM
    with _own_folder() as folder, _no_orphans():
        exit_file = folder / "exit-code"
        environment = {**env, **further, EXIT_FILE_VARIABLE: str(exit_file)}
        watch = Watch(None if rank_timeout_s is None else 1.5 * rank_timeout_s)
        world = _World([*command, sys.executable, *argv], environment, stop_signal, stops)
        returned = world.wait(exit_file, watch)
        left = b""
        with contextlib.suppress(OSError):
            left = exit_file.read_bytes()
    code = None if left in (b"", RUNNING) else int(left)
    return WorldEnd(code, left != b"", returned, stops.first)


class StopRequests:
    """Signals that ask this process to end, while it is a context; in between they wait to be passed on."""

    def __init__(self) -> None:
        #: the first signal, and whether the user has insisted since
        self.first: int | None = None
        self.insisted = False

    def __enter__(self) -> StopRequests:
        self._read_fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._previous = {each: signal.signal(each, self._on_signal) for each in _FORWARDED}
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self._previous.items():
            signal.signal(each, handler)
        os.close(self._read_fd)
        os.close(self._write_fd)

    def wait(self, timeout_s: float, *descriptors: int) -> None:
        """Until a further signal comes, one of the descriptors is readable, or it is time."""
        select.select([self._read_fd, *descriptors], [], [], timeout_s)
        with contextlib.suppress(BlockingIOError):
            os.read(self._read_fd, 64)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.first is None:
            self.first = number
        elif number == signal.SIGINT:
            self.insisted = True
        with contextlib.suppress(BlockingIOError):
            os.write(self._write_fd, b"!")


class _World:
    """A running mpiexec, or a rank alone."""

    def __init__(
        self, command: list[str], env: Mapping[str, str], stop_signal: signal.Signals, stops: StopRequests
    ) -> None:
        self._stop_signal = stop_signal
        self._stops = stops
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                env={**env, STOP_SIGNAL_VARIABLE: stop_signal.name},
                start_new_session=True,
                preexec_fn=_die_with_parent(stop_signal),
            )
        except OSError as error:
            raise LaunchError(f"cannot run {command[0]}: {error}") from error

    def wait(self, exit_file: Path, watch: Watch) -> int:
        process, stops = self._process, self._stops
        deadline_s = math.inf
        seen: os.stat_result | None = None
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
                with contextlib.suppress(OSError):
                    status = exit_file.stat()
                    if seen is None or status.st_mtime_ns != seen.st_mtime_ns:
                        watch.heard()
                    seen = status
                if seen is not None and deadline_s == math.inf and watch.is_silent(now):
                    tell("rank 0 does not answer any more; ended by force")
                    deadline_s = now + _FORCE_GRACE_S
                    process.send_signal(self._stop_signal)
                stops.wait(_LOOK_AFTER_S, descriptor)
        finally:
            os.close(descriptor)
            if process.poll() is None:
                self._end_by_force()
        return process.returncode

    def _end_by_force(self) -> None:
        # mpiexec's helpers see it vanish and kill the ranks; those who do not are orphans soon.
        self._process.kill()
        self._process.wait(_FORCE_GRACE_S)


@contextlib.contextmanager
def _own_folder() -> Iterator[Path]:
    """A folder for what the ranks have to say to us. Raises LaunchError."""
    parent = Path(tempfile.gettempdir())
    sweep(parent)
    try:
        folder = PrivateFolder.create(parent)
    except OSError as error:
        raise LaunchError(f"cannot make a folder in {parent}: {error.strerror}; set TMPDIR") from None
    try:
        yield folder.path
    finally:
        folder.remove()


@contextlib.contextmanager
def _no_orphans() -> Iterator[None]:
    """Be the parent of all processes that lose theirs meanwhile, and kill those that are left at the end."""
    before = set(_children())
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        # Whoever is killed leaves us its own children.
        while left := set(_children()) - before:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for pid in left:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _children() -> list[int]:
    """The processes whose parent is this one."""
    found = []
    ours = str(os.getpid())
    for folder in os.listdir("/proc"):
        if folder.isdecimal():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{folder}/stat").read_text().rsplit(")", 1)[1].split()[1] == ours:
                    found.append(int(folder))
    return found


def _die_with_parent(death_signal: signal.Signals) -> Any:
    """What the child runs before mpiexec: have the kernel signal it when we are gone."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
        if os.getppid() != parent:  # died before it could be arranged
            os.kill(os.getpid(), signal.SIGKILL)

    return prepare
