"""A stand-in for the runtime's worker context: records what an application asks of it."""

import os
from collections.abc import Mapping
from typing import Any, NoReturn

from mallob_py.kit import Payload, Result, TreeMessage, WorkerContext


class Parked(Exception):
    """Raised instead of waiting for the job's end."""


class FakeContext(WorkerContext):
    def __init__(self, payload: Payload, index: int, configuration: Mapping[str, Any]) -> None:
        self.job = 1
        self.index = index
        self.volume = index + 1
        self.children = ()
        self.payload = payload
        self.configuration = configuration
        self.threads = 1
        #: descriptor that becomes readable when `ring` is called, and the descriptor that `ring` writes to
        self._quiet_fd, self._other_fd = os.pipe()

    def __del__(self) -> None:
        os.close(self._quiet_fd)
        os.close(self._other_fd)

    def ring(self) -> None:
        """Make `fileno()` readable, as a message would."""
        os.write(self._other_fd, b"!")

    def poll(self, timeout_s: float = 0.0) -> list[TreeMessage]:
        return []

    def fileno(self) -> int:
        return self._quiet_fd

    def park(self) -> NoReturn:
        raise Parked

    def set_demand(self, demand: int) -> None:
        raise AssertionError("not expected")

    def send_to_parent(self, data: bytes) -> None:
        pass

    def send_to_children(self, data: bytes) -> None:
        pass

    def finish(self, result: Result) -> NoReturn:
        raise AssertionError("not expected")
