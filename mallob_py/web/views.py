"""Jobs, users and the service as they are sent over HTTP: schemas, their construction, the last minutes.

A job has three sources: the service's status, the record of a submission over HTTP, and the service's history
of ended jobs.

*Solutions* are integers, sent as lines or JSON, or bytes. A reply contains integers, bytes in Base64, or the
name of a file with either (see `service.jobs.reply`). Bytes with a number of `variables` are a packed model:
bit v - 1 is variable v's value.
"""

from __future__ import annotations

import array
import base64
import sys
import threading
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from mallob_py.applications import DEFAULT_APPLICATION, UnknownApplication, declaration_of
from mallob_py.kit.declaration import UNKNOWN
from mallob_py.protocol.rank_messages import WorkerPlace
from mallob_py.service.jobs.job_file import identity_of
from mallob_py.service.telemetry.explanation import reasons, seen_by
from mallob_py.service.telemetry.groups import GroupState
from mallob_py.service.telemetry.measures import Value, shares_by_job, shares_by_user
from mallob_py.service.telemetry.status import (
    EndedJob,
    HostStatus,
    JobInterim,
    JobProgress,
    JobStatus,
    ServiceStatus,
)
from mallob_py.web import ApiError
from mallob_py.web.store import Ended, Record, Signature, now
from mallob_py.web.timelines import Timelines

Integers: TypeAlias = "array.array[int]"
Solution: TypeAlias = "Integers | bytes"


def solution_of(result: Mapping[str, Any], content: bytes | None) -> Solution:
    """Return the solution of a reply's `result`, or of the content of the file that it names."""
    if "solution-format" in result:
        data = base64.b64decode(result["solution"]) if content is None else content
        return _unpacked(data, result["variables"]) if "variables" in result else data
    if content is None:
        integers = array.array("i", result.get("solution", []))
    else:
        integers = array.array("i")
        integers.frombytes(content)
        if sys.byteorder == "big":
            integers.byteswap()
    # Models for Mallob's IPASIR bridge begin with a 0.
    is_indexed = bool(integers) and not integers[0] and "solutions" not in result
    return integers[1:] if is_indexed else integers


def solution_json(result: Mapping[str, Any], solution: Solution) -> dict[str, Any]:
    """Return a solution as JSON. `solutions` is set if several were requested: then each ends with a 0."""
    answer: dict[str, Any] = {"resultcode": result["resultcode"]}
    if "solutions" in result:
        answer["solutions"] = result["solutions"]
    if isinstance(solution, bytes):
        return answer | {"solution": base64.b64encode(solution).decode(), "solution-format": "base64"}
    return answer | {"solution": solution.tolist()}


def form_of(application: str) -> ApplicationForm:
    """Return an application's form. Raises ApiError for an application that is not offered here."""
    try:
        declared = declaration_of(application)
    except UnknownApplication as error:
        raise ApiError(404, str(error), "application") from None
    except Exception as error:  # an error of an application that lacks a package on this host
        raise ApiError(
            409, f"{application} cannot be loaded by this server: {error}", "application"
        ) from None
    if declared.runs_code:
        raise ApiError(403, f"jobs of {application} are not taken over HTTP", "application")
    fields = [FormField(one.key, one.metavar, one.help) for one in declared.options]
    return ApplicationForm(application, declared.takes_input, fields)


def answer_lines(application: str, result: Mapping[str, Any], solution: Solution) -> str:
    """Return a result as the text that its application defines. Raises ApiError if it defines none."""
    try:
        return "".join(f"{line}\n" for line in declaration_of(application).answer_lines(result, solution))
    except (UnknownApplication, ValueError) as error:
        raise ApiError(406, f"{error}; or ask with Accept: application/json") from None


def _unpacked(data: bytes, variables: int) -> Integers:
    bits = int.from_bytes(data, "little")
    text = f"{bits:0{max(variables, 1)}b}"[::-1]
    return array.array("i", [v if text[v - 1] == "1" else -v for v in range(1, variables + 1)])


class ServiceState(msgspec.Struct, frozen=True):
    """The state of the service on the api folder, if one runs, and its load. Ages in seconds.

    `states`: state -> number of live jobs. `generation`: 1, and one more for each change of the ranks.
    """

    running: bool
    last_sign_of_life: float | None = None
    ranks: int = 0
    generation: int = 1
    pes: int = 0
    busy: int = 0
    up: float = 0.0
    states: Mapping[str, int] = {}
    hosts: list[HostStatus] = []
    #: values by name (`service/telemetry/measures.py`), without the users' values
    measures: Mapping[str, Value] = {}
    #: names of the installed applications
    applications: list[str] = []


class UserState(msgspec.Struct, frozen=True):
    """A user with live jobs: the number of their workers, and their fair share in PEs, not rounded."""

    user: str
    jobs: int
    volume: int
    fair_share: float


class Job(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job. Times in seconds; `volume` is its number of workers, `fair_share` its fair share in PEs.

    `back_in`: the estimated time until a resting job continues. The waiting job of largest
    `standing` comes first. `number` is its number in the service, once it has one. `progress` and `interim`
    are set if its application reports them, `ended` once it has a reply.
    """

    user: str
    name: str
    key: str
    state: str
    id: str = ""
    number: int = 0
    application: str = ""
    group: str = ""
    client: int = 0
    priority: float = 1.0
    volume: int = 0
    demand: int = 0
    fair_share: float = 0.0
    back_in: float = 0.0
    standing: float = 0.0
    age: float = 0.0
    pe_seconds: float = 0.0
    cpu_seconds: float = 0.0
    progress: JobProgress | None = None
    interim: JobInterim | None = None
    #: the reason why a job without workers waits
    why: str = ""
    ended: Ended | None = None


class FormField(msgspec.Struct, frozen=True):
    """A key of an application's configuration: the type of its value, and its meaning in a sentence."""

    key: str
    metavar: str
    help: str


class ApplicationForm(msgspec.Struct, frozen=True):
    """The fields of a form for jobs of an application."""

    name: str
    takes_input: bool
    fields: list[FormField]


class EndedJobs(msgspec.Struct, frozen=True):
    """One page of the ended jobs; `total` is the number of jobs that match the search."""

    total: int
    jobs: list[Job]


class GroupJobs(msgspec.Struct, frozen=True):
    """A group in numbers, and a page of its `total` jobs: live jobs, then ended jobs, the latest first.

    `answers`: answer, such as SAT or time-limit -> number of ended jobs with this answer.
    """

    state: GroupState
    answers: Mapping[str, int]
    total: int
    jobs: list[Job]


class Overview(msgspec.Struct, frozen=True):
    """Live jobs (all running, some waiting jobs), their users, and the last ended jobs, of all clients."""

    service: ServiceState
    users: list[UserState]
    jobs: list[Job]
    recent: list[Job]
    #: the user of the shown token; empty for the operator's token
    user: str = ""
    #: whether /api/batch has something to show
    batch: bool = False
    #: the groups with live jobs
    groups: list[GroupState] = []


def job_of_status(
    job: JobStatus, ids: Mapping[tuple[int, str], str], shares: Mapping[int, float], why: str = ""
) -> Job:
    """Return a live job of the status. `ids`: (client, identity) -> submission; `shares`: number -> share."""
    return Job(
        user=job.user,
        name=job.name,
        key=job.identity,
        state=job.state,
        id=ids.get((job.client, job.identity), ""),
        application=job.application,
        group=job.group,
        client=job.client,
        priority=job.priority,
        volume=job.volume,
        demand=job.demand,
        number=job.id,
        fair_share=shares.get(job.id, 0.0),
        back_in=job.back_in_s,
        standing=job.standing,
        age=job.elapsed_s,
        pe_seconds=job.pe_s,
        cpu_seconds=job.cpu_s,
        progress=job.progress,
        interim=job.interim,
        why=why,
    )


#: the greatest number of jobs whose wait is explained, since each explanation looks at all other jobs
_EXPLAINED_MAX = 50


def reasons_of_waiting(status: ServiceStatus, user: str | None) -> dict[int, str]:
    """Return number of a job -> why it waits, for the first jobs without workers; None: of all users."""
    waiting = [job for job in status.jobs if not job.volume and user in (None, job.user)]
    waiting.sort(key=lambda job: -job.standing)
    seen = status if user is None else seen_by(user, status)
    return {job.id: " ".join(reasons(seen, job)) for job in waiting[:_EXPLAINED_MAX]}


def queued_job(record: Record) -> Job:
    """Return a job that was submitted and is not yet in the service's status."""
    age_s = max(0.0, now() - record.submitted)
    return _job_of_record(record, "queued", age_s)


def ended_job(record: Record) -> Job:
    """Return a job that was submitted over HTTP and whose reply has been read."""
    assert record.ended is not None
    total_s = record.ended.stats.get("time", {}).get("total", 0.0)
    return _job_of_record(record, "ended", total_s)


def _job_of_record(record: Record, state: str, age_s: float) -> Job:
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


def users_of(status: ServiceStatus) -> list[UserState]:
    """Return the users with live jobs, the user with most workers first."""
    shares = shares_by_user(status)
    users = [
        UserState(name, user.jobs, user.volume, shares.get(name, 0.0)) for name, user in status.users.items()
    ]
    return sorted(users, key=lambda user: (-user.volume, -user.fair_share, user.user))


def job_told_of(job: EndedJob, error_text: str) -> Job:
    """Return an ended job of the service's history; `error_text` is the error text that may be shown."""
    error = {"field": "", "message": error_text} if error_text else None
    stats = {"time": {"total": job.total_s}, "used_pe_seconds": job.pe_s, "used_cpu_seconds": job.cpu_s}
    code = UNKNOWN if job.code is None and not job.result else job.code
    ended = Ended(job.outcome, code, job.result, error=error, stats=stats, at=job.ended, number=job.id)
    return Job(
        user=job.user,
        name=job.name,
        key=identity_of(job.user, job.name),
        state="ended",
        number=job.id,
        application=job.application,
        group=job.group,
        client=job.client,
        priority=job.priority,
        age=job.total_s,
        pe_seconds=job.pe_s,
        cpu_seconds=job.cpu_s,
        ended=ended,
    )


def job_of_reply(user: str, name: str, client: int, reply: Mapping[str, Any], ended: Ended) -> Job:
    """Return an ended job of which only the reply is known."""
    stats = ended.stats if isinstance(ended.stats, Mapping) else {}
    times, priority = stats.get("time"), reply.get("priority", 1.0)
    return Job(
        user=user,
        name=name,
        key=identity_of(user, name),
        state="ended",
        number=ended.number,
        application=str(reply.get("application", DEFAULT_APPLICATION)),
        group=str(reply.get("group", "")),
        client=client,
        priority=priority if isinstance(priority, int | float) else 1.0,
        age=times.get("total", 0.0) if isinstance(times, Mapping) else 0.0,
        pe_seconds=stats.get("used_pe_seconds", 0.0),
        cpu_seconds=stats.get("used_cpu_seconds", 0.0),
        ended=ended,
    )


def end_of(job: Job) -> float:
    """Return the time of a job's end (since 1970); 0 if the job is live."""
    return 0.0 if job.ended is None else job.ended.at


#: keys of a reply's result that are sent in other fields, or whose values may be large
_TOLD_APART = {
    *("outcome", "resultcode", "resultstring", "solver", "result-files"),
    *("solution", "solutions", "solution-file", "solution-size", "solution-format"),
}
_RESULT_BYTES_MAX = 4096


def summary_of(reply: Mapping[str, Any], signature: Signature | None) -> Ended:
    """Return a summary of a reply; `signature`: of the reply's file; None: the file was not kept."""
    result = reply.get("result", {})
    further = {key: value for key, value in result.items() if key not in _TOLD_APART}
    if len(msgspec.json.encode(further)) > _RESULT_BYTES_MAX:
        further = {}
    return Ended(
        outcome=str(result.get("outcome", "")),
        resultcode=int(result.get("resultcode", 0)),
        resultstring=str(result.get("resultstring", "")),
        solver=str(result.get("solver", "")),
        error=reply.get("error"),
        stats=reply.get("stats", {}),
        warnings=[str(warning) for warning in reply.get("warnings", ())],
        at=now() if signature is None else signature[1] / 1e9,
        number=int(reply.get("internal_id", 0)),
        result=further,
    )


SAMPLES_MAX = 600
_BYTES_MAX = 8 << 20
#: greatest number of jobs in a sample: the jobs of largest volume; the other jobs' volumes are added up
_JOBS_MAX = 50


class Sample(msgspec.Struct, frozen=True):
    """The service at `time` (since 1970). `volumes`, `shares`: number of a job -> its volume, share in PEs.

    The volume of a job that takes turns with others is a mean since the previous sample. `others`: the sum of
    the volumes of all jobs that are not in `volumes`; `groups`: number of a group's first such job -> the
    group's part of `others`. `workers`: the job and worker index of each PE; null if no page was open. The
    parent of the worker of index i has the index (i - 1) // 2.
    """

    time: float
    pes: int
    busy: int
    volumes: Mapping[int, float]
    shares: Mapping[int, float]
    others: float = 0
    groups: Mapping[int, float] = {}
    workers: tuple[WorkerPlace, ...] | None = None


class JobName(msgspec.Struct, frozen=True):
    """The name of a job in samples."""

    user: str
    name: str
    client: int
    group: str = ""


class HistoryPart(msgspec.Struct, frozen=True):
    """Samples, the oldest first, and the jobs in them by number."""

    samples: list[Sample]
    jobs: Mapping[int, JobName]


class _Kept(msgspec.Struct, frozen=True):
    """A sample in encoded form, since many samples are kept and most are sent once."""

    time: float
    encoded: bytes
    jobs: frozenset[int]


class History:
    """The samples of the last minutes, for the slider of the page. All methods may be called from any thread.

    Samples are bounded in number and in bytes; the oldest are removed first. They come from the status that
    the service writes in any case; the status has job trees only while a page is open.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._kept: deque[_Kept] = deque()
        self._size_bytes = 0
        self._names: dict[int, JobName] = {}
        #: number of a job -> number of samples that contain the job
        self._uses: Counter[int] = Counter()
        self._before: ServiceStatus | None = None
        self.timelines = Timelines()

    def note(self, status: ServiceStatus) -> None:
        """Keep the current sample, unless it is kept already."""
        with self._mutex:
            if self._kept and status.time <= self._kept[-1].time:
                return
            volumes = _mean_volumes(status, self._before)
            self.timelines.note(status, volumes)
            sample, names = _sample_of(status, volumes)
            self._before = status
            self._names.update(names)
            kept = _Kept(status.time, msgspec.json.encode(sample), frozenset(names))
            self._uses.update(kept.jobs)
            self._kept.append(kept)
            self._size_bytes += len(kept.encoded)
            while len(self._kept) > SAMPLES_MAX or (self._size_bytes > _BYTES_MAX and len(self._kept) > 1):
                self._drop(self._kept.popleft())

    def since(self, time_s: float, user: str | None = None) -> bytes:
        """Return the samples after a time as a `HistoryPart` in JSON; only jobs of `user`, if given, have
        names.
        """
        with self._mutex:
            part = [kept for kept in self._kept if kept.time > time_s]
            names = {job: self._names[job] for kept in part for job in kept.jobs}
        if user is not None:
            names = {job: name for job, name in names.items() if name.user == user}
        samples = b",".join(kept.encoded for kept in part)
        return b'{"samples":[' + samples + b'],"jobs":' + msgspec.json.encode(names) + b"}"

    def _drop(self, kept: _Kept) -> None:
        self._size_bytes -= len(kept.encoded)
        self._uses.subtract(kept.jobs)
        for job in kept.jobs:
            if not self._uses[job]:
                del self._uses[job], self._names[job]


def _mean_volumes(status: ServiceStatus, before: ServiceStatus | None) -> dict[int, float]:
    """Return the volume of each job; for a job that takes turns, its mean volume since `before`."""
    volumes: dict[int, float] = {job.id: job.volume for job in status.jobs}
    if before is not None and (since_s := status.time - before.time) > 0.0:
        had_s = {job.id: job.pe_s for job in before.jobs if job.share}
        for job in status.jobs:
            if job.share and job.id in had_s:
                mean = (job.pe_s - had_s[job.id]) / (since_s * status.threads)
                volumes[job.id] = round(min(max(0.0, mean), max(job.demand, job.volume)), 2)
    return volumes


def _sample_of(status: ServiceStatus, volume_of: Mapping[int, float]) -> tuple[Sample, dict[int, JobName]]:
    shares = shares_by_job(status)

    def weight(job: JobStatus) -> tuple[float, ...]:
        return (-volume_of[job.id], -shares.get(job.id, 0.0), job.id)

    concerned = sorted((job for job in status.jobs if volume_of[job.id] or job.id in shares), key=weight)
    named, others = concerned[:_JOBS_MAX], concerned[_JOBS_MAX:]
    first: dict[tuple[str, str], JobStatus] = {}
    groups: dict[int, float] = {}
    for job in others:
        if job.group:
            number = first.setdefault((job.user, job.group), job).id
            groups[number] = groups.get(number, 0.0) + volume_of[job.id]
    sample = Sample(
        time=round(status.time, 3),
        pes=status.pes,
        busy=status.busy,
        volumes={job.id: volume_of[job.id] for job in named if volume_of[job.id]},
        shares={job.id: round(shares[job.id], 3) for job in named if job.id in shares},
        others=round(sum(volume_of[job.id] for job in others), 2),
        groups={number: round(volume, 2) for number, volume in groups.items()},
        workers=status.workers,
    )
    told = (*named, *first.values())
    return sample, {job.id: JobName(job.user, job.name, job.client, job.group) for job in told}
