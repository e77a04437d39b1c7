"""Multi-way search for alpha_0 and for a k-th key, from answers of constant length (P 3.1, distributed).

**The root alpha_0 of xi.** The events of P 3.1 are spread over the PEs: (1/p_j, -1, p_j) and (d_j/p_j, d_j,
-p_j). The root of the tree of ranks asks with a few *pivots*, candidate alphas inside a bracket known to hold
alpha_0. The pivots cut the bracket into sections. The answer has, per section, the number of events inside,
the sums of their r_e and p_e, and up to `SAMPLES` distinct events. Answers are added up on their way to the
root, which thus knows xi exactly at every pivot, goes on in the section where xi changes its sign, and is
done once all events of that section are in the answer.

Exact: events and pivots are pairs that stand for the rational number numerator/p, compared as
floats and, where these are equal, as fractions; sums of p_e are integers scaled by a power of two.

Few rounds: samples are the distinct events of smallest hash, with their multiplicities, so a
thousand identical jobs are two events; events equal to a pivot are in no section's inside, so
different events that tie in alpha are gone once one of them is a pivot. After the first question all pivots
are samples, which cut down any distribution of events by a constant factor, as if drawn at random.

**The k-th largest of keys** decides who gets the units left over after rounding down (P 3.1: k jobs in
order), and who gets a PE where there are more jobs than PEs. This search works likewise: pivots cut a range
of keys into sections, answers count per section and bring some sample keys. Keys are distinct and ordered as
tuples, so a section ends *with* its right pivot, and all comparisons are exact.

All ranks must run the same build of Python: its hashes of pairs of numbers choose the samples.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from fractions import Fraction

import msgspec

from mallob_py.protocol import PeerViolation

#: number of pivots per question of a search
PIVOTS = 8
#: number of sampled events or keys per section of an answer
SAMPLES = 8
#: exponent by which sums of priorities are scaled to integers: exact from 1e-100 on
SCALE = 400

#: (numerator, p) stands for the number numerator / p; an interpolated float x is (x, 1.0)
Pivot = tuple[int | float, float]
#: (numerator, p, number of such events); at numerator 1, jobs of priority p stop being raised to 1
Sample = tuple[int, float, int]


class AlphaSection(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The events between two neighbouring pivots, without the events equal to a pivot.

    The sums of r_e and p_e include the events equal to the right pivot.
    """

    count: int = 0
    used: int = 0
    slope: bytes = b""
    samples: tuple[Sample, ...] = ()


class AlphaQuestion(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """Cut the events between `low` and `high` (None: no end) at the pivots; larger demands count as `cap`."""

    cap: int
    low: Pivot
    pivots: tuple[Pivot, ...]
    high: Pivot | None


class AlphaAnswer(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """The answer to a question, with one section more than the question's pivots."""

    sections: tuple[AlphaSection, ...]


# --- exact numbers ------------------------------------------------------------------------------


def scaled(priority: float) -> int:
    """Return `priority` times 2^SCALE, exactly."""
    numerator, denominator = priority.as_integer_ratio()
    shift = SCALE + 1 - denominator.bit_length()
    assert shift >= 0, f"priority {priority} has bits below 2^-{SCALE}"
    return numerator << shift


def pack(value: int) -> bytes:
    """Return an integer of any size as bytes: the number of trailing zero bytes, then the other bytes."""
    if value == 0:
        return b""
    zeros = ((value & -value).bit_length() - 1) // 8
    value >>= 8 * zeros
    return bytes((zeros,)) + value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)


def unpack(data: bytes) -> int:
    return int.from_bytes(data[1:], "little", signed=True) << (8 * data[0]) if data else 0


def exact(pivot: Pivot) -> Fraction:
    """Return the number that a pair stands for."""
    return Fraction(pivot[0]) / Fraction(pivot[1])


def _is_below(first: Pivot, second: Pivot) -> bool:
    """Compare pivots. Division rounds monotonically: only equal floats need fractions."""
    x, y = first[0] / first[1], second[0] / second[1]
    return x < y if x != y else first != second and exact(first) < exact(second)


# --- answers --------------------------------------------------------------------------------------


class AlphaEvent(msgspec.Struct, frozen=True, gc=False):
    """An event at a PE that answers for its job. `x` is alpha_e, rounded."""

    x: float
    at: Pivot
    used: int
    slope: int

    @staticmethod
    def both(priority: float, scaled_priority: int, demand: int) -> tuple[AlphaEvent, ...]:
        """Return the two events of a job; none if they cancel out."""
        if demand == 1:
            return ()
        return (
            AlphaEvent(1 / priority, (1, priority), -1, scaled_priority),
            AlphaEvent(demand / priority, (demand, priority), demand, -scaled_priority),
        )


def alpha_answer(
    question: AlphaQuestion, events: Iterable[AlphaEvent]
) -> tuple[AlphaAnswer, list[AlphaEvent]]:
    """Return the answer for events, and the events inside the bracket, which suffice for later questions."""
    pivots = question.pivots
    cuts = [numerator / p for numerator, p in pivots]
    sections = len(cuts) + 1
    counts, used, slopes = [0] * sections, [0] * sections, [0] * sections
    inside: list[dict[Pivot, int]] = [{} for _ in range(sections)]
    low_x = question.low[0] / question.low[1]
    high_x = math.inf if question.high is None else question.high[0] / question.high[1]
    active = []
    for event in events:
        x, at = event.x, event.at
        if not low_x < x < high_x and not _lies_between(question.low, at, question.high):
            continue
        active.append(event)
        section = bisect_left(cuts, x)
        is_on_cut = False
        while section < len(cuts) and cuts[section] == x:
            if not _is_below(pivots[section], at):
                is_on_cut = not _is_below(at, pivots[section])
                break
            section += 1
        used[section] += event.used
        slopes[section] += event.slope
        if not is_on_cut:
            counts[section] += 1
            inside[section][at] = inside[section].get(at, 0) + 1
    return AlphaAnswer(
        tuple(
            AlphaSection(counts[i], used[i], pack(slopes[i]), _sampled_events(inside[i]))
            for i in range(sections)
        )
    ), active


def _lies_between(low: Pivot, at: Pivot, high: Pivot | None) -> bool:
    return _is_below(low, at) and (high is None or _is_below(at, high))


def _sampled_events(events: dict[Pivot, int]) -> tuple[Sample, ...]:
    chosen: Iterable[Pivot] = events
    if len(events) > SAMPLES:
        chosen = sorted(events, key=hash)[:SAMPLES]
    return tuple((int(at[0]), at[1], events[at]) for at in chosen)


def merged_alphas(first: AlphaAnswer, second: AlphaAnswer) -> AlphaAnswer:
    """Return the answer for the events of both answers."""
    return AlphaAnswer(tuple(map(_merged_section, first.sections, second.sections)))


def _merged_section(first: AlphaSection, second: AlphaSection) -> AlphaSection:
    if second == _NOTHING:
        return first
    if first == _NOTHING:
        return second
    # An event whose hash is among the smallest of both answers is also a sample of each answer that contains
    # the event, so its counts can be added up.
    events: dict[Pivot, int] = {(numerator, p): count for numerator, p, count in first.samples}
    for numerator, p, count in second.samples:
        events[numerator, p] = events.get((numerator, p), 0) + count
    return AlphaSection(
        first.count + second.count,
        first.used + second.used,
        pack(unpack(first.slope) + unpack(second.slope)),
        _sampled_events(events),
    )


_NOTHING = AlphaSection()


# --- the search ----------------------------------------------------------------------------------


class AlphaSearch:
    """The search that the root PE makes: it chooses the next question by the answers, until `is_over`.

    There must be fewer jobs than PEs. When the search is over, either `root` is alpha_0, or `demands_fit` is
    true: the PEs suffice for all demands, and the equation has no root.
    """

    def __init__(self, pes: int, jobs: int, guesses: Iterable[float]) -> None:
        assert 0 < jobs < pes
        self._pes = pes
        self._cap = pes - jobs + 1
        self._low: Pivot = (0, 1.0)
        self._high: Pivot | None = None
        #: sum of the volumes just right of `low`, as used + alpha slope
        self._used = jobs
        self._slope = 0
        self._pivots = self._inside((x, 1.0) for x in guesses)
        self.root: Fraction | None = None
        #: slope at the root, for the next epoch's guess
        self.root_slope = 0.0
        self.demands_fit = False
        #: sum of all demands, known after the first answer
        self.demand = 0

    @property
    def is_over(self) -> bool:
        return self.demands_fit or self.root is not None

    def next_question(self) -> AlphaQuestion:
        assert not self.is_over
        return AlphaQuestion(self._cap, self._low, self._pivots, self._high)

    def take(self, answer: AlphaAnswer) -> None:
        """Take in an answer: go on in the section where xi changes its sign."""
        if len(answer.sections) != len(self._pivots) + 1:
            raise PeerViolation(f"{len(answer.sections)} sections for {len(self._pivots)} pivots")
        if self._high is None and self.demand == 0:
            self.demand = self._used + sum(section.used for section in answer.sections)
            if self.demand <= self._pes:
                self.demands_fit = True
                return
        for end, section in zip((*self._pivots, self._high), answer.sections, strict=True):
            if end is None or end == self._high:
                break
            used, slope = self._used + section.used, self._slope + unpack(section.slope)
            if self._reaches(exact(end), used, slope):
                self._high = end
                break
            self._low, self._used, self._slope = end, used, slope
        if sum(count for _, _, count in section.samples) == section.count:
            self._finish(section.samples)
        else:
            # Pivots affect only the number of rounds, never the result.
            self._pivots = self._inside((numerator, p) for numerator, p, _ in section.samples)

    def _reaches(self, alpha: Fraction, used: int, slope: int) -> bool:
        return (self._pes - used) * alpha.denominator << SCALE <= alpha.numerator * slope

    def _finish(self, events: Iterable[Sample]) -> None:
        """Find the root by P 3.1 among the events left, which are all known."""
        for alpha, numerator, p, count in sorted((exact((n, p)), n, p, count) for n, p, count in events):
            if self._reaches(alpha, self._used, self._slope):
                break
            self._used += count * (-1 if numerator == 1 else numerator)
            self._slope += count * scaled(p) * (1 if numerator == 1 else -1)
        assert self._slope > 0, "xi falls on the piece with its root"
        self.root = Fraction((self._pes - self._used) << SCALE, self._slope)
        self.root_slope = self._slope / (1 << SCALE)

    def _inside(self, candidates: Iterable[Pivot]) -> tuple[Pivot, ...]:
        """Return the values strictly inside the bracket, in order, without repetition."""
        usable = [
            pivot
            for pivot in candidates
            if 0 < pivot[0] < math.inf and _lies_between(self._low, pivot, self._high)
        ]
        by_value = {exact(pivot): pivot for pivot in usable}
        return tuple(by_value[value] for value in sorted(by_value))[:PIVOTS]


# --- keys ----------------------------------------------------------------------------------------

#: (standing or 0.0, priority, demand, complement of the hash of the job id); a larger key is better
Key = tuple[float, float, int, int]


class KeySection(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The keys above one pivot, up to and including the next pivot."""

    count: int = 0
    samples: tuple[Key, ...] = ()


class UnitsQuestion(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=2):
    """First question about the remaining units, given alpha_0 = numerator / denominator (packed)."""

    cap: int
    numerator: bytes
    denominator: bytes
    pivots: tuple[Key, ...]


class PlacesQuestion(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=3):
    """First question about which jobs have a PE at all."""

    pivots: tuple[Key, ...]


class KeysQuestion(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=4):
    """A further question: cut the keys above `low` (None: all) up to and including `high` (None: no end)."""

    low: Key | None
    pivots: tuple[Key, ...]
    high: Key | None


class KeyAnswer(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=2):
    """The answer to a question with n pivots: n + 1 sections of the keys, between which the pivots lie.

    `floors`: for a `UnitsQuestion`, the sum of the volumes rounded down; else 0.
    """

    floors: int
    sections: tuple[KeySection, ...]


def key_answer(pivots: Sequence[Key], keys: Iterable[Key], floors: int = 0) -> KeyAnswer:
    """Return the answer for these keys."""
    inside: list[list[Key]] = [[] for _ in range(len(pivots) + 1)]
    for key in keys:
        inside[bisect_left(pivots, key)].append(key)
    return KeyAnswer(floors, tuple(KeySection(len(part), _sampled_keys(part)) for part in inside))


def keys_within(question: KeysQuestion, keys: Iterable[Key]) -> list[Key]:
    """Return the keys within the question's bounds; later questions concern only these keys."""
    low, high = question.low, question.high
    return [key for key in keys if (low is None or low < key) and (high is None or key <= high)]


def _sampled_keys(keys: Sequence[Key]) -> tuple[Key, ...]:
    return tuple(keys if len(keys) <= SAMPLES else sorted(keys, key=hash)[:SAMPLES])


def merged_keys(first: KeyAnswer, second: KeyAnswer) -> KeyAnswer:
    """Return the answer for the keys of both answers."""
    return KeyAnswer(
        first.floors + second.floors,
        tuple(
            KeySection(one.count + other.count, _sampled_keys(one.samples + other.samples))
            for one, other in zip(first.sections, second.sections, strict=True)
        ),
    )


class KeySelection:
    """The root's search for the largest key that at least `wanted` keys reach.

    `guesses` are the first pivots. `wanted` may be set until the first answer is taken.
    """

    def __init__(self, wanted: int, guesses: Iterable[Key]) -> None:
        self.wanted = wanted
        self._low: Key | None = None
        self._high: Key | None = None
        self.pivots = self._inside(guesses)
        self.threshold: Key | None = None
        #: keys seen in answers; the next epoch's guesses are chosen from these keys
        self.seen: set[Key] = set()

    @property
    def is_over(self) -> bool:
        return self.threshold is not None

    def next_question(self) -> KeysQuestion:
        assert not self.is_over
        return KeysQuestion(self._low, self.pivots, self._high)

    def take(self, answer: KeyAnswer) -> None:
        """Take in an answer: go on in the section of the threshold."""
        count = sum(section.count for section in answer.sections)
        if not 1 <= self.wanted <= count:
            raise PeerViolation(f"{self.wanted} of {count} keys")
        below = count - self.wanted
        for end, section in zip((*self.pivots, self._high), answer.sections, strict=True):
            if below < section.count:
                self._high = end
                break
            below -= section.count
            self._low = end
        self.wanted = section.count - below
        self.seen.update(section.samples)
        samples = sorted(section.samples)
        if len(samples) == section.count:
            self.threshold = samples[below]
        else:
            self.pivots = self._inside(samples)

    def _inside(self, candidates: Iterable[Key]) -> tuple[Key, ...]:
        low, high = self._low, self._high
        usable = {key for key in candidates if (low is None or low < key) and (high is None or key < high)}
        return tuple(sorted(usable)[:PIVOTS])
