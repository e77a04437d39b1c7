"""Search from above: after each solution, a cheaper solution is sought, until none exists.

The bound on the cost is an encoding of `encodings`; each worker tries the encodings in its own order. The
solver prefers the values of the best known solution, so that it searches near this solution first. Between
searches of the whole space, neighbourhoods of this solution are searched (`neighbourhoods`). A search that
splits asks for a cost between the bounds instead: a solution lowers the upper bound by much, and a refutation
raises the lower bound. A question without a quick answer is repeated with a higher cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress

from mallob_maxsat.encodings import AtMost, TooLargeError, encoding_of
from mallob_maxsat.neighbourhoods import Neighbourhoods
from mallob_maxsat.oracle import Asking, Oracle, Search
from mallob_maxsat.problem import Problem
from mallob_maxsat.state import Bounds
from mallob_sat.solvers import Verdict

_SPLIT_CONFLICTS = 3000
#: number of conflicts of the first search of the whole space, and the factor by which this number grows each
#: time; neighbourhoods are searched in between
_WHOLE_CONFLICTS, _WHOLE_GROWTH = 2000.0, 1.3
_NEARBY_CONFLICTS = 300


class Improving:
    """One search for solutions that cost less than the best known one.

    `objective()` is called when a solution is known; it returns the terms and the offset of the cost. If it
    raises TooLargeError, or is None, the soft literals are the terms.
    """

    def __init__(
        self,
        problem: Problem,
        bounds: Bounds,
        oracle: Oracle,
        order: tuple[type[AtMost], ...],
        split: float = 0.0,
        objective: Callable[[], tuple[Mapping[int, int], int]] | None = None,
        seed: int = 0,
    ) -> None:
        """Set up. `split`: how far below the upper bound a cost is asked for, as a share of the gap."""
        self._problem = problem
        self._bounds = bounds
        self.oracle = oracle
        self._order = order
        self._split = split
        self._seed = seed
        self._objective = objective

    def _terms(self) -> tuple[Mapping[int, int], int]:
        if self._objective is not None:
            with suppress(TooLargeError):
                return self._objective()
        terms = {-literal: weight for literal, weight in self._problem.soft.items()}
        return terms, self._problem.unavoidable

    def run(self) -> Search:
        """Search until the bounds meet."""
        bounds, oracle = self._bounds, self.oracle
        if bounds.model is None:
            if (yield from oracle.ask([])) is Verdict.UNSATISFIABLE:
                bounds.close()
                return
            self._note_model()
        terms, offset = self._terms()
        limit = bounds.upper - 1 - offset
        if limit < 0:
            bounds.close()
            return
        step = math.gcd(*terms.values()) if terms else 1
        scaled = {literal: weight // step for literal, weight in terms.items()}
        for literal, weight in scaled.items():
            if weight > limit // step:
                oracle.add([-literal])  # no better solution contains this literal
        scaled = {literal: weight for literal, weight in scaled.items() if weight <= limit // step}
        encoding = encoding_of(oracle, scaled, limit // step, self._order)
        yield
        split, conflicts, whole_conflicts = self._split, _SPLIT_CONFLICTS, _WHOLE_CONFLICTS
        nearby = Neighbourhoods(self._problem, self._seed)
        known = -1
        while not bounds.is_closed:
            if bounds.version != known and bounds.model is not None:
                known = bounds.version
                oracle.prefer(bounds.model.tolist())
            highest = bounds.upper - 1
            target = highest - int(split * (bounds.upper - bounds.lower))
            bound = (target - offset) // step
            if bound < 0:
                bounds.raise_lower(offset)
                if bounds.is_closed:
                    return
                split = 0.0 if split < 0.05 else split / 2
                continue
            is_last = target == highest
            assumed = encoding.at_most(bound)
            if is_last and (yield from self._found_nearby(nearby, assumed, whole_conflicts)):
                continue
            verdict = yield from oracle.ask(assumed, int(whole_conflicts) if is_last else conflicts)
            if verdict is Verdict.SATISFIABLE:
                self._note_model()
                split = self._split
            elif verdict is Verdict.UNSATISFIABLE:
                bounds.raise_lower(offset + (bound + 1) * step)
                if not oracle.core:
                    bounds.close()
            elif is_last:
                whole_conflicts *= _WHOLE_GROWTH
            else:
                split /= 2
                conflicts = int(conflicts * 1.3)
                if split * (bounds.upper - bounds.lower) < 1:
                    split = self._split

    def _found_nearby(self, nearby: Neighbourhoods, assumed: list[int], conflicts: float) -> Asking[bool]:
        """Search neighbourhoods of the best solution; return whether a better solution was found.

        The searches have the same budget of conflicts as a search of the whole space.
        """
        bounds, oracle = self._bounds, self.oracle
        if bounds.model is None or not self._problem.soft:
            return False
        version, left = bounds.version, conflicts
        while left > 0 and bounds.version == version:
            kept = nearby.kept(bounds.model)
            verdict = yield from oracle.ask([*assumed, *kept], _NEARBY_CONFLICTS)
            nearby.learn(verdict)
            if verdict is Verdict.SATISFIABLE:
                self._note_model()
                return True
            left -= _NEARBY_CONFLICTS if verdict is Verdict.UNDECIDED else _NEARBY_CONFLICTS / 10
        return bounds.version != version

    def _note_model(self) -> None:
        assert self.oracle.model is not None
        self._bounds.found(self.oracle.model)
