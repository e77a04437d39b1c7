"""Hearing of new files in a folder: inotify where it works, polling where it cannot.

On network file systems inotify is accepted by the kernel but stays silent about what other
hosts write, so the kind of file system decides, not the success of the call.
"""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass
from pathlib import Path

from inotify_simple import INotify, flags, parse_events

_REMOTE_TYPES = frozenset(
    (
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "fuse.sshfs",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "panfs",
        "smb3",
        "virtiofs",
    )
)


class Watching(enum.Enum):
    """How to hear of new job files."""

    AUTO = "auto"
    POLL = "poll"


#: of the kernel's queue of events: a thousand or so at a time
_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class News:
    """`complete` files were closed or renamed into place; `lost`: something was missed, look yourself."""

    complete: list[str]
    lost: bool


class InotifyWatch:
    """News of one folder through a file descriptor that an event loop can wait on."""

    def __init__(self, directory: Path) -> None:
        self._inotify = INotify(nonblocking=True)
        try:
            self._inotify.add_watch(directory, flags.CLOSE_WRITE | flags.MOVED_TO | flags.ONLYDIR)
        except OSError:
            self._inotify.close()
            raise

    def fileno(self) -> int:
        return int(self._inotify.fileno())

    def news(self) -> News:
        """As much of it as does not take long; the descriptor stays readable while there is more."""
        complete: list[str] = []
        lost = False
        try:
            data = os.read(self.fileno(), _READ_BYTES)
        except BlockingIOError:
            data = b""
        for event in parse_events(data):
            # IGNORED: the folder itself is gone and with it the watch.
            lost = lost or bool(event.mask & (flags.Q_OVERFLOW | flags.IGNORED))
            if event.name:
                complete.append(event.name)
        return News(complete, lost)

    def close(self) -> None:
        self._inotify.close()


def file_system_type(path: Path) -> str:
    """Such as "ext4" or "nfs4"; "" if it cannot be told."""
    resolved = os.fspath(path.resolve())
    best = ("", "")
    try:
        lines = Path("/proc/self/mountinfo").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        before, _, after = line.partition(" - ")
        mount_point = before.split(" ")[4].replace("\\040", " ")
        inside = resolved == mount_point or resolved.startswith(mount_point.rstrip("/") + "/")
        if inside and len(mount_point) >= len(best[0]):
            best = (mount_point, after.split(" ")[0])
    return best[1]


def is_remote(path: Path) -> bool:
    """Whether other hosts may write here without this kernel knowing."""
    return file_system_type(path) in _REMOTE_TYPES
