"""The jobs of the service between their acceptance and their reply, and how many there are of which kind.

There may be a hundred thousand of them that wait. So little is kept of each, and nothing has to be counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from enum import Enum

from mallob_py.service.job_file import JobFile, identity_of


class JobState(Enum):
    #: waits for its arrival time, its dependencies or its turn as a suspect
    HELD = "held"
    #: waits for its turn, or until its user may have another job at work
    QUEUED = "queued"
    READING = "reading"
    SUBMITTED = "submitted"


class LiveJob:
    """What the service knows of it. Times in seconds on the rank's clock.

    `file` is None if it has to be read again; what is needed before that is kept beside it.
    """

    __slots__ = (
        "accepted_s",
        "application",
        "cpu_limit_s",
        "file",
        "is_done",
        "is_scheduled",
        "max_demand",
        "name",
        "parsed_bytes",
        "parsing_s",
        "priority",
        "reading_s",
        "since_s",
        "state",
        "user",
        "wallclock_limit_s",
    )

    def __init__(self, file: JobFile, now: float, since_s: float) -> None:
        """`since_s`: from when on its waiting counts."""
        self.user = file.user
        self.name = file.name
        self.application = file.application
        self.priority = file.priority
        self.max_demand = file.max_demand
        self.wallclock_limit_s = file.wallclock_limit_s
        self.cpu_limit_s = file.cpu_limit_s
        self.is_done = file.done
        #: whether it has had a worker
        self.is_scheduled = False
        self.file: JobFile | None = file
        #: what `file` counts with among those that are kept
        self.parsed_bytes = 0
        self.state = JobState.HELD
        self.accepted_s = now
        self.since_s = since_s
        self.reading_s = 0.0
        self.parsing_s = 0.0

    @property
    def identity(self) -> str:
        return identity_of(self.user, self.name)


class LiveJobs(Mapping[int, LiveJob]):
    """By internal id, in the order of acceptance."""

    def __init__(self) -> None:
        self._jobs: dict[int, LiveJob] = {}
        #: how many jobs are in each state, and each user has
        self.states: Counter[JobState] = Counter()
        self.users: Counter[str] = Counter()

    def __getitem__(self, job: int) -> LiveJob:
        return self._jobs[job]

    def __iter__(self) -> Iterator[int]:
        return iter(self._jobs)

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: int, live: LiveJob) -> None:
        self._jobs[job] = live
        self.states[live.state] += 1
        self.users[live.user] += 1

    def enter(self, job: int, state: JobState) -> None:
        live = self._jobs[job]
        self.states[live.state] -= 1
        self.states[state] += 1
        live.state = state

    def remove(self, job: int) -> LiveJob:
        live = self._jobs.pop(job)
        self.states[live.state] -= 1
        self.users[live.user] -= 1
        if not self.users[live.user]:
            del self.users[live.user]
        return live
