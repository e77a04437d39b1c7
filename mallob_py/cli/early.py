"""What `solve` begins before it looks at its options: its fork servers import, which takes longest.

Of a command that is refused then, they end with it.
"""

from __future__ import annotations

import os

from mallob_py.cli.interrupts import OF_RANKS
from mallob_py.runtime.world.forked_world import ForkedServers

APPLICATIONS = ("SAT",)
#: those begun
servers: ForkedServers | None = None


def begin() -> None:
    """To be called once, by the script: whoever calls `main` may have threads."""
    global servers
    if os.environ.keys().isdisjoint(OF_RANKS):
        servers = ForkedServers(APPLICATIONS)
