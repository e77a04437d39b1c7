"""The job-file service of one client rank: from files in `in/` to replies in `out/`.

A job's way: claimed by the directory (from here on it survives a crash) -> checked against the schema
(`intake.py`) -> held until its arrival time and its dependencies (`jobs/bookkeeping.py`) -> until its user
may begin another one and it is its turn (`turns.py`) -> its input read by a helper process (`inputs.py`) ->
submitted to the PE -> ended -> replied (`endings.py`). Whatever goes wrong on this way becomes the job's one
reply; nothing raises into the event loop.

Here is what leads from one to the next. A turn begins a bounded number of jobs.

A revision of an incremental job is held until its precursor has its reply, too, and read on top of
what its chain holds so far (`jobs/chains.py`). For the PEs it is a job like any other.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from msgspec.structs import asdict

from mallob_py.kit.payload import encode_description
from mallob_py.protocol.effects import JobEnded, JobGivenUp, JobRests, JobSaved, JobSought, Outcome
from mallob_py.protocol.messages import Description
from mallob_py.protocol.stimuli import JobParameters
from mallob_py.runtime.desk import Desk, JobNews
from mallob_py.runtime.notices import tell
from mallob_py.runtime.rank import Rank, portable
from mallob_py.runtime.workers.tasks import ReadDone, ReadFailed, ReadGoesOn, ReadStalled, WorkerEvent
from mallob_py.service.endings import Endings, early_statistics
from mallob_py.service.inputs import Configured, Inputs
from mallob_py.service.intake import CodeRule, Intake
from mallob_py.service.jobs.bookkeeping import JobBook, JobState, LiveJob, LiveJobs
from mallob_py.service.jobs.chains import ChainBook
from mallob_py.service.jobs.crashes import RunningJobs
from mallob_py.service.jobs.job_file import InputUse
from mallob_py.service.jobs.reply import JobStatistics, ResultFiles
from mallob_py.service.jobs.users import UserBook
from mallob_py.service.store.directory import JobDirectory, ThreadedDirectory
from mallob_py.service.telemetry.status import Counters
from mallob_py.service.telemetry.status_writer import Leftovers, StatusWriter, last_words
from mallob_py.service.turns import JobQueue, Turns

#: per turn
_BEGIN_AT_ONCE, _BEGIN_S = 16, 0.05
#: a revision that adds to others is taken for trivial so long: only its root works on it
_TRIVIAL_S = 0.03
_UNREADABLE = "its chain has ended: the service has been restarted, and named pipes cannot be read again"
_CUT_OFF = "interrupted before it had come through its pipe; its chain goes on without it"


class ServiceOptions(Protocol):
    """Options of `serve` that parts of the service take."""

    @property
    def chain_timeout_s(self) -> float: ...


class Service(Desk):
    """The desk of a client rank (see `runtime.rank.Desk`)."""

    deadline_s = -math.inf

    def __init__(
        self,
        rank: Rank,
        directory: JobDirectory | ThreadedDirectory,
        applications: Mapping[str, InputUse],
        running: RunningJobs,
        api_dir: Path,
        client: int,
        client_ranks: Sequence[int],
        options: ServiceOptions,
        configured: Configured,
        results: ResultFiles,
        code: CodeRule,
        users: UserBook | None = None,
        greet: Callable[[Path], None] = lambda folder: None,
    ) -> None:
        """Client 0 speaks for the service. `client_ranks`: as they are now, whenever that is looked at.

        `results`: the files that jobs name for their results. `code`: whose jobs may bring code. `users`:
        None if users are not told apart.
        `greet`: says that jobs are taken in now from this folder.
        """
        self._rank = rank
        self._directory = directory
        #: what jobs are described by, unless they are configured, by those applications that take no input
        self._without_input = {
            name: _without_input(name) for name, use in applications.items() if use is InputUse.NONE
        }
        self._greet = greet
        self._users = users
        self._options = options
        self._running = running
        self._jobs = LiveJobs()
        self._book = JobBook(directory.finished, directory.replied)
        self._chains = ChainBook(options.chain_timeout_s)
        counters = Counters()
        weight_of = None if users is None else users.weight_of
        queue = self._queue = JobQueue(
            rank.node.placement.size,
            rank.node.config.ageing_s,
            weight_of,
            residents_per_pe=rank.node.config.residents,
        )
        self._status = StatusWriter(
            rank,
            api_dir,
            client,
            len(client_ranks),
            self._jobs,
            queue,
            self._book,
            running,
            users,
            counters,
        )
        self._turns = Turns(rank, self._jobs, queue, users, running, client, client_ranks)
        self._inputs = Inputs(rank, self._jobs, self._chains, configured, results)
        self._endings = Endings(
            rank,
            directory,
            results,
            self._jobs,
            self._book,
            self._chains,
            self._turns,
            running,
            self._status,
            counters,
        )
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
            counters,
            self._interrupt,
            self._endings.lose,
            code,
        )
        self._is_new = True
        #: the directory measures on its own clock, which only has another start
        self._clock_offset_s = rank.now() - time.monotonic()
        #: chains by their first revision
        self._unreadable_chains = self._intake.restore_chains(rank.now())

    # --- the event loop's side ------------------------------------------------------------

    def fileno(self) -> int | None:
        return self._intake.fileno()

    def turn(self, now: float) -> None:
        if self._is_new:
            self._is_new = False
            self._open()
        self._intake.turn(now)
        if now >= self._book.deadline_s:
            self._let_begin(now)
        if now >= self._chains.deadline_s:
            self._end_chains(now)
        if now >= self._inputs.deadline_s:
            self._end_reads(now)
        if now >= self._turns.deadline_s:
            for live in self._turns.turn(now):
                self._end_at_limit(live, now)
        if self._turns.may_begin:
            self._begin_jobs(now)
        if now >= self._status.deadline_s:
            self._running.acquit(now)  # as often as that will do
            self._status.turn(now)
        self._note_deadline()

    def _note_deadline(self) -> None:
        self.deadline_s = min(
            -math.inf if self._turns.may_begin else self._turns.deadline_s,
            self._intake.deadline_s,
            self._directory.deadline_s + self._clock_offset_s,
            self._status.deadline_s,
            self._inputs.deadline_s,
            self._chains.deadline_s,
            self._book.deadline_s,
        )

    def _let_begin(self, now: float) -> None:
        """Jobs have waited long enough for their time and for others."""
        for job in self._book.ready(now):
            live = self._jobs[job]
            if self._book.lacking(job) is not None:
                self._end_lacking(live, now)
            elif live.is_done:
                self._endings.end_chain_by(live, now)
            else:
                self._turns.wait(live, now)

    def _end_chains(self, now: float) -> None:
        for chain in self._chains.expired(now):
            why = f"its chain has ended: no further revision came for {self._options.chain_timeout_s:g} s"
            self._endings.end_chain(chain, why)

    def _end_reads(self, now: float) -> None:
        """End the reading of inputs that take too long, or more than their jobs may have."""
        for live in self._inputs.cut_off(now):
            statistics = JobStatistics(total_s=now - live.accepted_s)
            self._endings.fail_early(live, "files", _CUT_OFF, statistics, now)
        for live, outcome, statistics in self._inputs.beyond_limits(now):
            self._endings.end_early(live, outcome, statistics, now)

    def hear(self, rank: int, data: bytes, now: float) -> None:
        """Another client speaks of its users' jobs."""
        self._turns.hear(data)
        self.deadline_s = -math.inf

    def has(self, job: int) -> bool:
        """Whether it is a live job of this client."""
        return job in self._jobs

    def world_changed(self, moved: Collection[int]) -> None:
        """There are more or fewer PEs than before, and these other clients begin anew on other ranks."""
        pes = self._rank.node.placement.size
        self._queue.resize(pes)
        if self._users is not None:
            self._users.follow(pes, moved)
        self._turns.look_again()
        self.deadline_s = -math.inf

    def close(self) -> None:
        """Jobs without a reply stay in the journal and run again after a restart."""
        states = self._status.states()
        self._let_go()
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

    def hand_over(self) -> None:
        """Hand the folder over to another rank: what is unfinished goes on there, and no job is to blame."""
        self._let_go()
        self._running.hand_over()

    def _let_go(self) -> None:
        self._intake.close()
        self._directory.close()

    def _open(self) -> None:
        """Open for jobs; only now, when the desks of all ranks are open, can a client rely on the service."""
        self._greet(self._directory.path / "in")
        for first in self._unreadable_chains:
            if (place := self._chains.place_of(first)) is not None:
                self._endings.end_chain(place[0], _UNREADABLE)

    # --- from file to PE --------------------------------------------------------------------

    def _begin_jobs(self, now: float) -> None:
        """Begin the jobs whose turn it is."""
        for _ in range(_BEGIN_AT_ONCE):
            if (job := self._turns.next()) is None:
                return
            live = self._jobs[job]
            if live.file is not None or not self._intake.is_read_again(live):  # else it is about to end
                self._begin(live, now)
            if not self._turns.may_begin or self._rank.now() >= now + _BEGIN_S:
                return

    def _begin(self, live: LiveJob, now: float) -> None:
        if live.file is None and not self._intake.has_file(live, self._begin, now):
            return
        file = live.file
        assert file is not None
        problem = self._chains.orphaned(live.id) if live.is_incremental else None
        field = "precursor"
        if problem is None and self._running.blamed and self._running.is_hopeless(live.id):
            field, problem = "application", self._running.verdict(live.id)
        if problem is not None:
            statistics = JobStatistics(total_s=now - live.accepted_s)
            self._endings.fail_early(live, field, problem, statistics, now)
            return
        self._running.begin(live.id, now)
        if live.description is not None:
            self._submit(live, live.description)
            return
        description = self._without_input.get(live.application)
        if description is not None and not file.configuration:
            self._submit(live, description)
        else:
            self._inputs.read(live, now)

    def worker_event(self, event: WorkerEvent, now: float) -> None:
        """A helper process has read an input, or could not."""
        self.deadline_s = -math.inf
        match event:
            case ReadDone(job, description):
                self._turns.bring_back(job)
                live = self._jobs[job]
                if not self._inputs.was_read(live, description, now):
                    self._end_interrupted(live, now)
                elif (place := self._chains.place_of(job)) is None:
                    self._submit(live, portable(description))
                else:
                    chain, revision = place
                    self._submit(live, portable(description, chain.first, revision.number))
            case ReadStalled(job) if job in self._jobs:
                self._turns.set_aside(job)
            case ReadGoesOn(job) if job in self._jobs:
                self._turns.bring_back(job)
            case ReadFailed(job, message, field):
                live = self._jobs[job]
                self._endings.fail_early(live, field, message, self._inputs.failed(live, now), now)

    def _submit(self, live: LiveJob, description: Description) -> None:
        terms = self._turns.terms(live)
        live.description = description if terms is None else None
        if terms is None:
            self.deadline_s = -math.inf
            return
        self._jobs.enter(live, JobState.SUBMITTED)
        place = self._chains.place_of(live.id) if live.is_incremental else None
        adds_to_others = place is not None and place[1].number > 0
        parameters = JobParameters(
            **asdict(live.terms) | terms._asdict(),
            near=None if place is None else place[0].root,
            growth_delay_s=_TRIVIAL_S if adds_to_others else None,
            waiting_since_s=live.since_s,
            turn_s=2 * live.last_turn_s,
            spent=live.spent,
        )
        self._rank.submit(live.id, parameters, description, self._directory.saved(live.id))
        if not live.is_sought:
            self._running.rest(live.id)  # it waits for a PE

    def hear_of_job(self, news: JobNews, now: float) -> None:
        match news:
            case JobSought(job):
                self._jobs[job].is_sought = True
                self._running.begin(job, now)
            case JobRests(job):
                self._turns.had_turn(self._jobs[job])
                self.deadline_s = -math.inf
            case JobGivenUp(job, spent):
                self._turns.given_up(self._jobs[job], spent, self._directory.saved(job) is not None, now)
                self.deadline_s = -math.inf
            case JobSaved(job, checkpoint):
                self._directory.save(job, checkpoint)
            case JobEnded():
                self._endings.job_ended(news, now)
                self._note_deadline()

    def _end_lacking(self, live: LiveJob, now: float) -> None:
        """A job that it needs a result of has ended without one."""
        if (lacking := self._book.lacking(live.id)) and self._intake.has_file(live, self._end_lacking, now):
            name, outcome = lacking
            how = f"has ended without a result ({outcome})" if outcome else "has ended, and nobody knows how"
            message = f"{name}, of which it needs a result, {how}"
            self._endings.fail_early(live, "after-ok", message, early_statistics(live, now), now)

    # --- interruptions ----------------------------------------------------------------------

    def _interrupt(self, live: LiveJob, now: float) -> None:
        if live.state is JobState.SUBMITTED:
            self._rank.interrupt(live.id)
        elif live.state is not JobState.READING or self._inputs.interrupt(live, now):
            self._end_interrupted(live, now)

    def _end_interrupted(self, live: LiveJob, now: float) -> None:
        """A job ends that has not got to the PE."""
        if self._intake.has_file(live, self._end_interrupted, now):
            if live.description is not None:
                self._rank.transfer.forget(live.id)
            self._endings.end_early(live, Outcome.INTERRUPTED, early_statistics(live, now), now)

    def _end_at_limit(self, live: LiveJob, now: float) -> None:
        """A job reaches its wallclock limit while it waits to begin again."""
        if self._intake.has_file(live, self._end_at_limit, now):
            self._endings.end_early(live, Outcome.WALLCLOCK_LIMIT, early_statistics(live, now), now)


def _without_input(application: str) -> Description:
    data = encode_description(application, {}, {})
    return Description(len(data), data)
