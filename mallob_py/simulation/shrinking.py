"""Shrinking: from a plan that fails to a small plan that fails in the same way (delta debugging).

Parts are left out as long as the failure stays. This works because a plan without a part plays like the whole
plan, except where the part matters.

The kind of a failure is the type of the error, where it was raised, and its first line with
all numbers taken out: a smaller plan fails at another time, with other ranks and other jobs.
"""

from __future__ import annotations

import re
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

Part = TypeVar("Part")
AnyPlan = TypeVar("AnyPlan", bound=msgspec.Struct)

_NUMBERS = re.compile(r"-?\d+(\.\d+)?(e-?\d+)?(\s*[,:]\s*-?\d+(\.\d+)?(e-?\d+)?)*")
_FRAMES_SHOWN = 6


class Failure(msgspec.Struct, frozen=True):
    """One failure; `at_s` is its virtual time."""

    kind: str
    text: str
    at_s: float


def failure_by(error: Exception, at_s: float) -> Failure:
    """Return the failure that an error stands for; call this while the error is handled."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    place = traceback.extract_tb(cause.__traceback__)[-1].name
    first_line = (str(error).splitlines() or [""])[0]
    kind = f"{type(error).__name__} in {place}: {_NUMBERS.sub('#', first_line)}"
    return Failure(kind, traceback.format_exc(limit=-_FRAMES_SHOWN), at_s)


@dataclass(frozen=True)
class Shrunk(Generic[AnyPlan]):
    """The smallest plan found, its failure, the number of plans tried, and whether all attempts were made."""

    plan: AnyPlan
    failure: Failure
    tried: int
    is_minimal: bool


def minimal(parts: Sequence[Part], fails: Callable[[Sequence[Part]], bool]) -> list[Part]:
    """Return a sublist that still fails; if every attempt is made, no single part of it can be left out."""
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


class Shrinker(ABC, Generic[AnyPlan]):
    """The smallest plan so far, and the attempts to make it smaller."""

    def __init__(self, plan: AnyPlan, failure: Failure, seconds_max: float) -> None:
        self._plan = plan
        self._failure = failure
        self._deadline = time.monotonic() + seconds_max
        self._tried = 0

    @abstractmethod
    def _steps(self) -> Iterable[Callable[[], None]]:
        """Return functions that leave something out, the most promising first."""

    @abstractmethod
    def _failure_of(self, plan: AnyPlan) -> Failure | None:
        """Simulate a plan to its end, or to its failure; return the failure."""

    def shrunk(self) -> Shrunk[AnyPlan]:
        before = None
        while before != self._plan and self._has_time():
            before = self._plan
            for step in self._steps():
                step()
        return Shrunk(self._plan, self._failure, self._tried, self._has_time())

    def _has_time(self) -> bool:
        return time.monotonic() < self._deadline

    def _try(self, plan: AnyPlan) -> bool:
        """Continue with this plan if it fails in the same way; return whether it does."""
        if plan == self._plan:
            return True
        if not self._has_time():
            return False
        self._tried += 1
        failure = self._failure_of(plan)
        if failure is None or failure.kind != self._failure.kind:
            return False
        self._plan, self._failure = plan, failure
        return True

    def _try_with(self, **fields: Any) -> bool:
        return self._try(msgspec.structs.replace(self._plan, **fields))


def nearer_to(present: msgspec.Struct, plain: msgspec.Struct) -> Iterator[dict[str, Any]]:
    """Yield {name: plain value} for each field that differs from its plain value."""
    for name in present.__struct_fields__:
        if getattr(present, name) != getattr(plain, name):
            yield {name: getattr(plain, name)}
