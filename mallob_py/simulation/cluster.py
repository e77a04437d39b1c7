"""A cluster of ranks in virtual time. Each rank is the `Node` of production; this file executes its effects.

Ranks are lost, hang, leave and join (`protocol/generation.py`, `joining.py`). Each PE has a *place*, a number
that belongs to its rank's address and stays the same in all generations. `pes`, `processes`, `tell` and
reports use places; messages use the PEs' numbers in their generation.

Actions from outside (`submit`, `interrupt`, answers, crashes, ranks that come and go) are fed in by `at`. All
events follow from the seed, so any run can be replayed. At a quiescent moment, with nothing in flight and no
protocol timer running, `check.check_invariants` must hold; `run` can call it then.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from mallob_py.protocol import rank_effects, rank_messages, rank_stimuli, stimuli
from mallob_py.protocol.config import Config
from mallob_py.protocol.effects import (
    AnyEffect,
    GiveWorker,
    JobEnded,
    JobGivenUp,
    JobRests,
    JobSaved,
    JobSought,
    Log,
    TerminateWorker,
)
from mallob_py.protocol.generation import EndReason, Ordered
from mallob_py.protocol.host_health import Fault, HostHealth
from mallob_py.protocol.joining import Connect, Keep, Newcomer, Refused
from mallob_py.protocol.messages import Checkpoint, TreeMessage
from mallob_py.protocol.node import Node
from mallob_py.protocol.pe import PE
from mallob_py.protocol.placement import Generation, Placement
from mallob_py.protocol.rank_book import Origin
from mallob_py.protocol.tables import Tables
from mallob_py.simulation.delays import Delays, RandomDelays, mixed
from mallob_py.simulation.desks import DeskFolders, DeskPlan
from mallob_py.simulation.folders import Folders
from mallob_py.simulation.network import Network
from mallob_py.simulation.processes import Failing, Processes, Step, WorkerKey

Observer = Callable[[float, int, str, dict[str, Any]], None]

#: least time [s] between two looks for a silent rank that only hanging ranks would hear
_UNNOTICED_S = 0.001


class _Rank:
    """The simulator's part of one rank. `places`: the places of its PEs; `node`: None if it is no member."""

    def __init__(self, address: int, places: range, node: Node | None = None) -> None:
        self.address = address
        self.places = places
        self.node = node
        #: the newcomer's state before membership, once its process has started
        self.newcomer: Newcomer | None = None
        self.is_gone = False
        #: whether the rank has ended with all others, by a user's order
        self.is_over = False
        #: whether the rank is not lost, has not ended and does not hang
        self.is_awake = True
        #: whether a user has ordered the rank to leave
        self.is_to_leave = False
        #: events for a hanging rank, handled as soon as it goes on
        self.asleep: list[Callable[[], None]] = []
        #: events that wait while the rank is halted and handles only the change
        self.waiting: list[Callable[[], None]] = []
        #: whether a generation has begun and the first effects of its PEs are not executed yet
        self.begins = False
        #: messages that arrived before the newcomer was a member
        self.early: list[rank_stimuli.Said] = []
        #: ranks that the rank can reach although they are no founders
        self.known: set[int] = set()
        self.halted_s = math.inf
        #: if the rank drains: the deadline, the rank that must hear when the draining rank is empty, and
        #: whether that rank has heard
        self.drains_until_s = -math.inf
        self.drains_for = address
        self.has_drained = False
        #: number of messages among the rank's PEs so far, which keep its loop busy
        self.local_messages = 0

    @property
    def generation(self) -> Generation | None:
        """The generation of the rank's PEs."""
        return None if self.node is None else self.node.present

    @property
    def lost(self) -> frozenset[int]:
        if self.node is not None:
            return self.node.lost
        return frozenset() if self.newcomer is None else frozenset(self.newcomer.membership.lost)

    def hears_of(self, address: int) -> bool:
        """Tell whether the rank takes messages from the rank at `address`."""
        if self.newcomer is not None and self.node is None:
            hears = address in self.newcomer.peers
        else:
            present = self.generation
            hears = present is not None and (address in present.members or address in self.known)
        return hears and address not in self.lost


class Cluster(Network):
    """Nodes of `size` PEs, their network, their processes and their users' folders.

    `observe(now, place, event, fields)` gets logged events. `capacities`: number of PEs of each rank; by
    default each PE is a rank. Ranks are on `hosts` hosts, in turn. `detect_s`: silence after which another
    rank notices that a rank is lost; `patience_s`: as in `Membership`. `is_congested`: whether messages to
    workers of a hanging rank come back.
    """

    def __init__(
        self,
        size: int,
        seed: int = 0,
        config: Config | None = None,
        delays: Delays | None = None,
        observe: Observer | None = None,
        capacities: Sequence[int] | None = None,
        hosts: int = 1,
        detect_s: float = 0.01,
        patience_s: float = 1.0,
        is_congested: bool = False,
        desks: DeskPlan | None = None,
    ) -> None:
        super().__init__(seed, delays or RandomDelays(seed))
        self.size = size
        self.placement = Placement(capacities or [1] * size)
        assert self.placement.size == size, f"capacities {capacities} are not those of {size} PEs"
        self.config = config or Config()
        self._detect_s = detect_s
        self._patience_s = patience_s
        self._is_congested = is_congested
        #: whether a user has ordered all ranks to end
        self.is_ending = False
        self.logs: deque[tuple[float, int, str, dict[str, Any]]] = deque(maxlen=200_000)
        self.observe = observe or (lambda *event: self.logs.append(event))
        self.on_ended: Callable[[JobEnded], None] = lambda ended: None
        self.processes = Processes(self, self.tell)
        self.folders = Folders(self) if desks is None else DeskFolders(self, desks)
        #: virtual time from the first `Halt` to the last `Begin` of each generation: (g, seconds)
        self.stops: list[tuple[int, float]] = []
        #: the rank whose newcomers are still joining
        self._growing: _Rank | None = None
        self._hosts = hosts
        self._founders = self.placement.ranks
        founders = {address: _peer(address, self._hosts) for address in range(self._founders)}
        origin = _origin(self.placement.capacities, founders)
        self._tables = Tables(self.placement.capacities, self.config, are_shared=True)
        #: g -> places of the PEs of that generation
        self._places: dict[int, list[int]] = {self._tables.first.g: list(range(size))}
        self.pes: list[PE] = []
        self._ranks: list[_Rank] = []
        for address, capacity in enumerate(self.placement.capacities):
            places = self.add_loop(capacity, self.delays.slowness(address))
            node = Node(address, origin, self.config, patience_s=patience_s, tables=self._tables)
            self._ranks.append(_Rank(address, places, node))
            self.pes += node.pes
        for rank in self._ranks:
            self._do_all(rank)

    # --- actions from outside ----------------------------------------------------------------------

    def submit(self, job: int, rank: int = 0, leaves: bool = False, **parameters: Any) -> None:
        """Bring a job to the folder of the rank at place `rank`. `leaves`: its workers leave in order."""
        if leaves:
            self.processes.orderly.add(job)
        self.folders.submit(job, rank, parameters)

    def interrupt(self, job: int) -> None:
        self.folders.interrupt(job)

    def set_back(self, job: int) -> None:
        self.folders.tell(job, stimuli.JobSetBack(job))

    def crash(self, place: int, worker: int) -> None:
        """Kill a worker's process."""
        self.processes.end(place, stimuli.WorkerCrashed(worker, "killed by signal 9"))

    # --- state ------------------------------------------------------------------------------------

    @property
    def submitted(self) -> dict[int, int]:
        """job -> place of its client"""
        return self.folders.submitted

    @property
    def ended(self) -> dict[int, JobEnded]:
        return self.folders.ended

    @property
    def health(self) -> list[HostHealth]:
        """Return the health of each member's host."""
        return [rank.node.health for rank in self._ranks if rank.node is not None]

    def present(self) -> Iterator[tuple[int, PE]]:
        """Yield the present PEs with their places."""
        for rank in self._ranks:
            if rank.node is not None and not rank.is_gone:
                yield from zip(rank.places, rank.node.pes, strict=True)

    def host_of(self, place: int) -> int:
        """Return the rank of a PE."""
        return self._loop_of[place]

    def places_of(self, address: int) -> range:
        """Return the places of a rank's PEs."""
        return self._ranks[address].places

    def addresses(self) -> list[int]:
        """Return the addresses of all ranks that have ever existed."""
        return [rank.address for rank in self._ranks]

    def is_present(self, address: int) -> bool:
        """Tell whether the rank's process lives, hanging or not."""
        return not self._ranks[address].is_gone

    def is_there(self, address: int) -> bool:
        """Tell whether the rank lives and does not hang."""
        return self._ranks[address].is_awake

    def members_awake(self) -> list[int]:
        return [rank.address for rank in self._ranks if rank.is_awake and rank.node is not None]

    def members_staying(self) -> list[int]:
        """Return members that are awake, do not drain, have no order to leave, and are lost to no rank."""
        lost = frozenset().union(*(rank.lost for rank in self._ranks if not rank.is_gone))
        ranks = (self._ranks[address] for address in self.members_awake() if address not in lost)
        return [rank.address for rank in ranks if not rank.is_to_leave and rank.drains_until_s == -math.inf]

    def newcomers_awake(self) -> list[int]:
        """Return the addresses of ranks that are on their way to be members."""
        return [rank.address for rank in self._ranks if rank.is_awake and rank.node is None]

    def serving(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield awake members that have not halted, each with the members of its generation."""
        for rank in self._ranks:
            if rank.node is not None and rank.is_awake and not rank.node.is_halted:
                yield rank.address, rank.node.present.members

    def generation_of(self, address: int) -> Generation | None:
        return self._ranks[address].generation

    def running(self, job: int) -> list[WorkerKey]:
        """Return the job's running processes as (place, worker number), root first."""
        return self.processes.running(job)

    # --- events of ranks ---------------------------------------------------------------------------

    def die(self, address: int) -> None:
        """End the rank's process without notice, and its workers with it."""
        self._remove(self._ranks[address])
        self._look_for_later(address)

    def hang(self, address: int, for_s: float) -> None:
        """Stop the rank's process for a time; its workers go on."""
        rank = self._ranks[address]
        rank.is_awake = False
        self.later(for_s, lambda: self._wake_up(rank))
        self._look_for_later(address)

    def leave(self, address: int, asked: int) -> None:
        """Order at rank `asked` that the rank leaves, even if work gets lost."""
        self._ranks[address].is_to_leave = True
        self.tell_rank(asked, Ordered(leaves=(address,)))

    def drain(self, address: int, grace_s: float, asked: int | None = None) -> None:
        """Order the rank to drain. The order is given at rank `asked`, or at the rank itself if it is None.

        A draining rank starts nothing new, and leaves when it is empty, or after the grace. Of two orders to
        one rank, the earlier deadline holds.
        """
        rank = self._ranks[address]
        is_draining = rank.drains_until_s > -math.inf
        rank.drains_until_s = min(self.now + grace_s, rank.drains_until_s if is_draining else math.inf)
        rank.drains_for = address if asked is None else asked
        self._have_drain(rank)
        self._leave_if_drained(rank)

    def accuse(self, address: int, by: int) -> None:
        """Make rank `by` believe that a healthy rank is lost; the healthy rank must end when it is told."""
        self._ranks[address].is_to_leave = True
        self.tell_rank(by, rank_stimuli.RankLost(address, "is silent"))
        self.later(self._detect_s, lambda: self._speak(self._ranks[address]))

    def end(self, asked: int) -> None:
        """Order all ranks to end; the order is given at a rank that all others hear."""
        if staying := self.members_staying():
            self.is_ending = True
            self.tell_rank(asked if asked in staying else staying[0], rank_stimuli.EndWanted())

    def join(self, capacities: Sequence[int], asked: int) -> list[int]:
        """Have rank `asked` start newcomers; return their addresses."""
        new = []
        for capacity in capacities:
            places = self.add_loop(capacity, 1.0)
            self._ranks.append(_Rank(len(self._ranks), places))
            self.pes += [PE(0, 1, self.config) for _ in places]  # placeholders until the rank begins
            new.append(self._ranks[-1])
        self._start_ranks(new, asked)
        return [rank.address for rank in new]

    def _have_drain(self, rank: _Rank) -> None:
        rank.has_drained = False
        if not self.is_there(rank.drains_for):  # that rank is lost or hangs; its heir would give the order
            rank.drains_for = rank.address
        self.tell_rank(rank.drains_for, rank_stimuli.DrainWanted(rank.address, rank.drains_until_s))

    def _leave_if_drained(self, rank: _Rank) -> None:
        awake = self.members_awake()
        is_alone = rank.is_awake and rank.node is not None and len(rank.node.present.members) == 1
        if self.is_ending or rank.is_gone or is_alone:  # the last rank does not leave, and works again
            rank.drains_until_s = -math.inf
        elif rank.is_awake and len(awake) > 1 and (rank.has_drained or self.now >= rank.drains_until_s):
            asked = min(awake, key=lambda one: mixed(self.seed, rank.address, one))
            self.tell_rank(asked, Ordered(leaves=(rank.address,)))
            self.later(self._patience_s, lambda: self._leave_if_drained(rank))  # rank `asked` may be lost
        else:
            self.later(self._detect_s, lambda: self._leave_if_drained(rank))

    def _start_ranks(self, new: list[_Rank], asked: int) -> None:
        """Start newcomers. Only one rank at a time does so, and no rank knows a lost rank's newcomers."""
        awake = self.members_awake()
        if self.is_ending or not any(rank.node is not None and not rank.is_gone for rank in self._ranks):
            for rank in new:
                self._remove(rank)
            return
        if self._growing is not None or asked not in awake:
            other = asked if asked in awake or not awake else awake[0]
            self.later(self._detect_s, lambda: self._start_ranks(new, other))
            return
        self._growing = self._ranks[asked]
        call = rank_messages.Listen(new[-1].address + 1, b"secret", wide=False)
        host = _peer(asked, self._hosts)
        self.tell_rank(
            asked, rank_stimuli.RanksStarted(call, host, tuple((rank.address, host.process) for rank in new))
        )

        def start(rank: _Rank) -> None:
            if rank.is_gone:  # the rank was killed meanwhile
                return
            here = _peer(rank.address, self._hosts)
            assert here.place is not None
            me = rank_messages.Joining(here.process, here.host, here.place, len(rank.places))
            rank.newcomer = Newcomer(rank.address, me, host, self._patience_s, self.now)
            self._do_all_of_newcomer(rank, rank.newcomer)

        for rank in new:
            self.later(self.delays.process_start_s(rank.places[0]), partial(start, rank))
            if rank.is_gone:
                self._look_for_later(rank.address)

    def _wake_up(self, rank: _Rank) -> None:
        if rank.is_gone:
            return
        rank.is_awake = True
        asleep, rank.asleep = rank.asleep, []
        for happening in asleep:
            happening()
        self.folders.inherit(self.addresses())
        self.later(self._detect_s, lambda: self._speak(rank))

    def _speak(self, rank: _Rank) -> None:
        """Have a rank that has hung send beats to members that it knows, until it hears whether it is lost.

        If all ranks that know both generations are gone, the ranks of the earlier generation end. Real ranks
        never need this rule: all know the founders, and if no founder is left, the other ranks end.
        """
        present = rank.generation
        if not rank.is_awake or present is None:
            return
        there = [other for other in self._ranks if not other.is_gone and other.generation is not None]
        strangers = [
            other for other in there if other.generation and rank.address not in other.generation.members
        ]
        witnesses = [other for other in strangers if other.address in present.members]
        is_later = any(other.generation and other.generation.g > present.g for other in strangers)
        are_over = bool(strangers) and all(other.is_over for other in strangers)
        if (is_later and not witnesses) or are_over:
            self._remove(rank)
            return
        if not (is_later or witnesses):
            for other in strangers:
                if other.is_awake:
                    self._remove(other)
        for other in witnesses:
            if other.is_awake:
                self.tell_rank(
                    other.address, rank_stimuli.Said(rank.address, present.g, 0, 0, rank_messages.Beat())
                )
        if strangers or any(rank.address in other.lost for other in there):
            self.later(self._detect_s, lambda: self._speak(rank))

    def _remove(self, rank: _Rank) -> None:
        rank.is_gone, rank.is_awake = True, False
        if self._growing is rank:
            self._growing = None
        for key in [key for key in self.processes if self._loop_of[key[0]] == rank.address]:
            del self.processes[key]
        self.folders.inherit(self.addresses())

    def _look_for_later(self, address: int) -> None:
        self.later(self._detect_s, lambda: self._look_for(address))

    def _look_for(self, address: int) -> None:
        """Have a rank that should hear from the rank at `address` notice the silence."""
        if self._ranks[address].is_awake:
            return
        present = [one for one in self._ranks if not (one.is_gone or one.is_over)]
        others = [one for one in present if one.address != address]
        if self._ranks[address].is_over:  # an ended rank has told the members that all end
            others = [one for one in others if one.node is None]
        doubtless = [one for one in others if one.is_awake and one.hears_of(address)]
        if doubtless:
            witness = min(doubtless, key=lambda one: mixed(self.seed, address, one.address))
            self.tell_rank(witness.address, rank_stimuli.RankLost(address, "is silent"))
        if doubtless:
            self._look_for_later(address)
        elif any(one.hears_of(address) or _has_member(one, address) for one in others):
            # All ranks that hear from this rank hang: one of them must go on before it can notice.
            self.later(max(self._detect_s, _UNNOTICED_S), lambda: self._look_for(address))

    # --- the nodes ----------------------------------------------------------------------------------

    def deliver(self, dest: int, source: int, said: rank_stimuli.Said) -> None:
        rank = self._ranks[self._loop_of[dest]]
        if rank.is_awake and (node := rank.node) is not None:  # true for most stimuli
            node.handle(said, self.now)
            self._do_all(rank)
        else:
            self.tell_rank(rank.address, said)

    def tick(self, loop: int) -> None:
        self.tell_rank(loop, rank_stimuli.TimeCame())

    def tell(self, place: int, stimulus: stimuli.AnyStimulus) -> None:
        """Pass a stimulus to a PE, at once or when its rank serves again; drop it if the rank is gone."""
        rank = self._ranks[self._loop_of[place]]
        if not rank.is_awake:
            if not rank.is_gone:
                rank.asleep.append(lambda: self.tell(place, stimulus))
        elif rank.node is None or rank.node.is_halted:
            rank.waiting.append(lambda: self.tell(place, stimulus))
        else:
            if isinstance(stimulus, stimuli.WorkerCrashed | stimuli.WorkerLost | stimuli.WorkerLeft):
                self.processes.pop((place, stimulus.worker), None)
            self.tell_rank(rank.address, rank_stimuli.ToPE(place - rank.places[0], stimulus))

    def tell_rank(self, address: int, stimulus: rank_stimuli.AnyRankStimulus) -> None:
        """Hand a rank a stimulus, and execute the effects."""
        rank = self._ranks[address]
        if not rank.is_awake:
            if not rank.is_gone:
                rank.asleep.append(lambda: self.tell_rank(address, stimulus))
        elif (node := rank.node) is not None:
            node.handle(stimulus, self.now)
            self._do_all(rank)
        elif rank.newcomer is not None and isinstance(
            stimulus, rank_stimuli.Said | rank_stimuli.RankLost | rank_stimuli.TimeCame
        ):
            rank.newcomer.handle(stimulus, self.now)
            self._do_all_of_newcomer(rank, rank.newcomer)

    def _do_all(self, rank: _Rank) -> None:
        node = rank.node
        assert node is not None
        effects, places = node.effects, rank.places
        if self._has_costs and node.local_messages != rank.local_messages:
            self.occupy(rank.address, node.local_messages - rank.local_messages)
            rank.local_messages = node.local_messages
        while effects:
            effect = effects.popleft()
            if (
                type(effect) is rank_effects.Tell
            ):  # frequent effects first: patterns with parts take much longer
                self._send(rank, effect)
            elif type(effect) is rank_effects.OfPE:
                self._execute(places[effect.slot], effect.effect)
            else:
                self._do(rank, effect)
                if rank.is_gone:
                    return
        if rank.begins:  # all effects of the generation's beginning were executed
            rank.begins = False
            self._go_on(rank)
            if rank.is_gone:
                return
        if node.end_reason is not None:
            self._end(rank, node.end_reason)
        elif node.is_stopping and node.is_over(self.now):  # the rank stays until it has met the others
            rank.is_awake, rank.is_over = False, True
        elif (deadline_s := node.deadline_s) < self._next_tick_s[rank.address]:
            self.tick_at(rank.address, deadline_s)

    def _do(self, rank: _Rank, effect: rank_effects.AnyRankEffect) -> None:
        match effect:
            case rank_effects.TellLost(dest, g, message):
                self._send(rank, rank_effects.Tell(dest, g, 0, 0, message))
            case rank_effects.Fetch(job):
                self._fetch(rank, job)
            case rank_effects.Note(event, fields):
                self.observe(self.now, rank.places[0], event, fields)
            case rank_effects.Halted():
                rank.halted_s = self.now
            case rank_effects.WorldChanged(after, gone):
                rank.begins = True
                assert not _ends_a_process(rank), "a change of generation ends a process"
                if rank.address == after.members[0]:  # ranks that were left out notice the others' silence
                    for left_out in (self._ranks[address] for address in gone):
                        self.later(self._detect_s, partial(self._speak, left_out))
                self._show(rank, after)
                if rank.halted_s < math.inf:
                    self.stops.append((after.g, self.now - rank.halted_s))
                    rank.halted_s = math.inf
            case rank_effects.Drained(drained):
                self._ranks[drained].has_drained = True
            case rank_effects.ListenFor(other):
                place = _peer(rank.address, self._hosts).place
                self._send(
                    rank, rank_effects.Tell(other, self._tables.first.g, 0, 0, rank_messages.Listening(place))
                )
            case rank_effects.Expect(other):
                rank.known.add(other)
            case rank_effects.KillRank(other):
                self.die(other)
            case rank_effects.Grown():
                self._growing = None
            case rank_effects.Accuse(_, how) | rank_effects.Fail(how):
                raise AssertionError(f"rank {rank.address}: {how}")

    def _send(self, rank: _Rank, it: rank_effects.Tell) -> None:
        address, source, dest = rank.address, it.source, it.dest
        if self._is_congested and isinstance(it.message, TreeMessage | Checkpoint):
            receiver = self._ranks[it.rank]
            if not (receiver.is_awake or receiver.is_gone):
                if rank.node is not None and isinstance(it.message, TreeMessage):
                    rank.node.handle(rank_stimuli.Congested(it.g, source, dest, it.message), self.now)
                return
        if it.rank >= self._founders or address >= self._founders:
            assert it.rank in rank.known, f"rank {address} speaks to rank {it.rank}, which it does not know"
        said = rank_stimuli.Said(address, it.g, source, dest, it.message)
        if source != dest:  # equal numbers: the message concerns no PE
            places = self._places[it.g]
            self.post(places[source], places[dest], said)
        else:
            self.post(rank.places[0], self._ranks[it.rank].places[0], said)

    def _show(self, rank: _Rank, after: Generation) -> None:
        """Register the PEs of a rank at their places."""
        if after.g not in self._places:
            self._places[after.g] = [
                place for address in after.members for place in self._ranks[address].places
            ]
            # Some ranks may begin a generation late, when others have left it already.
            self.size = len(self._places[max(self._places)])
            self.folders.resize()
        assert rank.node is not None
        self.pes[rank.places[0] : rank.places[-1] + 1] = rank.node.pes

    def _go_on(self, rank: _Rank) -> None:
        """Have a rank's loop handle all waiting events, since its generation has begun."""
        self.folders.inherit(self.addresses())
        for drains in self._ranks:
            if drains.drains_until_s > -math.inf and rank.address in (drains.address, drains.drains_for):
                self._have_drain(drains)
        waiting, rank.waiting = rank.waiting, []
        for happening in waiting:
            happening()

    def _end(self, rank: _Rank, why: EndReason) -> None:
        is_drained = self.now < rank.drains_until_s and not rank.is_to_leave
        if why is EndReason.LEFT and is_drained:
            for (place, _), process in self.processes.items():
                has_work = process.job in self.processes.orderly and process.is_started
                is_here = self._loop_of[place] == rank.address and not process.is_suspended
                assert not (has_work and is_here), "a drained rank still has work of a bag job"
        self._remove(rank)
        if self.newcomers_awake():  # newcomers may wait for an answer of the rank
            self._look_for_later(rank.address)

    def _do_all_of_newcomer(self, rank: _Rank, newcomer: Newcomer) -> None:
        while newcomer.effects and not rank.is_gone:
            match newcomer.effects.popleft():
                case Connect(peer):
                    rank.known.add(peer.address)
                    if not self._ranks[peer.address].is_awake:
                        self._look_for_later(peer.address)
                case rank_effects.Tell() as effect:
                    self._send(rank, effect)
                case Keep(said):
                    rank.early.append(said)
                case Refused():
                    self.die(rank.address)
        if rank.is_gone:
            return
        if newcomer.generation is None:
            self.tick_at(rank.address, newcomer.deadline_s)
            return
        assert newcomer.welcome is not None, "a member has been welcomed"
        peers = {**newcomer.peers, rank.address: _peer(rank.address, self._hosts)}
        origin = _origin(newcomer.welcome.founders, peers)
        rank.node = Node(rank.address, origin, self.config, newcomer.membership, tables=self._tables)
        self._show(rank, newcomer.generation)
        self._do_all(rank)
        self._go_on(rank)
        early, rank.early = rank.early, []
        for said in early:
            self.tell_rank(rank.address, said)

    # --- the PEs ------------------------------------------------------------------------------------

    def _execute(self, place: int, effect: AnyEffect) -> None:
        if type(effect) is Log:
            self.observe(self.now, place, effect.event, effect.fields)
            return
        if self.processes.execute(place, effect):
            return
        match effect:
            case GiveWorker(pe=pe):
                node = self._ranks[self._loop_of[place]].node
                assert node is not None
                self.processes.give(place, effect, self._places[node.present.g][pe])
            case JobSaved(job, checkpoint):
                self.folders.saved[job] = checkpoint
            case JobSought() | JobRests() | JobGivenUp():
                self.folders.hear(place, effect)
            case JobEnded():
                self.folders.hear(place, effect)
                self.on_ended(effect)

    def _fetch(self, rank: _Rank, job: int) -> None:
        place = rank.places[0]
        failing = self.processes.fails(place, job, Step.FETCH)
        stimulus: rank_stimuli.AnyRankStimulus = rank_stimuli.DescriptionCame(job)
        if failing is not None:
            fault = Fault.HOST if failing is Failing.ROOM else Fault.NOBODY
            stimulus = rank_stimuli.DescriptionFailed(job, f"no {failing.value}", fault)
        self.later(self.delays.fetch_s(place), lambda: self.tell_rank(rank.address, stimulus))

    # --- checks -----------------------------------------------------------------------------------

    def is_quiescent(self) -> bool:
        """Tell whether nothing is in flight or held, no protocol timer runs, and all ranks are at work."""
        return (
            super().is_quiescent()
            and all(
                rank.is_gone
                or (
                    rank.is_awake
                    and rank.node is not None
                    and not rank.node.is_halted
                    and rank.drains_until_s == -math.inf
                    and all(pe.is_quiescent() for pe in rank.node.pes)
                )
                for rank in self._ranks
            )
            and not self.processes.is_one_awaited()
        )

    def check_generations(self) -> None:
        """Check that all live ranks, and no others, are in one generation, and all folders have a holder.

        If all ranks must end, check instead that they have ended.
        """
        if self.is_ending:
            left = [rank.address for rank in self._ranks if not (rank.is_gone or rank.is_over)]
            assert not left, f"ranks {left} do not end"
            return
        there = [rank for rank in self._ranks if not rank.is_gone]
        generations = {rank.generation for rank in there}
        assert len(generations) == 1, f"ranks rest in different generations: {generations}"
        (present,) = generations
        assert present is not None
        assert present.members == tuple(rank.address for rank in there), "members and live ranks differ"
        were_members = [rank.address for rank in self._ranks if rank.node is not None]
        self.folders.check(were_members, present.members)


def _ends_a_process(rank: _Rank) -> bool:
    """Tell whether the beginning of a generation (its effects up to a `Note`) ends a process.

    A single PE comes to its first epoch at once, and jobs may end in that epoch.
    """
    assert rank.node is not None
    for effect in rank.node.effects:
        match effect:
            case rank_effects.Note("generation") | rank_effects.Forget():
                break
            case rank_effects.OfPE(_, TerminateWorker()):
                return True
    return False


def _has_member(rank: _Rank, address: int) -> bool:
    present = rank.generation
    return present is not None and address in present.members


def _origin(capacities: tuple[int, ...], peers: Mapping[int, rank_messages.Peer]) -> Origin:
    processes = {address: peer.process for address, peer in peers.items()}
    hosts = {address: peer.host for address, peer in peers.items()}
    return Origin(capacities, processes=processes, hosts=hosts)


def _peer(address: int, hosts: int) -> rank_messages.Peer:
    """Return a rank's description for other ranks."""
    return rank_messages.Peer(
        address,
        address % hosts,
        rank_messages.RankProcess(0, f"host{address}", address, 0),
        rank_messages.Place(f"rank{address}"),
    )
