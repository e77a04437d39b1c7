"""Scripts in SMT-LIB 2: how they are split into parts, and what is refused, with file and line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mallob_py.kit import InputError
from mallob_smt.commands import Kind
from mallob_smt.script import Script, script_from_text


def cut(text: str | bytes) -> Script:
    return script_from_text(text if isinstance(text, bytes) else text.encode(), "s.smt2")


def parts(text: str) -> list[tuple[str, str]]:
    script = cut(text)
    return [(part.kind.name, script.text_of(part).decode().strip()) for part in script.parts()]


def refusal(text: str | bytes) -> str:
    with pytest.raises(InputError) as caught:
        script_from_text(text if isinstance(text, bytes) else text.encode(), "s.smt2")
    return caught.value.message


def test_each_command_that_speaks_is_a_part_and_all_silent_ones_between_two_are_one() -> None:
    assert parts(
        "(set-logic ALL)(declare-const x Int)\n(assert (> x 1))(check-sat) (get-model)\n(push 1)"
    ) == [
        ("ASSERTS", "(set-logic ALL)(declare-const x Int)\n(assert (> x 1))"),
        ("CHECK", "(check-sat)"),
        ("MODEL", "(get-model)"),
        ("ASSERTS", "(push 1)"),
    ]


def test_lines_are_those_of_the_file() -> None:
    script = cut(
        "(set-logic ALL)\n\n; (check-sat)\n(check-sat)\n(declare-const |a\nb| Int)\n(get-info\n:name)"
    )
    assert [(part.kind, part.line) for part in script.parts()] == [
        (Kind.SILENT, 1),
        (Kind.CHECK, 4),
        (Kind.SILENT, 5),
        (Kind.SPEAKS, 7),
    ]


def test_parentheses_in_strings_symbols_and_comments_do_not_count() -> None:
    text = '(echo "(((")(declare-const |x)(| Int) ; ))\n(echo "a "" ) b")(check-sat)'
    assert [kind for kind, _ in parts(text)] == ["OURS", "SILENT", "OURS", "CHECK"]


def test_bars_in_strings_comments_and_after_symbols_hide_nothing() -> None:
    text = '(assert (= |a#| |b\\c||#|)) ; #|a\\|\n(assert (= "#|" "\\|"))(exit) #|'
    assert [part.kind for part in cut(text).parts()] == [Kind.ASSERTS]


def test_nothing_after_exit_is_looked_at() -> None:
    assert parts("(check-sat)(exit)(frobnicate) )) junk") == [("CHECK", "(check-sat)"), ("SILENT", "")]
    assert cut("(exit)").facts.checks == 0


def test_an_exit_within_a_command_ends_no_script() -> None:
    assert [kind for kind, _ in parts("(declare-fun exit () Bool)(assert (exit))(check-sat)")][-1] == "CHECK"


@pytest.mark.parametrize(
    "rest",
    [
        b'notes: "to be continued (',
        b"|",
        b"(((",
        b")))",
        b"\0",
        b"\xe9\xff",
        b"(exit",
        b"; (\n)",
        b'"(exit)"',
    ],
)
@pytest.mark.parametrize("end", [b"(exit)", b"( exit\t)", b"(exit ; done\n)", b"(;\nexit)"])
def test_what_stands_behind_exit_is_no_part_of_the_script(end: bytes, rest: bytes) -> None:
    script = cut('; "ü (exit)\n(echo "(exit)")(declare-const |(exit)| Int)(check-sat)'.encode() + end + rest)
    assert script.facts.checks == 1
    assert list(script.facts.replies.values()) == ['"(exit)"']


@pytest.mark.parametrize("text", ["", "\n", "; only\n;; comments (", "(exit)", "; c\n(exit) x"])
def test_a_script_without_commands_has_nothing_to_answer(text: str) -> None:
    assert [kind for kind, _ in parts(text) if kind != "SILENT"] == []


@pytest.mark.parametrize("gap", [" ", "; c\n", ' ;"|)(\r\n ', "\n;é\n"])
def test_comments_may_stand_between_any_two_tokens(gap: str) -> None:
    words = [
        *(
            "(",
            "set-option",
            ":print-success",
            "true",
            ")",
            "(",
            "set-option",
            ":produce-models",
            "true",
            ")",
        ),
        *(
            "(",
            "get-option",
            ":print-success",
            ")",
            "(",
            "echo",
            '"; no comment"',
            ")",
            "(",
            "check-sat",
            ")",
        ),
    ]
    for encoding in ("utf-8", "latin-1"):
        script = cut(gap.join(words).encode(encoding))
        assert list(script.facts.replies.values()) == ["true", '"; no comment"']
        assert [part.successes for part in script.parts()] == [2, 0, 0, 0]
        given = script.text.tobytes().decode().split()
        assert given == ["(", "set-option", ":produce-models", "true", ")", "(", "check-sat", ")"]


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_a_script_may_be_in_any_encoding_that_has_ascii_in_it(encoding: str) -> None:
    text = '(set-info :source |Müller|) ; Joël\n(declare-const |ü"| String)(assert (= |ü"| "é""\\u{41}"))'
    script = cut((text + '\n(echo "ü""é")(check-sat)').encode(encoding))
    given = script.text.tobytes().decode()
    assert (
        given.split("(", 1)[1]
        == (
            'declare-const |ü"| String)(assert (= |ü"| "\\u{e9}""\\u{41}"))\n'
            + " " * len('(echo "ü""é")'.encode())
        )
        + "(check-sat)"
    )
    assert list(script.facts.replies.values()) == ['"ü""é"']
    assert [part.line for part in script.parts() if part.kind is Kind.CHECK] == [3]


def test_a_script_goes_through_a_payload_unchanged() -> None:
    script = cut('(set-option :foo bar)(set-logic QF_BV)(check-sat)(get-unsat-core)(echo "ü")')
    again = Script.from_payload(script.to_payload())
    assert list(again.parts()) == list(script.parts())
    assert again.facts == script.facts
    assert again.text.tobytes() == script.text.tobytes()


def test_what_the_script_needs_is_known() -> None:
    facts = cut("(declare-const x (_ BitVec 8))(check-sat)(get-value (x))(check-sat)(get-unsat-core)").facts
    assert facts.needs == ("produce-models", "produce-unsat-cores")
    assert facts.checks == 2
    assert facts.is_incremental
    assert facts.has_bits
    assert not facts.has_numbers
    assert not cut("(check-sat)").facts.is_incremental


def test_options_that_no_engine_may_see_are_taken_out_and_the_lines_stay() -> None:
    script = cut('(set-option :trace\ntrue)\n(set-option :foo "/tmp/x")(set-info :status sat)(check-sat)')
    assert script.text.tobytes().split() == [b"(check-sat)"]
    assert [part.line for part in script.parts() if part.kind is Kind.CHECK] == [3]
    assert list(script.facts.replies.values()) == ["unsupported", "unsupported"]


def test_options_of_the_standard_are_passed_on() -> None:
    text = "(set-option :produce-models true)(set-option :random-seed 7)"
    assert cut(text).text.tobytes().decode() == text


def test_success_is_counted_while_it_is_wished() -> None:
    script = cut(
        "(set-logic ALL)(set-option :print-success true)(assert true)(check-sat)"
        "(get-option :print-success)(set-option :print-success false)(assert true)"
    )
    assert [part.successes for part in script.parts()] == [2, 0, 0, 0]
    assert list(script.facts.replies.values()) == ["true"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "(check-sat)\n(assert (> x 1)",
            "s.smt2, line 2: the command that begins here is never closed: 1 more ')' needed",
        ),
        ("(check-sat)\n\n(check-sat))", "s.smt2, line 3: a ')' without its '('"),
        ("(check-sat)\nhello", "s.smt2, line 2: 'hello' stands outside of any command"),
        ('(echo "a\n)', "s.smt2, line 1: the string that begins here is never closed"),
        ("(declare-const |a Int)", "s.smt2, line 1: the quoted symbol that begins here is never closed"),
        ('\n(include "a.smt2")', "s.smt2, line 2: the command 'include' would read another file"),
        ('(declare-oracle-fun f (Int) Int "/bin/sh")', "the command 'declare-oracle-fun' is not passed on"),
        ("()", "s.smt2, line 1: the command '' has no name"),
        ('(set-option :regular-output-channel "/etc/passwd")', ":regular-output-channel names a file"),
        ('(set-option :diagnostic-output-channel "x")', ":diagnostic-output-channel names a file"),
        ('(set-option :produce-models "/etc/passwd")', "it must be true, false or a number"),
        ("(set-option)", "set-option needs a keyword"),
        ("p cnf 3 2\n1 2 0\n", "s.smt2, line 1: 'p' stands outside of any command"),
        (b"\x7fELF\0\0", "s.smt2, line 1: the text contains a NUL byte"),
        (b"(check-sat)\n\xff\xfe", "s.smt2, line 2: '\xff\xfe' stands outside of any command"),
        ("(echo a)", "s.smt2, line 1: echo needs one string"),
        ('(assert true)\n(echo "a" "b")', "s.smt2, line 2: echo needs one string"),
        ('(echo "abc) (exit)', "s.smt2, line 1: the string that begins here is never closed"),
        ("(assert (exit))(", "s.smt2, line 1: the command that begins here is never closed"),
        (")(exit)", "s.smt2, line 1: a ')' without its '('"),
        ('(assert\n#|a|b|# true) (include "x") (assert #|a|b|# true)', "s.smt2, line 2: '#|' has no meaning"),
        (
            '(assert |a\\|) (assert |) (include "x") (assert |b\\|) (assert |)',
            "s.smt2, line 1: the quoted symbol that begins here ends with a backslash",
        ),
    ],
)
def test_what_is_no_script_is_refused_with_its_line(text: str | bytes, message: str) -> None:
    assert message in refusal(text)


def test_output_channels_may_be_what_they_are() -> None:
    assert parts('(set-option :regular-output-channel "stdout")(check-sat)')[-1] == ("CHECK", "(check-sat)")


def test_depth_is_no_problem() -> None:
    depth = 300_000
    script = cut("(assert " + "(not " * depth + "true" + ")" * depth + ")(check-sat)")
    assert [part.kind for part in script.parts()] == [Kind.ASSERTS, Kind.CHECK]


@given(st.text(alphabet='()"|; \nax', max_size=40))
def test_any_text_is_cut_or_refused(text: str) -> None:
    try:
        script = cut(text)
    except InputError:
        return
    assert script.text.size <= len(text.encode())
