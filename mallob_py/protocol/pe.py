"""One PE: messages and ticks in, effects out. Here the parts meet.

    balancing.py      everybody's image of all jobs and their volumes, epoch by epoch
                      (or distributed_balancing.py)
    matching.py       finds idle PEs for requests
    local_workers.py  the workers of this PE: adoption, suspension, being parent and child
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

from mallob_py.protocol.balancing import Balancer, VolumeRule, local_volumes
from mallob_py.protocol.client import Client, JobParameters
from mallob_py.protocol.config import Balancing, Config
from mallob_py.protocol.distributed_balancing import AnyBalancer, DistributedBalancer
from mallob_py.protocol.effects import AnyEffect, JobOver
from mallob_py.protocol.local_workers import LocalWorkers
from mallob_py.protocol.matching import PrefixSumMatcher
from mallob_py.protocol.messages import (
    Accepted,
    Adopt,
    AnyMessage,
    Ask,
    Blob,
    ChildLeft,
    DemandChanged,
    Denied,
    Described,
    Epoch,
    Events,
    Grant,
    MeetRequest,
    MeetToken,
    Offer,
    Query,
    Rejected,
    Release,
    Remember,
    RequestFailed,
    ResultFound,
    RootStarted,
    Settled,
    Supply,
    Tell,
    TokenReturned,
    TreeMessage,
    VoidRequest,
    VoidToken,
    WorkerFailed,
)
from mallob_py.protocol.outbox import Outbox

_STORY_LENGTH = 400
#: messages with a user's data: told by their names only
_BULKY = (ResultFound, TreeMessage)


class ProtocolViolation(Exception):
    """A message that no correct PE can have sent, with what happened here before it."""


class PE:
    """The scheduler on one rank. See the module's docstring for what its caller owes."""

    def __init__(self, rank: int, size: int, config: Config, rule: VolumeRule | None = None) -> None:
        self.rank = rank
        self.size = size
        self._out = Outbox(rank, size)
        self.balancer: AnyBalancer
        if config.balancing is Balancing.DISTRIBUTED:
            self.balancer = DistributedBalancer(self._out, config.balancing_delay_s, self._on_epoch)
        else:
            rule = rule or local_volumes(size)
            self.balancer = Balancer(self._out, config.balancing_delay_s, rule, self._on_epoch)
        self.matcher = PrefixSumMatcher(
            self._out,
            config.matching_delay_s,
            is_outdated=lambda request: self.workers.is_outdated(request),
            on_outdated=lambda request: self.workers.fail(request),
        )
        self.workers = LocalWorkers(
            self._out, config, self.matcher, self.balancer.volume, lambda: self.balancer.epoch
        )
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
        return min(
            self.balancer.next_deadline(),
            self.matcher.next_deadline(),
            self.workers.next_deadline(),
            self.client.next_deadline(),
        )

    # --- inputs from this PE's worker processes -----------------------------------------------

    def blob_ready(self, job: int, now: float) -> None:
        """The description asked for by `FetchBlob` is on this host."""
        self.workers.blob_ready(job)
        self._settle(now)

    def blob_failed(self, job: int, reason: str, now: float) -> None:
        """The description asked for by `FetchBlob` cannot be brought to this host."""
        self.workers.blob_failed(job, reason)
        self._settle(now)

    def worker_started(self, worker: int, now: float) -> None:
        self.workers.started(worker, now)
        self._settle(now)

    def worker_found_result(self, worker: int, body: bytes, now: float) -> None:
        self.workers.found_result(worker, body)
        self._settle(now)

    def worker_failed(self, worker: int, reason: str, now: float) -> None:
        """The application raised: the job ends with `reason`."""
        self.workers.failed(worker, reason)
        self._settle(now)

    def worker_crashed(self, worker: int, reason: str, now: float) -> None:
        """The process died without a word."""
        self.workers.crashed(worker, reason)
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
        self.client.on_epoch(now)
        self.matcher.drop_outdated()
        while self._parked and self._parked[0][0] <= self.balancer.epoch:
            _, _, source, message = heapq.heappop(self._parked)
            self._handle(source, message, now)

    def _park(self, epoch: int, source: int, message: AnyMessage) -> None:
        self._parked_count += 1
        heapq.heappush(self._parked, (epoch, self._parked_count, source, message))

    def _handle(self, source: int, message: AnyMessage, now: float) -> None:
        self._story.append((now, source, type(message) if isinstance(message, _BULKY) else message))
        try:
            self._route(source, message, now)
        except AssertionError as error:
            raise ProtocolViolation(f"rank {self.rank}: {error}\n{self.story(message)}") from error

    def _route(self, source: int, message: AnyMessage, now: float) -> None:
        match message:
            case Events():
                self.balancer.receive_events(message)
            case Epoch():
                assert isinstance(self.balancer, Balancer), "another kind of balancing"
                self.balancer.receive_epoch(message, now)
            case Ask() | Tell() | Settled():
                assert isinstance(self.balancer, DistributedBalancer), "another kind of balancing"
                self.balancer.receive(message, now)
            case Supply():
                self.matcher.receive_supply(source, message)
            case Grant():
                self.matcher.receive_grant(message)
            case MeetRequest():
                self.matcher.receive_meet_request(message)
            case MeetToken():
                self.matcher.receive_meet_token(source, message)
            case VoidRequest() | VoidToken():
                self.matcher.receive_void(message)
            case TokenReturned():
                self.workers.receive_token_back()
            case Adopt() | Query() if message.request.epoch > self.balancer.epoch:
                self._park(message.request.epoch, source, message)
            case Adopt():
                self.workers.receive_adopt(message.request, now)
            case Query():
                self.workers.receive_query(message.request, now)
            case Accepted():
                self.workers.receive_accepted(source, message, now)
            case Rejected():
                self.workers.receive_rejected(message)
            case Described():
                self.workers.receive_described(message.context, message.blob)
            case Release():
                self.workers.receive_release(message.job)
            case TreeMessage():
                self.workers.receive_message(source, message)
            case _:
                self._route_to_parent(source, message, now)

    def _route_to_parent(self, source: int, message: AnyMessage, now: float) -> None:
        """News for a parent in a job tree; the parent of index 0 is the client."""
        match message:
            case RequestFailed() if message.epoch > self.balancer.epoch:
                self._park(message.epoch, source, message)
            case Offer(index=0):
                self.client.receive_offer(source, message, now)
            case Offer():
                self.workers.receive_offer(source, message)
            case Denied(index=0):
                self.client.receive_denied(source, message, now)
            case Denied():
                self.workers.receive_denied(source, message)
            case RequestFailed(index=0):
                self.client.receive_failed(message, now)
            case RequestFailed():
                self.workers.receive_failed(source, message, now)
            case ChildLeft(index=0):
                self.client.receive_left(source, message, now)
            case ChildLeft():
                self.workers.receive_left(source, message, now)
            case Remember(index=-1):
                self.client.receive_remember(message)
            case Remember():
                self.workers.receive_remember(message)
            case RootStarted():
                self.client.receive_started(message, now)
            case DemandChanged():
                self.client.receive_demand(message)
            case ResultFound():
                self.client.receive_result(message, now)
            case WorkerFailed():
                self.client.receive_failure(message, now)
            case _:
                raise AssertionError(f"no PE understands {type(message).__name__}")

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
