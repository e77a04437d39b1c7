"""The answer in a reply as `s` and `v` lines, as in the SAT competitions."""

from __future__ import annotations

import array
import base64
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mallob_py.cli import CommandError

_LINE_LENGTH = 78
_ANSWERS = {10: "SATISFIABLE", 20: "UNSATISFIABLE"}


def answer_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """`result` as in a reply. Raises CommandError if the file with the model cannot be read."""
    code = result["resultcode"]
    yield f"s {_ANSWERS.get(code, 'UNKNOWN')}"
    if code != 10:
        return
    literals = _literals(result)
    if "solutions" not in result:
        # Models for Mallob's IPASIR bridge begin with a 0.
        yield from _value_lines(literals[1:] if literals and not literals[0] else literals)
        return
    one: list[int] = []
    for literal in literals:
        if literal:
            one.append(literal)
        else:
            yield from _value_lines(one)
            one = []


def _literals(result: Mapping[str, Any]) -> list[int]:
    if "solution-file" not in result:
        solution = result.get("solution", [])
        return _unpacked(base64.b64decode(solution), result) if isinstance(solution, str) else solution
    try:
        content = Path(result["solution-file"]).read_bytes()
    except OSError as error:
        raise CommandError(f"{result['solution-file']}: {error.strerror}") from None
    if "solution-format" in result:
        return _unpacked(content, result)
    integers = array.array("i")
    integers.frombytes(content)
    if sys.byteorder == "big":
        integers.byteswap()
    return integers.tolist()


def _unpacked(bits: bytes, result: Mapping[str, Any]) -> list[int]:
    """Of a job that asks for its model as bits."""
    variables = range(1, int(result["variables"]) + 1)
    return [one if bits[(one - 1) // 8] >> (one - 1) % 8 & 1 else -one for one in variables]


def _value_lines(literals: Iterable[int]) -> Iterator[str]:
    line = "v"
    for literal in (*literals, 0):
        word = f" {literal}"
        if len(line) + len(word) > _LINE_LENGTH:
            yield line
            line = "v"
        line += word
    yield line
