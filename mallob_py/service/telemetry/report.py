"""The numbers of a run, from its event log: jobs, latencies, utilisation, volumes, reuse.

Input is `event_log.read_events`, from real or simulated runs; output are structs that
`mallob-py report` prints or turns into JSON, and that benchmarks read. Empty logs, logs cut
off anywhere and events of a newer version give tables with gaps, never an exception.

Utilisation is the share of PEs that run an active worker (P 5): a PE is busy from its `busy`
event to its next `idle`. Logs of older versions name no PEs: each rank was a PE. Reuse is the number of
adoptions, also of roots, that continue a suspended worker.

Latencies and the worker creation ratio, also of simulated runs, are defined only here (P 5). The latency
`scheduled` ends when a job's root is placed (P Fig. 6, left), `adopted` when a further worker is placed
(right). A root counts only in `scheduled`, although it is adopted, too: its wait for the balancing and its
description would blur the cost of growing.

The worker creation ratio of a job (WCR, P 5.3 and Table 2): its created workers, the root included, divided
by its largest volume. A worker that is suspended, not found again and created elsewhere counts twice; a
resumed worker counts once. The ratio covers ended jobs that had a volume: before its end, a job's largest
volume is not known. Workers that PEs adopt before they hear of the job's end do not count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

import msgspec

from mallob_py.log_events import LogEvent
from mallob_py.service.telemetry.event_log import OPENINGS, Event

#: events with a latency, and their meaning in words
LATENCIES: dict[str, str] = {
    LogEvent.BALANCED: "a job has a volume",
    LogEvent.SCHEDULED: "a job's root is placed",
    LogEvent.ADOPTED: "a further worker is placed",
    LogEvent.STARTED: "a worker's process runs",
}
#: text below tables with a creation ratio
CREATION_RATIO_MEANS = "creation ratio of an ended job: its created workers divided by its largest volume"


class LatencyRow(msgspec.Struct, frozen=True):
    """One kind of latency."""

    kind: str
    count: int
    median_ms: float | None = None
    p90_ms: float | None = None
    p99_ms: float | None = None
    max_ms: float | None = None


class CreationRatio(msgspec.Struct, frozen=True):
    """Statistics of jobs' creation ratios; `total`: all created workers / the sum of largest volumes."""

    median: float | None
    max: float | None
    total: float | None


def tells_latency(event: str, fields: Mapping[str, Any]) -> bool:
    """Tell whether an event's latency counts among the latencies of its kind."""
    return event in LATENCIES and not (event == LogEvent.ADOPTED and fields.get("index") == 0)


def latency_row(kind: str, ordered_ms: Sequence[float]) -> LatencyRow:
    """Return the statistics of ordered latencies."""
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
    """Return the smallest value that at least `share` of the ordered values do not exceed."""
    index = -(-len(ordered) * round(share * 1000) // 1000) - 1
    return ordered[max(0, index)]


def creation_ratio(jobs: Iterable[tuple[int, int]]) -> CreationRatio:
    """Return statistics of creation ratios; `jobs`: (created workers, largest volume) of each ended job."""
    pairs = [(created, volume) for created, volume in jobs if volume]
    if not pairs:
        return CreationRatio(None, None, None)
    ratios = [created / volume for created, volume in pairs]
    return CreationRatio(
        median=median(ratios),
        max=max(ratios),
        total=sum(created for created, _ in pairs) / sum(volume for _, volume in pairs),
    )


UTILISATION_BINS = 10
VOLUME_INSTANTS = 12


UNFINISHED = "unfinished"


class JobRow(msgspec.Struct):
    """One job. None: unknown from the log, such as for a running job."""

    job: int
    name: str = "?"
    application: str = "?"
    priority: float | None = None
    submitted_s: float | None = None
    outcome: str = UNFINISHED
    code: int | None = None
    #: name of the job's result, such as SAT or UNSAT
    result: str | None = None
    response_s: float | None = None
    wallclock_s: float | None = None
    pe_s: float | None = None
    cpu_s: float | None = None
    mean_volume: float | None = None
    max_volume: int | None = None
    peak_memory_mb: float | None = None
    created_workers: int = 0
    #: rows of figures that the application reports, one for each worker
    figures: list[dict[str, Any]] = []


class Utilisation(msgspec.Struct, frozen=True):
    """Mean share of busy PEs, overall and in equal slices of time."""

    mean: float | None
    bin_ends_s: tuple[float, ...] = ()
    bins: tuple[float, ...] = ()


class VolumeSamples(msgspec.Struct, frozen=True):
    """Each job's volume at some instants; None while the job has no volume."""

    instants_s: tuple[float, ...]
    jobs: tuple[tuple[int, tuple[int | None, ...]], ...]


class ReuseFigures(msgspec.Struct, frozen=True):
    """The numbers of workers created and of workers resumed."""

    created: int
    reused: int
    creation_ratio_median: float | None
    creation_ratio_max: float | None
    creation_ratio_total: float | None


class Report(msgspec.Struct, frozen=True):
    """All tables of a run."""

    ranks: int
    pes: int
    started_unix_s: float | None
    #: time of the log's beginning; if `is_cut`, later than the run's beginning
    begin_s: float
    is_cut: bool
    duration_s: float
    mode: str
    refused: int
    crashed: int
    jobs: tuple[JobRow, ...]
    latencies: tuple[LatencyRow, ...]
    utilisation: Utilisation
    volumes: VolumeSamples
    reuse: ReuseFigures


def make_report(events: Sequence[Event]) -> Report:
    """Return all tables from events in order of time."""
    begin_s = events[0].t if events else 0.0
    end_s = events[-1].t if events else 0.0
    starts = [event for event in events if event.event in OPENINGS]
    ranks_told = [_integer(event, "ranks") or 0 for event in starts]
    pes_told = [_integer(event, "pes") or _integer(event, "ranks") or 0 for event in starts]
    pes = max(pes_told + [event.rank + 1 for event in events], default=0)
    steps = volume_steps(events)
    jobs = job_rows(events, steps, end_s)
    return Report(
        ranks=max(ranks_told) if any("pes" in event.fields for event in starts) else pes,
        pes=pes,
        started_unix_s=_number(starts[0], "unix_s") if starts else None,
        begin_s=begin_s,
        is_cut=bool(starts) and not any(event.event == LogEvent.START for event in starts),
        duration_s=end_s - begin_s,
        mode=str(starts[0].fields.get("mode", "real")) if starts else "unknown",
        refused=sum(event.event == LogEvent.REFUSED for event in events),
        crashed=sum(event.event == LogEvent.CRASHED for event in events),
        jobs=jobs,
        latencies=latency_rows(events),
        utilisation=utilisation(events, pes, begin_s, end_s),
        volumes=volume_samples(steps, begin_s, end_s),
        reuse=reuse(events, jobs),
    )


#: job -> [(time, volume from this time on)], in order of time, up to a volume of 0
VolumeSteps = dict[int, list[tuple[float, int]]]


def volume_steps(events: Iterable[Event]) -> VolumeSteps:
    """Return the course of each job's volume."""
    steps: VolumeSteps = defaultdict(list)
    for event in events:
        job = _integer(event, "job")
        if job is None:
            continue
        volume = _integer(event, "volume")
        if event.event == LogEvent.VOLUME and volume is not None:
            steps[job].append((event.t, volume))
        elif event.event == LogEvent.ENDED and job in steps:
            steps[job].append((event.t, 0))
    return dict(steps)


def job_rows(events: Iterable[Event], steps: VolumeSteps, end_s: float) -> tuple[JobRow, ...]:
    """Return one row per job, in order of ids."""
    rows: dict[int, JobRow] = {}
    for event in events:
        job = _integer(event, "job")
        if job is None or event.event not in (
            LogEvent.ACCEPTED,
            LogEvent.SUBMITTED,
            LogEvent.ADOPTED,
            LogEvent.ENDED,
            LogEvent.ANSWERED,
        ):
            continue
        row = rows.setdefault(job, JobRow(job))
        if event.event == LogEvent.ACCEPTED:
            row.name = f"{event.fields.get('user', '?')}.{event.fields.get('name', '?')}"
            row.application = str(event.fields.get("application", "?"))
            row.priority = _number(event, "priority")
        elif event.event == LogEvent.SUBMITTED:
            row.submitted_s = event.t
            row.priority = row.priority or _number(event, "priority")
        elif event.event == LogEvent.ADOPTED:
            row.created_workers += event.fields.get("created") is True and row.outcome == UNFINISHED
        elif event.event == LogEvent.ANSWERED:
            row.code = _integer(event, "code")
            row.result = None if row.code is None else str(event.fields.get("result", row.code))
            row.figures = event.fields.get("figures", [])
        else:
            _fill_end(row, event)
    for job, row in rows.items():
        if job in steps:
            row.mean_volume = _mean_volume(steps[job], end_s)
            row.max_volume = row.max_volume or max(volume for _, volume in steps[job])
    return tuple(rows[job] for job in sorted(rows))


def _fill_end(row: JobRow, event: Event) -> None:
    row.outcome = str(event.fields.get("outcome", "?"))
    row.code = _integer(event, "code")
    row.response_s = _number(event, "response_s")
    row.wallclock_s = _number(event, "wallclock_s")
    row.pe_s = _number(event, "pe_s")
    row.cpu_s = _number(event, "cpu_s") or None  # simulations do not know the CPU time
    row.max_volume = _integer(event, "max_volume")
    if peak_bytes := _integer(event, "peak_memory_bytes"):  # simulations do not know peaks
        row.peak_memory_mb = peak_bytes / 1e6


def _mean_volume(steps: Sequence[tuple[float, int]], end_s: float) -> float | None:
    # The mean is over the time with workers: waiting for the first worker does not count.
    active = [step for index, step in enumerate(steps) if step[1] > 0 or index > 0]
    if not active:
        return None
    ends = [t for t, _ in active[1:]] + [end_s if active[-1][1] > 0 else active[-1][0]]
    spans = [(end - t, volume) for (t, volume), end in zip(active, ends, strict=True)]
    total_s = sum(span_s for span_s, _ in spans)
    return sum(span_s * volume for span_s, volume in spans) / total_s if total_s > 0 else float(active[0][1])


def latency_rows(events: Iterable[Event]) -> tuple[LatencyRow, ...]:
    """Return the latencies in milliseconds of all kinds, even of kinds without events."""
    by_kind: dict[str, list[float]] = {kind: [] for kind in LATENCIES}
    for event in events:
        if tells_latency(event.event, event.fields):
            latency_s = _number(event, "latency_s")
            if latency_s is not None:
                by_kind[event.event].append(1000 * latency_s)
    return tuple(latency_row(kind, sorted(latencies_ms)) for kind, latencies_ms in by_kind.items())


def busy_spans(events: Iterable[Event], end_s: float) -> list[tuple[float, float]]:
    """Return all spans (from, to) in which a PE was busy, for all PEs."""
    since: dict[int, float] = {}
    spans: list[tuple[float, float]] = []
    for event in events:
        if event.event == LogEvent.BUSY:
            since.setdefault(event.rank, event.t)
        elif event.event in (LogEvent.IDLE, LogEvent.STOP) and event.rank in since:
            spans.append((since.pop(event.rank), event.t))
    spans.extend((begin, end_s) for begin in since.values())
    return spans


def utilisation(events: Sequence[Event], pes: int, begin_s: float, end_s: float) -> Utilisation:
    """Return the share of PEs that are busy, from the first event to the last."""
    width_s = (end_s - begin_s) / UTILISATION_BINS
    if pes < 1 or width_s <= 0:
        return Utilisation(None)
    busy_s = [0.0] * UTILISATION_BINS
    for span_begin, span_end in busy_spans(events, end_s):
        first = min(UTILISATION_BINS - 1, int((span_begin - begin_s) / width_s))
        last = min(UTILISATION_BINS - 1, int((span_end - begin_s) / width_s))
        for index in range(first, last + 1):
            bin_begin = begin_s + index * width_s
            busy_s[index] += max(0.0, min(span_end, bin_begin + width_s) - max(span_begin, bin_begin))
    bins = tuple(seconds / (width_s * pes) for seconds in busy_s)
    ends = tuple(begin_s + (index + 1) * width_s for index in range(UTILISATION_BINS))
    return Utilisation(fmean(bins), ends, bins)


def volume_samples(steps: VolumeSteps, begin_s: float, end_s: float) -> VolumeSamples:
    """Return the volumes in the middle of equal slices of the run."""
    if end_s <= begin_s:
        return VolumeSamples((), ())
    width_s = (end_s - begin_s) / VOLUME_INSTANTS
    instants = tuple(begin_s + (index + 0.5) * width_s for index in range(VOLUME_INSTANTS))
    return VolumeSamples(instants, tuple((job, _sampled(steps[job], instants)) for job in sorted(steps)))


def _sampled(steps: Sequence[tuple[float, int]], instants: Sequence[float]) -> tuple[int | None, ...]:
    samples: list[int | None] = []
    position, volume = 0, 0
    for instant in instants:
        while position < len(steps) and steps[position][0] <= instant:
            volume = steps[position][1]
            position += 1
        samples.append(volume or None)
    return tuple(samples)


def reuse(events: Iterable[Event], jobs: Iterable[JobRow]) -> ReuseFigures:
    """Return workers created and reused in all, and the ratios of jobs that the log covers completely."""
    adoptions = [event.fields.get("created") for event in events if event.event == LogEvent.ADOPTED]
    whole = (job for job in jobs if job.submitted_s is not None and job.outcome != UNFINISHED)
    ratio = creation_ratio((job.created_workers, job.max_volume or 0) for job in whole)
    return ReuseFigures(
        created=sum(created is True for created in adoptions),
        reused=sum(created is False for created in adoptions),
        creation_ratio_median=ratio.median,
        creation_ratio_max=ratio.max,
        creation_ratio_total=ratio.total,
    )


def _number(event: Event, field: str) -> float | None:
    value = event.fields.get(field)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _integer(event: Event, field: str) -> int | None:
    value = event.fields.get(field)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
