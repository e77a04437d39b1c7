"""One worker's place in its job tree: seats for its children, growth and shrinkage (P 3.2).

A `Seat` is the place of one child. Its states:

    EMPTY --query a past worker--> QUERIED --denied, no further one--> ASKED
      |                               |                                  |
      +--no past worker--------> ASKED+--offer--------> TAKEN <--offer---+
    TAKEN --volume drops--> EMPTY      QUERIED, ASKED --volume drops--> EMPTY

The client of a job owns a seat for the root (index 0) and follows the same rules.

**Who leaves, and who knows.** A worker with index i leaves its seat in the epoch in which its job's volume
becomes <= i, and its parent empties the seat in that same epoch; no message is needed. Messages are needed
only if child and parent were joined in different epochs: the child offers itself in the child's epoch c, the
parent accepts it in the parent's epoch p.
- If an epoch e in (c, p] removes the child, the parent has seen e before it accepted. So the child tells the
  parent (`ChildLeft`) when the child gets to e.
- If an epoch e in (p, c] has no room for the child, the child was not there yet. So the parent keeps the
  child when the parent gets to e; if e makes the parent itself leave, the parent tells the child.

A worker that gets no process is *lost*. It waits until its parent has accepted it, since before that it has
no seat to leave; then it tells the parent (`ChildLeft`).

**Reuse** (P 3.3): which PEs may still have a suspended worker of this job? With full reuse, each worker that
leaves the tree reports itself, and the past workers of its subtree, straight to its nearest ancestor that
stays; a worker that joins gets from its parent the memory of its own subtree. So every present leaf knows
the past workers below its index, however the tree shrinks and grows. This memory is only advice: without it a
worker starts anew, and a wrong memory does no harm.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Protocol

from msgspec.structs import replace

from mallob_py.protocol import messages
from mallob_py.protocol.config import Config, Reuse
from mallob_py.protocol.effects import Outbox
from mallob_py.trees import level_below, parent_of

_PER_INDEX_MAX = 4
#: greatest size in bytes of a description in a request; a larger one is sent to accepted workers only
_INLINE_IN_REQUEST_MAX = 512


def subtree_size(index: int, volume: int) -> int:
    """Count how many of the workers 0..volume-1 are in the subtree below `index`."""
    size, first, width = 0, index, 1
    while first < volume:
        size += min(width, volume - first)
        first, width = level_below(first, width)
    return size


def in_subtree(index: int, subtree: int) -> bool:
    """Tell whether worker `index` is `subtree` or below it."""
    while index > subtree:
        index = parent_of(index)
    return index == subtree


class PastWorkers:
    """Past workers by index, the most recent last; each PE (`rank`) is remembered for one worker only."""

    def __init__(self) -> None:
        self._by_index: dict[int, list[messages.PastWorker]] = {}
        self._index_of: dict[int, int] = {}

    def add(self, past: Iterable[messages.PastWorker]) -> None:
        for worker in past:
            self.forget(worker.rank)
            known = self._by_index.setdefault(worker.index, [])
            known.append(worker)
            known.sort(key=lambda entry: entry.epoch)
            self._index_of[worker.rank] = worker.index
            if len(known) > _PER_INDEX_MAX:
                self.forget(known[0].rank)

    def forget(self, rank: int) -> None:
        index = self._index_of.pop(rank, None)
        if index is None:
            return
        rest = [worker for worker in self._by_index[index] if worker.rank != rank]
        if rest:
            self._by_index[index] = rest
        else:
            del self._by_index[index]

    def most_recent(self, index: int) -> messages.PastWorker | None:
        known = self._by_index.get(index)
        return known[-1] if known else None

    def of_index(self, index: int) -> list[messages.PastWorker]:
        return list(self._by_index.get(index, ()))

    def knows_below(self, subtree: int) -> bool:
        return any(in_subtree(index, subtree) for index in self._by_index)

    def take_below(self, subtree: int) -> tuple[messages.PastWorker, ...]:
        """Remove and return all past workers of a subtree."""
        taken = tuple(
            worker
            for index, known in self._by_index.items()
            if in_subtree(index, subtree)
            for worker in known
        )
        for worker in taken:
            self.forget(worker.rank)
        return taken

    def take_all(self) -> tuple[messages.PastWorker, ...]:
        return self.take_below(0)

    def __len__(self) -> int:
        return len(self._index_of)


class AskPort(Protocol):
    """The part of the matcher that seats use. `ask` may find a PE for the worker at once."""

    def ask(self, request: messages.Request) -> None: ...

    def is_asking(self, job: int, subtree: int) -> bool: ...

    def withdraw(self, job: int, subtree: int) -> None: ...


class SeatState(Enum):
    EMPTY = "empty"
    QUERIED = "queried"
    ASKED = "asked"
    TAKEN = "taken"


class Seat:
    """The place of child `index`. `rank`: the PE that was queried, or has taken the place."""

    __slots__ = (
        *("asked_s", "elsewhere", "has_run", "index", "kept", "losses", "offer_epoch", "queried", "queries"),
        *("rank", "state", "stay"),
    )

    def __init__(self, index: int) -> None:
        self.index = index
        #: number of workers lost in this seat because they got no process
        self.losses = 0
        #: past workers that denied a query since their PEs were busy; remembered again once the seat is taken
        self.kept: tuple[messages.PastWorker, ...] = ()
        self.clear()

    def clear(self) -> None:
        self.state = SeatState.EMPTY
        self.rank = -1
        #: the past worker that is queried
        self.queried: messages.PastWorker | None = None
        self.stay = -1
        #: whether the root in this seat is known to have had its process
        self.has_run = False
        #: PEs that must drop what they keep of the job as soon as the root's process runs
        self.elsewhere: tuple[int, ...] = ()
        self.offer_epoch = -1
        self.queries = 0
        self.asked_s = 0.0


class Seats:
    """All seats of one parent, and its memory of past workers below them.

    `matcher` finds idle PEs. `path`: the PEs from the client to this PE. `stay`: the parent's stay.
    """

    def __init__(
        self,
        out: Outbox,
        config: Config,
        matcher: AskPort,
        job: int,
        path: tuple[int, ...],
        stay: int,
        indices: tuple[int, ...],
    ) -> None:
        self._out = out
        self._config = config
        self._matcher = matcher
        self._job = job
        self._path = path
        self._stay = stay
        self._seats = {index: Seat(index) for index in indices}
        self.past = PastWorkers()
        #: PE where a root is looked for first
        self._preferred: int | None = None
        #: whether workers leave in order, so that no past worker except a resting root can be resumed
        self.leaves = False
        #: indices of children lost with the last generation, whose own children now need a parent
        self.gone: frozenset[int] = frozenset()
        self.description: messages.Description | None = None

    def _remembers(self, index: int) -> bool:
        """Tell whether past workers with this index may be resumed."""
        return self._config.reuse is not Reuse.NONE and (index == 0 or not self.leaves)

    @property
    def _hands_memory_down(self) -> bool:
        """Tell whether children hear of past workers, and report past workers when they leave."""
        return self._config.reuse is Reuse.FULL

    def expect(self, index: int, asked_s: float) -> None:
        """Record that a request for this child is under way, as a part of the parent's own bulk request."""
        seat = self._seats[index]
        seat.state = SeatState.ASKED
        seat.asked_s = asked_s

    def children(self) -> tuple[int, ...]:
        """The indices of the children present."""
        return tuple(seat.index for seat in self._seats.values() if seat.state is SeatState.TAKEN)

    def taken(self) -> list[Seat]:
        return [seat for seat in self._seats.values() if seat.state is SeatState.TAKEN]

    def seat(self, index: int) -> Seat | None:
        return self._seats.get(index)

    def is_held(self, index: int, rank: int, stay: int) -> bool:
        """Tell whether the worker on PE `rank` in this stay holds that seat."""
        seat = self._seats[index]
        return seat.state is SeatState.TAKEN and (seat.rank, seat.stay) == (rank, stay)

    # --- growth and shrinkage -----------------------------------------------------------

    def root_runs(self, rank: int) -> None:
        """Record that the process of the root on PE `rank` runs."""
        seat = self._seats[0]
        if seat.state is SeatState.TAKEN and seat.rank == rank:
            seat.has_run = True
            for other in seat.elsewhere:
                self._out.send(other, messages.Release(self._job))
            seat.elsewhere = ()

    def prefer_root(self, rank: int | None) -> None:
        """Query the past root on `rank`, if there is one, before other past roots; None: query none."""
        self._preferred = rank
        if rank is None:
            self._seats[0].queries = self._config.queries_max

    def fit(self, volume: int, epoch: int, now: float) -> None:
        """Follow the job's volume as of `epoch`: empty the seats beyond the volume, fill the others.

        After an epoch that left the volume as it was, no call is needed: if an earlier epoch had no room for
        a child that offered itself later, the volume has changed between that epoch and the offer.
        """
        for seat in self._seats.values():
            wanted = seat.index < volume
            if seat.state is SeatState.TAKEN:
                if not wanted and seat.offer_epoch < epoch:
                    # A root not known to have run may have no process. If it has one, it reports itself
                    # (`Remember`).
                    is_kept = seat.index > 0 or seat.has_run or not self._hands_memory_down
                    if is_kept and self._remembers(seat.index):
                        self.past.add([messages.PastWorker(seat.index, seat.rank, epoch)])
                    seat.clear()
            elif not wanted:
                if seat.state is not SeatState.EMPTY:
                    self._matcher.withdraw(self._job, seat.index)
                    if seat.state is SeatState.QUERIED and seat.index == 0 and seat.queried is not None:
                        self.past.add([seat.queried])  # as far as known, the root rests there again
                    seat.clear()
            elif seat.state is SeatState.EMPTY:
                seat.asked_s = now
                self._seek(seat, volume, epoch)
            elif seat.state is SeatState.ASKED and self._matcher.is_asking(self._job, seat.index):
                self._ask(seat, volume, epoch)

    def _seek(self, seat: Seat, volume: int, epoch: int) -> None:
        """Query the most recent past worker of this index, or else ask for any idle PE."""
        past = self.past.most_recent(seat.index)
        if seat.index == 0 and self._preferred is not None:
            known = (each for each in self.past.of_index(0) if each.rank == self._preferred)
            past, self._preferred = next(known, past), None
        if past is None or seat.queries >= self._config.queries_max:
            self._ask(seat, volume, epoch)
            return
        self.past.forget(past.rank)
        seat.state = SeatState.QUERIED
        seat.rank = past.rank
        seat.queried = past
        seat.queries += 1
        self._out.send(past.rank, messages.Query(self._request(seat, 1, epoch)))

    def _ask(self, seat: Seat, volume: int, epoch: int) -> None:
        """Ask for the whole subtree at once if so configured, unless past workers in it could be reused."""
        seat.state = SeatState.ASKED
        is_known_below = seat.index in self.gone or self.past.knows_below(seat.index)
        alone = not self._config.asks_in_bulk or is_known_below
        count = 1 if alone else subtree_size(seat.index, volume)
        self._matcher.ask(self._request(seat, count, epoch))

    def _request(self, seat: Seat, count: int, epoch: int) -> messages.Request:
        return messages.Request(
            job=self._job,
            subtree=seat.index,
            position=0,
            count=count,
            base=0,
            epoch=epoch,
            path=self._path,
            hops=0,
            asked_s=seat.asked_s,
            description=self._description_to_spread(),
            rests_at=self._rests_at(seat),
        )

    def _rests_at(self, seat: Seat) -> int:
        """Return the PE where the job's root was last, busy or not; -1: not known, or not the root's seat."""
        known = [*self.past.of_index(seat.index), *seat.kept] if seat.index == 0 else ()
        return max(known, key=lambda past: past.epoch).rank if known else -1

    def _description_to_spread(self) -> messages.Description | None:
        description = self.description
        if description is None or (
            description.inline is not None and len(description.inline) > _INLINE_IN_REQUEST_MAX
        ):
            return None
        return description

    def remember(self, message: messages.Remember, volume: int, epoch: int) -> None:
        """Take in past workers of the last generation; pass past workers below a taken seat to its child."""
        past = message.past
        for seat in self.taken():
            if below := tuple(each for each in past if in_subtree(each.index, seat.index)):
                past = tuple(each for each in past if each not in below)
                self._out.send(seat.rank, replace(message, index=seat.index, past=below))
        self.recall(past, volume, epoch)

    def recall(self, past: tuple[messages.PastWorker, ...], volume: int, epoch: int) -> None:
        """Take in past workers that the parent knows; query them for seats whose requests are unmatched."""
        self.past.add(past)
        for seat in self._seats.values():
            asking = seat.state is SeatState.ASKED and self._matcher.is_asking(self._job, seat.index)
            if asking and self.past.knows_below(seat.index):
                self._matcher.withdraw(self._job, seat.index)
                self._seek(seat, volume, epoch)

    def close(self) -> None:
        """Leave the tree: no child is wanted any more."""
        for seat in self._seats.values():
            if seat.state is SeatState.ASKED:
                self._matcher.withdraw(self._job, seat.index)
            seat.clear()

    # --- answers of children ------------------------------------------------------------

    def receive_offer(self, source: int, offer: messages.Offer, volume: int, epoch: int) -> bool:
        """Accept or reject a child: the first offer for a free seat wins."""
        seat = self._seats[offer.index]
        deserved = offer.epoch > epoch or offer.index < volume
        if seat.state is SeatState.TAKEN or not deserved:
            self._out.send(source, offer.rejection())
            return False
        self._matcher.withdraw(self._job, seat.index)
        seat.state = SeatState.TAKEN
        seat.rank = source
        seat.stay = offer.stay
        seat.offer_epoch = offer.epoch
        self.past.add(seat.kept)
        seat.kept = ()
        self.past.forget(source)
        handed_down: tuple[messages.PastWorker, ...] = ()
        if self._hands_memory_down:
            others = tuple(past.rank for past in self.past.of_index(seat.index))
            if seat.index == 0 and self.leaves:
                seat.elsewhere = others  # one of these PEs may have the root's process, until the root runs
            else:
                for other in others:
                    self._out.send(other, messages.Release(self._job))
            handed_down = self.past.take_below(seat.index)
        if offer.granted_epoch == epoch and not handed_down and not seat.losses:
            return True  # the child knows already that it is accepted
        self._out.send(
            source,
            messages.Accepted(
                job=self._job,
                index=seat.index,
                stay=offer.stay,
                epoch=epoch,
                parent_stay=self._stay,
                past=handed_down,
                description=self.description,
                losses=seat.losses,
            ),
        )
        return True

    def receive_denied(self, source: int, denied: messages.Denied, volume: int, epoch: int) -> None:
        seat = self._seats[denied.index]
        if seat.state is SeatState.QUERIED and seat.rank == source:
            if denied.kept:
                seat.kept += (messages.PastWorker(denied.index, source, epoch),)
            self._seek(seat, volume, epoch)

    def receive_failed(self, index: int, volume: int, epoch: int, now: float) -> None:
        seat = self._seats[index]
        if seat.state is SeatState.ASKED and not self._matcher.is_asking(self._job, index):
            self._matcher.withdraw(self._job, index)  # the next step may be a query for a past worker
            seat.clear()
            self.fit(volume, epoch, now)

    def receive_left(self, source: int, message: messages.ChildLeft) -> bool:
        """Empty the seat of a child that has left; return False if the child no longer held the seat."""
        if not self.is_held(message.index, source, message.stay):
            return False
        seat = self._seats[message.index]
        seat.losses += bool(message.lost)
        seat.clear()
        return True

    def dismiss(self, since_epoch: int) -> None:
        """Leave the tree and send away children that offered themselves in `since_epoch` or later.

        Children that offered themselves earlier leave by themselves, in the epoch that makes their parent
        leave.
        """
        for seat in self.taken():
            if seat.offer_epoch >= since_epoch:
                self._out.send(seat.rank, messages.Rejected(self._job, seat.index, seat.stay))
        self.close()

    def describe(self, description: messages.Description) -> None:
        """Pass the description on to the children that wait for it."""
        self.description = description
        for seat in self.taken():
            self._out.send(seat.rank, messages.Described(self._job, seat.stay, description))
