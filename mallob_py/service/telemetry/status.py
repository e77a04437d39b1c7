"""Status files, in which each client of the service describes itself once a second.

Client 0 writes `<api-dir>/status.json`, for the service as a whole; each further client writes
`jobs.<i>/.status.json`. The files are replaced atomically; `read_status` merges them. Readers take a status
that is missing or older than `STALE_AFTER_S` as "no service is running": a killed service leaves its last
status behind.

The status tells the job of each PE only while a reader calls `look` every few seconds, since the service must
ask its ranks for these jobs.

The status also has counters for long watches (`mallob-py web`, Prometheus): replies by outcome, times as
histograms. They start at zero with the service and only grow. Each reply costs a few bisections.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from mallob_py.protocol.interim import Interim, Number
from mallob_py.protocol.job_terms import JobTerms
from mallob_py.protocol.progress import Progression
from mallob_py.protocol.rank_messages import RankUse, WorkerPlace
from mallob_py.service.jobs.reply import JobStatistics
from mallob_py.service.store import own_folder

#: upper bounds of the buckets in seconds; a last bucket without a bound follows
BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60, 600, 3600)


class Histogram(msgspec.Struct, frozen=True):
    """Durations: their number in each bucket (not cumulative), and their sum."""

    counts: tuple[int, ...]
    sum_s: float

    def plus(self, other: Histogram) -> Histogram:
        counts = tuple(one + two for one, two in zip(self.counts, other.counts, strict=True))
        return Histogram(counts, self.sum_s + other.sum_s)


class Totals(msgspec.Struct, frozen=True):
    """Numbers of replies by outcome, and histograms of times by name, since the start of the service."""

    replies: Mapping[str, int] = {}
    times: Mapping[str, Histogram] = {}
    #: PE-seconds and CPU seconds of ended jobs
    pe_s: float = 0.0
    cpu_s: float = 0.0


class Counters:
    """The counters of one client: its replies, their durations, and the PE and CPU seconds of ended jobs."""

    def __init__(self) -> None:
        self._replies: Counter[str] = Counter()
        self._counts: dict[str, list[int]] = {}
        self._sums_s: dict[str, float] = {}
        self._pe_s = 0.0
        self._cpu_s = 0.0

    def replied(self, outcome: str) -> None:
        self._replies[outcome] += 1

    def ended(self, outcome: str, statistics: JobStatistics) -> None:
        """Count the reply of a job that was at its PE."""
        self.replied(outcome)
        self._pe_s += statistics.used_pe_s
        self._cpu_s += statistics.used_cpu_s
        self._take_down("total", statistics.total_s)
        self._take_down("parsing", statistics.parsing_s)
        if statistics.max_volume:  # without a worker, there was nothing to wait for
            self._take_down("scheduling", statistics.scheduling_s)
            self._take_down("first_balancing", statistics.first_balancing_latency_s)
            self._take_down("processing", statistics.processing_s)

    def totals(self) -> Totals:
        times = {name: Histogram(tuple(counts), self._sums_s[name]) for name, counts in self._counts.items()}
        return Totals(dict(self._replies), times, self._pe_s, self._cpu_s)

    def _take_down(self, name: str, duration_s: float) -> None:
        counts = self._counts.setdefault(name, [0] * (len(BOUNDS_S) + 1))
        counts[bisect_left(BOUNDS_S, duration_s)] += 1
        self._sums_s[name] = self._sums_s.get(name, 0.0) + duration_s


def sum_of(all_totals: Iterable[Totals]) -> Totals:
    """Return the sum of several clients' totals."""
    replies: Counter[str] = Counter()
    times: dict[str, Histogram] = {}
    pe_s = cpu_s = 0.0
    for totals in all_totals:
        pe_s, cpu_s = pe_s + totals.pe_s, cpu_s + totals.cpu_s
        replies.update(totals.replies)
        for name, histogram in totals.times.items():
            times[name] = times[name].plus(histogram) if name in times else histogram
    return Totals(dict(replies), times, pe_s, cpu_s)


STATUS_FILE_NAME = "status.json"
STALE_AFTER_S = 5.0
#: file below the api folder; its modification time is the time of the last call of `look`
_LOOK_PATH = "web/looking"
_LOOK_LASTS_S = 5.0


class JobProgress(msgspec.Struct, frozen=True):
    """A job's progress as its application reports it: `done` of `total`, if known; `rate` per second."""

    done: float
    rate: float
    total: float | None = None
    unit: str = ""


class JobInterim(msgspec.Struct, frozen=True):
    """The best offers of a job's workers: an answer of this `value`, and a `bound` that no value can beat.

    `label`: the application's name for the value; "" if the value must not be shown.
    """

    label: str
    minimizes: bool
    value: Number | None = None
    bound: Number | None = None


class JobStatus(JobTerms, frozen=True):
    """One live job, with the terms that its file asks for.

    `volume`: its number of workers. `client`: the client that took it in. `balanced_priority`: its priority
    in the balancing, as its user's share allows; 0 before. A limit or bound of 0 means none.
    """

    id: int
    user: str
    name: str
    state: str
    volume: int = 0
    demand: int = 0
    elapsed_s: float = 0.0
    application: str = ""
    group: str = ""
    client: int = 0
    balanced_priority: float = 0.0
    # --- facts about a job that does not run yet

    #: some of the job's dependencies that have not ended, and the number of all such dependencies
    waits_for: tuple[str, ...] = ()
    waits_for_count: int = 0
    arrives_in_s: float = 0.0
    #: time for which the job's input has been read, or has waited for a reader
    reading_s: float = 0.0
    #: number of bytes read of the input file, and the file's size; 0 of 0: not known
    read_bytes: int = 0
    input_bytes: int = 0
    #: number of the service's crashes in a row while the job ran, and the number from which on the job is not
    #: run again
    crashes: int = 0
    crashes_max: int = 0
    is_suspect: bool = False
    # --- facts about a job that the PEs know

    #: bound of the job's demand: its own bound, or its part of its user's bound
    demand_bound: int = 0
    #: number of workers that the job's application could use; None: any number
    wanted: int | None = None
    #: PEs that the job deserves on average over time; 0 while whole PEs suffice for all jobs
    share: float = 0.0
    #: PE of the job's root; -1: none
    root: int = -1
    #: for a job that rests because there are more jobs than PEs: PE of the job, and about how long the rest
    #: still takes
    rests_at: int = -1
    back_in_s: float = 0.0
    #: for a job that was given up: shortest time with a PE once the job begins again
    next_turn_s: float = 0.0
    #: for a waiting job that cannot begin anew: number of such jobs at work, one of which must end first
    lasting_before: int = 0
    #: the job's standing: a waiting job of larger standing gets a PE first
    standing: float = 0.0
    root_is_placed: bool = False
    #: time since the job's first execution, and the part of this time with a PE
    running_s: float = 0.0
    turns_s: float = 0.0
    pe_s: float = 0.0
    cpu_s: float = 0.0
    peak_memory_bytes: int = 0
    #: progress; None: the application reports none
    progress: JobProgress | None = None
    #: best offers; None: the job's workers have offered nothing
    interim: JobInterim | None = None

    @property
    def identity(self) -> str:
        return f"{self.user}.{self.name}"

    @property
    def state_text(self) -> str:
        """Return the state, with the time until a resting job goes on."""
        return f"{self.state}, back in {self.back_in_s:.1f} s" if self.back_in_s else self.state


class EndedJob(msgspec.Struct, frozen=True):
    """A job that has its reply. `ended`: seconds since 1970. `result`: such as SAT. `error`: if it failed.

    For a refused file that does not name its job's user, `name` is the file's name, and `user` is empty.
    """

    id: int
    user: str
    name: str
    outcome: str
    ended: float
    result: str = ""
    error: str = ""
    application: str = ""
    priority: float = 1.0
    max_volume: int = 0
    total_s: float = 0.0
    wallclock_s: float = 0.0
    #: the part of `wallclock_s` in which the job had a PE
    turns_s: float = 0.0
    pe_s: float = 0.0
    cpu_s: float = 0.0
    client: int = 0
    #: the result's code; None: the job has no result, or ended under an older version
    code: int | None = None
    group: str = ""


class UserStatus(msgspec.Struct, frozen=True):
    """One user with live jobs, at one client or at all clients."""

    jobs: int
    volume: int
    #: number of jobs at work, the bound on this number (None: no bound), and the sum of their priorities
    at_work: int = 0
    at_work_max: int | None = None
    priorities: float = 0.0
    #: greatest number of PEs on which this user may have workers; None: no bound
    pes_max: int | None = None
    weight: float = 1.0


class GroupStatus(msgspec.Struct, frozen=True):
    """The live jobs of a user's group, at one client or at all clients. `since`: arrival of the first job."""

    user: str
    name: str
    jobs: int
    running: int = 0
    resting: int = 0
    since: float = 0.0

    @property
    def waiting(self) -> int:
        """Return the number of jobs that neither run nor rest."""
        return max(0, self.jobs - self.running - self.resting)


class HostStatus(msgspec.Struct, frozen=True):
    """A host of the service: `busy` of the `pes` PEs of its ranks run a worker.

    `turns`: turns per second of the busiest loop among its ranks; 0 if all loops rest. `uses`: the use of
    each rank, in the order of `ranks`.
    """

    name: str
    ranks: tuple[int, ...]
    pes: int
    busy: int
    troubles: tuple[str, ...] = ()
    turns: int = 0
    uses: tuple[RankUse, ...] = ()


class ClientProcess(msgspec.Struct, frozen=True):
    """The process of a client's rank."""

    host: str
    pid: int


class ServiceStatus(msgspec.Struct, frozen=True):
    """The service at `time` (seconds since 1970): `busy` of its `pes` PEs run a worker.

    `jobs`: all running and some waiting jobs; `states` and `users` count all jobs.
    """

    time: float
    ranks: int
    pes: int
    busy: int
    jobs: tuple[JobStatus, ...] = ()
    clients: int = 1
    started: float = 0.0
    totals: Totals = Totals()
    processes: tuple[ClientProcess, ...] = ()
    #: the job of each PE; None: no reader has asked for it by `look`
    workers: tuple[WorkerPlace, ...] | None = None
    #: number of jobs in each state
    states: Mapping[str, int] = {}
    users: Mapping[str, UserStatus] = {}
    #: groups with live jobs; if there are many, only the groups that began last
    groups: tuple[GroupStatus, ...] = ()
    hosts: tuple[HostStatus, ...] = ()
    #: the last ended jobs of each client, oldest first
    ended: tuple[EndedJob, ...] = ()
    #: cores of a PE, for CPU limits
    threads: int = 1
    #: time of waiting for a PE that counts as much as a doubled priority
    ageing_s: float = 60.0
    #: number of the generation: from 1, one more each time that ranks are lost, leave or join
    generation: int = 1

    @property
    def job_count(self) -> int:
        """Return the number of live jobs."""
        return sum(self.states.values())

    def age_s(self) -> float:
        return max(0.0, time.time() - self.time)

    def is_stale(self) -> bool:
        return self.age_s() > STALE_AFTER_S

    def volumes_by_user(self) -> Counter[str]:
        """Return the number of workers of each user with live jobs."""
        return Counter({name: user.volume for name, user in self.users.items()})

    def job(self, identity: str, client: int) -> JobStatus | None:
        """Return the live job of this identity at this client, if it is listed."""
        return next((job for job in self.jobs if job.client == client and job.identity == identity), None)


def progress_of(progression: Progression | None, now: float) -> JobProgress | None:
    """Return a job's progress for people, from a PE's record."""
    if progression is None or (last := progression.last) is None:
        return None
    return JobProgress(last.done, progression.rate(now), last.total, last.unit)


def interim_of(interim: Interim | None) -> JobInterim | None:
    """Return a job's offers for people, from a PE's record."""
    if interim is None:
        return None
    return JobInterim(interim.label, interim.minimizes, interim.value, interim.bound)


def write_status(api_dir: str | os.PathLike[str], status: ServiceStatus, client: int = 0) -> None:
    """Replace a client's status file. Raises OSError."""
    own_folder.replace_file(_path(api_dir, client), msgspec.json.encode(status))


def remove_status(api_dir: str | os.PathLike[str], client: int = 0) -> None:
    """Remove a client's status file, which shows that the client has ended."""
    _path(api_dir, client).unlink(missing_ok=True)


def read_status(api_dir: str | os.PathLike[str]) -> ServiceStatus | None:
    """Return the last status of the service, however old; None: no readable status."""
    first = _read(_path(api_dir, 0))
    if first is None or first.clients == 1:
        return first
    others = [_read(_path(api_dir, client)) for client in range(1, first.clients)]
    # An old file may be from a client of an earlier service.
    parts = [first, *(other for other in others if other and abs(other.time - first.time) < STALE_AFTER_S)]
    return msgspec.structs.replace(
        first,
        jobs=tuple(job for part in parts for job in part.jobs),
        totals=sum_of(part.totals for part in parts),
        processes=tuple(process for part in parts for process in part.processes),
        states=sum((Counter(part.states) for part in parts), Counter()),
        users=_users_of(parts),
        groups=_groups_of(parts),
        ended=tuple(sorted((job for part in parts for job in part.ended), key=lambda job: job.ended)),
    )


def _users_of(parts: Iterable[ServiceStatus]) -> dict[str, UserStatus]:
    users: dict[str, UserStatus] = {}
    for part in parts:
        for name, user in part.users.items():
            if (known := users.get(name)) is None:
                users[name] = user
                continue
            # Each client's `at_work` counts the jobs at all clients, so these numbers are not added: the
            # largest is the latest.
            users[name] = msgspec.structs.replace(
                user,
                jobs=known.jobs + user.jobs,
                volume=known.volume + user.volume,
                at_work=max(known.at_work, user.at_work),
                priorities=max(known.priorities, user.priorities),
            )
    return users


def _groups_of(parts: Iterable[ServiceStatus]) -> tuple[GroupStatus, ...]:
    groups: dict[tuple[str, str], GroupStatus] = {}
    for group in (group for part in parts for group in part.groups):
        if (known := groups.get((group.user, group.name))) is not None:
            group = GroupStatus(
                *(group.user, group.name, known.jobs + group.jobs),
                running=known.running + group.running,
                resting=known.resting + group.resting,
                since=min(known.since, group.since),
            )
        groups[group.user, group.name] = group
    return tuple(groups.values())


def read_live_status(api_dir: str | os.PathLike[str]) -> ServiceStatus | None:
    """Return the status of a running service; None: no service runs."""
    status = read_seen_status(api_dir)
    return None if status is None or status.is_stale() else status


#: time for which a status is watched for a change, which a service makes once a second; pause between reads
_WATCHED_S, _LOOK_S = 3.0, 0.1


class StatusWatch:
    """Repeated reads of the status. Once it was seen to change, its writer's clock does not matter."""

    def __init__(self, api_dir: str | os.PathLike[str]) -> None:
        self._api_dir = api_dir
        self._last_s = -math.inf
        #: time of the last seen change of the status, by `time.monotonic`
        self._changed_s: float | None = None

    def read(self) -> ServiceStatus | None:
        """Return the last status; its time is when a change was last seen here, if any was seen."""
        status, now = read_status(self._api_dir), time.monotonic()
        if status is None:
            return None
        if status.time != self._last_s:
            if self._last_s > -math.inf:
                self._changed_s = now
            self._last_s = status.time
        if self._changed_s is None:
            return status
        return msgspec.structs.replace(status, time=time.time() - (now - self._changed_s))


def read_seen_status(api_dir: str | os.PathLike[str]) -> ServiceStatus | None:
    """Return the last status, with its time by our clock even if the writer's clock differs.

    If the service's folder is in use but its status seems old or from the future, the status is watched for a
    change, whose time counts: the service's host may have another clock.
    """
    status = read_status(api_dir)
    if status is None or abs(time.time() - status.time) <= STALE_AFTER_S:
        return status
    from mallob_py.service.store.lock import holder_of

    with contextlib.suppress(OSError):
        if holder_of(Path(api_dir) / "jobs.0") is None:
            return status if status.is_stale() else msgspec.structs.replace(status, time=0.0)
    until_s = time.monotonic() + _WATCHED_S
    while time.monotonic() < until_s:
        now = read_status(api_dir)
        if now is None:
            return None
        if now.time != status.time:
            return msgspec.structs.replace(now, time=time.time())
        time.sleep(_LOOK_S)
    return status if status.is_stale() else msgspec.structs.replace(status, time=0.0)


def look(api_dir: str | os.PathLike[str]) -> None:
    """Have the status show the job of each PE for the next few seconds. Raises OSError."""
    path = Path(api_dir) / _LOOK_PATH
    own_folder.make(path.parent)
    os.close(own_folder.open_file(path, os.O_WRONLY | os.O_CREAT))
    os.utime(path, follow_symlinks=False)


class Onlookers:
    """The readers that have called `look` lately. Clocks of several hosts are not compared."""

    def __init__(self, api_dir: str | os.PathLike[str]) -> None:
        self._path = os.path.join(api_dir, _LOOK_PATH)
        self._last = self._looked()
        self._until_s = -math.inf

    def are_there(self, now: float) -> bool:
        if (looked := self._looked()) != self._last:
            self._last = looked
            self._until_s = now + _LOOK_LASTS_S
        return now < self._until_s

    def _looked(self) -> int:
        try:
            return os.stat(self._path).st_mtime_ns
        except OSError:
            return 0


def _path(api_dir: str | os.PathLike[str], client: int) -> Path:
    folder = Path(api_dir)
    return folder / STATUS_FILE_NAME if client == 0 else folder / f"jobs.{client}" / f".{STATUS_FILE_NAME}"


def _read(path: Path) -> ServiceStatus | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=ServiceStatus)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
