"""A file without a name, made in advance: to make one takes longer than to fill and to name it.

Where inodes come and go in quick succession, as those of replies do, ext4 looks long for one that was not in
use just now. So whoever writes a small file that somebody waits for has one ready, which costs nobody a wait.
It vanishes with the process. Where the file system has no such files (NFS), all is as without.
"""

from __future__ import annotations

import contextlib
import os

_NOTHING = -1


class SpareFile:
    """In a folder, with the rights that a new file of this process has."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._descriptor = _NOTHING
        self._is_possible = True

    def prepare(self) -> None:
        """Make a file for the next `put`; best called while nothing waits."""
        if self._descriptor == _NOTHING and self._is_possible:
            try:
                self._descriptor = os.open(self._folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666)
            except OSError:
                self._is_possible = False

    def put(self, path: str, data: bytes) -> bool:
        """Give it this name, and this content; False: nothing is done, the file is to be made as usual."""
        if self._descriptor == _NOTHING:
            return False
        try:
            if os.write(self._descriptor, data) < len(data):
                return False
            # Only with a descriptor of a folder, which does not matter here, are links really followed.
            os.link(f"/proc/self/fd/{self._descriptor}", path, src_dir_fd=self._descriptor)
        except OSError:  # such as for want of room, or of the name, which then shows there, too
            return False
        finally:
            self.close()
        return True

    def close(self) -> None:
        if self._descriptor != _NOTHING:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = _NOTHING

    def __del__(self) -> None:
        """Close the descriptor of a spare file that was forgotten."""
        self.close()
