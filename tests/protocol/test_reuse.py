"""The memory of past workers."""

from hypothesis import given
from hypothesis import strategies as st

from mallob_py.protocol.job_tree import PastWorkers, in_subtree
from mallob_py.protocol.messages import PastWorker

_PAST = st.lists(
    st.builds(PastWorker, index=st.integers(0, 30), rank=st.integers(0, 20), epoch=st.integers(0, 50))
)


def _memory(*past: tuple[int, int, int]) -> PastWorkers:
    memory = PastWorkers()
    memory.add(PastWorker(index, rank, epoch) for index, rank, epoch in past)
    return memory


def test_the_one_that_left_last_is_asked_first() -> None:
    memory = _memory((3, 10, 7), (3, 11, 9), (3, 12, 8))
    assert memory.most_recent(3) == PastWorker(3, 11, 9)
    memory.forget(11)
    assert memory.most_recent(3) == PastWorker(3, 12, 8)


def test_nothing_is_known_of_an_index_without_past_workers() -> None:
    memory = _memory((3, 10, 7))
    assert memory.most_recent(4) is None
    assert memory.of_index(4) == []
    memory.forget(99)
    assert len(memory) == 1


def test_a_rank_is_remembered_for_its_last_place_only() -> None:
    memory = _memory((3, 10, 7), (4, 10, 8))
    assert memory.most_recent(3) is None
    assert memory.most_recent(4) == PastWorker(4, 10, 8)
    assert len(memory) == 1


def test_the_oldest_of_an_index_are_forgotten_first() -> None:
    memory = _memory(*((3, rank, rank) for rank in range(10)))
    assert [worker.rank for worker in memory.of_index(3)] == [6, 7, 8, 9]
    assert len(memory) == 4


def test_a_subtree_is_taken_out_with_all_that_is_below() -> None:
    memory = _memory((1, 10, 1), (2, 11, 1), (3, 12, 1), (8, 13, 1), (5, 14, 1))
    assert memory.knows_below(1)
    assert {worker.index for worker in memory.take_below(1)} == {1, 3, 8}
    assert not memory.knows_below(1)
    assert {worker.index for worker in memory.take_all()} == {2, 5}
    assert len(memory) == 0


@given(_PAST, st.integers(0, 14))
def test_whatever_was_added_each_rank_is_known_once_and_subtrees_part_cleanly(
    past: list[PastWorker], subtree: int
) -> None:
    memory = PastWorkers()
    memory.add(past)
    size = len(memory)
    assert size <= len({worker.rank for worker in past})
    below = memory.take_below(subtree)
    rest = memory.take_all()
    assert all(in_subtree(worker.index, subtree) for worker in below)
    assert not any(in_subtree(worker.index, subtree) for worker in rest)
    ranks = [worker.rank for worker in (*below, *rest)]
    assert len(ranks) == len(set(ranks)) == size
