"""The private folder that the ranks of a host share while they run: descriptions, doorbells, the board.

The lowest rank of each host, or who forks it, makes it in shared memory (or in the temporary folder, where
there is none), after it has removed what dead sessions left there; the others join it. The folders of a
session have its name in theirs, by which a rank that comes later finds that of its host
(`session_folder_here`).

Names in a place that everybody may write to, such as /dev/shm or /tmp, can be guessed and taken by others,
who could have us wait at a pipe, write through a link, or read what they wrote. So a session has one folder
of its own, which nobody else may enter (`PrivateFolder`): mode 0700, a name that cannot be guessed. All
processes of the session on a host hold a lock on it. What they leave behind when they are killed has no
such lock; the next session of the same user on that host removes it.

Guarantees: a folder that another user made is never used, and none that a living process holds or another
user owns is removed. Where the file system has no locks on folders (NFS), nothing is removed.
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
from mallob_py.runtime.world.mpich_files import forget_shared, shared_by, unlink_if_same

if TYPE_CHECKING:
    from mpi4py import MPI

SHARED_MEMORY = Path("/dev/shm")
_NAME = re.compile(r"mallob-py\.[0-9]+-([0-9a-f]{16})")
#: the number of the host: the lowest rank that was ever there, or the one that came first
_HOST = ".host"
_TRIES_MAX = 3
#: of a folder, with the slash before it
_NAME_BYTES_MAX = len("/mallob-py.4194304-") + 16


class PrivateFolder:
    """Held from construction to `close`. Made by `create`, or joined by further processes of the session."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def create(cls, parent: Path, session: str = "") -> PrivateFolder:
        """Make `mallob-py.<our process id>...` for the session of that name, or a new one. Raises OSError."""
        while True:
            path = parent / f"mallob-py.{os.getpid()}-{session or new_session()}"
            os.mkdir(path, 0o700)
            # In between, somebody's `sweep` may find it without a lock.
            with contextlib.suppress(FileNotFoundError):
                return cls.join(path)

    @classmethod
    def join(cls, path: Path) -> PrivateFolder:
        """Take part in one that another process of ours has made. Raises OSError."""
        descriptor = _open(path)
        try:
            status = os.fstat(descriptor)
            if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
                raise PermissionError(errno.EPERM, "others may enter it, or it is not ours", str(path))
            with contextlib.suppress(OSError):  # no locks here, hence no sweeping either
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            if not os.path.samestat(status, os.lstat(path)):
                raise FileNotFoundError(errno.ENOENT, "swept by another session", str(path))
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor)

    def rename(self, path: Path) -> PrivateFolder:
        """Call the folder `path`. Raises OSError, such as if another one is there."""
        self.path.rename(path)
        return PrivateFolder(path, self._descriptor)

    def close(self) -> None:
        """Leave it to those who still hold it."""
        os.close(self._descriptor)

    def leave(self) -> None:
        """Leave it to those who still hold it, and remove it if there are none."""
        self.close()
        with contextlib.suppress(OSError):
            _sweep_one(self.path)

    def remove(self) -> None:
        """Remove the folder, for all."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.close()


def new_session() -> str:
    """Return a name that cannot be guessed."""
    return os.urandom(8).hex()


def session_of(folder: PrivateFolder) -> str:
    """The name of the session that this is the folder of, on this host."""
    match = _NAME.fullmatch(folder.path.name)
    assert match is not None
    return match[1]


def sweep(parent: Path) -> None:
    """Remove the folders in `parent` that dead sessions of this user have left."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for name in [entry.name for entry in entries if _NAME.fullmatch(entry.name)]:
            with contextlib.suppress(OSError):
                _sweep_one(parent / name)


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """Be the parent of all processes of a world, and leave neither one of these nor what they shared.

    A rank that joined ends by itself after the founders; its starter, who would wait for it, may be dead.
    """
    with contextlib.ExitStack() as stack:
        # The folder of a process that had to be killed has no lock only after that.
        stack.callback(lambda: sweep(shared_folder()))
        stack.enter_context(no_orphans(_ENDING_S))
        yield


#: how long ranks that joined may end after all founders
_ENDING_S = 2.0


def _sweep_one(path: Path) -> None:
    descriptor = _open(path)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shared = shared_by(world_of_forks(path.name.rpartition("-")[2]))
        with contextlib.suppress(FileNotFoundError):  # it is there only if they were killed within MPI_Init
            unlink_if_same(shared, os.lstat(shared).st_ino)
        shutil.rmtree(path)
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


#: in a process that forks ranks, and in these: their folder, which is there before they start MPI
_of_forks: PrivateFolder | None = None


def open_for_forks() -> PrivateFolder:
    """Make the folder of ranks to come that are forks of this process. Raises LaunchError.

    Whatever of them is killed, the next session finds what they have left, MPICH's shared file, too: their
    world is to be called `world_of_forks`.
    """
    global _of_forks
    _of_forks, problem = _created(new_session(), 0)
    if _of_forks is None:
        raise LaunchError(problem)
    return _of_forks


def world_of_forks(session: str) -> str:
    """Return the name for MPI of the world whose ranks are forks, and have that session's folder."""
    return f"mallob_py_{session}"


def shared_folder() -> Path:
    """Where session folders lie: shared memory if there is any, else the temporary folder."""
    if os.access(SHARED_MEMORY, os.W_OK):
        return SHARED_MEMORY
    import tempfile  # commands start sooner without it

    return Path(tempfile.gettempdir())


def temporary_folder(path_max: int | None = None) -> PrivateFolder:
    """Make a folder for this process among temporary files, after removing those of killed processes.

    `path_max`: the most bytes its path may have, as for a socket in it; else it lies in /tmp. Raises OSError
    that says what to do.
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
    """This host's folder (collective over `comm`). `hosts` names for each rank the lowest one on its host.

    Raises LaunchError where it cannot be made or entered, OthersRefused on all other ranks.
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
    """The folder of this host, and the host's number: `rank`, if none was here before. Raises OSError."""
    parent = shared_folder()
    for _ in range(_TRIES_MAX):
        for path in sorted(parent.glob(f"mallob-py.*-{session}")):
            with contextlib.suppress(OSError, ValueError):
                return _with_its_host(path)
        sweep(parent)
        folder = PrivateFolder.create(parent)
        try:
            (folder.path / _HOST).write_text(str(rank))
            # Of several that come at once, one is the first.
            return folder.rename(_free_name(parent, session)), rank
        except OSError as error:
            folder.remove()
            problem = error
    raise problem


def _free_name(parent: Path, session: str) -> Path:
    """The name that all who come here would take; one of our own, if another user has that already."""
    path = parent / f"mallob-py.0-{session}"
    with contextlib.suppress(FileNotFoundError):
        if os.lstat(path).st_uid != os.geteuid():
            return parent / f"mallob-py.{os.getpid()}-{session}"
    return path


def _with_its_host(path: Path) -> tuple[PrivateFolder, int]:
    """Raises OSError, ValueError."""
    folder = PrivateFolder.join(path)  # what others have put there is not looked into
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
        if folder is not None:  # such as where no room is left
            folder.remove()
        return None, f"cannot make a folder in {parent}: {error.strerror}"
    return folder, None


def _joined(path: Path) -> tuple[PrivateFolder | None, str | None]:
    try:
        return PrivateFolder.join(path), None
    except OSError as error:
        return None, f"cannot use {path}: {error.strerror}"
