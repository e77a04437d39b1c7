"""State that a process inherits from its parent, and replaces at its start.

Ignored signals and a signal mask pass through exec: with SIGCHLD ignored (`trap '' CHLD; exec ...`) the
kernel discards children's exit codes. So signals are reset, but SIGHUP and SIGINT stay ignored, as `nohup`
and a shell's `&` intend, and niceness stays. Closed standard streams are opened, since the next opened file
would get their descriptor.

Environment variables of an MPI launcher reach all descendants of a rank. If the launcher cannot be reached,
MPI would abort or wait, so the variables are removed. If the launcher has started only this process, they are
removed as well, so that the command can start ranks itself (`-n`).
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import stat
from collections.abc import Iterable, MutableMapping

from mallob_py.launchers import EXIT_FILE_VARIABLE, INVITED_VARIABLE, OF_SLURM_STEPS, PREFIXES

#: signals that must not be ignored in any part of the program
_NEEDED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2)
_PMIX_PLACE = re.compile(r"tcp[46]?://\[?([0-9a-fA-F.:]+?)\]?:([0-9]+)")


def make_own_state(env: MutableMapping[str, str] = os.environ) -> None:
    """Undo what a parent can leave in a process; must be called before anything is opened or started."""
    open_standard_streams()
    for number in _NEEDED:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    forget_launchers_that_are_gone(env)


def open_standard_streams() -> None:
    """Open all closed standard descriptors, since otherwise the next opened files would get their numbers."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def forget_launchers_that_are_gone(env: MutableMapping[str, str]) -> None:
    """Remove the variables of a launcher that has ended, or is not this process's launcher."""
    if INVITED_VARIABLE in env:  # a newcomer has no launcher
        return
    if any(name.startswith(("PMI_", "PMI2_")) for name in env) and not _has_pmi(env):
        _forget(env, ("PMI_", "PMI2_", "HYDRA_", "HYDI_", "MPI_LOCAL", EXIT_FILE_VARIABLE))
    if any(name.startswith(("PMIX_", "OMPI_COMM_WORLD_")) for name in env) and not _has_pmix(env):
        _forget(env, ("PMIX_", "OMPI_COMM_WORLD_", "OMPI_UNIVERSE_SIZE", "PRTE_", EXIT_FILE_VARIABLE))
    if (file := env.get(EXIT_FILE_VARIABLE)) is not None and not _is_rank_of_ours(file, env):
        _forget(env, (EXIT_FILE_VARIABLE,))
    if (task := env.get("SLURM_TASK_PID", "")).isdecimal() and int(task) not in _ancestors():
        _forget(env, OF_SLURM_STEPS)


def forget_launcher_of_one(env: MutableMapping[str, str]) -> None:
    """Remove the variables of a launcher that has started only this rank."""
    _forget(env, (*PREFIXES, *OF_SLURM_STEPS))


def _forget(env: MutableMapping[str, str], prefixes: Iterable[str]) -> None:
    for name in [name for name in env if name.startswith(tuple(prefixes))]:
        del env[name]


def _is_rank_of_ours(exit_file: str, env: MutableMapping[str, str]) -> bool:
    """Tell whether this process was started by the maker of the exit file, possibly through a launcher."""
    if any(name.startswith(("PMI_", "PMI2_", "PMIX_", "OMPI_COMM_WORLD_", "MV2_")) for name in env):
        return True
    maker = re.search(r"mallob-py\.([0-9]+)-", exit_file)
    return maker is None or int(maker[1]) == os.getppid()


def _has_pmi(env: MutableMapping[str, str]) -> bool:
    """Tell whether a process manager of MPICH's kind seems to be reachable."""
    for name in ("PMI_FD", "PMI2_FD"):
        if name in env:
            with contextlib.suppress(OSError, ValueError):
                mode = os.fstat(int(env[name])).st_mode
                return stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)
            return False
    others = {name for name in env if name.startswith(("PMI_", "PMI2_"))} - {"PMI_RANK", "PMI_SIZE", "PMI_ID"}
    return bool(others) or any(name.startswith(("PMIX_", "PALS_")) for name in env)


def _has_pmix(env: MutableMapping[str, str]) -> bool:
    """Tell whether a PMIx server seems to be reachable."""
    places = [value for name, value in env.items() if name.startswith("PMIX_SERVER_")]
    found = [match for value in places if (match := _PMIX_PLACE.search(value))]
    listened = _listened_ports()
    return bool(places) and (not found or any(_is_elsewhere(at[1]) or int(at[2]) in listened for at in found))


def _is_elsewhere(address: str) -> bool:
    return not address.startswith("127.") and address != "::1"


def _listened_ports() -> set[int]:
    """Return the TCP ports on this host with a listener."""
    found = set[int]()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table) as lines:
            fields = [line.split() for line in lines]
            found.update(int(each[1].rpartition(":")[2], 16) for each in fields[1:] if each[3] == "0A")
    return found


def _ancestors() -> set[int]:
    """Return the process ids of this process and its ancestors."""
    found, pid = set[int](), os.getpid()
    with contextlib.suppress(OSError, ValueError, IndexError):
        while pid > 0:
            found.add(pid)
            with open(f"/proc/{pid}/stat") as status:
                pid = int(status.read().rsplit(")", 1)[1].split()[1])
    return found
