"""The balancer of this project as a batch scheduler: every job has its fair volume of nodes.

A malleable job's volume is its priority's share of the machine, within its smallest and greatest number of
nodes (`mallob_py/protocol/volumes.py`, where the smallest number is 1). At each event, volumes are recomputed
for the running malleable jobs and the starting ones; other jobs keep their nodes.

Waiting jobs start in the order of their submission (with `order=priority`: by priority, then by submission),
as soon as running jobs can leave them their smallest numbers of nodes. The head is the first job that cannot
start. `overtake` says which jobs behind the head may start: `easy`: jobs that do not delay the head, as in
EASY, each on its smallest number of nodes; `any`: all jobs that fit; `none`: no job. Without malleable jobs,
the policy is EASY, backfilling or FCFS.

Jobs have equal priorities (`by=job`), or priorities proportional to their preferred numbers of nodes
(`nodes`); or users (`user`) or queues (`queue`) have equal priorities, which their jobs share equally.
`priorities` sets other priorities for some users or queues, such as `priorities=debug:4/long:0.5`.

A job is not resized within `cooldown_s` of its last resize. With `costs`, if resizes take time, a job shrinks
only if a waiting job needs its nodes, and grows only if it then ends earlier by its estimate.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from mallob_py.batch.job import Job
from mallob_py.batch.policy import Action, Resize, Running, Start, View, Wake, check_choice
from mallob_py.batch.shadow import shadow_of
from mallob_py.protocol.volumes import MAX_PRIORITY, MIN_PRIORITY, fair_volumes

_BY = ("job", "nodes", "user", "queue")
_ORDERS = ("arrival", "priority")
_OVERTAKE = ("easy", "any", "none")
#: the number of parts into which a node is divided, to compare shares with smallest numbers of nodes
_PARTS = 1 << 16


class Fair:
    """The fair-share policy; see the module's docstring."""

    wants_all_arrivals = True

    def __init__(
        self,
        by: str = "job",
        priorities: str = "",
        order: str = "arrival",
        overtake: str = "easy",
        cooldown_s: float = 0.0,
        costs: bool = True,
    ) -> None:
        check_choice("by", by, _BY)
        check_choice("order", order, _ORDERS)
        check_choice("overtake", overtake, _OVERTAKE)
        if priorities and by not in ("user", "queue"):
            raise ValueError("priorities needs by=user or by=queue")
        if not 0.0 <= cooldown_s < math.inf:
            raise ValueError("cooldown_s must be a finite number of seconds, not below 0")
        self.name = "fair"
        self._by = by
        self._priorities = _priorities_of(priorities)
        self._by_priority = order == "priority"
        self._overtake = overtake
        self._cooldown_s = cooldown_s
        self._looks_at_costs = costs
        #: the first job that could not start at the last decision; -1: no job
        self._head = -1
        #: the number of nodes that the last decision left for other jobs
        self._room = 0
        #: ids of the waiting jobs that the last decision was to start; running jobs may have shrunk for them
        self._admitted = frozenset[int]()

    def begin(self, nodes: int) -> None:
        self._head, self._room, self._admitted = -1, 0, frozenset()

    def decide(self, view: View) -> Iterator[Action]:
        """Yield actions one by one; each is chosen after the previous actions have freed their nodes."""
        able = [running for running in view.running.values() if self._rested_s(running) <= view.now_s]
        # The nodes that jobs with earlier orders are still to free.
        coming = sum(max(0, one.size - one.target) for one in view.running.values() if one.target is not None)
        starting = self._starting(view, able, coming)
        self._admitted = frozenset(job.id for job in starting)
        if starting or view.ended:
            if able or any(job.is_malleable for job in starting):
                # Resizes change expected ends, and so which jobs may overtake the queue's head.
                self._head = -1
            volumes = self.volumes(view, able, starting, view.free + coming)
            yield from self._shrink(view, able, volumes, coming)
            if (yield from self._start(view, starting, volumes)):
                yield from self._grow(view, able, volumes)
        if self._cooldown_s:
            rested_s = [self._rested_s(running) for running in view.running.values()]
            soonest_s = min((when_s for when_s in rested_s if when_s > view.now_s), default=math.inf)
            if soonest_s < math.inf:
                yield Wake(soonest_s)

    def _rested_s(self, running: Running) -> float:
        """Return the time [s] from which a job can be resized; infinite: not known."""
        if not running.job.is_malleable or running.target is not None:
            return math.inf
        return -math.inf if running.resized_s is None else running.resized_s + self._cooldown_s

    # --- starts -------------------------------------------------------------------------------

    def _starting(self, view: View, able: Sequence[Running], coming: int) -> list[Job]:
        """Return the waiting jobs that start now, or as soon as shrinking jobs have freed their nodes."""
        queue = view.queue
        if not queue:
            return []
        room = view.free + coming + sum(running.size - running.job.low for running in able)
        starting = list[Job]()
        if self._by_priority:
            priorities = self.priorities_for(view, queue)
            queue = [queue[place] for place in np.argsort(-priorities, kind="stable").tolist()]
        elif not view.ended and queue[0].id == self._head and room == self._room:
            # After arrivals alone, a job that did not start before does not start now.
            return self._overtaking(view, able, room, queue[0], queue[len(queue) - view.arrived :], starting)
        self._head = -1
        for place, job in enumerate(queue):
            if job.low > room:
                self._head = job.id
                return self._overtaking(view, able, room, job, queue[place + 1 :], starting)
            room -= job.low
            starting.append(job)
        return starting

    def _overtaking(
        self,
        view: View,
        able: Sequence[Running],
        room: int,
        head: Job,
        behind: Sequence[Job],
        starting: list[Job],
    ) -> list[Job]:
        """Return `starting`, extended by the jobs that may overtake the queue's `head`."""
        self._room = room
        if self._overtake == "none":
            return starting
        shadow: tuple[float, int] | None = None
        for job in behind:
            if not room:
                break
            if job.low > room:
                continue
            if self._overtake == "easy":
                shadow_s, extra = shadow or self._shadow(view, able, room, head, starting)
                if view.now_s + job.estimate_on(job.low) > shadow_s:
                    # The jobs that shrank for an admitted job end later, so the shadow time has changed.
                    if job.low > extra and job.id not in self._admitted:
                        continue
                    extra -= job.low
                shadow = shadow_s, extra
            room -= job.low
            starting.append(job)
        self._room = room
        return starting

    def _shadow(
        self, view: View, able: Sequence[Running], room: int, head: Job, starting: Sequence[Job]
    ) -> tuple[float, int]:
        """Return the head's shadow time [s] by the estimates, and the number of extra nodes at this time.

        `room` includes the nodes that running jobs can leave now, so their ends free only the other nodes.
        """
        shrinking = {running.job.id for running in able}
        ends = (
            (end_s, running.job.low if running.job.id in shrinking else running.target or running.size)
            for end_s, _, running in view.ends
        )
        return shadow_of(ends, view.now_s, room, head.low, ((job, job.low) for job in starting))

    # --- volumes ------------------------------------------------------------------------------

    def volumes(
        self, view: View, able: Sequence[Running], starting: Sequence[Job], free: int
    ) -> dict[int, int]:
        """Return the volumes (job -> number of nodes) of jobs that can be resized or started."""
        jobs = [*(running.job for running in able), *starting]
        if not jobs:
            return {}
        volumes = bounded_volumes(
            self.priorities_for(view, jobs),
            np.array([job.low for job in jobs]),
            np.array([job.high for job in jobs]),
            free + sum(running.size for running in able),
            np.array([job.id for job in jobs]),
        )
        return dict(zip((job.id for job in jobs), volumes.tolist(), strict=True))

    def priorities_for(self, view: View, jobs: Sequence[Job]) -> NDArray[np.float64]:
        if self._by == "job":
            return np.ones(len(jobs))
        if self._by == "nodes":
            return np.array([float(job.nodes) for job in jobs])
        owners = [self._owner(job) for job in jobs]
        counts = Counter(self._owner(running.job) for running in view.running.values())
        counts.update(owner for owner, job in zip(owners, jobs, strict=True) if job.id not in view.running)
        return np.array([self._priorities.get(owner, 1.0) / counts[owner] for owner in owners])

    def _owner(self, job: Job) -> str:
        return job.user if self._by == "user" else job.queue

    # --- actions ------------------------------------------------------------------------------

    def _shrink(
        self, view: View, able: Sequence[Running], volumes: dict[int, int], coming: int
    ) -> Iterator[Action]:
        sizes = {running.job.id: running.size for running in able}
        need = sum(volume for job, volume in volumes.items() if job not in sizes) - view.free - coming
        for running in sorted(able, key=lambda one: volumes[one.job.id] - one.size):
            job, size = running.job, running.size
            given = size - volumes[job.id]
            if given <= 0:
                break
            if self._looks_at_costs and view.costs.pause_s(job, size, size - given) > 0.0:
                given = min(given, need)
                if given <= 0:
                    break
            need -= given
            yield Resize(job.id, size - given)

    def _start(
        self, view: View, starting: Sequence[Job], volumes: dict[int, int]
    ) -> Generator[Action, None, bool]:
        """Start jobs; return whether all have started: only then may running jobs grow into free nodes."""
        for_others = sum(job.low for job in starting)
        for job in starting:
            for_others -= job.low
            size = min(volumes[job.id], view.free - for_others)
            if size < job.low:
                return False
            yield Start(job.id, size)
        return True

    def _grow(self, view: View, able: Sequence[Running], volumes: dict[int, int]) -> Iterator[Action]:
        for running in sorted(able, key=lambda one: one.size - volumes[one.job.id]):
            if not view.free:
                break
            size = min(volumes[running.job.id], running.size + view.free)
            # A job with a target has just been ordered to shrink.
            if size > running.size and running.target is None and self._pays(view, running, size):
                yield Resize(running.job.id, size)

    def _pays(self, view: View, running: Running, size: int) -> bool:
        """Return whether a job would end earlier if it grew."""
        job = running.job
        pause_s = view.costs.pause_s(job, running.size, size) if self._looks_at_costs else 0.0
        if not pause_s:
            return True
        left_s = running.estimated_end_s - view.now_s
        return pause_s + left_s / job.estimate_on(running.size) * job.estimate_on(size) < left_s


def bounded_volumes(
    priorities: NDArray[np.float64],
    least: NDArray[np.int64],
    most: NDArray[np.int64],
    nodes: int,
    ids: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return fair volumes of `nodes` nodes within the bounds `least` and `most`, by job.

    The sum of `least` must not exceed `nodes`. A job whose share is below its smallest number gets this
    number. The other jobs share the remaining nodes, which lowers their shares, so no job rises above its
    smallest number again. If rounding to whole nodes hides whether a share is below the smallest number,
    parts of nodes are compared.
    """
    volumes = least.copy()
    sharing = np.arange(len(least))
    while sharing.size:
        left = nodes - int(least.sum()) + int(least[sharing].sum())
        p, low, high, names = priorities[sharing], least[sharing], most[sharing], ids[sharing]
        shares = fair_volumes(p, high, left, job_ids=names)
        enough = shares >= low
        if enough.all() and ((shares == low) & (low > 1)).any():
            enough = fair_volumes(p, high * _PARTS, left * _PARTS, job_ids=names) >= low * _PARTS
        if enough.all():
            volumes[sharing] = shares
            break
        sharing = sharing[enough]
    return volumes


def _priorities_of(text: str) -> dict[str, float]:
    """Parse priorities such as `debug:4/long:0.5`; return user or queue -> priority. Raises ValueError."""
    priorities: dict[str, float] = {}
    for item in filter(None, text.split("/")):
        name, _, number = item.rpartition(":")
        try:
            priorities[name] = float(number)
        except ValueError:
            raise ValueError(f"priorities has {item!r}, not a name and a number such as debug:4") from None
        if not MIN_PRIORITY**0.5 <= priorities[name] <= MAX_PRIORITY:
            raise ValueError(f"priorities has {item!r}, whose number is too large or not above 0")
    return priorities
