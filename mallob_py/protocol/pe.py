"""One PE: messages and ticks in, effects out. Here the parts meet.

    balancing.py      everybody's image of all jobs and their volumes, epoch by epoch
                      (or distributed_balancing.py)
    matcher.py        finds idle PEs for requests, in one of several ways
    local_workers.py  the workers of this PE: adoption, suspension, being parent and child, giving back memory
    client.py         the jobs taken in here, from submission to reply
    job_tree.py       the rules of the seats in a job tree

What the caller owes: the same order of messages between any two PEs as they were sent;
`now` that never goes back; every effect executed, in order; a tick at `next_deadline()`.

A message that speaks of an epoch this PE has not seen yet waits for it here (race 1).
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_args

from mallob_py.protocol.balancing import Balancer, ImageRule, local_rule
from mallob_py.protocol.client import Client, JobParameters
from mallob_py.protocol.config import Balancing, Config
from mallob_py.protocol.effects import AnyEffect, JobOver, Outbox
from mallob_py.protocol.host_health import Fault
from mallob_py.protocol.local_workers import LocalWorkers, Shortage
from mallob_py.protocol.matcher import matcher_of
from mallob_py.protocol.messages import (
    Accepted,
    Adopt,
    AnyBalancerMessage,
    AnyMatcherMessage,
    AnyMessage,
    Blamed,
    Blob,
    ChildLeft,
    DemandChanged,
    Denied,
    Described,
    Offer,
    Prefer,
    Query,
    Rejected,
    Release,
    Remember,
    Request,
    RequestFailed,
    ResultFound,
    RootStarted,
    TokenReturned,
    TreeMessage,
    Used,
    WorkerFailed,
)
from mallob_py.protocol.violation import PeerViolation, ProtocolViolation

if TYPE_CHECKING:
    from mallob_py.protocol.distributed_balancing import AnyBalancer

_STORY_LENGTH = 100
#: messages with a user's data: told by their names only
_BULKY = (ResultFound, TreeMessage)


class PE:
    """The scheduler on one rank. See the module's docstring for what its caller owes."""

    def __init__(self, rank: int, size: int, config: Config, rule: ImageRule | None = None) -> None:
        self.rank = rank
        self.size = size
        self._out = Outbox(rank, size)
        self.balancer: AnyBalancer
        if config.balancing is Balancing.DISTRIBUTED:
            from mallob_py.protocol.distributed_balancing import DistributedBalancer

            self.balancer = DistributedBalancer(self._out, config.balancing_delay_s, self._on_epoch)
        else:
            rule = rule or local_rule(size)
            self.balancer = Balancer(self._out, config.balancing_delay_s, rule, self._on_epoch)
        self.matcher = matcher_of(
            self._out,
            config,
            is_outdated=lambda request: self.workers.is_outdated(request),
            on_outdated=lambda request: self.workers.fail(request),
        )
        self.workers = LocalWorkers(
            self._out, config, self.matcher, self.balancer.volume, lambda: self.balancer.epoch
        )
        self.shortage = Shortage(self._out, self.workers)
        self.client = Client(self._out, config, self.balancer, self.matcher, self.workers)
        self._parked: list[tuple[int, int, int, AnyMessage]] = []
        self._parked_count = 0
        self._story: deque[tuple[float, int, AnyMessage | type]] = deque(maxlen=_STORY_LENGTH)
        self.workers.update_token()

    @property
    def effects(self) -> list[AnyEffect]:
        """What is to be done outside, in this order."""
        return self._out.effects

    def take_effects(self) -> list[AnyEffect]:
        """The effects since the last call."""
        effects, self._out.effects = self._out.effects, []
        return effects

    # --- inputs ---------------------------------------------------------------------------

    def submit(self, job: int, parameters: JobParameters, blob: Blob, now: float) -> None:
        """Take in a job whose id is new in the whole system. It ends with one `JobEnded`."""
        self.client.submit(job, parameters, blob, now)
        self._settle(now)

    def interrupt(self, job: int, now: float) -> bool:
        """End a job that was submitted here; False if it is not live (any more)."""
        known = self.client.interrupt(job, now)
        self._settle(now)
        return known

    def set_terms(self, job: int, priority: float, max_demand: int, now: float) -> bool:
        """Change what a job that was submitted here has a right to; False if it is not live."""
        known = self.client.set_terms(job, priority, max_demand)
        self._settle(now)
        return known

    def receive(self, source: int, message: AnyMessage, now: float) -> None:
        """Take one message from another PE."""
        self._handle(source, message, now)
        self._settle(now)

    def tick(self, now: float) -> None:
        """Let time pass."""
        self.client.tick(now)
        self.workers.tick(now)
        self._settle(now)

    def next_deadline(self) -> float:
        """When `tick` is wanted next; `math.inf` if only a message can bring news."""
        deadline_s = min(
            self.balancer.next_deadline(), self.matcher.next_deadline(), self.workers.next_deadline()
        )
        if self.client.jobs:
            deadline_s = min(deadline_s, self.client.next_deadline())
        return deadline_s

    # --- inputs from this PE's worker processes -----------------------------------------------

    def blob_ready(self, job: int, now: float) -> None:
        """The description asked for by `FetchBlob` is on this host."""
        self.workers.blob_ready(job)
        self._settle(now)

    def blob_failed(self, job: int, reason: str, fault: Fault, now: float) -> None:
        """The description asked for by `FetchBlob` cannot be brought to this host."""
        self.workers.blob_failed(job, reason, fault, now)
        self._settle(now)

    def worker_started(self, worker: int, now: float) -> None:
        self.workers.started(worker, now)
        self._settle(now)

    def worker_found_result(
        self, worker: int, body: bytes, now: float, peak_memory_bytes: int = 0, cpu_s: float = 0.0
    ) -> None:
        """`cpu_s`: what `worker_used` has not told."""
        self.workers.found_result(worker, body, peak_memory_bytes, cpu_s)
        self._settle(now)

    def worker_used(self, worker: int, cpu_s: float, peak_bytes: int, now: float) -> None:
        """For the job's statistics: CPU time since the last call, largest memory so far (0: no news)."""
        self.workers.used(worker, cpu_s, peak_bytes)
        self._settle(now)

    def worker_failed(self, worker: int, reason: str, now: float) -> None:
        """The application raised: the job ends with `reason`."""
        self.workers.failed(worker, reason)
        self._settle(now)

    def worker_crashed(self, worker: int, reason: str, now: float) -> None:
        """The process died without a word."""
        self.workers.crashed(worker, reason, now)
        self._settle(now)

    def worker_lost(self, worker: int, reason: str, now: float) -> None:
        """The process that `StartWorker` asked for cannot be had on this host."""
        self.workers.lost(worker, reason, now)
        self._settle(now)

    def worker_demands(self, worker: int, demand: int, now: float) -> None:
        self.workers.demanded(worker, demand)
        self._settle(now)

    def worker_sends_to_parent(self, worker: int, data: bytes, now: float) -> None:
        self.workers.sends_to_parent(worker, data)
        self._settle(now)

    def worker_sends_to_children(self, worker: int, data: bytes, now: float) -> None:
        self.workers.sends_to_children(worker, data)
        self._settle(now)

    def rest(self, until_s: float, now: float) -> None:
        """The host gives workers no processes (`HostHealth`): adopt none until then."""
        self.workers.rest(until_s)
        self._settle(now)

    # --- from a host that is short of memory, or has enough again ---------------------------------

    def drop_past(self, count: int, now: float) -> None:
        self.shortage.drop_past(count)
        self._settle(now)

    def pause(self, now: float) -> None:
        self.shortage.pause()
        self._settle(now)

    def unpause(self, now: float) -> None:
        self.shortage.unpause(now)
        self._settle(now)

    # --- routing --------------------------------------------------------------------------

    def _settle(self, now: float) -> None:
        """Handle messages to ourselves and send what is due, until nothing is left to do."""
        to_self = self._out.to_self
        while True:
            while to_self:
                self._handle(self.rank, to_self.popleft(), now)
            self.balancer.flush(now)
            self.matcher.flush(now)
            if not to_self:
                return

    def _on_epoch(self, now: float, ended: list[int]) -> None:
        for job in ended:
            self._out.act(JobOver(job))
        self.workers.on_epoch(now, ended)
        if self.client.jobs:
            self.client.on_epoch(now)
        self.matcher.drop_outdated()
        while self._parked and self._parked[0][0] <= self.balancer.epoch:
            _, _, source, message = heapq.heappop(self._parked)
            self._handle(source, message, now)

    def _park(self, epoch: int, source: int, message: AnyMessage) -> None:
        self._parked_count += 1
        heapq.heappush(self._parked, (epoch, self._parked_count, source, message))

    def _handle(self, source: int, message: AnyMessage, now: float) -> None:
        self._story.append((now, source, type(message) if type(message) in _BULKY else message))
        try:
            handle = _HANDLERS.get(type(message))
            if handle is None:
                raise PeerViolation(f"no PE understands {type(message).__name__}")
            handle(self, source, message, now)
        except PeerViolation as error:
            if error.source is None:  # else of a message that was parked meanwhile
                error.source = source
                error.args = (f"PE {self.rank} from PE {source}: {error}\n{self.story(message)}",)
            raise
        except AssertionError as error:
            raise ProtocolViolation(f"rank {self.rank}: {error}\n{self.story(message)}") from error

    def _wait_for_epoch_of(self, request: Request, source: int, message: AnyMessage) -> bool:
        """Whether the message has been parked, since its sender is in an epoch still to come here."""
        if request.epoch <= self.balancer.epoch:
            return False
        self._park(request.epoch, source, message)
        return True

    def _on_adopt(self, source: int, message: Adopt, now: float) -> None:
        if not self._wait_for_epoch_of(message.request, source, message):
            self.workers.receive_adopt(message.request, now)

    def _on_preference(self, source: int, message: Prefer, now: float) -> None:
        if not self._wait_for_epoch_of(message.request, source, message):
            self.workers.receive_preference(message.request, now)

    def _on_query(self, source: int, message: Query, now: float) -> None:
        if not self._wait_for_epoch_of(message.request, source, message):
            self.workers.receive_query(message.request, now)

    # News for a parent in a job tree; the parent of index 0 is the client.

    def _on_offer(self, source: int, message: Offer, now: float) -> None:
        if message.index == 0:
            self.client.receive_offer(source, message, now)
        else:
            self.workers.receive_offer(source, message)

    def _on_denied(self, source: int, message: Denied, now: float) -> None:
        if message.index == 0:
            self.client.receive_denied(source, message, now)
        else:
            self.workers.receive_denied(source, message)

    def _on_request_failed(self, source: int, message: RequestFailed, now: float) -> None:
        if message.epoch > self.balancer.epoch:
            self._park(message.epoch, source, message)
        elif message.index == 0:
            self.client.receive_failed(message, now)
        else:
            self.workers.receive_failed(source, message, now)

    def _on_left(self, source: int, message: ChildLeft, now: float) -> None:
        if message.index == 0:
            self.client.receive_left(source, message, now)
        else:
            self.workers.receive_left(source, message, now)

    def _on_remember(self, source: int, message: Remember, now: float) -> None:
        if message.index == -1:
            self.client.receive_remember(message)
        else:
            self.workers.receive_remember(message)

    def story(self, about: AnyMessage | None = None) -> str:
        """The last messages here, those of the same job where `about` has one, oldest first."""
        job = getattr(about, "job", None)
        lines = [
            f"{at:.6f} from {source}: {message}"
            for at, source, message in self._story
            if job is None or getattr(message, "job", job) == job
        ]
        return "\n".join(lines[-40:])

    def is_quiescent(self) -> bool:
        """No deadline of the protocol itself, nothing parked, no half of a match (for checks)."""
        waits = (
            self.balancer.next_deadline(),
            self.matcher.next_deadline(),
            self.workers.next_deadline(),
            self.client.next_announcement(),
        )
        return min(waits) == math.inf and not self._parked and self.matcher.is_at_rest()


#: who takes which message: (PE, source, message, now)
_HANDLERS: dict[type, Callable[[PE, int, Any, float], None]] = {
    TokenReturned: lambda pe, _, message, now: pe.workers.receive_token_back(),
    Adopt: PE._on_adopt,
    Prefer: PE._on_preference,
    Query: PE._on_query,
    Offer: PE._on_offer,
    Denied: PE._on_denied,
    RequestFailed: PE._on_request_failed,
    ChildLeft: PE._on_left,
    Remember: PE._on_remember,
    Accepted: lambda pe, source, message, now: pe.workers.receive_accepted(source, message, now),
    Rejected: lambda pe, _, message, now: pe.workers.receive_rejected(message),
    Described: lambda pe, _, message, now: pe.workers.receive_described(message.context, message.blob),
    Release: lambda pe, _, message, now: pe.workers.receive_release(message.job),
    TreeMessage: lambda pe, source, message, now: pe.workers.receive_message(source, message),
    Blamed: lambda pe, _, message, now: pe.workers.receive_blamed(message.job),
    RootStarted: lambda pe, source, message, now: pe.client.receive_started(source, message, now),
    DemandChanged: lambda pe, _, message, now: pe.client.receive_demand(message),
    ResultFound: lambda pe, _, message, now: pe.client.receive_result(message, now),
    Used: lambda pe, _, message, now: pe.client.receive_used(message),
    WorkerFailed: lambda pe, _, message, now: pe.client.receive_failure(message, now),
}
_HANDLERS.update(
    (kind, lambda pe, _, message, now: pe.balancer.receive(message, now))
    for kind in get_args(AnyBalancerMessage)
)
_HANDLERS.update(
    (kind, lambda pe, source, message, now: pe.matcher.receive(source, message))
    for kind in get_args(AnyMatcherMessage)
)
