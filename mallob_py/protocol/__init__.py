"""The protocol core: one PE as a pure state machine, and the parts it is made of.

Nothing here reads a clock, a file or a network, or starts a thread. The caller does: it feeds stimuli with
the present time, executes the effects in `PE.effects` after each call, in order, and delivers messages
between any two PEs in the order sent. The MPI runtime and the simulator are such callers.

Read `pe.py` first, then `worker.py`, `job_tree.py`, `matching.py`, `balancing.py`.

Our own errors are found by assertions; errors of peers are checked even if assertions are off.
"""

from __future__ import annotations


class ProtocolViolation(Exception):
    """Error: an invariant of this PE does not hold; the text contains the PE's last messages."""


class PeerViolation(ProtocolViolation):
    """Error: PE `source` sent a message that a correct PE never sends, or not at this time."""

    source: int | None = None
