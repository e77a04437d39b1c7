"""MEBF: EASY backfilling that shrinks malleable jobs when nothing is free and expands them when no job waits.

Source: "Malleable backfilling" with the policies Handoff, Spare and Intensive. Our copy of the paper lacks
the pseudo-code, so this module follows the text. At each decision:

1. Jobs start in the order of arrival: on their preferred number of nodes if enough are free, else on all free
   nodes if these are at least the job's smallest number. The first job that cannot start is the head.
2. If no job waits: *expand*. Free nodes go to the most scalable jobs first. A job gets all further nodes that
   it can use if they are more than `ratio` times its nodes: 1 (handoff), `spare` (spare), 0 (intensive). Of
   the free nodes and the nodes that jobs have beyond their preferred number, Spare keeps the part `kept` free
   for jobs to come; the paper does not say which part.
3. If no node is free: *shrink*. Jobs that were never resized, the least scalable first, give floor(`share` n)
   of their n nodes but keep their smallest number, until the head can start; then the decision begins again.
4. If too few nodes are free for the head: other jobs start that do not delay it, as in EASY. If there are
   none, the nodes stay free (`gaps=basic`), or running jobs expand into them (expand), or shrink as in 3
   (shrink).

A resize must be feasible: the job's remaining time is at least `theta` of its run time as estimated at its
start, and with the costs of the resize, its run time will be at most `gamma` times this estimate. The smaller
the loss of a job's speedup model, the more scalable is the job.
"""

from __future__ import annotations

import enum
import math
from bisect import bisect_left, insort
from collections.abc import Generator, Iterable, Iterator
from typing import TypeVar

from mallob_py.batch.job import Job
from mallob_py.batch.policy import Action, Resize, Running, Start, View
from mallob_py.batch.shadow import ends_of, shadow_of


class Variant(enum.Enum):
    """The number of additional nodes above which expanding a job is worth while."""

    HANDOFF = "handoff"
    SPARE = "spare"
    INTENSIVE = "intensive"


class Gaps(enum.Enum):
    """The use of free nodes that are too few for the queue's head, when no other job can start on them."""

    BASIC = "basic"
    EXPAND = "expand"
    SHRINK = "shrink"


_Choice = TypeVar("_Choice", bound=enum.Enum)
#: loss of the speedup, order of start, job, run time [s] as estimated at its start
_Candidate = tuple[float, int, Running, float]


class Mebf:
    """The MEBF policy; see the module's docstring. `extra`: whether EASY's extra nodes may be used."""

    wants_all_arrivals = True

    def __init__(
        self,
        variant: str = "handoff",
        gaps: str = "basic",
        theta: float = 0.5,
        gamma: float = 2.0,
        share: float = 0.4,
        spare: float = 0.5,
        kept: float = 0.5,
        extra: bool = True,
    ) -> None:
        if not (0.0 <= share <= 1.0 and 0.0 <= kept <= 1.0 and theta >= 0.0 < gamma and spare >= 0.0):
            raise ValueError("share and kept must be from 0 to 1, theta and spare 0 or more, gamma above 0")
        self.name = "mebf"
        chosen = _choice(Variant, "variant", variant)
        self._ratio = {Variant.HANDOFF: 1.0, Variant.SPARE: spare, Variant.INTENSIVE: 0.0}[chosen]
        self._kept = kept if chosen is Variant.SPARE else 0.0
        self._gaps = _choice(Gaps, "gaps", gaps)
        self._theta = theta
        self._gamma = gamma
        self._share = share
        self._uses_extra = extra

    def warning(self, jobs: Iterable[Job]) -> str | None:
        """Return why no job can be expanded beyond its preferred number of nodes; None: a job can."""
        most = max((job.high / job.nodes for job in jobs if job.is_malleable), default=math.inf)
        if most > 1.0 + self._ratio:
            return None
        need = f"more than {1.0 + self._ratio:g} times their preferred nodes"
        return f"it expands jobs to {need}; no job can have more than {most:g} times (see --malleable-range)"

    def begin(self, nodes: int) -> None:
        self._is_new = True
        #: running malleable jobs that may still be resized, the most scalable first
        self._candidates: list[_Candidate] = []
        #: running jobs that were ordered to shrink and have not done so yet
        self._shrinking: list[Running] = []
        #: the queue's head and the number of free nodes when the jobs behind the head were last considered
        self._head, self._free = -1, 0
        #: shadow time [s] and extra nodes of the queue's head, as in EASY; None: not computed yet
        self._shadow: tuple[float, int] | None = None

    def decide(self, view: View) -> Iterable[Action]:
        if self._is_new:
            self._is_new = False
            for running in view.running.values():
                self._consider(running.job, running)
        if not view.queue and not view.free:
            return ()
        # `_seen` must read the view before the first action, which resets `arrived` and `ended`.
        return self._actions(view, self._seen(view))

    def _actions(self, view: View, seen: int) -> Iterator[Action]:
        while True:
            yield from self._start_in_order(view)
            if not view.queue:
                yield from self._expand(view)
                return
            if view.free:
                started = yield from self._backfill(view, seen)
                if started or self._gaps is Gaps.BASIC:
                    return
                if self._gaps is Gaps.EXPAND:
                    yield from self._expand(view)
                    return
            if not (yield from self._shrink(view)):
                return
            seen = 0
            self._head = -1

    def _seen(self, view: View) -> int:
        """Return how many waiting jobs were considered before, with nothing changed for them since."""
        unchanged = not view.ended and view.free == self._free
        if not unchanged or not view.queue or view.queue[0].id != self._head:
            self._head = -1
            return 0
        return len(view.queue) - view.arrived

    # --- starts -------------------------------------------------------------------------------

    def _start_in_order(self, view: View) -> Iterator[Action]:
        while view.queue and (size := _size(view.queue[0], view.free)):
            yield from self._start(view.queue[0], size, view)

    def _start(self, job: Job, size: int, view: View) -> Iterator[Action]:
        yield Start(job.id, size)
        self._consider(job, view.running[job.id])

    def _consider(self, job: Job, running: Running) -> None:
        if job.low < job.high:
            estimate_s = job.estimate_on(running.size)
            insort(self._candidates, (job.speedup.loss, running.order, running, estimate_s))

    def _backfill(self, view: View, seen: int) -> Generator[Action, None, bool]:
        """Start jobs that do not delay the queue's head; return whether a job has started."""
        head, started = view.queue[0], False
        if head.id != self._head:
            self._head, self._shadow = head.id, None
        self._free = view.free
        for job in view.queue[max(1, seen) :]:
            if not view.free:
                break
            size = _size(job, view.free)
            if not size:
                continue
            if self._shadow is None:
                self._shadow = shadow_of(ends_of(view), view.now_s, view.free, head.low)
            shadow_s, extra = self._shadow
            if view.now_s + job.estimate_on(size) > shadow_s:
                if not self._uses_extra or size > extra:
                    continue
                self._shadow = (shadow_s, extra - size)
            yield from self._start(job, size, view)
            started = True
        return started

    # --- resizes ------------------------------------------------------------------------------

    def _expand(self, view: View) -> Iterator[Action]:
        if not view.free:
            return
        self._forget_hopeless(view)
        kept = self._kept_free(view)
        for _, _, running, static_s in self._candidates:
            if view.free <= kept:
                return
            size = running.size
            gain = min(view.free - kept, running.job.high - size)
            if 0 < gain > self._ratio * size and self._is_feasible(running, size + gain, static_s, view):
                yield Resize(running.job.id, size + gain)

    def _kept_free(self, view: View) -> int:
        if not self._kept:
            return 0
        lent = sum(max(0, one.size - one.job.nodes) for one in view.running.values() if one.job.is_malleable)
        return math.ceil(self._kept * (view.free + lent))

    def _shrink(self, view: View) -> Generator[Action, None, bool]:
        """Order running jobs to give nodes to the queue's head; return whether a job gets an order."""
        self._forget_hopeless(view)
        self._shrinking = [one for one in self._shrinking if one.target is not None]
        need = view.queue[0].low - view.free - sum(one.size - (one.target or 0) for one in self._shrinking)
        shrunk = False
        for _, _, running, static_s in self._least_scalable_first():
            if need <= 0:
                break
            size = running.size
            given = min(int(self._share * size), size - running.job.low)
            if given <= 0 or running.resized_s is not None:
                continue
            if self._is_feasible(running, size - given, static_s, view):
                yield Resize(running.job.id, size - given)
                if running.target is not None:
                    self._shrinking.append(running)
                elif running.size == size:
                    continue  # the job reaches no further resize point
                need -= given
                shrunk = True
        return shrunk

    def _least_scalable_first(self) -> Iterator[_Candidate]:
        """Yield the candidates, the least scalable first; at equal loss, in the order of starts."""
        end = len(self._candidates)
        while end:
            begin = bisect_left(self._candidates, (self._candidates[end - 1][0],))
            yield from self._candidates[begin:end]
            end = begin

    def _forget_hopeless(self, view: View) -> None:
        """Remove candidates that have ended or have too little time left for a resize."""
        now, theta, running = view.now_s, self._theta, view.running
        self._candidates = [
            one
            for one in self._candidates
            if one[2].job.id in running
            and (one[2].estimated_end_s - now >= theta * one[3] or one[2].target is not None)
        ]

    def _is_feasible(self, running: Running, size: int, static_s: float, view: View) -> bool:
        job, left_s = running.job, running.estimated_end_s - view.now_s
        if not job.is_malleable or running.target is not None or left_s < self._theta * static_s:
            return False
        after_s = left_s * job.estimate_on(size) / job.estimate_on(running.size)
        after_s += view.costs.pause_s(job, running.size, size)
        return view.now_s - running.start_s + after_s <= self._gamma * static_s


def _size(job: Job, free: int) -> int:
    """Return the number of nodes that a job starts on; 0: the job cannot start."""
    if job.nodes <= free:
        return job.nodes
    return free if free >= job.low else 0


def _choice(choices: type[_Choice], setting: str, value: str) -> _Choice:
    try:
        return choices(value)
    except ValueError:
        known = ", ".join(str(one.value) for one in choices)
        raise ValueError(f"{setting} is {value!r}, not one of {known}") from None
