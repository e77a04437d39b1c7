"""Fair volumes: how many PEs each job deserves (P 2.3, 3.1).

Given priorities p_j > 0, demands d_j >= 1 and m PEs, v_j(alpha) = max(1, min(d_j, alpha p_j))
is fair for every alpha. xi(alpha) = m - sum of all v_j(alpha) falls monotonically and is linear
between the events alpha = 1/p_j (j stops being raised to 1) and alpha = d_j/p_j (j begins to be
capped). Its root alpha_0 uses all PEs. Volumes are rounded down and the units left over go, one
each, to the first jobs *in order* among those with v_j(alpha_0) < d_j.

The order is total and the same everywhere: larger priority, then larger demand, then smaller
hash of the job id (splitmix64, a bijection, so it also settles the id).

Guarantees
- Exact: priorities are taken as the rational numbers that the floats are, alpha_0 is the exact
  rational root, rounding is the exact floor of alpha_0 p_j. No result depends on a tolerance.
- Hence the outcome is a function of the set of jobs: no order of summation, number of threads
  or width of vector registers can make two PEs disagree.
- The sum is m or all demands are met (C1), 1 <= v_j <= d_j (C2), and all jobs share one alpha_0
  with at most one unit more, favouring the jobs first in order (C3, by the rule of P 3.1. The
  letter of P 2.3 is narrower: of two jobs only the one of higher priority may have that unit,
  while P 3.1, and so this file, gives k jobs one each: p = (4, 4, 10), m = 7 -> v = (2, 1, 4)).
- More jobs than PEs: the m jobs of best standing get one PE each, the others none.

How it is fast: the 2n events are sorted and added up as floats, in vectorised passes. The float
that this finds is only a guess. `rounded_down` proves it: if no job changes its floor or its kind
(raised, free, capped) in the whole interval alpha (1 +- 2^-40), and the root of that one linear
piece lies inside, then that is the root and these are the floors. Otherwise (an exact integer, a
tie of events) the few jobs in doubt are settled in integers by `exact_root`.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

#: range of priorities (others are refused): so no product or quotient here leaves the range of floats
MIN_PRIORITY, MAX_PRIORITY = 1e-100, 1e100
#: greatest number of PEs: volumes and sums of volumes must be exact as floats
MAX_PES = 2**48

#: relative half-width of the interval around a guess of alpha_0 that must hold the root. Float errors
#: (pairwise sums of n < 2^48 terms, a few products) stay below 2^-46, far below this half-width
_DOUBT = 2.0**-40
_POLISH_STEPS = 4


def fair_volumes(
    priorities: ArrayLike,
    demands: ArrayLike,
    m: int,
    *,
    job_ids: ArrayLike | None = None,
    standing: ArrayLike | None = None,
) -> Ints:
    """Return the fair volume of each job on `m` PEs, in the order given.

    `job_ids` (distinct integers; default: positions) settle ties. `standing` (larger first; default:
    priorities) ranks the jobs if there are more jobs than PEs; its ties are settled by the usual order.
    """
    p, d = _checked(priorities, demands, m)
    n = p.size
    if n == 0:
        return np.zeros(0, dtype=np.int64)
    if n >= m:
        return _one_each(p, d, m, job_ids, standing)
    capacity = _capped(d, n, m)
    if _sum(capacity) <= m:
        return capacity.astype(np.int64)
    volumes = rounded_down(p, capacity, m)
    left_over = m - int(_sum(volumes))
    assert 0 <= left_over < n, "rounding down loses less than one unit per job"
    if left_over:
        volumes += _first_by_order(p, d, volumes < capacity, left_over, job_ids)
    return volumes.astype(np.int64)


# --- arguments ---------------------------------------------------------------------------------


def _checked(priorities: ArrayLike, demands: ArrayLike, m: int) -> tuple[Floats, Ints]:
    p = np.asarray(priorities, dtype=np.float64)
    d = np.asarray(demands, dtype=np.int64)
    if p.ndim != 1 or p.shape != d.shape:
        raise ValueError(f"priorities {p.shape} and demands {d.shape} must be two equally long vectors")
    if not 1 <= m <= MAX_PES:
        raise ValueError(f"number of PEs {m} is outside 1..2^48")
    if p.size:
        # The comparisons are written such that NaN is refused as well.
        if not (np.minimum.reduce(p) >= MIN_PRIORITY and np.maximum.reduce(p) <= MAX_PRIORITY):
            raise ValueError(f"priorities must be numbers in {MIN_PRIORITY}..{MAX_PRIORITY}")
        if np.minimum.reduce(d) < 1:
            raise ValueError("demands must be at least 1")
    return p, d


def _capped(d: Ints, n: int, m: int) -> Floats:
    """Return the demands, bounded by what one job can get while all other jobs have one PE each.

    alpha_0 and the rounded volumes stay the same, and floats hold these numbers exactly.
    """
    return np.minimum(d, m - n + 1).astype(np.float64)


def _sum(values: Floats) -> np.float64:
    """Return the pairwise sum: error below log2(n) roundings, none for integers below 2^53.

    This is no BLAS product: its error grows with n, and its threads stall on a busy machine.
    """
    total: np.float64 = np.add.reduce(values)
    return total


# --- the root: a guess, its proof, and the exact way ---------------------------------------------


def rounded_down(p: Floats, d: Floats, m: int) -> Floats:
    """Return max(1, min(d, floor(alpha_0 p))), exactly."""
    alpha = approximate_root(p, d, m)
    # The sums below must be exact only near the root, where decisions are made.
    for _ in range(_POLISH_STEPS):
        low, high = _floors_around(p, d, alpha)
        volumes = np.maximum(low, 1.0)
        free = (low >= 1.0) & (low < d)
        slope = float(_sum(p * free))
        for_free = m - float(_sum(volumes)) + float(_sum(volumes * free))
        certain = bool((low == high).all())
        if slope == 0.0:
            if certain and for_free == 0.0:
                return volumes
            break
        better = for_free / slope
        if abs(better - alpha) <= alpha * _DOUBT / 4:
            if certain:
                return volumes
            break
        if better <= 0.0:
            break
        alpha = better
    return exactly_rounded_down(p, d, m, alpha)


def _floors_around(p: Floats, d: Floats, alpha: float) -> tuple[Floats, Floats]:
    """Return min(d, floor(a p)) for both ends a of the interval of doubt around `alpha`.

    If both values of a job are equal, the job has this floor, and one kind, in the whole interval.
    """
    low = p * (alpha * (1.0 - _DOUBT))
    np.floor(low, out=low)
    np.minimum(low, d, out=low)
    high = p * (alpha * (1.0 + _DOUBT))
    np.floor(high, out=high)
    np.minimum(high, d, out=high)
    return low, high


def exactly_rounded_down(p: Floats, d: Floats, m: int, guess: float) -> Floats:
    """Return min(d, floor(a p)) at the exact root a near `guess`; jobs in doubt are settled in integers."""
    root = exact_root(p, d, m, guess)
    low, high = _floors_around(p, d, float(root))
    doubtful = np.flatnonzero(low != high)
    distinct, group = np.unique(p[doubtful], return_inverse=True)
    numerator, denominator = root.as_integer_ratio()
    floors = []
    for priority in distinct.tolist():
        p_numerator, p_denominator = priority.as_integer_ratio()
        # MAX_PES keeps the number exact as a float; the demand, applied next, is the actual bound.
        floors.append(min(numerator * p_numerator // (denominator * p_denominator), MAX_PES))
    low[doubtful] = np.minimum(np.array(floors, dtype=np.float64)[group], d[doubtful])
    return np.maximum(low, 1.0)


def exact_root(p: Floats, d: Floats, m: int, guess: float) -> Fraction:
    """Return a root of xi as a rational number, near `guess` if there is one (n < m < sum of demands).

    Jobs without an event around the guess enter as one sum; the others are scanned event by event. If the
    root is not there, the guess was bad: look farther, in the end everywhere.
    """
    doubt = _DOUBT
    while True:
        everywhere = doubt >= 1.0
        at_low = p * (0.0 if everywhere else guess * (1.0 - doubt))
        at_high = p * (np.inf if everywhere else guess * (1.0 + doubt))
        raised = (at_high <= 1.0) | (d == 1.0)
        capped = (at_low >= d) & ~raised
        free = (at_low >= 1.0) & (at_high <= d) & ~raised & ~capped
        scanned = ~(raised | capped | free)
        root = _scan(
            m - int(np.count_nonzero(raised)) - int(_sum(d[capped])),
            exact_sum(p[free]),
            _with_counts(p[scanned], d[scanned]),
            Fraction(0) if everywhere else Fraction(guess) * (1 - Fraction(doubt) / 2),
        )
        # The margin of one half covers the roundings in at_low and at_high.
        if root is not None and (everywhere or abs(root - Fraction(guess)) <= Fraction(guess * doubt) / 2):
            return root
        doubt = doubt * 1024.0


def _scan(
    pes: int, slope: Fraction, jobs: list[tuple[float, float, int]], start: Fraction
) -> Fraction | None:
    """Return the alpha at which free jobs of total priority `slope` and `jobs` (p, d, count) use `pes` PEs.

    P 3.1 in rational numbers: the events in order, with running R (`used`) and P (`slope`). A plateau of
    solutions before the first event is represented by `start`, if that lies there.
    """
    events: dict[Fraction, tuple[int, Fraction]] = {}
    used = 0
    for priority, demand, count in jobs:
        exact, cap = Fraction(priority), int(demand)
        used += count
        for alpha, more_used, more_slope in (
            (1 / exact, -count, count * exact),
            (cap / exact, cap * count, -count * exact),
        ):
            old_used, old_slope = events.get(alpha, (0, Fraction(0)))
            events[alpha] = (old_used + more_used, old_slope + more_slope)
    if slope == 0 and used == pes and all(start < alpha for alpha in events):
        return start
    for alpha in sorted(events):
        if used + alpha * slope >= pes:
            break
        more_used, more_slope = events[alpha]
        used, slope = used + more_used, slope + more_slope
    return (pes - used) / slope if slope else None


def _with_counts(p: Floats, d: Floats) -> list[tuple[float, float, int]]:
    """Return the distinct pairs (p, d), and how often each occurs."""
    pairs, counts = np.unique(p + 1j * d, return_counts=True)
    return list(zip(pairs.real.tolist(), pairs.imag.tolist(), counts.tolist(), strict=True))


def exact_sum(values: Floats) -> Fraction:
    """Return the sum without rounding: 53-bit mantissas in two halves, summed per exponent."""
    if values.size == 0:
        return Fraction(0)
    fractions, exponents = np.frexp(values)
    lowest = int(exponents.min())
    bins = exponents - lowest
    upper = np.floor(fractions * 2.0**27)
    lower = (fractions * 2.0**27 - upper) * 2.0**26
    total = 0
    for scale, halves in ((26, upper), (0, lower)):
        # Each summand is an integer below 2^27, so the sums over up to 2^26 jobs are exact in floats.
        for place, part in enumerate(np.bincount(bins, weights=halves).tolist()):
            total += int(part) << (place + scale)
    return Fraction(total) * Fraction(2) ** (lowest - 53)


# --- the guess -----------------------------------------------------------------------------------


def approximate_root(p: Floats, d: Floats, m: float) -> float:
    """Return a float near alpha_0: the root by P 3.1 in floats, from all 2n events."""
    events = np.concatenate((1.0 / p, d / p))
    order = events.argsort()
    events = events[order]
    used = np.concatenate((np.full(p.size, -1.0), d))[order].cumsum()
    slopes = np.concatenate((p, -p))[order].cumsum()
    pes = m - p.size
    reached = events * slopes
    reached += used
    # The first event that reaches the root; the root's piece begins at the event before that one.
    piece = int((reached >= pes).argmax()) - 1
    if slopes[piece] > 0.0:
        root = float((pes - used[piece]) / slopes[piece])
        if 0.0 < root < np.inf:
            return root
    # Rounding hid the piece: the event before it is a good guess.
    return float(events[piece]) or float(events[-1])


# --- order ---------------------------------------------------------------------------------------


def _first_by_order(
    p: Floats, d: Ints, eligible: NDArray[np.bool_], count: int, job_ids: ArrayLike | None
) -> NDArray[np.bool_]:
    """Return the first `count` eligible jobs in the module's order, which has no ties."""
    chosen, tied, missing = _largest(np.where(eligible, p, 0.0), count)
    if missing:
        candidates = np.flatnonzero(tied)
        chosen[candidates[_settle_ties(d[candidates], _ids(job_ids, p.size)[candidates], missing)]] = True
    return chosen


def _settle_ties(d: Ints, ids: NDArray[np.uint64], count: int) -> NDArray[np.bool_]:
    """Choose among jobs of equal priority: larger demand, then smaller hash of the id."""
    chosen, tied, missing = _largest(d, count)
    if missing:
        candidates = np.flatnonzero(tied)
        # `~` reverses the order of hashes.
        best, _, too_few = _largest(~_splitmix64(ids[candidates]), missing)
        if too_few:
            raise ValueError("job ids must be distinct")
        chosen[candidates[best]] = True
    return chosen


def _largest(keys: NDArray[np.generic], count: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_], int]:
    """Return the `count` largest keys.

    If the cut falls into a tie: the keys above it, the tied keys, and how many tied keys to take.
    """
    threshold = np.partition(keys, keys.size - count)[keys.size - count]
    chosen = keys >= threshold
    surplus = int(np.count_nonzero(chosen)) - count
    if surplus == 0:
        return chosen, chosen, 0
    tied = keys == threshold
    return chosen & ~tied, tied, int(np.count_nonzero(tied)) - surplus


def _one_each(p: Floats, d: Ints, m: int, job_ids: ArrayLike | None, standing: ArrayLike | None) -> Ints:
    """Return the volumes where there are at least as many jobs as PEs: one PE for each of the first `m`."""
    n = p.size
    if n == m:
        return np.ones(n, dtype=np.int64)
    rank = p if standing is None else np.asarray(standing, dtype=np.float64)
    if rank.shape != p.shape or bool(np.isnan(rank).any()):
        raise ValueError("standing must be one number per job")
    chosen, tied, missing = _largest(rank, m)
    if missing:
        candidates = np.flatnonzero(tied)
        ids = _ids(job_ids, n)[candidates]
        everyone = np.ones(candidates.size, dtype=np.bool_)
        chosen[candidates[_first_by_order(p[candidates], d[candidates], everyone, missing, ids)]] = True
    return chosen.astype(np.int64)


def _ids(job_ids: ArrayLike | None, n: int) -> NDArray[np.uint64]:
    if job_ids is None:
        return np.arange(n, dtype=np.uint64)
    ids = np.asarray(job_ids)
    if ids.shape != (n,):
        raise ValueError(f"{ids.shape} job ids for {n} jobs")
    return ids.astype(np.uint64)


def _splitmix64(ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return SplitMix64's finaliser: a bijection that scatters neighbouring numbers."""
    x = ids + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return mixed
