"""One service per client folder: an exclusive lock that dies with its holder.

The lock is flock on `jobs.<i>/.lock`, whose text says who holds it. On NFS, flock works across
hosts since Linux 2.6.12 unless mounted with `nolock` or `local_lock`; where the file system
has no locks at all, the service goes on and says so.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from mallob_py.service.errors import ServiceError

_TRIES = 10
_RETRY_DELAY_S = 0.02  # outlasts a client that is just looking whether a service runs
_HELD = (errno.EWOULDBLOCK, errno.EACCES)


class DirectoryLock:
    """Held from construction to `close`."""

    def __init__(self, client_dir: Path, log: Callable[[str], None]) -> None:
        self._path = client_dir / ".lock"
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            self._acquire(client_dir, log)
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
        except BaseException:
            self.close()
            raise

    def is_lost(self) -> bool:
        """Whether the folder was removed, and perhaps made again: what is locked is not its lock any more."""
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            return True
        except OSError:
            return False  # nobody can tell
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
        pid, _, host = os.pread(self._descriptor, 300, 0).decode("utf-8", "replace").strip().partition(" ")
        holder = f"process {pid} on {host}" if host else "another process"
        raise ServiceError(
            f"{client_dir} is used by a running service ({holder}); stop it or give another --api-dir"
        )


def is_locked(client_dir: Path) -> bool:
    """Whether a service holds this client folder."""
    try:
        descriptor = os.open(client_dir / ".lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in _HELD
    finally:
        os.close(descriptor)
    return False
