"""How much memory is to stay free: a size, or a share of all that there is.

Without imports, since every command's options are read with it.
"""

from __future__ import annotations

from typing import NamedTuple


class Reserve(NamedTuple):
    """The larger of the two holds; both 0: nothing is kept free."""

    size_bytes: int = 0
    share: float = 0.0

    def of(self, total_bytes: int) -> int:
        return max(self.size_bytes, int(self.share * total_bytes))
