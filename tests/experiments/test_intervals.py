"""Intervals of means, by hand."""

from __future__ import annotations

import math

import pytest

from mallob_py.experiments.intervals import Interval, interval, winner


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
    # The parts differ far more than the policies do, and still each part says the same.
    assert winner({"a": [1.0, 10.0, 100.0], "b": [2.0, 11.1, 101.0]}) == "a"
    assert winner({"a": [1.0, 10.0, 100.0], "b": [3.0, 9.0, 101.0]}) is None
    assert winner({"a": [1.0], "b": [2.0]}) is None
    assert winner({"a": [1.0, 2.0]}) == "a"
