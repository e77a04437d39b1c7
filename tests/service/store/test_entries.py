"""Names in a client's folder: written names can be read again, and foreign names are ignored."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mallob_py.service.store import entries

IDS = st.integers(0, 10**19 - 1)
NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1)
ENTRIES = st.one_of(
    st.builds(entries.Claimed, IDS, NAMES),
    st.builds(entries.Kept, IDS, NAMES, IDS),
    st.builds(entries.ChainEnd, IDS, NAMES, IDS),
    st.builds(entries.Decided, IDS, st.sampled_from([entries.Kind.ENDED, entries.Kind.REFUSED]), NAMES),
    st.builds(entries.Decided, IDS, st.just(entries.Kind.REVISION), NAMES, IDS),
)


@given(ENTRIES)
def test_every_entry_is_read_as_what_was_written(entry: entries.Entry) -> None:
    assert entries.parse_entry(entry.entry) == entry


@pytest.mark.parametrize(
    "name",
    [
        "stranger",
        "x.job.y",
        "1.job",
        "1.job.",
        "12.other.z",
        "~12",
        "5.answer.u.json",
        "5.revision.x.y",
        "5.done.7",
        "123456789012345678901.job.x",
        "-1.job.x",
        "1.job\n.x",
    ],
)
def test_names_of_others_are_no_entries(name: str, tmp_path: Path) -> None:
    assert entries.parse_entry(name) is None
    (tmp_path / name).touch()
    assert list(entries.read_entries(tmp_path)) == []


def test_a_refusal_is_named_after_its_file_or_its_job() -> None:
    assert entries.Decided(1, entries.Kind.REFUSED, "x.json.error.json").refused_file_name == "x.json"
    assert entries.Decided(1, entries.Kind.REFUSED, "u.a.json").refused_file_name is None
    assert entries.Decided(1, entries.Kind.ENDED, "u.error.json").refused_file_name is None
    assert entries.Decided(1, entries.Kind.ENDED, "u.error.json").identity == "u.error"
