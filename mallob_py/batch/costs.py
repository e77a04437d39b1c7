"""The cost of resizes: a job stands still for a while when its number of nodes changes.

The ElasticJobScheduler paper measured malleable jobs of several JVMs: on average, a grow order adds 3.8 nodes
and takes 14.55 s, a shrink order releases 2.55 nodes and takes 7.41 s. `Redistribution` implements equations
1 and 2 of the MEBF paper (policies/mebf.py).
"""

from __future__ import annotations

import math
import random
from functools import lru_cache
from typing import Protocol

import msgspec

from mallob_py.batch.job import Job


class ResizeCost(Protocol):
    """The time [s] for which a job stands still when its number of nodes changes."""

    def pause_s(self, job: Job, before: int, after: int) -> float: ...


class FreeResizes(msgspec.Struct, frozen=True):
    """Resizes that take no time."""

    def pause_s(self, job: Job, before: int, after: int) -> float:
        return 0.0


class PerResize(msgspec.Struct, frozen=True):
    """A fixed time [s] per resize."""

    grow_s: float
    shrink_s: float

    def pause_s(self, job: Job, before: int, after: int) -> float:
        return self.grow_s if after > before else self.shrink_s


class PerNode(msgspec.Struct, frozen=True):
    """A fixed time [s] per added or released node."""

    grow_s: float
    shrink_s: float

    def pause_s(self, job: Job, before: int, after: int) -> float:
        return self.grow_s * (after - before) if after > before else self.shrink_s * (before - after)


class Redistribution(msgspec.Struct, frozen=True):
    """The time to redistribute data (T_dr) and to start processes (T_p): `scale` times (T_dr + T_p) seconds.

    From n to n' nodes, T_dr = alpha |n' - n| + beta / (n + n') and T_p = `spawn_s` |n' - n|. Each job has its
    own alpha and beta, drawn uniformly between `least` and `most` by `seed` and the job's id. The values of
    `scale` and `spawn_s` were not published.
    """

    scale: float = 1.0
    spawn_s: float = 0.1
    least: float = 0.005
    most: float = 0.05
    seed: int = 1

    def pause_s(self, job: Job, before: int, after: int) -> float:
        change = abs(after - before)
        alpha, beta = _alpha_and_beta(self.seed, job.id, self.least, self.most)
        return self.scale * (alpha * change + beta / (before + after) + self.spawn_s * change)


class Delays(msgspec.Struct, frozen=True):
    """The delays [s] of real processes; jobs go on working during these delays.

    `start_s`: from the decision to start a job until it computes. `ready_s`: from the same decision until a
    malleable job can be resized; until then the job is shown as moldable. `grow_s`: from an order until the
    added nodes compute. `shrink_s`: from an order until the released nodes are free. `end_s`: from the end of
    a job's work until its nodes are free.
    """

    start_s: float = 0.0
    ready_s: float = 0.0
    grow_s: float = 0.0
    shrink_s: float = 0.0
    end_s: float = 0.0


#: the delays in simulations of traces: none
NO_DELAYS = Delays()


@lru_cache(maxsize=1 << 16)
def _alpha_and_beta(seed: int, job: int, least: float, most: float) -> tuple[float, float]:
    generator = random.Random(f"redistribution {seed} {job}")
    return generator.uniform(least, most), generator.uniform(least, most)


#: the costs measured on jobs of several JVMs; see the module's docstring
JVM_RESIZES = PerResize(14.55, 7.41)
JVM_NODES = PerNode(3.8, 2.9)


def resize_cost_of(text: str) -> ResizeCost:
    """Parse a cost: `14.55:7.41` is seconds to grow and to shrink, `3.8:2.9/node` seconds per node.

    A single number applies to both. `mebf`, with up to four settings as in `mebf:SCALE:SPAWN_S:LEAST:MOST`,
    is `Redistribution`. Raises ValueError.
    """
    if text == "mebf" or text.startswith("mebf:"):
        return _redistribution_of(text)
    numbers, slash, unit = text.partition("/")
    try:
        times_s = [float(number) for number in numbers.split(":")]
    except ValueError:
        times_s = []
    if len(times_s) not in (1, 2) or not all(0.0 <= time_s < 1e9 for time_s in times_s):
        raise ValueError(
            f"{text!r} should be seconds to grow and to shrink, such as 14.55:7.41; per node: 3.8:2.9/node"
        )
    if slash and unit != "node":
        raise ValueError(f"{text!r} has the unit {unit!r}; only /node is known")
    kind = PerNode if slash else PerResize
    return kind(times_s[0], times_s[-1])


def _redistribution_of(text: str) -> Redistribution:
    fields, words = ("scale", "spawn_s", "least", "most"), text.split(":")[1:]
    try:
        given = {field: float(word) for field, word in zip(fields, words, strict=False)}
    except ValueError:
        given = {"scale": math.nan}
    found = msgspec.structs.replace(Redistribution(), **given)
    is_fine = (
        0.0 <= found.scale < 1e9 and 0.0 <= found.spawn_s < 1e9 and 0.0 <= found.least <= found.most < 1e9
    )
    if len(words) > len(fields) or not is_fine:
        raise ValueError(f"{text!r} is not a cost such as mebf, mebf:0.5 or mebf:SCALE:SPAWN_S:LEAST:MOST")
    return found
