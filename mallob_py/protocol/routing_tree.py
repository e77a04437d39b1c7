"""Matching by a tree of idle counts (P 4.1), as in the paper's system.

The PEs form a tree R, here the in-order tree over the ranks. Each PE knows how many PEs are idle in each of
its subtrees. A request that finds its PE busy goes down into a subtree with idle PEs, else up. A request that
finds no PE waits at the root of R.

PEs are reserved on the way: the sender of a request to a subtree subtracts one from the subtree's count,
and the receiver knows this. The parent in R is told only of other changes: at once together with a climbing
request, else by a separate message after a short delay.

Invariant, as for prefix sums: the count that a PE has advertised equals its parent's count of the subtree, up
to messages in flight. So a request that found no PE below has corrected the wrong count when it is back, and
does not go there again for the same reason. A count may be negative for a moment, when a request and a
correction cross.

A request is known by the PE that asks and a number. The root tells that PE when its request waits; if the PE
no longer wants the request, it tells the root. Otherwise, requests of rejected workers would wait there until
the next epoch. Nothing moves while no PE is idle.

Requests are single (`count` 1). All traffic that finds no partner nearby goes through the root of R, this
matcher's bottleneck (as P 4.1 says).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from mallob_py.protocol import PeerViolation, messages
from mallob_py.protocol.effects import Outbox
from mallob_py.protocol.rank_tree import place_of, root_of


class RoutingTreeMatcher:
    """One PE's part of the tree: its own idle token, the counts of its two subtrees, at the root a queue.

    `is_outdated(request)` tells whether a request that waits here must go back to its parent,
    `on_outdated(request)` sends it back.
    """

    #: always true, so that callers call `flush` each time
    has_news = True

    def __init__(
        self,
        out: Outbox,
        delay_s: float,
        is_outdated: Callable[[messages.Request], bool],
        on_outdated: Callable[[messages.Request], None],
    ) -> None:
        self._out = out
        self._place = place_of(out.rank, out.size)
        self._root = root_of(out.size)
        self._delay_s = delay_s
        self._is_outdated = is_outdated
        self._on_outdated = on_outdated
        self._is_idle = False
        #: whether a request has taken this PE's token: the PE's Adopt to itself is queued or parked
        self.token_granted = False
        self._left = 0
        self._right = 0
        self._advertised = 0
        self._may_send_from = -math.inf
        #: requests made since the last `flush`, not sent yet
        self._asks: dict[tuple[int, int], messages.Request] = {}
        #: (job, index) of a sent request of this PE -> the request's number
        self._numbers: dict[tuple[int, int], int] = {}
        #: the reverse: number of a sent request -> (job, index)
        self._wanted: dict[int, tuple[int, int]] = {}
        #: this PE's requests that wait at the root of the tree
        self._at_root: set[int] = set()
        self._next_number = 0
        #: at the root: requests without a PE, by (PE that asked, number), the oldest first
        self._waiting: dict[tuple[int, int], messages.Request] = {}

    # --- calls of the PE ----------------------------------------------------------------

    def ask(self, request: messages.Request) -> None:
        assert request.count == 1, "the routing tree supports only requests for one worker"
        self.withdraw(request.job, request.index)
        self._asks[request.job, request.index] = request

    def is_asking(self, job: int, subtree: int) -> bool:
        return (job, subtree) in self._asks

    def withdraw(self, job: int, subtree: int) -> None:
        self._asks.pop((job, subtree), None)
        number = self._numbers.pop((job, subtree), None)
        if number is None:
            return
        del self._wanted[number]
        if number in self._at_root:
            self._at_root.remove(number)
            self._out.send(self._root, messages.Withdrawn(number))

    def carry(self, request: messages.Request) -> None:
        """Return a request to its parent, which asks anew: the request's old number is used up."""
        self._on_outdated(request)

    def offer_token(self, idle: bool) -> None:
        self._is_idle = idle and not self.token_granted

    def token_used(self) -> None:
        self.token_granted = False

    def drop_outdated(self) -> None:
        outdated = [key for key, request in self._waiting.items() if self._is_outdated(request)]
        for key in outdated:
            self._on_outdated(self._waiting.pop(key))

    # --- messages -----------------------------------------------------------------------

    def receive(self, source: int, message: messages.AnyMatcherMessage) -> None:
        match message:
            case messages.IdleChange():
                self._count(source, message.change)
            case messages.Climb():
                self._count(source, message.change)
                self._route(message.number, message.request)
            case messages.Descend():
                self._advertised -= 1
                self._route(message.number, message.request)
            case messages.Waits():
                if message.number in self._wanted:
                    self._at_root.add(message.number)
                else:
                    self._out.send(source, messages.Withdrawn(message.number))
            case messages.Withdrawn():
                self._waiting.pop((source, message.number), None)
            case _:
                raise PeerViolation(f"no routing tree sends {type(message).__name__}")

    def _count(self, source: int, change: int) -> None:
        if source not in (self._place.left, self._place.right):
            raise PeerViolation(f"an idle count from a PE that is not a child of PE {self._out.rank}")
        if source == self._place.left:
            self._left += change
        else:
            self._right += change

    def _route(self, number: int, request: messages.Request) -> None:
        """Route a request to this PE if idle, else to the child with more idle PEs, else up (or keep it)."""
        if self._is_idle:
            self._is_idle = False
            self.token_granted = True
            self._out.send(self._out.rank, messages.Adopt(request))
        elif self._left > 0 and self._left >= self._right:
            self._left -= 1
            assert self._place.left is not None
            self._out.send(self._place.left, messages.Descend(number, request))
        elif self._right > 0:
            self._right -= 1
            assert self._place.right is not None
            self._out.send(self._place.right, messages.Descend(number, request))
        elif self._place.parent is not None:
            self._out.send(self._place.parent, messages.Climb(number, self._news(), request))
        elif self._is_outdated(request):
            self._on_outdated(request)
        else:
            self._waiting[request.parent, number] = request
            self._out.send(request.parent, messages.Waits(number))

    def _news(self) -> int:
        """Return the number that the parent must add to its count of this subtree, and note it as sent."""
        idle = self._idle_count()
        change, self._advertised = idle - self._advertised, idle
        return change

    def _idle_count(self) -> int:
        return self._left + self._is_idle + self._right

    def flush(self, now: float) -> float:
        """Send this PE's requests; tell the parent of changes or, at the root, serve waiting requests."""
        while self._asks:
            key = next(iter(self._asks))
            request = self._asks.pop(key)
            number = self._next_number
            self._next_number += 1
            self._numbers[key] = number
            self._wanted[number] = key
            self._route(number, request)
        if self._place.parent is None:
            while self._waiting and (self._is_idle or self._left > 0 or self._right > 0):
                key = next(iter(self._waiting))
                self._route(key[1], self._waiting.pop(key))
        elif self._idle_count() != self._advertised and now >= self._may_send_from:
            self._may_send_from = now + self._delay_s
            self._out.send(self._place.parent, messages.IdleChange(self._news()))
        return self.next_deadline()

    def next_deadline(self) -> float:
        if self._place.parent is None or self._idle_count() == self._advertised:
            return math.inf
        return self._may_send_from

    # --- methods for checks -------------------------------------------------------------

    def is_root(self) -> bool:
        return self._place.parent is None

    def supply(self) -> tuple[int, int]:
        return len(self._waiting), self._idle_count()

    def carried(self) -> tuple[messages.Request, ...]:
        return ()

    def is_at_rest(self) -> bool:
        """Tell whether no request waits here or was sent from here, and no adoption is under way."""
        ours = self._asks or self._numbers or self._wanted or self._at_root
        return not (ours or self._waiting or self.token_granted)
