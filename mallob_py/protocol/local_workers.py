"""The workers of one PE: at most one active, some suspended (P 3.2, 3.3), some that leave (`leaving.py`).

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

**To be drained.** A rank that is to leave soon starts nothing new: its PEs offer no token, deny queries, and
pass on requests that come all the same. Workers that leave in order hand over what they have at once, and
keep their seats without a process, so that those below them stay. But a root has what it has lent handed
back to it: it sends its children away, saves its job, and only when its process is gone leaves the seat, so
that the next root, elsewhere, begins with all that was done. A root that rests saves its job, too. Others
run on until the rank leaves, also if the generation changes meanwhile.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from mallob_py.protocol import PeerViolation
from mallob_py.protocol.config import Config, Reuse
from mallob_py.protocol.effects import (
    BlameHost,
    GiveCheckpoint,
    JobUnheard,
    Log,
    Outbox,
)
from mallob_py.protocol.host_health import Fault
from mallob_py.protocol.interim import Interim
from mallob_py.protocol.job_tree import Seats, in_subtree
from mallob_py.protocol.leaving import Leaver, Leaving
from mallob_py.protocol.matching import Matcher
from mallob_py.protocol.messages import (
    Accepted,
    Checkpoint,
    CheckpointGiven,
    CheckpointWanted,
    ChildLeft,
    DemandChanged,
    Denied,
    Description,
    LeaveWanted,
    Offer,
    Offered,
    PastWorker,
    Progressed,
    Rejected,
    Remember,
    Request,
    RequestFailed,
    ResultFound,
    RootLeft,
    RootStarted,
    TreeMessage,
    Used,
    WorkerFailed,
)
from mallob_py.protocol.progress import Progress
from mallob_py.protocol.stimuli import WorkerAnswered, WorkerCrashed, WorkerMissed
from mallob_py.protocol.succession import LastWords, Succession
from mallob_py.protocol.tree_messages import TreeMessages
from mallob_py.protocol.worker import Happens, Worker, WorkerState
from mallob_py.trees import children_of, parent_of

if TYPE_CHECKING:
    from mallob_py.protocol.distributed_balancing import AnyBalancer

_DOUBTS_MAX = 64
#: a PE's stays of one generation
_STAY_BITS = 40


class LocalWorkers:
    """Adopts, suspends, resumes and ends workers; passes on what they say and hear."""

    def __init__(
        self,
        out: Outbox,
        config: Config,
        matcher: Matcher,
        balancer: AnyBalancer,
        era: int = 0,
    ) -> None:
        self._out = out
        self._config = config
        self._matcher = matcher
        self._balancer = balancer
        self.active: Worker | None = None
        self.suspended: OrderedDict[int, Worker] = OrderedDict()
        #: jobs whose suspended worker is kept free for them, and until when
        self._holds: dict[int, float] = {}
        #: answers to a bulk request of which we are to be a part, quicker than our own adoption
        self._early: list[tuple[int, Offer | RequestFailed]] = []
        self.leaving = Leaving(out, config)
        self._numbers = itertools.count()
        self._messages = TreeMessages(out)
        #: stays of different generations differ
        self._next_stay = era << _STAY_BITS
        self._era = era
        #: of jobs that may have ended without a word to their clients, which are elsewhere
        self._last_words = LastWords()
        #: jobs of which something was taken over, until they are heard of
        self._inherited: set[int] = set()
        self._inherited_until_s = math.inf
        #: whose worker was in the tree when the generation ended
        self._halted_job: int | None = None
        #: suspended workers that were taken over are kept, even if there are more than fit
        self._room = config.job_cache
        #: until when no token is offered, since the host gives no processes
        self._rests_until_s: float | None = None
        #: this PE's rank is to leave: nothing new starts here
        self.is_draining = False
        #: the system ends: whoever has handed over what it had gets no further process
        self._is_ending = False
        #: all other ranks are gone, so that this one cannot leave
        self._is_last = False
        #: jobs that were lost here and may be at fault themselves: why
        self._doubts: OrderedDict[int, str] = OrderedDict()
        #: until when this PE keeps itself free for a suspended worker, rests, or waits to hear of jobs
        self.deadline_s = math.inf

    # --- being idle ---------------------------------------------------------------------

    def is_free(self, job: int | None = None) -> bool:
        """Whether a worker, of this job or of any, could be adopted on the spot, without a match."""
        is_held = bool(self._holds) and job not in self._holds
        rests = self.is_resting and not (self._rests_until_s is None and self._goes_on(job))
        return not (self.active or is_held or self._matcher.token_granted or rests)

    def _goes_on(self, job: int | None) -> bool:
        """Whether the job had a worker here when the last generation ended, and not since."""
        worker = None if job is None else self.suspended.get(job)
        return worker is not None and worker.is_carried_over

    @property
    def is_resting(self) -> bool:
        """Whether this PE offers itself to nobody for a while, or for good."""
        return self._rests_until_s is not None or self.is_draining

    def update_token(self) -> None:
        self._matcher.offer_token(not (self.active or self._holds or self.is_resting))
        deadline_s = self._inherited_until_s
        if self._holds:
            deadline_s = min(deadline_s, *self._holds.values())
        if self._rests_until_s is not None and self._rests_until_s < deadline_s:
            deadline_s = self._rests_until_s
        self.deadline_s = deadline_s

    def rest(self, until_s: float) -> None:
        """Adopt no worker that needs a process, until then at least."""
        self._rests_until_s = max(until_s, self._rests_until_s or until_s)
        self.update_token()

    def tick(self, now: float) -> None:
        """Stop waiting for those who did not come back in time."""
        if self._holds and min(self._holds.values()) <= now:
            self._cease_to_await([job for job, until in self._holds.items() if until <= now])
            self._holds = {job: until for job, until in self._holds.items() if until > now}
        if self._rests_until_s is not None and self._rests_until_s <= now:
            self._rests_until_s = None
        if self._inherited_until_s <= now:
            self._let_go_of_the_unheard()
        if self.leaving.deadline_s <= now:
            self.leaving.tick(now)
            self._save_resting_roots(now)
        self._let_go_of_a_drained_root(now)
        self.update_token()

    def receive_release(self, job: int) -> None:
        worker = self.suspended.get(job)
        if worker is not None and worker.leaves and worker.index == 0 and not worker.is_carried_over:
            self._drop(worker)  # the next root goes on from what was saved last: two would do the same
        if self._holds.pop(job, None) is not None:
            self.update_token()

    # --- adoption -----------------------------------------------------------------------

    def is_obsolete(self, request: Request) -> bool:
        """Whether the wanted worker is no longer deserved, as far as is known here.

        A root may have been asked for ahead of its job's first epoch; only its client knows.
        """
        if request.epoch > self._balancer.epoch:
            return False
        volume = self._balancer.volume(request.job)
        if volume is None:
            return request.index > 0
        return request.index >= volume

    def is_outdated(self, request: Request) -> bool:
        """Whether a request that found no taker must go back to its parent to be asked anew.

        It could be carried on while its worker is deserved, but its parent may be gone by now,
        and then it would look for a PE for ever.
        """
        return request.epoch < self._balancer.epoch

    def fail(self, request: Request) -> None:
        """Tell the parent that a request is void."""
        self._out.send(request.parent, RequestFailed(request.job, request.index, self._balancer.epoch))

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
        is_free = self.is_free(request.job)
        if is_free and self.is_obsolete(request):
            self.fail(request)
        elif is_free:
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
            and (not self.is_draining or self._goes_on(request.job))
            and not self._matcher.token_granted
            and (self._balancer.volume(request.job) or 0) > request.index
        )
        if able:
            self.adopt(request, now)
        else:
            self._holds.pop(request.job, None)
            is_kept = request.job in self.suspended and self._balancer.rotation.is_on
            self._out.send(request.parent, Denied(request.job, request.index, is_kept))
        self.update_token()

    def adopt(self, request: Request, now: float) -> None:
        """Become worker `request.index`: commit, offer ourselves to the parent, ask for children."""
        assert self.active is None, "a PE runs one worker at a time"
        self._holds.clear()
        worker = self.suspended.pop(request.job, None)
        created = worker is None
        if worker is None:
            worker = Worker(self._numbers, request.job)
        worker.created = created
        worker.index = index = request.index
        worker.path = request.path
        worker.stay = self._next_stay
        self._next_stay += 1
        worker.accepted_epoch = None
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
            tuple(children_of(index)),
        )
        worker.seats.leaves = worker.leaves
        worker.description = worker.description or request.description
        worker.seats.description = worker.description
        for position, child in zip(children_of(request.position), children_of(index), strict=True):
            if position < request.count:
                worker.seats.expect(child, request.asked_s)
        self.active = worker
        self._out.act(Log("busy", {}))
        self._out.send(request.parent, Offer(request.job, index, worker.stay, self._balancer.epoch))
        if worker.is_carried_over and index == 0 and worker.has_run:  # maybe for a client that does not know
            self._out.send(worker.client, RootStarted(worker.job, worker.leaves))
            if worker.demand is not None:
                self._out.send(worker.client, DemandChanged(worker.job, worker.demand))
        if worker.is_carried_over:
            worker.seats.past.add(one for one in worker.kept if in_subtree(one.index, index))
            worker.seats.gone = worker.gone
        worker.is_carried_over = worker.is_awaited = False
        worker.kept, worker.gone = (), frozenset()
        early, self._early = self._early, []
        for source, message in early:
            if isinstance(message, Offer):
                self.receive_offer(source, message)
            else:
                self.receive_failed(source, message, now)
        worker.seats.fit(worker.volume, self._balancer.epoch, now)
        self._proceed(worker)
        if self.is_draining:
            self._hand_over(now)
        self.update_token()

    def receive_accepted(self, source: int, message: Accepted, now: float) -> None:
        worker = self._active_in(message.stay)
        if worker is None:
            # We have left meanwhile, for a reason the parent does not know of.
            self._out.send(source, ChildLeft(message.job, message.index, message.stay))
            return
        if worker.accepted_epoch is not None:
            raise PeerViolation(f"worker {worker.index} of job {worker.job} is accepted twice")
        worker.accepted_epoch = message.epoch
        worker.losses = message.losses
        fields = {
            "job": worker.job,
            "index": worker.index,
            "latency_s": now - worker.asked_s,
            "created": worker.created,
        }
        self._out.act(Log("adopted", fields))
        worker.parent_stay = message.parent_stay
        self._messages.send_waiting(worker)
        if message.past:
            worker.seats.recall(message.past, worker.volume, self._balancer.epoch)
        if worker.description is None and message.description is not None:
            self._describe(worker, message.description)
        if worker.state is WorkerState.LOST:
            self._vacate(worker, now)
        self._let_go_of_a_drained_root(now)

    def receive_rejected(self, message: Rejected, now: float) -> None:
        worker = self._active_in(message.stay)
        if worker is not None:
            worker.seats.dismiss(since_epoch=0)
            self._put_aside(worker, now)

    def receive_described(self, stay: int, description: Description) -> None:
        worker = self._active_in(stay)
        if worker is not None and worker.description is None:
            self._describe(worker, description)

    def _describe(self, worker: Worker, description: Description) -> None:
        worker.description = description
        worker.seats.describe(description)
        self._proceed(worker)

    def _proceed(self, worker: Worker) -> None:
        """Run as soon as the description is known, most often before the parent has answered."""
        if worker.state.has_process:
            worker.happens(Happens.READOPTED, self._out)
        elif worker.description is not None:
            is_here = worker.description.inline is not None
            worker.happens(Happens.DESCRIBED if is_here else Happens.DESCRIBED_ELSEWHERE, self._out)

    def description_here(self, job: int) -> None:
        """The description is on this host now."""
        if (worker := self._waiting_for_description(job)) is not None:
            worker.happens(Happens.FETCHED, self._out)

    def description_missing(self, job: int, reason: str, fault: Fault, now: float) -> None:
        """The description does not come to this host."""
        if (worker := self._waiting_for_description(job)) is not None:
            self._lose(worker, Happens.UNFETCHED, reason, fault, now)

    def _waiting_for_description(self, job: int) -> Worker | None:
        worker = self.active
        if worker is None or worker.job != job or worker.state is not WorkerState.FETCHING:
            return None
        return worker

    # --- being lost ---------------------------------------------------------------------

    def lost(self, number: int, reason: str, now: float) -> None:
        """No process could be had for this worker."""
        if (worker := self._by_any_number(number)) is None:
            return
        if isinstance(worker, Leaver):
            self.leaving.left(number)
        elif worker is self.active:
            self._lose(worker, Happens.UNFORKED, reason, Fault.HOST, now)
        else:
            self._forget_suspended(worker, Happens.UNFORKED)

    def _lose(self, worker: Worker, what: Happens, reason: str, fault: Fault, now: float) -> None:
        """The active worker has no process and gets none here: its place is for another PE."""
        worker.happens(what, self._out)
        fields = {"job": worker.job, "index": worker.index, "reason": reason, "fault": fault.value}
        self._out.act(Log("lost", fields))
        worker.loss = (fault, reason)
        self._messages.give_back_waiting(worker)
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
        """Give the seat of a lost worker back to its parent, with what is known of those below.

        But if the seat has lost many for a reason that may be the job's, this one keeps it without a process:
        the next one would be lost as well, and so on for ever.
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
                PastWorker(seat.index, seat.rank, self._balancer.epoch) for seat in worker.seats.taken()
            )
            if past := (*worker.seats.past.take_all(), *children):
                self._out.send(worker.parent, Remember(worker.job, parent_index, past))
        self._out.send(worker.parent, ChildLeft(worker.job, worker.index, worker.stay, reason))
        worker.seats.dismiss(since_epoch=0)
        self._put_aside(worker, now)

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
            self._last_words.forget(job)
            self._inherited.discard(job)
        if self._inherited:
            self._meet_inherited()
        worker = self.active
        if worker is not None:
            volume = self._balancer.volume(worker.job)
            if volume is not None and worker.index >= volume:
                self._leave(worker, volume, now)
            elif volume is not None and volume != worker.volume:
                worker.volume = volume
                worker.seats.fit(volume, self._balancer.epoch, now)
                worker.update_process(self._out)
        if self.suspended and self._config.reuse is Reuse.FULL:
            self._renew_holds(now)
        self.update_token()

    def _renew_holds(self, now: float) -> None:
        """Keep this PE free for suspended workers whose job has just grown beyond their index."""
        volume_of = self._balancer.volume
        for worker in self.suspended.values():
            volume = volume_of(worker.job)
            if volume is None:
                if worker.job in self._inherited:
                    continue  # nobody has spoken of it yet
                volume = 0
            if worker.volume <= worker.index < volume and self.active is None:
                if (patience_s := self._patience_s(worker)) is not None:
                    until_s = now + patience_s
                    self._holds[worker.job] = max(until_s, self._holds.get(worker.job, until_s))
            elif worker.index >= volume:
                self._holds.pop(worker.job, None)
            worker.volume = volume

    def _patience_s(self, worker: Worker) -> float | None:
        """How long to wait for a job that has grown again; None: its turn is elsewhere."""
        if worker.index > 0 or not self._balancer.rotation.is_on:
            return self._config.reuse_patience_s
        is_here = self._balancer.rotation.places.get(worker.job) == self._out.rank
        return self._config.turn_patience_s if is_here else None

    def _leave(self, worker: Worker, volume: int, now: float) -> None:
        """Leave the tree in this epoch; see `job_tree.py` for who has to be told."""
        epoch = self._balancer.epoch
        if worker.accepted_epoch is not None and worker.accepted_epoch >= epoch:
            self._out.send(worker.parent, ChildLeft(worker.job, worker.index, worker.stay))
        if self._config.reuse is Reuse.FULL:
            past = worker.seats.past.take_all()
            if worker.state.has_process and not self._hands_over(worker):
                past += (PastWorker(worker.index, self._out.rank, epoch),)
            if past:
                self._report_past(worker, volume, past)
        worker.seats.dismiss(since_epoch=epoch)
        worker.volume = volume
        self._put_aside(worker, now)

    def _hands_over(self, worker: Worker) -> bool:
        """Whether it leaves in order if it leaves now: not a root whose job rests until its next turn."""
        rests = worker.index == 0 and self._balancer.rotation.is_on and not self.is_draining
        return worker.leaves_in_order and not rests

    def _report_past(self, worker: Worker, volume: int, past: tuple[PastWorker, ...]) -> None:
        index, depth = worker.index, len(worker.path)
        while index >= volume and depth > 0:
            index = parent_of(index)
            depth -= 1
        self._out.send(worker.path[depth], Remember(worker.job, index, past))

    def _put_aside(self, worker: Worker, now: float) -> None:
        """Make the PE free; keep the worker if there is anything to keep, or let it leave in order."""
        assert self.active is worker
        self.active = None
        self._messages.give_back_waiting(worker)
        self._out.act(Log("idle", {}))
        if self._balancer.volume(worker.job) is None:
            # Its job ended before we adopted it: no further news of it will come.
            worker.happens(Happens.ENDED, self._out)
        elif self._hands_over(worker):
            self.leaving.add(worker, now)
            worker.happens(Happens.LEFT_IN_ORDER, self._out)
        else:
            worker.happens(Happens.LEFT, self._out)
        if worker.state.has_process:
            self.suspended[worker.job] = worker
            self._make_room()
        self.update_token()

    def _end(self, job: int) -> None:
        """The job is over: nothing of it remains here."""
        self._holds.pop(job, None)
        if self.leaving.deadline_s < math.inf:  # else nobody leaves
            self.leaving.end_job(job)
        if (worker := self.suspended.pop(job, None)) is not None:
            worker.happens(Happens.ENDED, self._out)
        if (worker := self.active) is not None and worker.job == job:
            self.active = None
            worker.seats.close()
            self._out.act(Log("idle", {}))
            worker.happens(Happens.ENDED, self._out)
        self._reject_early(job)

    def _make_room(self) -> None:
        """Keep as many suspended workers as fit; roots, whose jobs rest, have room of their own."""
        for are_roots, room in ((False, self._room), (True, self._config.roots_kept(self._out.size))):
            kept = [worker for worker in self._least_worth_first() if (worker.index == 0) is are_roots]
            for worker in kept[: max(0, len(kept) - room)]:
                self._drop(worker)

    def _least_worth_first(self) -> list[Worker]:
        """The suspended workers: least recently used first, roots last.

        Of these, first those whose job has been elsewhere since, then whose job has had most of its share.
        """
        if all(worker.index > 0 for worker in self.suspended.values()):
            return list(self.suspended.values())
        accounts = self._balancer.rotation.accounts

        def worth(worker: Worker) -> tuple[bool, bool, float]:
            account = accounts.get(worker.job)
            if worker.index > 0 or account is None:
                return worker.index == 0, True, 0.0
            return True, account.homes[-1:] == (self._out.rank,), account.lag_s

        return sorted(self.suspended.values(), key=worth)

    def _drop(self, worker: Worker) -> None:
        """Let go of a suspended worker."""
        del self.suspended[worker.job]
        self._holds.pop(worker.job, None)
        worker.happens(Happens.ENDED, self._out)

    # --- from one generation to the next (`succession.py`) -------------------------------------

    def halt(self) -> None:
        """The generation ends: the active worker, if it has a process, is the last of the suspended ones."""
        if (worker := self.active) is None:
            return
        self.active = None
        self._out.act(Log("idle", {}))
        worker.happens(Happens.LEFT, self._out)
        worker.inbox.clear()
        worker.unsent.clear()
        if worker.state.has_process:
            self.suspended[worker.job] = worker
            self._halted_job = worker.job

    def take_over(self, former: LocalWorkers, succession: Succession, now: float) -> None:
        """Keep the processes, and what has not been said for certain, of a PE that was halted."""
        self._numbers = former._numbers
        self._rests_until_s = former._rests_until_s
        self._is_last = succession.is_alone
        self.is_draining = former.is_draining and not self._is_last
        self.leaving.take_over(former.leaving, succession)
        self._last_words.take_over(former._last_words, succession)
        for job, worker in former.suspended.items():
            if job == former._halted_job:
                worker.keep_family()
                worker.is_awaited = succession.pe(worker.parent) is not None
            if job == former._halted_job or (worker.is_carried_over and job in former._holds):
                self._holds[job] = now + self._config.succession_hold_s
            self._renumber_family(worker, succession)
            worker.is_carried_over = True
            worker.path = (succession.heir(worker.client),)
            worker.volume = 0
            self.suspended[job] = worker
        self._inherited = self.suspended.keys() | self._last_words.jobs()
        if self._inherited:
            self._inherited_until_s = now + self._config.succession_patience_s
        self._room = max(self._config.job_cache, len(self.suspended))
        self.update_token()

    def _renumber_family(self, worker: Worker, succession: Succession) -> None:
        """What a carried over worker knows of the tree around it, in the new generation's numbers."""
        if self._config.reuse is not Reuse.FULL:
            worker.kept, worker.is_awaited = (), False
        present = [(one.index, succession.pe(one.rank), one.epoch) for one in worker.kept]
        worker.kept = tuple(PastWorker(index, pe, epoch) for index, pe, epoch in present if pe is not None)
        worker.gone |= {index for index, pe, epoch in present if pe is None and epoch == 0}

    def _meet_inherited(self) -> None:
        """Some jobs of which we have something are live: their clients are to know.

        But not of a worker that its parent will ask for; if it does not, they hear of it later.
        """
        for job in [job for job in self._inherited if self._balancer.volume(job) is not None]:
            self._inherited.remove(job)
            self._last_words.repeat(job, self._out)
            worker = self.suspended.get(job)
            if worker is not None and not worker.is_awaited:
                self._call_attention(worker)

    def _cease_to_await(self, jobs: Iterable[int]) -> None:
        """The parents of these jobs' workers have not asked for them."""
        for job in jobs:
            worker = self.suspended.get(job)
            if worker is not None and worker.is_awaited:
                worker.is_awaited = False
                if job not in self._inherited:
                    self._call_attention(worker)

    def _call_attention(self, worker: Worker) -> None:
        """Have a carried over worker looked for where it was."""
        if self._config.reuse is not Reuse.NONE:
            past = PastWorker(worker.index, self._out.rank, self._balancer.epoch)
            self._out.send(worker.client, Remember(worker.job, -1, (past,), carried_over=True))

    def _let_go_of_the_unheard(self) -> None:
        """Jobs that nobody has spoken of for so long are over."""
        self._inherited_until_s = math.inf
        for job in sorted(self._inherited):
            if self.active is not None and self.active.job == job:
                continue  # its client has asked for it, and will tell everybody in a moment
            self._end(job)
            self._last_words.forget(job)
            self._out.act(JobUnheard(job))
        self._inherited.clear()
        self._room = self._config.job_cache
        self._make_room()
        self.update_token()

    # --- short of memory --------------------------------------------------------------------

    def past(self) -> list[int]:
        """The numbers of the suspended workers, those of least worth first."""
        return [worker.number for worker in self._least_worth_first()]

    def drop_past(self, count: int) -> None:
        """Let go of so many suspended workers."""
        for worker in self._least_worth_first()[: max(0, count)]:
            self._drop(worker)
        self.update_token()

    def pausable(self) -> int | None:
        """The number of the running worker, unless it is a root."""
        return None if (worker := self._pausable()) is None else worker.number

    def _pausable(self) -> Worker | None:
        worker = self.active
        return None if worker is None or worker.index == 0 or not worker.is_at_work else worker

    def pause(self, now: float) -> None:
        """End the process of the running worker, if it is `pausable`: it keeps its seat without one."""
        if (worker := self._pausable()) is not None:
            self._pause(worker, now)

    def leave_for_good(self, now: float) -> None:
        """The system ends: have the running worker hand over what it has, if it does that."""
        self._is_ending = True
        if (worker := self.active) is not None and worker.leaves_in_order:
            self._pause(worker, now)

    # --- to be empty one day ------------------------------------------------------------------

    def drain(self, now: float) -> None:
        """Start nothing new from now on; see the module's docstring."""
        if self._is_last:  # it was ordered before the others were gone
            return
        self.is_draining = True
        self._holds = {job: until for job, until in self._holds.items() if self._is_to_hand_over(job)}
        self._hand_over(now)
        self._save_resting_roots(now)
        self.update_token()

    def _save_resting_roots(self, now: float) -> None:
        """Have the roots that rest here, and save, do so, a few at a time: their next turns are elsewhere."""
        if not self.is_draining:
            return
        for worker in list(filter(self._can_leave_from_rest, self.suspended.values())):
            if len(self.leaving) >= self._config.leavers_max:
                break
            self._leave_from_rest(worker, now)

    @property
    def is_drained(self) -> bool:
        """Whether no process here does anything, or has anything to hand over."""
        is_at_work = self.active is not None and self.active.is_at_work
        is_waited_for = any(map(self._is_to_hand_over, self._holds))
        is_waited_for |= any(map(self._can_leave_from_rest, self.suspended.values()))
        return self.is_draining and not (is_at_work or self.leaving or is_waited_for)

    def _is_to_hand_over(self, job: int) -> bool:
        """Whether the job's worker goes on here when it is found, and then leaves in order."""
        return self._goes_on(job) and self.suspended[job].leaves

    def _hand_over(self, now: float) -> None:
        worker = self.active
        if worker is None or not worker.leaves_in_order:
            return
        if worker.index == 0:
            worker.seats.dismiss(since_epoch=0)
        self._pause(worker, now)

    def receive_leave_wanted(self, source: int, message: LeaveWanted, now: float) -> None:
        """A job is given up while it rests here: its root saves what it has."""
        worker = self.suspended.get(message.job)
        if worker is not None and self._can_leave_from_rest(worker):
            self._leave_from_rest(worker, now)
        else:
            self._out.send(source, RootLeft(message.job))

    def _can_leave_from_rest(self, worker: Worker) -> bool:
        is_root = worker.index == 0 and not worker.is_carried_over
        return is_root and worker.leaves and worker.state is WorkerState.SUSPENDED

    def _leave_from_rest(self, worker: Worker, now: float) -> None:
        del self.suspended[worker.job]
        self._holds.pop(worker.job, None)
        self.leaving.add(worker, now)
        worker.happens(Happens.LEFT_IN_ORDER, self._out)
        self.update_token()

    def _let_go_of_a_drained_root(self, now: float) -> None:
        """It has saved what it had, and had back what it has lent: the next one may begin with that."""
        worker = self.active
        if not self.is_draining or worker is None or worker.index > 0 or worker.accepted_epoch is None:
            return
        if worker.state is WorkerState.PAUSED and all(one.job != worker.job for one in self.leaving):
            self._give_up_seat(worker, now)

    def _pause(self, worker: Worker, now: float) -> None:
        if worker.leaves_in_order:
            self.leaving.add(worker, now)
            worker.happens(Happens.PAUSED_IN_ORDER, self._out)
        else:
            worker.happens(Happens.PAUSED, self._out)
        self._messages.give_back_waiting(worker)

    def has_paused(self) -> bool:
        """Whether there is one that memory would help."""
        is_worth_a_process = not self.is_draining and not self._is_ending
        return is_worth_a_process and self.active is not None and self.active.state is WorkerState.PAUSED

    def unpause(self, now: float) -> None:
        """Give a paused worker another process."""
        worker = self.active
        if worker is not None and self.has_paused():
            worker.happens(Happens.UNPAUSED, self._out)
            self._out.act(Log("unpaused", {"job": worker.job, "index": worker.index}))
            worker.asked_s = now
            self._proceed(worker)

    # --- being a parent -----------------------------------------------------------------

    def receive_offer(self, source: int, offer: Offer) -> None:
        worker = self._parent_of(offer.job, offer.index)
        if worker is not None:
            if worker.seats.receive_offer(source, offer, worker.volume, self._balancer.epoch):
                worker.update_process(self._out)
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
            worker.seats.receive_denied(source, message, worker.volume, self._balancer.epoch)

    def receive_failed(self, source: int, message: RequestFailed, now: float) -> None:
        if self._may_yet_adopt():
            self._early.append((source, message))
        elif (worker := self._parent_of(message.job, message.index)) is not None:
            worker.seats.receive_failed(message.index, worker.volume, self._balancer.epoch, now)

    def receive_left(self, source: int, message: ChildLeft, now: float) -> None:
        worker = self._parent_of(message.job, message.index)
        if worker is not None and worker.seats.receive_left(source, message):
            worker.seats.fit(worker.volume, self._balancer.epoch, now)
            worker.update_process(self._out)

    def receive_remember(self, message: Remember) -> None:
        worker = self.active
        if worker is not None and worker.job == message.job and worker.index == message.index:
            if message.carried_over:
                worker.seats.remember(message, worker.volume, self._balancer.epoch)
            else:
                worker.seats.past.add(message.past)

    # --- what the process says and hears --------------------------------------------------

    def _active_in(self, stay: int) -> Worker | None:
        worker = self.active
        return worker if worker is not None and worker.stay == stay else None

    def _by_number(self, number: int) -> Worker | None:
        """The worker that has this process; None if it is gone."""
        if self.active is not None and self.active.number == number:
            return self.active if self.active.state.has_process else None
        return next((worker for worker in self.suspended.values() if worker.number == number), None)

    def _by_any_number(self, number: int) -> Worker | Leaver | None:
        """The same, of those that leave, too."""
        return self._by_number(number) or self.leaving.get(number)

    def started(self, number: int, leaves: bool, now: float) -> None:
        if (worker := self._by_number(number)) is not None:
            worker.leaves = worker.seats.leaves = leaves
            worker.happens(Happens.STARTED, self._out, now)
            if worker.inbox:
                self._messages.deliver_waiting(worker)
            if self.is_draining and worker is self.active:
                self._hand_over(now)

    def answered(self, it: WorkerAnswered) -> None:
        """Any worker's result counts, a suspended one's too. The PE is free at once."""
        worker = self._by_any_number(it.worker)
        if worker is None:
            return
        found = ResultFound(worker.job, worker.index, worker.stay, it.body, it.peak_memory_bytes, it.cpu_s)
        self._last_words.say(worker.client, found, self._out)
        self._end(worker.job)
        self.update_token()

    def used(self, number: int, cpu_s: float, peak_bytes: int) -> None:
        if (worker := self._by_any_number(number)) is not None:
            self._out.send(worker.client, Used(worker.job, cpu_s, peak_bytes))

    def raised(self, number: int, reason: str) -> None:
        """The application raised an error."""
        worker = self._by_any_number(number)
        if worker is not None:
            self._last_words.say(worker.client, WorkerFailed(worker.job, worker.index, reason), self._out)

    def left(self, number: int, cpu_s: float, now: float) -> None:
        """The process has handed over what it had."""
        if (leaver := self.leaving.get(number)) is not None:
            if cpu_s:
                self._out.send(leaver.client, Used(leaver.job, cpu_s, 0))
            self.leaving.left(number)
            self._let_go_of_a_drained_root(now)
            self._save_resting_roots(now)

    def crashed(self, it: WorkerCrashed, now: float) -> None:
        """The process died: restart it here, a few times.

        If it never ran, another PE is to try. A root that runs and keeps dying ends its job, unless more has
        been done and saved in between: that cannot go on for ever.
        """
        worker, reason = self._by_any_number(it.worker), it.reason
        if worker is None:
            return
        if it.cpu_s:
            self._out.send(worker.client, Used(worker.job, it.cpu_s, 0))
        self._out.act(Log("crashed", {"job": worker.job, "index": worker.index, "reason": reason}))
        if isinstance(worker, Leaver):
            self.leaving.left(worker.number)
            self._let_go_of_a_drained_root(now)
            self._save_resting_roots(now)
            return
        if worker is not self.active:
            self._forget_suspended(worker, Happens.DIED)
            return
        worker.restarts += 1
        if worker.restarts <= self._config.restarts_max:
            worker.happens(Happens.DIED, self._out)
        elif not worker.has_run:
            story = f"the worker process died {worker.restarts} times before it ran, last: {reason}"
            self._lose(worker, Happens.DIED_UNRUN, story, Fault.UNCLEAR, now)
        else:
            worker.happens(Happens.DIED_TOO_OFTEN, self._out)
            self._messages.give_back_waiting(worker)
            if worker.index == 0:
                story = f"the worker process died {worker.restarts} times, last: {reason}"
                self._out.send(worker.client, WorkerFailed(worker.job, worker.index, story))

    def _forget_suspended(self, worker: Worker, what: Happens) -> None:
        """The process of a suspended worker is gone: nothing is left of it."""
        worker.happens(what, self._out)
        del self.suspended[worker.job]
        self._holds.pop(worker.job, None)
        self.update_token()

    def demanded(self, number: int, demand: int) -> None:
        worker = self._by_number(number)
        if worker is not None and worker.index == 0:
            worker.demand = demand
            self._out.send(worker.client, DemandChanged(worker.job, demand))

    def progresses(self, number: int, progress: Progress) -> None:
        worker = self._by_number(number)
        if worker is not None and worker.index == 0:
            worker.done = progress.done
            self._out.send(worker.client, Progressed(worker.job, progress))

    def offers(self, number: int, interim: Interim) -> None:
        """Heard of all workers, of those that leave or have been suspended, too: an answer is an answer."""
        if (worker := self._by_any_number(number)) is not None:
            self._out.send(worker.client, Offered(worker.job, interim))

    def saves(self, number: int, data: bytes) -> None:
        """Heard of a root that leaves or has been suspended, too: nobody knows more of its job."""
        worker = self._by_any_number(number)
        if worker is None or worker.index > 0:
            return
        self._out.send(worker.client, Checkpoint(worker.job, worker.stay, data))
        if isinstance(worker, Worker) and worker.done > worker.saved_done:
            worker.saved_done, worker.restarts = worker.done, 0

    def wants_checkpoint(self, number: int) -> None:
        worker = self._active_as(number)
        if worker is not None and worker.index == 0:
            self._out.send(worker.client, CheckpointWanted(worker.job, worker.stay))

    def receive_checkpoint(self, message: CheckpointGiven) -> None:
        """A process that does not run now will ask once more."""
        worker = self._active_in(message.stay)
        if worker is not None and worker.job == message.job and worker.state is WorkerState.RUNNING:
            self._out.act(GiveCheckpoint(worker.number, message.data))

    def sends_to_parent(self, number: int, data: bytes) -> None:
        if (worker := self._active_as(number) or self.leaving.get(number)) is not None:
            self._messages.send_to_parent(worker, data)

    def sends_to_children(self, number: int, data: bytes) -> None:
        if (worker := self._active_as(number)) is not None:
            self._messages.send_to_children(worker, data)

    def sends_to_worker(self, number: int, pe: int, stay: int, data: bytes) -> None:
        if (worker := self._active_as(number) or self.leaving.get(number)) is None:
            return
        if stay >> _STAY_BITS == self._era:
            self._messages.send_to(worker, pe, stay, data)
        else:  # an address of a former generation: nobody is there any more
            self._messages.bounce(worker, pe, stay, data)

    def missed(self, it: WorkerMissed) -> None:
        """Its process will not take this message: the sender shall know, unless its generation is over."""
        worker = self._by_any_number(it.worker)
        if worker is None:
            return
        self._out.act(Log("dropped message", {"job": worker.job}))
        if it.sender[1] >> _STAY_BITS == self._era:
            self._messages.miss(worker, it)

    def _active_as(self, number: int) -> Worker | None:
        worker = self.active
        return worker if worker is not None and worker.number == number else None

    def receive_message(self, source: int, message: TreeMessage) -> None:
        target = message.target
        self._messages.receive(self._active_in(target), self.leaving.at(target), source, message)
