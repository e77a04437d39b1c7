"""Matching requests for workers with idle PEs: a sparse prefix sum over the rank tree (P 3.2).

Each PE contributes the number of its unmatched requests and its idle token (0 or 1). Only changes climb the
in-order tree, after a short delay. The tree's root hands out matching numbers for all pairs that it knows of.
On the way down every node splits the numbers among its left subtree, itself and its right subtree; this is
the prefix sum. Request number i and token number i then meet at rank i mod m, which sends the request on to
the idle PE. For many pairs, the root skips numbers so that most of the pairs probably meet at the idle PE
itself, which saves two messages per pair.

Unmatched requests and tokens stay where they are; the nodes above know only how many there are. So a request
that is no longer wanted, or a PE that has found work, takes its contribution back with another change. If a
matching number is already on its way down, its receiver declares the number void at the meeting place, and
the other half of the pair takes part again (race 6 of the design).

A bulk request stands for a whole subtree of workers (P Fig. 3, right): it takes `count` numbers at once, and
the meeting places spread it, each telling its two successors where the parent of their worker will be.

Invariant, at every node: the counts that it has advertised equal its parent's ledger for it, up to messages
in flight. A ledger may be negative for a moment, when a grant and a withdrawal cross.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from mallob_py.protocol import PeerViolation, messages
from mallob_py.protocol.effects import Outbox
from mallob_py.protocol.rank_tree import place_of
from mallob_py.trees import children_of, level_below

#: number of pairs from which on the root skips numbers to save messages
_MANY_PAIRS = 8


class Matcher(Protocol):
    """The interface of all ways to find idle PEs for a PE's requests (P 3.2, 4.1).

        matching.py       prefix sums over requests and idle tokens: no bottleneck, bulk requests
        routing_tree.py   idle counts along a tree, down which a request finds its way
        random_walk.py    hops to random PEs, before one of the others takes over

    The contract. A request given to `ask` is wanted until it is withdrawn, or replaced by another `ask` for
    the same worker. A wanted request ends in an `Adopt` at an idle PE, which sends an `Offer` to the parent,
    or returns to its parent as `RequestFailed`. A request that is no longer wanted may still end in either
    way; so its parent must be able to refuse an offer. An `Adopt` reaches a PE only between the grant of its
    token and `token_used`.

    Nothing is sent before `flush`: asking and withdrawing between two calls of `flush` costs nothing.
    """

    @property
    def token_granted(self) -> bool:
        """Tell whether this PE is promised to a request: an `Adopt` or its token is on the way here."""

    @property
    def has_news(self) -> bool:
        """Whether `flush` may have work now or later."""

    # --- calls of the PE ----------------------------------------------------------------

    def ask(self, request: messages.Request) -> None:
        """Look for an idle PE for this request, which replaces an earlier one for the same worker."""

    def is_asking(self, job: int, subtree: int) -> bool:
        """Tell whether the request is still here, so that asking anew replaces it without any message."""

    def withdraw(self, job: int, subtree: int) -> None:
        """Withdraw a request that is not wanted any more, or has been answered."""

    def carry(self, request: messages.Request) -> None:
        """Pass on a request that has come to this busy PE, or send it back to its parent."""

    def offer_token(self, idle: bool) -> None:
        """Say whether this PE is free for any request."""

    def token_used(self) -> None:
        """Record that the granted token was used, or returned."""

    def drop_outdated(self) -> None:
        """Return each request that a new epoch has made void to the PE that sent it."""

    # --- messages and time --------------------------------------------------------------

    def receive(self, source: int, message: messages.AnyMatcherMessage) -> None:
        """Take in a message from another PE's part of the same matcher."""

    def flush(self, now: float) -> float:
        """Send what is due; return `next_deadline`."""

    def next_deadline(self) -> float:
        """Return when `flush` must be called next, as of its last call; `math.inf`: only after a message."""

    # --- methods for checks -------------------------------------------------------------

    def is_root(self) -> bool:
        """Tell whether this PE's `supply` covers the whole system."""

    def supply(self) -> tuple[int, int]:
        """Return (number of requests without a PE, number of idle PEs), as far as known here."""

    def carried(self) -> Sequence[messages.Request]:
        """Return other PEs' requests that wait here for the next epoch."""

    def is_at_rest(self) -> bool:
        """Tell whether no request and no token of this PE is under way."""


class _Ledger:
    """Counts of the unmatched requests and of the idle tokens in one subtree, as far as known here."""

    __slots__ = ("requests", "tokens")

    def __init__(self) -> None:
        self.requests = 0
        self.tokens = 0


class _Half:
    """The first half of a pair at its meeting place: a request, a token, or the notice that one is void."""

    __slots__ = ("request", "token_rank")

    def __init__(self, request: messages.Request | None, token_rank: int | None) -> None:
        self.request = request
        self.token_rank = token_rank


def _share(amount: int, *available: int) -> list[int]:
    """Split `amount` into shares, in order, each share at most as large as its `available`."""
    shares = []
    for limit in available:  # comparisons are quicker than `min` and `max`
        share = 0 if limit < 0 else limit if limit < amount else amount
        shares.append(share)
        amount -= share
    return shares


class PrefixSumMatcher:
    """One PE's part of the matching: leaf, inner node of the rank tree, and meeting place.

    The PE calls `ask`, `withdraw`, `carry` and `offer_token`; matches arrive as `Adopt` and `TokenReturned`
    messages. `is_outdated(request)` tells whether a request carried here must go back to its parent,
    `on_outdated(request)` sends it back.
    """

    def __init__(
        self,
        out: Outbox,
        delay_s: float,
        is_outdated: Callable[[messages.Request], bool],
        on_outdated: Callable[[messages.Request], None],
    ) -> None:
        self._out = out
        self._place = place_of(out.rank, out.size)
        self._delay_s = delay_s
        self._is_outdated = is_outdated
        self._on_outdated = on_outdated
        self._asks: dict[tuple[int, int], messages.Request] = {}
        self._carried: list[messages.Request] = []
        self._own_requests = 0
        self._token_offered = False
        #: whether this PE's token has a matching number: an Adopt or a TokenReturned is on its way here
        self.token_granted = False
        self._advertised = _Ledger()
        self._left = _Ledger()
        self._right = _Ledger()
        self._halves: dict[int, _Half] = {}
        self._next_number = 0
        self._may_send_from = -math.inf
        #: whether there may be changes that are unknown to the parent (at the root: to the matching)
        self.has_news = True

    # --- calls of the PE ----------------------------------------------------------------

    def ask(self, request: messages.Request) -> None:
        """Ask for the workers of a request, which replaces an earlier unmatched request for them."""
        assert request.position == 0
        assert request.count >= 1
        key = (request.job, request.subtree)
        if (known := self._asks.get(key)) is not None:
            self._own_requests -= known.count
        self._asks[key] = request
        self._own_requests += request.count
        self.has_news = True

    def is_asking(self, job: int, subtree: int) -> bool:
        """Tell whether that request is still unmatched here."""
        return (job, subtree) in self._asks

    def withdraw(self, job: int, subtree: int) -> None:
        """Withdraw an unmatched request; no effect on a matched one."""
        if (request := self._asks.pop((job, subtree), None)) is not None:
            self._own_requests -= request.count
            self.has_news = True

    def carry(self, request: messages.Request) -> None:
        """Let a request that found no idle PE take part again from here, for one worker."""
        if self._is_outdated(request):
            self._on_outdated(request)
            return
        self._carried.append(
            msgspec.structs.replace(
                request, subtree=request.index, position=0, count=1, hops=request.hops + 1
            )
        )
        self._own_requests += 1
        self.has_news = True

    def offer_token(self, idle: bool) -> None:
        """Say whether this PE is free for any request."""
        offered = idle and not self.token_granted
        if offered != self._token_offered:
            self._token_offered = offered
            self.has_news = True

    def token_used(self) -> None:
        """Record that this PE's granted token was used, or returned."""
        self.token_granted = False

    def drop_outdated(self) -> None:
        """Send carried requests that a new epoch makes void back to their parents."""
        if not self._carried:
            return
        kept = []
        for request in self._carried:
            if self._is_outdated(request):
                self._own_requests -= 1
                self.has_news = True
                self._on_outdated(request)
            else:
                kept.append(request)
        self._carried = kept

    def receive(self, source: int, message: messages.AnyMatcherMessage) -> None:
        receive = _ON_MESSAGE.get(type(message))
        if receive is None:
            raise PeerViolation(f"no prefix sum sends {type(message).__name__}")
        receive(self, source, message)

    # --- the prefix sum -----------------------------------------------------------------

    def receive_supply(self, source: int, message: messages.Supply) -> None:
        if source not in (self._place.left, self._place.right):
            raise PeerViolation(f"a supply from a PE that is not a child of PE {self._out.rank}")
        ledger = self._left if source == self._place.left else self._right
        ledger.requests += message.requests
        ledger.tokens += message.tokens
        self.has_news = True

    def flush(self, now: float) -> float:
        """Send changes to the parent, unless the last send is too recent; at the root: match."""
        parent = self._place.parent
        if self.has_news and parent is not None:
            self._tell_parent(parent, now)
        elif self.has_news:
            self.has_news = False
            self._match()
        return self.next_deadline()

    def _tell_parent(self, parent: int, now: float) -> None:
        requests, tokens = self.supply()
        known = self._advertised
        if requests == known.requests and tokens == known.tokens:
            self.has_news = False
        elif now >= self._may_send_from:
            self.has_news = False
            self._may_send_from = now + self._delay_s
            self._out.send(parent, messages.Supply(requests - known.requests, tokens - known.tokens))
            known.requests, known.tokens = requests, tokens

    def next_deadline(self) -> float:
        """Return when delayed news will be sent."""
        return self._may_send_from if self.has_news else math.inf

    def _match(self) -> None:
        requests = max(0, self._left.requests) + self._own_requests + max(0, self._right.requests)
        tokens = max(0, self._left.tokens) + self._token_offered + max(0, self._right.tokens)
        pairs = min(requests, tokens)
        if pairs:
            first = self._next_number
            if pairs >= _MANY_PAIRS:
                first += (self._likely_taker() - first) % self._out.size
            self._next_number = first + pairs
            self._split(messages.Grant(first, pairs, first, pairs))

    def _likely_taker(self) -> int:
        """Return the rank of the first idle PE if all idle PEs are neighbours, as in a quiet system."""
        if self._token_offered:
            return self._out.rank - max(0, self._left.tokens)
        return self._out.size - max(0, self._right.tokens)

    def receive_grant(self, message: messages.Grant) -> None:
        self._advertised.requests -= message.requests
        self._advertised.tokens -= message.tokens
        self.has_news = True
        self._split(message)

    def _split(self, grant: messages.Grant) -> None:
        """Split matching numbers among the left subtree, this PE and the right subtree."""
        requests = _share(grant.requests, self._left.requests, self._own_requests, self._right.requests)
        own = int(self._token_offered)
        # If the root is busy, the right subtree's numbers precede the left one's: ranks count modulo m.
        if not own and self._place.parent is None and grant.tokens >= _MANY_PAIRS:
            right, left = _share(grant.tokens, self._right.tokens, self._left.tokens)
            right_token = grant.first_token
            left_token = own_token = right_token + right
        else:
            left, own, right = _share(grant.tokens, self._left.tokens, own, self._right.tokens)
            left_token = grant.first_token
            own_token = left_token + left
            right_token = own_token + own
        request = grant.first_request
        self._grant(self._place.left, self._left, request, requests[0], left_token, left)
        own_request = request + requests[0]
        request = own_request + requests[1]
        self._grant(self._place.right, self._right, request, requests[2], right_token, right)
        for number in range(request + requests[2], grant.first_request + grant.requests):
            self._out.send(number % self._out.size, messages.VoidRequest(number))
        for number in range(grant.first_token + left + own + right, grant.first_token + grant.tokens):
            self._out.send(number % self._out.size, messages.VoidToken(number))
        if own:
            self._token_offered = False
            self.token_granted = True
            self._out.send(own_token % self._out.size, messages.MeetToken(own_token))
        if requests[1]:
            self._launch(own_request, requests[1])

    def _grant(
        self, child: int | None, ledger: _Ledger, request: int, requests: int, token: int, tokens: int
    ) -> None:
        if requests or tokens:
            assert child is not None
            ledger.requests -= requests
            ledger.tokens -= tokens
            self._out.send(child, messages.Grant(request, requests, token, tokens))

    def _launch(self, number: int, amount: int) -> None:
        """Send this PE's requests to their meeting places: first carried requests, then others as asked.

        If a bulk request gets fewer numbers than it asked for, the remainder is withdrawn: the workers found
        will ask for the workers below them.
        """
        while amount:
            request = self._carried.pop(0) if self._carried else self._asks.pop(next(iter(self._asks)))
            self._own_requests -= request.count
            count = min(amount, request.count)
            launched = msgspec.structs.replace(request, count=count, base=number)
            self._out.send(number % self._out.size, messages.MeetRequest(number, launched))
            number += count
            amount -= count

    # --- the meeting place --------------------------------------------------------------

    def _meet(self, number: int, half: _Half) -> None:
        other = self._halves.pop(number, None)
        if other is None:
            self._halves[number] = half
            return
        request = half.request or other.request
        token_rank = half.token_rank if half.token_rank is not None else other.token_rank
        if request is not None and token_rank is not None:
            self._out.send(token_rank, messages.Adopt(request))
            path = (*request.path, token_rank)
            for position in self._successors(request):
                successor = msgspec.structs.replace(request, position=position, path=path)
                self._pass_on(messages.MeetRequest(request.base + position, successor))
        elif request is not None:
            self.carry(request)
            for position in self._successors(request):
                self._void_from(request, position)
        elif token_rank is not None:
            self._out.send(token_rank, messages.TokenReturned())

    def _successors(self, request: messages.Request) -> range:
        children = children_of(request.position)
        return range(children.start, min(children.stop, request.count))

    def _pass_on(self, message: messages.MeetRequest | messages.VoidRequest) -> None:
        self._out.send(message.number % self._out.size, message)

    def _void_from(self, request: messages.Request, position: int) -> None:
        """Declare void the numbers of all workers below a request that takes part again for one worker."""
        first, width = position, 1
        while first < request.count:
            for below in range(first, min(first + width, request.count)):
                self._pass_on(messages.VoidRequest(request.base + below))
            first, width = level_below(first, width)

    # --- methods for checks -------------------------------------------------------------

    def is_root(self) -> bool:
        return self._place.parent is None

    def supply(self) -> tuple[int, int]:
        """Return (unmatched requests, idle tokens): their counts in this subtree, as far as known here."""
        return (
            self._left.requests + self._own_requests + self._right.requests,
            self._left.tokens + self._token_offered + self._right.tokens,
        )

    def carried(self) -> Sequence[messages.Request]:
        return self._carried

    def is_at_rest(self) -> bool:
        """Tell whether no half of a pair waits here, and no token of this PE is under way."""
        return not self._halves and not self.token_granted


#: method for each kind of message: (matcher, source, message)
_ON_MESSAGE: dict[type, Callable[[PrefixSumMatcher, int, Any], None]] = {
    messages.Supply: PrefixSumMatcher.receive_supply,
    messages.Grant: lambda matcher, source, grant: matcher.receive_grant(grant),
    messages.MeetRequest: lambda matcher, source, it: matcher._meet(it.number, _Half(it.request, None)),
    messages.MeetToken: lambda matcher, source, it: matcher._meet(it.number, _Half(None, source)),
    **dict.fromkeys(
        (messages.VoidRequest, messages.VoidToken),
        lambda matcher, source, it: matcher._meet(it.number, _Half(None, None)),
    ),
}
