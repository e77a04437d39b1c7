"""A root that must leave before it has begun saves nothing, so that its job does not begin anew."""

import os
from collections.abc import Mapping
from typing import Any, NoReturn

from mallob_py.kit import Payload, Result, TreeMessage, WorkerContext
from mallob_py.kit.bags import Bag, BagApplication
from mallob_py.simulation.bags import TreeBag, TreeWork

WORK = TreeWork(seed=5, depth=3)


class Trees(BagApplication):
    name = "TREES"

    def first_bag(self, payload: Payload, configuration: Mapping[str, Any]) -> Bag:
        return WORK.first_bag()

    def bag_from_bytes(self, data: bytes, payload: Payload, configuration: Mapping[str, Any]) -> TreeBag:
        return WORK.bag_from_bytes(data)

    def fields(self, result: Any, configuration: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"found": tuple(result.tolist())}


class Root(WorkerContext):
    """The only worker of its job. `leaves`: it must leave while it waits for the last checkpoint."""

    def __init__(self, leaves: bool) -> None:
        self.job, self.index, self.volume, self.children, self.threads = 1, 0, 1, (), 1
        self.payload, self.configuration = {}, {}
        self._leaves = leaves
        self.saved: list[bytes] = []
        #: descriptor of a socket on which no message ever comes
        self._socket_fd = os.eventfd(0)

    def __del__(self) -> None:
        os.close(self._socket_fd)

    def last_checkpoint(self) -> bytes | None:
        self.leaving = self._leaves
        return None

    def checkpoint(self, data: bytes) -> None:
        self.saved.append(data)

    def poll(self, timeout_s: float = 0.0) -> list[TreeMessage]:
        return []

    def fileno(self) -> int:
        return self._socket_fd

    def park(self) -> NoReturn:
        raise NotImplementedError

    def finish(self, result: Result) -> NoReturn:
        raise NotImplementedError

    def set_demand(self, demand: int) -> None: ...

    def send_to_parent(self, data: bytes) -> None: ...

    def send_to_children(self, data: bytes) -> None: ...


def test_a_root_that_stays_finds_the_result() -> None:
    result = Trees().run(Root(leaves=False))
    assert result is not None
    assert result.fields["found"] == WORK.expected()


def test_a_root_that_has_to_leave_while_it_asks_for_the_checkpoint_replaces_none() -> None:
    root = Root(leaves=True)
    assert Trees().run(root) is None
    assert not root.saved
