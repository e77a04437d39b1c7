"""Forecasts: when a waiting job will start if all jobs run as long as they have requested.

A forecast is no promise: most jobs end sooner, and jobs submitted later may overtake the job. It assumes that
programs carry out orders at once. Pure.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator

from mallob_py.batch.live.scheduler import Launch, LiveScheduler, OrderGrow, OrderShrink

#: the greatest number of waiting jobs for which a forecast is made: a longer queue would take too long
WAITING_MAX = 2000
_STEPS_MAX = 20_000
#: the greatest number of other jobs whose ends a forecast names
_TOLD = 3


def outlook(job: int, scheduler: LiveScheduler, now_s: float) -> Iterator[str]:
    """Yield sentences on what must happen before a waiting job starts, and on when it will start."""
    before = sum(other.id < job for other in scheduler.waiting)
    yield f"{before} of the waiting jobs were submitted before it; the policy is {scheduler.policy.name}."
    ends = sorted((one.estimated_end_s, number, one.size) for number, one in scheduler.running.items())
    for end_s, number, size in ends[:_TOLD]:
        in_s = max(0.0, end_s - now_s)
        yield f"Job {number}, with {size} of the slots, ends in {in_s:.0f} s at the latest."
    if (start_s := start_of(job, scheduler, now_s)) is None:
        yield "When it will start is not known."
    else:
        yield f"It starts in {start_s - now_s:.0f} s if all jobs take the time that they ask for."


def start_of(job: int, scheduler: LiveScheduler, now_s: float) -> float | None:
    """Return the time [s] on the scheduler's clock at which a job will start; None: unknown."""
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
            ends = {number: one.estimated_end_s for number, one in played.running.items()}
            now_s = max(now_s, min([*ends.values(), played.wake_s]))
            if now_s == math.inf:
                return None
            for number, end_s in ends.items():  # a job left running now would count as overdue
                if end_s <= now_s:
                    played.ended(number)
    return None
