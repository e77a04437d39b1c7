"""Objectives given in Python's integers, or in numpy's, whose negation may overflow."""

from typing import Any

import numpy as np
import pytest

from mallob_py.api.optimization import Task, maximizing, minimizing

CLAUSES = [[1, 2]]


def soft_lines(task: Task) -> list[str]:
    return task.text.decode().splitlines()[len(CLAUSES) :]


@pytest.mark.parametrize("kind", [int, np.uint8, np.int8, np.uint64])
def test_a_weight_of_any_kind_of_integer_is_the_same_objective(kind: Any) -> None:
    task = maximizing(CLAUSES, {kind(1): kind(3), kind(2): kind(0)})
    assert soft_lines(task) == ["3 1 0"]
    assert soft_lines(minimizing(CLAUSES, {kind(1): kind(3)})) == ["3 -1 0"]
    assert task.value(0) == 3
    assert task.value(3) == 0


def test_the_least_numpy_integer_has_a_negation() -> None:
    assert soft_lines(minimizing(CLAUSES, {1: np.int8(-128)})) == ["128 1 0"]
    assert minimizing(CLAUSES, {1: np.int8(-128)}).value(128) == 0


@pytest.mark.parametrize("literal", [1.0, "1", None])
def test_what_is_no_literal_is_named(literal: Any) -> None:
    with pytest.raises(TypeError, match=f"literals must be integers, not {literal!r}"):
        minimizing(CLAUSES, {literal: 1})


@pytest.mark.parametrize("make", [minimizing, maximizing])
@pytest.mark.parametrize("weight", [1.5, True, "2", None])
def test_what_is_no_integer_is_named_as_it_was_given(make: Any, weight: Any) -> None:
    with pytest.raises(TypeError, match=f"weights must be integers, not {weight!r}"):
        make(CLAUSES, {1: weight})
