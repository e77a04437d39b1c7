"""Enumeration: several models of a formula that differ in given variables, the projection.

The root's solver enumerates models (`Models`) until there is no further model, or enough are found. Other
workers take parts of the search space from the root (cubes, below). This costs a root without other workers
nothing.

Solutions are kept as bits until the end: the values of the projection are a *row*, in which variable i is bit
i, counted from the lowest bit of each byte. If the job names a file, solutions are written to it as they are
found, a line each, so they survive an interruption.

Enumeration by cubes
--------------------
The root alone would find all solutions. A helper (any other worker) picks a cube (values of a few variables),
enumerates the cube and sends all its solutions to the root. The root replaces its own solutions in the cube
by the helper's, and skips the cube from then on. So workers need not agree on cubes: if two helpers do a
cube, or a message is lost with a worker, this costs only time. The root tells helpers which cubes it has,
and helpers send their other cubes again.

    ROWS(q, rows)   up    all solutions of cube q, up to the number wanted
    DONE(bits)      down  bit q: cube q is done

A cube with too many solutions for a message is left to the root.

Guarantees: no two solutions agree on the projection; each is part of a checked model; `complete` is true only
if there is no further solution. Solutions in a reply are in ascending order.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mallob_py.kit import (
    InputError,
    Payload,
    Result,
    ResultFileError,
    TreeMessage,
    UnfinishedFile,
    WorkerContext,
)
from mallob_py.kit.result_file import ResultPath
from mallob_sat.declaration import SATISFIABLE, UNSATISFIABLE
from mallob_sat.formula import Formula, Literals
from mallob_sat.portfolio import Strategy
from mallob_sat.search import check_model, set_up, solve_trivial
from mallob_sat.solvers import Verdict

STRATEGY = Strategy("cadical195")
#: number of conflicts after which a search for a model returns to its caller
_CONFLICTS = 500
#: greatest number of variables whose values define a cube
_CUBE_VARIABLES_MAX = 8


class Models:
    """The enumeration of a formula's models under its assumptions, by one solver."""

    def __init__(self, formula: Formula, projection: Literals) -> None:
        self._formula = formula
        self._projection = projection
        self._solver = set_up(STRATEGY)
        self._solver.add_formula(formula)
        for literal in formula.assumptions.tolist():
            self._solver.add_clause([literal])
        #: the last solution
        self.row = b""

    def search(self, cube: Sequence[int] = ()) -> Verdict:
        """Search for another model in a cube; UNDECIDED after _CONFLICTS, UNSATISFIABLE if there is none."""
        answer = self._solver.solve_for(_CONFLICTS, cube)
        if answer is Verdict.SATISFIABLE:
            model = self._solver.model()
            check_model(self._formula, model, STRATEGY)
            literals = model[self._projection - 1]
            self._solver.add_clause((-literals).tolist())
            self.row = np.packbits(literals > 0, bitorder="little").tobytes()
        return answer

    def leave_out(self, cube: Sequence[int]) -> None:
        """Skip this cube from now on."""
        self._solver.add_clause([-literal for literal in cube])


def cubes_of(projection: Literals) -> list[list[int]]:
    """Return all cubes of the first variables. Variable i is true in cube q if bit i of q is set."""
    variables = projection[:_CUBE_VARIABLES_MAX].tolist()
    return [
        [variable if number >> place & 1 else -variable for place, variable in enumerate(variables)]
        for number in range(1 << len(variables))
    ]


def cube_of(row: bytes) -> int:
    """Return the number of the cube that contains a solution."""
    return row[0]


def bits_of(rows: bytes, n_variables: int) -> NDArray[np.uint8]:
    """Convert concatenated rows into a matrix of bits: a row per solution, a column per variable."""
    lines = np.frombuffer(rows, dtype=np.uint8).reshape(-1, row_bytes(n_variables))
    return np.unpackbits(lines, axis=1, count=n_variables, bitorder="little")


def row_bytes(n_variables: int) -> int:
    return -(-n_variables // 8)


#: greatest size of a cube's solutions in a message
CUBE_BYTES_MAX = 4 << 20
_TELL_PERIOD_S = 1.0
_SEND_AGAIN_S = 5.0
#: golden ratio: multiples of it spread helpers' first cubes evenly
_SPREAD = 0.6180339887
_HEADER = struct.Struct("<3scI")
_MAGIC = b"\xf5CU"
_ROWS = b"R"
_DONE = b"D"


class Leader:
    """The root's side of the enumeration by cubes."""

    def __init__(self, context: WorkerContext, clock: Callable[[], float] = time.monotonic) -> None:
        self._context = context
        self._clock = clock
        self._done = 0
        self._tell_s = clock()

    def turn(self) -> list[tuple[int, bytes]]:
        """Return the cubes that helpers have done since the last call: (cube's number, its solutions)."""
        news = []
        for message in self._context.poll():
            kind, cube, body = _decode(message)
            if kind == _ROWS and not self._done >> cube & 1:
                self._done |= 1 << cube
                news.append((cube, body))
        now = self._clock()
        if news or now >= self._tell_s:
            self._tell_s = now + _TELL_PERIOD_S
            self._context.send_to_children(_done_message(self._done))
        return news


class Helper:
    """A helper's side of the enumeration by cubes."""

    def __init__(
        self, context: WorkerContext, n_cubes: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._context = context
        self._n_cubes = n_cubes
        self._clock = clock
        self._done = 0
        #: number of a cube done by this helper -> its message, kept because a new root may lack the cube
        self._sent: dict[int, bytes] = {}
        self._left_to_root: set[int] = set()
        self._send_again_s = clock() + _SEND_AGAIN_S
        self._next = int(context.index * _SPREAD * n_cubes) % n_cubes

    def choose(self) -> int | None:
        """Choose a cube that is not known to be done; None: there is none at present."""
        for step in range(self._n_cubes):
            cube = (self._next + step) % self._n_cubes
            if not self.is_done(cube) and cube not in self._sent and cube not in self._left_to_root:
                self._next = cube
                return cube
        return None

    def is_done(self, cube: int) -> bool:
        return bool(self._done >> cube & 1)

    def give(self, cube: int, rows: bytes) -> None:
        """Send all solutions of a cube."""
        if len(rows) > CUBE_BYTES_MAX:
            self.leave_to_root(cube)
            return
        self._sent[cube] = _HEADER.pack(_MAGIC, _ROWS, cube) + rows
        self._context.send_to_parent(self._sent[cube])

    def leave_to_root(self, cube: int) -> None:
        self._left_to_root.add(cube)

    def turn(self, timeout_s: float = 0.0) -> None:
        """Handle messages; wait for them at most `timeout_s`."""
        for message in self._context.poll(timeout_s):
            kind, _, body = _decode(message)
            if kind == _ROWS:
                self._context.send_to_parent(message.data)
            elif kind == _DONE:
                self._done = int.from_bytes(body, "little")  # a new root may have fewer cubes
                self._context.send_to_children(message.data)
        now = self._clock()
        if now >= self._send_again_s:
            self._send_again_s = now + _SEND_AGAIN_S
            for cube, data in self._sent.items():
                if not self.is_done(cube):
                    self._context.send_to_parent(data)


def _done_message(done: int) -> bytes:
    return _HEADER.pack(_MAGIC, _DONE, 0) + done.to_bytes(-(-done.bit_length() // 8), "little")


def _decode(message: TreeMessage) -> tuple[bytes, int, bytes]:
    """Return kind, cube and content of a message; no kind: it is no message of this module."""
    if message.returned or message.data[: len(_MAGIC)] != _MAGIC:
        return b"", 0, b""
    _, kind, cube = _HEADER.unpack_from(message.data)
    return kind, cube, message.data[_HEADER.size :]


#: greatest number of literals of the models in a reply (80 MB); more models need a file
LITERALS_MAX = 20_000_000
#: greatest number of literals of the models in an offer (4 MB)
OFFERED_LITERALS_MAX = 1_000_000
#: time between two offers, as a multiple of the time to make an offer
_OFFER_PAUSE = 20
_FIELD = "configuration"
_TURN_S = 0.1
_WRITE_S = 1.0


@dataclass(frozen=True, slots=True)
class Enumerating:
    """The mode that finds at most `count` solutions (None: all).

    `projection`: the variables of interest (empty: all). At the time `until` (seconds since 1970), or after
    the root has worked for `within_s`, the solutions found so far are the result.
    """

    count: int | None
    projection: tuple[int, ...]
    file: ResultPath | None
    until: float = math.inf
    within_s: float = math.inf

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> Enumerating | None:
        """Return the mode; None: one model is enough. Raises InputError."""
        if "solutions" not in configuration:
            for key in ("projection", "solutions-file", "solutions-until", "solutions-within"):
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
        within_s = configuration.get("solutions-within", math.inf)
        if isinstance(within_s, bool) or not isinstance(within_s, int | float):
            raise InputError("solutions-within must be a number of seconds", _FIELD)
        return cls(None if count == "all" else count, _projection(configuration), file, until, within_s)

    def prepare(self, formula: Formula) -> Payload:
        if self.projection and max(self.projection) > formula.n_vars:
            raise InputError(
                f"projection names variable {max(self.projection)}, but the formula has {formula.n_vars}",
                _FIELD,
            )
        return {} if self.file is None else self.file.prepare()

    def run(self, context: WorkerContext, formula: Formula) -> Result:
        # The end by the monotonic clock, because nobody can set that clock.
        over_s = time.monotonic() + min(self.until - time.time(), self.within_s)
        while True:  # a worker's index in its job may change
            if context.index != 0:
                self._help(context, formula)
            elif (result := self._lead(context, formula, over_s)) is not None:
                return result

    def _variables(self, formula: Formula) -> Literals:
        if self.projection:
            return np.array(self.projection, dtype=np.int32)
        return np.arange(1, formula.n_vars + 1, dtype=np.int32)

    def _wanted(self, projection: Literals) -> float:
        wanted = math.inf if self.count is None else self.count
        return wanted if self.file is not None else min(wanted, max(1, LITERALS_MAX // (projection.size + 1)))

    # --- the root ---------------------------------------------------------------------------------

    def _lead(self, context: WorkerContext, formula: Formula, over_s: float) -> Result | None:
        """Enumerate as the root; return None if this worker is not the root any more."""
        projection = self._variables(formula)
        found = _Found(projection, self._wanted(projection))
        if self.file is None:
            return self._enumerate(context, formula, found, over_s)
        try:
            with closing(self.file.begin(context.payload)) as file:
                file.deliver()  # the file has its name while it is filled
                found.file = file
                return self._enumerate(context, formula, found, over_s)
        except ResultFileError as error:
            raise self.file.refusal(error) from None

    def _enumerate(
        self, context: WorkerContext, formula: Formula, found: _Found, over_s: float
    ) -> Result | None:
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
                found.tell_sometimes(context, self.count, now_s)
            if found.count >= found.wanted or (found.count and time.monotonic() >= over_s):
                return self._result(formula, found, complete=False)
            answer = models.search()
            if answer is Verdict.SATISFIABLE:
                found.add(models.row)
            elif answer is Verdict.UNSATISFIABLE:
                return self._result(formula, found, complete=True)
        return None

    def _result(self, formula: Formula, found: _Found, *, complete: bool) -> Result:
        found.write()
        if not found.count:
            fields = {"solver": STRATEGY.title, "solutions": 0, "complete": complete}
            return Result(UNSATISFIABLE, formula.assumptions, fields)
        return found.result(int(min(found.count, found.wanted)), complete=complete)

    # --- workers other than the root --------------------------------------------------------------

    def _help(self, context: WorkerContext, formula: Formula) -> None:
        """Enumerate cube by cube until this worker is the root."""
        projection = self._variables(formula)
        trivial = solve_trivial(formula)
        if not projection.size or (trivial is not None and trivial.code == UNSATISFIABLE):
            context.park()
        cubes = cubes_of(projection)
        models = Models(formula, projection)
        helper = Helper(context, len(cubes))
        wanted_bytes = min(self._wanted(projection) * row_bytes(projection.size), CUBE_BYTES_MAX + 1)
        #: for each cube, the solutions found; kept, because `models` does not find them again
        found = [bytearray() for _ in cubes]
        while context.index != 0:
            if (cube := helper.choose()) is None:
                helper.turn(timeout_s=1.0)
                continue
            rows = found[cube]
            turn_s = 0.0
            answer = Verdict.UNDECIDED
            while answer is not Verdict.UNSATISFIABLE and len(rows) < wanted_bytes:
                if (now_s := time.monotonic()) >= turn_s:
                    turn_s = now_s + _TURN_S
                    helper.turn()
                    if helper.is_done(cube) or context.index == 0:
                        break
                answer = models.search(cubes[cube])
                if answer is Verdict.SATISFIABLE:
                    rows += models.row
            else:
                helper.give(cube, bytes(rows))


class _Found:
    """The root's solutions by cube, and how many of them are in the file."""

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
        self._told = 0
        #: number of solutions in the last offer
        self._offered = 0
        self._offer_s = 0.0

    def add(self, row: bytes) -> None:
        self._cubes.setdefault(cube_of(row), bytearray()).extend(row)
        self.count += 1
        if self.file is not None:
            self._unwritten += row

    def replace(self, cube: int, rows: bytes) -> None:
        """Take over a helper's solutions of a cube. They include the root's own solutions of the cube."""
        own = self._cubes.get(cube, bytearray())
        known = set(self._split(own))
        self.count += (len(rows) - len(own)) // self._row_bytes
        self._cubes[cube] = bytearray(rows)
        if self.file is not None:
            self._unwritten += b"".join(row for row in self._split(rows) if row not in known)

    def _split(self, rows: bytes | bytearray) -> list[bytes]:
        return [bytes(rows[at : at + self._row_bytes]) for at in range(0, len(rows), self._row_bytes)]

    def result(self, count: int, *, complete: bool) -> Result:
        """Return the result with `count` solutions, which it lists unless they are in a file."""
        fields = {"solver": STRATEGY.title, "solutions": count, "complete": complete}
        return Result(SATISFIABLE, self._literals(count) if self.file is None else None, fields)

    def tell_sometimes(self, context: WorkerContext, wanted: int | None, now_s: float) -> None:
        """Report the number of solutions; now and then offer solutions, in case the job ends early."""
        if self.count > self._told:
            self._told = self.count
            context.report_progress(min(self.count, wanted or self.count), wanted, "solutions")
        fitting = max(1, OFFERED_LITERALS_MAX // (self.projection.size + 1))
        count = int(min(self.count, self.wanted, fitting)) if self.file is None else self._written
        if count > self._offered and now_s >= self._offer_s:
            self._offered = count
            # With a file, offers have no value: a new root begins the file anew, so it may offer less.
            context.offer(self.result(count, complete=False), value=count if self.file is None else None)
            self._offer_s = now_s + _OFFER_PAUSE * (time.monotonic() - now_s)

    def _literals(self, count: int) -> Literals:
        """Return `count` models in ascending order, each ended by a 0."""
        rows = b"".join(self._cubes.values())[: count * self._row_bytes]
        bits = bits_of(rows, self.projection.size)
        bits = bits[np.lexsort(bits.T[::-1])]
        closed = np.zeros((len(bits), self.projection.size + 1), dtype=np.int32)
        closed[:, :-1] = np.where(bits, self.projection, -self.projection)
        return closed.ravel()

    def write_sometimes(self, now_s: float) -> None:
        if now_s >= self._write_s:
            self._write_s = now_s + _WRITE_S
            self.write()

    def write(self) -> None:
        """Write new solutions to the file, up to the number wanted. Raises ResultFileError."""
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
