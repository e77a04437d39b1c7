"""The protocol core: one PE as a pure state machine, and the parts it is made of.

Nothing here reads a clock, a file or a network, or starts a thread. The caller owns all of
that: it feeds stimuli with the present time, executes the effects it finds in
`PE.effects` after each call, in order, and delivers messages between any two PEs in the
order they were sent. The MPI runtime and the simulator are two such callers.

Read `pe.py` first, then `worker.py`, `job_tree.py`, `matching.py`, `balancing.py`.

Of errors there are two kinds. Ours are assertions; a peer's are checked whatever flags Python has.
"""

from __future__ import annotations


class ProtocolViolation(Exception):
    """An invariant of this PE does not hold, with what happened here before."""


class PeerViolation(ProtocolViolation):
    """A message that no correct PE sends, or not at this time. `source` is the PE that it came from."""

    source: int | None = None
