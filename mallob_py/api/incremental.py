"""Solvers that live in the service: add clauses, solve under assumptions, add more, solve again.

`IncrementalSolver` has the methods of PySAT's solvers, `Ipasir` those of the IPASIR interface. Both
stand on a chain of incremental jobs, of which each call of `solve` is a revision:

    with IncrementalSolver(client) as solver:
        solver.append_formula([[1, 2], [-1, 3]])
        solver.solve(assumptions=[-3])
        solver.get_model()

Clauses wait here until the next call of `solve`.
"""

from __future__ import annotations

import time
import uuid
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mallob_py.api.client import Answer, Client, JobError
from mallob_py.api.formulas import NO_BOUNDS, FormulaLike, clauses_of, literal_of, literals_of

#: the field at fault of a job that failed though it was run
_FAILED_AT_WORK = "application"


class _Chain:
    """Revisions of one growing formula."""

    def __init__(self, client: Client, fields: dict[str, Any]) -> None:
        self._client = client
        self._fields = fields
        self._prefix = f"py-{uuid.uuid4().hex}"
        self._submitted = 0
        #: the name of the last revision that counts; "" if there is none
        self._last = ""
        self._is_over = False
        self._new: list[NDArray[np.int32]] = []
        self.n_vars = 0
        self.n_clauses = 0
        self.answer: Answer | None = None
        self.stats: Counter[str] = Counter()
        self.last_s = self.total_s = 0.0
        self._at_work = ""

    def add(self, formula: FormulaLike) -> None:
        self._check()
        integers = clauses_of(formula)
        if integers.size:
            self._new.append(integers)
            self.n_clauses += int(np.count_nonzero(integers == 0))
            self.n_vars = max(self.n_vars, int(np.abs(integers).max()))

    def solve(self, assumptions: Iterable[int], **fields: Any) -> Answer:
        self._check()
        self.answer = None
        assumed = literals_of(assumptions, "assumptions")
        self.n_vars = max(self.n_vars, *map(abs, assumed), 0) if assumed else self.n_vars
        if self._last:
            fields["precursor"] = f"{self._client.user}.{self._last}"
        new = np.concatenate((np.zeros(0, np.int32), *self._new))
        name, before = f"{self._prefix}-{self._submitted}", self._last
        future = self._client.submit(new, assumed, name=name, incremental=True, **(self._fields | fields))
        self._submitted += 1
        self._last, self._new = name, []
        self._at_work = name
        began_s = time.monotonic()
        try:
            self.answer = future.result()
            self._count(self.answer)
        except JobError as error:
            if error.field != _FAILED_AT_WORK:
                # The service has not taken it into the chain, so what it was to add comes with the next.
                self._last, self._new = before, [new, *self._new]
                self._client.take_back(name, before)
            raise
        finally:
            self._at_work = ""
            self.last_s = time.monotonic() - began_s
            self.total_s += self.last_s
        return self.answer

    def interrupt(self) -> None:
        """From another thread: the call of `solve` under way, if there is one, ends without an answer."""
        if name := self._at_work:
            self._client.interrupt(name)

    def _count(self, answer: Answer) -> None:
        self.stats["solves"] += 1
        for key, value in answer.reply.get("stats", {}).items():
            if key.startswith("used_"):
                self.stats[key] += value

    def end(self) -> None:
        if self._last and not self._is_over:
            self._client.end_chain(self._last)
        self._is_over = True

    def _check(self) -> None:
        if self._is_over:
            raise ValueError("the solver has been deleted")


class IncrementalSolver:
    """Used like one of PySAT's solvers. `fields` are those of `Client.submit`, for each revision."""

    def __init__(self, client: Client, bootstrap_with: FormulaLike | None = None, **fields: Any) -> None:
        self._chain = _Chain(client, fields)
        if bootstrap_with is not None:
            self.append_formula(bootstrap_with)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.delete()

    def add_clause(self, clause: Iterable[int], no_return: bool = True) -> bool | None:
        """Add a clause. Return None, or True if `no_return` is false: `solve` is the first to look at it."""
        self._chain.add([clause])
        return None if no_return else True

    def append_formula(self, formula: FormulaLike, no_return: bool = True) -> bool | None:
        """Add clauses, in any form that `Client.submit` takes but for a path."""
        self._chain.add(formula)
        return None if no_return else True

    def supports_atmost(self) -> bool:
        """PySAT's algorithms ask, and encode such constraints as clauses then."""
        return False

    def activate_atmost(self) -> None:
        raise NotImplementedError(NO_BOUNDS)

    def add_atmost(
        self, lits: Iterable[int], k: int, weights: Sequence[int] = (), no_return: bool = True
    ) -> bool | None:
        raise NotImplementedError(NO_BOUNDS)

    def add_xor_clause(self, lits: Iterable[int], value: bool = True) -> None:
        raise NotImplementedError("the service takes clauses; encode XORs as such")

    def start_mode(self, warm: bool = False) -> None:
        """Only False, the usual mode, is possible."""
        if warm:
            raise NotImplementedError("several solvers work on a job; none starts from another's trail")

    def configure(self, parameters: Mapping[str, Any]) -> None:
        raise NotImplementedError("a job's configuration is given with its solver: configuration={...}")

    def get_proof(self) -> list[str] | None:
        raise NotImplementedError("there are no proofs of revisions; see `mallob-py solve --proof`")

    def solve(self, assumptions: Iterable[int] = (), **fields: Any) -> bool | None:
        """True, False, or None if a limit (`time_limit_s=10`) or an interruption ended it."""
        return self._chain.solve(assumptions, **fields).satisfiable

    def solve_limited(
        self, assumptions: Iterable[int] = (), expect_interrupt: bool = False, **fields: Any
    ) -> bool | None:
        """As `solve`; limits are times, such as `time_limit_s=10`. `interrupt` is always possible."""
        return self.solve(assumptions, **fields)

    def interrupt(self) -> None:
        """From another thread: end the call of `solve` under way, which returns None."""
        self._chain.interrupt()

    def clear_interrupt(self) -> None:
        """Nothing is to be cleared: an interruption ends one call."""

    def conf_budget(self, budget: int = -1) -> None:
        """Only -1, no bound, is possible."""
        _refuse_budget("conflicts", budget)

    def prop_budget(self, budget: int = -1) -> None:
        """Only -1, no bound, is possible."""
        _refuse_budget("propagations", budget)

    def dec_budget(self, budget: int = -1) -> None:
        """Only -1, no bound, is possible."""
        _refuse_budget("decisions", budget)

    def set_phases(self, literals: Iterable[int] = ()) -> None:
        """Warn that phases are not taken: such advice changes no answer, as with some of PySAT's solvers."""
        warnings.warn("several solvers of unlike kinds work on a job; they take no phases", stacklevel=2)

    def propagate(self, assumptions: Iterable[int] = (), phase_saving: int = 0) -> tuple[bool, list[int]]:
        raise NotImplementedError("the service answers whole formulas; propagate with a solver of PySAT's")

    def accum_stats(self) -> dict[str, float]:
        """Return what all calls of `solve` have used: `solves`, and sums of `used_...` of their replies."""
        return dict(self._chain.stats)

    def time(self) -> float:
        """Return the seconds that the last call of `solve` took, its way through the service included."""
        return self._chain.last_s

    def time_accum(self) -> float:
        """Return the seconds that all calls of `solve` have taken."""
        return self._chain.total_s

    def get_status(self) -> bool | None:
        return None if self._chain.answer is None else self._chain.answer.satisfiable

    def get_model(self) -> list[int] | None:
        """One literal per variable; None if the last call did not find a model."""
        answer = self._chain.answer
        return None if answer is None or answer.model is None else answer.model.tolist()

    def get_core(self) -> list[int] | None:
        """Assumptions of the last call that cannot hold together; None if it did not say UNSAT."""
        return None if self._chain.answer is None else self._chain.answer.core

    def enum_models(self, assumptions: Iterable[int] = ()) -> Iterator[list[int]]:
        """All models, each excluded for good by a new clause, as with PySAT.

        Raises TimeoutError if a limit or an interruption ended a job, since more models may exist then.
        """
        assumed = literals_of(assumptions, "assumptions")
        while (found := self.solve(assumed)) is not False:
            if found is None:
                raise TimeoutError("a limit or an interruption ended the enumeration; more models may exist")
            model = self.get_model()
            assert model is not None
            yield model
            self.add_clause([-literal for literal in model])

    def nof_vars(self) -> int:
        return self._chain.n_vars

    def nof_clauses(self) -> int:
        return self._chain.n_clauses

    def delete(self) -> None:
        """The service may forget the formula. Without effect if repeated."""
        self._chain.end()


def _refuse_budget(of: str, budget: int) -> None:
    if budget != -1:
        raise NotImplementedError(
            f"nobody counts the {of} of all workers; limit the time: solve_limited(time_limit_s=10)"
        )


class Ipasir:
    """The IPASIR interface: literals one by one, 0 ends a clause; 10 SAT, 20 UNSAT, 0 undecided."""

    def __init__(self, client: Client, **fields: Any) -> None:
        self._chain = _Chain(client, fields)
        self._clause: list[int] = []
        self._assumptions: list[int] = []
        self._core: frozenset[int] = frozenset()

    def signature(self) -> str:
        return "mallob-py"

    def add(self, literal_or_zero: int) -> None:
        if literal_or_zero != 0:
            self._clause.append(literal_of(literal_or_zero))
        else:
            self._chain.add([self._clause])
            self._clause = []

    def assume(self, literal: int) -> None:
        """For the next call of `solve` only."""
        self._assumptions.append(literal_of(literal))

    def solve(self) -> int:
        if self._clause:
            raise ValueError(f"the clause {self._clause} is not closed by 0")
        assumptions, self._assumptions = self._assumptions, []
        answer = self._chain.solve(assumptions)
        self._core = frozenset(answer.core or ())
        return {True: 10, False: 20, None: 0}[answer.satisfiable]

    def val(self, literal: int) -> int:
        """After 10: the literal if it is true in the model, its negation if not, 0 if it does not matter."""
        answer = self._chain.answer
        if answer is None or answer.model is None:
            raise ValueError("the last call of solve did not return 10")
        variable = abs(literal)
        if variable > len(answer.model):
            return 0
        true = int(answer.model[variable - 1])
        return literal if true == literal else -literal

    def failed(self, literal: int) -> bool:
        """After 20: whether this assumption was needed."""
        if self._chain.answer is None or self._chain.answer.core is None:
            raise ValueError("the last call of solve did not return 20")
        return literal in self._core

    def release(self) -> None:
        self._chain.end()
