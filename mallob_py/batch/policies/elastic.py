"""The policies of ElasticJobScheduler, which start moldable and malleable jobs on as many nodes as are free.

`ElasticFcfs` and `ElasticEasy` start each job on all free nodes that it can use (as `Backfilling` does) and
resize no job. `Malleable` (1) starts jobs by EASY, (2) shrinks running malleable jobs for jobs that still
wait, (3) lets malleable jobs grow into nodes that are still free.

EASY has no extra nodes here: behind the first job that does not fit, another job starts only if it ends, by
its estimate, before the shadow time of that first job. Estimates hold on any number of nodes.

Where the paper and the published program ("code") differ, three settings of `Malleable` choose one of them.
`start`: paper starts jobs on their smallest number of nodes, code on as many as are free. `shrink`: paper
shrinks jobs for any waiting job, first the job with most nodes; code only for the first waiting job, first
the job that can give most nodes. `grow`: with paper, the job with fewest nodes grows first; with code, the
job that can use most further nodes. A job is not resized within `cooldown_s` of its last resize, nor within
`ready_s` of its start, nor before it has run for `period_s` (the period of the program's loop) after a
resize: otherwise it might be resized for ever without working.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence

from mallob_py.batch.job import Job
from mallob_py.batch.policy import Action, Resize, Running, Start, View, Wake

_SOURCES = ("paper", "code")


class ElasticFcfs:
    """Starts jobs in the order of arrival, each on as many free nodes as it can use."""

    name = "elastic-fcfs"
    wants_all_arrivals = True

    def begin(self, nodes: int) -> None:
        pass

    def decide(self, view: View) -> Sequence[Action]:
        free, actions = view.free, list[Action]()
        for job in view.queue:
            if job.low > free:
                break
            size = min(job.high, free)
            free -= size
            actions.append(Start(job.id, size))
        return actions


class ElasticEasy:
    """EASY without extra nodes; see the module's docstring."""

    name = "elastic-easy"
    wants_all_arrivals = True

    def begin(self, nodes: int) -> None:
        pass

    def decide(self, view: View) -> Sequence[Action]:
        return [Start(job.id, size) for job, size in _easy(view, at_most=True)]


class Malleable:
    """EASY with resizes of malleable jobs; see the module's docstring."""

    wants_all_arrivals = True

    def __init__(
        self,
        start: str = "paper",
        shrink: str = "paper",
        grow: str = "paper",
        cooldown_s: float = 60.0,
        ready_s: float = 0.0,
        period_s: float = 5.0,
    ) -> None:
        for setting, value in (("start", start), ("shrink", shrink), ("grow", grow)):
            if value not in _SOURCES:
                raise ValueError(f"{setting} is {value!r}, not paper or code")
        # Without a period, jobs could again and again, while no time passes, exchange nodes that EASY keeps
        # from waiting jobs.
        if period_s <= 0.0:
            raise ValueError(f"period_s is {period_s:g}, not above 0")
        if cooldown_s < period_s:
            raise ValueError(f"cooldown_s is {cooldown_s:g}, below period_s, which is {period_s:g}")
        if ready_s < 0.0:
            raise ValueError(f"ready_s is {ready_s:g}, below 0")
        self.name = "elastic"
        self._starts_at_most = start == "code"
        self._shrinks_as_program = shrink == "code"
        self._grows_largest = grow == "code"
        self._cooldown_s = cooldown_s
        self._ready_s = ready_s
        self._period_s = period_s

    def begin(self, nodes: int) -> None:
        pass

    def decide(self, view: View) -> Iterator[Action]:
        """Yield actions one by one; each is chosen after the previous actions have freed their nodes."""
        for job, size in _easy(view, self._starts_at_most):
            yield Start(job.id, size)
        able = [running for running in view.running.values() if self._free_at(running) <= view.now_s]
        awaits_nodes = False
        if view.queue:
            awaits_nodes = yield from self._shrink(view, able)
        if view.free and not awaits_nodes:
            yield from self._grow(view, able)
        later = [self._free_at(running) for running in view.running.values()]
        soonest_s = min((when_s for when_s in later if when_s > view.now_s), default=math.inf)
        if soonest_s < math.inf:
            yield Wake(self._next_turn_s(view.now_s, soonest_s))

    def _next_turn_s(self, now_s: float, soonest_s: float) -> float:
        """Return when the published program next decides [s]: after `now_s`, and not before `soonest_s`."""
        period_s = self._period_s
        turn = max(math.ceil(soonest_s / period_s), math.floor(now_s / period_s) + 1)
        return (turn if turn * period_s > now_s else turn + 1) * period_s  # rounded, 3 * 0.2 is more than 0.6

    def _free_at(self, running: Running) -> float:
        """Return the time [s] from which a job can be resized; infinite: not known."""
        if not running.job.is_malleable or running.target is not None:
            return math.inf
        ready_s = running.start_s + self._ready_s
        if running.resized_s is None:
            return ready_s
        return max(ready_s, running.resized_s + self._cooldown_s, running.still_until_s + self._period_s)

    def _shrink(self, view: View, able: list[Running]) -> Generator[Action, None, bool]:
        """Shrink jobs for waiting jobs, and start these; return whether a job waits for ordered nodes."""
        # The nodes that jobs with earlier orders are still to free.
        coming = sum(max(0, one.size - one.target) for one in view.running.values() if one.target is not None)
        givers, spare = self._givers(view, able)
        for job in list(view.queue[:1] if self._shrinks_as_program else view.queue):
            if job.low <= view.free:
                continue  # EASY did not start the job, as it would delay the first waiting job
            need = job.low - view.free - coming
            if need > spare:
                continue
            for running in givers:
                given = min(need, running.size - running.job.low)
                if given > 0:
                    need -= given
                    yield Resize(running.job.id, running.size - given)
            if view.free >= job.low:
                yield Start(job.id, min(job.high, view.free) if self._starts_at_most else job.low)
            else:
                return True
            givers, spare = self._givers(view, able)
        return False

    def _givers(self, view: View, able: list[Running]) -> tuple[list[Running], int]:
        """Return the jobs that can shrink now, in the order of shrinking, and how many nodes all can give."""
        givers = [one for one in able if self._free_at(one) <= view.now_s and one.size > one.job.low]
        if self._shrinks_as_program:
            givers.sort(key=lambda one: one.job.low - one.size)
        else:
            givers.sort(key=lambda one: -one.size)
        return givers, sum(one.size - one.job.low for one in givers)

    def _grow(self, view: View, able: list[Running]) -> Iterator[Action]:
        takers = [one for one in able if self._free_at(one) <= view.now_s and one.size < one.job.high]
        if self._grows_largest:
            takers.sort(key=lambda one: one.size - one.job.high)
        else:
            takers.sort(key=lambda one: one.size)
        for running in takers:
            taken = min(view.free, running.job.high - running.size)
            if taken:
                yield Resize(running.job.id, running.size + taken)


def _easy(view: View, at_most: bool) -> list[tuple[Job, int]]:
    """Return (job, its number of nodes) for the waiting jobs that start.

    The number is the job's smallest or, if `at_most`, as many nodes as are free.
    """
    free, starts = view.free, list[tuple[Job, int]]()
    shadow_s = math.inf
    head: Job | None = None
    for job in view.queue:
        if not free:
            break
        if job.low > free:
            if head is None:
                head, shadow_s = job, _shadow(view, free, job.low, starts)
            continue
        size = min(job.high, free) if at_most else job.low
        if head is not None and view.now_s + job.estimate_s >= shadow_s:
            continue
        starts.append((job, size))
        free -= size
    return starts


def _shadow(view: View, free: int, need: int, starts: list[tuple[Job, int]]) -> float:
    ends = [(running.start_s + running.job.estimate_s, running.size) for running in view.running.values()]
    ends += [(view.now_s + job.estimate_s, size) for job, size in starts]
    for end_s, size in sorted(ends):
        free += size
        if free >= need:
            return end_s
    return math.inf
