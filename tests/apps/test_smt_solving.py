"""Scripts answered by the engines themselves, where they are installed: in processes of their own."""

import subprocess
import sys
from pathlib import Path

import pytest
from fake_context import FakeContext

from mallob_py.kit import InputError, JobInput, Result
from mallob_smt import SmtApplication
from mallob_smt.engines import ENGINES, Wishes, installed_engines
from mallob_smt.script import script_from_text

pytestmark = pytest.mark.skipif(
    len(installed_engines()) < len(ENGINES), reason="needs all engines: pip install 'mallob-py[smt]'"
)

BITS = """
(set-logic QF_BV)
(declare-const x (_ BitVec 8))
(assert (! (bvult x #x02) :named small))
(check-sat)
(get-value (x))
(push 1)
(assert (! (bvugt x #x03) :named large))
(check-sat)
(get-unsat-core)
(pop 1)
(assert (= x #x01))
(check-sat-assuming ((= x #x00)))
(check-sat)
(get-value (x))
"""
INTEGERS = "(set-logic QF_LIA)(declare-const x Int)(assert (and (> x 2) (< x 4)))(check-sat)(get-value (x))"
QUANTIFIED = "(declare-fun f (Int) Int)(assert (forall ((x Int)) (> (f x) x)))(assert (< (f 3) 4))(check-sat)"


class Alone(FakeContext):
    def __init__(self, payload, configuration) -> None:  # type: ignore[no-untyped-def]
        super().__init__(payload, 0, configuration)
        self.volume = 1

    def set_demand(self, demand: int) -> None:
        self.demand = demand


def solve(folder: Path, text: str | bytes, **configuration: object) -> Result:
    file = folder / "script.smt2"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    application = SmtApplication()
    application.check(configuration)
    payload = application.read(JobInput(files=[str(file)], configuration=configuration))
    return application.run(Alone(payload, configuration))


def transcript(result: Result) -> list[str]:
    assert isinstance(result.solution, bytes)
    return result.solution.decode().splitlines()


@pytest.mark.parametrize("engine", ENGINES)
def test_each_engine_answers_an_incremental_script_in_order(engine: str, tmp_path: Path) -> None:
    result = solve(tmp_path, BITS, engines=[engine])
    lines = transcript(result)
    assert result.code == 10
    assert result.fields["answers"] == ["sat", "unsat", "unsat", "sat"]
    assert result.fields["solver"] == engine
    assert [line for line in lines if "sat" in line] == ["sat", "unsat", "unsat", "sat"]
    assert {"small", "large"} == set(" ".join(lines[3:-3]).strip("( )").split())


@pytest.mark.parametrize("engine", ["z3", "cvc5"])
def test_arithmetic(engine: str, tmp_path: Path) -> None:
    assert transcript(solve(tmp_path, INTEGERS, engines=[engine])) == ["sat", "((x 3))"]


def test_an_engine_without_the_theory_leaves_it_to_another(tmp_path: Path) -> None:
    result = solve(tmp_path, INTEGERS, engines=["bitwuzla", "cvc5"])
    assert (result.code, result.fields["solver"]) == (10, "cvc5")


def test_engines_of_which_none_has_the_theory_are_named_with_what_they_say(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"bitwuzla: .*unsupported logic 'QF_LIA'"):
        solve(tmp_path, INTEGERS, engines=["bitwuzla"])


def test_unknown_of_one_is_not_the_answer_while_another_can_do_it(tmp_path: Path) -> None:
    text = "(set-logic UFNIA)(declare-fun f (Int) Int)(assert (forall ((x Int)) (= (f (* x x)) (* x x x))))"
    text += "(assert (not (= (f 4) 8)))(check-sat)"
    assert transcript(solve(tmp_path, text)) == ["unsat"]


def test_what_none_can_do_is_unknown(tmp_path: Path) -> None:
    text = "(set-logic UFNIRA)(declare-fun f (Real) Real)(declare-const c Real)"
    text += (
        "(assert (forall ((x Real)) (> (f (f x)) (* x x x c))))(set-option :reproducible-resource-limit 500)"
    )
    result = solve(
        tmp_path,
        "(set-option :reproducible-resource-limit 500)" + text[: text.index("(set-opt")] + "(check-sat)",
        engines=["z3"],
    )
    assert (result.code, transcript(result)) == (0, ["unknown"])
    assert result.fields["reason-unknown"]


def test_after_an_unknown_of_cvc5_its_script_goes_on(tmp_path: Path) -> None:
    text = "(set-logic ALL)(declare-fun f (Int) Int)(push 1)"
    text += "(assert (forall ((x Int)) (> (f x) (+ 1 (f (+ x 1))))))(check-sat)(pop 1)(check-sat)"
    result = solve(tmp_path, text, engines=["cvc5"])
    assert (result.code, transcript(result)) == (10, ["unknown", "sat"])
    assert result.fields["reason-unknown"] == "incomplete"


def test_agreement_names_the_engines_that_agree(tmp_path: Path) -> None:
    result = solve(tmp_path, INTEGERS, agreement=2)
    assert result.code == 10
    assert sorted(result.fields["agreement"]["engines"]) == ["cvc5", "z3"]
    assert transcript(solve(tmp_path, BITS, agreement=3))[0] == "sat"


def test_agreement_that_is_not_to_be_had_is_unknown(tmp_path: Path) -> None:
    result = solve(tmp_path, INTEGERS, agreement=2, engines=["z3", "bitwuzla"])
    assert result.code == 0
    assert result.fields["agreement"] == {"wanted": 2, "engines": ["z3"]}


def test_scripts_that_check_nothing_are_done(tmp_path: Path) -> None:
    assert transcript(solve(tmp_path, '(echo "a")')) == ['"a"']
    assert transcript(solve(tmp_path, "")) == transcript(solve(tmp_path, "; nothing")) == []
    assert solve(tmp_path, "(exit)(check-sat)").code == 1


OPTION = "(set-option {}:produce-models true ; wanted below\n){}(assert (= x #b1))(check-sat)(get-value (x))"
DECLARED = "(set-logic QF_BV)(declare-const x (_ BitVec 1))"


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("text", "answers"),
    [
        (f"(set-info :source |Müller's|) ; Joël\n{DECLARED}(assert (distinct x x))(check-sat)", ["unsat"]),
        (f'\ufeff{DECLARED}(check-sat)(exit)\nnotes: "to be continued (', ["sat"]),
        (OPTION.format("; for get-value\n", DECLARED), ["sat", "((x #b1))"]),
        (f'{DECLARED}(declare-const |ü| Bool)(assert |ü|)(check-sat)(echo "é ""a""")', ["sat", '"é ""a"""']),
    ],
)
def test_what_a_script_may_be_does_not_hang_on_the_engine(
    engine: str, text: str, answers: list[str], tmp_path: Path
) -> None:
    assert transcript(solve(tmp_path, text, engines=[engine])) == answers
    if text[0] != "\ufeff":
        assert transcript(solve(tmp_path, text.encode("latin-1"), engines=[engine])) == answers


@pytest.mark.parametrize("engine", ["z3", "cvc5"])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_a_letter_in_a_string_is_one_whatever_its_bytes(engine: str, encoding: str, tmp_path: Path) -> None:
    text = '(declare-const s String)(assert (and (= s "é") (= (str.len s) 1) (= s "\\u{e9}")))(check-sat)'
    assert transcript(solve(tmp_path, text.encode(encoding), engines=[engine])) == ["sat"]


def test_options_set_anew_hold_after_a_reset(tmp_path: Path) -> None:
    text = "(set-logic QF_UF)(declare-const p Bool)(assert p)(check-sat)(get-value (p))(reset)"
    text += "(set-logic QF_UF)(declare-const q Bool)(assert (! q :named a))(assert (! (not q) :named b))"
    text += "(check-sat)(get-unsat-core)"
    for engine in ("z3", "cvc5"):
        lines = transcript(solve(tmp_path, text, engines=[engine]))
        assert lines[:3] == ["sat", "((p true))", "unsat"]
        assert set(" ".join(lines[3:]).strip("( )").split()) == {"a", "b"}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_deep_term_ends_no_worker(engine: str, tmp_path: Path) -> None:
    depth = 20_000
    text = "(set-logic QF_BV)(declare-const x (_ BitVec 8))(assert (= x "
    text += "(bvneg (bvadd #x01 " * depth + "x" + "))" * depth + "))(check-sat)"
    try:
        assert solve(tmp_path, text, engines=[engine]).code == 10
    except InputError as error:
        assert engine in error.message  # noqa: PT017 (it may be too deep for an engine)


_CONFINED = """
import os, sys
from mallob_smt.confinement import confine
from mallob_smt.engines import Strategy
from mallob_smt.sessions import EngineError, load, open_session

def tell(text):
    os.write(ours, text.encode() + b" ")

engine, secret, target = sys.argv[1:]
ours = os.dup(1)  # an engine's own output may take the place of this one
load(engine)
session = open_session(Strategy(engine), (), False)
if not confine(1 << 20 if engine == "bitwuzla" else 0):
    tell("no-landlock")
    os._exit(0)
for path, flags in ((secret, os.O_RDONLY), (target, os.O_WRONLY | os.O_CREAT)):
    try:
        os.open(path, flags)
        tell("opened")
    except OSError:
        tell("refused")
try:
    tell(session.answer("(set-logic QF_BV)(declare-const x (_ BitVec 8))(check-sat)"))
except EngineError as error:
    tell(str(error))
os._exit(0)
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_can_neither_read_nor_write_files(engine: str, tmp_path: Path) -> None:
    """The confinement holds for any program: it is tried with Python instead of an engine."""
    secret, target = tmp_path / "secret", tmp_path / "target"
    secret.write_text("x")
    command = [sys.executable, "-c", _CONFINED, engine, str(secret), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.stdout.split() == ["no-landlock"]:
        pytest.skip("the kernel has no Landlock")
    assert done.stdout.split() == ["refused", "refused", "sat"], done.stderr
    assert not target.exists()


def test_wishes_that_make_no_sense_are_refused() -> None:
    for configuration, message in (
        ({"engines": ["yices"]}, "unknown engine 'yices'"),
        ({"engines": []}, "must be a list"),
        ({"engines": ["z3", "z3"]}, "more than once"),
        ({"agreement": 0}, "agreement is 0"),
        ({"agreement": 2, "engines": ["z3"]}, "agreement is 2, but"),
        ({"seed": -1}, "seed is -1"),
        ({"colour": 1}, "unknown key 'colour'"),
    ):
        with pytest.raises(InputError, match=message):
            Wishes.from_configuration(configuration)


def test_the_order_goes_by_the_logic() -> None:
    def first(text: str) -> str:
        facts = script_from_text(text.encode(), "s").facts
        return Wishes().portfolio(facts).base[0].engine

    assert first("(set-logic QF_ABV)(declare-const x (_ BitVec 8))(check-sat)") == "bitwuzla"
    assert first("(declare-const x (_ BitVec 8))(check-sat)") == "bitwuzla"
    assert first(INTEGERS) == "z3"
    assert first(QUANTIFIED) == "z3"
    assert first("(declare-const s String)(check-sat)") == "cvc5"


def test_seeds_make_strategies_different() -> None:
    facts = script_from_text(BITS.encode(), "s").facts
    titles = [strategy.title for strategy in Wishes().portfolio(facts).strategies]
    assert len(titles) == len(set(titles))
    seeded = [strategy.title for strategy in Wishes(seed=5).portfolio(facts).strategies]
    assert len(seeded) == len(set(seeded))
    assert "z3(smt.random_seed=5,sat.random_seed=5)" in seeded
