"""The prefix-sum matcher: small trees of matchers, whose messages the test delivers."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matcher_net import MatcherNet, request_of

from mallob_py.protocol.config import Config, Matching
from mallob_py.protocol.messages import (
    Adopt,
    Grant,
    MeetToken,
    Supply,
    TokenReturned,
    VoidRequest,
    VoidToken,
)


def _matchers(size: int, seed: int = 0, delay_s: float = 0.0) -> MatcherNet:
    return MatcherNet(size, Config(matcher=Matching.PREFIX_SUM, matching_delay_s=delay_s), seed)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize(
    ("requests", "idle"), [(0, 1), (1, 0), (1, 1), (2, 1), (1, 2), (3, 3), (5, 2), (2, 5)]
)
def test_as_many_pairs_are_matched_as_there_can_be(size: int, requests: int, idle: int) -> None:
    idle = min(idle, size)
    net = _matchers(size, seed=requests)
    for job in range(requests):
        net.ask(job, job % size)
    net.idle(*range(size - idle, size))
    net.run()
    pairs = min(requests, idle)
    assert len(net.adopted) == pairs
    assert len({request.job for request in net.adopted.values()}) == pairs
    assert net.root.supply() == (requests - pairs, idle - pairs)
    assert net.at_rest()


@given(
    size=st.integers(1, 20),
    counts=st.lists(st.integers(1, 9), max_size=8),
    idle=st.sets(st.integers(0, 19)),
    seed=st.integers(0, 1000),
)
def test_whatever_the_order_each_wanted_worker_finds_one_idle_pe_and_each_idle_pe_one_worker(
    size: int, counts: list[int], idle: set[int], seed: int
) -> None:
    net = _matchers(size, seed)
    idle = {rank for rank in idle if rank < size}
    asked_at = random.Random(seed)
    for job, count in enumerate(counts):
        rank = asked_at.randrange(size)
        net.ask(job, rank, count=count)
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
    """Five idle PEs become five workers; the other two requests are void, and their parents will ask
    again.
    """
    net = _matchers(5)
    net.idle(0, 1, 2, 3, 4)
    net.run()
    net.ask(1, 3, count=7, subtree=0)
    net.run()
    by_index = {request.index: (rank, request) for rank, request in net.adopted.items()}
    assert set(by_index) == set(range(5))
    for index in range(1, 5):
        parent_rank, parent = by_index[(index - 1) // 2]
        assert by_index[index][1].path == (*parent.path, parent_rank)
    assert {request.count for request in net.adopted.values()} == {5}, "so workers know which children come"
    assert net.root.supply() == (0, 0)


def test_a_bulk_request_of_seven_over_eight_ranks_is_fulfilled_at_once() -> None:
    net = _matchers(8)
    net.idle(*range(8))
    net.run()
    net.ask(1, 7, count=7, subtree=0)
    net.run()
    assert {request.index for request in net.adopted.values()} == set(range(7))
    assert net.root.supply() == (0, 1)


def test_a_request_withdrawn_in_time_leaves_no_trace() -> None:
    net = _matchers(5)
    net.ask(1, 0, count=3)
    net.run()
    assert net.root.supply() == (3, 0)
    net.matchers[0].withdraw(1, 1)
    net.matchers[0].withdraw(1, 1)
    net.idle(4)
    net.run()
    assert net.root.supply() == (0, 1)
    assert not net.adopted


def test_a_newer_request_for_the_same_workers_takes_the_place_of_the_older() -> None:
    net = _matchers(5)
    net.ask(1, 0, count=3)
    net.run()
    net.ask(1, 0, count=1, epoch=2)
    net.run()
    assert net.root.supply() == (1, 0)
    net.idle(1, 2, 3)
    net.run()
    assert [request.epoch for request in net.adopted.values()] == [2]


def test_a_request_withdrawn_while_its_grant_is_under_way_is_declared_void_and_the_tokens_come_back() -> None:
    net = _matchers(5, seed=3)
    net.late = Grant
    net.idle(2, 3, 4)
    net.ask(1, 0, count=2)
    net.run()
    net.matchers[0].withdraw(1, 1)
    net.late = None
    net.run()
    assert not net.adopted
    assert net.count(VoidRequest) == 2
    assert net.count(TokenReturned) == 2
    assert net.root.supply() == (0, 3)
    assert net.at_rest()


def test_a_pe_that_has_found_work_declares_its_token_void_and_the_request_goes_on_to_the_next() -> None:
    net = _matchers(5, seed=3)
    net.late = Grant
    net.idle(4)
    net.ask(1, 0)
    net.run()
    net.matchers[4].offer_token(False)
    net.late = None
    net.run()
    assert not net.adopted
    assert net.count(VoidToken)
    assert net.root.supply() == (1, 0), "the request is still there"
    net.idle(1)
    net.run()
    assert {rank: request.hops for rank, request in net.adopted.items()} == {1: 1}
    assert net.at_rest()


def test_a_void_of_a_bulk_request_s_first_token_lets_its_whole_subtree_be_asked_for_again() -> None:
    """The first worker is requested again alone; once it exists, it asks for the workers below."""
    net = _matchers(7, seed=1)
    net.late = Grant
    net.idle(0, 4, 5, 6)
    net.ask(1, 1, count=4, subtree=0)
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
    net = _matchers(5, seed=3)
    net.late = Grant
    net.idle(4)
    net.ask(1, 0)
    net.run()
    net.matchers[4].offer_token(False)
    net.matchers[0].withdraw(1, 1)
    net.late = None
    net.run()
    assert net.root.supply() == (0, 0)
    assert net.at_rest()


def test_a_carried_request_goes_back_as_soon_as_it_is_outdated() -> None:
    net = _matchers(3)
    net.matchers[2].carry(request_of(1, 0))
    net.run()
    assert net.root.supply() == (1, 0)
    net.outdated.add(1)
    net.new_epoch()
    net.run()
    assert [request.job for request in net.sent_back] == [1]
    assert net.root.supply() == (0, 0)


def test_an_outdated_request_is_not_carried_at_all() -> None:
    net = _matchers(3)
    net.outdated.add(1)
    net.matchers[2].carry(request_of(1, 0))
    assert len(net.sent_back) == 1
    assert net.root.supply() == (0, 0)


def test_changes_within_the_delay_are_gathered_into_one_message() -> None:
    net = _matchers(2, delay_s=1.0)
    leaf = next(matcher for matcher in net.matchers if not matcher.is_root())
    leaf.ask(request_of(1, 0))
    net.run(now=0.0)
    for job in (2, 3, 4):
        leaf.ask(request_of(job, 0))
        net.run(now=0.5)
    assert leaf.next_deadline() == 1.0
    net.run(now=1.0)
    assert [message.requests for message in net.seen if isinstance(message, Supply)] == [1, 3]
    assert leaf.next_deadline() > 1e9


def test_a_granted_token_is_not_offered_twice() -> None:
    net = _matchers(1)
    net.late = Adopt
    net.idle(0)
    net.ask(1, 0)
    net.run()
    assert net.root.token_granted
    net.idle(0)
    assert net.root.supply() == (0, 0)


@pytest.mark.parametrize("busy", [0, 8, 15], ids=["first", "root of the ranks", "last"])
def test_in_a_quiet_system_all_pairs_of_a_whole_tree_meet_at_their_idle_pes(busy: int) -> None:
    net = _matchers(16)
    net.idle(*(rank for rank in range(16) if rank != busy))
    net.run()
    net.ask(1, busy, subtree=1, count=8)
    net.ask(1, busy, subtree=2, count=7)
    net.run()
    assert len(net.adopted) == 15
    assert net.between[MeetToken] == net.between[Adopt] == 0
