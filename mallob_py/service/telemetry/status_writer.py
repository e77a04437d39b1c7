"""The writer of one client's status file, about once a second.

The file is bounded: it lists at most OTHERS_MAX jobs that do not run (all are counted), the last ENDED_MAX
ended jobs, and the last GROUPS_MAX groups; long texts are cut.

While a reader wants the job of each PE, client 0 asks all ranks for their workers' jobs shortly before it
writes.

The module also has the message of an ending client about its unfinished work.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import msgspec
from msgspec.structs import asdict

from mallob_py.log_events import LogEvent
from mallob_py.protocol.balancing import standing
from mallob_py.protocol.effects import Outcome
from mallob_py.protocol.job_life import JobState
from mallob_py.protocol.rotation import back_in_s
from mallob_py.runtime.processes import bytes_read
from mallob_py.service.jobs.live import LiveJob
from mallob_py.service.jobs.reply import JobStatistics, valid_text
from mallob_py.service.parts import Parts
from mallob_py.service.telemetry.history import HistoryWriter
from mallob_py.service.telemetry.status import (
    ClientProcess,
    Counters,
    EndedJob,
    GroupStatus,
    HostStatus,
    JobStatus,
    Onlookers,
    ServiceStatus,
    UserStatus,
    interim_of,
    progress_of,
    remove_status,
    write_status,
)


@dataclass(frozen=True, slots=True)
class Leftovers:
    """The unfinished work in a client's folder."""

    running_jobs: int
    waiting_jobs: int
    #: number of chains of revisions that are not done
    chains: int
    #: number of replies that are ready, but could not be written
    replies: int
    #: number of job files not taken in
    files: int


def last_words(client_dir: Path, left: Leftovers) -> str:
    """Return the message of an ending client, in one line."""
    journalled = []
    if left.running_jobs:
        journalled.append(_count(left.running_jobs, "running job"))
    if left.waiting_jobs:
        journalled.append(_count(left.waiting_jobs, "waiting job"))
    if left.chains:
        journalled.append(f"{_count(left.chains, 'chain')} of revisions")
    parts = []
    if journalled:
        parts.append(f"kept in {client_dir / 'journal'} for the next start: {', '.join(journalled)}")
    if left.replies:
        parts.append(f"not yet written to {client_dir / 'out'}: {_count(left.replies, 'reply')}")
    if left.files:
        parts.append(f"not yet looked at in {client_dir / 'in'}: {_count(left.files, 'job file')}")
    if not parts:
        return f"ended; every job of {client_dir} has its reply"
    return f"ended; {'; '.join(parts)}"


def _count(number: int, what: str) -> str:
    if number == 1:
        return f"1 {what}"
    return f"{number} {what[:-1]}ies" if what.endswith("y") else f"{number} {what}s"


OTHERS_MAX = 500
GROUPS_MAX = 100
ENDED_MAX = 100
_DEPENDENCIES_MAX = 20
_TEXT_MAX = 300
_PERIOD_S = 1.0
#: time between asking the ranks and writing a status for onlookers
_ROLL_LEAD_S = 0.05


class StatusWriter:
    """The status of one client."""

    def __init__(self, parts: Parts, api_dir: Path, client: int, clients: int) -> None:
        """Make the writer; it reads `parts` at each status, but changes nothing there."""
        self._rank = parts.rank
        self._node = parts.rank.node
        self._api_dir = api_dir
        self._client = client
        self._clients = clients
        self._jobs = parts.machine.jobs
        self._line = parts.machine.line
        self._holds = parts.machine.holds
        self._users = parts.machine.users
        self._running = parts.running
        self.counters = Counters()
        self._process = ClientProcess(socket.gethostname(), os.getpid())
        self._ended: deque[EndedJob] = deque(maxlen=ENDED_MAX)
        self._history = HistoryWriter(api_dir / f"jobs.{client}")
        self._history_problem = ""
        self._onlookers = Onlookers(api_dir) if client == 0 else None
        self._next_write_s = -math.inf
        self._next_roll_s = math.inf
        #: time at which `turn` has something to do
        self.deadline_s = -math.inf

    def turn(self, now: float) -> None:
        self._write_history(now)
        if now >= self._next_roll_s:
            self._next_roll_s = math.inf
            self._rank.call_roll()
        if now >= self._next_write_s:
            self._next_write_s = now + _PERIOD_S
            self._write_for_onlookers(now)
        self.deadline_s = min(self._next_write_s, self._next_roll_s)

    def _write_for_onlookers(self, now: float) -> None:
        """Write the status; if there are onlookers, ask the ranks before the next status."""
        try:
            self.write(now)
        except OSError as error:
            self._rank.log.write(
                now, LogEvent.PROBLEM, {"message": f"cannot write the status: {error.strerror}"}
            )
        if self._onlookers is None:
            return
        if self._onlookers.are_there(now):
            self._next_roll_s = self._next_write_s - _ROLL_LEAD_S
        else:
            self._node.reports.roll.clear()

    def job_ended(
        self,
        job: LiveJob,
        outcome: Outcome,
        statistics: JobStatistics,
        result: str = "",
        error: str = "",
        code: int | None = None,
    ) -> None:
        """Record a job that has its reply."""
        self._tell_of(
            EndedJob(
                id=job.id,
                user=job.user,
                name=job.name,
                outcome=outcome.value,
                ended=time.time(),
                result=result,
                error=error and valid_text(error)[:_TEXT_MAX],
                application=job.application,
                group=job.group,
                priority=job.terms.priority,
                max_volume=statistics.max_volume,
                total_s=statistics.total_s,
                wallclock_s=statistics.used_wallclock_s,
                turns_s=statistics.used_turns_s,
                pe_s=statistics.used_pe_s,
                cpu_s=statistics.used_cpu_s,
                client=self._client,
                code=code,
            )
        )

    def refused(self, job: int, user: str, name: str, error: str, group: str = "") -> None:
        """Record a refused job. If its user is unknown, `user` is "" and `name` the file's name."""
        text = valid_text(error)[:_TEXT_MAX]
        name = valid_text(name)
        refusal = EndedJob(
            job, user, name, "refused", time.time(), error=text, client=self._client, group=group
        )
        self._tell_of(refusal)

    def _tell_of(self, job: EndedJob) -> None:
        self._ended.append(job)
        self._history.add(job)
        if not self._history_problem:
            self.deadline_s = -math.inf  # the history is written in this turn of the loop

    def _write_history(self, now: float) -> None:
        try:
            self._history.flush()
            self._history_problem = ""
        except OSError as error:
            problem = f"cannot write the history: {error.strerror}"
            if problem != self._history_problem:
                self._rank.log.write(now, LogEvent.PROBLEM, {"message": problem})
            self._history_problem = problem  # the next status tries again to write the history

    def write(self, now: float) -> None:
        """Write the status file. Raises OSError."""
        write_status(self._api_dir, self.status(now), self._client)

    def remove(self) -> None:
        """Remove the status file, since the client ends."""
        with contextlib.suppress(OSError):
            self._history.flush()
        remove_status(self._api_dir, self._client)

    def status(self, now: float) -> ServiceStatus:
        """Return the client's status at this time."""
        placement, balancer = self._node.placement, self._node.pe.balancer
        volumes = self._volumes()
        listed = [*(volumes.keys() & self._jobs.keys()), *self._others(volumes)]
        return ServiceStatus(
            time=time.time(),
            ranks=placement.ranks,
            pes=placement.size,
            busy=balancer.total_volume,
            jobs=tuple(self._job_status(job, volumes.get(job, 0), now) for job in listed),
            clients=self._clients,
            started=time.time() - now,  # the start, by the present setting of the clock
            totals=self.counters.totals(),
            processes=(self._process,),
            workers=self._node.reports.roll.workers(),
            states=self.states(),
            users=self._user_statuses(volumes),
            groups=self._group_statuses(now),
            hosts=self._hosts() if self._client == 0 else (),
            ended=tuple(self._ended),
            threads=self._node.config.threads,
            ageing_s=self._node.config.ageing_s,
            generation=self._node.present.number,
        )

    def _volumes(self) -> dict[int, int]:
        """Return the volumes of the jobs that run."""
        balancer = self._node.pe.balancer
        return {job: volume for job in self._node.pe.client.jobs if (volume := balancer.volume(job))}

    def _others(self, volumes: Mapping[int, int]) -> list[int]:
        """Return some jobs that do not run: jobs at work, the best waiting jobs, the oldest jobs."""
        others = chain(self._line.at_work(), self._line.first(OTHERS_MAX // 2), self._jobs)
        found = islice((job for job in others if job not in volumes), 2 * OTHERS_MAX)
        return list(dict.fromkeys(found))[:OTHERS_MAX]

    def _job_status(self, job: int, volume: int, now: float) -> JobStatus:
        live = self._jobs[job]
        event = self._node.pe.balancer.jobs.get(job)
        unmet, arrival_s = self._holds.waits_for(job)
        read, of = self._read_of(live)
        status = JobStatus(
            id=job,
            user=live.user,
            name=live.name,
            state=self._state(live),
            volume=volume,
            demand=event.demand if event else 0,
            elapsed_s=now - live.accepted_s,
            application=live.application,
            group=live.group,
            client=self._client,
            **asdict(live.terms),
            waits_for=tuple(sorted(unmet)[:_DEPENDENCIES_MAX]),
            waits_for_count=len(unmet),
            lasting_before=self._line.lasting_before(live),
            arrives_in_s=max(0.0, arrival_s - now),
            standing=standing(live.terms.priority, live.since_s, self._node.config.ageing_s),
            reading_s=now - live.reading_s if live.state is JobState.READING else 0.0,
            read_bytes=read,
            input_bytes=of,
            crashes=self._running.crashes(job),
            balanced_priority=event.priority if event else 0.0,
            is_suspect=self._running.is_suspect(job),
            crashes_max=self._running.crashes_max(job),
        )
        return self._with_account(status, now)

    def _read_of(self, live: LiveJob) -> tuple[int, int]:
        """Return (bytes already read, size) of the input file that is being read; (0, 0): unknown."""
        if live.state is not JobState.READING or (pid := self._rank.pool.pid_of(live.id)) is None:
            return 0, 0
        far = (bytes_read(pid, path) for path in live.known_file.files)
        return next(filter(None, far), (0, 0))

    def _with_account(self, status: JobStatus, now: float) -> JobStatus:
        """Add what the PE knows of the job, if it has the job."""
        record = self._node.pe.client.jobs.get(status.id)
        if record is None:
            return self._with_former_account(status, now)
        balancer = self._node.pe.balancer
        rotation, slices, back_s = balancer.rotation, self._node.config.slices, 0.0
        if record.rests and slices is not None and status.id in rotation.shares:
            volumes = {job for job in rotation.shares if balancer.volume(job)}
            back_s = back_in_s(rotation, volumes, status.id, slices)
        return msgspec.structs.replace(
            status,
            share=rotation.shares.get(status.id, 0.0),
            root=record.root_pe,
            rests_at=record.told_root if record.rests else -1,
            back_in_s=back_s,
            demand_bound=record.parameters.max_demand,
            wanted=record.wanted,
            standing=record.standing,
            root_is_placed=record.scheduled_s is not None,
            running_s=0.0 if record.started_s is None else now - record.started_s,
            turns_s=record.turns_s_until(now),
            pe_s=record.pe_s_until(now, self._node.config.threads),
            cpu_s=record.cpu_s,
            peak_memory_bytes=record.peak_memory_bytes,
            progress=progress_of(record.progression, now),
            interim=interim_of(record.interim),
        )

    def _with_former_account(self, status: JobStatus, now: float) -> JobStatus:
        """Add the times and the memory that a job has used before it was given up."""
        live = self._jobs[status.id]
        if (spent := live.spent) is None:
            return status
        return msgspec.structs.replace(
            status,
            running_s=0.0 if spent.started_s is None else now - spent.started_s,
            turns_s=spent.turns_s,
            pe_s=spent.pe_s,
            cpu_s=spent.cpu_s,
            peak_memory_bytes=spent.peak_memory_bytes,
            next_turn_s=2 * live.last_turn_s,
        )

    def _state(self, live: LiveJob) -> str:
        """Return the state of a job in a word for people, as the PE sees it if it has the job."""
        record = self._node.pe.client.jobs.get(live.id)
        if record is None or live.state is not JobState.AT_PE:
            return live.state.shown
        balancer = self._node.pe.balancer
        if balancer.volume(live.id):
            return "running"
        return record.state.shown if live.id in balancer.jobs else "submitted"

    def states(self) -> dict[str, int]:
        """Return state -> number of jobs, counting all jobs, listed or not."""
        counts: Counter[str] = Counter()
        for state, count in self._jobs.states.items():
            if state is not JobState.AT_PE:
                counts[state.shown] += count
        at_work = (self._jobs[job] for job in self._line.at_work())
        counts.update(self._state(job) for job in at_work if job.state is JobState.AT_PE)
        return {state: count for state, count in counts.items() if count > 0}

    def _user_statuses(self, volumes: Mapping[int, int]) -> dict[str, UserStatus]:
        jobs = self._jobs.users
        held: Counter[str] = Counter()
        for job, volume in volumes.items():
            if job in self._jobs:
                held[self._jobs[job].user] += volume
        return {
            user: UserStatus(count, held[user], *self._users.account(user)) for user, count in jobs.items()
        }

    def _group_statuses(self, now: float) -> tuple[GroupStatus, ...]:
        """Return the groups that began last, with counts of their jobs."""
        groups = self._jobs.groups
        if not groups:
            return ()
        states: Counter[tuple[str, str, str]] = Counter()
        for live in (self._jobs[job] for job in self._line.at_work()):
            if live.group:
                states[live.user, live.group, self._state(live)] += 1
        shown = islice(reversed(groups.items()), GROUPS_MAX)
        return tuple(
            GroupStatus(
                *(user, name, group.jobs),
                running=states[user, name, "running"],
                resting=states[user, name, "resting"],
                since=time.time() - (now - group.began_s),
            )
            for (user, name), group in shown
        )

    def _hosts(self) -> tuple[HostStatus, ...]:
        """Return the hosts as last reported by the ranks."""
        ranks_of: dict[str, list[int]] = {}
        for rank, news in sorted(self._node.reports.of_ranks.items()):
            ranks_of.setdefault(news.host, []).append(rank)
        hosts = []
        for host, ranks in ranks_of.items():
            all_news = [self._node.reports.of_ranks[rank] for rank in ranks]
            troubles = tuple(dict.fromkeys(text[:_TEXT_MAX] for news in all_news for text in news.troubles))
            pes, busy = sum(news.pes for news in all_news), sum(news.busy for news in all_news)
            turns = max(news.turns for news in all_news)
            uses = tuple(news.use for news in all_news)
            hosts.append(HostStatus(host, tuple(ranks), pes, busy, troubles, turns, uses))
        return tuple(hosts)
