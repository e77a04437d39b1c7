"""How a world ended, for whoever started it."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from .world import Crash

#: what MPICH's mpiexec returns when its proxy, the parent of the ranks, is gone
_PROXY_LOST = 255


@dataclass(frozen=True, slots=True)
class WorldEnd:
    #: rank 0's exit code; None if it did not come to that
    code: int | None
    #: whether the ranks came so far as to work
    had_come_up: bool
    #: by mpiexec, or by rank 0 where there is none: negative for a signal that killed it
    returned: int
    #: the first signal that asked for the end
    stopped_by: int | None
    #: it had to be ended, as it had fallen silent
    was_silent: bool = False
    has_launcher: bool = True
    #: the kernel has killed processes on this host meanwhile
    was_out_of_memory: bool = False

    @property
    def exit_code(self) -> int:
        """As a shell has it: 128 + the signal's number of a world that was stopped before it could answer."""
        if self.code is not None:
            return self.code
        if self.stopped_by is not None:
            return 128 + self.stopped_by
        return self.returned if self.returned >= 0 else 128 - self.returned

    @property
    def crash(self) -> Crash | None:
        """What the next world is told of the end of this one; None: it was not brought about by its ranks."""
        if self.was_silent or self.was_out_of_memory:
            return Crash.OF_ITSELF
        if self.has_launcher and (self.returned < 0 or self.returned == _PROXY_LOST):
            return None
        killed = (signal.SIGKILL, 128 + signal.SIGKILL) if self.has_launcher else (-signal.SIGKILL,)
        return Crash.KILLED if self.returned in killed else Crash.OF_ITSELF
