"""One PE: stimuli in (`stimuli.py`), effects out (`effects.py`). These are its parts:

    balancing.py      each PE's image of all jobs and their volumes, epoch by epoch
                      (or distributed_balancing.py)
    matching.py       finds idle PEs for requests, in one of several ways
    local_workers.py  the workers of this PE: adoption, suspension, and messages to them
    worker.py         the states of one worker, as a table
    leaving.py        processes that hand over their work while the PE runs another worker
    giving.py         processes that rest here and go on at another PE of the host
    tree_messages.py  what workers of a job say to each other
    client.py         the jobs taken in here, from submission to reply
    job_tree.py       the rules of the seats in a job tree

The caller must hand in messages between any two PEs in the order sent, execute every effect, in order, and
hand in a `Tick` at `deadline_s`; `now` must never go back.

A message that names an epoch this PE has not reached waits here for that epoch (race 1).
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_args

from mallob_py.protocol import PeerViolation, ProtocolViolation, messages, stimuli
from mallob_py.protocol.balancing import Balancer, ImageRule, local_rule
from mallob_py.protocol.client import ClientJobs
from mallob_py.protocol.config import Balancing, Config, Matching
from mallob_py.protocol.effects import AnyEffect, JobOver, Outbox
from mallob_py.protocol.local_workers import LocalWorkers
from mallob_py.protocol.matching import Matcher, PrefixSumMatcher

if TYPE_CHECKING:
    from mallob_py.protocol.distributed_balancing import AnyBalancer
    from mallob_py.protocol.placement import Succession

_STORY_LENGTH = 100
#: messages with a user's data, shown by name only
_BULKY = frozenset(
    (messages.ResultFound, messages.TreeMessage, messages.Checkpoint, messages.CheckpointGiven)
)


def matcher_of(
    out: Outbox,
    config: Config,
    is_outdated: Callable[[messages.Request], bool],
    on_outdated: Callable[[messages.Request], None],
) -> Matcher:
    """Return one PE's part of the configured matcher. With a single PE, requests make no random walks."""
    # Imported late, since most PEs need only one matcher.
    matcher: Matcher
    if config.matcher is Matching.PREFIX_SUM:
        matcher = PrefixSumMatcher(out, config.matching_delay_s, is_outdated, on_outdated)
    else:
        from mallob_py.protocol.routing_tree import RoutingTreeMatcher

        matcher = RoutingTreeMatcher(out, config.matching_delay_s, is_outdated, on_outdated)
    if config.random_hops == 0 or out.size == 1:
        return matcher
    from mallob_py.protocol.random_walk import RandomWalk

    return RandomWalk(out, config.random_hops, matcher, is_outdated, on_outdated)


class PE:
    """The scheduler on one PE. The module's docstring lists the caller's duties."""

    def __init__(
        self, rank: int, size: int, config: Config, rule: ImageRule | None = None, era: int = 0
    ) -> None:
        """`era`: number of the PE's generation, 0 for the first one."""
        self.rank = rank
        self.size = size
        self._out = Outbox(rank, size)
        #: the effects in the order in which they must be carried out
        self.effects = self._out.effects
        self.balancer: AnyBalancer
        if config.balancing is Balancing.DISTRIBUTED:
            from mallob_py.protocol.distributed_balancing import DistributedBalancer

            self.balancer = DistributedBalancer(self._out, config.balancing_delay_s, self._on_epoch)
        else:
            rule = rule or local_rule(size, config.slices)
            self.balancer = Balancer(self._out, config.balancing_delay_s, rule, self._on_epoch)
        self.matcher = matcher_of(
            self._out,
            config,
            is_outdated=lambda request: self.workers.is_outdated(request),
            on_outdated=lambda request: self.workers.fail(request),
        )
        self.workers = LocalWorkers(self._out, config, self.matcher, self.balancer, era)
        self.client = ClientJobs(self._out, config, self.balancer, self.matcher, self.workers)
        self._parked: list[tuple[int, int, int, messages.AnyMessage]] = []
        self._parked_count = 0
        self._story: deque[tuple[float, int, messages.AnyMessage | type]] = deque(maxlen=_STORY_LENGTH)
        #: time when a `Tick` is needed, unless another stimulus comes before; `math.inf`: never
        self.deadline_s = math.inf
        self.workers.update_token()
        self.deadline_s = self.matcher.next_deadline()

    def take_effects(self) -> list[AnyEffect]:
        """Return the effects since the last call."""
        effects = list(self.effects)
        self.effects.clear()
        return effects

    def handle(self, stimulus: stimuli.AnyStimulus, now: float) -> None:
        """Take in a stimulus; consequences are in `effects`."""
        if type(stimulus) is stimuli.Received:
            self._receive(stimulus.source, stimulus.message, now)
        else:
            _ON_STIMULUS[type(stimulus)](self, stimulus, now)
        self._settle(now)

    def receive(self, source: int, message: messages.AnyMessage, now: float) -> None:
        """Take in a message as `handle` takes `Received(source, message)`, the most frequent stimulus."""
        self._receive(source, message, now)
        self._settle(now)

    def halt(self, now: float) -> None:
        """End the generation: suspend the active worker on this PE. No stimulus may follow."""
        self.client.halt(now)
        self.workers.halt()

    def successor(self, succession: Succession, config: Config, rule: ImageRule | None, now: float) -> PE:
        """Return the PE that goes on with this halted PE's state; the new PE's effects must be executed."""
        number = succession.pe(self.rank)
        assert number is not None, f"PE {self.rank} has no successor"
        pe = PE(number, succession.size, config, rule, succession.era)
        pe.client.take_over(self.client, succession, now)
        pe.workers.take_over(self.workers, succession, now)
        pe._settle(now)
        return pe

    def _tick(self, now: float) -> None:
        if self.client.deadline_s <= now:
            self.client.tick(now)
        if min(self.workers.deadline_s, self.workers.leaving.deadline_s) <= now:
            self.workers.tick(now)

    # --- routing --------------------------------------------------------------------------

    def _settle(self, now: float) -> None:
        """Handle the PE's messages to itself and send what is due, until nothing is left to do."""
        to_self = self._out.to_self
        while True:
            while to_self:
                self._receive(self.rank, to_self.popleft(), now)
            balancer_s = self.balancer.flush(now) if self.balancer.has_news else math.inf
            matcher_s = self.matcher.flush(now) if self.matcher.has_news else math.inf
            if not to_self:
                break
        deadline_s = self.client.deadline_s
        workers_s, leaving_s = self.workers.deadline_s, self.workers.leaving.deadline_s
        # Comparisons are quicker than `min`, and this runs for each message.
        if workers_s < deadline_s:
            deadline_s = workers_s
        if leaving_s < deadline_s:
            deadline_s = leaving_s
        if balancer_s < deadline_s:
            deadline_s = balancer_s
        self.deadline_s = deadline_s if deadline_s < matcher_s else matcher_s

    def _on_epoch(self, now: float, ended: list[int]) -> None:
        for job in ended:
            self._out.act(JobOver(job))
        self.workers.on_epoch(now, ended)
        if self.client.jobs:
            self.client.on_epoch(now, ended)
        self.matcher.drop_outdated()
        while self._parked and self._parked[0][0] <= self.balancer.epoch:
            _, _, source, message = heapq.heappop(self._parked)
            self._receive(source, message, now)

    def _park(self, epoch: int, source: int, message: messages.AnyMessage) -> None:
        self._parked_count += 1
        heapq.heappush(self._parked, (epoch, self._parked_count, source, message))

    def _receive(self, source: int, message: messages.AnyMessage, now: float) -> None:
        self._story.append((now, source, type(message) if type(message) in _BULKY else message))
        try:
            handle = _ON_MESSAGE.get(type(message))
            if handle is None:
                raise PeerViolation(f"no PE understands {type(message).__name__}")
            handle(self, source, message, now)
        except PeerViolation as error:
            if error.source is None:  # otherwise a message that was parked before is at fault
                error.source = source
                error.args = (f"PE {self.rank} from PE {source}: {error}\n{self.story(message)}",)
            raise
        except AssertionError as error:
            raise ProtocolViolation(f"rank {self.rank}: {error}\n{self.story(message)}") from error

    def _waits_for(self, epoch: int, source: int, message: messages.AnyMessage) -> bool:
        """Park a message whose sender is in a later epoch than this PE; return whether it was parked."""
        if epoch <= self.balancer.epoch:
            return False
        self._park(epoch, source, message)
        return True

    def _on_adopt(self, source: int, message: messages.Adopt, now: float) -> None:
        if not self._waits_for(message.request.epoch, source, message):
            self.workers.receive_adopt(message.request, now)

    def _on_preference(self, source: int, message: messages.Prefer, now: float) -> None:
        if not self._waits_for(message.request.epoch, source, message):
            self.workers.receive_preference(message, now)

    def _on_query(self, source: int, message: messages.Query, now: float) -> None:
        if not self._waits_for(message.request.epoch, source, message):
            self.workers.receive_query(message.request, now)

    def _on_leave_wanted(self, source: int, message: messages.LeaveWanted, now: float) -> None:
        if not self._waits_for(message.epoch, source, message):
            self.workers.giving_back.receive_leave_wanted(source, message, now)

    def _on_process_wanted(self, source: int, message: messages.ProcessWanted, now: float) -> None:
        if not self._waits_for(message.epoch, source, message):
            self.workers.giving.receive_wanted(source, message)

    # News for a parent in a job tree; the client is the parent of index 0.

    def _on_offer(self, source: int, message: messages.Offer, now: float) -> None:
        if message.index == 0:
            self.client.receive_offer(source, message, now)
        else:
            self.workers.parenting.receive_offer(source, message)

    def _on_denied(self, source: int, message: messages.Denied, now: float) -> None:
        if message.index == 0:
            self.client.receive_denied(source, message, now)
        else:
            self.workers.parenting.receive_denied(source, message)

    def _on_request_failed(self, source: int, message: messages.RequestFailed, now: float) -> None:
        if message.epoch > self.balancer.epoch:
            self._park(message.epoch, source, message)
        elif message.index == 0:
            self.client.receive_failed(message, now)
        else:
            self.workers.parenting.receive_failed(source, message, now)

    def _on_left(self, source: int, message: messages.ChildLeft, now: float) -> None:
        if message.index == 0:
            self.client.receive_left(source, message, now)
        else:
            self.workers.parenting.receive_left(source, message, now)

    def _on_remember(self, source: int, message: messages.Remember, now: float) -> None:
        if message.index == -1:
            self.client.receive_remember(message)
        else:
            self.workers.parenting.receive_remember(message)

    def story(self, about: messages.AnyMessage | None = None) -> str:
        """Return the last messages here, oldest first; if `about` has a job, only messages about this job."""
        job = getattr(about, "job", None)
        lines = [
            f"{at:.6f} from {source}: {message}"
            for at, source, message in self._story
            if job is None or getattr(message, "job", job) == job
        ]
        return "\n".join(lines[-40:])

    @property
    def is_drained(self) -> bool:
        """Tell whether, after `Drain`, nothing is lost if the rank leaves."""
        return self.workers.giving_back.is_drained

    def is_quiescent(self) -> bool:
        """Tell whether there is no deadline, nothing parked, and no half of a match (for checks)."""
        waits = (
            self.balancer.next_deadline(),
            self.matcher.next_deadline(),
            self.workers.deadline_s,
            self.workers.leaving.deadline_s,
            self.client.next_announcement(),
        )
        return min(waits) == math.inf and not self._parked and self.matcher.is_at_rest()


#: method for each stimulus except `Received`: (PE, stimulus, now)
_ON_STIMULUS: dict[type[stimuli.AnyStimulus], Callable[[PE, Any, float], None]] = {
    stimuli.Tick: lambda pe, it, now: pe._tick(now),
    stimuli.JobSubmitted: lambda pe, it, now: pe.client.submit(
        it.job, it.parameters, it.description, now, it.checkpoint
    ),
    stimuli.JobInterrupted: lambda pe, it, now: pe.client.interrupt(it.job, now),
    stimuli.JobSetBack: lambda pe, it, now: pe.client.set_back(it.job, now),
    stimuli.TermsChanged: lambda pe, it, now: pe.client.set_terms(it.job, it.priority, it.max_demand),
    stimuli.WorkerStarted: lambda pe, it, now: pe.workers.started(it.worker, it.leaves, now),
    stimuli.WorkerAnswered: lambda pe, it, now: pe.workers.answered(it, now),
    stimuli.WorkerRaised: lambda pe, it, now: pe.workers.reports.raised(it.worker, it.reason),
    stimuli.WorkerCrashed: lambda pe, it, now: pe.workers.crashed(it, now),
    stimuli.WorkerLost: lambda pe, it, now: pe.workers.lost(it.worker, it.reason, now),
    stimuli.WorkerLeft: lambda pe, it, now: pe.workers.left(it.worker, it.cpu_s, now),
    stimuli.WorkerUsed: lambda pe, it, now: pe.workers.reports.used(it.worker, it.cpu_s, it.peak_bytes),
    stimuli.WorkerDemands: lambda pe, it, now: pe.workers.reports.demanded(it.worker, it.demand),
    stimuli.WorkerProgresses: lambda pe, it, now: pe.workers.reports.progresses(it.worker, it.progress),
    stimuli.WorkerOffers: lambda pe, it, now: pe.workers.reports.offers(it.worker, it.interim),
    stimuli.WorkerSaves: lambda pe, it, now: pe.workers.reports.saves(it.worker, it.data),
    stimuli.WorkerWantsCheckpoint: lambda pe, it, now: pe.workers.reports.wants_checkpoint(it.worker),
    stimuli.WorkerToWorker: lambda pe, it, now: pe.workers.tree_messages.to_worker(
        it.worker, it.pe, it.stay, it.data
    ),
    stimuli.WorkerToParent: lambda pe, it, now: pe.workers.tree_messages.to_parent(it.worker, it.data),
    stimuli.WorkerMissed: lambda pe, it, now: pe.workers.tree_messages.missed(it),
    stimuli.WorkerToChildren: lambda pe, it, now: pe.workers.tree_messages.to_children(it.worker, it.data),
    stimuli.DescriptionHere: lambda pe, it, now: pe.workers.description_here(it.job),
    stimuli.DescriptionMissing: lambda pe, it, now: pe.workers.description_missing(
        it.job, it.reason, it.fault, now
    ),
    stimuli.HostRests: lambda pe, it, now: pe.workers.rest(it.until_s),
    stimuli.DropPast: lambda pe, it, now: pe.workers.giving_back.drop_past(it.count),
    stimuli.PauseWorker: lambda pe, it, now: pe.workers.giving_back.pause(now),
    stimuli.UnpauseWorker: lambda pe, it, now: pe.workers.giving_back.unpause(now),
    stimuli.Drain: lambda pe, it, now: pe.workers.giving_back.drain(now),
    stimuli.SystemEnds: lambda pe, it, now: pe.workers.giving_back.leave_for_good(now),
}

#: method for each message: (PE, source, message, now)
_ON_MESSAGE: dict[type, Callable[[PE, int, Any, float], None]] = {
    messages.TokenReturned: lambda pe, _, message, now: pe.workers.receive_token_back(),
    messages.Adopt: PE._on_adopt,
    messages.Prefer: PE._on_preference,
    messages.Query: PE._on_query,
    messages.Offer: PE._on_offer,
    messages.Denied: PE._on_denied,
    messages.RequestFailed: PE._on_request_failed,
    messages.ChildLeft: PE._on_left,
    messages.Remember: PE._on_remember,
    messages.Accepted: lambda pe, source, message, now: pe.workers.receive_accepted(source, message, now),
    messages.Rejected: lambda pe, _, message, now: pe.workers.receive_rejected(message, now),
    messages.Described: lambda pe, _, message, now: pe.workers.receive_described(
        message.stay, message.description
    ),
    messages.Release: lambda pe, _, message, now: pe.workers.receive_release(message.job),
    messages.ProcessWanted: PE._on_process_wanted,
    messages.ProcessDenied: lambda pe, _, message, now: pe.workers.giving.receive_denied(message),
    messages.TreeMessage: lambda pe, source, message, now: pe.workers.tree_messages.receive(source, message),
    messages.Blamed: lambda pe, _, message, now: pe.workers.receive_blamed(message.job),
    messages.RootStarted: lambda pe, source, message, now: pe.client.receive_started(source, message, now),
    messages.LeaveWanted: PE._on_leave_wanted,
    messages.RootLeft: lambda pe, _, message, now: pe.client.receive_root_left(message),
    messages.DemandChanged: lambda pe, _, message, now: pe.client.receive_demand(message),
    messages.ResultFound: lambda pe, source, message, now: pe.client.receive_result(source, message, now),
    messages.Used: lambda pe, _, message, now: pe.client.receive_used(message),
    messages.Progressed: lambda pe, _, message, now: pe.client.receive_progress(message, now),
    messages.Offered: lambda pe, _, message, now: pe.client.receive_offered(message),
    messages.Checkpoint: lambda pe, source, message, now: pe.client.receive_checkpoint(source, message),
    messages.CheckpointWanted: lambda pe, source, message, now: pe.client.receive_checkpoint_wanted(
        source, message
    ),
    messages.CheckpointGiven: lambda pe, _, message, now: pe.workers.reports.receive_checkpoint(message),
    messages.WorkerFailed: lambda pe, _, message, now: pe.client.receive_failure(message, now),
}
_ON_MESSAGE.update(
    (kind, lambda pe, _, message, now: pe.balancer.receive(message, now))
    for kind in get_args(messages.AnyBalancerMessage)
)
_ON_MESSAGE.update(
    (kind, lambda pe, source, message, now: pe.matcher.receive(source, message))
    for kind in get_args(messages.AnyMatcherMessage)
)
