"""The schedule of a worker's engines: a pure function of what is known.

The first strategies of the portfolio belong to the workers that a job has, T each (T: cores of a worker).
What is left of the `base` has to be tried nevertheless: such strategies are lent a small share of the time of
a worker's first engine, and when that one has searched for a minute in vain, as much time as it gets. A
strategy that has given up anywhere makes room for the next one that no worker has.

So one worker takes at most a tenth longer than the engine that suits the script best as a rule, and finds in
the end what only another engine can do. Engines that wait stand still; nothing of theirs is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

#: share of a worker's first engine that all lent strategies together get
LENT_SHARE = 0.08
#: the first one has this long before anything is lent, then its time is lent by slices of so much
_ALONE_S = 0.5
SLICE_S = 0.1
#: after so long, lent strategies get as much time as the first one
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Place:
    """A worker's place in its job."""

    index: int
    volume: int
    threads: int


def own(place: Place, count: int, gone: Collection[int]) -> list[int]:
    """This worker's strategies, by number, of `count`: at most `threads`, none of those that have `gone`."""
    owners = max(place.volume, place.index + 1) * place.threads
    free = [number for number in range(min(owners, count), count) if number not in gone]
    first = place.index * place.threads
    chosen = []
    for number in range(first, first + place.threads):
        if number < count and number not in gone:
            chosen.append(number)
            continue
        # Those who have lost theirs before us come first; all workers count alike.
        rank = sum(1 for other in range(number) if other >= count or other in gone)
        if rank < len(free):
            chosen.append(free[rank])
    return chosen


def lent(place: Place, base: int, gone: Collection[int], chosen: Collection[int]) -> list[int]:
    """Strategies of the base that no worker has: those of them that this worker lends time to."""
    volume = max(place.volume, place.index + 1)
    owners = volume * place.threads
    return [
        number
        for number in range(min(owners, base), base)
        if number not in gone and number not in chosen and number % volume == place.index
    ]


def running(
    chosen: list[int], lent_to: list[int], used_s: Callable[[int], float], is_lending: bool
) -> list[int]:
    """Which of a worker's strategies run now; `used_s`: the processor time that each has had.

    `is_lending`: whether the first one stands still at present.
    """
    if not lent_to:
        return chosen
    if not chosen:
        return [min(lent_to, key=used_s)]
    first_s = used_s(chosen[0])
    if first_s < _ALONE_S:
        return chosen
    due_s = LENT_SHARE * first_s + max(0.0, first_s - PATIENCE_S)
    owed_s = due_s - sum(map(used_s, lent_to))
    if owed_s < (0.0 if is_lending else SLICE_S):
        return chosen
    return [min(lent_to, key=used_s), *chosen[1:]]
