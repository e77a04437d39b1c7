"""What a simulated run is measured by (P 5), gathered while it runs.

`Measures.observe` takes the same events that go into the log. Memory: a few numbers per PE,
per finished job and per adoption.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from typing import Any

import msgspec
import numpy as np

from mallob_py.service.telemetry.run_figures import (
    CREATION_RATIO_MEANS,
    LATENCIES,
    CreationRatio,
    LatencyRow,
    creation_ratio,
    latency_row,
    tells_latency,
)
from mallob_py.text_table import Cell, format_cell, format_table

#: P Table 2 counts the workers that were created on at most so many distinct PEs
DISTINCT_PES = (1, 2, 5, 10, 25)
_UTILISATION_BIN_S = 0.1


class EndedJob(msgspec.Struct, frozen=True):
    """What remains of a job."""

    job: int
    ended_s: float
    outcome: str
    response_s: float
    wallclock_s: float
    pe_s: float
    max_volume: int
    created: int


class Measures:
    """All measures of one run; pass `observe` to the cluster."""

    def __init__(self, pes: int) -> None:
        self.pes = pes
        self.ended: list[EndedJob] = []
        #: (time, jobs in the system from then on)
        self.active_jobs: list[tuple[float, int]] = []
        self.context_switches = [0] * pes
        self.latencies_ms: dict[str, array[float]] = defaultdict(lambda: array("d"))
        self._active = 0
        self._busy_since: list[float | None] = [None] * pes
        self._last_job = [-1] * pes
        self._running_since: list[float | None] = [None] * pes
        #: job -> seconds that its workers' processes have run, summed over its workers
        self.worker_s: dict[int, float] = defaultdict(float)
        self._running_job = [-1] * pes
        self._busy_s = [0.0] * pes
        self._busy_changes: list[tuple[float, int]] = []
        #: job -> index -> how often a worker was created on which PE
        self._created: dict[int, dict[int, Counter[int]]] = {}
        #: how many workers were created on so many distinct PEs
        self._spread: Counter[int] = Counter()

    def observe(self, now: float, rank: int, event: str, fields: dict[str, Any]) -> None:
        """Take one event of the PE `rank`."""
        if event == "busy":
            self._busy_since[rank] = now
            self._busy_changes.append((now, 1))
        elif event == "started":
            self._running_since[rank] = now
            self._running_job[rank] = fields["job"]
        elif event == "idle":
            self._busy_changes.append((now, -1))
            self._stop_running(now, rank)
            since = self._busy_since[rank]
            assert since is not None, f"PE {rank} turns idle twice"
            self._busy_s[rank] += now - since
            self._busy_since[rank] = None
        elif event == "adopted":
            self._adopted(rank, fields)
        elif event == "submitted":
            self._active += 1
            self.active_jobs.append((now, self._active))
        elif event == "ended":
            self._end(now, fields)
        if tells_latency(event, fields):
            self.latencies_ms[event].append(1000.0 * fields["latency_s"])

    def _stop_running(self, now: float, rank: int) -> None:
        if (since := self._running_since[rank]) is not None:
            self.worker_s[self._running_job[rank]] += now - since
            self._running_since[rank] = None

    def _adopted(self, rank: int, fields: dict[str, Any]) -> None:
        job, index = fields["job"], fields["index"]
        if self._last_job[rank] != job:
            self._last_job[rank] = job
            self.context_switches[rank] += 1
        if fields["created"]:
            self._created.setdefault(job, {}).setdefault(index, Counter())[rank] += 1

    def _end(self, now: float, fields: dict[str, Any]) -> None:
        self._active -= 1
        self.active_jobs.append((now, self._active))
        created = self._created.pop(fields["job"], {})
        self._spread.update(len(by_pe) for by_pe in created.values())
        self.ended.append(
            EndedJob(
                job=fields["job"],
                ended_s=now,
                outcome=fields["outcome"],
                response_s=fields["response_s"],
                wallclock_s=fields["wallclock_s"],
                pe_s=fields["pe_s"],
                max_volume=fields["max_volume"],
                created=sum(by_pe.total() for by_pe in created.values()),
            )
        )

    def close(self, now: float) -> None:
        """End the run: PEs that are busy were so until now."""
        for rank, since in enumerate(self._busy_since):
            if since is not None:
                self._busy_s[rank] += now - since
                self._busy_since[rank] = now
                self._stop_running(now, rank)

    # --- results ------------------------------------------------------------------------

    def latency(self, kind: str) -> LatencyRow:
        """Statistics of one kind (`run_figures.LATENCIES`)."""
        return latency_row(kind, sorted(self.latencies_ms[kind]))

    def busy_shares(self, seconds: float) -> list[float]:
        """For each PE, the share of the run in which it was busy."""
        return [busy_s / seconds for busy_s in self._busy_s]

    def utilisation(self, window_s: float, from_s: float, to_s: float) -> tuple[list[float], list[float]]:
        """Times and shares of busy PEs, as moving averages over `window_s`."""
        bins = np.arange(from_s, to_s, _UTILISATION_BIN_S)
        integral = np.array(self._busy_integral(bins))
        width = max(1, round(window_s / _UTILISATION_BIN_S))
        shares = (integral[width:] - integral[:-width]) / (width * _UTILISATION_BIN_S * self.pes)
        return bins[width:].tolist(), shares.tolist()

    def _busy_integral(self, instants: np.ndarray[Any, Any]) -> list[float]:
        """PE seconds of work done up to each instant."""
        times = np.array([0.0, *(when_s for when_s, _ in self._busy_changes)])
        busy = np.cumsum([0, *(change for _, change in self._busy_changes)])
        done = np.concatenate(([0.0], np.cumsum(busy[:-1] * np.diff(times))))
        place = np.searchsorted(times, instants, side="right") - 1
        integral: list[float] = (done[place] + busy[place] * (instants - times[place])).tolist()
        return integral

    def creation_ratio(self) -> CreationRatio:
        return creation_ratio((job.created, job.max_volume) for job in self.ended)

    def shares_created_on_at_most(self) -> list[float]:
        """Which share of all workers was created on at most 1, 2, 5, 10, 25 distinct PEs."""
        total = sum(self._spread.values())
        if not total:
            return [0.0] * len(DISTINCT_PES)
        return [
            sum(count for pes, count in self._spread.items() if pes <= limit) / total
            for limit in DISTINCT_PES
        ]


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Utilisation is that after the first minute (or tenth of the run): before, jobs are too few."""

    pes: int
    seconds: float
    seed: int
    jobs_submitted: int
    jobs_ended: int
    response_mean_s: float | None
    utilisation: float | None
    busy_median: float
    latencies: tuple[LatencyRow, ...]
    creation_ratio_median: float | None
    creation_ratio_max: float | None
    creation_ratio_total: float | None
    created_on_at_most: dict[int, float]
    context_switches_median: float
    context_switches_mean: float
    epochs: int
    messages: int
    played_s: float


def describe(summary: Summary) -> str:
    """The summary as text."""
    latencies = [
        (LATENCIES[row.kind], row.count, row.median_ms, row.p90_ms, row.p99_ms, row.max_ms)
        for row in summary.latencies
    ]
    spread = ", ".join(f"<={pes}: {share:.3f}" for pes, share in summary.created_on_at_most.items())
    facts: list[tuple[str, Cell]] = [
        ("jobs submitted", summary.jobs_submitted),
        ("jobs ended", summary.jobs_ended),
        ("mean response [s]", summary.response_mean_s),
        ("utilisation", share_cell(summary.utilisation)),
        ("busy share of the median PE", share_cell(summary.busy_median)),
        ("worker creation ratio, median", summary.creation_ratio_median),
        ("worker creation ratio, max", summary.creation_ratio_max),
        ("worker creation ratio, total", summary.creation_ratio_total),
        ("workers created on so many PEs", spread),
        ("context switches per PE, median", summary.context_switches_median),
        ("context switches per PE, mean", summary.context_switches_mean),
        ("epochs", summary.epochs),
        ("messages", summary.messages),
        ("messages per real second", round(summary.messages / max(summary.played_s, 1e-9))),
    ]
    return "\n\n".join(
        (
            f"{summary.pes} PEs, {summary.seconds:g} s in virtual time, seed {summary.seed}, "
            f"played in {summary.played_s:.1f} s",
            "\n".join(f"{name:<34}{format_cell(value)}" for name, value in facts),
            CREATION_RATIO_MEANS,
            format_table(("latency [ms] until", "n", "median", "p90", "p99", "max"), latencies),
        )
    )


def share_cell(value: float | None) -> str | None:
    """A share with digits enough to tell 0.9985 from 0.9977; None where the run was too short for one."""
    return None if value is None else f"{value:.4f}"
