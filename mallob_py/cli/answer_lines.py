"""Answers as `s` and `v` lines, as in the SAT competitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mallob_py.cli import CommandError

_LINE_LENGTH = 78
_ANSWERS = {10: "SATISFIABLE", 20: "UNSATISFIABLE"}


def lines_of_reply(result: Mapping[str, Any]) -> Iterator[str]:
    """`result` as in a reply. Raises CommandError if what it holds, or names, is no model."""
    from mallob_py.web.views import solution_of  # only for who has a reply: ranks have none

    content = None
    if (path := result.get("solution-file")) is not None:
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise CommandError(f"{path}: {error.strerror}") from None
    solution = solution_of(result, content)
    if isinstance(solution, bytes):
        raise CommandError("this answer is made of bytes; ask with --output-format json")
    return answer_lines(result["resultcode"], solution, are_several="solutions" in result)


def answer_lines(code: int, literals: Sequence[int], *, are_several: bool) -> Iterator[str]:
    """Several models are each closed by 0."""
    yield f"s {_ANSWERS.get(code, 'UNKNOWN')}"
    if code != 10:
        return
    for model in _each(literals) if are_several else (literals,):
        yield from _value_lines(model)


def _each(literals: Sequence[int]) -> Iterator[Sequence[int]]:
    begin = 0
    while begin < len(literals):
        end = literals.index(0, begin)
        yield literals[begin:end]
        begin = end + 1


def _value_lines(model: Sequence[int]) -> Iterator[str]:
    line = "v"
    for literal in (*model, 0):
        word = f" {literal}"
        if len(line) + len(word) > _LINE_LENGTH:
            yield line
            line = "v"
        line += word
    yield line
