"""Random walks of requests: walks find idle PEs, return after their last hop, and end when their requests are
withdrawn.
"""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matcher_net import MatcherNet, request_of

from mallob_py.protocol.config import Config, Matching
from mallob_py.protocol.messages import Climb, MeetToken, Walk, WalkEnded
from mallob_py.protocol.random_walk import WALK_PERIOD_S

_ENDLESS = -1
#: bound on the hops of an endless walk among few PEs
_HOPS = 32


def _walks(size: int, hops: int, seed: int = 0, behind: Matching = Matching.ROUTING_TREE) -> MatcherNet:
    return MatcherNet(size, Config(matcher=behind, random_hops=hops, matching_delay_s=0.0), seed)


@pytest.mark.parametrize("behind", Matching)
@given(
    size=st.integers(1, 20),
    asks=st.integers(0, 30),
    idle=st.sets(st.integers(0, 19)),
    hops=st.integers(1, 5),
    seed=st.integers(0, 1000),
)
def test_whom_no_walk_finds_the_matcher_behind_finds(
    behind: Matching, size: int, asks: int, idle: set[int], hops: int, seed: int
) -> None:
    net = _walks(size, hops, seed, behind)
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


def test_a_walk_without_limit_finds_the_only_idle_pe_without_the_matcher_behind() -> None:
    net = _walks(50, _ENDLESS)
    net.idle(17)
    net.ask(1, 40)
    net.run()
    assert list(net.adopted) == [17]
    assert net.count(Walk) > 1
    assert not net.count(Climb)
    assert net.at_rest()


def test_a_walk_of_h_hops_visits_h_pes_and_goes_home() -> None:
    net = _walks(50, 9)
    net.ask(1, 40)
    net.run()
    assert net.count(Walk) == 9
    assert net.count(WalkEnded) == 1
    assert net.root.supply() == (1, 0)


def test_a_walk_without_limit_goes_on_while_nobody_is_idle_and_ends_when_its_request_is_outdated() -> None:
    net = _walks(5, _ENDLESS)
    net.ask(1, 4)
    for walk in range(10):
        assert net.run(now=walk * 1.0) == _HOPS + 1
    net.outdated.add(1)
    assert net.run(now=10.0) == 1
    assert [request.job for request in net.sent_back] == [1]


def test_a_walk_that_took_no_time_is_followed_by_another_one_after_a_while() -> None:
    net = _walks(5, _ENDLESS)
    asker = net.matchers[4]
    net.ask(1, 4)
    net.run()
    assert (net.count(Walk), net.count(WalkEnded)) == (_HOPS, 1)
    assert asker.is_asking(1, 1)
    assert asker.next_deadline() == WALK_PERIOD_S
    assert not net.at_rest()
    net.idle(2)
    net.run(now=WALK_PERIOD_S)
    assert list(net.adopted) == [2]
    assert asker.next_deadline() == math.inf
    assert net.at_rest()


def test_a_walk_that_took_long_is_followed_by_another_one_at_once() -> None:
    net = _walks(5, _ENDLESS)
    net.ask(1, 4)
    net.run(moves_max=_HOPS)
    net.run(now=WALK_PERIOD_S)
    assert (net.count(Walk), net.count(WalkEnded)) == (2 * _HOPS, 2)


def test_a_request_withdrawn_between_two_walks_stays_at_home() -> None:
    net = _walks(5, _ENDLESS)
    net.ask(1, 4)
    net.run()
    net.matchers[4].withdraw(1, 1)
    assert net.at_rest()
    assert net.run(now=WALK_PERIOD_S) == 0


@pytest.mark.parametrize("hops", [9, _ENDLESS])
def test_a_withdrawn_request_ends_its_walk_at_home(hops: int) -> None:
    """The walk ends even if no epoch ever outdates its request."""
    net = _walks(50, hops)
    net.ask(1, 4)
    net.run(moves_max=5)
    net.matchers[4].withdraw(1, 1)
    assert net.run(moves_max=1000) < 100
    assert net.count(WalkEnded) == 1
    assert net.at_rest()
    assert net.root.supply() == (0, 0)


def test_of_two_walks_for_the_same_worker_only_the_wanted_one_goes_on() -> None:
    net = _walks(50, 9)
    net.ask(1, 4)
    net.run(moves_max=3)
    net.ask(1, 4, asked_s=1.0)
    net.run()
    assert net.count(WalkEnded) == 2
    assert net.root.supply() == (1, 0)
    net.idle(0)
    net.run()
    assert [request.asked_s for request in net.adopted.values()] == [1.0]


def test_a_pe_that_was_granted_a_match_behind_is_no_end_of_a_walk() -> None:
    """The PE's token is under way in the matcher that follows the walks, so walks do not end at the PE."""
    net = _walks(3, 1, behind=Matching.PREFIX_SUM)
    net.ask(1, 0)
    net.run()
    net.late = MeetToken
    net.idle(1)
    net.run()
    assert net.matchers[1].token_granted
    for job in range(2, 20):
        net.ask(job, 0)
    net.run()
    assert not net.adopted
    net.late = None
    net.run()
    assert {rank: request.job for rank, request in net.adopted.items()} == {1: 1}


@pytest.mark.parametrize("behind", Matching)
def test_a_pe_at_which_a_walk_has_ended_is_not_idle_for_the_matcher_behind(behind: Matching) -> None:
    net = _walks(2, 5, behind=behind)
    net.idle(0, 1)
    leaf = net.matchers[0]
    leaf.receive(1, Walk(3, request_of(1, 1)))
    assert leaf.token_granted
    assert leaf.supply() == (0, 0)
    leaf.offer_token(True)
    assert leaf.supply() == (0, 0), "not before its adoption"


def test_walks_of_one_pe_visit_all_others_about_equally_often() -> None:
    net = _walks(10, 1)
    for job in range(9000):
        net.ask(job, 3)
    net.matchers[3].flush(0.0)
    visits = [0] * 10
    for effect in net.outs[3].effects:
        visits[effect.dest] += 1  # type: ignore[union-attr]
    assert visits[3] == 0
    assert all(850 < count < 1150 for rank, count in enumerate(visits) if rank != 3), visits
