"""All ranks choose the same rank to take over a lost client's folder, from the remaining ranks alone."""

from hypothesis import given
from hypothesis import strategies as st

from mallob_py.cli.serve_rank import holders
from mallob_py.protocol.placement import first_generation, heir_of


@given(st.data())
def test_who_has_a_folder_keeps_it_as_long_as_it_lives(data: st.DataObject) -> None:
    ranks = data.draw(st.integers(1, 8))
    first = data.draw(st.permutations(range(ranks)))[: data.draw(st.integers(1, ranks))]
    members = first_generation((1,) * ranks).members
    joiner = ranks
    had = holders(first, members)
    assert had == first
    for _ in range(data.draw(st.integers(0, 12))):
        if len(members) == 1 or data.draw(st.booleans()):
            members, joiner = (*members, joiner), joiner + 1
        else:
            gone = data.draw(st.sampled_from(members))
            members = tuple(each for each in members if each != gone)
        has = holders(first, members)
        assert set(has) <= set(members)
        for former, present in zip(had, has, strict=True):
            assert present == (former if former in members else heir_of(former, members))
        had = has
