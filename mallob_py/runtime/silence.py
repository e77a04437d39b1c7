"""How long somebody has not been heard.

Guarantee: time in which the watcher itself did not run does not count. So a suspended
laptop, or a whole service that is stopped and continued, has nobody accused at wake-up.
"""

from __future__ import annotations

import math

#: as much as one look may add to a silence: watchers look more often than that, unless they are asleep
_LOOK_MAX_S = 1.5


class Watch:
    """How long somebody has been silent, on the watcher's own waking time."""

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = math.inf if timeout_s is None else timeout_s
        self._silent_s = 0.0
        self._looked_s: float | None = None

    def heard(self) -> None:
        self._silent_s = 0.0

    def is_silent(self, now: float) -> bool:
        """To be asked once a second or more often, from when on somebody is to be heard."""
        if self._looked_s is not None:
            self._silent_s += min(max(0.0, now - self._looked_s), _LOOK_MAX_S)
        self._looked_s = now
        return self._silent_s > self._timeout_s
