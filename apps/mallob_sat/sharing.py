"""Clause sharing along the job tree (P 2.2): all workers get the best learned clauses of all workers.

Every `PERIOD_S`, in small jobs more often, the root starts an all-reduction over the present tree
(`TreeReduction`, which copes with workers that join, leave or are suspended meanwhile). Each worker gives the
best clauses that its solvers have learned since the last reduction. On the way up, sets of clauses are
united, without duplicates, and cut to a size that grows more slowly than the number of workers, so that no
worker in a large tree gets too many clauses. The clauses that come down are given to the solvers.

A worker that has just joined, or has missed epochs while it was suspended, asks its parent for the best
clauses so far. Each worker keeps a bounded set of the best clauses that it has received.

Soundness: which clauses may be shared, and why
------------------------------------------------
Only clauses that follow from the formula F alone are shared. So losing, repeating or mixing up messages can
cost time but never make an answer wrong: a solver always has F and consequences of F only. The proof, by
induction over the exchange, rests on these points.

1. What solvers derive. Solvers that give clauses (`portfolio.TRADES`) are of two kinds. The minisat family
   (glucose, maplecm) runs without a preprocessor and learns by resolution alone. CaDiCaL keeps two promises:
   every clause that it has over F's variables follows from F, and a model of its irredundant clauses extends
   to a model of F. It *removes* clauses by steps that only preserve satisfiability (elimination of variables,
   blocked and covered clauses), but adds none by them. CaDiCaL 3.0's bounded variable addition (`factor`) is
   off (see `solvers`, and `native/src/engine.cpp`): the number of a variable that it defines may belong to a
   variable of F that occurs in no clause, or to another solver's definition. Clauses with variables beyond
   F's are not passed on (`ProofStream.variable_max`).
   `native/src/exchange.cpp` names the places in CaDiCaL's code, file by file. Kissat keeps the same promises,
   also for `factor` (see `kissat_door`); with assumptions, which it takes as clauses, it does not share.
   Lingeling and all other solvers neither give nor take.
2. Assumptions are decisions for all these solvers except kissat, so no learned clause depends on assumptions.
   Hence workers of revisions, or of one formula under assumptions, may keep their learned clauses.
3. Taking clauses. A consequence of F, taken as one more clause, keeps both promises: the first at once, the
   second because it removes no model of F. PySAT's solvers take such a clause between two calls, where
   CaDiCaL restores removed clauses over its variables; kissat and native solvers take it during the search,
   but not if one of its variables has been eliminated. Clauses learned afterwards follow from F again.
4. Renaming. A solver with renamed variables (`renaming`) gives and takes clauses in the formula's names; a
   renaming is a bijection on the formula's variables.
5. Enumeration, cores and proofs add clauses that do *not* follow from F (forbidden solutions, selectors), or
   must not use foreign clauses: their solvers never share.
"""

from __future__ import annotations

import json
import math
import struct
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

from mallob_py.kit import Result, TreeMessage, TreeReduction, WorkerContext
from mallob_sat.clauses import Clauses, KnownClauses, union
from mallob_sat.figures import UNTOLD, Figures

#: figures of a worker: name -> value
Row: TypeAlias = dict[str, Any]

PERIOD_S = 0.5
#: length of a period divided by the number of the job's searches, and the shortest period: a few short
#: searches gain most from early clauses
_PERIOD_PER_SEARCH_S = 0.025
_PERIOD_MIN_S = 0.1
#: multiple of the period after which clauses are shared even if the solvers have hardly got any CPU time, and
#: after which a worker reads its solvers' clauses even if no epoch has begun
_LATE = 16
#: greatest number of literals that one search may give per epoch
GIVEN_LITERALS_MAX = 3000
#: factor by which the number of shared literals grows if the number of workers doubles
_GROWTH = 1.75
_UNSHARED_LITERALS_MAX = 4 * GIVEN_LITERALS_MAX
_BEST_LITERALS_MAX = 20_000
#: number of received batches after which only the best of their clauses are kept
_BATCHES_MAX = 16
_ASK_AGAIN_S = 2.0
#: longest time between two calls of `turn`: at the root when an epoch is due, and at other workers
_SHORT_PAUSE_S, _LONG_PAUSE_S = 0.05, 0.5

#: greatest number of workers whose figures a result contains
_FIGURES_MAX = 64

#: header of a part: number of workers, size of their figures, which come before their clauses
_PART = struct.Struct("<II")
#: header of a message: magic, kind, index of the asking worker
_HEADER = struct.Struct("<3scI")
_MAGIC = b"\xf5SC"
_ASK = b"?"
_BEST = b"!"


def literals_max(workers: int) -> int:
    """Return the greatest number of literals that the clauses of this many workers may have in all."""
    return int(GIVEN_LITERALS_MAX * math.pow(_GROWTH, math.log2(workers)))


class Partner(Protocol):
    """A search of this worker, as sharing uses it."""

    @property
    def title(self) -> str:
        """The solver's name, with its settings."""
        ...

    def figures(self) -> Figures:
        """Return what the search has counted so far."""
        ...

    def cpu_s(self) -> float:
        """Return the CPU time of the search."""
        ...

    def learned(self) -> Clauses:
        """Return the clauses learned since the last call, without clauses known before, best first."""
        ...

    def skip_learned(self) -> None:
        """Discard learned clauses, because no other search can use them."""
        ...

    def give(self, clauses: Clauses) -> int:
        """Give clauses to the search; return the number of clauses that are sent."""
        ...


class Sharing:
    """One worker's part in the sharing. The worker must call `turn` repeatedly, see `pause_s`."""

    def __init__(
        self,
        context: WorkerContext,
        has_partners: Callable[[int], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin. `has_partners(n)` tells whether at least two of the first n searches exchange clauses."""
        self._context = context
        self._has_partners_among = has_partners
        #: the last argument of `has_partners`, and its answer
        self._asked = (1, False)
        self._clock = clock
        self._reduction = TreeReduction(context, self._contribution, _combined, clock=clock)
        #: clauses that this worker has learned and not given yet
        self._unshared = Clauses.none()
        #: clauses given by this worker or received, which must not be given again
        self._known = KnownClauses()
        #: received batches of clauses, which contain the best clauses so far
        self._heard: list[Clauses] = []
        #: earliest and latest begin of the next period; length of this period, and CPU time at its begin
        self._next_s = clock() + _PERIOD_PER_SEARCH_S
        self._late_s = self._next_s
        self._period_s = 0.0
        self._searched_s = 0.0
        self._last_epoch: int | None = None
        #: time to ask for the best clauses so far; None: this worker has them
        self._ask_s: float | None = clock() if context.index > 0 else None
        self.learned = 0
        self.given = 0
        self.passed = 0
        self.taken = 0
        #: hashes of the clauses given last
        self._given_last: set[int] = set()
        #: index of a worker -> its last figures received
        self._figures: dict[int, Row] = {}
        self._searches: Collection[Partner] = ()

    def counted(self, result: Result) -> Result:
        """Add the numbers of shared clauses and the workers' figures to a result's fields."""
        fields: dict[str, Any] = {"shared_clauses": {"given": self.given, "taken": self.taken}}
        if self._figures:
            self._figures[self._context.index] = self._row()
            fields["figures"] = [row for _, row in sorted(self._figures.items())]
        return replace(result, fields={**result.fields, **fields})

    def _row(self) -> Row:
        """Return this worker's figures."""
        figures = [search.figures() for search in self._searches]
        came = sum(each.came for each in figures)
        cpu_s = sum(search.cpu_s() for search in self._searches)
        conflicts = [each.conflicts for each in figures]
        return {
            "worker": self._context.index,
            "solver": " ".join(search.title for search in self._searches),
            "learned": self.learned,
            "given": self.given,
            "passed on": self.passed,
            "taken": self.taken,
            "came": came,
            "used": sum(each.used for each in figures),
            "removed": sum(each.removed for each in figures),
            "wait [ms]": round(1000 * sum(each.waited_s for each in figures) / came) if came else None,
            "conflicts": None if UNTOLD in conflicts else sum(conflicts),
            "CPU [s]": round(cpu_s, 2),
            "solver's share": round(cpu_s / (cpu_s + time.process_time()), 3) if cpu_s else None,
        }

    def turn(self, messages: list[TreeMessage], searches: Collection[Partner]) -> None:
        """Take in messages, give clauses to searches, and start epochs when due."""
        self._searches = searches
        now = self._clock()
        finished, others = self._reduction.advance(messages)
        for message in others:
            self._take(message, searches)
        for epoch, data in finished:
            if self._last_epoch is not None and epoch > self._last_epoch + 1:
                self._ask_s = now
            self._last_epoch = epoch
            _, rows, clauses = _unpacked(data)
            self._figures.update((row["worker"], row) for row in rows)
            self.passed += len(self._given_last.intersection(clauses.hashes().tolist()))
            self._hear(clauses, searches)
        if self._ask_s is not None and now >= self._ask_s and self._context.index > 0:
            self._ask_s = now + _ASK_AGAIN_S
            self._context.send_to_parent(_HEADER.pack(_MAGIC, _ASK, self._context.index))
        if self._is_due(now):
            if self._context.index == 0 and self._has_partners() and self._reduction.unfinished is None:
                self._reduction.start()
            else:
                self._collect()

    def pause_s(self) -> float:
        """Return the longest time until the next call of `turn` if no message comes."""
        if self._context.index > 0:
            return _LONG_PAUSE_S
        return min(max(_SHORT_PAUSE_S, self._next_s - self._clock()), _LONG_PAUSE_S)

    def _is_due(self, now: float) -> bool:
        """Tell whether the next period begins. CPU time counts, because solvers learn less on busy cores."""
        if now < self._next_s:
            return False
        if now >= self._late_s or not self._has_partners():
            return True
        searched_s = max((search.cpu_s() for search in self._searches), default=0.0)
        return self._context.index == 0 and not 0 <= searched_s - self._searched_s < self._period_s

    def _has_partners(self) -> bool:
        searches = self._context.volume * self._context.threads
        if searches != self._asked[0]:
            self._asked = (searches, self._has_partners_among(searches))
        return self._asked[1]

    def _collect(self) -> None:
        """Read the clauses that the solvers have learned, and begin the next period."""
        now, searches = self._clock(), self._searches
        self._searched_s = max((search.cpu_s() for search in searches), default=0.0)
        count = self._context.volume * self._context.threads
        self._period_s = min(PERIOD_S, max(_PERIOD_MIN_S, _PERIOD_PER_SEARCH_S * count))
        self._next_s, self._late_s = now + self._period_s, now + _LATE * self._period_s
        if not self._has_partners():
            for search in searches:
                search.skip_learned()
            return
        new = [search.learned() for search in searches]
        self.learned += sum(map(len, new))
        learned = union([self._unshared, *new])
        self._unshared, _ = learned.best(_UNSHARED_LITERALS_MAX)

    def _contribution(self, _epoch: int) -> bytes:
        self._collect()
        ours, self._unshared = self._unshared.best(GIVEN_LITERALS_MAX * self._context.threads)
        ours = self._known.take_new(ours)
        self.given += len(ours)
        self._given_last = set(ours.hashes().tolist())
        return _packed(1, [self._row()], ours)

    def _hear(self, clauses: Clauses, searches: Collection[Partner]) -> None:
        self._known.take_new(clauses)
        self._heard.append(clauses)
        if len(self._heard) > _BATCHES_MAX:
            self._heard = [self._best()]
        self.taken += sum(search.give(clauses) for search in searches)

    def _best(self) -> Clauses:
        """Return the best clauses received so far."""
        best, _ = union(self._heard).best(_BEST_LITERALS_MAX)
        return best

    def _take(self, message: TreeMessage, searches: Collection[Partner]) -> None:
        """Handle a question for the best clauses, or the answer to such a question."""
        if message.data[: len(_MAGIC)] != _MAGIC or message.returned:
            return
        _, kind, index = _HEADER.unpack_from(message.data)
        if kind == _ASK:
            self._context.send_to_children(_HEADER.pack(_MAGIC, _BEST, index) + self._best().encode())
        elif index == self._context.index and self._ask_s is not None:
            self._ask_s = None
            self._hear(Clauses.decode(memoryview(message.data)[_HEADER.size :]), searches)


def _combined(parts: list[bytes]) -> bytes:
    unpacked = [_unpacked(part) for part in parts]
    workers = sum(count for count, _, _ in unpacked)
    best, _ = union([clauses for _, _, clauses in unpacked]).best(literals_max(workers))
    rows = sorted((row for _, rows, _ in unpacked for row in rows), key=lambda row: row["worker"])
    return _packed(workers, rows[:_FIGURES_MAX], best)


def _packed(workers: int, rows: list[Row], clauses: Clauses) -> bytes:
    figures = json.dumps(rows).encode()
    return _PART.pack(workers, len(figures)) + figures + clauses.encode()


def _unpacked(part: bytes) -> tuple[int, list[Row], Clauses]:
    workers, size = _PART.unpack_from(part)
    end = _PART.size + size
    return workers, json.loads(part[_PART.size : end]), Clauses.decode(memoryview(part)[end:])
