"""The mixed experiment: formulas, optimisation, bags and functions of several users arrive at one pool.

Real jobs run on a real service. In each round, one stream of jobs, drawn from a seed, is played in three
ways: on the *pool*, where jobs share the PEs; through a *queue* before the same service, where each job has
one PE until it ends, first come first served, with at most as many jobs at a time as PEs; and *alone*, one
job after the other, each with the whole pool.
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

PES, SECONDS, ROUNDS = 2, 40.0, 5
WAYS = ("pool", "queue", "alone")
USERS = ("ada", "bob", "cyd", "dan")
#: time limit of an optimisation job, and of any other job, in seconds during which the job has a PE
OPTIMISE_S, LIMIT_S = 8.0, 60.0
_LOOK_S = 0.25
_REVISIONS = 6
#: greatest ratio of costs that is counted; also the ratio of a job without a solution
_RATIO_MAX = 2.0
_GRID = 160
_REMARKS = """\
Response: time from a job's arrival to its answer, in s; alone: from its beginning. PAR-2: mean response of
formulas, where a formula without an answer counts twice the limit. Cost: mean ratio of a job's best cost to
the smallest cost found in any way. Area: mean of this ratio over the time from the arrival to the limit; it
is 2 before the first solution. Slowdown: mean ratio of a job's response to its response alone. Fairness:
Jain's index of the users' mean slowdowns; 1: all are equal. The number after ± is half the width of a 95 %
interval over rounds.
Queue / pool, pool / alone: geometric mean of jobs' ratios of responses, with a 95 % interval over jobs."""


class Difficulty(msgspec.Struct, frozen=True):
    """The ranges of jobs' sizes; mean time [s] between arrivals: `between_s` divided by the PEs."""

    between_s: float
    variables: tuple[int, int]
    products: tuple[int, ...]
    operands: tuple[int, ...]
    queens: tuple[int, ...]
    steps: tuple[int, int]


#: difficulty of a stream whose jobs, played alone on two cores, take 43 % of its duration
USUAL = Difficulty(
    4.5, (150, 260), (1_018_081, 16_785_407, 25_060_027, 100_160_063), (5, 6), (9, 10, 11), (200_000, 400_000)
)
#: difficulty of a harder stream, whose jobs take 75 %
HARD = Difficulty(4.2, (240, 300), (100_160_063, 10_000_600_009), (7, 8), (14, 15), (600_000, 1_200_000))


class Arrival(msgspec.Struct, frozen=True):
    """A job of the stream, which arrives at `at_s`."""

    kind: str
    number: int
    user: str
    at_s: float


class Ended(msgspec.Struct, frozen=True):
    """The end of a job. `costs`: (seconds since arrival, best cost by then) of an optimisation job."""

    kind: str
    number: int
    user: str
    at_s: float
    response_s: float
    is_answered: bool
    costs: list[tuple[float, int]] = []


class Played(msgspec.Struct, frozen=True):
    """The record of one run of a stream."""

    ended: list[Ended]


# --- the jobs ---------------------------------------------------------------------------------------


class Jobs:
    """Hands in the jobs of a stream and waits for them; `max_demand` bounds a job's workers (0: no bound)."""

    def __init__(
        self, api_dir: Path, inputs: Path, seed: int, max_demand: int, difficulty: Difficulty
    ) -> None:
        self._difficulty = difficulty
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
        path = self._file(job, "cnf", text_of_formula(rng, self._difficulty))
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
        client.run("QUEENS", n=rng.choice(self._difficulty.queens), max_demand=self._max_demand)
        return True

    def _functions(self, _client: Client, job: Arrival, rng: random.Random) -> bool:
        with Executor(self._api_dir, user=job.user, max_demand=self._max_demand) as executor:
            steps = [rng.randrange(*self._difficulty.steps) for _ in range(60)]
            return len(list(executor.map(_count, steps))) == len(steps)

    def _file(self, job: Arrival, suffix: str, text: str) -> Path:
        path = self._inputs / f"{job.kind}-{job.number}.{suffix}"
        if not path.exists():
            path.write_text(text)
        return path


def _count(steps: int) -> int:
    """Compute for some hundredths of a second."""
    total = 0
    for number in range(steps):
        total += number & 7
    return total


def text_of_formula(rng: random.Random, difficulty: Difficulty) -> str:
    seed = rng.randrange(1 << 30)
    n_vars = rng.randrange(*difficulty.variables)
    makers: tuple[Callable[[], generate.Formula], ...] = (
        lambda: generate.uniform(n_vars, int(4.26 * n_vars), seed),
        lambda: generate.planted(2 * n_vars, int(2 * 4.1 * n_vars), seed),
        lambda: generate.factoring(rng.choice(difficulty.products)),
        lambda: generate.commutativity(rng.choice(difficulty.operands)),
    )
    return rng.choice(makers)().text("mixed")


def _text_of_cover(rng: random.Random) -> str:
    """Return a random graph's vertex cover problem (find the cheapest cover) as WCNF text."""
    vertices = rng.randrange(120, 240)
    edges = {tuple(sorted(rng.sample(range(1, vertices + 1), 2))) for _ in range(4 * vertices)}
    lines = [f"h {one} {other} 0" for one, other in sorted(edges)]
    lines += [f"{rng.randrange(1, 20)} -{vertex} 0" for vertex in range(1, vertices + 1)]
    return "\n".join(lines) + "\n"


def _text_of_script(rng: random.Random) -> str:
    """Return a script that asks for two factors of a random number of 14 to 18 bits, in bit vectors."""
    bits = rng.randrange(14, 19)
    number = rng.randrange(1 << (bits - 1), 1 << bits) | 1
    wide = f"(_ BitVec {2 * bits})"
    return (
        f"(set-logic QF_BV)(declare-const a {wide})(declare-const b {wide})"
        f"(assert (= (bvmul a b) (_ bv{number} {2 * bits})))"
        f"(assert (bvult a (_ bv{1 << bits} {2 * bits})))(assert (bvult b (_ bv{1 << bits} {2 * bits})))"
        f"(assert (bvugt a (_ bv1 {2 * bits})))(assert (bvugt b (_ bv1 {2 * bits})))(check-sat)"
    )


# --- the stream, and the ways to run it --------------------------------------------------------------


def kinds() -> list[str]:
    """Return the kinds of jobs that can be run here: SMT jobs only if a solver is installed."""
    has_smt = any(importlib.util.find_spec(name) for name in ("cvc5", "bitwuzla"))
    return ["SAT", "incremental", "MaxSAT", *(["SMT"] if has_smt else []), "bag", "functions"]


def stream(
    seed: int, seconds: float, pes: int, names: Sequence[str], difficulty: Difficulty = USUAL
) -> list[Arrival]:
    """Draw the jobs that arrive within `seconds`."""
    rng = random.Random(f"mixed {seed}")
    jobs, at_s = list[Arrival](), 0.0
    while (at_s := at_s + rng.expovariate(pes / difficulty.between_s)) < seconds:
        jobs.append(Arrival(rng.choice(names), len(jobs), rng.choice(USERS), at_s))
    return jobs


def play(seed: int, jobs: Sequence[Arrival], pes: int, way: str, difficulty: Difficulty = USUAL) -> Played:
    """Run a stream of jobs in one of the `WAYS`, on a service of its own. Raises CommandError."""
    try:
        ranks = OwnRanks(pes)
    except ServiceError as error:
        raise CommandError(str(error)) from None
    try:
        inputs = ranks.api_dir.parent / "inputs"
        inputs.mkdir()
        runner = Jobs(ranks.api_dir, inputs, seed, 1 if way == "queue" else 0, difficulty)
        if way == "alone":
            ended = [runner.run(msgspec.structs.replace(job, at_s=0.0), time.monotonic()) for job in jobs]
        else:
            # In the pool, each job has a thread, so that no job waits for a thread.
            ended = _arriving(runner, jobs, pes if way == "queue" else len(jobs))
        runner.close()
        return Played(ended)
    except ServiceError as error:
        raise CommandError(str(error)) from None
    finally:
        ranks.stop()


def _arriving(runner: Jobs, jobs: Sequence[Arrival], slots: int) -> list[Ended]:
    """Hand in each job when it arrives, by one of `slots` threads; return the ends in the order of jobs."""
    waiting = queue.SimpleQueue[Arrival | None]()
    ended, errors = list[Ended](), list[Exception]()
    begun_s = time.monotonic()

    def work() -> None:
        while (job := waiting.get()) is not None:
            try:
                ended.append(runner.run(job, begun_s))
            except (CommandError, ServiceError) as error:
                errors.append(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(slots)]
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
    return sorted(ended, key=lambda one: one.number)


# --- tables and the figure ------------------------------------------------------------------------

Rounds = Sequence[dict[str, Played]]


def _text(values: Sequence[float | None]) -> str:
    there = [value for value in values if value is not None]
    return interval(there).text() if there else ""


def _of_kind(played: Played, kind: str) -> list[Ended]:
    return [one for one in played.ended if kind in ("all", one.kind)]


def table_of_responses(rounds: Rounds, names: Sequence[str]) -> Table:
    """Return the table of mean response times by kind and way, with the mean ratios of two ways."""
    rows = list[tuple[Cell, ...]]()
    for kind in (*names, "all"):
        row: list[Cell] = [kind, sum(len(_of_kind(one["pool"], kind)) for one in rounds)]
        for way in WAYS:
            found = [ended for one in rounds if (ended := _of_kind(one[way], kind))]
            row.append(_text([fmean(each.response_s for each in ended) for ended in found]))
        rows.append(
            (*row, _quotient(rounds, kind, "queue", "pool"), _quotient(rounds, kind, "pool", "alone"))
        )
    header = ("kind", "jobs", *WAYS, "queue / pool", "pool / alone")
    return Table("Response of mixed jobs", header, tuple(rows))


def _quotient(rounds: Rounds, kind: str, above: str, below: str) -> str:
    """Return the geometric mean, with its interval, of the jobs' ratios of response times in two ways."""
    logs = [
        math.log(one.response_s / other.response_s)
        for ways in rounds
        for one, other in zip(_of_kind(ways[above], kind), _of_kind(ways[below], kind), strict=True)
    ]
    if len(logs) < 2:
        return ""
    found = interval(logs)
    low, high = (math.exp(found.mean + sign * found.half) for sign in (-1, 1))
    return f"{math.exp(found.mean):.2f} ({low:.2f} .. {high:.2f})"


def table_of_measures(rounds: Rounds) -> Table:
    """Return the table of PAR-2, costs, slowdown, fairness and the time of the last answer in each way."""
    measures: dict[str, Callable[[dict[str, Played], str], float | None]] = {
        "PAR-2 of formulas [s]": _par2,
        "cost": partial(_quality, [math.inf]),
        "area": partial(_quality, [(place + 0.5) * OPTIMISE_S / _GRID for place in range(_GRID)]),
        "slowdown": lambda ways, way: fmean(_slowdowns(ways, way)),
        "fairness": _fairness,
        "last answer [s]": _last_answer_s,
    }
    rows = []
    for name, measure in measures.items():
        values = {way: [measure(one, way) for one in rounds] for way in WAYS}
        less = [
            None if queued is None or pool is None else queued - pool
            for queued, pool in zip(values["queue"], values["pool"], strict=True)
        ]
        rows.append((name, *(_text(values[way]) for way in WAYS), _text(less)))
    title = "The mixed stream, played in three ways; the last column is the mean difference within a round"
    return Table(title, ("measure", *WAYS, "queue less pool"), tuple(rows))


def _par2(ways: dict[str, Played], way: str) -> float | None:
    formulas = _of_kind(ways[way], "SAT")
    return fmean(one.response_s if one.is_answered else 2 * LIMIT_S for one in formulas) if formulas else None


def _last_answer_s(ways: dict[str, Played], way: str) -> float | None:
    return None if way == "alone" else max(one.at_s + one.response_s for one in ways[way].ended)


def _slowdowns(ways: dict[str, Played], way: str) -> list[float]:
    pairs = zip(ways[way].ended, ways["alone"].ended, strict=True)
    return [one.response_s / alone.response_s for one, alone in pairs]


def _by_user(ways: dict[str, Played], way: str) -> dict[str, float]:
    """Return the mean slowdown of each user's jobs."""
    slowdowns = dict[str, list[float]]()
    for one, slowdown in zip(ways[way].ended, _slowdowns(ways, way), strict=True):
        slowdowns.setdefault(one.user, []).append(slowdown)
    return {user: fmean(slowdowns[user]) for user in sorted(slowdowns)}


def _fairness(ways: dict[str, Played], way: str) -> float:
    means = _by_user(ways, way).values()
    return sum(means) ** 2 / (len(means) * sum(one * one for one in means))


def _quality(times_s: Sequence[float], ways: dict[str, Played], way: str) -> float | None:
    """Return the mean ratio of best cost so far to smallest cost, over MaxSAT jobs and times in each job."""
    found = list[float]()
    for place, one in enumerate(ways[way].ended):
        costs = [cost for played in ways.values() for _, cost in played.ended[place].costs]
        if one.kind == "MaxSAT" and costs:
            found += [_ratio_at(one, min(costs), when_s) for when_s in times_s]
    return fmean(found) if found else None


def _ratio_at(one: Ended, least: int, when_s: float) -> float:
    so_far = [cost / max(1, least) for at_s, cost in one.costs if at_s <= when_s]
    return min([_RATIO_MAX, *so_far])


def draw(rounds: Rounds, names: Sequence[str], figure: Figure) -> None:
    """Draw the share of jobs answered over time, by kind; MaxSAT's costs over time; users' slowdowns."""
    panels = list(figure.subplots(2, (len(names) + 3) // 2).flat)
    for axes, kind in zip(panels, names, strict=False):
        for way in WAYS:
            times = sorted(one.response_s for ways in rounds for one in _of_kind(ways[way], kind))
            shares = [place / max(1, len(times)) for place in range(len(times) + 1)]
            axes.step([0.0, *times], shares, where="post", label=way)
        axes.set_title(f"{kind}: share answered", fontsize="small")
        axes.set(ylim=(0, 1.02), xlim=(0, None))
    times_s = [2 * OPTIMISE_S * place / _GRID for place in range(_GRID)]
    for way in WAYS:
        curve = [[_quality([when_s], ways, way) for ways in rounds] for when_s in times_s]
        means = [fmean([one for one in of_rounds if one is not None] or [math.nan]) for of_rounds in curve]
        panels[len(names)].plot(times_s, means)
    panels[len(names)].set_title("MaxSAT: cost / least", fontsize="small")
    for place, way in enumerate(WAYS[:2]):
        of_rounds = [_by_user(ways, way) for ways in rounds]
        slowdowns = [fmean([one[user] for one in of_rounds if user in one] or [0.0]) for user in USERS]
        panels[len(names) + 1].bar(
            [user + 0.4 * place for user in range(len(USERS))],
            slowdowns,
            0.4,
            tick_label=USERS if place else None,
        )
    panels[len(names) + 1].set_title("slowdown by user", fontsize="small")
    for axes in panels:
        axes.tick_params(labelsize="x-small")
    for axes in panels[len(names) + 2 :]:
        axes.set_visible(False)
    figure.legend(WAYS, loc="outside lower center", ncols=3)
    figure.suptitle("Mixed jobs of four users; all times in s since the arrival", fontsize="medium")


def run(
    folder: Path,
    pes: int = PES,
    seconds: float = SECONDS,
    rounds: int = ROUNDS,
    difficulty: Difficulty = USUAL,
) -> None:
    """Run all rounds in all ways in turn, and write tables and the figure. Raises CommandError, OSError."""
    title = "mixed" if difficulty is USUAL else "mixed-hard"
    output, names = Output(folder, title, resume=True), kinds()
    played = list[dict[str, Played]]()
    for seed in range(rounds):
        jobs = stream(seed, seconds, pes, names, difficulty)
        if not jobs:
            raise CommandError(f"--seconds {seconds:g}: no job arrives in that time; give more")
        found = {}
        for way in WAYS:
            name = f"{pes} PEs, {seconds:g} s, seed {seed}, {way}"
            found[way] = output.done(name, Played, partial(play, seed, jobs, pes, way, difficulty))
            print(f"seed {seed}, {way}: {len(found[way].ended)} jobs", file=sys.stderr, flush=True)
        played.append(found)
    output.tables([table_of_responses(played, names), table_of_measures(played)], _REMARKS)
    output.figure(title, lambda figure: draw(played, names, figure))
