"""Fair volumes of jobs that all have the same priority, in plain integers.

The most frequent case by far: it takes microseconds for a few jobs, and none of the memory and time that a
rank needs to import numpy. The result is that of `volumes.fair_volumes`, which tells what a fair volume is:
with equal priorities all free jobs are at one level, so those of smallest demand are capped first and the
level is what is left for each of the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from mallob_py.protocol.messages import JobEvent

_MASK = (1 << 64) - 1


def equal_volumes(events: Sequence[JobEvent], size: int) -> dict[int, int]:
    """The volumes of fewer jobs than `size` PEs, in the order given."""
    left, others = size, len(events)
    level = most = size - others + 1
    for demand in sorted(event.demand for event in events):
        if min(demand, most) * others > left:
            level = left // others
            break
        left -= min(demand, most)
        others -= 1
    volumes = {event.job: min(event.demand, most, level) for event in events}
    if level < most and (units := size - sum(volumes.values())):
        free = [event for event in events if event.demand > level]
        free.sort(key=lambda event: (-event.demand, _scattered(event.job)))
        for event in free[:units]:
            volumes[event.job] += 1
    return volumes


def _scattered(number: int) -> int:
    """The finaliser of SplitMix64, as in `volumes.py`."""
    x = (number + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
