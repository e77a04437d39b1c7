"""A rank of `mallob-py run`: runs one job of any application, and prints its result.

Standard output gets the job's reply as one line of JSON or, on a terminal without --json, the answer in a few
lines. If the job fails, standard output stays empty, and standard error says why. If standard error is a
terminal, a line on it shows progress. Exit code: as the application declares for the result's code, else 0;
without a result (a limit) 1 unless declared; 2 if the job failed; 128 + the number of a signal that ended it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from typing import NoReturn

import msgspec

from mallob_py.cli import one_shot_desk
from mallob_py.cli.malleable_job import Reports, allotted, evolves
from mallob_py.cli.one_shot_desk import Answered, OneShotDesk, write_to
from mallob_py.cli.rank_options import RunOptions
from mallob_py.cli.values import far_text
from mallob_py.kit.declaration import exit_code_of
from mallob_py.kit.result_file import discard_unfinished
from mallob_py.log_events import LogEvent
from mallob_py.protocol.effects import JobEnded, Outcome
from mallob_py.protocol.stimuli import JobParameters
from mallob_py.runtime import boot
from mallob_py.runtime import worker_wire as wire
from mallob_py.runtime.notices import say
from mallob_py.runtime.rank import Rank
from mallob_py.runtime.workers.tasks import ReadDone, ReadFailed, WorkerEvent
from mallob_py.service import JobFileError
from mallob_py.service.client import login_name
from mallob_py.service.jobs import reply as replies
from mallob_py.service.jobs.job_file import InputUse, JobFile, parse_job
from mallob_py.service.telemetry.status import interim_of, progress_of

#: number of the only job
_JOB = 1
#: longest wait for the import of an application, which may compile kernels at first use
_IMPORT_S = 600.0
_CLEAR_LINE = "\r\x1b[K"


def be_rank(options: RunOptions, fork_server: socket.socket | None = None) -> NoReturn:
    def desk_of(rank: Rank, answered: Answered, tell_answered: Callable[[Answered], None]) -> RunDesk:
        return RunDesk(rank, options, answered, tell_answered)

    one_shot_desk.be_rank(options, options.application, desk_of, fork_server)


def job_of(options: RunOptions, declared: wire.ApplicationTraits) -> JobFile:
    """Return the job file that a service would get for the same job. Raises JobFileError."""
    configuration = options.whole_configuration
    for key in declared.result_files:
        if isinstance(path := configuration.get(key), str):
            configuration[key] = os.path.abspath(path)
    fields = {
        "user": login_name(),
        "name": options.application.lower(),
        "application": options.application,
        "files": [os.path.abspath(file) for file in options.files],
        "configuration": configuration,
    }
    use = InputUse.UNKNOWN if declared.takes_input else InputUse.NONE
    job = parse_job(json.dumps(fields).encode(), {options.application: use})
    assert isinstance(job, JobFile)
    return job


def _reports() -> Reports | None:
    """Return the reports to the batch scheduler that may change the job's slots; None: no such scheduler."""
    if allotted() is None:
        return None
    from mallob_py.malleable import report_progress, wish_for_processes
    from mallob_py.malleable.expectation import Expectation

    return Reports(Expectation() if evolves() else None, wish_for_processes, report_progress)


class RunDesk(OneShotDesk):
    """The desk of `run`: runs one job, then ends all ranks."""

    progress_s = 0.5

    def __init__(
        self, rank: Rank, options: RunOptions, answered: Answered, tell_answered: Callable[[Answered], None]
    ) -> None:
        """Create the desk; it ends at once if the job was `answered` by a rank that is now lost.

        The desk calls `tell_answered` after its answer.
        """
        super().__init__(rank, options.time_limit_s)
        #: the application's traits, from a helper process, because a rank imports no application
        known = rank.pool.wait_for_applications(options.application, _IMPORT_S)
        self._declared = known[options.application]
        if self._declared.problem:
            last_line = self._declared.problem.rpartition("\n")[2]
            raise boot.DeskError(f"{options.application} cannot be imported: {last_line}")
        try:
            self._job = job_of(options, self._declared)
        except JobFileError as error:
            raise boot.DeskError(f"{error.field}: {error.message}") from None
        self._prints_json = options.json or not sys.stdout.isatty()
        self._shows_progress = sys.stderr.isatty() and not options.quiet
        self._reports = _reports()
        self._tell_answered = tell_answered
        self._is_over = answered.count > 0
        self._began_s = self._read_s = 0.0
        self._code = answered.code

    @property
    def exit_code(self) -> int:
        if self._is_over or self._rank.stopped_by is None:
            return self._code
        return 128 + self._rank.stopped_by

    def close(self) -> None:
        self._clear()
        self._tell_interim(self._rank.now())
        for key in self._declared.result_files:
            if isinstance(path := self._job.configuration.get(key), str):
                discard_unfinished(path)

    # --- the job ----------------------------------------------------------------------------

    def _begin(self, now: float) -> None:
        self._is_busy = True
        if self._is_over:
            self._rank.stop()
            return
        self._began_s = now
        if self._shows_progress or self._reports is not None:
            self._next_progress_s = now + self.progress_s
        job = self._job
        self._read(_JOB, job.application, job.files, job.configuration)

    def _time_is_up(self, now: float) -> None:
        if not self._interrupt(_JOB):
            statistics = replies.JobStatistics(total_s=now - self._began_s)
            self._answer(replies.Ending(Outcome.TIME_LIMIT), statistics)

    def worker_event(self, event: WorkerEvent, now: float) -> None:
        match event:
            case ReadDone(_, description):
                self._read_s = now - self._began_s
                self._rank.submit(_JOB, JobParameters(), self._brought(_JOB, description))
            case ReadFailed(_, message, _):
                self._fail(message)

    def _job_ended(self, ended: JobEnded, now: float) -> None:
        if ended.outcome is Outcome.FAILED:
            self._fail(ended.reason or "the job has failed")
            return
        if ended.body is None:
            # Only the command's own time limit ends the job early.
            ended = msgspec.structs.replace(ended, outcome=Outcome.TIME_LIMIT)
        ending = replies.ending_of(ended)
        if ended.body is not None:
            event = wire.answered(_JOB, ending.code, ending.name, ending.fields)
            self._rank.log.write(now, LogEvent.ANSWERED, event)
        self._answer(ending, replies.statistics_of(ended.stats, self._read_s, now - self._began_s))

    def _answer(self, ending: replies.Ending, statistics: replies.JobStatistics) -> None:
        self._clear()
        self._code = exit_code_of(self._declared.exit_codes, ending.code)
        if problem := self._write(ending, statistics):
            self._fail(f"the result cannot be written: {problem}")
        self._end()

    def _tell_interim(self, now: float) -> None:
        """Print the best answer so far, if a signal ended the job early."""
        record = self._rank.node.pe.client.jobs.get(_JOB)
        if self._is_over or record is None or record.interim is None:
            return
        ended = JobEnded(_JOB, Outcome.INTERRUPTED, None, None, record.stats(now), record.interim)
        statistics = replies.statistics_of(ended.stats, self._read_s, now - self._began_s)
        self._write(replies.ending_of(ended), statistics)

    def _write(self, ending: replies.Ending, statistics: replies.JobStatistics) -> str | None:
        """Write the reply; return None, or why it cannot be written."""
        reply = replies.result_reply(self._job, _JOB, ending, statistics, "", inline_max=sys.maxsize)
        lines = [reply.body.decode()]
        if not self._prints_json:
            from mallob_py.cli.reply_text import answer_lines

            lines = [f"{line}\n" for line in answer_lines(json.loads(reply.body))]
        return write_to(sys.stdout, lines)

    def _fail(self, message: str) -> None:
        self._clear()
        self._code = 2
        say(f"mallob-py run: {message}")
        self._end()

    def _end(self) -> None:
        self._is_over = True
        self._tell_answered(Answered(1, code=self._code))
        self._is_busy = False  # the loop's next turn ends all ranks, after they were told the answer

    # --- progress ---------------------------------------------------------------------------

    def _tell_progress(self, now: float) -> None:
        if self._shows_progress:
            self._show(f"{now - self._began_s:.1f} s, {self._workers(_JOB)}{self._progress(now)}")
        if self._reports is not None and (record := self._rank.node.pe.client.jobs.get(_JOB)) is not None:
            last = None if record.progression is None else record.progression.last
            self._reports.look(last, record.cpu_s)

    def _progress(self, now: float) -> str:
        """Return the application's progress as text, if it reports any."""
        if (record := self._rank.node.pe.client.jobs.get(_JOB)) is None:
            return ""
        far = far_text(progress_of(record.progression, now), interim_of(record.interim))
        return f", {far}" if far else ""

    def _show(self, text: str) -> None:
        print(f"{_CLEAR_LINE}{text}", end="", file=sys.stderr, flush=True)

    def _clear(self) -> None:
        if self._shows_progress:
            self._show("")
