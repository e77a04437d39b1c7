"""Revisions of a growing formula: answers are right from a process that has seen all revisions, and from a
process that begins late.
"""

import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from fake_context import FakeContext
from pysat.solvers import Solver as Reference

from mallob_py.kit import InputError, JobInput, Payload, Result
from mallob_sat import SatApplication, formula
from mallob_sat.incremental import ENGINES, portfolio_of

MARK = 2**31 - 1


class Chain:
    """A chain of revisions: an application object, the payload so far, and the number of the next
    revision.
    """

    def __init__(self, number: int = 9, **configuration: Any) -> None:
        self.number = number
        self.application = SatApplication()
        self.configuration = configuration
        self.payload: Payload | None = None
        self.revision = 0

    def ask(
        self, literals: list[int], application: SatApplication | None = None, index: int = 0, polls: int = 0
    ) -> Result:
        job = JobInput((), literals, self.configuration, self.revision, self.payload)
        self.payload = self.application.read(job)
        context = Context(self.payload, index, self.configuration, self.revision, self.number)
        self.revision += 1
        return (application or self.application).run(context)


class Context(FakeContext):
    def __init__(
        self, payload: Payload, index: int, configuration: Mapping[str, Any], revision: int, chain: int = 9
    ) -> None:
        super().__init__(payload, index, configuration)
        self.chain = chain
        self.revision = revision


def flat(clauses: list[list[int]], assumptions: list[int]) -> list[int]:
    return [*(literal for clause in clauses for literal in (*clause, 0)), MARK, *assumptions, 0]


def revisions(seed: int, factor: int = 1) -> Iterator[tuple[list[list[int]], list[int]]]:
    """Yield new clauses and assumptions 25 times, for a random 3-SAT formula that becomes unsatisfiable."""
    choose = random.Random(seed)
    n_vars = choose.choice((10, 40, 80))

    def literal() -> int:
        return choose.choice((1, -1)) * choose.randint(1, n_vars) * factor

    for _ in range(25):
        clauses = [[literal() for _ in range(3)] for _ in range(choose.choice((0, 1, n_vars // 8)))]
        yield clauses, [literal() for _ in range(choose.choice((0, 2, 5)))]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("factor", [1, 5000])
def test_every_engine_answers_each_revision_as_a_solver_used_directly(engine: str, factor: int) -> None:
    """With factor 5000, most variables never occur, and the occurring variables are renumbered for
    solvers.
    """
    for seed in range(2):
        chain, late = Chain(solvers=[engine]), SatApplication()
        with Reference("cadical153") as reference:
            for number, (clauses, assumptions) in enumerate(revisions(seed, factor)):
                for clause in clauses:
                    reference.add_clause([literal // factor for literal in clause])
                # sometimes a process that began later takes over
                result = chain.ask(flat(clauses, assumptions), late if number % 9 > 6 else None)
                expected = reference.solve([literal // factor for literal in assumptions])
                assert result.code == (10 if expected else 20), (seed, number)
                if result.code == 20:
                    core = [int(literal) for literal in result.solution]
                    assert set(core) <= set(assumptions)
                    assert not reference.solve([literal // factor for literal in core])


def test_only_the_clauses_that_are_new_are_given_to_the_solver() -> None:
    chain = Chain()
    counts = []
    for literals in ([1, 2, 0, -1, 3, 0], [], [-2, 0], [MARK, 1, 0]):
        counts.append(chain.ask(literals).fields["new_clauses"])
    assert counts == [2, 0, 1, 0]


def test_a_process_that_comes_later_takes_in_all_clauses_so_far() -> None:
    chain = Chain()
    chain.ask([1, 2, 0])
    chain.ask([-1, 0])
    result = chain.ask([3, 0], application=SatApplication())
    assert result.fields["new_clauses"] == 3
    assert list(result.solution) == [-1, 2, 3]


def test_assumptions_of_former_revisions_do_not_hold_any_more() -> None:
    chain = Chain()
    assert list(chain.ask([1, 2, 0, MARK, -1, -2, 0]).solution) == [-1, -2]
    assert chain.ask([MARK, -1, 0]).code == 10
    assert list(chain.ask([]).solution) in ([1, 2], [1, -2], [-1, 2])


def test_failed_assumptions_are_empty_once_the_clauses_alone_cannot_hold() -> None:
    chain = Chain()
    assert list(chain.ask([1, 0, MARK, -1, 0]).solution) == [-1]
    assert list(chain.ask([-1, 0, MARK, 5, 0]).solution) == []
    assert list(chain.ask([7, 0, MARK, 5, -5, 0]).solution) == []


@pytest.mark.parametrize("engine", ENGINES)
def test_failed_assumptions_are_none_of_an_earlier_revision(engine: str) -> None:
    chain = Chain(solvers=[engine])
    assert set(chain.ask([1, 2, 0, MARK, -1, -2, 0]).solution) == {-1, -2}
    assert list(chain.ask([3, 0, -3, 0, MARK, 4, 0]).solution) == []


def test_an_empty_clause_and_contradictory_assumptions_need_no_solver() -> None:
    chain = Chain()
    assert list(chain.ask([1, 0, MARK, 4, -4, 0]).solution) == [-4, 4]
    assert list(chain.ask([0]).solution) == []
    assert list(chain.ask([2, 0]).solution) == []


def test_a_model_covers_variables_of_all_revisions_and_those_that_are_only_assumed() -> None:
    chain = Chain()
    chain.ask([5, 0])
    model = [int(literal) for literal in chain.ask([MARK, 7, 0]).solution]
    assert [abs(literal) for literal in model] == [1, 2, 3, 4, 5, 6, 7]
    assert {5, 7} <= set(model)
    assert len(chain.ask([]).solution) == 7


def test_a_formula_that_becomes_sparse_gets_a_solver_anew() -> None:
    chain = Chain()
    chain.ask([1, 2, 0])
    result = chain.ask([-1, 2_000_000, 0])
    assert result.fields["new_clauses"] == 2
    assert len(result.solution) == 2_000_000
    assert chain.ask([-2_000_000, 0, 3_000_000, 0, MARK, 4, 0]).fields["new_clauses"] == 2


def test_another_chain_or_another_choice_of_solvers_starts_anew() -> None:
    chain = Chain()
    chain.ask([1, 0])
    other = Chain(number=8)
    assert other.ask([-1, 0, 2, 0], chain.application).fields["new_clauses"] == 2
    assert chain.ask([], chain.application).fields["new_clauses"] == 1
    chain.configuration = {"solvers": ["glucose4"]}
    assert chain.ask([3, 0]).fields == {"solver": "glucose4", "new_clauses": 2}


def test_a_hard_revision_is_searched_in_slices_between_which_the_worker_looks_around() -> None:
    chain = Chain()
    pigeons, holes = 10, 9
    at = [[holes * pigeon + hole + 1 for hole in range(holes)] for pigeon in range(pigeons)]
    clauses = [*at]
    for hole in range(holes):
        clauses += [[-at[i][hole], -at[j][hole]] for i in range(pigeons) for j in range(i)]

    class Over(BaseException):
        pass

    class Ends(Context):
        def poll(self, timeout_s: float = 0.0) -> Any:
            raise Over

    payload = chain.application.read(JobInput((), flat(clauses, []), {}, 0, None))
    with pytest.raises(Over):
        chain.application.run(Ends(payload, 0, {}, 0))
    payload = chain.application.read(JobInput((), flat([], [-literal for literal in at[0]]), {}, 1, payload))
    result = chain.application.run(Context(payload, 0, {}, 1))
    assert result.code == 20
    assert result.fields["new_clauses"] == 0


def test_each_worker_of_a_chain_has_a_solver_that_takes_revisions() -> None:
    portfolio = portfolio_of({})
    strategies = [portfolio.strategy(index) for index in range(100)]
    assert {strategy.solver for strategy in strategies} <= set(ENGINES)
    assert len(set(strategies)) == len(strategies)
    assert all(strategy.renaming_seed is None for strategy in strategies)


@pytest.mark.parametrize(
    ("configuration", "message"),
    [
        ({"solvers": ["kissat404"]}, "kissat404 cannot take revisions"),
        ({"proof": "/tmp/proof"}, "incremental jobs support no proof"),
        ({"core": True}, "incremental jobs support no core"),
        ({"solutions": 2}, "incremental jobs support no solutions"),
    ],
)
def test_what_revisions_cannot_do_is_refused(configuration: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        Chain(**configuration).ask([1, 0])
    assert caught.value.field == "configuration"


def test_a_revision_without_any_input_is_one_without_clauses() -> None:
    application = SatApplication()
    first = application.read(JobInput((), [1, 0], {}, 0, None))
    second = application.read(JobInput((), None, {}, 1, first, [-1]))
    assert second["literals"].tolist() == [1, 0]
    assert second["assumptions"].tolist() == [-1]
    with pytest.raises(InputError, match="one formula file is needed"):
        application.read(JobInput())


def test_assumptions_beside_the_input_are_added_to_those_in_it() -> None:
    application = SatApplication()
    payload = application.read(JobInput((), [1, 0, MARK, 2, 0], assumptions=[-3]))
    assert payload["assumptions"].tolist() == [2, -3]
    assert payload["shape"].tolist() == [3, 1]
    for wrong in (0, 2**31 - 1, True):
        with pytest.raises(InputError, match="is no literal") as caught:
            application.read(JobInput((), [1, 0], assumptions=[wrong]))
        assert caught.value.field == "assumptions"


def test_a_small_revision_may_name_variables_of_a_large_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formula, "_FREE_VARIABLES", 20)
    chain = Chain()
    chain.ask([1, 2, 0, 40, -41, 50, 0])
    assert chain.ask(flat([[-50]], [50])).solution == [50]
    with pytest.raises(InputError, match="there are 900 variables, but at most 11 of them occur"):
        chain.ask(flat([[900]], []))


def test_a_grown_formula_keeps_its_shape() -> None:
    chain = Chain()
    chain.ask([1, -2, 0])
    chain.ask([3, 0])
    assert chain.payload is not None
    assert np.array_equal(chain.payload["literals"], [1, -2, 0, 3, 0])
    assert chain.payload["shape"].tolist() == [3, 2]
