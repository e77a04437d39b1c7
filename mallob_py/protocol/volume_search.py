"""All volumes of one epoch from questions and answers of constant length (P 2.3, 3.1, distributed).

`VolumeSearch` asks, at the root of the tree of ranks: first for alpha_0, then for the units left by rounding
down; or, with more jobs than PEs, which jobs have a PE at all. `Deputy` answers on each PE for the jobs
assigned to it. The result, an `EpochVolumes`, is a few numbers from which any PE computes the volume of any
job, bit for bit as `fair_volumes`.

`Hint` passes from one epoch's search to the next, only to save rounds.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple, Protocol

import msgspec

from mallob_py.protocol import PeerViolation
from mallob_py.protocol.section_search import (
    PIVOTS,
    AlphaAnswer,
    AlphaEvent,
    AlphaQuestion,
    AlphaSearch,
    Key,
    KeyAnswer,
    KeySelection,
    KeysQuestion,
    PlacesQuestion,
    UnitsQuestion,
    alpha_answer,
    key_answer,
    keys_within,
    merged_alphas,
    merged_keys,
    pack,
    scaled,
    unpack,
)
from mallob_py.protocol.splitmix import WORD, splitmix64

AnyQuestion = AlphaQuestion | UnitsQuestion | PlacesQuestion | KeysQuestion
AnyAnswer = AlphaAnswer | KeyAnswer

#: bound on the relative error of a product of two rounded factors
_DOUBT = 2.0**-50


def deputy_of(job: int, size: int) -> int:
    """Return the rank that answers for a job."""
    return splitmix64(job) % size


class JobFacts(Protocol):
    """The facts of a job that determine its volume (as in a `JobEvent`)."""

    @property
    def job(self) -> int: ...
    @property
    def priority(self) -> float: ...
    @property
    def demand(self) -> int: ...
    @property
    def standing(self) -> float: ...


# --- the result -----------------------------------------------------------------------------------


class EpochVolumes(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The volumes of one epoch. alpha_0 is numerator / denominator, packed; 1 / 0 if all demands can be met.

    Jobs with keys from `units_from` on get one unit more if they are not capped (None: no job does). Jobs
    with keys below `places_from` have no PE (None: all have one).
    """

    jobs: int
    total_volume: int
    cap: int
    numerator: bytes
    denominator: bytes
    units_from: Key | None
    places_from: Key | None


NO_JOBS = EpochVolumes(0, 0, 1, b"", pack(1), None, None)


class Share:
    """alpha_0, from which any PE computes a job's volume, rounded down."""

    def __init__(self, numerator: bytes, denominator: bytes) -> None:
        self._numerator = unpack(numerator)
        self._denominator = unpack(denominator)
        if self._denominator == 0:
            self._x = math.inf
        else:
            self._x = self._numerator / self._denominator

    def floor(self, priority: float, cap: int) -> int:
        """Return max(1, min(cap, floor(alpha_0 p))), exactly."""
        if self._x == math.inf:
            return cap
        product = self._x * priority
        doubt = product * _DOUBT
        if product + doubt < 1:
            return 1
        if product - doubt > cap:
            return cap
        rounded = int(product)
        if not rounded + doubt < product < rounded + 1 - doubt:
            numerator, denominator = priority.as_integer_ratio()
            rounded = self._numerator * numerator // (self._denominator * denominator)
        return max(1, min(cap, rounded))


def unit_key(priority: float, demand: int, job: int) -> Key:
    """Return a job's place in the order of P 3.1 among jobs that may get a remaining unit."""
    return (0.0, priority, demand, splitmix64(job) ^ WORD)


def place_key(standing: float, priority: float, demand: int, job: int) -> Key:
    """Return a job's place in the order in which jobs get a PE if some must wait."""
    return (standing, priority, demand, splitmix64(job) ^ WORD)


class Volumes:
    """The volumes of an `EpochVolumes`, by job."""

    def __init__(self, epoch_volumes: EpochVolumes) -> None:
        self.epoch_volumes = epoch_volumes
        self._share = Share(epoch_volumes.numerator, epoch_volumes.denominator)

    def of(self, facts: JobFacts) -> int:
        epoch_volumes = self.epoch_volumes
        if epoch_volumes.places_from is not None:
            key = place_key(facts.standing, facts.priority, facts.demand, facts.job)
            return int(key >= epoch_volumes.places_from)
        cap = min(facts.demand, epoch_volumes.cap)
        volume = self._share.floor(facts.priority, cap)
        if epoch_volumes.units_from is None or volume == cap:
            return volume
        return volume + int(unit_key(facts.priority, facts.demand, facts.job) >= epoch_volumes.units_from)


# --- code for every PE ----------------------------------------------------------------------------


class _Represented(NamedTuple):
    facts: JobFacts
    scaled_priority: int
    unit_key: Key


class Deputy:
    """Answers for the jobs assigned to one PE. Work per round: O(its jobs still in question)."""

    def __init__(self) -> None:
        self._jobs: dict[int, _Represented] = {}
        self._events: list[AlphaEvent] = []
        self._keys: list[Key] = []

    def put(self, facts: JobFacts) -> None:
        """Add or change a job."""
        key = unit_key(facts.priority, facts.demand, facts.job)
        self._jobs[facts.job] = _Represented(facts, scaled(facts.priority), key)

    def drop(self, job: int) -> None:
        """Remove a job, if this deputy knows it."""
        self._jobs.pop(job, None)

    def answer(self, question: AnyQuestion) -> AnyAnswer:
        match question:
            case AlphaQuestion(cap, low, _, high):
                if low[0] == 0 and high is None:
                    self._events = list(self._all_events(cap))
                result, self._events = alpha_answer(question, self._events)
                return result
            case UnitsQuestion(cap, numerator, denominator, pivots):
                self._events = []
                floors, self._keys = self._uncapped(Share(numerator, denominator), cap)
                return key_answer(pivots, self._keys, floors)
            case PlacesQuestion(pivots):
                self._keys = [(job.facts.standing, *job.unit_key[1:]) for job in self._jobs.values()]
                return key_answer(pivots, self._keys)
            case KeysQuestion(_, pivots, _):
                self._keys = keys_within(question, self._keys)
                return key_answer(pivots, self._keys)

    def _all_events(self, cap: int) -> Iterator[AlphaEvent]:
        for job in self._jobs.values():
            yield from AlphaEvent.both(job.facts.priority, job.scaled_priority, min(job.facts.demand, cap))

    def _uncapped(self, share: Share, cap: int) -> tuple[int, list[Key]]:
        """Return the sum of volumes rounded down, and the keys of jobs that could have more."""
        total, keys = 0, []
        for job in self._jobs.values():
            most = min(job.facts.demand, cap)
            volume = share.floor(job.facts.priority, most)
            total += volume
            if volume < most:
                keys.append(job.unit_key)
        return total, keys


def merged(first: AnyAnswer, second: AnyAnswer) -> AnyAnswer:
    """Return the answer for the jobs of both answers."""
    if isinstance(first, AlphaAnswer) and isinstance(second, AlphaAnswer):
        return merged_alphas(first, second)
    if isinstance(first, KeyAnswer) and isinstance(second, KeyAnswer):
        return merged_keys(first, second)
    raise PeerViolation("answers to different questions")


# --- code for the root of the tree ------------------------------------------------------------------


class Hint(msgspec.Struct):
    """Knowledge from the last epoch: the root of xi and its slope there, and the deciding keys."""

    alpha: float = 0.0
    slope: float = 0.0
    #: number of PEs that the volumes at `alpha` leave over (below 0: exceed): 0 after a search, then changed
    #: by news
    missing: float = 0.0
    units: list[Key] = []
    units_from: Key | None = None
    places: list[Key] = []
    places_from: Key | None = None

    def replace(self, old: JobFacts | None, new: JobFacts | None) -> None:
        """Account for news of one job (None: the job does not exist), in O(1)."""
        for facts, sign in ((old, -1), (new, 1)):
            if facts is None:
                continue
            share = self.alpha * facts.priority
            self.missing -= sign * max(1.0, min(float(facts.demand), share))
            if 1 < share < facts.demand:
                self.slope += sign * facts.priority

    def alphas(self, pes: int, jobs: int) -> Iterator[float]:
        """Yield guesses of alpha_0: a Newton step from the last alpha_0, and values at growing distances."""
        guess = self.alpha
        if self.slope > 0 and 0 < (better := self.alpha + self.missing / self.slope) < math.inf:
            guess = better
        if guess <= 0:
            guess = pes / jobs
        for off in (2 / jobs, 0.25 * jobs**-0.5, 2 * jobs**-0.5):
            yield guess * (1 + off)
            yield guess / (1 + off)
        yield guess * 16
        yield guess / 16


def _around(threshold: Key | None, known: list[Key]) -> list[Key]:
    """Return the last threshold, and keys on both sides at growing distances."""
    if threshold is None:
        return known[:: max(1, len(known) // PIVOTS)]
    place = bisect_left(known, threshold)
    places = [place + off for off in (0, -1, 1, -3, 3, -8, 8, 20)]
    return [known[at] for at in places if 0 <= at < len(known)]


class VolumeSearch:
    """One computation: ask `question` until `epoch_volumes` is known. The last answer renews `hint`."""

    def __init__(self, pes: int, jobs: int, hint: Hint) -> None:
        self._pes = pes
        self._jobs = jobs
        self._hint = hint
        self._alpha: AlphaSearch | None = None
        self._keys: KeySelection | None = None
        self._root = Fraction(0)
        self.question: AnyQuestion | None = None
        self.epoch_volumes: EpochVolumes | None = None
        self.rounds = 0
        if jobs == 0:
            self.epoch_volumes = NO_JOBS
        elif jobs == pes:
            self._settle(jobs, Fraction(0))
        elif jobs > pes:
            self._keys = KeySelection(pes, _around(hint.places_from, hint.places))
            self.question = PlacesQuestion(self._keys.pivots)
        else:
            self._alpha = AlphaSearch(pes, jobs, hint.alphas(pes, jobs))
            self.question = self._alpha.next_question()

    def take(self, answer: AnyAnswer) -> None:
        """Take in the answer of all PEs to the present question."""
        assert self.question is not None
        self.rounds += 1
        asked, self.question = self.question, None
        if isinstance(answer, AlphaAnswer):
            self._take_alpha(answer)
        elif isinstance(asked, UnitsQuestion):
            self._take_floors(answer)
        else:
            self._take_keys(answer)

    def _take_alpha(self, answer: AlphaAnswer) -> None:
        search = self._alpha
        assert search is not None
        search.take(answer)
        if not search.is_over:
            self.question = search.next_question()
        elif search.root is None:
            self.epoch_volumes = self._epoch_volumes(search.demand, pack(1), b"", None, None)
        else:
            self._root = search.root
            self._hint.alpha = float(search.root)
            self._hint.slope, self._hint.missing = search.root_slope, 0.0
            self._keys = KeySelection(0, _around(self._hint.units_from, self._hint.units))
            self.question = UnitsQuestion(
                self._pes - self._jobs + 1,
                pack(self._root.numerator),
                pack(self._root.denominator),
                self._keys.pivots,
            )

    def _take_floors(self, answer: KeyAnswer) -> None:
        left_over = self._pes - answer.floors
        assert 0 <= left_over < self._jobs, "rounding down loses less than one unit per job"
        assert self._keys is not None
        if left_over == 0:
            self._settle(self._pes, self._root)
            return
        self._keys.wanted = left_over
        self._take_keys(answer)

    def _take_keys(self, answer: KeyAnswer) -> None:
        keys, hint = self._keys, self._hint
        assert keys is not None
        keys.take(answer)
        if not keys.is_over:
            self.question = keys.next_question()
        elif self._alpha is not None:
            hint.units, hint.units_from = sorted(keys.seen), keys.threshold
            self._settle(self._pes, self._root, units_from=keys.threshold)
        else:
            hint.places, hint.places_from = sorted(keys.seen), keys.threshold
            self._settle(self._pes, self._root, places_from=keys.threshold)

    def _settle(
        self, total: int, alpha: Fraction, units_from: Key | None = None, places_from: Key | None = None
    ) -> None:
        self.epoch_volumes = self._epoch_volumes(
            total, pack(alpha.numerator), pack(alpha.denominator), units_from, places_from
        )

    def _epoch_volumes(
        self,
        total: int,
        numerator: bytes,
        denominator: bytes,
        units_from: Key | None,
        places_from: Key | None,
    ) -> EpochVolumes:
        cap = max(1, self._pes - self._jobs + 1)
        return EpochVolumes(self._jobs, total, cap, numerator, denominator, units_from, places_from)
