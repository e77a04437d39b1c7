"""A rank's knowledge of its host: whether it gives workers their processes.

A host that fails once rests: the PEs of its rank offer no idle token for a while, so that the worker that
was lost here is looked for elsewhere. One that fails again and again rests for longer each time, up to a
bound; then it is tried anew. A process that runs clears it of all failures.

A process that dies before it runs accuses nobody: its job may be at fault, and must not cost everybody else
the host. If the job then runs elsewhere, its client says so (`messages.Blamed`), and it was the host.
"""

from __future__ import annotations

import math
from enum import Enum

from mallob_py.protocol.config import Config
from mallob_py.restarts import backoff_s


class Fault(Enum):
    #: this host gives none to any job: it cannot fork, or has no room
    HOST = "host"
    #: the process died before it ran: the host is ill, or the job is
    UNCLEAR = "unclear"
    #: what the process needs is gone, most often since its job has just ended
    NOBODY = "nobody"


class HostHealth:
    """One rank's record of its host, for all of its PEs; what follows from it, `PE.rest` does."""

    def __init__(self, config: Config) -> None:
        self._config = config
        #: in a row, without a process that ran in between
        self.failures = 0
        #: the last one
        self.reason = ""
        self.rests_until_s = -math.inf

    def blame(self, fault: Fault, reason: str, now: float) -> float:
        """Note a failure; until when the PEs here should rest."""
        config = self._config
        if fault is not Fault.HOST:
            return now + config.doubt_rest_s
        self.reason = reason
        if not self.failures or now >= self.rests_until_s:  # else it belongs to the failure before
            self.failures += 1
            self.rests_until_s = now + backoff_s(config.rest_s, config.rest_max_s, self.failures)
        return self.rests_until_s

    def trouble(self, now: float) -> str | None:
        """In words, if the host has failed and not been well since: it may be well again by now."""
        if not self.failures:
            return None
        times = "" if self.failures == 1 else f", {self.failures} times in a row"
        if now < self.rests_until_s:
            return f"gives workers no processes{times}: {self.reason}"
        return f"gave the last worker no process{times}, and is tried again with the next one: {self.reason}"

    def clear(self) -> None:
        """A process runs: the host is well."""
        self.failures = 0
        self.reason = ""
