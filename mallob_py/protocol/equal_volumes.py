"""Fair volumes of jobs that all have the same priority, in plain integers.

The most frequent case by far: it takes microseconds for a few jobs, and none of the memory and time that a
rank needs to import numpy. The result is that of `volumes.fair_volumes`, which tells what a fair volume is:
with equal priorities all free jobs are at one level, so those of smallest demand are capped first and the
level is what is left for each of the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from mallob_py.protocol.messages import JobEvent
from mallob_py.protocol.splitmix import splitmix64


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
        free.sort(key=lambda event: (-event.demand, splitmix64(event.job)))
        for event in free[:units]:
            volumes[event.job] += 1
    return volumes
