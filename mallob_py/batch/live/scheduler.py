"""A policy over real jobs: stimuli in, effects out; no clock, no files, no processes.

Policies are those of the simulator and see the same `View`. Two things differ: the run times of jobs are not
known here, and a resize is an order that a program carries out when it can, or never.

- A malleable job is shown as moldable until it reports that it accepts orders, and after it has failed to
  carry one out. It keeps all slots that it has not released.
- If a job is ordered to grow, the further slots belong to it from the order on; if it is ordered to shrink,
  its slots belong to it until it has released them by name.
- Slots may be withheld: a withheld slot stays with its job until the job leaves it. A job that needs more
  slots than are offered waits, but the policy does not see it: it sees no job larger than the machine.
- If jobs are bound to cores, a policy may let them share slots. A malleable job is then malleable at once,
  because it needs no orders: its number of cores changes, and the job keeps all of its slots.
- An evolving job requests slots by `wish`; the policy may order the job to grow, and otherwise
  `wishes.grants` does. The job releases slots by itself. Once `bound` has said how many slots the job has
  work for, it is shown as malleable within this bound.
- A job over its required time is about to be ended; it is shown as ending `OVERDUE_S` from now.

Effects are appended to `effects`; the caller must carry them out and remove them. If a policy raises an
error, such as PolicyError for an impossible action, its earlier actions hold, and the policy begins anew.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence, ValuesView

import msgspec

from mallob_py.batch.checks import Checks, count_of
from mallob_py.batch.job import Job, Kind
from mallob_py.batch.policy import Action, Policy, Reserve, Resize, Running, Share, Start, View, Wake
from mallob_py.batch.wishes import bounded, grants

#: the remaining run time [s] that policies see of an overdue job
OVERDUE_S = 5.0


class Launch(msgspec.Struct, frozen=True):
    """Run a job on these slots. A guest runs on its mates' slots, on the part `factor` of their cores."""

    job: int
    slots: tuple[int, ...]
    mates: tuple[int, ...] = ()
    factor: float = 1.0


class Rebind(msgspec.Struct, frozen=True):
    """Change which cores of its slots a running job may use (see `shares_of`)."""

    job: int


class OrderShrink(msgspec.Struct, frozen=True):
    """Order a job to release `count` slots; `released` or `order_failed` must follow."""

    job: int
    count: int


class OrderGrow(msgspec.Struct, frozen=True):
    """Order a job to use these further slots; `grown` or `order_failed` must follow."""

    job: int
    slots: tuple[int, ...]


Effect = Launch | Rebind | OrderShrink | OrderGrow


class _Meter(msgspec.Struct):
    """The measurement of a job's rate on its present slots, which begins after one period to settle.

    `changed_s`: the time [s] of the first report on these slots; `first`: the first report that counts.
    """

    changed_s: float
    first: tuple[float, float] | None = None

    def rate(self, done: float, now_s: float, period_s: float) -> float | None:
        """Take in a report; return the rate, None before it was measured for a period."""
        if self.first is None or done < self.first[1]:
            self.first = (now_s, done) if now_s >= self.changed_s + period_s else None
            return None
        since_s, before = self.first
        return (done - before) / (now_s - since_s) if now_s >= since_s + period_s else None


class LiveScheduler:
    """The core of the live scheduler; see the module's docstring. Times [s] are of the caller's clock."""

    def __init__(self, policy: Policy, slots: int) -> None:
        self.policy = policy
        self._shares_cores = getattr(policy, "shares_cores", False)
        self.effects: list[Effect] = []
        #: jobs that have begun or ended or changed slots since the caller cleared this set
        self.moved: set[int] = set()
        #: the time [s] at which the policy must be asked again at the latest; infinite: only after an event
        self.wake_s = math.inf
        #: the slots that jobs may get, and the free ones among them
        self._offered = set(range(slots))
        self._free = list(range(slots - 1, -1, -1))
        #: id -> waiting job, by ascending id
        self._waiting: dict[int, Job] = {}
        #: the waiting jobs that the policy sees, as it sees them (`_fitted`)
        self._queue: list[Job] = []
        self._running: dict[int, Running] = {}
        self._ends: list[tuple[float, int, Running]] = []
        self._departed: list[Running] = []
        self._launched = 0
        #: running job -> slots that it gets by a pending order
        self._coming: dict[int, list[int]] = {}
        #: running job -> number of slots that it requests or has work for
        self._wishes: dict[int, int] = {}
        #: id of a job that is shown with a bound -> the job without the bound
        self._unbounded: dict[int, Job] = {}
        #: running job that reports its progress -> the measurement of its rate
        self._meters: dict[int, _Meter] = {}
        self._rate_period_s = getattr(policy, "rate_period_s", 0.0)
        self._view = View(slots)
        view = self._view
        view.free_nodes, view.queue, view.running = self._free, self._queue, self._running
        view.ends, view.departed, view.wishes = self._ends, self._departed, self._wishes
        self._checks = Checks(policy, view)
        policy.begin(max(1, slots))

    # --- state --------------------------------------------------------------------------------

    @property
    def slots(self) -> int:
        """Return the number of offered slots."""
        return len(self._offered)

    @property
    def waiting(self) -> ValuesView[Job]:
        """Return the waiting jobs in the order of their submission."""
        return self._waiting.values()

    @property
    def running(self) -> dict[int, Running]:
        """Return id -> running job; the caller must not change it."""
        return self._running

    def slots_of(self, job: int) -> list[int]:
        """Return a running job's slots, with the further slots of a pending order."""
        return [*self._running[job].nodes, *self._coming.get(job, ())]

    def shares_of(self, job: int) -> list[tuple[int, float, float]]:
        """Return (slot, begin, end) for each slot of a job: the bounds (0 to 1) of its part of the slot's
        cores.
        """
        running = self._running[job]
        theirs = {slot for mate in running.mates for slot in mate.nodes}
        first = 0.0 if running.guest is None else running.guest.factor
        return [(slot, first, running.factor if slot in theirs else 1.0) for slot in self.slots_of(job)]

    @property
    def taken(self) -> set[int]:
        """Return the slots of all running jobs."""
        return {slot for job in self._running for slot in self.slots_of(job)}

    @property
    def free_slots(self) -> int:
        """Return the number of offered slots without a job."""
        return max(0, self.slots - len(self.taken))

    @property
    def has_news(self) -> bool:
        """Return true if there are events that the policy has not seen."""
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
        """Offer these slots to jobs, and no others. Running jobs keep their slots."""
        self._offered = set(slots)
        self._refit()

    def restore(self, job: Job, start_s: float, slots: Sequence[int]) -> None:
        """Add a job that already ran before the scheduler's restart."""
        self._run(job, start_s, list(slots), job.estimate_s)
        self._refit()

    def restore_guest(self, job: Job, start_s: float, slots: Sequence[int], factor: float) -> None:
        """Add a guest that already ran before the scheduler's restart; its mates must have been added."""
        mates = [mate for mate in self._running.values() if not set(mate.nodes).isdisjoint(slots)]
        self._seat(self._run(job, start_s, list(slots), job.estimate_s / factor), mates, factor)
        self._refit()

    def ready(self, job: int) -> None:
        """Record that a running job accepts orders from now on."""
        running = self._running.get(job)
        if running is not None and running.job.kind is Kind.MOLDABLE:
            running.job = msgspec.structs.replace(running.job, kind=Kind.MALLEABLE)
            self._view.ended = True

    def unready(self, job: int) -> None:
        """Record that a running job accepts no more orders."""
        running = self._running.get(job)
        self._wishes.pop(job, None)
        if running is not None and running.job.kind is Kind.MALLEABLE:
            unbounded = self._unbounded.pop(job, running.job)
            running.job = msgspec.structs.replace(unbounded, kind=Kind.MOLDABLE)
            self._view.ended = True

    def wish(self, job: int, more: int) -> None:
        """Record that an evolving job requests `more` further slots; this replaces its earlier wish."""
        running = self._running.get(job)
        if running is not None and running.job.kind is Kind.EVOLVING and not self._shares_cores:
            self._wishes[job] = len(self.slots_of(job)) + more
            self._view.ended = True

    def bound(self, job: int, most: int) -> bool:
        """Record that a job has work for `most` slots; return False if this is known or the job takes no
        orders.
        """
        running = self._running.get(job)
        if running is None or self._shares_cores or running.job.kind not in (Kind.MALLEABLE, Kind.EVOLVING):
            return False
        self._unbounded.setdefault(job, running.job)
        if running.job.is_malleable and self._wishes.get(job) == most:
            return False
        self._wishes[job] = most
        self._show_bound(running)
        self._view.ended = True
        return True

    def progressed(self, job: int, done: float, now_s: float) -> None:
        """Note how much work a job has done in all, in its own unit; ignored while it carries out an order.

        The policy sees the rate at its next decision; a report alone causes no decision.
        """
        running = self._running.get(job)
        if running is not None and running.target is None and self._rate_period_s:
            meter = self._meters.setdefault(job, _Meter(now_s))
            running.rate = meter.rate(done, now_s, self._rate_period_s)

    def _measure_anew(self, running: Running) -> None:
        self._meters.pop(running.job.id, None)
        running.rate = None

    def released(self, job: int, slots: Sequence[int]) -> None:
        """Record that a running job has left these slots; they may be fewer or more than ordered."""
        if (running := self._running.get(job)) is None:
            return
        self._request_is_answered(running)
        assert 0 < len(slots) < running.size, "a job has at least one slot until it ends"
        left = [slot for slot in running.nodes if slot not in slots]
        assert len(left) == running.size - len(slots), "a job releases only its own slots"
        self._free += slots
        running.nodes[:] = left
        self.moved.add(job)
        # An order to grow stays pending until `grown`.
        if job not in self._coming and running.target is not None and running.size <= running.target:
            running.target = None
        self._measure_anew(running)
        self._show_bound(running)
        self._changed()

    def grown(self, job: int) -> None:
        """Record that the order to grow has reached the job."""
        if (running := self._running.get(job)) is None:
            return
        running.nodes += self._coming.pop(job, [])
        running.target = None
        self._measure_anew(running)
        self._show_bound(running)
        self._changed()

    def order_failed(self, job: int, was_taken: bool) -> None:
        """Record that an order was not carried out. `was_taken`: the job may have taken the order's slots."""
        if (running := self._running.get(job)) is None:
            return
        coming = self._coming.pop(job, [])
        self.moved.add(job)
        if was_taken:
            running.nodes += coming
        else:
            self._free += coming
        running.target = None
        self._measure_anew(running)
        self.unready(job)
        self._begin_anew()
        self._changed()

    def ended(self, job: int) -> None:
        """Remove a running job, all of whose processes have ended."""
        running = self._running.pop(job)
        self.moved.add(job)
        self._wishes.pop(job, None)
        self._unbounded.pop(job, None)
        self._meters.pop(job, None)
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
        """Move a job that was launched but has not begun back to its place in the queue."""
        self.ended(job.id)
        self.admit(job)

    def admit(self, job: Job) -> None:
        """Add a waiting job to the queue, at its place by submission."""
        self._waiting[job.id] = job
        self._waiting = dict(sorted(self._waiting.items()))
        self._refit()

    def withdraw(self, job: int) -> None:
        """Remove a cancelled job that waits."""
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
        """If there are new events or a wake is due, ask the policy for actions. Raises any error of the
        policy.
        """
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
            action = next(actions, None)  # only `next` makes a generator read the view
            view.arrived, view.ended = 0, False
            self._departed.clear()
            while action is not None:
                self._act(action)
                action = next(actions, None)
            self._grant()
        except Exception:
            self._begin_anew()
            view.ended = False  # if asked again at once, the policy would raise again
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
            raise self._checks.error(share.guest, "is to share nodes, but here every job has its own")
        place = self._checks.place_in_queue(share.guest)
        mates = self._checks.mates(self._queue[place], share)
        del self._queue[place]
        job = self._waiting.pop(share.guest)
        slots = [slot for mate in mates for slot in mate.nodes]
        guest = self._run(job, self._view.now_s, slots, job.estimate_s / share.factor)
        self._seat(guest, mates, share.factor)
        self.effects.append(Launch(job.id, tuple(slots), share.mates, share.factor))

    def _seat(self, guest: Running, mates: list[Running], factor: float) -> None:
        """Add a guest to its mates, and delay their estimated ends."""
        guest.mates, guest.factor = mates, factor
        for mate in mates:
            mate.guest = guest
            mate.estimated_end_s += guest.job.estimate_s
        self._sort_ends(self._view.now_s)

    def _resize(self, number: int, wanted: int | tuple[int, ...]) -> None:
        if self._shares_cores:
            raise self._checks.error(number, "is resized, but here jobs share cores and keep their nodes")
        running = self._checks.resizable(number, (Kind.MALLEABLE, Kind.EVOLVING))
        self._request_is_answered(running)
        kept, size = running.nodes, count_of(wanted)
        self._checks.new_size(running.job, size)
        if size == running.size:
            return
        # The program chooses which hosts it leaves; it does not distinguish slots of one host.
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

    def _request_is_answered(self, running: Running) -> None:
        if running.job.kind is Kind.EVOLVING:
            self._wishes.pop(running.job.id, None)

    def _show_bound(self, running: Running) -> None:
        """Adapt the job that the policy sees to its bound, if any, and to its size."""
        if (job := self._unbounded.get(running.job.id)) is not None:
            running.job = bounded(job, self._wishes[job.id], running.size)

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
        """Update the free slots and the queue after the offered or the taken slots have changed."""
        taken = self.taken
        self._free[:] = self._offered - taken
        self._view.nodes = len(self._free) + len(taken)
        self._queue[:] = [self._fitted(job) for job in self._waiting.values() if job.low <= self.slots]
        self._begin_anew()
        self._changed()

    def _fitted(self, job: Job) -> Job:
        """Return a job with its preferred and greatest number of nodes limited to the number of slots."""
        if job.nodes <= self.slots and job.high <= self.slots:
            return job
        nodes, most = min(job.nodes, self.slots), min(job.high, self.slots)
        return msgspec.structs.replace(job, nodes=nodes, nodes_min=job.low, nodes_max=most)

    def _changed(self) -> None:
        if not self._offered.issuperset(self._free):
            self._refit()  # a job has left withheld slots
            return
        self._free.sort(reverse=True)
        self._view.free = len(self._free)
        self._view.ended = True
        self._sort_ends(self._view.now_s)

    def _begin_anew(self) -> None:
        """Reset the policy's plans after an event that a simulator does not have."""
        replan = getattr(self.policy, "replan", None)
        if replan is not None:
            replan(self._view)
        else:
            self.policy.begin(max(1, self._view.nodes))
        self._view.arrived, self._view.ended = len(self._queue), True
        self._departed.clear()

    def _sort_ends(self, now_s: float) -> None:
        """Update and sort running jobs' estimated ends; an overdue job's end is `OVERDUE_S` from now."""
        for running in self._running.values():
            if running.estimated_end_s <= now_s:
                running.estimated_end_s = now_s + OVERDUE_S
                self._begin_anew()
        self._ends[:] = sorted(
            (running.estimated_end_s, running.order, running) for running in self._running.values()
        )
