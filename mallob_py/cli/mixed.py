"""The mixed experiment: formulas, optimisation, bags and functions of several users arrive at one pool.

Real jobs, on a real service. One stream of jobs, drawn from a seed, is played in three ways, in turns: on the
*pool*, where jobs share the PEs; through a *queue* before the same service, which gives a job one PE for as
long as the job takes, first come first served, as many jobs at a time as there are PEs; and each kind of job
*alone* on the pool.
"""

from __future__ import annotations

import importlib.util
import math
import queue
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import msgspec

from mallob_py.api import optimization
from mallob_py.api.calls.ranks import OwnRanks
from mallob_py.api.client import Client, JobError
from mallob_py.api.executor import Executor
from mallob_py.api.incremental import IncrementalSolver
from mallob_py.cli import CommandError
from mallob_py.experiments.intervals import interval
from mallob_py.experiments.output import Output, Table
from mallob_py.service import ServiceError
from mallob_py.text_table import Cell
from mallob_sat import generate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PES, SECONDS, ROUNDS = 2, 60.0, 3
WAYS = ("pool", "queue", "alone")
USERS = ("ada", "bob", "cyd", "dan")
#: the limit of an optimisation job, and of any other one [s with a PE]
OPTIMISE_S, LIMIT_S = 8.0, 60.0
#: the mean time between two arrivals, times the PEs [s]: the load is about 0.8
BETWEEN_S = 4.5
_LOOK_S = 0.25
_REVISIONS = 6
_REMARKS = """\
Response: from a job's arrival to its answer, in s. PAR-2: the mean response of formulas, twice the limit for
one without an answer. Cost: the mean of best costs over the least cost found in any way. Area: the same, as a
mean over the time from the arrival to the limit, where no solution yet counts as 2. Fairness: Jain's index of
the users' mean responses, 1: all the same. Behind ±: half of a 95 % interval over the rounds. Queue / pool:
geometric mean of each job's response through the queue over its response on the pool, with a 95 % interval
over the jobs; alone: in the first round only."""


class Arrival(msgspec.Struct, frozen=True):
    """A job of the stream."""

    kind: str
    number: int
    user: str
    at_s: float


class Ended(msgspec.Struct, frozen=True):
    """The end of a job. `costs`: (s since the arrival, best cost) of an optimisation job."""

    kind: str
    number: int
    user: str
    at_s: float
    response_s: float
    is_answered: bool
    costs: list[tuple[float, int]] = []


class Played(msgspec.Struct, frozen=True):
    """One run of a stream."""

    ended: list[Ended]


# --- the jobs ---------------------------------------------------------------------------------------


class Jobs:
    """Hands in the jobs of a stream and waits for them. `max_demand`: of each job, 0: no bound."""

    def __init__(self, api_dir: Path, inputs: Path, seed: int, max_demand: int) -> None:
        self._api_dir = api_dir
        self._inputs = inputs
        self._seed = seed
        self._max_demand = max_demand
        self._clients = {user: Client(api_dir, user=user) for user in USERS}

    def run(self, job: Arrival, begun_s: float) -> Ended:
        """Run a job to its end. Raises ServiceError if the service has ended."""
        rng = random.Random(f"{self._seed} {job.kind} {job.number}")
        costs: list[tuple[float, int]] = []
        runs: dict[str, Callable[[Client, Arrival, random.Random], bool]] = {
            "SAT": self._formula,
            "incremental": self._incremental,
            "MaxSAT": partial(self._optimum, costs, begun_s + job.at_s),
            "SMT": self._script,
            "bag": self._bag,
            "functions": self._functions,
        }
        try:
            is_answered = runs[job.kind](self._clients[job.user], job, rng)
        except JobError as error:
            raise CommandError(f"a job of the kind {job.kind} was not run: {error}") from None
        response_s = time.monotonic() - begun_s - job.at_s
        return Ended(job.kind, job.number, job.user, job.at_s, response_s, is_answered, costs)

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def _formula(self, client: Client, job: Arrival, rng: random.Random) -> bool:
        path = self._file(job, "cnf", _text_of_formula(rng))
        answer = client.solve(str(path), time_limit_s=LIMIT_S, max_demand=self._max_demand)
        return answer.satisfiable is not None

    def _incremental(self, client: Client, job: Arrival, rng: random.Random) -> bool:
        formula = generate.planted(220, 900, rng.randrange(1 << 30))
        with IncrementalSolver(client, formula.clauses, max_demand=self._max_demand) as solver:
            for _ in range(_REVISIONS):
                literals = rng.sample(range(1, 221), 8)
                solver.solve_limited([rng.choice((-1, 1)) * one for one in literals])
        return True

    def _optimum(
        self, costs: list[tuple[float, int]], at_s: float, client: Client, job: Arrival, rng: random.Random
    ) -> bool:
        path = self._file(job, "wcnf", _text_of_cover(rng))
        task = optimization.minimizing(str(path), None)
        future = client.optimize(task, time_limit_s=OPTIMISE_S, max_demand=self._max_demand)
        while not future.done():
            self._note(costs, at_s, future.bounds[0])
            time.sleep(_LOOK_S)
        self._note(costs, at_s, future.result().value)
        return future.result().is_optimal

    @staticmethod
    def _note(costs: list[tuple[float, int]], at_s: float, cost: int | None) -> None:
        if cost is not None and (not costs or cost < costs[-1][1]):
            costs.append((time.monotonic() - at_s, cost))

    def _script(self, client: Client, _job: Arrival, rng: random.Random) -> bool:
        answer = client.solve_smt(_text_of_script(rng), time_limit_s=LIMIT_S, max_demand=self._max_demand)
        return answer.satisfiable is not None

    def _bag(self, client: Client, _job: Arrival, rng: random.Random) -> bool:
        client.run("QUEENS", n=rng.choice((9, 10, 11)), max_demand=self._max_demand)
        return True

    def _functions(self, _client: Client, job: Arrival, rng: random.Random) -> bool:
        with Executor(self._api_dir, user=job.user, max_demand=self._max_demand) as executor:
            return len(list(executor.map(_count, [rng.randrange(200_000, 400_000) for _ in range(60)]))) == 60

    def _file(self, job: Arrival, suffix: str, text: str) -> Path:
        path = self._inputs / f"{job.kind}-{job.number}.{suffix}"
        if not path.exists():
            path.write_text(text)
        return path


def _count(steps: int) -> int:
    """Work for some hundredths of a second."""
    total = 0
    for number in range(steps):
        total += number & 7
    return total


def _text_of_formula(rng: random.Random) -> str:
    seed = rng.randrange(1 << 30)
    n_vars = rng.randrange(150, 260)
    makers: tuple[Callable[[], generate.Formula], ...] = (
        lambda: generate.uniform(n_vars, int(4.26 * n_vars), seed),
        lambda: generate.planted(2 * n_vars, int(2 * 4.1 * n_vars), seed),
        lambda: generate.factoring(rng.choice((1_018_081, 16_785_407, 25_060_027, 100_160_063))),
        lambda: generate.commutativity(rng.choice((5, 6))),
    )
    return rng.choice(makers)().text("mixed")


def _text_of_cover(rng: random.Random) -> str:
    """Return a weighted vertex cover of a random graph, as WCNF."""
    vertices = rng.randrange(120, 240)
    edges = {tuple(sorted(rng.sample(range(1, vertices + 1), 2))) for _ in range(4 * vertices)}
    lines = [f"h {one} {other} 0" for one, other in sorted(edges)]
    lines += [f"{rng.randrange(1, 20)} -{vertex} 0" for vertex in range(1, vertices + 1)]
    return "\n".join(lines) + "\n"


def _text_of_script(rng: random.Random) -> str:
    """Return a script that factors a number of 14 to 18 bits, or finds a sum of bits, in bit vectors."""
    bits = rng.randrange(14, 19)
    number = rng.randrange(1 << (bits - 1), 1 << bits) | 1
    wide = f"(_ BitVec {2 * bits})"
    return (
        f"(set-logic QF_BV)(declare-const a {wide})(declare-const b {wide})"
        f"(assert (= (bvmul a b) (_ bv{number} {2 * bits})))"
        f"(assert (bvult a (_ bv{1 << bits} {2 * bits})))(assert (bvult b (_ bv{1 << bits} {2 * bits})))"
        f"(assert (bvugt a (_ bv1 {2 * bits})))(assert (bvugt b (_ bv1 {2 * bits})))(check-sat)"
    )


# --- the stream and the ways to play it --------------------------------------------------------------


def kinds() -> list[str]:
    """Return the kinds of jobs that can be run here: SMT needs a solver."""
    has_smt = any(importlib.util.find_spec(name) for name in ("cvc5", "bitwuzla"))
    return ["SAT", "incremental", "MaxSAT", *(["SMT"] if has_smt else []), "bag", "functions"]


def stream(seed: int, seconds: float, pes: int, names: Sequence[str]) -> list[Arrival]:
    """Draw the jobs that arrive within `seconds`."""
    rng = random.Random(f"mixed {seed}")
    jobs, at_s = list[Arrival](), 0.0
    while (at_s := at_s + rng.expovariate(pes / BETWEEN_S)) < seconds:
        jobs.append(Arrival(rng.choice(names), len(jobs), rng.choice(USERS), at_s))
    return jobs


def play(seed: int, jobs: Sequence[Arrival], pes: int, is_queue: bool) -> Played:
    """Play a stream on a service of its own. Raises CommandError."""
    try:
        ranks = OwnRanks(pes)
    except ServiceError as error:
        raise CommandError(str(error)) from None
    try:
        inputs = ranks.api_dir.parent / "inputs"
        inputs.mkdir()
        runner = Jobs(ranks.api_dir, inputs, seed, 1 if is_queue else 0)
        return _play(runner, jobs, pes if is_queue else None)
    finally:
        ranks.stop()


def _play(runner: Jobs, jobs: Sequence[Arrival], slots: int | None) -> Played:
    waiting = queue.SimpleQueue[Arrival | None]()
    ended, errors = list[Ended](), list[Exception]()
    begun_s = time.monotonic()

    def work() -> None:
        while (job := waiting.get()) is not None:
            try:
                ended.append(runner.run(job, begun_s))
            except (CommandError, ServiceError) as error:
                errors.append(error)

    # A job of the pool never waits for a thread.
    threads = [threading.Thread(target=work, daemon=True) for _ in range(slots or len(jobs))]
    for thread in threads:
        thread.start()
    for job in jobs:
        time.sleep(max(0.0, begun_s + job.at_s - time.monotonic()))
        waiting.put(job)
    for _ in threads:
        waiting.put(None)
    for thread in threads:
        thread.join()
    if errors:
        raise CommandError(str(errors[0]))
    runner.close()
    return Played(sorted(ended, key=lambda one: one.number))


# --- tables and the figure ------------------------------------------------------------------------


def _text(values: Sequence[float]) -> str:
    return interval(values).text() if values else ""


def _responses(played: Played, kind: str) -> dict[int, float]:
    """Return the responses by the jobs' numbers."""
    return {one.number: one.response_s for one in played.ended if kind in ("all", one.kind)}


def table_of_responses(rounds: Sequence[dict[str, Played]], names: Sequence[str]) -> Table:
    """Mean response by kind and way, and how many times as long a job takes through the queue."""
    rows = list[tuple[Cell, ...]]()
    for kind in (*names, "all"):
        row: list[Cell] = [kind, sum(len(_responses(one["pool"], kind)) for one in rounds)]
        for way in WAYS:
            found = [values for one in rounds if way in one and (values := _responses(one[way], kind))]
            row.append(_text([fmean(one.values()) for one in found]))
        rows.append((*row, _ratio(rounds, kind)))
    return Table("Response of mixed jobs", ("kind", "jobs", *WAYS, "queue / pool"), tuple(rows))


def _ratio(rounds: Sequence[dict[str, Played]], kind: str) -> str:
    """Return the geometric mean of the jobs' responses, queue over pool, with its interval."""
    logs = list[float]()
    for one in rounds:
        pool, queued = (_responses(one[way], kind) for way in ("pool", "queue"))
        logs += [math.log(queued[number] / pool[number]) for number in pool.keys() & queued.keys()]
    if len(logs) < 2:
        return ""
    found = interval(logs)
    low, high = (math.exp(found.mean + sign * found.half) for sign in (-1, 1))
    return f"{math.exp(found.mean):.2f} ({low:.2f} .. {high:.2f})"


def table_of_measures(rounds: Sequence[dict[str, Played]]) -> Table:
    """PAR-2 of formulas, quality of optimisation, fairness among users, and the time of the last answer."""
    least = {
        (place, one.number): min(
            cost
            for played in ways.values()
            for other in played.ended
            if other.number == one.number
            for _, cost in other.costs
        )
        for place, ways in enumerate(rounds)
        for one in ways["pool"].ended
        if one.costs
    }
    ways = WAYS[:2]

    def row(name: str, value: Callable[[int, Played], float | None]) -> tuple[Cell, ...]:
        cells = []
        for way in ways:
            values = [value(place, one[way]) for place, one in enumerate(rounds)]
            cells.append(_text([each for each in values if each is not None]))
        return (name, *cells)

    return Table(
        "The mixed stream on the pool and through a queue",
        ("measure", *ways),
        (
            row("PAR-2 of formulas [s]", lambda _, played: _par2(played)),
            row("cost", lambda place, played: _quality(played, place, least, is_area=False)),
            row("area", lambda place, played: _quality(played, place, least, is_area=True)),
            row("fairness", lambda _, played: _fairness(played)),
            row("last answer [s]", lambda _, played: max(one.at_s + one.response_s for one in played.ended)),
        ),
    )


def _par2(played: Played) -> float | None:
    formulas = [one for one in played.ended if one.kind == "SAT"]
    return fmean(one.response_s if one.is_answered else 2 * LIMIT_S for one in formulas) if formulas else None


def _fairness(played: Played) -> float:
    users = {one.user for one in played.ended}
    means = [fmean(one.response_s for one in played.ended if one.user == user) for user in users]
    return sum(means) ** 2 / (len(means) * sum(one * one for one in means))


def _quality(played: Played, place: int, least: dict[tuple[int, int], int], *, is_area: bool) -> float | None:
    """Return the mean of best costs over the least ones, at the end or over the time to the limit."""
    found = list[float]()
    for one in played.ended:
        if one.kind != "MaxSAT" or (place, one.number) not in least:
            continue
        best = max(1, least[place, one.number])
        if not is_area:
            found.append(min(2.0, one.costs[-1][1] / best) if one.costs else 2.0)
            continue
        steps = [(when_s, min(2.0, cost / best)) for when_s, cost in one.costs if when_s < OPTIMISE_S]
        area, since_s, ratio = 0.0, 0.0, 2.0
        for when_s, then in [*steps, (OPTIMISE_S, 0.0)]:
            area, since_s, ratio = area + ratio * (when_s - since_s), when_s, then
        found.append(area / OPTIMISE_S)
    return fmean(found) if found else None


def draw(rounds: Sequence[dict[str, Played]], names: Sequence[str], figure: Figure) -> None:
    """Draw for each kind the share of jobs that are answered within a time: pool, queue and alone."""
    rows = (len(names) + 2) // 3
    for axes, kind in zip(figure.subplots(rows, 3).flat, names, strict=False):
        for way in WAYS:
            times = sorted(
                each for one in rounds if way in one for each in _responses(one[way], kind).values()
            )
            if times:
                axes.step(
                    times, [(place + 1) / len(times) for place in range(len(times))], where="post", label=way
                )
        axes.set(title=kind, xscale="log", ylim=(0, 1))
        axes.tick_params(labelsize="x-small")
    figure.legend(WAYS, loc="outside lower center", ncols=3)
    figure.suptitle("Share of jobs answered within a time [s]", fontsize="medium")


def run(folder: Path, pes: int = PES, seconds: float = SECONDS, rounds: int = ROUNDS) -> None:
    """Play all rounds in turns, and write tables and the figure. Raises CommandError, OSError."""
    output, names = Output(folder, "mixed", resume=True), kinds()
    played = list[dict[str, Played]]()
    for seed in range(rounds):
        jobs = stream(seed, seconds, pes, names)
        if not jobs:
            raise CommandError(f"--seconds {seconds:g}: no job arrives in that time; give more")
        ways: dict[str, Callable[[], Played]] = {
            "pool": partial(play, seed, jobs, pes, False),
            "queue": partial(play, seed, jobs, pes, True),
        }
        found = {}
        for way, go in ways.items():
            found[way] = output.done(f"{pes} PEs, {seconds:g} s, seed {seed}, {way}", Played, go)
            print(f"seed {seed}, {way}: {len(found[way].ended)} jobs", file=sys.stderr, flush=True)
        alone = list[Ended]()
        for kind in names if seed == 0 else ():  # once: it takes as long as all other runs together
            if not (those := [job for job in jobs if job.kind == kind]):
                continue
            go = partial(play, seed, those, pes, False)
            alone += output.done(f"{pes} PEs, {seconds:g} s, seed {seed}, {kind} alone", Played, go).ended
            print(f"seed {seed}, {kind} alone: {len(those)} jobs", file=sys.stderr, flush=True)
        played.append(found | ({"alone": Played(alone)} if alone else {}))
    output.tables([table_of_responses(played, names), table_of_measures(played)], _REMARKS)
    output.figure("mixed", lambda figure: draw(played, names, figure))
