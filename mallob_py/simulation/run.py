"""One simulated run: a cluster, a stream of jobs, a clock, measures and an event log.

The PEs are the protocol's own; only the network, the clock and the work are made up.
"""

from __future__ import annotations

import math
import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any, BinaryIO

import msgspec
import numpy as np

from mallob_py.protocol.effects import JobEnded
from mallob_py.protocol.stimuli import WorkerAnswered
from mallob_py.service.store import own_folder
from mallob_py.service.telemetry.report import (
    CREATION_RATIO_MEANS,
    LATENCIES,
    CreationRatio,
    LatencyRow,
    creation_ratio,
    latency_row,
    tells_latency,
)
from mallob_py.simulation import without_collections
from mallob_py.simulation.cluster import Cluster
from mallob_py.simulation.delays import NetworkModel
from mallob_py.simulation.setting import JobSpec, Setting
from mallob_py.text_table import Cell, format_cell, format_table

#: numbers of distinct PEs in P Table 2, which counts the workers created on at most this many PEs
DISTINCT_PES = (1, 2, 5, 10, 25)
_UTILISATION_BIN_S = 0.1


class PlayedJob(msgspec.Struct, frozen=True):
    """The record of a job that was played."""

    job: int
    ended_s: float
    outcome: str
    response_s: float
    wallclock_s: float
    pe_s: float
    max_volume: int
    created: int


class Measures:
    """All measures of one run; pass `observe` to the cluster.

    `Measures.observe` takes the same events that go into the log. Memory: a few numbers per PE, per finished
    job and per adoption.
    """

    def __init__(self, pes: int) -> None:
        self.pes = pes
        self.ended: list[PlayedJob] = []
        #: (time, number of jobs in the system from this time on)
        self.active_jobs: list[tuple[float, int]] = []
        self.context_switches = [0] * pes
        self.latencies_ms: dict[str, array[float]] = defaultdict(lambda: array("d"))
        self._active = 0
        self._busy_since: list[float | None] = [None] * pes
        self._last_job = [-1] * pes
        self._running_since: list[float | None] = [None] * pes
        #: job -> seconds for which its workers' processes have run, summed over workers
        self.worker_s: dict[int, float] = defaultdict(float)
        self._running_job = [-1] * pes
        self._busy_s = [0.0] * pes
        self._busy_changes: list[tuple[float, int]] = []
        #: job -> index -> how often a worker was created on each PE
        self._created: dict[int, dict[int, Counter[int]]] = {}
        #: number of distinct PEs -> number of workers created on this many PEs
        self._spread: Counter[int] = Counter()

    def observe(self, now: float, rank: int, event: str, fields: dict[str, Any]) -> None:
        """Take one event of the PE `rank`."""
        if event == "busy":
            self._busy_since[rank] = now
            self._busy_changes.append((now, 1))
        elif event in ("started", "resumed"):
            self._stop_running(now, rank)
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
            PlayedJob(
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
        """End the run: count busy PEs as busy until now."""
        for rank, since in enumerate(self._busy_since):
            if since is not None:
                self._busy_s[rank] += now - since
                self._busy_since[rank] = now
                self._stop_running(now, rank)

    # --- results ------------------------------------------------------------------------

    def latency(self, kind: str) -> LatencyRow:
        """Return the statistics of one kind of latency (`report.LATENCIES`)."""
        return latency_row(kind, sorted(self.latencies_ms[kind]))

    def busy_shares(self, seconds: float) -> list[float]:
        """Return for each PE the share of the run in which it was busy."""
        return [busy_s / seconds for busy_s in self._busy_s]

    def utilisation(self, window_s: float, from_s: float, to_s: float) -> tuple[list[float], list[float]]:
        """Return times and shares of busy PEs, as moving averages over `window_s`."""
        bins = np.arange(from_s, to_s, _UTILISATION_BIN_S)
        integral = np.array(self._busy_integral(bins))
        width = max(1, round(window_s / _UTILISATION_BIN_S))
        shares = (integral[width:] - integral[:-width]) / (width * _UTILISATION_BIN_S * self.pes)
        return bins[width:].tolist(), shares.tolist()

    def _busy_integral(self, instants: np.ndarray[Any, Any]) -> list[float]:
        """Return the busy PE-seconds up to each instant."""
        times = np.array([0.0, *(when_s for when_s, _ in self._busy_changes)])
        busy = np.cumsum([0, *(change for _, change in self._busy_changes)])
        done = np.concatenate(([0.0], np.cumsum(busy[:-1] * np.diff(times))))
        place = np.searchsorted(times, instants, side="right") - 1
        integral: list[float] = (done[place] + busy[place] * (instants - times[place])).tolist()
        return integral

    def creation_ratio(self) -> CreationRatio:
        return creation_ratio((job.created, job.max_volume) for job in self.ended)

    def shares_created_on_at_most(self) -> list[float]:
        """Return the shares of all workers created on at most 1, 2, 5, 10, 25 distinct PEs."""
        total = sum(self._spread.values())
        if not total:
            return [0.0] * len(DISTINCT_PES)
        return [
            sum(count for pes, count in self._spread.items() if pes <= limit) / total
            for limit in DISTINCT_PES
        ]


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a run; utilisation is measured after the first minute (or tenth of the run)."""

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
    """Return the summary as text."""
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
        ("share of workers created on n PEs", spread),
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
    """Return a share as text, with enough digits to tell 0.9985 from 0.9977; None: the run was too short."""
    return None if value is None else f"{value:.4f}"


#: function called with the progress so far: simulated seconds, messages
Progress = Callable[[float, int], None]

_STEPS_PER_RUN = 1000
_WARM_UP_S_MAX = 60.0
_WINDOW_S = 1.0
_LOG_BUFFER_EVENTS = 4096
_LOOK_AGAIN_S = 0.01
LOG_NAME = "simulated.jsonl"


class SimulationLog:
    """The events of all PEs as JSON lines in one file, in the form of a real run's log."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._encode = msgspec.json.Encoder(enc_hook=str).encode
        self._lines: list[bytes] = []

    def write(self, now: float, rank: int, event: str, fields: dict[str, Any]) -> None:
        line = {"t": round(now, 6), "rank": rank, "event": event} | fields
        self._lines.append(self._encode(line))
        if len(self._lines) >= _LOG_BUFFER_EVENTS:
            self.flush()

    def flush(self) -> None:
        """Hand everything to the file. Raises OSError."""
        left = memoryview(b"".join(line + b"\n" for line in self._lines))
        self._lines.clear()
        while left:
            left = left[self._file.write(left) :]


class _Work:
    """The remaining work of a job that will be solved."""

    def __init__(self, spec: JobSpec) -> None:
        self.speedup = spec.speedup
        self.left_s = spec.work_s
        self.since_s = 0.0
        self.speed = 0.0
        self.has_started = False
        self.version = 0


class Simulation:
    """A run of `setting`; jobs come from `submit_all` or one by one from `submit`.

    `on_job_ended(job)` is called when a job has ended; closed loops submit the next job there.
    """

    def __init__(self, setting: Setting, log: SimulationLog | None = None) -> None:
        self.setting = setting
        self.measures = Measures(setting.pes)
        self._log = log
        self.cluster = Cluster(
            setting.pes,
            setting.seed,
            setting.protocol,
            NetworkModel(setting),
            self._observe,
            setting.rank_capacities(),
        )
        self.cluster.on_ended = self._ended
        self.on_job_ended: Callable[[int], None] = lambda job: None
        self._work: dict[int, _Work] = {}
        self._jobs = 0
        #: real time that `play` took
        self.played_s = 0.0
        ranks = self.cluster.placement.ranks
        start = {"ranks": ranks, "pes": setting.pes, "mode": "simulated", "seed": setting.seed}
        self._write_log(0.0, 0, "start", start)

    def submit_all(self, specs: Iterable[JobSpec]) -> None:
        """Let each job arrive at its time."""
        for spec in specs:
            self.cluster.at(spec.arrival_s, partial(self.submit, spec))

    def submit(self, spec: JobSpec) -> int:
        """Let a job arrive now; returns its id."""
        self._jobs += 1
        job = self._jobs
        if spec.work_s:
            self._work[job] = _Work(spec)
        accepted = {
            "job": job,
            "user": f"client{spec.client}",
            "name": spec.name,
            "application": "SIMULATED",
            "priority": spec.priority,
        }
        self._write_log(self.cluster.now, spec.client, "accepted", accepted)
        self.cluster.submit(
            job,
            spec.client,
            priority=spec.priority,
            max_demand=spec.max_demand,
            wallclock_limit_s=spec.wallclock_limit_s,
            cpu_limit_s=spec.cpu_limit_s,
            user=spec.client,
        )
        return job

    @without_collections()
    def play(self, progress: Progress = lambda seconds, messages: None) -> None:
        """Run to the end of the setting's time. Raises OSError if the log cannot be written."""
        began_s = time.perf_counter()
        for step in range(1, _STEPS_PER_RUN + 1):
            self.cluster.run(self.setting.seconds * (step / _STEPS_PER_RUN), events_max=math.inf)
            progress(self.cluster.now, self.cluster.messages_sent)
        self.measures.close(self.cluster.now)
        self._write_log(self.cluster.now, 0, "stop", {})
        if self._log is not None:
            self._log.flush()
        self.played_s = time.perf_counter() - began_s

    def summary(self) -> Summary:
        """Return the figures of an ended run."""
        measures, setting = self.measures, self.setting
        warm_up_s = min(_WARM_UP_S_MAX, setting.seconds / 10)
        _, shares = measures.utilisation(_WINDOW_S, warm_up_s, setting.seconds)
        ratio = measures.creation_ratio()
        return Summary(
            pes=setting.pes,
            seconds=setting.seconds,
            seed=setting.seed,
            jobs_submitted=len(self.cluster.submitted),
            jobs_ended=len(measures.ended),
            response_mean_s=fmean(job.response_s for job in measures.ended) if measures.ended else None,
            utilisation=fmean(shares) if shares else None,
            busy_median=median(measures.busy_shares(setting.seconds)),
            latencies=tuple(measures.latency(kind) for kind in ("scheduled", "balanced", "adopted")),
            creation_ratio_median=ratio.median,
            creation_ratio_max=ratio.max,
            creation_ratio_total=ratio.total,
            created_on_at_most=dict(zip(DISTINCT_PES, measures.shares_created_on_at_most(), strict=True)),
            context_switches_median=median(measures.context_switches),
            context_switches_mean=fmean(measures.context_switches),
            epochs=self.cluster.pes[0].balancer.epoch,
            messages=self.cluster.messages_sent,
            played_s=self.played_s,
        )

    def _observe(self, now: float, rank: int, event: str, fields: dict[str, Any]) -> None:
        self.measures.observe(now, rank, event, fields)
        self._write_log(now, rank, event, fields)
        if event == "volume":
            self._go_on(now, fields["job"], fields["volume"])
        elif event == "started" and fields["index"] == 0 and fields["job"] in self._work:
            self._work[fields["job"]].has_started = True
            self._go_on(now, fields["job"], self.cluster.pes[rank].balancer.volume(fields["job"]) or 1)

    def _write_log(self, now: float, rank: int, event: str, fields: dict[str, Any]) -> None:
        if self._log is not None:
            self._log.write(now, rank, event, fields)

    # --- the work -----------------------------------------------------------------------

    def _go_on(self, now: float, job: int, volume: int) -> None:
        """Change the volume with which a started job works (0: it waits for a PE)."""
        work = self._work.get(job)
        if work is None or not work.has_started:
            return
        work.left_s -= (now - work.since_s) * work.speed
        work.since_s = now
        work.speed = volume**work.speedup if volume else 0.0
        work.version += 1
        if work.speed:
            self.cluster.at(now + work.left_s / work.speed, partial(self._solve, job, work.version))

    def _solve(self, job: int, version: int) -> None:
        """Have a running worker find the result; if no worker runs, try again a little later."""
        work = self._work.get(job)
        if work is None or work.version != version:
            return
        running = self.cluster.running(job)
        if not running:
            self.cluster.at(self.cluster.now + _LOOK_AGAIN_S, partial(self._solve, job, version))
            return
        rank, worker = running[0]
        self.cluster.tell(rank, WorkerAnswered(worker, b""))

    def _ended(self, ended: JobEnded) -> None:
        self._work.pop(ended.job, None)
        # `on_job_ended` is called later, not from within the PE that has just ended the job.
        self.cluster.at(self.cluster.now, partial(self.on_job_ended, ended.job))


def open_log(folder: Path) -> SimulationLog:
    """Open a log in `folder`, which is made if need be. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    file = own_folder.open_to_write(folder / LOG_NAME, 0o666)
    return SimulationLog(open(file, "wb", buffering=0))  # the log has a buffer of its own
