"""The searches of worker i of a job.

The root works from below and, as long as it may be the only one, from above as well; the next ones work from
above, between the bounds, and from below with another solver. From there on it begins anew with other seeds,
encodings in another order and other places to split.
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

#: more workers would do the same again
ROLES_MAX = 16
_SUMS_FIRST: tuple[type[AtMost], ...] = (Totalizer, Generalized, Watchdog)
_BITS_FIRST: tuple[type[AtMost], ...] = (Totalizer, Watchdog, Generalized)
_ADDERS: tuple[type[AtMost], ...] = (Adder,)
_FLIPS_SHARE, _FLIPS_START_S = 0.4, 0.5
#: with each turn that finds nothing better, a search by flips has less of the time, down to the least share
_FLIPS_LOSS, _FLIPS_SHARE_MIN = 0.97, 0.25


#: of what the root does beside its own part while there are others, and when it begins with that
_ASIDE_SHARE, _ASIDE_FROM_S = 0.1, 20.0


@dataclass(slots=True, eq=False)
class Running:
    """A search under way; of the worker's time it gets a part as large as its `share` among all."""

    name: str
    search: Search
    oracle: Oracle | None
    share: float = 1.0
    starts_s: float = 0.0
    #: time used, by the share that it had then, or let pass
    charged_s: float = 0.0
    #: whether it can begin without a solution
    needs_solution: bool = False
    below: CoreGuided | None = None

    @property
    def turn_s(self) -> float:
        """The search for which this is least is next."""
        return self.starts_s + self.charged_s

    def is_ready(self, now_s: float, *, has_solution: bool, is_helped: bool) -> bool:
        """Whether its time has come. `is_helped`: its worker is the root, and there are others."""
        starts_s = max(self.starts_s, _ASIDE_FROM_S) if self._is_aside(is_helped) else self.starts_s
        return starts_s <= now_s and (has_solution or not self.needs_solution)

    def charge(self, seconds: float, *, is_helped: bool) -> None:
        """Note time that it has used."""
        self.charged_s += seconds / (self.share * (_ASIDE_SHARE if self._is_aside(is_helped) else 1.0))

    def wait_until(self, turn_s: float) -> None:
        """Let the time pass that it has not used by that turn: it does not get that later."""
        self.charged_s = max(self.charged_s, turn_s - self.starts_s)

    def _is_aside(self, is_helped: bool) -> bool:
        """Whether it is beside the root's own part, and done by others once there are others."""
        return is_helped and self.below is None

    def found(self, is_better: bool) -> None:
        """The news that the last turn has brought."""
        if self.needs_solution:
            self.share = _FLIPS_SHARE if is_better else max(self.share * _FLIPS_LOSS, _FLIPS_SHARE_MIN)


def next_of(running: Collection[Running], now_s: float, *, has_solution: bool, is_helped: bool) -> Running:
    """Return the search whose turn it is; those that have to wait let the time pass."""
    ready = [one for one in running if one.is_ready(now_s, has_solution=has_solution, is_helped=is_helped)]
    following = min(ready, key=lambda one: one.turn_s)
    for one in running:
        if one not in ready:
            one.wait_until(following.turn_s)
    return following


def searches_of(index: int, problem: Problem, bounds: Bounds, *, is_told: bool = False) -> Iterator[Running]:
    """The searches of worker `index`, to be made when their time has come (`starts_s`).

    `is_told`: whether others are to learn what their solvers learn.
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
        yield Running("from above what cores leave", above.run(), below.oracle, starts_s=4.0)
    else:
        order = ((_SUMS_FIRST, _BITS_FIRST, _ADDERS)[turn % 3], _BITS_FIRST, _ADDERS)[role - 1]
        engine = "cadical195" if role == 1 else "glucose4"
        split = 0.5 / (turn + 1) if role == 2 else 0.0
        above = Improving(problem, bounds, oracle(engine), order, split, seed=index)
        name = f"{'between' if split else 'from above'}, {engine}"
        yield Running(name, above.run(), above.oracle, starts_s=2.0 if role == 3 else 0.0)
    if role != 3 and LocalSearch.suits(problem):
        search = LocalSearch(problem, bounds, seed=index + 1).run()
        yield Running("by flips", search, None, _FLIPS_SHARE, _FLIPS_START_S, needs_solution=True)
