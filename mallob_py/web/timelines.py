"""The course of each job: its volumes, states and interim results over time, as successive statuses show
them.

Bounded in jobs and in steps per job. A long course is thinned: of each two steps, the later one is kept. A
course begins when the web server first sees the job with a worker or a turn.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from mallob_py.protocol.interim import Number
from mallob_py.service.telemetry.status import ServiceStatus

JOBS_MAX = 1000
STEPS_MAX = 400


class VolumeStep(msgspec.Struct, frozen=True):
    """A job's volume from `time` (since 1970) on; for a job with turns, a mean. `state`: "" once it ended."""

    time: float
    volume: float
    state: str


class InterimStep(msgspec.Struct, frozen=True):
    """A job's best value and bound from `time` (since 1970) on."""

    time: float
    value: Number | None
    bound: Number | None


class Timeline(msgspec.Struct):
    """The course of a job, oldest steps first. `label` and `minimizes`: see `JobInterim`."""

    volumes: list[VolumeStep] = []
    interim: list[InterimStep] = []
    label: str = ""
    minimizes: bool = False


_Step = TypeVar("_Step", VolumeStep, InterimStep)


class Timelines:
    """The courses of the jobs seen last. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        #: number of a job -> its course; the job not seen for longest comes first
        self._courses: dict[int, Timeline] = {}
        self._live: set[int] = set()

    def note(self, status: ServiceStatus, volumes: Mapping[int, float]) -> None:
        """Add a status, which must be later than the last one; `volumes`: number of a job -> its volume."""
        with self._mutex:
            before, self._live = self._live, set()
            for job in status.jobs:
                course = self._courses.pop(job.id, None)
                if course is None and not (job.volume or job.share):
                    continue
                course = self._courses[job.id] = course or Timeline()
                self._live.add(job.id)
                _add(course.volumes, VolumeStep(status.time, volumes[job.id], job.state))
                if job.interim is not None:
                    course.label, course.minimizes = job.interim.label, job.interim.minimizes
                    value = job.interim.value if job.interim.label else None
                    _add(course.interim, InterimStep(status.time, value, job.interim.bound))
            for number in before - self._live:
                if number in self._courses:
                    _add(self._courses[number].volumes, VolumeStep(status.time, 0, ""))
            while len(self._courses) > JOBS_MAX:
                del self._courses[next(iter(self._courses))]

    def of(self, number: int) -> Timeline:
        """Return the course of a job; an empty course for an unknown job."""
        with self._mutex:
            course = self._courses.get(number, Timeline())
            volumes, interim = list(course.volumes), list(course.interim)  # copies, since the lists grow
            return msgspec.structs.replace(course, volumes=volumes, interim=interim)


def _add(steps: list[_Step], step: _Step) -> None:
    """Add a step unless it changes nothing."""
    if steps and msgspec.structs.replace(steps[-1], time=step.time) == step:
        return
    steps.append(step)
    if len(steps) > STEPS_MAX:
        del steps[1:-1:2]
