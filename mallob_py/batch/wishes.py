"""The answers to running jobs' wishes for other numbers of nodes, where a policy leaves them unanswered.

A policy may answer the wishes of its view itself. Unanswered wishes are granted after its decision, the
oldest first.

An evolving job's wish is a request. A request for fewer nodes is granted at once. A request for more nodes is
granted as a whole if these nodes are free and, by the estimates, the first waiting job is not delayed (EASY's
test for an overtaking job).

A malleable job's wish is the greatest number of nodes that the job has work for, and holds until its next
wish. The policy sees this bound (`bounded`) and may shrink the job like any malleable job. Jobs above their
wishes give back the nodes that the first waiting job lacks, but only if it can then start: otherwise they
would become slower for nothing. A job below its wish gets free nodes if no job waits, even under policies
that never resize jobs.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from mallob_py.batch.job import Job, Kind
from mallob_py.batch.policy import Resize, Running, View
from mallob_py.batch.shadow import shadow_of


def bounded(job: Job, wished: int, size: int) -> Job:
    """Return a job with a wish as policies see it: malleable, up to the greater of wish and `size`.

    A job that has released nodes below its smallest number may run on the nodes that it has left.
    """
    least, most = min(job.low, size), max(job.low, size, min(wished, job.high))
    return msgspec.structs.replace(job, kind=Kind.MALLEABLE, nodes_min=least, nodes_max=most)


def grants(view: View) -> Iterator[Resize]:
    """Yield a resize for each granted wish; the caller must update the view after each resize."""
    if view.room is not None:
        return
    for number, wanted in list(view.wishes.items()):
        running = view.running[number]
        if running.target is not None or running.mates or running.guest is not None:
            continue
        if running.job.kind is Kind.MOLDABLE:
            continue  # the job does not accept orders yet
        size = max(running.job.low, min(wanted, running.job.high))
        if running.job.is_malleable:
            size = _within(view, running, size)
        elif size > running.size and not _may_grow(view, running, size - running.size):
            continue
        if size != running.size:
            yield Resize(number, size)


def _within(view: View, running: Running, wished: int) -> int:
    """Return the number of nodes that a malleable job gets if its wish is for `wished` nodes."""
    if wished >= running.size:
        return running.size if view.queue else min(wished, running.size + view.free)
    lacking = _lacking(view)
    return max(wished, running.size - lacking) if 0 < lacking <= _spare(view) else running.size


def _lacking(view: View) -> int:
    """Return how many nodes the first waiting job lacks; nodes that jobs are leaving count as free."""
    if not view.queue:
        return 0
    targets = ((one.size, one.target) for one in view.running.values() if one.target is not None)
    return view.queue[0].low - view.free - sum(max(0, size - target) for size, target in targets)


def _spare(view: View) -> int:
    """Return how many nodes above their wishes malleable jobs have and can leave."""
    wishes = ((view.running[number], wished) for number, wished in view.wishes.items())
    able = ((one, wished) for one, wished in wishes if one.job.is_malleable and one.target is None)
    return sum(max(0, one.size - max(one.job.low, wished)) for one, wished in able)


def _may_grow(view: View, running: Running, more: int) -> bool:
    if more > view.free or not view.queue:
        return more <= view.free
    ends = ((end_s, one.freed) for end_s, _, one in view.ends)
    shadow_s, extra = shadow_of(ends, view.now_s, view.free, view.queue[0].low)
    return more <= extra or running.estimated_end_s <= shadow_s
