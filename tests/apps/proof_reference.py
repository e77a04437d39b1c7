"""The definition of valid LRAT and DRAT proofs, as slow checks for the tests only.

The checks share with the checker only the form of a step: (id, literals, hints), with hints None for a
deletion.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import product

RawStep = tuple[int, list[int], list[int] | None]
Active = dict[int, Collection[int]]


def accepts(
    formula: Sequence[Sequence[int]],
    steps: Iterable[RawStep],
    form: Callable[[Sequence[int]], Collection[int]] = set,
) -> bool:
    """Tell whether a proof derives the empty clause, and all steps before are valid.

    If `form` is `list`, the clause (x x) is no unit clause, as for a checker that only counts literals.
    """
    active: Active = {number: form(clause) for number, clause in enumerate(formula, 1)}
    largest = len(formula)
    for id_, literals, hints in steps:
        if hints is None:
            for deleted in literals:
                if deleted not in active:
                    return False
                del active[deleted]
            continue
        if id_ <= largest or not _follows(active, literals, hints):
            return False
        if not literals:
            return True
        active[id_] = form(literals)
        largest = id_
    return False


def _follows(active: Active, literals: list[int], hints: list[int]) -> bool:
    """Tell whether a clause follows by RUP, or else by RAT on its first literal."""
    first_group = next((at for at, hint in enumerate(hints) if hint < 0), len(hints))
    true = {-literal for literal in literals}
    outcome = _unit_steps(active, true, hints[:first_group])
    if outcome != "open":
        return outcome == "contradiction"
    if not literals:
        return False
    pivot = literals[0]
    groups: dict[int, list[int]] = {}
    for hint in hints[first_group:]:
        if hint < 0:
            current = groups.setdefault(-hint, [])
        else:
            current.append(hint)
    for id_, clause in active.items():
        others = set(clause) - {-pivot}
        if -pivot not in clause or others & true:
            continue
        if id_ not in groups:
            return False
        if _unit_steps(active, true | {-x for x in others}, groups[id_]) != "contradiction":
            return False
    return True


def _unit_steps(active: Active, true: set[int], hints: list[int]) -> str:
    """Return 'contradiction', 'open' (all hints were followed) or 'wrong'; extend `true`."""
    for hint in hints:
        if hint not in active:
            return "wrong"
        rest = [x for x in active[hint] if -x not in true]
        if len(rest) > 1:
            return "wrong"
        if not rest:
            return "contradiction"
        true.update(rest)
    return "open"


def accepts_drat(formula: Sequence[Sequence[int]], lines: Iterable[str]) -> bool:
    """Tell whether a proof in DRAT is valid. It has no hints; deletions of unit clauses are ignored."""
    active = [frozenset(clause) for clause in formula]
    for line in lines:
        words = line.split()
        literals = [int(word) for word in words if word != "d"]
        if literals.pop() != 0:
            return False
        if words[0] == "d":
            if frozenset(literals) not in active:
                return False
            if len(set(literals)) > 1:
                active.remove(frozenset(literals))
            continue
        true = {-literal for literal in literals}
        if not _propagation_fails(active, true):
            if not literals:
                return False
            rests = [clause - {-literals[0]} for clause in active if -literals[0] in clause]
            if not all(_propagation_fails(active, true | {-x for x in rest}) for rest in rests):
                return False
        if not literals:
            return True
        active.append(frozenset(literals))
    return False


def _propagation_fails(active: Sequence[frozenset[int]], true: set[int]) -> bool:
    """Tell whether unit propagation finds a contradiction."""
    known = set(true)
    while True:
        if any(-x in known for x in known):
            return True
        found: set[int] = set()
        for clause in active:
            rest = {x for x in clause if -x not in known}
            if not rest:
                return True
            if len(rest) == 1:
                found |= rest - known
        if not found:
            return False
        known |= found


def is_satisfiable(formula: Sequence[Sequence[int]]) -> bool:
    """Tell whether a formula is satisfiable, by trying all assignments."""
    variables = sorted({abs(literal) for clause in formula for literal in clause})
    for values in product((False, True), repeat=len(variables)):
        true = {v if value else -v for v, value in zip(variables, values, strict=True)}
        if all(true & set(clause) for clause in formula):
            return True
    return False
