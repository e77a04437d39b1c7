"""A cluster whose ranks are lost, hang, leave and join (`protocol/generation.py`), in virtual time.

Here each PE has a *place*, for life: that of its rank's address, and there the same one in all generations.
Places are what `pes`, `processes` and `tell` know; the numbers that PEs have in messages are those of their
generation, and every message carries that, as envelopes do.

Users bring jobs to *folders*, one for each rank that there ever was. A folder has one holder at a time, first
its own rank. When the holder is gone, its heir takes the folder over, and submits anew what has no reply yet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from mallob_py.protocol.balancing import ImageRule, local_rule, shared_rule
from mallob_py.protocol.config import Config
from mallob_py.protocol.effects import AnyEffect, JobEnded, TerminateWorker
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
from mallob_py.protocol.host_health import HostHealth
from mallob_py.protocol.messages import AnyMessage
from mallob_py.protocol.pe import PE
from mallob_py.protocol.placement import Generation, first_generation, heir_of
from mallob_py.protocol.stimuli import (
    AnyStimulus,
    Drain,
    JobInterrupted,
    JobSubmitted,
    Received,
    TermsChanged,
    Tick,
    WorkerCrashed,
    WorkerLeft,
    WorkerLost,
)
from mallob_py.protocol.succession import Succession
from mallob_py.simulation.cluster import Cluster, submission
from mallob_py.simulation.delays import Delays, mixed


class Envelope(msgspec.Struct, frozen=True):
    """A message of PE number `source` of generation `g`."""

    g: int
    source: int
    message: AnyMessage


class _Rank:
    """One process. `places` are those of its PEs."""

    def __init__(self, address: int, places: range, membership: Membership) -> None:
        self.address = address
        self.places = places
        self.membership = membership
        #: that of its PEs
        self.generation = membership.generation
        self.is_gone = False
        self.is_hung = False
        #: by a user's order
        self.is_to_leave = False
        #: what happens to one that hangs, to be met when it wakes up
        self.asleep: list[Callable[[], None]] = []
        #: what happens to its PEs while it is halted
        self.waiting: list[tuple[int, AnyStimulus]] = []
        #: messages of generations that it has not begun yet: (place, place of the sender, envelope)
        self.early: list[tuple[int, int, Envelope]] = []
        self.halted_s = math.inf
        #: if it drains: when it leaves at the latest
        self.drains_until_s = -math.inf

    @property
    def is_awake(self) -> bool:
        return not (self.is_gone or self.is_hung)


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
        self._first = first = first_generation(self.placement.capacities)
        self._ranks = [
            _Rank(address, self.placement.pes_of(address), Membership(address, first, patience_s))
            for address in first.members
        ]
        #: by generation: from the number of a PE to its place
        self._place_of: dict[int, list[int]] = {first.g: list(range(size))}
        self._rules: dict[int, ImageRule] = {}
        self._successions: dict[tuple[int, int], Succession] = {}
        #: by folder, which is called as its first rank: who holds it
        self._holders: dict[int, int] = {}
        #: by job: its folder, and how it is submitted
        self._journal: dict[int, tuple[int, JobSubmitted]] = {}
        self._interrupted: set[int] = set()
        self._is_beginning = False
        #: virtual time from the first `Halt` to the last `Begin` of each generation: (g, seconds)
        self.stops: list[tuple[int, float]] = []

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
        self.change(asked, Ordered(leaves=(address,)))

    def drain(self, address: int, grace_s: float) -> None:
        """Nothing new starts at the rank; it leaves when nothing is lost by that, or after the grace."""
        rank = self._ranks[address]
        rank.drains_until_s = self.now + grace_s
        for place in rank.places:
            self.tell(place, Drain())
        self._leave_if_drained(rank)

    def _leave_if_drained(self, rank: _Rank) -> None:
        awake = self.members_awake()
        drains = any(self.pes[place].workers.is_draining for place in rank.places)
        has_heard = rank.is_awake and not rank.membership.is_halted
        if rank.is_gone or (has_heard and not drains):  # as the last one it takes on work again
            rank.drains_until_s = -math.inf
        elif rank.is_awake and len(awake) > 1 and (self._is_drained(rank) or self.now >= rank.drains_until_s):
            asked = min(awake, key=lambda one: mixed(self.seed, rank.address, one))
            self.change(asked, Ordered(leaves=(rank.address,)))
            self._later(self._patience_s, lambda: self._leave_if_drained(rank))  # who was asked may be lost
        else:
            self._later(self._detect_s, lambda: self._leave_if_drained(rank))

    def _is_drained(self, rank: _Rank) -> bool:
        return all(self.pes[place].is_drained for place in rank.places)

    def join(self, capacities: Sequence[int], asked: int) -> list[int]:
        """New ranks are connected, and ordered to join, at rank `asked`; their addresses."""
        joins = tuple((self._connect(capacity), capacity) for capacity in capacities)
        self._ask_for(joins, asked)
        return [address for address, _ in joins]

    def _ask_for(self, joins: tuple[tuple[int, int], ...], asked: int) -> None:
        """If the order is lost with the rank that was asked, it is given once more."""
        self.change(asked, Ordered(joins=joins))

        def look() -> None:
            ranks = [self._ranks[address] for address, _ in joins]
            if any(rank.is_awake and rank.generation is None for rank in ranks):
                awake = self.members_awake()
                self._ask_for(joins, asked if asked in awake else awake[0])

        self._later(self._patience_s, look)

    def _connect(self, capacity: int) -> int:
        address, first = len(self._ranks), len(self.pes)
        places = range(first, first + capacity)
        self._ranks.append(_Rank(address, places, Membership(address, None, self._patience_s)))
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
                self.change(other.address, Strayed(rank.address, present.g))
        if strangers or any(rank.address in other.membership.lost for other in there):
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
        doubtless = [one for one in concerned if one.is_awake and address not in one.membership.lost]
        if doubtless:
            witness = min(doubtless, key=lambda one: mixed(self.seed, address, one.address))
            self.change(witness.address, Lost(address))
        self._look_for_later(address)

    # --- generations ------------------------------------------------------------------------------

    def change(self, address: int, change: AnyChange) -> None:
        """Tell a rank something about ranks, and do what follows."""
        rank = self._ranks[address]
        if rank.is_gone:
            return
        if rank.is_hung:
            rank.asleep.append(lambda: self.change(address, change))
            return
        membership = rank.membership
        membership.handle(change, self.now)
        for step in membership.take_effects():
            match step:
                case Tell(dest, message):
                    first = self._ranks[dest].places[0]
                    departure_s = max(self.now, self._busy_until_s[address]) + self._sending_s[first]
                    self._busy_until_s[address] = departure_s
                    super()._post(rank.places[0], first, message, departure_s)  # type: ignore[arg-type]
                case Halt():
                    self._halt(rank)
                case Begin(before, after):
                    self._begin(rank, before, after)
                case End(why):
                    is_drained = self.now < rank.drains_until_s and not rank.is_to_leave
                    if why is EndReason.LEFT and is_drained:
                        self._check_nothing_is_lost(rank)
                    self._remove(rank)
        if membership.deadline_s < math.inf:
            self.at(membership.deadline_s, lambda: self.change(address, TimePassed()))

    def _check_nothing_is_lost(self, rank: _Rank) -> None:
        for (place, _), process in self.processes.items():
            has_work = process.job in self.orderly and process.is_started and not process.is_suspended
            assert not (has_work and self._loop_of[place] == rank.address), "a drained rank has work of a bag"

    def _halt(self, rank: _Rank) -> None:
        rank.halted_s = self.now
        for place in rank.places:
            self.pes[place].halt(self.now)
            self._after(place)
            self._next_tick_s[place] = math.inf

    def _begin(self, rank: _Rank, before: Generation | None, after: Generation) -> None:
        if after.g not in self._place_of:
            self._place_of[after.g] = [
                place for address in after.members for place in self._ranks[address].places
            ]
            size = len(self._place_of[after.g])
            self._rules[after.g] = shared_rule(local_rule(size, self.config.slices), size)
        self.size = len(self._place_of[max(self._place_of)])  # some may begin late what others have left
        rank.generation = after
        started = {key for key in self.processes if self._loop_of[key[0]] == rank.address}
        self._is_beginning = True
        for place in rank.places:
            self.pes[place] = self._made(place, before, after)
            self._after(place)
        self._is_beginning = False
        assert started <= self.processes.keys(), "a process has not survived the change"
        if rank.halted_s < math.inf:
            self.stops.append((after.g, self.now - rank.halted_s))
            rank.halted_s = math.inf
        self._inherit()
        waiting, rank.waiting = rank.waiting, []
        for place, stimulus in waiting:
            self.tell(place, stimulus)
        early, rank.early = rank.early, []
        for dest, source, envelope in early:
            self.deliver(dest, source, envelope)

    def _made(self, place: int, before: Generation | None, after: Generation) -> PE:
        """The PE of a place in a new generation."""
        rule = self._rules[after.g]
        if before is None:
            number = self._place_of[after.g].index(place)
            return PE(number, len(self._place_of[after.g]), self.config, rule, after.number)
        names = before.g, after.g
        if names not in self._successions:
            self._successions[names] = Succession(before, after)
        return self.pes[place].successor(self._successions[names], self.config, rule, self.now)

    # --- messages ---------------------------------------------------------------------------------

    def _post(self, source: int, dest: int, message: AnyMessage, departure_s: float) -> None:
        generation = self._ranks[self._loop_of[source]].generation
        assert generation is not None
        place = self._place_of[generation.g][dest]
        envelope = Envelope(generation.g, self.pes[source].rank, message)
        super()._post(source, place, envelope, departure_s)  # type: ignore[arg-type]

    def deliver(self, dest: int, source: int, message: Any) -> None:
        rank = self._ranks[self._loop_of[dest]]
        sender = self._loop_of[source]
        if rank.is_gone:
            return
        if rank.is_hung:
            rank.asleep.append(lambda: self.deliver(dest, source, message))
            return
        if not isinstance(message, Envelope):
            self.change(rank.address, Heard(sender, message))
            return
        present = rank.generation
        g = 0 if present is None else present.g
        if message.g > g:
            rank.early.append((dest, source, message))
        if present is not None and message.g != g and sender not in present.members:
            self.change(rank.address, Strayed(sender, message.g))
        if message.g == g and not rank.membership.is_halted:
            super().tell(dest, Received(message.source, message.message))

    def tell(self, rank: int, stimulus: AnyStimulus) -> None:
        process = self._ranks[self._loop_of[rank]]
        if process.is_gone:
            return
        if isinstance(stimulus, Tick):
            if process.is_awake and not process.membership.is_halted and process.generation is not None:
                super().tell(rank, stimulus)
            elif process.is_hung:
                process.asleep.append(lambda: self._after(rank))
        elif process.is_hung:
            process.asleep.append(lambda: self.tell(rank, stimulus))
        elif process.membership.is_halted:
            process.waiting.append((rank, stimulus))
        else:
            if isinstance(stimulus, WorkerCrashed | WorkerLost | WorkerLeft):
                self.processes.pop((rank, stimulus.worker), None)
            super().tell(rank, stimulus)

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
        self._journal[job] = folder, submission(job, parameters)
        self.submitted[job] = rank
        self._hand_in(job)

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
                if not rank.is_awake or present is None or rank.membership.is_halted:
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
            and all(rank.is_awake and not rank.membership.is_halted and not rank.early for rank in there)
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
