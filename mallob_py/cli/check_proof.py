"""`mallob-py check-proof FORMULA PROOF`: whether a proof in LRAT shows that a formula is unsatisfiable.

Says VERIFIED, exit code 0; or NOT VERIFIED with the first step of the proof that is wrong, exit code
1. Exit code 2 if one of the files cannot be read.
"""

from __future__ import annotations

import gc
import time

from mallob_py.cli import CommandError
from mallob_py.cli.study_options import CheckProofOptions


def run(options: CheckProofOptions) -> int:
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
