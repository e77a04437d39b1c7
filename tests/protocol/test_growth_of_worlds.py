"""Ranks that are to join a running system, as seen by the rank that has started them."""

import os

import pytest

from mallob_py.protocol.generation import Ordered
from mallob_py.protocol.growth import PATIENCE_S, Growth
from mallob_py.protocol.rank_messages import Joining, Peer, Place
from mallob_py.runtime.world.failure_detector import process_here

HERE = process_here(os.getpid())


class Host:
    """Rank 0 of the ranks 0 and 1, which has started the ranks 5 and 6."""

    def __init__(self) -> None:
        self.welcomed: dict[int, list[int]] = {}
        self.killed: set[int] = set()
        self.growth = Growth({1}, {5, 6}, 0.0, self.welcome, self.killed.add)

    def welcome(self, rank: int, peers: tuple[Peer, ...]) -> None:
        assert rank not in self.welcomed
        self.welcomed[rank] = [peer.address for peer in peers]

    def come(self, rank: int) -> None:
        self.growth.joining(rank, Joining(HERE, 0, Place(f"link.{rank}"), 2))

    def listen(self, rank: int, place: Place | None = Place("link.1")) -> None:  # noqa: B008
        self.growth.listening(Peer(rank, 0, HERE, place))


def test_newcomers_are_told_of_all_members_and_of_those_who_came_before_them() -> None:
    host = Host()
    host.come(6)
    assert host.welcomed == {}, "where rank 1 listens is not known yet"
    host.listen(1)
    host.come(5)
    assert host.welcomed == {6: [1], 5: [1, 6]}


def test_a_member_that_is_lost_is_not_waited_for() -> None:
    host = Host()
    host.come(5)
    host.growth.member_lost(1)
    assert host.welcomed == {5: []}


def test_all_join_with_one_change_when_the_last_is_connected() -> None:
    host = Host()
    host.listen(1)
    for rank in (5, 6):
        assert host.growth.turn((0, 1), 0.0) is None
        host.come(rank)
        host.growth.connected(rank)
    assert host.growth.turn((0, 1), 0.0) == Ordered(joins=((5, 2), (6, 2)))
    assert not host.growth.is_over((0, 1))
    assert host.growth.turn((0, 1, 5, 6), 0.1) is None
    assert host.growth.is_over((0, 1, 5, 6))
    assert host.growth.problems == {}


def test_an_order_is_given_again_as_it_may_be_lost_with_the_coordinator() -> None:
    host = Host()
    host.listen(1)
    for rank in (5, 6):
        host.come(rank)
        host.growth.connected(rank)
    orders = [host.growth.turn((0, 1), 0.3 * step) for step in range(8)]
    assert host.growth.deadline_s == pytest.approx(1.2 + 1.0)
    assert [order is not None for order in orders] == [True, False, False, False, True, False, False, False]


def test_one_that_dies_on_its_way_is_left_out() -> None:
    host = Host()
    host.listen(1)
    for rank in (5, 6):
        host.come(rank)
    host.growth.connected(6)
    host.growth.lost(5, "was lost")
    assert host.growth.turn((0, 1), 0.0) == Ordered(joins=((6, 2),))
    assert host.growth.is_over((0, 1, 6))
    assert host.growth.problems == {5: "was lost"}


def test_one_that_does_not_come_up_in_time_is_ended() -> None:
    host = Host()
    host.listen(1)
    host.come(6)
    host.growth.connected(6)
    assert host.growth.turn((0, 1), PATIENCE_S - 1.0) is None
    assert host.growth.deadline_s == PATIENCE_S, "it would not be looked at in time"
    assert host.growth.turn((0, 1), PATIENCE_S) == Ordered(joins=((6, 2),))
    assert host.killed == {5}


def test_where_a_member_cannot_listen_nobody_joins() -> None:
    host = Host()
    host.come(5)
    host.listen(1, None)
    assert host.welcomed == {}
    assert host.killed == {5, 6}
    assert host.growth.is_over((0, 1))
    assert host.growth.problems == dict.fromkeys((5, 6), "rank 1 cannot listen for new ranks")
