"""The other ranks of this host as processes: who dies is heard of at once, and who hangs can be ended.

A rank that dies says nothing, and MPI does not tell. But the kernel does: a descriptor of a process
(`pidfd`) becomes readable when that ends, however it does. So each rank holds one of every other rank on its
host, and whoever hears of a death tells all ranks. Only what ends a whole host at once is left to the beats
of `failure_detector.py`.

A rank that is found to hang is ended by those on its host: what it holds, such as the lock of a client's
folder, is free then, and it cannot come back at a bad moment.

A process id may have been given to another process, and means nothing in another namespace (containers). So
a peer counts as local only if the process of that id began when the peer says.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from collections.abc import Mapping

import msgspec


class RankProcess(msgspec.Struct, frozen=True, array_like=True):
    """A rank's process, as it tells the others at the start."""

    pid: int
    host: str
    #: the namespace that the number is of, and when the process began, in ticks since the host did
    namespace: int
    began: int

    @classmethod
    def here(cls, pid: int | None = None) -> RankProcess:
        """This process, or another one on this host."""
        own = os.getpid()
        return cls(pid or own, socket.gethostname(), _namespace(), _began(str(pid or own)) or 0)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class LocalPeers:
    """Those ranks among `processes` that share `rank`'s host according to `hosts`; both by rank."""

    def __init__(self, rank: int, processes: Mapping[int, RankProcess], hosts: Mapping[int, int]) -> None:
        self._host = hosts[rank]
        self._epoll = select.epoll()
        #: by rank
        self._pidfds: dict[int, int] = {}
        self._rank_of: dict[int, int] = {}
        #: those that were gone when we came
        self._gone: list[int] = []
        for peer, process in processes.items():
            if peer != rank:
                self.add(peer, process, hosts[peer])

    def add(self, peer: int, process: RankProcess, host: int) -> None:
        """There is a further rank."""
        if host == self._host and process.namespace == _namespace() and peer not in self._pidfds:
            self._watch(peer, process)

    def _watch(self, peer: int, process: RankProcess) -> None:
        try:
            descriptor = os.pidfd_open(process.pid)
        except ProcessLookupError:
            self._gone.append(peer)
            return
        except OSError:  # such as for want of descriptors; then its silence has to tell
            return
        if _began(str(process.pid)) != process.began:
            os.close(descriptor)
            self._gone.append(peer)
            return
        self._pidfds[peer] = descriptor
        self._rank_of[descriptor] = peer
        self._epoll.register(descriptor, select.EPOLLIN)

    def fileno(self) -> int:
        """Readable when one has died since `take_dead` was last called."""
        return self._epoll.fileno()

    def take_dead(self) -> list[int]:
        """The ranks whose processes have ended since the last call."""
        dead, self._gone = self._gone, []
        for descriptor, _ in self._epoll.poll(0):
            dead.append(self._rank_of[descriptor])
            self._forget(dead[-1])
        return dead

    def is_seen(self, peer: int) -> bool:
        """Whether it is on this host, and its end has not been heard of."""
        return peer in self._pidfds

    def end(self, peer: int) -> None:
        """Kill a rank that hangs, if it is on this host."""
        if (descriptor := self._pidfds.get(peer)) is not None:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)

    def _forget(self, peer: int) -> None:
        descriptor = self._pidfds.pop(peer)
        del self._rank_of[descriptor]
        self._epoll.unregister(descriptor)
        os.close(descriptor)

    def close(self) -> None:
        for descriptor in self._pidfds.values():
            os.close(descriptor)
        self._pidfds.clear()
        self._epoll.close()


def _namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _began(process: str) -> int | None:
    """When a process began; None if it is gone."""
    try:
        with open(f"/proc/{process}/stat") as stat:
            return int(stat.read().rsplit(")", 1)[1].split()[19])
    except (OSError, IndexError, ValueError):
        return None
