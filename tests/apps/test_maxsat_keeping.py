"""A new root continues from what the former root has found, if the formula is the same."""

from typing import Any

import numpy as np
import pytest
from fake_context import FakeContext

from mallob_maxsat import keeping
from mallob_maxsat.keeping import Keeping
from mallob_maxsat.problem import Problem
from mallob_maxsat.state import Bounds
from mallob_maxsat.wcnf import read_wcnf

TEXT = b"h 1 2 3 0\n4 -1 0\n5 -2 0\n6 -3 0\n"


class Root(FakeContext):
    def __init__(self, text: bytes, kept: bytes | None = None, index: int = 0) -> None:
        super().__init__(read_wcnf(text, "f").to_payload(), index, {})
        self.kept = kept

    def checkpoint(self, data: bytes) -> None:
        self.kept = data

    def last_checkpoint(self) -> bytes | None:
        return self.kept


@pytest.fixture(autouse=True)
def at_every_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    for pause in ("_BEGIN_S", "_PERIOD_S"):
        monkeypatch.setattr(keeping, pause, 0.0)


def begun(root: Root) -> tuple[Bounds, Keeping]:
    problem = Problem(root.payload)
    bounds = Bounds(problem)
    return bounds, Keeping(root, bounds, problem.n_vars)


def kept_of(text: bytes, model: list[int], lower: int) -> Any:
    root = Root(text)
    bounds, one = begun(root)
    bounds.found(np.array(model, dtype=np.int32))
    bounds.raise_lower(lower)
    one.turn()
    return root.kept


def test_the_next_root_knows_the_model_and_the_bound() -> None:
    bounds, one = begun(Root(TEXT, kept_of(TEXT, [-1, 2, -3], 2)))
    one.turn()
    assert bounds.model is not None
    assert (bounds.model.tolist(), bounds.upper, bounds.lower) == ([-1, 2, -3], 5, 2)


def test_what_is_better_already_stays() -> None:
    bounds, one = begun(Root(TEXT, kept_of(TEXT, [-1, 2, -3], 2)))
    bounds.found(np.array([1, -2, -3], dtype=np.int32))
    bounds.raise_lower(3)
    one.turn()
    assert (bounds.upper, bounds.lower) == (4, 3)


@pytest.mark.parametrize("other", [b"h 1 0\nh 3 0\n4 -1 0\n5 -2 0\n6 -3 0\n", TEXT.replace(b"4", b"1")])
def test_of_another_formula_nothing_is_taken(other: bytes) -> None:
    bounds, one = begun(Root(other, kept_of(TEXT, [-1, 2, -3], 4)))
    one.turn()
    assert bounds.model is None
    assert bounds.lower < 4


def test_a_worker_that_is_no_root_keeps_nothing() -> None:
    other = Root(TEXT, index=1)
    bounds, one = begun(other)
    bounds.raise_lower(1)
    one.turn()
    assert other.kept is None


def test_what_is_known_already_is_not_kept_again() -> None:
    root = Root(TEXT)
    bounds, one = begun(root)
    bounds.raise_lower(1)
    one.turn()
    assert root.kept is not None
    root.kept = None
    one.turn()
    assert root.kept is None
