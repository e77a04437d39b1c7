"""One rank: stimuli in (`rank_stimuli.py`), effects out (`rank_effects.py`), for all of its PEs.

    generation.py    who belongs to the system, and how that changes
    succession.py    what the PEs of a new generation take over
    pe.py            one PE; a rank hosts one or several
    host_health.py   whether the host gives workers their processes
        growth.py        ranks that this rank has started and that must join
    rank_reports.py  what ranks tell each other about themselves

Messages between PEs of one rank do not leave it: they wait in one queue, which keeps their order, and are
handled before anything else. When ranks are lost, leave or join, the others agree on the next generation. A
rank that has *halted* for this change hears only of the change: other stimuli wait. In the new generation,
new PEs go on with the state of the old ones. Ranks keep their numbers for ever; PEs are numbered anew.

The caller must execute every effect, in order; hand in a `TimeCame` at `deadline_s`, a `Looked` once a
second, and each rank's messages in the order sent; and never let `now` go back.

Guarantees: no message reaches a PE of another generation than its sender's. A former member's messages reach
no PE, and no desk (where a client takes in its users' jobs).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, get_args

from mallob_py.protocol import PeerViolation, generation, rank_effects, rank_messages, rank_stimuli, stimuli
from mallob_py.protocol.balancing import Balancer
from mallob_py.protocol.config import Config
from mallob_py.protocol.effects import BlameHost, FetchDescription, JobOver, JobUnheard, Log, Send
from mallob_py.protocol.generation import Tell as TellRank
from mallob_py.protocol.growth import Host
from mallob_py.protocol.host_health import Fault, HostHealth
from mallob_py.protocol.messages import AnyMessage
from mallob_py.protocol.pe import PE
from mallob_py.protocol.placement import Generation, Placement, Succession
from mallob_py.protocol.rank_book import Origin, RankBook
from mallob_py.protocol.rank_reports import RankReports
from mallob_py.protocol.tables import Tables

_TICK = stimuli.Tick()


class _Drain(NamedTuple):
    """The draining ordered by rank `asked_by`: over at `until_s` at the latest, next examined at `look_s`."""

    asked_by: int
    until_s: float
    look_s: float


class _Halt(NamedTuple):
    """The time when a rank halted, and the stimuli that have come since."""

    since_s: float
    told: list[rank_stimuli.AnyRankStimulus]


class Node:
    """One rank. The module's docstring lists the caller's duties."""

    def __init__(
        self,
        rank: int,
        origin: Origin,
        config: Config,
        membership: generation.Membership | None = None,
        patience_s: float = math.inf,
        *,
        survives: bool = True,
        tables: Tables | None = None,
    ) -> None:
        """Make a rank. `membership`: for a newcomer. `patience_s`: as in `Membership`.

        `survives`: whether the rank goes on after losses of ranks. `tables`: shared with other ranks.
        """
        self.rank = rank
        self.survives = survives
        self._tables = tables or Tables(origin.founders, config)
        self._membership = membership or generation.Membership(rank, self._tables.first, patience_s)
        present = self.present
        self.placement = self._tables.placement(present)
        #: the effects in order; this queue is never replaced
        self.effects: deque[rank_effects.AnyRankEffect] = deque()
        numbers = self.placement.pes_of(rank)
        self._first = numbers[0]
        #: number that logs use for this rank's first PE, in all generations
        self.first_logged = origin.first_logged(rank, len(numbers), self.founders)
        era = 0 if membership is None else present.number
        rule = self._tables.rule(present, rank)
        #: PEs of the present generation; this list is never replaced
        self.pes = [PE(number, self.placement.size, config, rule, era) for number in numbers]
        #: record of whether the host gives workers their processes
        self.health = HostHealth(config)
        #: messages to PEs of this rank: (source, destination, message)
        self._arrived: deque[tuple[int, int, AnyMessage]] = deque()
        #: number of messages between PEs of this rank so far
        self.local_messages = 0
        #: PEs with effects to be passed on
        self._unsettled: deque[PE] = deque(self.pes)
        #: job -> slots (numbers within this rank) of PEs that wait for the job's description
        self.fetching: dict[int, set[int]] = {}
        #: number g of the present generation, as in envelopes
        self._g = present.g
        #: messages for PEs and the desk of a generation that has not begun here
        self._ahead: list[rank_stimuli.Said] = []
        #: former members
        self._gone: set[int] = set()
        #: whether this rank waits for the next generation
        self.is_halted = False
        self._halted = _Halt(math.inf, [])
        self._book = RankBook(origin, self.placement.members[-1] + 1)
        _show_neighbours(self)
        self._host = Host(self._book, self._say, self._act)
        self._drain: _Drain | None = None
        #: whether this rank drains, or has started ranks that must still join
        self._has_duties = False
        #: time when workers of the last generation are given up if their jobs have not found them again
        self._found_s = -math.inf
        own = origin.processes.get(rank, rank_messages.RankProcess(0, "", 0, 0))
        #: states of ranks, and which workers are where
        self.reports = RankReports(rank, own.host, own.pid, len(numbers))
        #: time to drop the descriptions of jobs that no message has named since the last change of membership
        self._unheard_until_s = math.inf
        #: whether this rank takes no part in changes, since the system or this rank ends
        self.is_stopping = False
        #: time when this rank stops waiting for other ranks
        self._over_at_s = math.inf
        #: reason why this rank must end alone
        self.end_reason: generation.EndReason | None = None
        self._settle(0.0)

    # --- state of the rank --------------------------------------------------------------------

    @property
    def config(self) -> Config:
        return self._tables.config

    @property
    def founders(self) -> Placement:
        """The placement of the ranks that the launcher started."""
        return self._tables.founders

    @property
    def pe(self) -> PE:
        """The rank's first PE, to which the desk submits jobs."""
        return self.pes[0]

    @property
    def present(self) -> Generation:
        """The present generation."""
        present = self._membership.generation
        assert present is not None
        return present

    @property
    def is_growing(self) -> bool:
        """Tell whether ranks that this rank has started have yet to join."""
        return self._host.growth is not None

    @property
    def bound(self) -> int:
        """The smallest address above all addresses taken so far."""
        return self._book.bound

    @property
    def lost(self) -> frozenset[int]:
        """The ranks known to be lost, or to have left."""
        return frozenset(self._gone | self._membership.lost)

    @property
    def leavers(self) -> tuple[int, ...]:
        """Return the ranks ordered to leave in the change of ranks that made this rank halt or end."""
        return self._membership.leavers

    def is_over(self, now: float) -> bool:
        """Tell whether this rank ends and nothing is left to do here."""
        if not self.is_stopping:
            return False
        if self.end_reason is not None or self.is_halted:
            return True
        is_waited_for = any(len(pe.workers.leaving) or pe.client.awaits_roots for pe in self.pes)
        return not is_waited_for or now >= self._over_at_s

    @property
    def deadline_s(self) -> float:
        """Return when a `TimeCame` is needed, unless another stimulus comes before."""
        if self.is_halted:
            return self._membership.deadline_s
        deadline_s = self._over_at_s
        for pe in self.pes:  # comparisons are quicker than `min`, and this runs for each message
            if pe.deadline_s < deadline_s:
                deadline_s = pe.deadline_s
        if self._has_duties:
            if (growth := self._host.growth) is not None:
                deadline_s = min(deadline_s, growth.deadline_s)
            if self._drain is not None:
                deadline_s = min(deadline_s, self._drain.look_s)
        return deadline_s

    # --- stimuli --------------------------------------------------------------------------------

    def handle(self, stimulus: rank_stimuli.AnyRankStimulus, now: float) -> None:
        """Take in a stimulus; consequences are in `effects`."""
        if type(stimulus) is rank_stimuli.Said:  # the most frequent stimulus
            self._hear(stimulus, now)
        elif self.is_halted and type(stimulus) not in _WHILE_HALTED:
            self._halted.told.append(stimulus)
        else:
            _ON_STIMULUS[type(stimulus)](self, stimulus, now)
        if self._unsettled or self._arrived:
            self._settle(now)
        if self._has_duties and not self.is_halted:
            self._do_duties(now)

    def take_effects(self) -> list[rank_effects.AnyRankEffect]:
        """Return the effects since the last call."""
        effects = list(self.effects)
        self.effects.clear()
        return effects

    def _hear(self, said: rank_stimuli.Said, now: float) -> None:
        message = said.message
        handle = _ON_MESSAGE.get(type(message))
        if handle is not None:
            handle(self, said, message, now)
        elif said.g == self._g and not self.is_halted:
            rank_of, source, slot = self.placement.rank_of, said.source, said.dest - self._first
            if not (source < len(rank_of) and rank_of[source] == said.rank):
                self._accuse(said.rank, f"a message of PE {source}, which is not one of its PEs")
            elif not 0 <= slot < len(self.pes):
                self._accuse(said.rank, f"a message for PE {said.dest}, which is not here")
            else:
                self._give(self.pes[slot], source, message, now)  # type: ignore[arg-type]
        elif said.rank in self._gone:
            self._change(generation.Strayed(said.rank, said.g), now)
        elif said.g > self._g:
            self._ahead.append(said)

    def _give(self, pe: PE, source: int, message: AnyMessage, now: float) -> None:
        try:
            pe.receive(source, message, now)
        except PeerViolation as error:
            self._blame_for(error)
        if pe.effects:
            self._pass_on(pe, now)

    def _accuse(self, rank: int, what: str) -> None:
        self._act(rank_effects.Accuse(rank, f"sent what no rank sends ({what})"))

    def _tell_pe(self, slot: int, stimulus: stimuli.AnyStimulus, now: float) -> None:
        pe = self.pes[slot]
        pe.handle(stimulus, now)
        if type(stimulus) is stimuli.WorkerStarted and self.health.failures:
            self.health.clear()
            self._act(rank_effects.Note("host is well", {}))
        self._unsettled.append(pe)

    def _come_to_time(self, now: float) -> None:
        if self.is_halted:
            if now >= self._membership.deadline_s:
                self._change(generation.TimePassed(), now)
            return
        for pe in self.pes:
            if pe.deadline_s <= now:
                pe.handle(_TICK, now)
                self._unsettled.append(pe)
                self._settle(now)

    def _look(self, looked: rank_stimuli.Looked, now: float) -> None:
        if now >= self._unheard_until_s:
            self._unheard_until_s = math.inf
            self._act(rank_effects.DropUnheard(frozenset(self.pe.balancer.jobs)))
        if self.reports.go_to is None:
            return
        trouble = self.health.trouble(now)
        troubles = looked.troubles if trouble is None else (*looked.troubles, trouble)
        busy = sum(pe.workers.active is not None for pe in self.pes)
        if (news := self.reports.news(busy, troubles, looked.turns, looked.use)) is not None:
            self._say(self.reports.go_to, news)

    # --- the PEs of this rank ---------------------------------------------------------------------

    def _settle(self, now: float) -> None:
        """Pass on effects of PEs and handle messages between PEs of this rank, until none is left."""
        unsettled, arrived = self._unsettled, self._arrived
        while unsettled or arrived:
            if unsettled:
                self._pass_on(unsettled.popleft(), now)
            else:
                source, dest, message = arrived.popleft()
                self._give(self.pes[dest - self._first], source, message, now)

    def _blame_for(self, error: PeerViolation) -> None:
        """Take the rank at fault as lost; if it is this rank, raise the error."""
        rank = self.rank if error.source is None else self.placement.rank_of[error.source]
        if rank == self.rank:
            raise error
        self._act(rank_effects.Note("violation", {"story": str(error)}))
        self._accuse(rank, str(error).splitlines()[0])

    def _pass_on(self, pe: PE, now: float) -> None:
        effects, slot, rank_of = pe.effects, pe.rank - self._first, self.placement.rank_of
        while effects:
            effect = effects.popleft()
            if type(effect) is Send:  # the most frequent effect
                rank = rank_of[effect.dest]
                if rank == self.rank:
                    self.local_messages += 1
                    self._arrived.append((pe.rank, effect.dest, effect.message))
                else:
                    self.effects.append(
                        rank_effects.Tell(rank, self._g, pe.rank, effect.dest, effect.message)
                    )
            elif (pass_on := _OF_RANK.get(type(effect))) is None:
                self.effects.append(rank_effects.OfPE(slot, effect))
            else:
                pass_on(self, slot, effect, now)

    def _fetch(self, slot: int, effect: FetchDescription) -> None:
        self.fetching.setdefault(effect.job, set()).add(slot)
        sources = tuple(self.placement.rank_of[source] for source in effect.sources)
        self._act(rank_effects.Fetch(effect.job, effect.description, sources))

    def _end_job(self, slot: int, job: int) -> None:
        if waiting := self.fetching.get(job):
            waiting.discard(slot)
            if not waiting:
                del self.fetching[job]
        if slot == 0:
            self._act(rank_effects.Forget(job))

    def _tell_fetching(
        self, job: int, stimulus: stimuli.DescriptionHere | stimuli.DescriptionMissing, now: float
    ) -> None:
        for slot in sorted(self.fetching.pop(job, ())):
            self._tell_pe(slot, stimulus, now)

    def _rest(self, fault: Fault, reason: str, now: float) -> None:
        """Have all PEs of this rank rest, since a worker got no process here."""
        failures = self.health.failures
        until_s = self.health.blame(fault, reason, now)
        for slot in range(len(self.pes)):
            self._tell_pe(slot, stimuli.HostRests(until_s), now)
        if self.health.failures > failures:
            fields = {"failures": self.health.failures, "rest_s": until_s - now, "reason": reason}
            self._act(rank_effects.Note("host rests", fields))

    def _give_back(self, congested: rank_stimuli.Congested) -> None:
        """Return a message to its sender, as its receiver's rank takes it too slowly; drop returned ones."""
        message = congested.message
        if congested.g != self._g or self.is_halted:
            return
        self._act(
            rank_effects.OfPE(congested.source - self._first, Log("dropped message", {"job": message.job}))
        )
        if not message.returned:
            self._arrived.append((congested.dest, congested.source, message.back()))

    def _act(self, effect: rank_effects.AnyRankEffect) -> None:
        self.effects.append(effect)

    # --- other ranks ------------------------------------------------------------------------------

    def _say(self, rank: int, message: rank_messages.AnyWireMessage) -> None:
        """Send a message that concerns the whole rank and no PE."""
        self._act(rank_effects.Tell(rank, self._g, 0, 0, message))

    def _say_to_desk(self, rank: int, data: bytes) -> None:
        if rank == self.rank:
            self._act(rank_effects.DeskHears(rank, data))
        else:
            self._say(rank, rank_messages.DeskNews(data))

    def _hear_desk(self, said: rank_stimuli.Said, message: rank_messages.DeskNews) -> None:
        if said.g > self._g:  # the message may be for a client that is about to move here
            self._ahead.append(said)
        else:
            self._act(rank_effects.DeskHears(said.rank, message.data))

    def _spread(self, message: rank_messages.ChainOver | rank_messages.RollCall) -> None:
        """Pass a message to the ranks below this rank in the binary tree rooted at the message's origin."""
        if message.origin in self.placement.members:
            for child in self.placement.children(self.rank, message.origin):
                self._say(child, message)

    def _end_chain(self, message: rank_messages.ChainOver) -> None:
        self._act(rank_effects.DropChain(message.chain))
        self._spread(message)

    def _answer_roll(self, call: rank_messages.RollCall) -> None:
        self._spread(call)
        active = [(pe.rank, pe.workers.active) for pe in self.pes]
        workers = tuple(
            rank_messages.WorkerPlace(pe, one.job, one.index) for pe, one in active if one is not None
        )
        if call.origin == self.rank:
            self.reports.roll.note(self.rank, workers)
        else:
            self._say(call.origin, rank_messages.RollAnswer(workers))

    # --- end of the system ------------------------------------------------------------------------

    def _stop(self, now: float) -> None:
        """End all ranks, including this one."""
        if not self.is_stopping:
            for dest in self.placement.members:
                if dest != self.rank:
                    self._say(dest, rank_messages.Stop())
            self._wind_up(now)

    def _hear_stop(self, said: rank_stimuli.Said, now: float) -> None:
        """End this rank; if the sender may not know of later newcomers, end all ranks."""
        if said.g < self._g:
            self._stop(now)
        else:
            self._wind_up(now)

    def _wind_up(self, now: float) -> None:
        """Take no further jobs; have workers leave in order, and roots save their jobs."""
        if not self.is_stopping:
            self.is_stopping = True
            self._over_at_s = now + self.config.leave_grace_s
            self._act(rank_effects.WindUp())
            if not self.is_halted:
                for slot in range(len(self.pes)):
                    self._tell_pe(slot, stimuli.SystemEnds(), now)

    # --- draining -----------------------------------------------------------------------------------

    def _have_drain(self, wanted: rank_stimuli.DrainWanted, now: float) -> None:
        if wanted.rank == self.rank:
            self._begin_drain(self.rank, wanted.until_s, now)
        else:
            self._say(wanted.rank, rank_messages.RankDrains(wanted.until_s))

    def _begin_drain(self, asked_by: int, until_s: float, now: float) -> None:
        self._drain = _Drain(asked_by, until_s, until_s)
        self._has_duties = True
        for slot, pe in enumerate(self.pes):
            if not pe.workers.giving_back.is_draining:  # a second `Drain` could drop its holds
                self._tell_pe(slot, stimuli.Drain(), now)

    def _hear_of_drain(self, said: rank_stimuli.Said, message: rank_messages.RankDrains, now: float) -> None:
        if self.is_halted:
            self._halted.told.append(said)
        else:
            self._begin_drain(said.rank, message.until_s, now)

    def _look_whether_drained(self, drain: _Drain, now: float) -> None:
        """Report once that this rank is drained; after the deadline, wait only for workers that leave."""
        hands_over = any(len(pe.workers.leaving) for pe in self.pes)
        over_s = drain.until_s + (self.config.leave_grace_s if hands_over else 0.0)
        has_found = now >= self._found_s
        if now < over_s and not (has_found and all(pe.is_drained for pe in self.pes)):
            self._drain = drain._replace(look_s=over_s if has_found else min(over_s, self._found_s))
            return
        self._drain = None
        if drain.asked_by == self.rank:
            self._act(rank_effects.Drained(self.rank))
        else:
            self._say(drain.asked_by, rank_messages.RankDrained())

    # --- changes of membership ----------------------------------------------------------------------

    def _lose(self, rank: int, how: str, now: float) -> None:
        """Go on without a lost rank, if this rank survives losses."""
        if rank in self._gone:
            return
        if self.is_stopping:
            self._over_at_s = -math.inf
            self._act(rank_effects.Bury(rank))  # else the ranks would wait for the lost rank when they end
            return
        if rank not in self._membership.leavers:  # no order to leave explains the loss
            message = self._book.lose(rank, how)
            self._act(rank_effects.Note("lost rank", {"lost": rank, "message": message}))
            if not self.survives:
                self._act(rank_effects.Fail(message))
                return
            if self._host.growth is not None:
                self._host.growth.lost(rank, how)
        self._change(generation.Lost(rank), now)

    def _change(self, change: generation.AnyChange, now: float) -> None:
        """Tell the membership of a change, and carry out the consequences."""
        if self.is_stopping:
            return
        self._settle(now)
        membership = self._membership
        membership.handle(change, now)
        for rank in sorted(membership.lost - self._gone):
            self._gone.add(rank)
            self._act(rank_effects.Bury(rank))
            self._host.lost(rank)
        for step in membership.take_effects():
            match step:
                case TellRank(rank, rank_messages.Fenced() as message) if rank in self._gone:
                    self._act(rank_effects.TellLost(rank, self._g, message))
                case TellRank(rank, message):
                    self._say(rank, message)
                case generation.Halt():
                    self._halt(now)
                case generation.Begin(before, after):
                    assert before is not None, "this rank is a member already"
                    self._begin(before, after, now)
                case generation.End(why):
                    self.end_reason = why
                    self.is_stopping = True

    def _halt(self, now: float) -> None:
        assert not self._arrived, "messages between PEs of this rank are handled before it halts"
        assert not self._unsettled, "effects of PEs are passed on before the rank halts"
        self._halted = self._halted._replace(since_s=now)
        self.is_halted = True
        for pe in self.pes:
            pe.halt(now)
            self._pass_on(pe, now)
        self._act(rank_effects.Halted())

    def _begin(self, before: Generation, after: Generation, now: float) -> None:
        """Begin a generation: new PEs go on with the state of the old ones."""
        former, self.placement = self.placement.members, self._tables.placement(after)
        gone = tuple(rank for rank in former if rank not in after.members)
        come = tuple(rank for rank in after.members if rank not in former)
        self._gone.update(gone)
        self._g = after.g
        self._book.take(after.members[-1] + 1)
        self._unheard_until_s = now + self.config.succession_patience_s
        self._first = self.placement.first_pe(self.rank)
        heirs, rule = Succession(before, after), self._tables.rule(after, self.rank)
        self.pes[:] = [old.successor(heirs, self.config, rule, now) for old in self.pes]
        _show_neighbours(self)
        self.fetching.clear()
        self.reports.begin_anew(gone)
        for rank in gone:
            self._host.lost(rank)
        if any(pe.workers.suspended for pe in self.pes):
            self._found_s = now + self.config.succession_hold_s
        self._act(rank_effects.WorldChanged(after, gone, come))
        for pe in self.pes:
            self._pass_on(pe, now)
        self._tell_of_change(after, gone, come, now)
        self.is_halted = False
        self._catch_up(now)
        self._settle(now)

    def _catch_up(self, now: float) -> None:
        """Take in early messages, then stimuli that waited here."""
        ahead, self._ahead = self._ahead, []
        for said in ahead:
            if said.g > self._g:
                self._ahead.append(said)
            elif isinstance(said.message, rank_messages.DeskNews):
                if said.rank not in self._gone:
                    self._act(rank_effects.DeskHears(said.rank, said.message.data))
            elif said.g == self._g:
                self._hear(said, now)
        told = self._halted.told.copy()
        self._halted.told.clear()
        for stimulus in told:
            self._settle(now)
            if self.is_halted:
                self._halted.told.append(stimulus)
            elif isinstance(stimulus, rank_stimuli.Said):
                self._hear(stimulus, now)
            else:
                _ON_STIMULUS[type(stimulus)](self, stimulus, now)

    def _begin_growth(self, started: rank_stimuli.RanksStarted, now: float) -> None:
        self._has_duties = True
        self._host.begin(started, self.placement.members, now)

    def _do_duties(self, now: float) -> None:
        """Go on with draining this rank, and with the joining of ranks that it has started."""
        if self._drain is not None:
            self._look_whether_drained(self._drain, now)
        if self.is_growing and (order := self._host.turn(self.placement.members, now)) is not None:
            self._change(order, now)
            self._settle(now)
        self._has_duties = self._drain is not None or self.is_growing

    def _tell_of_change(
        self, after: Generation, gone: tuple[int, ...], come: tuple[int, ...], now: float
    ) -> None:
        fields = {
            "generation": after.number,
            "members": after.members,
            "pes": self.placement.size,
            "gone": gone,
            "come": come,
            "stop_s": now - self._halted.since_s,
        }
        self._act(rank_effects.Note("generation", fields))
        if self.rank == after.members[0]:
            lost = [rank for rank in gone if rank in self._membership.lost]
            left = [rank for rank in gone if rank not in self._membership.lost]
            how = "; ".join(
                [
                    *map(self._book.how_gone, lost),
                    *self._book.how_moved(left, "left"),
                    *self._book.how_moved(come, "joined"),
                ]
            )
            verb = "goes" if self.placement.ranks == 1 else "go"
            self._act(
                rank_effects.Say(f"{how}. {self.placement.describe()} {verb} on (generation {after.number})")
            )


#: method for each kind of stimulus: (node, stimulus, now); `Said` is dispatched by message
_ON_STIMULUS: dict[type, Callable[[Node, Any, float], None]] = {
    rank_stimuli.ToPE: lambda node, it, now: node._tell_pe(it.slot, it.stimulus, now),
    rank_stimuli.TimeCame: lambda node, it, now: node._come_to_time(now),
    rank_stimuli.Looked: Node._look,
    rank_stimuli.Congested: lambda node, it, now: node._give_back(it),
    rank_stimuli.RankLost: lambda node, it, now: node._lose(it.rank, it.how, now),
    rank_stimuli.RankBack: lambda node, it, now: node._change(generation.Strayed(it.rank, 0), now),
    rank_stimuli.DescriptionCame: lambda node, it, now: node._tell_fetching(
        it.job, stimuli.DescriptionHere(it.job), now
    ),
    rank_stimuli.DescriptionFailed: lambda node, it, now: node._tell_fetching(
        it.job, stimuli.DescriptionMissing(it.job, it.reason, it.fault), now
    ),
    rank_stimuli.ChainEnds: lambda node, it, now: node._end_chain(
        rank_messages.ChainOver(it.chain, node.rank)
    ),
    rank_stimuli.RollWanted: lambda node, it, now: node._answer_roll(rank_messages.RollCall(node.rank)),
    rank_stimuli.DeskSays: lambda node, it, now: node._say_to_desk(it.rank, it.data),
    rank_stimuli.NewsGoTo: lambda node, it, now: node.reports.send_to(it.rank),
    rank_stimuli.DrainWanted: Node._have_drain,
    rank_stimuli.RanksStarted: Node._begin_growth,
    generation.Ordered: Node._change,
    rank_stimuli.EndWanted: lambda node, it, now: node._stop(now),
}


def _show_neighbours(node: Node) -> None:
    """Tell the PEs which other PEs are on their host."""
    book, rank, rank_of = node._book, node.rank, node.placement.rank_of
    members = node.placement.members
    for pe in node.pes:
        if isinstance(pe.balancer, Balancer):
            pe.balancer.is_one_host = lambda: all(book.are_together(rank, other) for other in members)
        pe.workers.giving.is_near = lambda other: book.are_together(rank, rank_of[other])


#: stimuli that a halted rank takes in, beside `Said`
_WHILE_HALTED = (
    rank_stimuli.RankLost,
    rank_stimuli.RankBack,
    rank_stimuli.TimeCame,
    rank_stimuli.Congested,
    generation.Ordered,
    rank_stimuli.EndWanted,
    rank_stimuli.RanksStarted,
)


def _of_members(
    handle: Callable[[Node, rank_stimuli.Said, Any, float], None],
) -> Callable[[Node, rank_stimuli.Said, Any, float], None]:
    """Return a handler that handles members' messages; a former member is only told that it is no member."""

    def listen(node: Node, said: rank_stimuli.Said, message: Any, now: float) -> None:
        if said.rank in node._gone:
            node._change(generation.Strayed(said.rank, said.g), now)
        else:
            handle(node, said, message, now)

    return listen


def _hear_change(node: Node, said: rank_stimuli.Said, message: Any, now: float) -> None:
    node._change(generation.Heard(said.rank, message), now)


#: method for each kind of message between ranks: (node, source, message, now)
_ON_MESSAGE: Mapping[type, Callable[[Node, rank_stimuli.Said, Any, float], None]] = {
    **dict.fromkeys(
        (
            rank_messages.Suspect,
            rank_messages.Wanted,
            rank_messages.Propose,
            rank_messages.Ready,
            rank_messages.Outdated,
            rank_messages.Commit,
            rank_messages.Fenced,
        ),
        _hear_change,
    ),
    **{
        kind: _of_members(handle)
        for kind, handle in {
            **dict.fromkeys(
                get_args(rank_messages.AnyFileMessage),
                lambda node, said, it, now: node._act(rank_effects.ToFiles(said.rank, it)),
            ),
            rank_messages.Stop: lambda node, said, it, now: node._hear_stop(said, now),
            rank_messages.Beat: lambda node, said, it, now: (
                node._say(said.rank, rank_messages.Beat()) if it.answer else None
            ),
            rank_messages.ChainOver: lambda node, said, it, now: node._end_chain(it),
            rank_messages.DeskNews: lambda node, said, it, now: node._hear_desk(said, it),
            rank_messages.RollCall: lambda node, said, it, now: node._answer_roll(it),
            rank_messages.RollAnswer: lambda node, said, it, now: node.reports.roll.note(
                said.rank, it.workers
            ),
            rank_messages.RankNews: lambda node, said, it, now: node.reports.of_ranks.__setitem__(
                said.rank, it
            ),
            rank_messages.RankDrains: Node._hear_of_drain,
            rank_messages.RankDrained: lambda node, said, it, now: node._act(rank_effects.Drained(said.rank)),
            rank_messages.Listen: lambda node, said, it, now: node._host.listen(said.rank, it),
            rank_messages.Listening: lambda node, said, it, now: node._host.listening(
                said.rank, it, node.placement.members
            ),
            rank_messages.Joining: lambda node, said, it, now: node._host.meet(said.rank, it),
            rank_messages.Connected: lambda node, said, it, now: node._host.connected(said.rank),
            # messages from a peer that was taken as lost while this rank was a newcomer
            **dict.fromkeys((rank_messages.Noted, rank_messages.Welcome), lambda node, said, it, now: None),
        }.items()
    },
}

#: method for each effect of a PE that concerns its rank: (node, slot, effect, now)
_OF_RANK: Mapping[type, Callable[[Node, int, Any, float], None]] = {
    FetchDescription: lambda node, slot, it, now: node._fetch(slot, it),
    JobOver: lambda node, slot, it, now: node._end_job(slot, it.job),
    JobUnheard: lambda node, slot, it, now: node._act(rank_effects.LetGo(it.job)),
    BlameHost: lambda node, slot, it, now: node._rest(it.fault, it.reason, now),
}
