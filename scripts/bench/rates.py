"""Throughput of no-op jobs, and the cost of doing nothing."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from common import BenchmarkError, DroppedJob, Service, running_service
from measured import Better, Measured
from processes import RankProcesses, cpu_s, everyone_below, memory, rank_processes

#: files dropped at once, and how often that is repeated
_BURSTS = ((100, 5), (500, 3), (10_000, 1))
_FLOOD = ((100_000, 1),)
_BURSTS_QUICK = _BURSTS[:2]
#: parts of a burst that is long enough for a rate of each
_FIFTHS, _LONG_BURST = 5, 10_000
#: endless jobs that wait, and jobs of another user then
_WAITING, _OTHERS = (1000, 20_000, 100_000), 10
_CPP_BURST_RECORDED = {500: "280 to 430"}
_URGENT: dict[str, object] = {"priority": 1000.0}
_URGENT_JOBS, _URGENT_BEHIND, _URGENT_PAUSE_S = 40, 20_000, 0.1
_LOOK_S = 0.0005
_SETTLE_S = 4.0
_PES = 16


def measure_burst(quick: bool) -> list[Measured]:
    """All files dropped at once until the last reply is there; and what the client's rank takes in memory."""
    measured, medians = _bursts(_BURSTS_QUICK if quick else _BURSTS)
    flat = medians[-1] / medians[0]
    return [*measured, Measured.of("largest burst over smallest", "ratio", [flat], Better.HIGHER, 0.75)]


def measure_flood(quick: bool) -> list[Measured]:
    """As many files as take minutes dropped at once, until the last reply is there."""
    return [] if quick else _bursts(_FLOOD)[0]


def _bursts(sizes: Sequence[tuple[int, int]]) -> tuple[list[Measured], list[float]]:
    measured: list[Measured] = []
    medians: list[float] = []
    for jobs, repetitions in sizes:
        rates, cpus_ms, loops_ms = [], [], []
        with running_service(4) as service:
            _warm_up(service)
            everyone = tuple(pid for each in rank_processes(service.process.pid) for pid in each.all)
            rank_bytes = memory((_client_pid(service),)).resident_bytes
            peak_bytes = 0
            slices: list[float] = []
            for burst in range(repetitions):
                prepared = [service.prepare(_noop(f"burst-{burst}-{n}")) for n in range(jobs)]
                before_s = cpu_s(everyone)
                begin_s = time.monotonic()
                for each in prepared:
                    each.drop()
                for fifth in range(1, _FIFTHS + 1) if jobs >= _LONG_BURST else (_FIFTHS,):
                    fifth_s = time.monotonic()
                    done = burst * jobs + jobs * fifth // _FIFTHS + 1
                    peak_bytes = max(peak_bytes, _await_replies(service, done))
                    slices.append(jobs / _FIFTHS / (time.monotonic() - fifth_s))
                rates.append(jobs / (time.monotonic() - begin_s))
                cpus_ms.append(1000 * (cpu_s(everyone) - before_s) / jobs)
                loops_ms.append(_fixed_loop_ms())
                time.sleep(0.5)
        what = f"burst of {jobs} no-op jobs, 4 ranks"
        recorded = _CPP_BURST_RECORDED.get(jobs, "")
        measured.append(Measured.of(what, "jobs/s", rates, Better.HIGHER, 500.0, recorded))
        measured.append(Measured.of(f"CPU of all ranks for each of {jobs} jobs", "ms", cpus_ms))
        measured.append(Measured.of(f"a fixed loop of Python after {jobs} jobs", "ms", loops_ms))
        grown = max(0.0, (peak_bytes - rank_bytes) / 1e6)
        measured.append(Measured.of(f"client's rank grows by, {jobs} jobs", "MB", [grown]))
        if jobs >= _LONG_BURST:
            what = f"burst of {jobs}: rate of the last fifth over the first"
            measured.append(Measured.of(what, "ratio", [slices[-1] / slices[0]], Better.HIGHER, 0.75))
        medians.append(fmean(rates))
    return measured, medians


def _fixed_loop_ms() -> float:
    """The least CPU time of a loop: rates of two runs are comparable where it is the same in both."""
    took_s = []
    for _ in range(8):
        begin_s = time.thread_time()
        sum(number & 7 for number in range(200_000))
        took_s.append(time.thread_time() - begin_s)
    return 1000 * min(took_s)


def _await_replies(service: Service, count: int) -> int:
    """Wait for so many files in `out/`; the most memory that the client's rank took meanwhile, in bytes."""
    out, pid = service.api_dir / "jobs.0" / "out", _client_pid(service)
    peak_bytes = 0
    deadline_s = time.monotonic() + 600.0
    while (there := sum(1 for _ in os.scandir(out))) < count:
        if time.monotonic() > deadline_s or service.process.poll() is not None:
            raise BenchmarkError(f"{there} of {count} replies")
        peak_bytes = max(peak_bytes, memory((pid,)).resident_bytes)
        time.sleep(max(_LOOK_S, 2e-6 * count))
    return peak_bytes


def measure_waiting(quick: bool) -> list[Measured]:
    """The client's rank while thousands of endless jobs of one user wait, and the answers to another user."""
    measured = []
    dropped = 0
    with running_service(4) as service:
        _warm_up(service)
        for jobs in _WAITING[:2] if quick else _WAITING:
            endless = [service.prepare(_endless(f"endless-{n}")) for n in range(dropped, jobs)]
            begin_s = time.monotonic()
            for each in endless:
                each.drop()
            other = service.prepare(_noop(f"behind-{jobs}") | {"user": "other"})
            behind_ms = 1000 * service.await_reply(other.drop(), timeout_s=120.0)
            dropped = jobs
            time.sleep(_SETTLE_S + time.monotonic() - begin_s)
            others = [_noop(f"other-{jobs}-{n}") | {"user": "other"} for n in range(_OTHERS)]
            later_ms = [1000 * service.await_reply(service.drop(each)) for each in others]
            pss = memory((_client_pid(service),)).proportional_bytes / 1e6
            what = f"PSS of the client's rank, {jobs} jobs wait"
            measured.append(Measured.of(what, "MB", [pss], target=100.0))
            what = f"another user's job, dropped behind {jobs} at once, file to reply"
            measured.append(Measured.of(what, "ms", [behind_ms]))
            what = f"another user's job while {jobs} wait, file to reply"
            measured.append(Measured.of(what, "ms", later_ms, Better.LOWER, 50.0))
    return measured


def _endless(name: str) -> dict[str, object]:
    return _noop(name) | {"application": "SLEEP", "configuration": {"seconds": 1e6}}


def _client_pid(service: Service) -> int:
    status: dict[str, Any] = json.loads((service.api_dir / "status.json").read_bytes())
    return int(status["processes"][0]["pid"])


def measure_urgent(quick: bool) -> list[Measured]:
    """A job of high priority, dropped behind thousands; its reply comes after its start."""
    jobs = 2000 if quick else _URGENT_BEHIND
    with running_service(4) as service:
        _warm_up(service)
        others = [service.prepare(_noop(f"other-{n}")) for n in range(jobs)]
        urgent = [service.prepare(_noop(f"urgent-{n}") | _URGENT) for n in range(_URGENT_JOBS)]
        for other in others:
            other.drop()
        latencies_ms = []
        for each in urgent:
            latencies_ms.append(1000 * service.await_reply(each.drop()))
            time.sleep(_URGENT_PAUSE_S)
    what = f"urgent no-op job behind {jobs} others, file to reply"
    return [Measured.of(what, "ms", latencies_ms, Better.LOWER, 50.0)]


def measure_closed_loop(quick: bool) -> list[Measured]:
    """Each reply is followed by the next job of its place."""
    duration_s = 2.0 if quick else 6.0
    measured = []
    with running_service(4) as service:
        _warm_up(service)
        for active, recorded in ((1, "70 to 75"), (16, "650 to 843")):
            rate = _closed_loop(service, active, duration_s)
            what = f"closed loop, {active} active no-op jobs, 4 ranks"
            measured.append(Measured.of(what, "jobs/s", [rate], Better.HIGHER, None, recorded))
            time.sleep(0.5)
    return measured


def _closed_loop(service: Service, active: int, duration_s: float) -> float:
    count = 0

    def next_job() -> DroppedJob:
        nonlocal count
        count += 1
        return service.drop(_noop(f"loop-{active}-{count}"))

    begin_s = time.monotonic()
    jobs = [next_job() for _ in range(active)]
    while time.monotonic() < begin_s + duration_s:
        if service.process.poll() is not None:
            raise BenchmarkError("the service has ended")
        jobs = [next_job() if job.reply_path.exists() else job for job in jobs]
        time.sleep(_LOOK_S)
    ended = count - active
    elapsed_s = time.monotonic() - begin_s
    for job in jobs:
        service.await_reply(job)
    return ended / elapsed_s


def measure_idle(quick: bool) -> list[Measured]:
    measured = []
    for ranks, recorded_cpu, recorded_rss, recorded_pss in (
        (4, "4.5 (1.2 at 1 ms polls)", "18.5", "7.4"),
        (16, "2.5 (0.7 at 1 ms polls)", "19.4", "5.7"),
    ):
        with running_service(ranks) as service:
            _warm_up(service)
            time.sleep(_SETTLE_S)
            processes = rank_processes(service.process.pid)
            if len(processes) != ranks:
                raise BenchmarkError(f"{len(processes)} rank processes found, not {ranks}")
            shares = _cpu_shares(processes, 3.0 if quick else 10.0)
            alone = [memory((each.rank,)) for each in processes]
            everything = [memory(each.all) for each in processes]
            guards = [memory(each.guard).proportional_bytes / 1e6 for each in processes]
        rank_only = [share for share, _ in shares]
        total = [share for _, share in shares]
        suffix = f"{ranks} ranks"
        what = f"idle CPU per rank, mean, {suffix}"
        measured.append(Measured.of(what, "%", [fmean(total)], target=0.5, recorded=recorded_cpu))
        measured.append(Measured.of(f"idle CPU of the rank process alone, {suffix}", "%", rank_only))
        for part, series in (("rank alone", alone), ("with helpers", everything)):
            resident = [each.resident_bytes / 1e6 for each in series]
            shared = [each.proportional_bytes / 1e6 for each in series]
            first, second = f"RSS per rank, {part}, {suffix}", f"PSS per rank, {part}, {suffix}"
            measured.append(Measured.of(first, "MB", resident, recorded=recorded_rss))
            measured.append(Measured.of(second, "MB", shared, recorded=recorded_pss))
        measured.append(Measured.of(f"PSS of a rank's guard, {suffix}", "MB", guards, target=5.0))
    return measured


def measure_memory(quick: bool) -> list[Measured]:
    """All processes of 16 PEs together, at rest."""
    measured = []
    for ranks in (16, 4) if quick else (16, 4, 1):
        with running_service(ranks, ("--pes", str(_PES // ranks))) as service:
            _warm_up(service)
            time.sleep(_SETTLE_S)
            everything = [memory(each.all) for each in rank_processes(service.process.pid)]
            if ranks == 1:  # it runs in the process that was started
                everything = [memory(everyone_below(service.process.pid))]
        resident = sum(each.resident_bytes for each in everything) / 1e6
        shared = sum(each.proportional_bytes for each in everything) / 1e6
        measured.append(Measured.of(f"RSS of 16 PEs on {ranks} ranks", "MB", [resident]))
        measured.append(Measured.of(f"PSS of 16 PEs on {ranks} ranks", "MB", [shared]))
    return measured


def _cpu_shares(processes: list[RankProcesses], duration_s: float) -> list[tuple[float, float]]:
    """Per cent of a core: each rank process alone, and with its helpers."""
    before = [(cpu_s((each.rank,)), cpu_s(each.all)) for each in processes]
    begin_s = time.monotonic()
    time.sleep(duration_s)
    elapsed_s = time.monotonic() - begin_s
    after = [(cpu_s((each.rank,)), cpu_s(each.all)) for each in processes]
    return [
        (100 * (b[0] - a[0]) / elapsed_s, 100 * (b[1] - a[1]) / elapsed_s)
        for a, b in zip(before, after, strict=True)
    ]


def _warm_up(service: Service) -> None:
    service.await_reply(service.drop(_noop("first")))
    time.sleep(1.0)


def _noop(name: str) -> dict[str, object]:
    return {"user": "bench", "name": name, "application": "NOOP"}
