"""What it gains if two native searches exchange their clauses while they run.

Each formula is decided by one search, by two that know nothing of each other, and by two that
exchange: whenever one has searched for half a CPU second, it sends its shortest new clauses and
takes the other's. The number is the CPU seconds of the process that answered first, from the start
of the search, all its threads together: the machine may be busy with other things, although a
process that gets less of it has the worse chances to be first. SAT answers are partly luck.

    python scripts/bench/sat/sharing.py --repeat 3 data/*.cnf.gz
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from common import BenchmarkError, print_absent, print_table, write_results

from mallob_sat.dimacs import parse_dimacs
from mallob_sat.files import read_decompressed
from mallob_sat.formula import Formula
from mallob_sat.native_solver import Clauses, NativeSolver, NativeSolverMissing, load_library
from mallob_sat.solvers import Answer

Options = tuple[tuple[str, int], ...]

#: name: strategy of each search
PAIRS: dict[str, tuple[Options, Options]] = {
    "phases": ((), (("phase", 0), ("seed", 1))),
    "restarts": ((("stabilizeonly", 1),), (("stabilize", 0),)),
}
PERIOD_CPU_S = 0.5


@dataclass(frozen=True)
class Arm:
    """One way to decide a formula."""

    title: str
    strategies: tuple[Options, ...]
    exchanges: bool
    max_length: int
    literals_per_s: int


@dataclass(frozen=True)
class Outcome:
    """A search's answer and what it cost."""

    place: int
    answer: Answer
    cpu_s: float
    sent: int
    taken: int
    dropped: int


@dataclass
class _Post:
    """Picks what a search sends and receives: each clause once, the shortest first, so much a second."""

    literals_per_s: int
    known: set[tuple[int, ...]] = field(default_factory=set)
    sent: int = 0

    def pick(self, clauses: Clauses) -> Clauses:
        budget = int(self.literals_per_s * PERIOD_CPU_S)
        picked = []
        for clause, lbd in self._new(clauses):
            budget -= len(clause)
            if budget < 0:
                break
            self.known.add(clause)
            picked.append((clause, lbd))
        self.sent += len(picked)
        return _clauses(picked)

    def receive(self, clauses: Clauses) -> Clauses:
        news = list(self._new(clauses))
        self.known.update(clause for clause, _ in news)
        return _clauses(news)

    def _new(self, clauses: Clauses) -> list[tuple[tuple[int, ...], int]]:
        ends = np.flatnonzero(clauses.literals == 0).tolist()
        integers, lbds = clauses.literals.tolist(), clauses.lbds.tolist()
        pairs, start = [], 0
        for end, lbd in zip(ends, lbds, strict=True):
            clause = tuple(sorted(integers[start:end]))
            start = end + 1
            if clause not in self.known:
                pairs.append((clause, lbd))
        return pairs


def _clauses(pairs: Sequence[tuple[tuple[int, ...], int]]) -> Clauses:
    literals = [literal for clause, _ in pairs for literal in (*clause, 0)]
    return Clauses(np.array(literals, dtype=np.int32), np.array([lbd for _, lbd in pairs], dtype=np.int32))


def search(formula: Formula, place: int, arm: Arm, pipe: Connection) -> None:
    """In a process of its own: decide the formula; send clauses, or at last the outcome."""
    solver = NativeSolver(arm.max_length)
    for name, value in arm.strategies[place]:
        solver.set_option(name, value)
    solver.add_formula(formula)
    post = _Post(arm.literals_per_s)
    begun_s = exchanged_s = time.process_time()
    solver.start(formula.assumptions.tolist())
    while (answer := solver.wait(PERIOD_CPU_S / 5)) is Answer.UNDECIDED:
        if arm.exchanges and time.process_time() - exchanged_s >= PERIOD_CPU_S:
            exchanged_s = time.process_time()
            pipe.send(post.pick(solver.learned()))
            for clauses in pipe.recv():
                solver.give(*post.receive(clauses))
    cpu_s = time.process_time() - begun_s
    if answer is Answer.SATISFIABLE and formula.first_falsified(solver.model()) is not None:
        raise AssertionError("a wrong model")
    counts = solver.counts()
    dropped = counts.removed + counts.refused + counts.satisfied
    pipe.send(Outcome(place, answer, cpu_s, post.sent, counts.taken, dropped))
    pipe.recv()


def decide(formula: Formula, arm: Arm, limit_s: float) -> Outcome | None:
    """The first outcome, or None after `limit_s` seconds of wall time."""
    context = multiprocessing.get_context("fork")
    pipes: list[Connection] = []
    processes = []
    for place in range(len(arm.strategies)):
        ours, theirs = context.Pipe()
        process = context.Process(target=search, args=(formula, place, arm, theirs), daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    mail: dict[Connection, list[Clauses]] = {pipe: [] for pipe in pipes}
    deadline_s = time.monotonic() + limit_s
    try:
        while ready := wait(pipes, deadline_s - time.monotonic()):
            for pipe in ready:
                assert isinstance(pipe, Connection)
                message = pipe.recv()
                if isinstance(message, Outcome):
                    return message
                for other in pipes:
                    if other is not pipe:
                        mail[other].append(message)
                pipe.send(mail[pipe])
                mail[pipe] = []
        return None
    except EOFError:
        raise BenchmarkError("a search died") from None
    finally:
        for process in processes:
            process.kill()
            process.join()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+")
    parser.add_argument("--pair", choices=PAIRS, default="phases")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--limit", type=float, default=300, help="seconds of wall time per run")
    parser.add_argument("--max-length", type=int, default=8)
    parser.add_argument("--literals-per-s", type=int, default=1500)
    parser.add_argument("--arms", default="one,two,exchange")
    options = parser.parse_args()
    try:
        load_library()
    except NativeSolverMissing:
        print_absent("the native solver", "pip install ./native")
        return 0
    pair, volume = PAIRS[options.pair], (options.max_length, options.literals_per_s)
    arms = [
        Arm("one", pair[:1], False, *volume),
        Arm("two", pair, False, *volume),
        Arm("exchange", pair, True, *volume),
    ]
    arms = [arm for arm in arms if arm.title in options.arms.split(",")]
    rows, results = [], {}
    for path in options.files:
        formula = parse_dimacs(read_decompressed(path), path)
        outcomes = {
            arm.title: [decide(formula, arm, options.limit) for _ in range(options.repeat)] for arm in arms
        }
        results[path] = outcomes
        rows.append(_row(Path(path).name.split(".cnf")[0], outcomes))
        print(rows[-1], flush=True)
    sums = [round(sum(row[2 + i] for row in rows), 1) for i in range(len(arms))]
    rows.append(("sum", "", *sums, None, None, None))
    header = ("formula", "answer", *(arm.title for arm in arms), "sent", "taken", "dropped")
    print_table(f"CPU seconds of the first to answer (medians of {options.repeat})", header, rows)
    write_results("sat_sharing", {"pair": options.pair, "runs": _plain(results)})
    return 0


def _row(name: str, outcomes: dict[str, list[Outcome | None]]) -> tuple:
    every = [outcome for runs in outcomes.values() for outcome in runs if outcome]
    answers = {outcome.answer.name for outcome in every}
    if len(answers) > 1:
        raise BenchmarkError(f"{name}: {answers}")
    last = next((outcome for outcome in reversed(every) if outcome.sent), None)
    counts = (last.sent, last.taken, last.dropped) if last else (None, None, None)
    medians = [_median(runs) for runs in outcomes.values()]
    return (name, next(iter(answers), "none"), *medians, *counts)


def _median(runs: list[Outcome | None]) -> float:
    return round(statistics.median(run.cpu_s if run else float("inf") for run in runs), 1)


def _plain(results: dict[str, dict[str, list[Outcome | None]]]) -> dict:
    return {path: {arm: _runs(runs) for arm, runs in outcomes.items()} for path, outcomes in results.items()}


def _runs(runs: list[Outcome | None]) -> list[tuple[str, float] | None]:
    return [(run.answer.name, round(run.cpu_s, 2)) if run else None for run in runs]


if __name__ == "__main__":
    sys.exit(main())
