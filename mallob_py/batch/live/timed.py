"""A program that works by waiting for a computed time: `python -m mallob_py.batch.live.timed RUN_S NODES`.

It takes RUN_S seconds on NODES slots, twice as long on half of them, and accepts orders. Each slot has a
process that only sleeps, so one core suffices for many slots. It prints its events, which `told` parses.
"""

from __future__ import annotations

import enum
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

import msgspec

from mallob_py import malleable


class Event(enum.Enum):
    """The events that the program reports."""

    WORKS = "works"
    READY = "ready"
    GROWS = "grows"
    SHRINKS = "shrinks"
    HAS_SHRUNK = "has shrunk"
    DONE = "done"


class Told(msgspec.Struct, frozen=True):
    """An event: its time [s since the host's boot], and the program's number of slots after it."""

    at_s: float
    slots: int
    event: Event


def told(output: str) -> list[Told]:
    """Parse the events in the output of a timed program. Raises ValueError for any other output."""
    parts = [line.split(" ", 2) for line in output.splitlines()]
    return [Told(float(at_s), int(slots), Event(event)) for at_s, slots, event in parts]


def now_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class _Work:
    """The handler of orders. Work is counted in slot-seconds."""

    def __init__(self, work_s: float) -> None:
        self.processes = malleable.PlaceProcesses(
            lambda place: subprocess.Popen(["sleep", "infinity"], stdin=subprocess.DEVNULL)
        )
        self._changed = threading.Condition()
        self._left_s = work_s
        self._slots = len(self.processes.places)
        self._since_s = now_s()
        self._tell(self._since_s, Event.WORKS)

    def tell(self, event: Event) -> None:
        self._tell(now_s(), event)

    def _tell(self, at_s: float, event: Event) -> None:
        print(at_s, self._slots, event.value, flush=True)

    def finish(self) -> None:
        with self._changed:
            while (left_s := self._bring_up_to_date()) > 0.0:
                self._changed.wait(left_s / self._slots)

    def _bring_up_to_date(self) -> float:
        now = now_s()
        self._left_s -= (now - self._since_s) * self._slots
        self._since_s = now
        return self._left_s

    def _work_on(self, slots: int, event: Event) -> None:
        with self._changed:
            self._bring_up_to_date()
            self._slots = slots
            self._tell(self._since_s, event)
            self._changed.notify()

    def pre_shrink(self, count: int) -> Sequence[malleable.Place]:
        self._work_on(self._slots - count, Event.SHRINKS)
        return self.processes.places[-count:]

    def post_shrink(self, now: int, removed: Sequence[malleable.Place]) -> None:
        self.tell(Event.HAS_SHRUNK)

    def pre_grow(self, count: int) -> None:
        self.tell(Event.GROWS)

    def post_grow(
        self, now: int, continued: Sequence[malleable.Place], added: Sequence[malleable.Place]
    ) -> None:
        self._work_on(now, Event.WORKS)


def main() -> int:
    run_s, nodes = float(sys.argv[1]), int(sys.argv[2])
    work = _Work(run_s * nodes)
    if malleable.define_malleable_handler(work, work.processes):
        work.tell(Event.READY)
    work.finish()
    malleable.disable_malleable_handler()
    work.tell(Event.DONE)
    work.processes.end(work.processes.places)
    return 0


if __name__ == "__main__":
    sys.exit(main())
