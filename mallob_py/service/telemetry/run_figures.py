"""Figures that are told of real runs and of simulated ones, each defined here and nowhere else (P 5).

Latencies. `scheduled` is until a job's root is placed (P Fig. 6, left), `adopted` until any further
worker is (right). A root is adopted, too, but it is in `scheduled` already: it waits for the balancing
and for its description, which would blur what growing costs.

The worker creation ratio of a job (WCR, P 5.3 and Table 2): its created workers, the root included, over
its largest volume. A worker that is suspended, not found again and created elsewhere counts twice; one
that is resumed does not. Asked for are jobs that have ended and had a volume: before its end, a job's
largest volume is not known. What PEs adopt in ignorance of the end does not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import msgspec

#: events that tell a latency, in words
LATENCIES = {
    "balanced": "a job has a volume",
    "scheduled": "a job's root is placed",
    "adopted": "a further worker is placed",
    "started": "a worker's process runs",
}
#: what tables say below a creation ratio
CREATION_RATIO_MEANS = "creation ratio: created workers of a job over its largest volume, for jobs that ended"


class LatencyRow(msgspec.Struct, frozen=True):
    """One kind of latency."""

    kind: str
    count: int
    median_ms: float | None = None
    p90_ms: float | None = None
    p99_ms: float | None = None
    max_ms: float | None = None


class CreationRatio(msgspec.Struct, frozen=True):
    """Of the jobs' ratios; `total`: created workers of all jobs over the sum of their largest volumes."""

    median: float | None
    max: float | None
    total: float | None


def tells_latency(event: str, fields: Mapping[str, Any]) -> bool:
    """Whether an event counts among the latencies of its kind."""
    return event in LATENCIES and not (event == "adopted" and fields.get("index") == 0)


def latency_row(kind: str, ordered_ms: Sequence[float]) -> LatencyRow:
    """Statistics of ordered latencies."""
    if not ordered_ms:
        return LatencyRow(kind, 0)
    return LatencyRow(
        kind,
        len(ordered_ms),
        median_ms=percentile(ordered_ms, 0.5),
        p90_ms=percentile(ordered_ms, 0.9),
        p99_ms=percentile(ordered_ms, 0.99),
        max_ms=ordered_ms[-1],
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the ordered values do not exceed."""
    index = -(-len(ordered) * round(share * 1000) // 1000) - 1
    return ordered[max(0, index)]


def creation_ratio(jobs: Iterable[tuple[int, int]]) -> CreationRatio:
    """From (created workers, largest volume) of each job that has ended."""
    pairs = [(created, volume) for created, volume in jobs if volume]
    if not pairs:
        return CreationRatio(None, None, None)
    ratios = [created / volume for created, volume in pairs]
    return CreationRatio(
        median=median(ratios),
        max=max(ratios),
        total=sum(created for created, _ in pairs) / sum(volume for _, volume in pairs),
    )
