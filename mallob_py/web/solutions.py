"""The solution of a reply in the forms that HTTP offers: integers as lines or JSON, bytes as they are.

A reply holds integers, bytes in Base64, or names a file of either (see `service.reply`). Bytes
with a number of `variables` are a packed model: bit v - 1 is variable v's value.
"""

from __future__ import annotations

import array
import base64
import sys
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from mallob_py.web.errors import ApiError

Integers: TypeAlias = "array.array[int]"
Solution: TypeAlias = "Integers | bytes"
_ANSWERS = {10: "SATISFIABLE", 20: "UNSATISFIABLE"}
_LITERALS_PER_LINE = 12


def solution_of(result: Mapping[str, Any], content: bytes | None) -> Solution:
    """From a reply's `result` and the content of the file it names, if it does."""
    if "solution-format" in result:
        data = base64.b64decode(result["solution"]) if content is None else content
        return _unpacked(data, result["variables"]) if "variables" in result else data
    if content is None:
        integers = array.array("i", result.get("solution", []))
    else:
        integers = array.array("i")
        integers.frombytes(content)
        if sys.byteorder == "big":
            integers.byteswap()
    # Models for Mallob's IPASIR bridge begin with a 0.
    is_indexed = bool(integers) and not integers[0] and "solutions" not in result
    return integers[1:] if is_indexed else integers


def solution_json(result: Mapping[str, Any], solution: Solution) -> dict[str, Any]:
    """`solutions` is there if several were asked for: then each ends with a 0."""
    answer: dict[str, Any] = {"resultcode": result["resultcode"]}
    if "solutions" in result:
        answer["solutions"] = result["solutions"]
    if isinstance(solution, bytes):
        return answer | {"solution": base64.b64encode(solution).decode(), "solution-format": "base64"}
    return answer | {"solution": solution.tolist()}


def solution_lines(result: Mapping[str, Any], solution: Solution) -> str:
    """s and v lines as in SAT competitions. Raises ApiError for what is not made of literals."""
    if isinstance(solution, bytes):
        raise ApiError(406, "this answer is made of bytes; ask with Accept: application/json")
    code = result["resultcode"]
    lines = [f"s {_ANSWERS.get(code, 'UNKNOWN')}"]
    if code == 10:
        for model in _models(solution) if "solutions" in result else [[*solution, 0]]:
            for start in range(0, len(model), _LITERALS_PER_LINE):
                lines.append("v " + " ".join(map(str, model[start : start + _LITERALS_PER_LINE])))
    return "\n".join(lines) + "\n"


def _models(solution: Integers) -> Iterator[list[int]]:
    model: list[int] = []
    for literal in solution:
        model.append(literal)
        if literal == 0:
            yield model
            model = []


def _unpacked(data: bytes, variables: int) -> Integers:
    bits = int.from_bytes(data, "little")
    text = f"{bits:0{max(variables, 1)}b}"[::-1]
    return array.array("i", [v if text[v - 1] == "1" else -v for v in range(1, variables + 1)])
