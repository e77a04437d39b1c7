"""More pigeons than holes, however pigeons, holes and their bounds are written.

The argument. Let some clauses have no literal in common, and let all their literals fall into groups, in each
of which at most one literal is true in any model. A model makes a literal of each clause true; these literals
differ, as the clauses have none in common, so they lie in different groups. So each clause can be given a
group of its own that holds one of its literals. If that is impossible (shown by a bipartite matching), there
is no model.

Two literals exclude each other if binary clauses lead from one to the other's negation, in any number of
steps: so bounds by pairs, counters, ladders, commanders, products or numbers look the same. Unit clauses are
propagated first. The choice of clauses is a guess that costs no soundness: all clauses whose literals each
exclude a literal of another clause; if they overlap as on a chessboard, only the larger colour.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from mallob_sat.formula import Literals

#: most rounds of unit propagation; stopping early costs no soundness
_ROUNDS_MAX = 20
#: least lengths of clauses to try: at first without shorter ones, which may belong to the encoding of bounds
_SHORTEST = (4, 3, 2)
Clause = tuple[int, ...]


class TooManySteps(Exception):
    """The search for an argument would take more than a moment."""


class Steps:
    """A bound on the steps of a computation. Raises TooManySteps."""

    def __init__(self, left: int) -> None:
        self._left = left

    def take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise TooManySteps


def has_too_few_holes(literals: Literals, steps_max: int) -> bool:
    """Tell whether the argument shows that these clauses, each closed by 0, have no model."""
    steps = Steps(steps_max)
    try:
        rest = _without_decided(literals)
        implied = _Implications(rest)
        candidates = list(_candidates(rest, implied))
        former = 0
        for shortest in _SHORTEST:
            chosen = [clause for clause in candidates if len(clause) >= shortest or not clause]
            if len(chosen) > former and not _is_possible(chosen, implied, steps):
                return True
            former = len(chosen)
        return False
    except TooManySteps:
        return False


def _is_possible(candidates: list[Clause], implied: _Implications, steps: Steps) -> bool:
    clauses, excluded = _exclusive(_independent(candidates, steps), implied, steps)
    return _is_matched(clauses, _groups(clauses, excluded, steps), steps)


def _without_decided(literals: Literals) -> Literals:
    """Return the clauses that unit propagation leaves, without literals that it makes false."""
    for _ in range(_ROUNDS_MAX):
        ends = np.flatnonzero(literals == 0)
        lengths = np.diff(ends, prepend=-1) - 1
        units = literals[ends[lengths == 1] - 1]
        if not units.size:
            break
        true = np.zeros(2 * int(np.abs(literals).max()) + 1, np.bool_)
        true[units] = True
        satisfied = np.logical_or.reduceat(true[literals], ends - lengths)
        kept = np.repeat(~satisfied, lengths + 1) & ~true[-literals]
        literals = literals[kept]
    return literals


class _Implications:
    """The consequences of each literal by one binary clause."""

    def __init__(self, literals: Literals) -> None:
        self.largest = int(np.abs(literals).max(initial=0))
        ends = np.flatnonzero(literals == 0)
        lasts = ends[np.diff(ends, prepend=-1) == 3] - 1
        one, other = literals[lasts - 1], literals[lasts]
        sources, targets = np.concatenate((-one, -other)), np.concatenate((other, one))
        order = np.argsort(sources, kind="stable")
        self._targets: list[int] = targets[order].tolist()
        counts = np.bincount(sources + self.largest, minlength=2 * self.largest + 1)
        self._ends: list[int] = np.cumsum(counts).tolist()
        self.has_some: NDArray[np.bool_] = counts > 0

    def all_from(self, literal: int, steps: Steps) -> list[int]:
        """Return the literals that follow from `literal`, itself included, nearest consequences first."""
        found, seen = [literal], {literal}
        for source in found:
            place = source + self.largest
            targets = self._targets[self._ends[place - 1] if place else 0 : self._ends[place]]
            steps.take(len(targets))
            for target in targets:
                if target not in seen:
                    seen.add(target)
                    found.append(target)
        return found


def _candidates(literals: Literals, implied: _Implications) -> Iterator[Clause]:
    """Yield the clauses whose literals all have consequences.

    Most binary clauses only exclude pairs. So a binary clause is yielded only if each literal's negation is
    in no longer clause, and the literal is positive or in a longer clause.
    """
    ends = np.flatnonzero(literals == 0)
    lengths = np.diff(ends, prepend=-1) - 1
    if not ends.size:
        return
    closed = np.repeat(lengths, lengths + 1)
    in_long = np.bincount(literals[closed > 2] + implied.largest, minlength=2 * implied.largest + 1) > 0
    is_positive = np.arange(in_long.size) > implied.largest
    in_short = implied.has_some & (in_long | is_positive) & ~in_long[::-1]
    places = literals + implied.largest
    fitting = np.where(closed > 2, implied.has_some[places], in_short[places])
    fitting[ends] = True
    whole = np.logical_and.reduceat(fitting, ends - lengths)
    for end, length in zip(ends[whole].tolist(), lengths[whole].tolist(), strict=True):
        yield tuple(dict.fromkeys(literals[end - length : end].tolist()))


def _independent(clauses: list[Clause], steps: Steps) -> list[Clause]:
    """Choose clauses without common literals; of a part that can be two-coloured, the larger colour."""
    having: dict[int, list[int]] = {}
    for number, clause in enumerate(clauses):
        for literal in clause:
            having.setdefault(literal, []).append(number)
    colours: dict[int, int] = {}
    chosen: list[Clause] = []
    for first in range(len(clauses)):
        if first in colours:
            continue
        part, waiting = [first], [first]
        colours[first], has_two = 0, True
        while waiting:
            number = waiting.pop()
            for literal in clauses[number]:
                for other in having[literal]:
                    steps.take(1)
                    if other not in colours:
                        colours[other] = 1 - colours[number]
                        part.append(other)
                        waiting.append(other)
                    elif other != number and colours[other] == colours[number]:
                        has_two = False
        chosen += _larger_colour(clauses, part, colours) if has_two else _first_come(clauses, part)
    return chosen


def _larger_colour(clauses: list[Clause], part: list[int], colours: dict[int, int]) -> list[Clause]:
    by_colour: tuple[list[Clause], list[Clause]] = ([], [])
    for number in part:
        by_colour[colours[number]].append(clauses[number])
    return max(by_colour, key=len)


def _first_come(clauses: list[Clause], part: list[int]) -> list[Clause]:
    taken: set[int] = set()
    chosen = []
    for number in sorted(part):
        if taken.isdisjoint(clauses[number]):
            taken.update(clauses[number])
            chosen.append(clauses[number])
    return chosen


def _exclusive(
    clauses: list[Clause], implied: _Implications, steps: Steps
) -> tuple[list[Clause], dict[int, dict[int, None]]]:
    """Return the clauses whose literals each exclude a literal of another one, and what each excludes.

    Other clauses are dropped: a literal that excludes no literal of another clause is a group of its own,
    which its clause can always have.
    """
    home = {literal: number for number, clause in enumerate(clauses) for literal in clause}
    excluded: dict[int, dict[int, None]] = {}
    for literal, number in home.items():
        found = [-each for each in implied.all_from(literal, steps)]
        excluded[literal] = {each: None for each in found if home.get(each, number) != number}
    kept = set(range(len(clauses)))
    while True:
        dropped = [n for n in kept if not all(map(excluded.__getitem__, clauses[n]))]
        if not dropped:
            return [clauses[n] for n in sorted(kept)], excluded
        kept.difference_update(dropped)
        for number in dropped:
            for literal in clauses[number]:
                for other in excluded.pop(literal):
                    steps.take(1)
                    if other in excluded:
                        excluded[other].pop(literal, None)


def _groups(clauses: list[Clause], excluded: dict[int, dict[int, None]], steps: Steps) -> dict[int, int]:
    """Return a group for each literal; the literals of a group exclude each other."""
    group_of: dict[int, int] = {}
    for number, first in enumerate(literal for clause in clauses for literal in clause):
        if first in group_of:
            continue
        group = [first]
        for candidate in excluded[first]:
            steps.take(len(group))
            if candidate not in group_of and all(each in excluded[candidate] for each in group):
                group.append(candidate)
        group_of |= dict.fromkeys(group, number)
    return group_of


def _is_matched(clauses: list[Clause], group_of: dict[int, int], steps: Steps) -> bool:
    """Tell whether each clause can have a group of its own that holds one of its literals."""
    #: by group: the clause that holds the group; and by clause: the group held
    holder: dict[int, int] = {}
    held: dict[int, int] = {}
    for first in range(len(clauses)):
        #: by group: the clause that would take the group
        taker: dict[int, int] = {}
        waiting, free = [first], None
        while waiting and free is None:
            number = waiting.pop()
            for literal in clauses[number]:
                steps.take(1)
                group = group_of[literal]
                if group in taker:
                    continue
                taker[group] = number
                if group not in holder:
                    free = group
                    break
                waiting.append(holder[group])
        if free is None:
            return False
        while free is not None:  # each clause takes the next group on the way, up to `first`, which had none
            number = taker[free]
            holder[free] = number
            held[number], free = free, held.get(number)
    return True
