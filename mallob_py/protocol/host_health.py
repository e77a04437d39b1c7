"""A rank's record of its host: whether workers get processes there.

After a failure the host rests: its rank's PEs offer no idle token for a while, so that another host is found
for the lost worker. With repeated failures the host rests longer each time, up to a bound, and is tried again
afterwards. A process that runs clears the host of all failures.

A process that dies before it runs proves no fault of the host: the job may be at fault, and must not cost
other jobs the host. If the job runs elsewhere later, its client reports that (`messages.Blamed`), and the
host was at fault.
"""

from __future__ import annotations

import math
from enum import Enum

from mallob_py.protocol.config import Config
from mallob_py.restarts import backoff_s


class Fault(Enum):
    #: the host gives processes to no job: it cannot fork, or has no room
    HOST = "host"
    #: the process died before it ran, by the fault of the host or the job
    UNCLEAR = "unclear"
    #: another process that the failed process needs is gone, usually because their job has just ended
    NOBODY = "nobody"


class HostHealth:
    """One rank's record of its host, for all of its PEs; `PE.rest` acts on it."""

    def __init__(self, config: Config) -> None:
        self._config = config
        #: failures in a row, without a running process in between
        self.failures = 0
        #: reason of the last failure
        self.reason = ""
        self.rests_until_s = -math.inf

    def blame(self, fault: Fault, reason: str, now: float) -> float:
        """Note a failure; return the time until which the PEs here should rest."""
        config = self._config
        if fault is not Fault.HOST:
            return now + config.doubt_rest_s
        self.reason = reason
        # While the PEs rest because of a failure, further failures count as the same failure.
        if not self.failures or now >= self.rests_until_s:
            self.failures += 1
            self.rests_until_s = now + backoff_s(config.rest_s, config.rest_max_s, self.failures)
        return self.rests_until_s

    def trouble(self, now: float) -> str | None:
        """Describe the trouble, if the host has failed and no process has run since; else return None."""
        if not self.failures:
            return None
        times = "" if self.failures == 1 else f", {self.failures} times in a row"
        if now < self.rests_until_s:
            return f"gives workers no processes{times}: {self.reason}"
        return f"gave the last worker no process{times}, and is tried again with the next one: {self.reason}"

    def clear(self) -> None:
        """Record that a worker's process runs here: forget the host's earlier failures."""
        self.failures = 0
        self.reason = ""
