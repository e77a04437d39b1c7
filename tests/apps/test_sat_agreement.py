"""`"agreement": 2`: several solvers, without sharing clauses, must give the same answer."""

from collections.abc import Sequence

import pytest
from fake_context import FakeContext

from mallob_py.kit import InputError, JobInput, Result, TreeMessage
from mallob_sat import SatApplication, agreement, generate
from mallob_sat.agreement import Agreeing, family_of
from mallob_sat.modes import mode_of
from mallob_sat.portfolio import Portfolio, Strategy

PIGEONS = [literal for clause in generate.pigeonhole(5).clauses for literal in (*clause, 0)]


class Worker(FakeContext):
    """One of several workers; the others get what it broadcasts."""

    def __init__(self, payload, index: int = 0, volume: int = 1, threads: int = 1, **configuration) -> None:  # type: ignore[no-untyped-def]
        super().__init__(payload, index, configuration)
        self.volume, self.threads = volume, threads
        self.said: list[bytes] = []
        self.heard: list[TreeMessage] = []

    def poll(self, timeout_s: float = 0.0) -> list[TreeMessage]:
        heard, self.heard = self.heard, []
        return heard

    def send_to_parent(self, data: bytes) -> None:
        self.said.append(data)

    def finish(self, result: Result) -> None:  # type: ignore[override]
        raise Finished(result)


class Finished(Exception):
    pass


def solve(literals: Sequence[int], **configuration: object) -> Result:
    application = SatApplication()
    application.check(configuration)
    payload = application.read(JobInput(literals=list(literals), configuration=configuration))
    result = application.run(Worker(payload, **configuration))
    assert result is not None
    return result


def test_one_worker_asks_one_solver_after_the_other() -> None:
    result = solve(PIGEONS, agreement=3)
    solvers = result.fields["agreement"]["solvers"]
    assert result.code == 20
    assert len(set(map(family_of, solvers))) == 3


def test_the_model_is_one_of_the_formula_packed_if_wished() -> None:
    assert solve([1, 2, 0, -1, 0, 3, -2, 0], agreement=2).solution.tolist() == [-1, 2, 3]  # type: ignore[union-attr]
    assert solve([1, 2, 0, -1, 0], agreement=2, model="packed").solution == bytes([0b10])


def test_a_contradiction_is_an_error_that_names_both(monkeypatch: pytest.MonkeyPatch) -> None:
    class Liar:
        fds = ()

        def __init__(self, strategy: Strategy) -> None:
            self.strategy = strategy

        def run(self) -> Result:
            code = 10 if self.strategy.solver == "kissat404" else 20
            return Result(code, [1, 2] if code == 10 else [], {"solver": self.strategy.title})

        def close(self) -> None:
            pass

    monkeypatch.setattr(agreement, "search_for", lambda formula, strategy: Liar(strategy))
    with pytest.raises(InputError, match=r"kissat404 says .* is satisfiable, cadical195 that it is not"):
        solve([1, 2, 0], agreement=2)


def test_what_another_worker_has_found_counts_and_stays_when_it_leaves() -> None:
    configuration = {"agreement": 2, "solvers": ["cadical195", "kissat404"]}
    application = SatApplication()
    payload = application.read(JobInput(literals=PIGEONS, configuration=configuration))
    first = Worker(payload, volume=2, **configuration)
    assert application.run(first).code == 20  # type: ignore[union-attr]
    (said, *_) = first.said
    second = Worker(payload, index=1, volume=2, **configuration)
    second.heard = [TreeMessage(0, said)]
    result = application.run(second)
    assert result is not None
    assert sorted(result.fields["agreement"]["solvers"]) == ["cadical195", "kissat404"]


def test_all_that_was_wanted_may_come_from_others() -> None:
    configuration = {"agreement": 2}
    application = SatApplication()
    payload = application.read(JobInput(literals=PIGEONS, configuration=configuration))
    first = Worker(payload, **configuration)
    assert application.run(first) is not None
    late = Worker(payload, index=3, **configuration)
    late.heard = [TreeMessage(0, message) for message in first.said]
    assert application.run(late).code == 20  # type: ignore[union-attr]


def test_the_first_strategies_are_of_different_solvers() -> None:
    order = [family_of(strategy.solver) for strategy in Agreeing(Portfolio(), 2).order()]
    assert order[:3] == ["cadical", "kissat404", "glucose"]
    assert len(order) == len(set(order))


def test_settings_of_a_solver_count_as_one_solver() -> None:
    configuration = {"agreement": 2, "portfolio": "k k+ k0 k- c", "seed": 1}
    payload = SatApplication().read(JobInput(literals=PIGEONS, configuration=configuration))
    result = SatApplication().run(Worker(payload, index=1, volume=2, threads=2, **configuration))
    names = {solver.partition("(")[0] for solver in result.fields["agreement"]["solvers"]}  # type: ignore[union-attr]
    assert names == {"kissat404", "cadical195"}


def test_solvers_share_nothing() -> None:
    mode = mode_of({"agreement": 2})
    assert isinstance(mode, Agreeing)
    assert all(strategy.trade.name == "NOTHING" for strategy in mode.order())


@pytest.mark.parametrize(
    ("configuration", "message"),
    [
        ({"agreement": 0}, "agreement is 0"),
        ({"agreement": "two"}, "agreement is 'two'"),
        ({"agreement": 2, "solvers": ["cadical195", "cadical153"]}, "the portfolio has only cadical"),
        ({"agreement": 2, "proof": "/tmp/proof"}, "proof and agreement"),
        ({"agreement": 2, "solutions": 3}, "solutions and agreement"),
    ],
)
def test_what_is_not_possible_is_refused_at_once(configuration: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SatApplication().check(configuration)


def test_one_is_the_default() -> None:
    assert not isinstance(mode_of({"agreement": 1}), Agreeing)
