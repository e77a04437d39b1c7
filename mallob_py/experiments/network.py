"""Matchers in virtual time under a cost model: the load of each PE, and the time of each match.

Requests and idle PEs are inputs; a matched PE is busy from then on. A requester learns of its match at once
and at no cost, since this message is the same for all matchers.

Costs: a message takes `network_s` from its sender to its receiver, and keeps both busy for `handling_s`. A PE
handles one message at a time, so a PE in high demand is slow. Without handling time, the PEs work in rounds:
each PE receives all messages of a moment before it sends. If the network time is 1, too, a time is a number
of hops.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import msgspec

from mallob_py.protocol.config import Config
from mallob_py.protocol.effects import Outbox, Send
from mallob_py.protocol.messages import Adopt, AnyMessage, Request, TokenReturned, encode
from mallob_py.protocol.pe import matcher_of
from mallob_py.simulation.setting import Network


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """The costs of a message, in seconds (in hops for `HOPS`)."""

    network_s: float
    handling_s: float

    def __str__(self) -> str:
        network_us, handling_us = 1e6 * self.network_s, 1e6 * self.handling_s
        return f"a message takes {network_us:.0f} us and keeps its receiver busy for {handling_us:.0f} us"


#: network model that all simulations share (`simulation/setting.py`): a hop between two hosts
_MODEL = Network()
CALIBRATED = Costs(
    network_s=(_MODEL.other_host_us + _MODEL.jitter_us) * 1e-6,
    handling_s=(_MODEL.handling_us + _MODEL.sending_us) * 1e-6,
)
HOPS = Costs(network_s=1.0, handling_s=0.0)


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a set of requests; a message counts at its sender and at its receiver."""

    latencies_s: list[float]
    messages: int
    hottest_messages: int
    hottest_bytes: int


class MatcherNetwork:
    """`size` matchers, initially all busy and without requests."""

    def __init__(self, size: int, config: Config, costs: Costs) -> None:
        self.size = size
        self._costs = costs
        self._now = 0.0
        self._outs = [Outbox(rank, size) for rank in range(size)]
        self.matchers = [
            matcher_of(out, config, is_outdated=lambda request: False, on_outdated=self._fail)
            for out in self._outs
        ]
        #: arrivals, sorted by time, then by receiver, then in order of sending; an arrival without message is
        #: a tick
        self._arrivals: list[tuple[float, int, int, int, AnyMessage | None]] = []
        self._order = 0
        self._free_from = [0.0] * size
        self._ticks = [math.inf] * size
        self._messages = [0] * size
        self._bytes = [0] * size
        self._adopted: dict[int, float] = {}
        self._next_job = 0

    @staticmethod
    def _fail(request: Request) -> None:
        raise AssertionError(f"no request can be outdated here, but {request} is")

    def match(self, askers: Sequence[int], idle: Sequence[int]) -> Usage:
        """Let `askers` request a PE each (an asker named twice requests two) while `idle` turn idle."""
        assert len(askers) <= len(idle)
        self._messages = [0] * self.size
        self._bytes = [0] * self.size
        self._adopted = {}
        start = self._now
        for rank in idle:
            self.matchers[rank].offer_token(True)
        for rank in askers:
            self.matchers[rank].ask(_request(self._next_job, rank))
            self._next_job += 1
        for rank in sorted({*askers, *idle}):
            self._free_from[rank] = start
            self._send_off(rank)
        self._run()
        assert len(self._adopted) == len(askers), "a request has found no PE"
        return Usage(
            latencies_s=[moment - start for moment in self._adopted.values()],
            messages=sum(self._messages) // 2,
            hottest_messages=max(self._messages),
            hottest_bytes=max(self._bytes),
        )

    def _run(self) -> None:
        arrivals = self._arrivals
        while arrivals:
            when_s, dest, _, source, message = heapq.heappop(arrivals)
            self._now = when_s
            self._free_from[dest] = max(self._free_from[dest], when_s)
            if message is None:
                self._ticks[dest] = math.inf
            else:
                self._free_from[dest] += self._costs.handling_s
                self._take(source, dest, message)
            more_now = not self._costs.handling_s and arrivals and arrivals[0][:2] == (when_s, dest)
            if not more_now:
                self._send_off(dest)
        self._now = max(self._free_from)

    def _take(self, source: int, rank: int, message: AnyMessage) -> None:
        matcher = self.matchers[rank]
        match message:
            case Adopt(request):
                matcher.token_used()
                matcher.offer_token(False)
                self._adopted[request.job] = self._free_from[rank]
                self.matchers[request.parent].withdraw(request.job, request.index)
                if request.parent != rank:
                    self._send_off(request.parent)
            case TokenReturned():
                matcher.token_used()
                matcher.offer_token(True)
            case _:
                matcher.receive(source, message)  # type: ignore[arg-type]

    def _send_off(self, rank: int) -> None:
        """Let a PE handle its messages to itself, and send its due messages."""
        matcher, out = self.matchers[rank], self._outs[rank]
        now = max(self._now, self._free_from[rank])
        matcher.flush(now)
        while out.to_self:
            self._take(rank, rank, out.to_self.popleft())
            matcher.flush(now)
        for effect in out.effects:
            assert isinstance(effect, Send)
            self._send(rank, effect.dest, effect.message)
        out.effects.clear()
        deadline_s = matcher.next_deadline()
        if deadline_s < self._ticks[rank]:
            self._ticks[rank] = deadline_s
            self._push(deadline_s, rank, rank, None)

    def _send(self, source: int, dest: int, message: AnyMessage) -> None:
        size_bytes = len(encode(message))
        for rank in (source, dest):
            self._messages[rank] += 1
            self._bytes[rank] += size_bytes
        self._free_from[source] = max(self._now, self._free_from[source]) + self._costs.handling_s
        self._push(self._free_from[source] + self._costs.network_s, dest, source, message)

    def _push(self, when_s: float, dest: int, source: int, message: AnyMessage | None) -> None:
        self._order += 1
        heapq.heappush(self._arrivals, (when_s, dest, self._order, source, message))


def _request(job: int, rank: int) -> Request:
    """Return a request for a root, without the job's description."""
    return Request(
        job=job,
        subtree=0,
        position=0,
        count=1,
        base=0,
        epoch=0,
        path=(rank,),
        hops=0,
        asked_s=0.0,
        description=None,
    )
