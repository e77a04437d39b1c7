"""Weighted formulas as text: both formats, one violation of each rule, and the agreement of two readers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mallob_maxsat import wcnf
from mallob_maxsat.wcnf import read_wcnf
from mallob_py.kit import InputError


def read(text: str) -> tuple[int, list[int], list[int], list[int], int]:
    formula = read_wcnf(text.encode(), "f.wcnf")
    hard, soft = formula.hard.tolist(), formula.soft.tolist()
    return formula.n_vars, hard, soft, formula.weights.tolist(), formula.base


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", (0, [], [], [], 0)),
        ("c nothing\n\n", (0, [], [], [], 0)),
        ("h 1 -3 0\n5 2 0\n", (3, [1, -3, 0], [2, 0], [5], 0)),
        ("h 0\n", (0, [0], [], [], 0)),
        ("7 0\n3 1 0", (1, [], [1, 0], [3], 7)),
        ("0 4 0\nc 1 2\n2 1 0\n", (4, [], [1, 0], [2], 0)),
        ("h\t1\t2 0\r\n9223372036854775807 -1 0\r\n", (2, [1, 2, 0], [-1, 0], [2**63 - 1], 0)),
        ("h 1 2\n0 1 -1 0\n", (2, [1, 2, 0], [-1, 0], [1], 0)),
        ("1 1 0 2 -1 0 h 2 0", (2, [2, 0], [1, 0, -1, 0], [1, 2], 0)),
        ("p wcnf 4 3 10\n10 1 2 0\n3 -1 0\n11 3 0\n", (4, [1, 2, 0, 3, 0], [-1, 0], [3], 0)),
        ("p wcnf 2 2\n10 1 2 0\n3 -1 0\n", (2, [], [1, 2, 0, -1, 0], [10, 3], 0)),
        ("p cnf 2 2\n1 2\n0 0\n", (2, [], [1, 2, 0], [1], 1)),
        ("c x\rh 1 0\rh -1 0\r", (1, [1, 0, -1, 0], [], [], 0)),
        ("c x\np wcnf 1 1 18446744073709551615\n18446744073709551615 1 0\n", (1, [1, 0], [], [], 0)),
        (f"{'0' * 40}5 -{'0' * 40}2 0\n", (2, [], [-2, 0], [5], 0)),
        (f"p wcnf {'0' * 40}2 1 {'0' * 40}5\n5 2 0\n", (2, [2, 0], [], [], 0)),
    ],
)
def test_what_a_file_says(text: str, expected: object) -> None:
    assert read(text) == expected


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("h 1 2\n", 1, "not closed by 0"),
        ("h 1 0\n5 2", 2, "not closed by 0"),
        ("h 1 0\n1.5 2 0\n", 2, "a weight has to be a whole number"),
        ("h 1 0\n-3 2 0\n", 2, "a weight must not be negative"),
        ("h 1 0\n9223372036854775808 2 0\n", 2, "weights go up to 9223372036854775807"),
        ("h 1 0\nx 2 0\n", 2, "a clause begins with its weight, or with h"),
        ("h 1 h 0\n", 1, "is not an integer literal"),
        ("h 1 0\n\n3 2b 0\n", 3, "'2b' is not an integer literal"),
        ("h 1 0 c why\n", 1, "a clause begins with its weight, or with h"),
        ("h 1 --2 0\n", 1, "'--2' is not an integer literal"),
        ("h 99999999999 0\n", 1, "too large; at most 2147483646"),
        (f"h {'9' * 5000} 0\n", 1, "too large; at most 2147483646"),
        ("p wcnf 2 1 5\nh 1 0\n", 2, "in files without a header"),
        ("p wcnf 2 1 5\n5 3 0\n", 2, "beyond the 2 variables declared"),
        ("p wcnf 2 2 5\n5 1 0\n", 2, "ends after 1 clauses but its header declares 2"),
        ("p wcnf 2 1 5\n5 1 0\n5 2 0\n", 3, "beyond the 1 that the header declares"),
        ("p wcnf 2 1 0\n5 1 0\n", 1, "TOP is 0"),
        ("p wcnf 2\n5 1 0\n", 1, "the header should be"),
        ("p cnf 2 1 7\n1 0\n", 1, "'p cnf' has two numbers"),
        ("p dnf 2 1\n1 0\n", 1, "the header should be"),
        ("h 1 0\np wcnf 2 1 5\n", 2, "'p' stands where a clause must begin"),
        ("c one\nh 1 2\n3 -1 0\n", 2, "the clause is not closed by 0, and line 3 may be meant as the next"),
    ],
)
def test_what_breaks_a_rule_is_told_with_its_line(text: str, line: int, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        read(text)
    assert caught.value.message.startswith(f"f.wcnf, line {line}: ")
    assert problem in caught.value.message


def test_weights_that_add_up_to_too_much_are_refused() -> None:
    with pytest.raises(InputError, match="add up to 18446744073709551615"):
        read("9223372036854775807 1 0\n9223372036854775807 2 0\n1 3 0\n")
    assert read("9223372036854775807 1 0\n9223372036854775807 2 0\n")[3] == [2**63 - 1] * 2


_CLAUSE = st.tuples(st.none() | st.integers(0, 12), st.lists(st.integers(-6, 6).filter(bool), max_size=4))


@given(st.lists(_CLAUSE, max_size=8), st.booleans())
def test_both_readers_say_the_same(clauses: list[tuple[int | None, list[int]]], is_old: bool) -> None:
    top = 20
    weights = [top if weight is None else weight for weight, _ in clauses]
    words = [str(weight) if is_old or weight < top else "h" for weight in weights]
    bodies = [" ".join(map(str, (*clause, 0))) for _, clause in clauses]
    lines = [f"{word} {body}" for word, body in zip(words, bodies, strict=True)]
    head = [f"p wcnf 6 {len(clauses)} {top}"] if is_old else []
    text = "\n".join([*head, *lines, ""]).encode()
    header, body, line = wcnf.header_of(text, "f")
    fast = wcnf.by_lines(body, header)
    slow = wcnf.by_words(body, line, header, "f")
    assert fast is not None
    assert fast.literals.tolist() == slow.literals.tolist()
    assert fast.weights.tolist() == slow.weights.tolist()
