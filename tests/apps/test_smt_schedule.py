"""Which engines the workers of a job run: all engines are tried, whichever workers exist."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from mallob_smt.schedule import LENT_SHARE, SLICE_S, Place, lent, own, running

BASE, COUNT = 3, 9


@given(
    volume=st.integers(1, 12),
    threads=st.integers(1, 4),
    gone=st.sets(st.integers(0, COUNT - 1), max_size=COUNT),
)
def test_whatever_has_given_up_each_strategy_of_the_base_is_somebodys(
    volume: int, threads: int, gone: set[int]
) -> None:
    at_work: list[int] = []
    for index in range(volume):
        place = Place(index, volume, threads)
        chosen = own(place, COUNT, gone)
        assert len(chosen) <= threads
        at_work += chosen + lent(place, BASE, gone, chosen)
    # A strategy may run on two workers: a worker that lends time may not know of a replacement.
    assert set(range(BASE)) - gone <= set(at_work)
    assert not gone.intersection(at_work)


@given(volume=st.integers(1, 12), threads=st.integers(1, 4), gone=st.sets(st.integers(0, COUNT - 1)))
def test_no_two_workers_have_the_same_strategy(volume: int, threads: int, gone: set[int]) -> None:
    chosen = [one for index in range(volume) for one in own(Place(index, volume, threads), COUNT, gone)]
    assert len(chosen) == len(set(chosen))
    assert len(chosen) == min(volume * threads, COUNT - len(gone))


def test_the_first_strategies_stay_with_their_workers_when_another_has_given_up() -> None:
    assert own(Place(2, 3, 1), COUNT, {0}) == [2]
    assert own(Place(0, 3, 1), COUNT, {0}) == [3]


def simulated(used: dict[int, float], seconds: float) -> Mapping[int, float]:
    is_lending = False
    for _ in range(int(seconds / 0.02)):
        chosen = running([0], [1, 2], lambda number: used.get(number, 0.0), is_lending)
        is_lending = chosen != [0]
        (one,) = chosen
        used[one] = used.get(one, 0.0) + 0.02
    return used


def test_a_worker_alone_lends_the_others_little_at_first() -> None:
    used = simulated({}, 10.0)
    assert used[0] >= 10.0 / (1 + LENT_SHARE) - 2 * SLICE_S
    assert abs(used[1] - used[2]) <= 0.04
    assert used[1] + used[2] >= 0.5 * LENT_SHARE * 10.0


def test_after_long_a_time_in_vain_the_others_get_as_much() -> None:
    used = simulated({}, 400.0)
    assert used[1] + used[2] >= 0.3 * 400.0


def test_without_an_own_strategy_the_lent_ones_take_turns() -> None:
    assert running([], [1, 2], lambda number: float(number), False) == [1]
