"""The k-th largest of keys that are spread over the PEs, from answers of constant length.

Decides who gets the units left over after rounding down (P 3.1: k jobs in order), and who gets a
PE where there are more jobs than PEs. The same game as in `alpha_search.py`: pivots cut a range
of keys into sections, answers count per section and bring some sample keys. Keys are distinct and
ordered as tuples, so a section ends *with* its right pivot, and all comparisons are exact.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence

import msgspec

from mallob_py.protocol import PeerViolation
from mallob_py.protocol.alpha_search import PIVOTS, SAMPLES

#: (standing or 0.0, priority, demand, complement of the hash of the job id), larger is better
Key = tuple[float, float, int, int]


class KeySection(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The keys above one pivot up to and with the next."""

    count: int = 0
    samples: tuple[Key, ...] = ()


class UnitsQuestion(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=2):
    """First question about the units left over, given alpha_0 = numerator / denominator (packed)."""

    cap: int
    numerator: bytes
    denominator: bytes
    pivots: tuple[Key, ...]


class PlacesQuestion(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=3):
    """First question about who has a PE at all."""

    pivots: tuple[Key, ...]


class KeysQuestion(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=4):
    """A further one: cut the keys above `low` (None: all) up to and with `high` (None: no end)."""

    low: Key | None
    pivots: tuple[Key, ...]
    high: Key | None


class KeyAnswer(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=2):
    """One section more than there were pivots; `floors` answers `UnitsQuestion`: volumes rounded down."""

    floors: int
    sections: tuple[KeySection, ...]


def answer(pivots: Sequence[Key], keys: Iterable[Key], floors: int = 0) -> KeyAnswer:
    """The answer for these keys."""
    inside: list[list[Key]] = [[] for _ in range(len(pivots) + 1)]
    for key in keys:
        inside[bisect_left(pivots, key)].append(key)
    return KeyAnswer(floors, tuple(KeySection(len(part), _sampled(part)) for part in inside))


def within(question: KeysQuestion, keys: Iterable[Key]) -> list[Key]:
    """The keys that this question is about: no later one needs the others."""
    low, high = question.low, question.high
    return [key for key in keys if (low is None or low < key) and (high is None or key <= high)]


def _sampled(keys: Sequence[Key]) -> tuple[Key, ...]:
    return tuple(keys if len(keys) <= SAMPLES else sorted(keys, key=hash)[:SAMPLES])


def merged(first: KeyAnswer, second: KeyAnswer) -> KeyAnswer:
    """The answer for the keys of both."""
    return KeyAnswer(
        first.floors + second.floors,
        tuple(
            KeySection(one.count + other.count, _sampled(one.samples + other.samples))
            for one, other in zip(first.sections, second.sections, strict=True)
        ),
    )


class KeySelection:
    """At the root of the tree: finds the key that `wanted` keys are at least as large as.

    `guesses` are the first pivots. `wanted` may be set later, but before the first answer is taken.
    """

    def __init__(self, wanted: int, guesses: Iterable[Key]) -> None:
        self.wanted = wanted
        self._low: Key | None = None
        self._high: Key | None = None
        self.pivots = self._inside(guesses)
        self.threshold: Key | None = None
        #: keys met on the way: the next epoch's guesses are among them
        self.seen: set[Key] = set()

    @property
    def is_over(self) -> bool:
        return self.threshold is not None

    def next_question(self) -> KeysQuestion:
        assert not self.is_over
        return KeysQuestion(self._low, self.pivots, self._high)

    def take(self, answer: KeyAnswer) -> None:
        """Go on in the section of the threshold."""
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
            self.pivots = self._next_pivots(samples, section.count, below)

    def _next_pivots(self, samples: list[Key], count: int, below: int) -> tuple[Key, ...]:
        """Half of them are samples around the wanted place, half are interpolated between the ends."""
        share = (below + 0.5) / count
        place = round(share * len(samples))
        first = max(0, min(place - 2, len(samples) - 4))
        pivots = samples[first : first + 4]
        if self._low is not None and self._high is not None:
            near = SAMPLES / (3 * count)
            wide = max(3 * near, 2 * math.sqrt(share * (1 - share) / count))
            for at in (share - near, share + near, share - wide, share + wide):
                if 0 < at < 1:
                    pivots.append(_between(self._low, self._high, at))
        else:
            pivots = samples
        return self._inside(pivots)

    def _inside(self, candidates: Iterable[Key]) -> tuple[Key, ...]:
        low, high = self._low, self._high
        usable = {key for key in candidates if (low is None or low < key) and (high is None or key < high)}
        return tuple(sorted(usable)[:PIVOTS])


def _between(low: Key, high: Key, share: float) -> Key:
    """A key so far on the way from one to the other, as far as their first difference tells."""
    if low[0] != high[0]:
        return (low[0] + (high[0] - low[0]) * share, 0.0, 0, 0)
    if low[1] != high[1]:
        return (low[0], low[1] + (high[1] - low[1]) * share, 0, 0)
    if low[2] != high[2]:
        # Whole demands: what is left of the way goes into the hash, which is even.
        way = (high[2] - low[2]) * share
        return (low[0], low[1], low[2] + int(way), int((way % 1.0) * 2**64) & (2**64 - 1))
    return (low[0], low[1], low[2], low[3] + int((high[3] - low[3]) * share))
