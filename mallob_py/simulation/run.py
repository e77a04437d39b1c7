"""One simulated run: a cluster, a stream of jobs, a clock, measures and an event log.

The PEs are the protocol's own; only the network, the clock and the work are made up.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any, BinaryIO

import msgspec

from mallob_py.protocol.effects import JobEnded
from mallob_py.protocol.stimuli import WorkerAnswered
from mallob_py.simulation.cluster import Cluster
from mallob_py.simulation.delays import NetworkModel
from mallob_py.simulation.measures import DISTINCT_PES, Measures, Summary
from mallob_py.simulation.setting import JobSpec, Setting

#: what happened so far: simulated seconds, messages
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
    """What is left to do of a job that will be solved."""

    def __init__(self, spec: JobSpec) -> None:
        self.speedup = spec.speedup
        self.left_s = spec.work_s
        self.since_s = 0.0
        self.speed = 0.0
        self.has_started = False
        self.version = 0


class Simulation:
    """A run of `setting`; jobs come from `submit_all` or one by one from `submit`.

    `on_job_ended(job)` is called when a job has ended: closed loops submit the next one then.
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
        """Let all these jobs arrive at their times."""
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
        )
        return job

    def play(self, progress: Progress = lambda seconds, messages: None) -> None:
        """Run to the end of the setting's time. Raises OSError if the log cannot be written."""
        began_s = time.perf_counter()
        gc.collect()
        gc.freeze()
        was_enabled = gc.isenabled()
        gc.disable()  # nothing here makes cycles, and looking for them would take a third of the time
        try:
            for step in range(1, _STEPS_PER_RUN + 1):
                self.cluster.run(self.setting.seconds * (step / _STEPS_PER_RUN), events_max=math.inf)
                progress(self.cluster.now, self.cluster.messages_sent)
        finally:
            if was_enabled:
                gc.enable()
            gc.unfreeze()
        self.measures.close(self.cluster.now)
        self._write_log(self.cluster.now, 0, "stop", {})
        if self._log is not None:
            self._log.flush()
        self.played_s = time.perf_counter() - began_s

    def summary(self) -> Summary:
        """The numbers of a run that is over."""
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
        """A job that has started works with another volume from now on (0: it waits for a PE)."""
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
        """Some running worker finds the result; a little later, if none runs just now."""
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
        # Not from within the PE that has just ended it.
        self.cluster.at(self.cluster.now, partial(self.on_job_ended, ended.job))


def open_log(folder: Path) -> SimulationLog:
    """A log in `folder`, which is made if need be. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    return SimulationLog((folder / LOG_NAME).open("wb", buffering=0))  # the log has a buffer of its own
