"""Unsatisfiable cores: clauses of the formula that cannot hold together, by number.

Each clause gets a selector: a new variable, assumed true; if it is false, the clause need not hold. If the
formula is unsatisfiable, the solver names the assumptions that it needed; the core is their clauses. The
search is repeated on these clauses while each round removes at least a hundredth of them, because a search on
fewer clauses often needs even fewer of them. The core is mostly small, but need not be minimal.

A satisfiable core is worthless. So another solver, without selectors, must find the core unsatisfiable before
it is an answer.

Clauses are numbered from 1 in the order of the input, including empty and repeated clauses. An XOR counts as
one clause.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mallob_py.kit import InputError, Payload, Result, ResultFileError, WorkerContext, race
from mallob_py.kit.result_file import ResultPath
from mallob_sat.declaration import UNSATISFIABLE
from mallob_sat.formula import MAX_VARIABLE, Formula, Literals
from mallob_sat.portfolio import Portfolio, Strategy
from mallob_sat.search import solve
from mallob_sat.solvers import ENGINES, Solver

#: greatest number of a core's clauses that a reply lists; the file lists any number
NUMBERS_MAX = 1_000_000
_ROUNDS_MAX = 10
#: a round is the last one if it keeps at least this share of the clauses
_SHRINKAGE_MIN = 0.99
#: solver that checks cores; it cannot search for cores, so another solver has always found the core
CHECKER = Strategy("kissat404")

Positions = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CoreFinding:
    """The mode in which solvers race for a core, without sharing. `file`: file for the core's clauses."""

    portfolio: Portfolio
    file: ResultPath | None

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any], portfolio: Portfolio) -> CoreFinding | None:
        """Return the mode; None: no core is wanted. Raises InputError."""
        wish = configuration.get("core", False)
        if wish is False:
            return None
        if wish is not True and not isinstance(wish, str):
            raise InputError(
                f"core is {wish!r:.80}; it must be true or the absolute path of a file", "configuration"
            )
        file = ResultPath.from_configuration(configuration, "core") if isinstance(wish, str) else None
        able = tuple(name for name in ENGINES if Solver.takes_assumptions(name))
        return cls(replace(portfolio.restricted_to(able, "find cores"), shares=False), file)

    def prepare(self, formula: Formula) -> Payload:
        if formula.n_vars + formula.n_clauses > MAX_VARIABLE:
            raise InputError(
                f"the formula is too large for a core: variables and clauses exceed {MAX_VARIABLE}"
            )
        file = {} if self.file is None else self.file.prepare()
        return file if formula.line_starts is None else {**file, "line_starts": formula.line_starts}

    def run(self, context: WorkerContext, formula: Formula) -> Result:
        result = race(
            context,
            lambda number: _Attempt(formula, self.portfolio.strategy(number)),
            lambda messages, attempts: None,
        )
        if result.code != UNSATISFIABLE:
            return result
        core = np.asarray(result.fields["core"], dtype=np.int64)
        part = part_of(formula, core - 1, result.solution)
        if (starts := context.payload.get("line_starts")) is not None:
            core = np.unique(np.searchsorted(starts, core - 1, side="right"))
        if self.file is not None:
            _write(part, core, self.file, context.payload)
        fields = dict(result.fields) | {"core": core.tolist(), "core-size": int(core.size)}
        if core.size > NUMBERS_MAX:
            del fields["core"]
        return replace(result, fields=fields)


class _Attempt:
    """An attempt of one solver to find a core, for `race`."""

    fds: tuple[int, ...] = ()

    def __init__(self, formula: Formula, strategy: Strategy) -> None:
        self._formula = formula
        self._strategy = strategy

    def run(self) -> Result:
        return find_core(self._formula, self._strategy)

    def close(self) -> None:
        pass


def find_core(formula: Formula, strategy: Strategy) -> Result:
    """Decide a formula; for UNSAT, the field `core` lists the numbers of a core's clauses, ascending.

    The solution then lists the core's assumptions. Raises RuntimeError if the core is satisfiable.
    """
    positions: Positions = np.arange(formula.n_clauses)
    result = _solve_with_selectors(formula, strategy)
    if result.code != UNSATISFIABLE:
        return replace(result, solution=np.asarray(result.solution)[: formula.n_vars])
    for rounds in range(1, _ROUNDS_MAX + 1):  # noqa: B007 (told in the result)
        kept, blamed = _split(result, formula.n_vars)
        shrank = kept.size < _SHRINKAGE_MIN * formula.n_clauses
        positions = positions[kept]
        formula = part_of(formula, kept, blamed)
        if not shrank:
            break
        result = _solve_with_selectors(formula, strategy)
        if result.code != UNSATISFIABLE:
            raise RuntimeError(f"{strategy.title} gave a core that it found satisfiable itself")
    check_core(formula, strategy)
    fields = {"solver": strategy.title, "core": (positions + 1).tolist(), "core-rounds": rounds}
    return Result(UNSATISFIABLE, blamed, fields)


def check_core(core: Formula, strategy: Strategy) -> None:
    """Raise RuntimeError unless another solver finds the clauses and assumptions unsatisfiable."""
    if solve(core, CHECKER).code != UNSATISFIABLE:
        raise RuntimeError(f"{strategy.title} gave a core that {CHECKER.title} found satisfiable")


def part_of(formula: Formula, kept: Positions, assumptions: Any) -> Formula:
    """Return the formula of the clauses at positions `kept`, in this order, with these assumptions."""
    starts, ends = formula.bounds()
    lengths = ends[kept] - starts[kept] + 1
    first = np.cumsum(lengths) - lengths
    where = np.arange(int(lengths.sum())) + np.repeat(starts[kept] - first, lengths)
    return Formula(
        formula.literals[where], formula.n_vars, int(kept.size), np.asarray(assumptions, dtype=np.int32)
    )


def _solve_with_selectors(formula: Formula, strategy: Strategy) -> Result:
    selectors = np.arange(formula.n_vars + 1, formula.n_vars + formula.n_clauses + 1, dtype=np.int32)
    _, ends = formula.bounds()
    literals: Literals = np.insert(formula.literals, ends, -selectors)
    assumptions = np.concatenate((formula.assumptions, selectors))
    n_vars = formula.n_vars + formula.n_clauses
    return solve(Formula(literals, n_vars, formula.n_clauses, assumptions), strategy)


def _split(result: Result, n_vars: int) -> tuple[Positions, list[int]]:
    """Split failed assumptions into the positions of their clauses, ascending, and the formula's literals."""
    failed = np.asarray(result.solution, dtype=np.int64)
    is_selector = failed > n_vars
    return np.sort(failed[is_selector]) - n_vars - 1, failed[~is_selector].tolist()


def _write(core: Formula, numbers: Positions, path: ResultPath, payload: Payload) -> None:
    """Write the core in DIMACS, with assumptions as unit clauses at its end. Raises InputError."""
    starts, ends = core.bounds()
    lines = [
        f"c clauses of the formula: {' '.join(map(str, numbers.tolist()))}",
        f"c number of unit clauses at the end, which were assumptions: {core.assumptions.size}",
        f"p cnf {core.n_vars} {core.n_clauses + core.assumptions.size}",
    ]
    literals = core.literals.tolist()
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        lines.append(" ".join(map(str, literals[start : end + 1])))
    lines += [f"{literal} 0" for literal in core.assumptions.tolist()]
    try:
        file = path.begin(payload)
        try:
            file.write("".join(f"{line}\n" for line in lines).encode())
            file.deliver()
        finally:
            file.close()
    except ResultFileError as error:
        raise path.refusal(error) from None
