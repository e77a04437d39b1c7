"""How a world ended, for whoever started it."""

from __future__ import annotations

from dataclasses import dataclass


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

    @property
    def exit_code(self) -> int:
        """As a shell has it: 128 + the signal's number of a world that was stopped before it could answer."""
        if self.code is not None:
            return self.code
        if self.stopped_by is not None:
            return 128 + self.stopped_by
        return self.returned if self.returned >= 0 else 128 - self.returned
