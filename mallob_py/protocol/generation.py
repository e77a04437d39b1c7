"""Generations: the system's members, while ranks are lost, leave and join and the others go on.

Ranks are known by *addresses*, which never change and are never reused. The members of a generation, sorted
by address, are its ranks 0..; PEs are numbered by their capacities (`Placement`). All other protocols know
one generation only. A change stops them, and the next generation begins with new PEs, which take over from
the old ones (`succession.py`).

    a rank with a reason --Suspect, Wanted--> the coordinator: the lowest member that is not lost
    the coordinator --Propose(g)--> all that stay or leave in order: they `Halt`, and answer Ready(g)
    all have answered: --Commit(g)--> each does `Begin`; leaving ranks do `End`

Each envelope of the other protocols carries its sender's g. An envelope of an earlier generation than the
receiver's is dropped (`Strayed`, if not from a member). An envelope of a later generation waits until the
receiver begins that generation, and is dropped if the receiver begins an even later one.

Rules, and their effects
- g is (number, coordinator) in one integer, and no coordinator reuses a number. So no two ranks ever begin
  the same g with different members. If two g have the same number, the lower coordinator's g is greater.
- No rank goes back: it promises and begins only generations greater than all that it has promised and begun.
  A rank asked for a lesser one answers `Outdated`, and the coordinator proposes a greater one.
- An accusation is final. A rank that one rank takes as lost is lost for all ranks that hear of it, by
  `Suspect` or by its absence from a proposal. They send the lost rank only one more message, `Fenced`. If it
  still lives, it *ends* on this message, since other ranks have its work. So no rank is taken back, and sets
  of lost ranks only grow. The price: two ranks that accuse each other at one moment may both have to end.
- If the coordinator is lost, the next member becomes coordinator without a vote. A loss during a change leads
  to a new proposal.
- If a rank has promised and hears nothing for `patience_s` (twice that time, unless it is the coordinator),
  it takes the rank that it waits for as lost.

No majority is needed: a system of two ranks must survive the loss of one. So if the network splits into parts
that do not hear each other, which MPI sees as losses, each part goes on without the other. Jobs are not
answered twice, since only one rank can hold a client's journal. When the parts hear each other again, the
part of the lesser generation ends.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import TypeAlias

import msgspec

from mallob_py.protocol.placement import Generation, coordinator_of, name_of, number_of
from mallob_py.protocol.rank_messages import (
    AnyGenerationMessage,
    Commit,
    Fenced,
    Outdated,
    Propose,
    Ready,
    Suspect,
    Wanted,
)

# --- stimuli --------------------------------------------------------------------------------------


class Lost(msgspec.Struct, frozen=True, tag=True):
    """Stimulus: the rank at this address is lost: dead, or silent."""

    address: int


class Ordered(msgspec.Struct, frozen=True, tag=True):
    """Stimulus: a user orders connected ranks (address, capacity) to join, and others to leave."""

    joins: tuple[tuple[int, int], ...] = ()
    leaves: tuple[int, ...] = ()


class Heard(msgspec.Struct, frozen=True, tag=True):
    """Stimulus: a message from an address; messages of one address come in the order sent."""

    source: int
    message: AnyGenerationMessage


class Strayed(msgspec.Struct, frozen=True, tag=True):
    """Stimulus: a message of another protocol, in an envelope of generation g, from a non-member."""

    source: int
    g: int


class TimePassed(msgspec.Struct, frozen=True, tag=True):
    """Stimulus: the time `deadline_s` has come."""


AnyChange: TypeAlias = Lost | Ordered | Heard | Strayed | TimePassed

# --- effects ---------------------------------------------------------------------------------------


class EndReason(Enum):
    """The reason why a rank must end."""

    #: other ranks took this rank as lost
    FENCED = "fenced"
    #: the rank was ordered to leave and may do so
    LEFT = "left"


class Tell(msgspec.Struct, frozen=True):
    """Send a message to a rank. To a lost rank the only message is `Fenced`, which may be left out."""

    address: int
    message: AnyGenerationMessage


class Halt(msgspec.Struct, frozen=True):
    """Send and take in no more messages of the present generation, and suspend the workers.

    A leaving rank must not release files that others take over, such as a journal, before it ends, since it
    may have to stay.
    """


class Begin(msgspec.Struct, frozen=True):
    """Make the PEs of generation `after` from those of `before` (None: a newcomer begins), and go on."""

    before: Generation | None
    after: Generation


class End(msgspec.Struct, frozen=True):
    """Stop being a rank, without telling anyone."""

    why: EndReason


AnyStep: TypeAlias = Tell | Halt | Begin | End


class Membership:
    """One rank's knowledge of generations. `generation` is None until a newcomer has begun its first one.

    Pass stimuli to `handle`, a `TimePassed` at `deadline_s`; take the effects by `take_effects`. `patience_s`
    must be equal on all ranks: a less patient one would take a waiting coordinator as lost.
    """

    def __init__(self, address: int, generation: Generation | None, patience_s: float) -> None:
        assert generation is None or address in generation.members
        self.address = address
        #: the present generation, possibly halted
        self.generation = generation
        self.lost: set[int] = set()
        self.has_ended = False
        self.effects: list[AnyStep] = []
        self.deadline_s = math.inf
        self._patience_s = patience_s
        #: proposal for which this rank has halted
        self._promised: Propose | None = None
        #: as coordinator: ranks that have not answered the promised proposal
        self._missing: set[int] = set()
        #: greatest generation g that this rank has heard of
        self._seen = 0 if generation is None else generation.g
        self._leavers: tuple[int, ...] = ()
        #: orders not carried out yet: capacities of joining ranks by address, addresses of leaving ranks
        self._joins: dict[int, int] = {}
        self._leaves: set[int] = set()

    @property
    def is_halted(self) -> bool:
        """Tell whether this rank is between `Halt` and `Begin`."""
        return self._promised is not None

    @property
    def leavers(self) -> tuple[int, ...]:
        """Return the ranks ordered to leave in the change of ranks that made this rank halt or end."""
        return self._leavers

    def take_effects(self) -> list[AnyStep]:
        """Return the effects since the last call."""
        effects, self.effects = self.effects, []
        return effects

    def handle(self, change: AnyChange, now: float) -> None:
        """Take in a stimulus; consequences are in `effects`. An ended rank ignores all stimuli."""
        if self.has_ended:
            return
        match change:
            case Heard(source, message):
                self._hear(source, message, now)
            case Strayed(source, g):
                self._meet_stray(source, g)
            case Lost(address):
                self._suspect({address}, 0, now)
            case Ordered(joins, leaves):
                self._order(dict(joins), set(leaves), now)
            case TimePassed():
                if now >= self.deadline_s:
                    self._lose_patience(now)

    @property
    def _latest(self) -> int:
        """Return the greatest g that this rank has promised or begun."""
        if self._promised is not None:
            return self._promised.generation.g
        return 0 if self.generation is None else self.generation.g

    # --- membership -----------------------------------------------------------------------------

    def _known(self) -> dict[int, int]:
        """Return address -> capacity of all members of the present and the promised generation."""
        present = [] if self.generation is None else [self.generation]
        promised = [] if self._promised is None else [self._promised.generation]
        return {
            address: capacity
            for one in present + promised
            for address, capacity in zip(one.members, one.capacities, strict=True)
        }

    def _coordinator(self) -> int:
        """Return the lowest rank that is not lost."""
        return min((each for each in self._known() if each not in self.lost), default=self.address)

    def _tell(self, address: int, message: AnyGenerationMessage) -> None:
        self.effects.append(Tell(address, message))

    def _end(self, why: EndReason) -> None:
        self.has_ended = True
        self.deadline_s = math.inf
        self.effects.append(End(why))

    # --- reasons for a change ---------------------------------------------------------------------

    def _suspect(self, accused: set[int], seen: int, now: float) -> None:
        """Note lost ranks, reported by a rank that has promised or begun generation `seen`."""
        news = accused - self.lost - {self.address}
        self.lost |= news
        self._seen = max(self._seen, seen)
        concerned = news & (self._known().keys() | self._joins.keys())
        self._joins = {address: each for address, each in self._joins.items() if address not in self.lost}
        self._leaves -= self.lost
        if not concerned and seen <= self._latest:
            return
        if (coordinator := self._coordinator()) != self.address:
            self._tell(coordinator, Suspect(tuple(sorted(self.lost & self._known().keys())), self._seen))
        elif self.generation is None:  # all ranks that asked this rank to join are lost
            self._end(EndReason.FENCED)
        else:
            self._propose(now)

    def _order(self, joins: dict[int, int], leaves: set[int], now: float) -> None:
        """Note ranks that must join or leave, until a coordinator has carried out this order."""
        known = self.generation.members if self.generation is not None else ()
        self._joins |= {
            address: capacity
            for address, capacity in joins.items()
            if address not in self.lost and address not in known
        }
        self._leaves |= {address for address in leaves if address in known and address not in self.lost}
        self._pursue(now)

    def _pursue(self, now: float) -> None:
        """Carry out the orders noted, unless a change is under way."""
        is_busy = self.is_halted or self.generation is None
        if is_busy or not (self._joins or self._leaves):
            return
        if (coordinator := self._coordinator()) == self.address:
            if not self._joins and self._leaves >= self._known().keys() - self.lost:
                self._leaves.discard(self.address)  # at least one rank must stay: this one
            if self._joins or self._leaves:
                self._propose(now)
        else:
            self._tell(coordinator, Wanted(tuple(self._joins.items()), tuple(sorted(self._leaves))))

    # --- as coordinator ---------------------------------------------------------------------------

    def _propose(self, now: float) -> None:
        """Ask all ranks that are not lost to be ready for the next generation."""
        if self._promised is not None:
            self._leaves |= set(self._promised.leavers) - self.lost
        known = self._known() | self._joins
        live = {address: each for address, each in known.items() if address not in self.lost}
        staying = sorted(live.keys() - self._leaves)
        if not staying:  # one rank must stay
            self._leaves.discard(self.address)
            staying = [self.address]
        g = name_of(number_of(self._seen) + 1, self.address)
        generation = Generation(g, tuple(staying), tuple(live[address] for address in staying))
        proposal = Propose(generation, tuple(sorted(self._leaves - self.lost)))
        self._missing = {*staying, *proposal.leavers} - {self.address}
        for address in sorted(self._missing):
            self._tell(address, proposal)
        self._promise(proposal, now + self._patience_s)
        self._commit_if_ready(now)

    def _commit_if_ready(self, now: float) -> None:
        proposal = self._promised
        if proposal is None or self._missing or coordinator_of(proposal.generation.g) != self.address:
            return
        for address in (*proposal.generation.members, *proposal.leavers):
            if address != self.address:
                self._tell(address, Commit(proposal.generation.g))
        self._begin(proposal, now)

    # --- as a member --------------------------------------------------------------------------------

    def _hear(self, source: int, message: AnyGenerationMessage, now: float) -> None:
        if isinstance(message, Fenced):
            if self.generation is None or message.g > self.generation.g:
                # Messages of the new generation may arrive before this rank hears that it may leave.
                self._end(EndReason.LEFT if self.address in self._leavers else EndReason.FENCED)
            return
        is_strange = self.generation is not None and source not in self._known()
        if source in self.lost or is_strange:
            self._fence(source)
            return
        match message:
            case Propose():
                self._hear_proposal(source, message, now)
            case Commit(g):
                if self._promised is not None and self._promised.generation.g == g:
                    self._begin(self._promised, now)
            case Ready(g):
                if self._promised is not None and self._promised.generation.g == g:
                    self._missing.discard(source)
                    self._commit_if_ready(now)
            case Outdated(seen):
                self._suspect(set(), seen, now)
            case Suspect(lost, seen):
                self._suspect(set(lost), seen, now)
            case Wanted(joins, leaves):
                self._order(dict(joins), set(leaves), now)

    def _fence(self, source: int) -> None:
        self._tell(source, Fenced(self._seen))

    def _meet_stray(self, source: int, g: int) -> None:
        """Handle a message of a rank that is no member here, but believes to be in the same system."""
        if source in self._known() and source not in self.lost:
            return
        if self.generation is not None and g > self._latest:
            self._end(EndReason.FENCED)
        else:
            self._fence(source)

    def _hear_proposal(self, source: int, proposal: Propose, now: float) -> None:
        generation = proposal.generation
        if generation.g <= self._latest:
            self._tell(source, Outdated(self._seen))
            return
        self._seen = max(self._seen, generation.g)
        if self.generation is not None:
            self.lost |= set(self.generation.members) - {*generation.members, *proposal.leavers, self.address}
        if self.address not in generation.members and self.address not in proposal.leavers:
            self._end(EndReason.FENCED)
            return
        self._missing = set()
        self._promise(proposal, now + 2 * self._patience_s)
        self._tell(source, Ready(generation.g))

    def _promise(self, proposal: Propose, deadline_s: float) -> None:
        if not self.is_halted and self.generation is not None:
            self.effects.append(Halt())
        self._promised = proposal
        self._leavers = proposal.leavers
        self._seen = max(self._seen, proposal.generation.g)
        self.deadline_s = deadline_s

    def _begin(self, proposal: Propose, now: float) -> None:
        before, after = self.generation, proposal.generation
        self._promised = None
        self._missing = set()
        self.deadline_s = math.inf
        if self.address in proposal.leavers:
            self._end(EndReason.LEFT)
            return
        self.generation = after
        self._leavers = ()
        self._joins = {address: each for address, each in self._joins.items() if address not in after.members}
        self._leaves &= set(after.members)
        self.effects.append(Begin(before, after))
        if behind := self.lost & set(after.members):
            self.lost -= behind
            self._suspect(behind, 0, now)
        else:
            self._pursue(now)

    def _lose_patience(self, now: float) -> None:
        """Take the ranks as lost for which this rank has waited too long."""
        assert self._promised is not None
        g = self._promised.generation.g
        if coordinator_of(g) == self.address:
            self._suspect(set(self._missing), 0, now)
        else:
            self.deadline_s = now + 2 * self._patience_s
            silent = coordinator_of(g)
            self._suspect({silent if silent not in self.lost else self._coordinator()}, g, now)
