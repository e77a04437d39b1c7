"""Failure detection: ranks watch each other in a ring, and as processes on their host.

Every BEAT_S, each rank sends a beat to the next rank and checks whether the previous rank was heard. So a
hanging rank (stopped, stuck in a system call or in a loop) is noticed by exactly one other rank, at the cost
of one small message per second and rank, on any number of hosts. If the previous rank is late, the ranks
before it might hang, too, without being noticed: so they are asked for beats as well (`sought`), and the
silence of each is measured. If all ranks hang, the launching process notices it by a file that each rank on
the launching process's host touches again and again. (If one of these ranks lives, this rank notices the
silence of the others.) The rank that beats first makes the file, when the world has come up.

A lost rank is left out of the ring (`go_on`).

Guarantee: time in which the watching rank itself did not run does not count. So after the sleep of a laptop,
or a pause of the whole service, no rank is accused.
"""

from __future__ import annotations

import contextlib
import fcntl
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

#: greatest time that one check adds to a rank's silence: in a longer gap between checks, the watching rank
#: itself did not run
_LOOK_MAX_S = 1.5


class Watch:
    """The duration of a rank's silence, counting only time in which the watching process ran."""

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = math.inf if timeout_s is None else timeout_s
        self._silent_s = 0.0
        self._looked_s: float | None = None

    def heard(self) -> None:
        self._silent_s = 0.0

    @property
    def is_late(self) -> bool:
        """Return whether the watched rank was silent for several heartbeats at the last check."""
        return self._silent_s > _LATE_S and self._timeout_s < math.inf

    def is_silent(self, now: float) -> bool:
        """Tell whether the rank is silent for too long; must be called at least once a second."""
        if self._looked_s is not None:
            self._silent_s += min(max(0.0, now - self._looked_s), _LOOK_MAX_S)
        self._looked_s = now
        return self._silent_s > self._timeout_s


BEAT_S = 1.0
#: silence after which a rank counts as late
_LATE_S = 2.5 * BEAT_S
_REACH_GROWS_BY = 8
_NO_FILE = -1


#: patience with a change of ranks if ranks may be silent for ever
_PATIENCE_S = 30.0


def patience_of(timeout_s: float | None) -> float:
    """Return how long to wait for a new generation; `timeout_s`: longest silence of a rank."""
    return _PATIENCE_S if timeout_s is None else timeout_s


class Ring:
    """The ring of members as one rank sees it: to which ranks it sends beats, and which ranks it watches."""

    def __init__(self, rank: int, members: Sequence[int], timeout_s: float | None = None) -> None:
        self._rank = rank
        self.timeout_s = timeout_s
        #: descriptor of the file to touch; None: the file may still be made
        self._pulse: int | None = None
        self._members: tuple[int, ...] = ()
        #: watched rank -> its watch, nearest rank first; more than one if the nearest ranks are late
        self._watches: dict[int, Watch] = {}
        self.next_beat_s = -math.inf
        self.go_on(members)

    def go_on(self, members: Sequence[int]) -> None:
        """Go on with the given members, in ascending order, which include this rank."""
        self._members = tuple(members)
        place = members.index(self._rank)
        self.next_rank = members[(place + 1) % len(members)]
        #: the other members, from the previous rank to the next rank
        self._before = tuple(members[place - distance] for distance in range(1, len(members)))
        self._watch_so_many(sum(each in self._watches for each in self._before))

    def _watch_so_many(self, reach: int) -> None:
        """Watch the `reach` ranks before this one, at least one; silences measured so far go on."""
        watched = self._before[: max(1, reach)]
        self._watches = {each: self._watches.get(each) or Watch(self.timeout_s) for each in watched}

    @property
    def watched_rank(self) -> int:
        """Return the previous rank in the ring, which sends beats unasked; this rank, if it is alone."""
        return next(iter(self._watches), self._rank)

    @property
    def sought(self) -> set[int]:
        """Return the watched ranks that must be asked for beats."""
        return self._watches.keys() - {self.watched_rank}

    def leave_out(self, rank: int) -> None:
        """Stop watching a lost rank."""
        if rank in self._members:
            self.go_on([each for each in self._members if each != rank])

    def heard(self, ranks: Container[int]) -> None:
        """Record that a message came from each of `ranks`."""
        for rank, watch in self._watches.items():
            if rank in ranks:
                watch.heard()

    def beat(self, now: float) -> list[int]:
        """Show the launching process that this rank lives; return the ranks silent for too long."""
        self.next_beat_s = now + BEAT_S
        if self._pulse is None:
            self._pulse = _pulse_file()
        if self._pulse != _NO_FILE:
            _touch(self._pulse)
        silent = [rank for rank, watch in self._watches.items() if watch.is_silent(now)]
        self._look_as_far_as_needed()
        return silent

    def _look_as_far_as_needed(self) -> None:
        """Watch only the previous rank, but more if all watched ranks are late: a whole host may hang."""
        late = [watch.is_late for watch in self._watches.values()]
        if late and not late[0]:
            self._watch_so_many(1)
        elif all(late):
            self._watch_so_many(_REACH_GROWS_BY * len(late))


def _pulse_file() -> int:
    """Open the file that shows a launching process on this host that its world has come up and lives.

    The rank that beats first makes the file, because any other rank may fail before its first beat.
    """
    path = os.environ.get(EXIT_FILE_VARIABLE)
    if path is None:
        return _NO_FILE
    try:
        return os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_CREAT, 0o600)
    except OSError:
        return _NO_FILE  # the launching process is on another host


def _touch(pulse: int) -> None:
    """Renew the file's time of change, which needs no room on its disk; write RUNNING into an empty file."""
    if os.fstat(pulse).st_size == 0:
        with contextlib.suppress(OSError):  # no room: a later beat tries again
            fcntl.flock(pulse, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                if os.fstat(pulse).st_size == 0:  # a rank that leaves may have written its exit code
                    os.pwrite(pulse, RUNNING, 0)
            finally:
                fcntl.flock(pulse, fcntl.LOCK_UN)
    os.utime(pulse)


#: environment variable with the user's name for the host of a newcomer
HOST_NAME_VARIABLE = "MALLOB_PY_HOST_NAME"


def host_name() -> str:
    """Return this host's name for people; with Slurm, the node's name."""
    env = os.environ
    return env.get(HOST_NAME_VARIABLE) or env.get("SLURMD_NODENAME") or socket.gethostname()


def process_here(pid: int | None = None) -> RankProcess:
    """Return the identity of this process, or of process `pid` on this host."""
    own = os.getpid()
    return RankProcess(pid or own, host_name(), _namespace(), _began(str(pid or own)) or 0)


class LocalPeers:
    """The processes of the other ranks on this host: deaths are noticed at once, and hanging ranks killed.

    A dying rank sends nothing, and MPI does not report its death. But a process's descriptor (`pidfd`)
    becomes readable at the process's end. So each rank holds such a descriptor for every other rank on its
    host, and reports a death to all ranks. Only the end of a whole host is noticed by missing beats.

    A hanging rank is killed by the other ranks of its host: so its locks, such as that of a client's folder,
    are released, and the rank cannot come back at a bad moment.

    A process id may be reused, and means nothing in another namespace (containers). So a peer counts as local
    only if the process with its id began at the time that the peer has reported.
    """

    def __init__(self, rank: int, processes: Mapping[int, RankProcess], hosts: Mapping[int, int]) -> None:
        self._host, self._namespace = hosts[rank], _namespace()
        self._epoll = select.epoll()
        #: rank -> descriptor of its process
        self._pidfds: dict[int, int] = {}
        self._rank_of: dict[int, int] = {}
        #: ranks whose end is noticed only by their silence, because no descriptor was free
        self._unwatched: dict[int, RankProcess] = {}
        #: ranks that had ended when they were added
        self._gone: list[int] = []
        for peer, process in processes.items():
            if peer != rank:
                self.add(peer, process, hosts[peer])

    def add(self, peer: int, process: RankProcess, host: int) -> None:
        """Watch a rank's process, if it is on this host."""
        if host == self._host and process.namespace == self._namespace and peer not in self._pidfds:
            self._watch(peer, process)

    def _watch(self, peer: int, process: RankProcess) -> None:
        try:
            descriptor = _pidfd_of(process)
        except OSError:  # no descriptor is free, so only the peer's silence shows its end
            self._unwatched[peer] = process
            return
        if descriptor is None:
            self._gone.append(peer)
            return
        self._pidfds[peer] = descriptor
        self._rank_of[descriptor] = peer
        self._epoll.register(descriptor, select.EPOLLIN)

    def fileno(self) -> int:
        """Return a descriptor that is readable when a rank has ended since the last `take_dead`."""
        return self._epoll.fileno()

    def take_dead(self) -> list[int]:
        """Return the ranks whose processes have ended since the last call."""
        dead, self._gone = self._gone, []
        for descriptor, _ in self._epoll.poll(0):
            dead.append(self._rank_of[descriptor])
            self._forget(dead[-1])
        return dead

    def is_seen(self, peer: int) -> bool:
        """Tell whether a peer's process is on this host, and is not known to have ended."""
        if (process := self._unwatched.get(peer)) is None:
            return peer in self._pidfds
        if _has_ended(process):
            del self._unwatched[peer]
        return peer in self._unwatched

    def end(self, peer: int) -> None:
        """Kill a hanging rank of this host; leave ranks of other hosts alone."""
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


#: in /proc/PID/stat: states of ended processes; position of the time of start, counted from the state
_ENDED, _BEGAN = "ZX", 19


def _namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _pidfd_of(process: RankProcess) -> int | None:
    """Return a descriptor of a process; None: it has ended. Raises OSError."""
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
    """Return the time when a process began; None: it has ended. Raises OSError if that is unknown now."""
    fields = _stat_of(process)
    return int(fields[_BEGAN]) if fields else None


def _has_ended(process: RankProcess) -> bool:
    """Tell whether a process has ended, even if it is not reaped; return False if that is unknown now."""
    try:
        fields = _stat_of(str(process.pid))
    except OSError:
        return False
    return not fields or fields[0] in _ENDED or int(fields[_BEGAN]) != process.began


def _stat_of(process: str) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; []: the process has ended. Raises OSError."""
    try:
        # The file is read without a buffer, since each rank reads the files of all other ranks of its host at
        # its start.
        with open(f"/proc/{process}/stat", "rb", buffering=0) as stat:
            return stat.read().decode("ascii", "replace").rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return []


class Lookout:
    """One rank's watch over others: their silence, their ended processes, and the end of the launcher.

    `send(rank, beat)` sends a beat to another rank.
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
        """Have `beat` raise LauncherGone when `launcher` has ended."""
        self._launcher = launcher

    def is_seen(self, rank: int) -> bool:
        """Tell whether a rank's process is known to live; of ranks on other hosts, that is never known."""
        return self._peers is not None and self._peers.is_seen(rank)

    def beat(self, now: float, *, is_asked_to_end: bool) -> Iterator[int]:
        """Send beats; yield the ranks that are silent for too long. Raises LauncherGone."""
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
        """Return the ranks of this host whose processes have ended since the last call."""
        return self._peers.take_dead() if self._peers is not None else ()

    # --- changes -----------------------------------------------------------------------------

    def expect(self, it: Expect) -> None:
        """Expect messages from a newcomer, and watch its process."""
        self._transport.welcome(it.rank, it.host)
        if self._peers is not None:
            self._peers.add(it.rank, it.process, it.host)

    def go_on(self, members: Sequence[int]) -> None:
        self.ring.go_on(members)

    def bury(self, rank: int) -> None:
        """Stop sending to a lost rank, and kill its process if it is on this host."""
        self._transport.give_up_on(rank)
        self.ring.leave_out(rank)
        if self._peers is not None:
            self._peers.end(rank)
