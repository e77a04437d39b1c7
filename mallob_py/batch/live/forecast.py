"""Forecasts: when a waiting job starts if all jobs take their estimated times.

Jobs mostly end sooner, and later jobs may overtake it, so this is present knowledge and no promise. Orders
count as carried out at once, although programs take a moment. Pure.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator

from mallob_py.batch.live.scheduler import Launch, LiveScheduler, OrderGrow, OrderShrink

#: most jobs that are copied, since no one should wait for a forecast
WAITING_MAX = 2000
_STEPS_MAX = 20_000
#: the most ends of other jobs in a forecast
_TOLD = 3


def outlook(job: int, scheduler: LiveScheduler, now_s: float) -> Iterator[str]:
    """Yield sentences on what must happen before a waiting job starts, and when that is."""
    before = sum(other.id < job for other in scheduler.waiting)
    yield f"{before} of the waiting jobs were submitted before it; the policy is {scheduler.policy.name}."
    ends = sorted((one.estimated_end_s, number, one.size) for number, one in scheduler.running.items())
    for end_s, number, size in ends[:_TOLD]:
        in_s = max(0.0, end_s - now_s)
        yield f"Job {number}, with {size} of the slots, ends in {in_s:.0f} s at the latest."
    if (start_s := start_of(job, scheduler, now_s)) is None:
        yield "When it starts cannot be told."
    else:
        yield f"It starts in {start_s - now_s:.0f} s if all jobs take the time that they ask for."


def start_of(job: int, scheduler: LiveScheduler, now_s: float) -> float | None:
    """Return the job's start on the scheduler's clock; None: unknown."""
    if len(scheduler.waiting) > WAITING_MAX:
        return None
    played = copy.deepcopy(scheduler)
    for _ in range(_STEPS_MAX):
        try:
            played.decide(now_s)
        except Exception:  # a policy of the user's own
            return None
        effects, played.effects = played.effects, []
        for effect in effects:
            match effect:
                case Launch(started) if started == job:
                    return now_s
                case OrderShrink(other, count):
                    played.released(other, played.running[other].nodes[-count:])
                case OrderGrow(other):
                    played.grown(other)
        if not effects:
            ends = ((one.estimated_end_s, number) for number, one in played.running.items())
            end_s, first = min(ends, default=(math.inf, 0))
            now_s = max(now_s, min(end_s, played.wake_s))
            if now_s == math.inf:
                return None
            if end_s <= now_s:
                played.ended(first)
    return None
