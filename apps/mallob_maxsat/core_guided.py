"""Search from below: cores raise the lower bound on the cost until a solution costs no more (OLL).

Soft literals are assumed to hold, those with large weights first (stratification). A core states that at
least one of its literals does not hold. The bound rises by the smallest weight of the core's literals, which
is subtracted from all their weights, and a totalizer counts the false literals; its outputs ("at least two
are false", "at least three", ...) become soft literals. First all cores without such outputs are found, then
the totalizers are added (weight-aware core extraction). Each core is made smaller before its totalizer is
added; afterwards the solver is asked for the smallest number of false literals (exhaustion). Soft literals
whose loss would cost more than the best known solution become hard. At the start, propagation finds sets of
soft literals that exclude each other: of k such literals, at least k-1 are false.

After Morgado, Dodaro, Marques-Silva 2014 (OLL), Ansotegui et al. 2012 (stratification), Berg and Jarvisalo
2017 (weight-aware extraction), Ignatiev, Morgado, Marques-Silva 2019 (the rest).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
from pysat.card import ITotalizer

from mallob_maxsat.encodings import TooLargeError
from mallob_maxsat.oracle import Oracle, Search
from mallob_maxsat.problem import Problem
from mallob_maxsat.state import Bounds
from mallob_sat.clauses import Clauses
from mallob_sat.solvers import Verdict

_TRIMS_MAX = 5
_MINIMIZE_LITERALS_MAX = 120
_MINIMIZE_CONFLICTS = 1000
_EXHAUST_CONFLICTS = 1000
#: greatest number of clauses by which totalizers are extended for a search from above
_OBJECTIVE_CLAUSES_MAX = 200_000
#: greatest number of literals of a core that is sent to other workers
_TOLD_LITERALS_MAX = 20
#: greatest number of soft literals among which literals that exclude each other are sought
_EXCLUSIONS_SOFT_MAX = 20_000
#: a stratum is complete if the remaining literals divided by their distinct weights exceed this number
_DIVERSITY = 1.25


@dataclass(slots=True)
class _Counter:
    """A totalizer that counts the false literals of a core.

    Output k states that more than k literals are false; `wanted` is the last output that is a soft literal.
    """

    totalizer: ITotalizer
    weight: int
    wanted: int = 0


class CoreGuided:
    """One search that raises the lower bound. `soft`: remaining soft literal -> its remaining weight."""

    def __init__(self, problem: Problem, bounds: Bounds, oracle: Oracle) -> None:
        self._problem = problem
        self._bounds = bounds
        self.oracle = oracle
        self.soft = dict(problem.soft)
        #: lower bound on the cost
        self.lower = problem.unavoidable
        #: soft literal of a counter's last output, as long as the literal is in no core -> the counter
        self._counters: dict[int, _Counter] = {}
        #: cores without a totalizer: (negated literals, of which at least one is true; weight)
        self._pending: list[tuple[list[int], int]] = []
        #: smallest weight of the soft literals that are assumed at present
        self._level = 0
        #: clauses over variables that all workers know, which are still to be sent to other workers
        self._cores: list[list[int]] = []

    def run(self) -> Search:
        """Search until the bounds meet."""
        if (yield from self.oracle.ask([])) is Verdict.UNSATISFIABLE:
            self._bounds.close()
            return
        self._note_model()
        if len(self.soft) <= _EXCLUSIONS_SOFT_MAX:
            yield from self._find_exclusions()
        self._level = max(self.soft.values(), default=0)
        self._lower_level()
        while not self._bounds.is_closed:
            self._harden()
            active = [literal for literal, weight in self.soft.items() if weight >= self._level]
            active.sort(key=self.soft.__getitem__, reverse=True)
            verdict = yield from self.oracle.ask(active)
            if verdict is Verdict.UNSATISFIABLE:
                if not self.oracle.core:
                    self._bounds.close()
                    return
                core = yield from self.smaller(self.oracle.core)
                if not core:
                    self._bounds.close()
                    return
                self._relax(core)
                continue
            self._note_model()
            if self._pending:
                yield from self._count_pending()
            elif self._level > 1 and any(weight < self._level for weight in self.soft.values()):
                self._lower_level()
            else:
                self._bounds.raise_lower(self.lower)
                self._bounds.close()  # all remaining soft literals hold

    def objective(self) -> tuple[dict[int, int], int]:
        """Return the cost of a better solution: a map literal -> weight, and an offset.

        The cost is the offset plus the weights of the true literals. Totalizers are extended as far as a
        better solution may need them. Raises TooLargeError.
        """
        terms = {-literal: weight for literal, weight in self.soft.items()}
        offset, clauses = self.lower, 0
        for lost, weight in self._pending:
            offset -= weight
            for literal in lost:
                terms[literal] = terms.get(literal, 0) + weight
        slack = self._bounds.upper - offset
        for counter in self._counters.values():
            totalizer = counter.totalizer
            needed = min(len(totalizer.lits), counter.wanted + 1 + slack // counter.weight)
            clauses += (needed - counter.wanted) * len(totalizer.lits)
            if clauses > _OBJECTIVE_CLAUSES_MAX:
                raise TooLargeError
            for output in range(counter.wanted + 1, needed):
                terms[self._output(totalizer, output)] = counter.weight
        return terms, offset

    def take_cores(self) -> Clauses:
        """Return, as clauses, the cores found since the last call; all workers know their variables."""
        cores, self._cores = self._cores, []
        if not cores:
            return Clauses.none()
        return Clauses.of(np.array([len(core) for core in cores]), np.concatenate(cores))

    # --- cores ------------------------------------------------------------------------------------

    def smaller(self, core: list[int]) -> Generator[None, None, list[int]]:
        """Remove literals from a core, small weights first, within a budget of conflicts.

        A large core is first assumed again, because the solver then often finds a smaller core.
        """
        oracle = self.oracle
        for _ in range(_TRIMS_MAX):
            if len(core) <= _MINIMIZE_LITERALS_MAX:
                break
            core = sorted(core, key=self.soft.__getitem__, reverse=True)
            verdict = yield from oracle.ask(core, _MINIMIZE_CONFLICTS)
            if verdict is not Verdict.UNSATISFIABLE or len(oracle.core) >= len(core):
                return core
            core = list(oracle.core)
        else:
            return core
        by_weight = core = sorted(core, key=self.soft.__getitem__)
        end = oracle.conflicts + _MINIMIZE_CONFLICTS
        for literal in by_weight:
            if len(core) <= 1 or oracle.conflicts >= end:
                break
            if literal not in core:
                continue
            rest = [one for one in core if one != literal]
            verdict = yield from oracle.ask(rest, end - oracle.conflicts)
            if verdict is Verdict.UNSATISFIABLE:
                left = set(oracle.core)
                core = [one for one in core if one in left]
            elif verdict is Verdict.SATISFIABLE:
                self._note_model()
            else:
                break
        return core

    def _relax(self, core: list[int]) -> None:
        """Raise the lower bound for a core, and subtract the core's weight from its literals' weights."""
        weight = min(self.soft[literal] for literal in core)
        self.lower += weight
        self._bounds.raise_lower(self.lower)
        if len(core) <= _TOLD_LITERALS_MAX and all(abs(literal) <= self._problem.n_all for literal in core):
            self._cores.append([-literal for literal in core])
        lost = []
        for literal in core:
            lost.append(-literal)
            self._take(literal, weight)
        if len(lost) == 1:
            self.oracle.add(lost)
        else:
            self._pending.append((lost, weight))

    def _take(self, literal: int, weight: int) -> None:
        """Subtract `weight` from a literal's weight. If it is a counter's last output, add the next."""
        left = self.soft[literal] - weight
        if left:
            self.soft[literal] = left
        else:
            del self.soft[literal]
        if (counter := self._counters.pop(literal, None)) is not None:
            self._want(counter, counter.wanted + 1)

    def _want(self, counter: _Counter, output: int) -> None:
        if output < len(counter.totalizer.lits):
            literal = -self._output(counter.totalizer, output)
            counter.wanted = output
            self._counters[literal] = counter
            self.soft[literal] = counter.weight

    def _output(self, totalizer: ITotalizer, output: int) -> int:
        """Return the literal that is true if more than `output` of the totalizer's literals are true."""
        if output >= len(totalizer.rhs):
            totalizer.increase(ubound=output, top_id=self.oracle.top)
            self.oracle.new_variables(totalizer.top_id)
            self.oracle.add_all(totalizer.cnf.clauses[-totalizer.nof_new :] if totalizer.nof_new else ())
        literal: int = totalizer.rhs[output]
        return literal

    def _count_pending(self) -> Generator[None, None, None]:
        """Give each pending core a totalizer. Until then it must be in `_pending`, for `objective`."""
        while self._pending and not self._bounds.is_closed:
            lost, weight = self._pending[0]
            self.oracle.add(lost)
            totalizer = ITotalizer(lits=lost, ubound=1, top_id=self.oracle.top)
            self.oracle.new_variables(totalizer.top_id)
            self.oracle.add_all(totalizer.cnf.clauses)
            bound = yield from self._exhausted(totalizer, weight)
            self.lower += (bound - 1) * weight
            del self._pending[0]
            self._want(_Counter(totalizer, weight), bound)

    def _exhausted(self, totalizer: ITotalizer, weight: int) -> Generator[None, None, int]:
        """Find a lower bound on the number of false literals of a core, within a budget of conflicts."""
        bound, oracle = 1, self.oracle
        while bound < len(totalizer.lits):
            output = self._output(totalizer, bound)
            verdict = yield from oracle.ask([-output], _EXHAUST_CONFLICTS)
            if verdict is Verdict.SATISFIABLE:
                self._note_model()
            if verdict is not Verdict.UNSATISFIABLE:
                return bound
            oracle.add([output])
            self._bounds.raise_lower(self.lower + bound * weight)
            bound += 1
        return bound

    # --- soft literals ----------------------------------------------------------------------------

    def _note_model(self) -> None:
        assert self.oracle.model is not None
        self._bounds.found(self.oracle.model)

    def _harden(self) -> None:
        """Make soft literals hard if no better solution can falsify them."""
        slack = self._bounds.upper - self.lower
        for literal in [literal for literal, weight in self.soft.items() if weight >= slack]:
            self.oracle.add([literal])
            del self.soft[literal]
            self._counters.pop(literal, None)

    def _lower_level(self) -> None:
        below = sorted({weight for weight in self.soft.values() if weight < self._level}, reverse=True)
        if not below:
            self._level = 1
            return
        counts = dict.fromkeys(below, 0)
        for weight in self.soft.values():
            if weight in counts:
                counts[weight] += 1
        left = sum(counts.values())
        for number, weight in enumerate(below):
            left -= counts[weight]
            distinct = len(below) - number - 1
            if not distinct or left / distinct > _DIVERSITY:
                self._level = weight
                return

    def _find_exclusions(self) -> Generator[None, None, None]:
        """Replace each set of soft literals that exclude each other by one soft clause."""
        excluded: dict[int, set[int]] = {}
        for literal in list(self.soft):
            holds, implied = self.oracle.propagate([literal])
            if not holds:
                weight = self.soft.pop(literal)
                self.lower += weight
                self.oracle.add([-literal])
                continue
            for one in implied:
                if -one in self.soft and -one != literal:
                    excluded.setdefault(literal, set()).add(-one)
                    excluded.setdefault(-one, set()).add(literal)
            yield from self.oracle.give_way()
        self._bounds.raise_lower(self.lower)
        yield
        order = sorted(excluded, key=lambda literal: len(excluded[literal]))
        for literal in order:
            while literal in self.soft:
                clique = [literal]
                candidates = {one for one in excluded[literal] if one in self.soft}
                while candidates:
                    best = max(candidates, key=lambda one: (self.soft[one], one))
                    clique.append(best)
                    candidates = candidates & excluded[best]
                if len(clique) < 2:
                    break
                self._join(clique)
            yield from self.oracle.give_way()

    def _join(self, clique: list[int]) -> None:
        weight = min(self.soft[literal] for literal in clique)
        self.lower += (len(clique) - 1) * weight
        self._bounds.raise_lower(self.lower)
        for literal in clique:
            self._take(literal, weight)
        new = self.oracle.new_variable()
        self.oracle.add([*clique, -new])
        self.soft[new] = weight
