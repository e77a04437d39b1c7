"""The ends of jobs and of chains: a job ends with its one reply, and then the service forgets the job.

Most jobs end in the PE. A job may end earlier: by an interruption, at a limit while its input is read, or by
failing, because its input or its job file cannot be read or because it crashed the service too often.
"""

from __future__ import annotations

import functools

from mallob_py.log_events import LogEvent
from mallob_py.protocol.effects import JobEnded, Outcome
from mallob_py.runtime import worker_wire
from mallob_py.service import JobFileError
from mallob_py.service.inputs import drop_description
from mallob_py.service.jobs import mallob_clients
from mallob_py.service.jobs.chains import Chain, Revision
from mallob_py.service.jobs.job_file import JobFile
from mallob_py.service.jobs.live import LiveJob
from mallob_py.service.jobs.reply import (
    Ending,
    JobStatistics,
    Reply,
    ending_of,
    failure_reply,
    result_reply,
    statistics_of,
)
from mallob_py.service.parts import Parts
from mallob_py.service.telemetry.status_writer import StatusWriter


def early_statistics(live: LiveJob, now: float) -> JobStatistics:
    """Return the statistics of a job that is not at work, with its time at work if it was given up."""
    total_s = now - live.accepted_s
    if (spent := live.spent) is None:
        return JobStatistics(total_s=total_s)
    wallclock_s = 0.0 if spent.started_s is None else now - spent.started_s
    return JobStatistics(
        parsing_s=live.parsing_s,
        processing_s=wallclock_s,
        total_s=total_s,
        used_pe_s=spent.pe_s,
        used_wallclock_s=wallclock_s,
        max_volume=spent.max_volume,
        peak_memory_bytes=spent.peak_memory_bytes,
        used_cpu_s=spent.cpu_s,
        used_turns_s=spent.turns_s,
    )


class Endings:
    """Ends the jobs of one client."""

    def __init__(self, parts: Parts, status: StatusWriter) -> None:
        self._rank = parts.rank
        self._directory = parts.directory
        self._results = parts.results
        self._machine = parts.machine
        self._chains = parts.chains
        self._running = parts.running
        self._status = status

    # --- ends in the PE -------------------------------------------------------------------------

    def job_ended(self, ended: JobEnded, now: float) -> None:
        """Reply to a job that ended in the PE."""
        live, stats = self._machine.jobs[ended.job], ended.stats
        statistics = statistics_of(stats, live.parsing_s, now - live.accepted_s)
        if ended.outcome is Outcome.FAILED:
            message = ended.reason or "the application failed"
            file, (number, revision, chain) = live.known_file, self._numbers(live)
            reply = failure_reply(file, number, "application", message, statistics, revision)
            self._publish(live, file, reply, chain)
            self._status.job_ended(live, Outcome.FAILED, statistics, error=message)
        else:
            self._reply(live, self._ending_of(ended, now), statistics)
        self._status.counters.ended(ended.outcome.value, statistics)
        self._forget(live, now, ended.outcome, stats.root)

    def _ending_of(self, ended: JobEnded, now: float) -> Ending:
        ending = ending_of(ended)
        if ended.body is not None and self._rank.log.is_kept:
            event = worker_wire.answered(ended.job, ending.code, ending.name, ending.fields)
            self._rank.log.write(now, LogEvent.ANSWERED, event)
        return ending

    # --- ends before the PE -----------------------------------------------------------------------

    def end_early(self, live: LiveJob, outcome: Outcome, statistics: JobStatistics, now: float) -> None:
        """End a job that is interrupted or has reached a limit."""
        self._reply(live, Ending(outcome), statistics)
        self._leave_early(live, outcome, statistics, now)

    def fail_early(
        self, live: LiveJob, field: str, message: str, statistics: JobStatistics, now: float
    ) -> None:
        """Fail a job that cannot be run; a chain goes on without its failed revision."""
        file, (number, revision, chain) = live.known_file, self._numbers(live)
        reply = failure_reply(file, number, field, message, statistics, revision)
        if chain is not None:
            self._chains.drop(live.id)
        self._publish(live, file, reply, None)
        self._status.job_ended(live, Outcome.FAILED, statistics, error=f"{field}: {message}")
        self._leave_early(live, Outcome.FAILED, statistics, now)

    def lose(self, live: LiveJob, error: JobFileError, now: float) -> None:
        """Fail an accepted job whose file cannot be read again."""
        if self._chains.place_of(live.id) is not None:
            self._chains.drop(live.id)
        error = JobFileError(error.field, error.message, live.identity)
        self._status.job_ended(live, Outcome.FAILED, early_statistics(live, now), error=str(error))
        self._directory.refuse(self._directory.read_again(live.id), error)
        self._leave_early(live, Outcome.FAILED, early_statistics(live, now), now)

    def _leave_early(self, live: LiveJob, outcome: Outcome, statistics: JobStatistics, now: float) -> None:
        """Forget a job, and log its end as the PE does for jobs that end in the PE."""
        self._status.counters.replied(outcome.value)
        self._forget(live, now, outcome)
        fields = {
            "job": live.id,
            "outcome": outcome.value,
            "response_s": statistics.total_s,
            "wallclock_s": statistics.used_wallclock_s,
            "turns_s": statistics.used_turns_s,
            "pe_s": statistics.used_pe_s,
            "cpu_s": 0.0 if live.spent is None else statistics.used_cpu_s,
            "max_volume": statistics.max_volume,
        }
        self._rank.log.write(now, LogEvent.ENDED, fields)

    # --- chains of revisions ------------------------------------------------------------------------

    def end_chain_by(self, live: LiveJob, now: float) -> None:
        """End the chain that a job file demands to end; the file itself gets no reply."""
        if (chain := self._chains.chain_to_end(live.id)) is None:
            self._directory.dismiss(live.id)
        else:
            self._directory.end_chain(chain.first, live.id, live.identity)
            self._let_go(chain, "its chain is done")
        self._forget(live, now, Outcome.RESULT)

    def end_chain(self, chain: Chain, why: str) -> None:
        """End a chain, to which no revision can be added any more."""
        self._directory.end_chain(chain.first)
        self._let_go(chain, why)

    def _let_go(self, chain: Chain, why: str) -> None:
        drop_description(chain)
        if chain.revisions:
            self._discard_solution(chain.revisions[-1])
        self._chains.end(chain, why)
        self._rank.end_chain(chain.first)

    # --- the reply -----------------------------------------------------------------------------------

    def _reply(self, live: LiveJob, ending: Ending, statistics: JobStatistics) -> None:
        file, (number, revision, chain) = live.known_file, self._numbers(live)
        solution_path = self._directory.solution_path(live.id, live.identity)
        files = self._results.delivered(live.id, file) if file.configuration else None
        reply = result_reply(file, number, ending, statistics, solution_path, files, revision=revision)
        self._publish(live, file, reply, chain)
        self._discard_solution_before(live)
        self._status.job_ended(live, ending.outcome, statistics, ending.name, code=ending.code)

    def _discard_solution_before(self, live: LiveJob) -> None:
        """Remove the previous revision's solution file: many revisions would fill the folder."""
        if live.is_incremental and (place := self._chains.place_of(live.id)) is not None:
            chain, revision = place
            if revision.number:
                self._discard_solution(chain.revisions[revision.number - 1])

    def _discard_solution(self, revision: Revision) -> None:
        if mallob_clients.has_read(revision.identity):
            self._directory.discard_solution(revision.job, revision.identity)

    def _numbers(self, live: LiveJob) -> tuple[int, int, int | None]:
        """Return the internal id and revision number for a job's reply, and the job's chain, if any."""
        if not live.is_incremental or (place := self._chains.place_of(live.id)) is None:
            return live.id, 0, None
        chain, revision = place
        return chain.first, revision.number, chain.first

    def _publish(self, live: LiveJob, file: JobFile, reply: Reply, chain: int | None) -> None:
        discard = None
        if file.configuration:  # without a configuration, the job names no files
            discard = functools.partial(self._results.discard_unfinished, live.id, file)
        self._directory.reply(live.id, live.identity, reply, chain, discard)

    def _forget(self, live: LiveJob, now: float, outcome: Outcome, root: int | None = None) -> None:
        if live.is_incremental:
            self._chains.ended(live.id, root, now)
        self._running.end(live.id)
        for interruption in self._machine.answer(live, outcome.value):
            self._directory.dismiss(interruption, live.id)
