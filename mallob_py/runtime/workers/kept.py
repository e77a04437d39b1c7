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

#: most messages of a process that is ahead of its job
_SAID_MAX = 100
#: most ended chains remembered, whose processes are not kept if they end later
_OVER_MAX = 1000


@dataclass(slots=True)
class KeptWorker:
    """A process kept for a chain; `index` was its place in the job tree.

    `rests`: whether the process has finished all its work. `ahead_of`: the job that it has read and begun
    before a worker of that job is here (0: none). `said`: its messages meanwhile.
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
    """Processes kept for the next revision of their job. Processes whose links are returned must be killed.

    When a revision ends, its worker processes still hold their work on the input. A rank keeps some of these
    processes, waiting or stopped; a worker of the next revision that starts on this rank gets one of them. No
    kept process is ever needed: a worker may start afresh.

    At most `count_max` are kept, with `bytes_max` of private memory together, each for `keep_s`; the oldest
    are dropped first.
    """

    def __init__(self, count_max: int, bytes_max: int, keep_s: float) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._keep_s = keep_s
        #: kept workers by their link's serial, the newest at the end
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
        """Keep a process; return the processes that must end for it, possibly itself.

        `size_bytes`: reported by the process at the end of its task; None: the process is at work.
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
        """Return a process of this chain, preferably with this place. `at_rest`: only an idle one."""
        found = [kept for kept in self._kept.values() if kept.chain == chain and (kept.rests or not at_rest)]
        best = max(found, key=lambda kept: kept.index == index, default=None)
        if best is not None:
            del self._kept[best.link.serial]
        return best

    def going_ahead(self, link: WorkerLink, job: int, stop_at_s: float) -> None:
        """Note that a kept process has begun with a job."""
        if (kept := self._kept.get(link.serial)) is not None:
            kept.rests, kept.ahead_of, kept.stop_at_s = False, job, stop_at_s
            self.deadline_s = min(self.deadline_s, stop_at_s)

    def hear(self, link: WorkerLink, message: wire.FromWorker) -> bool:
        """Note a kept process's message if relevant; return False if the process has sent too many."""
        kept = self._kept[link.serial]
        if kept.ahead_of:
            kept.said.append(message)
        return len(kept.said) <= _SAID_MAX

    def stop_late(self, now_s: float) -> None:
        """Stop processes that have been ahead of their jobs for too long."""
        for kept in self._kept.values():
            if kept.stop_at_s <= now_s:
                kept.link.signal(signal.SIGSTOP)
                kept.is_stopped, kept.stop_at_s = True, math.inf

    def forget(self, link: WorkerLink) -> None:
        """Forget a process that has ended."""
        self._kept.pop(link.serial, None)

    def drop_chain(self, chain: int) -> list[WorkerLink]:
        """Drop the processes of a chain, which gets no further revision."""
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
        """Drop the oldest processes until this much memory is free."""
        dropped: list[KeptWorker] = []
        for kept in self._kept.values():
            if sum(each.size_bytes for each in dropped) >= wanted_bytes:
                break
            dropped.append(kept)
        return self._drop(dropped)

    def drop_all(self) -> list[WorkerLink]:
        """Drop all processes, since room is needed."""
        return self._drop(list(self._kept.values()))

    def _drop(self, dropped: list[KeptWorker]) -> list[WorkerLink]:
        for kept in dropped:
            del self._kept[kept.link.serial]
        return [kept.link for kept in dropped]
