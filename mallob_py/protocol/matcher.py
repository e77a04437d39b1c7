"""What a PE needs of whatever finds idle PEs for its requests (P 3.2, 4.1): one interface, several ways.

    matching.py       prefix sums over requests and idle tokens: no bottleneck, bulk requests
    routing_tree.py   idle counts along a tree, down which a request finds its way
    random_walk.py    hops to random PEs, in front of one of the others

The contract. A request given to `ask` is wanted until it is withdrawn, or replaced by another
`ask` for the same worker. While wanted it ends in an `Adopt` at an idle PE, which its parent
hears of by an `Offer`, or goes back to its parent as `RequestFailed`. A request that is no
longer wanted may still end in either; its parent must be able to say no. An `Adopt` reaches a
PE only between the moment its token is granted and `token_used`.

Nothing leaves before `flush`: what is asked and taken back in one turn of a PE costs nothing.
"""

from __future__ import annotations

from typing import Protocol

from mallob_py.protocol.messages import AnyMatcherMessage, Request


class Matcher(Protocol):
    """One PE's part of a matcher."""

    @property
    def token_granted(self) -> bool:
        """This PE is promised to a request: an `Adopt` or the token itself is on its way back."""

    @property
    def has_news(self) -> bool:
        """Whether `flush` may have something to do, or to wait for."""

    # --- what the PE wants --------------------------------------------------------------

    def ask(self, request: Request) -> None:
        """Look for an idle PE, in place of an earlier request for the same worker."""

    def is_asking(self, job: int, subtree: int) -> bool:
        """Whether that request is still here, so that asking anew replaces it without a trace."""

    def withdraw(self, job: int, subtree: int) -> None:
        """It is not wanted any more, or has been answered."""

    def carry(self, request: Request) -> None:
        """A request has come to this PE, which is busy: it has to go on from here, or back."""

    def offer_token(self, idle: bool) -> None:
        """Say whether this PE is free for any request."""

    def token_used(self) -> None:
        """The granted token has come to something, or back."""

    def drop_outdated(self) -> None:
        """A new epoch is here: requests that wait here for nothing go back to their parents."""

    # --- messages and time --------------------------------------------------------------

    def receive(self, source: int, message: AnyMatcherMessage) -> None:
        """Take one message from another PE's part of the same matcher."""

    def flush(self, now: float) -> float:
        """Send what is due; returns `next_deadline`."""

    def next_deadline(self) -> float:
        """When `flush` is wanted next, as of the last one; `math.inf` if only a message can bring news."""

    # --- for checks ---------------------------------------------------------------------

    def is_root(self) -> bool:
        """Whether this PE's `supply` tells of the whole system."""

    def supply(self) -> tuple[int, int]:
        """Requests without a PE and idle PEs, as far as known here."""

    def is_at_rest(self) -> bool:
        """No request and no token of ours is under way."""
