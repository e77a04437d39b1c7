"""Hosts of two ranks each without MPI: transfers that send each other messages through queues."""

import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mallob_py.protocol.host_health import Fault
from mallob_py.runtime.world.transfer import Transfer

PER_HOST = 2


class Network:
    """Messages that wait for delivery, by pair of ranks and channel."""

    def __init__(self, ranks: int, folder: Path) -> None:
        self.folder = folder
        self.here: list[tuple[int, int]] = []
        self.failed: list[tuple[int, int, str]] = []
        self.faults: list[Fault] = []
        self.sent: list[tuple[int, int, Any]] = []
        self.most_on_the_way = 0
        self.lost: set[int] = set()
        self._wires: dict[tuple[int, int, bool], deque[Any]] = {}
        self.ranks = [self._transfer(rank) for rank in range(ranks)]

    def _transfer(self, rank: int) -> Transfer:
        def send(dest: int, message: Any) -> None:
            self.sent.append((rank, dest, message))
            self._wires.setdefault((rank, dest, isinstance(message, bytes)), deque()).append(message)
            chunks = sum(isinstance(one, bytes) for wire in self._wires.values() for one in wire)
            self.most_on_the_way = max(self.most_on_the_way, chunks)

        def keeper_of(rank: int) -> int:
            first = rank - rank % PER_HOST
            return next(one for one in range(first, first + PER_HOST) if one not in self.lost)

        def on_here(job: int) -> None:
            self.here.append((rank, job))

        def on_failed(job: int, reason: str, fault: Fault) -> None:
            self.failed.append((rank, job, reason))
            self.faults.append(fault)

        host = self.folder / str(keeper_of(rank))
        host.mkdir(exist_ok=True)
        return Transfer(rank, host, keeper_of, send, send, on_here, on_failed)

    def deliver_one(self, rng: random.Random, may: Callable[[int, int], bool] = lambda *_: True) -> bool:
        """Deliver one message on a random wire for which `may(source, dest)` holds; return False if there is
        none.
        """
        loaded = [key for key, wire in self._wires.items() if wire and may(*key[:2])]
        if not loaded:
            return False
        source, dest, _ = chosen = rng.choice(loaded)
        message = self._wires[chosen].popleft()
        if isinstance(message, bytes):
            self.ranks[dest].receive_chunk(source, message)
        else:
            self.ranks[dest].receive(source, message)
        return True

    def deliver_all(self, seed: int = 0) -> None:
        rng = random.Random(seed)
        while self.deliver_one(rng):
            pass

    def put(self, rank: int, job: int, data: bytes) -> int:
        """Have the client of a rank read a description; return its size."""
        path = self.ranks[rank].path_to_read(job)
        Path(path).write_bytes(data)
        self.ranks[rank].bring(job, path)
        return len(data)

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.glob("*/*"))

    def close(self) -> None:
        """Have each rank release its descriptions."""
        for each in self.ranks:
            each.keep_only(set())
