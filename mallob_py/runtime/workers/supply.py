"""The supply of worker processes that the rank's fork server forks (see `Processes`)."""

from __future__ import annotations

import errno
import math
import os
import signal
from collections.abc import Callable, Iterable

import msgspec

from mallob_py.restarts import RestartLimit
from mallob_py.runtime import worker_wire as wire
from mallob_py.runtime.memory import private_bytes_of
from mallob_py.runtime.workers.giving import Given, GivingSocket
from mallob_py.runtime.workers.links import ForkServer, LinkWatch, WorkerLink

#: delay before spare processes are replaced, while no task comes: a tree that grows over many ranks of a host
#: must not compete with forks
_QUIET_S = 0.05
#: most successive restarts of a fork server without a single fork before tasks are given up
_SERVER_RESTARTS_MAX = 3


class PoolOptions(msgspec.Struct, frozen=True):
    """`threads`: cores per worker. `reuse_limit_bytes`: a larger process is not used again.

    `max_reads`: inputs read at the same time; further ones wait. The last three bound what is kept of chains
    of revisions.
    """

    warm: int = 1
    threads: int = 1
    reuse_limit_bytes: int = 200 << 20
    queue_limit_bytes: int = 64 << 20
    max_reads: int = 16
    kept_max: int = 2
    kept_bytes_max: int = 1 << 30
    kept_s: float = 600.0

    @classmethod
    def for_pes(cls, pes: int, warm: int, threads: int) -> PoolOptions:
        """Return the options of a rank with this many PEs, in proportion to one PE's options."""
        default = cls()
        return cls(
            warm=warm * pes,
            threads=threads,
            kept_max=default.kept_max * pes,
            kept_bytes_max=default.kept_bytes_max * pes,
        )


class Processes:
    """All live processes of a rank by serial (`links`), and the `idle` ones."""

    def __init__(
        self,
        server: ForkServer,
        watch: LinkWatch,
        options: PoolOptions,
        make_link: Callable[..., WorkerLink],
        clock: Callable[[], float],
    ) -> None:
        self._make_link = make_link
        self._clock = clock
        self._server = server
        self._watch = watch
        self._options = options
        self._warm = options.warm
        self._watch.watch_server(server.fileno())
        self.links: dict[int, WorkerLink] = {}
        self.idle: list[WorkerLink] = []
        #: number of applications that the server has imported since its start
        self.generation = 0
        #: time when `refill` must be called
        self.refill_at_s = math.inf
        #: whether nothing is asked of the server until it is restarted
        self.is_given_up = False
        self._forks_asked = 0
        self._server_restarts = RestartLimit(_SERVER_RESTARTS_MAX)
        #: whether not too many servers have died in a row
        self.is_worth_a_restart = True
        #: None: processes are not exchanged with other ranks
        self.giving: GivingSocket | None = None
        #: serials of given processes are negative
        self._given_serial = 0
        #: imports asked for: if a server dies of an import, this import is not asked for again
        self._imports_asked: set[str] = set()
        self._imported: set[str] = set()

    # --- spare processes ----------------------------------------------------------

    def top_up(self, without_process: int) -> None:
        """Have enough processes for this many tasks soon; spare processes are forked later."""
        if self.is_given_up:
            return
        self._fork(without_process - self._forks_asked)
        if len(self.idle) + self._forks_asked - without_process < self._warm:
            self.refill_at_s = self._clock() + _QUIET_S

    def refill(self, without_process: int) -> None:
        """Fork spare processes up to their number."""
        self.refill_at_s = math.inf
        if not self.is_given_up:
            self._fork(self._warm + without_process - len(self.idle) - self._forks_asked)

    def _fork(self, count: int) -> None:
        if count > 0:
            self._forks_asked += count
            self._server.send(wire.Fork(count))

    def take_back(self, link: WorkerLink, private_bytes: int) -> None:
        """Keep a process as spare after its task, if it is as good as a new process."""
        stale = link.generation < self.generation or link.is_given
        full = len(self.idle) > self._warm
        if link.dead or stale or full or private_bytes > self._options.reuse_limit_bytes or link.has_outgoing:
            self.discard(link)
        else:
            self.idle.append(link)

    def forget_idle(self, link: WorkerLink) -> None:
        """Remove a dying process from the idle ones."""
        if link in self.idle:
            self.idle.remove(link)

    def discard(self, link: WorkerLink) -> None:
        """Kill a process; its exit is reported by its server and concerns no task."""
        link.signal(signal.SIGKILL)
        self.release(link)

    def discard_all(self, links: Iterable[WorkerLink]) -> int:
        """Kill processes; return about how many bytes that frees."""
        freed_bytes = 0
        for link in links:
            freed_bytes += private_bytes_of(link.pid)
            self.discard(link)
        return freed_bytes

    def release(self, link: WorkerLink) -> None:
        """Release a process that is gone, or about to be."""
        self._watch.forget(link)
        if link.is_given:  # the exit of a given process is not reported here
            self.links.pop(link.serial, None)
        link.close()

    # --- to and from other ranks of the host --------------------------------------

    def exchange(self, giving: GivingSocket) -> None:
        """Exchange processes with other ranks from now on."""
        self.giving = giving
        self._watch.watch_given(giving.fileno())

    def give(self, link: WorkerLink, rank: int, given: Given) -> None:
        """Give a process to another rank; a process that does not arrive ends."""
        assert self.giving is not None, "processes are given only where they come, too"
        unread, unsent = link.under_way
        given = msgspec.structs.replace(given, pid=link.pid, unread=unread, unsent=unsent)
        self._watch.forget(link)
        del self.links[link.serial]
        self.giving.send(rank, given, link.descriptors)
        link.close()

    def pass_on(
        self, given: Given, descriptors: tuple[int, ...], rank: int, receiver: tuple[int, int]
    ) -> None:
        """Pass on a given process, or word that there is none, whose worker is at another rank now."""
        assert self.giving is not None
        job, number = receiver
        self.giving.send(rank, msgspec.structs.replace(given, job=job, number=number), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)

    def adopt(self, given: Given, descriptors: tuple[int, ...]) -> WorkerLink:
        """Take over a process that another rank has given."""
        self._given_serial -= 1
        forked = wire.Forked(self._given_serial, given.pid, self.generation)
        limit_bytes = self._options.queue_limit_bytes
        link = self._make_link(forked, descriptors, limit_bytes, given.unread, given.unsent)
        self.links[link.serial] = link
        self._watch.watch(link)
        return link

    def import_application(self, application: str) -> bool:
        """Have the server import what a process imported without harm; return False if asked before."""
        if application in self._imports_asked | self._imported:
            return False
        self._imports_asked.add(application)
        self._server.send(wire.Import(application))
        return True

    def find_applications(self) -> None:
        """Ask for the names of all applications; the answer arrives as news of the server."""
        if not self.is_given_up:
            self._server.send(wire.FindApplications())

    def keep_none_ready(self) -> None:
        """Fork processes for waiting tasks only, since memory is short."""
        self._warm = 0
        self.refill_at_s = math.inf
        for link in self.idle:
            self.discard(link)
        self.idle.clear()

    def keep_ready(self) -> None:
        """Fork spare processes again."""
        self._warm = self._options.warm
        self.refill_at_s = self._clock() + _QUIET_S

    # --- from the fork server -----------------------------------------------

    def receive(self) -> wire.FromServer | None:
        """Return the server's next news, after adapting to it. Raises EOFError when the server is gone."""
        packet = self._server.receive()
        if packet is None:
            return None
        match packet.message:
            case wire.Forked() as forked if packet.fds:
                self._welcome(forked, packet.fds)
            case wire.Forked(pid=pid):
                # The new process's socket is closed, so the process ends by itself.
                self._forks_asked = max(0, self._forks_asked - 1)
                return wire.ForkFailed(f"{os.strerror(errno.EMFILE)} in the rank, for process {pid}")
            case wire.ForkFailed():
                self._forks_asked = max(0, self._forks_asked - 1)
            case wire.Imported(application, generation):
                self.generation = generation
                self._imports_asked.discard(application)
                self._imported.add(application)
                for link in self.idle:
                    self.discard(link)
                self.idle.clear()
        return packet.message

    def _welcome(self, forked: wire.Forked, fds: tuple[int, ...]) -> None:
        self._server_restarts.forget()
        self._forks_asked = max(0, self._forks_asked - 1)
        link = self._make_link(forked, fds, self._options.queue_limit_bytes)
        self.links[link.serial] = link
        self._watch.watch(link)
        if forked.generation < self.generation:
            self.discard(link)
        else:
            self.idle.append(link)

    def lose_server(self) -> list[WorkerLink]:
        """Return the processes of a server that is gone, which must be reaped."""
        self._watch.forget_server()
        self.is_given_up = True
        self.idle.clear()
        lost = [link for link in self.links.values() if not link.is_given]
        for link in lost:
            del self.links[link.serial]
            link.signal(signal.SIGKILL)
        self.is_worth_a_restart = self._server_restarts.next_delay_s() is not None
        return lost

    def restart_server(self) -> None:
        self._server.restart()
        self.is_given_up = False
        self.generation = 0
        self._forks_asked = 0
        self._imported.clear()
        self._watch.watch_server(self._server.fileno())

    def close(self) -> None:
        """End all processes and wait until they are gone (bounded)."""
        for link in self.links.values():
            link.signal(signal.SIGKILL)
            link.close()
        self._server.stop()
        self.links.clear()
        if self.giving is not None:
            self.giving.close()
