"""A batch system in virtual time.

Only the simulator knows the truth: run times, true speedups, and resize points of jobs. A job's progress is
piecewise linear (work left, rate), so a change of its nodes moves only one event. Work is counted in seconds
on the preferred number of nodes. Policies see a `View`, whose types cannot contain the truth; the simulator
checks every action.

Event order at equal times: `EventOrder.BATCH` processes all ends, then all submissions, then one decision.
`EventOrder.PYSS` follows the simulator pyss: it processes submissions before ends, and asks for a decision
after each end, and after a submission if its job fits or the policy wants all submissions.
`EventOrder.ELASTISIM` follows the simulator ElastiSim: wakes come first, and a decision follows each event.

A policy with `wants_resize_points` is asked whenever a malleable job is between two of its iterations. An
order for this job takes effect at once, and the next decision sees the nodes that the order has freed. An
order after the job's last resize point has no other effect than that no job gets its new nodes until this job
ends; such an order of a policy without `wants_resize_points` is ignored.
"""

from __future__ import annotations

import enum
import heapq
import math
import random
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from mallob_py.batch.checks import Checks, count_of
from mallob_py.batch.cluster import Room
from mallob_py.batch.costs import NO_DELAYS, Delays, FreeResizes, ResizeCost
from mallob_py.batch.job import Job, Kind, Truth, Workload
from mallob_py.batch.policy import (
    Action,
    Policy,
    PolicyError,
    Reserve,
    Resize,
    Running,
    Share,
    Start,
    View,
    Wake,
)
from mallob_py.batch.wishes import bounded, grants

#: a number of iterations counts as whole if it is at most this far from a whole number
_ROUNDING = 1e-9
#: upper bounds of a simulation: each node is an object in memory, and larger times are too coarse
NODES_MAX = 10_000_000
TIME_MAX_S = 1e12
#: the standard deviation of the logarithms of measured rates
RATE_NOISE = 0.1
#: the largest number of wakes at which a simulation has waiting jobs and no other event
_LONE_WAKES_MAX = 100_000


class EventOrder(enum.Enum):
    """The order of events at equal times; see the module's docstring."""

    BATCH = "batch"
    PYSS = "pyss"
    ELASTISIM = "elastisim"


class Imbalance(enum.Enum):
    """The speed of a job that has more cores on some of its nodes than on others."""

    #: the job balances its load: its speed is that of all its cores together
    IDEAL = "ideal"
    #: the job waits for its slowest node, which determines its speed
    WORST = "worst"


class Piece(msgspec.Struct, frozen=True, gc=False):
    """A part of a job's run, during which its nodes stay the same."""

    job: int
    start_s: float
    end_s: float
    nodes: tuple[int, ...]


class SharedSpan(msgspec.Struct, frozen=True, gc=False):
    """A span of time in which `guest` has the share `factor` of the cores of the nodes of `mate`."""

    guest: int
    mate: int
    start_s: float
    end_s: float
    nodes: int
    factor: float


class Schedule(msgspec.Struct, frozen=True):
    """The schedule of a workload: for each job its start and end [s], and the nodes of its last piece.

    `pieces`: the earlier pieces of resized jobs. `promises`: job -> the start [s] that its first reservation
    promised. `shared`: the spans in which jobs shared nodes.
    """

    workload: Workload
    policy: str
    nodes: int
    starts_s: Sequence[float]
    ends_s: Sequence[float]
    allocations: Sequence[Sequence[int]]
    piece_starts_s: Sequence[float]
    pieces: Sequence[Piece]
    promises: dict[int, float]
    resizes: int
    shared: Sequence[SharedSpan] = ()

    def all_pieces(self) -> Iterator[Piece]:
        """Yield the pieces of all jobs: first all earlier pieces, then the last piece of each job."""
        yield from self.pieces
        for job, (start_s, end_s, nodes) in enumerate(
            zip(self.piece_starts_s, self.ends_s, self.allocations, strict=True)
        ):
            yield Piece(job, start_s, end_s, tuple(nodes))


def simulate(
    workload: Workload,
    policy: Policy,
    nodes: int = 0,
    *,
    costs: ResizeCost | None = None,
    order: EventOrder = EventOrder.BATCH,
    imbalance: Imbalance = Imbalance.IDEAL,
    delays: Delays | Sequence[Delays] = NO_DELAYS,
    rate_noise: float = RATE_NOISE,
) -> Schedule:
    """Simulate a workload on a machine of `nodes` nodes (0: the workload's number of nodes).

    `imbalance` applies to guests that share some of their nodes and have others alone. `delays`: the delays
    of real processes, one for all jobs or one for each job; they need `EventOrder.BATCH`. `rate_noise`: the
    standard deviation of the logarithms of the rates that policies see as measured. Raises PolicyError
    for an impossible action, and ValueError for a job that can never run on this machine and for a number of
    nodes or a time above NODES_MAX or TIME_MAX_S.
    """
    if delays != NO_DELAYS and order is not EventOrder.BATCH:
        raise ValueError("delays need the order of events `batch`")
    run = _Run if workload.cluster is None else _SharedRun
    costs = costs or FreeResizes()
    rates = _Rates(getattr(policy, "rate_period_s", 0.0), rate_noise)
    return run(workload, policy, nodes or workload.nodes, costs, order, imbalance, delays, rates).play()


def _refuse_too_large(workload: Workload, nodes: int) -> None:
    if nodes > NODES_MAX:
        raise ValueError(f"{nodes} nodes are more than {NODES_MAX} (--nodes, --cores-per-node)")
    for job, truth in zip(workload.jobs, workload.truths, strict=True):
        if not max(job.submit_s, truth.run_s) <= TIME_MAX_S:
            raise ValueError(f"job {job.number} comes after {TIME_MAX_S:g} s, or runs for longer")


class _Rates(msgspec.Struct, frozen=True):
    """Rates of jobs as policies see them: with noise, and only after one period to settle and one to
    measure.
    """

    period_s: float
    noise: float

    def show(self, running: Running, rate: float, now_s: float) -> None:
        """Show a job's rate, if it is due, with noise that depends only on the job and its last resize."""
        begin_s = running.still_until_s
        if running.rate is None and begin_s + 2.0 * self.period_s <= now_s:
            noise = random.Random(f"rate {running.job.id} {begin_s}").gauss(0.0, self.noise)
            running.rate = rate * math.exp(noise)


class _Run:
    def __init__(
        self,
        workload: Workload,
        policy: Policy,
        nodes: int,
        costs: ResizeCost,
        order: EventOrder,
        imbalance: Imbalance,
        delays: Delays | Sequence[Delays],
        rates: _Rates,
    ) -> None:
        _refuse_too_large(workload, nodes)
        self._view = self._new_view(workload, nodes, costs)
        self._refuse_impossible(workload, nodes)
        self._checks = Checks(policy, self._view, {job.id: job.number for job in workload.jobs})
        self._workload, self._policy, self._nodes = workload, policy, nodes
        self._jobs, count = workload.jobs, len(workload.jobs)
        self._truths: Sequence[Truth] = workload.truths
        self._costs, self._order, self._imbalance = costs, order, imbalance
        self._delays = [delays] * count if isinstance(delays, Delays) else delays
        self._free: list[int] = list(range(nodes - 1, -1, -1))
        self._queue: list[Job] = []
        self._running: dict[int, Running] = {}
        self._ends: list[tuple[float, int, Running]] = []
        self._wishes: dict[int, int] = {}
        self._departed: list[Running] = []
        view = self._view
        view.free_nodes, view.queue, view.running = self._free, self._queue, self._running
        view.ends, view.wishes, view.departed = self._ends, self._wishes, self._departed
        self._starts = [math.nan] * count
        self._true_ends = [math.nan] * count
        self._allocations: list[Sequence[int]] = [()] * count
        self._piece_starts = [math.nan] * count
        self._pieces: list[Piece] = []
        self._promises: dict[int, float] = {}
        #: by running job: the work left [s] at the time `_since` [s], and the rate at which it then decreases
        self._left = [0.0] * count
        self._since = [0.0] * count
        self._rate = [1.0] * count
        #: a heap of (time [s], event number, job): planned events, void unless `_valid[job]` is their number
        self._due: list[tuple[float, int, int]] = []
        self._number = 0
        self._valid = [0] * count
        self._asks_at_points = getattr(policy, "wants_resize_points", False)
        self._rates = rates
        #: running job at whose resize points the policy is asked -> number of iterations left
        self._iterations_left: dict[int, int] = {}
        #: job -> nodes that were ordered for the job after its last resize point, and kept until its end
        self._never_taken: dict[int, list[int]] = {}
        #: job -> nodes that the job has after its next planned event
        self._taking: dict[int, list[int]] = {}
        #: malleable jobs that cannot be resized yet, as a heap of (time [s] of their readiness, job)
        self._unready: list[tuple[float, int]] = []
        #: job -> number of the job's wishes that have come up so far
        self._told: dict[int, int] = {}
        self._shared: list[SharedSpan] = []
        #: guest -> time [s] at which it joined its mates
        self._joined: dict[int, float] = {}
        self._wake_s = math.inf
        self._resizes = 0

    def _new_view(self, workload: Workload, nodes: int, costs: ResizeCost) -> View:
        return View(nodes, costs)

    def _refuse_impossible(self, workload: Workload, nodes: int) -> None:
        for job in workload.jobs:
            if job.low > nodes:
                raise ValueError(f"job {job.number} needs {job.low} nodes, the machine has {nodes}")

    def play(self) -> Schedule:
        self._policy.begin(self._nodes)
        if self._order is EventOrder.BATCH:
            self._play_in_batches()
        else:
            self._play_one_by_one()
        return Schedule(
            self._workload,
            self._policy.name,
            self._nodes,
            self._starts,
            self._true_ends,
            self._allocations,
            self._piece_starts,
            self._pieces,
            self._promises,
            self._resizes,
            self._shared,
        )

    # --- time ---------------------------------------------------------------------------------

    def _play_in_batches(self) -> None:
        jobs, view, due, valid = self._jobs, self._view, self._due, self._valid
        count, arrived, lone_wakes = len(jobs), 0, 0
        while arrived < count or due or self._may_begin_at_wake(lone_wakes := lone_wakes + 1):
            now = jobs[arrived].submit_s if arrived < count else math.inf
            if due and due[0][0] < now:
                now = due[0][0]
            if self._unready and self._unready[0][0] < now:
                now = self._unready[0][0]
            if self._wake_s < now:
                now = self._wake_s
            view.now_s = now
            # A void event must not cause a decision, which would reveal the job's run time.
            happens = self._wake_s <= now
            if happens:
                self._wake_s = math.inf
            while due and due[0][0] <= now:
                _, number, job = heapq.heappop(due)
                if number == valid[job]:
                    if job in self._iterations_left:
                        self._pass_resize_point(job)
                    else:
                        self._come_due(job)
                        happens = True
            while self._unready and self._unready[0][0] <= now:
                happens |= self._get_ready(heapq.heappop(self._unready)[1])
            before = arrived
            while arrived < count and jobs[arrived].submit_s <= now:
                self._queue.append(jobs[arrived])
                arrived += 1
            view.arrived += arrived - before  # not "=": after `begin`, `arrived` counts all waiting jobs
            view.ended |= happens
            if arrived > before or happens:
                self._decide()
        self._refuse_leftovers()

    def _play_one_by_one(self) -> None:
        jobs, view, due, valid = self._jobs, self._view, self._due, self._valid
        wakes_first = self._order is EventOrder.ELASTISIM
        hears_all = self._policy.wants_all_arrivals or wakes_first
        count, arrived, lone_wakes = len(jobs), 0, 0
        while arrived < count or due or self._may_begin_at_wake(lone_wakes := lone_wakes + 1):
            arrival_s = jobs[arrived].submit_s if arrived < count else math.inf
            next_s = min(arrival_s, due[0][0]) if due else arrival_s
            if self._wake_s < next_s or (wakes_first and self._wake_s == next_s < math.inf):
                view.now_s, self._wake_s = self._wake_s, math.inf
                view.ended = True
                self._decide()
                continue
            if not due or arrival_s <= due[0][0]:
                job = jobs[arrived]
                view.now_s = job.submit_s
                self._queue.append(job)
                arrived += 1
                view.arrived += 1
                if view.free >= job.low or hears_all:
                    self._decide()
                continue
            view.now_s, number, ended = heapq.heappop(due)
            if number == valid[ended]:
                if ended in self._iterations_left:
                    self._pass_resize_point(ended)
                    continue
                self._come_due(ended)
                view.ended = True
                self._decide()
        self._refuse_leftovers()

    def _may_begin_at_wake(self, lone_wakes: int) -> bool:
        """Tell whether a waiting job may begin at the next wake; no other event is due."""
        return bool(self._queue) and self._wake_s < math.inf and lone_wakes <= _LONE_WAKES_MAX

    def _decide(self) -> None:
        """Ask the policy; ask it again while granted wishes free nodes."""
        view, is_asked = self._view, True
        if self._rates.period_s:
            for number, running in self._running.items():
                self._rates.show(running, self._rate[number], view.now_s)
        while is_asked:
            actions = iter(self._policy.decide(view))
            # Only `next` makes a generator read the view.
            action = next(actions, None)
            view.arrived = 0
            view.ended = False
            self._departed.clear()
            while action is not None:
                self._act(action)
                action = next(actions, None)
            is_asked = bool(self._wishes) and self._grant()

    def _grant(self) -> bool:
        """Grant unanswered wishes where possible; return whether a grant has freed nodes.

        After a grant, the policy must begin its plans anew.
        """
        granted, free = False, self._view.free
        for resize in grants(self._view):
            self._resize(resize)
            granted = True
        if granted:
            self._policy.begin(self._view.nodes)
            self._view.arrived, self._view.ended = len(self._queue), True
        return self._view.free > free

    def _refuse_leftovers(self) -> None:
        if self._queue:
            raise self._checks.error(self._queue[0].id, "is left waiting, though the machine is empty")

    # --- ends and resize points ---------------------------------------------------------------

    def _pass_resize_point(self, job: int) -> None:
        """Ask the policy; then resize the job if it has an order, given now or earlier."""
        left = self._iterations_left[job] = self._iterations_left[job] - 1
        truth = self._truths[job]
        self._left[job], self._since[job] = left / truth.iterations * truth.run_s, self._view.now_s
        self._decide()
        if job in self._taking:
            self._take(job)
        else:
            self._plan(job)

    def _plan(self, job: int) -> None:
        """Plan a running job's next event: a resize point, a wish, or its end."""
        if job in self._iterations_left:
            if self._iterations_left[job] > 1:
                self._plan_resize_point(job)
                return
            # No resize point follows the last iteration.
            del self._iterations_left[job]
        truth = self._truths[job]
        if truth.wishes and (told := self._told.get(job, 0)) < len(truth.wishes):
            # A wish that was due before the last resize point comes up now.
            left = max(0.0, self._left[job] - (1.0 - truth.wishes[told].progress) * truth.run_s)
            self._schedule(job, self._since[job] + left / self._rate[job])
        else:
            self._schedule(job, self._end_s(job))

    def _end_s(self, job: int) -> float:
        """Return the time [s] at which a running job ends if nothing changes before."""
        return self._since[job] + self._left[job] / self._rate[job] + self._delays[job].end_s

    def _plan_resize_point(self, job: int) -> None:
        truth = self._truths[job]
        work_s = self._left[job] - (self._iterations_left[job] - 1) / truth.iterations * truth.run_s
        self._schedule(job, self._since[job] + work_s / self._rate[job])

    def _schedule(self, job: int, when_s: float) -> None:
        self._number += 1
        self._valid[job] = self._number
        heapq.heappush(self._due, (when_s, self._number, job))

    def _come_due(self, job: int) -> None:
        if job in self._taking:
            self._take(job)
        elif (wishes := self._truths[job].wishes) and (told := self._told.get(job, 0)) < len(wishes):
            self._told[job] = told + 1
            shares_cores = getattr(self._policy, "shares_cores", False)
            has_bound = not (shares_cores or self._truths[job].iterations)
            if has_bound or not self._jobs[job].is_malleable:
                self._wishes[job] = wishes[told].nodes
                self._show_bound(job)
            self._bring_up_to_date(job)
            self._plan(job)
        else:
            self._end(job)

    def _get_ready(self, job: int) -> bool:
        """Make a job resizable from now on; return whether the job still runs."""
        if (running := self._running.get(job)) is None:
            return False
        running.job = self._jobs[job]
        self._show_bound(job)
        return True

    def _show_bound(self, job: int) -> None:
        """If a job is shown as malleable, show policies its present wish and size."""
        running, own = self._running[job], self._jobs[job]
        if job in self._wishes and running.job.is_malleable:
            running.job = bounded(own, self._wishes[job], running.size)

    def _end(self, job: int) -> None:
        running = self._running.pop(job)
        self._departed.append(running)
        self._valid[job] = -1
        self._true_ends[job] = self._view.now_s
        if self._starts[job] == self._view.now_s:
            raise ValueError(
                f"job {self._jobs[job].number} runs for {self._truths[job].run_s:g} s, too short a time at"
                f" {self._view.now_s:g} s (see --minimal-run)"
            )
        if self._piece_starts[job] == self._view.now_s:
            self._forget_last_piece(job)
        if running.mates:
            self._leave_mates(running)
        elif running.guest is not None:
            self._leave_guest(running, running.guest)
        else:
            self._give_back(running)
        self._free += self._never_taken.pop(job, ())
        self._view.free = len(self._free)
        self._forget_end(running)
        self._wishes.pop(job, None)

    def _forget_last_piece(self, job: int) -> None:
        """Remove a job's last piece, which has no duration: the job was resized at the time of its end."""
        for place in reversed(range(len(self._pieces))):
            piece = self._pieces[place]
            if piece.job == job:
                del self._pieces[place]
                self._piece_starts[job], self._allocations[job] = piece.start_s, piece.nodes
                return

    def _give_back(self, running: Running) -> None:
        self._free += running.nodes

    def _bring_up_to_date(self, job: int) -> None:
        """Subtract the work that a job has done since the last call; a job standing still does none."""
        elapsed_s = self._view.now_s - self._since[job]
        if elapsed_s > 0.0:
            self._left[job] = max(0.0, self._left[job] - elapsed_s * self._rate[job])
            self._since[job] = self._view.now_s

    def _forget_end(self, running: Running) -> None:
        del self._ends[bisect_left(self._ends, (running.estimated_end_s, running.order))]

    # --- actions ------------------------------------------------------------------------------

    def _act(self, action: Action) -> None:
        match action:
            case Start():
                self._start(action)
            case Resize():
                self._resize(action)
            case Share():
                self._share(action)
            case Reserve(job, at_s):
                self._promises.setdefault(job, at_s)
            case Wake():
                self._wake_s = min(self._wake_s, self._checks.wake_s(action))
            case _:
                raise PolicyError(f"{self._policy.name}: {action!r} is no action")

    def _start(self, action: Start) -> None:
        number = action.job
        place = self._checks.place_in_queue(number)
        job = self._jobs[number]
        self._checks.startable(job, count_of(action.nodes))
        nodes = self._nodes_for(number, action.nodes)
        self._view.free = len(self._free)
        self._launch(place, nodes, job.estimate_on(len(nodes)))
        if self._asks_at_points and self._truths[number].iterations and job.is_malleable:
            self._iterations_left[number] = self._truths[number].iterations
        self._plan(number)

    def _launch(self, place: int, nodes: list[int], estimate_s: float) -> Running:
        """Make the waiting job at this place in the queue run; the caller must then plan the job's next
        event.
        """
        job = self._queue.pop(place)
        number = job.id
        now, size = self._view.now_s, len(nodes)
        self._number += 1
        running = Running(job, now, nodes, now + estimate_s, self._number)
        self._running[number] = running
        insort(self._ends, (running.estimated_end_s, self._number, running))
        self._starts[number] = self._piece_starts[number] = now
        self._allocations[number] = nodes
        rate = 1.0 if size == job.nodes else self._speed(number, size)
        delays = self._delays[number]
        self._left[number], self._rate[number] = self._truths[number].run_s, rate
        self._since[number] = now + delays.start_s
        if delays.ready_s and job.is_malleable:
            running.job = msgspec.structs.replace(job, kind=Kind.MOLDABLE)
            heapq.heappush(self._unready, (now + delays.ready_s, number))
        return running

    def _nodes_for(self, job: int, wanted: int | tuple[int, ...]) -> list[int]:
        """Take nodes for a job from the free nodes; return the taken nodes."""
        return self._checks.take(self._free, job, wanted)

    def _speed(self, job: int, size: int) -> float:
        described = self._jobs[job]
        return (self._truths[job].speedup or described.speedup).speed(size, described.nodes)

    def _resize(self, action: Resize) -> None:
        number = action.job
        running = self._checks.resizable(number, (Kind.MALLEABLE, Kind.EVOLVING))
        if running.mates or running.guest is not None:
            raise self._checks.error(number, "is resized, but shares its nodes with other jobs")
        awaited = number in self._iterations_left
        wait_s = 0.0 if awaited else self._until_resize_point(number)
        if wait_s == math.inf and not self._asks_at_points:
            return  # the order comes too late
        kept, wanted = running.nodes, action.nodes
        self._checks.new_size(running.job, count_of(wanted))
        if isinstance(wanted, int):
            new = self._nodes_for(number, wanted - len(kept)) if wanted > len(kept) else []
            grown = [*kept, *new] if new else kept[:wanted]
        else:
            had = set(kept)
            new = [node for node in wanted if node not in had]
            if new:
                self._nodes_for(number, tuple(new))
            grown = list(wanted)
        self._view.free = len(self._free)
        running.target = len(grown)
        running.resized_s = now = self._view.now_s
        if running.job.kind is Kind.EVOLVING:
            self._wishes.pop(number, None)
        if not awaited:
            delays = self._delays[number]
            wait_s += delays.grow_s if running.target > running.size else delays.shrink_s
        if wait_s == math.inf or (wait_s > 0.0 and not awaited and self._end_s(number) <= now + wait_s):
            self._never_taken[number] = new
            return
        self._taking[number] = grown
        if awaited:
            return  # `_pass_resize_point` resizes the job after the decision
        if wait_s > 0.0:
            self._schedule(number, now + wait_s)
        else:
            self._take(number)

    def _until_resize_point(self, number: int) -> float:
        """Return the time [s] until a running job can be resized; infinite: the job ends before."""
        truth = self._truths[number]
        if not truth.iterations:
            return 0.0
        if self._asks_at_points:
            return math.inf  # the policy is asked at each further resize point
        self._bring_up_to_date(number)
        iterations_left = self._left[number] / truth.run_s * truth.iterations
        whole = math.floor(iterations_left + _ROUNDING)
        if whole == 0:
            return math.inf
        work_s = (iterations_left - whole) / truth.iterations * truth.run_s
        return max(0.0, self._since[number] - self._view.now_s) + max(0.0, work_s) / self._rate[number]

    def _take(self, number: int) -> None:
        """Move a job to its ordered nodes."""
        running, now = self._running[number], self._view.now_s
        self._bring_up_to_date(number)
        self._checks.no_round(number, self._left[number])
        self._resizes += 1
        before, after = running.nodes, self._taking.pop(number)
        if now > self._piece_starts[number]:
            self._pieces.append(Piece(number, self._piece_starts[number], now, tuple(before)))
        kept = set(after)
        self._free += [node for node in before if node not in kept]
        self._view.free = len(self._free)
        pause_s = self._costs.pause_s(running.job, len(before), len(after))
        self._forget_end(running)
        # The estimated work stays the same; the estimated speed changes.
        estimated_left = max(0.0, running.estimated_end_s - now) / running.job.estimate_on(len(before))
        running.estimated_end_s = now + pause_s + estimated_left * running.job.estimate_on(len(after))
        insort(self._ends, (running.estimated_end_s, running.order, running))
        running.nodes, running.target, running.rate = after, None, None
        self._show_bound(number)
        self._allocations[number] = after
        self._piece_starts[number] = now
        self._since[number] = running.still_until_s = max(self._since[number], now) + pause_s
        self._rate[number] = self._speed(number, len(after))
        self._plan(number)
        self._view.ended = True

    # --- sharing of nodes ---------------------------------------------------------------------

    def _share(self, action: Share) -> None:
        number, factor, now = action.guest, action.factor, self._view.now_s
        place = self._checks.place_in_queue(number)
        job = self._jobs[number]
        mates = self._checks.mates(job, action)
        nodes = [node for mate in mates for node in mate.nodes]
        estimate_s = job.estimate_on(len(nodes))
        guest = self._launch(place, nodes, estimate_s / factor)
        guest.mates, guest.factor = mates, factor
        self._joined[number] = now
        self._retime(guest)
        for mate in mates:
            mate.guest = guest
            self._retime(mate)
            # If the guest runs as long as estimated, it delays the mate's end by `estimate_s`.
            self._forget_end(mate)
            mate.estimated_end_s += estimate_s
            insort(self._ends, (mate.estimated_end_s, mate.order, mate))

    def _retime(self, running: Running) -> None:
        """Set a job's rate and plan its next event after its guest or its mates have changed."""
        number, size = running.job.id, running.size
        self._bring_up_to_date(number)
        rate = self._speed(number, size)
        if running.guest is not None:
            rate *= 1.0 - running.guest.factor
        elif running.mates and self._imbalance is Imbalance.IDEAL:
            rate *= 1.0 - running.shared / size * (1.0 - running.factor)
        elif running.mates:
            rate *= running.factor
        self._rate[number] = rate
        self._plan(number)

    def _leave_mates(self, guest: Running) -> None:
        """Return an ended guest's cores to its mates; free the nodes of mates that ended before the guest."""
        kept = {node for mate in guest.mates for node in mate.nodes}
        self._free += [node for node in guest.nodes if node not in kept]
        for mate in guest.mates:
            self._part(guest, mate)
            mate.guest = None
            self._retime(mate)

    def _leave_guest(self, mate: Running, guest: Running) -> None:
        """Give an ended mate's nodes to its guest."""
        self._part(guest, mate)
        guest.mates.remove(mate)
        self._retime(guest)

    def _part(self, guest: Running, mate: Running) -> None:
        since_s, now = self._joined[guest.job.id], self._view.now_s
        self._shared.append(SharedSpan(guest.job.id, mate.job.id, since_s, now, mate.size, guest.factor))


class _SharedRun(_Run):
    """A simulation whose jobs share nodes; `_free` lists the nodes without any job."""

    def _new_view(self, workload: Workload, nodes: int, costs: ResizeCost) -> View:
        assert workload.cluster is not None
        view = super()._new_view(workload, nodes, costs)
        self._room = view.room = Room(np.array(workload.cluster.capacities, dtype=np.float64))
        self._units = [0] * nodes
        return view

    def _refuse_impossible(self, workload: Workload, nodes: int) -> None:
        room = self._room
        count, resources = room.capacity.shape
        if nodes != count:
            raise ValueError(f"the cluster has {count} nodes, not {nodes}")
        fits: dict[tuple[float, ...], float] = {}
        for job in workload.jobs:
            demand = job.demand
            if job.kind is not Kind.RIGID:
                raise ValueError(f"job {job.number} is {job.kind.value}; only rigid jobs can share nodes")
            if demand and (len(demand) != resources or min(demand) < 0.0 or not any(demand)):
                raise ValueError(
                    f"the demand of job {job.number} must be {resources} amounts, each >= 0 and not all 0"
                )
            if demand not in fits:
                fits[demand] = float(room.units(demand).sum())
            if fits[demand] < job.nodes:
                raise ValueError(
                    f"job {job.number} needs {job.nodes} units, the machine has room for {fits[demand]:g}"
                )

    def _nodes_for(self, job: int, wanted: int | tuple[int, ...]) -> list[int]:
        room, demand = self._room, self._jobs[job].demand
        if isinstance(wanted, int):
            nodes = room.place(wanted, demand)
            if nodes is None:
                raise self._checks.error(job, f"is to get room for {wanted} units, but there is not enough")
        else:
            nodes = list(wanted)
            if not all(0 <= node < self._nodes for node in nodes) or not room.has(nodes, demand):
                raise self._checks.error(job, f"is to get nodes without room for it: {nodes}")
        room.take(nodes, demand)
        for node in nodes:
            self._units[node] += 1
        taken = set(nodes)
        self._free[:] = [node for node in self._free if node not in taken]
        return nodes

    def _give_back(self, running: Running) -> None:
        self._room.give(running.nodes, running.job.demand)
        for node in running.nodes:
            self._units[node] -= 1
        self._free += sorted({node for node in running.nodes if not self._units[node]})
