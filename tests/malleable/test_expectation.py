"""An evolving program's wishes follow the work that it expects, and do not change back and forth."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from mallob_py.malleable.expectation import BAND, LOOKS, MANY, PAYS_S, Expectation


def wishes_for(lefts_s: list[float]) -> list[int]:
    """Return the wishes of a program that does a unit of work per CPU second; `lefts_s`: its successive
    estimates of the work that is left.
    """
    expectation = Expectation()
    expectation.look(0.0, None, 0.0)
    looks = (expectation.look(at, at + left_s, at) for at, left_s in enumerate(lefts_s, 1))
    return [wish for wish in looks if wish is not None]


def changes(wishes: list[int]) -> list[tuple[int, int]]:
    return [(one, other) for one, other in pairwise(wishes) if one != other]


def test_there_is_no_wish_before_the_looks_that_must_agree() -> None:
    assert wishes_for([100.0] * (LOOKS - 1)) == []
    assert wishes_for([8 * PAYS_S] * LOOKS) == [8]


def test_one_large_estimate_asks_for_nothing_and_a_small_one_gives_nothing_back() -> None:
    assert changes(wishes_for([8 * PAYS_S] * 9 + [800.0] + [8 * PAYS_S] * 9 + [0.0] + [8 * PAYS_S] * 9)) == []


@given(
    st.floats(1.0, 1000.0),
    st.lists(st.floats(1.0, BAND), min_size=LOOKS, max_size=60),
    st.lists(st.floats(1.0, BAND), max_size=60),
)
def test_estimates_within_the_band_change_a_wish_once_at_most(
    level: float, noise: list[float], later: list[float]
) -> None:
    lefts_s = [level * PAYS_S * factor for factor in noise]
    assert changes(wishes_for(lefts_s)) == []
    # Later, half as much work is left, with the same noise.
    lower_s = [level * PAYS_S * factor / 2.0 for factor in later]
    assert all(one > other for one, other in changes(wishes_for(lefts_s + lower_s)))


@given(st.lists(st.floats(0.0, 1000.0), min_size=LOOKS, max_size=60))
def test_the_tail_of_a_program_asks_for_fewer_and_never_for_more(lefts_s: list[float]) -> None:
    wishes = wishes_for(sorted(lefts_s, reverse=True) + [0.0] * LOOKS)
    assert all(one > other for one, other in changes(wishes))
    assert wishes[-1] == 1


def test_a_program_that_does_not_know_its_rest_has_work_for_many() -> None:
    expectation = Expectation()
    looks = [expectation.look(float(at), None, float(at)) for at in range(LOOKS + 1)]
    assert looks == [None] * LOOKS + [MANY]


def test_a_program_that_gets_no_core_keeps_its_wish() -> None:
    expectation = Expectation()
    assert [expectation.look(at, at + 20.0, at) for at in (0.0, 1.0, 2.0, 3.0, 4.0)][-1] == 20.0 / PAYS_S
    assert {expectation.look(4.0, 24.0, 4.0) for _ in range(50)} == {10}


def test_the_speed_is_measured_anew_when_work_was_lost_or_found_done() -> None:
    """Work that an earlier run had saved took no CPU time of this program."""
    expectation = Expectation()
    assert [expectation.look(at + 1e6, at + 1e6 + 20.0, at) for at in range(LOOKS + 1)][-1] == 10
    # A new root begins with less work done; the old measurement would count the difference.
    looks = [expectation.look(at, at + 20.0, 100.0 + at) for at in range(LOOKS + 1)]
    assert looks[-1] == 10
