"""The inner loop of the local search: flips of single variables.

It makes some ten thousand flips per second, and a hundred times as many once Numba has compiled it (the extra
`fast`). Importing Numba takes longer than many jobs, so the loop begins uncompiled, on lists, and
`compiled_walk` is called after a while.

Each clause has its own weight, which grows while the clause is false and no flip improves the assignment, so
that the search leaves local minima. `score[v]` is the gain, in these weights, of a flip of v. All arrays
belong to `local_search`. Clauses are numbered: hard clauses first, soft clauses from `n_hard` on.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeAlias

Walk: TypeAlias = Callable[..., float]

#: indices in `counts`: number of variables whose flip is a gain, number of false hard clauses, end of
#: the false soft clauses in `unsat`, state of the random numbers
GOOD, HARD, SOFT, RANDOM = range(4)
_SAMPLES = 25
_TYPES = (
    "float64(int64, float64, int64, int32[::1], int32[::1], int32[::1], int32[::1], int8[::1], int8[::1], "
    "int32[::1], int64[::1], float64[::1], float64[::1], float64[::1], float64[::1], int32[::1], int32[::1], "
    "int32[::1], int32[::1], int64[::1])"
)


def _drawn(counts: Any, below: int) -> int:
    """Return a random integer from 0 to below - 1 (xorshift)."""
    state: int = counts[RANDOM]
    state ^= (state << 13) & 0x7FFFFFFF
    state ^= state >> 17
    state ^= (state << 5) & 0x7FFFFFFF
    counts[RANDOM] = state
    return state % below


def _put(members: Any, where: Any, counts: Any, kind: int, one: int) -> None:
    where[one] = counts[kind]
    members[counts[kind]] = one
    counts[kind] += 1


def _drop(members: Any, where: Any, counts: Any, kind: int, one: int) -> None:
    counts[kind] -= 1
    last, place = members[counts[kind]], where[one]
    members[place] = last
    where[last] = place
    where[one] = -1


def _gain(score: Any, good: Any, good_at: Any, counts: Any, variable: int, change: float) -> None:
    score[variable] += change
    if score[variable] > 1e-9:
        if good_at[variable] < 0:
            _put(good, good_at, counts, GOOD, variable)
    elif good_at[variable] >= 0:
        _drop(good, good_at, counts, GOOD, variable)


def walk(
    n_flips: int,
    cost: float,
    n_hard: int,
    starts: Any,
    variables: Any,
    occurs_from: Any,
    occurs: Any,
    signs: Any,
    value: Any,
    n_true: Any,
    true_sum: Any,
    weight: Any,
    growth: Any,
    limit: Any,
    score: Any,
    good: Any,
    good_at: Any,
    unsat: Any,
    unsat_at: Any,
    counts: Any,
) -> float:
    """Flip at most `n_flips` variables; end when all hard clauses hold and the cost is below `cost`.

    `cost` is in units of `growth`, the weight of a soft clause. Returns the cost of the assignment, or -1
    after `n_flips` flips in vain. In `unsat`, false hard clauses stand from index 0 on, false soft clauses
    from index `n_hard` on.
    """
    paid = 0.0
    for at in range(counts[SOFT] - n_hard):
        paid += growth[unsat[n_hard + at]]
    for _ in range(n_flips):
        if counts[HARD] == 0 and paid < cost:
            return paid
        if counts[GOOD] > 0:
            flipped = good[_drawn(counts, counts[GOOD])]
            for _ in range(min(_SAMPLES, counts[GOOD] - 1)):
                other = good[_drawn(counts, counts[GOOD])]
                if score[other] > score[flipped]:
                    flipped = other
        else:
            for at in range(counts[HARD]):
                clause = unsat[at]
                weight[clause] += growth[clause]
                for place in range(starts[clause], starts[clause + 1]):
                    _gain(score, good, good_at, counts, variables[place], growth[clause])
            for at in range(n_hard, counts[SOFT]):
                clause = unsat[at]
                if weight[clause] < limit[clause]:
                    weight[clause] += growth[clause]
                    for place in range(starts[clause], starts[clause + 1]):
                        _gain(score, good, good_at, counts, variables[place], growth[clause])
            if counts[HARD] > 0:
                clause = unsat[_drawn(counts, counts[HARD])]
            elif counts[SOFT] > n_hard:
                clause = unsat[n_hard + _drawn(counts, counts[SOFT] - n_hard)]
            else:
                return -1.0
            flipped = variables[starts[clause]]
            for place in range(starts[clause] + 1, starts[clause + 1]):
                if score[variables[place]] > score[flipped]:
                    flipped = variables[place]
        before = score[flipped]
        value[flipped] = 1 - value[flipped]
        for at in range(occurs_from[flipped], occurs_from[flipped + 1]):
            clause = occurs[at]
            if value[flipped] == signs[at]:
                n_true[clause] += 1
                true_sum[clause] += flipped
                if n_true[clause] == 1:
                    for place in range(starts[clause], starts[clause + 1]):
                        _gain(score, good, good_at, counts, variables[place], -weight[clause])
                    if clause < n_hard:
                        _drop(unsat, unsat_at, counts, HARD, clause)
                    else:
                        _drop(unsat, unsat_at, counts, SOFT, clause)
                        paid -= growth[clause]
                elif n_true[clause] == 2:
                    other = true_sum[clause] - flipped
                    _gain(score, good, good_at, counts, other, weight[clause])
            else:
                n_true[clause] -= 1
                true_sum[clause] -= flipped
                if n_true[clause] == 0:
                    for place in range(starts[clause], starts[clause + 1]):
                        _gain(score, good, good_at, counts, variables[place], weight[clause])
                    if clause < n_hard:
                        _put(unsat, unsat_at, counts, HARD, clause)
                    else:
                        _put(unsat, unsat_at, counts, SOFT, clause)
                        paid += growth[clause]
                elif n_true[clause] == 1:
                    _gain(score, good, good_at, counts, true_sum[clause], -weight[clause])
        _gain(score, good, good_at, counts, flipped, -before - score[flipped])
    return -1.0


def compiled_walk() -> Walk | None:
    """Compile `walk` for arrays instead of lists, or load it from the disk; return None without Numba."""
    try:
        import numba
    except ImportError:
        return None
    scope = dict(globals())
    for part in (_drawn, _put, _drop, _gain):
        scope[part.__name__] = numba.njit(FunctionType(part.__code__, scope))
    whole = FunctionType(walk.__code__, scope, walk.__name__)
    compiled: Walk = numba.njit(_TYPES, cache=True, error_model="numpy")(whole)
    return compiled
