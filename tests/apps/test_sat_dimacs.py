"""DIMACS text: what is accepted, and the error and its line for each fault."""

from itertools import product

import pytest
from dimacs_text import parse_dimacs

from mallob_py.kit import InputError
from mallob_sat.dimacs import XOR_LENGTH_MAX

#: number of bytes that are parsed together
BLOCK_SIZES = pytest.mark.parametrize("block_bytes", [1, 7, 1 << 20])


@BLOCK_SIZES
@pytest.mark.parametrize(
    ("text", "literals"),
    [
        (b"p cnf 3 2\n1 -2 0\n3 0\n", [1, -2, 0, 3, 0]),
        (b"c above\n\nc\np cnf 3 2\n1 -2 0\n3 0\n", [1, -2, 0, 3, 0]),
        (b"p cnf 3 2\n1 -2 0\nc between 1 2 0\n3 0\nc end", [1, -2, 0, 3, 0]),
        (b"p cnf 3 2\n1 -2 \n  c inside a clause\n0\n3 0\n", [1, -2, 0, 3, 0]),
        (b"p cnf 3 2\n1 -2 0\n3 0\n%\n0\n\n", [1, -2, 0, 3, 0]),
        (b"p cnf 3 2\r\n1 -2 0\r\n3 0\r\n", [1, -2, 0, 3, 0]),
        (b" p\tcnf  3 2 \n\t1\t-2\t0\n 3 0", [1, -2, 0, 3, 0]),
        (b"p cnf 3 2\n1\n-2\n0\n\n3\n0\n", [1, -2, 0, 3, 0]),
        (b"p cnf 3 2\n1 -2 0 3 0\n", [1, -2, 0, 3, 0]),
        (b"p cnf 3 2\n0\n3 0\n", [0, 3, 0]),
        (b"p cnf 0 0\n", []),
        (b"p cnf 0 0", []),
        (b"p cnf 5 0\n\n  \n", []),
        (b"p cnf 0 1\n0\n", [0]),
        (b"p cnf 2147483646 1\n-2147483646 0\n", [-2147483646, 0]),
    ],
)
def test_legal_text_is_read(block_bytes: int, text: bytes, literals: list[int]) -> None:
    assert parse_dimacs(text, "f", block_bytes).literals.tolist() == literals


@BLOCK_SIZES
@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (b"1 -2 0\n3 0\n", 1, "'p cnf VARIABLES CLAUSES' expected"),
        (b"c only\nc comments", 2, "the end of the file"),
        (b"\n\n", 3, "the end of the file"),
        (b"c\np wcnf 3 2 10\n1 1 0\n", 2, "weighted"),
        (b"p cnf 3\n1 0\n", 1, "should be 'p cnf"),
        (b"p cnf 3 -1\n", 1, "should be 'p cnf"),
        (b"p cnf 2147483647 1\n1 0\n", 1, "at most 2147483646"),
        (b"p cnf 3 2\n1 0\n\n1 x 0\n", 4, "'x' is not an integer"),
        (b"p cnf 3 1\n1.5 0\n", 2, "'1.5'"),
        (b"p cnf 3 1\n--1 0\n", 2, "'--1'"),
        (b"p cnf 3 1\n2-1 0\n", 2, "'2-1'"),
        (b"p cnf 3 1\n+1 0\n", 2, "'+1'"),
        (b"p cnf 3 1\n1 - 2 0\n", 2, "'-'"),
        (b"p cnf 3 1\n1 -", 2, "'-'"),
        (b"p cnf 3 1\n1 2\x000\n", 2, "'2\\x000'"),
        ("p cnf 3 1\n1\u00a02 0\n".encode(), 2, "is not an integer"),
        (b"p cnf 3 1\n1 2 0 c glued comment\n", 2, "line of their own"),
        (b"p cnf 3 2\n1 0\n%\n0\n2 0\n", 4 - 1, "'%'"),
        (b"p cnf 3 1\np cnf 3 1\n1 0\n", 2, "'p'"),
        (b"p cnf 2 2\n1 0\n\n2 -3 0\n", 4, "literal -3 is beyond the 2 variables"),
        (b"p cnf 2 1\n1 2147483647 0\n", 2, "too large"),
        (b"p cnf 2 1\n1 -99999999999999999999999 0\n", 2, "too large"),
        (b"p cnf 3 5\n1 0\n2 0\n\n", 3, "ends after 2 clauses but its header declares 5; truncated?"),
        (b"p cnf 3 2\n1 0\n2\n3", 4, "not closed by 0; is the file truncated?"),
        (b"p cnf 3 1\n1 0\n\n2 0\n", 4, "beyond the 1 that the header declares (2 found)"),
        (b"p cnf 3 0\n1 0\n", 2, "beyond the 0"),
        (b"p cnf 3 1\n1 0\n\n2\n3\n0\n", 4, "beyond the 1"),
        (b"p cnf 3 1\n1 0\n2 0\n3 0\n", 3, "(3 found)"),
        (b"p cnf 3 1\n1 0\n\x0c\n", 3, "'\\x0c'"),
        (b"p cnf 3 1\n1 0\n%\n0\n\nc end\n1\n", 3, "'%'"),
        (b"p cnf 3 2\nc skip\nc skip\n1 0\ny\n", 5, "'y'"),
    ],
)
def test_errors_name_file_line_and_problem(block_bytes: int, text: bytes, line: int, words: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_dimacs(text, "dir/f.cnf", block_bytes)
    assert caught.value.message.startswith(f"dir/f.cnf, line {line}: ")
    assert words in caught.value.message
    assert caught.value.field == "files"


def test_shape_follows_the_header_and_not_the_literals_used() -> None:
    formula = parse_dimacs(b"p cnf 9 2\n1 0\n-2 0\n", "f")
    assert (formula.n_vars, formula.n_clauses) == (9, 2)
    assert formula.assumptions.size == 0


@pytest.mark.parametrize("block_bytes", [1, 2, 5, 16])
def test_small_chunks_change_neither_result_nor_line(block_bytes: int) -> None:
    clauses = b"".join(b"%d -%d 0\n\n" % (v, v + 1) for v in range(1, 99))
    assert parse_dimacs(b"p cnf 99 98\n" + clauses, "f", block_bytes).literals.size == 3 * 98
    with pytest.raises(InputError, match="line 198: 'z'"):
        parse_dimacs(b"p cnf 99 98\n" + clauses + b"z\n", "f", block_bytes)


@pytest.mark.parametrize("xor", ["x1 2 3 0", "x 1 2 -3 0", "x-1 0", "x1 1 2 0", "x1 -1 0", "x1 1 0", "x0"])
def test_an_xor_becomes_clauses_that_say_the_same(xor: str) -> None:
    formula = parse_dimacs(f"p cnf 3 2\n{xor}\n1 2 0\n".encode(), "f.cnf")
    words = [int(word) for word in xor[1:].split()][:-1]
    clauses: list[list[int]] = [[]]
    for literal in formula.literals.tolist():
        if literal:
            clauses[-1].append(literal)
        else:
            clauses.append([])
    clauses.pop()
    assert formula.n_vars == 3
    for values in product((False, True), repeat=3):
        truth = {sign * (at + 1): value == (sign > 0) for at, value in enumerate(values) for sign in (1, -1)}
        wanted = sum(truth[word] for word in words) % 2 == 1 and (truth[1] or truth[2])
        assert all(any(truth[one] for one in clause) for clause in clauses) == wanted


@pytest.mark.parametrize("xor", ["x1 00 2 0", "x1 -0 2 0", f"x{'1' * 5000} 0"])
def test_an_xor_of_what_are_no_literals_is_named_with_its_line(xor: str) -> None:
    for n_clauses in (1, 5):
        with pytest.raises(InputError, match=r"line 2: 'x1+'(\.\.\.)? is not an integer literal"):
            parse_dimacs(f"p cnf 2 {n_clauses}\n{xor}\n".encode(), "f.cnf")


def test_an_xor_that_is_too_long_or_wrong_is_named_with_its_line() -> None:
    long = " ".join(map(str, range(1, XOR_LENGTH_MAX + 2)))
    with pytest.raises(InputError, match=r"line 3: an XOR of more than"):
        parse_dimacs(f"p cnf 20 2\n1 0\nx{long} 0\n".encode(), "f.cnf")
    with pytest.raises(InputError, match=r"line 2: 'x1' is not"):
        parse_dimacs(b"p cnf 2 1\nx1 2\n", "f.cnf")


@pytest.mark.parametrize("block_bytes", [1, 7, 30, 1000])
def test_clauses_of_the_input_are_told_apart_from_those_that_xors_become(block_bytes: int) -> None:
    text = b"p cnf 3 9\n1 0 -0 2\n3 0\nx1 2 3 0\nx1 -1 0\n00\nx1 -2 0 \n3 0\nx2 -2 0\n"
    formula = parse_dimacs(text, "f.cnf", block_bytes)
    assert formula.n_clauses == 3 + 4 + 0 + 1 + 2 + 1 + 0
    assert formula.line_starts is not None
    assert formula.line_starts.tolist() == [0, 1, 2, 3, 7, 7, 8, 10, 11]
    assert parse_dimacs(b"p cnf 1 1\n1 0\n", "f.cnf").line_starts is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"p cnf 3 2\n1 2\nx1 3 0\n-2 0\n", "line 3: an XOR inside of a clause"),
        (b"p cnf 3 3\n1 0 2\nx1 3 0\n-2 0\n", "line 3: an XOR inside of a clause"),
        (b"p cnf 3 5\nx1 2 3 0\n-2 0\n", "ends after 2 clauses but its header declares 5"),
        (b"p cnf 3 1\nx1 2 3 0\n-2 0\n", r"line 3: a clause beyond the 1 .* \(2 found\)"),
        (b"p cnf 3 1\n2 0\nx1 -1 0\n", r"a clause beyond the 1 .* \(2 found\)"),
    ],
)
@pytest.mark.parametrize("block_bytes", [1, 1000])
def test_an_xor_counts_as_one_clause_and_stands_in_none(text: bytes, words: str, block_bytes: int) -> None:
    with pytest.raises(InputError, match=words):
        parse_dimacs(text, "f.cnf", block_bytes)
