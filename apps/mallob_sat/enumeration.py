"""Several models of one formula, distinct over the variables that matter.

The root's solver enumerates until there is no further one, or enough are found (see `models`). The
other workers take parts of the search space off it (see `cubes`); alone, it pays nothing for that.

Solutions are kept as bits until the end. Where a file is named for them, they are also written there
as they are found, a line each, so that they survive an interruption.

Guarantees: no two solutions agree on the projection; each is part of a model that was checked;
`complete` is said only if there is no further one. Solutions in a reply are in ascending order.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from mallob_py.kit import (
    SATISFIABLE,
    UNSATISFIABLE,
    InputError,
    Payload,
    Result,
    ResultFileError,
    UnfinishedFile,
    WorkerContext,
)
from mallob_py.kit.result_file import ResultPath
from mallob_sat.cubes import CUBE_BYTES_MAX, Helper, Leader
from mallob_sat.formula import Formula, Literals
from mallob_sat.models import STRATEGY, Models, bits_of, cube_of, cubes_of, row_bytes
from mallob_sat.search import solve_trivial
from mallob_sat.solvers import Answer

#: what replies hold at most (80 MB); more need a file
LITERALS_MAX = 20_000_000
_FIELD = "configuration"
_TURN_S = 0.1
_WRITE_S = 1.0


@dataclass(frozen=True, slots=True)
class Enumerating:
    """At most `count` solutions (None: all), over these variables (none: all of the formula).

    When it is `until` (seconds since 1970), what has been found by then is the result.
    """

    count: int | None
    projection: tuple[int, ...]
    file: ResultPath | None
    until: float = math.inf

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> Enumerating | None:
        """None if one model is enough. Raises InputError."""
        if "solutions" not in configuration:
            for key in ("projection", "solutions-file", "solutions-until"):
                if key in configuration:
                    raise InputError(
                        f"{key} goes with solutions (a number, or 'all'), which is missing", _FIELD
                    )
            return None
        for key in ("portfolio", "solvers", "seed", "sharing", "model"):
            if key in configuration:
                raise InputError(f"{key} has no effect on solutions; leave one of them out", _FIELD)
        count = configuration["solutions"]
        if count != "all" and (type(count) is not int or count < 1):
            raise InputError(f"solutions is {count!r:.40}; it must be a number from 1 on or 'all'", _FIELD)
        file = ResultPath.from_configuration(configuration, "solutions-file")
        until = configuration.get("solutions-until", math.inf)
        if isinstance(until, bool) or not isinstance(until, int | float):
            raise InputError("solutions-until must be a time in seconds since 1970", _FIELD)
        return cls(None if count == "all" else count, _projection(configuration), file, until)

    def prepare(self, formula: Formula) -> Payload:
        if self.projection and max(self.projection) > formula.n_vars:
            raise InputError(
                f"projection names variable {max(self.projection)}, but the formula has {formula.n_vars}",
                _FIELD,
            )
        return {} if self.file is None else self.file.prepare()

    def run(self, context: WorkerContext, formula: Formula) -> Result:
        while True:  # a worker's place in its job may change
            if context.index != 0:
                self._help(context, formula)
            elif (result := self._lead(context, formula)) is not None:
                return result

    def _variables(self, formula: Formula) -> Literals:
        if self.projection:
            return np.array(self.projection, dtype=np.int32)
        return np.arange(1, formula.n_vars + 1, dtype=np.int32)

    def _wanted(self, projection: Literals) -> float:
        wanted = math.inf if self.count is None else self.count
        return wanted if self.file is not None else min(wanted, max(1, LITERALS_MAX // (projection.size + 1)))

    # --- the root ---------------------------------------------------------------------------------

    def _lead(self, context: WorkerContext, formula: Formula) -> Result | None:
        """None if we are not the root any more."""
        projection = self._variables(formula)
        found = _Found(projection, self._wanted(projection))
        if self.file is None:
            return self._enumerate(context, formula, found)
        try:
            with closing(self.file.begin(context.payload)) as file:
                file.deliver()  # it fills up under its name
                found.file = file
                return self._enumerate(context, formula, found)
        except ResultFileError as error:
            raise self.file.refusal(error) from None

    def _enumerate(self, context: WorkerContext, formula: Formula, found: _Found) -> Result | None:
        trivial = solve_trivial(formula)
        if trivial is not None and trivial.code == UNSATISFIABLE:
            return self._result(formula, found, complete=True)
        if not formula.n_vars:
            return Result(SATISFIABLE, [0], {"solver": STRATEGY.title, "solutions": 1, "complete": True})
        cubes = cubes_of(found.projection)
        models = Models(formula, found.projection)
        leader = Leader(context)
        turn_s = 0.0
        while context.index == 0:
            if (now_s := time.monotonic()) >= turn_s:
                turn_s = now_s + _TURN_S
                for cube, rows in leader.turn():
                    models.leave_out(cubes[cube])
                    found.replace(cube, rows)
                found.write_sometimes(now_s)
            if found.count >= found.wanted or (found.count and time.time() >= self.until):
                return self._result(formula, found, complete=False)
            answer = models.search()
            if answer is Answer.SATISFIABLE:
                found.add(models.row)
            elif answer is Answer.UNSATISFIABLE:
                return self._result(formula, found, complete=True)
        return None

    def _result(self, formula: Formula, found: _Found, *, complete: bool) -> Result:
        count = int(min(found.count, found.wanted))
        fields = {"solver": STRATEGY.title, "solutions": count, "complete": complete}
        found.write()
        if not count:
            return Result(UNSATISFIABLE, formula.assumptions, fields)
        return Result(SATISFIABLE, None if self.file is not None else found.literals(), fields)

    # --- the others -------------------------------------------------------------------------------

    def _help(self, context: WorkerContext, formula: Formula) -> None:
        """Enumerate cube after cube, until we are the root."""
        projection = self._variables(formula)
        trivial = solve_trivial(formula)
        if not projection.size or (trivial is not None and trivial.code == UNSATISFIABLE):
            context.park()
        cubes = cubes_of(projection)
        models = Models(formula, projection)
        helper = Helper(context, len(cubes))
        wanted_bytes = min(self._wanted(projection) * row_bytes(projection.size), CUBE_BYTES_MAX + 1)
        #: a solution once found is not found again, hence kept
        found = [bytearray() for _ in cubes]
        while context.index != 0:
            if (cube := helper.choose()) is None:
                helper.turn(timeout_s=1.0)
                continue
            rows = found[cube]
            turn_s = 0.0
            answer = Answer.UNDECIDED
            while answer is not Answer.UNSATISFIABLE and len(rows) < wanted_bytes:
                if (now_s := time.monotonic()) >= turn_s:
                    turn_s = now_s + _TURN_S
                    helper.turn()
                    if helper.is_done(cube) or context.index == 0:
                        break
                answer = models.search(cubes[cube])
                if answer is Answer.SATISFIABLE:
                    rows += models.row
            else:
                helper.give(cube, bytes(rows))


class _Found:
    """The root's solutions by cube, and how many are in the file."""

    def __init__(self, projection: Literals, wanted: float) -> None:
        self.projection = projection
        self.wanted = wanted
        self.count = 0
        self.file: UnfinishedFile | None = None
        self._row_bytes = row_bytes(projection.size)
        self._cubes: dict[int, bytearray] = {}
        self._unwritten = bytearray()
        self._written = 0
        self._write_s = 0.0

    def add(self, row: bytes) -> None:
        self._cubes.setdefault(cube_of(row), bytearray()).extend(row)
        self.count += 1
        if self.file is not None:
            self._unwritten += row

    def replace(self, cube: int, rows: bytes) -> None:
        """Take these, which include all that we have of that cube."""
        own = self._cubes.get(cube, bytearray())
        known = set(self._split(own))
        self.count += (len(rows) - len(own)) // self._row_bytes
        self._cubes[cube] = bytearray(rows)
        if self.file is not None:
            self._unwritten += b"".join(row for row in self._split(rows) if row not in known)

    def _split(self, rows: bytes | bytearray) -> list[bytes]:
        return [bytes(rows[at : at + self._row_bytes]) for at in range(0, len(rows), self._row_bytes)]

    def literals(self) -> Literals:
        """As many as are wanted, in ascending order, each closed by 0."""
        bits = bits_of(b"".join(self._cubes.values()), self.projection.size)
        if len(bits) > self.wanted:
            bits = bits[: int(self.wanted)]
        bits = bits[np.lexsort(bits.T[::-1])]
        closed = np.zeros((len(bits), self.projection.size + 1), dtype=np.int32)
        closed[:, :-1] = np.where(bits, self.projection, -self.projection)
        return closed.ravel()

    def write_sometimes(self, now_s: float) -> None:
        if now_s >= self._write_s:
            self._write_s = now_s + _WRITE_S
            self.write()

    def write(self) -> None:
        """Bring what is new to the file, up to the number that is wanted. Raises ResultFileError."""
        if self.file is None or not self._unwritten:
            return
        rows, self._unwritten = bytes(self._unwritten), bytearray()
        bits = bits_of(rows, self.projection.size)
        bits = bits[: int(min(len(bits), self.wanted - self._written))]
        self._written += len(bits)
        lines = [
            " ".join(map(str, row)) + " 0\n"
            for row in np.where(bits, self.projection, -self.projection).tolist()
        ]
        self.file.write("".join(lines).encode())


def _projection(configuration: Mapping[str, Any]) -> tuple[int, ...]:
    if "projection" not in configuration:
        return ()
    variables = configuration["projection"]
    if not isinstance(variables, list | tuple) or not variables:
        raise InputError("projection must be a list of variables", _FIELD)
    for variable in variables:
        if type(variable) is not int or variable < 1:
            raise InputError(f"projection holds {variable!r:.40}; variables are numbers from 1 on", _FIELD)
    if len(set(variables)) < len(variables):
        raise InputError("projection names a variable twice", _FIELD)
    return tuple(variables)
