"""The MPI world as a rank sees it: how to join, check and leave the world; and how the world ended.

`start_mpi` initialises MPI with the settings that the transport needs, and refuses a world that the launcher
of another MPI has split into worlds of one process (each process would take itself for the whole service).
`leave` ends the process, without MPI_Finalize if that could hang. In a world of `launch_world`, `leave`
reports the exit code of rank 0, or of its deputy, in a file: `mpiexec` itself either mixes the exit codes of
all ranks (MPICH) or takes any code but 0 for a crash (Open MPI). `WorldEnd` is the end of a world as its
starter sees it.

Importing this module does not import MPI, so command-line code may use it freely.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import importlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from mallob_py.launchers import EXIT_FILE_VARIABLE, OF_RANKS, SIZE_VARIABLES
from mallob_py.runtime.world.deadlines import (
    ABORT_PATIENCE_S,
    FINALIZE_PATIENCE_S,
    OTHER_RANKS,
    Launcher,
    at_most,
    start_patience_s,
)

if TYPE_CHECKING:
    from mpi4py import MPI

#: environment variable for a world that follows a crashed world: the kind of crash
AFTER_CRASH_VARIABLE = "MALLOB_PY_AFTER_CRASH"
#: content of the exit file from the time when the ranks have come up until a rank reports the exit code
RUNNING = b"running\n"
#: environment variable, set by `launch_world`: a further signal by which the launcher orders ranks to stop
STOP_SIGNAL_VARIABLE = "MALLOB_PY_STOP_SIGNAL"

_MPICH_DEFAULTS = {
    # MPICH keeps a sender's messages to all local peers in one pool of 64 cells, which a few
    # peers that do not receive would use up (see transport.py on flow control). A cell costs
    # 16 KB.
    "MPIR_CVAR_CH4_SHM_POSIX_IQUEUE_NUM_CELLS": "128"
}
#: setting that turns off UCX's shared memory (4 MB per rank), but not UCX's networks. It is for MPICH's wheel
#: only: ranks of the wheel talk within a host without UCX, ranks of Open MPI talk by UCX.
_UCX_WITHOUT_SHARED_MEMORY = "^posix,sysv"
#: setting by which UCX leaves SIGHUP alone; otherwise UCX uses it for its debugger
_UCX_LEAVES_SIGNALS = ("UCX_DEBUG_SIGNO", "0")


class Crash(enum.Enum):
    """The kinds of crash of the former world, as in AFTER_CRASH_VARIABLE."""

    #: failure of the world by itself: an error, a fault, a hanging rank, or a shortage of memory
    OF_ITSELF = "1"
    #: crash by a rank that was killed from outside (signal 9)
    KILLED = "killed"

    @classmethod
    def told(cls, env: Mapping[str, str]) -> Crash | None:
        """Return the kind of crash that the environment names; None: it names none."""
        said = env.get(AFTER_CRASH_VARIABLE)
        if said is None:
            return None
        return cls.KILLED if said == cls.KILLED.value else cls.OF_ITSELF


class RankLoss(enum.Enum):
    """The consequences of a rank's loss for the other ranks."""

    #: all ranks end; the process that started them may start them again
    RESTART = "restart"
    #: the other ranks go on, if the launcher lets them
    SURVIVE = "survive"
    #: the other ranks go on if the transport can connect ranks of different hosts by links
    IF_LINKED = "if linked"

    @classmethod
    def wanted(cls, text: str, launcher_spares_others: bool) -> RankLoss:
        """Return the consequence that an option's value names; "auto" depends on the launcher."""
        if text != "auto":
            return cls(text)
        return cls.SURVIVE if launcher_spares_others else cls.RESTART


class LaunchError(Exception):
    """Error: the MPI world cannot be used or started; the message says what to do."""


class OthersRefused(Exception):
    """Error: another rank cannot start, and has reported why."""


def spares_others(env: Mapping[str, str]) -> bool:
    """Tell whether the launcher, Open MPI's `mpirun --with-ft ulfm`, lets other ranks go on when one is lost.

    Slurm's `srun` may do so, too, but does not tell its tasks.
    """
    return env.get("OMPI_MCA_mpi_ft_enable") in ("1", "true", "ulfm")


def declared_world_size(env: Mapping[str, str]) -> int:
    """Return the number of processes that the launcher says it has started; without a launcher, 1."""
    sizes = [1]
    for name in SIZE_VARIABLES:
        with contextlib.suppress(ValueError):
            sizes.append(int(env.get(name, "1")))
    return max(sizes)


def in_mpi_world(env: Mapping[str, str] | None = None) -> bool:
    """Tell whether this process is a rank, started by mpiexec, srun or `launch_world`, or as a newcomer."""
    env = os.environ if env is None else env
    return any(name in env for name in OF_RANKS) or declared_world_size(env) > 1


def prepare_mpi() -> None:
    """Make the settings that are needed before `from mpi4py import MPI`, which initialises MPI."""
    for name, value in _MPICH_DEFAULTS.items():
        os.environ.setdefault(name, value)
    if is_of_wheel():
        os.environ.setdefault("UCX_TLS", _UCX_WITHOUT_SHARED_MEMORY)
    os.environ.setdefault(*_UCX_LEAVES_SIGNALS)
    _imported("mpi4py").rc.thread_level = "funneled"


def is_of_wheel() -> bool:
    """Return whether the MPI library is that of MPICH's wheel."""
    return "MPI4PY_LIBMPI" not in os.environ and os.path.exists(_library_of_wheel())


def _library_of_wheel() -> str:
    """Return the path of the library in MPICH's wheel."""
    return os.path.join(sys.prefix, "lib", "libmpi.so.12")


def load_mpi() -> str:
    """Load the MPI library, without initialising it: forks of this process will. Return its version.

    Raises LaunchError if there is no library.
    """
    prepare_mpi()
    import mpi4py

    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = True
    with _environment(_WITHIN_A_HOST) if is_of_wheel() else contextlib.nullcontext():
        return str(_mpi().Get_library_version())


def _mpi() -> Any:
    return _imported("mpi4py.MPI")


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except (ImportError, RuntimeError) as error:
        raise LaunchError(f"no usable MPI library ({error}); pip install mpi4py mpich") from error


def start_mpi(within_a_host: bool = False) -> MPI.Intracomm:
    """Initialise MPI and return its world. Collective: each rank calls this or `refuse_to_start`.

    `within_a_host`: all ranks are forks of one process, or there is only this rank.
    Raises LaunchError if the launcher does not fit, OthersRefused if another rank refuses to start.
    """
    with _environment(_WITHIN_A_HOST) if within_a_host and is_of_wheel() else contextlib.nullcontext():
        world = _join_world()
    if any(world.allgather(False)):
        raise OthersRefused
    return world


#: settings for MPICH's wheel within a host, where MPICH uses its own shared memory. MPICH also polls its
#: network module, by a system call each time, unless that module uses shared memory, too.
_WITHIN_A_HOST = {
    "UCX_TLS": "sysv",
    # UCX would rewrite the C library's functions that map memory, and wait for each function until no thread
    # is in it: 40 ms of a core in all.
    "UCX_MEM_MMAP_HOOK_MODE": "none",
}


@contextlib.contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Context manager that sets environment variables while MPI is loaded or initialised."""
    before = {name: os.environ.get(name) for name in settings}
    ours = {name for name, value in before.items() if value in (None, _UCX_WITHOUT_SHARED_MEMORY)}
    os.environ.update({name: settings[name] for name in ours})
    try:
        yield
    finally:
        for name in ours:
            if (value := before[name]) is None:
                del os.environ[name]
            else:
                os.environ[name] = value


#: first and longest pause between checks whether all ranks have arrived
_LOOK_MIN_S, _LOOK_MAX_S = 0.0002, 0.002


def gathered(world: MPI.Intracomm, value: Any) -> list[Any]:
    """Return the values that all ranks give, in the order of the ranks. Collective.

    Early ranks sleep: waiting inside MPI, they would use cores that late ranks need.
    """
    all_are_here = world.Ibarrier()
    delay_s = _LOOK_MIN_S
    while not all_are_here.Test():
        time.sleep(delay_s)
        delay_s = min(1.5 * delay_s, _LOOK_MAX_S)
    values: list[Any] = world.allgather(value)
    return values


def refuse_to_start() -> None:
    """Tell the other ranks, which wait in `start_mpi`, that this rank ends instead of starting.

    Ranks may have different options (`mpiexec ... : ...`), so the options of only one rank may be wrong.
    """
    if declared_world_size(os.environ) > 1:
        with (
            contextlib.suppress(LaunchError),
            at_most(start_patience_s(os.environ), OTHER_RANKS, Launcher(), exit_code=2),
        ):
            _join_world().allgather(True)


def _join_world() -> MPI.Intracomm:
    prepare_mpi()
    if is_of_wheel():
        _initialise_wheel()
    mpi = _mpi()
    if not mpi.Is_initialized():
        mpi.Init_thread(mpi.THREAD_FUNNELED)
    world: MPI.Intracomm = mpi.COMM_WORLD
    refuse_singletons(world.Get_size(), os.environ, mpi.Get_library_version())
    return world


#: the value of MPI_THREAD_FUNNELED in MPICH
_FUNNELED = 1


def _initialise_wheel() -> None:
    """Initialise MPI without Python's lock. mpi4py would hold it, and no deadline could be reported."""
    import ctypes

    import mpi4py

    mpi4py.rc.finalize = True  # by default, mpi4py finalises MPI only if mpi4py has initialised it
    library = ctypes.CDLL(_library_of_wheel())
    found = ctypes.c_int()
    library.MPI_Initialized(ctypes.byref(found))
    if not found.value and library.MPI_Init_thread(None, None, _FUNNELED, ctypes.byref(found)) != 0:
        raise LaunchError("MPI cannot be initialised")


def _finalise() -> None:
    if not is_of_wheel():
        _mpi().Finalize()
        return
    import ctypes

    ctypes.CDLL(_library_of_wheel()).MPI_Finalize()  # MPI_Finalize must not hold Python's lock either


def refuse_singletons(size: int, env: Mapping[str, str], library_version: str) -> None:
    """Raise LaunchError if the launcher started several ranks, but this rank is alone in its world."""
    declared = declared_world_size(env)
    if size > 1 or declared <= 1:
        return
    library = library_version.split("\n")[0].split(",")[0].strip().rstrip("\0")
    if "Open MPI" in library:
        fitting = "Open MPI's mpiexec, or srun --mpi=pmix"
    else:
        fitting = "MPICH's mpiexec (python -m pip install mpich), or srun --mpi=pmi2"
    raise LaunchError(
        f"the launcher started {declared} processes, but each is alone in its MPI world: "
        f"the launcher does not fit the MPI library in use ({library}); use {fitting}"
    )


def binding_warning() -> str | None:
    """Return a warning if a launcher lets this rank, and so its workers, use only one of several cores.

    No warning if the launcher itself may use no other core: this was the user's choice, as with `taskset`.
    """
    usable, present = os.sched_getaffinity(0), os.cpu_count() or 1
    if len(usable) > 1 or present == 1 or os.sched_getaffinity(os.getppid()) == usable:
        return None
    return (
        f"this rank and all its workers are bound to 1 of {present} cores; if it should own more, "
        "start with mpiexec --bind-to none (Open MPI), I_MPI_PIN=off (Intel) or srun --cpu-bind=none"
    )


def stop_signals() -> frozenset[signal.Signals]:
    """Return the signals that order a rank to end cleanly. Set their handlers before `start_mpi`."""
    signals = {signal.SIGINT, signal.SIGTERM}
    further = os.environ.get(STOP_SIGNAL_VARIABLE)
    if further:
        signals.add(signal.Signals[further])
    return frozenset(signals)


def leave(rank: int, exit_code: int, closed: bool, speaker: int = 0) -> NoReturn:
    """End this process. `closed`: the return value of `Transport.close`.

    In a world of `launch_world`, only the exit code of rank `speaker` counts; if the speaker is lost or
    hangs, the exit code of the first rank that leaves counts. In other worlds, or if the speaker cannot write
    the exit file, `exit_code` is this process's exit code.
    """
    exit_file = os.environ.get(EXIT_FILE_VARIABLE)
    if exit_file and (_report(exit_file, exit_code, is_speaker=rank == speaker) or rank != speaker):
        exit_code = 0
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    import ctypes

    if closed:  # otherwise MPI_Finalize might wait for failed peers for ever
        with at_most(FINALIZE_PATIENCE_S, "the other ranks to leave MPI", exit_code=exit_code):
            _finalise()
        signal.setitimer(signal.ITIMER_REAL, FINALIZE_PATIENCE_S)
        # Skip the interpreter's teardown, but not C's exit handlers: MPICH's handler leaves the launcher,
        # which kills all ranks if one rank does not leave.
        ctypes.PyDLL(None).exit(exit_code)
    os._exit(exit_code)


def _report(exit_file: str, exit_code: int, *, is_speaker: bool) -> bool:
    """Write the exit code if no rank has written one or this rank is the speaker; return whether that worked.

    The code overwrites RUNNING before the file is shortened: so a full disk does not matter.
    """
    try:
        with open(os.open(exit_file, os.O_RDWR | os.O_CREAT * is_speaker, 0o600), "r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if is_speaker or file.read() == RUNNING:
                line = b"%d\n" % exit_code
                os.pwrite(file.fileno(), line.ljust(len(RUNNING)), 0)
                file.truncate(len(line))
    except OSError:
        return False
    return True


def abort_world(exit_code: int) -> NoReturn:
    """End all ranks at once, because this rank ends by an error and must not be lost alone."""
    from mpi4py import MPI

    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    with at_most(ABORT_PATIENCE_S, "MPI to end the other ranks", exit_code=exit_code):
        MPI.COMM_WORLD.Abort(exit_code)
    os._exit(exit_code)


#: exit code of MPICH's mpiexec when its proxy, the parent of the ranks, was lost
_PROXY_LOST = 255


@dataclass(frozen=True, slots=True)
class WorldEnd:
    #: rank 0's exit code; None: rank 0 reported none
    code: int | None
    #: whether the ranks had come up
    had_come_up: bool
    #: return code of mpiexec, or without mpiexec of rank 0; negative: the number of the signal that killed it
    returned: int
    #: the first signal that ordered the world to end; None: no signal did
    stopped_by: int | None
    #: whether the world was ended because it was silent
    was_silent: bool = False
    has_launcher: bool = True
    #: whether the kernel killed processes on this host, while the world ran, because memory was short
    was_out_of_memory: bool = False

    @property
    def exit_code(self) -> int:
        """Return the world's exit code; like a shell, 128 + a signal's number if a signal ended the world."""
        if self.code is not None:
            return self.code
        if self.stopped_by is not None:
            return 128 + self.stopped_by
        if self.returned < 0:
            return 128 - self.returned
        # Guards leave MPI for killed ranks, so mpiexec returns 0 even after a crash.
        return self.returned or int(self.had_come_up)

    @property
    def crash(self) -> Crash | None:
        """Return the crash to report to the next world; None: there was none."""
        if self.was_silent or self.was_out_of_memory:
            return Crash.OF_ITSELF
        if self.has_launcher and (self.returned < 0 or self.returned == _PROXY_LOST):
            return None
        killed = (signal.SIGKILL, 128 + signal.SIGKILL) if self.has_launcher else (-signal.SIGKILL,)
        return Crash.KILLED if self.returned in killed else Crash.OF_ITSELF
