"""Incremental solvers in the service: add clauses, solve under assumptions, add more, solve again.

`IncrementalSolver` has the methods of PySAT's solvers, `Ipasir` those of the IPASIR interface. Both use
a chain of incremental jobs; each call of `solve` hands in a revision:

    with IncrementalSolver(client) as solver:
        solver.append_formula([[1, 2], [-1, 3]])
        solver.solve(assumptions=[-3])
        solver.get_model()

Clauses are sent with the next call of `solve`.
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
from mallob_py.api.settled import awaited
from mallob_py.service import ServiceError

#: field of the error reply to a job that failed while it ran; with any other field, the job was refused
_FAILED_AT_WORK = "application"


class _Chain:
    """A chain of jobs: the revisions of one growing formula."""

    def __init__(self, client: Client, fields: dict[str, Any]) -> None:
        self._client = client
        self._fields = fields
        self._prefix = f"py-{uuid.uuid4().hex}"
        self._submitted = 0
        #: name of the last revision that the service took; "" if there is none
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
            self.answer = awaited(future)
            self._count(self.answer)
        except (JobError, ServiceError) as error:
            is_refused = isinstance(error, JobError) and error.field != _FAILED_AT_WORK
            if is_refused or future.is_withdrawn:
                # The chain goes on without the revision, whose clauses are sent with the next one.
                self._last, self._new = before, [new, *self._new]
                self._client.take_back(name, before)
            raise
        finally:
            self._at_work = ""
            self.last_s = time.monotonic() - began_s
            self.total_s += self.last_s
        return self.answer

    def interrupt(self) -> None:
        """Have a `solve` that runs in another thread end without an answer."""
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
    """A solver with the interface of PySAT's solvers; each `solve` adds a revision to one chain of jobs."""

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
        """Add a clause.

        Args:
            clause: the literals.
            no_return: whether to return None, as PySAT does by default.

        Returns:
            None. If `no_return` is false: True, even after a contradiction, because the solver gets the
            clause only at the next `solve`.

        Raises:
            ValueError: a literal is 0 or larger than 31 bits.
            TypeError: the clause is not a sequence of integers.
        """
        self._chain.add([clause])
        return None if no_return else True

    def append_formula(self, formula: FormulaLike, no_return: bool = True) -> bool | None:
        """Add clauses. Raises as `add_clause` does.

        Args:
            formula: any formula that `Client.submit` takes, except a path or bytes.
            no_return: whether to return None.

        Returns:
            None, or True if `no_return` is false.
        """
        self._chain.add(formula)
        return None if no_return else True

    def supports_atmost(self) -> bool:
        """Return False: PySAT's algorithms then encode bounds on numbers of literals as clauses."""
        return False

    def activate_atmost(self) -> None:
        """Refuse bounds on numbers of literals (NotImplementedError)."""
        raise NotImplementedError(NO_BOUNDS)

    def add_atmost(
        self, lits: Iterable[int], k: int, weights: Sequence[int] = (), no_return: bool = True
    ) -> bool | None:
        """Refuse bounds on numbers of literals (NotImplementedError)."""
        raise NotImplementedError(NO_BOUNDS)

    def add_xor_clause(self, lits: Iterable[int], value: bool = True) -> None:
        """Refuse XORs (NotImplementedError)."""
        raise NotImplementedError("the service takes clauses; encode XORs as clauses")

    def start_mode(self, warm: bool = False) -> None:
        """Refuse `warm=True` (NotImplementedError); without `warm`, do nothing."""
        if warm:
            raise NotImplementedError("there is no warm start: a job's solvers cannot share one trail")

    def configure(self, parameters: Mapping[str, Any]) -> None:
        """Refuse (NotImplementedError): only the solver's constructor takes a configuration."""
        raise NotImplementedError("a job's configuration is given with its solver: configuration={...}")

    def get_proof(self) -> list[str] | None:
        """Refuse (NotImplementedError): revisions have no proofs."""
        raise NotImplementedError("there are no proofs of revisions; see `mallob-py solve --proof`")

    def solve(self, assumptions: Iterable[int] = (), **fields: Any) -> bool | None:
        """Solve all clauses added so far.

        Args:
            assumptions: literals that hold for this call only.
            **fields: fields of `Client.submit`, such as `time_limit_s=10`.

        Returns:
            True, False, or None if a limit or an interruption ended the call.

        Raises:
            JobError: the service refused the revision, or the revision failed.
            ServiceError: no service runs.
        """
        return self._chain.solve(assumptions, **fields).satisfiable

    def solve_limited(
        self, assumptions: Iterable[int] = (), expect_interrupt: bool = False, **fields: Any
    ) -> bool | None:
        """Solve as `solve` does; `expect_interrupt` is ignored, since `interrupt` is always possible."""
        return self.solve(assumptions, **fields)

    def interrupt(self) -> None:
        """End a `solve` that runs in another thread; it returns None."""
        self._chain.interrupt()

    def clear_interrupt(self) -> None:
        """Do nothing: an interruption ends only one call, so nothing is left to clear."""

    def conf_budget(self, budget: int = -1) -> None:
        """Refuse any budget (NotImplementedError) except -1, which means no bound."""
        _refuse_budget("conflicts", budget)

    def prop_budget(self, budget: int = -1) -> None:
        """Refuse any budget (NotImplementedError) except -1, which means no bound."""
        _refuse_budget("propagations", budget)

    def dec_budget(self, budget: int = -1) -> None:
        """Refuse any budget (NotImplementedError) except -1, which means no bound."""
        _refuse_budget("decisions", budget)

    def set_phases(self, literals: Iterable[int] = ()) -> None:
        """Warn that phases are ignored; answers are correct without them."""
        warnings.warn("phases are ignored: the solvers that work on a job take no phases", stacklevel=2)

    def propagate(self, assumptions: Iterable[int] = (), phase_saving: int = 0) -> tuple[bool, list[int]]:
        """Refuse (NotImplementedError): the service answers whole formulas."""
        raise NotImplementedError("the service only answers whole formulas; use PySAT's solvers to propagate")

    def accum_stats(self) -> dict[str, float]:
        """Return the number of answered calls, `solves`, and the sums of their replies' `used_...`."""
        return dict(self._chain.stats)

    def time(self) -> float:
        """Return the seconds (wall-clock time) that the last call of `solve` took."""
        return self._chain.last_s

    def time_accum(self) -> float:
        """Return the seconds (wall-clock time) that all calls of `solve` took together."""
        return self._chain.total_s

    def get_status(self) -> bool | None:
        """Return the result of the last call of `solve`."""
        return None if self._chain.answer is None else self._chain.answer.satisfiable

    def get_model(self) -> list[int] | None:
        """Return one literal per variable; None if the last call found no model."""
        answer = self._chain.answer
        return None if answer is None or answer.model is None else answer.model.tolist()

    def get_core(self) -> list[int] | None:
        """Return assumptions that cannot hold together; None if the last answer was not UNSAT."""
        return None if self._chain.answer is None else self._chain.answer.core

    def enum_models(self, assumptions: Iterable[int] = ()) -> Iterator[list[int]]:
        """Yield all models. Each yielded model is excluded for good by a new clause, as in PySAT.

        Args:
            assumptions: literals that hold in each model.

        Yields:
            One literal per variable.

        Raises:
            TimeoutError: a limit or an interruption ended a job; more models may exist.
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
        """Return the largest variable used so far."""
        return self._chain.n_vars

    def nof_clauses(self) -> int:
        """Return the number of clauses added so far."""
        return self._chain.n_clauses

    def delete(self) -> None:
        """End the chain, so that the service may forget the formula; further calls have no effect."""
        self._chain.end()


def _refuse_budget(of: str, budget: int) -> None:
    if budget != -1:
        raise NotImplementedError(
            f"the {of} of all workers are not counted; limit the time instead: solve_limited(time_limit_s=10)"
        )


class Ipasir:
    """A solver with the IPASIR interface: literals are added one by one, 0 ends a clause."""

    def __init__(self, client: Client, **fields: Any) -> None:
        self._chain = _Chain(client, fields)
        self._clause: list[int] = []
        self._assumptions: list[int] = []
        self._core: frozenset[int] = frozenset()

    def signature(self) -> str:
        """Return the solver's name."""
        return "mallob-py"

    def add(self, literal_or_zero: int) -> None:
        """Add a literal to the open clause; 0 closes the clause."""
        if literal_or_zero != 0:
            self._clause.append(literal_of(literal_or_zero))
        else:
            self._chain.add([self._clause])
            self._clause = []

    def assume(self, literal: int) -> None:
        """Assume a literal for the next call of `solve` only."""
        self._assumptions.append(literal_of(literal))

    def solve(self) -> int:
        """Solve all closed clauses; return 10 (SAT), 20 (UNSAT) or 0. Raises as `IncrementalSolver.solve`."""
        if self._clause:
            raise ValueError(f"the clause {self._clause} is not closed by 0")
        assumptions, self._assumptions = self._assumptions, []
        answer = self._chain.solve(assumptions)
        self._core = frozenset(answer.core or ())
        return {True: 10, False: 20, None: 0}[answer.satisfiable]

    def val(self, literal: int) -> int:
        """Return the literal if true in the model, else its negation; 0: either value will do.

        Must be called only after `solve` has returned 10.
        """
        answer = self._chain.answer
        if answer is None or answer.model is None:
            raise ValueError("the last call of solve did not return 10")
        variable = abs(literal)
        if variable > len(answer.model):
            return 0
        true = int(answer.model[variable - 1])
        return literal if true == literal else -literal

    def failed(self, literal: int) -> bool:
        """Tell whether an assumption was used to show unsatisfiability.

        Must be called only after `solve` has returned 20.
        """
        if self._chain.answer is None or self._chain.answer.core is None:
            raise ValueError("the last call of solve did not return 20")
        return literal in self._core

    def release(self) -> None:
        """End the chain of jobs."""
        self._chain.end()
