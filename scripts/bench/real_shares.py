"""Shares over time on real ranks; `bench_shares.py real` calls this.

- *switch*: two jobs that burn a core on one PE: what a switch costs the rank, and how long nobody computes.
- *bags*: endless bags of one worker each, m to 5m on m PEs: tasks done per second.
- *newcomers*: formulas of two clauses beside endless jobs: how long until each runs, and is answered.
- *formulas*: 200 formulas at once on four ranks, with turns and without: mean and last answer, and what
  became of the PEs' time.
- *even*: endless jobs of different priorities: how far each is from its share in windows of 5 and 30 s.
- *stream*: jobs of known, heavy-tailed sizes that hold a PE (and no core), with turns and without.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

from common import DroppedJob, Service, print_table, running_service
from processes import cpu_s, rank_processes
from pysat.formula import CNF
from pysat.solvers import Solver

from mallob_py.log_events import LogEvent
from mallob_py.protocol.messages import JobEvent
from mallob_py.protocol.rotation import fair_shares
from mallob_py.service.telemetry.event_log import Event
from mallob_py.service.telemetry.status import look, read_live_status
from mallob_sat import generate

_SETTLE_S = 3.0
#: until each job has had its first turns, in which who has had least is first, and others have theirs back
_YOUNG_S = 15.0
_POLL_S = 0.002
#: the same where replies are looked for among hundreds, which takes time of a core
_SLOW_POLL_S = 0.01
_WAYS = (("turns", ()), ("first come first served", ("--slice", "0")))


def _with_ticks() -> None:
    here = Path(__file__).parent
    os.environ["MALLOB_PY_APPS"] = "TICKS=ticks:TicksApplication"
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(here), os.environ.get("PYTHONPATH"))))


def _ticks(service: Service, name: str, configuration: dict[str, Any], **fields: Any) -> DroppedJob:
    job = {"user": "bench", "name": name, "application": "TICKS", "configuration": configuration}
    return service.drop(job | {"max-demand": 1, **fields})


def _end(service: Service, jobs: Iterable[DroppedJob]) -> None:
    for job in jobs:
        service.interrupt(job.identity)
    for job in jobs:
        service.await_reply(job)


# --- a switch -------------------------------------------------------------------------------


def switch(seconds: float) -> None:
    """One PE, turns of 100 ms: CPU of the rank beyond that with one job, and gaps between two jobs."""
    _with_ticks()
    with TemporaryDirectory() as folder, running_service(1, ["--slice", "100ms"]) as service:
        log = Path(folder) / "log"
        one = _ticks(service, "one", {"burns": True, "log": f"{log}"})
        time.sleep(_SETTLE_S)
        rank = rank_processes(service.process.pid)[0]
        alone = _cpu_in(seconds / 2, (rank.rank, *rank.guard))
        two = _ticks(service, "two", {"burns": True, "log": f"{log}"})
        time.sleep(_SETTLE_S)
        began_s = time.monotonic()
        both = _cpu_in(seconds, (rank.rank, *rank.guard))
        gaps = _gaps(log, began_s)
        _end(service, (one, two))
    rows = [
        ["switches", len(gaps)],
        ["CPU of the rank, each", f"{1000 * (both - 2 * alone) / len(gaps):.3f} ms"],
        ["nobody computes, median", f"{1000 * median(gaps):.3f} ms"],
        ["90 %", f"{1000 * quantiles(gaps, n=10)[-1]:.3f} ms"],
        ["99 %", f"{1000 * quantiles(gaps, n=100)[-1]:.3f} ms"],
    ]
    print_table(f"A switch, {seconds:g} s", ["", ""], rows)


def _cpu_in(seconds: float, pids: tuple[int, ...]) -> float:
    before_s = cpu_s(pids)
    time.sleep(seconds)
    return cpu_s(pids) - before_s


def _gaps(log: Path, since_s: float) -> list[float]:
    """Seconds between the last tick of one job and the first of the next one."""
    runs = sorted(
        (float(begin), float(end), pid) for pid, begin, end in map(str.split, log.read_text().splitlines())
    )
    return [
        after[0] - before[1]
        for before, after in pairwise(runs)
        if before[2] != after[2] and before[1] >= since_s
    ]


# --- bags -----------------------------------------------------------------------------------

_BAGS: dict[str, dict[str, Any]] = {
    "QUEENS": {"n": 22},
    "UTS": {"depth": 30},
}


def bags(application: str, pes: int, seconds: float) -> None:
    """Tasks per second of m endless bags and more on `pes` ranks; of m once more at the end."""
    rows = []
    first = None
    with running_service(pes, ["--preload", application]) as service:
        for turn, times in enumerate((1, 1.25, 1.5, 1.75, 2, 5, 1)):
            fields = {"application": application, "configuration": _BAGS[application], "max-demand": 1}
            jobs = [
                service.drop({"user": "bench", "name": f"bag{turn}-{number}", **fields})
                for number in range(int(times * pes))
            ]
            time.sleep(_SETTLE_S)
            before = _tasks_done(service)
            time.sleep(seconds)
            after = _tasks_done(service)
            rate = (after[1] - before[1]) / (after[0] - before[0])
            first = rate if first is None else first
            rows.append([int(times * pes), f"{rate:,.0f}", f"{100 * rate / first:.1f} %"])
            _end(service, jobs)
    print_table(f"{application} on {pes} PEs, {seconds:g} s", ["bags", "tasks/s", "of the first"], rows)


def _tasks_done(service: Service) -> tuple[float, float]:
    """When, and the sum of what all jobs have told; jobs that rest have told all up to 0.2 s of theirs."""
    asked_s = time.time()
    while True:
        look(service.api_dir)
        status = read_live_status(service.api_dir)
        if status is not None and status.time > asked_s:
            return status.time, sum(job.progress.done for job in status.jobs if job.progress is not None)
        time.sleep(0.01)


# --- newcomers ------------------------------------------------------------------------------


def newcomers(pes: int, count: int) -> None:
    """One after the other beside twice as many endless formulas as PEs, or bags, or both."""
    rows = []
    chance = random.Random(1)
    with TemporaryDirectory() as folder, running_service(pes, ["--preload", "SAT,QUEENS"]) as service:
        hard, small = Path(folder, "hard.cnf"), Path(folder, "small.cnf")
        hard.write_text(generate.uniform(600, 2760, 1).text("for a bench"))
        small.write_text("p cnf 2 2\n1 2 0\n-1 2 0\n")
        kinds: dict[str, dict[str, Any]] = {
            "formulas": {"application": "SAT", "files": [f"{hard}"]},
            "bags": {"application": "QUEENS", "configuration": _BAGS["QUEENS"]},
        }
        mixtures = {"formulas": ["formulas"], "bags": ["bags"], "both": ["formulas", "bags"]}
        for name, mixture in mixtures.items():
            endless = [
                service.drop({"user": "bench", "name": f"{name}{number}", **kinds[kind]})
                for number, kind in enumerate(mixture * (2 * pes // len(mixture)))
            ]
            time.sleep(_SETTLE_S)
            took = []
            for number in range(count):
                time.sleep(chance.uniform(0.1, 0.6))
                job = {"user": "new", "name": f"{name}.{number}", "application": "SAT", "files": [f"{small}"]}
                took.append(service.await_reply(service.drop(job)))
            rows.append((name, took))
            _end(service, endless)
    began = _times_until(service.events, LogEvent.STARTED)
    print_table(
        f"{count} newcomers beside {2 * pes} endless jobs on {pes} PEs [ms]",
        ["beside", "runs after", "90 %", "last", "reply seen", "90 %", "last"],
        [
            [name, *(f"{1000 * each:.1f}" for values in (began[name], took) for each in _spread(values))]
            for name, took in rows
        ],
    )


def _times_until(events: Sequence[Event], what: LogEvent) -> dict[str, list[float]]:
    """From the acceptance of each newcomer to the first such event of it, by what ran beside it."""
    accepted: dict[int, tuple[str, float]] = {}
    times: dict[str, list[float]] = defaultdict(list)
    for event in events:
        if event.event == LogEvent.ACCEPTED and event.fields["user"] == "new":
            accepted[event.fields["job"]] = event.fields["name"].partition(".")[0], event.t
        elif event.event == what and (one := accepted.pop(event.fields["job"], None)) is not None:
            times[one[0]].append(event.t - one[1])
    return times


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    return median(values), quantiles(values, n=10)[-1], max(values)


# --- formulas -------------------------------------------------------------------------------


def write_formulas(folder: Path, count: int) -> list[Path]:
    """Write formulas, the hardest first: of 15 one takes seconds, four about a second, ten milliseconds."""
    hard = count // 15
    formulas = [generate.uniform(240, 1022, seed) for seed in range(hard)]
    formulas += [generate.uniform(190, 809, seed) for seed in range(4 * hard)]
    formulas += [generate.planted(150, 600, seed) for seed in range(count - 5 * hard)]
    paths = []
    for number, formula in enumerate(formulas):
        paths.append(folder / f"{number:03d}.cnf")
        paths[-1].write_text(formula.text("for a bench"))
    return paths


def formulas(
    pes: int,
    count: int,
    rounds: int,
    order: str,
    ideal: Callable[[Sequence[tuple[float, float]]], list[float]],
    extra: Sequence[str] = (),
) -> None:
    """The formulas of a seed in both ways, in turns. `order`: the hardest first, last, or mixed.

    `ideal` answers with the response times of the CPU times that the jobs took without turns.
    """
    rows, budgets = [], []
    with TemporaryDirectory() as text:
        paths = write_formulas(Path(text), count)
        match order:
            case "easiest":
                paths.reverse()
            case "mixed":
                random.Random(1).shuffle(paths)
        for _, (name, arguments) in itertools.product(range(rounds), _WAYS):
            took, ranks_s, events = _answered(pes, [*arguments, *extra, "--portfolio", "c"], paths)
            budget = Budget(events, pes)
            sizes_s = [event.fields["cpu_s"] for event in events if event.event == LogEvent.ENDED]
            workers_s = sum(sizes_s)
            seconds = (fmean(took), median(took), max(took))
            rows.append([name, *(f"{each:.2f}" for each in seconds), budget.anew, budget.given])
            budgets.append([name, *(f"{each:.1f}" for each in (*budget.parts.values(), workers_s, ranks_s))])
            print(rows[-1], budgets[-1], flush=True)
        for at_once in sorted({min(pes, os.cpu_count() or 1), pes}):
            took, workers_s = unscheduled(at_once, paths)
            seconds = (fmean(took), median(took), max(took))
            name = f"no service, {at_once} at once"
            rows.append([name, *(f"{each:.2f}" for each in seconds), "", ""])
            budgets.append([name, *[""] * len(budget.parts), f"{workers_s:.1f}", ""])
            print(rows[-1], budgets[-1], flush=True)
    best = ideal([(0.0, size_s) for size_s in sizes_s])  # of the last way, which is without turns
    rows.append(["ideal: least attained", *(f"{each(best):.2f}" for each in (fmean, median, max)), "", ""])
    heads = ["way", "mean [s]", "median", "last", "begun anew", "moved"]
    print_table(f"{count} formulas at once on {pes} PEs, order: {order}", heads, rows)
    heads = ["way", *budget.parts, "CPU of workers", "of ranks"]
    print_table("PE-seconds until the last answer, and CPU-seconds", heads, budgets)


def _answered(
    pes: int, arguments: Sequence[str], paths: Sequence[Path]
) -> tuple[list[float], float, list[Event]]:
    """When each formula was answered, the CPU time of the ranks, and their logs."""
    with running_service(pes, arguments) as service:
        ranks = [pid for one in rank_processes(service.process.pid) for pid in (one.rank, *one.guard)]
        began_s, before_s = time.monotonic(), cpu_s(ranks)
        jobs = [
            service.drop({"user": "bench", "name": f"f{number}", "files": [f"{path}"]})
            for number, path in enumerate(paths)
        ]
        took = [each - began_s for each in _ended_s(jobs)]
        ranks_s = cpu_s(ranks) - before_s
    return took, ranks_s, service.events


def unscheduled(at_once: int, paths: Sequence[Path]) -> tuple[list[float], float]:
    """When each formula was solved if so many processes take them in order, without any service, and their
    CPU time.
    """
    began_s, before = time.monotonic(), os.times()
    took: list[float] = []
    at_work = 0
    for path in paths:
        if at_work == at_once:
            _await_child(took, began_s)
            at_work -= 1
        if os.fork() == 0:
            with Solver("cadical195", bootstrap_with=CNF(from_file=path).clauses) as solver:
                solver.solve()
            os._exit(0)
        at_work += 1
    for _ in range(at_work):
        _await_child(took, began_s)
    after = os.times()
    return took, after[2] + after[3] - before[2] - before[3]


def _await_child(took: list[float], began_s: float) -> None:
    os.wait()
    took.append(time.monotonic() - began_s)


def _ended_s(jobs: Sequence[DroppedJob]) -> list[float]:
    """When each reply came, in the order in which they did."""
    waiting = {job.reply_path.name for job in jobs}
    folder = jobs[0].reply_path.parent
    ended_s = []
    while waiting:
        come = waiting.intersection(os.listdir(folder))
        ended_s += [time.monotonic()] * len(come)
        waiting -= come
        time.sleep(_SLOW_POLL_S)
    return ended_s


class Budget:
    """The PE-seconds from the first job to the last answer, by their use, as the logs of the ranks have it.

    *answers*: roots, by the process that was their job's last one; *beside*: workers other than roots;
    *lost*: roots that another process has replaced; *starting*: a PE has a worker whose process does not run
    yet; *switching*: it has none while jobs rest; *idle*: it has none, and no job waits for one.
    """

    def __init__(self, events: Sequence[Event], pes: int) -> None:
        self.parts = dict.fromkeys(("answers", "beside", "lost", "starting", "switching", "idle"), 0.0)
        #: processes of roots that were replaced, and those that went on at another PE
        self.anew = self.given = 0
        self._of_root: dict[int, dict[int, float]] = defaultdict(dict)
        self._process: dict[tuple[int, int], int] = {}
        self._given: dict[tuple[int, int], int] = {}
        self._count = itertools.count()
        self._stopped: set[tuple[int, int]] = set()
        begin_s = min(event.t for event in events if event.event == LogEvent.SUBMITTED)
        self.span_s = max(event.t for event in events if event.event == LogEvent.ENDED) - begin_s
        #: of each PE: since when it does what (job and process; -1: no root); job -1: nothing
        self._doing: dict[int, tuple[float, int, int | None]] = dict.fromkeys(range(pes), (begin_s, -1, None))
        #: jobs that have no volume
        self._rest: set[int] = set()
        for event in events:
            if begin_s <= event.t <= begin_s + self.span_s:
                self._take(event)
        for pe in range(pes):
            self._do(pe, begin_s + self.span_s, -1, None)
        for processes in self._of_root.values():
            self.anew += len(processes) - 1
            self.parts["answers"] += processes.pop(max(processes))
            self.parts["lost"] += sum(processes.values())

    def _take(self, event: Event) -> None:
        pe, job = event.rank, event.fields.get("job", -1)
        match event.event:
            case LogEvent.SUBMITTED:
                self._resting(event.t, {*self._rest, job})
            case LogEvent.VOLUME:
                self._resting(event.t, self._rest - {job} if event.fields["volume"] else {*self._rest, job})
            case LogEvent.ENDED:
                self._resting(event.t, self._rest - {job})
            case LogEvent.BUSY:
                self._do(pe, event.t, 0, None)
            case LogEvent.IDLE:
                self._do(pe, event.t, -1, None)
            case LogEvent.SUSPENDED:
                self._stopped.add((job, pe))
            case LogEvent.STARTED:
                is_root = event.fields["index"] == 0
                self._process[job, pe] = self._given.pop((job, pe), next(self._count)) if is_root else -1
                if (job, pe) not in self._stopped:
                    self._do(pe, event.t, job, self._process[job, pe])
            case LogEvent.RESUMED:
                self._stopped.discard((job, pe))
                if (process := self._process.get((job, pe))) is not None:
                    self._do(pe, event.t, job, process)
            case LogEvent.TERMINATED:
                self._stopped.discard((job, pe))
                self._process.pop((job, pe), None)
            case LogEvent.GIVEN if (job, pe) in self._process:
                self._stopped.discard((job, pe))
                self._give(job, self._process.pop((job, pe)), event.fields["to"])
                self.given += 1

    def _give(self, job: int, process: int, pe: int) -> None:
        """A process goes on at another PE, where by the clocks of two ranks it may have started before."""
        if (started := self._process.get((job, pe))) is None:
            self._given[job, pe] = process
        else:
            used_s = self._of_root[job]
            used_s[started] = used_s.get(started, 0.0) + used_s.pop(process, 0.0)

    def _resting(self, now_s: float, rest: set[int]) -> None:
        if bool(rest) is not bool(self._rest):
            for pe, (_, job, process) in self._doing.items():
                self._do(pe, now_s, job, process)
        self._rest = rest

    def _do(self, pe: int, now_s: float, job: int, process: int | None) -> None:
        since_s, before, did = self._doing[pe]
        self._doing[pe] = now_s, job, process
        if did is None:
            what = "starting" if before >= 0 else "switching" if self._rest else "idle"
            self.parts[what] += now_s - since_s
        elif did < 0:
            self.parts["beside"] += now_s - since_s
        else:
            self._of_root[before][did] = self._of_root[before].get(did, 0.0) + now_s - since_s


# --- how even -------------------------------------------------------------------------------


def even(pes: int, seconds: float, priorities: Sequence[float], application: str) -> None:
    """QUEENS, or a formula, without end, one for each priority."""
    with (
        TemporaryDirectory() as folder,
        running_service(pes, ["--preload", application, "--portfolio", "c"]) as service,
    ):
        fields: dict[str, Any] = {"application": application}
        if application == "SAT":
            path = Path(folder, "hard.cnf")
            path.write_text(generate.uniform(600, 2760, 1).text("for a bench"))
            fields["files"] = [f"{path}"]
        else:
            fields["configuration"] = _BAGS[application]
        jobs = [
            service.drop({"user": "bench", "name": f"p{number}", "priority": one, **fields})
            for number, one in enumerate(priorities)
        ]
        time.sleep(seconds)
        _end(service, jobs)
    shares = fair_shares(
        {number: JobEvent(number, 1, pes, one, 0.0) for number, one in enumerate(priorities)}, pes
    )
    numbers = _numbers(service.events)
    runs = held(service.events)
    first_s = max(min(begin for begin, _ in runs[job]) for job in numbers) + _YOUNG_S
    last_s = min(event.t for event in service.events if event.event == LogEvent.ENDED)
    rows = []
    for job, number in sorted(numbers.items(), key=lambda one: one[1]):
        worst = []
        for window_s in (5.0, 30.0):
            starts = [first_s + 0.25 * step for step in range(int((last_s - first_s - window_s) / 0.25))]
            worst.append(
                max(abs(_within(runs[job], at, at + window_s) - shares[number] * window_s) for at in starts)
            )
        had_s = _within(runs[job], first_s, last_s) / (last_s - first_s)
        rows.append(
            [
                *(f"{priorities[number]:g}", f"{shares[number]:.3f}", f"{had_s:.3f}", f"{worst[0]:.2f} s"),
                f"{100 * worst[1] / (30 * shares[number]):.1f} %",
            ]
        )
    heads = ["priority", "share", "had", "off in 5 s", "off in 30 s"]
    print_table(f"{len(priorities)} of {application} on {pes} PEs, {last_s - first_s:.0f} s", heads, rows)


def _numbers(events: Sequence[Event]) -> dict[int, int]:
    """From the ids of jobs to the numbers in their names."""
    accepted = [event for event in events if event.event == LogEvent.ACCEPTED]
    return {event.fields["job"]: int(event.fields["name"][1:]) for event in accepted}


def held(events: Sequence[Event]) -> dict[int, list[tuple[float, float]]]:
    """When each job had a process at work, by PE after PE."""
    runs: dict[int, list[tuple[float, float]]] = defaultdict(list)
    running: dict[int, tuple[int, float]] = {}
    for event in events:
        if event.event in (LogEvent.STARTED, LogEvent.RESUMED):
            running[event.rank] = event.fields["job"], event.t
        elif event.event == LogEvent.IDLE and event.rank in running:
            job, since_s = running.pop(event.rank)
            runs[job].append((since_s, event.t))
    return runs


def _within(runs: Sequence[tuple[float, float]], begin_s: float, end_s: float) -> float:
    return sum(max(0.0, min(end, end_s) - max(begin, begin_s)) for begin, end in runs)


# --- a stream -------------------------------------------------------------------------------


def stream(
    pes: int, jobs: Sequence[tuple[float, float]], ideals: dict[str, Callable[[], list[float]]], ways: int
) -> None:
    """Hand in (arrival, size) on time, with turns or in both ways; `ideals` return response times."""
    _with_ticks()
    rows = []
    for name, arguments in _WAYS[:ways]:
        with running_service(pes, list(arguments)) as service:
            _end(service, [_ticks(service, f"first{number}", {"seconds": 0.01}) for number in range(pes)])
            responses = _play(service, jobs)
        rows.append(_row(f"{name}, real", jobs, responses))
        print(rows[-1], flush=True)
    rows += [_row(name, jobs, dict(enumerate(play()))) for name, play in ideals.items()]
    heads = ["way", "jobs", "mean slowdown", "95 %", "mean response [s]", "last end [s]"]
    print_table(f"A stream on {pes} PEs", heads, rows)


def _play(service: Service, jobs: Sequence[tuple[float, float]]) -> dict[int, float]:
    folder = service.api_dir / "jobs.0" / "out"
    began_s = time.monotonic()
    came_s: dict[int, float] = {}
    responses: dict[int, float] = {}
    arrivals = [arrival_s for arrival_s, _ in jobs]
    while len(responses) < len(jobs):
        now_s = time.monotonic() - began_s
        for number in range(len(came_s), bisect_right(arrivals, now_s)):
            came_s[number] = time.monotonic() - began_s
            _ticks(service, f"s{number}", {"seconds": jobs[number][1]})
        for name in os.listdir(folder):
            if name.startswith("bench.s") and name.endswith(".json"):
                number = int(name[len("bench.s") : -len(".json")])
                responses[number] = time.monotonic() - began_s - came_s[number]
                os.unlink(folder / name)
        time.sleep(_POLL_S)
    return responses


def _row(name: str, jobs: Sequence[tuple[float, float]], responses: dict[int, float]) -> list[Any]:
    slowdowns = [responses[number] / size for number, (_, size) in enumerate(jobs)]
    last_s = max(responses[number] + arrival_s for number, (arrival_s, _) in enumerate(jobs))
    return [
        *(name, len(jobs), f"{fmean(slowdowns):.2f}", f"{quantiles(slowdowns, n=20)[-1]:.2f}"),
        *(f"{fmean(responses.values()):.3f}", f"{last_s:.1f}"),
    ]
