"""Two kinds of errors: ours are assertions, the peer's are checked whatever flags Python has."""

from __future__ import annotations


class ProtocolViolation(Exception):
    """An invariant of this PE does not hold, with what happened here before."""


class PeerViolation(ProtocolViolation):
    """A message that no correct PE sends, or not at this time. `source` is the PE that it came from."""

    source: int | None = None
