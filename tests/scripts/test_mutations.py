"""The list of mutations fits the sources: each breaks one rule at exactly one place."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(_ROOT / "scripts"))

import mutate  # noqa: E402
import mutations  # noqa: E402


@pytest.mark.parametrize("mutation", mutations.MUTATIONS, ids=lambda mutation: mutation.rule)
def test_each_mutation_applies_exactly_once_and_changes_something(mutation: mutations.Mutation) -> None:
    text = (_ROOT / mutation.file).read_text()
    assert mutations.apply(mutation, text) != text


def test_each_mutation_names_a_test_that_is_there() -> None:
    places = mutate.test_places(_ROOT)
    assert {mutation.test for mutation in mutations.MUTATIONS} <= set(places)


def test_no_rule_is_listed_twice() -> None:
    changes = [(mutation.file, mutation.old, mutation.new) for mutation in mutations.MUTATIONS]
    assert len(set(changes)) == len(changes)
    assert len({mutation.rule for mutation in mutations.MUTATIONS}) == len(changes)


def test_a_mutation_whose_text_is_gone_or_not_unique_is_refused() -> None:
    mutation = mutations.Mutation("a rule", "a file", "x = 1\n", "x = 2\n", "a test")
    assert mutations.apply(mutation, "x = 1\ny = 1\n") == "x = 2\ny = 1\n"
    for text in ("y = 1\n", "x = 1\nx = 1\n"):
        with pytest.raises(ValueError, match="a rule"):
            mutations.apply(mutation, text)
