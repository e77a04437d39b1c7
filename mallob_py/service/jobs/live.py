"""The live jobs of a client: one record for each, from acceptance to reply.

A hundred thousand jobs may wait, so records are small, and counts of jobs are kept, not computed anew. A
record's `state` is the job's place in its life (`protocol/job_life.py`), its `seat` the place in line or at
work (`line.py`).
"""

from __future__ import annotations

import heapq
import sys
import zlib
from collections import Counter
from enum import Enum
from typing import Any

from mallob_py.protocol.effects import Spent
from mallob_py.protocol.job_life import Happening, JobState, follow
from mallob_py.protocol.job_terms import JobTerms
from mallob_py.protocol.messages import Description
from mallob_py.service.jobs.job_file import JobFile

#: number of entries of ended jobs up to which a heap of deadlines is left as it is
_ENDED_MAX = 64


class Seat(Enum):
    """The place of a job in line or at work."""

    #: the job waits
    LINE = "in line"
    #: the job is at work in a place of the window
    WINDOW = "window"
    #: the job has had its turn, and is at work in a place of the window until another job waits
    DUE = "due"
    #: the job is at work without a place, since its input stalls
    ASIDE = "aside"
    RESIDENT = "resident"
    #: the job keeps its process between turns, and cannot begin anew
    LASTING = "lasting"
    #: the job is at work in a place for jobs that were given up before
    EXPRESS = "express"
    EXPRESS_DUE = "express, due"


class LiveJob:
    """A live job, as the service knows it. Times in seconds on the rank's clock.

    `file` is None if the job file must be read again; fields needed meanwhile are attributes here.
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
        """`since_s`: the time from which the job's waiting counts."""
        self.id = job
        self.identity = file.identity
        # Interned, since even a hundred thousand jobs usually have few users.
        self.user = sys.intern(file.user)
        self.application = sys.intern(file.application)
        self.group = sys.intern(file.group)
        self.terms = file.terms
        self.is_done = file.done
        self.is_incremental = file.incremental
        #: whether a PE has been sought for the job
        self.is_sought = False
        self.file: JobFile | None = file
        #: rough memory of `file`, if `file` is kept
        self.parsed_bytes = 0
        self.state = JobState.HELD
        self.accepted_s = now
        self.since_s = since_s
        #: the job's place in line or at work; None: it is not yet in line
        self.seat: Seat | None = None
        #: the job's worth in line: by itself, and with regard to its user's jobs at work
        self.standing = self.merit = 0.0
        #: work before the job was last given up, and the PE-seconds of its last turn
        self.spent: Spent | None = None
        self.last_turn_s = 0.0
        #: the job's description, while the job waits for a lasting place after its input was read
        self.description: Description | None = None
        self.reading_s = 0.0
        self.parsing_s = 0.0

    def is_of(self, file: JobFile) -> bool:
        """Tell whether a file that was read again still describes this job; its input may have changed."""
        what = (file.identity, file.user, file.application, file.group, file.terms)
        known = (self.identity, self.user, self.application, self.group, self.terms)
        return what == known and (file.done, file.incremental) == (self.is_done, self.is_incremental)

    @property
    def name(self) -> str:
        return self.identity[len(self.user) + 1 :]

    @property
    def known_file(self) -> JobFile:
        """Return the file of a job that has begun or ends."""
        assert self.file is not None
        return self.file

    def parameters(self) -> dict[str, Any]:
        """Return the fields of `JobParameters` that follow from this record when the job begins."""
        return {
            "waiting_since_s": self.since_s,
            "turn_s": 2 * self.last_turn_s,
            "spent": self.spent,
            "user": zlib.crc32(self.user.encode()),
        }


class LiveGroup:
    """The number of live jobs of a group, and the time since when the group has always had live jobs."""

    __slots__ = ("began_s", "jobs")

    def __init__(self, began_s: float) -> None:
        self.jobs = 0
        self.began_s = began_s


class LiveJobs(dict[int, LiveJob]):
    """Live jobs by internal id, in the order of acceptance. Changed by `add`, `happens` and `remove` only."""

    def __init__(self) -> None:
        super().__init__()
        #: rough memory of the parsed files that are kept
        self.parsed_bytes = 0
        #: terms of the last job added, which the next job usually has, too
        self._terms: JobTerms | None = None
        #: state -> number of jobs; user -> number of jobs
        self.states: Counter[JobState] = Counter()
        self.users: Counter[str] = Counter()
        #: (user, name) -> live group; the group that began first comes first
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
        """Move a job to its next state, by the table in `protocol/job_life.py`."""
        self.states[live.state] -= 1
        live.state = follow(live.id, live.state, what)
        self.states[live.state] += 1

    def forget_gone(self, deadlines: list[tuple[float, int]]) -> None:
        """Drop the entries (time, job) of ended jobs from a heap, once these are most of its entries."""
        if len(deadlines) > 2 * len(self) + _ENDED_MAX:
            deadlines[:] = [entry for entry in deadlines if entry[1] in self]
            heapq.heapify(deadlines)

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
