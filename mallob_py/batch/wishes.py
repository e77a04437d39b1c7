"""Evolving jobs' requests for other numbers of nodes: grants of requests that a policy leaves unanswered.

A policy may answer the wishes of its view itself. Unanswered wishes are granted after its decision, the
oldest first. A wish for fewer nodes is granted at once. A wish for more nodes is granted as a whole if they
are free and, by the estimates, the first waiting job is not delayed: EASY's test for an overtaking job.
"""

from __future__ import annotations

from collections.abc import Iterator

from mallob_py.batch.policy import Resize, Running, View
from mallob_py.batch.shadow import shadow_of


def grants(view: View) -> Iterator[Resize]:
    """Yield the granted wishes; the caller must update the view after each."""
    if view.room is not None:
        return
    for number, wanted in list(view.wishes.items()):
        running = view.running[number]
        if running.target is not None or running.mates or running.guest is not None:
            continue
        size = max(running.job.low, min(wanted, running.job.high))
        if size < running.size or (size > running.size and _may_grow(view, running, size - running.size)):
            yield Resize(number, size)


def _may_grow(view: View, running: Running, more: int) -> bool:
    if more > view.free or not view.queue:
        return more <= view.free
    ends = ((end_s, one.freed) for end_s, _, one in view.ends)
    shadow_s, extra = shadow_of(ends, view.now_s, view.free, view.queue[0].low)
    return more <= extra or running.estimated_end_s <= shadow_s
