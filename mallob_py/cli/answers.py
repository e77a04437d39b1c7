"""Answers to formulas: as `s` and `v` lines, as in the SAT competitions, and whether a proof of one holds.

`mallob-py check-proof FORMULA PROOF` says whether a proof in LRAT shows that a formula is unsatisfiable:
VERIFIED, exit code 0; or NOT VERIFIED with the first step of the proof that is wrong, exit code 1. Exit
code 2 if one of the files cannot be read.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mallob_py.cli import CommandError

if TYPE_CHECKING:
    from mallob_py.cli.study_options import CheckProofOptions

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


# --- check-proof ---------------------------------------------------------------------------


def run_check_proof(options: CheckProofOptions) -> int:
    from mallob_sat.proofs.checker import (
        Checker,
        MalformedStep,
        Refuted,
        Unreadable,
        open_input,
        read_clauses,
        read_steps,
    )

    gc.disable()  # there are no cycles, and looking for them among millions of clauses takes its time
    began_s = time.monotonic()
    try:
        checker = Checker(read_clauses(options.formula))
        with open_input(options.proof) as file:
            checker.check(read_steps(file))
    except Unreadable as error:
        raise CommandError(str(error)) from None
    except (Refuted, MalformedStep) as error:
        print(f"NOT VERIFIED: {options.proof}, {error}")
        return 1
    print(f"VERIFIED: {options.formula} is unsatisfiable ({checker.steps} steps, {_seconds_since(began_s)})")
    return 0


def _seconds_since(began_s: float) -> str:
    return f"{time.monotonic() - began_s:.1f} s"
