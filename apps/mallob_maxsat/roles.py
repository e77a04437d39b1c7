"""The searches of worker i of a job.

The root searches from below; it also searches from above, though rarely once there are other workers. Worker
1 searches from above, worker 2 between the bounds, worker 3 from below with another solver. Further workers
repeat these roles with other seeds, other orders of encodings and other splits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from mallob_maxsat.core_guided import CoreGuided
from mallob_maxsat.encodings import Adder, AtMost, Generalized, Totalizer, Watchdog
from mallob_maxsat.improving import Improving
from mallob_maxsat.local_search import LocalSearch
from mallob_maxsat.oracle import Oracle, Search
from mallob_maxsat.problem import Problem
from mallob_maxsat.state import Bounds

#: number of different roles; further workers would repeat a search
ROLES_MAX = 16
_SUMS_FIRST: tuple[type[AtMost], ...] = (Totalizer, Generalized, Watchdog)
_BITS_FIRST: tuple[type[AtMost], ...] = (Totalizer, Watchdog, Generalized)
_ADDERS: tuple[type[AtMost], ...] = (Adder,)
_FLIPS_SHARE, _FLIPS_START_S = 0.4, 0.5
#: factor by which each turn in vain reduces a local search's share of time, and its smallest share
_FLIPS_LOSS, _FLIPS_SHARE_MIN = 0.97, 0.25


#: for searches that give way at a root with other workers: factor on their shares of time; their earliest
#: start [s]
_ASIDE_SHARE, _ASIDE_FROM_S = 0.1, 20.0


@dataclass(slots=True, eq=False)
class Running:
    """A search of a worker. `share`: its part of the worker's time, relative to other searches' shares."""

    name: str
    search: Search
    oracle: Oracle | None
    share: float = 1.0
    starts_s: float = 0.0
    #: used time divided by the share at that time, plus skipped time
    charged_s: float = 0.0
    #: whether the search must wait for a solution
    needs_solution: bool = False
    below: CoreGuided | None = None
    #: whether the search gives way to the root's search that raises the lower bound, while the root has other
    #: workers
    gives_way: bool = False

    @property
    def turn_s(self) -> float:
        """Return the key by which searches take turns; the search with the smallest key is next."""
        return self.starts_s + self.charged_s

    def is_ready(self, now_s: float, *, has_solution: bool, is_helped: bool) -> bool:
        """Tell whether the search may run. `is_helped`: its worker is the root of several workers."""
        starts_s = max(self.starts_s, _ASIDE_FROM_S) if self._is_aside(is_helped) else self.starts_s
        return starts_s <= now_s and (has_solution or not self.needs_solution)

    def charge(self, seconds: float, *, is_helped: bool) -> None:
        """Charge the search for used time."""
        self.charged_s += seconds / (self.share * (_ASIDE_SHARE if self._is_aside(is_helped) else 1.0))

    def wait_until(self, turn_s: float) -> None:
        """Charge the search for the time in which it could not run, so that it gets no more time later."""
        self.charged_s = max(self.charged_s, turn_s - self.starts_s)

    def _is_aside(self, is_helped: bool) -> bool:
        """Tell whether the search gives way now, because its worker is the root of several workers."""
        return is_helped and self.gives_way

    def found(self, is_better: bool) -> None:
        """Record whether the last turn found a better solution."""
        if self.needs_solution:
            self.share = _FLIPS_SHARE if is_better else max(self.share * _FLIPS_LOSS, _FLIPS_SHARE_MIN)


def next_of(running: Collection[Running], now_s: float, *, has_solution: bool, is_helped: bool) -> Running:
    """Return the search whose turn it is. Searches that are not ready get no extra time later."""
    ready = [one for one in running if one.is_ready(now_s, has_solution=has_solution, is_helped=is_helped)]
    following = min(ready, key=lambda one: one.turn_s)
    for one in running:
        if one not in ready:
            one.wait_until(following.turn_s)
    return following


def searches_of(index: int, problem: Problem, bounds: Bounds, *, is_told: bool = False) -> Iterator[Running]:
    """Yield the searches of worker `index`.

    `is_told`: whether the learnt clauses of the searches' solvers are sent to other workers.
    """

    def oracle(engine: str) -> Oracle:
        return Oracle(problem, engine, is_told=is_told)

    role, turn = index % 4, index // 4
    below = None
    if role in (0, 3):
        is_first = (role == 0) == (turn % 2 == 0)
        engine = "glucose4" if is_first else "cadical195"
        below = CoreGuided(problem, bounds, oracle(engine))
        yield Running(f"from below, {engine}", below.run(), below.oracle, below=below)
    if role == 0:
        assert below is not None
        above = Improving(problem, bounds, below.oracle, _BITS_FIRST, objective=below.objective, seed=index)
        name = "from above, on the cost that cores leave"
        yield Running(name, above.run(), below.oracle, starts_s=4.0, gives_way=True)
    else:
        order = ((_SUMS_FIRST, _BITS_FIRST, _ADDERS)[turn % 3], _BITS_FIRST, _ADDERS)[role - 1]
        engine = "cadical195" if role == 1 else "glucose4"
        split = 0.5 / (turn + 1) if role == 2 else 0.0
        above = Improving(problem, bounds, oracle(engine), order, split, seed=index)
        name = f"{'between' if split else 'from above'}, {engine}"
        starts_s = 2.0 if role == 3 else 0.0
        yield Running(name, above.run(), above.oracle, starts_s=starts_s, gives_way=below is not None)
    if role != 3 and LocalSearch.suits(problem):
        search = LocalSearch(problem, bounds, seed=index + 1).run()
        yield Running(
            *("by flips", search, None, _FLIPS_SHARE, _FLIPS_START_S),
            needs_solution=True,
            gives_way=below is not None,
        )
