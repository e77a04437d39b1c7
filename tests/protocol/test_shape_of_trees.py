"""The shape of job trees, by its formulas, for two children and for more."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mallob_py import trees
from mallob_py.protocol.job_tree import in_subtree, subtree_size
from mallob_py.trees import children_of, index_in_subtree, parent_of

_same_shape = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=[1, 2, 3, 5], autouse=True)
def _shape(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "CHILDREN", request.param)


def test_each_worker_but_the_root_is_a_child_of_its_parent() -> None:
    assert parent_of(0) == -1
    assert [child for index in range(60) for child in children_of(index)] == list(
        range(1, 60 * trees.CHILDREN + 1)
    )
    assert all(parent_of(child) == index for index in range(60) for child in children_of(index))


@_same_shape
@given(st.integers(0, 60), st.integers(0, 400))
def test_the_size_of_a_subtree_is_the_number_of_workers_in_it(index: int, volume: int) -> None:
    assert subtree_size(index, volume) == sum(in_subtree(worker, index) for worker in range(volume))


@_same_shape
@given(st.integers(0, 20), st.integers(1, 12))
def test_positions_of_a_subtree_count_its_workers_in_level_order(subtree: int, count: int) -> None:
    indices = [index_in_subtree(subtree, position) for position in range(count)]
    assert indices == sorted(set(indices))
    assert all(in_subtree(index, subtree) for index in indices)
    assert subtree_size(subtree, indices[-1] + 1) == count


@_same_shape
@given(st.integers(0, 60), st.integers(1, 100))
def test_parents_by_position_are_parents_by_index(subtree: int, position: int) -> None:
    assert parent_of(index_in_subtree(subtree, position)) == index_in_subtree(subtree, parent_of(position))
