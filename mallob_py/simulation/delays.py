"""How long things take in a simulated cluster."""

from __future__ import annotations

import random
from typing import Protocol

import msgspec


class Delays(Protocol):
    """Seconds that messages, process starts and fetches of descriptions take, drawn one by one.

    `handling_s` is the time that a PE's event loop is busy with one message (or tick), and
    `sending_s` what each message that it sends adds to it: 0 for PEs that are infinitely fast.
    `local_s` is what a message takes between PEs of one rank.
    """

    @property
    def handling_s(self) -> float: ...

    @property
    def sending_s(self) -> float: ...

    @property
    def local_s(self) -> float: ...

    def message_s(self, source: int, dest: int) -> float: ...

    def process_start_s(self, rank: int) -> float: ...

    def process_resume_s(self, rank: int) -> float: ...

    def fetch_s(self, rank: int) -> float: ...

    def slowness(self, rank: int) -> float:
        """By what factor `rank`, the process, handles messages slower than others."""
        ...


class DelayRanges(msgspec.Struct, frozen=True, kw_only=True):
    """Ranges of uniformly random delays in seconds."""

    message_s: tuple[float, float] = (20e-6, 500e-6)
    process_start_s: tuple[float, float] = (0.5e-3, 3e-3)
    fetch_s: tuple[float, float] = (50e-6, 2e-3)


class RandomDelays:
    """Uniform delays from one seeded stream: wild orders of events, PEs without a cost."""

    handling_s = 0.0
    sending_s = 0.0
    local_s = 0.0

    def __init__(self, seed: int, ranges: DelayRanges | None = None) -> None:
        self._random = random.Random(seed)
        self._ranges = ranges or DelayRanges()

    def message_s(self, source: int, dest: int) -> float:
        return self._random.uniform(*self._ranges.message_s)

    def process_start_s(self, rank: int) -> float:
        return self._random.uniform(*self._ranges.process_start_s)

    def process_resume_s(self, rank: int) -> float:
        return 0.0

    def fetch_s(self, rank: int) -> float:
        return self._random.uniform(*self._ranges.fetch_s)

    def slowness(self, rank: int) -> float:
        return 1.0
