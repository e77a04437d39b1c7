"""The table of strategies: strong solvers first, no two workers equal, configurations checked."""

from dataclasses import replace

import pytest

from mallob_py.kit import InputError
from mallob_sat.portfolio import (
    NATIVE_PORTFOLIO,
    PLAIN_PORTFOLIO,
    RANDOM_PORTFOLIO,
    SMALL_RANDOM_PORTFOLIO,
    SOLVER_NAMES,
    XOR_PORTFOLIO,
    Portfolio,
    Strategy,
)
from mallob_sat.portfolio_syntax import cycle_of
from mallob_sat.solvers import ENGINES


def test_named_solvers_are_those_that_exist() -> None:
    assert set(SOLVER_NAMES) == {*ENGINES, "cryptominisat"}


def test_the_root_runs_plain_cadical() -> None:
    assert Portfolio().strategy(0).title == "cadical195"


def test_the_first_eight_mix_at_least_five_solvers() -> None:
    assert len({Portfolio().strategy(index).solver for index in range(8)}) >= 5


@pytest.mark.parametrize(
    ("expression", "titles"),
    [
        (PLAIN_PORTFOLIO, ["kissat404", "kissat404(stable=2,symmetries)", "kissat404(seed=2,renaming~2)"]),
        (NATIVE_PORTFOLIO, ["kissat404", "kissat404(stable=2,symmetries)", "cadical300(stabilizeonly=1)"]),
        (XOR_PORTFOLIO, ["cryptominisat", "kissat404", "cadical195"]),
        (RANDOM_PORTFOLIO, ["kissat404", "cadical195(stabilizeonly=1)", "ergo"]),
        (SMALL_RANDOM_PORTFOLIO, ["kissat404", "ergo", "cadical195(stabilizeonly=1)"]),
    ],
)
def test_other_orders_of_solvers_keep_all_else(expression: str, titles: list[str]) -> None:
    other = Portfolio(shares=False).following(expression)
    assert [other.strategy(index).title for index in range(3)] == titles
    assert not other.shares
    assert not other.is_default


@pytest.mark.parametrize(
    ("expression", "alone"), [("kgcc0", 1), ("ek!c g", 3), ("kec+!c g", 3), ("cg", 1), ("e", 9)]
)
def test_searches_have_partners_from_the_second_on_that_trades(expression: str, alone: int) -> None:
    portfolio = Portfolio().following(expression)
    assert not any(portfolio.has_partners(count) for count in range(alone + 1))
    assert expression == "e" or portfolio.has_partners(alone + 1)
    assert not Portfolio(shares=False).following(expression).has_partners(alone + 1)


def test_the_first_eight_of_the_plain_order_are_kissats_that_differ_by_little() -> None:
    portfolio = Portfolio().following(PLAIN_PORTFOLIO)
    assert [portfolio.members.at(index)[0].solver for index in range(8)] == ["kissat404"] * 8
    assert [portfolio.strategy(index).options for index in range(2, 8)] == [
        (("seed", index),) for index in range(2, 8)
    ]
    assert len({portfolio.strategy(index).solver for index in range(16)}) >= 3


def test_an_order_that_is_asked_for_is_not_the_default() -> None:
    assert Portfolio(seed=3).is_default
    assert not Portfolio(cycle_of(["ergo", "maplecm"])).is_default


@pytest.mark.parametrize(
    "portfolio",
    [
        Portfolio(),
        Portfolio().following(PLAIN_PORTFOLIO),
        Portfolio().following(NATIVE_PORTFOLIO),
        Portfolio().following(XOR_PORTFOLIO),
        Portfolio().following(RANDOM_PORTFOLIO),
        Portfolio().following(SMALL_RANDOM_PORTFOLIO),
        Portfolio(seed=3),
        Portfolio(cycle_of(["ergo", "maplecm"])),
    ],
)
def test_no_two_of_a_thousand_workers_search_alike(portfolio: Portfolio) -> None:
    strategies = [portfolio.strategy(index) for index in range(1000)]
    assert len(set(strategies)) == 1000
    assert all(strategy.solver in SOLVER_NAMES for strategy in strategies)


def test_strategies_are_functions_of_index_and_configuration() -> None:
    assert Portfolio(seed=3).strategy(77) == Portfolio(seed=3).strategy(77)
    assert Portfolio(seed=3).strategy(77) != Portfolio(seed=4).strategy(77)


def test_named_solvers_are_taken_in_turn() -> None:
    portfolio = Portfolio.from_configuration({"solvers": ["glucose4", "ergo"]})
    assert [portfolio.strategy(index).solver for index in range(4)] == ["glucose4", "ergo"] * 2
    assert portfolio.strategy(0).title == "glucose4"
    assert portfolio.strategy(2).renaming_seed is not None


def test_kissats_that_share_keep_the_names_of_variables() -> None:
    portfolio = Portfolio().following("(k g)*")
    assert portfolio.strategy(2) == Strategy("kissat404", (("seed", 2),), trade=portfolio.strategy(2).trade)
    assert portfolio.strategy(3).renaming_seed is not None
    assert replace(portfolio, shares=False).strategy(2).renaming_seed is not None
    assert Portfolio().following("k! k!").strategy(1).renaming_seed is not None


def test_a_solver_named_twice_searches_in_two_ways() -> None:
    portfolio = Portfolio(cycle_of(["cadical195", "cadical195"]))
    assert portfolio.strategy(0) != portfolio.strategy(1)


@pytest.mark.parametrize(
    ("configuration", "words"),
    [
        ({"solver": "cadical195"}, "unknown key 'solver'"),
        ({"solvers": ["nosuch"]}, "unknown solver 'nosuch'"),
        ({"solvers": [["ergo"]]}, "unknown solver"),
        ({"solvers": []}, "must be a list"),
        ({"solvers": "ergo"}, "must be a list"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"seed": True}, "seed is True"),
        ({"content-mode": "binary"}, "content-mode is 'binary'"),
    ],
)
def test_wrong_configurations_are_refused(configuration: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        Portfolio.from_configuration(configuration)
    assert caught.value.field == "configuration"


def test_an_empty_configuration_is_the_default() -> None:
    assert Portfolio.from_configuration({"content-mode": "raw"}) == Portfolio()
    assert Portfolio.from_configuration({"options": "-t=2", "__NV": "7"}) == Portfolio()


@pytest.mark.parametrize(
    ("expression", "leaves"),
    [
        ("k k+", True),
        (PLAIN_PORTFOLIO, True),
        (NATIVE_PORTFOLIO, True),
        ("k k0", False),
        ("k- k+", False),
        ("k! k+", False),
        ("k k+!", False),
        ("c k k+", False),
    ],
)
def test_the_first_leaves_stable_phases_to_a_second_that_is_in_nothing_else(
    expression: str, leaves: bool
) -> None:
    portfolio = Portfolio().following(expression)
    assert portfolio.strategy(0).leaves_stable_phases is leaves
    assert not any(portfolio.strategy(index).leaves_stable_phases for index in range(1, 6))
    assert not Portfolio(shares=False).following(expression).strategy(0).leaves_stable_phases
