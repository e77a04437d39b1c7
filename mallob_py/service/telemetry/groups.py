"""Groups: the jobs of a user with the same group name, seen from outside, and their results.

A group is only the field `group` of job files. Ended jobs are taken from the history, live jobs from their
files, or from the status, which is at most a second old. A group exists as long as one of these has a job of
the group. All clients of a service are read. Two users' groups of the same name are different groups.

The *time* of a job is its time with a PE, which `time-limit` bounds. As in solver competitions, PAR-2 is a
mean over all jobs: a solved job counts its time, an unsolved job twice the cutoff.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from mallob_py.kit.declaration import UNKNOWN
from mallob_py.protocol.effects import Outcome
from mallob_py.service.client import PendingJobs
from mallob_py.service.jobs.job_file import identity_of
from mallob_py.service.jobs.reply import REFUSED
from mallob_py.service.store.entries import reply_name
from mallob_py.service.store.journal import contents
from mallob_py.service.telemetry.history import read_history
from mallob_py.service.telemetry.status import EndedJob, GroupStatus, ServiceStatus, read_live_status

#: a user, and the name of a group of that user
GroupKey: TypeAlias = tuple[str, str]
#: job of a known group, whose user is the job's user: (number of the job's client, name of the job)
JobKey: TypeAlias = tuple[int, str]

#: shortest pause between two reads of all groups; pause as a multiple of the time that a read takes
_LOOK_DELAY_S, _LOOK_SHARE = 0.05, 4.0
#: longest wait for a reply's line in the history, which follows in the same turn of the service
_LINE_TIMEOUT_S = 5.0
_LIMITS = (Outcome.TIME_LIMIT.value, Outcome.WALLCLOCK_LIMIT.value, Outcome.CPU_LIMIT.value)
_FAILURES = (Outcome.FAILED.value, REFUSED)


class GroupState(msgspec.Struct, frozen=True):
    """A group in numbers. `unsolved` jobs ended without a result and without an error.

    `pe_s`: PE-seconds of ended jobs. `left_s`: time until the last job ends, if jobs go on ending at the rate
    seen since the group became live; None if no job has ended since.
    """

    user: str
    name: str
    solved: int
    unsolved: int
    failed: int
    running: int
    resting: int
    waiting: int
    pe_s: float
    left_s: float | None

    @property
    def ended(self) -> int:
        """Return the number of ended jobs."""
        return self.solved + self.unsolved + self.failed

    @property
    def live(self) -> int:
        """Return the number of live jobs."""
        return self.running + self.resting + self.waiting

    @property
    def jobs(self) -> int:
        """Return the number of all jobs."""
        return self.ended + self.live


class Group:
    """The jobs of one group: the ended jobs, and the names of the live jobs."""

    def __init__(self, key: GroupKey) -> None:
        self.user, self.name = key
        self.ended: dict[JobKey, EndedJob] = {}
        self.live: set[JobKey] = set()

    def results(self) -> list[EndedJob]:
        """Return the last ending of each job that is not live again, in the order of their acceptance."""
        jobs = (job for key, job in self.ended.items() if key not in self.live)
        return sorted(jobs, key=lambda job: (job.client, job.id))

    def cutoff_s(self, given_s: float | None) -> float | None:
        """Return the given cutoff, else the longest time at which a limit ended a job of the group."""
        return given_s or cutoff_of(self.results())

    def state(
        self, status: GroupStatus | None = None, now: float | None = None, live: int | None = None
    ) -> GroupState:
        """Return the group in numbers; the status tells how many live jobs run and rest.

        `live`: the number of live jobs, if not all are known by name.
        """
        jobs = self.results()
        kinds = Counter(map(kind_of, jobs))
        live = len(self.live) if live is None else live
        running = min(live, status.running) if status else 0
        resting = min(live - running, status.resting) if status else 0
        return GroupState(
            *(self.user, self.name),
            *(kinds["solved"], kinds["unsolved"], kinds["failed"]),
            *(running, resting, live - running - resting),
            pe_s=sum(job.pe_s for job in jobs),
            left_s=_left_s(jobs, live, status, time.time() if now is None else now),
        )


def _left_s(jobs: Sequence[EndedJob], live: int, status: GroupStatus | None, now: float) -> float | None:
    if not live or status is None:
        return None
    ends = sum(job.ended >= status.since for job in jobs)
    return live * max(0.0, now - status.since) / ends if ends else None


def answer_of(job: EndedJob) -> str:
    """Return the job's result if there is one, else its outcome."""
    return job.result if job.outcome == Outcome.RESULT.value else job.outcome


def kind_of(job: EndedJob) -> str:
    """Return solved, unsolved or failed. A job with the result UNKNOWN is unsolved."""
    if job.outcome in _FAILURES:
        return "failed"
    return "solved" if job.outcome == Outcome.RESULT.value and job.code != UNKNOWN else "unsolved"


def groups_of(
    jobs: Iterable[EndedJob], live: Mapping[GroupKey, Iterable[JobKey]] | None = None
) -> dict[GroupKey, Group]:
    """Return jobs by group; the group whose last job ended first comes first.

    The last ending of a job counts, except that a refusal hides no other ending: the refused file came while
    the job was live, or tells nothing about the job.
    """
    groups: dict[GroupKey, Group] = {}

    def last(key: GroupKey) -> Group:
        group = groups[key] = groups.pop(key) if key in groups else Group(key)
        return group

    for job in jobs:
        if not job.group:
            continue
        group = last((job.user, job.group))
        if job.outcome != REFUSED or (job.client, job.name) not in group.ended:
            group.ended[job.client, job.name] = job
    for key, names in (live or {}).items():
        last(key).live.update(names)
    return groups


def rest(began_s: float) -> None:
    """Sleep after reading the groups from `began_s` on, so that reading takes at most a fifth of the time."""
    time.sleep(max(_LOOK_DELAY_S, _LOOK_SHARE * (time.monotonic() - began_s)))


class GroupWatch:
    """Watches the groups of all clients of a service, which need not run."""

    def __init__(self, api_dir: Path) -> None:
        self._api_dir = api_dir
        self._clients: dict[int, PendingJobs] = {}

    def live(self) -> dict[GroupKey, set[JobKey]]:
        """Return group -> its jobs without a reply. Lists two folders per client, and reads each new job."""
        found: dict[GroupKey, set[JobKey]] = {}
        for folder in self._api_dir.glob("jobs.*"):
            if (number := folder.suffix[1:]).isdecimal():
                jobs = self._clients.setdefault(int(number), PendingJobs(folder))
                for job in jobs.look().grouped:
                    found.setdefault((job.user, job.group), set()).add((int(number), job.name))
        return found

    def look(self) -> dict[GroupKey, Group]:
        """Return all groups. A job that ends meanwhile is in its group, as live or as ended."""
        before = self.live()
        jobs = read_history(self._api_dir)
        live = self.live()
        ended = groups_of(jobs)
        for key, names in before.items():
            known = ended[key].ended if key in ended else {}
            # A job with a reply counts as live until its line is in the history, a moment later.
            live.setdefault(key, set()).update(name for name in names if not self._is_told(known.get(name)))
        return groups_of(jobs, {key: names for key, names in live.items() if names})

    def wait(self, group: Group, meanwhile: Callable[[int, int], None] = lambda ended, jobs: None) -> Group:
        """Wait until no job of the group is live, and return the group then.

        `meanwhile` is called after each check with the numbers of ended jobs and of all jobs; it may raise.
        """
        key, awaited = (group.user, group.name), set(group.live)
        began_s = time.monotonic()
        while live := self.live().get(key):
            awaited |= live
            jobs = len(awaited | group.ended.keys())
            meanwhile(jobs - len(live), jobs)
            rest(began_s)
            began_s = time.monotonic()
        group = self.look().get(key, group)
        while not all(self._is_told(group.ended.get(name)) for name in awaited):
            if time.monotonic() >= began_s + _LINE_TIMEOUT_S:
                break  # a crash at the moment of a reply can lose its line in the history
            time.sleep(_LOOK_DELAY_S)
            group = self.look().get(key, group)
        return group

    def _is_told(self, job: EndedJob | None) -> bool:
        """Tell whether `job` is the last ended job of its name: no later job of this name has a reply."""
        return job is not None and _reply_to(self._api_dir, job) is not None


def statuses(status: ServiceStatus | None) -> dict[GroupKey, GroupStatus]:
    """Return group -> its entry in a status."""
    return {} if status is None else {(group.user, group.name): group for group in status.groups}


def states_of(api_dir: Path, groups: Iterable[Group]) -> list[GroupState]:
    """Return groups in numbers, as the running service knows them."""
    told = statuses(read_live_status(api_dir))
    return [group.state(told.get((group.user, group.name))) for group in groups]


def live_groups(status: ServiceStatus, jobs: Iterable[EndedJob]) -> list[GroupState]:
    """Return the groups that have live jobs, as status and history know them: no job file is read.

    A job that has ended since the status was written counts as live.
    """
    if not status.groups:
        return []
    listed: dict[GroupKey, set[JobKey]] = {}
    for live in status.jobs:
        listed.setdefault((live.user, live.group), set()).add((live.client, live.name))
    groups = groups_of((job for job in jobs if job.ended <= status.time), listed)
    return [
        (groups.get(key) or Group(key)).state(told, status.time, told.jobs)
        for key, told in statuses(status).items()
    ]


# --- measures of solver competitions -------------------------------------------------------


def time_of(job: EndedJob) -> float:
    """Return the time of a job with a PE."""
    return job.turns_s or job.wallclock_s


def is_solved_within(job: EndedJob, cutoff_s: float | None) -> bool:
    """Tell whether the job has a result, found before the cutoff if there is one."""
    return kind_of(job) == "solved" and (cutoff_s is None or time_of(job) <= cutoff_s)


def cutoff_of(jobs: Iterable[EndedJob]) -> float | None:
    """Return the longest time at which a limit ended a job; None: no limit ended one."""
    return max((time_of(job) for job in jobs if job.outcome in _LIMITS), default=None)


def par2(jobs: Sequence[EndedJob], cutoff_s: float | None) -> float | None:
    """Return the PAR-2 of the jobs; None: there is no job, or no cutoff for unsolved jobs."""
    solved = [time_of(job) for job in jobs if is_solved_within(job, cutoff_s)]
    others = len(jobs) - len(solved)
    if not jobs or (others and cutoff_s is None):
        return None
    return (sum(solved) + others * 2 * (cutoff_s or 0.0)) / len(jobs)


# --- results, with fields of replies -------------------------------------------------------


class _Answer(msgspec.Struct):
    value: Any = None


class _Reply(msgspec.Struct):
    """The fields of a reply that the history does not have."""

    internal_id: int = 0
    files: tuple[str, ...] = ()
    file: str = ""
    configuration: dict[str, Any] = {}
    result: _Answer = msgspec.field(default_factory=_Answer)


class ResultRow(msgspec.Struct, frozen=True):
    """One job of a group: its ending and fields of its reply.

    `settings`: only the settings in which the jobs of the group differ.
    """

    job: EndedJob
    input: str
    value: Any
    settings: dict[str, Any]
    par2_s: float | None

    def cells(self) -> dict[str, Any]:
        """Return column -> value, for programs."""
        return {
            **{"job": identity_of(self.job.user, self.job.name), "input": self.input},
            **{"outcome": self.job.outcome, "result": self.job.result, "value": self.value},
            **{"time_s": time_of(self.job), "wallclock_s": self.job.wallclock_s, "total_s": self.job.total_s},
            **{"pe_s": self.job.pe_s, "cpu_s": self.job.cpu_s, "par2_s": self.par2_s},
            **{"max_volume": self.job.max_volume, "error": self.job.error, "ended": self.job.ended},
            **{f"configuration.{key}": value for key, value in self.settings.items()},
        }


def rows_of(api_dir: Path, group: Group, cutoff_s: float | None) -> list[ResultRow]:
    """Return the results of a group, a row for each job that has ended."""
    jobs = group.results()
    replies = [_reply_to(api_dir, job) or _Reply() for job in jobs]
    keys = list(dict.fromkeys(key for reply in replies for key in reply.configuration))
    told = [{key: reply.configuration.get(key) for key in keys} for reply in replies]
    varied = [key for key in keys if any(one[key] != told[0][key] for one in told)]
    return [
        ResultRow(
            job,
            input=(*reply.files, reply.file)[0],
            value=reply.result.value,
            settings={key: settings[key] for key in varied},
            par2_s=par2([job], cutoff_s),
        )
        for job, reply, settings in zip(jobs, replies, told, strict=True)
    ]


def _reply_to(api_dir: Path, job: EndedJob) -> _Reply | None:
    """Return the reply to a job; an empty reply if it was removed; None: another job's reply is there."""
    path = api_dir / f"jobs.{job.client}" / "out" / reply_name(identity_of(job.user, job.name))
    with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        reply = msgspec.json.decode(contents(str(path)), type=_Reply)
        return reply if reply.internal_id == job.id else None
    return _Reply()
