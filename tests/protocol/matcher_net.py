"""Matchers of any kind without PEs; their messages move one at a time, in a random order."""

import random
from collections import Counter, deque
from typing import Any

import msgspec

from mallob_py.protocol.config import Config
from mallob_py.protocol.effects import Outbox, Send
from mallob_py.protocol.messages import Adopt, AnyMessage, Request, TokenReturned
from mallob_py.protocol.pe import matcher_of


def request_of(job: int, rank: int, **fields: Any) -> Request:
    """Return a request of rank `rank` for worker 1 of a job; `fields` replace the request's other fields."""
    request = Request(
        job=job,
        subtree=1,
        position=0,
        count=1,
        base=0,
        epoch=1,
        path=(rank,),
        hops=0,
        asked_s=0.0,
        description=None,
    )
    return msgspec.structs.replace(request, **fields)


class MatcherNet:
    """`size` matchers and their network, which keeps the order only of messages between the same two ranks.

    A rank's messages to itself travel, too, unlike in a PE. Jobs in `outdated` are not wanted in the present
    epoch; `sent_back` has the requests that were returned for this reason.
    """

    def __init__(self, size: int, config: Config, seed: int = 0) -> None:
        self.outs = [Outbox(rank, size) for rank in range(size)]
        self.outdated: set[int] = set()
        self.sent_back: list[Request] = []
        self.adopted: dict[int, Request] = {}
        self.seen: list[AnyMessage] = []
        #: number of messages between different ranks, by kind
        self.between: Counter[type] = Counter()
        self.late: type[AnyMessage] | None = None
        self._random = random.Random(seed)
        self._channels: dict[tuple[int, int], deque[AnyMessage]] = {}
        self.matchers = [
            matcher_of(
                out,
                config,
                is_outdated=lambda request: request.job in self.outdated,
                on_outdated=self.sent_back.append,
            )
            for out in self.outs
        ]
        self.root = next(matcher for matcher in self.matchers if matcher.is_root())

    def idle(self, *ranks: int) -> None:
        for rank in ranks:
            self.matchers[rank].offer_token(True)

    def ask(self, job: int, rank: int, **fields: Any) -> None:
        self.matchers[rank].ask(request_of(job, rank, **fields))

    def new_epoch(self) -> None:
        for matcher in self.matchers:
            matcher.drop_outdated()

    def run(self, now: float = 0.0, moves_max: int = 100_000) -> int:
        """Deliver messages until only `late` messages are left; return the number of delivered messages."""
        for moved in range(moves_max):
            self._flush(now)
            ready = [
                pair
                for pair, queue in self._channels.items()
                if queue and not (self.late and isinstance(queue[0], self.late))
            ]
            if not ready:
                return moved
            pair = self._random.choice(ready)
            self._take(*pair, self._channels[pair].popleft())
        return moves_max

    def count(self, kind: type[AnyMessage]) -> int:
        return sum(isinstance(message, kind) for message in self.seen)

    def at_rest(self) -> bool:
        return all(matcher.is_at_rest() and not matcher.carried() for matcher in self.matchers)

    def _flush(self, now: float) -> None:
        for rank, (matcher, out) in enumerate(zip(self.matchers, self.outs, strict=True)):
            matcher.flush(now)
            self._channels.setdefault((rank, rank), deque()).extend(out.to_self)
            out.to_self.clear()
            for effect in out.effects:
                assert isinstance(effect, Send)
                self._channels.setdefault((rank, effect.dest), deque()).append(effect.message)
            out.effects.clear()

    def _take(self, source: int, dest: int, message: AnyMessage) -> None:
        self.seen.append(message)
        self.between[type(message)] += source != dest
        matcher = self.matchers[dest]
        match message:
            case Adopt(request):
                assert dest not in self.adopted, "a busy PE was matched"
                assert matcher.token_granted
                matcher.token_used()
                matcher.offer_token(False)
                self.adopted[dest] = request
                self.matchers[request.parent].withdraw(request.job, request.index)
            case TokenReturned():
                matcher.token_used()
                matcher.offer_token(True)
            case _:
                matcher.receive(source, message)  # type: ignore[arg-type]
