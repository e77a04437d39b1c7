"""When waiting jobs will start, by the estimates: each has a reservation behind all those before it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from mallob_py.batch.job import Job


class Waits:
    """A map of reservations at one time, which grows along the queue as far as it is asked for.

    `ends`: (estimated end [s], nodes that are free then), sorted. Nodes that are not among these are free
    some day.
    """

    def __init__(
        self, now_s: float, free: int, nodes: int, ends: Iterable[tuple[float, int]], queue: Iterable[Job]
    ) -> None:
        self._times_s = [now_s]
        self._free = [free]
        for end_s, freed in ends:
            free += freed
            if end_s > self._times_s[-1]:
                self._times_s.append(end_s)
                self._free.append(free)
            else:
                self._free[-1] = free
        if free < nodes:
            self._times_s.append(math.inf)
            self._free.append(nodes)
        self._queue: Iterator[Job] = iter(queue)
        self._starts_s: dict[int, float] = {}

    def start_s(self, job: int) -> float:
        """When a job of the queue will start; infinite: nobody knows."""
        while job not in self._starts_s:
            other = next(self._queue)
            self._starts_s[other.id] = self._reserve(other.nodes, other.estimate_s)
        return self._starts_s[job]

    def _reserve(self, nodes: int, estimate_s: float) -> float:
        times_s, free = self._times_s, self._free
        first = last = 0
        while last == first:
            while free[first] < nodes:
                first += 1
            end_s = times_s[first] + estimate_s
            last = first + 1
            while last < len(times_s) and times_s[last] < end_s:
                if free[last] < nodes:
                    first = last
                    break
                last += 1
        if last == len(times_s) or times_s[last] > end_s:
            times_s.insert(last, end_s)
            free.insert(last, free[last - 1])
        for place in range(first, last):
            free[place] -= nodes
        return times_s[first]
