"""The messages among the workers of one job: bounds, the best model, and clauses.

Each worker passes news on to its neighbours in the job tree, so that all workers know the news after as many
hops as the tree is deep. Bounds and models are repeated every second, because messages are lost with leaving
workers; clauses are not repeated.

Correctness
-----------
A worker's lower bound holds for all solutions (`Bounds`), so each receiver may use it. Each receiver checks a
model and counts its cost. The clauses sent are cores and learnt clauses, over variables that have the same
meaning in all workers (`Problem.n_all`). A solver gets four kinds of clauses:

1. The hard clauses, and the soft clauses with their variables, the same for all workers.
2. Encodings, which define further variables: any assignment of the other variables can be extended to satisfy
   the encodings.
3. Soft literals that each better solution satisfies, and the clause that one literal of a core is false: both
   hold in each better solution if the further variables have the values that encodings define.
4. Clauses of other workers, under the condition below.

Bounds on the cost, cores' literals and neighbourhoods are assumptions, on which no learnt clause depends. So
a clause learnt over common variables holds for all solutions that cost less than the sender's best solution.
The clause may exclude other solutions. Hence a worker may add the clause only if the worker's own solution is
as good; then "no solution" means "no better solution" to sender and receiver. `mallob_sat.sharing` argues
that solvers learn nothing else.
"""

from __future__ import annotations

import time

import msgspec
import numpy as np

from mallob_maxsat.problem import Model
from mallob_maxsat.state import Bounds
from mallob_py.kit import TreeMessage, WorkerContext
from mallob_sat.clauses import Clauses, KnownClauses, union

_PERIOD_S = 1.0
_NEWS_PERIOD_S = 0.05
#: greatest number of literals of the clauses in a message, and of the clauses that wait for a message
_LITERALS_MAX, _UNTOLD_LITERALS_MAX = 1000, 10_000


class _News(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message. `upper`: cost of the sender's best solution; `model`: bits of this solution if it is new."""

    lower: int
    upper: int
    model: bytes
    clauses: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_News).decode


class Talk:
    """The messages of one worker. `news_period_s`: shortest time between two messages with news."""

    def __init__(
        self,
        context: WorkerContext,
        bounds: Bounds,
        n_vars: int,
        *,
        with_clauses: bool,
        news_period_s: float = _NEWS_PERIOD_S,
    ) -> None:
        self._context = context
        self._news_period_s = news_period_s
        self._bounds = bounds
        self._n_vars = n_vars
        self._with_clauses = with_clauses
        self._told_version = self._told_model = -1
        self._neighbours: tuple[int, ...] = ()
        self._next_s = self._repeat_s = 0.0
        self._to_tell = Clauses.none()
        self._known = KnownClauses()
        self.heard = Clauses.none()

    def note_clauses(self, clauses: Clauses) -> Clauses:
        """Queue clauses for other workers if they are new; return the new clauses.

        All workers must know the clauses' variables.
        """
        new = self._known.take_new(clauses)
        if self._with_clauses and len(new):
            self._to_tell, _ = union([self._to_tell, new]).best(_UNTOLD_LITERALS_MAX)
        return new

    def turn(self, messages: list[TreeMessage]) -> None:
        for message in messages:
            if not message.returned:
                self._hear(_decode(message.data))
        now = time.monotonic()
        context = self._context
        neighbours = (context.index, *context.children)
        has_news = self._bounds.version != self._told_version or len(self._to_tell) > 0
        if neighbours != self._neighbours or now >= self._repeat_s:
            self._neighbours = neighbours
            self._told_model = -1
            has_news = self._bounds.version > 0
            self._repeat_s = now + _PERIOD_S
        if has_news and now >= self._next_s:
            self._next_s = now + self._news_period_s
            self._tell()

    def _tell(self) -> None:
        if self._context.index == 0 and not self._context.children:
            self._to_tell = Clauses.none()
            return
        bounds, model = self._bounds, b""
        if bounds.model is not None and bounds.upper != self._told_model:
            model = bits_of_model(bounds.model)
        clauses, self._to_tell = self._to_tell.best(_LITERALS_MAX)
        data = _encode(_News(bounds.lower, bounds.upper, model, clauses.encode()))
        self._told_version, self._told_model = bounds.version, bounds.upper
        self._context.send_to_parent(data)
        self._context.send_to_children(data)

    def _hear(self, news: _News) -> None:
        if news.model and news.upper < self._bounds.upper:
            self._bounds.found(model_of_bits(news.model, self._n_vars))
        self._bounds.raise_lower(news.lower)
        if self._with_clauses and self._bounds.upper <= news.upper:
            self.heard = union([self.heard, self.note_clauses(Clauses.decode(news.clauses))])

    def take_heard(self) -> Clauses:
        """Return the clauses received since the last call."""
        heard, self.heard = self.heard, Clauses.none()
        return heard


def bits_of_model(model: Model) -> bytes:
    """Pack a model into a bit per variable."""
    return np.packbits(model > 0, bitorder="little").tobytes()


def model_of_bits(data: bytes, n_vars: int) -> Model:
    """Unpack a model packed by `bits_of_model`."""
    is_true = np.unpackbits(np.frombuffer(data, np.uint8), count=n_vars, bitorder="little")
    variables = np.arange(1, n_vars + 1, dtype=np.int32)
    return np.where(is_true, variables, -variables).astype(np.int32)
