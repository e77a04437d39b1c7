"""The workers of one PE: at most one active, some suspended (P 3.2, 3.3), some that leave (`leaving.py`).

The PE's idle token is offered while there is no active worker and none is expected: no match under way, no
request parked for a coming epoch, no rest after failures of the host and, with full reuse, no suspended
worker that its job may want back right now.

    staff.py          the workers here
    worker_cache.py   suspended workers, and how long the PE keeps itself free for them
    giving_back.py    shortage of memory; draining
    succession.py     remains of the last generation
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from typing import TYPE_CHECKING

from mallob_py.protocol import PeerViolation, messages
from mallob_py.protocol.config import Config, Reuse
from mallob_py.protocol.effects import BlameHost, GiveCheckpoint, JobUnheard, Log, Outbox
from mallob_py.protocol.giving import Giving
from mallob_py.protocol.giving_back import GivingBack
from mallob_py.protocol.host_health import Fault
from mallob_py.protocol.interim import Interim
from mallob_py.protocol.job_tree import Seats, in_subtree
from mallob_py.protocol.leaving import Leaver, Leaving
from mallob_py.protocol.matching import Matcher
from mallob_py.protocol.placement import Succession
from mallob_py.protocol.progress import Progress
from mallob_py.protocol.staff import Staff
from mallob_py.protocol.stimuli import WorkerAnswered, WorkerCrashed
from mallob_py.protocol.succession import Inheritance, LastWords
from mallob_py.protocol.tree_messages import STAY_BITS, TreeMessages
from mallob_py.protocol.worker import Happens, Worker, WorkerState
from mallob_py.protocol.worker_cache import WorkerCache
from mallob_py.trees import children_of, parent_of

if TYPE_CHECKING:
    from mallob_py.protocol.distributed_balancing import AnyBalancer

_DOUBTS_MAX = 64


class Parenting:
    """A PE as the parent of workers on other PEs: passes their messages to the seats of its active worker.

    Answers to a bulk request may arrive before the request makes this PE a worker. Such answers wait here.
    """

    def __init__(self, out: Outbox, staff: Staff, matcher: Matcher, balancer: AnyBalancer) -> None:
        self._out = out
        self._staff = staff
        self._matcher = matcher
        self._balancer = balancer
        #: (PE, answer) of answers that arrived before this PE adopted its own worker
        self.early: list[tuple[int, messages.Offer | messages.RequestFailed]] = []

    def receive_offer(self, source: int, offer: messages.Offer) -> None:
        worker = self._staff.parent_of(offer.job, offer.index)
        if worker is not None:
            if worker.seats.receive_offer(source, offer, worker.volume, self._balancer.epoch):
                worker.update_process(self._out)
        elif self._may_yet_adopt():
            self.early.append((source, offer))
        else:
            self._out.send(source, offer.rejection())

    def _may_yet_adopt(self) -> bool:
        """Tell whether an `Adopt` may be under way that makes this PE the parent of an early child."""
        return self._staff.active is None and self._matcher.token_granted

    def reject_early(self, job: int | None = None) -> None:
        """Reject children, of one job or all, that offered themselves early: another PE is their parent."""
        kept = []
        for source, message in self.early:
            if job is not None and message.job != job:
                kept.append((source, message))
            elif isinstance(message, messages.Offer):
                self._out.send(source, message.rejection())
        self.early = kept

    def take_early(self, now: float) -> None:
        """Take in children that offered themselves early: this PE is their parent now."""
        early, self.early = self.early, []
        for source, message in early:
            if isinstance(message, messages.Offer):
                self.receive_offer(source, message)
            else:
                self.receive_failed(source, message, now)

    def receive_denied(self, source: int, message: messages.Denied) -> None:
        if (worker := self._staff.parent_of(message.job, message.index)) is not None:
            worker.seats.receive_denied(source, message, worker.volume, self._balancer.epoch)

    def receive_failed(self, source: int, message: messages.RequestFailed, now: float) -> None:
        if self._may_yet_adopt():
            self.early.append((source, message))
        elif (worker := self._staff.parent_of(message.job, message.index)) is not None:
            worker.seats.receive_failed(message.index, worker.volume, self._balancer.epoch, now)

    def receive_left(self, source: int, message: messages.ChildLeft, now: float) -> None:
        worker = self._staff.parent_of(message.job, message.index)
        if worker is not None and worker.seats.receive_left(source, message):
            worker.seats.fit(worker.volume, self._balancer.epoch, now)
            worker.update_process(self._out)

    def receive_remember(self, message: messages.Remember) -> None:
        worker = self._staff.active
        if worker is not None and worker.job == message.job and worker.index == message.index:
            if message.carried_over:
                worker.seats.remember(message, worker.volume, self._balancer.epoch)
            else:
                worker.seats.past.add(message.past)


class Reports:
    """Passes reports of processes, except results, on to their jobs' clients. `number` names a process."""

    def __init__(self, out: Outbox, staff: Staff, last_words: LastWords) -> None:
        self._out = out
        self._staff = staff
        self._last_words = last_words

    def used(self, number: int, cpu_s: float, peak_bytes: int) -> None:
        if (worker := self._staff.by_any_number(number)) is not None:
            self._out.send(worker.client, messages.Used(worker.job, cpu_s, peak_bytes))

    def raised(self, number: int, reason: str) -> None:
        """Report that the application raised an error."""
        worker = self._staff.by_any_number(number)
        if worker is not None:
            self._last_words.say(
                worker.client, messages.WorkerFailed(worker.job, worker.index, reason), self._out
            )

    def demanded(self, number: int, demand: int) -> None:
        worker = self._staff.by_number(number)
        if worker is not None and worker.index == 0:
            worker.demand = demand
            self._out.send(worker.client, messages.DemandChanged(worker.job, demand))

    def progresses(self, number: int, progress: Progress) -> None:
        worker = self._staff.by_number(number)
        if worker is not None and worker.index == 0:
            worker.done = progress.done
            self._out.send(worker.client, messages.Progressed(worker.job, progress))

    def offers(self, number: int, interim: Interim) -> None:
        """Pass on an offer of any worker, also one that leaves or is suspended."""
        if (worker := self._staff.by_any_number(number)) is not None:
            self._out.send(worker.client, messages.Offered(worker.job, interim))

    def saves(self, number: int, data: bytes) -> None:
        """Pass on a root's checkpoint, even if the root leaves or is suspended."""
        worker = self._staff.by_any_number(number)
        if worker is None or worker.index > 0:
            return
        self._out.send(worker.client, messages.Checkpoint(worker.job, worker.stay, data))
        if isinstance(worker, Worker) and worker.done > worker.saved_done:
            worker.saved_done, worker.restarts = worker.done, 0

    def wants_checkpoint(self, number: int) -> None:
        worker = self._staff.active_as(number)
        if worker is not None and worker.index == 0:
            self._out.send(worker.client, messages.CheckpointWanted(worker.job, worker.stay))

    def receive_checkpoint(self, message: messages.CheckpointGiven) -> None:
        """Hand a checkpoint to the process that asked for it; if it does not run now, it will ask again."""
        worker = self._staff.active_in(message.stay)
        if worker is not None and worker.job == message.job and worker.state is WorkerState.RUNNING:
            self._out.act(GiveCheckpoint(worker.number, message.data))


class LocalWorkers:
    """Adopts, suspends, resumes and ends workers; passes on their messages."""

    def __init__(
        self, out: Outbox, config: Config, matcher: Matcher, balancer: AnyBalancer, era: int = 0
    ) -> None:
        self._out = out
        self._config = config
        self._matcher = matcher
        self._balancer = balancer
        self.cache = WorkerCache(out, config, balancer)
        #: suspended workers by job
        self.suspended = self.cache.workers
        self.leaving = Leaving(out, config)
        self.giving = Giving(out, balancer, self.cache, self.update_token)
        self._staff = Staff(self.suspended, self.leaving)
        self.parenting = Parenting(out, self._staff, matcher, balancer)
        #: last messages about jobs, which may have ended, to clients on other PEs
        self._last_words = LastWords()
        self.reports = Reports(out, self._staff, self._last_words)
        self.tree_messages = TreeMessages(out, self._staff, era)
        self.giving_back = GivingBack(
            out, config, self._staff, self.cache, self.tree_messages, self.update_token
        )
        self._inheritance = Inheritance(out, config, balancer, self.cache, self._last_words)
        self._numbers = itertools.count()
        #: number of the next stay (one worker's time in a tree on this PE); generations use different ranges
        self._next_stay = era << STAY_BITS
        #: time until which this PE offers no token, after a failure of the host; None: no rest
        self._rests_until_s: float | None = None
        #: time until which this PE offers no token, since the last job's client may send its next job
        self._awaits_client_until_s: float | None = None
        #: stay of the last root here that found a result
        self._answered_stay = -1
        #: job -> reason: jobs whose workers were lost here, possibly by the job's own fault
        self._doubts: OrderedDict[int, str] = OrderedDict()
        #: time when `tick` must be called
        self.deadline_s = math.inf

    @property
    def active(self) -> Worker | None:
        """The worker that has a place in a job tree; None: the PE is idle."""
        return self._staff.active

    # --- the idle PE --------------------------------------------------------------------

    def is_free(self, job: int | None = None) -> bool:
        """Tell whether this PE could adopt a worker of `job` (None: of any job) at once, without a match."""
        is_held = bool(self.cache.holds) and job not in self.cache.holds
        rests = self.is_resting and not (self._rests_until_s is None and self.cache.goes_on(job))
        return not (self._staff.active or is_held or self._matcher.token_granted or rests)

    @property
    def is_resting(self) -> bool:
        """Tell whether this PE offers no token for a while, or for good."""
        return self._rests_until_s is not None or self.giving_back.is_draining

    def update_token(self) -> None:
        is_kept_free = self._awaits_client_until_s is not None or bool(self.cache.holds)
        self._matcher.offer_token(not (self._staff.active or is_kept_free or self.is_resting))
        deadline_s = self._inheritance.deadline_s
        if self.cache.holds:
            deadline_s = min(deadline_s, *self.cache.holds.values())
        if self._rests_until_s is not None and self._rests_until_s < deadline_s:
            deadline_s = self._rests_until_s
        if self._awaits_client_until_s is not None and self._awaits_client_until_s < deadline_s:
            deadline_s = self._awaits_client_until_s
        self.deadline_s = deadline_s

    def rest(self, until_s: float) -> None:
        """Adopt no worker that needs a process, at least until that time."""
        self._rests_until_s = max(until_s, self._rests_until_s or until_s)
        self.update_token()

    def tick(self, now: float) -> None:
        """End this PE's waits and rests whose time is over."""
        self._inheritance.cease_to_await(self.cache.overdue(now))
        if self._rests_until_s is not None and self._rests_until_s <= now:
            self._rests_until_s = None
        if self._awaits_client_until_s is not None and self._awaits_client_until_s <= now:
            self._awaits_client_until_s = None
        if self._inheritance.deadline_s <= now:
            self._let_go_of_the_unheard()
        if self.leaving.deadline_s <= now:
            self.leaving.tick(now)
            self.giving_back.save_resting_roots(now)
        self._let_go_of_a_drained_root(now)
        self.update_token()

    def receive_release(self, job: int) -> None:
        worker = self.suspended.get(job)
        if worker is not None and worker.leaves and worker.index == 0 and not worker.is_carried_over:
            self.cache.drop(worker)  # the next root goes on from the last checkpoint
        if self.cache.holds.pop(job, None) is not None:
            self.update_token()

    # --- adoption of workers ------------------------------------------------------------

    def is_obsolete(self, request: messages.Request) -> bool:
        """Tell whether the job's volume, as far as known here, has no room for the worker any more.

        A root may have been requested before its job's first epoch; only its client knows.
        """
        if request.epoch > self._balancer.epoch:
            return False
        volume = self._balancer.volume(request.job)
        if volume is None:
            return request.index > 0
        return request.index >= volume

    def is_outdated(self, request: messages.Request) -> bool:
        """Tell whether a request that found no idle PE must go back to its parent, which asks anew.

        The job's volume may still have room for the worker; but a request whose parent is gone would search
        for ever.
        """
        return request.epoch < self._balancer.epoch

    def fail(self, request: messages.Request) -> None:
        """Tell the parent that its request is void."""
        self._out.send(
            request.parent, messages.RequestFailed(request.job, request.index, self._balancer.epoch)
        )

    def receive_adopt(self, request: messages.Request, now: float) -> None:
        """Adopt the worker of a request that was matched with this PE's token."""
        self._matcher.token_used()
        if self._staff.active is None and self.is_obsolete(request):
            self.fail(request)
            self.parenting.reject_early()
        elif self._staff.active is None and not self.is_resting:
            self.adopt(request, now)
        elif request.hops >= self._config.hops_max:
            self.fail(request)
        else:
            self._matcher.carry(request)
        if self.is_resting:
            self.parenting.reject_early()
        self.update_token()

    def receive_preference(self, message: messages.Prefer, now: float) -> None:
        """Adopt a root that prefers this PE, if this PE is free; else pass the request on."""
        request = message.request
        is_free = self.is_free(request.job)
        if is_free and self.is_obsolete(request):
            self.fail(request)
        elif is_free:
            is_new = request.job not in self.suspended
            self.adopt(request, now, request.epoch if message.is_granted and is_new else -1)
            if (worker := self._staff.active) is not None and worker.is_granted:
                self._join(worker, request.epoch, now)
        else:
            self._matcher.carry(request)
        self.update_token()

    def receive_token_back(self) -> None:
        self._matcher.token_used()
        self.parenting.reject_early()
        self.update_token()

    def receive_query(self, request: messages.Request, now: float) -> None:
        """Resume a suspended worker for its parent, or deny the query."""
        able = (
            request.job in self.suspended
            and self._staff.active is None
            and (not self.giving_back.is_draining or self.cache.goes_on(request.job))
            and not self._matcher.token_granted
            and (self._balancer.volume(request.job) or 0) > request.index
        )
        if able:
            self.adopt(request, now)
        else:
            self.cache.holds.pop(request.job, None)
            is_kept = request.job in self.suspended and (request.index == 0 or self._balancer.rotation.is_on)
            self._out.send(request.parent, messages.Denied(request.job, request.index, is_kept))
        self.update_token()

    def adopt(self, request: messages.Request, now: float, granted_epoch: int = -1) -> None:
        """Become worker `request.index`: take the place, offer this PE to the parent, ask for children."""
        assert self._staff.active is None, "a PE runs one worker at a time"
        index, parent = request.index, request.parent
        children = children_of(index)
        self.cache.holds.clear()
        self._awaits_client_until_s = None
        worker = self.suspended.pop(request.job, None)
        created = worker is None
        if worker is None:
            worker = Worker(self._numbers, request.job)
            if index == 0:
                worker.giver = self.giving.giver(request)
        worker.created = created
        worker.index = index
        worker.path = request.path
        worker.stay = self._next_stay
        self._next_stay += 1
        worker.accepted_epoch = None
        worker.is_granted = granted_epoch >= 0
        worker.losses = 0
        worker.parent_stay = -1
        worker.asked_s = request.asked_s
        worker.volume = max(self._balancer.volume(request.job) or 0, index + 1)
        worker.seats = Seats(
            self._out,
            self._config,
            self._matcher,
            request.job,
            (*request.path, self._out.rank),
            worker.stay,
            tuple(children),
        )
        worker.seats.leaves = worker.leaves
        worker.description = worker.description or request.description
        worker.seats.description = worker.description
        if request.count > 1:
            for position, child in zip(children_of(request.position), children, strict=True):
                if position < request.count:
                    worker.seats.expect(child, request.asked_s)
        self._staff.active = worker
        self._out.act(Log("busy", {}))
        offer = messages.Offer(request.job, index, worker.stay, self._balancer.epoch, granted_epoch)
        self._out.send(parent, offer)
        if worker.is_carried_over and index == 0 and worker.has_run:  # the client may not know of this root
            self._out.send(worker.client, messages.RootStarted(worker.job, worker.leaves))
            if worker.demand is not None:
                self._out.send(worker.client, messages.DemandChanged(worker.job, worker.demand))
        if worker.is_carried_over:
            worker.seats.past.add(one for one in worker.kept if in_subtree(one.index, index))
            worker.seats.gone = worker.gone
        worker.is_carried_over = worker.is_awaited = False
        worker.kept, worker.gone = (), frozenset()
        if self.parenting.early:
            self.parenting.take_early(now)
        worker.seats.fit(worker.volume, self._balancer.epoch, now)
        worker.proceed(self._out)
        if self.giving_back.is_draining:
            self.giving_back.hand_over(now)
        self.update_token()

    def receive_accepted(self, source: int, message: messages.Accepted, now: float) -> None:
        worker = self._staff.active_in(message.stay)
        if worker is None and message.stay == self._answered_stay:
            return  # the parent, which is the job's client, has the result
        if worker is None:
            # This worker left meanwhile, for a reason unknown to the parent.
            if message.past and message.index == 0:
                self._out.send(source, messages.Remember(message.job, parent_of(0), message.past))
            self._out.send(source, messages.ChildLeft(message.job, message.index, message.stay))
            return
        if worker.is_granted:  # the client has reached another epoch since the grant
            worker.is_granted, worker.accepted_epoch = False, message.epoch
        elif worker.accepted_epoch is not None:
            raise PeerViolation(f"worker {worker.index} of job {worker.job} is accepted twice")
        else:
            self._join(worker, message.epoch, now)
        worker.losses = message.losses
        worker.parent_stay = message.parent_stay
        if worker.unsent:
            self.tree_messages.send_waiting(worker)
        if message.past:
            worker.seats.recall(message.past, worker.volume, self._balancer.epoch)
        if worker.description is None and message.description is not None:
            self._describe(worker, message.description)
        if worker.state is WorkerState.LOST:
            self._vacate(worker, now)
        self._let_go_of_a_drained_root(now)

    def _join(self, worker: Worker, epoch: int, now: float) -> None:
        """Record that a worker is in the tree since this epoch of its parent."""
        worker.accepted_epoch = epoch
        fields = {
            "job": worker.job,
            "index": worker.index,
            "latency_s": now - worker.asked_s,
            "created": worker.created,
        }
        self._out.act(Log("adopted", fields))

    def receive_rejected(self, message: messages.Rejected, now: float) -> None:
        worker = self._staff.active_in(message.stay)
        if worker is not None:
            is_kept = worker.state.has_process and self._config.reuse is Reuse.FULL
            if worker.index == 0 and is_kept and self._balancer.rotation.is_on:
                past = messages.PastWorker(0, self._out.rank, self._balancer.epoch)  # the job may rest here
                self._out.send(worker.client, messages.Remember(worker.job, parent_of(0), (past,)))
            worker.seats.dismiss(since_epoch=0)
            self._put_aside(worker, now)

    def receive_described(self, stay: int, description: messages.Description) -> None:
        worker = self._staff.active_in(stay)
        if worker is not None and worker.description is None:
            self._describe(worker, description)

    def _describe(self, worker: Worker, description: messages.Description) -> None:
        worker.description = description
        worker.seats.describe(description)
        worker.proceed(self._out)

    def description_here(self, job: int) -> None:
        """Start the worker that waits for the job's description, which is on this host now."""
        if (worker := self._waiting_for_description(job)) is not None:
            worker.happens(Happens.FETCHED, self._out)

    def description_missing(self, job: int, reason: str, fault: Fault, now: float) -> None:
        """Declare lost the worker that waits for the job's description: it cannot be brought here."""
        if (worker := self._waiting_for_description(job)) is not None:
            self._lose(worker, Happens.UNFETCHED, reason, fault, now)

    def _waiting_for_description(self, job: int) -> Worker | None:
        worker = self._staff.active
        if worker is None or worker.job != job or worker.state is not WorkerState.FETCHING:
            return None
        return worker

    # --- lost workers -------------------------------------------------------------------

    def lost(self, number: int, reason: str, now: float) -> None:
        """Declare a worker lost, since it got no process."""
        if (worker := self._staff.by_any_number(number)) is None:
            return
        if isinstance(worker, Leaver):
            self.leaving.left(number)
        elif worker is self._staff.active:
            self._lose(worker, Happens.UNFORKED, reason, Fault.HOST, now)
        else:
            self.cache.drop(worker, Happens.UNFORKED)
            self.update_token()

    def _lose(self, worker: Worker, what: Happens, reason: str, fault: Fault, now: float) -> None:
        """Declare the active worker lost: it gets no process here, so another PE must take its place."""
        worker.happens(what, self._out)
        fields = {"job": worker.job, "index": worker.index, "reason": reason, "fault": fault.value}
        self._out.act(Log("lost", fields))
        worker.loss = (fault, reason)
        self.tree_messages.give_back_waiting(worker)
        self.rest(now + self._config.doubt_rest_s)
        if fault is Fault.UNCLEAR:
            self._doubts[worker.job] = reason
            if len(self._doubts) > _DOUBTS_MAX:
                self._doubts.popitem(last=False)
        if fault is not Fault.NOBODY:
            self._out.act(BlameHost(fault, reason))
        if worker.accepted_epoch is not None:
            self._vacate(worker, now)

    def _vacate(self, worker: Worker, now: float) -> None:
        """Give a lost worker's seat back to the parent, with what the worker knows of past workers below it.

        But if the seat has lost many workers, perhaps by the job's fault, this worker keeps the seat without
        a process: the next worker would be lost as well.
        """
        assert worker.loss is not None
        fault, reason = worker.loss
        if worker.index > 0 and fault is not Fault.HOST and worker.losses >= self._config.losses_max:
            worker.happens(Happens.KEPT, self._out)
            return
        self._give_up_seat(worker, now, reason)

    def _give_up_seat(self, worker: Worker, now: float, reason: str = "") -> None:
        parent_index = parent_of(worker.index)
        if self._config.reuse is Reuse.FULL:
            children = (
                messages.PastWorker(seat.index, seat.rank, self._balancer.epoch)
                for seat in worker.seats.taken()
            )
            if past := (*worker.seats.past.take_all(), *children):
                self._out.send(worker.parent, messages.Remember(worker.job, parent_index, past))
        self._out.send(worker.parent, messages.ChildLeft(worker.job, worker.index, worker.stay, reason))
        worker.seats.dismiss(since_epoch=0)
        self._put_aside(worker, now)

    def receive_blamed(self, job: int) -> None:
        """Record that this host is at fault, because a job whose worker was lost here runs on another PE."""
        if (reason := self._doubts.pop(job, None)) is not None:
            self._out.act(BlameHost(Fault.HOST, reason))

    # --- workers that leave -------------------------------------------------------------

    def on_epoch(self, now: float, ended: list[int]) -> None:
        """Apply the present volumes to all workers here."""
        for job in ended:
            self._end(job)
            self._doubts.pop(job, None)
            self._inheritance.forget(job)
        if self._inheritance.jobs:
            self._inheritance.meet()
        worker = self._staff.active
        if worker is not None:
            volume = self._balancer.volume(worker.job)
            if volume is not None and worker.index >= volume:
                self._leave(worker, volume, now)
            elif volume is not None and volume != worker.volume:
                worker.volume = volume
                worker.seats.fit(volume, self._balancer.epoch, now)
                worker.update_process(self._out)
        if self.suspended and self._config.reuse is Reuse.FULL:
            self.cache.renew_holds(now, self._staff.active is None, self._inheritance.jobs)
        self.update_token()

    def _leave(self, worker: Worker, volume: int, now: float) -> None:
        """Leave the tree in this epoch; `job_tree.py` says which PEs must be told."""
        epoch = self._balancer.epoch
        if worker.accepted_epoch is not None and worker.accepted_epoch >= epoch:
            self._out.send(worker.parent, messages.ChildLeft(worker.job, worker.index, worker.stay))
        if self._config.reuse is Reuse.FULL:
            past = worker.seats.past.take_all()
            if worker.state.has_process and not self._hands_over(worker):
                past += (messages.PastWorker(worker.index, self._out.rank, epoch),)
            if past:
                self._report_past(worker, volume, past)
        worker.seats.dismiss(since_epoch=epoch)
        worker.volume = volume
        self._put_aside(worker, now)

    def _hands_over(self, worker: Worker) -> bool:
        """Tell whether a worker leaves in order; a root whose job rests until its next turn does not."""
        rests = worker.index == 0 and self._balancer.rotation.is_on and not self.giving_back.is_draining
        return worker.leaves_in_order and not rests

    def _report_past(self, worker: Worker, volume: int, past: tuple[messages.PastWorker, ...]) -> None:
        index, depth = worker.index, len(worker.path)
        while index >= volume and depth > 0:
            index = parent_of(index)
            depth -= 1
        self._out.send(worker.path[depth], messages.Remember(worker.job, index, past))

    def _put_aside(self, worker: Worker, now: float) -> None:
        """Free the PE; keep the worker if there is something to keep, or let it leave in order."""
        assert self._staff.active is worker
        self._staff.active = None
        self.tree_messages.give_back_waiting(worker)
        self._out.act(Log("idle", {}))
        if self._balancer.volume(worker.job) is None:
            # The job ended before the adoption: no further news of the job will come.
            worker.happens(Happens.ENDED, self._out)
        elif self._hands_over(worker):
            self.leaving.add(worker, now)
            worker.happens(Happens.LEFT_IN_ORDER, self._out)
        else:
            worker.happens(Happens.LEFT, self._out)
        if worker.state.has_process:
            self.cache.put(worker)
        self.update_token()

    def _end(self, job: int) -> None:
        """Drop all that is kept of a job that is over."""
        self.cache.holds.pop(job, None)
        if self.leaving.deadline_s < math.inf:  # a leaving worker has a deadline
            self.leaving.end_job(job)
        if (worker := self.suspended.pop(job, None)) is not None:
            worker.happens(Happens.ENDED, self._out)
        if (worker := self._staff.active) is not None and worker.job == job:
            self._staff.active = None
            worker.seats.close()
            self._out.act(Log("idle", {}))
            worker.happens(Happens.ENDED, self._out)
        if self.parenting.early:
            self.parenting.reject_early(job)

    # --- from one generation to the next (`succession.py`) -------------------------------------

    def halt(self) -> None:
        """End the generation: an active worker with a process becomes the most recent suspended worker."""
        if (worker := self._staff.active) is None:
            return
        self._staff.active = None
        self._out.act(Log("idle", {}))
        worker.happens(Happens.LEFT, self._out)
        worker.inbox.clear()
        worker.unsent.clear()
        if worker.state.has_process:
            self.suspended[worker.job] = worker
            self._inheritance.halted_job = worker.job

    def take_over(self, former: LocalWorkers, succession: Succession, now: float) -> None:
        """Go on with the workers of a halted PE."""
        self._numbers = former._numbers
        self._rests_until_s = former._rests_until_s
        self.giving_back.take_over(former.giving_back, succession.is_alone)
        self.leaving.take_over(former.leaving, succession)
        self._inheritance.take_over(former._inheritance, succession, now)
        self.update_token()

    def _let_go_of_the_unheard(self) -> None:
        active = self._staff.active
        for job in self._inheritance.take_unheard(None if active is None else active.job):
            self._end(job)
            self._last_words.forget(job)
            self._out.act(JobUnheard(job))
        self.cache.make_room()
        self.update_token()

    def _let_go_of_a_drained_root(self, now: float) -> None:
        if self.giving_back.is_draining and (root := self.giving_back.saved_root()) is not None:
            self._give_up_seat(root, now)

    # --- messages from and to processes ---------------------------------------------------

    def started(self, number: int, leaves: bool, now: float) -> None:
        if (worker := self._staff.by_number(number)) is not None:
            worker.leaves = worker.seats.leaves = leaves
            worker.happens(Happens.STARTED, self._out, now)
            if worker.inbox:
                self.tree_messages.deliver_waiting(worker)
            if self.giving_back.is_draining and worker is self._staff.active:
                self.giving_back.hand_over(now)

    def answered(self, it: WorkerAnswered, now: float) -> None:
        """Pass on a result, even of a suspended worker. After that, the PE is free.

        If no other PE has heard of the job, the job's client may give its next job to this PE. Other PEs hear
        only after the client's decision that this PE is idle.
        """
        worker = self._staff.by_any_number(it.worker)
        if worker is None:
            return
        found = messages.ResultFound(
            worker.job, worker.index, worker.stay, it.body, it.peak_memory_bytes, it.cpu_s
        )
        self._last_words.say(worker.client, found, self._out)
        if worker.index == 0:
            self._answered_stay = worker.stay
            if worker.client != self._out.rank and self._balancer.volume(worker.job) is None:
                self._awaits_client_until_s = now + self._config.turnaround_s
        self._end(worker.job)
        self.update_token()

    def left(self, number: int, cpu_s: float, now: float) -> None:
        """Record that a process has handed over its work."""
        if (leaver := self.leaving.get(number)) is not None:
            if cpu_s:
                self._out.send(leaver.client, messages.Used(leaver.job, cpu_s, 0))
            self.leaving.left(number)
            self._let_go_of_a_drained_root(now)
            self.giving_back.save_resting_roots(now)

    def crashed(self, it: WorkerCrashed, now: float) -> None:
        """Restart a dead process here, a few times; restarts due to the host do not count.

        If the process never ran, another PE must try. A root that repeatedly runs and dies ends its job,
        unless it saved new progress in between.
        """
        worker, reason = self._staff.by_any_number(it.worker), it.reason
        if worker is None:
            return
        if it.cpu_s:
            self._out.send(worker.client, messages.Used(worker.job, it.cpu_s, 0))
        self._out.act(Log("crashed", {"job": worker.job, "index": worker.index, "reason": reason}))
        if isinstance(worker, Leaver):
            self.leaving.left(worker.number)
            self._let_go_of_a_drained_root(now)
            self.giving_back.save_resting_roots(now)
            return
        if worker is not self._staff.active:
            self.cache.drop(worker, Happens.DIED)
            self.update_token()
            return
        worker.restarts += not it.is_spared
        if it.is_spared or worker.restarts <= self._config.restarts_max:
            worker.happens(Happens.DIED, self._out)
        elif not worker.has_run:
            story = f"the worker process died {worker.restarts} times before it ran, last: {reason}"
            self._lose(worker, Happens.DIED_UNRUN, story, Fault.UNCLEAR, now)
        else:
            worker.happens(Happens.DIED_TOO_OFTEN, self._out)
            self.tree_messages.give_back_waiting(worker)
            if worker.index == 0:
                story = f"the worker process died {worker.restarts} times, last: {reason}"
                self._out.send(worker.client, messages.WorkerFailed(worker.job, worker.index, story))
