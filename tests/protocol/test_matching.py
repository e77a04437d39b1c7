"""The prefix-sum matcher: small trees of matchers without anything else, messages moved by hand."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mallob_py.protocol.effects import Send
from mallob_py.protocol.matching import PrefixSumMatcher
from mallob_py.protocol.messages import (
    Adopt,
    AnyMessage,
    Grant,
    MeetRequest,
    MeetToken,
    Request,
    Supply,
    TokenReturned,
    VoidRequest,
    VoidToken,
)
from mallob_py.protocol.outbox import Outbox


def _request(job: int, rank: int, count: int = 1, subtree: int = 1, epoch: int = 1) -> Request:
    return Request(
        job=job,
        subtree=subtree,
        position=0,
        count=count,
        base=0,
        epoch=epoch,
        path=(rank,),
        hops=0,
        asked_s=0.0,
        blob=None,
    )


class Matchers:
    """`size` matchers and their network: order is kept between two ranks, else random."""

    def __init__(self, size: int, seed: int = 0, delay_s: float = 0.0) -> None:
        self.size = size
        self.outs = [Outbox(rank, size) for rank in range(size)]
        self.outdated: set[int] = set()
        self.sent_back: list[Request] = []
        self.adopted: dict[int, Request] = {}
        self.returned: list[int] = []
        self.seen: list[AnyMessage] = []
        self.late: type[AnyMessage] | None = None
        self._random = random.Random(seed)
        self._channels: dict[tuple[int, int], deque[AnyMessage]] = {}
        self.matchers = [
            PrefixSumMatcher(
                out,
                delay_s,
                is_outdated=lambda request: request.job in self.outdated,
                on_outdated=self.sent_back.append,
            )
            for out in self.outs
        ]
        self.root = next(matcher for matcher in self.matchers if matcher.is_root())

    def idle(self, *ranks: int) -> None:
        for rank in ranks:
            self.matchers[rank].offer_token(True)

    def run(self, now: float = 0.0) -> None:
        """Until nothing moves any more, but for those kinds that are late."""
        while True:
            self._flush(now)
            ready = [
                pair
                for pair, queue in self._channels.items()
                if queue and not (self.late and isinstance(queue[0], self.late))
            ]
            if not ready:
                return
            pair = self._random.choice(ready)
            self._take(*pair, self._channels[pair].popleft())

    def _flush(self, now: float) -> None:
        for rank, (matcher, out) in enumerate(zip(self.matchers, self.outs, strict=True)):
            matcher.flush(now)
            for message in out.to_self:
                self._channels.setdefault((rank, rank), deque()).append(message)
            out.to_self.clear()
            for effect in out.effects:
                assert isinstance(effect, Send)
                self._channels.setdefault((rank, effect.dest), deque()).append(effect.message)
            out.effects.clear()

    def _take(self, source: int, dest: int, message: AnyMessage) -> None:
        self.seen.append(message)
        matcher = self.matchers[dest]
        match message:
            case Supply():
                matcher.receive_supply(source, message)
            case Grant():
                matcher.receive_grant(message)
            case MeetRequest():
                matcher.receive_meet_request(message)
            case MeetToken():
                matcher.receive_meet_token(source, message)
            case VoidRequest() | VoidToken():
                matcher.receive_void(message)
            case Adopt(request):
                assert dest not in self.adopted, "a busy PE was matched"
                matcher.token_used()
                self.adopted[dest] = request
            case TokenReturned():
                matcher.token_used()
                matcher.offer_token(True)
                self.returned.append(dest)
            case _:
                raise AssertionError(f"the matcher has sent {message}")

    def at_rest(self) -> bool:
        return all(matcher.is_at_rest() for matcher in self.matchers)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize(
    ("requests", "idle"), [(0, 1), (1, 0), (1, 1), (2, 1), (1, 2), (3, 3), (5, 2), (2, 5)]
)
def test_as_many_pairs_are_matched_as_there_can_be(size: int, requests: int, idle: int) -> None:
    idle = min(idle, size)
    net = Matchers(size, seed=requests)
    for job in range(requests):
        net.matchers[job % size].ask(_request(job, job % size))
    net.idle(*range(size - idle, size))
    net.run()
    pairs = min(requests, idle)
    assert len(net.adopted) == pairs
    assert len({request.job for request in net.adopted.values()}) == pairs
    assert net.root.supply() == (requests - pairs, idle - pairs)
    assert net.at_rest()


@settings(deadline=None)
@given(
    size=st.integers(1, 20),
    counts=st.lists(st.integers(1, 9), max_size=8),
    idle=st.sets(st.integers(0, 19)),
    seed=st.integers(0, 1000),
)
def test_whatever_the_order_each_wanted_worker_finds_one_idle_pe_and_each_idle_pe_one_worker(
    size: int, counts: list[int], idle: set[int], seed: int
) -> None:
    net = Matchers(size, seed)
    idle = {rank for rank in idle if rank < size}
    asked_at = random.Random(seed)
    for job, count in enumerate(counts):
        rank = asked_at.randrange(size)
        net.matchers[rank].ask(_request(job, rank, count))
    net.idle(*idle)
    net.run()
    assert net.at_rest()
    assert set(net.adopted) <= idle
    workers = [(request.job, request.index) for request in net.adopted.values()]
    assert len(set(workers)) == len(workers)
    left_requests, left_tokens = net.root.supply()
    assert left_tokens == len(idle) - len(net.adopted)
    assert not (left_requests and left_tokens), "two that wait have not found each other"


def test_a_bulk_request_of_seven_over_five_ranks_finds_seven_pes_and_tells_them_their_parents() -> None:
    """Five ranks can give five workers; the other two are taken back and their parents will ask."""
    net = Matchers(5)
    net.idle(0, 1, 2, 3, 4)
    net.run()
    net.matchers[3].ask(_request(1, 3, count=7, subtree=0))
    net.run()
    by_index = {request.index: (rank, request) for rank, request in net.adopted.items()}
    assert set(by_index) == set(range(5))
    for index in range(1, 5):
        parent_rank, parent = by_index[(index - 1) // 2]
        assert by_index[index][1].path == (*parent.path, parent_rank)
    assert {request.count for request in net.adopted.values()} == {5}, "so workers know which children come"
    assert net.root.supply() == (0, 0)


def test_a_bulk_request_of_seven_over_eight_ranks_is_fulfilled_at_once() -> None:
    net = Matchers(8)
    net.idle(*range(8))
    net.run()
    net.matchers[7].ask(_request(1, 7, count=7, subtree=0))
    net.run()
    assert {request.index for request in net.adopted.values()} == set(range(7))
    assert net.root.supply() == (0, 1)


def test_a_request_withdrawn_in_time_leaves_no_trace() -> None:
    net = Matchers(5)
    net.matchers[0].ask(_request(1, 0, count=3))
    net.run()
    assert net.root.supply() == (3, 0)
    net.matchers[0].withdraw(1, 1)
    net.matchers[0].withdraw(1, 1)
    net.idle(4)
    net.run()
    assert net.root.supply() == (0, 1)
    assert not net.adopted


def test_a_newer_request_for_the_same_workers_takes_the_place_of_the_older() -> None:
    net = Matchers(5)
    net.matchers[0].ask(_request(1, 0, count=3))
    net.run()
    net.matchers[0].ask(_request(1, 0, count=1, epoch=2))
    net.run()
    assert net.root.supply() == (1, 0)
    net.idle(1, 2, 3)
    net.run()
    assert [request.epoch for request in net.adopted.values()] == [2]


def test_a_request_withdrawn_while_its_grant_is_under_way_is_declared_void_and_the_tokens_come_back() -> None:
    net = Matchers(5, seed=3)
    net.late = Grant
    net.idle(2, 3, 4)
    net.matchers[0].ask(_request(1, 0, count=2))
    net.run()
    net.matchers[0].withdraw(1, 1)
    net.late = None
    net.run()
    assert not net.adopted
    assert sum(isinstance(message, VoidRequest) for message in net.seen) == 2
    assert len(net.returned) == 2
    assert net.root.supply() == (0, 3)
    assert net.at_rest()


def test_a_pe_that_has_found_work_declares_its_token_void_and_the_request_goes_on_to_the_next() -> None:
    net = Matchers(5, seed=3)
    net.late = Grant
    net.idle(4)
    net.matchers[0].ask(_request(1, 0))
    net.run()
    net.matchers[4].offer_token(False)
    net.late = None
    net.run()
    assert not net.adopted
    assert any(isinstance(message, VoidToken) for message in net.seen)
    assert net.root.supply() == (1, 0), "the request is still there"
    net.idle(1)
    net.run()
    assert {rank: request.hops for rank, request in net.adopted.items()} == {1: 1}
    assert net.at_rest()


def test_a_void_of_a_bulk_request_s_first_token_lets_its_whole_subtree_be_asked_for_again() -> None:
    """The first worker takes part again alone; it asks for those below it when it is there."""
    net = Matchers(7, seed=1)
    net.late = Grant
    net.idle(0, 4, 5, 6)
    net.matchers[1].ask(_request(1, 1, count=4, subtree=0))
    net.run()
    net.matchers[0].offer_token(False)
    net.late = None
    net.run()
    assert net.at_rest()
    assert [(request.index, request.count) for request in net.adopted.values() if request.index == 0] == [
        (0, 1)
    ]
    assert len(net.adopted) + net.root.supply()[1] == 3


def test_a_void_meets_a_void() -> None:
    net = Matchers(5, seed=3)
    net.late = Grant
    net.idle(4)
    net.matchers[0].ask(_request(1, 0))
    net.run()
    net.matchers[4].offer_token(False)
    net.matchers[0].withdraw(1, 1)
    net.late = None
    net.run()
    assert net.root.supply() == (0, 0)
    assert net.at_rest()


def test_a_carried_request_goes_back_as_soon_as_it_is_outdated() -> None:
    net = Matchers(3)
    net.matchers[2].carry(_request(1, 0))
    net.run()
    assert net.root.supply() == (1, 0)
    net.outdated.add(1)
    for matcher in net.matchers:
        matcher.drop_outdated()
    net.run()
    assert [request.job for request in net.sent_back] == [1]
    assert net.root.supply() == (0, 0)


def test_an_outdated_request_is_not_carried_at_all() -> None:
    net = Matchers(3)
    net.outdated.add(1)
    net.matchers[2].carry(_request(1, 0))
    assert len(net.sent_back) == 1
    assert net.root.supply() == (0, 0)


def test_changes_within_the_delay_are_gathered_into_one_message() -> None:
    net = Matchers(2, delay_s=1.0)
    leaf = next(matcher for matcher in net.matchers if not matcher.is_root())
    leaf.ask(_request(1, 0))
    net.run(now=0.0)
    for job in (2, 3, 4):
        leaf.ask(_request(job, 0))
        net.run(now=0.5)
    assert leaf.next_deadline() == 1.0
    net.run(now=1.0)
    assert [message.requests for message in net.seen if isinstance(message, Supply)] == [1, 3]
    assert leaf.next_deadline() > 1e9


def test_a_granted_token_is_not_offered_twice() -> None:
    net = Matchers(1)
    net.late = Adopt
    net.idle(0)
    net.matchers[0].ask(_request(1, 0))
    net.run()
    assert net.root.token_granted
    net.idle(0)
    assert net.root.supply() == (0, 0)
