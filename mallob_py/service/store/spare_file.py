"""A spare file: made without a name in advance, since making a file takes longer than filling and naming it.

Where files come and go quickly, as replies do, ext4 takes long to find an inode that was not just in use. A
spare file is made while nothing waits. It vanishes with the process. On file systems without nameless files
(NFS), there are no spare files.
"""

from __future__ import annotations

import contextlib
import os

_NOTHING = -1


class SpareFile:
    """A spare file in a folder, with the rights of a new file of this process."""

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
        """Fill and name the file; return False if nothing was done, so that a file must be made as usual."""
        if self._descriptor == _NOTHING:
            return False
        try:
            if os.write(self._descriptor, data) < len(data):
                return False
            # Python follows the link in /proc only if it gets a folder's descriptor; any descriptor will do.
            os.link(f"/proc/self/fd/{self._descriptor}", path, src_dir_fd=self._descriptor)
        except OSError:  # such as no room: the usual way to write reports the error
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
        """Close the descriptor of a forgotten spare file."""
        self.close()
