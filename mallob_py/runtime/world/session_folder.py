"""The private folder that the ranks of a host share while they run: descriptions, doorbells, the memory vote.

The lowest rank of each host, or the process that forks that rank, makes the folder in shared memory (else in
the temporary folder), after removing the folders of dead sessions; the other ranks of the host join the new
folder. All folders of a session have the session's name in their names, so that a rank that joins later finds
its host's folder (`session_folder_here`).

In a folder that everybody may write to, such as /dev/shm or /tmp, other users could guess our file names and
take them, to have us wait at a pipe, write through a link, or read what they wrote. So a session has a folder
of its own, closed to other users (`PrivateFolder`): mode 0700, a name that cannot be guessed. All processes
of the session on a host hold a lock on the folder. When they are killed, the folder stays without a lock, and
the next session of the same user on that host removes the folder.

Guarantees: a folder of another user is neither used nor removed; a folder that a living process holds is not
removed. Where the file system has no locks on folders (NFS), nothing is removed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mallob_py.runtime.processes import no_orphans
from mallob_py.runtime.world.mpi import LaunchError, OthersRefused
from mallob_py.runtime.world.mpich_files import forget_shared, shared_by, sweep_shared, unlink_if_same

if TYPE_CHECKING:
    from mpi4py import MPI

SHARED_MEMORY = Path("/dev/shm")
_NAME = re.compile(r"mallob-py\.[0-9]+-([0-9a-f]{16})")
#: file with the host's number: the lowest rank of the start on the host, or the first rank that joined there
_HOST = ".host"
_TRIES_MAX = 3
#: greatest length of a folder's name, with the slash before it
_NAME_BYTES_MAX = len("/mallob-py.4194304-") + 16


class PrivateFolder:
    """A private folder, held from construction to `close`; made by `create` or entered by `join`."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def create(cls, parent: Path, session: str = "") -> PrivateFolder:
        """Make the folder of a session (by default a new one), named after this process. Raises OSError."""
        while True:
            path = parent / f"mallob-py.{os.getpid()}-{session or new_session()}"
            os.mkdir(path, 0o700)
            # If another process's `sweep` removes the new folder before it is locked, make another one.
            with contextlib.suppress(FileNotFoundError):
                return cls.join(path)

    @classmethod
    def join(cls, path: Path) -> PrivateFolder:
        """Join a folder that another process of this user has made. Raises OSError."""
        descriptor = _open(path)
        try:
            status = os.fstat(descriptor)
            if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
                raise PermissionError(errno.EPERM, "others may enter it, or it is another user's", str(path))
            with contextlib.suppress(OSError):  # this file system has no locks, so nothing is swept either
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            if not os.path.samestat(status, os.lstat(path)):
                raise FileNotFoundError(errno.ENOENT, "removed by another session", str(path))
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor)

    def rename(self, path: Path) -> PrivateFolder:
        """Rename the folder to `path`. Raises OSError, such as if `path` exists."""
        self.path.rename(path)
        return PrivateFolder(path, self._descriptor)

    def close(self) -> None:
        """Release the folder; other processes may still hold it."""
        os.close(self._descriptor)

    def leave(self) -> None:
        """Release the folder, and remove it if no other process holds it."""
        self.close()
        with contextlib.suppress(OSError):
            _sweep_one(self.path)

    def remove(self) -> None:
        """Remove the folder, even if other processes hold it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.close()


def new_session() -> str:
    """Return a new session name, which cannot be guessed."""
    return os.urandom(8).hex()


def session_of(folder: PrivateFolder) -> str:
    """Return the name of the session to which the folder belongs."""
    match = _NAME.fullmatch(folder.path.name)
    assert match is not None
    return match[1]


def sweep(parent: Path) -> None:
    """Remove the folders in `parent` that dead sessions of this user have left."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for name in [entry.name for entry in entries if _NAME.fullmatch(entry.name)]:
            with contextlib.suppress(OSError):
                _sweep_one(parent / name)
    if parent == SHARED_MEMORY:
        sweep_shared()


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """Context manager that adopts all processes of a world, then kills them and removes their folder.

    A newcomer ends by itself after the founders, even if the rank that started the newcomer ended before.
    """
    with contextlib.ExitStack() as stack:
        # This callback is called last: the folder of a killed process is without a lock only after the kill.
        stack.callback(lambda: sweep(shared_folder()))
        stack.enter_context(no_orphans(_ENDING_S))
        yield


#: longest time between the end of all founders and the end of joined ranks
_ENDING_S = 2.0


def _sweep_one(path: Path) -> None:
    descriptor = _open(path)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shared = shared_by(world_of_forks(path.name.rpartition("-")[2]))
        with contextlib.suppress(FileNotFoundError):  # the file exists only if ranks were killed in MPI_Init
            unlink_if_same(shared, os.lstat(shared).st_ino)
        shutil.rmtree(path)
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


#: the folder of forked ranks, made before they start MPI; set in the process that forks them and in the ranks
_of_forks: PrivateFolder | None = None


def open_for_forks() -> PrivateFolder:
    """Make the folder of the ranks that this process will fork. Raises LaunchError.

    If the ranks are killed, the next session finds and removes their remains, including MPICH's shared file
    if their world has the name `world_of_forks`.
    """
    global _of_forks
    _of_forks, problem = _created(new_session(), 0)
    if _of_forks is None:
        raise LaunchError(problem)
    return _of_forks


def world_of_forks(session: str) -> str:
    """Return the name by which MPI knows the ranks that one process has forked for this session."""
    return f"mallob_py_{session}"


def shared_folder() -> Path:
    """Return the parent of session folders: shared memory if there is any, else the temporary folder."""
    if os.access(SHARED_MEMORY, os.W_OK):
        return SHARED_MEMORY
    import tempfile  # imported late: commands start sooner

    return Path(tempfile.gettempdir())


def temporary_folder(path_max: int | None = None) -> PrivateFolder:
    """Make a folder for this process among temporary files, after removing folders of killed processes.

    `path_max`: greatest length of its path, such as for a socket in the folder; if the path would be longer,
    the folder is made in /tmp. Raises OSError that says what to do.
    """
    import tempfile

    try:
        parent = Path(tempfile.gettempdir())
        if path_max is not None and len(os.fsencode(parent)) + _NAME_BYTES_MAX > path_max:
            parent = Path("/tmp")
        sweep(parent)
        return PrivateFolder.create(parent)
    except OSError as error:
        raise OSError(f"no temporary folder can be made ({error}); set TMPDIR") from None


def open_session_folder(comm: MPI.Intracomm, hosts: Sequence[int]) -> PrivateFolder:
    """Open this host's folder (collective over `comm`). `hosts`: for each rank, the lowest rank on its host.

    Raises LaunchError on ranks that cannot make or enter the folder, then OthersRefused on all others.
    """
    rank = comm.Get_rank()
    keeper = hosts[rank]
    session: str = comm.bcast(new_session() if _of_forks is None else session_of(_of_forks))
    folder, problem = _of_forks if rank == 0 else None, None
    if keeper == rank and folder is None:
        folder, problem = _created(session, rank)
    paths: list[str | None] = comm.allgather(None if folder is None else str(folder.path))
    if keeper != rank and (path := paths[keeper]) is not None:
        folder, problem = _joined(Path(path))
    has_failed: list[bool] = comm.allgather(problem is not None)
    if folder is not None and not any(has_failed):
        if keeper == rank:
            forget_shared()
        return folder
    if folder is not None:
        folder.remove()
    raise OthersRefused if problem is None else LaunchError(problem)


def session_folder_here(session: str, rank: int) -> tuple[PrivateFolder, int]:
    """Return this host's folder, made if missing, and the host's number (`rank` if made). Raises OSError."""
    parent = shared_folder()
    for _ in range(_TRIES_MAX):
        for path in sorted(parent.glob(f"mallob-py.*-{session}")):
            with contextlib.suppress(OSError, ValueError):
                return _with_its_host(path)
        sweep(parent)
        folder = PrivateFolder.create(parent)
        try:
            (folder.path / _HOST).write_text(str(rank))
            # If several ranks come at once, only one of them can rename its folder.
            return folder.rename(_free_name(parent, session)), rank
        except OSError as error:
            folder.remove()
            problem = error
    raise problem


def _free_name(parent: Path, session: str) -> Path:
    """Return the name that any joining rank would choose; if another user has taken it, a different one."""
    path = parent / f"mallob-py.0-{session}"
    with contextlib.suppress(FileNotFoundError):
        if os.lstat(path).st_uid != os.geteuid():
            return parent / f"mallob-py.{os.getpid()}-{session}"
    return path


def _with_its_host(path: Path) -> tuple[PrivateFolder, int]:
    """Join a folder and read its host's number. Raises OSError, ValueError."""
    folder = PrivateFolder.join(path)  # `join` also checks that the folder is this user's
    try:
        return folder, int((path / _HOST).read_text())
    except BaseException:
        folder.close()
        raise


def _created(session: str, host: int) -> tuple[PrivateFolder | None, str | None]:
    parent, folder = shared_folder(), None
    try:
        sweep(parent)
        folder = PrivateFolder.create(parent, session)
        (folder.path / _HOST).write_text(str(host))
    except OSError as error:
        if folder is not None:  # the folder was made, but not, for example, the file in it
            folder.remove()
        return None, f"cannot make a folder in {parent}: {error.strerror}"
    return folder, None


def _joined(path: Path) -> tuple[PrivateFolder | None, str | None]:
    try:
        return PrivateFolder.join(path), None
    except OSError as error:
        return None, f"cannot use {path}: {error.strerror}"
