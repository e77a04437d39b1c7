"""SAT with native solvers that give wrong answers of the kind that the configuration names; the checker must
notice.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np

from mallob_py.kit import Result, WorkerContext
from mallob_sat import SatApplication
from mallob_sat.clauses import Clauses
from mallob_sat.formula import Literals
from mallob_sat.native import NativeSolver
from mallob_sat.solvers import Verdict

_give, _model, _start, _wait = NativeSolver.give, NativeSolver.model, NativeSolver.start, NativeSolver.wait


def _give_flipped(self: NativeSolver, clauses: Clauses) -> int:
    literals = clauses.literals.copy()
    literals[:1] *= -1
    return _give(self, Clauses(clauses.lengths, clauses.glues, literals, clauses.signatures))


def _turned_model(self: NativeSolver) -> Literals:
    return -_model(self)


def _start_with_a_wrong_clause(self: NativeSolver, assumptions: Sequence[int] = ()) -> None:
    self.flush()
    os.write(self._checker_fd, b"D" + struct.pack("<QII", 1 << 40, 1, 1) + struct.pack("<iQ", 1, 1))
    _start(self, assumptions)


def _wait_for_unsat(self: NativeSolver, seconds: float = 0.0) -> Verdict:
    self.interrupt()
    _wait(self)
    return Verdict.UNSATISFIABLE


def _foreign(self: NativeSolver, clauses: Clauses) -> int:
    return _give(self, Clauses(*(np.ascontiguousarray(part) for part in _one_unit())))


def _one_unit() -> tuple[Any, ...]:
    byte = np.ones(1, np.uint8)
    return byte, byte, np.ones(1, np.int32), np.zeros((1, 16), np.uint8)


LIES: dict[str, tuple[str, Callable[..., Any]]] = {
    "flipped literal": ("give", _give_flipped),
    "unsigned clause": ("give", _foreign),
    "wrong model": ("model", _turned_model),
    "wrong clause": ("start", _start_with_a_wrong_clause),
    "claimed unsat": ("wait", _wait_for_unsat),
}


class Liar(SatApplication):
    """A solver whose wrong answers are of the kind in the configuration's key `__lie`; without the key, it
    answers correctly.
    """

    def run(self, context: WorkerContext) -> Result:
        if "__lie" not in context.configuration:
            return super().run(context)
        with patch.object(NativeSolver, *LIES[context.configuration["__lie"]]):
            return super().run(context)
