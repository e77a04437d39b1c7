"""The last checkpoint of a job: what its next root begins with, kept by the job's client.

A root that leaves may have its say after the next one has begun: then what it says is old. So whoever was
given the checkpoint last is the only one to replace it.
"""

from __future__ import annotations


class LastCheckpoint:
    """`data` is None until there is one."""

    def __init__(self, data: bytes | None = None) -> None:
        self.data = data
        #: (PE, stay) of the root that has asked for it last
        self._root: tuple[int, int] | None = None

    def give(self, pe: int, context: int) -> bytes | None:
        """A root begins, and asks for it."""
        self._root = (pe, context)
        return self.data

    def replace(self, pe: int, context: int, data: bytes) -> bool:
        """A root is further now; False if another one has begun since."""
        if self._root is not None and self._root != (pe, context):
            return False
        self.data = data
        return True
