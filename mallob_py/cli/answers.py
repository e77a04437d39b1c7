"""Answers: as text, in the words of their application, and whether a proof of one holds.

`mallob-py check-proof FORMULA PROOF` says whether a proof in LRAT shows that a formula is unsatisfiable:
VERIFIED, exit code 0; or NOT VERIFIED with the first step of the proof that is wrong, exit code 1. Exit
code 2 if one of the files cannot be read.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mallob_py.applications import UnknownApplication, declaration_of
from mallob_py.cli import CommandError

if TYPE_CHECKING:
    from mallob_py.cli.study_options import CheckProofOptions


def lines_of_reply(application: str, result: Mapping[str, Any]) -> Iterator[str]:
    """`result` as in a reply. Raises CommandError if what it holds, or names, has no form as text."""
    from mallob_py.web.views import solution_of  # only for who has a reply: ranks have none

    content = None
    if (path := result.get("solution-file")) is not None:
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise CommandError(f"{path}: {error.strerror}") from None
    try:
        yield from declaration_of(application).answer_lines(result, solution_of(result, content))
    except (UnknownApplication, ValueError) as error:
        raise CommandError(str(error)) from None


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
