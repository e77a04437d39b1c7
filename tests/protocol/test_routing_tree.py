"""The matcher with a tree of idle counts: it finds idle PEs, and drops outdated requests."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matcher_net import MatcherNet

from mallob_py.protocol.config import Config, Matching
from mallob_py.protocol.messages import Adopt, Climb, Descend, IdleChange, Waits, Withdrawn


def _tree(size: int, seed: int = 0, delay_s: float = 0.0) -> MatcherNet:
    return MatcherNet(size, Config(matcher=Matching.ROUTING_TREE, matching_delay_s=delay_s), seed)


@given(
    size=st.integers(1, 20),
    asks=st.integers(0, 30),
    idle=st.sets(st.integers(0, 19)),
    seed=st.integers(0, 1000),
)
def test_as_many_requests_find_an_idle_pe_as_there_can_be(
    size: int, asks: int, idle: set[int], seed: int
) -> None:
    """This holds for any order of messages; remaining requests wait at the root, which knows the idle PEs
    left.
    """
    net = _tree(size, seed)
    idle = {rank for rank in idle if rank < size}
    choose = random.Random(seed)
    for job in range(asks):
        net.ask(job, choose.randrange(size))
    net.idle(*idle)
    net.run()
    pairs = min(asks, len(idle))
    assert set(net.adopted) <= idle
    assert len({request.job for request in net.adopted.values()}) == len(net.adopted) == pairs
    assert net.root.supply() == (asks - pairs, len(idle) - pairs)


@given(size=st.integers(2, 20), seed=st.integers(0, 1000))
def test_counts_are_right_again_after_pes_have_found_work_elsewhere_in_midst_of_requests(
    size: int, seed: int
) -> None:
    net = _tree(size, seed)
    choose = random.Random(seed)
    net.idle(*range(size))
    net.run(moves_max=choose.randrange(3 * size))
    for rank in range(size):
        if choose.random() < 0.3 and not net.matchers[rank].token_granted:
            net.matchers[rank].offer_token(False)
    asked = choose.randrange(size)
    for job in range(asked):
        net.ask(job, choose.randrange(size))
    net.run(moves_max=choose.randrange(3 * size))
    for rank in range(size):
        if choose.random() < 0.3 and rank not in net.adopted:
            net.idle(rank)
    net.run()
    waiting, idle = net.root.supply()
    assert waiting == asked - len(net.adopted)
    assert not (waiting and idle), "two that wait have not found each other"
    for rank in range(size):
        if rank not in net.adopted:
            net.matchers[rank].offer_token(False)
    net.run()
    assert net.root.supply() == (waiting, 0)


def test_a_request_turns_at_the_first_subtree_with_an_idle_pe() -> None:
    """Ranks 4 and 6 are below 5; the root 3 only hears that one idle PE less is left."""
    net = _tree(7)
    net.idle(0, 6)
    net.run()
    net.seen.clear()
    net.ask(1, 4)
    net.run()
    assert list(net.adopted) == [6]
    assert (net.count(Climb), net.count(Descend), net.count(IdleChange)) == (1, 1, 1)


def test_two_requests_from_one_place_go_down_to_two_idle_pes() -> None:
    """The first request lowers the count of its subtree, so the second goes to the other subtree."""
    net = _tree(7)
    net.idle(0, 6)
    net.run()
    net.seen.clear()
    net.ask(1, 3)
    net.ask(2, 3)
    net.run()
    assert set(net.adopted) == {0, 6}
    assert (net.count(Climb), net.count(Descend)) == (0, 4)


def test_a_pe_that_is_promised_to_a_request_is_not_idle_for_another_one() -> None:
    """The PE may offer itself again while the adoption waits for its epoch."""
    net = _tree(1)
    (matcher,), (out,) = net.matchers, net.outs
    for job in (1, 2):
        matcher.offer_token(True)
        net.ask(job, 0)
        matcher.flush(0.0)
    assert [message.request.job for message in out.to_self if isinstance(message, Adopt)] == [1]
    assert matcher.supply() == (1, 0)


def test_a_request_that_follows_a_stale_count_corrects_it_and_climbs_on() -> None:
    net = _tree(7)
    net.idle(6, 0)
    net.run()
    net.late = IdleChange
    net.matchers[6].offer_token(False)
    net.ask(1, 4)
    net.run()
    assert not net.adopted
    net.late = None
    net.run()
    assert list(net.adopted) == [0]
    assert net.root.supply() == (0, 0)
    assert net.at_rest()


def test_a_request_that_climbs_takes_the_correction_with_it_however_long_the_delay() -> None:
    net = _tree(3, delay_s=10.0)
    net.idle(0)
    net.run(now=0.0)
    net.matchers[0].offer_token(False)
    net.ask(1, 2)
    net.run(now=1.0)
    assert net.root.supply() == (1, 0)
    assert [message.change for message in net.seen if isinstance(message, IdleChange)] == [1]


def test_a_request_asked_where_pes_have_become_busy_tells_the_root_of_them() -> None:
    net = _tree(3, delay_s=10.0)
    net.idle(0)
    net.run(now=0.0)
    net.matchers[0].offer_token(False)
    net.ask(1, 0)
    net.run(now=1.0)
    assert [message.change for message in net.seen if isinstance(message, Climb)] == [-1]
    assert net.root.supply() == (1, 0)


def test_nothing_moves_while_nobody_is_idle_and_who_waits_longest_is_served_first() -> None:
    net = _tree(8)
    for job in (1, 2, 3):
        net.ask(job, 7)
        net.run()
    assert net.run() == 0
    assert net.count(Waits) == 3
    net.idle(0)
    net.run()
    assert {rank: request.job for rank, request in net.adopted.items()} == {0: 1}


def test_a_waiting_request_that_is_withdrawn_leaves_the_root() -> None:
    net = _tree(8)
    net.ask(1, 7)
    net.run()
    assert net.root.supply() == (1, 0)
    net.matchers[7].withdraw(1, 1)
    net.run()
    assert net.root.supply() == (0, 0)
    assert net.at_rest()


def test_a_request_withdrawn_on_its_way_up_is_dropped_as_soon_as_it_waits() -> None:
    net = _tree(8)
    net.late = Climb
    net.ask(1, 7)
    net.run()
    net.matchers[7].withdraw(1, 1)
    net.late = None
    net.run()
    assert net.root.supply() == (0, 0)
    assert net.at_rest()


def test_a_late_withdrawal_does_not_hit_the_request_that_came_after() -> None:
    net = _tree(8)
    net.ask(1, 7)
    net.run()
    net.late = Withdrawn
    net.ask(1, 7, asked_s=1.0)
    net.run()
    assert net.root.supply() == (2, 0)
    net.late = None
    net.run()
    net.idle(0)
    net.run()
    assert [request.asked_s for request in net.adopted.values()] == [1.0]
    assert net.at_rest()


def test_a_request_taken_back_before_it_has_left_costs_nothing() -> None:
    net = _tree(8)
    net.ask(1, 7)
    assert net.matchers[7].is_asking(1, 1)
    net.matchers[7].withdraw(1, 1)
    assert net.run() == 0


def test_a_waiting_request_goes_back_to_its_parent_when_it_is_outdated() -> None:
    net = _tree(8)
    net.ask(1, 7)
    net.ask(2, 7)
    net.run()
    net.outdated.add(1)
    net.new_epoch()
    assert [(request.job, request.parent) for request in net.sent_back] == [(1, 7)]
    assert net.root.supply() == (1, 0)


def test_a_request_that_is_outdated_when_it_comes_to_the_root_does_not_begin_to_wait() -> None:
    net = _tree(8)
    net.outdated.add(1)
    net.ask(1, 7)
    net.run()
    assert [(request.job, request.parent) for request in net.sent_back] == [(1, 7)]
    assert net.root.supply() == (0, 0)


def test_changes_of_idle_counts_within_the_delay_are_gathered_into_one_message() -> None:
    net = _tree(3, delay_s=1.0)
    leaf = net.matchers[0]
    leaf.offer_token(True)
    net.run(now=0.0)
    for idle in (False, True, False):
        leaf.offer_token(idle)
        net.run(now=0.5)
    assert leaf.next_deadline() == 1.0
    net.run(now=1.0)
    assert [message.change for message in net.seen if isinstance(message, IdleChange)] == [1, -1]
    assert leaf.next_deadline() > 1e9


@pytest.mark.parametrize("size", [64, 1024])
def test_one_request_takes_at_most_twice_the_depth_of_the_tree(size: int) -> None:
    for seed in range(10):
        choose = random.Random(seed)
        net = _tree(size, seed)
        net.idle(choose.randrange(size))
        net.run()
        net.seen.clear()
        net.ask(1, choose.randrange(size))
        net.run()
        assert len(net.adopted) == 1
        assert net.count(Climb) + net.count(Descend) <= 2 * size.bit_length()
