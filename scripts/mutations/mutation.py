"""What a mutation is: a rule in words, the text that is replaced, and the test that notices it."""

from __future__ import annotations

import msgspec


class Mutation(msgspec.Struct, frozen=True):
    """A rule, how to break it, and the test that is there for it (`mutate.py` tries that one first)."""

    rule: str
    file: str
    old: str
    new: str
    test: str


def apply(mutation: Mutation, text: str) -> str:
    """The changed source; the old text must be there once and only once."""
    found = text.count(mutation.old)
    if found != 1:
        raise ValueError(f"{mutation.file}: the text of {mutation.rule!r} is there {found} times")
    changed = text.replace(mutation.old, mutation.new)
    compile(changed, mutation.file, "exec")
    return changed
