"""The messages among the workers of one job: bounds, the best model, and clauses.

Each passes news on to its neighbours in the job tree, so that all know them after as many hops as the tree
has levels. What gets lost with a worker that leaves is told again every second.

Why that is right: a worker's lower bound holds for all solutions (`Bounds`), whoever hears of it. A model is
checked and its cost counted by each who hears of it. A clause may rule out solutions that cost as much as the
sender's best one or more, so it is taken only by who knows a solution that is as good as that; "no solution"
means "none that is better" to both.
"""

from __future__ import annotations

import time

import msgspec
import numpy as np

from mallob_maxsat.problem import Model
from mallob_maxsat.state import Bounds
from mallob_py.kit import TreeMessage, WorkerContext

_PERIOD_S = 1.0
_NEWS_PERIOD_S = 0.05
#: at most so many literals in a clause that is passed on, and so many clauses in a message
_CLAUSE_LITERALS_MAX = 20
_CLAUSES_MAX = 200


class _News(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`upper`: cost of the sender's best solution, which `model` holds if it is new (a bit per variable)."""

    lower: int
    upper: int
    model: bytes
    clauses: list[list[int]]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_News).decode


class Talk:
    """One worker's part. Clauses that have come are in `heard` until a search takes them."""

    def __init__(self, context: WorkerContext, bounds: Bounds, n_vars: int, *, with_clauses: bool) -> None:
        self._context = context
        self._bounds = bounds
        self._n_vars = n_vars
        self._with_clauses = with_clauses
        self._told_version = self._told_model = -1
        self._neighbours: tuple[int, ...] = ()
        self._next_s = self._repeat_s = 0.0
        self._to_tell: list[list[int]] = []
        self._known: set[tuple[int, ...]] = set()
        self.heard: list[list[int]] = []

    def note_clauses(self, clauses: list[list[int]]) -> None:
        """The clauses of this worker, over variables that all know."""
        if self._with_clauses:
            for clause in clauses:
                if len(clause) <= _CLAUSE_LITERALS_MAX and self._is_new(clause):
                    self._to_tell.append(clause)

    def turn(self, messages: list[TreeMessage]) -> None:
        for message in messages:
            if not message.returned:
                self._hear(_decode(message.data))
        now = time.monotonic()
        context = self._context
        neighbours = (context.index, *context.children)
        has_news = self._bounds.version != self._told_version or bool(self._to_tell)
        if neighbours != self._neighbours or now >= self._repeat_s:
            self._neighbours = neighbours
            self._told_model = -1
            has_news = self._bounds.version > 0
            self._repeat_s = now + _PERIOD_S
        if has_news and now >= self._next_s:
            self._next_s = now + _NEWS_PERIOD_S
            self._tell()

    def _tell(self) -> None:
        if self._context.index == 0 and not self._context.children:
            self._to_tell.clear()
            return
        bounds, model = self._bounds, b""
        if bounds.model is not None and bounds.upper != self._told_model:
            model = np.packbits(bounds.model > 0, bitorder="little").tobytes()
        clauses, self._to_tell = self._to_tell[:_CLAUSES_MAX], self._to_tell[_CLAUSES_MAX:]
        data = _encode(_News(bounds.lower, bounds.upper, model, clauses))
        self._told_version, self._told_model = bounds.version, bounds.upper
        self._context.send_to_parent(data)
        self._context.send_to_children(data)

    def _hear(self, news: _News) -> None:
        if news.model and news.upper < self._bounds.upper:
            self._bounds.found(_model_of(news.model, self._n_vars))
        self._bounds.raise_lower(news.lower)
        if self._bounds.upper <= news.upper:
            for clause in news.clauses:
                if self._with_clauses and self._is_new(clause):
                    self.heard.append(clause)
                    self._to_tell.append(clause)

    def _is_new(self, clause: list[int]) -> bool:
        key = tuple(sorted(clause))
        if key in self._known:
            return False
        self._known.add(key)
        return True


def _model_of(data: bytes, n_vars: int) -> Model:
    is_true = np.unpackbits(np.frombuffer(data, np.uint8), count=n_vars, bitorder="little")
    variables = np.arange(1, n_vars + 1, dtype=np.int32)
    return np.where(is_true, variables, -variables).astype(np.int32)
