"""The shadow time of EASY backfilling: the earliest at which a waiting job finds enough nodes free."""

from __future__ import annotations

from collections.abc import Iterable


def shadow_of(ends: Iterable[tuple[float, int]], now_s: float, free: int, need: int) -> tuple[float, int]:
    """When `need` nodes will be free, of which `free` are now, and how many more than that.

    Jobs end at these times [s], which ascend, and leave so many nodes.
    """
    shadow_s = now_s
    for end_s, size in ends:
        if free >= need and end_s > shadow_s:
            break
        free += size
        shadow_s = max(shadow_s, end_s)
    return shadow_s, free - need
