"""Matching by random walks (P 3.2, the basic approach), in front of any other matcher.

A request hops from PE to PE, each time to a random one, until it hits an idle PE. If a share eps of the PEs
is idle, that takes 1/eps hops on average: fast while many are idle, slow in a busy system, and for some
requests always much slower.

After a limited number of hops the request goes home: to its parent, which hands it to the matcher behind, if
the worker is still wanted. A request without limit also goes home from time to time, and sets off again; so
an unwanted request does not walk for ever, even if no epoch outdates it. An outdated request returns to its
parent from any PE. A request that its parent still knows is wanted, so it may set off again.

Each hop costs a message while no PE is idle; that is inherent. But a hop between PEs of one rank takes no
time, and a rank handles such messages first. So a request begins its next walk only after a pause: otherwise
a rank that hosts all PEs would pass it round for ever, and never hear that one of them is free.

Each request is for one worker (`count` 1). Each PE draws its own random numbers, from its number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from mallob_py.protocol.effects import Outbox
from mallob_py.protocol.matching import Matcher
from mallob_py.protocol.messages import Adopt, AnyMatcherMessage, Request, Walk, WalkEnded
from mallob_py.protocol.splitmix import STEP, WORD, splitmix64

#: number of hops that stands for "without limit"
NO_LIMIT = -1
#: least number of hops after which a walk without limit goes home; with more PEs: the number of PEs
_HOPS_AWAY_MIN = 32
#: shortest time between two walks of a request: a walk of 32 hops takes 0.3 ms within one rank, so walks use
#: at most a tenth of a core; between ranks, a walk takes about this time anyway
WALK_PERIOD_S = 0.003


class _Ranks:
    """Pseudo-random ranks other than the PE's own rank."""

    __slots__ = ("_rank", "_size", "_state")

    def __init__(self, rank: int, size: int) -> None:
        self._rank = rank
        self._size = size
        self._state = rank

    def draw(self) -> int:
        other = splitmix64(self._state) % (self._size - 1)
        self._state = (self._state + STEP) & WORD
        return other if other < self._rank else other + 1


class _Walked(NamedTuple):
    """A request on a walk or back from a walk, with the time when its next walk may begin."""

    request: Request
    again_s: float


class RandomWalk:
    """One PE's part of the matching: the walks that it has started, and whether a walk may end here."""

    #: always true, so that callers call `flush` each time
    has_news = True

    def __init__(
        self,
        out: Outbox,
        hops: int,
        behind: Matcher,
        is_outdated: Callable[[Request], bool],
        on_outdated: Callable[[Request], None],
    ) -> None:
        assert out.size > 1, "random walks need at least two PEs"
        assert hops > 0 or hops == NO_LIMIT
        self._out = out
        self._is_endless = hops == NO_LIMIT
        self._hops = max(_HOPS_AWAY_MIN, out.size) if self._is_endless else hops
        self._behind = behind
        self._is_outdated = is_outdated
        self._on_outdated = on_outdated
        self._ranks = _Ranks(out.rank, out.size)
        self._is_idle = False
        #: whether a walk has ended here: the PE's Adopt to itself is queued or parked
        self._is_taken = False
        #: requests made since the last `flush`, not sent yet
        self._asks: dict[tuple[int, int], Request] = {}
        #: this PE's requests on a walk
        self._away: dict[tuple[int, int], _Walked] = {}
        #: this PE's requests that are back from a walk and will begin another one
        self._resting: dict[tuple[int, int], _Walked] = {}

    @property
    def token_granted(self) -> bool:
        return self._is_taken or self._behind.token_granted

    # --- calls of the PE ----------------------------------------------------------------

    def ask(self, request: Request) -> None:
        assert request.count == 1, "random walks support only requests for one worker"
        key = request.job, request.index
        if self._behind.is_asking(*key):
            self._behind.ask(request)
            return
        self.withdraw(*key)
        self._asks[key] = request

    def is_asking(self, job: int, subtree: int) -> bool:
        key = job, subtree
        return key in self._asks or key in self._resting or self._behind.is_asking(job, subtree)

    def withdraw(self, job: int, subtree: int) -> None:
        self._asks.pop((job, subtree), None)
        self._away.pop((job, subtree), None)
        self._resting.pop((job, subtree), None)
        self._behind.withdraw(job, subtree)

    def carry(self, request: Request) -> None:
        self._behind.carry(request)

    def offer_token(self, idle: bool) -> None:
        self._is_idle = idle and not self.token_granted
        self._behind.offer_token(self._is_idle)

    def token_used(self) -> None:
        self._is_taken = False
        self._behind.token_used()

    def drop_outdated(self) -> None:
        """Do nothing: a walk hears of the new epoch at its next hop."""
        self._behind.drop_outdated()

    # --- messages -----------------------------------------------------------------------

    def receive(self, source: int, message: AnyMatcherMessage) -> None:
        match message:
            case Walk():
                self._visit(message)
            case WalkEnded():
                self._come_home(message.request)
            case _:
                self._behind.receive(source, message)

    def _visit(self, walk: Walk) -> None:
        request = walk.request
        if self._is_idle and not self.token_granted:
            self._is_idle = False
            self._is_taken = True
            self._behind.offer_token(False)
            self._out.send(self._out.rank, Adopt(request))
        elif self._is_outdated(request):
            self._on_outdated(request)
        elif walk.hops_left == 0:
            self._out.send(request.parent, WalkEnded(request))
        else:
            self._out.send(self._ranks.draw(), Walk(walk.hops_left - 1, request))

    def _come_home(self, request: Request) -> None:
        """Take in a returned request; drop it if it was withdrawn or replaced meanwhile."""
        key = request.job, request.index
        walked = self._away.get(key)
        if walked is None:
            return
        known = walked.request
        if (known.epoch, known.asked_s) != (request.epoch, request.asked_s):
            return
        del self._away[key]
        if self._is_endless:
            self._resting[key] = walked
        else:
            self._behind.ask(msgspec.structs.replace(request, hops=request.hops + 1))

    def flush(self, now: float) -> float:
        if self._resting:
            for key in [key for key, walked in self._resting.items() if walked.again_s <= now]:
                self._asks[key] = self._resting.pop(key).request
        if self._asks:
            for key, request in self._asks.items():
                self._away[key] = _Walked(request, now + WALK_PERIOD_S)
                self._out.send(self._ranks.draw(), Walk(self._hops - 1, request))
            self._asks.clear()
        return self._deadline_s(self._behind.flush(now))

    def next_deadline(self) -> float:
        return self._deadline_s(self._behind.next_deadline())

    def _deadline_s(self, behind_s: float) -> float:
        if not self._resting:  # usually, no request waits for its next walk
            return behind_s
        return min(behind_s, *(walked.again_s for walked in self._resting.values()))

    # --- methods for checks -------------------------------------------------------------

    def is_root(self) -> bool:
        return self._behind.is_root()

    def supply(self) -> tuple[int, int]:
        return self._behind.supply()

    def carried(self) -> Sequence[Request]:
        return self._behind.carried()

    def is_at_rest(self) -> bool:
        """Tell whether no request of this PE is away or about to go, and no adoption is under way."""
        ours = self._asks or self._away or self._resting
        return not (ours or self._is_taken) and self._behind.is_at_rest()
