"""A rank on real hardware: the event loop that connects its `Node` with MPI, processes and users.

    drain the inbox -> hear the workers -> serve the desk -> fire timers -> flush -> park

The node (`protocol/node.py`) decides, and this loop acts: after every stimulus it executes the effects. The
loop parks in one place (`bells.py`) for all news: the transport's doorbell, worker processes, the desk (on
ranks that take in jobs), and signals. Only this thread touches MPI.

Jobs come in at a *desk*: the job-file service, or one `solve`. All ranks stop together: a rank that wants to
stop tells all others, so no rank is left waiting.

A rank that has halted for a change of ranks hears only about the change; its desk and workers wait. In the
new generation it goes on with the same transport, processes, files and desk. In logs, a PE keeps its first
number.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mallob_py.loop_rate import LoopRate, shown
from mallob_py.protocol import rank_effects, rank_stimuli, stimuli
from mallob_py.protocol.effects import GiveWorker, JobEnded, JobGivenUp, JobRests, JobSaved, JobSought, Log
from mallob_py.protocol.generation import Ordered
from mallob_py.protocol.messages import Checkpoint, Description, TreeMessage, encode
from mallob_py.protocol.node import Node
from mallob_py.protocol.rank_messages import AnyRankMessage, FileMessage, Listening, decode_wire
from mallob_py.runtime import worker_wire as wire
from mallob_py.runtime.bells import Bells
from mallob_py.runtime.desk import Desk, EventSink, Orders
from mallob_py.runtime.heap import HeapKeeper, c_heap
from mallob_py.runtime.memory_watch import MemoryWatch, RankMemory, RankReclaimable
from mallob_py.runtime.newcomers import GrowthError, Newcomers
from mallob_py.runtime.notices import tell
from mallob_py.runtime.stimulus_log import StimulusLog
from mallob_py.runtime.use_meter import UseMeter
from mallob_py.runtime.workers.hosted import HostedWorkers, pool_number
from mallob_py.runtime.workers.pool import WorkerPool
from mallob_py.runtime.workers.tasks import ApplicationKnown, ReadDone, ReadFailed, ReadGoesOn, ReadStalled
from mallob_py.runtime.world.envelope import Arrival, Channel, WireError, open_envelope, seal
from mallob_py.runtime.world.failure_detector import LocalPeers, Lookout, Ring
from mallob_py.runtime.world.newcomer_process import Site
from mallob_py.runtime.world.transfer import Transfer

if TYPE_CHECKING:
    from mallob_py.runtime.world.carrier import Carrier

#: largest size of a description that travels inside messages
INLINE_BYTES_MAX = 4096
#: longest time for which this rank, at its end, waits until newcomers have cleaned up on their hosts
_LAST_SHELL_S = 5.0
#: greatest number of chunks of 256 KB copied per turn: workers, timers and users must not wait longer
_TRANSFERS_PER_TURN = 4
_TIME_CAME = rank_stimuli.TimeCame()


class PeerFailure(Exception):
    """Error: a rank is lost, and the others must not go on without it (`RankLoss.RESTART`)."""


class Rank:
    """One rank of the running system. `run` returns when all ranks stop."""

    def __init__(
        self,
        node: Node,
        transport: Carrier,
        pool: WorkerPool,
        log: EventSink,
        clock: Callable[[], float],
        ring: Ring,
        bells: Bells,
        stop_at_s: float = math.inf,
        peers: LocalPeers | None = None,
    ) -> None:
        self.node = node
        self.rank = node.rank
        self.pool = pool
        self.now = clock
        self.log = log
        #: rate of the loop's turns
        self.rate = LoopRate()
        self._meter = UseMeter()
        self.transfer = Transfer(
            self.rank,
            transport.folder.path,
            transport.keeper_of,
            self._send,
            transport.send_bulk,
            lambda job: self._tell(rank_stimuli.DescriptionCame(job)),
            lambda job, reason, fault: self._tell(rank_stimuli.DescriptionFailed(job, reason, fault)),
        )
        self._workers = HostedWorkers(
            pool, len(node.pes), self.transfer.path_of, lambda: self.node.placement.size
        )
        #: memory that this rank can give back if the host runs low on memory
        self.reclaimable = RankReclaimable(node.pes, pool, self._workers, self.transfer, self._tell_slot)
        heap = HeapKeeper(c_heap())
        fetching, kills = node.fetching.keys, pool.starved.kills
        self.memory = RankMemory(self._workers, self.transfer, heap, self._tell_slot, fetching, kills)
        self._transport = transport
        #: rank -> its host, named after the lowest rank that was ever on the host
        self.hosts: Mapping[int, int] = transport.hosts
        self.lookout = Lookout(transport, ring, peers, self._send)
        self._bells = bells
        self._desk: Desk | None = None
        #: the interface to users' orders; None: this rank takes no orders
        self.orders: Orders | None = None
        self._newcomers = Newcomers(transport, clock)
        #: the log of all stimuli; None: stimuli are not logged
        self.stimuli: StimulusLog | None = None
        #: function called in each new generation
        self.on_change: Callable[[], None] = lambda: None
        self._is_acting = False
        self._stop_at_s = stop_at_s
        #: time (`time.monotonic`) at which the pool must be polled, as computed at the last parking
        self._pool_due_s = -math.inf

    # --- the node -----------------------------------------------------------------------

    def _tell(self, stimulus: rank_stimuli.AnyRankStimulus) -> None:
        """Pass the node a stimulus; execute its effects, or leave them to the `_act` that is running."""
        if self.stimuli is None:
            self.node.handle(stimulus, self.now())
        else:
            self.stimuli.handle(self.node, stimulus, self.now())
        if not self._is_acting:
            self._act()

    def _act(self) -> None:
        effects = self.node.effects
        self._is_acting = True
        try:
            while effects:
                effect = effects.popleft()
                _ON_EFFECT[type(effect)](self, effect)
        finally:
            self._is_acting = False

    def _tell_slot(self, slot: int, stimulus: stimuli.AnyStimulus) -> None:
        self._tell(rank_stimuli.ToPE(slot, stimulus))

    # --- methods for the desk ---------------------------------------------------------

    def set_desk(self, desk: Desk) -> None:
        """Take in jobs at this desk from now on."""
        self._desk = desk
        self._bells.watch_desk(desk.fileno())

    def tell_news_to(self, rank: int) -> None:
        """Report this rank's state to rank `rank` from now on; all ranks should report to the same rank."""
        self._tell(rank_stimuli.NewsGoTo(rank))

    def set_memory_watch(self, watch: MemoryWatch, ranks: Sequence[int]) -> None:
        """Set the memory watch; `ranks`: the ranks of this host."""
        self.memory.set_watch(watch, ranks)

    def submit(
        self,
        job: int,
        parameters: stimuli.JobParameters,
        description: Description,
        checkpoint: bytes | None = None,
    ) -> None:
        """Hand a job to this rank's first PE; the desk hears of the job's end."""
        self._tell(rank_stimuli.ToPE(0, stimuli.JobSubmitted(job, parameters, description, checkpoint)))

    def interrupt(self, job: int) -> bool:
        """End a job; return False if it is not live."""
        return self._tell_of(job, stimuli.JobInterrupted(job))

    def set_back(self, job: int) -> bool:
        """Have a job given up once its turn is over (once it rests); return False if it is not live."""
        return self._tell_of(job, stimuli.JobSetBack(job))

    def set_terms(self, job: int, priority: float, max_demand: int) -> bool:
        """Change a job's priority and greatest demand (0: no bound); return False if it is not live."""
        return self._tell_of(job, stimuli.TermsChanged(job, priority, max_demand))

    def _tell_of(self, job: int, stimulus: stimuli.AnyStimulus) -> bool:
        """Pass the first PE a stimulus about a job; return False if this PE's client has no such live job."""
        if job not in self.node.pe.client.jobs:
            return False
        self._tell(rank_stimuli.ToPE(0, stimulus))
        return True

    def tell_desk(self, rank: int, data: bytes) -> None:
        """Send a message to another rank's desk."""
        self._tell(rank_stimuli.DeskSays(rank, data))

    def call_roll(self) -> None:
        """Have every rank report its workers; `node.reports.roll` takes the answers."""
        self._tell(rank_stimuli.RollWanted())

    def end_chain(self, chain: int) -> None:
        """End a chain of revisions: no rank keeps anything for a further revision."""
        self._tell(rank_stimuli.ChainEnds(chain))

    @property
    def stopped_by(self) -> int | None:
        """Return the number of the signal that ordered this rank to end; None: no signal did."""
        return self._bells.stopped_by

    def stop(self) -> None:
        """End all ranks, including this one."""
        self._tell(rank_stimuli.EndWanted())

    # --- methods for orders ---------------------------------------------------------------

    def set_orders(self, orders: Orders) -> None:
        """Take users' orders at this rank from now on."""
        self.orders = orders
        self._bells.watch_orders(orders.fileno())

    def have_drain(self, rank: int, until_s: float) -> None:
        """Drain a rank; `Orders.drained` is called when it is ready to leave, at `until_s` at the latest."""
        self._tell(rank_stimuli.DrainWanted(rank, until_s))

    def have_leave(self, ranks: Sequence[int]) -> None:
        """Order ranks, but not all, to leave. If this rank leaves, it may halt before this call returns."""
        self._tell(Ordered(leaves=tuple(ranks)))

    def grow(self, sites: Sequence[Site], done: Callable[[Mapping[int, str]], None]) -> None:
        """Start a newcomer on each site.

        `done(failed newcomer -> reason)` is called when each newcomer has joined or failed. Only one rank
        at a time may start newcomers. Raises GrowthError.
        """
        node = self.node
        if not node.survives:
            raise GrowthError("ranks cannot join this service; start it with --rank-loss survive")
        if node.is_growing:
            raise GrowthError("ranks are being started already")
        others = [rank for rank in node.placement.members if rank != self.rank]
        self._tell(self._newcomers.start(sites, node.bound, len(node.pes), others, done))

    # --- the loop -----------------------------------------------------------------------

    def run(self) -> None:
        """Run this rank until the system stops, or until this rank must end (`end_reason`).

        Raises PeerFailure, and LauncherGone (see `Lookout.end_with`).
        """
        gc.freeze()  # present objects stay, so collections need not examine them
        self._act()
        # This rank sends its first beat (sign of life) before other ranks rely on it: only after that beat, a
        # crash leads to a restart.
        self._look_around(self.now())
        if self._desk is not None:
            self._desk.turn(self.now())  # jobs come in first, even if the time limit has passed already
        node, bells = self.node, self._bells
        bells.rung = set()
        while not (node.is_stopping and node.is_over(self.now())):
            self.rate.turns += 1
            self._receive(bells.message in bells.rung)
            if self._transport.has_lost or bells.peers in bells.rung:
                self._note_losses()
            if bells.signal in bells.rung:
                self.stop()
            if len(self.log.taken) >= self.log.taken_max:
                self.log.flush()
            if node.is_halted:
                self._wait_for_generation()
            else:
                self._serve()
        self._transport.flush()

    def _receive(self, rung: bool) -> None:
        if rung:
            self._transport.wake()
        elif not self._transport.may_have_news():
            return
        transfers = 0
        for arrival in self._transport.receive():
            try:
                transfers += self._take_in(arrival)
            except WireError as error:
                self._tell(rank_stimuli.RankLost(arrival.source, f"sent what no rank sends ({error})"))
            if transfers == _TRANSFERS_PER_TURN:
                break

    def _take_in(self, arrival: Arrival) -> bool:
        """Take in a message; return whether it was a part of a description: taking in such parts is slow."""
        if arrival.channel is Channel.BULK:
            self.transfer.receive_chunk(arrival.source, arrival.data)
            return True
        g, source, dest, message = open_envelope(arrival.data, decode_wire)
        self._tell(rank_stimuli.Said(arrival.source, g, source, dest, message))
        return isinstance(message, FileMessage)

    def _note_losses(self) -> None:
        for rank in self.lookout.take_dead():
            self._tell(rank_stimuli.RankLost(rank, self._newcomers.how_ended(rank)))
            if self.orders is not None:
                self.orders.world_changed()
        for rank in self._transport.take_lost():
            self._tell(rank_stimuli.RankLost(rank, self._transport.how_lost(rank)))
        for rank in self._transport.take_back():
            self._tell(rank_stimuli.RankBack(rank))

    def _serve(self) -> None:
        """Serve everything except other ranks, then park."""
        bells, node = self._bells, self.node
        if bells.workers in bells.rung or self._pool_due_s <= time.monotonic():
            self._hear_workers()
        if self.now() >= self._stop_at_s:
            self.stop()
        for door, bell in ((self._desk, bells.desk), (self.orders, bells.orders)):
            if door is None or node.is_stopping:
                continue
            if bell in bells.rung or door.deadline_s <= self.now():
                door.turn(self.now())
        due_s = self._look_at_clock()
        if not (node.is_stopping and node.is_over(self.now())):
            self._park(due_s)

    def _look_at_clock(self) -> float:
        """Do everything that is due; return the time at which the node must get its next `TimeCame`."""
        now = self.now()
        if now >= self._workers.cpu_look_at_s:
            for slot, used in self._workers.cpu_news(now):
                self._tell_slot(slot, used)
        if now >= self.lookout.ring.next_beat_s:
            self._look_around(now)
        if (due_s := self.node.deadline_s) <= now:
            self._tell(_TIME_CAME)
            due_s = self.node.deadline_s
        if self.now() >= self._workers.update_at_s:
            self._workers.tell_places()
        return due_s

    def _look_around(self, now: float) -> None:
        """Do all tasks that are due once a second together, so that an idle rank wakes up once for them."""
        self._flush_logs()
        if not self.node.is_halted:
            self.memory.look(now)
        turns = shown(self.rate.per_second(now))
        self._tell(rank_stimuli.Looked(self.memory.troubles, turns, self._meter.look(now)))
        self._beat(now)

    def _beat(self, now: float) -> None:
        for rank in self.lookout.beat(now, is_asked_to_end=self.stopped_by is not None):
            self._tell(rank_stimuli.RankLost(rank, "does not answer any more"))

    def _wait_for_generation(self) -> None:
        """Wait for the next generation after a halt: hear messages, send beats, heed the deadline."""
        now = self.now()
        if now >= self.node.deadline_s:
            self._tell(_TIME_CAME)
        if now >= self.lookout.ring.next_beat_s:
            self._beat(now)
        if self.node.is_stopping or not self.node.is_halted:
            self._bells.rung = set()
            return
        wanted_s = min(self.node.deadline_s, self.lookout.ring.next_beat_s) - self.now()
        self._bells.park_for_change(self._transport.park_timeout_s(max(0.0, wanted_s)))

    def _park(self, due_s: float) -> None:
        """Wait for news, at most until the next deadline; `due_s`: the node's deadline."""
        deadline = min(
            due_s,
            self._stop_at_s,
            self.lookout.ring.next_beat_s,
            self._workers.update_at_s,
            self._workers.cpu_look_at_s,
        )
        if not self.node.is_stopping:
            for door in (self._desk, self.orders):
                if door is not None:
                    deadline = min(deadline, door.deadline_s)
        self._pool_due_s = self.pool.next_deadline()
        wanted_s = max(0.0, min(deadline - self.now(), self._pool_due_s - time.monotonic()))
        self._bells.park(self._transport.park_timeout_s(wanted_s))

    def _hear_workers(self) -> None:
        for event in self.pool.poll():
            match event:
                case ReadDone() | ReadFailed() | ReadStalled() | ReadGoesOn() | ApplicationKnown():
                    if self._desk is not None:
                        self._desk.worker_event(event, self.now())
                case _:
                    self._tell(rank_stimuli.ToPE(*self._workers.hear(event)))

    def _flush_logs(self) -> None:
        self.log.flush()
        if self.stimuli is not None:
            self.stimuli.flush()

    # --- effects ------------------------------------------------------------------------------

    def _send(self, rank: int, message: AnyRankMessage) -> None:
        """Send a message that concerns the whole rank and no PE."""
        self._transport.send(rank, seal(self.node.present.g, 0, 0, encode(message)))

    def _send_envelope(self, it: rank_effects.Tell) -> None:
        if isinstance(it.message, TreeMessage) and self._transport.is_congested(it.rank):
            self._tell(rank_stimuli.Congested(it.g, it.source, it.dest, it.message))
        elif isinstance(it.message, Checkpoint) and self._transport.is_congested(it.rank):
            pass  # the checkpoint is dropped: a newer checkpoint follows
        else:
            self._transport.send(it.rank, seal(it.g, it.source, it.dest, encode(it.message)))

    def _do_for_pe(self, it: rank_effects.OfPE) -> None:
        match it.effect:  # frequent effects first, as classes: patterns with parts are much slower
            case Log() as effect:
                if self.log.is_kept:
                    author = self.node.first_logged + it.slot
                    self.log.taken.append((self.now(), effect.event, effect.fields, author))
            case JobSought() | JobRests() | JobGivenUp() | JobSaved() | JobEnded() as effect:
                assert self._desk is not None
                self._desk.hear_of_job(effect, self.now())
            case GiveWorker(worker, pe, number):
                rank = self.node.placement.rank_of[pe]
                there = self.node.placement.pes_of(rank)
                receiver = pool_number(number, pe - there[0], len(there))
                self._workers.give(it.slot, worker, rank, receiver)
            case effect:
                self._workers.execute(it.slot, effect, self.now())  # type: ignore[arg-type]

    def _change_world(self, it: rank_effects.WorldChanged) -> None:
        for rank in it.gone:
            self._transport.give_up_on(rank)
            self.memory.leave_out(rank)
        members = it.generation.members
        self.lookout.go_on(members)
        self.memory.share_among([rank for rank in members if self.hosts[rank] == self.hosts[self.rank]])
        self.transfer.go_on(members)
        if members[0] >= self.node.founders.ranks:
            # The command that started the system has noticed the loss, and may start the system again.
            if self.rank == members[0]:
                tell("all ranks of the start are lost; the ranks that joined later end, too")
            self.stop()
        else:
            self.on_change()
            if self.orders is not None:
                self.orders.world_changed()

    def _bury(self, rank: int) -> None:
        self.lookout.bury(rank)
        self.memory.leave_out(rank)
        self._newcomers.kill(rank)

    def _tell_own_desk(self, it: rank_effects.DeskHears) -> None:
        if self._desk is not None:
            self._desk.hear(it.rank, it.data, self.now())

    def _note_drained(self, it: rank_effects.Drained) -> None:
        if self.orders is not None:
            self.orders.drained(it.rank)

    def _wind_up(self) -> None:
        self._stop_at_s = math.inf
        self._bells.wind_up()

    def _fail(self, why: str) -> None:
        self._flush_logs()
        raise PeerFailure(why)

    # --- end of this rank ------------------------------------------------------------------

    def _close_doors(self) -> None:
        if self.orders is not None:
            self.orders.close()
        self.pool.close()
        self._flush_logs()

    def leave(self) -> None:
        """End this rank's processes and files, while the other ranks go on."""
        if self._desk is not None:
            self._desk.hand_over()
        self._close_doors()
        self._transport.leave(self.node.leavers)

    def close(self) -> bool:
        """Meet the other ranks, then end this rank's processes and files; return whether all were met."""
        if self._desk is not None:
            self._desk.close()
        # Other ranks first save the work of the worker processes that this rank's fork server has forked.
        met = self._transport.close(then=self._close_doors, dead=self.lookout.take_dead)
        self._newcomers.wait(time.monotonic() + _LAST_SHELL_S)
        return met


#: the method that executes each effect
_ON_EFFECT: dict[type[rank_effects.AnyRankEffect], Callable[[Rank, Any], object]] = {
    rank_effects.OfPE: Rank._do_for_pe,
    rank_effects.Tell: Rank._send_envelope,
    rank_effects.TellLost: lambda rank, it: rank._transport.answer_lost(
        it.rank, seal(it.g, 0, 0, encode(it.message))
    ),
    rank_effects.Bury: lambda rank, it: rank._bury(it.rank),
    rank_effects.Accuse: lambda rank, it: rank._transport.lose(it.rank, it.how),
    rank_effects.Fail: lambda rank, it: rank._fail(it.why),
    rank_effects.Fetch: lambda rank, it: rank.transfer.fetch(it.job, it.description.size, it.sources),
    rank_effects.Forget: lambda rank, it: rank.transfer.forget(it.job),
    rank_effects.LetGo: lambda rank, it: rank.transfer.let_go(it.job),
    rank_effects.DropUnheard: lambda rank, it: rank.transfer.drop_unheard(it.live),
    rank_effects.ToFiles: lambda rank, it: rank.transfer.receive(it.rank, it.message),
    rank_effects.DropChain: lambda rank, it: rank.pool.processes.discard_all(
        rank.pool.kept.drop_chain(it.chain)
    ),
    rank_effects.DeskHears: Rank._tell_own_desk,
    rank_effects.Note: lambda rank, it: rank.log.write(rank.now(), it.event, it.fields),
    rank_effects.Say: lambda rank, it: tell(it.text),
    rank_effects.Halted: lambda rank, it: rank.transfer.halt(),
    rank_effects.WorldChanged: Rank._change_world,
    rank_effects.WindUp: lambda rank, it: rank._wind_up(),
    rank_effects.Drained: Rank._note_drained,
    rank_effects.ListenFor: lambda rank, it: rank._send(it.rank, Listening(rank._newcomers.listen(it.call))),
    rank_effects.Expect: lambda rank, it: rank.lookout.expect(it),
    rank_effects.KillRank: lambda rank, it: rank._newcomers.kill(it.rank),
    rank_effects.Grown: lambda rank, it: rank._newcomers.done(it.problems),
}


def portable(here: wire.LocalDescription, chain: int = 0, revision: int = 0) -> Description:
    """Convert a description that a helper process has read into the protocol's form."""
    if isinstance(here, wire.Inline):
        return Description(len(here.data), here.data, chain, revision)
    return Description(here.size_bytes, None, chain, revision)


def service_clock(start_s: float) -> Callable[[], float]:
    """Return a clock of seconds since the service's start: monotonic, and about equal on all hosts."""
    offset_s = time.time() - time.monotonic() - start_s
    return lambda: time.monotonic() + offset_s
