"""HTTP requests in terms of the api folder: submit, look up, interrupt, fetch.

A job has two kinds of keys: the id of its submission (32 hexadecimal digits, assigned here) and "user.name",
which also finds jobs that were submitted as files. Only "user.name" contains a dot. Guarantee: a request can
only read files in the client's folder, in the web server's own folder and in the folder of --allow-paths. All
methods may be called from any thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from mallob_py.applications import DEFAULT_APPLICATION, installed, places_without_search
from mallob_py.kit.result_file import open_result
from mallob_py.service import JobFileError, ServiceError, client
from mallob_py.service.client import Pending
from mallob_py.service.jobs.job_file import (
    FIELD_NAMES,
    InputUse,
    Interruption,
    JobFile,
    is_valid_text,
    parse_job,
    unfit_for_file_name,
)
from mallob_py.service.jobs.reply import RESULTS_FOLDER, SECRET
from mallob_py.service.store.entries import refusal_name, reply_name
from mallob_py.service.store.flush_policy import flush_policy_of
from mallob_py.service.store.journal import contents_of_file
from mallob_py.service.store.orders import NO_ROOM
from mallob_py.service.telemetry.explanation import explain, explain_ended, explain_unlisted, seen_by
from mallob_py.service.telemetry.groups import GroupState, answer_of, groups_of, live_groups, statuses
from mallob_py.service.telemetry.history import RecentHistory
from mallob_py.service.telemetry.measures import MEASURES
from mallob_py.service.telemetry.printed import Printed
from mallob_py.service.telemetry.status import EndedJob, ServiceStatus, look
from mallob_py.web import ApiError, views
from mallob_py.web.looks import SharedLook, SharedStatus
from mallob_py.web.store import CHAIN_ENDED, Ended, Record, Signature, Store, Upload, is_submission, now
from mallob_py.web.timelines import Timeline

_RECENT_MAX = 50
#: kind of ended jobs -> whether an outcome is of this kind
ENDED_KINDS: Mapping[str, Callable[[str], bool]] = {
    "all": lambda outcome: True,
    "results": lambda outcome: outcome == "result",
    "failures": lambda outcome: outcome in ("failed", "refused", "lost"),
    "stopped": lambda outcome: outcome not in ("result", "failed", "refused", "lost"),
}
ENDED_ORDERS: Mapping[str, Callable[[views.Job], Any]] = {
    "ended": views.end_of,
    "user": lambda job: (job.user, job.name),
    "name": lambda job: job.name,
    "time": lambda job: job.age,
    "pe-seconds": lambda job: job.pe_seconds,
}
#: the fields of a job file that hold or name its input
INPUT_FIELDS = ("files", "file", "literals")
_NESTING_MAX = 100
#: size of the largest job file that is read for people; number of tries if the file moves meanwhile
_JOB_FILE_BYTES_MAX = 16 << 20
_TRIES = 3
_FORGOTTEN = "a later job of this name has replaced the reply; ask for USER.NAME to get the later reply"


class Jobs:
    """The api folder as the web server sees it."""

    def __init__(self, api_dir: Path, client_index: int, store: Store, allow_paths: Path | None) -> None:
        self._api_dir = api_dir
        self.client = client_index
        self._client_dir = (api_dir / f"jobs.{client_index}").absolute()
        self._store = store
        self._allowed = None if allow_paths is None else os.path.realpath(allow_paths)
        self._status = SharedStatus(api_dir)
        self.history = views.History()
        self._ends = RecentHistory(api_dir)
        #: the jobs last read from the history, and the same jobs in the form of HTTP
        self._told: list[EndedJob] = []
        self._told_jobs: list[views.Job] = []
        self._applications = sorted(installed() | places_without_search())
        self._mutex = threading.Lock()
        #: client that a request has named -> shared search for the client's jobs without a reply
        self._looks: dict[int, SharedLook] = {}

    # --- status, overview, groups ---------------------------------------------------------------

    def status(self) -> ServiceStatus | None:
        """Return the status of the running service; None: no service runs."""
        status = self._status.now().status
        return None if status is None or status.is_stale() else status

    def service(self) -> views.ServiceState:
        status = self._status.now().status
        if status is None:
            return views.ServiceState(False)
        if status.is_stale():
            return views.ServiceState(False, status.age_s())
        return views.ServiceState(
            running=True,
            last_sign_of_life=status.age_s(),
            ranks=status.ranks,
            generation=status.generation,
            pes=status.pes,
            busy=status.busy,
            up=status.time - status.started,
            states=status.states,
            hosts=list(status.hosts),
            measures={one.name: one.of(status) for one in MEASURES if one.label not in ("user", "group")},
            applications=self._applications,
        )

    def overview(self, user: str | None = None) -> views.Overview:
        """Return all jobs, or the jobs of one user."""
        self.sweep()
        status, shares = self.status(), self._status.now().shares
        records = self._store.open_records()
        ids = {(record.client, record.identity): record.id for record in records}
        jobs = () if status is None else status.jobs
        why = {} if status is None else views.reasons_of_waiting(status, user)
        live = [views.job_of_status(job, ids, shares, why.get(job.id, "")) for job in jobs]
        shown = {job.id for job in live}
        queued = [views.queued_job(record) for record in records if record.id not in shown]
        users = [] if status is None else views.users_of(status)
        recent = self._recent(status)
        groups = self._groups(status)
        if user is None:
            return views.Overview(self.service(), users, live + queued, recent, groups=groups)
        return views.Overview(
            self.service(),
            [one for one in users if one.user == user],
            [job for job in live + queued if job.user == user],
            [job for job in recent if job.user == user],
            user,
            groups=[group for group in groups if group.user == user],
        )

    def _groups(self, status: ServiceStatus | None) -> list[GroupState]:
        """Return the groups with live jobs; the history is read only if there are such groups."""
        if status is None or not status.groups:
            return []
        with self._mutex, contextlib.suppress(OSError):
            return live_groups(status, self._ends.jobs())
        return []

    def group(self, user: str, name: str, offset: int, limit: int) -> views.GroupJobs:
        """Return a group of a user in numbers, and a page of its jobs. Raises ApiError."""
        status, seen = self.status(), self._status.now()
        key = (user, name)
        live = [job for job in ((status and status.jobs) or ()) if (job.user, job.group) == key]
        ended: list[EndedJob] = []
        with self._mutex, contextlib.suppress(OSError):
            ended = [job for job in self._ends.jobs() if (job.user, job.group) == key]
        group = groups_of(ended, {key: [(job.client, job.name) for job in live]} if live else {}).get(key)
        if group is None or not name:
            raise ApiError(404, f"no group {name} of {user} here")
        told = statuses(status).get(key)
        results = sorted(group.results(), key=lambda job: -job.ended)
        left = max(0, offset - len(live))
        page = [views.job_of_status(job, {}, seen.shares) for job in live[offset : offset + limit]]
        rest = results[left : left + limit - len(page)]
        return views.GroupJobs(
            group.state(told, None if status is None else status.time, told.jobs if told else None),
            Counter(map(answer_of, results)),
            len(live) + len(results),
            page + [views.job_told_of(job, self._without_paths(job.error)) for job in rest],
        )

    def look(self) -> None:
        """Make the service report for a while which PE works for which job."""
        with contextlib.suppress(OSError):  # without the report, the page shows no trees
            look(self._api_dir)

    def note(self) -> None:
        """Add the current status to the history."""
        if (status := self.status()) is not None:
            self.history.note(status)

    def check_owner(self, key: str, client_index: int | None, user: str) -> None:
        """Raise ApiError unless the job of this key is known to be this user's."""
        if is_submission(key):
            owner = self._record(key).user
        else:
            identity, index = _checked(key), self._checked_client(client_index)
            first, _, name = identity.partition(".")
            owner = ""
            if "." not in name:
                owner = first
            elif identity in (pending := self._look(index)).identities:
                owner = pending.owners.get(identity, "")  # an older reply may be another user's
            elif (reply := _read_reply(self._reply_path(identity, index))) is not None:
                owner = str(reply.get("user", ""))
        _check_is_of(user, owner, key)

    def ended(
        self,
        text: str,
        kind: str,
        order: str,
        descending: bool,
        offset: int,
        limit: int,
        user: str | None = None,
    ) -> views.EndedJobs:
        """Return a page of the ended jobs of all users or of `user`. Only the last ended jobs are searched,
        some ten thousand for each client.

        `text`: part of user, name, application or result; `kind`: a key of `ENDED_KINDS`; `order`: a key of
        `ENDED_ORDERS`.
        """
        with self._mutex:
            told = self._told
            with contextlib.suppress(OSError):  # the last known jobs are shown until the history can be read
                told = self._ends.jobs()
            if told is not self._told:  # thousands of jobs, few of them new since the last request
                self._told = told
                self._told_jobs = [views.job_told_of(job, self._without_paths(job.error)) for job in told]
            told_jobs = self._told_jobs
        ours = [job for job in map(views.ended_job, self._store.recent(_RECENT_MAX)) if job.ended]
        known = {(job.client, job.ended.number) for job in ours if job.ended}
        jobs = ours + [job for job in told_jobs if (job.client, job.number) not in known]
        wanted = text.casefold()
        found = [
            job
            for job in jobs
            if job.ended
            and (user is None or job.user == user)
            and ENDED_KINDS[kind](job.ended.outcome)
            and (not wanted or wanted in _searched(job).casefold())
        ]
        found.sort(key=views.end_of, reverse=True)
        if order != "ended" or not descending:
            found.sort(key=ENDED_ORDERS[order], reverse=descending)
        return views.EndedJobs(len(found), found[offset : offset + limit])

    def _recent(self, status: ServiceStatus | None) -> list[views.Job]:
        """Return the jobs that ended last: submitted over HTTP, or in the history of the running service."""
        ours = [views.ended_job(record) for record in self._store.recent(_RECENT_MAX)]
        known = {(job.client, job.ended.number) for job in ours if job.ended}
        told = () if status is None else status.ended
        others = [
            views.job_told_of(job, self._without_paths(job.error))
            for job in told
            if (job.client, job.id) not in known
        ]
        return sorted(ours + others, key=views.end_of, reverse=True)[:_RECENT_MAX]

    def _live(self, identity: str, client_index: int, submission: str = "") -> views.Job | None:
        """Return a job's entry in the service's status; None: it has none, or no service runs."""
        seen = self._status.now()
        if seen.status is None or seen.status.is_stale():
            return None
        found = seen.jobs.get((client_index, identity))
        if found is None:
            return None
        return views.job_of_status(found, {(client_index, identity): submission}, seen.shares)

    def get(self, key: str, client_index: int | None = None, asker: str | None = None) -> views.Job:
        """Return a live or ended job. A client is needed only for a key "user.name". Raises ApiError.

        `asker`: the user who asks, if not the operator; the job must be this user's.
        """
        if is_submission(key):
            record = self._settled(self._record(key))
            if record.ended is not None:
                return views.ended_job(record)
            live = self._live(record.identity, record.client, record.id)
            return views.queued_job(record) if live is None else live
        identity, index = _checked(key), self._checked_client(client_index)
        user, _, name = identity.partition(".")
        if identity in self._look(index).identities:
            if (live := self._live(identity, index)) is not None:
                _check_is_of(asker, live.user, key)
                return live
            return views.Job(user, name, identity, "queued", client=index)
        reply = self._reply(identity, index)
        _check_is_of(asker, reply.get("user", asker), key)  # a damaged reply has no user
        ended = views.summary_of(reply, client.signature_of(self._reply_path(identity, index)))
        return views.job_of_reply(user, name, index, reply, ended)

    def explain(self, key: str, client_index: int | None = None, user: str | None = None) -> str:
        """Return why a job waits or has its volume, or how it ended; for a `user`, without names of other
        users' jobs. Raises ApiError.
        """
        job = self.get(key, client_index, user)
        if job.ended is not None:
            if job.ended.outcome == CHAIN_ENDED:
                return f"{job.key} has ended the chain of its precursor; such a file gets no reply."
            reply = self.reply(key, client_index, user=user)
            return "\n".join(explain_ended(job.key, reply, max(0.0, now() - job.ended.at)))
        status = self.status()
        if status is not None and user is not None:
            status = seen_by(user, status)
        live = None if status is None else status.job(job.key, job.client)
        if status is None or live is None:
            return "\n".join(explain_unlisted(job.key, status))
        return "\n".join(explain(status, live))

    def timeline(self, key: str, client_index: int | None = None, user: str | None = None) -> Timeline:
        """Return the course of a job, as far as this server has seen it. Raises ApiError."""
        job = self.get(key, client_index, user)
        return self.history.timelines.of(job.number if job.ended is None else job.ended.number)

    def job_file(self, key: str, client_index: int | None = None, user: str | None = None) -> dict[str, Any]:
        """Return a job's fields as handed in, without secrets and paths of the host; `user`: see `reply`.

        Raises ApiError.
        """
        job = self.get(key, client_index, user)
        fields = self._fields_of(job) if job.ended is None else self.reply(key, client_index, user=user)
        fields = {name: fields[name] for name in FIELD_NAMES if name in fields}
        if isinstance(configuration := fields.get("configuration"), dict):
            fields["configuration"] = {name: configuration[name] for name in configuration if name != SECRET}
        return fields

    def _fields_of(self, job: views.Job) -> dict[str, Any]:
        """Return the fields in the file of a live job. Raises ApiError."""
        for _ in range(_TRIES):
            if (path := self._look(job.client).paths.get(job.key)) is None:
                break
            try:
                fields = json.loads(contents_of_file(path, _JOB_FILE_BYTES_MAX))
            except FileNotFoundError:
                continue  # the file has moved
            except (OSError, ValueError, RecursionError):
                break
            return self._presentable(fields) if isinstance(fields, dict) else {}
        raise ApiError(409, f"the file of {job.key} cannot be read now; the job may have just ended")

    def files_awaited(self, key: str, client_index: int | None = None) -> tuple[int, frozenset[str]]:
        """Return a job's client, and names of files in its `out/`, one of which appears when the job ends.

        Raises ApiError.
        """
        client_of_job = self.client_of(key, client_index)
        if is_submission(key):
            record = self._record(key)
            return client_of_job, frozenset((reply_name(record.identity), refusal_name(record.file_name)))
        return client_of_job, frozenset((reply_name(_checked(key)),))

    def client_of(self, key: str, client_index: int | None = None) -> int:
        """Return a job's client: of a submission its own, else the given one. Raises ApiError."""
        return self._record(key).client if is_submission(key) else self._checked_client(client_index)

    def out_dir(self, client_index: int) -> Path:
        """Return the folder in which the replies of a client appear."""
        return self._folder_of(client_index) / "out"

    def sweep(self) -> None:
        """Record the replies to submissions over HTTP, and remove their uploads. Looks at all jobs without a
        reply.
        """
        records = self._store.open_records()  # read before the searches, so all these jobs are handed in
        looks = {index: self._look(index) for index in {record.client for record in records}}
        for record in records:
            pending = looks[record.client]
            if record.file_name in pending.file_names:
                continue
            if (found := self._reply_to(record)) is not None:
                self._store.end(record, found.ended, found.signature)
            elif record.ends_chain:
                ended = Ended(CHAIN_ENDED, resultstring="", at=now())
                self._store.end(record, ended, None)
            elif record.identity not in pending.identities:  # otherwise the reply is about to appear
                lost = "this job has no reply; somebody removed the reply, or the job was never handed in"
                error = {"field": "", "message": lost}
                self._store.end(record, Ended("lost", error=error, at=now()), None)

    def _settled(self, record: Record) -> Record:
        """Return the record of a job, with its end if the job has ended.

        A reply of the job's name may belong to an earlier job that was live when this job was submitted. Only
        if the reply leaves this open, all jobs without a reply are looked at.
        """
        if record.ended is not None or (found := self._reply_to(record)) is None:
            return record
        if not found.is_its_own:
            if record.file_name in self._look(record.client).file_names:
                return record
            found = self._reply_to(record)  # read again: the reply now belongs to this job
        if found is not None:
            self._store.end(record, found.ended, found.signature)
        return self._store.get(record.id) or record

    def _look(self, client_index: int) -> Pending:
        with self._mutex:
            look = self._looks.get(client_index)
            if look is None:
                look = self._looks[client_index] = SharedLook(self._folder_of(client_index))
        return look.now()

    # --- changes of jobs ------------------------------------------------------------------------

    def check_room(self) -> None:
        """Raise ApiError if no job can be submitted."""
        if not (self._client_dir / "in").is_dir():
            raise ApiError(503, "no service has used the api folder yet; start one: mallob-py serve")

    def submit(
        self, fields: dict[str, Any], upload: Upload, upload_bytes: int, is_name_unique: bool
    ) -> Record:
        """Submit a job whose input is the upload or stands in the fields. Raises ApiError.

        `is_name_unique`: see `Record`.
        """
        if upload_bytes and (others := [field for field in INPUT_FIELDS if field in fields]):
            raise ApiError(400, "the upload is the job's input; leave this out", others[0])
        if not upload_bytes:
            fields = self._with_allowed_files(fields)
        else:
            fields = fields | {"files": [str(self._store.upload_path(upload.id))]}
        job = _parsed(fields)
        self.check_room()
        for earlier in self._store.open_of(job.identity):
            self._settled(earlier)  # so that an existing reply is assigned to the earlier job
        record = Record(
            id=upload.id,
            user=job.user,
            name=job.name,
            application=job.application,
            client=self.client,
            submitted=now(),
            older=client.signature_of(self._reply_path(job.identity, self.client)),
            upload_bytes=upload_bytes,
            is_name_unique=is_name_unique,
            ends_chain=job.done,
        )
        try:
            upload.keep(record, flush_policy_of(self._client_dir))
        except OSError as error:
            raise ApiError(507, f"the job cannot be kept: {error.strerror}") from None
        try:
            with self._telling():
                client.submit(self._api_dir, fields, self.client, record.file_name)
        except ApiError:
            self._store.forget(record.id)
            raise
        self._store.add(record)
        return record

    def interrupt(self, key: str, client_index: int | None) -> None:
        """Request the end of a live job. Raises ApiError."""
        if is_submission(key):
            record = self._record(key)
            identity, client_index = record.identity, record.client
            is_live = self._settled(record).ended is None
        else:
            identity, client_index = _checked(key), self._checked_client(client_index)
            is_live = identity in self._look(client_index).identities
        if not is_live:
            raise ApiError(409, f"{identity} is not live (it may have ended already)")
        user, _, name = identity.partition(".")
        with self._telling():
            client.interrupt(self._api_dir, user, name, client_index, is_quiet=True)

    def interrupt_group(self, user: str, name: str) -> int:
        """Request the end of all live jobs of a group; return their number. Raises ApiError."""
        found = [
            (job.name, int(folder.suffix[1:]))
            for folder in sorted(self._client_dir.parent.glob("jobs.*"))
            if folder.suffix[1:].isdecimal()
            for job in self._look(int(folder.suffix[1:])).grouped
            if (job.user, job.group) == (user, name)
        ]
        if not found:
            raise ApiError(409, f"no job of the group {name} of {user} is live")
        with self._telling():
            for job_name, index in found:
                client.interrupt(self._api_dir, user, job_name, index, is_quiet=True)
        return len(found)

    # --- results --------------------------------------------------------------------------------

    def reply(
        self,
        key: str,
        client_index: int | None = None,
        number: int | None = None,
        user: str | None = None,
    ) -> dict[str, Any]:
        """Return the reply of a job, without paths of the host. Raises ApiError.

        If the job's `number` in the service is given, the reply must belong to this job, not to another job
        of its name; if `user` is given, to a job of this user.
        """
        reply = self._reply_of_job(key, client_index, number)
        _check_is_of(user, reply.get("user", user), key)  # a damaged reply has no user
        return reply

    def _reply_of_job(self, key: str, client_index: int | None, number: int | None) -> dict[str, Any]:
        if number is not None and not is_submission(key):
            reply = self._reply(_checked(key), self._checked_client(client_index))
            # Replies of all revisions of a chain have the number of the first revision.
            if reply.get("internal_id") != number and not reply.get("internal_revision"):
                raise ApiError(410, _FORGOTTEN)
            return reply
        job = self.get(key, client_index)
        if job.ended is None:
            raise ApiError(409, "the job has not ended; wait for it with ?wait=SECONDS")
        if not is_submission(key):
            return self._reply(job.key, job.client)
        record = self._record(key)
        if job.ended.outcome == CHAIN_ENDED:
            raise ApiError(409, "the file has ended a chain of revisions; such a file gets no reply")
        if record.signature is None:  # refused: the reply has another file name
            return {"user": job.user, "name": job.name, "error": job.ended.error}
        if client.signature_of(self._reply_path(record.identity, record.client)) != record.signature:
            raise ApiError(410, _FORGOTTEN)
        return self._reply(record.identity, record.client)

    def output(
        self,
        key: str,
        client_index: int | None = None,
        tail_bytes: int | None = None,
        user: str | None = None,
    ) -> bytes:
        """Return the text that a job's workers have printed, as far as it is kept: all of it or the last
        part. Raises ApiError.
        """
        job = self.get(key, client_index, user)
        number = job.number if job.ended is None else job.ended.number
        try:
            printed = Printed(self._client_dir.parent, number).news()
        except OSError as error:
            raise ApiError(409, f"its output cannot be read: {error.strerror}") from None
        return printed if tail_bytes is None else printed[max(0, len(printed) - tail_bytes) :]

    def solution(self, reply: Mapping[str, Any], client_index: int | None = None) -> views.Solution:
        """Return the solution that a reply contains or names. Raises ApiError."""
        result = reply.get("result", {})
        content: bytes | None = None
        if "solution-file" in result:
            path = self.out_dir(self._checked_client(client_index)) / Path(str(result["solution-file"])).name
            try:
                content = path.read_bytes()
            except OSError as error:
                raise ApiError(410, f"the solution cannot be read: {error.strerror}") from None
        return views.solution_of(result, content)

    def result_file(self, reply: Mapping[str, Any], name: str, client_index: int | None = None) -> BinaryIO:
        """Return a file that the job has written; `name`: the file's configuration key. Raises ApiError."""
        files = reply.get("result", {}).get("result-files", {})
        if name not in files:
            raise ApiError(404, f"the job has written no such file; there are: {', '.join(files) or 'none'}")
        root = self.out_dir(self._checked_client(client_index)).with_name(RESULTS_FOLDER)
        before, _, below = str(files[name]).partition(f"{root.parent.name}/{RESULTS_FOLDER}/")
        if before or not below:
            raise ApiError(403, f"{name} is not in the api folder; fetch it from the host")
        try:
            return open(open_result(f"{root}/{below}", str(root)), "rb")
        except OSError as error:
            raise ApiError(410, f"{name} cannot be read: {error.strerror}") from None

    # --- details --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """Report an error of the service's files to the sender of the request."""
        try:
            yield
        except ServiceError as error:
            raise ApiError(status_of(error), self._without_paths(str(error))) from None

    def _without_paths(self, text: str) -> str:
        """Return a text without paths, since clients must not see paths of the host."""
        text = self._store.upload_pattern.sub("upload", text).replace(f"{self._client_dir.parent}/", "")
        return text if self._allowed is None else text.replace(f"{self._allowed}/", "")

    def _presentable(self, reply: dict[str, Any]) -> dict[str, Any]:
        """Return a reply without paths of the host."""
        if "error" in reply:
            shown = {key: self._without_paths(str(text)) for key, text in reply["error"].items()}
            reply = reply | {"error": shown}
        if isinstance(reply.get("files"), list):
            reply = reply | {"files": [self._without_paths(str(path)) for path in reply["files"]]}
        if isinstance(reply.get("file"), str):
            reply = reply | {"file": self._without_paths(reply["file"])}
        result = reply.get("result", {})
        if "solution-file" in result:
            result = result | {"solution-file": Path(str(result["solution-file"])).name}
        if "result-files" in result:
            files = {key: self._without_paths(str(path)) for key, path in result["result-files"].items()}
            result = result | {"result-files": files}
        return reply | {"result": result} if "result" in reply else reply

    def _record(self, submission: str) -> Record:
        record = self._store.get(submission)
        if record is None:
            raise ApiError(404, "no such submission here, or it is too old")
        return record

    def _checked_client(self, client_index: int | None) -> int:
        """Return the index of an existing client. Raises ApiError."""
        index = self.client if client_index is None else client_index
        if index != self.client and not self._folder_of(index).is_dir():
            raise ApiError(404, f"there is no client {index}")
        return index

    def _folder_of(self, client_index: int) -> Path:
        return self._client_dir.parent / f"jobs.{client_index}"

    def _reply_path(self, identity: str, client_index: int) -> Path:
        return self.out_dir(client_index) / reply_name(identity)

    def _reply(self, identity: str, client_index: int) -> dict[str, Any]:
        reply = _read_reply(self._reply_path(identity, client_index))
        if reply is None:
            raise ApiError(404, f"no job {identity} here, neither live nor ended")
        return self._presentable(reply)

    def _reply_to(self, record: Record) -> _Found | None:
        out_dir = self.out_dir(record.client)
        refusal = _read_reply(out_dir / refusal_name(record.file_name))
        if refusal is not None:
            return _Found(views.summary_of(self._presentable(refusal), None), None, is_its_own=True)
        if record.ends_chain:
            return None  # a reply of this name is another job's
        path = self._reply_path(record.identity, record.client)
        signature = client.signature_of(path)
        if signature in (None, record.older):
            return None
        reply = _read_reply(path)
        if reply is None:
            return None
        is_its_own = (
            record.is_name_unique
            or reply.get("file") == record.file_name
            or reply.get("files") == [str(self._store.upload_path(record.id))]
        )
        return _Found(views.summary_of(self._presentable(reply), signature), signature, is_its_own)

    def _with_allowed_files(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields with resolved paths of the input. Raises ApiError if one is not allowed."""
        if "file" in fields:
            fields = fields | {"file": self._allowed_path(fields["file"], "file", "a path")}
        paths = fields.get("files")
        if not isinstance(paths, list) or not paths:
            return fields
        return fields | {"files": [self._allowed_path(path, "files", "a list of paths") for path in paths]}

    def _allowed_path(self, path: object, field: str, expected: str) -> str:
        if self._allowed is None:
            raise ApiError(403, "files of the host may not be named here; upload the input", field)
        if not isinstance(path, str) or "\0" in path:
            raise ApiError(400, f"must be {expected}", field)
        resolved = os.path.realpath(os.path.join(self._allowed, path))
        if os.path.commonpath([resolved, self._allowed]) != self._allowed:
            raise ApiError(403, "holds a path outside of the folder that this server allows", field)
        return resolved


def status_of(error: ServiceError) -> int:
    """Return the HTTP status for an error of the service's files: 507 if there is no room."""
    cause = error.__cause__
    return 507 if isinstance(cause, OSError) and cause.errno in NO_ROOM else 503


@dataclass(frozen=True, slots=True)
class _Found:
    """A reply with the name of a submission. `is_its_own`: it cannot belong to another job of this name."""

    ended: Ended
    signature: Signature | None
    is_its_own: bool


def _searched(job: views.Job) -> str:
    assert job.ended is not None
    error = "" if job.ended.error is None else job.ended.error.get("message", "")
    return f"{job.user}.{job.name} {job.application} {job.ended.resultstring} {job.ended.outcome} {error}"


def _read_reply(path: Path) -> dict[str, Any] | None:
    """Return the reply in a file; None: no such file. An unreadable reply is returned as an error."""
    why = "the reply is damaged, perhaps by power loss"
    try:
        reply = client.read_reply(path)
        if reply is None or _is_sound(reply):
            return reply
    except ServiceError as error:
        if isinstance(error.__cause__, RecursionError):
            why = "the reply is nested too deeply"
    return {"error": {"field": "", "message": f"{why}; look at the file {path.name}"}}


def _check_is_of(asker: str | None, user: object, key: str) -> None:
    """Raise ApiError if a job of `user` is another user's than the asker's (None: the operator)."""
    if asker not in (None, user):
        raise ApiError(404, f"no job {key} of {asker} here")


def _is_sound(reply: Mapping[str, Any]) -> bool:
    parts = reply.get("result", {}), reply.get("stats", {}), reply.get("error") or {}
    return all(isinstance(part, dict) for part in parts)


def _checked(key: str) -> str:
    """Return a key that can safely be part of a file name."""
    if "." not in key.strip(".") or unfit_for_file_name(key):
        raise ApiError(404, "no such job; a key is the id of a submission or USER.NAME")
    return key


def _parsed(fields: Mapping[str, Any]) -> JobFile:
    """Check fields by the schema of job files, which the service checks again, and by the limits of HTTP."""
    if _is_deep(fields):
        raise ApiError(400, f"nested more than {_NESTING_MAX} deep")
    application = fields.get("application", DEFAULT_APPLICATION)
    known = {application: InputUse.UNKNOWN} if isinstance(application, str) else {}
    if isinstance(application, str) and not is_valid_text(application):
        raise ApiError(400, "is not valid Unicode", "application")
    try:
        job = parse_job(json.dumps(fields).encode(), known)
    except JobFileError as error:
        raise ApiError(400, error.message, error.field) from None
    if isinstance(job, Interruption):
        raise ApiError(400, "to end a job, POST to its /interrupt", "interrupt")
    return job


def _is_deep(fields: Mapping[str, Any]) -> bool:
    """Return whether a value is nested too deeply for the functions that process it later."""
    level: list[Any] = [fields]
    for _ in range(_NESTING_MAX):
        inside = (inner for one in level for inner in (one.values() if isinstance(one, dict) else one))
        level = [inner for inner in inside if isinstance(inner, dict | list)]
        if not level:
            return False
    return True
