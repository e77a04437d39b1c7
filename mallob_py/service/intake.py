"""Intake: a client's job files become live jobs, or are refused.

Files are taken in as they come, a bounded number per turn. A large file is parsed by another process
(`large_files`) while others go on; only interruptions and revisions, whose meaning depends on earlier files,
wait behind it. The large file being parsed counts as a job at work, so that it can be blamed for a crash.

Waiting jobs take little memory: if there are many, a job's file is read again when the job begins. Beyond
`WAITING_MAX` waiting jobs, further files stay untouched until other jobs have begun.

If two files were handed in at once, a revision may be taken in before its precursor, or an interruption
before its job; it is then held for a while. After a restart, the revisions that a former service answered are
restored, since later revisions add to them.
"""

from __future__ import annotations

import math
import os
import select
import time
from collections import deque
from collections.abc import Callable, Mapping, Set

from mallob_py.log_events import LogEvent
from mallob_py.runtime.boot import DeskError
from mallob_py.service import JobFileError, ServiceError
from mallob_py.service.endings import Endings
from mallob_py.service.inputs import comes_through_pipe
from mallob_py.service.jobs.holds import no_live_job
from mallob_py.service.jobs.job_file import InputUse, Interruption, JobFile, parse_job
from mallob_py.service.jobs.live import LiveJob
from mallob_py.service.parts import Parts
from mallob_py.service.store.directory import Incoming
from mallob_py.service.store.entries import came_over_http
from mallob_py.service.store.large_files import LargeFiles, Parsed
from mallob_py.service.telemetry.status_writer import StatusWriter

#: bounds of one turn: greatest number of files taken in, and greatest duration
_TAKE_AT_ONCE, _TAKE_S = 16, 0.02
#: greatest number of files taken in per turn, however many are known; number of known files that allow one
#: more file per turn
_TAKE_AT_ONCE_MAX, _FILES_PER_MORE = 128, 100
#: rough bound on the memory of parsed job files; beyond it, parsed files are dropped, and read again later
_PARSED_BYTES_MAX = 8 << 20
_PARSED_PER_BYTE, _PARSED_BYTES_MIN = 10, 2000
_LITERAL_BYTES = 4
#: greatest number of waiting jobs, each of which takes a kilobyte
WAITING_MAX = 200_000
#: time for which a revision waits for its precursor, and an interruption for its job
_PRECURSOR_WAIT_S = 1.0
#: coarsest tick of a file system's clock: files of one tick seem to come at the same time, or out of order
_TICK_S = 0.05
#: time by which such files come one after the other
_AFTER_S = 1e-6
#: error of a job whose file another process has changed; the owner of a file may always write to it
_CHANGED = "the job's file was changed after it was taken; hand in a new file"

#: function that is called, with a job and the time, when the job's file is in memory
Continuation = Callable[[LiveJob, float], None]


class CodeRule:
    """The rule for jobs that bring code, which workers run with all rights of the service.

    Applications declare that their jobs bring code (`Declaration.runs_code`). Such a job is accepted if its
    file belongs to the service's own user and did not come over HTTP, where a token may suffice. `serve
    --allow-code` (`is_allowed`) accepts all such jobs.
    """

    def __init__(self, applications: Set[str], is_allowed: bool) -> None:
        self._applications = applications
        self._is_allowed = is_allowed

    def check(self, application: str, is_over_http: bool, owner: int | None) -> None:
        """Raise JobFileError if a job may not run code; `owner`: user id of the job file's owner, or None."""
        if self._is_allowed or application not in self._applications:
            return
        if is_over_http:
            whose = "this one came over HTTP"
        elif owner != os.geteuid():
            whose = "this job's file belongs to another user"
        else:
            return
        raise JobFileError(
            "application",
            f"{application} runs code that its jobs bring, so only jobs of the service's own user are taken,"
            f" and {whose}; `mallob-py serve --allow-code` takes them from everybody",
        )


class Intake:
    """Takes in the job files of one client."""

    def __init__(
        self,
        parts: Parts,
        endings: Endings,
        status: StatusWriter,
        applications: Mapping[str, InputUse],
        code: CodeRule,
    ) -> None:
        """`code`: the rule for jobs that bring code."""
        self._code = code
        self._rank = parts.rank
        self._directory = directory = parts.directory
        self._applications = applications
        self._running = parts.running
        self._results = parts.results
        self._machine = parts.machine
        self._jobs = parts.machine.jobs
        self._holds = parts.machine.holds
        self._chains = parts.chains
        self._endings = endings
        self._status = status
        #: claimed files that were not examined yet
        self._taken: deque[Incoming] = deque()
        self._large_files = LargeFiles(applications, directory.size_max_bytes)
        #: large files to be parsed, and later revisions and interruptions, which wait for them; oldest first.
        #: Between turns, the first file is the one being parsed.
        self._behind: deque[Incoming] = deque()
        self._parsed: dict[int, Parsed] = {}
        #: live jobs whose file the parser of large files reads again, with the function to call afterwards
        self._again: dict[int, Continuation] = {}
        #: revisions and interruptions that precede their job: internal id -> (deadline, file, parsed file)
        self._early: dict[int, tuple[float, Incoming, JobFile | Interruption]] = {}
        #: answered revisions of a former service whose precursor must run again first: identity of the
        #: precursor -> (first revision of the chain, file, parsed file)
        self._unrestored: dict[str, tuple[int, Incoming, JobFile]] = {}
        #: time when the last accepted file was handed in, on the rank's clock
        self._handed_in_s = -math.inf
        #: whether the directory was told that no room is left
        self._is_full = False
        #: whether older files may still wait in `in/`, because there was no room
        self._are_left = False
        self._next_s = -math.inf
        self._epoll = select.epoll()
        self._epoll.register(self._large_files.fileno(), select.EPOLLIN)
        if (watched := directory.fileno()) is not None:
            self._epoll.register(watched, select.EPOLLIN)

    # --- for the event loop -----------------------------------------------------------------

    def fileno(self) -> int:
        """Return a descriptor that is readable when `turn` has work."""
        return self._epoll.fileno()

    @property
    def waiting(self) -> int:
        """The number of claimed files that are not live jobs yet."""
        return len(self._taken) + len(self._behind) + len(self._early) + self._directory.recovered_count

    @property
    def deadline_s(self) -> float:
        """Return when `turn` is needed, on the rank's clock, unless the directory needs it earlier."""
        return self._next_s if self._is_full is self._is_full_now() else -math.inf

    def _is_full_now(self) -> bool:
        return len(self._machine.line) >= WAITING_MAX

    def turn(self, now: float) -> None:
        """Take in files until the turn's bounds are reached."""
        if self._large_files.under_way or self._behind:
            self._hear_of_large_files(now)
        if not self._taken:
            self._is_full = self._is_full_now()
            try:
                self._taken.extend(self._directory.take(0 if self._is_full else self._at_once()))
            except ServiceError as error:
                raise DeskError(str(error)) from error
            self._are_left = (self._are_left or self._is_full) and self._directory.known_files > 0
        has_come = bool(self._taken)
        while self._taken:
            self._look_at(self._taken.popleft(), now)
            if self._taken and self._rank.now() >= now + _TAKE_S:
                break
        if self._early and (has_come or now >= self._next_s):
            self._take_in_early(now)
        if self._unrestored and not self._may_come() and not self._taken:
            for _, incoming, _ in self._unrestored.values():
                self._cannot_go_on_from(incoming, "its precursor is missing", now)
            self._unrestored.clear()
        self._next_s = -math.inf if self._taken else self._next_early_s(now)

    def _at_once(self) -> int:
        """Return the number of files to take in this turn."""
        return min(_TAKE_AT_ONCE_MAX, _TAKE_AT_ONCE + self._directory.known_files // _FILES_PER_MORE)

    def close(self) -> None:
        self._epoll.close()
        self._large_files.close()

    # --- large files ------------------------------------------------------------------------

    def _look_at(self, incoming: Incoming, now: float) -> None:
        """Take in a file, unless it is large or must wait behind a large one."""
        if incoming.data is None:
            self._begin_large(incoming, now)
            return
        try:
            if isinstance(incoming.data, JobFileError):
                raise incoming.data
            request = parse_job(incoming.data, self._applications)
        except JobFileError as error:
            self._refuse(incoming, error, now)
            return
        if self._behind and (isinstance(request, Interruption) or request.incremental):
            self._behind.append(incoming)
        else:
            self._take_in(incoming, request, len(incoming.data), now)

    def _begin_large(self, incoming: Incoming, now: float) -> None:
        job = incoming.internal_id
        if self._running.is_hopeless(job):
            self._refuse(incoming, JobFileError("", self._running.verdict(job)), now)
            return
        if not self._behind:
            self._running.begin(job, now)
        self._behind.append(incoming)
        self._large_files.ask(job, incoming.path)

    def _hear_of_large_files(self, now: float) -> None:
        for parsed in self._large_files.take():
            job = parsed.internal_id
            if (then := self._again.pop(job, None)) is None:
                self._parsed[job] = parsed
            elif (live := self._jobs.get(job)) is not None and self._knows_again(live, parsed.request, now):
                then(live, now)
        while self._behind:
            incoming = self._behind[0]
            if incoming.data is not None:
                self._behind.popleft()
                self._take_in(incoming, incoming.parse(self._applications), incoming.size_bytes, now)
            elif (found := self._parsed.pop(incoming.internal_id, None)) is not None:
                self._behind.popleft()
                self._running.rest(incoming.internal_id)
                if isinstance(found.request, JobFileError):
                    self._refuse(incoming, found.request, now)
                else:
                    self._take_in(incoming, found.request, found.size_bytes, now)
            else:
                # Later files are not at work: they are parsed one after the other.
                self._running.begin(incoming.internal_id, now)
                break

    # --- the way from file to live job --------------------------------------------------------

    def _take_in(
        self,
        incoming: Incoming,
        request: JobFile | Interruption,
        size_bytes: int,
        now: float,
        due_s: float | None = None,
    ) -> None:
        """Take in a parsed file; `due_s`: the deadline of a file that came before its job."""
        due_s = due_s or now + _PRECURSOR_WAIT_S
        try:
            if self._is_early(request) and (self._may_come() or now < due_s):
                self._early[incoming.internal_id] = (due_s, incoming, request)
            elif isinstance(request, Interruption):
                self._machine.interrupt(request.identity, incoming.internal_id, now)
            else:
                self._accept(incoming, request, size_bytes, now)
        except JobFileError as error:
            self._refuse(incoming, error, now, request)

    def _is_early(self, request: JobFile | Interruption) -> bool:
        """Tell whether the job that a request refers to is unknown so far."""
        if isinstance(request, Interruption):
            return request.identity not in self._holds
        return request.incremental and self._chains.is_early(request)

    def _may_come(self) -> bool:
        """Tell whether older files may still have to be examined."""
        return self._directory.recovered_count > 0 or bool(self._behind) or self._are_left

    def _next_early_s(self, now: float) -> float:
        if not self._early:
            return math.inf
        if not self._may_come():
            return next(iter(self._early.values()))[0]
        return self._next_s if now < self._next_s < math.inf else now + _PRECURSOR_WAIT_S

    def _take_in_early(self, now: float) -> None:
        """Take in early files whose jobs are known now; such a job's own file may have been early, too."""
        known = -1
        while self._early and known != len(self._early):
            known = len(self._early)
            for early in list(self._early):
                if early in self._early:
                    due_s, incoming, request = self._early.pop(early)
                    self._take_in(incoming, request, incoming.size_bytes, now, due_s)

    def _refuse_interruptions_before(self, incoming: Incoming, identity: str, now: float) -> None:
        """Refuse early interruptions that came before a job: they mean an earlier job of the same name."""
        for _, early, request in list(self._early.values()):
            is_of_job = isinstance(request, Interruption) and request.identity == identity
            is_before = early.handed_in_s < incoming.handed_in_s
            # If both files were claimed earlier, their order is unknown: only times of claiming are known.
            if is_of_job and is_before and not (early.is_known and incoming.is_known):
                del self._early[early.internal_id]
                self._refuse(early, no_live_job(identity), now, request)

    def _refuse(
        self,
        incoming: Incoming,
        error: JobFileError,
        now: float,
        request: JobFile | Interruption | None = None,
    ) -> None:
        """Refuse a file. A refused job is reported as ended; a refused interruption is not reported."""
        user, name, group = error.user, incoming.file_name, error.group
        if isinstance(request, JobFile):
            group = request.group
        if request is not None:
            user, name = request.user, request.name
        elif user and error.identity is not None:
            name = error.identity.removeprefix(f"{user}.")
        if error.identity is not None and (
            error.identity in self._holds or self._directory.is_unpublished(error.identity)
        ):
            # The reply file of this identity belongs to another job.
            error = JobFileError(error.field, error.message)
        self._running.end(incoming.internal_id)
        if isinstance(request, Interruption) and request.is_quiet:
            self._directory.dismiss(incoming.internal_id)
            return
        self._directory.refuse(incoming, error)
        if error.identity is not None:
            self._machine.refused(error.identity)
        self._status.counters.replied("refused")
        if not isinstance(request, Interruption):
            self._status.refused(incoming.internal_id, user, name, str(error), group)
        refusal = {"file": incoming.file_name, "field": error.field, "message": error.message}
        self._rank.log.write(now, LogEvent.REFUSED, refusal)

    def _since_s(self, incoming: Incoming, now: float) -> float:
        """Return, on the rank's clock, when a file was handed in; files of one tick keep their order."""
        wall_s = time.time() - (self._rank.now() - now)
        since_s = now - max(0.0, wall_s - incoming.handed_in_s)
        if since_s <= self._handed_in_s < since_s + _TICK_S:
            since_s = self._handed_in_s + _AFTER_S
        self._handed_in_s = since_s
        return since_s

    def _accept(self, incoming: Incoming, file: JobFile, size_bytes: int, now: float) -> None:
        self._check_code(incoming, file)
        if file.configuration:
            self._results.named_by(file)  # raises JobFileError if a file is not allowed
        job = incoming.internal_id
        live = LiveJob(job, file, now, self._since_s(incoming, now))
        identity = live.identity
        # A file that ends a chain has no reply; the IPASIR bridge leaves a file of one byte in the reply's
        # place.
        if not file.done and self._directory.came_before_reply(incoming, identity):
            # If accepted, the job would replace a reply that no user can have seen.
            text = f"a job {identity} was live when this file came"
            text += "; choose another name, or wait for its reply"
            raise JobFileError("name", text)
        if self._early:
            self._refuse_interruptions_before(incoming, identity, now)
        before = ""
        if file.incremental:
            self._chains.check(file)
            before = self._chains.live_before(file)
        parsed_bytes = _parsed_bytes(file, size_bytes)
        if self._jobs.parsed_bytes + parsed_bytes <= _PARSED_BYTES_MAX:
            live.parsed_bytes = parsed_bytes
        self._machine.admit(live, before)
        if not live.parsed_bytes:
            live.file = None
        if file.incremental:
            self._chains.admit(job, file, now)
            self._restore_after(file, now)
        if self._rank.log.is_kept:
            fields = {
                "job": job,
                "user": file.user,
                "name": file.name,
                "application": file.application,
                "priority": file.terms.priority,
            }
            self._rank.log.write(now, LogEvent.ACCEPTED, fields)

    def _check_code(self, incoming: Incoming, file: JobFile) -> None:
        """Raise JobFileError, with the job's identity, if the job may not run code."""
        try:
            self._code.check(file.application, came_over_http(incoming.file_name), incoming.owner)
        except JobFileError as error:
            raise JobFileError(error.field, error.message, file.identity, file.user, file.group) from None

    # --- files of live jobs -------------------------------------------------------------------

    def has_file(self, live: LiveJob, then: Continuation, now: float) -> bool:
        """Tell whether a live job's file is in memory; if not, call `then` once the file is there.

        A job whose file cannot be read again fails. Of several calls for a job, the last `then` counts.
        """
        if live.file is not None:
            return True
        if live.id in self._again:
            self._again[live.id] = then
            return False
        again = self._directory.read_again(live.id)
        if again.data is None:
            self._again[live.id] = then
            self._large_files.ask(live.id, again.path)
            return False
        try:
            request: JobFile | Interruption | JobFileError = again.parse(self._applications)
        except JobFileError as error:
            request = error
        return self._knows_again(live, request, now)

    def is_read_again(self, live: LiveJob) -> bool:
        """Tell whether a job's file is being read again."""
        return live.id in self._again

    def _knows_again(self, live: LiveJob, request: JobFile | Interruption | JobFileError, now: float) -> bool:
        """Keep a file that was read again; if it describes another job now, end `live`."""
        try:
            if isinstance(request, JobFileError):
                raise request
            if isinstance(request, Interruption) or not live.is_of(request):
                raise JobFileError("", _CHANGED)
            self._results.named_by(request)
        except JobFileError as error:
            self._endings.lose(live, error, now)
            return False
        live.file = request
        return True

    # --- chains of a former service -------------------------------------------------------------

    def restore_chains(self, now: float) -> set[int]:
        """Restore the revisions that a former service has answered, because later revisions add to them.

        Returns the first revision of each chain that cannot go on, because an input came through a pipe.
        """
        unreadable = set()
        for first, incoming in self._directory.revisions():
            try:
                file = incoming.parse(self._applications)
                if isinstance(file, Interruption):
                    raise JobFileError("", _CHANGED)
                self._results.named_by(file)
            except JobFileError as error:
                self._cannot_go_on_from(incoming, str(error), now)
                continue
            if comes_through_pipe(file):
                unreadable.add(first)
            if not self._chains.restore(incoming.internal_id, first, file, now):
                self._unrestored[file.precursor] = (first, incoming, file)
            else:
                self._restore_after(file, now)
        return unreadable

    def _restore_after(self, file: JobFile, now: float) -> None:
        """Restore the answered revisions that add to this revision.

        Such a revision was interrupted while this one ran, or both were handed in at the same moment.
        """
        precursor: JobFile | None = file
        while precursor is not None and precursor.identity in self._unrestored:
            first, incoming, following = self._unrestored.pop(precursor.identity)
            if not self._chains.restore(incoming.internal_id, first, following, now):
                self._cannot_go_on_from(incoming, "its precursor is missing", now)
            precursor = following

    def _cannot_go_on_from(self, incoming: Incoming, why: str, now: float) -> None:
        message = f"no revision can add to the revision {incoming.file_name}: {why}"
        self._rank.log.write(now, LogEvent.PROBLEM, {"message": message})


def _parsed_bytes(file: JobFile, size_bytes: int) -> int:
    """Return the rough memory of a parsed job file, in bytes."""
    literals_bytes = 0 if file.literals is None else _LITERAL_BYTES * len(file.literals)
    return _PARSED_BYTES_MIN + literals_bytes + _PARSED_PER_BYTE * max(0, size_bytes - literals_bytes)
