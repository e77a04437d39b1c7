"""The live jobs of a client: one record of each, from acceptance to reply.

There may be a hundred thousand of them that wait. So little is kept of each, and nothing has to be counted.
The record's `state` says where the job is in its life (`protocol/job_life.py`), its `seat` which place it has
in line or at work (`line.py`).
"""

from __future__ import annotations

import sys
from collections import Counter
from enum import Enum

from mallob_py.protocol.effects import Spent
from mallob_py.protocol.job_life import Happening, JobState, follow
from mallob_py.protocol.job_terms import JobTerms
from mallob_py.protocol.messages import Description
from mallob_py.service.jobs.job_file import JobFile


class Seat(Enum):
    """The place of a job in line or at work."""

    #: it waits
    LINE = "in line"
    #: one of the window's
    WINDOW = "window"
    #: in the window; it has had its turn, and is to be given up when another job waits
    DUE = "due"
    #: its input does not come
    ASIDE = "aside"
    RESIDENT = "resident"
    #: a resident's, and it cannot begin anew
    LASTING = "lasting"
    #: one of the places of jobs that were given up before
    EXPRESS = "express"
    EXPRESS_DUE = "express, due"


class LiveJob:
    """A live job, as the service knows it. Times in seconds on the rank's clock.

    `file` is None if it has to be read again; what is needed before that is kept beside it.
    """

    __slots__ = (
        "accepted_s",
        "application",
        "description",
        "file",
        "group",
        "id",
        "identity",
        "is_done",
        "is_incremental",
        "is_large",
        "is_sought",
        "last_turn_s",
        "merit",
        "parsed_bytes",
        "parsing_s",
        "reading_s",
        "seat",
        "since_s",
        "spent",
        "standing",
        "state",
        "terms",
        "user",
    )

    def __init__(self, job: int, file: JobFile, now: float, since_s: float) -> None:
        """`since_s`: from when on its waiting counts."""
        self.id = job
        self.identity = file.identity
        # Of a hundred thousand jobs most have the same ones.
        self.user = sys.intern(file.user)
        self.application = sys.intern(file.application)
        self.group = sys.intern(file.group)
        self.terms = file.terms
        self.is_done = file.done
        self.is_incremental = file.incremental
        #: whether its file is to be parsed elsewhere
        self.is_large = False
        #: whether a PE has been sought for it
        self.is_sought = False
        self.file: JobFile | None = file
        #: what `file` counts with among those that are kept
        self.parsed_bytes = 0
        self.state = JobState.HELD
        self.accepted_s = now
        self.since_s = since_s
        #: None: it has not come to the line
        self.seat: Seat | None = None
        #: how good it is beside other jobs: by itself, and at work beside the other jobs of its user
        self.standing = self.merit = 0.0
        #: what it had before it was given up for a while, and how much of that the last time
        self.spent: Spent | None = None
        self.last_turn_s = 0.0
        #: of a job that has been read, and is held
        self.description: Description | None = None
        self.reading_s = 0.0
        self.parsing_s = 0.0

    @property
    def name(self) -> str:
        return self.identity[len(self.user) + 1 :]

    @property
    def known_file(self) -> JobFile:
        """Return the file of a job that has begun or ends."""
        assert self.file is not None
        return self.file


class LiveGroup:
    """The live jobs of one group: how many there are, and since when there is always one of them."""

    __slots__ = ("began_s", "jobs")

    def __init__(self, began_s: float) -> None:
        self.jobs = 0
        self.began_s = began_s


class LiveJobs(dict[int, LiveJob]):
    """By internal id, in the order of acceptance. To be changed by `add`, `happens` and `remove` only."""

    def __init__(self) -> None:
        super().__init__()
        #: what the files that are kept take in memory, roughly
        self.parsed_bytes = 0
        #: of the last job that was added: the next one mostly has the same
        self._terms: JobTerms | None = None
        #: how many jobs are in each state, and each user has
        self.states: Counter[JobState] = Counter()
        self.users: Counter[str] = Counter()
        #: by user and name, in the order in which they began
        self.groups: dict[tuple[str, str], LiveGroup] = {}

    def add(self, live: LiveJob) -> None:
        if live.terms == self._terms:
            live.terms = self._terms
        self._terms = live.terms
        self[live.id] = live
        self.parsed_bytes += live.parsed_bytes
        self.states[live.state] += 1
        self.users[live.user] += 1
        if live.group:
            self.groups.setdefault((live.user, live.group), LiveGroup(live.accepted_s)).jobs += 1

    def happens(self, live: LiveJob, what: Happening) -> None:
        """Take a job where the table of its life says."""
        self.states[live.state] -= 1
        live.state = follow(live.id, live.state, what)
        self.states[live.state] += 1

    def remove(self, job: int) -> LiveJob:
        live = self.pop(job)
        self.parsed_bytes -= live.parsed_bytes
        self.states[live.state] -= 1
        self.users[live.user] -= 1
        if not self.users[live.user]:
            del self.users[live.user]
        if live.group:
            group = self.groups[live.user, live.group]
            group.jobs -= 1
            if not group.jobs:
                del self.groups[live.user, live.group]
        return live
