"""SD-Policy: backfilling in which a waiting job shares nodes of running jobs if it then ends earlier.

Source: D'Amico, Jokanovic, Corbalan, "Holistic Slowdown Driven Scheduling and Resource Management for
Malleable Jobs", ICPP 2019. The base is EASY. A malleable job that cannot start is made a guest if, by the
estimates, it ends earlier as a guest than after waiting. Its mates are at most `mates` (two) running
malleable jobs that together have exactly the number of nodes that it needs; the set with the smallest sum of
penalties is taken. The penalty of a mate is its slowdown by the estimates, with the guest:

    p = (wait + limit + estimate of the guest) / estimate

where the mate's limit is its estimate plus the time that former guests have cost it. Only jobs with p below
MAX_SLOWDOWN, which is a constant or the mean of the running jobs' estimated slowdowns, are eligible, and only
jobs that the guest does not outlive. Estimates assume that a job is as slow as the slowest of its nodes.

A job searches again only among sets with a mate that has become eligible since its last search: other sets
have become no better in the meantime.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from mallob_py.batch.job import Job
from mallob_py.batch.policy import Action, Running, Share, Start, View
from mallob_py.batch.shadow import shadow_of

#: (penalty, order of start, job that may be a mate)
_Rated = tuple[float, int, Running]


class SdPolicy:
    """SD-Policy; see the module's docstring.

    A job is eligible as a mate while its penalty is below `max_slowdown`; with `dynamic=True`, below the
    running jobs' mean of (estimated end - submission) / estimate. A guest gets the share `factor` of each
    node's cores. With `check=False`, a job is made a guest even if it would end earlier by waiting, as in the
    authors' published code. With `counts_shared=False`, the head's reservation counts on no node that two
    jobs share, so it is later and other jobs overtake more often. `depth`: greatest number of waiting jobs
    that are considered (0: all); `mates`: greatest number of mates of one guest. With `again=False`, a job
    that was a guest never becomes a mate. With `replan=False`, the head's reservation is made once per
    decision, and other jobs respect it even after the head has become a guest or mates have got later ends.
    How long a job would wait is estimated by the head's reservation (`waits=head`), or by a map of
    reservations for all jobs before it (`waits=map`).
    """

    wants_all_arrivals = True
    shares_nodes = True
    shares_cores = True

    def __init__(
        self,
        max_slowdown: float = 10.0,
        dynamic: bool = False,
        check: bool = True,
        counts_shared: bool = True,
        depth: int = 0,
        mates: int = 2,
        factor: float = 0.5,
        again: bool = True,
        replan: bool = True,
        waits: str = "head",
    ) -> None:
        if waits not in ("head", "map"):
            raise ValueError(f"waits is {waits!r}, not head or map")
        if not 0.0 < factor < 1.0:
            raise ValueError(f"factor is {factor:g}, not between 0 and 1")
        if mates < 1:
            raise ValueError(f"mates is {mates}, below 1")
        if depth < 0:
            raise ValueError(f"depth is {depth}, below 0")
        self.name = "sd"
        self._constant = max_slowdown
        self._is_dynamic = dynamic
        self._checks = check
        self._counts_shared = counts_shared
        self._depth = depth or math.inf
        self._mates_max = mates
        self._factor = factor
        self._guests_again = again
        self._replans = replan
        self._maps = waits == "map"
        #: a guest's extra run time on shared nodes, in multiples of its estimate
        self._increase = 1.0 / factor - 1.0

    def begin(self, nodes: int) -> None:
        #: number of nodes -> id -> running malleable job of this size that shares no nodes
        self._alone: dict[int, dict[int, Running]] = {}
        #: ids of all jobs ever added to `_alone`, in the order of adding
        self._came: list[int] = []
        #: waiting job that found no mates -> length of `_came` and cut-off at its last search
        self._looked: dict[int, tuple[int, float]] = {}
        #: the sum of the running jobs' estimated slowdowns
        self._slowdowns = 0.0
        self._cutoff = self._constant
        #: shadow time [s] and extra nodes of the queue's head, as in EASY; None: not computed yet
        self._shadow: tuple[float, int] | None = None
        #: the reservations of the waiting jobs now; None: not computed yet
        self._waits: Waits | None = None
        #: queue's head and cut-off at the last decision, if repeating the decision would start no job;
        #: otherwise None
        self._seen: tuple[int, float] | None = None
        self._is_new = True

    def decide(self, view: View) -> Iterator[Action]:
        if self._is_new:
            self._is_new = False
            for running in view.running.values():  # real jobs that started before this policy did
                self._slowdowns += _slowdown(running)
                if running.guest is None and not running.mates:
                    self._add(running)
        for gone in view.departed:
            self._slowdowns -= _slowdown(gone)
            self._forget(gone)
            self._free_of(gone, view)
        if self._is_dynamic:
            count = len(view.running)
            self._slowdowns = self._slowdowns if count else 0.0
            self._cutoff = self._slowdowns / count if count else math.inf
        first = 0
        if view.ended or not self._replans:
            self._shadow = None
        elif view.queue and self._seen == (view.queue[0].id, self._cutoff):
            # Nothing has changed for the jobs that waited before.
            first = len(view.queue) - view.arrived
        return self._pass(view, first)

    def _pass(self, view: View, place: int) -> Iterator[Action]:
        """Consider the waiting jobs from this place in the queue on; the view changes with each action."""
        queue = view.queue
        waited = len(queue)
        self._waits = None
        if place == 0:
            while queue and queue[0].nodes <= view.free:
                yield from self._start(queue[0], view)
            waited = len(queue)
        if queue and not self._replans:
            self._head_starts(view)
        looked_at = place
        while place < len(queue) and looked_at < self._depth:
            job = queue[place]
            looked_at += 1
            if self._can_start(place, job, view):
                yield from self._start(job, view)
            elif mates := self._mates_of(job, view):
                yield from self._share(job, mates, view)
            else:
                place += 1
        # If jobs have started, other jobs are now within the depth.
        self._seen = (queue[0].id, self._cutoff) if 0 < len(queue) == waited else None

    # --- the static part: EASY ----------------------------------------------------------------

    def _can_start(self, place: int, job: Job, view: View) -> bool:
        if job.nodes > view.free:
            return False
        if place == 0 and self._replans:
            return True
        shadow_s, extra = self._head_starts(view)
        if view.now_s + job.estimate_s <= shadow_s:
            return True
        if job.nodes > extra:
            return False
        self._shadow = (shadow_s, extra - job.nodes)
        return True

    def _start(self, job: Job, view: View) -> Iterator[Action]:
        if view.queue[0] is job and self._replans:
            self._shadow = None
        yield Start(job.id, job.nodes)
        running = view.running[job.id]
        self._slowdowns += _slowdown(running)
        self._looked.pop(job.id, None)
        self._add(running)
        self._waits = None

    def _head_starts(self, view: View) -> tuple[float, int]:
        """Return the estimated start [s] of the queue's head, and the number of nodes that then stay free."""
        if self._shadow is None:
            self._shadow = shadow_of(self._freed(view), view.now_s, view.free, view.queue[0].nodes)
        return self._shadow

    def _freed(self, view: View) -> Iterator[tuple[float, int]]:
        """Yield (estimated end [s] of a running job, how many of its nodes the queue's head can use)."""
        for end_s, _, running in view.ends:
            if running.mates:
                yield end_s, running.freed
            elif running.guest is None or self._counts_shared:
                yield end_s, len(running.nodes)

    # --- guests and mates ---------------------------------------------------------------------

    def _share(self, job: Job, mates: tuple[Running, ...], view: View) -> Iterator[Action]:
        for mate in mates:
            self._slowdowns -= _slowdown(mate)
            self._forget(mate)
        yield Share(job.id, tuple(mate.job.id for mate in mates), self._factor)
        if self._replans:
            # The mates' ends have become later.
            self._shadow = None
        self._slowdowns += sum(_slowdown(running) for running in (view.running[job.id], *mates))
        self._looked.pop(job.id, None)
        self._waits = None

    def _mates_of(self, job: Job, view: View) -> tuple[Running, ...]:
        """Return the set of mates with the smallest sum of penalties; (): the job must not become a guest."""
        if not job.is_malleable:
            return ()
        increase_s = job.estimate_s * self._increase
        if self._checks and not self._maps and self._head_starts(view)[0] - view.now_s <= increase_s:
            return ()
        looked = came, cutoff = self._looked.get(job.id, (0, -math.inf))
        self._looked[job.id] = (len(self._came), self._cutoff)
        if self._cutoff > cutoff:
            came = 0
        if came == len(self._came):
            return ()
        search = _Search(self._alone, job, view.now_s + increase_s, self._cutoff, self._mates_max)
        if self._mates_max <= 2 and 2 * (len(self._came) - came) < len(view.running):
            mates = search.among(
                [view.running[number] for number in self._came[came:] if number in view.running]
            )
        else:
            mates = search.everywhere()
        # The map of reservations is costly, so it is computed only if the decision depends on it.
        if mates and self._checks and self._maps and self._wait_s(job, view) <= increase_s:
            self._looked[job.id] = looked
            return ()
        return mates

    def _wait_s(self, job: Job, view: View) -> float:
        if self._waits is None:
            self._waits = Waits(view.now_s, view.free, view.nodes, self._freed(view), view.queue)
        return self._waits.start_s(job.id) - view.now_s

    def _add(self, running: Running) -> None:
        if running.job.is_malleable:
            self._alone.setdefault(running.size, {})[running.job.id] = running
            self._came.append(running.job.id)

    def _forget(self, running: Running) -> None:
        size = running.size
        if running.job.id in (same_size := self._alone.get(size, {})):
            del same_size[running.job.id]
            if not same_size:
                del self._alone[size]

    def _free_of(self, gone: Running, view: View) -> None:
        """Record that an ended job's guest or mates share no nodes any more, unless they have other mates or
        guests.
        """
        others = gone.mates
        if gone.guest is not None:
            others = [gone.guest] if self._guests_again and not gone.guest.mates else []
        for other in others:
            if other.job.id in view.running:
                self._add(other)


class _Search:
    """A search for the mates of one job; no mate may end, without the guest, before `end_s`."""

    def __init__(
        self, alone: dict[int, dict[int, Running]], job: Job, end_s: float, cutoff: float, mates_max: int
    ) -> None:
        self._alone = alone
        self._nodes = job.nodes
        self._estimate_s = job.estimate_s
        self._end_s = end_s
        self._cutoff = cutoff
        self._mates_max = mates_max
        self._best: dict[int, list[_Rated]] = {}
        self._least = math.inf
        self._found: tuple[Running, ...] = ()

    def everywhere(self) -> tuple[Running, ...]:
        need = self._nodes
        if self._mates_max > 2:
            return self._of_many()
        for rated in self._cheapest(need)[:1]:
            self._offer(rated)
        if self._mates_max > 1:
            for size in self._alone:
                other = need - size
                if size < other and other in self._alone:
                    for rated in self._cheapest(size)[:1]:
                        self._offer_with_another(rated, other)
                elif size == other:
                    for rated in self._cheapest(size)[:1]:
                        self._offer_with_another(rated, size)
        return self._found

    def _of_many(self) -> tuple[Running, ...]:
        """Return the cheapest set of jobs with exactly the needed number of nodes, by dynamic programming."""
        need, most = self._nodes, self._mates_max
        #: number of jobs, then number of nodes -> (sum of penalties, jobs) of the cheapest set
        ways: list[dict[int, tuple[float, tuple[Running, ...]]]] = [{} for _ in range(most + 1)]
        ways[0][0] = 0.0, ()
        for size in self._alone:
            cheapest = self._cheapest(size)[: need // size]
            for jobs in range(most - 1, -1, -1):  # `jobs` jobs of earlier sizes
                for more in range(1, min(len(cheapest), most - jobs) + 1):
                    penalty = sum(one[0] for one in cheapest[:more])
                    # A full set must have exactly the needed number of nodes.
                    for nodes in [need - more * size] if jobs + more == most else list(ways[jobs]):
                        total, chosen = ways[jobs].get(nodes, (math.inf, ()))
                        after = nodes + more * size
                        if after > need:
                            continue
                        if total + penalty < ways[jobs + more].get(after, (math.inf,))[0]:
                            ways[jobs + more][after] = (
                                total + penalty,
                                (*chosen, *(one[2] for one in cheapest[:more])),
                            )
        return min((way[need] for way in ways if need in way), key=lambda way: way[0], default=(0.0, ()))[1]

    def among(self, candidates: list[Running]) -> tuple[Running, ...]:
        """Return the cheapest set of mates that contains at least one of `candidates`."""
        for running in candidates:
            size = running.size
            if size > self._nodes or running.job.id not in self._alone.get(size, ()):
                continue
            penalty = self._penalty(running)
            if penalty >= self._cutoff:
                continue
            rated = (penalty, running.order, running)
            if size == self._nodes:
                self._offer(rated)
            elif self._mates_max > 1 and self._nodes - size in self._alone:
                self._offer_with_another(rated, self._nodes - size)
        return self._found

    def _penalty(self, running: Running) -> float:
        """Return the penalty of a job as a mate; infinite: the job ends too early."""
        if running.estimated_end_s < self._end_s:
            return math.inf
        job = running.job
        return (running.estimated_end_s - job.submit_s + self._estimate_s) / job.estimate_s

    def _cheapest(self, size: int) -> list[_Rated]:
        best = self._best.get(size)
        if best is None:
            rated = [
                (penalty, running.order, running)
                for running in self._alone.get(size, {}).values()
                if (penalty := self._penalty(running)) < self._cutoff
            ]
            rated.sort()
            best = self._best[size] = rated[: max(2, self._mates_max)]
        return best

    def _offer(self, rated: _Rated) -> None:
        if rated[0] < self._least:
            self._least, self._found = rated[0], (rated[2],)

    def _offer_with_another(self, rated: _Rated, size: int) -> None:
        for other in self._cheapest(size):
            if other[2] is not rated[2]:
                total = rated[0] + other[0]
                if total < self._least:
                    self._least, self._found = total, (rated[2], other[2])
                return


def _slowdown(running: Running) -> float:
    """Return a job's estimated slowdown."""
    job = running.job
    return (running.estimated_end_s - job.submit_s) / job.estimate_s


class Waits:
    """The estimated starts of waiting jobs: each job's reservation respects those of the jobs before it.

    The reservations are valid for one moment; they are made in the queue's order, as far as needed.

    `ends`: (estimated end [s], number of nodes that become free then), sorted. Other nodes become free at an
    unknown time.
    """

    def __init__(
        self, now_s: float, free: int, nodes: int, ends: Iterable[tuple[float, int]], queue: Iterable[Job]
    ) -> None:
        self._times_s = [now_s]
        self._free = [free]
        for end_s, freed in ends:
            free += freed
            if end_s > self._times_s[-1]:
                self._times_s.append(end_s)
                self._free.append(free)
            else:
                self._free[-1] = free
        if free < nodes:
            self._times_s.append(math.inf)
            self._free.append(nodes)
        self._queue: Iterator[Job] = iter(queue)
        self._starts_s: dict[int, float] = {}

    def start_s(self, job: int) -> float:
        """Return the estimated start [s] of a job in the queue; infinite: unknown."""
        while job not in self._starts_s:
            other = next(self._queue)
            self._starts_s[other.id] = self._reserve(other.nodes, other.estimate_s)
        return self._starts_s[job]

    def _reserve(self, nodes: int, estimate_s: float) -> float:
        times_s, free = self._times_s, self._free
        first = last = 0
        while last == first:
            while free[first] < nodes:
                first += 1
            end_s = times_s[first] + estimate_s
            last = first + 1
            while last < len(times_s) and times_s[last] < end_s:
                if free[last] < nodes:
                    first = last
                    break
                last += 1
        if last == len(times_s) or times_s[last] > end_s:
            times_s.insert(last, end_s)
            free.insert(last, free[last - 1])
        for place in range(first, last):
            free[place] -= nodes
        return times_s[first]
