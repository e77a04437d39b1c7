"""Portfolios as text: their members, and errors with their places."""

from itertools import combinations

import pytest

from mallob_py.kit import InputError
from mallob_sat.portfolio import DEFAULT_PORTFOLIO, SOLVER_NAMES, Portfolio, Trade
from mallob_sat.portfolio_syntax import LETTERS, Member, Members, Phases, cycle_of, parse_portfolio


def solvers(text: str, count: int) -> str:
    """Return the letters of the first `count` members."""
    letter = {solver: letter for letter, solver in LETTERS.items()}
    members = parse_portfolio(text)
    return "".join(letter[members.at(index)[0].solver] for index in range(count))


def titles(text: str, count: int) -> list[str]:
    portfolio = Portfolio.from_configuration({"portfolio": text})
    return [portfolio.strategy(index).title for index in range(count)]


def test_letters_name_solvers_each_once() -> None:
    assert set(LETTERS.values()) <= set(SOLVER_NAMES)
    assert len(set(LETTERS.values())) == len(LETTERS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("k", "kkkkkkkk"),
        ("k(c)*", "kccccccc"),
        ("k(cg)*", "kcgcgcgc"),
        ("kcl", "kclkclkc"),
        ("(cg){2}k", "cgcgkcgc"),
        ("(cg){2}(k)*", "cgcgkkkk"),
        ("(e)*", "eeeeeeee"),
        (" k ( c_ g ) * ", "kcgcgcgc"),
        ("(m){3}(ce){1}(k)*", "mmmcekkk"),
    ],
)
def test_a_prefix_is_used_once_and_the_cycle_for_ever(text: str, expected: str) -> None:
    assert solvers(text, 8) == expected


def test_without_a_cycle_it_means_the_same_as_a_list_of_solvers() -> None:
    by_letters = Portfolio.from_configuration({"portfolio": "ge", "seed": 7})
    assert by_letters == Portfolio.from_configuration({"solvers": ["glucose42", "ergo"], "seed": 7})


def test_signs_say_how_to_search() -> None:
    assert parse_portfolio("c+0~!").at(0)[0] == Member(
        "cadical195", (("stabilizeonly", 1), ("phase", 0)), Phases.RANDOM, False
    )
    assert parse_portfolio("o-_").at(0)[0] == Member("cadical153", (("stabilize", 0),), Phases.OWN)
    assert parse_portfolio("c0+").at(0) == parse_portfolio("c+0").at(0)
    assert titles("c+ n- g", 3) == ["cadical195(stabilizeonly=1)", "cadical300(stabilize=0)", "glucose42"]


def test_phases_of_what_comes_up_again_are_own_random_or_both_in_turn() -> None:
    def with_random_phases(text: str) -> list[bool]:
        return ["phases~" in title for title in titles(text, 7)]

    assert with_random_phases("g_") == [False] * 7
    assert with_random_phases("g~") == [True] * 7
    assert with_random_phases("g") == [False, False, True, False, True, False, True]
    assert with_random_phases("k") == [False] * 7


def test_a_solver_on_its_own_shares_nothing() -> None:
    portfolio = Portfolio.from_configuration({"portfolio": "c!(c g!)*"})
    trades = [portfolio.strategy(index).trade for index in range(5)]
    assert trades == [Trade.NOTHING, Trade.GIVES, Trade.NOTHING, Trade.BOTH_WAYS, Trade.NOTHING]


@pytest.mark.parametrize("text", [DEFAULT_PORTFOLIO, "c c_ c! c~ (c c! c_ c~)*", "(k)*", "t~!t(t_)*", "m"])
@pytest.mark.parametrize("seed", [0, 1, 2, 2**31 - 1])
def test_no_two_members_search_alike(text: str, seed: int) -> None:
    portfolio = Portfolio.from_configuration({"portfolio": text, "seed": seed, "sharing": False})
    strategies = [portfolio.strategy(index) for index in range(300)]
    assert len(set(strategies)) == 300


def test_the_count_of_those_that_search_alike_is_that_of_counting() -> None:
    members = parse_portfolio("c c_ g k c! (c g c~ g+ c)*".replace("g+", "o+"))
    first = [members.at(index)[0] for index in range(40)]
    for index, member in enumerate(first):
        assert members.at(index)[1] == sum(other.search == member.search for other in first[:index])


def test_the_default_portfolio_is_written_as_one_and_every_prefix_mixes() -> None:
    assert Portfolio.from_configuration({"portfolio": DEFAULT_PORTFOLIO}) == Portfolio()
    strategies = [Portfolio().strategy(index) for index in range(16)]
    for first, second in combinations(strategies, 2):
        assert (first.solver, first.options, first.phase_seed) != (
            second.solver,
            second.options,
            second.phase_seed,
        )


def test_only_some_solvers_keep_their_order() -> None:
    assert parse_portfolio("kcg(ek)*").only(["kissat404", "cadical195"]) == Members(
        cycle_of(["kissat404", "cadical195"]).cycle, cycle_of(["kissat404"]).cycle
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it must be a text"),
        ("  ", "it must be a text"),
        (7, "portfolio is 7"),
        (None, "portfolio is None"),
        ("kq", "character 2: 'q' is no solver; known are c cadical195, "),
        ("C", "character 1: 'C' is no solver"),
        ("+c", "character 1: '[+]' is no solver; a sign needs a letter before it"),
        ("k(c", "character 2: this parenthesis is never closed"),
        ("k)", r"character 2: '\)' is no solver"),
        ("k((c))*", r"character 3: '\(' is no solver"),
        ("k()*", "character 3: a solver is missing"),
        ("k(c)", r"character 2: '\*' or '\{number\}' must follow"),
        ("k(c)*g", "character 6: nothing may follow the cycle"),
        ("k*", r"character 2: '\*' is no solver"),
        ("(k){0}", "character 4: .* from 1 to 1000"),
        ("(k){1001}", "from 1 to 1000"),
        ("(k){99999999999999}", "from 1 to 1000"),
        ("(k){", "from 1 to 1000"),
        ("(k){-1}", "from 1 to 1000"),
        ("(k){²}", "from 1 to 1000"),
        ("(kkkkkkkkkkkk){1000}", "more than 10000 members"),
        ("c+-", "character 3: '[+]' and '-' contradict"),
        ("c-0+", "character 4: '[+]' and '-' contradict"),
        ("c~_", "character 3: '_' and '~' contradict"),
        ("c!!", "character 3: '!' is given twice"),
        ("g+", "character 2: glucose42 has no '[+]'; the CaDiCaLs"),
        ("k~", "kissat404 takes no phases"),
    ],
)
def test_errors_say_where(text: object, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        Portfolio.from_configuration({"portfolio": text})
    assert caught.value.field == "configuration"
    assert "\n" not in caught.value.message


def test_a_portfolio_and_a_list_of_solvers_together_are_refused() -> None:
    with pytest.raises(InputError, match="either portfolio or solvers"):
        Portfolio.from_configuration({"portfolio": "k", "solvers": ["kissat404"]})
