"""The client: the jobs taken in at this PE, each from its submission to its one reply.

The client represents its jobs in the balancing: it is the only author of their events, from the first (demand
1) to the last (demand 0). It owns the seat of each job's root worker, and fills and empties it by the rules
of `job_tree.py`. It adds up each job's budget from the volumes that all PEs agree on, and ends the job at its
first result, at a limit, at an interrupt or at a failure, whichever is first.

A new job's root is requested in the epoch that gives the job a volume; if there are plainly more PEs than
needed, it is requested at once, and the job's first event waits for a few milliseconds. If the job still
lives then, the event is sent, and asks for more workers if the root runs. If the job ends before, no event is
sent, since no other PE has heard of the job (`turnover.py`).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from mallob_py.protocol import effects, messages
from mallob_py.protocol.balancing import standing
from mallob_py.protocol.config import Config
from mallob_py.protocol.interim import Interim
from mallob_py.protocol.job_life import Happening, JobState, follow
from mallob_py.protocol.job_tree import Seats, SeatState
from mallob_py.protocol.matching import Matcher
from mallob_py.protocol.placement import Succession
from mallob_py.protocol.progress import Progression
from mallob_py.protocol.stimuli import JobParameters
from mallob_py.protocol.turnover import Turnover

if TYPE_CHECKING:
    from mallob_py.protocol.distributed_balancing import AnyBalancer
    from mallob_py.protocol.local_workers import LocalWorkers

_CLIENT_STAY = -1
_FINAL_VERSION = 2**62
#: number of entries, in addition to two per job, above which outdated entries are removed from the heap of
#: deadlines
_OUTDATED_MAX = 64


class LastCheckpoint:
    """The checkpoint with which a job's next root begins; `data` is None before the first checkpoint.

    A leaving root may send a checkpoint after the next root has begun; such a checkpoint is out of date. So
    only the root that began last may replace the checkpoint.
    """

    def __init__(self, data: bytes | None = None) -> None:
        self.data = data
        #: PE of the root that began last, and the number of its stay there
        self._root: tuple[int, int] | None = None

    def begin(self, pe: int, stay: int) -> bytes | None:
        """Record that a root begins, or goes on; return the checkpoint for this root."""
        self._root = (pe, stay)
        return self.data

    def replace(self, pe: int, stay: int, data: bytes) -> bool:
        """Replace the checkpoint; return False if its sender is not the root that began last."""
        if self._root is not None and self._root != (pe, stay):
            return False
        self.data = data
        return True


class _RootPort:
    """The matcher for the root's seat: asks a preferred PE, else takes this PE if free, else any idle PE.

    The preferred PE is asked like a PE that was matched, and only once: if the request comes back, that PE
    was not free.
    """

    def __init__(
        self,
        out: effects.Outbox,
        matcher: Matcher,
        workers: LocalWorkers,
        now: Callable[[], float],
        near: int | None,
    ) -> None:
        self._out = out
        self._matcher = matcher
        self._workers = workers
        self._now = now
        self._near: int | None = None
        self._is_granted = False
        self.go_near(near)
        self.is_asking = matcher.is_asking
        self.withdraw = matcher.withdraw

    def go_near(self, pe: int | None, is_granted: bool = False) -> None:
        """Send the next request to this PE first. `is_granted`: the PE need not wait to be accepted."""
        self._is_granted = is_granted
        self._near = pe if pe is not None and pe != self._out.rank and pe < self._out.size else None

    def ask(self, request: messages.Request) -> None:
        near, self._near = self._near, None
        if near is not None:
            is_granted = self._is_granted and request.description is not None
            self._out.send(near, messages.Prefer(msgspec.structs.replace(request, count=1), is_granted))
        elif self._workers.is_free(request.job):
            # This PE takes the request itself; so only the root of a bulk request is launched.
            self._workers.adopt(msgspec.structs.replace(request, count=1), self._now())
        else:
            self._matcher.ask(request)


class ClientJob:
    """One live job. Times are in seconds on the PE's clock."""

    def __init__(
        self, job: int, parameters: JobParameters, port: _RootPort, seats: Seats, now: float, ageing_s: float
    ) -> None:
        self.job = job
        since_s = now if parameters.waiting_since_s is None else parameters.waiting_since_s
        self.standing = standing(parameters.priority, since_s, ageing_s)
        self.parameters = parameters
        self.port = port
        self.seats = seats
        self.version = 0
        self.demand = 1
        self.is_sought, self.sought_s = False, now
        self.state = JobState.NEW
        #: PE where the job rests; -1: the job had no root when it began to rest
        self.rests_at = -1
        #: epoch of the job's submission: an offer with an earlier epoch answers a request made before the job
        #: was given up
        self.since_epoch = 0
        #: number of workers that the application could use, apart from any bound; None: any number
        self.wanted: int | None = 1
        self.submitted_s = now
        self.balanced_s: float | None = None
        self.scheduled_s: float | None = None
        before = parameters.spent or effects.Spent(None, 0.0, 0.0, 0, 0, 0.0)
        self.started_s: float | None = before.started_s
        self.volume = 0
        #: whether the job has never had a volume, not even 0
        self.is_first = parameters.spent is None
        self.max_volume = before.max_volume
        self.pe_s = before.pe_s
        #: time, since the job's first start, during which the job's root had a PE
        self.turns_s = before.turns_s
        self.cpu_s = before.cpu_s
        self.peak_memory_bytes = before.peak_memory_bytes
        #: the job's checkpoint, once it has reported progress
        self.checkpoint: LastCheckpoint | None = None
        #: whether a root has started that leaves in order (saving the job's work), and has not left yet
        self.is_saved_by_root = False
        self.progression: Progression | None = None
        #: best interim result that the job's workers have offered
        self.interim: Interim | None = None
        self.root: int | None = None
        #: PE of the root as last published; -1: none yet
        self.told_root = -1
        #: whether the job was not new when it was submitted, or when its PEs' generation began
        self.had_slice = parameters.spent is not None
        #: PEs that failed to start the root since it last ran
        self.lost_at: list[int] = []
        #: time at which the client publishes the job, or asks for more workers than its root
        self.announce_at_s = math.inf
        #: time when the client must look at the job, unless something happens earlier
        self.due_s = math.inf
        self._counted_until_s = now

    @property
    def root_pe(self) -> int:
        """Return the PE of the job's root; -1: none."""
        seat = self.seats.seat(0)
        return seat.rank if seat is not None and seat.state is SeatState.TAKEN else -1

    def happens(self, what: Happening) -> None:
        """Change the job's state as the table in `job_life` says."""
        self.state = follow(self.job, self.state, what)

    @property
    def has_run(self) -> bool:
        """Tell whether the job's root has run since the submission."""
        return self.state not in (JobState.NEW, JobState.LAST_NEW)

    @property
    def is_given_up(self) -> bool:
        """Tell whether the job must be given up as soon as it has no PE."""
        return self.state in (JobState.LAST, JobState.LAST_NEW)

    @property
    def is_withdrawn(self) -> bool:
        """Tell whether the job is being given up, and so gets no PE any more."""
        return self.state in (JobState.SAVING, JobState.RETRACTED)

    @property
    def rests(self) -> bool:
        """Tell whether the job has had a turn, and waits for its next one."""
        return self.volume == 0 and self.state.shown == "resting"

    @property
    def is_published(self) -> bool:
        """Tell whether an event of the job has been sent to other PEs."""
        return self.version > 0

    def used(self, cpu_s: float, peak_memory_bytes: int) -> None:
        """Add the CPU time and the memory that one of the job's workers has reported."""
        self.cpu_s += cpu_s
        self.peak_memory_bytes = max(self.peak_memory_bytes, peak_memory_bytes)

    def pe_s_until(self, now: float, threads: int) -> float:
        """Return the PE-seconds that the job has used until `now`, without recording them as `count` does."""
        if self.started_s is None:
            return 0.0
        return self.pe_s + (now - self._counted_until_s) * self._workers() * threads

    def turns_s_until(self, now: float) -> float:
        """Return for how long the job has had a PE until `now`, without recording it as `count` does."""
        if self.started_s is None or not self._has_turn:
            return self.turns_s
        return self.turns_s + (now - self._counted_until_s)

    def count(self, now: float, threads: int) -> None:
        """Record the PE-seconds used up to `now`, for the present volume and root."""
        self.pe_s = self.pe_s_until(now, threads)
        self.turns_s = self.turns_s_until(now)
        self._counted_until_s = now

    def begin_anew(self, now: float, root: int | None, slice_s: float) -> None:
        """Begin the job anew in a new generation, whose PEs do not know it. `root`: PE of its first root."""
        self.had_slice |= self.state is JobState.SETTLED or self.turns_s >= slice_s
        self.root = root
        self.version = self.volume = 0
        self.told_root = -1
        self.lost_at.clear()
        self.since_epoch = 0
        if self.checkpoint is not None:
            self.checkpoint = LastCheckpoint(self.checkpoint.data)
        self.due_s = math.inf
        self._counted_until_s = now

    def _workers(self) -> int:
        """Return the number of workers to charge for: the volume; before the first epoch, only the root.

        A job whose root has no PE has no workers.
        """
        if self.is_first:
            return 1
        return self.volume if self.root_pe >= 0 else 0

    @property
    def _has_turn(self) -> bool:
        """Tell whether the job has a PE: it does not rest, and no PE is sought for its root."""
        return self._workers() > 0 and self.root_pe >= 0

    @property
    def had_turn(self) -> bool:
        """Tell whether the job has used up its turn (`turn_s`) since its submission."""
        spent = self.parameters.spent
        return self.pe_s - (0.0 if spent is None else spent.pe_s) >= self.parameters.turn_s

    def used_up(self, now: float, threads: int) -> effects.Outcome | None:
        """Return the limit that is reached, if any; budgets must be counted up to `now`."""
        if self.started_s is None:
            return None
        reached = (outcome for limit_s, outcome in self._limits(threads) if now >= limit_s)
        return next(reached, None)

    def deadline(self, threads: int) -> float:
        """Return when the first limit will be reached at the present volume."""
        return min((limit_s for limit_s, _ in self._limits(threads)), default=math.inf)

    def _limits(self, threads: int) -> Iterator[tuple[float, effects.Outcome]]:
        """Yield (time, outcome) for each limit: when it is reached if the job's volume stays as it is."""
        if self.started_s is None:
            return
        if self.parameters.wallclock_limit_s:
            yield self.started_s + self.parameters.wallclock_limit_s, effects.Outcome.WALLCLOCK_LIMIT
        if self.parameters.time_limit_s and self._has_turn:
            left_s = self.parameters.time_limit_s - self.turns_s
            yield self._counted_until_s + max(0.0, left_s), effects.Outcome.TIME_LIMIT
        if self.parameters.cpu_limit_s and (workers := self._workers()):
            left_s = (self.parameters.cpu_limit_s - self.pe_s) / (workers * threads)
            yield self._counted_until_s + max(0.0, left_s), effects.Outcome.CPU_LIMIT

    def stats(self, now: float) -> effects.JobStats:
        def since_submission(moment: float | None) -> float | None:
            return None if moment is None else moment - self.submitted_s

        return effects.JobStats(
            balanced_s=since_submission(self.balanced_s),
            scheduled_s=since_submission(self.scheduled_s),
            started_s=since_submission(self.started_s),
            response_s=now - self.submitted_s,
            wallclock_s=0.0 if self.started_s is None else now - self.started_s,
            pe_s=self.pe_s,
            cpu_s=self.cpu_s,
            max_volume=self.max_volume,
            peak_memory_bytes=self.peak_memory_bytes,
            root=self.root,
            turns_s=self.turns_s,
        )


class ClientJobs:
    """All live jobs whose client is this PE."""

    def __init__(
        self,
        out: effects.Outbox,
        config: Config,
        balancer: AnyBalancer,
        matcher: Matcher,
        workers: LocalWorkers,
    ) -> None:
        self._out = out
        self._config = config
        self._balancer = balancer
        self._now = 0.0
        self._matcher = matcher
        self._workers = workers
        self.jobs: dict[int, ClientJob] = {}
        #: the new jobs, and how long they remain unpublished
        self._turnover = Turnover(config, out.size)
        #: jobs with a volume above 0
        self._seated: set[int] = set()
        #: (due_s, job); entries that differ from the job's `due_s` are outdated
        self._due: list[tuple[float, int]] = []
        #: time when `tick` must be called
        self.deadline_s = math.inf

    # --- orders of the service ------------------------------------------------------------

    def submit(
        self,
        job: int,
        parameters: JobParameters,
        description: messages.Description,
        now: float,
        checkpoint: bytes | None = None,
    ) -> None:
        """Take in a job, which will end with exactly one `JobEnded`."""
        self._now = now
        assert job not in self.jobs, f"job {job} is here already"
        port, seats = self._seats_of(job, description, parameters.near)
        record = self.jobs[job] = ClientJob(job, parameters, port, seats, now, self._config.ageing_s)
        if checkpoint is not None:
            record.checkpoint = LastCheckpoint(checkpoint)
        record.since_epoch = self._balancer.epoch
        fields = {"job": job, "priority": parameters.priority, "demand": self._demand_max(record)}
        self._out.act(effects.Log("submitted", fields))
        is_plenty = self._turnover.is_plenty(self._balancer.total_volume)
        may_wait = record.is_first and not is_plenty
        if self._turnover.submit(job, record.standing, may_wait, self._balancer.jobs.keys()):
            self._announce_at(record, now + self._config.turnover_max_s)
        elif is_plenty:
            self._begin_unseen(record)
        else:
            self._publish(record)

    def _begin_unseen(self, record: ClientJob) -> None:
        self._announce_at(record, self._now + self._config.unannounced_max_s)
        self._fit(record, 1, self._now)

    def _turn_over(self, pe: int | None) -> None:
        """Note a brief job's end; if no other PE has heard of the job, give its PE to a waiting job."""
        turnover = self._turnover
        if pe is not None and turnover.is_plenty(self._balancer.total_volume):
            record = self.jobs[turnover.best()]
            turnover.call(record.job)
            record.port.go_near(pe, is_granted=True)
            self._begin_unseen(record)
        elif not turnover.fresh:
            for record in [self.jobs[job] for job in sorted(turnover.standby)]:
                turnover.call(record.job)
                self._announce_at(record, math.inf)
                self._demand(record, 1)

    def _seats_of(
        self, job: int, description: messages.Description | None, near: int | None
    ) -> tuple[_RootPort, Seats]:
        port = _RootPort(self._out, self._matcher, self._workers, lambda: self._now, near)
        seats = Seats(self._out, self._config, port, job, (self._out.rank,), _CLIENT_STAY, (0,))
        seats.description = description
        return port, seats

    def halt(self, now: float) -> None:
        """End the generation: charge jobs for the use of their workers."""
        for record in self.jobs.values():
            record.count(now, self._config.threads)

    def take_over(self, former: ClientJobs, succession: Succession, now: float) -> None:
        """Continue the live jobs of the last generation's client, as if submitted again."""
        self._now = now
        for job, record in former.jobs.items():
            if record.is_withdrawn:
                self._tell_given_up(record)
                continue
            held = record.seats.seat(0)
            root = succession.pe(held.rank) if held is not None and held.rank >= 0 else None
            near = record.parameters.near
            record.parameters = msgspec.structs.replace(
                record.parameters, near=None if near is None else succession.pe(near)
            )
            leaves = record.seats.leaves
            record.port, record.seats = self._seats_of(job, record.seats.description, root)
            record.seats.leaves = leaves
            if held is not None and held.state is SeatState.TAKEN and root is None:
                record.seats.gone = frozenset((0,))
            rests_at = succession.pe(record.rests_at) if record.rests_at >= 0 else None
            record.rests_at = -1 if rests_at is None else rests_at
            first_root = None if record.root is None else succession.pe(record.root)
            record.begin_anew(now, first_root, self._config.slice_s)
            self.jobs[job] = record
            self._turnover.unseen.add(job)
            self._schedule(record)
            self._demand(record, record.wanted)

    def interrupt(self, job: int, now: float) -> None:
        """End a job early, if it is one of this client's live jobs."""
        self._now = now
        if (record := self.jobs.get(job)) is not None:
            self._end(record, effects.Outcome.INTERRUPTED)

    def set_back(self, job: int, now: float) -> None:
        """Give a job up as soon as it rests, if it is live here: `JobGivenUp` or `JobEnded` follows.

        A root that leaves in order saves its work first. Then the client tells other PEs that the job has
        ended. `JobGivenUp` waits for the epoch with this news, so that every PE hears of the job's next
        submission after it.
        """
        self._now = now
        record = self.jobs.get(job)
        if record is None or record.is_given_up or record.is_withdrawn:
            return
        record.happens(Happening.SET_BACK)
        if record.volume == 0:
            self._withdraw(record)

    def _withdraw(self, record: ClientJob) -> None:
        record.seats.close()
        if record.has_run and record.is_saved_by_root and record.rests_at >= 0:
            record.happens(Happening.LEAVES)
            self._out.send(record.rests_at, messages.LeaveWanted(record.job, self._balancer.epoch))
        else:
            self._retract(record)

    def _retract(self, record: ClientJob) -> None:
        """Tell other PEs, only once, that the job is over: a second message would end its next submission."""
        if record.state is JobState.RETRACTED:
            return
        record.happens(Happening.RETRACTED)
        self._turnover.forget(record.job)
        self._balancer.author(self._final_event(record))

    def _tell_given_up(self, record: ClientJob) -> None:
        record.happens(Happening.GIVEN_UP)
        used = record.pe_s, record.cpu_s, record.max_volume, record.peak_memory_bytes, record.turns_s
        spent = effects.Spent(record.started_s, *used)
        self._out.act(effects.Log("given up", {"job": record.job, "pe_s": record.pe_s}))
        self._out.act(effects.JobGivenUp(record.job, spent))

    def set_terms(self, job: int, priority: float, max_demand: int) -> None:
        """Change a job's priority and greatest demand (0: no bound), if the job is live here.

        The job's standing stays: a waiting job keeps its place in the queue.
        """
        if (record := self.jobs.get(job)) is None:
            return
        changed = priority != record.parameters.priority
        record.parameters = msgspec.structs.replace(
            record.parameters, priority=priority, max_demand=max_demand
        )
        if record.is_published and not record.is_withdrawn:  # else the first event will contain the new terms
            self._demand(record, record.wanted, changed)

    # --- balancing ------------------------------------------------------------------------

    def _demand_max(self, record: ClientJob) -> int:
        limit = record.parameters.max_demand
        return min(limit, self._out.size) if limit else self._out.size

    def _publish(self, record: ClientJob) -> None:
        record.version += 1
        record.told_root = record.root_pe if record.root_pe >= 0 else record.told_root
        self._balancer.author(
            messages.JobEvent(
                record.job,
                record.version,
                record.demand,
                record.parameters.priority,
                record.standing,
                record.told_root,
                record.seats.leaves,
                record.parameters.user,
                record.had_slice,
            )
        )

    def _has_moved(self, record: ClientJob) -> bool:
        """Tell whether other PEs must hear where the root is now, because the job's turns depend on that."""
        return self._balancer.rotation.is_on and record.root_pe not in (-1, record.told_root)

    def _demand(self, record: ClientJob, wanted: int | None, has_news: bool = False) -> None:
        """Publish the job's demand if it has changed. `wanted`: number of workers; None: any number."""
        record.wanted = wanted
        most = self._demand_max(record)
        demand = most if wanted is None else max(1, min(wanted, most))
        if demand != record.demand or has_news or not record.is_published or self._has_moved(record):
            record.demand = demand
            self._publish(record)

    def _announce_at(self, record: ClientJob, when_s: float) -> None:
        record.announce_at_s = when_s
        self._schedule(record)

    def on_epoch(self, now: float, ended: Sequence[int]) -> None:
        self._now = now
        for job in ended:
            if (over := self.jobs.get(job)) is not None and over.is_withdrawn:
                self._remove(over)
                self._tell_given_up(over)
        for job in self._in_question():
            record = self.jobs[job]
            volume = self._balancer.volume(job)
            if volume is None or record.is_withdrawn:
                continue
            if record.is_given_up and not self._balancer.rotation.is_on:
                # There are PEs for all jobs again, so the job need not be given up. It may be given up when
                # it rests next.
                record.happens(Happening.KEPT)
            if not self._turnover.forget(job) and volume == record.volume:
                self._tell_of_root(record)
                continue
            record.count(now, self._config.threads)
            record.volume, record.is_first = volume, False
            record.max_volume = max(record.max_volume, volume)
            if volume:
                self._seated.add(job)
            else:
                self._seated.discard(job)
                self._rest(record)
            if volume and record.balanced_s is None:
                record.balanced_s = now
                self._out.act(effects.Log("balanced", {"job": job, "latency_s": now - record.submitted_s}))
            self._schedule(record)  # after the volume is set: deadlines depend on it
            self._out.act(
                effects.Log("volume", {"job": job, "volume": volume, "epoch": self._balancer.epoch})
            )
            self._tell_of_root(record)
            if self._balancer.rotation.is_on:
                record.seats.prefer_root(self._balancer.rotation.places.get(job))
            self._fit(record, volume, now)
            if record.is_given_up and not volume:
                self._withdraw(record)

    def _rest(self, record: ClientJob) -> None:
        record.rests_at = record.root_pe
        if record.state is JobState.WORKS and record.had_turn and self._balancer.rotation.is_on:
            record.happens(Happening.HAD_TURN)
            self._out.act(effects.JobRests(record.job))

    def _tell_of_root(self, record: ClientJob) -> None:
        """Publish the PE of the job's root if the job's turns depend on it, unless the job has just begun."""
        is_young = record.announce_at_s < math.inf or not record.has_run
        if record.is_published and not is_young and self._has_moved(record):
            self._publish(record)

    def _fit(self, record: ClientJob, volume: int, now: float) -> None:
        if volume and not record.is_sought:
            record.is_sought, record.sought_s = True, now
            self._out.act(effects.JobSought(record.job))
        record.seats.fit(volume, self._balancer.epoch, now)

    def _in_question(self) -> list[int]:
        """Return the jobs that an epoch may concern: all except jobs that had no volume and have none now."""
        with_volume = self._balancer.with_volume()
        if with_volume is None or len(self.jobs) <= len(with_volume):
            return list(self.jobs)
        return sorted(self._turnover.unseen | self._seated | (with_volume & self.jobs.keys()))

    def _volume(self, record: ClientJob) -> int:
        """Return the job's volume; 1 for a job that was requested before its first epoch."""
        volume = self._balancer.volume(record.job)
        return 1 if volume is None else volume

    # --- the root's seat --------------------------------------------------------------------

    def receive_offer(self, source: int, offer: messages.Offer, now: float) -> None:
        self._now = now
        record = self.jobs.get(offer.job)
        if record is None or record.is_withdrawn or offer.epoch < record.since_epoch:
            self._out.send(source, offer.rejection())
            return
        record.count(now, self._config.threads)
        if not record.seats.receive_offer(source, offer, self._volume(record), self._balancer.epoch):
            return
        self._schedule(record)
        if record.scheduled_s is None:
            record.scheduled_s = now
            record.root = source
            record.max_volume = max(record.max_volume, 1)
            latency_s = now - record.submitted_s
            self._out.act(
                effects.Log("scheduled", {"job": offer.job, "root": source, "latency_s": latency_s})
            )
        self._tell_of_root(record)

    def receive_denied(self, source: int, message: messages.Denied, now: float) -> None:
        self._now = now
        if (record := self.jobs.get(message.job)) is not None:
            record.seats.receive_denied(source, message, self._volume(record), self._balancer.epoch)

    def receive_failed(self, message: messages.RequestFailed, now: float) -> None:
        self._now = now
        if (record := self.jobs.get(message.job)) is not None:
            record.seats.receive_failed(0, self._volume(record), self._balancer.epoch, now)

    def receive_left(self, source: int, message: messages.ChildLeft, now: float) -> None:
        self._now = now
        if (record := self.jobs.get(message.job)) is None:
            return
        record.count(now, self._config.threads)
        if not record.seats.receive_left(source, message):
            return
        if message.lost:
            record.lost_at.append(source)
            if len(record.lost_at) > self._config.losses_max:
                reason = (
                    f"no PE could start the job in {len(record.lost_at)} attempts; last error: {message.lost}"
                )
                self._end(record, effects.Outcome.FAILED, reason=reason)
                return
        record.seats.fit(self._volume(record), self._balancer.epoch, now)
        self._schedule(record)

    def receive_remember(self, message: messages.Remember) -> None:
        if (record := self.jobs.get(message.job)) is None:
            return
        root = record.seats.seat(0)
        if message.carried_over and root is not None and root.state is SeatState.TAKEN:
            self._out.send(root.rank, msgspec.structs.replace(message, index=0))
        else:
            record.seats.past.add(message.past)

    # --- news of a job from its workers -------------------------------------------------------

    def _blame(self, record: ClientJob, source: int) -> None:
        """Tell PEs that could not start the root, which runs on `source`, that their hosts are at fault."""
        for rank in set(record.lost_at) - {source}:
            self._out.send(rank, messages.Blamed(record.job))
        record.lost_at.clear()

    def receive_started(self, source: int, message: messages.RootStarted, now: float) -> None:
        record = self.jobs.get(message.job)
        if record is not None:
            self._blame(record, source)
            record.seats.root_runs(source)
            record.seats.leaves = record.is_saved_by_root = message.leaves
        if record is not None and (record.started_s is None or not record.has_run):
            record.count(now, self._config.threads)
            record.started_s = now if record.started_s is None else record.started_s
            is_first = not record.has_run
            record.happens(Happening.ROOT_RUNS)
            if is_first and record.demand == 1:
                delay_s = record.parameters.growth_delay_s
                delay_s = self._config.growth_delay_s if delay_s is None else delay_s
                record.announce_at_s = now + self._turnover.growth_delay_s(delay_s)
            self._schedule(record)

    def receive_root_left(self, message: messages.RootLeft) -> None:
        if (record := self.jobs.get(message.job)) is not None:
            record.is_saved_by_root = False
            if record.is_withdrawn:
                self._retract(record)

    @property
    def awaits_roots(self) -> bool:
        """Tell whether, at the system's end, jobs wait for their roots' last checkpoints."""
        return any(record.is_saved_by_root for record in self.jobs.values())

    def receive_demand(self, message: messages.DemandChanged) -> None:
        record = self.jobs.get(message.job)
        if record is not None and not record.is_withdrawn:
            self._turnover.fresh.discard(record.job)  # no announcement of the job is due any more
            self._announce_at(record, math.inf)
            self._demand(record, message.demand)

    def receive_result(self, source: int, message: messages.ResultFound, now: float) -> None:
        """Take in a result: the first one ends the job, later ones are ignored."""
        self._now = now
        if (record := self.jobs.get(message.job)) is not None:
            record.used(message.cpu_s, message.peak_memory_bytes)
            # If the sender is not the present root, it is a worker of an earlier generation, and the present
            # root may not know of the result.
            is_of_root = record.seats.is_held(0, source, message.stay)
            self._end(record, effects.Outcome.RESULT, body=message.body, is_of_root=is_of_root)

    def receive_used(self, message: messages.Used) -> None:
        if (record := self.jobs.get(message.job)) is not None:
            record.used(message.cpu_s, message.peak_bytes)

    def receive_progress(self, message: messages.Progressed, now: float) -> None:
        if (record := self.jobs.get(message.job)) is not None:
            record.progression = record.progression or Progression()
            record.progression.note(message.progress, now)

    def receive_offered(self, message: messages.Offered) -> None:
        if (record := self.jobs.get(message.job)) is not None:
            known, offered = record.interim, message.interim
            record.interim = offered if known is None else known.joined(offered)

    def receive_checkpoint(self, source: int, message: messages.Checkpoint) -> None:
        if (record := self.jobs.get(message.job)) is not None:
            record.checkpoint = record.checkpoint or LastCheckpoint()
            if record.seats.is_held(0, source, message.stay):  # otherwise another root may have the seat
                record.checkpoint.begin(source, message.stay)
            if record.checkpoint.replace(source, message.stay, message.data):
                self._out.act(effects.JobSaved(message.job, message.data))

    def receive_checkpoint_wanted(self, source: int, message: messages.CheckpointWanted) -> None:
        if (record := self.jobs.get(message.job)) is not None:
            record.checkpoint = record.checkpoint or LastCheckpoint()
            data = record.checkpoint.begin(source, message.stay)
            self._out.send(source, messages.CheckpointGiven(message.job, message.stay, data))

    def receive_failure(self, message: messages.WorkerFailed, now: float) -> None:
        self._now = now
        if (record := self.jobs.get(message.job)) is not None:
            self._end(record, effects.Outcome.FAILED, reason=message.reason)

    # --- ends of jobs -------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """End jobs that have reached a limit; let jobs ask for more workers after their growth delay."""
        self._now = now
        while self._next_due() <= now:
            record = self.jobs[heapq.heappop(self._due)[1]]
            record.due_s = math.inf
            record.count(now, self._config.threads)
            if now >= record.announce_at_s:
                self._announce(record, now)
            if (outcome := record.used_up(now, self._config.threads)) is not None:
                self._end(record, outcome)
            else:
                self._schedule(record)
        self.deadline_s = self._next_due()

    def _announce(self, record: ClientJob, now: float) -> None:
        """Publish the job, or postpone that; if the job's root has run, ask for more workers as well."""
        until_s = self._turnover.waits_until(record.job, record.sought_s)
        record.announce_at_s = until_s if now < until_s else math.inf
        if now < until_s:
            return
        if record.job in self._turnover.standby:
            self._turnover.call(record.job)
        if record.has_run:
            self._turnover.fresh.discard(record.job)
        if not record.is_withdrawn:
            self._demand(record, None if record.has_run else 1)

    def _next_due(self) -> float:
        while self._due:
            due_s, job = self._due[0]
            record = self.jobs.get(job)
            if record is not None and record.due_s == due_s:
                return due_s
            heapq.heappop(self._due)
        return math.inf

    def _schedule(self, record: ClientJob) -> None:
        """Note the next time to look at the job; it replaces the time noted before."""
        due_s = min(record.deadline(self._config.threads), record.announce_at_s)
        if due_s == record.due_s:
            return
        record.due_s = due_s
        if due_s < math.inf:
            heapq.heappush(self._due, (due_s, record.job))
        if len(self._due) > 2 * len(self.jobs) + _OUTDATED_MAX:
            self._due = [(one.due_s, job) for job, one in self.jobs.items() if one.due_s < math.inf]
            heapq.heapify(self._due)
        self.deadline_s = self._next_due()

    def _has_left_no_trace(self, record: ClientJob) -> bool:
        """Tell whether only the root's PE has heard of the job, and got the description with its request."""
        description = record.seats.description
        return not record.is_published and description is not None and description.inline is not None

    def next_announcement(self) -> float:
        """Return when a job will next be published, or will ask for more workers than its root."""
        return min((record.announce_at_s for record in self.jobs.values()), default=math.inf)

    def _final_event(self, record: ClientJob) -> messages.JobEvent:
        return messages.JobEvent(record.job, _FINAL_VERSION, 0, record.parameters.priority, record.standing)

    def _remove(self, record: ClientJob) -> None:
        del self.jobs[record.job]
        self._seated.discard(record.job)
        self.deadline_s = self._next_due()
        record.seats.close()

    def _end(
        self,
        record: ClientJob,
        outcome: effects.Outcome,
        body: bytes | None = None,
        reason: str | None = None,
        is_of_root: bool = False,
    ) -> None:
        """End a job; `is_of_root`: the job's root has found the result, and thereby ended."""
        record.count(self._now, self._config.threads)
        pe = record.root_pe
        self._remove(record)
        is_awaited = self._turnover.end(record.job, record.started_s, self._now)
        is_unheard = is_of_root and self._has_left_no_trace(record)
        if not is_unheard:
            self._balancer.author(self._final_event(record))
        if is_awaited:
            self._turn_over(pe if is_unheard else None)
        stats = record.stats(self._now)
        fields = {
            "job": record.job,
            "outcome": outcome.value,
            "response_s": stats.response_s,
            "wallclock_s": stats.wallclock_s,
            "turns_s": stats.turns_s,
            "pe_s": stats.pe_s,
            "cpu_s": stats.cpu_s,
            "max_volume": stats.max_volume,
            "peak_memory_bytes": stats.peak_memory_bytes,
        }
        self._out.act(effects.Log("ended", fields))
        self._out.act(effects.JobEnded(record.job, outcome, body, reason, stats, record.interim))
