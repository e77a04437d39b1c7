"""Searches of a job, one after another: answers are right, and shared clauses follow from the formula."""

import random
from dataclasses import replace

import numpy as np
import pytest
from seeds import seeds
from test_kissat_door import clauses_over, columns, flat, options_of, where
from test_native_solver import EAGER
from test_sat_sharing import Tree

from mallob_sat import search, sharing
from mallob_sat.clauses import Clauses
from mallob_sat.formula import formula_from_list
from mallob_sat.kissat_door import door_is_open
from mallob_sat.portfolio import PLAIN_PORTFOLIO, Portfolio, Strategy
from mallob_sat.search import Search

_PORTFOLIOS = (PLAIN_PORTFOLIO, "(k g c n k+= m c0 k-)*", "c c0 g k o c- n+ m")


class Searching(Search):
    """Remembers the clauses that it is given."""

    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        self.told: list[list[int]] = []

    def give(self, clauses: Clauses) -> int:
        self.told += clauses.lists()
        return super().give(clauses)


def eager(strategy: Strategy, choose: random.Random) -> Strategy:
    """Have kissats and CaDiCaLs restart often, and begin inprocessing at once."""
    name = strategy.solver
    options = options_of(choose) | {"reluctantint": 2} if name == "kissat404" else EAGER.get(name, {})
    return replace(strategy, options=tuple((options | dict(strategy.options)).items()))


@pytest.mark.skipif(not door_is_open(), reason="PySAT's kissat cannot be reached")
def test_workers_that_share_answer_as_brute_force_and_tell_only_what_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module, name, value in (
        (search, "_EXCHANGE_INTERVAL_S", 0.0),
        (search, "_FIRST_CONFLICTS", 1),
        (search, "_CONFLICTS_MIN", 1),
        (search, "_CONFLICTS_MAX", 3),
        (sharing, "_LATE", 1),
    ):
        monkeypatch.setattr(module, name, value)
    told = used = 0
    for seed in seeds(40):
        choose = random.Random(seed)
        n_vars, workers = choose.randint(9, 14), choose.choice((2, 3, 5, 8))
        clauses = clauses_over(choose, range(1, n_vars + 1))
        formula, values = formula_from_list(flat(clauses)), columns(n_vars)
        models = np.logical_and.reduce([where(clause, values) for clause in clauses])
        portfolio = Portfolio(seed=choose.randrange(3)).following(choose.choice(_PORTFOLIOS))
        tree = Tree(workers, has_partners=portfolio.has_partners)
        searches = [
            Searching(formula, eager(portfolio.strategy(index), choose), lambda: 100)
            for index in range(workers)
        ]
        tree.searches = {index: [one] for index, one in enumerate(searches)}  # type: ignore[list-item]
        for one in choose.sample(searches, workers):
            assert one.run().code == (10 if models.any() else 20), (seed, one.title)
            tree.play(1.2)
        for one in searches:
            for clause in one.told:
                assert where(clause, values)[models].all(), f"seed {seed}: {clause} does not follow"
            told, used = told + len(one.told), used + one.figures().used
            one.close()
    assert told > 0
    assert used > 0
