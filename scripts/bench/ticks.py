"""TICKS: a job of known length, whose process notes when it runs; for `real_shares.py`.

Its configuration: `seconds` that it takes on one worker (endless if missing), whether it `burns` a core or
only holds its worker, and a `log`, to which it appends a line whenever it has stood still: process, begin and
end of the time before, in seconds of the monotonic clock. It begins anew with each process.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from mallob_py.kit import Application, JobInput, Payload, Result, WorkerContext

#: whoever has not run for longer was stopped, or had no core
_STOPPED_S = 0.001
_NAP_S = 0.001
#: of a nap, whatever it has taken, at most so much counts
_COUNTS_S = 0.005


class TicksApplication(Application):
    """Its root works, other workers wait."""

    name: ClassVar[str] = "TICKS"
    takes_input: ClassVar[bool] = False
    result_strings: ClassVar[Mapping[int, str]] = {10: "DONE"}

    def read(self, job: JobInput) -> Payload:
        return {}

    def run(self, context: WorkerContext) -> Result:
        if context.index > 0:
            context.park()
        context.set_demand(1)
        seconds = float(context.configuration.get("seconds", math.inf))
        if context.configuration.get("burns"):
            _burn(seconds, Path(context.configuration["log"]) if "log" in context.configuration else None)
        else:
            had_s, last_s = 0.0, time.monotonic()
            while had_s < seconds:
                time.sleep(min(_NAP_S, max(0.0, seconds - had_s)))
                now_s = time.monotonic()
                had_s += min(now_s - last_s, _COUNTS_S)
                last_s = now_s
        return Result(10, [])


def _burn(seconds: float, log: Path | None) -> None:
    began_s = last_s = time.monotonic()
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        now_s = time.monotonic()
        if now_s - last_s > _STOPPED_S and log is not None:
            with log.open("a") as file:
                file.write(f"{os.getpid()} {began_s!r} {last_s!r}\n")
            began_s = now_s
        last_s = now_s
