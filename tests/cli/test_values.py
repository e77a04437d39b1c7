"""Parsing of single option values."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mallob_py.cli import values
from mallob_py.kit.declaration import truth


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        *(("0", None), ("1024", 1024), ("1k", 1024), ("1.5m", 3 << 19), ("2g", 2 << 30)),
        *(("2GB", 2 << 30), ("2GiB", 2 << 30), ("7b", 7), (" 1 m ", 1 << 20)),
    ],
)
def test_sizes_have_units(text: str, size_bytes: int | None) -> None:
    assert values.size_limit_bytes(text) == size_bytes


@pytest.mark.parametrize("text", ["", "m", "-1", "1x", "1ii", "inf", "nan", "1e99", "1mm"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        values.size_limit_bytes(text)


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "much", ""])
def test_a_priority_is_positive_and_finite(text: str) -> None:
    with pytest.raises(ValueError, match="number"):
        values.priority(text)


@pytest.mark.parametrize(("text", "on"), [("1", True), ("Yes", True), ("off", False), ("false", False)])
def test_switches_in_the_environment(text: str, on: bool) -> None:
    assert truth(text) is on


@pytest.mark.parametrize("text", ["0", "0s", "-1", "nan", "inf", "1y", ""])
def test_a_duration_that_must_be_one_is_above_zero(text: str) -> None:
    with pytest.raises(ValueError, match=r"no duration|not a time"):
        values.duration_s(text)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "1048577", "x"])
def test_a_simulated_system_has_from_one_to_a_million_pes(text: str) -> None:
    assert values.simulated_pes("1048576") == 1 << 20
    with pytest.raises(ValueError, match=r"less than 1|exceeds|whole number"):
        values.simulated_pes(text)


def test_json_that_is_nested_too_deeply_is_a_text_or_refused() -> None:
    deep = "[" * 100_000
    assert values.assignment(f"x={deep}") == (("x", deep),)
    with pytest.raises(ValueError, match="is not JSON") as refused:
        values.json_object(deep)
    assert len(str(refused.value)) < 200


def test_a_number_with_too_many_digits_for_an_id_is_a_name() -> None:
    assert values.identity_or_id("7" * 18) == "7" * 18
    assert values.identity_or_id("7" * 5000).endswith("." + "7" * 5000)


@given(st.text())
def test_no_text_makes_a_parser_fail_otherwise(text: str) -> None:
    parsers = [values.duration_limit_s, values.size_limit_bytes, values.count, values.positive_count]
    parsers += [values.duration_s, values.simulated_pes]
    for parse in [*parsers, values.priority, truth, values.path, values.word]:
        with contextlib.suppress(ValueError):
            parse(text)


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        *(("seed=1..4", (1, 2, 3, 4)), ("n=8,9,10", (8, 9, 10)), ("x=-1..1", (-1, 0, 1))),
        *(("k=", ("",)), ("k=a,1", ("a", 1)), ("k=7", (7,)), ("k=1..2..3", ("1..2..3",))),
        *(("k=[1, 2]", ([1, 2],)), ('k="a,b"', ("a,b",)), ("k=a=b", ("a=b",)), ("k=..2", ("..2",))),
    ],
)
def test_a_sweep_is_a_range_or_a_list_of_values(text: str, taken: tuple[object, ...]) -> None:
    assert values.sweep(text) == ((text.partition("=")[0], taken),)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("n", "KEY=VALUE"), ("=1", "KEY=VALUE"), ("n=3..1", "ends before"), ("n=1..100001", "more than 100000")],
)
def test_a_sweep_that_makes_no_sense_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        values.sweep(text)
