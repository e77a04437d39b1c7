"""The file in shared memory that MPICH has the ranks of a host share: its name goes, so that nothing stays.

MPI_Finalize removes it, which ranks that are killed, or that end without, do not call.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

_PREFIX = "/dev/shm/mpich_shm_"


def forget_shared(prefix: str = _PREFIX) -> None:
    """Take the names of the files away that this process has mapped whose paths begin so.

    Who has them mapped keeps them, and nothing stays however the processes end. For MPICH's it is time once
    all ranks of the host have left MPI_Init; its MPI_Finalize does not ask for them.
    """
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if fields[-1].startswith(prefix):
            unlink_if_same(fields[-1], int(fields[-2]))


def shared_by(world: str) -> str:
    """Return the path of the file that the ranks of a world of that name share.

    It has the FNV-1a hash of the name in its own.
    """
    digest = 0x811C9DC5
    for byte in world.encode():
        digest = (digest ^ byte) * 0x01000193 & 0xFFFFFFFF
    return f"{_PREFIX}{digest:x}_0"


def unlink_if_same(path: str, inode: int) -> None:
    """Remove a regular file of ours, unless another one has come in its place."""
    with contextlib.suppress(OSError):
        status = os.lstat(path)
        if (status.st_ino, status.st_uid) == (inode, os.geteuid()) and stat.S_ISREG(status.st_mode):
            os.unlink(path)
