"""The job-file service of one client rank: from files in `in/` to replies in `out/`.

A job's way: claimed by the directory (from here on it survives a crash) -> checked against
the schema -> held until its arrival time and its dependencies -> queued until its user may begin
another one and it is its turn -> its input read by a helper process -> submitted to the PE -> ended ->
replied. Whatever goes wrong on this way becomes the job's one reply; nothing raises into the event loop.

What comes in is `intake.py`'s; here is what becomes of it. A turn begins a bounded number of jobs.

A revision of an incremental job is held until its precursor has its reply, too, and read on top of
what its chain holds so far (`chains.py`). For the PEs it is a job like any other.
"""

from __future__ import annotations

import array
import functools
import heapq
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from mallob_py.kit.payload import encode_description
from mallob_py.protocol.effects import JobEnded
from mallob_py.protocol.effects import Outcome as Ending
from mallob_py.protocol.messages import Blob
from mallob_py.protocol.stimuli import JobParameters
from mallob_py.runtime import worker_events as events
from mallob_py.runtime import worker_wire as wire
from mallob_py.runtime.notices import tell
from mallob_py.runtime.rank import INLINE_BYTES_MAX, Rank, blob_of
from mallob_py.service.intake import Intake, comes_through_pipe
from mallob_py.service.jobs.bookkeeping import JobBook, JobState, LiveJobs
from mallob_py.service.jobs.chains import Chain, ChainBook, Revision
from mallob_py.service.jobs.crashes import RunningJobs, Suspects
from mallob_py.service.jobs.job_file import InputUse, JobFile, JobFileError
from mallob_py.service.jobs.job_queue import JobQueue
from mallob_py.service.jobs.reply import (
    JobStatistics,
    Outcome,
    Reply,
    ResultFiles,
    failure_reply,
    result_reply,
    statistics_of,
)
from mallob_py.service.jobs.users import Terms, UserBook, UserMessage
from mallob_py.service.store.directory import JobDirectory, ThreadedDirectory
from mallob_py.service.telemetry.status import Counters, Onlookers
from mallob_py.service.telemetry.status_writer import Leftovers, StatusWriter, last_words

#: per turn
_BEGIN_AT_ONCE, _BEGIN_S = 16, 0.05
#: between two looks at the CPU time of a reading process
_READ_LOOK_MIN_S = 0.05
_STATUS_PERIOD_S = 1.0
#: before a status is written for somebody who looks: so that the ranks' answers are there
_ROLL_LEAD_S = 0.05
#: so often at most do jobs get other terms
_TERMS_PERIOD_S = 0.1
#: a revision that adds to others is taken for trivial so long: only its root works on it
_TRIVIAL_S = 0.03
#: how long what is left of an interrupted revision may take to come through its pipe
_LAST_WORDS_S = 10.0
_UNREADABLE = "its chain has ended: the service has been restarted, and named pipes cannot be read again"
_decode_user_message = msgspec.msgpack.Decoder(UserMessage).decode


class Service:
    """The desk of a client rank (see `runtime.rank.Desk`)."""

    def __init__(
        self,
        rank: Rank,
        directory: JobDirectory | ThreadedDirectory,
        applications: dict[str, InputUse],
        running: RunningJobs,
        api_dir: Path,
        client: int,
        client_ranks: Sequence[int],
        chain_timeout_s: float,
        configured: Callable[[str, Mapping[str, Any]], dict[str, Any]],
        results: ResultFiles,
        users: UserBook | None = None,
    ) -> None:
        """Client 0 speaks for the service.

        `chain_timeout_s`: how long an incremental job waits for its next revision.
        `configured`: from an application and a job's configuration to that with the service's defaults.
        `results`: the files that jobs name for their results. `users`: None if users are not told apart.
        """
        self._rank = rank
        self._directory = directory
        self._applications = applications
        self._client = client
        self._client_ranks = client_ranks
        self._counters = Counters()
        self._configured = configured
        self._results = results
        self._book = JobBook(directory.finished, directory.has_reply)
        self._chains = ChainBook(chain_timeout_s)
        self._chain_timeout_s = chain_timeout_s
        self._users = users
        self._next_terms_s = -math.inf
        self._jobs = LiveJobs()
        self._queue = JobQueue(
            rank.placement.size, rank.config.ageing_s, None if users is None else users.weight_of
        )
        #: (when, job): when the reading of a job's input may have reached a limit
        self._read_until: list[tuple[float, int]] = []
        self._running = running
        self._status = StatusWriter(
            rank,
            api_dir,
            client,
            len(client_ranks),
            self._jobs,
            self._queue,
            self._book,
            running,
            users,
            self._counters,
        )
        self._suspects = Suspects(rank.now())
        self._more_ready = True
        self._is_new = True
        self._next_status_s = -math.inf
        self._next_roll_s = math.inf
        self._onlookers = Onlookers(api_dir) if client == 0 else None
        #: revisions that are interrupted while they come through a pipe, and until when that is waited for
        self._last_words: dict[int, float] = {}
        self._intake = Intake(
            rank,
            directory,
            applications,
            running,
            results,
            self._jobs,
            self._book,
            self._chains,
            self._status,
            self._counters,
            self._interrupt,
            self._lose,
        )
        #: chains by their first revision
        self._unreadable_chains = self._intake.restore_chains(rank.now())

    # --- the event loop's side ------------------------------------------------------------

    def fileno(self) -> int | None:
        return self._intake.fileno()

    def next_deadline(self) -> float:
        if self._more_ready:
            return -math.inf
        arrival = self._book.next_deadline()
        return min(
            self._intake.next_deadline(),
            self._next_status_s,
            self._next_roll_s,
            self._suspects.next_deadline(),
            self._read_until[0][0] if self._read_until else math.inf,
            self._chains.next_deadline(),
            min(self._last_words.values(), default=math.inf),
            self._next_terms_s if self._users is not None and self._users.has_news else math.inf,
            math.inf if arrival is None else arrival,
        )

    def turn(self, now: float) -> None:
        if self._is_new:
            self._is_new = False
            self._announce()
            for first in self._unreadable_chains:
                if (place := self._chains.place_of(first)) is not None:
                    self._end_chain(place[0], _UNREADABLE, None)
        self._more_ready = False
        self._intake.turn(now)
        for job in self._book.ready(now):
            if self._running.is_suspect(job):
                self._suspects.wait(job)
            else:
                self._enqueue(job, now)
        if self._users is not None:
            self._serve_users(self._users, now)
        for chain in self._chains.expired(now):
            why = f"its chain has ended: no further revision came for {self._chain_timeout_s:g} s"
            self._end_chain(chain, why, None)
        for job in [job for job, until_s in self._last_words.items() if until_s <= now]:
            self._rank.pool.cancel_read(job)
            message = "interrupted before it had come through its pipe; its chain goes on without it"
            self._fail(job, "files", message, JobStatistics(total_s=now - self._jobs[job].accepted_s), now)
        if (suspect := self._suspects.next(now)) is not None:
            self._enqueue(suspect, now)
        self._end_long_reads(now)
        self._begin_jobs(now)
        if now >= self._next_roll_s:
            self._next_roll_s = math.inf
            self._rank.call_roll()
        if now >= self._next_status_s:
            self._next_status_s = now + _STATUS_PERIOD_S
            self._running.acquit(now)
            self._write_status(now)
            self._look_for_onlookers(now)

    def close(self) -> None:
        """Jobs without a reply stay in the journal and run again after a restart."""
        states = self._status.states()
        self._intake.close()
        self._directory.close()
        if not self._is_new:  # else it never took jobs, and why is told already
            running = states.pop("running", 0)
            left = Leftovers(
                running_jobs=running,
                waiting_jobs=sum(states.values()) + self._intake.waiting,
                chains=len(self._chains),
                replies=self._directory.unpublished,
                files=self._directory.untaken(),
            )
            tell(last_words(self._directory.path, left))
        self._running.close()
        self._status.remove()

    def _announce(self) -> None:
        """Only now, when the desks of all ranks are open, can somebody rely on us."""
        if self._client == 0:
            where = self._directory.path / "in"
            print(f"mallob-py: {self._rank.placement.describe()}, accepting jobs in {where}", flush=True)

    # --- from file to PE --------------------------------------------------------------------

    def _file_of(self, job: int) -> JobFile:
        """Of a job that has begun or ends."""
        file = self._jobs[job].file
        assert file is not None
        return file

    def _enqueue(self, job: int, now: float) -> None:
        live = self._jobs[job]
        self._jobs.enter(job, JobState.QUEUED)
        if now > live.accepted_s:  # it was held
            live.since_s = now
        if live.is_done:
            self._done(job)
        elif self._users is None:
            self._queue.put(job, live.user, live.priority, live.since_s)
        else:
            self._users.ask(job, live.user, live.priority, live.max_demand)

    def _begin_jobs(self, now: float) -> None:
        """Those whose turn it is."""
        for _ in range(_BEGIN_AT_ONCE):
            if self._rank.now() >= now + _BEGIN_S:
                break
            if (job := self._queue.next()) is None:
                return
            if self._users is not None:
                self._users.begins(job)
            self._begin(job, now)
        self._more_ready = True

    def _begin(self, job: int, now: float) -> None:
        live = self._jobs[job]
        if self._intake.is_read_again(job) or not self._intake.has_file(job, self._begin, now):
            return
        file = self._file_of(job)
        if (problem := self._chains.orphaned(job)) is not None:
            self._fail(job, "precursor", problem, JobStatistics(total_s=now - live.accepted_s), now)
            return
        if self._running.is_hopeless(job):
            statistics = JobStatistics(total_s=now - live.accepted_s)
            self._fail(job, "application", self._running.verdict(job), statistics, now)
            return
        self._running.begin(job, now)
        if self._applications[file.application] is InputUse.NONE and not file.configuration:
            description = wire.Inline(encode_description(file.application, {}, {}))
            self._submit(job, blob_of(job, description), now)
            return
        self._jobs.enter(job, JobState.READING)
        live.reading_s = now
        if limits_s := [limit_s for limit_s in (live.wallclock_limit_s, live.cpu_limit_s) if limit_s]:
            heapq.heappush(self._read_until, (now + min(limits_s), job))
        self._rank.pool.read(job, self._read_task(job, file))

    def _end_long_reads(self, now: float) -> None:
        """Limits hold for the reading of an input, too."""
        while self._read_until and self._read_until[0][0] <= now:
            _, job = heapq.heappop(self._read_until)
            live = self._jobs.get(job)
            if live is None or live.state is not JobState.READING:
                continue
            lasted_s, cpu_s = now - live.reading_s, self._rank.pool.read_cpu_s(job)
            if live.wallclock_limit_s and lasted_s >= live.wallclock_limit_s:
                self._end_read(job, Ending.WALLCLOCK_LIMIT, now, cpu_s)
            elif live.cpu_limit_s and cpu_s >= live.cpu_limit_s:
                self._end_read(job, Ending.CPU_LIMIT, now, cpu_s)
            else:
                left_s = [live.wallclock_limit_s - lasted_s] if live.wallclock_limit_s else []
                left_s += [live.cpu_limit_s - cpu_s] if live.cpu_limit_s else []
                heapq.heappush(self._read_until, (now + max(_READ_LOOK_MIN_S, min(left_s)), job))

    def _end_read(self, job: int, ending: Ending, now: float, cpu_s: float) -> None:
        live = self._jobs[job]
        self._rank.pool.cancel_read(job)
        statistics = JobStatistics(
            parsing_s=now - live.reading_s, total_s=now - live.accepted_s, used_cpu_s=cpu_s
        )
        self._reply(job, Outcome(ending.value), statistics)
        self._counters.replied(ending.value)
        self._log_early_end(job, ending, statistics.total_s, now)

    def _lose(self, job: int, error: JobFileError, now: float) -> None:
        """The file of an accepted job cannot be read again."""
        live = self._jobs[job]
        if self._chains.place_of(job) is not None:
            self._chains.drop(job)
        error = JobFileError(error.field, error.message, live.identity)
        self._directory.refuse(self._directory.read_again(job), error)
        self._counters.replied(Ending.FAILED.value)
        self._forget(job)
        self._log_early_end(job, Ending.FAILED, now - live.accepted_s, now)

    def _read_task(self, job: int, file: JobFile) -> wire.Read:
        literals: array.array[int] | None = file.literals
        place = self._chains.place_of(job)
        if place is None:
            configuration = self._configured(file.application, file.configuration)
        else:
            configuration = dict(place[1].configuration)
        configuration = self._results.configured(file.application, configuration)
        return wire.Read(
            file.application,
            file.files,
            None if literals is None else literals.tobytes(),
            configuration,
            str(self._rank.transfer.path_of(str(job))),
            INLINE_BYTES_MAX,
            None if place is None else place[0].before(place[1]),
            list(file.assumptions),
            self._results.folder_for(job),
        )

    def worker_event(self, event: events.WorkerEvent, now: float) -> None:
        """A helper process has read an input, or could not."""
        match event:
            case events.ReadDone(job, description):
                self._queue.bring_back(job)
                if (place := self._chains.place_of(job)) is None:
                    self._submit(job, blob_of(job, description), now)
                    return
                chain, revision = place
                self._keep_description(chain, revision, description)
                if job in self._last_words:
                    self._end_interrupted(job, now)
                    return
                self._submit(job, blob_of(job, description, chain.first, revision.number), now)
            case events.ReadStalled(job) if job in self._jobs:
                self._queue.set_aside(job)
                self._more_ready = True
            case events.ReadGoesOn(job) if job in self._jobs:
                self._queue.bring_back(job)
            case events.ReadFailed(job, message, field):
                live = self._jobs[job]
                statistics = JobStatistics(parsing_s=now - live.reading_s, total_s=now - live.accepted_s)
                self._fail(job, field, message, statistics, now)

    def _fail(self, job: int, field: str, message: str, statistics: JobStatistics, now: float) -> None:
        """A job does not get to the PE. If it is a revision, its chain goes on without it."""
        file, (number, revision) = self._file_of(job), self._numbers(job)
        reply = failure_reply(file, number, field, message, statistics, revision)
        if self._chains.place_of(job) is not None:
            self._chains.drop(job)
        self._publish(job, reply)
        self._counters.replied(Ending.FAILED.value)
        self._status.job_ended(job, file, Ending.FAILED, statistics, error=f"{field}: {message}")
        self._forget(job)
        self._log_early_end(job, Ending.FAILED, statistics.total_s, now)

    def _submit(self, job: int, blob: Blob, now: float) -> None:
        live = self._jobs[job]
        if live.state is JobState.READING:
            live.parsing_s = now - live.reading_s
        self._jobs.enter(job, JobState.SUBMITTED)
        file, place = self._file_of(job), self._chains.place_of(job)
        adds_to_others = place is not None and place[1].number > 0
        terms = self._users.terms(job) if self._users else Terms(file.priority, file.max_demand)
        parameters = JobParameters(
            priority=terms.priority,
            max_demand=terms.max_demand,
            wallclock_limit_s=file.wallclock_limit_s,
            cpu_limit_s=file.cpu_limit_s,
            near=None if place is None else place[0].root,
            growth_delay_s=_TRIVIAL_S if adds_to_others else None,
            waiting_since_s=live.since_s,
        )
        self._rank.submit(job, parameters, blob)
        if not live.is_sought:
            self._running.rest(job)  # it waits for a PE

    # --- shares of users ------------------------------------------------------------------------

    def _serve_users(self, users: UserBook, now: float) -> None:
        """Queue what may begin, and have jobs go on with other terms where others have come or gone."""
        while users.has_urgent_news:
            for job in users.admitted():
                live = self._jobs[job]
                self._queue.put(job, live.user, live.priority, live.since_s)
            for client, message in users.urgent_messages():
                self._tell_client(client, message)
        if not users.has_news or now < self._next_terms_s:
            return
        self._next_terms_s = now + _TERMS_PERIOD_S
        for job, terms in users.changes().items():
            self._rank.set_terms(job, terms.priority, terms.max_demand)
            self._rank.log.write(now, "terms", {"job": job, **terms._asdict()})
        if (work := users.work_message()) is not None:
            for client in range(len(self._client_ranks)):
                if client != self._client:
                    self._tell_client(client, work)

    def _tell_client(self, client: int, message: UserMessage) -> None:
        self._rank.tell_desk(self._client_ranks[client], msgspec.msgpack.encode(message))

    def hear(self, rank: int, data: bytes, now: float) -> None:
        """Another client speaks of its users' jobs."""
        if self._users is not None:  # else this rank was started with other options
            self._users.hear(self._client_ranks.index(rank), _decode_user_message(data))
            self._more_ready = True

    # --- chains of revisions --------------------------------------------------------------------

    def _numbers(self, job: int) -> tuple[int, int]:
        """The internal id and revision in a job's reply."""
        place = self._chains.place_of(job)
        return (job, 0) if place is None else (place[0].first, place[1].number)

    def _keep_description(self, chain: Chain, revision: Revision, description: wire.Description) -> None:
        """The next revision is read on top of this one, which ends before; so a file gets a second name."""
        if isinstance(description, wire.Mapped):
            path = str(self._rank.transfer.path_of(f"{chain.first}-{revision.number}"))
            with suppress(OSError):
                os.link(description.path, path)
                self._drop_description(chain)
                chain.was_read(revision, wire.Mapped(path, description.size_bytes))
        else:
            self._drop_description(chain)
            chain.was_read(revision, description)

    def _drop_description(self, chain: Chain) -> None:
        if isinstance(chain.former, wire.Mapped):
            with suppress(OSError):
                os.unlink(chain.former.path)

    def _done(self, job: int) -> None:
        """The one kind of file without a reply."""
        if (chain := self._chains.chain_to_end(job)) is not None:
            self._end_chain(chain, "its chain is done", job)
        else:
            self._directory.dismiss(job)
        self._forget(job)

    def _end_chain(self, chain: Chain, why: str, job: int | None) -> None:
        self._directory.end_chain(chain.first, job, "" if job is None else self._jobs[job].identity)
        self._drop_description(chain)
        self._chains.end(chain, why)
        self._rank.end_chain(chain.first)

    # --- ends -----------------------------------------------------------------------------------

    def _interrupt(self, job: int, now: float) -> None:
        live = self._jobs[job]
        if live.state is JobState.SUBMITTED:
            self._rank.interrupt(job)
            return
        if live.state is JobState.READING:
            if self._chains.place_of(job) is not None and comes_through_pipe(self._file_of(job)):
                # What is read of it cannot be read again, and later revisions add to it.
                self._last_words.setdefault(job, now + _LAST_WORDS_S)
                return
            self._rank.pool.cancel_read(job)
        self._end_interrupted(job, now)

    def _end_interrupted(self, job: int, now: float) -> None:
        """A job ends that has not got to the PE."""
        if not self._intake.has_file(job, self._end_interrupted, now):
            return
        statistics = JobStatistics(total_s=now - self._jobs[job].accepted_s)
        self._reply(job, Outcome(Ending.INTERRUPTED.value), statistics)
        self._counters.replied(Ending.INTERRUPTED.value)
        self._log_early_end(job, Ending.INTERRUPTED, statistics.total_s, now)

    def _log_early_end(self, job: int, ending: Ending, response_s: float, now: float) -> None:
        """Of a job that ends before it gets to the PE, which logs all others."""
        fields = {
            "job": job,
            "outcome": ending.value,
            "response_s": response_s,
            "wallclock_s": 0.0,
            "pe_s": 0.0,
            "cpu_s": 0.0,
            "max_volume": 0,
        }
        self._rank.log.write(now, "ended", fields)

    def job_sought(self, job: int, now: float) -> None:
        """A PE is sought for it."""
        self._jobs[job].is_sought = True
        self._running.begin(job, now)

    def job_ended(self, ended: JobEnded, now: float) -> None:
        live = self._jobs[ended.job]
        stats = ended.stats
        statistics = statistics_of(stats, live.parsing_s, now - live.accepted_s)
        self._counters.ended(ended.outcome.value, statistics)
        if ended.outcome is Ending.FAILED:
            message = ended.reason or "the application failed"
            file, (number, revision) = self._file_of(ended.job), self._numbers(ended.job)
            reply = failure_reply(file, number, "application", message, statistics, revision)
            self._publish(ended.job, reply)
            self._status.job_ended(ended.job, file, Ending.FAILED, statistics, error=message)
            self._forget(ended.job, stats.root)
            return
        outcome = Outcome(ended.outcome.value)
        if ended.body is not None:
            body = wire.decode_result(ended.body)
            outcome = Outcome(
                ended.outcome.value, body.code, body.fields, body.solution, body.form, body.name
            )
            answered = {"job": ended.job, "code": body.code, "result": body.name}
            self._rank.log.write(now, "answered", answered)
        self._reply(ended.job, outcome, statistics, stats.root)

    def _reply(self, job: int, outcome: Outcome, statistics: JobStatistics, root: int | None = None) -> None:
        file, (number, revision) = self._file_of(job), self._numbers(job)
        solution_path = self._directory.solution_path(job, file.identity)
        files = self._results.delivered(job, file)
        reply = result_reply(file, number, outcome, statistics, solution_path, files, revision=revision)
        self._publish(job, reply)
        self._status.job_ended(job, file, Ending(outcome.kind), statistics, outcome.name)
        self._forget(job, root)

    def _publish(self, job: int, reply: Reply) -> None:
        place = self._chains.place_of(job)
        chain = None if place is None else place[0].first
        discard = functools.partial(self._results.discard_unfinished, job, self._file_of(job))
        self._directory.reply(job, self._jobs[job].identity, reply, chain, discard)

    def _forget(self, job: int, root: int | None = None) -> None:
        self._chains.ended(job, root, self._rank.now())
        if self._users is not None:
            self._users.ended(job)
        self._queue.drop(job)
        self._intake.forget(job, self._jobs.remove(job))
        self._last_words.pop(job, None)
        self._running.end(job)
        self._suspects.ended(job)
        for interruption in self._book.ended(job):
            self._directory.dismiss(interruption)
        self._more_ready = True

    # --- status -----------------------------------------------------------------------------------

    def _write_status(self, now: float) -> None:
        try:
            self._status.write(now)
        except OSError as error:
            self._rank.log.write(now, "problem", {"message": f"cannot write the status: {error.strerror}"})

    def _look_for_onlookers(self, now: float) -> None:
        if self._onlookers is None:
            return
        if self._onlookers.are_there(now):
            self._next_roll_s = self._next_status_s - _ROLL_LEAD_S
        else:
            self._rank.roll.clear()
