"""Run times predicted from ended jobs instead of taken from users' estimates; for any policy.

Users request far more time than their jobs take. A job's expected run time is its estimate times the mean
part of their estimates that ended jobs of the same queue, or of the same user, have used. `Learnt` shows
expected run times to another policy as the jobs' estimates. The expected run time is determined at the job's
submission; when a running job exceeds it, it becomes twice the time run so far, but never more than the
user's estimate.

Source: Tsafrir, Etsion, Feitelson, "Backfilling Using System-Generated Predictions" (2007), which makes
predictions at the submission and corrects them when they are exceeded. Taking means over a queue is our own.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Literal

import msgspec

from mallob_py.batch.job import Job
from mallob_py.batch.policy import Action, Policy, Running, View, Wrapper

By = Literal["queue", "user"]


class Experience:
    """The part of its estimate that a job used, as a mean per queue (or user); 1 until a job has ended."""

    def __init__(self, by: By = "queue") -> None:
        self._by = by
        self._used: dict[str, tuple[float, int]] = defaultdict(lambda: (1.0, 1))

    def learn(self, job: Job, ran_s: float) -> None:
        total, count = self._used[self._key(job)]
        self._used[self._key(job)] = (total + min(1.0, ran_s / job.estimate_s), count + 1)

    def runs_for_s(self, job: Job) -> float:
        """Return the expected run time [s] of a job, which is at most its estimate."""
        total, count = self._used[self._key(job)]
        return job.estimate_s * total / count

    def ends_s(self, running: Running, now_s: float) -> float:
        """Return a job's expected end [s]: after now, and not after its estimated end if that is after now,
        too.
        """
        end_s = running.start_s + self.runs_for_s(running.job)
        if end_s <= now_s:
            # The job is unusual: the longer it has run, the longer it is expected to run.
            end_s = min(running.estimated_end_s, 2.0 * now_s - running.start_s)
        return max(end_s, math.nextafter(now_s, math.inf))

    def _key(self, job: Job) -> str:
        return job.queue if self._by == "queue" else job.user


class Learnt(Wrapper):
    """A wrapper that shows predicted run times to another policy; see the module's docstring."""

    def __init__(self, policy: Policy, by: By = "queue") -> None:
        super().__init__(policy)
        self._by: By = by

    def begin(self, nodes: int) -> None:
        self._experience = Experience(self._by)
        #: ended jobs from which nothing was learnt yet
        self._unlearnt: list[Running] = []
        self._plan_anew(nodes)

    def replan(self, view: View) -> None:
        """Begin anew as `begin` does, but keep what was learnt."""
        self._unlearnt += view.departed
        self._plan_anew(max(1, view.nodes))

    def _plan_anew(self, nodes: int) -> None:
        super().begin(nodes)
        #: id of a job that has not ended -> the job with its expected run time as its estimate
        self._jobs: dict[int, Job] = {}
        #: id -> running job as shown to the policy
        self._shown: dict[int, Running] = {}
        self._queue: list[Job] = []
        self._ends: list[tuple[float, int, Running]] = []
        self._seen: View | None = None

    def decide(self, view: View) -> Iterator[Action]:
        for gone in (*self._unlearnt, *view.departed):
            self._experience.learn(gone.job, view.now_s - gone.start_s)
        self._unlearnt.clear()
        if self._seen is None:
            self._seen = View(view.nodes, view.costs)
            self._seen.queue, self._seen.running, self._seen.ends = self._queue, self._shown, self._ends
        seen = self._seen
        seen.now_s, seen.arrived, seen.ended = view.now_s, view.arrived, view.ended
        seen.departed = [self._shown.get(gone.job.id, gone) for gone in view.departed]
        for gone in view.departed:
            self._jobs.pop(gone.job.id, None)
        self._follow(view, seen)
        actions = self._policy.decide(seen)
        looks_again = isinstance(actions, Iterator)
        for action in actions:
            yield action
            seen.arrived, seen.ended, seen.departed = view.arrived, view.ended, ()
            if looks_again:
                self._follow(view, seen)

    def _follow(self, view: View, seen: View) -> None:
        """Update the shown state in place: the policy's generator goes on reading the same containers."""
        seen.free, seen.free_nodes = view.free, view.free_nodes
        seen.room, seen.wishes = view.room, view.wishes
        self._queue[:] = [self._expected(job) for job in view.queue]
        shown = self._shown
        for number in shown.keys() - view.running.keys():
            del shown[number]
        for number, running in view.running.items():
            if number not in shown:
                shown[number] = self._first_shown(running)
        for number, running in view.running.items():
            self._update(shown[number], running, view.now_s)
        self._ends[:] = sorted((one.estimated_end_s, one.order, one) for one in shown.values())

    def _expected(self, job: Job) -> Job:
        if job.id not in self._jobs:
            self._jobs[job.id] = msgspec.structs.replace(job, estimate_s=self._experience.runs_for_s(job))
        return self._jobs[job.id]

    def _first_shown(self, running: Running) -> Running:
        job = self._expected(running.job)
        return Running(job, running.start_s, running.nodes, running.estimated_end_s, running.order)

    def _update(self, shown: Running, running: Running, now_s: float) -> None:
        seen, own = shown.job, running.job
        if (seen.kind, seen.nodes_min, seen.nodes_max) != (own.kind, own.nodes_min, own.nodes_max):
            shown.job = msgspec.structs.replace(own, estimate_s=seen.estimate_s)
        part = shown.job.estimate_s / running.job.estimate_s
        end_s = running.start_s + part * (running.estimated_end_s - running.start_s)
        if end_s <= now_s < running.estimated_end_s:
            # The last expected end holds until it has passed.
            end_s = shown.estimated_end_s
            if end_s <= now_s or end_s == running.estimated_end_s:
                end_s = min(running.estimated_end_s, 2.0 * now_s - running.start_s)
        shown.estimated_end_s = end_s
        shown.nodes, shown.target, shown.resized_s = running.nodes, running.target, running.resized_s
        shown.still_until_s, shown.factor, shown.rate = running.still_until_s, running.factor, running.rate
        shown.guest = None if running.guest is None else self._shown[running.guest.job.id]
        shown.mates = [self._shown[mate.job.id] for mate in running.mates]
