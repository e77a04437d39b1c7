"""Whether a proof in LRAT shows that a formula is unsatisfiable: what a certified answer rests on.

A proof adds clauses to the formula, one by one, until it adds the empty clause. A clause may be
added if the formula is as satisfiable with it as without, which its hints show:

- RUP (reverse unit propagation): assume that all its literals are false, and look at the clauses
  which the hints name, one after the other. Each has one literal left, which must then be true, or
  none at all: a contradiction, so the clause follows.
- RAT (resolution asymmetric tautology): if that gives no contradiction, the first literal p is the
  pivot. For each clause D with -p, assume also that the rest of D is false; a group of hints `-D,
  H1, H2, ...` must then lead to a contradiction (none is needed where the rest of D is true). Then a
  model that lacks p can have it turned to true.

Nothing is searched for and nothing trusted: a hint that has more than one literal left is an error.
Source: Cruz-Filipe, Heule, Hunt, Kaufmann and Schneider-Kamp, Efficient Certified RAT Verification,
CADE 2017. Stricter than needed, since nobody writes it otherwise: ids ascend, and what is deleted
exists.

Guarantee: `check` returns only if the empty clause was derived, else it raises Refuted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mallob_sat.proofs.formula_file import Clause
from mallob_sat.proofs.steps import Step


class Refuted(Exception):
    """The proof proves nothing. One line that says where and why."""


class Checker:
    """The clauses that hold at a point of the proof, by their ids."""

    def __init__(self, formula: Iterable[Sequence[int]]) -> None:
        """Clause k of the formula, counted from 1, has id k."""
        self.clauses: dict[int, Clause] = {
            id_: tuple(dict.fromkeys(clause)) for id_, clause in enumerate(formula, 1)
        }
        self.steps = 0
        self._last_id = len(self.clauses)
        #: every literal that was in any clause so far: others make RAT easy
        self._known = {literal for clause in self.clauses.values() for literal in clause}

    def check(self, steps: Iterator[Step]) -> None:
        """Follow the proof up to the empty clause. Raises Refuted."""
        for step in steps:
            self.steps += 1
            if step.hints is None:
                self._delete(step)
                continue
            self._add(step)
            if not step.integers:
                return
        raise Refuted(f"the proof ends after {self.steps} steps without the empty clause")

    def _delete(self, step: Step) -> None:
        for id_ in step.integers:
            if self.clauses.pop(id_, None) is None:
                raise Refuted(f"{step.place}: deletes clause {id_}, which does not exist")

    def _add(self, step: Step) -> None:
        if step.id <= self._last_id:
            raise Refuted(f"{step.place}: id {step.id} does not exceed {self._last_id}, the one before")
        clause, hints = step.integers, step.hints
        assert hints is not None
        false = set(clause)
        if len(false) < len(clause):
            clause = list(dict.fromkeys(clause))
        if not hints or min(hints) > 0:
            contradiction = self._propagate(hints, false, step)
        else:
            start = next(at for at, hint in enumerate(hints) if hint < 0)
            contradiction = self._propagate(hints[:start], false, step)
            hints = hints[start:]
        if not contradiction:
            self._check_rat(clause, hints if hints and hints[0] < 0 else [], false, step)
        self.clauses[step.id] = tuple(clause)
        self._last_id = step.id
        self._known.update(clause)

    def _propagate(self, hints: Sequence[int], false: set[int], step: Step) -> bool:
        """Follow hints, adding to the false literals. Whether they lead to a contradiction."""
        clauses = self.clauses
        for hint in hints:
            left = 0
            try:
                clause = clauses[hint]
            except KeyError:
                raise Refuted(f"{step.place}: hint {hint} names no clause that exists") from None
            for literal in clause:
                if literal not in false:
                    if left:
                        raise Refuted(f"{step.place}: hint {hint} has more than one literal left")
                    left = literal
            if not left:
                return True
            false.add(-left)
        return False

    def _check_rat(self, clause: Sequence[int], hints: Sequence[int], false: set[int], step: Step) -> None:
        if not clause:
            raise Refuted(f"{step.place}: the hints do not lead to the empty clause")
        opposite = -clause[0]
        groups = _groups(hints)
        if opposite not in self._known:
            return
        for id_, other in self.clauses.items():
            if opposite not in other:
                continue
            rest = [literal for literal in other if literal != opposite]
            if any(-literal in false for literal in rest):
                continue
            if id_ not in groups:
                raise Refuted(
                    f"{step.place}: the hints lead to no contradiction"
                    + (f", and none are for clause {id_} with {opposite}" if groups else "")
                )
            if not self._propagate(groups[id_], false.union(rest), step):
                raise Refuted(f"{step.place}: the hints for clause {id_} lead to no contradiction")


def _groups(hints: Sequence[int]) -> dict[int, list[int]]:
    """The hints for each clause D, where they come as -D, H1, H2, ..."""
    groups: dict[int, list[int]] = {}
    group: list[int] = []
    for hint in hints:
        if hint < 0:
            group = groups.setdefault(-hint, [])
        else:
            group.append(hint)
    return groups
