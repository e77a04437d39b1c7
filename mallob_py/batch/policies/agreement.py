"""Malleable jobs give nodes to waiting jobs by agreement: minAgree and its siblings (PECS 2023).

A decision has four steps. Waiting jobs whose agreed nodes are free start. EASY starts others on nodes without
agreement. For each remaining job, running malleable jobs are ordered to give all nodes that it needs, or
none; these nodes are agreed for it. Then malleable jobs grow on free nodes. Decisions fall at submissions,
ends, resize points, and ticks of 60 s. A job gets no further order until it has carried out its last one.

`size` says how many nodes jobs get: `min` starts jobs on their smallest number; jobs farthest above it shrink
first and grow last. `pref` does the same with the preferred number if possible; so does `keep`, but it orders
no job below its preferred number. `average` starts jobs on their smallest number, and gives and takes node by
node so that all jobs have the same share of their ranges. `nodes` says which nodes fulfil an agreement:
`agreed` (only the agreed ones), `steal` (an agreement swaps its busy nodes for free ones of other agreements
if it can then be fulfilled), `pool` (any free nodes).

`quirks="pecs23"` is the published program: its estimates are in flop, so no job overtakes the first one, and
at most one job per decision starts without an agreement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from mallob_py.batch.job import Job
from mallob_py.batch.policies.backfilling import Easy
from mallob_py.batch.policy import Action, Resize, Running, Start, View, Wake, check_choice
from mallob_py.batch.shadow import ends_of, shadow_of

TICK_S = 60.0
_QUIRKS = ("", "pecs23")
_SIZES = ("min", "pref", "keep", "average")
_FULFIL = ("agreed", "steal", "pool")
#: maps a job to a number of nodes in its range: `_least`, `_preferred` or `_most`
_Target = Callable[[Job], int]


class RigidEasy:
    """EASY for rigid jobs; with `quirks="pecs23"`, the published program, which has ticks."""

    wants_all_arrivals = True

    def __init__(self, quirks: str = "") -> None:
        self.name = "rigid-easy"
        self._without_estimates = _has_quirks(quirks)
        self._easy = Easy()
        self._ticks = _Ticks()

    def begin(self, nodes: int) -> None:
        self._easy.begin(nodes)
        self._ticks = _Ticks()

    def decide(self, view: View) -> Iterable[Action]:
        if not self._without_estimates:
            return self._easy.decide(view)
        actions: list[Action] = [Start(job.id, job.nodes) for job in view.queue[:1] if job.nodes <= view.free]
        if actions and len(view.queue) > len(actions):
            actions += self._ticks.next(view.now_s)
        return actions


class Agreement:
    """The agreement policies; see the module's docstring."""

    wants_all_arrivals = True
    wants_resize_points = True

    def __init__(self, size: str = "min", nodes: str = "agreed", quirks: str = "") -> None:
        check_choice("size", size, _SIZES)
        check_choice("nodes", nodes, _FULFIL)
        self.name = "agreement"
        self._size = size
        self._prefers = size in ("pref", "keep")
        self._nodes = nodes
        self._without_estimates = _has_quirks(quirks)
        self._ticks = _Ticks()
        #: waiting job -> nodes agreed for the job
        self._agreed: dict[int, set[int]] = {}
        #: node -> job for which the node is agreed
        self._owner: dict[int, int] = {}

    def begin(self, nodes: int) -> None:
        self._ticks = _Ticks()
        self._agreed, self._owner = {}, {}

    def decide(self, view: View) -> Sequence[Action]:
        actions = list[Action](self._starts_and_resizes(view))
        if not actions:
            return actions  # a decision at the next tick would have no actions either
        waits = len(view.queue) > sum(isinstance(action, Start) for action in actions)
        if waits or view.free:
            actions += self._ticks.next(view.now_s)
        return actions

    def _starts_and_resizes(self, view: View) -> Iterator[Action]:
        free = sorted(view.free_nodes)
        fulfilled = set[int]()
        if self._agreed and free:
            for number, nodes in self._fulfil(view.queue, free):
                fulfilled.add(number)
                yield Start(number, tuple(nodes))
        free = [node for node in free if node not in self._owner]
        waiting = [job for job in view.queue if job.id not in self._agreed and job.id not in fulfilled]
        if free and waiting:
            for job, size in self._overtaking(view, waiting, len(free)):
                yield Start(job.id, tuple(free[:size]))
                del free[:size]
                waiting.remove(job)
        if not free and not waiting:
            return
        plans = [
            _Plan(running)
            for _, running in sorted(view.running.items())
            if running.target is None and running.job.is_malleable
        ]
        if not plans:
            return
        spare = dict[_Target, int]()
        for job in waiting:
            self._agree(job, plans, spare)
        if free:
            self._grow(plans, free)
        for plan in plans:
            if plan.changed:
                yield Resize(plan.job.id, tuple(plan.nodes))

    # --- agreements ---------------------------------------------------------------------------

    def _fulfil(self, queue: Sequence[Job], free: list[int]) -> Iterator[tuple[int, list[int]]]:
        """Yield (job, nodes) for each waiting job that starts by agreement; remove the nodes from `free`."""
        agreed, owner = self._agreed, self._owner
        for job in [job.id for job in queue if job.id in agreed]:
            nodes = self._choose(job, free)
            if nodes is None:
                continue
            for node in nodes:
                # For each taken node that is agreed for no job, the node agreed last loses its agreement.
                if owner.pop(node, None) is None:
                    owner.popitem()
            del agreed[job]
            taken = set(nodes)
            free[:] = [node for node in free if node not in taken]
            yield job, nodes

    def _choose(self, job: int, free: list[int]) -> list[int] | None:
        """Return free nodes on which a job can start by its agreement; None: the job must wait."""
        wanted, owner = self._agreed[job], self._owner
        if self._nodes == "agreed":
            nodes = [node for node in free if owner.get(node) == job]
            return nodes if len(nodes) == len(wanted) else None
        with_agreement = [node for node in free if node in owner]
        if self._nodes == "pool":
            if len(free) < len(wanted):
                return None
            return [*with_agreement, *(node for node in free if node not in owner)][: len(wanted)]
        if len(with_agreement) < len(wanted):
            return None
        busy = sorted(wanted.difference(free))
        others = [node for node in with_agreement if owner[node] != job]
        for mine, other in zip(busy, others, strict=False):
            loser = owner[other]
            wanted.remove(mine)
            wanted.add(other)
            self._agreed[loser].remove(other)
            self._agreed[loser].add(mine)
            owner[mine], owner[other] = loser, job
        return sorted(wanted)

    def _agree(self, job: Job, plans: list[_Plan], spare: dict[_Target, int]) -> None:
        """Order running jobs to give a job the nodes that it needs, if they can.

        `spare` is a cache: rule for how many nodes each running job keeps -> number of nodes that all can
        give.
        """
        for need, keep in self._demands(job):
            if keep not in spare:
                spare[keep] = sum(max(0, len(plan.nodes) - keep(plan.job)) for plan in plans)
            if spare[keep] < need:
                continue
            spare.clear()
            given = list[int]()
            for plan, count in self._givers(plans, need, keep):
                given += plan.give(keep(plan.job), count)
            self._agreed[job.id] = set(given)
            self._owner.update(dict.fromkeys(given, job.id))
            return

    def _demands(self, job: Job) -> Iterator[tuple[int, _Target]]:
        """Yield how many nodes to request, and how many each running job then keeps; the best pair first."""
        if self._prefers:
            yield job.nodes, _preferred
            yield job.low, _preferred
        if self._size != "keep":
            yield job.low, _least

    def _givers(self, plans: list[_Plan], need: int, keep: _Target) -> Iterator[tuple[_Plan, int]]:
        """Yield the plans of the jobs that give nodes, each with the number of nodes that the job gives."""
        if self._size != "average":
            target = _preferred if self._prefers else _least
            for plan in sorted(plans, key=lambda plan: target(plan.job) - len(plan.nodes)):
                count = min(need, len(plan.nodes) - keep(plan.job))
                if count > 0:
                    yield plan, count
                    need -= count
            return
        giving = dict.fromkeys(plans, 0)
        # The paper counts given nodes as if they had been received.
        sign = 1 if self._without_estimates else -1
        for _ in range(need):
            able = [plan for plan in plans if len(plan.nodes) - giving[plan] > keep(plan.job)]
            giving[max(able, key=lambda plan: plan.share(sign * giving[plan]))] += 1
        yield from ((plan, count) for plan, count in giving.items() if count)

    # --- free nodes -------------------------------------------------------------------------------

    def _overtaking(self, view: View, waiting: list[Job], free: int) -> list[tuple[Job, int]]:
        """Return the waiting jobs that start without an agreement, each with its number of nodes."""
        if self._without_estimates:
            head = waiting[0]
            return [(head, min(head.nodes, free) if self._prefers else head.low)] if head.low <= free else []
        starts = list[tuple[Job, int]]()
        shadow_s, extra, blocked = math.inf, 0, False
        for job in waiting:
            if not free:
                break
            size = min(job.nodes, free) if self._prefers else job.low
            if job.low > free:
                if not blocked:
                    blocked = True
                    shadow_s, extra = shadow_of(ends_of(view), view.now_s, free, job.low, starts)
                continue
            if blocked and view.now_s + job.estimate_on(size) > shadow_s:
                size = min(size, extra)
                if size < job.low:
                    continue
                extra -= size
            starts.append((job, size))
            free -= size
        return starts

    def _grow(self, plans: list[_Plan], free: list[int]) -> None:
        if self._size == "average":
            self._grow_evenly(plans, free)
            return
        for target in (_preferred, _most) if self._prefers else (_most,):
            base = _preferred if self._prefers else _least
            for plan in sorted(plans, key=lambda plan: len(plan.nodes) - base(plan.job)):
                plan.take(free, target(plan.job) - len(plan.nodes))

    def _grow_evenly(self, plans: list[_Plan], free: list[int]) -> None:
        getting = dict.fromkeys(plans, 0)
        for _ in range(len(free)):
            if self._without_estimates:
                # The paper counts nodes to be received as if they had been given.
                plan = min(plans, key=lambda plan: plan.share(-getting[plan]))
                if len(plan.nodes) == plan.job.high:
                    break
            else:
                able = [plan for plan in plans if len(plan.nodes) + getting[plan] < plan.job.high]
                if not able:
                    break
                plan = min(able, key=lambda plan: plan.share(getting[plan]))
            getting[plan] += 1
        for plan, count in getting.items():
            plan.take(free, min(count, plan.job.high - len(plan.nodes)))


class _Plan:
    """The planned nodes of a running job."""

    __slots__ = ("changed", "job", "nodes")

    def __init__(self, running: Running) -> None:
        self.job = running.job
        self.nodes = running.nodes
        self.changed = False

    def give(self, keep: int, count: int) -> list[int]:
        given = self.nodes[keep : keep + count]
        self.nodes = self.nodes[:keep] + self.nodes[keep + count :]
        self.changed = True
        return given

    def take(self, free: list[int], count: int) -> None:
        if count > 0 and free:
            self.nodes = self.nodes + free[:count]
            del free[:count]
            self.changed = True

    def share(self, more: int) -> float:
        """Return which share of its range the job has, with `more` further nodes."""
        low, high = self.job.low, self.job.high
        return (len(self.nodes) + more - low) / (high - low) if high > low else math.inf


class _Ticks:
    """Makes wakes at multiples of `TICK_S`."""

    def __init__(self) -> None:
        self._next_s = -math.inf

    def next(self, now_s: float) -> Iterator[Wake]:
        if now_s >= self._next_s:
            self._next_s = (now_s // TICK_S + 1.0) * TICK_S
            yield Wake(self._next_s)


def _least(job: Job) -> int:
    return job.low


def _preferred(job: Job) -> int:
    return min(job.nodes, job.high)


def _most(job: Job) -> int:
    return job.high


def _has_quirks(quirks: str) -> bool:
    if quirks not in _QUIRKS:
        raise ValueError(f"quirks is {quirks!r}, not pecs23")
    return quirks == "pecs23"
