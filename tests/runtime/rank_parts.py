"""Parts of a rank for tests of its loop: a clock that advances only during waits, and stand-ins without
effects.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mallob_py.protocol.config import Config
from mallob_py.protocol.node import Node
from mallob_py.protocol.rank_book import Origin
from mallob_py.protocol.rank_messages import RankProcess
from mallob_py.runtime.rank import Rank
from mallob_py.runtime.workers.starved import MemoryKills, Starved
from mallob_py.runtime.world.envelope import Arrival
from mallob_py.runtime.world.failure_detector import Ring


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Quiet:
    """A transport on one host. `arrivals` yields lists: the messages that arrive in one turn of the loop."""

    def __init__(self, folder: Path) -> None:
        self.rank = 0
        self.folder = SimpleNamespace(path=folder)
        self.arrivals: Iterator[list[Arrival]] = iter(())
        self.heard: set[int] = set()
        self.is_behind = False
        self.sent: list[tuple[int, bytes]] = []
        self.lost: dict[int, str] = {}
        self.given_up: set[int] = set()
        self.hosts: dict[int, int] = defaultdict(int)

    def may_have_news(self) -> bool:
        return True

    def receive(self) -> Iterator[Arrival]:
        yield from next(self.arrivals, [])

    @property
    def has_lost(self) -> bool:
        return bool(self.lost)

    def take_lost(self) -> list[int]:
        return list(self.lost)

    def how_lost(self, rank: int) -> str:
        return self.lost.pop(rank)

    def take_back(self) -> list[int]:
        return []

    def lose(self, rank: int, how: str) -> None:
        self.lost[rank] = how

    def give_up_on(self, rank: int) -> None:
        self.given_up.add(rank)

    def take_heard(self) -> set[int]:
        return self.heard

    def is_congested(self, _rank: int) -> bool:
        return self.is_behind

    def send(self, rank: int, data: bytes) -> None:
        self.sent.append((rank, data))

    def send_bulk(self, _rank: int, _data: bytes) -> None:
        pass

    def flush(self) -> float:
        return math.inf

    def welcome(self, _rank: int, _host: int) -> None:
        pass

    def park_timeout_s(self, wanted_s: float) -> float:
        return 0.0 if self.lost else wanted_s

    def keeper_of(self, _rank: int) -> int:
        return 0


class NoProcesses:
    """A pool whose processes never start. `done`: the commands given for these processes."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.starved = Starved(MemoryKills(int), list)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: self.done.append(name)

    def next_deadline(self) -> float:
        return math.inf

    def poll(self) -> list[Any]:
        return []

    def pid_of(self, _key: object) -> None:
        return None

    def cpu_seconds_of(self, _key: object) -> None:
        return None


class EventLog:
    is_kept = True
    taken_max = 1000

    def __init__(self) -> None:
        self.taken: list[tuple[float, str, object, int]] = []

    @property
    def events(self) -> Counter[str]:
        return Counter(event for _, event, _, _ in self.taken)

    def write(self, now: float, event: str, fields: object, pe: int = 0) -> None:
        self.taken.append((now, event, fields, pe))

    def flush(self) -> None:
        pass


class Sleeper:
    """Bells that never ring. Parking lets time pass; at `until_s`, the rank is told to stop."""

    message = peers = signal = workers = desk = orders = 0
    stopped_by = None

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.rung: set[int] = set()
        self.until_s = math.inf
        #: function called at `until_s`
        self.at_end: Callable[[], None] = lambda: None
        self.parked_s: list[float] = []

    def park(self, timeout_s: float) -> None:
        self.parked_s.append(timeout_s)
        assert len(self.parked_s) < 1000, "it looks again at once, for nothing"
        self._clock.now_s += timeout_s
        if self._clock.now_s >= self.until_s:
            self.at_end()

    park_for_change = park

    def wind_up(self) -> None:
        pass

    def watch_desk(self, _descriptor: int | None) -> None:
        pass

    watch_orders = watch_desk


class Parts:
    """Rank 0 and all objects that it needs."""

    def __init__(
        self,
        folder: Path,
        capacities: tuple[int, ...] = (1, 1),
        timeout_s: float | None = None,
        patience_s: float = 30.0,
        *,
        survives: bool = False,
        until_s: float = math.inf,
    ) -> None:
        processes = {rank: RankProcess(rank + 6, "h", 0, 0) for rank in range(len(capacities))}
        origin = Origin(capacities, 0.0, processes, dict.fromkeys(processes, 0))
        self.clock = Clock()
        self.node = Node(0, origin, Config(), patience_s=patience_s, survives=survives)
        self.transport = Quiet(folder)
        self.pool = NoProcesses()
        self.log = EventLog()
        self.bells = Sleeper(self.clock)
        parts: tuple[Any, ...] = (self.transport, self.pool, self.log, self.clock)
        ring, bells = Ring(0, range(len(capacities)), timeout_s), self.bells
        self.rank = Rank(self.node, *parts, ring, bells)  # type: ignore[arg-type]
        self.bells.until_s, self.bells.at_end = until_s, self.rank.stop
