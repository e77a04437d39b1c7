"""The protocol core: one PE as a pure state machine, and the parts it is made of.

Nothing here reads a clock, a file or a network, or starts a thread. That is left to the caller, the MPI
runtime or the simulator: it feeds stimuli with the present time, executes the effects in `PE.effects` after
each call, in order, and delivers messages between any two PEs in the order sent.

Read `pe.py` first, then `worker.py`, `job_tree.py`, `matching.py`, `balancing.py`.

Assertions find errors of this PE; messages of peers are checked even if assertions are off.
"""

from __future__ import annotations


class ProtocolViolation(Exception):
    """Error: an invariant of this PE does not hold; the text contains the PE's last messages."""


class PeerViolation(ProtocolViolation):
    """Error: PE `source` sent a message that no correct PE sends, or that none sends at this time."""

    source: int | None = None
