"""Latencies of single jobs on a warm service, and where their time goes."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

from common import BenchmarkError, DroppedJob, Service, print_table, running_service
from measured import Measured

from mallob_py import Client, IncrementalSolver
from mallob_py.api.client import JobFuture
from mallob_py.log_events import LogEvent
from mallob_py.service.telemetry.event_log import Event

_WARM_UP_JOBS = 20
_PAUSE_S = 0.008
_SETTLE_S = 1.0
_TREE_PES = 16
_TREE_HOLD_S = 0.4
_TREE_PAUSE_S = 0.25
#: a worker's stages, in order; those of the root only
_STAGES = (
    LogEvent.ACCEPTED,
    LogEvent.SUBMITTED,
    LogEvent.SCHEDULED,
    LogEvent.ADOPTED,
    LogEvent.STARTED,
    LogEvent.ENDED,
)


@dataclass(frozen=True)
class Answered:
    """A job and its latency as the user sees it."""

    job: DroppedJob
    latency_s: float


def measure_noop(quick: bool) -> list[Measured]:
    return [
        _one_by_one(4, _noop, 20 if quick else 200, "no-op job to reply, 4 ranks", 6.0, "2.9"),
        _one_by_one(16, _noop, 20 if quick else 200, "no-op job to reply, 16 ranks", None, "4.2"),
        _one_by_one(
            4, _noop, 20 if quick else 200, "no-op job to reply, 4 ranks of 4 PEs", None, None, pes=4
        ),
    ]


def measure_sat(quick: bool) -> list[Measured]:
    return [_one_by_one(4, _sat, 20 if quick else 200, "trivial SAT job to reply, 4 ranks", 15.0, "35")]


def measure_tree(quick: bool) -> list[Measured]:
    """File dropped until the last of all PEs is active in the job."""
    return [
        _tree(1, quick, "file to all active, 16 ranks", 12.0, "16.4 to 18.8"),
        _tree(4, quick, "file to all active, 4 ranks of 4 PEs", None, ""),
    ]


class _NotingClient(Client):
    """Knows what the job was called that was handed in last."""

    last_name = ""

    def submit(self, *arguments: Any, **fields: Any) -> JobFuture:
        future = super().submit(*arguments, **fields)
        self.last_name = future.name
        return future


def measure_revisions(quick: bool) -> list[Measured]:
    """Revisions of a growing formula, each a clause more, asked for by our own solver object."""
    what = "revision of IncrementalSolver to answer, 2 ranks"
    answered: list[Answered] = []
    with running_service(2) as service:
        _warm_up(service)
        with _NotingClient(service.api_dir, user="bench") as client, IncrementalSolver(client) as solver:
            for number in range(-_WARM_UP_JOBS, 30 if quick else 300):
                variable = 2 * number + 2 * _WARM_UP_JOBS + 1
                solver.add_clause([variable, variable + 1])
                dropped_s, dropped_unix_s = time.monotonic(), time.time()
                solver.solve([-variable])
                latency_s = time.monotonic() - dropped_s
                identity = f"bench.{client.last_name}"
                if number >= 0:
                    job = DroppedJob(identity, service.api_dir, dropped_s, dropped_unix_s)
                    answered.append(Answered(job, latency_s))
    return [_with_stages(service, answered, what, 2.0, "4 to 7")]


def _tree(pes: int, quick: bool, what: str, target_ms: float | None, recorded: str) -> Measured:
    dropped: list[DroppedJob] = []
    with running_service(_TREE_PES // pes, ("--pes", str(pes))) as service:
        _warm_up(service)
        for number in range(5 if quick else 30):
            job = service.drop({"user": "bench", "name": f"tree-{number}", "application": "SLEEP"})
            dropped.append(job)
            time.sleep(_TREE_HOLD_S)
            service.interrupt(job.identity)
            service.await_reply(job)
            time.sleep(_TREE_PAUSE_S)
    timeline = Timeline(service.events)
    values = [timeline.all_active_s(job, _TREE_PES) for job in dropped]
    complete = [value for value in values if value is not None]
    if len(complete) < len(values):
        print(f"(in {len(values) - len(complete)} of {len(values)} jobs not all PEs got active)")
    title = f"{what}: medians in ms since the file was dropped"
    rows = [(stage, value) for stage, value in timeline.stages_ms(dropped)]
    for share in (0.25, 0.5, 0.75, 1.0):
        count = round(share * _TREE_PES)
        some = [value for job in dropped if (value := timeline.all_active_s(job, count)) is not None]
        rows.append((f"{count} active", median(some) * 1e3 if some else None))
    print_table(title, ("stage", "ms"), rows)
    milliseconds = [value * 1e3 for value in complete]
    return Measured.of(what, "ms", milliseconds, target=target_ms, recorded=recorded)


def _one_by_one(
    ranks: int,
    make: Any,
    count: int,
    what: str,
    target_ms: float | None,
    recorded: str,
    pes: int = 1,
) -> Measured:
    answered: list[Answered] = []
    with running_service(ranks, ("--pes", str(pes))) as service:
        _warm_up(service)
        for number in range(-_WARM_UP_JOBS, count):
            job = service.drop(make(f"job-{number}" if number >= 0 else f"warm-{-number}"))
            latency_s = service.await_reply(job)
            if number >= 0:
                answered.append(Answered(job, latency_s))
            time.sleep(_PAUSE_S)
    return _with_stages(service, answered, what, target_ms, recorded)


def _with_stages(
    service: Service, answered: list[Answered], what: str, target_ms: float | None, recorded: str
) -> Measured:
    timeline = Timeline(service.events)
    rows: list[tuple[str, float | None]] = list(timeline.stages_ms(one.job for one in answered))
    rows.append(("reply seen", median(one.latency_s for one in answered) * 1e3))
    print_table(f"{what}: medians in ms since the file was dropped", ("stage", "ms"), rows)
    values = [one.latency_s * 1e3 for one in answered]
    return Measured.of(what, "ms", values, target=target_ms, recorded=recorded)


def _warm_up(service: Service) -> None:
    """Let ranks come to rest: processes forked, applications imported."""
    service.await_reply(service.drop(_noop("first")))
    time.sleep(_SETTLE_S)


def _noop(name: str) -> dict[str, Any]:
    return {"user": "bench", "name": name, "application": "NOOP"}


def _sat(name: str) -> dict[str, Any]:
    return {"user": "bench", "name": name, "application": "SAT", "literals": [1, 2, 0, -1, 0]}


class Timeline:
    """When things happened to jobs, in seconds since 1970."""

    def __init__(self, events: Iterable[Event]) -> None:
        events = list(events)
        starts = [event.fields["unix_s"] for event in events if event.event == LogEvent.START]
        if not starts:
            raise BenchmarkError("the event log has no start")
        self._start_unix_s = float(starts[0])
        self._ids: dict[str, int] = {}
        self._stages: dict[tuple[int, str], float] = {}
        self._started: dict[int, dict[int, float]] = {}
        for event in events:
            self._add(event)

    def _add(self, event: Event) -> None:
        job = event.fields.get("job")
        if job is None:
            return
        moment = self._start_unix_s + event.t
        if event.event == LogEvent.ACCEPTED:
            self._ids[f"{event.fields['user']}.{event.fields['name']}"] = job
        index = event.fields.get("index", 0)
        if index == 0 and event.event in _STAGES:
            self._stages.setdefault((job, event.event), moment)
        if event.event == LogEvent.STARTED:
            self._started.setdefault(job, {}).setdefault(index, moment)

    def stages_ms(self, jobs: Iterable[DroppedJob]) -> list[tuple[str, float | None]]:
        """Medians of the time from the drop to each stage of the root worker."""
        jobs = list(jobs)
        rows: list[tuple[str, float | None]] = []
        for stage in _STAGES:
            times = [
                self._stages[key] - job.dropped_unix_s
                for job in jobs
                if (key := (self._ids.get(job.identity, -1), stage)) in self._stages
            ]
            rows.append((stage, median(times) * 1e3 if times else None))
        return rows

    def all_active_s(self, job: DroppedJob, workers: int) -> float | None:
        """From the drop to the start of the last of so many workers; None if there were fewer."""
        started = sorted(self._started.get(self._ids.get(job.identity, -1), {}).values())
        return started[workers - 1] - job.dropped_unix_s if len(started) >= workers else None
