"""Other users' files and links in a service's folders; locks by other users on files that they may open.

The service must leave the files unchanged, and no lock may delay the service.
"""

import contextlib
import fcntl
import os
import signal
import stat
import time
from collections.abc import Mapping
from pathlib import Path

from faults.processes import Wrong

#: id of the user who holds the locks
_NOBODY = 65534
_LOOK_EVERY_S = 0.2
_LOCKS_MAX = 500
#: folders below the service's folder. HIDDEN_PLACES get hidden names only, because other files there are jobs
PLACES = ("api", "api/jobs.0", "api/jobs.0/journal", "api/jobs.0/checkpoints", "api/orders", "logs", "tmp")
HIDDEN_PLACES = ("api/jobs.0/in", "api/jobs.0/out")


_FOLDERS = (".git", "7")


def is_foreign(name: str) -> bool:
    return name in _FOLDERS or name.removeprefix(".").startswith("foreign-")


def put(folder: Path) -> None:
    """Put other users' files into all folders of a service before its start; create missing folders."""
    elsewhere = folder / "elsewhere"
    (elsewhere / "jobs.0").mkdir(parents=True)
    for name in ("file", "1", "1.json"):
        (elsewhere / name).write_text("precious")
    for place in (*PLACES, *HIDDEN_PLACES):
        (folder / place).mkdir(mode=0o700, parents=True, exist_ok=True)
        _put_all(folder / place, ".foreign", elsewhere)
        if place in PLACES:
            _put_all(folder / place, "foreign", elsewhere)
            for name in _FOLDERS:
                _folder(folder / place / name)


def _put_all(folder: Path, prefix: str, elsewhere: Path) -> None:
    (folder / f"{prefix}-file").write_text("precious")
    _folder(folder / f"{prefix}-folder")
    os.mkfifo(folder / f"{prefix}-fifo")
    (folder / f"{prefix}-link").symlink_to(elsewhere / "file")
    (folder / f"{prefix}-link-to-folder").symlink_to(elsewhere)
    (folder / f"{prefix}-dangling").symlink_to(elsewhere / "missing")


def _folder(path: Path) -> None:
    path.mkdir(mode=0o750)
    (path / "1").write_text("precious")


class Foreign:
    """Other users' files in a service's folder, put there before the service starts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        put(folder)
        self._before = self._found()

    def _found(self) -> Mapping[str, str]:
        tops = [self._folder / "elsewhere"]
        for place in (*PLACES, *HIDDEN_PLACES):
            tops += [
                self._folder / place / name for name in os.listdir(self._folder / place) if is_foreign(name)
            ]
        paths = [path for top in tops for path in (top, *(top.iterdir() if _is_folder(top) else ()))]
        return {str(path): _content(path) for path in paths}

    def check(self) -> None:
        """Raise Wrong if a file has changed."""
        now = self._found()
        for path in self._before.keys() | now.keys():
            if (was := self._before.get(path)) != (found := now.get(path)):
                raise Wrong(f"{path}, which belongs to another user, was {was!r}, and is {found!r}")


def _is_folder(path: Path) -> bool:
    return stat.S_ISDIR(path.lstat().st_mode)


def _content(path: Path) -> str:
    status = path.lstat()
    kind = f"{stat.filemode(status.st_mode)} {status.st_uid} {status.st_ino}"
    if stat.S_ISLNK(status.st_mode):
        return f"{kind} to {os.readlink(path)}"
    return f"{kind} {path.read_text()}" if stat.S_ISREG(status.st_mode) else kind


# --- locks ----------------------------------------------------------------------------------


class Locks:
    """Another user's locks, until `close`, on all files below a folder that the user may open. Needs root."""

    def __init__(self, folder: Path) -> None:
        self._pid = 0
        if os.geteuid() == 0:
            folder.chmod(0o711)
            us = os.getpid()
            self._pid = os.fork()
            if self._pid == 0:
                try:
                    os.setgroups([])
                    os.setresgid(_NOBODY, _NOBODY, _NOBODY)
                    os.setresuid(_NOBODY, _NOBODY, _NOBODY)
                    _hold(folder, us)
                finally:
                    os._exit(1)

    def close(self) -> None:
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0


def _hold(folder: Path, parent: int) -> None:
    """Hold locks of both kinds on files and folders, also on new ones, while the parent lives."""
    held: dict[tuple[int, int], int] = {}
    while os.getppid() == parent:
        for top in (*PLACES, *HIDDEN_PLACES):
            for where, _, names in os.walk(folder / top):
                for name in (".", *names):
                    _lock(Path(where, name), held)
        for key in [key for key, file in held.items() if os.fstat(file).st_nlink == 0]:
            os.close(held.pop(key))
        time.sleep(_LOOK_EVERY_S)


def _lock(path: Path, held: dict[tuple[int, int], int]) -> None:
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        status = os.fstat(file)
        key = (status.st_dev, status.st_ino)
        if key in held or len(held) >= _LOCKS_MAX:
            os.close(file)
            return
        held[key] = file
        for lock, kind in ((fcntl.flock, fcntl.LOCK_EX), (fcntl.lockf, fcntl.LOCK_SH)):
            with contextlib.suppress(OSError):
                lock(file, kind | fcntl.LOCK_NB)
