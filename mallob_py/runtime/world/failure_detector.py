"""Ranks find lost ranks: they watch each other in a ring, those of one host as processes, the launching
process all.

Every BEAT_S, each rank sends a beat to the next one and looks whether the one before has been
heard. A rank that hangs (stopped, stuck in a system call or in a loop) is so noticed by
exactly one other, at the cost of one small message per second and rank, on any number of hosts. Where the
one before is late, those before it might be, too, and nobody would tell: so they are asked for beats as
well (`sought`), and each one's own silence counts. If all hang, the launching process notices, for which each
rank on its host touches a file: as long as one of them lives, it will find out about the others. The first
rank makes that file, when the world has come up.

A rank that is found silent, or lost otherwise, is left out of the ring from then on (`go_on`).

Guarantee: time in which the watcher itself did not run does not count. So a suspended
laptop, or a whole service that is stopped and continued, has nobody accused at wake-up.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import socket
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from mallob_py.launchers import EXIT_FILE_VARIABLE
from mallob_py.protocol.rank_messages import Beat, RankProcess
from mallob_py.runtime.world.mpi import RUNNING

if TYPE_CHECKING:
    from mallob_py.protocol.rank_effects import Expect
    from mallob_py.runtime.world.carrier import Carrier
    from mallob_py.runtime.world.deadlines import Launcher

#: as much as one look may add to a silence: watchers look more often than that, unless they are asleep
_LOOK_MAX_S = 1.5


class Watch:
    """The time for which a rank has been silent, on the watcher's own waking time."""

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = math.inf if timeout_s is None else timeout_s
        self._silent_s = 0.0
        self._looked_s: float | None = None

    def heard(self) -> None:
        self._silent_s = 0.0

    @property
    def is_late(self) -> bool:
        """At the last look, a beat was missing."""
        return self._silent_s > _LATE_S and self._timeout_s < math.inf

    def is_silent(self, now: float) -> bool:
        """Whether the rank is silent, once it is to be heard; to be asked once a second or more often."""
        if self._looked_s is not None:
            self._silent_s += min(max(0.0, now - self._looked_s), _LOOK_MAX_S)
        self._looked_s = now
        return self._silent_s > self._timeout_s


BEAT_S = 1.0
#: who sends beats has hardly ever been silent for so long
_LATE_S = 2.5 * BEAT_S
_REACH_GROWS_BY = 8
_NO_FILE = -1


#: where ranks may be silent for ever
_PATIENCE_S = 30.0


def patience_of(timeout_s: float | None) -> float:
    """Return how long a new generation is waited for, if ranks may be silent for so long."""
    return _PATIENCE_S if timeout_s is None else timeout_s


class Ring:
    """Whom a rank sends beats to, and whom it watches, of these members, ascending."""

    def __init__(self, rank: int, members: Sequence[int], timeout_s: float | None = None) -> None:
        self._rank = rank
        self.timeout_s = timeout_s
        #: of the file that is touched; None as long as it may come
        self._pulse: int | None = None
        self._members: tuple[int, ...] = ()
        #: of those before this rank as many as may be silent, nearest first, and at least one
        self._watches: dict[int, Watch] = {}
        self.next_beat_s = -math.inf
        self.go_on(members)

    def go_on(self, members: Sequence[int]) -> None:
        """These ranks are left, ascending, this one among them."""
        self._members = tuple(members)
        place = members.index(self._rank)
        self.next_rank = members[(place + 1) % len(members)]
        #: the others, from the one before this to the one after it
        self._before = tuple(members[place - distance] for distance in range(1, len(members)))
        self._watch_so_many(sum(each in self._watches for each in self._before))

    def _watch_so_many(self, reach: int) -> None:
        """And at least one; the silence of those that are watched already goes on."""
        watched = self._before[: max(1, reach)]
        self._watches = {each: self._watches.get(each) or Watch(self.timeout_s) for each in watched}

    @property
    def watched_rank(self) -> int:
        """The one before this, which beats by itself; this one if it is alone."""
        return next(iter(self._watches), self._rank)

    @property
    def sought(self) -> set[int]:
        """The ranks that are watched and have to be asked for beats."""
        return self._watches.keys() - {self.watched_rank}

    def leave_out(self, rank: int) -> None:
        """It is lost."""
        if rank in self._members:
            self.go_on([each for each in self._members if each != rank])

    def heard(self, ranks: Container[int]) -> None:
        """Anything has come from these."""
        for rank, watch in self._watches.items():
            if rank in ranks:
                watch.heard()

    def beat(self, now: float) -> list[int]:
        """Show the launching process that we live. Returns the ranks that have been silent for too long."""
        self.next_beat_s = now + BEAT_S
        if self._pulse is None:
            self._pulse = _made_pulse_file() if self._rank == self._members[0] else _found_pulse_file()
        if self._pulse is not None and self._pulse != _NO_FILE:
            os.utime(self._pulse)
        silent = [rank for rank, watch in self._watches.items() if watch.is_silent(now)]
        self._look_as_far_as_needed()
        return silent

    def _look_as_far_as_needed(self) -> None:
        """Only at the nearest unless that is late; much further if all are, as a whole host may hang."""
        late = [watch.is_late for watch in self._watches.values()]
        if late and not late[0]:
            self._watch_so_many(1)
        elif all(late):
            self._watch_so_many(_REACH_GROWS_BY * len(late))


def _made_pulse_file() -> int:
    """Return the file that tells a launching process on this host that its world has come up and lives."""
    path = os.environ.get(EXIT_FILE_VARIABLE)
    if path is None:
        return _NO_FILE
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.write(descriptor, RUNNING)
    except OSError:
        return _NO_FILE  # we are on another host
    return descriptor


def _found_pulse_file() -> int | None:
    """Return the pulse file of this host's world; None if the first rank has not made it."""
    path = os.environ.get(EXIT_FILE_VARIABLE)
    if path is None or not os.path.isdir(os.path.dirname(path)):
        return _NO_FILE
    try:
        return os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return None


#: what the user calls this host, who has had a rank start here
HOST_NAME_VARIABLE = "MALLOB_PY_HOST_NAME"


def host_name() -> str:
    """This host's name for people; with Slurm, that of the node."""
    env = os.environ
    return env.get(HOST_NAME_VARIABLE) or env.get("SLURMD_NODENAME") or socket.gethostname()


def process_here(pid: int | None = None) -> RankProcess:
    """This process, or another one on this host."""
    own = os.getpid()
    return RankProcess(pid or own, host_name(), _namespace(), _began(str(pid or own)) or 0)


class LocalPeers:
    """The other ranks of this host as processes: who dies is heard of at once, and who hangs can be ended.

    A rank that dies says nothing, and MPI does not tell. But the kernel does: a descriptor of a process
    (`pidfd`) becomes readable when that ends, however it does. So each rank holds one of every other rank on
    its host, and whoever hears of a death tells all ranks. Only what ends a whole host at once is left to the
    beats.

    A rank that is found to hang is ended by those on its host: what it holds, such as the lock of a client's
    folder, is free then, and it cannot come back at a bad moment.

    A process id may have been given to another process, and means nothing in another namespace (containers).
    So a peer counts as local only if the process of that id began when the peer says.
    """

    def __init__(self, rank: int, processes: Mapping[int, RankProcess], hosts: Mapping[int, int]) -> None:
        self._host = hosts[rank]
        self._epoll = select.epoll()
        #: by rank
        self._pidfds: dict[int, int] = {}
        self._rank_of: dict[int, int] = {}
        #: those of whose end nobody tells, for want of a descriptor
        self._unwatched: dict[int, RankProcess] = {}
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
            descriptor = _pidfd_of(process)
        except OSError:  # such as for want of descriptors; then its silence has to tell
            self._unwatched[peer] = process
            return
        if descriptor is None:
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
        """Whether it is on this host, and its end has not been heard of, or been there to be seen."""
        if (process := self._unwatched.get(peer)) is None:
            return peer in self._pidfds
        if _has_ended(process):
            del self._unwatched[peer]
        return peer in self._unwatched

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


#: states in /proc/PID/stat, and where that has the time when a process began, counted from the state
_ENDED, _BEGAN = "ZX", 19


def _namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _pidfd_of(process: RankProcess) -> int | None:
    """A descriptor of a process, None if that has ended. Raises OSError."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    is_it = False
    try:
        is_it = _began(str(process.pid)) == process.began
    finally:
        if not is_it:
            os.close(descriptor)
    return descriptor if is_it else None


def _began(process: str) -> int | None:
    """When a process began; None if it is gone. Raises OSError if that cannot be told now."""
    fields = _stat_of(process)
    return int(fields[_BEGAN]) if fields else None


def _has_ended(process: RankProcess) -> bool:
    """Whether it is gone, or nobody has waited for it yet; what cannot be told now has not ended."""
    try:
        fields = _stat_of(str(process.pid))
    except OSError:
        return False
    return not fields or fields[0] in _ENDED or int(fields[_BEGAN]) != process.began


def _stat_of(process: str) -> list[str]:
    """What /proc says of a process, from its state on; nothing if it is gone. Raises OSError."""
    try:
        with open(f"/proc/{process}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return []


class Lookout:
    """One rank's lookout for others: who is silent, whose process is gone, whether the launcher is there.

    `send` tells another rank something.
    """

    def __init__(
        self, transport: Carrier, ring: Ring, peers: LocalPeers | None, send: Callable[[int, Beat], None]
    ) -> None:
        self._transport = transport
        self.ring = ring
        self._peers = peers
        self._send = send
        self._launcher: Launcher | None = None

    def end_with(self, launcher: Launcher) -> None:
        """Have `beat` raise LauncherGone when this one has ended."""
        self._launcher = launcher

    def is_seen(self, rank: int) -> bool:
        """Whether the process of a rank is known to be there still; it never is on another host."""
        return self._peers is not None and self._peers.is_seen(rank)

    def beat(self, now: float, *, is_asked_to_end: bool) -> Iterator[int]:
        """Say that this rank is there; yields those that are silent. Raises LauncherGone."""
        if self._launcher is not None and not is_asked_to_end:
            self._launcher.check()
        ring = self.ring
        ring.heard(self._transport.take_heard())
        silent = ring.beat(now)
        if ring.next_rank != self._transport.rank:
            self._send(ring.next_rank, Beat())
        for rank in ring.sought:
            self._send(rank, Beat(answer=True))
        yield from silent

    def take_dead(self) -> Sequence[int]:
        """The ranks of this host whose processes have ended."""
        return self._peers.take_dead() if self._peers is not None else ()

    # --- changes -----------------------------------------------------------------------------

    def expect(self, it: Expect) -> None:
        """There may be a further rank."""
        self._transport.welcome(it.rank, it.host)
        if self._peers is not None:
            self._peers.add(it.rank, it.process, it.host)

    def go_on(self, members: Sequence[int]) -> None:
        self.ring.go_on(members)

    def bury(self, rank: int) -> None:
        """Nothing more is sent there; should it live and hang, its process must not."""
        self._transport.give_up_on(rank)
        self.ring.leave_out(rank)
        if self._peers is not None:
            self._peers.end(rank)
