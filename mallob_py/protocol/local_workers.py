"""The workers of one PE: at most one active, some suspended (P 3.2, 3.3).

The PE's idle token is offered while there is no active worker and nothing else is expected:
no match under way, no request parked for a coming epoch, no rest since the host gives workers no
processes, and, with full reuse, no suspended worker that its job may want back right now.

**Short of memory.** What a PE gives back when its host is short of memory; who asks for it measures that.
First suspended workers, least recently used first, as if the cache were full: whoever queries them is
denied (race 7). Then the process of the running worker, unless it is a root: it is *paused*. A paused
worker keeps its seat, as one whose process has died too often does, so that its job goes on with the other
workers. Were the seat given up, its parent would ask anew at once, and most likely this host, idle now,
would begin to use up memory again. When there is memory, a paused worker gets another process, which
begins anew; and whenever its job's volume drops below its index it leaves like any other.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable

from mallob_py.protocol.config import Config, Reuse
from mallob_py.protocol.effects import (
    BlameHost,
    DeliverMessage,
    FetchBlob,
    Outbox,
    ResumeWorker,
    StartWorker,
    SuspendWorker,
    TerminateWorker,
    UpdateWorker,
)
from mallob_py.protocol.host_health import Fault
from mallob_py.protocol.job_tree import Seats
from mallob_py.protocol.matcher import Matcher
from mallob_py.protocol.messages import (
    Accepted,
    Blob,
    ChildLeft,
    DemandChanged,
    Denied,
    Offer,
    PastWorker,
    Rejected,
    Remember,
    Request,
    RequestFailed,
    ResultFound,
    RootStarted,
    TreeMessage,
    Used,
    WorkerFailed,
)
from mallob_py.protocol.stimuli import WorkerAnswered, WorkerCrashed
from mallob_py.protocol.violation import PeerViolation
from mallob_py.protocol.worker import Worker, WorkerState

_INBOX_MAX = 1024
_DOUBTS_MAX = 64


class LocalWorkers:
    """Adopts, suspends, resumes and ends workers; passes on what they say and hear."""

    def __init__(
        self,
        out: Outbox,
        config: Config,
        matcher: Matcher,
        volume_of: Callable[[int], int | None],
        epoch: Callable[[], int],
    ) -> None:
        self._out = out
        self._config = config
        self._matcher = matcher
        self._volume_of = volume_of
        self._epoch = epoch
        self.active: Worker | None = None
        self.suspended: OrderedDict[int, Worker] = OrderedDict()
        #: jobs whose suspended worker is kept free for them, and until when
        self._holds: dict[int, float] = {}
        #: answers to a bulk request of which we are to be a part, quicker than our own adoption
        self._early: list[tuple[int, Offer | RequestFailed]] = []
        self._next_number = 0
        self._next_context = 0
        #: until when no token is offered, since the host gives no processes
        self._rests_until_s: float | None = None
        #: jobs that were lost here and may be at fault themselves: why
        self._doubts: OrderedDict[int, str] = OrderedDict()

    # --- being idle ---------------------------------------------------------------------

    def is_free(self) -> bool:
        """Whether a worker could be adopted on the spot, without a match."""
        return not (self.active or self._holds or self._matcher.token_granted or self.is_resting)

    @property
    def is_resting(self) -> bool:
        """Whether this PE offers itself to nobody for a while."""
        return self._rests_until_s is not None

    def update_token(self) -> None:
        self._matcher.offer_token(not (self.active or self._holds or self.is_resting))

    def rest(self, until_s: float) -> None:
        """Adopt no worker that needs a process, until then at least."""
        self._rests_until_s = max(until_s, self._rests_until_s or until_s)
        self.update_token()

    def tick(self, now: float) -> None:
        """Stop waiting for those who did not come back in time."""
        if self._holds and min(self._holds.values()) <= now:
            self._holds = {job: until for job, until in self._holds.items() if until > now}
            self.update_token()
        if self._rests_until_s is not None and self._rests_until_s <= now:
            self._rests_until_s = None
            self.update_token()

    def next_deadline(self) -> float:
        """Until when this PE keeps itself free for a suspended worker, or rests."""
        rested_s = math.inf if self._rests_until_s is None else self._rests_until_s
        return min(rested_s, *self._holds.values()) if self._holds else rested_s

    def receive_release(self, job: int) -> None:
        if self._holds.pop(job, None) is not None:
            self.update_token()

    # --- adoption -----------------------------------------------------------------------

    def is_obsolete(self, request: Request) -> bool:
        """Whether the wanted worker is no longer deserved, as far as is known here.

        A root may have been asked for ahead of its job's first epoch; only its client knows.
        """
        if request.epoch > self._epoch():
            return False
        volume = self._volume_of(request.job)
        if volume is None:
            return request.index > 0
        return request.index >= volume

    def is_outdated(self, request: Request) -> bool:
        """Whether a request that found no taker must go back to its parent to be asked anew.

        It could be carried on while its worker is deserved, but its parent may be gone by now,
        and then it would look for a PE for ever.
        """
        return request.epoch < self._epoch()

    def fail(self, request: Request) -> None:
        """Tell the parent that a request is void."""
        self._out.send(request.parent, RequestFailed(request.job, request.index, self._epoch()))

    def receive_adopt(self, request: Request, now: float) -> None:
        """Our token has met this request."""
        self._matcher.token_used()
        if self.active is None and self.is_obsolete(request):
            self.fail(request)
            self._reject_early()
        elif self.active is None and not self.is_resting:
            self.adopt(request, now)
        elif request.hops >= self._config.hops_max:
            self.fail(request)
        else:
            self._matcher.carry(request)
        if self.is_resting:
            self._reject_early()
        self.update_token()

    def receive_preference(self, request: Request, now: float) -> None:
        """A root that would like to be here: our token has not met it."""
        if self.is_free() and self.is_obsolete(request):
            self.fail(request)
        elif self.is_free():
            self.adopt(request, now)
        else:
            self._matcher.carry(request)
        self.update_token()

    def receive_token_back(self) -> None:
        self._matcher.token_used()
        self._reject_early()
        self.update_token()

    def receive_query(self, request: Request, now: float) -> None:
        """A parent wants our suspended worker back."""
        able = (
            request.job in self.suspended
            and self.active is None
            and not self._matcher.token_granted
            and (self._volume_of(request.job) or 0) > request.index
        )
        if able:
            self.adopt(request, now)
        else:
            self._holds.pop(request.job, None)
            self._out.send(request.parent, Denied(request.job, request.index))
        self.update_token()

    def adopt(self, request: Request, now: float) -> None:
        """Become worker `request.index`: commit, offer ourselves to the parent, ask for children."""
        assert self.active is None, "a PE runs one worker at a time"
        self._holds.clear()
        worker = self.suspended.pop(request.job, None)
        if worker is None:
            worker = Worker(self._new_number(), request.job)
        else:
            worker.created = False
        worker.index = index = request.index
        worker.path = request.path
        worker.context = self._next_context
        self._next_context += 1
        worker.state = WorkerState.COMMITTED
        worker.accepted_epoch = None
        worker.losses = 0
        worker.parent_context = -1
        worker.asked_s = request.asked_s
        worker.volume = max(self._volume_of(request.job) or 0, index + 1)
        worker.seats = Seats(
            self._out,
            self._config,
            self._matcher,
            request.job,
            (*request.path, self._out.rank),
            worker.context,
            (2 * index + 1, 2 * index + 2),
        )
        worker.blob = worker.blob or request.blob
        worker.seats.blob = worker.blob
        for side in (1, 2):
            if 2 * request.position + side < request.count:
                worker.seats.expect(2 * index + side, request.asked_s)
        self.active = worker
        self._out.log("busy")
        self._out.send(request.parent, Offer(request.job, index, worker.context, self._epoch()))
        early, self._early = self._early, []
        for source, message in early:
            if isinstance(message, Offer):
                self.receive_offer(source, message)
            else:
                self.receive_failed(source, message, now)
        worker.seats.fit(worker.volume, self._epoch(), now)
        self._proceed(worker)
        self.update_token()

    def _new_number(self) -> int:
        self._next_number += 1
        return self._next_number - 1

    def receive_accepted(self, source: int, message: Accepted, now: float) -> None:
        worker = self._active_in(message.context)
        if worker is None:
            # We have left meanwhile, for a reason the parent does not know of.
            self._out.send(source, ChildLeft(message.job, message.index, message.context))
            return
        if worker.accepted_epoch is not None:
            raise PeerViolation(f"worker {worker.index} of job {worker.job} is accepted twice")
        worker.accepted_epoch = message.epoch
        worker.losses = message.losses
        self._out.log(
            "adopted",
            job=worker.job,
            index=worker.index,
            latency_s=now - worker.asked_s,
            created=worker.created,
        )
        worker.parent_context = message.parent_context
        if message.past:
            worker.seats.recall(message.past, worker.volume, self._epoch())
        if worker.blob is None and message.blob is not None:
            self._describe(worker, message.blob)
            self._proceed(worker)
        if worker.state is WorkerState.LOST:
            self._vacate(worker)

    def receive_rejected(self, message: Rejected) -> None:
        worker = self._active_in(message.context)
        if worker is not None:
            worker.seats.dismiss(since_epoch=0)
            self._put_aside(worker)

    def receive_described(self, context: int, blob: Blob) -> None:
        worker = self._active_in(context)
        if worker is not None and worker.blob is None:
            self._describe(worker, blob)
            self._proceed(worker)

    def _describe(self, worker: Worker, blob: Blob) -> None:
        worker.blob = blob
        worker.seats.describe(blob)

    def _proceed(self, worker: Worker) -> None:
        """Run as soon as the description is known, most often before the parent has answered."""
        if worker.state is not WorkerState.COMMITTED or worker.blob is None:
            return
        if worker.has_process:
            worker.state = WorkerState.ACTIVE
            self._out.act(ResumeWorker(worker.number, worker.index, worker.volume))
            self._update_process(worker)
            self._out.log("resumed", job=worker.job, index=worker.index)
        elif worker.blob.inline is not None:
            self._start(worker)
        else:
            self._out.act(FetchBlob(worker.job, worker.blob, (worker.parent, worker.client)))

    def blob_ready(self, job: int) -> None:
        """The description is on this host now."""
        if (worker := self._waiting_for_blob(job)) is not None:
            self._start(worker)

    def blob_failed(self, job: int, reason: str, fault: Fault, now: float) -> None:
        """The description does not come to this host."""
        if (worker := self._waiting_for_blob(job)) is not None:
            self._lose(worker, reason, fault, now)

    def _waiting_for_blob(self, job: int) -> Worker | None:
        worker = self.active
        if worker is None or worker.job != job or worker.state is not WorkerState.COMMITTED:
            return None
        return worker

    def _start(self, worker: Worker) -> None:
        assert worker.blob is not None
        worker.state = WorkerState.ACTIVE
        worker.has_process = True
        worker.is_running = False
        self._out.act(StartWorker(worker.number, worker.job, worker.index, worker.volume, worker.blob))
        if worker.seats.children():
            self._update_process(worker)

    # --- being lost ---------------------------------------------------------------------

    def lost(self, number: int, reason: str, now: float) -> None:
        """No process could be had for this worker."""
        if (worker := self._by_number(number)) is None:
            return
        if worker is self.active:
            self._lose(worker, reason, Fault.HOST, now)
        else:
            self._forget_suspended(worker)

    def _lose(self, worker: Worker, reason: str, fault: Fault, now: float) -> None:
        """The active worker has no process and gets none here: its place is for another PE."""
        self._out.log("lost", job=worker.job, index=worker.index, reason=reason, fault=fault.value)
        worker.state = WorkerState.LOST
        worker.has_process = worker.is_running = False
        worker.loss = (fault, reason)
        self._empty_inbox(worker)
        self.rest(now + self._config.doubt_rest_s)
        if fault is Fault.UNCLEAR:
            self._doubts[worker.job] = reason
            if len(self._doubts) > _DOUBTS_MAX:
                self._doubts.popitem(last=False)
        if fault is not Fault.NOBODY:
            self._out.act(BlameHost(fault, reason))
        if worker.accepted_epoch is not None:
            self._vacate(worker)

    def _vacate(self, worker: Worker) -> None:
        """Give the seat of a lost worker back to its parent, with what is known of those below.

        But if the seat has lost many for a reason that may be the job's, this one keeps it without a process:
        the next one would be lost as well, and so on for ever.
        """
        assert worker.loss is not None
        fault, reason = worker.loss
        if worker.index > 0 and fault is not Fault.HOST and worker.losses >= self._config.losses_max:
            worker.state = WorkerState.ACTIVE
            return
        parent_index = (worker.index - 1) // 2 if worker.index else -1
        if self._config.reuse is Reuse.FULL:
            children = (PastWorker(seat.index, seat.rank, self._epoch()) for seat in worker.seats.taken())
            if past := (*worker.seats.past.take_all(), *children):
                self._out.send(worker.parent, Remember(worker.job, parent_index, past))
        self._out.send(worker.parent, ChildLeft(worker.job, worker.index, worker.context, reason))
        worker.seats.dismiss(since_epoch=0)
        self._put_aside(worker)

    def receive_blamed(self, job: int) -> None:
        """A job that was lost here runs elsewhere."""
        if (reason := self._doubts.pop(job, None)) is not None:
            self._out.act(BlameHost(Fault.HOST, reason))

    # --- leaving ------------------------------------------------------------------------

    def on_epoch(self, now: float, ended: list[int]) -> None:
        """Apply the present volumes to all workers here."""
        for job in ended:
            self._end(job)
            self._doubts.pop(job, None)
        worker = self.active
        if worker is not None:
            volume = self._volume_of(worker.job)
            if volume is not None and worker.index >= volume:
                self._leave(worker, volume)
            elif volume is not None and volume != worker.volume:
                worker.volume = volume
                worker.seats.fit(volume, self._epoch(), now)
                self._update_process(worker)
        if self.suspended and self._config.reuse is Reuse.FULL:
            self._renew_holds(now)
        self.update_token()

    def _renew_holds(self, now: float) -> None:
        """Keep this PE free for suspended workers whose job has just grown beyond their index."""
        for worker in self.suspended.values():
            volume = self._volume_of(worker.job) or 0
            if worker.volume <= worker.index < volume and self.active is None:
                self._holds[worker.job] = now + self._config.reuse_patience_s
            elif worker.index >= volume:
                self._holds.pop(worker.job, None)
            worker.volume = volume

    def _leave(self, worker: Worker, volume: int) -> None:
        """Leave the tree in this epoch; see `job_tree.py` for who has to be told."""
        epoch = self._epoch()
        if worker.accepted_epoch is not None and worker.accepted_epoch >= epoch:
            self._out.send(worker.parent, ChildLeft(worker.job, worker.index, worker.context))
        if self._config.reuse is Reuse.FULL:
            past = worker.seats.past.take_all()
            if worker.has_process:
                past += (PastWorker(worker.index, self._out.rank, epoch),)
            if past:
                self._report_past(worker, volume, past)
        worker.seats.dismiss(since_epoch=epoch)
        worker.volume = volume
        self._put_aside(worker)

    def _report_past(self, worker: Worker, volume: int, past: tuple[PastWorker, ...]) -> None:
        index, depth = worker.index, len(worker.path)
        while index >= volume and depth > 0:
            index = (index - 1) // 2 if index else -1
            depth -= 1
        self._out.send(worker.path[depth], Remember(worker.job, index, past))

    def _put_aside(self, worker: Worker) -> None:
        """Make the PE free; keep the worker if there is anything to keep."""
        assert self.active is worker
        self.active = None
        self._empty_inbox(worker)
        self._out.log("idle")
        if self._volume_of(worker.job) is None:
            # Its job ended before we adopted it: no further news of it will come.
            self._terminate(worker)
        elif worker.has_process:
            if worker.state is WorkerState.ACTIVE:
                self._out.act(SuspendWorker(worker.number))
                self._out.log("suspended", job=worker.job, index=worker.index)
            worker.state = WorkerState.SUSPENDED
            self.suspended[worker.job] = worker
            while len(self.suspended) > self._config.job_cache:
                self.drop_oldest()
        self.update_token()

    def _end(self, job: int) -> None:
        """The job is over: nothing of it remains here."""
        self._holds.pop(job, None)
        if (worker := self.suspended.pop(job, None)) is not None:
            self._terminate(worker)
        if (worker := self.active) is not None and worker.job == job:
            self.active = None
            worker.seats.close()
            self._out.log("idle")
            self._terminate(worker)
        self._reject_early(job)

    def drop_oldest(self) -> None:
        """Let go of the suspended worker that has not been used for longest."""
        job, oldest = self.suspended.popitem(last=False)
        self._holds.pop(job, None)
        self._terminate(oldest)

    def end_process(self, worker: Worker) -> None:
        """The active worker keeps its seat without a process."""
        assert worker is self.active
        self._terminate(worker)
        worker.number = self._new_number()  # what the old process may still have said is over
        worker.has_process = worker.is_running = False
        self._empty_inbox(worker)

    def start_again(self, worker: Worker, now: float) -> None:
        """The active worker gets another process."""
        assert worker is self.active
        worker.state = WorkerState.COMMITTED
        worker.asked_s = now
        self._proceed(worker)

    def _empty_inbox(self, worker: Worker) -> None:
        for source, message in worker.inbox:
            self._give_back(source, message)
        worker.inbox.clear()

    def _terminate(self, worker: Worker) -> None:
        if worker.has_process:
            self._out.act(TerminateWorker(worker.number))
            self._out.log("terminated", job=worker.job, index=worker.index)

    # --- being a parent -----------------------------------------------------------------

    def receive_offer(self, source: int, offer: Offer) -> None:
        worker = self._parent_of(offer.job, offer.index)
        if worker is not None:
            if worker.seats.receive_offer(source, offer, worker.volume, self._epoch()):
                self._update_process(worker)
        elif self._may_yet_adopt():
            self._early.append((source, offer))
        else:
            self._out.send(source, offer.rejection())

    def _may_yet_adopt(self) -> bool:
        """Whether an Adopt may be on its way that makes us the parent of whoever asks."""
        return self.active is None and self._matcher.token_granted

    def _reject_early(self, job: int | None = None) -> None:
        """We will not be the parent of those who took us for it (all of them, or of one job)."""
        kept = []
        for source, message in self._early:
            if job is not None and message.job != job:
                kept.append((source, message))
            elif isinstance(message, Offer):
                self._out.send(source, message.rejection())
        self._early = kept

    @property
    def early_count(self) -> int:
        """Answers that wait for our adoption (for checks)."""
        return len(self._early)

    def _parent_of(self, job: int, index: int) -> Worker | None:
        """The active worker here that is the parent of that child, if any."""
        worker = self.active
        if worker is None or worker.job != job or worker.seats.seat(index) is None:
            return None
        return worker

    def receive_denied(self, source: int, message: Denied) -> None:
        if (worker := self._parent_of(message.job, message.index)) is not None:
            worker.seats.receive_denied(source, message.index, worker.volume, self._epoch())

    def receive_failed(self, source: int, message: RequestFailed, now: float) -> None:
        if self._may_yet_adopt():
            self._early.append((source, message))
        elif (worker := self._parent_of(message.job, message.index)) is not None:
            worker.seats.receive_failed(message.index, worker.volume, self._epoch(), now)

    def receive_left(self, source: int, message: ChildLeft, now: float) -> None:
        worker = self._parent_of(message.job, message.index)
        if worker is not None and worker.seats.receive_left(source, message):
            worker.seats.fit(worker.volume, self._epoch(), now)
            self._update_process(worker)

    def receive_remember(self, message: Remember) -> None:
        worker = self.active
        if worker is not None and worker.job == message.job and worker.index == message.index:
            worker.seats.past.add(message.past)

    # --- what the process says and hears --------------------------------------------------

    def _active_in(self, context: int) -> Worker | None:
        worker = self.active
        return worker if worker is not None and worker.context == context else None

    def _by_number(self, number: int) -> Worker | None:
        if self.active is not None and self.active.number == number:
            return self.active
        return next((worker for worker in self.suspended.values() if worker.number == number), None)

    def _update_process(self, worker: Worker) -> None:
        if worker.has_process and worker.state is WorkerState.ACTIVE:
            self._out.act(UpdateWorker(worker.number, worker.volume, worker.seats.children()))

    def started(self, number: int, now: float) -> None:
        worker = self._by_number(number)
        if worker is None or worker.is_running:
            return
        worker.is_running = worker.has_run = True
        self._out.log("started", job=worker.job, index=worker.index, latency_s=now - worker.asked_s)
        for _, message in worker.inbox:
            self._deliver(worker, message)
        worker.inbox.clear()
        if worker.index == 0:
            self._out.send(worker.client, RootStarted(worker.job))

    def answered(self, it: WorkerAnswered) -> None:
        """Any worker's result counts, a suspended one's too. The PE is free at once."""
        worker = self._by_number(it.worker)
        if worker is None:
            return
        found = ResultFound(worker.job, worker.index, it.body, it.peak_memory_bytes, it.cpu_s)
        self._out.send(worker.client, found)
        self._end(worker.job)
        self.update_token()

    def used(self, number: int, cpu_s: float, peak_bytes: int) -> None:
        if (worker := self._by_number(number)) is not None:
            self._out.send(worker.client, Used(worker.job, cpu_s, peak_bytes))

    def raised(self, number: int, reason: str) -> None:
        """The application raised an error."""
        worker = self._by_number(number)
        if worker is not None:
            self._out.send(worker.client, WorkerFailed(worker.job, worker.index, reason))

    def crashed(self, it: WorkerCrashed, now: float) -> None:
        """The process died: restart it here, a few times.

        If it never ran, another PE is to try. A root that runs and keeps dying ends its job.
        """
        number, reason = it.worker, it.reason
        worker = self._by_number(number)
        if worker is None:
            return
        if it.cpu_s:
            self._out.send(worker.client, Used(worker.job, it.cpu_s, 0))
        self._out.log("crashed", job=worker.job, index=worker.index, reason=reason)
        if worker.state is WorkerState.SUSPENDED:
            self._forget_suspended(worker)
            return
        if worker.state is not WorkerState.ACTIVE:
            worker.has_process = worker.is_running = False
            return
        worker.restarts += 1
        worker.is_running = False
        if worker.restarts <= self._config.restarts_max:
            worker.number = self._new_number()
            self._start(worker)
            return
        worker.has_process = False
        if not worker.has_run:
            story = f"the solver process died {worker.restarts} times before it ran, last: {reason}"
            self._lose(worker, story, Fault.UNCLEAR, now)
        elif worker.index == 0:
            self.raised(number, f"the solver process died {worker.restarts} times, last: {reason}")

    def _forget_suspended(self, worker: Worker) -> None:
        """The process of a suspended worker is gone: nothing is left of it."""
        worker.has_process = worker.is_running = False
        del self.suspended[worker.job]
        self._holds.pop(worker.job, None)
        self.update_token()

    def demanded(self, number: int, demand: int) -> None:
        worker = self._by_number(number)
        if worker is not None and worker.index == 0:
            self._out.send(worker.client, DemandChanged(worker.job, demand))

    def sends_to_parent(self, number: int, data: bytes) -> None:
        worker = self.active
        if worker is not None and worker.number == number and worker.index > 0:
            index = (worker.index - 1) // 2
            self._send_along_tree(worker, worker.parent, worker.parent_context, index, data)

    def sends_to_children(self, number: int, data: bytes) -> None:
        worker = self.active
        if worker is not None and worker.number == number:
            for seat in worker.seats.taken():
                self._send_along_tree(worker, seat.rank, seat.context, seat.index, data)

    def _send_along_tree(self, worker: Worker, rank: int, context: int, index: int, data: bytes) -> None:
        message = TreeMessage(
            job=worker.job,
            target=context,
            target_index=index,
            source=worker.context,
            source_index=worker.index,
            returned=False,
            data=data,
        )
        self._out.send(rank, message)

    def receive_message(self, source: int, message: TreeMessage) -> None:
        worker = self._active_in(message.target)
        if worker is None or worker.job != message.job or worker.is_dead:
            self._give_back(source, message)
            return
        if worker.is_running and worker.state is WorkerState.ACTIVE:
            self._deliver(worker, message)
        elif len(worker.inbox) < _INBOX_MAX:
            worker.inbox.append((source, message))
        else:
            self._give_back(source, message)

    def _give_back(self, source: int, message: TreeMessage) -> None:
        """Undeliverable: its sender shall know. A returned message is not returned once more."""
        if not message.returned:
            self._out.send(source, message.back())

    def _deliver(self, worker: Worker, message: TreeMessage) -> None:
        self._out.act(DeliverMessage(worker.number, message.source_index, message.data, message.returned))


class Shortage:
    """Drops, pauses and unpauses workers of one PE."""

    def __init__(self, out: Outbox, workers: LocalWorkers) -> None:
        self._out = out
        self._workers = workers

    def past(self) -> list[int]:
        """The numbers of the suspended workers, least recently used first."""
        return [worker.number for worker in self._workers.suspended.values()]

    def drop_past(self, count: int) -> None:
        """Let go of so many suspended workers."""
        for _ in range(min(count, len(self._workers.suspended))):
            self._workers.drop_oldest()
        self._workers.update_token()

    def pausable(self) -> int | None:
        """The number of the running worker, unless it is a root."""
        return None if (worker := self._pausable()) is None else worker.number

    def _pausable(self) -> Worker | None:
        worker = self._workers.active
        if worker is None or worker.index == 0 or worker.state is not WorkerState.ACTIVE:
            return None
        return worker if worker.has_process else None

    def pause(self) -> None:
        """End the process of the running worker, if it is `pausable`."""
        if (worker := self._pausable()) is not None:
            self._workers.end_process(worker)
            worker.is_paused = True
            self._out.log("paused", job=worker.job, index=worker.index)

    def has_paused(self) -> bool:
        return self._workers.active is not None and self._workers.active.is_paused

    def unpause(self, now: float) -> None:
        """Give a paused worker another process."""
        worker = self._workers.active
        if worker is not None and worker.is_paused:
            worker.is_paused = False
            self._out.log("unpaused", job=worker.job, index=worker.index)
            self._workers.start_again(worker, now)
