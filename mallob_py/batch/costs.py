"""What resizes cost: a job stands still for a while when its number of nodes changes.

Measured of malleable jobs of several JVMs (the ElasticJobScheduler publication): a grow order adds 3.8 nodes
and takes 14.55 s, a shrink order releases 2.55 and takes 7.41 s, on average.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from mallob_py.batch.job import Job


class ResizeCost(Protocol):
    """How long [s] a job stands still when its number of nodes changes."""

    def pause_s(self, job: Job, before: int, after: int) -> float: ...


class FreeResizes(msgspec.Struct, frozen=True):
    """Resizes take no time."""

    def pause_s(self, job: Job, before: int, after: int) -> float:
        return 0.0


class PerResize(msgspec.Struct, frozen=True):
    """Each takes so long [s], whatever the number of nodes."""

    grow_s: float
    shrink_s: float

    def pause_s(self, job: Job, before: int, after: int) -> float:
        return self.grow_s if after > before else self.shrink_s


class PerNode(msgspec.Struct, frozen=True):
    """Each node that comes or goes takes so long [s]."""

    grow_s: float
    shrink_s: float

    def pause_s(self, job: Job, before: int, after: int) -> float:
        return self.grow_s * (after - before) if after > before else self.shrink_s * (before - after)


#: of jobs of several JVMs, see above
JVM_RESIZES = PerResize(14.55, 7.41)
JVM_NODES = PerNode(3.8, 2.9)


def resize_cost_of(text: str) -> ResizeCost:
    """From a text: `14.55:7.41` is seconds to grow and to shrink, `3.8:2.9/node` those per node.

    One number is for both. ValueError: the text is none of these.
    """
    numbers, slash, unit = text.partition("/")
    try:
        times_s = [float(number) for number in numbers.split(":")]
    except ValueError:
        times_s = []
    if len(times_s) not in (1, 2) or not all(0.0 <= time_s < 1e9 for time_s in times_s):
        raise ValueError(f"{text!r} is not seconds to grow and to shrink, such as 14.55:7.41 or 3.8:2.9/node")
    if slash and unit != "node":
        raise ValueError(f"{text!r}: costs are per resize or /node")
    kind = PerNode if slash else PerResize
    return kind(times_s[0], times_s[-1])
