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

#: time without a new task before spare processes are replaced: forks must not compete with a job tree that
#: grows over many ranks of a host
_QUIET_S = 0.05
#: greatest number of restarts in a row of a fork server that forks nothing; after that, tasks are given up
_SERVER_RESTARTS_MAX = 3


class PoolOptions(msgspec.Struct, frozen=True):
    """The options of a rank's pool of worker processes.

    `warm`: spare processes. `threads`: cores per worker. `reuse_limit_bytes`: a larger process is not used
    again. `max_reads`: greatest number of inputs read at the same time. `kept_*`: number, total size and time
    of processes kept for chains of revisions.
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
        """Return the options of a rank with `pes` PEs: `pes` times the numbers of a rank with one PE."""
        default = cls()
        return cls(
            warm=warm * pes,
            threads=threads,
            kept_max=default.kept_max * pes,
            kept_bytes_max=default.kept_bytes_max * pes,
        )


class Processes:
    """All live processes of a rank. `links`: serial -> process. `idle`: the processes without a task."""

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
        #: number of imports by the server since its start
        self.generation = 0
        #: time when `refill` must be called
        self.refill_at_s = math.inf
        #: whether the server has ended and was not restarted, so that nothing is asked of it
        self.is_given_up = False
        self._forks_asked = 0
        self._server_restarts = RestartLimit(_SERVER_RESTARTS_MAX)
        #: whether a restart may help: not too many servers have died in a row
        self.is_worth_a_restart = True
        #: the socket to give and receive processes; None: processes are not exchanged with other ranks
        self.giving: GivingSocket | None = None
        #: serial of the last process that another rank gave; such serials are negative
        self._given_serial = 0
        #: applications whose import was asked for: an import that a server dies of is not asked for again
        self._imports_asked: set[str] = set()
        self._imported: set[str] = set()

    # --- spare processes ----------------------------------------------------------

    def top_up(self, without_process: int) -> None:
        """Fork processes for the tasks without a process now, and spare processes later."""
        if self.is_given_up:
            return
        self._fork(without_process - self._forks_asked)
        if len(self.idle) + self._forks_asked - without_process < self._warm:
            self.refill_at_s = self._clock() + _QUIET_S

    def refill(self, without_process: int) -> None:
        """Fork processes for the tasks without a process, and missing spare processes."""
        self.refill_at_s = math.inf
        if not self.is_given_up:
            self._fork(self._warm + without_process - len(self.idle) - self._forks_asked)

    def _fork(self, count: int) -> None:
        if count > 0:
            self._forks_asked += count
            self._server.send(wire.Fork(count))

    def take_back(self, link: WorkerLink, private_bytes: int) -> None:
        """Keep a process as spare after its task if it is as good as a new process, else end it."""
        stale = link.generation < self.generation or link.is_given
        full = len(self.idle) > self._warm
        if link.dead or stale or full or private_bytes > self._options.reuse_limit_bytes or link.has_outgoing:
            self.discard(link)
        else:
            self.idle.append(link)

    def forget_idle(self, link: WorkerLink) -> None:
        """Remove a dying process from the idle processes."""
        if link in self.idle:
            self.idle.remove(link)

    def discard(self, link: WorkerLink) -> None:
        """Kill a process; its fork server will report an end that concerns no task."""
        link.signal(signal.SIGKILL)
        self.release(link)

    def discard_all(self, links: Iterable[WorkerLink]) -> int:
        """Kill processes; return about how many bytes their ends free."""
        freed_bytes = 0
        for link in links:
            freed_bytes += private_bytes_of(link.pid)
            self.discard(link)
        return freed_bytes

    def release(self, link: WorkerLink) -> None:
        """Close the link of a process that has ended, or ends now."""
        self._watch.forget(link)
        if link.is_given:  # no report of its exit will come, since another rank's server forked it
            self.links.pop(link.serial, None)
        link.close()

    # --- exchange with other ranks of the host ------------------------------------

    def exchange(self, giving: GivingSocket) -> None:
        """Exchange processes with other ranks of the host from now on."""
        self.giving = giving
        self._watch.watch_given(giving.fileno())

    def give(self, link: WorkerLink, rank: int, given: Given) -> None:
        """Give a process to another rank; a process that does not arrive ends."""
        assert self.giving is not None, "no socket to give processes to other ranks"
        unread, unsent = link.under_way
        given = msgspec.structs.replace(given, pid=link.pid, unread=unread, unsent=unsent)
        self._watch.forget(link)
        del self.links[link.serial]
        self.giving.send(rank, given, link.descriptors)
        link.close()

    def pass_on(
        self, given: Given, descriptors: tuple[int, ...], rank: int, receiver: tuple[int, int]
    ) -> None:
        """Pass a given process, or the message that there is none, on to the rank that has its worker now."""
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
        """Have the server import an application; return False if this was asked for before."""
        if application in self._imports_asked | self._imported:
            return False
        self._imports_asked.add(application)
        self._server.send(wire.Import(application))
        return True

    def find_applications(self) -> None:
        """Ask the server for the names of all applications; `receive` will return the answer."""
        if not self.is_given_up:
            self._server.send(wire.FindApplications())

    def keep_none_ready(self) -> None:
        """End spare processes and make no new ones, because memory is short."""
        self._warm = 0
        self.refill_at_s = math.inf
        for link in self.idle:
            self.discard(link)
        self.idle.clear()

    def keep_ready(self) -> None:
        """Fork spare processes again."""
        self._warm = self._options.warm
        self.refill_at_s = self._clock() + _QUIET_S

    # --- reports of the fork server -----------------------------------------

    def receive(self) -> wire.FromServer | None:
        """Take in the server's next report, and return it. Raises EOFError at the server's end."""
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
        """Kill and return the processes of a server that has ended; the caller must report their ends."""
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
        """End all processes, and wait for their ends for a bounded time."""
        for link in self.links.values():
            link.signal(signal.SIGKILL)
            link.close()
        self._server.stop()
        self.links.clear()
        if self.giving is not None:
            self.giving.close()
