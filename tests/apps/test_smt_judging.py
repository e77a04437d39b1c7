"""The verdict from several engines' answers: an answer, a contradiction, a refusal, or nothing yet."""

from mallob_smt.engines import Portfolio, Strategy
from mallob_smt.judging import Answer, Contradiction, Refusal, Statement, gone, judge

Z3, CVC5, BITWUZLA = Strategy("z3"), Strategy("cvc5"), Strategy("bitwuzla")
ENUMERATING = Strategy("cvc5", (("enum-inst", "true"),))
PORTFOLIO = Portfolio((Z3, CVC5, ENUMERATING), (Strategy("z3", (("smt.random_seed", "1"),)),))


def said(*words: str, flaws: int = 0) -> Statement:
    return Statement(2 * len(words) + 1, words, True, "", "\n".join(words), flaws)


def failed(reason: str = "it cannot", *words: str) -> Statement:
    return Statement(2 * len(words) + 1, words, True, reason)


def running(*words: str) -> Statement:
    return Statement(2 * len(words), words)


def test_the_first_complete_answer_counts_at_once() -> None:
    verdict = judge(PORTFOLIO, {1: said("sat", "unsat"), 0: running("sat")}, 1)
    assert isinstance(verdict, Answer)
    assert verdict.strategy == CVC5
    assert verdict.statement.words == ("sat", "unsat")


def test_unknown_and_failures_wait_for_the_others() -> None:
    assert judge(PORTFOLIO, {}, 1) is None
    assert judge(PORTFOLIO, {0: said("unknown")}, 1) is None
    assert judge(PORTFOLIO, {0: failed(), 1: said("sat", flaws=1)}, 1) is not None
    assert judge(PORTFOLIO, {0: failed(), 1: said("unknown")}, 1) is None


def test_a_flawed_transcript_waits_only_for_engines_that_could_do_better() -> None:
    assert judge(PORTFOLIO, {1: said("sat", flaws=1)}, 1) is None
    verdict = judge(PORTFOLIO, {1: said("sat", flaws=1), 0: failed()}, 1)
    assert isinstance(verdict, Answer)
    assert verdict.statement.flaws == 1


def test_the_best_of_what_has_come_to_an_end_counts_when_all_have() -> None:
    statements = {0: said("sat", "unknown"), 1: said("unknown", "unknown"), 2: failed()}
    verdict = judge(PORTFOLIO, statements, 1)
    assert isinstance(verdict, Answer)
    assert verdict.strategy == Z3


def test_if_all_fail_it_is_said_what_each_has_said() -> None:
    verdict = judge(PORTFOLIO, {0: failed("no strings"), 1: failed("line 3"), 2: failed("out of memory")}, 1)
    assert isinstance(verdict, Refusal)
    for words in ("z3: no strings", "cvc5: line 3", "cvc5(enum-inst=true): out of memory"):
        assert words in verdict.message


def test_a_contradiction_names_both_even_if_one_is_still_running_or_has_failed_later() -> None:
    for other in (running("sat", "unsat"), failed("died", "sat", "unsat")):
        verdict = judge(PORTFOLIO, {0: said("sat", "sat"), 1: other}, 1)
        assert isinstance(verdict, Contradiction)
        assert "at check 2: z3 says sat, cvc5 says unsat" in verdict.message


def test_agreement_needs_another_engine_and_not_only_another_setting() -> None:
    assert judge(PORTFOLIO, {1: said("sat")}, 2) is None
    assert judge(PORTFOLIO, {1: said("sat"), 2: said("sat")}, 2) is None
    verdict = judge(PORTFOLIO, {1: said("sat"), 0: said("sat")}, 2)
    assert isinstance(verdict, Answer)
    assert verdict.is_agreed
    assert set(verdict.engines) == {"z3", "cvc5"}


def test_agreement_that_has_become_impossible_is_an_answer_without_agreement() -> None:
    verdict = judge(PORTFOLIO, {0: failed(), 1: said("sat")}, 2)
    assert isinstance(verdict, Answer)
    assert not verdict.is_agreed
    assert verdict.engines == ("cvc5",)


def test_settings_of_an_engine_that_has_answered_are_of_no_use() -> None:
    assert gone(PORTFOLIO, {1: said("sat", flaws=1)}) == {1, 2}
    assert gone(PORTFOLIO, {0: failed()}) == {0, 3}
    assert gone(PORTFOLIO, {1: said("unknown")}) == {1}
