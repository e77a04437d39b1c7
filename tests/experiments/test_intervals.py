"""Confidence intervals of means, compared with values that were computed by hand."""

import math

import pytest

from mallob_py.experiments.intervals import Interval, around, interval, parts, ratio, winner


def test_an_interval_is_that_of_students_t() -> None:
    # Mean 3, standard deviation sqrt(2.5), five values.
    found = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.mean == 3.0
    assert found.half == pytest.approx(2.776 * math.sqrt(2.5 / 5))
    assert found.text(1) == "3.0 ± 2.0"
    assert found.excludes(0.0)
    assert not found.excludes(1.5)


def test_a_single_value_excludes_nothing() -> None:
    assert interval([7.0]) == Interval(7.0, math.inf)
    assert not interval([7.0]).excludes(0.0)
    assert interval([7.0]).text() == "7.00"
    with pytest.raises(ValueError, match="no values"):
        interval([])


def test_a_winner_is_ahead_of_each_other_one_pair_by_pair() -> None:
    # The parts differ far more than a and b do, but a is smaller in each part.
    assert winner({"a": [1.0, 10.0, 100.0], "b": [2.0, 11.1, 101.0]}) == "a"
    assert winner({"a": [1.0, 10.0, 100.0], "b": [3.0, 9.0, 101.0]}) is None
    assert winner({"a": [1.0], "b": [2.0]}) is None
    assert winner({"a": [1.0, 2.0]}) == "a"


def test_a_run_is_divided_into_consecutive_parts_of_nearly_equal_length() -> None:
    assert parts(range(7), 3) == [range(2), range(2, 4), range(4, 7)]
    assert parts([1, 2], 3) == [[1], [2]]
    assert parts([]) == []
    assert [len(part) for part in parts("x" * 25)] == [2, 3] * 5


def test_the_interval_of_a_ratio_is_that_of_leaving_out_one_part_after_the_other() -> None:
    # All denominators are equal, so the ratio is a mean with the interval of a mean.
    mean, found = interval([1.0, 2.0, 6.0]), ratio([2.0, 4.0, 12.0], [2.0, 2.0, 2.0])
    assert found.mean == pytest.approx(mean.mean)
    assert found.half == pytest.approx(mean.half)
    # The ratio is 9/6; without one of the three parts, it is 8/5, 7/4 or 3/3.
    without = [8 / 5, 7 / 4, 3 / 3]
    squares = sum((one - sum(without) / 3) ** 2 for one in without)
    found = ratio([1.0, 2.0, 6.0], [1.0, 2.0, 3.0])
    assert found.mean == 1.5
    assert found.half == pytest.approx(4.303 * math.sqrt(2 / 3 * squares))


def test_a_ratio_of_one_part_has_no_interval_and_nothing_is_divided_by_0() -> None:
    assert ratio([3.0], [2.0]) == Interval(1.5, math.inf)
    for above, below in (([], []), ([1.0, 1.0], [0.0, 1.0])):
        with pytest.raises(ValueError, match="nothing to divide by"):
            ratio(above, below)


def test_the_value_of_a_whole_run_has_the_interval_of_its_parts() -> None:
    assert around(5.0, [1.0, 2.0, 6.0]) == Interval(5.0, interval([1.0, 2.0, 6.0]).half)
    assert around(5.0, []).text() == around(5.0, [4.0]).text() == "5.00"
