"""Delays in a simulated cluster, all drawn from one random stream or each from its own hash.

`RandomDelays` draw one number after the other: simple, and fit for scripts. With `HashedDelays` the n-th
message between two ranks takes a time that follows from the seed, the two ranks and n alone. So a plan with a
part left out keeps all other delays, which makes shrinking a failure possible (`shrinking.py`).

`NetworkModel` is for large simulations: hosts, latencies with jitter, costs per message.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection
from enum import Enum
from typing import NamedTuple, Protocol

import msgspec
import numpy as np

from mallob_py.protocol.placement import Placement
from mallob_py.protocol.splitmix import splitmix64
from mallob_py.simulation.setting import Setting

_DRAWN_AT_ONCE = 1 << 16


class Delays(Protocol):
    """The seconds that each message, process start and fetch of a description takes.

    `handling_s`: time for which a rank's event loop is busy with one message (or tick); `sending_s`: further
    time for each message sent. A message between PEs of one rank does not leave the rank: its loop is busy
    with the message for `local_s` and both other times.
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
        """Return the factor by which process `rank` handles messages more slowly than others."""
        ...


class InfinitelyFast:
    """The common part of delays for tests that concern the order of events, but not speed."""

    handling_s = 0.0
    sending_s = 0.0
    local_s = 0.0

    def process_resume_s(self, rank: int) -> float:
        return 0.0

    def slowness(self, rank: int) -> float:
        return 1.0


class DelayRanges(msgspec.Struct, frozen=True, kw_only=True):
    """The shortest and the longest delay of each kind, in seconds.

    With `skew` 1 all delays between these two are equally likely; with a larger `skew` most delays are short.
    """

    message_s: tuple[float, float] = (20e-6, 500e-6)
    process_start_s: tuple[float, float] = (0.5e-3, 3e-3)
    fetch_s: tuple[float, float] = (50e-6, 2e-3)
    skew: float = 1.0


class RandomDelays(InfinitelyFast):
    """Uniformly random delays from one stream."""

    def __init__(
        self,
        seed: int = 0,
        *,
        message_s: tuple[float, float] = DelayRanges().message_s,
        process_start_s: tuple[float, float] = DelayRanges().process_start_s,
        fetch_s: tuple[float, float] = DelayRanges().fetch_s,
    ) -> None:
        self._random = random.Random(seed)
        self._message_s = message_s
        self._process_start_s = process_start_s
        self._fetch_s = fetch_s

    def message_s(self, source: int, dest: int) -> float:
        return self._random.uniform(*self._message_s)

    def process_start_s(self, rank: int) -> float:
        return self._random.uniform(*self._process_start_s)

    def fetch_s(self, rank: int) -> float:
        return self._random.uniform(*self._fetch_s)


class What(Enum):
    """The kinds of delayed events."""

    MESSAGE = "message"
    START = "start"
    FETCH = "fetch"


class Delayed(NamedTuple):
    """Delayed event `number` of kind `what` between two ranks (a start or a fetch: `source` is `dest`)."""

    what: What
    source: int
    dest: int
    number: int


class _Stream:
    """The delays of one kind between two ranks: a common hash, and the number of the next delay."""

    __slots__ = ("number", "state")

    def __init__(self, state: int) -> None:
        self.state = state
        self.number = 0


class HashedDelays(InfinitelyFast):
    """Delays that follow from the seed and from the delayed event.

    If `special` is given, all events except these take the shortest time.
    """

    def __init__(self, seed: int, ranges: DelayRanges, special: Collection[Delayed] | None = None) -> None:
        self._seed = seed
        self._special = None if special is None else frozenset(special)
        self._skew = ranges.skew
        self._ranges = {
            What.MESSAGE: (1, ranges.message_s),
            What.START: (2, ranges.process_start_s),
            What.FETCH: (3, ranges.fetch_s),
        }
        self._message_code, (self._message_s, longest_s) = self._ranges[What.MESSAGE]
        self._message_range_s = longest_s - self._message_s
        #: (code of a kind, source, destination) -> stream of delays
        self._streams: dict[tuple[int, int, int], _Stream] = {}

    def message_s(self, source: int, dest: int) -> float:
        if self._special is not None:
            return self._next(What.MESSAGE, source, dest)
        # This is the code of `_next`, written out because it runs for each message.
        key = self._message_code, source, dest
        stream = self._streams.get(key)
        if stream is None:
            stream = self._begin(key)
        share = splitmix64(stream.state + stream.number) / 2**64
        stream.number += 1
        return self._message_s + self._message_range_s * math.pow(share, self._skew)

    def process_start_s(self, rank: int) -> float:
        return self._next(What.START, rank, rank)

    def fetch_s(self, rank: int) -> float:
        return self._next(What.FETCH, rank, rank)

    def _next(self, what: What, source: int, dest: int) -> float:
        key = self._ranges[what][0], source, dest
        stream = self._streams.get(key) or self._begin(key)
        stream.number += 1
        return self.delay_s(what, source, dest, stream.number - 1)

    def _begin(self, key: tuple[int, int, int]) -> _Stream:
        stream = self._streams[key] = _Stream(mixed(self._seed, *key))
        return stream

    def delay_s(self, what: What, source: int, dest: int, number: int) -> float:
        """Return the delay of an event, which need not have happened yet."""
        code, (shortest_s, longest_s) = self._ranges[what]
        if self._special is not None and (what, source, dest, number) not in self._special:
            return shortest_s
        share = mixed(self._seed, code, source, dest, number) / 2**64
        return shortest_s + (longest_s - shortest_s) * math.pow(share, self._skew)

    def all_so_far(self) -> list[Delayed]:
        """Return all events delayed so far."""
        kinds = {code: what for what, (code, _) in self._ranges.items()}
        return [
            Delayed(kinds[code], source, dest, number)
            for (code, source, dest), stream in self._streams.items()
            for number in range(stream.number)
        ]


def mixed(*numbers: int) -> int:
    """Return 64 bits that look random and follow from these numbers in their order."""
    state = 0
    for number in numbers:
        state = splitmix64(state + number)
    return state


class NetworkModel:
    """`Delays` from a setting. Random numbers are drawn in bulk and used one after another.

    If a rank is slow, all its PEs are slow.
    """

    def __init__(self, setting: Setting) -> None:
        network = setting.network
        self._setting = setting
        self._pes_per_host = setting.pes_per_host
        self._same_host_s = network.same_host_us * 1e-6
        self._other_host_s = network.other_host_us * 1e-6
        self.local_s = network.same_rank_us * 1e-6
        self.handling_s = network.handling_us * 1e-6
        self.sending_s = network.sending_us * 1e-6
        self._random = np.random.default_rng((setting.seed, 1))
        self._loop_of = Placement(setting.rank_capacities() or [1] * setting.pes).rank_of
        slow = self._random.random(setting.pes) < setting.faults.slow_pes
        self._slowness: list[float] = np.where(slow, setting.faults.slow_factor, 1.0).tolist()
        self._jitters_s: list[float] = []

    def message_s(self, source: int, dest: int) -> float:
        if not self._jitters_s:
            self._jitters_s = self._draw_jitters()
        per_host = self._pes_per_host
        base_s = self._same_host_s if source // per_host == dest // per_host else self._other_host_s
        return base_s + self._jitters_s.pop()

    def _draw_jitters(self) -> list[float]:
        faults = self._setting.faults
        jitters_s = self._random.exponential(self._setting.network.jitter_us * 1e-6, _DRAWN_AT_ONCE)
        if faults.delayed_messages:
            delayed = self._random.random(_DRAWN_AT_ONCE) < faults.delayed_messages
            jitters_s += delayed * (faults.delay_ms * 1e-3)
        drawn: list[float] = jitters_s.tolist()
        return drawn

    def process_start_s(self, rank: int) -> float:
        return self._around(self._setting.processes.start_ms) * self._slowness[self._loop_of[rank]]

    def process_resume_s(self, rank: int) -> float:
        return self._around(self._setting.processes.resume_ms) * self._slowness[self._loop_of[rank]]

    def fetch_s(self, rank: int) -> float:
        return self._around(self._setting.processes.fetch_ms) * self._slowness[self._loop_of[rank]]

    def slowness(self, rank: int) -> float:
        return self._slowness[rank]

    def _around(self, milliseconds: float) -> float:
        return milliseconds * 1e-3 * float(self._random.uniform(0.5, 1.5))
