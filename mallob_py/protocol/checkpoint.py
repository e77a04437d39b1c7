"""The last checkpoint of a job: what its next root begins with, kept by the job's client.

A root that leaves may have its say after the next one has begun: then what it says is old. So whoever has
begun last is the only one to replace it.
"""

from __future__ import annotations


class LastCheckpoint:
    """`data` is None until there is one."""

    def __init__(self, data: bytes | None = None) -> None:
        self.data = data
        #: (PE, stay) of the root that has begun last
        self._root: tuple[int, int] | None = None

    def begin(self, pe: int, stay: int) -> bytes | None:
        """A root begins, or goes on; this is the checkpoint that it finds."""
        self._root = (pe, stay)
        return self.data

    def replace(self, pe: int, stay: int, data: bytes) -> bool:
        """A root is further now; False if another one has begun since."""
        if self._root is not None and self._root != (pe, stay):
            return False
        self.data = data
        return True
