"""The schedule of a worker's engines, as a pure function of the known statements.

The first strategies of the portfolio are divided among the workers of a job, T per worker (T: cores of a
worker). The remaining base strategies must be tried, too: workers lend them a small share of their first
engine's time and, when this engine has searched for a minute in vain, as much time as it gets itself. A
strategy that has given up on any worker is replaced by the next strategy that no worker runs.

So one worker usually takes at most a tenth longer than the most suitable engine, and still finds an answer
that only another engine can find. Waiting engines are stopped and lose nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

#: time that all lent strategies together get, as a share of the time of a worker's first engine
LENT_SHARE = 0.08
#: processor time after which the first engine lends time, and the length of a lent slice
_ALONE_S = 0.5
SLICE_S = 0.1
#: processor time of the first engine after which lent strategies get as much time as this engine
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Place:
    """A worker's index in its job, the job's number of workers, and the worker's number of cores."""

    index: int
    volume: int
    threads: int


def own(place: Place, count: int, gone: Collection[int]) -> list[int]:
    """Return the numbers of this worker's strategies among `count`: at most `threads`, none in `gone`."""
    owners = max(place.volume, place.index + 1) * place.threads
    free = [number for number in range(min(owners, count), count) if number not in gone]
    first = place.index * place.threads
    chosen = []
    for number in range(first, first + place.threads):
        if number < count and number not in gone:
            chosen.append(number)
            continue
        # Cores with smaller numbers choose first. All workers count alike, so no two cores choose the same
        # strategy.
        rank = sum(1 for other in range(number) if other >= count or other in gone)
        if rank < len(free):
            chosen.append(free[rank])
    return chosen


def lent(place: Place, base: int, gone: Collection[int], chosen: Collection[int]) -> list[int]:
    """Return the base strategies to which this worker lends time, because no worker runs them."""
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
    """Return a worker's strategies that must run now. `used_s` returns a strategy's processor time.

    `is_lending`: whether the first strategy is stopped at present.
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
