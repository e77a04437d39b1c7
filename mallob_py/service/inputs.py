"""Inputs: helper processes read each job's input into the description that workers get.

A job's limits hold while its input is read, but a time limit does not count while the job waits for a reader.
A revision is read on top of its precursor's description (`jobs/chains.py`), which is kept for this. Input
from a named pipe cannot be read again, and later revisions add to it. So the pipe of a revision that is
interrupted or reaches a limit is still read to its end, for a limited time.
"""

from __future__ import annotations

import heapq
import math
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from mallob_py.protocol.effects import Outcome
from mallob_py.protocol.job_life import JobState
from mallob_py.protocol.job_terms import JobTerms
from mallob_py.runtime import worker_wire as wire
from mallob_py.runtime.rank import INLINE_BYTES_MAX
from mallob_py.service.jobs.chains import Chain, Revision
from mallob_py.service.jobs.job_file import JobFile
from mallob_py.service.jobs.live import LiveJob
from mallob_py.service.jobs.reply import JobStatistics
from mallob_py.service.parts import Parts

#: shortest time between two checks of a reading process's CPU time
_LOOK_MIN_S = 0.05
#: longest time to read the rest of an ending job's input from its pipe
_LAST_WORDS_S = 10.0

#: function that adds the service's defaults to an application's configuration
Configured = Callable[[str, Mapping[str, Any]], dict[str, Any]]


class Inputs:
    """Reads the inputs of one client's jobs."""

    def __init__(self, parts: Parts, configured: Configured) -> None:
        self._rank = parts.rank
        self._machine = parts.machine
        self._jobs = parts.machine.jobs
        self._chains = parts.chains
        self._results = parts.results
        self._configured = configured
        #: heap of (time when a job's limits must be checked, job); some of these jobs are not read any more
        self._read_until: list[tuple[float, int]] = []
        #: ending revisions that are still read from a pipe: job -> (time when reading is cut off, outcome)
        self._last_words: dict[int, tuple[float, Outcome]] = {}
        #: time when `beyond_limits` or `cut_off` may return something
        self.deadline_s = math.inf

    def read(self, live: LiveJob, now: float) -> None:
        """Begin to read a job's input; an event tells the service of the end (`workers.tasks.ReadDone`)."""
        self._machine.reads(live, now)
        if limits_s := [limit_s for limit_s, _, _ in _limits(live.terms)]:
            heapq.heappush(self._read_until, (now + min(limits_s), live.id))
            self._jobs.forget_gone(self._read_until)
            self.deadline_s = min(self.deadline_s, now + min(limits_s))
        place = self._chains.place_of(live.id)
        chain = 0 if place is None else place[0].first
        self._rank.pool.read(live.id, self._task(live.id, live.known_file), chain)

    def was_read(self, live: LiveJob, description: wire.LocalDescription, now: float) -> Outcome | None:
        """Record that an input was read; return the outcome if the job must end now."""
        live.parsing_s = now - live.reading_s
        if (place := self._chains.place_of(live.id)) is not None:
            self._keep(*place, description)
        _, outcome = self._last_words.pop(live.id, (0.0, None))
        if isinstance(description, wire.Mapped):
            self._rank.transfer.bring(live.id, description.path)
            if outcome is not None:
                self._rank.transfer.forget(live.id)  # the chain has a name of its own for the file
        return outcome

    def failed(self, live: LiveJob, now: float) -> JobStatistics:
        """Record that an input cannot be read; return the cost of the attempt."""
        self._last_words.pop(live.id, None)
        return _spent(live, now)

    def interrupt(self, live: LiveJob, now: float) -> bool:
        """Interrupt reading; return False if the job's input must be read to its end first."""
        return self._ends(live, Outcome.INTERRUPTED, now)

    def _ends(self, live: LiveJob, outcome: Outcome, now: float) -> bool:
        """Stop reading; return False if the job's input must be read to its end first."""
        if self._chains.place_of(live.id) is not None and comes_through_pipe(live.known_file):
            self._last_words.setdefault(live.id, (now + _LAST_WORDS_S, outcome))
            self.deadline_s = min(self.deadline_s, now + _LAST_WORDS_S)
            return False
        self._stop(live.id)
        return True

    def beyond_limits(self, now: float) -> list[tuple[LiveJob, Outcome, JobStatistics]]:
        """Stop reading inputs of jobs that have reached a limit, and return the jobs that end now."""
        beyond = []
        while self._read_until and self._read_until[0][0] <= now:
            _, job = heapq.heappop(self._read_until)
            live = self._jobs.get(job)
            if live is None or live.state is not JobState.READING or job in self._last_words:
                continue
            read_s, cpu_s = self._rank.pool.read_used_s(job)
            limits = list(_limits(live.terms, now - live.reading_s, read_s, cpu_s))
            outcome = next((outcome for limit_s, used_s, outcome in limits if used_s >= limit_s), None)
            if outcome is None:
                left_s = min(limit_s - used_s for limit_s, used_s, _ in limits)
                heapq.heappush(self._read_until, (now + max(_LOOK_MIN_S, left_s), job))
                continue
            if self._ends(live, outcome, now):
                beyond.append((live, outcome, _spent(live, now, cpu_s)))
        self._note_deadline()
        return beyond

    def cut_off(self, now: float) -> list[LiveJob]:
        """Stop reading ending revisions whose pipes do not end, and return these jobs."""
        late = [job for job, (until_s, _) in self._last_words.items() if until_s <= now]
        for job in late:
            self._stop(job)
        self._note_deadline()
        return [self._jobs[job] for job in late]

    def _note_deadline(self) -> None:
        limit_s = self._read_until[0][0] if self._read_until else math.inf
        self.deadline_s = min([limit_s, *(until_s for until_s, _ in self._last_words.values())])

    def _stop(self, job: int) -> None:
        self._rank.pool.cancel_read(job)
        self._last_words.pop(job, None)

    def _task(self, job: int, file: JobFile) -> wire.Read:
        place = self._chains.place_of(job)
        if place is None:
            configuration = self._configured(file.application, file.configuration)
        else:
            configuration = dict(place[1].configuration)
        return wire.Read(
            file.application,
            tuple(map(os.fsencode, file.files)),
            None if file.literals is None else file.literals.tobytes(),
            self._results.configured(file.application, configuration),
            self._rank.transfer.path_to_read(job),
            INLINE_BYTES_MAX,
            None if place is None else place[0].before(place[1]),
            list(file.assumptions),
            self._results.folder_for(job),
        )

    def _keep(self, chain: Chain, revision: Revision, description: wire.LocalDescription) -> None:
        """Keep a revision's description under a second name, for reading the next revision."""
        if isinstance(description, wire.Mapped):
            path = str(self._rank.transfer.folder / f"{chain.first}-{revision.number}")
            with suppress(OSError):
                os.link(description.path, path)
                drop_description(chain)
                chain.was_read(revision, wire.Mapped(path, description.size_bytes))
        else:
            drop_description(chain)
            chain.was_read(revision, description)


def drop_description(chain: Chain) -> None:
    """Drop the last description of a chain, on top of which no revision will be read."""
    if isinstance(chain.former, wire.Mapped):
        with suppress(OSError):
            os.unlink(chain.former.path)


def comes_through_pipe(file: JobFile) -> bool:
    """Tell whether a job's input can be read only once."""
    for path in file.files:
        with suppress(OSError):
            if stat.S_ISFIFO(os.stat(path).st_mode):
                return True
    return False


def _spent(live: LiveJob, now: float, cpu_s: float = 0.0) -> JobStatistics:
    """Return the cost of a job whose input is still being read."""
    return JobStatistics(parsing_s=now - live.reading_s, total_s=now - live.accepted_s, used_cpu_s=cpu_s)


def _limits(
    terms: JobTerms, lasted_s: float = 0.0, read_s: float = 0.0, cpu_s: float = 0.0
) -> Iterator[tuple[float, float, Outcome]]:
    """Yield (limit, time used so far, outcome at the limit) for each limit of a job whose input is read.

    `lasted_s`: time since reading was requested; `read_s`: time since a process began to read the input.
    """
    if terms.wallclock_limit_s:
        yield terms.wallclock_limit_s, lasted_s, Outcome.WALLCLOCK_LIMIT
    if terms.time_limit_s:
        yield terms.time_limit_s, read_s, Outcome.TIME_LIMIT
    if terms.cpu_limit_s:
        yield terms.cpu_limit_s, cpu_s, Outcome.CPU_LIMIT
