"""Parsing of durations."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mallob_py.service.jobs.durations import format_duration, parse_duration_s


@pytest.mark.parametrize(
    ("text", "duration_s"),
    [
        *[("300s", 300), ("5m", 300), ("2h", 7200), ("1d", 86400), ("100ms", 0.1), ("0", 0), ("0s", 0)],
        *[("1.5h", 5400), (".5s", 0.5), (" 7 s ", 7), ("42", 42), (3, 3), (2.5, 2.5), (0, 0)],
    ],
)
def test_usual_spellings_are_understood(text: object, duration_s: float) -> None:
    assert parse_duration_s(text) == pytest.approx(duration_s)


@pytest.mark.parametrize(
    "value", ["", "s", "-1s", "1 2s", "1w", "inf", "nan", math.inf, math.nan, -1, None, True]
)
def test_nonsense_is_a_value_error(value: object) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration_s(value)


@given(st.floats(0.001, 1e7))
def test_formatted_durations_read_back(duration_s: float) -> None:
    assert parse_duration_s(format_duration(duration_s)) == pytest.approx(duration_s, rel=1e-6)
