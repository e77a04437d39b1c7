"""From a plan that fails to a small one that fails in the same way (delta debugging).

Parts are left out as long as the failure stays: whole jobs, single deeds, PEs, settings that
differ from the default, and at last delays: all messages take the shortest time but a few,
and these few are the race. It works since a plan without a part plays like the plan with it,
as far as that part does not matter (`plan.py`, `delays.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from mallob_py.protocol.config import Config
from mallob_py.simulation.delays import Delayed, What
from mallob_py.simulation.failure import Failure, failure_in, failure_of
from mallob_py.simulation.plan import AnyDeed, Breakdown, Demand, Plan, Submit
from mallob_py.simulation.scenario import Scenario

Part = TypeVar("Part")

_SIZES_TRIED = (1, 2, 3, 4, 5, 6, 7, 8, 10, 13, 16, 24, 32, 48, 64, 128)


class Shrunk(msgspec.Struct, frozen=True):
    """The smallest plan found, how it fails, how many plans were tried, and whether time was left for all."""

    plan: Plan
    failure: Failure
    tried: int
    is_minimal: bool


def shrink(plan: Plan, failure: Failure, seconds_max: float = 60.0) -> Shrunk:
    """A small plan with a failure of the same kind, found within about that time."""
    return _Shrinker(plan, failure, time.monotonic() + seconds_max).shrunk()


def minimal(parts: Sequence[Part], fails: Callable[[Sequence[Part]], bool]) -> list[Part]:
    """A sublist that still fails and does not without any single part, if all tries are granted."""
    kept = list(parts)
    if kept and fails([]):
        return []
    width = (len(kept) + 1) // 2
    while width:
        first, removed = 0, False
        while first < len(kept):
            rest = kept[:first] + kept[first + width :]
            if rest and fails(rest):
                kept, removed = rest, True
            else:
                first += width
        if width == 1 and not removed:
            return kept
        width = max(1, width // 2)
    return kept


class _Shrinker:
    """The smallest plan so far, and the attempts to make it smaller."""

    def __init__(self, plan: Plan, failure: Failure, deadline: float) -> None:
        self._plan = plan
        self._failure = failure
        self._deadline = deadline
        self._tried = 0

    def shrunk(self) -> Shrunk:
        before = None
        while before != self._plan and self._has_time():
            before = self._plan
            self._end_early()
            self._drop_jobs()
            self._drop_deeds()
            self._use_fewer_pes()
            self._use_defaults()
            self._hasten()
        return Shrunk(self._plan, self._failure, self._tried, self._has_time())

    def _has_time(self) -> bool:
        return time.monotonic() < self._deadline

    def _try(self, plan: Plan) -> bool:
        """Go on from this plan if it fails in the same way."""
        if plan == self._plan:
            return True
        if not self._has_time():
            return False
        self._tried += 1
        failure = failure_of(plan)
        if failure is None or failure.kind != self._failure.kind:
            return False
        self._plan, self._failure = plan, failure
        return True

    def _try_with(self, **fields: Any) -> bool:
        return self._try(msgspec.structs.replace(self._plan, **fields))

    # --- what happens -----------------------------------------------------------------------

    def _end_early(self) -> None:
        """Nothing after the failure matters; most often not much before it either."""
        deeds = self._plan.deeds
        self._try_with(deeds=tuple(deed for deed in deeds if deed.at_s <= self._failure.at_s))

    def _drop_jobs(self) -> None:
        def fails(jobs: Sequence[int]) -> bool:
            return self._try_with(deeds=tuple(deed for deed in deeds if deed.job in set(jobs)))

        deeds = self._plan.deeds
        minimal(sorted({deed.job for deed in deeds}), fails)

    def _drop_deeds(self) -> None:
        def fails(deeds: Sequence[AnyDeed]) -> bool:
            return self._try_with(deeds=tuple(deeds))

        minimal(self._plan.deeds, fails)

    # --- where and how ----------------------------------------------------------------------

    def _use_fewer_pes(self) -> None:
        for size in _SIZES_TRIED:
            if size >= self._plan.size:
                return
            deeds = tuple(_on_fewer_pes(deed, size) for deed in self._plan.deeds)
            if self._try_with(size=size, deeds=deeds):
                return

    def _use_defaults(self) -> None:
        """One setting at a time, those of the cluster and those of the jobs."""
        self._try_with(largest_capacity=0)
        for config in _nearer_to(self._plan.config, Config()):
            self._try_with(config=msgspec.structs.replace(self._plan.config, **config))
        for place, deed in enumerate(self._plan.deeds):
            if isinstance(deed, Submit):
                plain = Submit(number=deed.number, at_s=deed.at_s, job=deed.job, rank=deed.rank)
                for fields in _nearer_to(deed, plain):
                    deeds = list(self._plan.deeds)
                    deeds[place] = msgspec.structs.replace(deeds[place], **fields)
                    self._try_with(deeds=tuple(deeds))

    def _hasten(self) -> None:
        """Let all that takes time take the shortest time, first by pairs of ranks, then one by one."""

        def fails_with(pairs: Sequence[tuple[What, int, int]]) -> bool:
            chosen = set(pairs)
            return self._try_with(special=tuple(each for each in special if each[:3] in chosen))

        def fails(few: Sequence[Delayed]) -> bool:
            return self._try_with(special=tuple(few))

        special = self._plan.special or ()
        if self._plan.special is None:
            scenario = Scenario(self._plan)
            failure_in(scenario)
            special = tuple(scenario.delays.all_so_far())
        minimal(sorted({each[:3] for each in special}, key=_by_rank), fails_with)
        if self._plan.special is not None:
            minimal(self._plan.special, fails)


def _by_rank(pair: tuple[What, int, int]) -> tuple[int, int, str]:
    what, source, dest = pair
    return source, dest, what.value


def _on_fewer_pes(deed: AnyDeed, size: int) -> AnyDeed:
    match deed:
        case Submit():
            near = None if deed.near is None else deed.near % size
            return msgspec.structs.replace(deed, rank=deed.rank % size, near=near)
        case Breakdown(rank=int(rank)):
            return msgspec.structs.replace(deed, rank=rank % size)
        case Demand():
            return msgspec.structs.replace(deed, workers=min(deed.workers, size))
        case _:
            return deed


def _nearer_to(present: msgspec.Struct, plain: msgspec.Struct) -> Iterator[dict[str, Any]]:
    """Each field that differs from the plain value, alone."""
    for name in present.__struct_fields__:
        if getattr(present, name) != getattr(plain, name):
            yield {name: getattr(plain, name)}
