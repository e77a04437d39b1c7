"""The lock of a client folder: one service per folder, released when its holder ends.

The lock is flock on `jobs.<i>/.lock`, whose text names the holder. On NFS, flock works across hosts since
Linux 2.6.12 unless mounted with `nolock` or `local_lock`; on a file system without locks, the service goes on
and reports that. Whoever can open the file can lock it, so only the file's owner may open it; other users on
the host learn from the kernel whether the lock is held. Nothing is written through a link, or into a file
that does not look like a lock.

Files in the temporary folder tell clients on this host where a service takes jobs, as in Mallob:
`edu.kit.iti.mallob.apipath.<pid>`, and `mallob.apipath.<pid>` for earlier releases of Mallob's IPASIR bridge,
hold the absolute path of a client's folder while its service runs. Other users may put anything there under
these names. So the service neither waits for such files nor writes through links, and never reads, writes or
removes other users' files. Files left by killed services of this user are removed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path

from mallob_py.service import ServiceError
from mallob_py.service.store import own_folder
from mallob_py.service.store.in_folder import is_remote

_TRIES = 10
_RETRY_DELAY_S = 0.02  # longer than a client's check whether a service runs
_NAME = ".lock"
#: content of our lock files: the holder's text, or, after a full disk or a loss of power, part of it or zeros
_TEXT = re.compile(rb"([0-9]{0,10}|[0-9]{1,10} [^\s]*\n?)\0*")
_TEXT_BYTES_MAX = 300
_HELD = (errno.EWOULDBLOCK, errno.EACCES)


class DirectoryLock:
    """The lock of a client's folder, held from construction to `close`."""

    def __init__(self, client_dir: Path, log: Callable[[str], None]) -> None:
        """Take the lock. Raises ServiceError if a service holds it; OSError, also for foreign files."""
        self._path = client_dir / _NAME
        self._descriptor = -1
        try:
            self._take(client_dir, log)
            while self.is_lost():  # the former holder has replaced the file
                self._take(client_dir, log)
            if not _TEXT.fullmatch(os.pread(self._descriptor, _TEXT_BYTES_MAX + 1, 0)):
                raise OSError(errno.EEXIST, f"{_NAME} is not ours", str(self._path))
            if self._others_may_open_it():
                self._make_anew()
            else:
                os.ftruncate(self._descriptor, 0)
                os.pwrite(self._descriptor, _own_text(), 0)
        except BaseException:
            self.close()
            raise

    def _take(self, client_dir: Path, log: Callable[[str], None]) -> None:
        self.close()
        self._descriptor = own_folder.open_file(self._path, os.O_RDWR | os.O_CREAT)
        self._acquire(client_dir, log)

    def _others_may_open_it(self) -> bool:
        """Tell whether other users may open the lock, as with earlier releases, and thus hold it."""
        status = os.fstat(self._descriptor)
        return status.st_uid == os.geteuid() and bool(stat.S_IMODE(status.st_mode) & 0o077)

    def _make_anew(self) -> None:
        """Make the lock's file anew and locked, so that a process with the old file open holds nothing."""
        hidden = self._path.with_name(f"~lock.{os.urandom(8).hex()}")
        descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with contextlib.suppress(OSError):  # the file system has no locks; this was reported
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.pwrite(descriptor, _own_text(), 0)
            os.rename(hidden, self._path)
        except BaseException:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                os.unlink(hidden)
            raise
        self.close()
        self._descriptor = descriptor

    def is_lost(self) -> bool:
        """Tell whether the folder was removed or replaced, so that this is no longer its lock."""
        if self._descriptor < 0:
            return True
        try:
            there = os.lstat(self._path)
        except FileNotFoundError:
            return True
        except OSError:
            return False  # this cannot be found out now
        return not os.path.samestat(there, os.fstat(self._descriptor))

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _acquire(self, client_dir: Path, log: Callable[[str], None]) -> None:
        for attempt in range(_TRIES):
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError as error:
                if error.errno not in _HELD:
                    log(f"{client_dir}: no file locks here ({error.strerror}); run one service only")
                    return
            if attempt < _TRIES - 1:
                time.sleep(_RETRY_DELAY_S)
        raise ServiceError(
            f"{client_dir} is used by a running service ({_named_in(self._descriptor)});"
            " stop it, wait for its end by --wait, or give another --api-dir"
        )


def _own_text() -> bytes:
    return f"{os.getpid()} {socket.gethostname()}\n".encode()


def _named_in(descriptor: int) -> str:
    """Return the holder named in a lock's text."""
    pid, _, host = os.pread(descriptor, _TEXT_BYTES_MAX, 0).decode("utf-8", "replace").strip().partition(" ")
    return f"process {pid} on {host}" if host else "another process"


def is_locked(client_dir: Path) -> bool:
    """Tell whether a service holds this client folder. Raises OSError if this cannot be found out."""
    return holder_of(client_dir) is not None


def holder_of(client_dir: Path) -> str | None:
    """Return a phrase that names the service holding this client folder; None: no service.

    Raises OSError if this cannot be found out, because descriptors or memory are lacking.
    """
    try:
        descriptor = own_folder.open_file(client_dir / _NAME, os.O_RDONLY)
    except PermissionError:
        return _holder_of_another_user(client_dir)
    except OSError as error:
        if error.errno in own_folder.WANTING:
            raise
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return _named_in(descriptor) if error.errno in _HELD else None
    finally:
        os.close(descriptor)
    return None


def _holder_of_another_user(client_dir: Path) -> str | None:
    """Return the holder of a lock that we may not open, as the kernel reports to all users of this host."""
    try:
        status = os.lstat(client_dir / _NAME)
    except OSError:
        return None  # this user may not hand in jobs there either
    if not stat.S_ISREG(status.st_mode):
        return None
    try:
        if pid := _holder_told(status.st_ino):
            return f"process {pid} of another user"
        is_certain = not is_remote(client_dir)
    except OSError:
        is_certain = False
    return None if is_certain else "another user's process, perhaps"


def _holder_told(inode: int) -> str:
    """Return the process id of the holder of the lock on this inode, from /proc/locks; "": there is none.

    Only inodes are compared: /proc/locks may give another device number than `stat`.
    """
    with open("/proc/locks", "rb") as locks:
        for line in locks:
            match line.split():
                case [_, b"FLOCK", _, b"WRITE", pid, where, *_] if where.endswith(b":%d" % inode):
                    return pid.decode()
    return ""


_PREFIXES = ("edu.kit.iti.mallob.apipath.", "mallob.apipath.")
_PATH_BYTES_MAX = 4096
#: content of our advertisements; other files are not ours
_ADVERTISED = re.compile(rb"/.*/jobs\.[0-9]+/?\s*", re.DOTALL)


class Advertisement:
    """The files that advertise a folder, from construction to `close`. Failures are reported to `log`."""

    def __init__(self, client_dir: Path, temporary: Path, log: Callable[[str], None]) -> None:
        """`client_dir` must be locked by us."""
        self._paths: list[Path] = []
        content = os.fsencode(client_dir)
        for prefix in _PREFIXES:
            path = temporary / f"{prefix}{os.getpid()}"
            try:
                for older in temporary.glob(f"{prefix}*"):
                    if older.name.removeprefix(prefix).isdecimal():
                        _remove_if_stale(older, content)
                _write(path, content)
                self._paths.append(path)
            except OSError as error:
                log(f"cannot write {path}: {error.strerror}; clients must be told the api folder")

    def close(self) -> None:
        while self._paths:
            with contextlib.suppress(OSError):
                self._paths.pop().unlink()


def _write(path: Path, content: bytes) -> None:
    """Write a file by a rename, which follows no link and waits for no pipe. Raises OSError."""
    hidden = path.with_name(f".mallob-py.{os.urandom(8).hex()}")
    descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
        os.rename(hidden, path)
    except BaseException:
        os.unlink(hidden)
        raise


def _remove_if_stale(path: Path, own: bytes) -> None:
    """Remove an advertisement of ours for a folder that no service, or this service, holds."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                return
            content = file.read(_PATH_BYTES_MAX)
        is_one = _ADVERTISED.fullmatch(content) is not None
        if content == own or (is_one and _is_abandoned(Path(os.fsdecode(content)))):
            path.unlink()


def _is_abandoned(client_dir: Path) -> bool:
    """Tell whether no service holds a folder; Mallob's own folders have no lock, so they never count."""
    return not client_dir.exists() or ((client_dir / ".lock").exists() and not is_locked(client_dir))
