"""Shares over time: how even they are, what they cost, and what a stream of jobs gains by them.

python scripts/bench/bench_shares.py even              n jobs on m PEs: unevenness, switches, moves
python scripts/bench/bench_shares.py stream --hours 1  heavy-tailed jobs: mean and 95 % slowdown

`even` compares two ways to realise a share below one PE: *resident*, each PE shares itself among the jobs
that it has, as evenly spread as can be; *turns*, the rule of `mallob_py/protocol/rotation.py`. Uneven: the
largest distance of a job from its share, in PE-seconds. A move is a worker that begins at a PE where its job
has not been yet.

`stream` plays jobs of one worker each with Pareto-distributed sizes: turns by the rule alone, and, with
`--messages`, in the simulator of the whole protocol; first come first served (as with `--slice 0`); and the
two ideals, processor sharing and least attained service. Slowdown: response time by size.
"""

from __future__ import annotations

import argparse
import bisect
import heapq
import math
import os
import random
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean, quantiles

import numpy as np
import real_shares

from mallob_py.log_events import LogEvent
from mallob_py.protocol.balancing import Image, local_rule
from mallob_py.protocol.config import Config
from mallob_py.protocol.effects import JobEnded
from mallob_py.protocol.messages import Epoch, JobEvent
from mallob_py.protocol.rotation import Slices
from mallob_py.protocol.stimuli import WorkerAnswered
from mallob_py.simulation.cluster import Cluster
from mallob_py.text_table import format_table

SLICES = Slices(Config().slice_s, Config().first_slice_s)
_WINDOWS_S = (5.0, 30.0)
_EVEN_S = 70.0
_EVEN_FROM_S = 10.0
_SIZES = ((4, 5), (4, 6), (4, 8), (4, 20), (128, 141), (128, 256), (128, 640), (1536, 1690), (1536, 3072))

#: between two epochs, at least
_EPOCH_S = 0.001
#: of the ideal by least attained service, where jobs that are level with each other would have endless ones
_STEP_S = 1e-4

#: seconds of work of each job in each slot, and what it costs
Slots = list[dict[int, float]]


# --- how even -------------------------------------------------------------------------------


def resident(pes: int, jobs: int) -> tuple[Slots, int, int]:
    """Each PE by itself: its jobs in turn, one slice each."""
    slots = []
    for slot in range(round(_EVEN_S / SLICES.slice_s)):
        here = [list(range(pe, jobs, pes)) for pe in range(pes)]
        slots.append({own[slot % len(own)]: SLICES.slice_s for own in here})
    return slots, jobs, 0


def turns(pes: int, jobs: int) -> tuple[Slots, int, int]:
    """The rule itself; a root that moves goes to any PE that is free."""
    rule, image = local_rule(pes, SLICES), Image({}, {}, 0)
    homes: list[set[int]] = [set() for _ in range(jobs)]
    roots = [-1] * jobs
    slots: Slots = []
    moves = moves_late = epoch = 0
    events = tuple(JobEvent(job, 1, 1, 1.0, -float(job)) for job in range(jobs))
    elapsed_s = now = 0.0
    while now < _EVEN_S:
        epoch += 1
        before = image.volumes
        image = rule(image, Epoch(epoch, events, elapsed_s))
        places = image.rotation.places
        stay = [job for job in image.volumes if job in before]
        come = [job for job in image.volumes if job not in before]
        free = set(range(pes)) - {roots[job] for job in stay}
        told = []
        for job in sorted(come, key=lambda job: job not in places):
            place = places.get(job, -1)
            place = place if place in free else min(free)
            free.remove(place)
            if place not in homes[job]:
                homes[job].add(place)
                moves += 1
                moves_late += now >= _EVEN_FROM_S
            if roots[job] != place:
                roots[job] = place
                told.append(JobEvent(job, epoch + 1, 1, 1.0, -float(job), place))
        events, elapsed_s = tuple(told), image.rotation.next_s
        slots.append(dict.fromkeys(image.volumes, elapsed_s))
        now += elapsed_s
    return slots, moves, moves_late


def unevenness(slots: Slots, pes: int, jobs: int, window_s: float) -> float:
    """The largest distance of a job from its share, of all windows of that length that begin on a slot."""
    ends_s = [0.0]
    for slot in slots:
        ends_s.append(ends_s[-1] + max(slot.values()))
    worst_s = 0.0
    for job in range(0, jobs, max(1, jobs // 64)):
        sums_s = [0.0]
        for slot in slots:
            sums_s.append(sums_s[-1] + slot.get(job, 0.0))
        for begin_s, had_s in zip(ends_s, sums_s, strict=True):
            if _EVEN_FROM_S <= begin_s <= ends_s[-1] - window_s:
                received_s = _at(begin_s + window_s, ends_s, sums_s) - had_s
                worst_s = max(worst_s, abs(received_s - window_s * pes / jobs))
    return worst_s


def _at(when_s: float, ends_s: list[float], sums_s: list[float]) -> float:
    """The sum at a time between two ends."""
    after = min(bisect.bisect_left(ends_s, when_s), len(ends_s) - 1)
    length_s = ends_s[after] - ends_s[after - 1]
    part = (when_s - ends_s[after - 1]) / length_s if length_s else 1.0
    return sums_s[after - 1] + part * (sums_s[after] - sums_s[after - 1])


def switches(slots: Slots) -> float:
    """Jobs that begin a turn, per second."""
    pairs = pairwise(slots)
    return sum(len(after.keys() - before.keys()) for before, after in pairs) / _EVEN_S


def tell_even() -> None:
    """One row for each size and way."""
    rows = []
    for pes, jobs in _SIZES:
        ways: Sequence[Callable[[int, int], tuple[Slots, int, int]]] = (resident, turns)
        for way in ways:
            began_s = time.process_time()
            slots, workers, late = way(pes, jobs)
            took_s = time.process_time() - began_s
            five, thirty = (unevenness(slots, pes, jobs, window_s) for window_s in _WINDOWS_S)
            part = thirty / (30.0 * pes / jobs)
            per_epoch_ms = f"{1000 * took_s / len(slots):.2f}" if way is turns else ""
            rows.append(
                [
                    *(pes, jobs, way.__name__, f"{five:.2f}", f"{thirty:.2f}", f"{100 * part:.1f} %"),
                    *(f"{switches(slots):.1f}", workers, f"{60 * late / (_EVEN_S - _EVEN_FROM_S) / pes:.2f}"),
                    per_epoch_ms,
                ]
            )
    heads = ["PEs", "jobs", "way", "uneven 5 s", "30 s", "of share", "switches/s", "workers", "moves/min/PE"]
    print(format_table([*heads, "epoch [ms]"], rows))


# --- a stream -------------------------------------------------------------------------------


def stream_of(
    pes: int,
    load: float,
    alpha: float,
    seconds: float,
    seed: int,
    sizes_s: tuple[float, float] = (0.02, 1000.0),
) -> list[tuple[float, float]]:
    """(arrival, size): Poisson arrivals, Pareto sizes from the least on, cut off at the largest."""
    choose = random.Random(f"{seed} {load} {alpha}")
    least_s, most_s = sizes_s
    ratio = (least_s / most_s) ** alpha
    mean_s = alpha * least_s / (alpha - 1) * (1 - (least_s / most_s) ** (alpha - 1)) / (1 - ratio)
    now, jobs = 0.0, []
    while (now := now + choose.expovariate(load * pes / mean_s)) < seconds:
        part = choose.random()
        jobs.append((now, least_s * (1 - part * (1 - ratio)) ** (-1 / alpha)))
    return jobs


def simulated(pes: int, jobs: Sequence[tuple[float, float]]) -> list[float]:
    """Response times in the simulator: the work of a job is what its one worker's process runs."""
    left_s = {number: size for number, (_, size) in enumerate(jobs)}
    running: dict[int, tuple[int, float, int]] = {}
    versions: dict[int, int] = {}
    ended_s: dict[int, float] = {}

    def observe(now: float, pe: int, event: str, fields: dict[str, object]) -> None:
        if event in (LogEvent.STARTED, LogEvent.RESUMED):
            job = int(str(fields["job"]))
            versions[job] = version = versions.get(job, 0) + 1
            running[pe] = job, now, version
            cluster.at(now + max(0.0, left_s[job]), lambda: solve(pe, job, version))
        elif event == LogEvent.IDLE and pe in running:
            job, since_s, _ = running.pop(pe)
            versions[job] += 1
            left_s[job] -= now - since_s

    def solve(pe: int, job: int, version: int) -> None:
        if versions[job] == version and (worker := cluster.pes[pe].workers.active) is not None:
            cluster.tell(pe, WorkerAnswered(worker.number, b""))

    def ended(effect: JobEnded) -> None:
        ended_s[effect.job] = cluster.now

    config = Config(residents=1 << 20, job_cache=1 << 20)
    cluster = Cluster(pes, 0, config, observe=observe)
    cluster.on_ended = ended
    for number, (arrival_s, _) in enumerate(jobs):
        cluster.at(arrival_s, lambda job=number: cluster.submit(job, job % pes, max_demand=1))
    cluster.run(events_max=math.inf, until_s=jobs[-1][0] + 50_000.0)
    return [ended_s[number] - arrival_s for number, (arrival_s, _) in enumerate(jobs)]


class Ruled:
    """The rule alone, without messages: an epoch whenever there is news or a turn is over.

    Between hosts a job's process on one PE knows nothing of those on others: a job that moves begins anew
    there, and ends when one of them has done all of its work. On one host a job takes its process along.
    `start_s`: what each turn that begins takes of its PE's time.
    """

    def __init__(
        self,
        pes: int,
        jobs: Sequence[tuple[float, float]],
        is_one_host: bool = False,
        start_s: float = 0.0,
    ) -> None:
        self._jobs = jobs
        self._is_one_host = is_one_host
        self._start_s = start_s
        self._rule = local_rule(pes, SLICES)
        self._image = Image({}, {}, 0)
        self._left_s: dict[int, dict[int, float]] = {}
        self._roots: dict[int, int] = {}
        self._told: dict[int, int] = {}
        self._versions: dict[int, int] = {}
        self._free = set(range(pes))
        self.responses = [0.0] * len(jobs)

    def play(self) -> list[float]:
        """Return the response times."""
        now, epoch, arrived = 0.0, 0, 0
        while arrived < len(self._jobs) or self._left_s:
            lefts_s = (self._left_s[job][self._host(pe)] for job, pe in self._roots.items())
            until_s = now + min(lefts_s, default=math.inf)
            if arrived < len(self._jobs):
                until_s = min(until_s, self._jobs[arrived][0])
            until_s = max(min(until_s, now + self._image.rotation.next_s), now + _EPOCH_S)
            events = self._advance(now, until_s)
            while arrived < len(self._jobs) and self._jobs[arrived][0] <= until_s:
                self._left_s[arrived] = {}
                events.append(self._event(arrived, -1))
                arrived += 1
            epoch += 1
            elapsed_s = until_s - now if self._image.rotation.is_on else 0.0
            self._image = self._rule(self._image, Epoch(epoch, tuple(events), elapsed_s, self._is_one_host))
            self._place()
            now = until_s
        return self.responses

    def _host(self, pe: int) -> int:
        return 0 if self._is_one_host else pe

    def _event(self, job: int, root: int) -> JobEvent:
        self._versions[job] = version = self._versions.get(job, 0) + 1
        return JobEvent(job, version, 1, 1.0, -float(job), root)

    def _advance(self, now: float, until_s: float) -> list[JobEvent]:
        events = []
        for job, pe in list(self._roots.items()):
            left_s = self._left_s[job][self._host(pe)]
            if left_s <= until_s - now + 1e-12:
                self.responses[job] = now + left_s - self._jobs[job][0]
                self._release(job)
                del self._left_s[job]
                events.append(JobEvent(job, 1 << 62, 0, 1.0, 0.0))
            else:
                self._left_s[job][self._host(pe)] = left_s - (until_s - now)
                if self._image.rotation.is_on and self._told.get(job) != pe:
                    self._told[job] = pe
                    events.append(self._event(job, pe))
        return events

    def _release(self, job: int) -> None:
        self._free.add(self._roots.pop(job))

    def _place(self) -> None:
        volumes, places = self._image.volumes, self._image.rotation.places
        for job in [job for job in self._roots if job not in volumes]:
            self._release(job)
        come = [job for job in volumes if job not in self._roots]
        for job in sorted(come, key=lambda job: job not in places):
            pe = places.get(job, -1)
            if pe not in self._free:
                pe = next((pe for pe in self._left_s[job] if pe in self._free), next(iter(self._free)))
            self._free.remove(pe)
            self._roots[job] = pe
            left_s = self._left_s[job].get(self._host(pe), self._jobs[job][1])
            self._left_s[job][self._host(pe)] = left_s + self._start_s


def first_come(pes: int, jobs: Sequence[tuple[float, float]]) -> list[float]:
    """Response times if each job keeps its PE until it ends."""
    free_s = [0.0] * pes
    responses = []
    for arrival_s, size in jobs:
        end_s = max(arrival_s, free_s[0]) + size
        heapq.heapreplace(free_s, end_s)
        responses.append(end_s - arrival_s)
    return responses


def processor_sharing(pes: int, jobs: Sequence[tuple[float, float]]) -> list[float]:
    """Response times if all jobs have the same at any time, at most one PE each."""
    responses = [0.0] * len(jobs)
    #: what each job would have had since the beginning when it ends
    ends: list[tuple[float, int]] = []
    now = had = 0.0
    for number, (arrival_s, size) in enumerate([*jobs, (math.inf, 0.0)]):
        while ends:
            rate = min(1.0, pes / len(ends))
            end_s = now + (ends[0][0] - had) / rate
            if end_s > arrival_s:
                had += rate * (arrival_s - now)
                break
            now, (had, ended) = end_s, heapq.heappop(ends)
            responses[ended] = now - jobs[ended][0]
        now = arrival_s
        if number < len(jobs):
            heapq.heappush(ends, (had + size, number))
    return responses


def least_attained(pes: int, jobs: Sequence[tuple[float, float]]) -> list[float]:
    """Response times if those run that have attained least; equals share. In small steps, between events."""
    responses = [0.0] * len(jobs)
    arrivals_s, sizes = (np.array(column) for column in zip(*jobs, strict=True))
    live = np.zeros(0, dtype=int)
    attained = np.zeros(0)
    now, come = 0.0, 0
    while come < len(jobs) or len(live):
        rates, step_s = _least_first(attained, pes)
        if len(live):
            served = rates > 0.0
            step_s = min(step_s, ((sizes[live] - attained)[served] / rates[served]).min())
        step_s = max(step_s, _STEP_S)
        if come < len(jobs):
            step_s = min(step_s, arrivals_s[come] - now)
        now += step_s
        attained = attained + rates * step_s
        over = attained >= sizes[live] - 1e-9
        for job in live[over]:
            responses[job] = now - jobs[job][0]
        live, attained = live[~over], attained[~over]
        while come < len(jobs) and arrivals_s[come] <= now + 1e-12:
            live, attained = np.append(live, come), np.append(attained, 0.0)
            come += 1
    return responses


def _least_first(attained: np.ndarray, pes: int) -> tuple[np.ndarray, float]:
    """PEs for those that have attained least, where equals share; and when one catches up with another."""
    if len(attained) <= pes:
        return np.ones(len(attained)), math.inf
    level = np.partition(attained, pes - 1)[pes - 1]
    below, above = attained < level - 1e-9, attained > level + 1e-9
    equal = ~(below | above)
    rate = (pes - below.sum()) / equal.sum()
    step_s = math.inf
    if above.any():
        step_s = (attained[above].min() - level) / rate
    if below.any() and rate < 1.0:
        step_s = min(step_s, (level - attained[below].max()) / (1.0 - rate))
    return np.where(below, 1.0, np.where(equal, rate, 0.0)), step_s


def tell_stream(
    seconds: float,
    pes: int,
    seed: int,
    loads: Sequence[float],
    alphas: Sequence[float],
    least_s: float,
    messages: bool,
) -> None:
    """One row for each load and tail. `least_s`: the size of the smallest jobs."""
    rows = []
    for alpha in alphas:
        for load in loads:
            jobs = stream_of(pes, load, alpha, seconds, seed, (least_s, 1000.0))
            for name, play in (
                ("first come first served", lambda jobs: first_come(pes, jobs)),
                ("turns", lambda jobs: Ruled(pes, jobs).play()),
                *((("turns, with all messages", lambda jobs: simulated(pes, jobs)),) if messages else ()),
                ("ideal: processor sharing", lambda jobs: processor_sharing(pes, jobs)),
                ("ideal: least attained", lambda jobs: least_attained(pes, jobs)),
            ):
                responses = play(jobs)
                slowdowns = [response / size for response, (_, size) in zip(responses, jobs, strict=True)]
                rows.append(
                    [
                        *(alpha, load, len(jobs), name, f"{fmean(slowdowns):.2f}"),
                        *(f"{quantiles(slowdowns, n=20)[-1]:.2f}", f"{fmean(responses):.3f}"),
                    ]
                )
            print(rows[-4:], flush=True)
    heads = ["alpha", "load", "jobs", "way", "mean slowdown", "95 %", "mean response [s]"]
    print(format_table(heads, rows))


# --- on real ranks --------------------------------------------------------------------------


def _real_stream(options: argparse.Namespace) -> None:
    jobs = stream_of(
        options.pes, options.loads[0], options.alphas[0], options.seconds, options.seed, (0.05, 100.0)
    )
    ideals = {
        "first come first served, simulated": lambda: first_come(options.pes, jobs),
        "turns, the rule alone": lambda: Ruled(options.pes, jobs, True).play(),
        "turns, 3 ms for each that begins": lambda: Ruled(options.pes, jobs, True, 0.003).play(),
        "ideal: processor sharing": lambda: processor_sharing(options.pes, jobs),
        "ideal: least attained": lambda: least_attained(options.pes, jobs),
    }
    real_shares.stream(options.pes, jobs, ideals, options.ways)


#: measurements of a running service, by name
REAL: dict[str, Callable[[argparse.Namespace], None]] = {
    "real-switch": lambda options: real_shares.switch(options.seconds),
    "real-queens": lambda options: real_shares.bags("QUEENS", options.pes, options.seconds),
    "real-uts": lambda options: real_shares.bags("UTS", options.pes, options.seconds),
    "real-newcomers": lambda options: real_shares.newcomers(options.pes, options.count),
    "real-formulas": lambda options: real_shares.formulas(
        *(options.pes, options.count, options.rounds, options.order),
        lambda jobs: least_attained(min(options.pes, os.cpu_count() or 1), jobs),
    ),
    "real-even": lambda options: real_shares.even(
        options.pes, options.seconds, options.priorities, options.application
    ),
    "real-stream": _real_stream,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("even", "stream", *REAL))
    parser.add_argument("--hours", type=float, default=0.5, help="of virtual time (stream)")
    parser.add_argument("--pes", type=int, default=4, help="PEs (stream, real)")
    parser.add_argument("--loads", type=float, nargs="+", default=(0.7, 0.9, 0.95))
    parser.add_argument("--alphas", type=float, nargs="+", default=(1.1, 1.5))
    parser.add_argument("--least", type=float, default=0.02, help="size of the smallest jobs (stream)")
    parser.add_argument("--messages", action="store_true", help="play the whole protocol, too (stream)")
    parser.add_argument("--priorities", type=float, nargs="+", default=(1, 1, 1, 1, 1, 2, 2, 3, 4, 8))
    parser.add_argument("--application", choices=("QUEENS", "SAT"), default="QUEENS", help="of real-even")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement (real)")
    parser.add_argument("--rounds", type=int, default=1, help="in turns (real-formulas)")
    parser.add_argument("--order", choices=("hardest", "mixed", "easiest"), default="hardest", help="first")
    parser.add_argument("--count", type=int, default=200, help="of formulas")
    parser.add_argument("--ways", type=int, choices=(1, 2), default=2, help="1: turns only (real-stream)")
    options = parser.parse_args()
    if options.what in REAL:
        REAL[options.what](options)
    elif options.what == "even":
        tell_even()
    else:
        streams = options.loads, options.alphas, options.least
        tell_stream(3600 * options.hours, options.pes, options.seed, *streams, options.messages)


if __name__ == "__main__":
    main()
