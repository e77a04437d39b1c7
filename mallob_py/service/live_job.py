"""A job of the service between its acceptance and its reply."""

from __future__ import annotations

from enum import Enum

from mallob_py.service.job_file import JobFile


class JobState(Enum):
    #: waits for its arrival time, its dependencies or its turn as a suspect
    HELD = "held"
    #: waits until its user may have another job at work
    QUEUED = "queued"
    READING = "reading"
    SUBMITTED = "submitted"


class LiveJob:
    """What the service knows of it. Times in seconds on the rank's clock."""

    def __init__(self, file: JobFile, now: float) -> None:
        self.file = file
        self.state = JobState.HELD
        self.accepted_s = now
        self.reading_s = 0.0
        self.parsing_s = 0.0
