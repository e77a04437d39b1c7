"""Who takes over the folder of a client whose rank is gone: the same everywhere, from who is left alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mallob_py.cli.serve_rank import holders


def test_a_folder_goes_to_a_rank_that_began_without_one_if_there_is_one() -> None:
    assert holders([2], [0, 1, 3]) == [3]
    assert holders([2, 3], [0, 1, 2]) == [2, 0]
    assert holders([2, 3], [0, 1]) == [0, 0]
    assert holders([0, 1, 2], [1, 2]) == [1, 1, 2]


@given(st.data())
def test_who_has_a_folder_keeps_it_as_long_as_it_lives(data: st.DataObject) -> None:
    ranks = data.draw(st.integers(1, 8))
    first = data.draw(st.permutations(range(ranks)))[: data.draw(st.integers(1, ranks))]
    left = list(range(ranks))
    had = holders(first, left)
    assert had == first
    while len(left) > 1:
        left.remove(data.draw(st.sampled_from(left)))
        has = holders(first, left)
        assert set(has) <= set(left)
        for former, present in zip(had, has, strict=True):
            assert present == former or former not in left
        had = has
