"""Replies as text: JSON on fewer lines, and answers and tables for people."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mallob_py.cli.reply_text import answer_lines, answer_table, json_text

_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()


def reply_of(**result: Any) -> dict[str, Any]:
    stats = {"time": {"processing": 0.25}, "max_volume": 3}
    return {"result": {"resultcode": 1, "resultstring": "DONE", "outcome": "result"} | result, "stats": stats}


@given(
    st.recursive(
        _SCALARS,
        lambda inner: (
            st.lists(inner) | st.lists(st.integers(), max_size=80) | st.dictionaries(st.text(), inner)
        ),
    )
)
def test_json_text_is_the_same_json(value: Any) -> None:
    assert json.loads(json_text(value)) == value


def test_deeply_nested_json_is_text_all_the_same() -> None:
    value: dict[str, Any] = {"x": json.loads("[" * 800 + "]" * 800)}
    assert json.loads(json_text(value)) == value


def test_a_model_of_many_literals_fills_lines_of_100_columns() -> None:
    lines = json_text({"solution": list(range(1, 1001))}).splitlines()
    assert max(map(len, lines)) <= 100
    assert 40 < len(lines) < 70
    assert sum(len(line) < 90 for line in lines) <= 5  # short lines: brackets, and the last line of literals


def test_an_answer_says_its_outcome_first_and_then_its_fields() -> None:
    assert answer_lines(reply_of(value=92, kernel="numba\x1b", solution=[])) == [
        "DONE in 0.25 s, 3 workers",
        "value   92",
        "kernel  numba\\x1b",
    ]
    (head,) = answer_lines(reply_of(resultstring="UNKNOWN", outcome="interrupted"))
    assert head == "UNKNOWN (interrupted) in 0.25 s, 3 workers"


def test_a_table_has_a_column_for_each_setting_and_a_row_for_each_answer() -> None:
    refused = {"error": {"field": "n", "message": "'n' must be a number"}}
    table = answer_table([({"n": 8}, "u.a-1", reply_of(value=92)), ({"n": "x"}, "u.a-2", refused)])
    header, _, first, second = (line.split() for line in table.splitlines())
    assert header == ["n", "answer", "value", "seconds", "job"]
    assert first == ["8", "DONE", "92", "0.250", "u.a-1"]
    assert second[:3] == ["x", "ERROR", "'n'"]
