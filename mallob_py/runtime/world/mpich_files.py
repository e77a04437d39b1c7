"""The file in shared memory that MPICH's ranks of a host share: the file's name is removed early.

Otherwise only MPI_Finalize would remove the file, which killed ranks never call.
"""

from __future__ import annotations

import contextlib
import glob
import os
import stat
import time
from pathlib import Path

_PREFIX = "/dev/shm/mpich_shm_"
#: age after which a file that no process has mapped counts as left behind
_REMAINDER_S = 600.0


def forget_shared(prefix: str = _PREFIX) -> None:
    """Unlink the files mapped by this process whose paths begin with `prefix`.

    Processes keep their mappings; when they end, nothing is left on the host. MPICH's files may be unlinked
    once all ranks of the host have left MPI_Init; MPI_Finalize does not need their names.
    """
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if fields[-1].startswith(prefix):
            unlink_if_same(fields[-1], int(fields[-2]))


def sweep_shared(prefix: str = _PREFIX) -> None:
    """Remove this user's old files whose paths begin with `prefix` and that no process has mapped.

    A launcher's ranks leave such a file behind if they are killed in MPI_Init.
    """
    old = {path: inode for path in glob.glob(f"{prefix}*") if (inode := _inode_if_old(path))}
    if not old:
        return
    mapped = ""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            mapped += maps.read_text(errors="replace")
    for path, inode in old.items():
        if path not in mapped:
            unlink_if_same(path, inode)


def _inode_if_old(path: str) -> int:
    """Return a file's inode if the file is old, else 0."""
    with contextlib.suppress(OSError):
        status = os.lstat(path)
        if time.time() - status.st_mtime > _REMAINDER_S:
            return status.st_ino
    return 0


def shared_by(world: str) -> str:
    """Return the path of the file that the ranks of the world with this name share.

    The path contains the FNV-1a hash of the world's name.
    """
    digest = 0x811C9DC5
    for byte in world.encode():
        digest = (digest ^ byte) * 0x01000193 & 0xFFFFFFFF
    return f"{_PREFIX}{digest:x}_0"


def unlink_if_same(path: str, inode: int) -> None:
    """Remove a regular file of this user, unless another file has replaced it."""
    with contextlib.suppress(OSError):
        status = os.lstat(path)
        if (status.st_ino, status.st_uid) == (inode, os.geteuid()) and stat.S_ISREG(status.st_mode):
            os.unlink(path)
