"""The nodes of a live scheduler: their slots, and whether jobs may get these slots.

A node file has a line `HOST slots=8` for each node; `slots` is 1 by default. Empty lines, and text after `#`,
are ignored. A node keeps the numbers of its slots while it is known, so the slot numbers of running jobs stay
valid after a restart with another file. Pure except for reading the file.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path

import msgspec

#: the name of the node whose jobs need no remote shell
LOCALHOST = "localhost"
SLOTS_MAX = 100_000
_NAMES_MAX = 200
_LINE = re.compile(r"(\S+)(?:\s+slots\s*=\s*(\S+))?")
#: the names of hosts that are safe for remote shells and in the protocol's lines, where `:` ends a host
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*")


class NodesError(ValueError):
    """The nodes cannot be used or changed as requested. The error's text is one line."""


class NodeState(enum.Enum):
    """The states of a node. Jobs may get slots only of a node that is up."""

    UP = "up"
    #: an operator has drained the node, or it could not be given back
    DRAINED = "drained"
    #: the node was not reached
    DOWN = "down"
    #: the node is given back when its jobs have ended
    LEAVING = "leaving"
    #: the node is no longer among the scheduler's nodes
    GONE = "gone"


class Node(msgspec.Struct):
    """A node. `slots`: the numbers of all slots that it ever had, of which it now has the first `count`.

    `reason`: why the node is not up.
    """

    name: str
    slots: list[int]
    count: int
    state: NodeState = NodeState.UP
    reason: str = ""

    @property
    def offered(self) -> list[int]:
        return self.slots[: self.count] if self.state is NodeState.UP else []


def read_node_file(path: Path) -> dict[str, int]:
    """Read a node file; return node -> number of slots. Raises NodesError (which names the line), OSError."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise NodesError(f"{path}: not a text in UTF-8") from None
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not (said := line.partition("#")[0].strip()):
            continue
        match = _LINE.fullmatch(said)
        if match is None:
            raise NodesError(f"{path}, line {number}: {said[:60]!r} is not a node such as: n1 slots=8")
        name, slots = match[1], match[2] or "1"
        if not _HOST.fullmatch(name):
            raise NodesError(f"{path}, line {number}: {name[:60]!r} is not the name of a host")
        if name in found:
            raise NodesError(f"{path}, line {number}: {name} is listed twice: give all its slots in one line")
        if not re.fullmatch(r"[0-9]{1,6}", slots) or not 1 <= int(slots) <= SLOTS_MAX:
            raise NodesError(f"{path}, line {number}: slots is {slots[:40]!r}, not 1 to {SLOTS_MAX}")
        found[name] = int(slots)
    if not found:
        raise NodesError(f"{path}: no node in it: write lines such as: n1 slots=8")
    return found


class NodeBook:
    """The known nodes, including gone nodes on which jobs still run."""

    def __init__(self, known: Iterable[Node] = ()) -> None:
        self._nodes = {node.name: node for node in known}
        self._node_of = {slot: node for node in self._nodes.values() for slot in node.slots}

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    def host_of(self, slot: int) -> str:
        return self._node_of[slot].name

    def node_of(self, slot: int) -> Node:
        return self._node_of[slot]

    def offered(self) -> set[int]:
        """Return the slots that jobs may get."""
        return {slot for node in self for slot in node.offered}

    @property
    def most(self) -> int:
        """Return how many slots there would be if all nodes that are not gone were up."""
        return sum(node.count for node in self if node.state is not NodeState.GONE)

    def have(self, wanted: Mapping[str, int]) -> None:
        """Set the present nodes (node -> number of slots); all other nodes are gone."""
        for node in self:
            if node.name not in wanted:
                node.state, node.reason = NodeState.GONE, "not among the nodes any more"
        for name, count in wanted.items():
            node = self._nodes.setdefault(name, Node(name, [], 0))
            first = 1 + max(self._node_of, default=-1)
            node.slots += range(first, first + count - len(node.slots))
            node.count = count
            self._node_of.update(dict.fromkeys(node.slots, node))
            if node.state is NodeState.GONE:
                node.state, node.reason = NodeState.UP, ""

    def forget(self, taken: Set[int]) -> None:
        """Forget the gone nodes that have none of the slots `taken`, on which jobs run."""
        for node in [one for one in self if one.state is NodeState.GONE and taken.isdisjoint(one.slots)]:
            del self._nodes[node.name]
            for slot in node.slots:
                del self._node_of[slot]

    def drain(self, name: str, reason: str) -> None:
        """Offer no slot of a node to jobs. Raises NodesError."""
        node = self._known(name)
        node.state, node.reason = NodeState.DRAINED, reason

    def leave(self, name: str) -> None:
        """Record that a node is to be given back when no job has a slot there. Raises NodesError."""
        node = self._known(name)
        node.state, node.reason = NodeState.LEAVING, "given back when its jobs have ended"

    def leaving(self, taken: Set[int]) -> list[str]:
        """Return the nodes that can be given back now, while jobs run on the slots `taken`."""
        return [
            node.name for node in self if node.state is NodeState.LEAVING and taken.isdisjoint(node.slots)
        ]

    def resume(self, name: str) -> None:
        """Offer a node's slots to jobs again. Raises NodesError."""
        node = self._known(name)
        node.state, node.reason = NodeState.UP, ""

    def set_down(self, name: str, reason: str) -> None:
        """Record that a node was not reached; no effect if the node is not up."""
        node = self._nodes[name]
        if node.state is NodeState.UP:
            node.state, node.reason = NodeState.DOWN, reason

    def _known(self, name: str) -> Node:
        node = self._nodes.get(name)
        if node is None or node.state is NodeState.GONE:
            names = ", ".join(one.name for one in self if one.state is not NodeState.GONE)
            raise NodesError(f"there is no node {name} (there are {_clipped(names)})")
        return node


def _clipped(names: str) -> str:
    return names if len(names) <= _NAMES_MAX else f"{names[:_NAMES_MAX]}..."
