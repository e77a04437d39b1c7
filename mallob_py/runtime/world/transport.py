"""The transport: bytes between ranks over MPI, without ever blocking the event loop.

One thread per rank uses the transport, in turns: `wake` (if the doorbell rang), `receive`, handle the
messages, with any number of `send`s, then wait for `doorbell` and other descriptors, at most as long as
`park_timeout_s` (which flushes) allows.

Two channels, each a duplicated communicator: CONTROL for protocol messages, BULK for large
data. Messages from one rank to another arrive exactly once and in the order of sending
within a channel; between the channels no order is promised.

Flow control: per peer and channel, at most UNACKNOWLEDGED_MAX messages are on the way that the peer has not
received; further messages wait in a queue for that peer. Reason: MPICH keeps small messages in memory cells
of one pool per sender (64 cells by default) until they are received, so a single rank that does not receive
would cut the sender off from all peers of its host. A completed send proves nothing, because the message may
still be in its cell; but every ACKNOWLEDGED_EVERY-th send is synchronous, and completes when its message and
all earlier messages are received.

Long control messages travel in pieces: between two pieces, messages from and to other ranks have their turn,
and each piece shows that its sender lives (`take_heard`). While MPI has not completed an incoming message,
only later messages of the same sender wait. A peer whose queue here exceeds WAITING_BYTES_MAX does not take
its messages any more and counts as lost. Senders of dispensable messages should check `is_congested`.

Doorbell rules (see doorbell.py): ring after the send, once per peer and turn; ring again when a delayed send
completes, since only then the peer can see the message; after a ring, look for messages several times,
because one look may only run MPI's progress; while sends are unfinished, wake up soon without a ring, since
this rank must run MPI's progress.

Failed peers: an error of a send, or of a fault-tolerant MPI on any call, marks the peer as lost (`take_lost`,
`how_lost`); so does a call of `lose`. Messages queued for a lost peer are dropped, further sends to it are
ignored, and nothing waits for it: the remaining ranks continue with the same communicators. Only collective
calls are no longer possible, so ranks leave by messages.

Ranks that joined later are not in MPI's world: they are reached by links (`links.py`). If the loss of a rank
must be survived, all ranks of other hosts are reached by links, too. Reason: when a connection between hosts
breaks, MPICH 5 crashes at the next send to the other host (UCX), or aborts as soon as MPI looks at its
network (OFI); so the death of a rank would end all ranks that have not heard of it, and the death of a host
would end all ranks. A link reports the loss at once instead. If links are impossible, the loss of a rank ends
all ranks, unless the user rules that out (`RankLoss`). Within a host MPICH uses shared memory, which survives
the death of a rank.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator

from mallob_py.protocol.rank_messages import Place
from mallob_py.runtime.notices import tell
from mallob_py.runtime.world.carrier import DOES_NOT_READ, WAITING_BYTES_MAX, Carrier
from mallob_py.runtime.world.doorbell import Doorbell
from mallob_py.runtime.world.envelope import Arrival, Channel
from mallob_py.runtime.world.links import MESSAGE_BYTES_MAX, SECRET_BYTES, LinkError, Links
from mallob_py.runtime.world.mpi import LaunchError, OthersRefused, RankLoss, prepare_mpi
from mallob_py.runtime.world.session_folder import PrivateFolder, open_session_folder

prepare_mpi()  # call this before the import, which initialises MPI
from mpi4py import MPI  # noqa: E402

#: environment variable (for tests): number of consecutive ranks that count as ranks of the same host
RANKS_PER_HOST_VARIABLE = "MALLOB_PY_RANKS_PER_HOST"

UNACKNOWLEDGED_MAX = 16
ACKNOWLEDGED_EVERY = 8
#: greatest size of one piece of a control message
PIECE_BYTES = 64 << 10
#: greatest number of ranks on several hosts that are linked with each other although no option asks for it
LINKED_RANKS_MAX = 1000
#: tags of whole messages and last pieces, of pieces followed by another piece, and of a sender's last message
_WHOLE, _MORE, _LAST = 0, 1, 2
#: number of checks in a row (channels in turn) without a message after which the inbox counts as empty
EMPTY_LOOKS = 3
#: longest time between two checks for messages without a ring: a ring may be lost
_LOOK_INTERVAL_S = 0.05
#: size up to which MPI sends messages eagerly (Open MPI: 4 KiB with header), so that receiving does not wait
_EAGER_SIZE_BYTES = 4000

_PENDING_PARK_MIN_S = 0.0001
_PENDING_PARK_MAX_S = 0.001
#: time after which a peer that has received no message probably hangs
HUNG_AFTER_S = 1.0
_HUNG_PARK_S = 0.08
#: shortest and longest wait if rings can be lost
_REMOTE_PARK_MIN_S = 0.02
_REMOTE_PARK_MAX_S = 0.08
#: shortest and longest wait without a doorbell
_BLIND_PARK_MIN_S = 0.00005
_BLIND_PARK_MAX_S = 0.001
#: time after a ring by UDP during which the announced message is expected at any moment
_ALERT_S = 0.001
_ALERT_PARK_S = 0.00005
_CLOSE_POLL_S = 0.0002


#: arrival that stands for a piece that completes no message, or for a message whose reception has begun
_PIECE = Arrival(-1, Channel.CONTROL, b"")


class TransportError(Exception):
    """Error: MPI failed, and no failed peer explains it."""


class _Lane:
    """The messages on their way to one peer on one channel."""

    __slots__ = (
        "comm",
        "dest",
        "in_flight",
        "since_synchronous",
        "stands_since_s",
        "unacknowledged",
        "waiting",
        "waiting_bytes",
    )

    def __init__(self, comm: MPI.Intracomm, dest: int) -> None:
        self.comm = comm
        self.dest = dest
        #: (unfinished send, number of messages that its completion acknowledges)
        self.in_flight: deque[tuple[MPI.Request, int]] = deque()
        #: (waiting message, its tag)
        self.waiting: deque[tuple[bytes | bytearray | memoryview, int]] = deque()
        self.waiting_bytes = 0
        self.unacknowledged = 0
        self.since_synchronous = 0
        #: time when an unfinished send was first checked after the last send had finished; inf: not checked
        #: since
        self.stands_since_s = math.inf

    def is_open(self) -> bool:
        return self.unacknowledged < UNACKNOWLEDGED_MAX

    def wait(self, data: bytes | bytearray | memoryview, tag: int) -> None:
        self.waiting.append((data, tag))
        self.waiting_bytes += len(data)

    def post_next(self) -> None:
        data, tag = self.waiting.popleft()
        self.waiting_bytes -= len(data)
        self.post(data, tag)

    def post(self, data: bytes | bytearray | memoryview, tag: int) -> None:
        self.unacknowledged += 1
        self.since_synchronous += 1
        if self.since_synchronous == ACKNOWLEDGED_EVERY:
            self.since_synchronous = 0
            self.in_flight.append((self.comm.Issend([data, MPI.BYTE], self.dest, tag), ACKNOWLEDGED_EVERY))
            return
        request = self.comm.Isend([data, MPI.BYTE], self.dest, tag)
        if self.in_flight or not request.Test():
            self.in_flight.append((request, 0))

    def retire(self) -> bool:
        """Forget finished sends, oldest first; return whether any had finished."""
        in_flight = self.in_flight
        before = len(in_flight)
        while in_flight and in_flight[0][0].Test():
            self.unacknowledged -= in_flight.popleft()[1]
        if len(in_flight) == before:
            return False
        self.stands_since_s = math.inf
        return True

    def is_stuck(self, now: float) -> bool:
        """Return whether the peer has received nothing for HUNG_AFTER_S."""
        self.stands_since_s = min(self.stands_since_s, now)
        return now - self.stands_since_s >= HUNG_AFTER_S


class _Inbox:
    """The receiving end of a channel, with the messages that are being received.

    `coming`: sender -> (request, data, tag) of incomplete messages that MPI is receiving, and of messages
    after them. `pieces`: sender -> the pieces of its incomplete message so far.
    """

    __slots__ = ("channel", "coming", "comm", "pieces")

    def __init__(self, channel: Channel, comm: MPI.Intracomm) -> None:
        self.channel = channel
        self.comm = comm
        self.coming: dict[int, deque[tuple[MPI.Request, bytearray, int]]] = {}
        self.pieces: dict[int, bytearray] = {}

    def forget(self, source: int) -> Iterator[MPI.Request | bytearray]:
        """Expect nothing more from rank `source`; yield the objects that MPI may still use."""
        self.pieces.pop(source, None)
        for request, data, _ in self.coming.pop(source, ()):
            yield request
            yield data

    def put_together(self, source: int, data: bytes | bytearray, tag: int) -> Arrival:
        """Return the whole message, or `_PIECE` if more pieces follow. Raises OverflowError."""
        if tag == _WHOLE and source not in self.pieces:
            return Arrival(source, self.channel, data)
        whole = self.pieces.setdefault(source, bytearray())
        whole += data
        if len(whole) > MESSAGE_BYTES_MAX:
            raise OverflowError
        if tag == _MORE:
            return _PIECE
        return Arrival(source, self.channel, self.pieces.pop(source))


class Transport(Carrier):
    """The transport of a rank of MPI's world. Creation and `close` are collective over `comm`."""

    def __init__(self, comm: MPI.Intracomm, rank_loss: RankLoss = RankLoss.RESTART) -> None:
        """Set up both channels. Raises LaunchError, or OthersRefused if another rank raises LaunchError."""
        rank, hosts = comm.Get_rank(), _hosts(comm)
        super().__init__(rank, dict(enumerate(hosts)), open_session_folder(comm, hosts), Links(rank))
        #: number of ranks in MPI's world
        self.size = comm.Get_size()
        #: the ranks reached by MPI, including this one
        self._by_mpi = frozenset(range(self.size))
        #: consequence of a rank's loss: RESTART or SURVIVE
        self.rank_loss = rank_loss
        if rank_loss is not RankLoss.RESTART:
            self.rank_loss = RankLoss.SURVIVE
            if len(set(hosts)) > 1:
                self._link_hosts(comm, hosts, rank_loss is RankLoss.SURVIVE)
        channels = [comm.Dup() for _ in Channel]
        for each in channels:
            each.Set_errhandler(MPI.ERRORS_RETURN)
        self.doorbell = Doorbell.hang(comm, hosts, self.folder.path, self._by_mpi)
        self._inboxes = [_Inbox(channel, channels[channel]) for channel in Channel]
        self._lanes = [{dest: _Lane(each, dest) for dest in self._by_mpi} for each in channels]
        self._busy: dict[tuple[Channel, int], _Lane] = {}
        self._owed: set[int] = set()
        #: peers that have sent their last message
        self._left: set[int] = set()
        #: sends to lost peers, and unfinished receptions from them, kept since MPI may still use their data
        self._abandoned: list[MPI.Request | bytearray] = []
        self._status = MPI.Status()
        self._buffer = bytearray(_EAGER_SIZE_BYTES)
        self._view = memoryview(self._buffer)
        self._stopped_early = False
        #: time from which `receive` must look for messages even without a ring
        self._look_at_s = -math.inf
        self._alert_until_s = 0.0
        self._park_s = _BLIND_PARK_MIN_S

    # --- sending

    def send(self, dest: int, data: bytes) -> None:
        """Send on the control channel. `data` must not change afterwards."""
        if dest not in self._by_mpi:
            super().send(dest, data)
            return
        if len(data) <= PIECE_BYTES:
            self._send(Channel.CONTROL, dest, data)
            return
        if len(data) > MESSAGE_BYTES_MAX:
            raise ValueError(f"a control message of {len(data)} bytes")
        view = memoryview(data)
        last = (len(data) - 1) // PIECE_BYTES * PIECE_BYTES
        for start in range(0, last, PIECE_BYTES):
            self._send(Channel.CONTROL, dest, view[start : start + PIECE_BYTES], _MORE)
        self._send(Channel.CONTROL, dest, view[last:])

    def send_bulk(self, dest: int, data: bytes | bytearray | memoryview) -> None:
        """Send on the bulk channel. `data` must not change before it is sent."""
        if dest not in self._by_mpi:
            super().send_bulk(dest, data)
        else:
            self._send(Channel.BULK, dest, data)

    def _waiting_bytes(self, dest: int) -> int:
        """Return the number of bytes that wait for a rank; if reached by MPI, on the control channel only."""
        if dest not in self._by_mpi:
            return super()._waiting_bytes(dest)
        return self._lanes[Channel.CONTROL][dest].waiting_bytes

    def flush(self) -> float:
        """Ring the ranks that got messages since the last flush; return how long links need no flush [s]."""
        for peer in self._owed:
            self.doorbell.ring(peer)
        self._owed.clear()
        return self.links.flush() if self.links.is_used else math.inf

    def progress(self) -> None:
        """Forget finished sends, and start the sends that waited for them."""
        for key, lane in list(self._busy.items()):
            try:
                self._advance(lane)
            except MPI.Exception as error:
                self._blame(error, lane.dest)
            if not lane.in_flight and not lane.waiting:
                self._busy.pop(key, None)

    def has_pending(self) -> bool:
        """Return whether MPI has work for this rank: unfinished sends, or a large message half received."""
        return bool(self._busy) or self._is_receiving()

    def _is_receiving(self) -> bool:
        control, bulk = self._inboxes
        return bool(control.coming or bulk.coming)

    # --- receiving

    def may_have_news(self) -> bool:
        """Return whether `receive` may have a message although no peer has rung the doorbell."""
        return (
            self._stopped_early
            or self.links.is_used
            or self.has_pending()
            or not self.doorbell.available
            or self.doorbell.has_remote_peers
            or time.monotonic() >= self._look_at_s
        )

    def receive(self, limit: int = 256) -> Iterator[Arrival]:
        """Yield the messages that have arrived, at most about `limit`; the caller may send meanwhile."""
        self._stopped_early = True  # stays True if the caller breaks off the iteration
        if self.links.is_used:
            yield from self._receive_by_links()
        self.progress()
        taken = empty_looks = 0
        inbox, other = self._inboxes
        while empty_looks < EMPTY_LOOKS and taken < limit:
            empty_looks += 1
            arrival = self._look(inbox)
            inbox, other = other, inbox
            if arrival is not None:
                empty_looks = 0
                taken += 1
                if arrival is not _PIECE:
                    yield arrival
        self._stopped_early = taken >= limit
        self._look_at_s = time.monotonic() + _LOOK_INTERVAL_S
        if taken:
            self._park_s = 0.0
        if self._busy:
            self.progress()

    # --- parking

    def descriptors(self) -> tuple[int, ...]:
        """Return the descriptors to wait for; when the first is readable, `wake` must be called."""
        return self.doorbell.fileno(), *super().descriptors()

    def wake(self) -> None:
        """Empty the doorbell, which has rung; after a ring by UDP, expect a message."""
        if self.doorbell.drain():
            self._alert_until_s = time.monotonic() + _ALERT_S

    def park_timeout_s(self, wanted_s: float) -> float:
        """Flush; return how long the loop may wait for descriptors, at most `wanted_s`."""
        wanted_s = min(wanted_s, self.flush())
        if self._stopped_early or self._lost_news:
            return 0.0
        if self._alert_until_s and time.monotonic() < self._alert_until_s:
            return min(wanted_s, _ALERT_PARK_S)
        if self.has_pending():
            shortest_s, longest_s = _PENDING_PARK_MIN_S, _PENDING_PARK_MAX_S
            if self.doorbell.available and self._waits_for_hung_peers():
                shortest_s = longest_s = _HUNG_PARK_S
        elif not self.doorbell.available:
            shortest_s, longest_s = _BLIND_PARK_MIN_S, _BLIND_PARK_MAX_S
        elif self.doorbell.has_remote_peers:
            shortest_s, longest_s = _REMOTE_PARK_MIN_S, _REMOTE_PARK_MAX_S
        else:
            self._park_s = 0.0
            return wanted_s
        # The wait doubles with every turn without news; received messages and finished sends reset it.
        self._park_s = min(max(2 * self._park_s, shortest_s), longest_s)
        return min(wanted_s, self._park_s)

    def _waits_for_hung_peers(self) -> bool:
        """Tell whether all pending messages are for peers that receive nothing."""
        now = time.monotonic()
        return all(lane.is_stuck(now) for lane in self._busy.values()) and not self._is_receiving()

    # --- failed peers

    def give_up_on(self, peer: int) -> None:
        """Stop sending to a peer that other ranks have lost; `take_lost` does not report the peer."""
        is_news = peer not in self._lost
        super().give_up_on(peer)
        if not is_news or peer not in self._by_mpi:
            return
        for channel in Channel:
            lane = self._lanes[channel][peer]
            self._abandoned.extend(request for request, _ in lane.in_flight)
            lane.in_flight.clear()
            lane.waiting.clear()
            lane.waiting_bytes = 0
            self._abandoned.extend(self._inboxes[channel].forget(peer))
            self._busy.pop((channel, peer), None)
        if peer in self._owed:  # the peer may be about to leave: it must notice the messages sent so far
            self.doorbell.ring(peer)
            self._owed.discard(peer)

    def answer_lost(self, peer: int, data: bytes) -> None:
        """Answer a message from a peer that was given up on: the peer must learn that it was lost."""
        if peer not in self._by_mpi:
            super().answer_lost(peer, data)
            return
        with contextlib.suppress(MPI.Exception):
            comm = self._inboxes[Channel.CONTROL].comm
            self._abandoned.append(comm.Isend([data, MPI.BYTE], peer, _WHOLE))
            self.doorbell.ring(peer)

    # --- leaving

    def _hang_up(self) -> None:
        super()._hang_up()
        self.doorbell.close()

    def _flush_to_all(self, deadline_s: float) -> None:
        with contextlib.suppress(TransportError):
            self._say_last(self._reached_by_mpi(), deadline_s)
            super()._flush_to_all(deadline_s)

    # --- inner methods

    def _link_hosts(self, comm: MPI.Intracomm, hosts: tuple[int, ...], must: bool) -> None:
        """Connect all ranks of different hosts by links (collective over `comm`).

        If that fails: with `must`, raises LaunchError, or OthersRefused if another rank raises LaunchError;
        else all ranks will end when one is lost.
        """
        here = frozenset(peer for peer in self._by_mpi if hosts[peer] == hosts[self.rank])
        own, problems = None, [f"there are {self.size} ranks on several hosts"]
        if must or self.size <= LINKED_RANKS_MAX:
            own = _link(comm, self.links, self.folder, here)
            problems = [each for each in comm.allgather(own) if each is not None]
        if not problems:
            self._by_mpi = here
            return
        self.links.close()
        if must:
            self.folder.remove()
            if own is None:
                raise OthersRefused
            raise LaunchError(f"{own}; --rank-loss restart needs no such connections")
        self.links = Links(self.rank)
        self.rank_loss = RankLoss.RESTART
        if self.rank == 0:
            tell(f"{problems[0]}: if a rank is lost, all ranks end, as --rank-loss survive is not given")

    def _meet(self, deadline_s: float) -> bool:
        # MPI_Finalize of MPICH does not flush, so no rank may leave before all ranks have received their
        # messages.
        with contextlib.suppress(TransportError):
            met = self._meet_world(deadline_s)
            return super()._meet(deadline_s) and met
        return False

    def _meet_world(self, deadline_s: float) -> bool:
        """Meet all ranks of MPI's world; return whether all were met. If ranks are lost, the others meet."""
        barrier: MPI.Request | None = None
        while time.monotonic() < deadline_s:
            for _dropped in self.receive():
                pass
            self.flush()
            if barrier is not None and barrier.Test():
                return True
            self._give_up_on_dead()
            if not self.has_pending():
                if self._lost:
                    self._part(deadline_s)
                    return False
                if barrier is None:
                    barrier = self._inboxes[Channel.CONTROL].comm.Ibarrier()
            time.sleep(_CLOSE_POLL_S)
        return False

    def _part(self, deadline_s: float) -> None:
        """Return when all other ranks have received this rank's messages, and sent their last messages."""
        peers = self._reached_by_mpi()
        self._say_last(peers, deadline_s, lambda: peers - self._lost <= self._left)

    def _reached_by_mpi(self) -> set[int]:
        return set(self._by_mpi - self._lost - {self.rank})

    def _say_last(
        self, peers: set[int], deadline_s: float, is_enough: Callable[[], bool] = lambda: True
    ) -> None:
        """Send a last message; return when `peers` have received all messages, and `is_enough` holds."""
        comm = self._inboxes[Channel.CONTROL].comm
        last = {peer: comm.Issend([b"", MPI.BYTE], peer, _LAST) for peer in peers}
        self._owed |= peers
        while time.monotonic() < deadline_s:
            for _dropped in self.receive():
                pass
            self.flush()
            self._give_up_on_dead()
            last = {peer: each for peer, each in last.items() if peer not in self._lost and not each.Test()}
            if not last and not self.has_pending() and is_enough():
                return
            time.sleep(_CLOSE_POLL_S)

    def _send(
        self, channel: Channel, dest: int, data: bytes | bytearray | memoryview, tag: int = _WHOLE
    ) -> None:
        assert dest != self.rank, "messages to oneself do not go through the transport"
        if dest in self._lost:
            return
        lane = self._lanes[channel][dest]
        if lane.waiting or not lane.is_open():
            lane.wait(data, tag)
            if lane.waiting_bytes > WAITING_BYTES_MAX:
                self.lose(dest, DOES_NOT_READ)
            return
        try:
            lane.post(data, tag)
        except MPI.Exception as error:
            self._blame(error, dest)
            return
        self._owed.add(dest)
        if lane.in_flight:
            self._busy[channel, dest] = lane

    def _advance(self, lane: _Lane) -> None:
        if lane.retire():
            self._owed.add(lane.dest)
            self._park_s = 0.0
        while lane.waiting and lane.is_open():
            lane.post_next()
            self._owed.add(lane.dest)

    def _look(self, inbox: _Inbox) -> Arrival | None:
        try:
            return (self._take_coming(inbox) if inbox.coming else None) or self._take(inbox)
        except MPI.Exception as error:
            self._blame(error, None)
            return None

    def _take_coming(self, inbox: _Inbox) -> Arrival | None:
        """Return the next message whose reception has begun and is complete now; None: there is none."""
        for source, queue in inbox.coming.items():
            request, data, tag = queue[0]
            try:
                if not request.Test():
                    continue
            except MPI.Exception as error:
                self._abandoned.extend(inbox.forget(source))
                self._blame(error, source)
                return None
            queue.popleft()
            if not queue:
                del inbox.coming[source]
            return self._hand_over(inbox, source, data, tag)
        return None

    def _hand_over(self, inbox: _Inbox, source: int, data: bytes | bytearray, tag: int) -> Arrival | None:
        self._heard.add(source)
        if tag == _LAST:
            self._left.add(source)
            return _PIECE
        try:
            return inbox.put_together(source, data, tag)
        except OverflowError:
            self.lose(source, f"sent a message of more than {MESSAGE_BYTES_MAX} bytes")
            return None

    def _take(self, inbox: _Inbox) -> Arrival | None:
        status = self._status
        message = inbox.comm.Improbe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)
        if message is None:
            return None
        size_bytes = status.Get_count(MPI.BYTE)
        source = status.Get_source()
        tag = status.Get_tag()
        if size_bytes <= _EAGER_SIZE_BYTES and source not in inbox.coming:
            message.Recv([self._buffer, size_bytes, MPI.BYTE])
            return self._hand_over(inbox, source, bytes(self._view[:size_bytes]), tag)
        # MPI receives a large message in the background; later messages of its sender wait, which keeps the
        # order. A blocking call to receive the message would never return if the sender dies meanwhile.
        data = bytearray(size_bytes)
        request = message.Irecv([data, MPI.BYTE])
        if source not in inbox.coming and request.Test():
            return self._hand_over(inbox, source, data, tag)
        inbox.coming.setdefault(source, deque()).append((request, data, tag))
        return _PIECE

    def _blame(self, error: MPI.Exception, peer: int | None) -> None:
        """Record the failed peers: the peers that MPI names, else the peer of the failed call."""
        failed = self._failed_according_to_mpi() if _says_process_failed(error) else []
        if not failed and peer is not None:
            failed = [peer]
        if not failed and not _says_process_failed(error):
            raise TransportError(f"MPI error without a failed peer: {error}") from error
        for each in failed:
            self.lose(each, "has failed")

    def _failed_according_to_mpi(self) -> list[int]:
        """Return the ranks that a fault-tolerant MPI reports as failed, and have MPI go on receiving."""
        failed: set[int] = set()
        for inbox in self._inboxes:
            group = inbox.comm.Get_failed()
            count = group.Get_size()
            if count:
                mine = inbox.comm.Get_group()
                failed.update(MPI.Group.Translate_ranks(group, list(range(count)), mine))
                mine.Free()
                inbox.comm.Ack_failed(count)
            group.Free()
        return sorted(failed)


def _says_process_failed(error: MPI.Exception) -> bool:
    # MPIs without fault tolerance lack these error classes; there mpi4py gives them no number of their own.
    failed, pending = MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING
    return error.Get_error_class() in {failed, pending} - {MPI.ERR_UNKNOWN, MPI.SUCCESS}


def _hosts(comm: MPI.Intracomm) -> tuple[int, ...]:
    """Return, for each rank in order, the lowest rank on its host (collective)."""
    pretended = int(os.environ.get(RANKS_PER_HOST_VARIABLE) or 0)
    rank = comm.Get_rank()
    if pretended > 0:
        return tuple(comm.allgather(rank // pretended * pretended))
    host = comm.Split_type(MPI.COMM_TYPE_SHARED, rank)
    lowest = host.bcast(rank)
    host.Free()
    return tuple(comm.allgather(lowest))


def _link(comm: MPI.Intracomm, links: Links, folder: PrivateFolder, here: Collection[int]) -> str | None:
    """Link this rank with all ranks not in `here` (collective over `comm`); return the problem, or None."""
    rank = comm.Get_rank()
    secret: bytes = comm.bcast(os.urandom(SECRET_BYTES))
    place, problem = None, None
    try:
        place = links.listen(secret, folder.path, wide=True)
    except LinkError as error:
        problem = str(error)
    places: list[Place | None] = comm.allgather(place)
    try:
        for peer, there in enumerate(places[:rank]):
            if there is not None and peer not in here:
                links.connect(peer, there)
        if all(places):
            links.await_connections([peer for peer in range(rank + 1, len(places)) if peer not in here])
    except LinkError as error:
        problem = str(error)
    return problem
