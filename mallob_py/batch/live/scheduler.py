"""A policy over jobs that really run: stimuli in, effects out; no clock, no files, no processes.

Policies are those of the simulator and see the same `View`. What differs: how long jobs run is not known here
either, and a resize is an order that a program carries out when it can, or never.

- A malleable job is shown as moldable until it has said that it is ready, and again from an order on that it
  has not carried out: nobody waits for it, and it keeps the slots that it has not given back.
- Slots for growth belong to the job from the order on, slots that it is to release until it has named them.
- Slots come and go: those that are withheld stay with the job that has them until it leaves them. A job that
  needs more than are offered waits unseen by the policy, to which no job's numbers exceed the machine.
- Where jobs are bound to cores, a policy may have them share slots. There, a malleable job is malleable at
  once, as nothing is asked of it: it has fewer cores or more, and none of its slots is ordered away.
- An evolving job asks for more slots by `wish`, which the policy may order, or else `wishes.grants` does.
  It gives slots back by itself.
- A job that is over its required time is about to be ended, and shown as ending `OVERDUE_S` from now.

Effects are appended to `effects`, for the caller to carry out and take away. If a policy
raises, such as PolicyError for something impossible, what it has ordered before holds, and it begins anew.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence, ValuesView

import msgspec

from mallob_py.batch.checks import Checks, count_of
from mallob_py.batch.job import Job, Kind
from mallob_py.batch.policy import (
    Action,
    Policy,
    Reserve,
    Resize,
    Running,
    Share,
    Start,
    View,
    Wake,
)
from mallob_py.batch.wishes import grants

#: see the module's text
OVERDUE_S = 5.0


class Launch(msgspec.Struct, frozen=True):
    """Run a job on these slots; as a guest of its mates, with this share of their cores."""

    job: int
    slots: tuple[int, ...]
    mates: tuple[int, ...] = ()
    factor: float = 1.0


class Rebind(msgspec.Struct, frozen=True):
    """A running job has other cores of its slots now (see `shares_of`)."""

    job: int


class OrderShrink(msgspec.Struct, frozen=True):
    """Have a job release so many slots; `released` or `order_failed` is to be told."""

    job: int
    count: int


class OrderGrow(msgspec.Struct, frozen=True):
    """Give a job these slots as well; `grown` or `order_failed` is to be told."""

    job: int
    slots: tuple[int, ...]


Effect = Launch | Rebind | OrderShrink | OrderGrow


class LiveScheduler:
    """See the module's text. All times are seconds of the caller's clock, which never goes back."""

    def __init__(self, policy: Policy, slots: int) -> None:
        self.policy = policy
        self._shares_cores = getattr(policy, "shares_cores", False)
        self.effects: list[Effect] = []
        #: jobs that have begun or ended, or have other slots, since somebody emptied this
        self.moved: set[int] = set()
        #: when the policy wants to be asked at the latest; infinite: not before something happens
        self.wake_s = math.inf
        #: slots that jobs may be given, and those of them that are free
        self._offered = set(range(slots))
        self._free = list(range(slots - 1, -1, -1))
        #: all that wait, by their ids, which ascend; and those that the policy sees, as it does
        self._waiting: dict[int, Job] = {}
        self._queue: list[Job] = []
        self._running: dict[int, Running] = {}
        self._ends: list[tuple[float, int, Running]] = []
        self._departed: list[Running] = []
        self._launched = 0
        #: of running jobs: the slots that they get by an order on its way
        self._coming: dict[int, list[int]] = {}
        #: of evolving jobs: how many slots they want to have
        self._wishes: dict[int, int] = {}
        self._view = View(slots)
        view = self._view
        view.free_nodes, view.queue, view.running = self._free, self._queue, self._running
        view.ends, view.departed, view.wishes = self._ends, self._departed, self._wishes
        self._checks = Checks(policy, view)
        policy.begin(max(1, slots))

    # --- what there is ------------------------------------------------------------------------

    @property
    def slots(self) -> int:
        """Return how many slots there are for jobs."""
        return len(self._offered)

    @property
    def waiting(self) -> ValuesView[Job]:
        """In the order of their submission."""
        return self._waiting.values()

    @property
    def running(self) -> dict[int, Running]:
        """By job. Nothing of it may be changed."""
        return self._running

    def slots_of(self, job: int) -> list[int]:
        """Return all slots that no other job can have, with those of an order on its way."""
        return [*self._running[job].nodes, *self._coming.get(job, ())]

    def shares_of(self, job: int) -> list[tuple[int, float, float]]:
        """Return the part of the cores of each slot that a job has: from where to where, of 0 to 1."""
        running = self._running[job]
        theirs = {slot for mate in running.mates for slot in mate.nodes}
        first = 0.0 if running.guest is None else running.guest.factor
        return [(slot, first, running.factor if slot in theirs else 1.0) for slot in self.slots_of(job)]

    @property
    def taken(self) -> set[int]:
        """Return all slots that jobs have."""
        return {slot for job in self._running for slot in self.slots_of(job)}

    @property
    def free_slots(self) -> int:
        """Return how many slots jobs could be given now."""
        return max(0, self.slots - len(self.taken))

    @property
    def has_news(self) -> bool:
        """Whether something has happened that the policy does not know."""
        return bool(self._view.arrived) or self._view.ended

    # --- stimuli ------------------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        """Add a waiting job; ids must ascend."""
        assert not self._waiting or next(reversed(self._waiting)) < job.id
        self._waiting[job.id] = job
        if job.low <= self.slots:
            self._queue.append(self._fitted(job))
            self._view.arrived += 1

    def offer(self, slots: Iterable[int]) -> None:
        """Offer these slots to jobs and no others. Running jobs keep their slots."""
        self._offered = set(slots)
        self._refit()

    def restore(self, job: Job, start_s: float, slots: Sequence[int]) -> None:
        """Add a job that runs already, from a former life of the scheduler."""
        self._run(job, start_s, list(slots), job.estimate_s)
        self._refit()

    def restore_guest(self, job: Job, start_s: float, slots: Sequence[int], factor: float) -> None:
        """Add a guest that runs already, after all its hosts."""
        mates = [mate for mate in self._running.values() if not set(mate.nodes).isdisjoint(slots)]
        self._seat(self._run(job, start_s, list(slots), job.estimate_s / factor), mates, factor)
        self._refit()

    def ready(self, job: int) -> None:
        """Note that a running job takes orders from now on."""
        running = self._running.get(job)
        if running is not None and running.job.kind is Kind.MOLDABLE:
            running.job = msgspec.structs.replace(running.job, kind=Kind.MALLEABLE)
            self._view.ended = True

    def unready(self, job: int) -> None:
        """Note that a running job takes no orders any more."""
        running = self._running.get(job)
        self._wishes.pop(job, None)
        if running is not None and running.job.kind is Kind.MALLEABLE:
            running.job = msgspec.structs.replace(running.job, kind=Kind.MOLDABLE)
            self._view.ended = True

    def wish(self, job: int, more: int) -> None:
        """Note that an evolving job wants `more` slots, in place of its earlier wish."""
        running = self._running.get(job)
        if running is not None and running.job.kind is Kind.EVOLVING:
            self._wishes[job] = len(self.slots_of(job)) + more
            self._view.ended = True

    def released(self, job: int, slots: Sequence[int]) -> None:
        """Note that a running job has left these slots, which may be fewer or more than were ordered."""
        if (running := self._running.get(job)) is None:
            return
        self._wishes.pop(job, None)
        assert 0 < len(slots) < running.size, "a job has a slot until it ends"
        left = [slot for slot in running.nodes if slot not in slots]
        assert len(left) == running.size - len(slots), "only what is its own"
        self._free += slots
        running.nodes[:] = left
        self.moved.add(job)
        if running.target is not None and running.size <= running.target:
            running.target = None
        self._changed()

    def grown(self, job: int) -> None:
        """Note that the order to grow has reached its job."""
        if (running := self._running.get(job)) is None:
            return
        running.nodes += self._coming.pop(job, [])
        running.target = None
        self._changed()

    def order_failed(self, job: int, was_taken: bool) -> None:
        """Note that an order was not carried out. `was_taken`: the job may know of its new slots."""
        if (running := self._running.get(job)) is None:
            return
        coming = self._coming.pop(job, [])
        self.moved.add(job)
        if was_taken:
            running.nodes += coming
        else:
            self._free += coming
        running.target = None
        self.unready(job)
        self._begin_anew()
        self._changed()

    def ended(self, job: int) -> None:
        """Remove a running job that is gone, with all its processes."""
        running = self._running.pop(job)
        self.moved.add(job)
        self._wishes.pop(job, None)
        left = [*running.nodes, *self._coming.pop(job, ())]
        for mate in running.mates:
            mate.guest = None
            self.effects.append(Rebind(mate.job.id))
        if running.guest is not None:
            running.guest.mates.remove(running)
            self.effects.append(Rebind(running.guest.job.id))
        if running.mates or running.guest is not None:
            left = [slot for slot in left if slot not in self.taken]
        self._free += left
        self._departed.append(running)
        self._changed()

    def put_back(self, job: Job) -> None:
        """Return a running job that has not begun to its former place in the queue."""
        self.ended(job.id)
        self.admit(job)

    def admit(self, job: Job) -> None:
        """Add a waiting job before later submitted ones."""
        self._waiting[job.id] = job
        self._waiting = dict(sorted(self._waiting.items()))
        self._refit()

    def withdraw(self, job: int) -> None:
        """Remove a waiting job that is not wanted any more."""
        del self._waiting[job]
        place = bisect_left(self._queue, job, key=lambda one: one.id)
        if place < len(self._queue) and self._queue[place].id == job:
            del self._queue[place]
        self._begin_anew()
        self._changed()

    def knows(self, job: int) -> bool:
        """Tell whether a job waits."""
        return job in self._waiting

    # --- decisions ----------------------------------------------------------------------------

    def decide(self, now_s: float) -> None:
        """Ask the policy, if there is anything to ask. Raises PolicyError, and all that the policy raises."""
        view = self._view
        if not (self.has_news or now_s >= self.wake_s) or not view.nodes:
            return
        if now_s >= self.wake_s:
            self.wake_s = math.inf
            view.ended = True
        view.now_s = now_s
        self._sort_ends(now_s)
        try:
            actions = iter(self.policy.decide(view))
            action = next(actions, None)  # generators look at the view only now
            view.arrived, view.ended = 0, False
            self._departed.clear()
            while action is not None:
                self._act(action)
                action = next(actions, None)
            self._grant()
        except Exception:
            self._begin_anew()
            view.ended = False  # asked again at once, the policy would do the same
            raise

    def _grant(self) -> None:
        granted = False
        for resize in grants(self._view):
            self._resize(resize.job, resize.nodes)
            granted = True
        if granted:
            self._begin_anew()

    def _act(self, action: Action) -> None:
        match action:
            case Start(job, nodes):
                self._start(job, nodes)
            case Resize(job, nodes):
                self._resize(job, nodes)
            case Wake():
                self.wake_s = min(self.wake_s, self._checks.wake_s(action))
            case Reserve():
                pass
            case Share():
                self._share(action)

    def _start(self, number: int, wanted: int | tuple[int, ...]) -> None:
        place = self._checks.place_in_queue(number)
        self._checks.startable(self._queue[place], count_of(wanted))
        slots = sorted(self._take(number, wanted))
        del self._queue[place]
        job = self._waiting.pop(number)
        self._run(job, self._view.now_s, slots, job.estimate_s)
        self.effects.append(Launch(number, tuple(slots)))

    def _share(self, share: Share) -> None:
        if not self._shares_cores:
            raise self._checks.error(share.guest, "is to share nodes; here every job has its own")
        place = self._checks.place_in_queue(share.guest)
        mates = self._checks.mates(self._queue[place], share)
        del self._queue[place]
        job = self._waiting.pop(share.guest)
        slots = [slot for mate in mates for slot in mate.nodes]
        guest = self._run(job, self._view.now_s, slots, job.estimate_s / share.factor)
        self._seat(guest, mates, share.factor)
        self.effects.append(Launch(job.id, tuple(slots), share.mates, share.factor))

    def _seat(self, guest: Running, mates: list[Running], factor: float) -> None:
        """Add a guest, and slow its mates down by the estimated amount."""
        guest.mates, guest.factor = mates, factor
        for mate in mates:
            mate.guest = guest
            mate.estimated_end_s += guest.job.estimate_s
        self._sort_ends(self._view.now_s)

    def _resize(self, number: int, wanted: int | tuple[int, ...]) -> None:
        if self._shares_cores:
            raise self._checks.error(number, "is resized; here jobs share cores, and keep their nodes")
        running = self._checks.resizable(number, (Kind.MALLEABLE, Kind.EVOLVING))
        self._wishes.pop(number, None)
        kept, size = running.nodes, count_of(wanted)
        self._checks.new_size(running.job, size)
        if size == running.size:
            return
        # A program chooses itself which hosts it leaves; slots of one host are all alike.
        if size < running.size:
            self.effects.append(OrderShrink(number, running.size - size))
        else:
            new: int | tuple[int, ...] = size - running.size
            if not isinstance(wanted, int):
                new = tuple(slot for slot in wanted if slot not in kept)[: size - running.size]
            self._coming[number] = self._take(number, new)
            self.moved.add(number)
            self.effects.append(OrderGrow(number, tuple(self._coming[number])))
        running.target = size
        running.resized_s = self._view.now_s

    def _take(self, number: int, wanted: int | tuple[int, ...]) -> list[int]:
        slots = self._checks.take(self._free, number, wanted)
        self._view.free = len(self._free)
        return slots

    # --- books --------------------------------------------------------------------------------

    def _run(self, job: Job, start_s: float, slots: list[int], estimate_s: float) -> Running:
        if job.is_malleable and not self._shares_cores:
            job = msgspec.structs.replace(job, kind=Kind.MOLDABLE)
        self._launched += 1
        running = Running(job, start_s, slots, start_s + estimate_s, self._launched)
        self._running[job.id] = running
        self.moved.add(job.id)
        self._ends.append((running.estimated_end_s, running.order, running))
        self._ends.sort()
        self._view.free = len(self._free)
        return running

    def _refit(self) -> None:
        """Adapt to other slots."""
        taken = self.taken
        self._free[:] = self._offered - taken
        self._view.nodes = len(self._free) + len(taken)
        self._queue[:] = [self._fitted(job) for job in self._waiting.values() if job.low <= self.slots]
        self._begin_anew()
        self._changed()

    def _fitted(self, job: Job) -> Job:
        """Return the job with no more preferred or most nodes than there are."""
        if job.nodes <= self.slots and job.high <= self.slots:
            return job
        nodes, most = min(job.nodes, self.slots), min(job.high, self.slots)
        return msgspec.structs.replace(job, nodes=nodes, nodes_min=job.low, nodes_max=most)

    def _changed(self) -> None:
        if not self._offered.issuperset(self._free):
            self._refit()  # a job has left slots that are withheld
            return
        self._free.sort(reverse=True)
        self._view.free = len(self._free)
        self._view.ended = True
        self._sort_ends(self._view.now_s)

    def _begin_anew(self) -> None:
        """Have the policy forget its plans, after an event that a simulator does not have."""
        self.policy.begin(max(1, self._view.nodes))
        self._view.arrived, self._view.ended = len(self._queue), True
        self._departed.clear()

    def _sort_ends(self, now_s: float) -> None:
        """Sort the ends of running jobs; an overdue job ends soon."""
        for running in self._running.values():
            if running.estimated_end_s <= now_s:
                running.estimated_end_s = now_s + OVERDUE_S
                self._begin_anew()
        self._ends[:] = sorted(
            (running.estimated_end_s, running.order, running) for running in self._running.values()
        )
