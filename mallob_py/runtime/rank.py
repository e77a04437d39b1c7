"""PEs on real hardware: the event loop that ties the protocol to MPI, processes and users.

    drain the inbox -> hear the workers -> serve the desk -> fire timers -> flush -> park

A rank hosts one PE or several (`generation.Placement`). They decide, this loop does: after every input
it executes the effects. It parks at one place (`doorbell.Parking`) for everything that can bring news: the
doorbell of the transport, the worker processes, the desk (on ranks that take jobs in) and
signals. Only this thread touches MPI. Messages between PEs of this rank do not: they wait in
one queue, which keeps their order, and are handled before anything else is looked at.

A *desk* is where jobs come in: the job-file service, or one `solve`. All ranks stop together:
whoever wants to stop tells all others, so nobody is left waiting.

When a rank is lost or leaves, those who are left agree on the next generation (`protocol/generation.py`). A
rank that has *halted* for it only hears of the change: its PEs, its desk and its workers' words wait. In
the new generation, new PEs take over what the old ones had, beside the same transport, processes, files and
desk. Ranks keep their numbers for ever; PEs are numbered anew. In logs a PE has the number that it began
with.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from mallob_py.protocol import PeerViolation
from mallob_py.protocol.balancing import local_rule, shared_rule
from mallob_py.protocol.config import Config
from mallob_py.protocol.effects import (
    AnyEffect,
    BlameHost,
    FetchDescription,
    JobEnded,
    JobOver,
    JobSaved,
    JobSought,
    JobUnheard,
    Log,
    Send,
)
from mallob_py.protocol.generation import (
    AnyChange,
    Begin,
    End,
    EndReason,
    Halt,
    Heard,
    Lost,
    Membership,
    Ordered,
    Strayed,
    Tell,
    TimePassed,
)
from mallob_py.protocol.host_health import Fault, HostHealth
from mallob_py.protocol.messages import AnyMessage, Description, Message, TreeMessage, encode
from mallob_py.protocol.pe import PE
from mallob_py.protocol.placement import Generation, Placement, first_generation
from mallob_py.protocol.rank_messages import (
    AnyWireMessage,
    Beat,
    ChainOver,
    Connected,
    DeskNews,
    Fenced,
    GenerationMessage,
    Joining,
    JoiningMessage,
    Listen,
    Listening,
    Noted,
    Peer,
    Place,
    RankDrained,
    RankDrains,
    RankNews,
    RankProcess,
    RollAnswer,
    RollCall,
    Stop,
    Welcome,
    WorkerPlace,
    decode_wire,
)
from mallob_py.protocol.stimuli import (
    AnyStimulus,
    DescriptionHere,
    DescriptionMissing,
    Drain,
    HostRests,
    JobInterrupted,
    JobParameters,
    JobSubmitted,
    Received,
    SystemEnds,
    TermsChanged,
    Tick,
    WorkerStarted,
)
from mallob_py.protocol.succession import Succession
from mallob_py.runtime import worker_wire as wire
from mallob_py.runtime.growth import Growth, GrowthError
from mallob_py.runtime.heap import HeapKeeper, c_heap
from mallob_py.runtime.memory_watch import MemoryWatch, RankReclaimable
from mallob_py.runtime.notices import tell
from mallob_py.runtime.rank_reports import RankReporter, Roll
from mallob_py.runtime.stimulus_log import StimulusLog
from mallob_py.runtime.workers.hosted import HostedWorkers
from mallob_py.runtime.workers.pool import WorkerPool
from mallob_py.runtime.workers.tasks import (
    ApplicationKnown,
    ReadDone,
    ReadFailed,
    ReadGoesOn,
    ReadStalled,
    WorkerEvent,
)
from mallob_py.runtime.world import newcomer_process
from mallob_py.runtime.world.doorbell import Parking
from mallob_py.runtime.world.envelope import Arrival, Channel, WireError, open_envelope, seal
from mallob_py.runtime.world.failure_detector import LocalPeers, Ring, patience_of, process_here
from mallob_py.runtime.world.joining import Invitation
from mallob_py.runtime.world.links import SECRET_BYTES, LinkError
from mallob_py.runtime.world.mpi import RankLoss
from mallob_py.runtime.world.newcomer_process import NewcomerProcess, Site
from mallob_py.runtime.world.session_folder import session_of
from mallob_py.runtime.world.transfer import Transfer

if TYPE_CHECKING:
    from mallob_py.runtime.world.carrier import Carrier

#: descriptions up to this size travel inside messages
INLINE_BYTES_MAX = 4096
#: at the end, those who have joined are to leave nothing behind on their hosts
_LAST_SHELL_S = 5.0
#: a chunk is 256 KB to be copied: workers, timers and users come first now and then
_TRANSFERS_PER_TURN = 4


_TICK = Tick()
#: the generation whose messages are taken in by a rank that has halted: none
_NO_GENERATION = 0


class Desk(Protocol):
    """Where jobs come in on this rank. `turn` is due when `fileno` is readable or at `deadline_s`."""

    def fileno(self) -> int | None:
        """Asked for once."""

    @property
    def deadline_s(self) -> float: ...

    def turn(self, now: float) -> None: ...

    def job_sought(self, job: int, now: float) -> None: ...

    def job_saved(self, job: int, checkpoint: bytes, now: float) -> None:
        """It may be submitted again with this checkpoint, and goes on from there."""

    def job_ended(self, ended: JobEnded, now: float) -> None: ...

    def worker_event(self, event: WorkerEvent, now: float) -> None: ...

    def hear(self, rank: int, data: bytes, now: float) -> None:
        """The desk of that rank has said this by `Rank.tell_desk`."""

    def close(self) -> None: ...

    def hand_over(self) -> None:
        """The same on a rank that leaves: another one goes on with what is here."""


class Orders(Protocol):
    """Where a user's orders come in, on one rank. `turn` is due as a desk's is."""

    def fileno(self) -> int | None:
        """Asked for once."""

    @property
    def deadline_s(self) -> float: ...

    def turn(self, now: float) -> None:
        """To be called when nothing else is under way: it may have this rank halt."""

    def drained(self, rank: int) -> None:
        """That rank, which is to leave, is ready for that."""

    def world_changed(self) -> None: ...

    def close(self) -> None: ...


class EventSink(Protocol):
    """Where events are logged: those of `pe`, or of the first PE of the rank."""

    @property
    def is_kept(self) -> bool:
        """Whether anybody will read them; else they need not be written."""

    def write(self, now: float, event: str, fields: Mapping[str, object], pe: int | None = None) -> None: ...

    def flush(self) -> None: ...


class StopBell:
    """Signals that ask for the end, as a descriptor that the loop can wait for."""

    def __init__(self, signals: Iterable[signal.Signals]) -> None:
        #: the first that has come
        self.first: int | None = None
        self._read_fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for each in signals:
            signal.signal(each, self._ring)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)  # a fork may have been told to hold them back

    def _ring(self, number: int, _frame: object) -> None:
        if self.first is None:
            self.first = number
        with contextlib.suppress(BlockingIOError):
            os.write(self._write_fd, b"!")

    def fileno(self) -> int:
        return self._read_fd


class PeerFailure(Exception):
    """Another rank is gone, and the others shall not go on without it (`RankLoss.RESTART`)."""


class Origin(NamedTuple):
    """What a rank knows of the system's beginning."""

    #: since 1970
    start_s: float
    founders: Placement
    #: of all ranks, by rank
    processes: Mapping[int, RankProcess]
    #: of a rank that has joined
    membership: Membership | None = None

    def logged_pes(self, rank: int, capacity: int) -> range:
        """By which numbers logs name the PEs of a rank that has joined, in all generations; no others' do."""
        first = self.founders.size + (rank - self.founders.ranks) * capacity
        return range(first, first + capacity)


class Rank:
    """One rank of the running system. `run` returns when all ranks stop."""

    def __init__(
        self,
        transport: Carrier,
        placement: Placement,
        pool: WorkerPool,
        config: Config,
        log: EventSink,
        clock: Callable[[], float],
        ring: Ring,
        stop_bell: StopBell,
        stop_at_s: float = math.inf,
        peers: LocalPeers | None = None,
        rank_loss: RankLoss = RankLoss.RESTART,
        origin: Origin | None = None,
    ) -> None:
        self.rank = transport.rank
        self.placement = placement
        self.pool = pool
        self.now = clock
        self.log = log
        self.config = config
        numbers = placement.pes_of(self.rank)
        rule = shared_rule(local_rule(placement.size, config.slices), len(numbers))
        self._health = HostHealth(config)
        if origin is None:
            origin = Origin(0.0, placement, {})
        logged = numbers if origin.membership is None else origin.logged_pes(self.rank, len(numbers))
        self._first, self._first_logged = numbers[0], logged[0]
        self._start_s = origin.start_s
        #: the ranks in the beginning
        self.founders = origin.founders
        self._processes = dict(origin.processes)
        if origin.membership is None:
            first = first_generation(placement.capacities)
            self._membership = Membership(self.rank, first, patience_of(ring.timeout_s))
            era = 0
        else:
            self._membership = origin.membership
            era = self._present.number
        self._pes = [PE(number, placement.size, config, rule, era) for number in numbers]
        #: the PE that the desk talks to
        self.pe = self._pes[0]
        self.transfer = Transfer(
            self.rank,
            transport.folder.path,
            transport.keeper_of,
            self._send_to_rank,
            transport.send_bulk,
            self._description_here,
            self._description_missing,
        )
        self._workers = HostedWorkers(pool, len(numbers), self.transfer.path_of, placement.size)
        #: what could be given back if the host runs low on memory
        self.reclaimable = RankReclaimable(self._pes, pool, self._workers, self.transfer, self._tell)
        self._memory_watch: MemoryWatch | None = None
        self._heap = HeapKeeper(c_heap())
        self._voters: tuple[int, ...] = ()
        self._transport = transport
        self._desk: Desk | None = None
        self._orders: Orders | None = None
        #: when this rank leaves at the latest, if it drains; who is to hear of it; when to look
        self._drains_until_s = math.inf
        self._drains_for: int | None = None
        self._drain_look_s = math.inf
        #: how each rank is, on the rank that is told (see `tell_news_to`)
        self.news_of_ranks: dict[int, RankNews] = {}
        self._reporter = RankReporter(len(numbers))
        self._news_go_to: int | None = None
        #: messages to PEs of this rank, from each other too: (source, destination, message)
        self._arrived: deque[tuple[int, int, AnyMessage]] = deque()
        #: who works for what anywhere, since `call_roll`
        self.roll = Roll()
        #: when descriptions of jobs that nobody has spoken of since the last change are let go of
        self._unheard_until_s = math.inf
        #: by job: the PEs here that wait for its description
        self._fetching: dict[int, dict[int, PE]] = {}
        #: PEs with effects that are still to be executed
        self._unsettled: deque[PE] = deque()
        self._stopping = False
        #: when nobody is waited for any more
        self._over_at_s = math.inf
        self._ring = ring
        self._peers = peers
        self._rank_loss = rank_loss
        #: of the present generation, and the one whose messages are taken in
        self._g = self._g_heard = self._present.g
        #: (rank, generation, source, destination, message): of a generation that is still to begin here
        self._ahead: list[tuple[int, int, int, int, AnyMessage]] = []
        #: (rank, generation, news): for the desk, in one that is still to begin here
        self._news_ahead: list[tuple[int, int, DeskNews]] = []
        #: former members, and how those were lost that this rank has found lost
        self._gone: set[int] = set()
        self._how_lost: dict[int, str] = {}
        #: ranks that this one has started and that are on their way
        self._growth: Growth | None = None
        #: the processes of those that it has ever started and that live
        self._started: dict[int, NewcomerProcess] = {}
        #: all addresses up to it are taken
        self._bound = max(placement.members) + 1
        #: when this rank has halted
        self._halted_s: float | None = None
        #: why it has to end alone
        self.end_reason: EndReason | None = None
        self._on_change: Callable[[], None] = lambda: None
        self._parking = Parking()
        for descriptor in transport.descriptors():
            self._parking.watch(descriptor)
        self._message_bell = transport.descriptors()[0]
        self._worker_bell = self._parking.watch(pool.fileno())
        self._signal_bell = self._parking.watch(stop_bell.fileno())
        self._desk_bell: int | None = None
        self._orders_bell: int | None = None
        #: what is waited for while this rank has halted
        self._bells_of_change = Parking()
        for descriptor in transport.descriptors():
            self._bells_of_change.watch(descriptor)
        self._bells_of_change.watch(self._signal_bell)
        self._peer_bell: int | None = None
        if peers is not None:
            self._peer_bell = self._bells_of_change.watch(self._parking.watch(peers.fileno()))
        #: when the pool is to be polled, on `time.monotonic`, as of the last time we parked
        self._pool_due_s = -math.inf
        self._stop_bell = stop_bell
        self._stop_at_s = stop_at_s

    # --- for the desk -----------------------------------------------------------------

    def set_desk(self, desk: Desk) -> None:
        self._desk = desk
        if (bell := desk.fileno()) is not None:
            self._desk_bell = self._parking.watch(bell)

    def set_orders(self, orders: Orders) -> None:
        """From now on orders come in here."""
        self._orders = orders
        if (bell := orders.fileno()) is not None:
            self._orders_bell = self._parking.watch(bell)

    @property
    def takes_orders(self) -> bool:
        return self._orders is not None

    def on_change(self, act: Callable[[], None]) -> None:
        """Have this called in each new generation."""
        self._on_change = act

    def tell_news_to(self, rank: int) -> None:
        """From now on this rank tells that one how it is; all ranks should tell the same one."""
        if rank != self._news_go_to:
            self._reporter.begin_anew()
        self._news_go_to = rank

    def log_stimuli(self, log: StimulusLog) -> None:
        """From now on all that the PEs here are told is written down."""
        self._stimuli = log
        self._let_handle = log.handle

    _stimuli: StimulusLog | None = None
    #: what all stimuli pass through
    _let_handle: Callable[[PE, AnyStimulus, float], None] = staticmethod(PE.handle)

    def set_memory_watch(self, watch: MemoryWatch, ranks: Sequence[int]) -> None:
        """`ranks`: those of this host."""
        self._memory_watch = watch
        self._voters = tuple(ranks)

    def submit(
        self, job: int, parameters: JobParameters, description: Description, checkpoint: bytes | None = None
    ) -> None:
        """Hand a job to the first PE here; the desk hears of its end by `job_ended`."""
        self._tell(self.pe, JobSubmitted(job, parameters, description, checkpoint))

    def interrupt(self, job: int) -> bool:
        """End a job; False if it is not live."""
        return self._tell_of(job, JobInterrupted(job))

    def set_terms(self, job: int, priority: float, max_demand: int) -> bool:
        """Have a job go on with another priority and bound (0: none); False if it is not live."""
        return self._tell_of(job, TermsChanged(job, priority, max_demand))

    def _tell_of(self, job: int, stimulus: AnyStimulus) -> bool:
        """Tell the first PE something of a job that is live there; False if it is not."""
        if job not in self.pe.client.jobs:
            return False
        self._tell(self.pe, stimulus)
        return True

    def tell_desk(self, rank: int, data: bytes) -> None:
        """Have the desk of a rank hear this."""
        if rank != self.rank:
            self._send_to_rank(rank, DeskNews(data))
        elif self._desk is not None:
            self._desk.hear(rank, data, self.now())

    def call_roll(self) -> None:
        """Have every rank say who works there for what; `roll` takes the answers."""
        self._answer_roll(RollCall(self.rank))

    def end_chain(self, chain: int) -> None:
        """No further revision of this chain comes: nothing is kept for one on any rank."""
        self._spread_chain_over(ChainOver(chain, self.rank))

    def _spread_chain_over(self, message: ChainOver) -> None:
        self.pool.drop_chain(message.chain)
        self._spread(message.origin, message)

    def _answer_roll(self, call: RollCall) -> None:
        self._spread(call.origin, call)
        active = [(pe.rank, pe.workers.active) for pe in self._pes]
        workers = tuple(WorkerPlace(pe, one.job, one.index) for pe, one in active if one is not None)
        if call.origin == self.rank:
            self.roll.note(self.rank, workers)
        else:
            self._send_to_rank(call.origin, RollAnswer(workers))

    def _spread(self, origin: int, message: ChainOver | RollCall) -> None:
        """To the ranks below this one in the binary tree of all ranks whose root is `origin`."""
        if origin in self.placement.members:
            for child in self.placement.children(self.rank, origin):
                self._send_to_rank(child, message)

    @property
    def stopped_by(self) -> int | None:
        """The signal that has asked this rank to end, if one has."""
        return self._stop_bell.first

    def stop(self) -> None:
        """End all ranks, this one included."""
        if not self._stopping:
            for dest in self.placement.members:
                if dest != self.rank:
                    self._send_to_rank(dest, Stop())
            self._wind_up()

    def _wind_up(self) -> None:
        """No further jobs; workers that leave in order do so now, and roots save how far their jobs are."""
        if not self._stopping:
            self._stopping = True
            self._stop_at_s = math.inf
            self._over_at_s = self.now() + self.config.leave_grace_s
            self._parking.forget(self._signal_bell)
            if self._desk_bell is not None:
                self._parking.forget(self._desk_bell)
            if self._orders_bell is not None:
                self._parking.forget(self._orders_bell)
            for pe in self._pes:
                self._handle(pe, SystemEnds(), self.now())

    def _is_over(self) -> bool:
        if not self._stopping:
            return False
        if self.end_reason is not None or self._halted_s is not None:
            return True
        is_waited_for = any(len(pe.workers.leaving) or pe.client.awaits_roots for pe in self._pes)
        return not is_waited_for or self.now() >= self._over_at_s

    # --- the loop -----------------------------------------------------------------------

    def run(self) -> None:
        """Play our part until somebody stops the system, or this rank has to end (`ending`).

        Raises PeerFailure.
        """
        gc.freeze()  # what there is now stays: collections need not look at it
        self._settle(*self._pes)
        # Before anybody can rely on us: from now on, a crash is worth a restart.
        self._look_around(self.now())
        if self._desk is not None:
            self._desk.turn(self.now())  # it is open, even if the time limit is over by now
        readable: set[int] = set()
        while not self._is_over():
            self._receive(self._message_bell in readable)
            if self._transport.has_lost or self._peer_bell in readable:
                self._note_losses()
            if self._signal_bell in readable:
                self.stop()
            if self._halted_s is not None:
                readable = self._wait_for_generation()
                continue
            if self._worker_bell in readable or self._pool_due_s <= time.monotonic():
                self._hear_workers()
            now = self.now()
            if now >= self._stop_at_s:
                self.stop()
            desk = None if self._stopping else self._desk
            if desk is not None and (self._desk_bell in readable or desk.deadline_s <= now):
                desk.turn(now)
            self._tick()
            if self._drains_for is not None:
                self._look_whether_drained(self._drains_for)
            orders = None if self._stopping else self._orders
            if orders is not None and (self._orders_bell in readable or orders.deadline_s <= self.now()):
                orders.turn(self.now())
            if self.now() >= self._workers.update_at_s:
                self._workers.tell_places()
            if self._stopping:
                self._settle()  # what follows from having to wind up
            self._transport.flush()
            if not self._is_over():
                readable = self._park()
        self._transport.flush()

    def _receive(self, rung: bool) -> None:
        if rung:
            self._transport.wake()
        transfers = 0
        for arrival in self._transport.receive():
            try:
                transfers += self._take_in(arrival)
            except WireError as error:
                self._lose(arrival.source, f"sent what no rank sends ({error})")
            self._settle()
            if transfers == _TRANSFERS_PER_TURN:
                break

    def _take_in(self, arrival: Arrival) -> bool:
        """Whether it was a part of a description, or news of one, which may take its time."""
        if arrival.channel is Channel.BULK:
            self.transfer.receive_chunk(arrival.source, arrival.data)
            return True
        g, source, dest, message = open_envelope(arrival.data, decode_wire)
        if isinstance(message, Message):
            if g == self._g_heard:
                self._check_envelope(arrival.source, source, dest)
                self._arrived.append((source, dest, message))
            else:
                self._meet_stray(arrival.source, g, source, dest, message)
        elif isinstance(message, GenerationMessage):
            self._change(Heard(arrival.source, message))
        elif arrival.source in self._gone:
            self._change(Strayed(arrival.source, g))
        elif isinstance(message, Stop):
            self._wind_up()
        elif isinstance(message, ChainOver):
            self._spread_chain_over(message)
        elif isinstance(message, Beat):
            if message.answer:
                self._send_to_rank(arrival.source, Beat())
        elif isinstance(message, RollCall):
            self._answer_roll(message)
        elif isinstance(message, RollAnswer):
            self.roll.note(arrival.source, message.workers)
        elif isinstance(message, RankNews):
            self.news_of_ranks[arrival.source] = message
        elif isinstance(message, JoiningMessage):
            self._hear_of_newcomers(arrival.source, message)
        elif isinstance(message, RankDrains):
            self._drain(arrival.source, message.until_s)
        elif isinstance(message, RankDrained):
            if self._orders is not None:
                self._orders.drained(arrival.source)
        elif isinstance(message, DeskNews):
            if g > self._g:  # it may be for a desk that is about to move here
                self._news_ahead.append((arrival.source, g, message))
            elif self._desk is not None:
                self._desk.hear(arrival.source, message.data, self.now())
        else:
            self.transfer.receive(arrival.source, message)
            return True
        return False

    def _check_envelope(self, rank: int, source: int, dest: int) -> None:
        """Raises WireError if that rank does not host the source, or this one not the destination."""
        rank_of = self.placement.rank_of
        if not (source < len(rank_of) and rank_of[source] == rank):
            raise WireError(f"a message of PE {source}, which is not there")
        if not self._first <= dest < self._first + len(self._pes):
            raise WireError(f"a message for PE {dest}, which is not here")

    def _tick(self) -> None:
        now = self.now()
        for pe in self._pes:
            if pe.deadline_s <= now:
                self._tell(pe, _TICK)
        if now >= self._workers.cpu_look_at_s:
            for slot, used in self._workers.cpu_news(now):
                self._tell(self._pes[slot], used)
        if now >= self._ring.next_beat_s:
            self._look_around(now)
        if self._growth is not None:
            self._look_after_growth(self._growth, now)

    def _look_around(self, now: float) -> None:
        """What is done about once a second, at once so that an idle rank is woken up once for it."""
        self._flush_logs()
        self._look_after_memory(now)
        if now >= self._unheard_until_s:
            self._unheard_until_s = math.inf
            self.transfer.drop_unheard(self.pe.balancer.jobs)
        self._tell_news()
        self._beat(now)
        self._settle()

    def _tell_news(self) -> None:
        if self._news_go_to is None:
            return
        busy = sum(pe.workers.active is not None for pe in self._pes)
        if (news := self._reporter.news(busy, self._all_troubles())) is None:
            return
        if self._news_go_to == self.rank:
            self.news_of_ranks[self.rank] = news
        else:
            self._send_to_rank(self._news_go_to, news)

    def _all_troubles(self) -> list[str]:
        """What is wrong here, for people."""
        is_short = self._memory_watch is not None and self._memory_watch.is_short
        troubles = ["short of memory"] if is_short else []
        return troubles if (trouble := self._health.trouble(self.now())) is None else [*troubles, trouble]

    def _look_after_memory(self, now: float) -> None:
        for slot, used in self._workers.grown_memory():
            self._tell(self._pes[slot], used)
        self.transfer.keep_only(self._workers.jobs() | self._fetching.keys())
        self._heap.look(now, time.thread_time())
        if self._memory_watch is not None:
            self._memory_watch.look(now)

    def _beat(self, now: float) -> None:
        ring = self._ring
        ring.heard(self._transport.take_heard())
        silent = ring.beat(now)
        if ring.next_rank != self.rank:
            self._send_to_rank(ring.next_rank, Beat())
        for rank in ring.sought:
            self._send_to_rank(rank, Beat(answer=True))
        for rank in silent:
            self._lose(rank, "does not answer any more")

    def _flush_logs(self) -> None:
        self.log.flush()
        if self._stimuli is not None:
            self._stimuli.flush()

    # --- the world changes --------------------------------------------------------------

    def host_of(self, rank: int) -> int:
        """The host of a member, named by the lowest rank that there ever was on it."""
        return self._transport.host_of(rank)

    def is_seen(self, rank: int) -> bool:
        """Whether the process of a rank is known to be there still; it never is on another host."""
        return self._peers is not None and self._peers.is_seen(rank)

    def have_drain(self, rank: int, until_s: float) -> None:
        """Have nothing new start there; the orders hear when it is ready to leave, then at the latest."""
        if rank == self.rank:
            self._drain(rank, until_s)
        else:
            self._send_to_rank(rank, RankDrains(until_s))

    def _drain(self, source: int, until_s: float) -> None:
        self._drains_for = source
        self._drains_until_s = self._drain_look_s = until_s
        for pe in self._pes:
            self._tell(pe, Drain())

    def _look_whether_drained(self, source: int) -> None:
        """Say so, once. When the time is over, who hands over what it has may still do so."""
        now = self.now()
        hands_over = any(len(pe.workers.leaving) for pe in self._pes)
        grace_s = self.config.leave_grace_s if hands_over else 0.0
        self._drain_look_s = self._drains_until_s + grace_s
        if now < self._drain_look_s and not all(pe.is_drained for pe in self._pes):
            return
        self._drains_for = None
        self._drain_look_s = math.inf
        if source != self.rank:
            self._send_to_rank(source, RankDrained())
        elif self._orders is not None:
            self._orders.drained(source)

    def have_leave(self, ranks: Sequence[int]) -> None:
        """Order that these leave, if not all do. This one halts for it, maybe before this returns."""
        self._change(Ordered(leaves=tuple(ranks)))
        self._settle()

    @property
    def _present(self) -> Generation:
        present = self._membership.generation
        assert present is not None
        return present

    @property
    def generation(self) -> int:
        """How many generations there were, this one included."""
        return self._present.number

    @property
    def survives(self) -> bool:
        """Whether it goes on without ranks that are lost."""
        return self._rank_loss is RankLoss.SURVIVE

    def _note_losses(self) -> None:
        for rank in self._peers.take_dead() if self._peers is not None else ():
            how = "has died"
            if (process := self._started.pop(rank, None)) is not None:
                how = process.how_ended()
            self._lose(rank, how)
            if self._orders is not None:
                self._orders.world_changed()
        for rank in self._transport.take_lost():
            self._lose(rank, self._transport.how_lost(rank))
        for rank in self._transport.take_back():
            self._change(Strayed(rank, 0))
        self._settle()

    def _lose(self, rank: int, how: str) -> None:
        """Go on without a rank, if we are to do that. Raises PeerFailure."""
        if rank in self._gone:
            return
        if self._stopping:
            self._over_at_s = -math.inf
            return
        if rank in self._membership.leavers:  # it has left, and we are about to hear that it may
            self._change(Lost(rank))
            return
        message = f"{self._ring.describe(rank)} {how}"
        self.log.write(self.now(), "lost rank", {"lost": rank, "message": message})
        if not self.survives:
            self._flush_logs()
            raise PeerFailure(message)
        self._how_lost.setdefault(rank, message)
        if self._growth is not None:
            self._growth.lost(rank, how)
        self._change(Lost(rank))

    def _change(self, change: AnyChange) -> None:
        """Tell the membership of something, and do what follows."""
        if self._stopping:
            return
        membership = self._membership
        membership.handle(change, self.now())
        for rank in membership.lost - self._gone:
            self._bury(rank)
        for step in membership.take_effects():
            match step:
                case Tell(rank, Fenced() as message) if rank in self._gone:
                    self._transport.answer_lost(rank, seal(self._g, 0, 0, encode(message)))
                case Tell(rank, message):
                    self._send_to_rank(rank, message)
                case Halt():
                    self._halt()
                case Begin(before, after):
                    assert before is not None, "all ranks were there from the start"
                    self._begin(before, after)
                case End(why):
                    self.end_reason = why
                    self._stopping = True

    def _bury(self, rank: int) -> None:
        """Nothing more is sent there; should it live and hang, its processes must not."""
        self._gone.add(rank)
        self._transport.give_up_on(rank)
        self._ring.leave_out(rank)
        self._leave_out_of_vote(rank)
        if self._peers is not None:
            self._peers.end(rank)
        if rank in self._started:
            self._started[rank].kill()
        if self._growth is not None:
            self._growth.member_lost(rank)

    # --- more ranks ---------------------------------------------------------------------

    def grow(self, sites: Sequence[Site], done: Callable[[Mapping[int, str]], None]) -> None:
        """Start a further rank on each of these sites, which join when they are up.

        `done` is called when each has joined or failed, with the reasons of those that have failed. Only one
        rank may do so at a time. Raises GrowthError if that is not possible.
        """
        if not self.survives:
            raise GrowthError("ranks cannot join this service; start it with --rank-loss survive")
        if self._growth is not None:
            raise GrowthError("ranks are being started already")
        here = self._transport.host_of(self.rank)
        others = [rank for rank in self.placement.members if rank != self.rank]
        wide = any(site.shell for site in sites) or any(self.host_of(rank) != here for rank in others)
        call = Listen(self._bound + len(sites), os.urandom(SECRET_BYTES), wide=wide)
        new = dict(zip(range(self._bound, call.bound), sites, strict=True))
        if (place := self._listen(call)) is None:
            raise GrowthError(f"rank {self.rank} cannot listen for them")
        me = Peer(self.rank, here, process_here(), place)
        folder = self._transport.folder
        newcomers: dict[int, NewcomerProcess] = {}
        try:
            for address, site in new.items():
                invitation = Invitation(address, call.secret, me, len(self._pes), wide, session_of(folder))
                process = newcomers[address] = newcomer_process.start(
                    site, msgspec.msgpack.encode(invitation), folder.path / f"shell.{address}"
                )
                self._expect(address, here, process_here(process.pid))
        except OSError as error:
            for process in newcomers.values():
                process.kill()
            raise GrowthError(f"a rank cannot be started: {error.strerror}") from error
        self._started |= newcomers
        self._growth = Growth(others, newcomers, self.now(), self._welcome, done)
        for rank in others:
            self._send_to_rank(rank, call)

    def _listen(self, call: Listen) -> Place | None:
        """Where this rank listens for newcomers; None if it cannot."""
        self._bound = max(self._bound, call.bound)
        try:
            return self._transport.links.listen(call.secret, self._transport.folder.path, wide=call.wide)
        except LinkError as error:
            tell(str(error))
            return None

    def _expect(self, rank: int, host: int, process: RankProcess) -> None:
        """There may be a further rank."""
        self._bound = max(self._bound, rank + 1)
        self._processes[rank] = process
        self._transport.welcome(rank, host)
        self._ring.name(rank, str(process))
        if self._peers is not None:
            self._peers.add(rank, process, host)

    def _welcome(self, rank: int, peers: tuple[Peer, ...]) -> None:
        self._send_to_rank(rank, Welcome(peers, self._start_s, self.founders.capacities))

    def _hear_of_newcomers(self, source: int, message: JoiningMessage) -> None:
        growth = self._growth
        match message:
            case Listen():
                self._send_to_rank(source, Listening(self._listen(message)))
            case Joining(process, host, _, _):
                self._expect(source, host, process)
                if growth is not None and growth.is_newcomer(source):
                    growth.joining(source, message)
                else:
                    self._send_to_rank(source, Noted())
            case Listening(place) if growth is not None and source in self.placement.members:
                host = self._transport.host_of(source)
                growth.listening(Peer(source, host, self._processes[source], place))
            case Connected() if growth is not None:
                growth.connected(source)

    def _look_after_growth(self, growth: Growth, now: float) -> None:
        if (order := growth.turn(self.placement.members, now)) is not None:
            self._change(order)
            self._settle()
        elif growth.is_over(self.placement.members):
            self._growth = None
            growth.done()

    def _leave_out_of_vote(self, rank: int) -> None:
        if self._memory_watch is not None and rank in self._voters:
            self._memory_watch.leave_out(rank)

    def _meet_stray(self, rank: int, g: int, source: int, dest: int, message: AnyMessage) -> None:
        """A PE's message is not of the present generation, or we have halted."""
        if rank in self._gone:
            self._change(Strayed(rank, g))
        elif g > self._g:
            self._ahead.append((rank, g, source, dest, message))

    def _halt(self) -> None:
        assert not self._arrived, "a PE is told one thing after the other"
        assert not self._unsettled, "what it wants done is done before the next"
        self._halted_s = now = self.now()
        self._g_heard = _NO_GENERATION
        for pe in self._pes:
            pe.halt(now)
            self._execute_effects(pe)
        self.transfer.halt()

    def _wait_for_generation(self) -> set[int]:
        """What is done by a rank that has halted, beside hearing messages: beat, have patience."""
        now = self.now()
        if now >= self._membership.deadline_s:
            self._change(TimePassed())
        if now >= self._ring.next_beat_s:
            self._beat(now)
        self._settle()
        self._transport.flush()
        if self._stopping or self._halted_s is None:
            return set()
        wanted_s = min(self._membership.deadline_s, self._ring.next_beat_s) - self.now()
        return self._bells_of_change.park(self._transport.park_timeout_s(max(0.0, wanted_s)))

    def _begin(self, before: Generation, after: Generation) -> None:
        """New PEs go on with what the old ones had."""
        now = self.now()
        heirs = Succession(before, after)
        former, self.placement = self.placement.members, Placement(after.capacities, after.members)
        gone = [rank for rank in former if rank not in after.members]
        come = [rank for rank in after.members if rank not in former]
        for rank in gone:
            self._transport.give_up_on(rank)
            self._leave_out_of_vote(rank)
        self._gone.update(gone)
        self._g = self._g_heard = after.g
        self._bound = max(self._bound, after.members[-1] + 1)
        self._ring.go_on(after.members)
        self._share_host_memory()
        self.transfer.go_on()
        self._unheard_until_s = now + self.config.succession_patience_s
        numbers = self.placement.pes_of(self.rank)
        rule = shared_rule(local_rule(self.placement.size, self.config.slices), len(numbers))
        self._first = numbers[0]
        self._pes[:] = [old.successor(heirs, self.config, rule, now) for old in self._pes]
        self.pe = self._pes[0]
        self._unsettled.extend(self._pes)
        self._fetching.clear()
        self._stop_logging_stimuli()
        self.roll.clear()
        self._reporter.begin_anew()
        for rank in gone:
            self.news_of_ranks.pop(rank, None)
        ahead, self._ahead = self._ahead, []
        for rank, g, source, dest, message in ahead:
            if g == after.g:
                self._check_envelope(rank, source, dest)
                self._arrived.append((source, dest, message))
            elif g > after.g:
                self._ahead.append((rank, g, source, dest, message))
        halted_s, self._halted_s = self._halted_s, None
        fields = {
            "generation": after.number,
            "members": after.members,
            "pes": self.placement.size,
            "gone": gone,
            "come": come,
            "stop_s": 0.0 if halted_s is None else now - halted_s,
        }
        self.log.write(now, "generation", fields)
        if self.rank == after.members[0]:
            joined = [f"{self._ring.describe(rank)} has joined" for rank in come]
            how = "; ".join([*map(self._how_gone, gone), *joined])
            verb = "goes" if self.placement.ranks == 1 else "go"
            tell(f"{how}. {self.placement.describe()} {verb} on (generation {after.number})")
        if after.members[0] >= self.founders.ranks:
            # Whatever has started the system has seen its end, and may start it anew.
            if self.rank == after.members[0]:
                tell("no rank is left that was there from the start; those that have joined end, too")
            self.stop()
            return
        self._on_change()
        if self._orders is not None:
            self._orders.world_changed()
        news_ahead, self._news_ahead = self._news_ahead, []
        for rank, g, news in news_ahead:
            if g > after.g:
                self._news_ahead.append((rank, g, news))
            elif rank not in self._gone and self._desk is not None:
                self._desk.hear(rank, news.data, now)
        self._settle()

    def _share_host_memory(self) -> None:
        if self._memory_watch is not None:
            here = self._transport.host_of(self.rank)
            self._voters = tuple(
                each for each in self.placement.members if self._transport.host_of(each) == here
            )
            self._memory_watch.share_among(len(self._voters))

    def _how_gone(self, rank: int) -> str:
        manner = "was lost" if rank in self._membership.lost else "has left"
        return self._how_lost.get(rank, f"{self._ring.describe(rank)} {manner}")

    def _stop_logging_stimuli(self) -> None:
        """What is written down can be played again up to here only."""
        if self._stimuli is not None:
            self._stimuli.flush()
            self._stimuli = None
            self._let_handle = PE.handle

    def _park(self) -> set[int]:
        """Wait for news, at most until the next deadline."""
        deadline = min(
            self._stop_at_s,
            self._over_at_s,
            self._ring.next_beat_s,
            self._workers.update_at_s,
            self._workers.cpu_look_at_s,
        )
        for pe in self._pes:
            deadline = min(deadline, pe.deadline_s)
        if self._desk is not None and not self._stopping:
            deadline = min(deadline, self._desk.deadline_s)
        deadline = min(deadline, self._drain_look_s)
        if self._orders is not None and not self._stopping:
            deadline = min(deadline, self._orders.deadline_s)
        self._pool_due_s = self.pool.next_deadline()
        wanted_s = max(0.0, min(deadline - self.now(), self._pool_due_s - time.monotonic()))
        return self._parking.park(self._transport.park_timeout_s(wanted_s))

    # --- messages out ---------------------------------------------------------------------

    def _send(self, source: int, dest: int, message: AnyMessage) -> None:
        """From a PE here to a PE anywhere."""
        rank = self.placement.rank_of[dest]
        if rank == self.rank:
            self._arrived.append((source, dest, message))
        elif isinstance(message, TreeMessage) and self._transport.is_congested(rank):
            self._give_back(source, dest, message)
        else:
            self._transport.send(rank, seal(self._g, source, dest, encode(message)))

    def _give_back(self, source: int, dest: int, message: TreeMessage) -> None:
        """Its receiver's rank is behind: its sender shall know. Then a returned message is simply lost."""
        self.log.write(
            self.now(), "dropped message", {"job": message.job}, source + self._first_logged - self._first
        )
        if not message.returned:
            self._arrived.append((dest, source, message.back()))

    def _send_to_rank(self, rank: int, message: AnyWireMessage) -> None:
        """What concerns no PE but a rank as a whole."""
        self._transport.send(rank, seal(self._g, 0, 0, encode(message)))

    # --- worker processes -------------------------------------------------------------------

    def _hear_workers(self) -> None:
        for event in self.pool.poll():
            now = self.now()
            match event:
                case ReadDone() | ReadFailed() | ReadStalled() | ReadGoesOn() | ApplicationKnown():
                    if self._desk is not None:
                        self._desk.worker_event(event, now)
                case _:
                    slot, news = self._workers.hear(event)
                    if isinstance(news, WorkerStarted):
                        self._find_well()
                    self._tell(self._pes[slot], news)

    # --- the host's health --------------------------------------------------------------------

    def _rest(self, fault: Fault, reason: str) -> None:
        """A worker got no process here: have all PEs of this rank rest."""
        now, health = self.now(), self._health
        failures = health.failures
        until_s = health.blame(fault, reason, now)
        for pe in self._pes:
            self._handle(pe, HostRests(until_s), now)
        if health.failures > failures:
            fields = {"failures": health.failures, "rest_s": until_s - now, "reason": reason}
            self.log.write(now, "host rests", fields)

    def _find_well(self) -> None:
        if self._health.failures:
            self._health.clear()
            self.log.write(self.now(), "host is well", {})

    # --- effects ------------------------------------------------------------------------------

    def _tell(self, pe: PE, stimulus: AnyStimulus) -> None:
        """Tell a PE of this rank something, and execute what follows."""
        self._let_handle(pe, stimulus, self.now())
        self._settle(pe)

    def _handle(self, pe: PE, stimulus: AnyStimulus, now: float) -> None:
        """The same from within an effect of another PE: what follows is executed after that."""
        self._let_handle(pe, stimulus, now)
        self._unsettled.append(pe)

    def _settle(self, *pes: PE) -> None:
        """Execute what these PEs want done, then what follows from it at all PEs of this rank."""
        unsettled, arrived = self._unsettled, self._arrived
        unsettled.extend(pes)
        while unsettled or arrived:
            if unsettled:
                pe = unsettled.popleft()
            else:
                source, dest, message = arrived.popleft()
                pe = self._pes[dest - self._first]
                try:
                    self._let_handle(pe, Received(source, message), self.now())
                except PeerViolation as error:
                    self._accuse(error)
            self._execute_effects(pe)

    def _accuse(self, error: PeerViolation) -> None:
        """Have the rank that is at fault lost, if it is another one."""
        rank = self.rank if error.source is None else self.placement.rank_of[error.source]
        if rank == self.rank:
            raise error
        self.log.write(self.now(), "violation", {"story": str(error)})
        self._transport.lose(rank, f"sent what no rank sends ({str(error).splitlines()[0]})")

    def _execute_effects(self, pe: PE) -> None:
        effects = pe.effects
        while effects:
            self._execute(pe, effects.popleft())

    def _execute(self, pe: PE, effect: AnyEffect) -> None:
        match effect:  # the frequent ones first, as classes: a pattern with parts takes several times as long
            case Log():
                if self.log.is_kept:
                    author = pe.rank + self._first_logged - self._first
                    self.log.write(self.now(), effect.event, effect.fields, author)
            case Send():
                self._send(pe.rank, effect.dest, effect.message)
            case FetchDescription(job, description, sources):
                self._fetching.setdefault(job, {})[pe.rank] = pe
                self.transfer.fetch(
                    job, description.size, tuple(self.placement.rank_of[source] for source in sources)
                )
            case JobOver(job):
                if waiting := self._fetching.get(job):
                    waiting.pop(pe.rank, None)
                    if not waiting:
                        del self._fetching[job]
                if pe is self.pe:
                    self.transfer.forget(job)
            case JobUnheard(job):
                self.transfer.let_go(job)
            case BlameHost(fault, reason):
                self._rest(fault, reason)
            case JobSought(job):
                assert self._desk is not None
                self._desk.job_sought(job, self.now())
            case JobSaved(job, checkpoint):
                assert self._desk is not None
                self._desk.job_saved(job, checkpoint, self.now())
            case JobEnded():
                assert self._desk is not None
                self._desk.job_ended(effect, self.now())
            case _:
                self._workers.execute(pe.rank - self._first, effect, self.now())

    # --- descriptions -------------------------------------------------------------------------

    def _description_here(self, job: int) -> None:
        for pe in self._fetching.pop(job, {}).values():
            self._handle(pe, DescriptionHere(job), self.now())

    def _description_missing(self, job: int, reason: str, fault: Fault) -> None:
        for pe in self._fetching.pop(job, {}).values():
            self._handle(pe, DescriptionMissing(job, reason, fault), self.now())

    # --- the end ---------------------------------------------------------------------------

    def leave(self) -> None:
        """Leave no process and no file behind; the others go on, as they know."""
        if self._desk is not None:
            self._desk.hand_over()
        if self._orders is not None:
            self._orders.close()
        self.pool.close()
        self._flush_logs()
        self._transport.leave(self._membership.leavers)

    def close(self) -> bool:
        """Leave no process and no file behind; False if the other ranks could not be met."""
        if self._desk is not None:
            self._desk.close()
        if self._orders is not None:
            self._orders.close()
        self.pool.close()
        self._flush_logs()
        met = self._transport.close()
        until_s = time.monotonic() + _LAST_SHELL_S
        for process in self._started.values():
            process.wait(until_s)
        return met


def portable(here: wire.LocalDescription, chain: int = 0, revision: int = 0) -> Description:
    """What a helper process has read, as the protocol passes it on."""
    if isinstance(here, wire.Inline):
        return Description(len(here.data), here.data, chain, revision)
    return Description(here.size_bytes, None, chain, revision)


def service_clock(start_s: float) -> Callable[[], float]:
    """Seconds since the service's start (`start_s` since 1970): monotonic here, shared by all hosts."""
    offset_s = time.time() - time.monotonic() - start_s
    return lambda: time.monotonic() + offset_s
