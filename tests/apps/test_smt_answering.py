"""An engine's answers to a script, part by part, and which of them count. A list stands for the engine."""

import pytest

from mallob_smt.answering import Checked, Completed, Printed, Saying, answer, one_line
from mallob_smt.script import script_from_text
from mallob_smt.sessions import EngineError


class Told:
    """An engine with an answer per name of a command; it does not answer other commands."""

    def __init__(self, **answers: str) -> None:
        self.answers = {name.replace("_", "-"): text for name, text in answers.items()}
        self.asked: list[str] = []

    def answer(self, text: str) -> str:
        self.asked.append(text.strip())
        return next((said for name, said in self.answers.items() if f"({name}" in text), "")

    def reason_unknown(self) -> str:
        return '(:reason-unknown "incomplete")\n'


def hold(text: str, session: Told) -> tuple[Completed, list[Saying]]:
    told: list[Saying] = []
    completed = answer(script_from_text(text.encode(), "s.smt2"), session, told.append)
    return completed, told


def test_a_transcript_is_what_the_engine_prints_in_order() -> None:
    session = Told(check_sat="sat\n", get_value="((x 1))\n", echo="not asked")
    completed, told = hold('(declare-const x Int)(check-sat)(get-value (x))(echo "hello")', session)
    assert completed == Completed('sat\n((x 1))\n"hello"\n', 0, "")
    assert told == [Checked("sat")]


def test_what_it_has_printed_is_told_before_the_next_check() -> None:
    session = Told(check_sat="sat\n", simplify="hello\n")
    completed, told = hold("(check-sat)(simplify 1)(check-sat)(check-sat)", session)
    assert told == [Checked("sat"), Printed("sat\nhello\n"), Checked("sat"), Printed("sat\n"), Checked("sat")]
    assert completed.transcript == "sat\nhello\nsat\nsat\n"


def test_requests_that_nobody_could_answer_never_reach_the_engine() -> None:
    session = Told(check_sat="unsat\n", get_value="nonsense", get_unsat_core="(a)\n")
    completed, _ = hold("(get-model)\n(check-sat)\n(get-value(x))\n(get-unsat-core)", session)
    assert completed.transcript.splitlines() == [
        '(error "line 1: get-model needs a check before it that says sat; there is none")',
        "unsat",
        '(error "line 3: get-value needs a check before it that says sat; the last check said unsat")',
        "(a)",
    ]
    assert completed.flaws == 0
    assert session.asked == ["(check-sat)", "(get-unsat-core)"]


def test_after_an_assertion_the_last_check_holds_no_more() -> None:
    completed, _ = hold("(check-sat)(assert false)(get-model)", Told(check_sat="sat\n", get_model="()\n"))
    assert "get-model needs a check" in completed.transcript


@pytest.mark.parametrize("printed", ['(error "x")\n', "unsupported\n", ""])
def test_requests_without_an_answer_are_flaws(printed: str) -> None:
    completed, _ = hold("(check-sat)(get-value (x))", Told(check_sat="sat\n", get_value=printed))
    assert completed.flaws == 1
    assert completed.transcript.count("\n") == 2


def test_an_error_in_an_assertion_voids_all_that_follows() -> None:
    session = Told(assert_='(error "line 2: unknown constant y")\n', check_sat="sat\n")
    session.answers["assert"] = session.answers.pop("assert-")
    with pytest.raises(EngineError, match=r"line 2: unknown constant y$"):
        hold("(assert y)(check-sat)", session)


def test_a_check_is_answered_by_one_word() -> None:
    with pytest.raises(EngineError, match="timeout"):
        hold("(check-sat)", Told(check_sat="timeout\n"))


@pytest.mark.parametrize("printed", ["unknown\n", "unknown (INCOMPLETE)\n"])
def test_the_reason_of_an_unknown_is_kept(printed: str) -> None:
    completed, _ = hold("(check-sat)", Told(check_sat=printed))
    assert completed == Completed("unknown\n", 0, "incomplete")


def test_success_is_printed_for_silent_commands_while_wished() -> None:
    text = "(set-option :print-success true)(assert true)(check-sat)(set-option :foo 1)(exit)"
    completed, _ = hold(text, Told(check_sat="sat\n"))
    assert completed.transcript.split() == ["success", "success", "sat", "unsupported", "success"]


def test_reasons_are_one_line_of_some_length() -> None:
    assert one_line('(error "line 1:\n  bad")\nsat') == "line 1: bad"
    assert len(one_line("x" * 10_000)) < 400
