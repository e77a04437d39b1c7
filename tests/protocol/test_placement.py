"""The PEs of a rank have consecutive numbers, as many as the rank's capacity."""

from hypothesis import given, settings
from hypothesis import strategies as st

from mallob_py.protocol.placement import Placement
from mallob_py.protocol.rank_book import Origin, RankBook
from mallob_py.protocol.rank_messages import RankProcess

capacities = st.lists(st.integers(1, 9), min_size=1, max_size=20)


@settings(deadline=None)
@given(capacities)
def test_each_pe_is_hosted_by_the_rank_that_counts_it(capacities: list[int]) -> None:
    placement = Placement(capacities)
    assert placement.size == sum(capacities)
    for rank, capacity in enumerate(capacities):
        pes = placement.pes_of(rank)
        assert len(pes) == capacity
        assert placement.first_pe(rank) == pes[0]
        assert {placement.rank_of[pe] for pe in pes} == {rank}


@settings(deadline=None)
@given(capacities)
def test_pes_are_numbered_through_in_order_of_ranks(capacities: list[int]) -> None:
    placement = Placement(capacities)
    numbers = [pe for rank in range(placement.ranks) for pe in placement.pes_of(rank)]
    assert numbers == list(range(placement.size))


def test_ranks_of_one_pe_each_are_called_ranks_only() -> None:
    assert Placement([1]).describe() == "1 rank"
    assert Placement([1, 1]).describe() == "2 ranks"
    assert Placement([2, 1, 3]).describe() == "3 ranks with 6 PEs"


def test_ranks_keep_their_numbers_when_some_are_gone_and_pes_are_numbered_anew() -> None:
    placement = Placement([2, 1, 3], [1, 4, 6])
    assert placement.rank_of == (1, 1, 4, 6, 6, 6)
    assert [placement.pes_of(rank) for rank in placement.members] == [range(2), range(2, 3), range(3, 6)]
    assert placement.first_pe(6) == 3
    assert placement.children(4, 4) == [6, 1]
    assert placement.children(6, 4) == []


def test_many_ranks_that_come_or_go_at_once_are_told_in_one_sentence() -> None:
    processes = {rank: RankProcess(40 + rank, "here", 0, 0) for rank in range(9)}
    book = RankBook(Origin((1,) * 9, processes=processes), bound=9)
    assert book.how_moved((1, 2), "left") == [f"rank {n} ({processes[n]}) has left" for n in (1, 2)]
    assert book.how_moved((0, 2, 3, 4, 5, 8), "joined") == ["6 ranks (0,2-5,8) have joined"]
    book.lose(1, "has failed")
    assert book.how_moved((1,), "left") == [book.how_gone(1)], "it knows better"
