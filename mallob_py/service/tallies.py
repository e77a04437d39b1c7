"""What the service has done so far, counted: replies by outcome, times as histograms.

For whoever watches the service over hours (`mallob-py web`, Prometheus). Counts start at zero with
the service and only grow. Taking one down costs a bisection, and happens once per reply.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from mallob_py.service.reply import JobStatistics

#: upper bounds of the buckets in seconds; a last one without a bound follows
BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60, 600, 3600)


class Histogram(msgspec.Struct, frozen=True):
    """Times taken down: how many fell into each bucket (not cumulative), and their sum."""

    counts: tuple[int, ...]
    sum_s: float

    def plus(self, other: Histogram) -> Histogram:
        counts = tuple(one + two for one, two in zip(self.counts, other.counts, strict=True))
        return Histogram(counts, self.sum_s + other.sum_s)


class Totals(msgspec.Struct, frozen=True):
    """Replies by outcome and times by name, from the start of the service on."""

    replies: Mapping[str, int] = {}
    times: Mapping[str, Histogram] = {}
    #: what ended jobs have used
    pe_s: float = 0.0
    cpu_s: float = 0.0


class Tallies:
    """Counts of one client."""

    def __init__(self) -> None:
        self._replies: Counter[str] = Counter()
        self._counts: dict[str, list[int]] = {}
        self._sums_s: dict[str, float] = {}
        self._pe_s = 0.0
        self._cpu_s = 0.0

    def replied(self, outcome: str) -> None:
        self._replies[outcome] += 1

    def ended(self, outcome: str, statistics: JobStatistics) -> None:
        """A job that was handed to the PE has its reply."""
        self.replied(outcome)
        self._pe_s += statistics.used_pe_s
        self._cpu_s += statistics.used_cpu_s
        self._take_down("total", statistics.total_s)
        self._take_down("parsing", statistics.parsing_s)
        if statistics.max_volume:  # without a worker, there was nothing to wait for
            self._take_down("scheduling", statistics.scheduling_s)
            self._take_down("first_balancing", statistics.first_balancing_latency_s)
            self._take_down("processing", statistics.processing_s)

    def totals(self) -> Totals:
        times = {name: Histogram(tuple(counts), self._sums_s[name]) for name, counts in self._counts.items()}
        return Totals(dict(self._replies), times, self._pe_s, self._cpu_s)

    def _take_down(self, name: str, duration_s: float) -> None:
        counts = self._counts.setdefault(name, [0] * (len(BOUNDS_S) + 1))
        counts[bisect_left(BOUNDS_S, duration_s)] += 1
        self._sums_s[name] = self._sums_s.get(name, 0.0) + duration_s


def sum_of(all_totals: Iterable[Totals]) -> Totals:
    """The totals of several clients as one."""
    replies: Counter[str] = Counter()
    times: dict[str, Histogram] = {}
    pe_s = cpu_s = 0.0
    for totals in all_totals:
        pe_s, cpu_s = pe_s + totals.pe_s, cpu_s + totals.cpu_s
        replies.update(totals.replies)
        for name, histogram in totals.times.items():
            times[name] = times[name].plus(histogram) if name in times else histogram
    return Totals(dict(replies), times, pe_s, cpu_s)
