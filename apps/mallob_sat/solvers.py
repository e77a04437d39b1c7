"""Sequential SAT solvers behind one small class, which hides PySAT.

The class uses `pysolvers`, PySAT's compiled module, rather than `pysat.solvers`: `pysolvers` imports in half
the time, takes clauses directly from an int32 buffer (a million clauses in 1.2 s instead of 2.5 s) and sets
options that the public classes hide. PySAT does not promise that `pysolvers` stays the same, so its version
is pinned and the tests run every engine.

The calls hold the interpreter's lock and cannot be interrupted: make them in a process that may be stopped
and killed. Guarantees: engines have PySAT's names; `model` assigns each variable 1..n_vars once, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from io import RawIOBase
from typing import Any

import numpy as np
import pysolvers

from mallob_sat.clauses import Clauses
from mallob_sat.formula import Formula, Literals
from mallob_sat.kissat_door import KissatDoor, door_is_open


class Verdict(Enum):
    """The verdicts of `Solver.solve`."""

    SATISFIABLE = 1
    UNSATISFIABLE = -1
    #: the conflict budget is used up
    UNDECIDED = 0


class Family(Enum):
    """Solvers whose compiled functions take the same arguments."""

    CADICAL = "cadical"
    MINISAT = "minisat"
    LINGELING = "lingeling"
    #: answers only one call, without assumptions or budget
    KISSAT = "kissat"


@dataclass(frozen=True, slots=True)
class Engine:
    """A solver in `pysolvers`: the prefix of its functions, and its family."""

    prefix: str
    family: Family


ENGINES: Mapping[str, Engine] = {
    "cadical195": Engine("cadical195", Family.CADICAL),
    "cadical153": Engine("cadical153", Family.CADICAL),
    "cadical300": Engine("cadical300", Family.CADICAL),
    "kissat404": Engine("kissat404", Family.KISSAT),
    "lingeling": Engine("lingeling", Family.LINGELING),
    "ergo": Engine("ergo", Family.MINISAT),
    "glucose3": Engine("glucose3", Family.MINISAT),
    "glucose4": Engine("glucose41", Family.MINISAT),
    "glucose42": Engine("glucose421", Family.MINISAT),
    "maplecm": Engine("maplecm", Family.MINISAT),
    "maplechrono": Engine("maplechrono", Family.MINISAT),
    "maplesat": Engine("maplesat", Family.MINISAT),
    "mergesat3": Engine("mergesat3", Family.MINISAT),
    "minisat22": Engine("minisat22", Family.MINISAT),
    "minisat-gh": Engine("minisatgh", Family.MINISAT),
}


class Solver:
    """One sequential solver with its formula. Set options, add the formula, set phases, then solve."""

    def __init__(self, engine: str) -> None:
        self._engine = ENGINES[engine]
        self._family = self._engine.family
        self._functions: dict[str, Callable[..., Any]] = {}
        self._handle = self._function("new")()
        self._n_vars = 0
        self._has_model = False
        self._assumptions: list[int] = []
        self._proof: RawIOBase | None = None
        self._tracer: Any = None
        self._door = KissatDoor(self._handle) if self._family is Family.KISSAT and door_is_open() else None
        if engine == "cadical300":
            # `factor` defines variables, numbered from the largest variable so far. Later clauses, models and
            # clauses of other solvers would take such a variable for their own: CaDiCaL aborts, or is wrong.
            self.set_option("factor", 0)

    @staticmethod
    def has_budget(engine: str) -> bool:
        """Tell whether the solver can be stopped by `solve_for`."""
        return engine in ENGINES and ENGINES[engine].family not in (Family.KISSAT, Family.LINGELING)

    @staticmethod
    def takes_assumptions(engine: str) -> bool:
        """Tell whether the solver can name assumptions that cannot hold together."""
        return ENGINES[engine].family is not Family.KISSAT

    @staticmethod
    def has_binary_proof(engine: str) -> bool:
        """Tell whether the solver's proofs are binary rather than text."""
        return ENGINES[engine].family in (Family.CADICAL, Family.KISSAT)

    @staticmethod
    def has_options(engine: str) -> bool:
        """Tell whether `set_option` can set options of the solver."""
        family = ENGINES[engine].family
        return family is Family.CADICAL or (family is Family.KISSAT and door_is_open())

    @staticmethod
    def trades_at_restarts(engine: str) -> bool:
        """Tell whether the solver can exchange clauses during its search, not only between calls."""
        return ENGINES[engine].family is Family.KISSAT and door_is_open()

    def _function(self, name: str) -> Callable[..., Any]:
        if (function := self._functions.get(name)) is None:
            function = self._functions[name] = getattr(pysolvers, f"{self._engine.prefix}_{name}")
        return function

    def set_option(self, name: str, value: int) -> None:
        """Set one of CaDiCaL's or kissat's options. Must be called before the formula is added."""
        if self._door is not None:
            self._door.set_option(name, value)
        elif self._family is Family.CADICAL:
            self._function("set")(self._handle, name, value)
        else:
            raise ValueError(f"{self._engine.prefix} has no options to set")

    def trace_proof(self, file: RawIOBase) -> None:
        """Have the solver write its proof to `file`, open for reading and writing.

        Must be called after setting options and before adding clauses. CaDiCaL writes line by line and does
        not notice when writing fails.
        """
        if self._door is not None:
            self._door.trace_proof(file.fileno())
            return
        self._tracer = self._function("tracepr")(self._handle, file)
        self._proof = file

    def flush_proof(self) -> None:
        """Write all learned clauses so far to the proof's file."""
        if self._door is not None:
            self._door.flush_proof()
        elif self._proof is not None:
            pysolvers.flushpr(self._tracer)

    def at_restarts(self, action: Callable[[], None], interval_s: float) -> None:
        """Call `action` at restarts of `solve`, at most every `interval_s` of CPU time.

        The action may flush the proof and `give` clauses. Raises ValueError unless `trades_at_restarts`.
        """
        if self._door is None:
            raise ValueError(f"{self._engine.prefix} does not exchange clauses at restarts")
        self._door.import_variables(self._n_vars)
        self._door.at_restarts(action, interval_s)

    def give(self, clauses: Clauses) -> int:
        """Add clauses that follow from the formula, at a restart; return how many the solver uses."""
        assert self._door is not None
        return self._door.give(clauses)

    @property
    def removed(self) -> int:
        """Return the number of given clauses over variables that the solver has eliminated."""
        return 0 if self._door is None else self._door.removed

    def focus(self, is_wanted: bool) -> None:
        """Avoid stable phases, after the present one, while `is_wanted`. Must be called at each restart."""
        assert self._door is not None
        self._door.focus(is_wanted)

    def close(self) -> None:
        """Complete the proof and free the solver, which must not be used any more."""
        if self._handle is None:
            return
        handle, self._handle = self._handle, None
        if self._door is not None:
            self._door.close()
        if self._family in (Family.CADICAL, Family.LINGELING) or self._engine.prefix == "ergo":
            self._function("del")(handle, self._proof)
        else:
            self._function("del")(handle)

    def __del__(self) -> None:
        # PySAT does not free solvers by itself. At the interpreter's end, names of this module may be gone.
        try:  # noqa: SIM105
            self.close()
        except Exception:
            pass

    def declare_variables(self, n_vars: int) -> None:
        """Declare that the formula has at least `n_vars` variables, which models must assign."""
        self._n_vars = max(self._n_vars, n_vars)

    def add_clause(self, literals: Sequence[int] | memoryview) -> None:
        """Add a clause, also between two calls of `solve_for`."""
        self._function("add_cl")(self._handle, literals)

    def add_formula(self, formula: Formula) -> None:
        """Add all clauses. Pass the formula's assumptions to `solve`."""
        self.declare_variables(formula.n_vars)
        # Each clause is an iterator up to the next 0, which is fast and takes no memory.
        literal = iter(np.ascontiguousarray(formula.literals).data).__next__
        add, handle = self._function("add_cl"), self._handle
        for _ in range(formula.n_clauses):
            add(handle, iter(literal, 0))

    def set_phases(self, literals: Sequence[int]) -> None:
        """Prefer these literals in decisions. This has no effect on kissat."""
        if self._family is not Family.KISSAT:
            self._function("setphases")(self._handle, literals)

    def propagate(self, assumptions: Sequence[int]) -> tuple[bool, list[int]]:
        """Propagate assumptions; return whether no conflict arises, and the implied literals.

        Raises ValueError for solvers that cannot propagate.
        """
        if self._family in (Family.KISSAT, Family.LINGELING):
            raise ValueError(f"{self._engine.prefix} does not propagate")
        holds, literals = self._function("propagate")(self._handle, list(assumptions), 0, 0)
        return bool(holds), list(literals or ())

    def solve(self, assumptions: Sequence[int] = ()) -> Verdict:
        """Search until there is an answer."""
        self._has_model = False
        self._assumptions = list(assumptions)
        if self._family is Family.KISSAT:
            for literal in self._assumptions:
                self._function("add_cl")(self._handle, [literal])
            found = self._function("solve")(self._handle, 0)
            if self._door is not None:
                self._door.raise_failure()  # otherwise the failure would look like UNSATISFIABLE
        else:
            found = self._function("solve")(self._handle, self._assumptions, 0)
        return self._answer(1 if found else -1)

    def solve_for(self, conflicts: int, assumptions: Sequence[int] = ()) -> Verdict:
        """Search for about `conflicts` conflicts at most. Call again to continue."""
        self._has_model = False
        self._assumptions = list(assumptions)
        self._check_has_budget()
        self._function("cbudget")(self._handle, conflicts)
        limited = self._function("solve_lim")
        if self._family is Family.CADICAL:
            return self._answer(limited(self._handle, self._assumptions, 0))
        found = limited(self._handle, self._assumptions, 0, 0)
        return self._answer(0 if found is None else 1 if found else -1)

    @property
    def conflicts(self) -> int:
        """Return the number of conflicts so far. Raises ValueError for solvers that do not report it."""
        if self._door is not None:
            return self._door.conflicts
        self._check_has_budget()
        return int(self._function("acc_stats")(self._handle)["conflicts"])

    def _check_has_budget(self) -> None:
        if self._family in (Family.KISSAT, Family.LINGELING):
            raise ValueError(f"{self._engine.prefix} has no conflict budget")

    def _answer(self, status: int) -> Verdict:
        answer = Verdict(status)
        self._has_model = answer is Verdict.SATISFIABLE
        return answer

    def model(self) -> Literals:
        """Return the last model: variable v's literal at position v - 1; unknown variables are false."""
        if not self._has_model:
            raise ValueError("there is no model: the last answer was not SATISFIABLE")
        model = -np.arange(1, self._n_vars + 1, dtype=np.int32)
        found = np.array(self._function("model")(self._handle) or (), dtype=np.int32)
        variables = np.abs(found)
        known = (variables >= 1) & (variables <= self._n_vars)  # engines may add variables of their own
        model[variables[known] - 1] = found[known]
        return model

    def core(self) -> list[int]:
        """Return assumptions that cannot hold together, after UNSATISFIABLE; smallest variable first."""
        if not self._assumptions:
            return []
        if self._family is Family.KISSAT:
            core = self._assumptions  # the solver cannot name the needed assumptions
        elif self._family is Family.MINISAT:
            core = self._function("core")(self._handle) or []
        else:
            core = self._function("core")(self._handle, self._assumptions) or []
        # Once its clauses alone cannot hold, ergo repeats its last core, which has an earlier call's
        # assumptions.
        return sorted(set(core) & set(self._assumptions), key=lambda literal: (abs(literal), literal))
