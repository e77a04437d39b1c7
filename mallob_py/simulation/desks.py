"""Clients' desks in virtual time. Each is the `DeskMachine` of production; this file executes its orders.

A desk takes in a client's jobs and answers them. Each folder has a desk while its holder lives. The folder's
journal, replies and checkpoints outlive the desk: the heir's desk takes up all jobs without a reply. While a
folder's disk is full, replies wait in order, and are lost if the holder is lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import asdict

from mallob_py.protocol.effects import AnyEffect, JobEnded, JobGivenUp, JobRests, JobSought, JobStats, Outcome
from mallob_py.protocol.job_life import JobState
from mallob_py.protocol.job_terms import JobTerms
from mallob_py.protocol.stimuli import JobInterrupted, JobParameters, JobSetBack, JobSubmitted, TermsChanged
from mallob_py.service import JobFileError
from mallob_py.service.desk_machine import DeskMachine, DeskSetting
from mallob_py.service.jobs.job_file import JobFile
from mallob_py.service.jobs.live import LiveJob
from mallob_py.service.jobs.users import AtWork, Terms, UserRule, UserRules
from mallob_py.simulation.folders import Folders, Ranks, submission

#: delay after which the desk of a hanging or halted rank checks again whether the rank goes on
_LOOK_AGAIN_S = 0.001


class DeskPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The setting of all desks, and the rules for users. `residents`: as in `Config`, per PE."""

    window: int = 0
    residents: int | None = None
    weights: dict[str, float] = {}
    limits: dict[str, int] = {}

    def rules(self) -> UserRules:
        users = {
            user: UserRule(weight=self.weights.get(user, 1.0), active_jobs=self.limits.get(user))
            for user in self.weights.keys() | self.limits.keys()
        }
        return UserRules(UserRule(), users)


class FileTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a job file that concern the desk.

    `after`, `needs`: jobs that must end before, with any outcome or with a result. `precursor`: the job of
    the revision before; 0: none. `reads_s`: time to read the input; `stalls`: whether reading stalls after a
    third of this time. `is_lasting`: whether the job cannot begin anew.
    """

    user: str = "u"
    after: tuple[int, ...] = ()
    needs: tuple[int, ...] = ()
    precursor: int = 0
    arrives_s: float = 0.0
    reads_s: float = 0.0
    stalls: bool = False
    is_lasting: bool = False


class Desk:
    """The desk of one folder; it executes what its machine orders."""

    def __init__(self, folders: DeskFolders, folder: int, place: int) -> None:
        self.folders = folders
        self.folder = folder
        self.place = place
        ranks, plan = folders.ranks, folders.plan
        config = ranks.config
        answered = {
            folders.identity_of(job): ended.outcome.value
            for job, ended in folders.ended.items()
            if folders.folder_of(job) == folder
        }
        self.machine = DeskMachine(
            self,
            DeskSetting(
                *(ranks.size, config.ageing_s, plan.residents, plan.window),
                rules=plan.rules(),
                finished=answered,
                threads=config.threads,
            ),
        )
        self.is_gone = False
        #: jobs whose input has been read
        self._read: set[int] = set()
        self._turn_s: float | None = None
        #: whether a turn is put off since the desk's rank hung when the turn was due
        self.is_late = False

    def take(self, job: int) -> None:
        """Take a job in from the journal."""
        file, now = self.folders.files[job], self.folders.ranks.now
        parameters = self.folders.submission_of(job).parameters
        terms = JobTerms(**{name: getattr(parameters, name) for name in JobTerms.__struct_fields__})
        after = tuple(self.folders.identity_of(one) for one in (*file.after, *file.needs))
        needed = tuple(self.folders.identity_of(one) for one in file.needs)
        precursor = self.folders.identity_of(file.precursor) if file.precursor else ""
        made = JobFile(
            *(file.user, str(job), "SIM", (), None, terms, file.arrives_s, after, needed, file.is_lasting),
            *(precursor, False, (), {}, (), {}),
        )
        try:
            self.machine.admit(LiveJob(job, made, now, now), precursor)
        except JobFileError as error:
            self.folders.answer(self, job, Outcome.FAILED, str(error))
            return
        self.wake()

    def wake(self) -> None:
        """Have the machine take its turn as soon as it is due."""
        due_s = max(self.folders.ranks.now, self.machine.deadline_s)
        if self._turn_s is not None and self._turn_s <= due_s:
            return
        if due_s < float("inf"):
            self._turn_s = due_s
            if due_s <= self.folders.ranks.now:
                self.folders.ranks.later(0.0, partial(self._turn, due_s))
            else:
                self.folders.ranks.at(due_s, partial(self._turn, due_s))

    def _turn(self, due_s: float) -> None:
        if self.is_gone or self._turn_s != due_s:
            return
        ranks = self.folders.ranks
        if not ranks.is_there(ranks.host_of(self.place)):
            self._turn_s, self.is_late = ranks.now + _LOOK_AGAIN_S, True
            ranks.at(self._turn_s, partial(self._turn, self._turn_s))
            return
        self._turn_s, self.is_late = None, False
        if ranks.now >= self.machine.deadline_s:
            self.machine.turn(ranks.now)
        self.wake()

    def hear(self, effect: AnyEffect) -> None:
        """Take in a PE's news of a job."""
        now = self.folders.ranks.now
        match effect:
            case JobSought():
                self.machine.was_sought(effect, now)
            case JobRests():
                self.machine.had_turn(effect)
            case JobGivenUp(job):
                self.folders.given_up += 1
                self.machine.was_given_up(effect, job in self.folders.saved, now)
            case JobEnded(job):
                assert job in self.machine.jobs, f"job {job} is answered twice, or never came"
                self._forget(self.machine.jobs[job], effect)
        self.wake()

    def _forget(self, job: LiveJob, ended: JobEnded) -> None:
        self.folders.reply(self, ended)
        self._read.discard(job.id)
        self.machine.answer(job, ended.outcome.value)

    def _end(self, job: LiveJob, outcome: Outcome, reason: str = "") -> None:
        pe_s = 0.0 if job.spent is None else job.spent.pe_s
        stats = JobStats(None, None, None, self.folders.ranks.now - job.accepted_s, 0.0, pe_s, 0)
        self._forget(job, JobEnded(job.id, outcome, None, reason or None, stats))
        self.wake()

    # --- actions that the machine orders ------------------------------------------------------------

    def now(self) -> float:
        return self.folders.ranks.now

    def replied(self, identity: str) -> str | None:
        return None

    def is_suspect(self, job: int) -> bool:
        return False

    def begin(self, job: LiveJob, now: float) -> None:
        file = self.folders.files[job.id]
        for other in (*file.after, *file.needs):
            assert self.folders.is_over(other, self), f"job {job.id} begins before job {other} is over"
        if job.id in self._read or not file.reads_s:
            self._submit(job)
            return
        self.machine.reads(job, now)
        if file.stalls:
            self.folders.ranks.later(file.reads_s / 3, partial(self._stall, job))
        self.folders.ranks.later(file.reads_s, partial(self._was_read, job))

    def _stall(self, job: LiveJob) -> None:
        if not self.is_gone and job.state is JobState.READING:
            self.machine.stalls(job)
            self.wake()

    def _was_read(self, job: LiveJob) -> None:
        if not self.is_gone and job.state is JobState.READING:
            self.machine.goes_on(job)
            self._submit(job)
            self.wake()

    def _submit(self, job: LiveJob) -> None:
        self._read.add(job.id)
        terms = self.machine.terms(job, self.folders.files[job.id].is_lasting, self.now())
        if terms is None:
            return
        former = self.folders.submission_of(job.id)
        parameters = JobParameters(**asdict(former.parameters) | terms._asdict() | job.parameters())
        again = JobSubmitted(job.id, parameters, former.description, self.folders.saved.get(job.id))
        self.folders.submitted[job.id] = self.place
        self.folders.ranks.tell(self.place, again)

    def end_lacking(self, job: LiveJob, now: float) -> None:
        self._end(job, Outcome.FAILED, "lacks a result")

    def end_chain_by(self, job: LiveJob, now: float) -> None:
        raise AssertionError("no job file in a simulation ends a chain")

    def end_at_limit(self, job: LiveJob, now: float) -> None:
        self._end(job, Outcome.WALLCLOCK_LIMIT)

    def end_unsubmitted(self, job: LiveJob, now: float) -> None:
        self._end(job, Outcome.INTERRUPTED)

    def set_back(self, job: int) -> None:
        self.folders.ranks.tell(self.place, JobSetBack(job))

    def interrupt(self, job: int) -> None:
        self.folders.ranks.tell(self.place, JobInterrupted(job))

    def set_terms(self, job: int, terms: Terms, now: float) -> None:
        self.folders.ranks.tell(self.place, TermsChanged(job, terms.priority, terms.max_demand))

    def tell_clients(self, work: AtWork) -> None:
        self.folders.tell_others(self, work)

    def note_work(self, job: int, is_at_work: bool, now: float) -> None:
        """Do nothing: crashes of the whole service are not simulated."""


class DeskFolders(Folders):
    """Folders whose jobs are files: desks take them in, hold them, line them up and begin them."""

    def __init__(self, ranks: Ranks, plan: DeskPlan) -> None:
        super().__init__(ranks)
        self.plan = plan
        self.files: dict[int, FileTerms] = {}
        self._desks: dict[int, Desk] = {}
        #: folder -> time from which its disk is writable; folder -> replies that wait for this time
        self._full_until_s: dict[int, float] = {}
        self._unwritten: dict[int, list[JobEnded]] = {}

    def hand_in(self, job: int, place: int, file: FileTerms, parameters: Mapping[str, Any]) -> None:
        """Put a job file into the folder of the rank at this place."""
        self.files[job] = file
        self._journal[job] = self.ranks.host_of(place), submission(job, parameters)
        self._hand_in(job)

    def submit(self, job: int, place: int, parameters: Mapping[str, Any]) -> None:
        self.hand_in(job, place, FileTerms(), parameters)

    def interrupt(self, job: int) -> None:
        self._interrupted.add(job)
        if (desk := self.desk_of(job)) is not None and job in desk.machine.jobs:
            desk.machine.interrupt(self.identity_of(job), job, self.ranks.now)
            desk.wake()

    def fill_disk(self, place: int, for_s: float) -> None:
        """Block replies in the folder of the rank at this place for some time."""
        folder, until_s = self.ranks.host_of(place), self.ranks.now + for_s
        self._full_until_s[folder] = max(until_s, self._full_until_s.get(folder, 0.0))

    def resize(self) -> None:
        self._tell_of_world(set())

    def _tell_of_world(self, moved: set[int]) -> None:
        """Tell all desks the number of PEs, and which folders' clients begin anew (`moved`)."""
        for folder, desk in self._desks.items():
            desk.machine.resize(self.ranks.size, moved - {folder})
            desk.wake()

    def hear(self, place: int, effect: AnyEffect) -> None:
        """Take in a PE's news of a job."""
        job = getattr(effect, "job", None)
        if job in self._journal and (desk := self.desk_of(job)) is not None and desk.place == place:
            desk.hear(effect)

    def folder_of(self, job: int) -> int:
        return self._journal[job][0]

    def identity_of(self, job: int) -> str:
        """Return a job's identity; a job whose file has not come counts as the default user's."""
        return f"{self.files.get(job, FileTerms()).user}.{job}"

    def submission_of(self, job: int) -> JobSubmitted:
        return self._journal[job][1]

    # --- replies ---------------------------------------------------------------------------------------

    def reply(self, desk: Desk, ended: JobEnded) -> None:
        """Write a reply, as soon as the disk is writable."""
        until_s = self._full_until_s.get(desk.folder, 0.0)
        waiting = self._unwritten.setdefault(desk.folder, [])
        waiting.append(ended)
        if self.ranks.now >= until_s:
            self._write(desk)
        elif len(waiting) == 1:
            self.ranks.later(until_s - self.ranks.now, partial(self._write, desk))

    def answer(self, desk: Desk, job: int, outcome: Outcome, reason: str) -> None:
        """Write the reply to a job that was never live."""
        self.reply(desk, JobEnded(job, outcome, None, reason, JobStats(None, None, None, 0.0, 0.0, 0.0, 0)))

    def _write(self, desk: Desk) -> None:
        if desk.is_gone:
            return
        until_s = self._full_until_s.get(desk.folder, 0.0)
        if self.ranks.now < until_s:
            self.ranks.later(until_s - self.ranks.now, partial(self._write, desk))
            return
        for ended in self._unwritten.pop(desk.folder, ()):
            job = ended.job
            assert job not in self.ended, f"job {job} is answered twice"
            for other in (*self.files[job].after, *self.files[job].needs):
                assert self._is_answered(other, ended), f"job {job} is answered before job {other}"
            self.ended[job] = ended

    def _is_answered(self, other: int, ended: JobEnded) -> bool:
        """Tell whether job `other` was answered, or the job that waited for it has ended early (`ended`)."""
        is_early = ended.outcome is not Outcome.RESULT or ended.stats.started_s is None
        return is_early or other in self.ended

    def is_over(self, job: int, desk: Desk) -> bool:
        """Tell whether a job has a reply, maybe one that waits for the disk."""
        return job in self.ended or any(one.job == job for one in self._unwritten.get(desk.folder, ()))

    # --- coming and going of desks -----------------------------------------------------------------------

    def tell_others(self, desk: Desk, work: AtWork) -> None:
        for other in list(self._desks.values()):
            if other is not desk:
                self.ranks.later(self.delay_s(desk, other), partial(self._tell, other, desk.folder, work))

    def delay_s(self, source: Desk, dest: Desk) -> float:
        """Return how long a message between clients takes."""
        return self.ranks.delays.message_s(source.place, dest.place)

    def _tell(self, desk: Desk, client: int, work: AtWork) -> None:
        if not desk.is_gone:
            desk.machine.hear(client, work)
            desk.wake()

    def desk_of(self, job: int) -> Desk | None:
        """Return the desk that has the job; None if its client is lost."""
        folder = self._journal[job][0]
        desk = self._desks.get(folder)
        return desk if desk is not None and self.ranks.is_present(self._holder_of(folder)) else None

    def _hand_in(self, job: int) -> None:
        folder, _ = self._journal[job]
        holder = self._holder_of(folder)
        if not self.ranks.is_present(holder):
            return
        place = self.ranks.places_of(holder)[0]
        desk = self._desks.get(folder)
        if desk is None or desk.place != place:
            desk = self._begin_anew(folder, place)
        desk.take(job)
        if job in self._interrupted and job in desk.machine.jobs:
            desk.machine.interrupt(self.identity_of(job), job, self.ranks.now)

    def _begin_anew(self, folder: int, place: int) -> Desk:
        if (former := self._desks.get(folder)) is not None:
            former.is_gone = True
            self.lost_ends.update(ended.job for ended in self._unwritten.pop(folder, ()))
        desk = self._desks[folder] = Desk(self, folder, place)
        self._tell_of_world({folder})
        return desk

    # --- invariants ----------------------------------------------------------------------------------------

    def at_desks(self) -> set[int]:
        """Return the jobs that are handed in, have no reply, and are not at a PE."""
        return {
            job
            for desk in self._present()
            for job, live in desk.machine.jobs.items()
            if live.state is not JobState.AT_PE
        } | {ended.job for waiting in self._unwritten.values() for ended in waiting}

    def _present(self) -> Iterator[Desk]:
        return (
            desk for folder, desk in self._desks.items() if self.ranks.is_present(self._holder_of(folder))
        )

    def check_rest(self, at_pes: set[int]) -> None:
        """Raise AssertionError if a resting desk violates an invariant. `at_pes`: jobs at PEs."""
        for desk in self._present():
            jobs, holds, line = desk.machine.jobs, desk.machine.holds, desk.machine.line
            for job, live in jobs.items():
                assert (live.state is JobState.AT_PE) == (job in at_pes), (
                    f"job {job} is {live.state.value} for its desk, but not for the PEs"
                )
                if live.state is JobState.HELD:
                    unmet, arrives_s = holds.waits_for(job)
                    has_reason = unmet or arrives_s > self.ranks.now or desk.is_late
                    assert has_reason, f"job {job} is held without a reason"
            line.check()
