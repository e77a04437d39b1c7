"""The nodes of a live scheduler's machine: they come and go, and their slots are offered to the scheduler."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Protocol

from mallob_py.batch.live.folder import Folder
from mallob_py.batch.live.nodes import LOCALHOST, Node, NodeBook, NodesError, NodeState
from mallob_py.batch.live.requests import Answer, Done, NodeLine, NodeLines, Refused
from mallob_py.batch.live.scheduler import LiveScheduler

_MACHINE_POLL_S = 5.0


class Machine(Protocol):
    """The machine whose nodes jobs run on."""

    #: environment variables that the machine adds to those of the jobs
    environment: Mapping[str, str]
    #: whether nodes may come and go
    changes: bool

    def check_give_back(self, host: str) -> None:
        """Check that a node may be given back. Raises NodesError if it must stay."""

    def give_back(self, hosts: Sequence[str]) -> None:
        """Give nodes without jobs back to their owner; may be slow. Raises NodesError."""

    def take_in(self, count: int) -> None:
        """Add `count` further nodes; may be slow. Raises NodesError."""

    def nodes(self) -> Mapping[str, int]:
        """Return node -> number of its slots. Raises NodesError."""
        ...

    def shell(self, host: str) -> list[str]:
        """Return the command that runs the program appended to it on a node; empty for this host."""
        ...


class MachineNodes:
    """The nodes of one server. `book`: their slots and states, which the folder keeps.

    `changed` is called when the slots that jobs may get have changed.
    """

    def __init__(
        self,
        folder: Folder,
        machine: Machine,
        scheduler: LiveScheduler,
        say: Callable[[str], None],
        changed: Callable[[], None],
    ) -> None:
        self._folder = folder
        self.machine = machine
        self._scheduler = scheduler
        self._say = say
        self._changed = changed
        self.book = NodeBook(folder.nodes() or ())

    def assume(self, slots: Sequence[int]) -> None:
        """If the folder has no file of nodes, assume that the slots of running jobs are on this host."""
        if self._folder.nodes() is None and slots:
            self.book = NodeBook([Node(LOCALHOST, list(range(max(slots) + 1)), 0)])

    def restore(self, taken: Set[int]) -> None:
        """Begin with the machine's present nodes, while jobs have the slots `taken`. Raises NodesError."""
        self.book.have(self.machine.nodes())
        self.book.forget(taken)
        self.offer()

    def change(self, change: Callable[[], None]) -> Answer:
        try:
            change()
        except NodesError as error:
            return Refused(str(error))
        self.offer()
        return Done(0)

    def leave(self, node: str) -> None:
        self.machine.check_give_back(node)
        self.book.leave(node)

    async def take_in(self, count: int) -> Answer:
        try:
            await asyncio.to_thread(self.machine.take_in, count)
            await self._look()
        except NodesError as error:
            return Refused(str(error))
        return Done(0)

    async def give_back(self, hosts: Sequence[str]) -> None:
        try:
            await asyncio.to_thread(self.machine.give_back, hosts)
            self._say(f"given back: {', '.join(hosts)}")
            await self._look()
        except NodesError as error:
            self._say(f"{', '.join(hosts)} cannot be given back: {error}")
            for host in hosts:
                self.book.drain(host, str(error))
            self.offer()

    async def follow(self) -> None:
        while True:
            await asyncio.sleep(_MACHINE_POLL_S)
            with contextlib.suppress(NodesError):  # Slurm may be down for a while
                await self._look()

    async def _look(self) -> None:
        """Ask the machine for its nodes, and follow a change. Raises NodesError."""
        now = dict(await asyncio.to_thread(self.machine.nodes))
        before = {node.name: node.count for node in self.book if node.state is not NodeState.GONE}
        if now != before:
            self.book.have(now)
            self.book.forget(self._scheduler.taken)
            more, fewer = sorted(now.keys() - before.keys()), sorted(before.keys() - now.keys())
            self._say(f"nodes: {', '.join(more) or 'none'} added, {', '.join(fewer) or 'none'} removed")
            self.offer()

    def offer(self) -> None:
        try:
            self._folder.write_nodes(self.book)
        except OSError as error:
            self._say(f"the nodes' states cannot be saved: {error}")
        self._scheduler.offer(self.book.offered())
        self._changed()

    def lines(self, names: Mapping[int, str]) -> Answer:
        """Return a line for each node, with its jobs; `names`: running job -> its name."""
        running = self._scheduler.running
        jobs = {slot: job for job in running for slot in self._scheduler.slots_of(job)}
        lines = []
        for node in self.book:
            slots = [slot for place, slot in enumerate(node.slots) if place < node.count or slot in jobs]
            lines.append(NodeLine(node.name, node.state, node.reason, [jobs.get(slot) for slot in slots]))
        return NodeLines(lines, dict(names))
