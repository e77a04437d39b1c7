"""What HTTP asks for, said in terms of the api folder: hand in, look up, interrupt, fetch.

A job has two kinds of keys: the id of its submission (32 hexadecimal digits, given out here) and
"user.name", which also finds jobs that were handed in by files. No dot is in the one, at least one in
the other. Guarantees: nothing outside the client's folder, the web server's own folder and the
folder of --allow-paths is read, whatever a request says. All methods may be called from any thread.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from mallob_py.result_file import result_files_of
from mallob_py.service import client
from mallob_py.service.entries import refusal_name, reply_name
from mallob_py.service.errors import JobFileError, ServiceError
from mallob_py.service.job_file import (
    DEFAULT_APPLICATION,
    InputUse,
    Interruption,
    JobFile,
    parse_job,
    unfit_for_file_name,
)
from mallob_py.service.medium import medium_of
from mallob_py.service.pending import Pending, PendingJobs
from mallob_py.service.status_file import JobStatus, ServiceStatus, read_live_status, read_status
from mallob_py.web.errors import ApiError
from mallob_py.web.store import Ended, Record, Signature, Store, Upload, is_submission, now

_RECENT_MAX = 50
_FORGOTTEN = "another job of that name has replied since; its reply is under USER.NAME"


class ServiceState(msgspec.Struct, frozen=True):
    """Whether a service runs on the api folder, and how busy it is. Ages in seconds."""

    running: bool
    last_sign_of_life: float | None = None
    ranks: int = 0
    pes: int = 0
    busy: int = 0
    up: float = 0.0


class Job(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job. Times in seconds; `volume` is its number of workers. `ended` is there once it has a reply."""

    user: str
    name: str
    key: str
    state: str
    id: str = ""
    application: str = ""
    client: int = 0
    priority: float = 1.0
    volume: int = 0
    demand: int = 0
    age: float = 0.0
    ended: Ended | None = None


class Overview(msgspec.Struct, frozen=True):
    """Live jobs of all, and those handed in over HTTP that ended last."""

    service: ServiceState
    jobs: list[Job]
    recent: list[Job]


class Jobs:
    """The api folder as the web server sees it."""

    def __init__(self, api_dir: Path, client_index: int, store: Store, allow_paths: Path | None) -> None:
        self._api_dir = api_dir
        self.client = client_index
        self._client_dir = (api_dir / f"jobs.{client_index}").absolute()
        self._store = store
        self._allowed = None if allow_paths is None else os.path.realpath(allow_paths)
        self._pending = PendingJobs(self._client_dir)
        self._mutex = threading.Lock()

    # --- looking --------------------------------------------------------------------------------

    def status(self) -> ServiceStatus | None:
        return read_live_status(self._api_dir)

    def service(self) -> ServiceState:
        status = read_status(self._api_dir)
        if status is None:
            return ServiceState(False)
        if status.is_stale():
            return ServiceState(False, status.age_s())
        up_s = status.time - status.started
        return ServiceState(True, status.age_s(), status.ranks, status.pes, status.busy, up_s)

    def overview(self) -> Overview:
        self.sweep()
        status = self.status()
        ids = {(record.client, record.identity): record.id for record in self._store.open_records()}
        live = [_job_of(job, ids) for job in (status.jobs if status else ())]
        shown = {job.id for job in live}
        queued = [_queued(record) for record in self._store.open_records() if record.id not in shown]
        recent = [_ended(record) for record in self._store.recent(_RECENT_MAX)]
        return Overview(self.service(), live + queued, recent)

    def get(self, key: str) -> Job:
        pending = self.sweep()
        if is_submission(key):
            record = self._record(key)
            if record.ended is not None:
                return _ended(record)
            status = self.status()
            found = status.job(record.identity, record.client) if status else None
            ids = {(record.client, record.identity): record.id}
            return _queued(record) if found is None else _job_of(found, ids)
        identity = _checked(key)
        if identity in pending.identities:
            status = self.status()
            if status and (found := status.job(identity, self.client)):
                return _job_of(found, {})
            user, _, name = identity.partition(".")
            return Job(user, name, identity, "queued", client=self.client)
        ended = _summary(self._reply(identity))
        user, _, name = identity.partition(".")
        return Job(user, name, identity, "ended", client=self.client, ended=ended)

    def sweep(self) -> Pending:
        """Take note of replies to what was handed in here; remove their uploads."""
        with self._mutex:
            records = self._store.open_records()  # first: who is in there has been submitted
            pending = self._pending.look()
            for record in records:
                if record.file_name in pending.file_names:
                    continue
                if (found := self._reply_to(record)) is not None:
                    self._store.end(record, *found)
                elif record.identity not in pending.identities:  # else it is about to appear
                    lost = "there is no reply of this job; somebody has removed it, or it was never handed in"
                    self._store.end(record, Ended("lost", error={"field": "", "message": lost}), None)
            return pending

    # --- steering -------------------------------------------------------------------------------

    def check_room(self) -> None:
        """Raises ApiError if no job can be handed in."""
        with _telling():
            client.folder_of(self._api_dir, self.client)

    def submit(self, fields: dict[str, Any], upload: Upload, upload_bytes: int) -> Record:
        """Hand in a job whose input is what was uploaded, or in the fields. Raises ApiError."""
        if upload_bytes and ("files" in fields or "literals" in fields):
            raise ApiError(400, "the upload is the job's input; leave this out", "files")
        if not upload_bytes:
            fields = self._with_allowed_files(fields)
        else:
            fields = fields | {"files": [str(upload.final_path)]}
        job = _parsed(fields)
        self.check_room()
        self.sweep()  # so that the reply to an earlier job of that name is taken note of
        older = client.signature_of(self._reply_path(job.identity))
        record = Record(
            upload.id, job.user, job.name, job.application, self.client, now(), older, upload_bytes
        )
        try:
            upload.keep(record, medium_of(self._client_dir))
        except OSError as error:
            raise ApiError(507, f"the job cannot be kept: {error.strerror}") from None
        try:
            with _telling():
                client.submit(self._api_dir, fields, self.client, record.file_name)
        except ApiError:
            self._store.forget(record.id)
            raise
        self._store.add(record)
        return record

    def interrupt(self, key: str, client_index: int) -> None:
        """Ask for the end of a live job. Raises ApiError."""
        if is_submission(key):
            record = self._record(key)
            identity, client_index = record.identity, record.client
            is_live = self.get(key).ended is None
        else:
            identity = _checked(key)
            status = self.status()
            is_live = (client_index == self.client and identity in self.sweep().identities) or (
                status is not None and status.job(identity, client_index) is not None
            )
        if not is_live:
            raise ApiError(409, f"{identity} is not live (it may have ended already)")
        user, _, name = identity.partition(".")
        with _telling():
            client.interrupt(self._api_dir, user, name, client_index)

    # --- results --------------------------------------------------------------------------------

    def reply(self, key: str) -> dict[str, Any]:
        """The reply of a job as the service wrote it. Raises ApiError."""
        job = self.get(key)
        if job.ended is None:
            raise ApiError(409, "the job has not ended; wait for it with ?wait=SECONDS")
        if not is_submission(key):
            return self._reply(job.key)
        record = self._record(key)
        if record.signature is None:  # refused: the reply is no file of this name
            return {"user": job.user, "name": job.name, "error": job.ended.error}
        if client.signature_of(self._reply_path(record.identity)) != record.signature:
            raise ApiError(410, _FORGOTTEN)
        return self._reply(record.identity)

    def solution(self, reply: Mapping[str, Any]) -> array.array[int]:
        """The integers of a reply, wherever they are. Raises ApiError."""
        result = reply.get("result", {})
        if "solution-file" not in result:
            return array.array("i", result.get("solution", []))
        path = self._client_dir / "out" / Path(str(result["solution-file"])).name
        solution = array.array("i")
        try:
            solution.frombytes(path.read_bytes())
        except OSError as error:
            raise ApiError(410, f"the solution cannot be read: {error.strerror}") from None
        return solution

    # --- details --------------------------------------------------------------------------------

    def _record(self, submission: str) -> Record:
        record = self._store.get(submission)
        if record is None:
            raise ApiError(404, "no such submission here, or it is too old")
        return record

    def _reply_path(self, identity: str) -> Path:
        return self._client_dir / "out" / reply_name(identity)

    def _reply(self, identity: str) -> dict[str, Any]:
        reply = client.read_reply(self._reply_path(identity))
        if reply is None:
            raise ApiError(404, f"no job {identity} here, neither live nor ended")
        return reply

    def _reply_to(self, record: Record) -> tuple[Ended, Signature | None] | None:
        refusal = client.read_reply(self._client_dir / "out" / refusal_name(record.file_name))
        if refusal is not None:
            return _summary(refusal), None
        path = self._reply_path(record.identity)
        signature = client.signature_of(path)
        if signature in (None, record.older):
            return None
        reply = client.read_reply(path)
        return None if reply is None else (_summary(reply), signature)

    def _with_allowed_files(self, fields: dict[str, Any]) -> dict[str, Any]:
        paths = fields.get("files")
        if not isinstance(paths, list) or not paths:
            return fields
        return fields | {"files": [self._allowed_path(path) for path in paths]}

    def _allowed_path(self, path: object) -> str:
        if self._allowed is None:
            raise ApiError(403, "files of the host may not be named here; upload the formula", "files")
        if not isinstance(path, str) or "\0" in path:
            raise ApiError(400, "must be a list of paths", "files")
        resolved = os.path.realpath(os.path.join(self._allowed, path))
        if os.path.commonpath([resolved, self._allowed]) != self._allowed:
            raise ApiError(403, "holds a path outside of the folder that this server allows", "files")
        return resolved


def _checked(key: str) -> str:
    """A key that can safely be part of a file name."""
    if "." not in key.strip(".") or unfit_for_file_name(key):
        raise ApiError(404, "no such job; a key is the id of a submission or USER.NAME")
    return key


def _parsed(fields: Mapping[str, Any]) -> JobFile:
    """The schema of job files, which the service checks again, and what HTTP may not ask for."""
    application = fields.get("application", DEFAULT_APPLICATION)
    known = {application: InputUse.UNKNOWN} if isinstance(application, str) else {}
    try:
        job = parse_job(json.dumps(fields).encode(), known)
    except JobFileError as error:
        raise ApiError(400, error.message, error.field) from None
    if isinstance(job, Interruption):
        raise ApiError(400, "to end a job, POST to its /interrupt", "interrupt")
    for key in result_files_of(job.configuration):
        raise ApiError(
            403, f"{key} names a file of the host, which is not offered over HTTP", "configuration"
        )
    return job


@contextlib.contextmanager
def _telling() -> Any:
    """What is wrong with our surroundings, said to the sender."""
    try:
        yield
    except ServiceError as error:
        raise ApiError(503, str(error)) from None


def _job_of(job: JobStatus, ids: Mapping[tuple[int, str], str]) -> Job:
    return Job(
        user=job.user,
        name=job.name,
        key=job.identity,
        state=job.state,
        id=ids.get((job.client, job.identity), ""),
        application=job.application,
        client=job.client,
        priority=job.priority,
        volume=job.volume,
        demand=job.demand,
        age=job.elapsed_s,
    )


def _queued(record: Record) -> Job:
    """Handed in, and not yet in the service's status."""
    age_s = max(0.0, now() - record.submitted)
    return _of_record(record, "queued", age_s)


def _ended(record: Record) -> Job:
    assert record.ended is not None
    total_s = record.ended.stats.get("time", {}).get("total", 0.0)
    return _of_record(record, "ended", total_s)


def _of_record(record: Record, state: str, age_s: float) -> Job:
    return Job(
        user=record.user,
        name=record.name,
        key=record.identity,
        state=state,
        id=record.id,
        application=record.application,
        client=record.client,
        age=age_s,
        ended=record.ended,
    )


def _summary(reply: Mapping[str, Any]) -> Ended:
    result = reply.get("result", {})
    return Ended(
        outcome=str(result.get("outcome", "")),
        resultcode=int(result.get("resultcode", 0)),
        resultstring=str(result.get("resultstring", "")),
        solver=str(result.get("solver", "")),
        error=reply.get("error"),
        stats=reply.get("stats", {}),
    )
