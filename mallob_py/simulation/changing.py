"""A cluster whose ranks are lost, hang, leave and join (`protocol/generation.py`), in virtual time.

Each rank is a `Node`, the one that runs in production; here are its hands, and what happens to it. A rank
that joins is a `Membership` alone until it begins its first generation.

Here each PE has a *place*, for life: that of its rank's address, and there the same one in all generations.
Places are what `pes`, `processes` and `tell` know; the numbers that PEs have in messages are those of their
generation.

Users bring jobs to *folders*, one for each rank that there ever was. A folder has one holder at a time, first
its own rank. When the holder is gone, its heir takes the folder over, and submits anew what has no reply yet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from mallob_py.protocol.config import Config
from mallob_py.protocol.effects import AnyEffect, JobEnded, JobGivenUp, TerminateWorker
from mallob_py.protocol.generation import (
    AnyChange,
    Begin,
    End,
    EndReason,
    Heard,
    Lost,
    Membership,
    Ordered,
    Tell,
    TimePassed,
)
from mallob_py.protocol.host_health import Fault, HostHealth
from mallob_py.protocol.messages import Message
from mallob_py.protocol.node import Node, Origin
from mallob_py.protocol.pe import PE
from mallob_py.protocol.placement import Generation, Placement, first_generation, heir_of
from mallob_py.protocol.rank_effects import (
    Accuse,
    AnyRankEffect,
    Drained,
    Fail,
    Fetch,
    Note,
    OfPE,
    TellLost,
    WorldChanged,
)
from mallob_py.protocol.rank_effects import Tell as TellRank
from mallob_py.protocol.rank_messages import Beat, GenerationMessage
from mallob_py.protocol.rank_stimuli import (
    AnyRankStimulus,
    DescriptionCame,
    DescriptionFailed,
    DrainWanted,
    RankLost,
    Said,
    TimeCame,
    ToPE,
)
from mallob_py.protocol.stimuli import (
    AnyStimulus,
    JobInterrupted,
    JobSubmitted,
    TermsChanged,
    Tick,
    WorkerCrashed,
    WorkerLeft,
    WorkerLost,
)
from mallob_py.protocol.tables import Tables
from mallob_py.simulation.cluster import TICK as _TICK
from mallob_py.simulation.cluster import Cluster, Failing, Step, submission
from mallob_py.simulation.delays import Delays, mixed


class _Rank:
    """The hands of one rank. `places` are those of its PEs; `node` is None until it is a member."""

    def __init__(self, address: int, places: range, membership: Membership | None, node: Node | None) -> None:
        self.address = address
        self.places = places
        #: of one that joins
        self.membership = membership
        self.node = node
        self.is_gone = False
        self.is_hung = False
        #: by a user's order
        self.is_to_leave = False
        #: what happens to one that hangs, to be met when it wakes up
        self.asleep: list[Callable[[], None]] = []
        #: what it hears of while it has halted, as its loop serves nothing but the change
        self.waiting: list[Callable[[], None]] = []
        #: messages to a member, before it is one
        self.early: list[tuple[int, int, Said]] = []
        self.halted_s = math.inf
        #: if it drains: when it leaves at the latest, and whether it has said that it may
        self.drains_until_s = -math.inf
        self.has_drained = False

    @property
    def is_awake(self) -> bool:
        return not (self.is_gone or self.is_hung)

    @property
    def is_halted(self) -> bool:
        if self.node is not None:
            return self.node.is_halted
        assert self.membership is not None
        return self.membership.is_halted

    @property
    def generation(self) -> Generation | None:
        """That of its PEs."""
        return None if self.node is None else self.node.present

    @property
    def lost(self) -> frozenset[int]:
        return frozenset() if self.node is None else self.node.lost


class ChangingCluster(Cluster):
    """`detect_s`: for how long a rank is silent until somebody looks; `patience_s`: see `Membership`."""

    def __init__(
        self,
        size: int,
        seed: int = 0,
        config: Config | None = None,
        delays: Delays | None = None,
        capacities: Sequence[int] | None = None,
        detect_s: float = 0.01,
        patience_s: float = 1.0,
    ) -> None:
        self._ranks: list[_Rank] = []
        super().__init__(size, seed, config, delays, capacities=capacities)
        self._detect_s = detect_s
        self._patience_s = patience_s
        self._loop_of: list[int] = list(self._loop_of)
        self._origin = Origin(self.placement.capacities)
        first = first_generation(self.placement.capacities)
        #: by generation: its PEs
        self._placements: dict[int, Placement] = {first.g: self.placement}
        self._tables = Tables(self.placement.capacities, self.config, are_shared=True)
        #: by folder, which is called as its first rank: who holds it
        self._holders: dict[int, int] = {}
        #: by job: its folder, and how it is submitted
        self._journal: dict[int, tuple[int, JobSubmitted]] = {}
        self._interrupted: set[int] = set()
        #: a rank whose new PEs say what they want done at once
        self._is_beginning = False
        #: virtual time from the first `Halt` to the last `Begin` of each generation: (g, seconds)
        self.stops: list[tuple[int, float]] = []
        self._next_tick_s = [math.inf] * size
        self._heap.clear()
        for address in first.members:
            node = Node(address, self._origin, self.config, patience_s=patience_s, tables=self._tables)
            rank = _Rank(address, self.placement.pes_of(address), None, node)
            self._ranks.append(rank)
            self._show_pes(rank)
        for rank in self._ranks:
            self._do_all(rank)

    # --- what happens to ranks --------------------------------------------------------------------

    def addresses(self) -> list[int]:
        """Of all ranks that there ever were."""
        return [rank.address for rank in self._ranks]

    def members_awake(self) -> list[int]:
        return [rank.address for rank in self._ranks if rank.is_awake and rank.generation is not None]

    def members_staying(self) -> list[int]:
        """Those awake that neither drain nor have been ordered to leave."""
        ranks = (self._ranks[address] for address in self.members_awake())
        return [rank.address for rank in ranks if not rank.is_to_leave and rank.drains_until_s == -math.inf]

    def is_there(self, address: int) -> bool:
        return self._ranks[address].is_awake

    def generation_of(self, address: int) -> Generation | None:
        return self._ranks[address].generation

    def die(self, address: int) -> None:
        """The rank's process ends without a word, and its workers with it."""
        self._remove(self._ranks[address])
        self._look_for_later(address)

    def hang(self, address: int, for_s: float) -> None:
        """The rank does nothing for so long, then goes on where it was. Its workers do not hang."""
        rank = self._ranks[address]
        rank.is_hung = True
        self._later(for_s, lambda: self._wake_up(rank))
        self._look_for_later(address)

    def leave(self, address: int, asked: int) -> None:
        """Somebody orders, at rank `asked`, that the rank leaves, whatever is lost by that."""
        self._ranks[address].is_to_leave = True
        self.tell_rank(asked, Ordered(leaves=(address,)))

    def drain(self, address: int, grace_s: float) -> None:
        """Nothing new starts at the rank; it leaves when nothing is lost by that, or after the grace."""
        rank = self._ranks[address]
        rank.drains_until_s = self.now + grace_s
        self._have_drain(rank)
        self._leave_if_drained(rank)

    def _have_drain(self, rank: _Rank) -> None:
        rank.has_drained = False
        self.tell_rank(rank.address, DrainWanted(rank.address, rank.drains_until_s))

    def _leave_if_drained(self, rank: _Rank) -> None:
        awake = self.members_awake()
        drains = any(self.pes[place].workers.is_draining for place in rank.places)
        has_heard = rank.is_awake and not rank.is_halted
        if rank.is_gone or (has_heard and not drains):  # as the last one it takes on work again
            rank.drains_until_s = -math.inf
        elif rank.is_awake and len(awake) > 1 and (rank.has_drained or self.now >= rank.drains_until_s):
            asked = min(awake, key=lambda one: mixed(self.seed, rank.address, one))
            self.tell_rank(asked, Ordered(leaves=(rank.address,)))
            self._later(self._patience_s, lambda: self._leave_if_drained(rank))  # who was asked may be lost
        else:
            self._later(self._detect_s, lambda: self._leave_if_drained(rank))

    def join(self, capacities: Sequence[int], asked: int) -> list[int]:
        """New ranks are connected, and ordered to join, at rank `asked`; their addresses."""
        joins = tuple((self._connect(capacity), capacity) for capacity in capacities)
        self._ask_for(joins, asked)
        return [address for address, _ in joins]

    def _ask_for(self, joins: tuple[tuple[int, int], ...], asked: int) -> None:
        """If the order is lost with the rank that was asked, it is given once more."""
        self.tell_rank(asked, Ordered(joins=joins))

        def look() -> None:
            ranks = [self._ranks[address] for address, _ in joins]
            if any(rank.is_awake and rank.generation is None for rank in ranks):
                awake = self.members_awake()
                self._ask_for(joins, asked if asked in awake else awake[0])

        self._later(self._patience_s, look)

    def _connect(self, capacity: int) -> int:
        address, first = len(self._ranks), len(self.pes)
        places = range(first, first + capacity)
        membership = Membership(address, None, self._patience_s)
        self._ranks.append(_Rank(address, places, membership, None))
        self.health.append(HostHealth(self.config))
        self._busy_until_s.append(0.0)
        for place in places:
            self.pes.append(PE(0, 1, self.config))  # until it begins
            self._loop_of.append(address)
            self._next_tick_s.append(math.inf)
            self._handling_s.append(self.delays.handling_s)
            self._sending_s.append(self.delays.sending_s)
            assert len(self.pes) == place + 1
        return address

    def _wake_up(self, rank: _Rank) -> None:
        rank.is_hung = False
        asleep, rank.asleep = rank.asleep, []
        for happening in asleep:
            happening()
        self._inherit()
        self._later(self._detect_s, lambda: self._speak(rank))

    def _speak(self, rank: _Rank) -> None:
        """One that has slept sends beats to the members it knows, until it hears its fate, if it has one.

        Where others go on, and all who could tell it so are gone, it ends as well. Real ranks do not get
        there: all know those that were there from the start, and without any of these the others end.
        """
        present = rank.generation
        if not rank.is_awake or present is None:
            return
        there = [other for other in self._ranks if not other.is_gone and other.generation is not None]
        strangers = [
            other for other in there if other.generation and rank.address not in other.generation.members
        ]
        witnesses = [other for other in strangers if other.address in present.members]
        if strangers and not witnesses:
            self._remove(rank)
            return
        for other in witnesses:
            if other.is_awake:
                self._hear(other, Said(rank.address, present.g, 0, 0, Beat()))
        if strangers or any(rank.address in other.lost for other in there):
            self._later(self._detect_s, lambda: self._speak(rank))

    def _remove(self, rank: _Rank) -> None:
        rank.is_gone = True
        for key in [key for key in self.processes if self._loop_of[key[0]] == rank.address]:
            del self.processes[key]
        self._inherit()

    def _look_for_later(self, address: int) -> None:
        self._later(self._detect_s, lambda: self._look_for(address))

    def _look_for(self, address: int) -> None:
        """One of those that would hear from a silent rank misses it."""
        if self._ranks[address].is_awake:
            return
        others = [one for one in self._ranks if one.generation is not None and not one.is_gone]
        concerned = [one for one in others if one.generation and address in one.generation.members]
        if not any(one.address != address for one in concerned):
            return
        doubtless = [one for one in concerned if one.is_awake and address not in one.lost]
        if doubtless:
            witness = min(doubtless, key=lambda one: mixed(self.seed, address, one.address))
            self.tell_rank(witness.address, RankLost(address, "is silent"))
        self._look_for_later(address)

    # --- the nodes ----------------------------------------------------------------------------------

    def tell_rank(self, address: int, stimulus: AnyRankStimulus) -> None:
        """Tell a rank something, and do what follows."""
        rank = self._ranks[address]
        if rank.is_gone:
            return
        if rank.is_hung:
            rank.asleep.append(lambda: self.tell_rank(address, stimulus))
        elif rank.node is None:
            if isinstance(stimulus, RankLost):
                self._change(rank, Lost(stimulus.rank))
        else:
            was_halted = rank.is_halted
            rank.node.handle(stimulus, self.now)
            if not was_halted and rank.is_halted:
                rank.halted_s = self.now
            self._do_all(rank)

    def _do_all(self, rank: _Rank) -> None:
        node = rank.node
        assert node is not None
        while node.effects and not rank.is_gone:
            self._do(rank, node.effects.popleft())
        if node.end_reason is not None:
            self._end(rank, node.end_reason)
        if rank.is_gone:
            return
        first, deadline_s = rank.places[0], node.deadline_s
        if deadline_s < self._next_tick_s[first]:
            self._next_tick_s[first] = max(deadline_s, self.now)
            self._push(self._next_tick_s[first], first, _TICK, None)

    def _do(self, rank: _Rank, effect: AnyRankEffect) -> None:
        match effect:
            case OfPE(slot, inner):
                self._execute(rank.places[slot], inner)
            case TellRank(dest, g, source, to, message):
                self._send(rank, dest, Said(rank.address, g, source, to, message))
            case TellLost(dest, g, message):
                self._send(rank, dest, Said(rank.address, g, 0, 0, message))
            case Fetch(job):
                self._fetch(rank.places[0], job)
            case Note("generation", fields):
                self._is_beginning = False
                self.observe(self.now, rank.places[0], "generation", fields)
                self._go_on(rank)
            case Note(event, fields):
                self.observe(self.now, rank.places[0], event, fields)
            case WorldChanged(after):
                self._change_world(rank, after)
            case Drained():
                rank.has_drained = True
            case Accuse(_, how) | Fail(how):
                raise AssertionError(f"rank {rank.address}: {how}")
            case _:
                pass

    def _change_world(self, rank: _Rank, after: Generation) -> None:
        self._placements.setdefault(after.g, Placement(after.capacities, after.members))
        self.size = self._placements[max(self._placements)].size  # some may begin late what others have left
        self._is_beginning = True
        self._show_pes(rank)
        if rank.halted_s < math.inf:
            self.stops.append((after.g, self.now - rank.halted_s))
            rank.halted_s = math.inf

    def _show_pes(self, rank: _Rank) -> None:
        assert rank.node is not None
        for place, pe in zip(rank.places, rank.node.pes, strict=True):
            self.pes[place] = pe

    def _go_on(self, rank: _Rank) -> None:
        """It serves all again that its loop serves."""
        self._inherit()
        if rank.drains_until_s > -math.inf:
            self._have_drain(rank)
        waiting, rank.waiting = rank.waiting, []
        for happening in waiting:
            happening()

    def _end(self, rank: _Rank, why: EndReason) -> None:
        is_drained = self.now < rank.drains_until_s and not rank.is_to_leave
        if why is EndReason.LEFT and is_drained:
            self._check_nothing_is_lost(rank)
        self._remove(rank)

    def _check_nothing_is_lost(self, rank: _Rank) -> None:
        for (place, _), process in self.processes.items():
            has_work = process.job in self.orderly and process.is_started and not process.is_suspended
            assert not (has_work and self._loop_of[place] == rank.address), "a drained rank has work of a bag"

    def _change(self, rank: _Rank, change: AnyChange) -> None:
        """Of a rank that joins."""
        membership = rank.membership
        assert membership is not None
        membership.handle(change, self.now)
        for step in membership.take_effects():
            match step:
                case Tell(dest, message):
                    self._send(rank, dest, Said(rank.address, 0, 0, 0, message))
                case Begin(_, after):
                    self._placements.setdefault(after.g, Placement(after.capacities, after.members))
                    self.size = self._placements[max(self._placements)].size
                    rank.node = Node(rank.address, self._origin, self.config, membership, tables=self._tables)
                    self._show_pes(rank)
                    self._do_all(rank)
                    self._inherit()
                case End():
                    self._remove(rank)
        if rank.node is not None:
            early, rank.early = rank.early, []
            for dest, source, said in early:
                self.deliver(dest, source, said)
        elif membership.deadline_s < math.inf:
            self.at(membership.deadline_s, lambda: self._lose_patience(rank))

    def _lose_patience(self, rank: _Rank) -> None:
        if rank.is_hung:
            rank.asleep.append(lambda: self._lose_patience(rank))
        elif rank.node is None and not rank.is_gone:
            self._change(rank, TimePassed())

    # --- messages ---------------------------------------------------------------------------------

    def _send(self, rank: _Rank, dest: int, said: Said) -> None:
        source_place, dest_place = rank.places[0], self._ranks[dest].places[0]
        if isinstance(said.message, Message):
            placement = self._placements[said.g]
            source_place += said.source - placement.first_pe(rank.address)
            dest_place += said.dest - placement.first_pe(dest)
        loop = rank.address
        departure_s = max(self.now, self._busy_until_s[loop]) + self._sending_s[source_place]
        self._busy_until_s[loop] = departure_s
        self._post(source_place, dest_place, said, departure_s)  # type: ignore[arg-type]

    def deliver(self, dest: int, source: int, message: Any) -> None:
        self._hear(self._ranks[self._loop_of[dest]], message, dest, source)

    def _hear(self, rank: _Rank, said: Said, dest: int = 0, source: int = 0) -> None:
        if rank.is_gone:
            return
        if rank.is_hung:
            rank.asleep.append(lambda: self._hear(rank, said, dest, source))
        elif rank.node is not None:
            self.tell_rank(rank.address, said)
        elif isinstance(said.message, GenerationMessage):
            self._change(rank, Heard(said.rank, said.message))
        else:
            rank.early.append((dest, source, said))

    def tell(self, rank: int, stimulus: AnyStimulus) -> None:
        process = self._ranks[self._loop_of[rank]]
        if process.is_gone:
            return
        if process.is_hung:
            process.asleep.append(lambda: self.tell(rank, stimulus))
        elif isinstance(stimulus, Tick):
            self.tell_rank(process.address, TimeCame())
        elif process.is_halted:
            process.waiting.append(lambda: self.tell(rank, stimulus))
        else:
            if isinstance(stimulus, WorkerCrashed | WorkerLost | WorkerLeft):
                self.processes.pop((rank, stimulus.worker), None)
            self.tell_rank(process.address, ToPE(rank - process.places[0], stimulus))

    def _after(self, rank: int) -> None:
        if self._ranks:  # else there are no nodes yet
            self._do_all(self._ranks[self._loop_of[rank]])

    def _fetch(self, rank: int, job: int) -> None:
        failing, address = self.fails(rank, job, Step.FETCH), self._loop_of[rank]
        stimulus: AnyRankStimulus = DescriptionCame(job)
        if failing is not None:
            fault = Fault.HOST if failing is Failing.ROOM else Fault.NOBODY
            stimulus = DescriptionFailed(job, f"no {failing.value}", fault)
        self._later(self.delays.fetch_s(rank), lambda: self.tell_rank(address, stimulus))

    def _pes_of(self, loop: int) -> Sequence[int]:
        return self._ranks[loop].places

    def _execute(self, rank: int, effect: AnyEffect) -> None:
        is_end = isinstance(effect, TerminateWorker)
        assert not (is_end and self._is_beginning), "a change of generation ends a process"
        if isinstance(effect, JobEnded):
            folder, _ = self._journal[effect.job]
            assert self._holder_of(folder) == self._loop_of[rank], "an answer of one that holds no journal"
        super()._execute(rank, effect)

    # --- jobs and folders -------------------------------------------------------------------------

    def submit(self, job: int, rank: int = 0, leaves: bool = False, **parameters: Any) -> None:
        folder = self._loop_of[rank]
        if leaves:
            self.orderly.add(job)
        self._submissions[job] = submission(job, parameters)
        self._journal[job] = folder, self._submissions[job]
        self.submitted[job] = rank
        self._hand_in(job)

    def _submit_again(self, it: JobGivenUp) -> None:
        if self._is_held(it.job):  # else its heir hands it in
            super()._submit_again(it)

    def set_back(self, job: int) -> None:
        if self._is_held(job):
            super().set_back(job)

    def interrupt(self, job: int) -> None:
        self._interrupted.add(job)
        if self._is_held(job):
            super().interrupt(job)

    def _end_process(self, rank: int, news: WorkerCrashed | WorkerLost | WorkerLeft) -> None:
        """It counts as there until its rank looks, but says nothing more."""
        process = self.processes[rank, news.worker]
        if not process.has_ended:
            process.has_ended = True
            self.tell(rank, news)

    def set_terms(self, job: int, priority: float, max_demand: int) -> None:
        if self._is_held(job):
            self.tell(self.submitted[job], TermsChanged(job, priority, max_demand))

    def _hand_in(self, job: int) -> None:
        """Have the holder of the job's folder submit it; if it is gone, its heir will."""
        if not self._is_held(job):
            return
        folder, submitted = self._journal[job]
        holder = self._ranks[self._holder_of(folder)]
        if holder.address != folder or self.submitted[job] not in holder.places:
            self.submitted[job] = holder.places[0]
        self.tell(self.submitted[job], msgspec.structs.replace(submitted, checkpoint=self.saved.get(job)))
        if job in self._interrupted:
            self.tell(self.submitted[job], JobInterrupted(job))

    def _holder_of(self, folder: int) -> int:
        return self._holders.get(folder, folder)

    def _held(self) -> list[tuple[int, int]]:
        return [(folder, self._holder_of(folder)) for folder in self.addresses()]

    def _is_held(self, job: int) -> bool:
        return not self._ranks[self._holder_of(self._journal[job][0])].is_gone

    def _inherit(self) -> None:
        """Folders whose holder is gone are taken over by its heir, if that knows."""
        for folder, holder in self._held():
            if not self._ranks[holder].is_gone:
                continue
            for rank in self._ranks:
                present = rank.generation
                if not rank.is_awake or present is None or rank.is_halted:
                    continue
                if holder not in present.members and heir_of(holder, present.members) == rank.address:
                    self._holders[folder] = rank.address
                    for job in [job for job, (of, _) in self._journal.items() if of == folder]:
                        if job not in self.ended:
                            self._hand_in(job)
                    break

    # --- checks -----------------------------------------------------------------------------------

    def present(self) -> Iterable[tuple[int, PE]]:
        return [
            (place, self.pes[place])
            for rank in self._ranks
            if not rank.is_gone and rank.generation is not None
            for place in rank.places
        ]

    def capacity_of(self, host: int) -> int:
        return len(self._ranks[host].places)

    def is_quiescent(self) -> bool:
        there = [rank for rank in self._ranks if not rank.is_gone]
        return (
            super().is_quiescent()
            and all(rank.is_awake and not rank.is_halted and not rank.early for rank in there)
            and all(rank.generation is not None and rank.drains_until_s == -math.inf for rank in there)
        )

    def check_generations(self) -> None:
        """All that live are in one generation, and nobody else is; all folders have a holder."""
        there = [rank for rank in self._ranks if not rank.is_gone]
        generations = {rank.generation for rank in there}
        assert len(generations) == 1, f"ranks rest in different generations: {generations}"
        (present,) = generations
        assert present is not None
        assert present.members == tuple(rank.address for rank in there), "members that are not there"
        for folder, holder in self._held():
            assert holder in present.members, f"the folder of rank {folder} has been left alone"
