"""Explanations of a job's start: its workload is simulated again, watching the policy while the job waits.

This module knows no policy's rules. It records what the policy saw and did: how many nodes were free, which
job was the head of the queue, which other jobs were started, which start was promised.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from mallob_py.batch.costs import ResizeCost
from mallob_py.batch.job import Job, Workload
from mallob_py.batch.policy import Action, Policy, Reserve, Resize, Share, Start, View, Wrapper
from mallob_py.batch.simulator import EventOrder, Schedule, simulate


class Hindrance(enum.Enum):
    """The reasons why a decision did not start the job."""

    TOO_FEW_NODES = "too few nodes were free"
    FREE_TO_OTHERS = "nodes were free but went to other jobs"
    PASSED_OVER = "enough nodes were free, but earlier jobs have their turn first"
    HEAD = "enough nodes were free, but the policy did not start the job"


class Moment(msgspec.Struct, frozen=True):
    """A decision that left the job waiting.

    `place`: the job's place in the queue, from 1. `shadow_s`: when the head of the queue can start, by the
    estimates. `started`: the numbers of the jobs that the decision started.
    """

    at_s: float
    hindrance: Hindrance
    free: int
    place: int
    running: int
    head: Job
    shadow_s: float | None
    promise_s: float | None
    started: tuple[int, ...]


class Explanation(msgspec.Struct, frozen=True):
    """The explanation of one job; other jobs are named by number.

    `moments`: decisions that left the job waiting. `ended_at_start`: jobs that ended just before the decision
    that started the job. `resized_at_start`: jobs that this decision resized. `overtaken_by`: jobs that were
    submitted later and started earlier.
    """

    job: Job
    policy: str
    start_s: float
    end_s: float
    nodes: int
    free_at_start: int
    ended_at_start: tuple[int, ...]
    resized_at_start: tuple[int, ...]
    moments: Sequence[Moment]
    overtaken_by: tuple[int, ...]


def explain(
    workload: Workload,
    policy: Policy,
    number: int,
    *,
    costs: ResizeCost | None = None,
    order: EventOrder = EventOrder.BATCH,
) -> Explanation:
    """Simulate the workload; explain the start of the job with this number. Raises ValueError if there is no
    such job.
    """
    job = next((job for job in workload.jobs if job.number == number), None)
    if job is None:
        raise ValueError(f"there is no job {number} (or it was left out)")
    watch = _Watch(policy, workload, job)
    schedule: Schedule = simulate(workload, watch, costs=costs, order=order)
    start_s = schedule.starts_s[job.id]
    overtakers = [
        other.number for other in workload.jobs[job.id + 1 :] if schedule.starts_s[other.id] < start_s
    ]
    first = next((piece for piece in schedule.pieces if piece.job == job.id), None)
    return Explanation(
        job=job,
        policy=policy.name,
        start_s=start_s,
        end_s=schedule.ends_s[job.id],
        nodes=len(first.nodes if first else schedule.allocations[job.id]),
        free_at_start=watch.free_at_start,
        ended_at_start=watch.ended_at_start,
        resized_at_start=watch.resized_at_start,
        moments=watch.moments,
        overtaken_by=tuple(overtakers),
    )


class _Watch(Wrapper):
    """A policy whose decisions are recorded while the job waits."""

    def __init__(self, policy: Policy, workload: Workload, job: Job) -> None:
        super().__init__(policy)
        self._jobs = workload.jobs
        self._job = job
        self._promise_s: float | None = None
        self._waits = True
        self.moments: list[Moment] = []
        self.free_at_start = 0
        self.ended_at_start: tuple[int, ...] = ()
        self.resized_at_start: tuple[int, ...] = ()

    def decide(self, view: View) -> Iterable[Action]:
        job = self._job
        if not self._waits or view.now_s < job.submit_s:
            return self._policy.decide(view)
        place = next((place for place, one in enumerate(view.queue) if one.id == job.id), None)
        if place is None:
            return self._policy.decide(view)
        return self._watched(view, place)

    def _watched(self, view: View, place: int) -> Iterator[Action]:
        """Yield and record a decision's actions, one by one, so that the view shows each action's effect."""
        job = self._job
        free = view.free
        departed = tuple(one.job.number for one in view.departed)
        started, resized = list[int](), list[int]()
        for action in self._policy.decide(view):
            if isinstance(action, Reserve) and action.job == job.id:
                self._promise_s = action.at_s
            elif isinstance(action, Start):
                started.append(action.job)
            elif isinstance(action, Share):
                started.append(action.guest)
            elif isinstance(action, Resize):
                resized.append(action.job)
            yield action
        if job.id in started:
            self._waits = False
            self.free_at_start = free
            self.ended_at_start = departed
            self.resized_at_start = tuple(self._jobs[one].number for one in resized)
        else:
            self.moments.append(self._moment(view, place, free, started))

    def _moment(self, view: View, place: int, free_before: int, started: Sequence[int]) -> Moment:
        head = view.queue[0]
        if free_before < self._job.low:
            hindrance = Hindrance.TOO_FEW_NODES
        elif view.free < self._job.low:
            hindrance = Hindrance.FREE_TO_OTHERS
        else:
            hindrance = Hindrance.HEAD if head.id == self._job.id else Hindrance.PASSED_OVER
        return Moment(
            at_s=view.now_s,
            hindrance=hindrance,
            free=view.free,
            place=place - sum(other < self._job.id for other in started) + 1,
            running=len(view.running),
            head=head,
            shadow_s=_earliest(view, head),
            promise_s=self._promise_s,
            started=tuple(self._jobs[number].number for number in sorted(started)),
        )


def _earliest(view: View, head: Job) -> float | None:
    """Return the time at which the head has enough nodes, by the running jobs' estimates; None: never."""
    free = view.free
    if free >= head.low:
        return view.now_s
    for end_s, _, running in view.ends:
        free += running.freed
        if free >= head.low:
            return max(end_s, view.now_s)
    return None
