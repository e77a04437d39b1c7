"""The job-file service of one client rank: from files in `in/` to replies in `out/`.

A job's way: claimed by the directory (from then on it survives a crash) -> checked against the schema
(`intake.py`) -> held, lined up and begun by the machine (`desk_machine.py`), whose hands are here -> its
input read by a helper process (`inputs.py`) -> submitted to the PE -> ended -> replied (`endings.py`). Any
failure on this way becomes the job's one reply; no error reaches the event loop.

A revision of an incremental job is held until its precursor has its reply. Its input is then read on top of
the precursor's description (`jobs/chains.py`). For the PEs a revision is a job like any other.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import asdict

from mallob_py.kit.payload import encode_description
from mallob_py.log_events import LogEvent
from mallob_py.protocol.effects import JobEnded, JobGivenUp, JobRests, JobSaved, JobSought, Outcome
from mallob_py.protocol.job_life import JobState
from mallob_py.protocol.messages import Description
from mallob_py.protocol.stimuli import JobParameters
from mallob_py.runtime.desk import Desk, JobNews
from mallob_py.runtime.notices import tell
from mallob_py.runtime.rank import Rank, portable
from mallob_py.runtime.workers.tasks import ReadDone, ReadFailed, ReadGoesOn, ReadStalled, WorkerEvent
from mallob_py.service.desk_machine import DeskMachine, DeskSetting
from mallob_py.service.endings import Endings, early_statistics
from mallob_py.service.inputs import Configured, Inputs, comes_through_pipe
from mallob_py.service.intake import CodeRule, Intake
from mallob_py.service.jobs.chains import ChainBook
from mallob_py.service.jobs.crashes import RunningJobs
from mallob_py.service.jobs.job_file import InputUse
from mallob_py.service.jobs.live import LiveJob
from mallob_py.service.jobs.reply import JobStatistics, ResultFiles
from mallob_py.service.jobs.users import AtWork, Terms, UserRules
from mallob_py.service.parts import Parts
from mallob_py.service.retention import Folders, Retention
from mallob_py.service.store.directory import JobDirectory, ThreadedDirectory
from mallob_py.service.telemetry.status import EndedJob
from mallob_py.service.telemetry.status_writer import Leftovers, StatusWriter, last_words

#: time for which only the root works on a revision that adds to others, since the revision may be trivial
_TRIVIAL_S = 0.03
_UNREADABLE = "its chain has ended: the service has been restarted, and named pipes cannot be read again"
_CUT_OFF = (
    "interrupted or at a limit before its input had come through the pipe;"
    " its chain goes on without this revision"
)


class ClientMessage(msgspec.Struct, frozen=True, array_like=True):
    """Message from one client to another."""

    source: int
    dest: int
    work: AtWork


decode_client_message = msgspec.msgpack.Decoder(ClientMessage).decode


@dataclass(frozen=True, slots=True)
class ServiceSetting:
    """The setting of one client's service; client 0 speaks for the whole service."""

    api_dir: Path
    client: int
    #: ranks of all clients, kept up to date
    client_ranks: Sequence[int]
    applications: Mapping[str, InputUse]
    #: rule for jobs that bring code
    code: CodeRule
    configured: Configured
    rules: UserRules
    chain_timeout_s: float
    #: how long files of ended jobs are kept; None: for ever
    keep_s: float | None = None
    #: function that announces the folder from which jobs are accepted
    greet: Callable[[Path], None] = lambda folder: None


class Service(Desk):
    """The desk of a client rank (see `runtime.rank.Desk`), which carries out the orders of its machine."""

    deadline_s = -math.inf

    def __init__(
        self,
        rank: Rank,
        directory: JobDirectory | ThreadedDirectory,
        running: RunningJobs,
        results: ResultFiles,
        setting: ServiceSetting,
    ) -> None:
        """`results`: the files that jobs name for their results."""
        self._rank = rank
        self._directory = directory
        self._running = running
        self._setting = setting
        clients = len(setting.client_ranks)
        #: descriptions of jobs without configuration, for applications without input
        self._without_input = {
            name: _without_input(name) for name, use in setting.applications.items() if use is InputUse.NONE
        }
        pes, config = rank.node.placement.size, rank.node.config
        desk = DeskSetting(
            pes,
            config.ageing_s,
            config.residents,
            rules=setting.rules,
            clients=clients,
            finished=directory.finished,
            started_s=rank.now(),
            threads=config.threads,
        )
        if rank.stimuli is None:
            self._machine = DeskMachine(self, desk)
        else:
            from mallob_py.service.desk_log import logged_machine  # imported late: it is seldom needed

            self._machine = logged_machine(self, desk, rank.stimuli, rank.rank, setting.client)
        self._chains = ChainBook(setting.chain_timeout_s)
        parts = Parts(rank, directory, self._machine, self._chains, running, results)
        self._status = StatusWriter(parts, setting.api_dir, setting.client, clients)
        self._inputs = Inputs(parts, setting.configured)
        self._endings = Endings(parts, self._status)
        self._intake = Intake(parts, self._endings, self._status, setting.applications, setting.code)
        self._retention = None if setting.keep_s is None else self._retention_of(setting.keep_s, results)
        self._is_new = True
        #: time on the rank's clock minus time on the directory's clock
        self._clock_offset_s = rank.now() - time.monotonic()
        #: first revisions of the chains whose pipes cannot be read again
        self._unreadable_chains = self._intake.restore_chains(rank.now())

    def _retention_of(self, keep_s: float, results: ResultFiles) -> Retention:
        directory, folders = self._directory, Folders.of(self._directory.path, results.root)

        def forget(job: EndedJob, before_s: float) -> None:
            directory.in_turn(partial(folders.forget, job, before_s))

        return Retention(keep_s, directory.path, forget)

    # --- calls of the event loop ----------------------------------------------------------

    def fileno(self) -> int | None:
        return self._intake.fileno()

    def turn(self, now: float) -> None:
        if self._is_new:
            self._is_new = False
            self._open()
        self._intake.turn(now)
        if now >= self._chains.deadline_s:
            self._end_chains(now)
        if now >= self._inputs.deadline_s:
            self._end_reads(now)
        if now >= self._machine.deadline_s:
            self._machine.turn(now)
        if now >= self._status.deadline_s:
            self._running.acquit(now)  # done here, as it is not needed in every turn of the loop
            self._status.turn(now)
        if self._retention is not None and now >= self._retention.deadline_s:
            self._retention.turn(now)
        self._note_deadline()

    def _note_deadline(self) -> None:
        self.deadline_s = min(
            self._machine.deadline_s,
            self._intake.deadline_s,
            self._directory.deadline_s + self._clock_offset_s,
            self._status.deadline_s,
            self._inputs.deadline_s,
            self._chains.deadline_s,
            math.inf if self._retention is None else self._retention.deadline_s,
        )

    def _end_chains(self, now: float) -> None:
        for chain in self._chains.expired(now):
            why = f"its chain has ended: no further revision came for {self._setting.chain_timeout_s:g} s"
            self._endings.end_chain(chain, why)

    def _end_reads(self, now: float) -> None:
        """End jobs whose inputs take too much time or CPU to read."""
        for live in self._inputs.cut_off(now):
            statistics = JobStatistics(total_s=now - live.accepted_s)
            self._endings.fail_early(live, "files", _CUT_OFF, statistics, now)
        for live, outcome, statistics in self._inputs.beyond_limits(now):
            self._endings.end_early(live, outcome, statistics, now)

    def hear(self, rank: int, data: bytes, now: float) -> None:
        """Take in another client's message about its work."""
        said = decode_client_message(data)
        self._machine.hear(said.source, said.work)
        self.deadline_s = -math.inf

    def has(self, job: int) -> bool:
        """Tell whether a job is live at this client."""
        return job in self._machine.jobs

    def world_changed(self, moved: Collection[int]) -> None:
        """Adapt to a new number of PEs, and to clients (`moved`) that begin anew on other ranks."""
        self._machine.resize(self._rank.node.placement.size, moved)
        self.deadline_s = -math.inf

    def close(self) -> None:
        """Close the service. Jobs without a reply stay in the journal and run again after a restart."""
        states = self._status.states()
        self._let_go()
        if not self._is_new:  # a new service took no jobs, and has already reported why
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
        """Hand the folder over to another rank, which goes on with its jobs; no job is blamed for this."""
        self._let_go()
        self._running.hand_over()

    def _let_go(self) -> None:
        self._intake.close()
        self._directory.close()

    def _open(self) -> None:
        """Announce the service, and end unreadable chains. Called when the desks of all ranks are open."""
        self._setting.greet(self._directory.path / "in")
        for first in self._unreadable_chains:
            if (place := self._chains.place_of(first)) is not None:
                self._endings.end_chain(place[0], _UNREADABLE)

    # --- actions that the machine orders ------------------------------------------------------

    def now(self) -> float:
        return self._rank.now()

    def replied(self, identity: str) -> str | None:
        return self._directory.replied(identity)

    def is_suspect(self, job: int) -> bool:
        return bool(self._running.blamed) and self._running.is_suspect(job)

    def begin(self, job: LiveJob, now: float) -> None:
        # If the job's file is being read again already, the file is wanted in order to end the job.
        if job.file is None and (
            self._intake.is_read_again(job) or not self._intake.has_file(job, self.begin, now)
        ):
            return
        problem = self._chains.orphaned(job.id) if job.is_incremental else None
        field = "precursor"
        if problem is None and self._running.blamed and self._running.is_hopeless(job.id):
            field, problem = "application", self._running.verdict(job.id)
        if problem is not None:
            statistics = JobStatistics(total_s=now - job.accepted_s)
            self._endings.fail_early(job, field, problem, statistics, now)
            return
        if job.description is not None:
            self._submit(job, job.description, now)
            return
        description = self._without_input.get(job.application)
        if description is not None and not job.known_file.configuration:
            self._submit(job, description, now)
        else:
            self._running.begin(job.id, now)
            self._inputs.read(job, now)

    def end_lacking(self, job: LiveJob, now: float) -> None:
        lacking = self._machine.holds.lacking(job.id)
        if lacking is not None and self._intake.has_file(job, self.end_lacking, now):
            name, outcome = lacking
            how = f"has ended without one ({outcome})" if outcome else "has ended with an unknown outcome"
            message = f"the job needs a result of {name}, which {how}"
            self._endings.fail_early(job, "after-ok", message, early_statistics(job, now), now)

    def end_chain_by(self, job: LiveJob, now: float) -> None:
        self._endings.end_chain_by(job, now)

    def end_at_limit(self, job: LiveJob, now: float) -> None:
        if self._intake.has_file(job, self.end_at_limit, now):
            self._endings.end_early(job, Outcome.WALLCLOCK_LIMIT, early_statistics(job, now), now)

    def end_unsubmitted(self, job: LiveJob, now: float) -> None:
        if job.state is not JobState.READING or self._inputs.interrupt(job, now):
            self._end_interrupted(job, now)

    def set_back(self, job: int) -> None:
        self._rank.set_back(job)

    def interrupt(self, job: int) -> None:
        self._rank.interrupt(job)

    def set_terms(self, job: int, terms: Terms, now: float) -> None:
        self._rank.set_terms(job, terms.priority, terms.max_demand)
        self._rank.log.write(now, LogEvent.TERMS, {"job": job, **terms._asdict()})

    def tell_clients(self, work: AtWork) -> None:
        own = self._setting.client
        for client, rank in enumerate(self._setting.client_ranks):
            if client != own:
                self._rank.tell_desk(rank, msgspec.msgpack.encode(ClientMessage(own, client, work)))

    def note_work(self, job: int, is_at_work: bool, now: float) -> None:
        if is_at_work:
            self._running.begin(job, now)
        else:
            self._running.rest(job)

    # --- the way from file to PE ------------------------------------------------------------

    def worker_event(self, event: WorkerEvent, now: float) -> None:
        """Take in a helper process's report on reading an input."""
        self.deadline_s = -math.inf
        match event:
            case ReadDone(job, description):
                live = self._machine.jobs[job]
                self._machine.goes_on(live)
                if (outcome := self._inputs.was_read(live, description, now)) is not None:
                    self._endings.end_early(live, outcome, early_statistics(live, now), now)
                elif (place := self._chains.place_of(job)) is None:
                    self._submit(live, portable(description), now)
                else:
                    chain, revision = place
                    self._submit(live, portable(description, chain.first, revision.number), now)
            case ReadStalled(job) if job in self._machine.jobs:
                self._machine.stalls(self._machine.jobs[job])
            case ReadGoesOn(job) if job in self._machine.jobs:
                self._machine.goes_on(self._machine.jobs[job])
            case ReadFailed(job, message, field):
                live = self._machine.jobs[job]
                self._endings.fail_early(live, field, message, self._inputs.failed(live, now), now)

    def _submit(self, live: LiveJob, description: Description, now: float) -> None:
        # A revision, or a job whose input comes from a pipe, cannot begin anew: later revisions add to it, or
        # its pipe can be read only once.
        is_lasting = live.is_incremental or comes_through_pipe(live.known_file)
        terms = self._machine.terms(live, is_lasting, now)
        live.description = description if terms is None else None
        if terms is None:
            self.deadline_s = -math.inf
            return
        place = self._chains.place_of(live.id) if live.is_incremental else None
        adds_to_others = place is not None and place[1].number > 0
        parameters = JobParameters(
            **asdict(live.terms) | terms._asdict() | live.parameters(),
            near=None if place is None else place[0].root,
            growth_delay_s=_TRIVIAL_S if adds_to_others else None,
        )
        self._rank.submit(live.id, parameters, description, self._directory.saved(live.id))
        if not live.is_sought:
            self._running.rest(live.id)  # the job waits for a PE

    def hear_of_job(self, news: JobNews, now: float) -> None:
        match news:
            case JobSought():
                self._machine.was_sought(news, now)
            case JobRests():
                self._machine.had_turn(news)
                self.deadline_s = -math.inf
            case JobGivenUp(job):
                self._machine.was_given_up(news, self._directory.is_saved(job), now)
                self.deadline_s = -math.inf
            case JobSaved(job, checkpoint):
                self._directory.save(job, checkpoint)
            case JobEnded():
                self._endings.job_ended(news, now)
                self._note_deadline()

    def _end_interrupted(self, live: LiveJob, now: float) -> None:
        """End an interrupted job that never reached the PE, or that waits for its next turn."""
        if self._intake.has_file(live, self._end_interrupted, now):
            if live.description is not None:
                self._rank.transfer.forget(live.id)
            self._endings.end_early(live, Outcome.INTERRUPTED, early_statistics(live, now), now)


def _without_input(application: str) -> Description:
    data = encode_description(application, {}, {})
    return Description(len(data), data)
