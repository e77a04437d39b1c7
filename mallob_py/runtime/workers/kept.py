"""Worker processes kept for the next revision of a chain (see `KeptWorkers`)."""

from __future__ import annotations

import math
import signal
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from mallob_py.runtime import worker_wire as wire
from mallob_py.runtime.memory import private_bytes_of
from mallob_py.runtime.workers.links import WorkerLink

#: greatest number of messages of a process that runs a job before the order to start a worker has come
_SAID_MAX = 100
#: greatest number of ended chains remembered: their processes are not kept if their runs end later
_OVER_MAX = 1000


@dataclass(slots=True)
class KeptWorker:
    """A process kept for a chain. `index`: its former place in the job tree. `until_s`: when it is dropped.

    `rests`: whether the process has ended its run. `ahead_of`: the job that the process has read and begun
    although no worker of that job was started here yet (0: none). `said`: the process's messages since then.
    """

    link: WorkerLink
    chain: int
    index: int
    is_stopped: bool
    until_s: float
    size_bytes: int
    rests: bool
    ahead_of: int = 0
    said: list[wire.FromWorker] = field(default_factory=list)
    stop_at_s: float = math.inf


class KeptWorkers:
    """Processes kept for the next revision of their job. Callers must kill the processes that methods drop.

    When a revision ends, its worker processes still hold what they have made of the input. A rank keeps some
    worker processes, waiting or stopped. If a worker of the next revision starts on this rank, it gets a kept
    process. Nothing depends on a kept process: a worker may start with a new process, too.

    At most `count_max` processes are kept, with at most `bytes_max` of private memory in all, each for
    `keep_s`; the oldest are dropped first.
    """

    def __init__(self, count_max: int, bytes_max: int, keep_s: float) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._keep_s = keep_s
        #: serial of a link -> kept process, the newest at the end
        self._kept: OrderedDict[int, KeptWorker] = OrderedDict()
        self._over: OrderedDict[int, None] = OrderedDict()
        #: time when `drop_expired` must be called
        self.deadline_s = math.inf

    def __contains__(self, link: WorkerLink) -> bool:
        return link.serial in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[WorkerLink]:
        return (kept.link for kept in self._kept.values())

    def keep(
        self,
        link: WorkerLink,
        chain: int,
        index: int,
        is_stopped: bool,
        now_s: float,
        size_bytes: int | None = None,
    ) -> list[WorkerLink]:
        """Keep a process; return the processes that are dropped to make room, possibly this process itself.

        `size_bytes`: the private memory that the process reported at the end of its task; None: the task has
        not ended.
        """
        if link.dead or chain in self._over:
            return [link]
        rests = size_bytes is not None and not is_stopped
        if size_bytes is None:
            size_bytes = private_bytes_of(link.pid)
        until_s = now_s + self._keep_s
        self.deadline_s = min(self.deadline_s, until_s)
        self._kept[link.serial] = KeptWorker(link, chain, index, is_stopped, until_s, size_bytes, rests)
        total_bytes = sum(kept.size_bytes for kept in self._kept.values())
        dropped = []
        while len(self._kept) > self._count_max or (self._kept and total_bytes > self._bytes_max):
            _, oldest = self._kept.popitem(last=False)
            total_bytes -= oldest.size_bytes
            dropped.append(oldest.link)
        return dropped

    def take(self, chain: int, index: int, at_rest: bool = False) -> KeptWorker | None:
        """Take and return a chain's process, preferably of place `index`; `at_rest`: only without a run."""
        found = [kept for kept in self._kept.values() if kept.chain == chain and (kept.rests or not at_rest)]
        best = max(found, key=lambda kept: kept.index == index, default=None)
        if best is not None:
            del self._kept[best.link.serial]
        return best

    def going_ahead(self, link: WorkerLink, job: int, stop_at_s: float) -> None:
        """Record that a kept process runs a job before its worker is ordered; it must stop at `stop_at_s`."""
        if (kept := self._kept.get(link.serial)) is not None:
            kept.rests, kept.ahead_of, kept.stop_at_s = False, job, stop_at_s
            self.deadline_s = min(self.deadline_s, stop_at_s)

    def hear(self, link: WorkerLink, message: wire.FromWorker) -> bool:
        """Note a message of a process that runs a job ahead of the order; return False if too many came."""
        kept = self._kept[link.serial]
        if kept.ahead_of:
            kept.said.append(message)
        return len(kept.said) <= _SAID_MAX

    def stop_late(self, now_s: float) -> None:
        """Stop processes that have run a job for too long before the order to start a worker came."""
        for kept in self._kept.values():
            if kept.stop_at_s <= now_s:
                kept.link.signal(signal.SIGSTOP)
                kept.is_stopped, kept.stop_at_s = True, math.inf

    def forget(self, link: WorkerLink) -> None:
        """Forget a process that has ended."""
        self._kept.pop(link.serial, None)

    def drop_chain(self, chain: int) -> list[WorkerLink]:
        """Drop the processes of a chain that gets no further revision."""
        self._over[chain] = None
        if len(self._over) > _OVER_MAX:
            self._over.popitem(last=False)
        return self._drop([kept for kept in self._kept.values() if kept.chain == chain])

    def drop_expired(self, now_s: float) -> list[WorkerLink]:
        expired = self._drop([kept for kept in self._kept.values() if kept.until_s <= now_s])
        self.deadline_s = min(
            (min(kept.until_s, kept.stop_at_s) for kept in self._kept.values()), default=math.inf
        )
        return expired

    def drop_oldest(self, wanted_bytes: int) -> list[WorkerLink]:
        """Drop the oldest processes until `wanted_bytes` are freed; return the dropped processes."""
        dropped: list[KeptWorker] = []
        for kept in self._kept.values():
            if sum(each.size_bytes for each in dropped) >= wanted_bytes:
                break
            dropped.append(kept)
        return self._drop(dropped)

    def drop_all(self) -> list[WorkerLink]:
        """Drop all processes, because a process could not be forked."""
        return self._drop(list(self._kept.values()))

    def _drop(self, dropped: list[KeptWorker]) -> list[WorkerLink]:
        for kept in dropped:
            del self._kept[kept.link.serial]
        return [kept.link for kept in dropped]
