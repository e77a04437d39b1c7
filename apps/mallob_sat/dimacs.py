"""Formulas in DIMACS text: fast for correct files, exact about the line of an error.

Text comes in blocks, one of which is in memory at a time. numpy checks and converts the body in chunks of
whole lines. The checks only say that a chunk has an error; a slow walk over the chunk's tokens then finds the
first error and its line.

Accepted: comments on lines of their own anywhere, CRLF, tabs, clauses over several lines, several clauses on
a line, the empty clause, the `%` trailer of SATLIB, XORs (`x1 2 -3 0`) on a line each. Refused: anything that
may mean that half a formula was read, such as a clause count that differs from the header's.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator
from itertools import islice, product

import numpy as np
from numpy.typing import NDArray

from mallob_py.kit import InputError
from mallob_sat.formula import MAX_VARIABLE, Formula, Literals

_PREAMBLE = re.compile(rb"(?:[ \t\r]*(?:c[^\n]*)?\n)*")
_HEADER = re.compile(rb"[ \t]*p[ \t]+cnf[ \t]+([0-9]+)[ \t]+([0-9]+)[ \t\r]*")
#: an XOR as CryptoMiniSat writes it: x1 2 -3 0
_XOR = re.compile(rb"^[ \t]*x([^\n]*)$", re.MULTILINE)
_XOR_LITERAL = re.compile(rb"-?0*[1-9][0-9]{0,18}")
#: greatest number of literals of an XOR; an XOR of 10 literals becomes 512 clauses
XOR_LENGTH_MAX = 10
_ZERO = re.compile(rb"(?<!\S)-?0+(?!\S)")
_TOKEN = re.compile(rb"[^ \t\r\n]+")
_INTEGER = re.compile(rb"-?[0-9]+")
_TRAILER = re.compile(rb"%[ \t\r]*(?:\n[ \t\r\n]*(?:0[ \t\r\n]*)?)?")
_BLANKS = b" \t\r\n"
_ALLOWED = b"0123456789-" + _BLANKS
_MINUS, _ZERO_DIGIT, _SPACE = 45, 48, 32


def xor_clauses(literals: list[int]) -> list[list[int]] | None:
    """Return clauses for "an odd number of these literals is true"; None: there would be too many.

    The clauses have no new variables. CryptoMiniSat finds such clauses and turns them into XORs again.
    """
    variables: set[int] = set()
    is_odd = True
    for literal in literals:
        variables ^= {abs(literal)}
        is_odd ^= literal < 0
    if len(variables) > XOR_LENGTH_MAX:
        return None
    ordered = sorted(variables)
    # Each clause excludes one assignment of the wrong parity.
    return [
        [-one if is_true else one for one, is_true in zip(ordered, values, strict=True)]
        for values in product((False, True), repeat=len(ordered))
        if (sum(values) % 2 == 1) != is_odd
    ]


def read_dimacs(blocks: Iterable[bytes], path: str) -> Formula:
    """Read a formula from blocks of text; `path` is its name in errors."""
    chunks = _whole_lines(blocks)
    header = _Header(chunks, path)
    body = _Body(header)
    body.read(chunks)
    no_assumptions = np.zeros(0, dtype=np.int32)
    return Formula(body.literals(), header.n_vars, header.n_clauses, no_assumptions, body.line_starts())


class _Header:
    """The header: its numbers, its line, and the text after the header in its chunk."""

    def __init__(self, chunks: Iterator[bytes], path: str) -> None:
        self.path = path
        self.line = 1
        text = b""
        for text in chunks:
            start = _PREAMBLE.match(text).end()  # type: ignore[union-attr]  # matches the empty string too
            self.line += text.count(b"\n", 0, start)
            text = text[start:]
            if text:
                break
        end = text.find(b"\n")
        end = len(text) if end < 0 else end
        self.n_vars, self.n_clauses = self._declared(text[:end])
        self.rest = text[end:]

    def _declared(self, line: bytes) -> tuple[int, int]:
        match = _HEADER.fullmatch(line)
        if match:
            n_vars, n_clauses = int(match[1][:20]), int(match[2][:20])
            if n_vars > MAX_VARIABLE:
                raise self.error(
                    self.line, f"{n_vars} variables declared; at most {MAX_VARIABLE} are possible"
                )
            return n_vars, n_clauses
        empty = not line.strip() or line.lstrip().startswith(b"c")  # a last comment without line end
        found = "the end of the file" if empty else _quote(line.strip())
        words = line.split()
        if words[:2] == [b"p", b"wcnf"]:
            raise self.error(
                self.line, "a weighted formula (p wcnf); only plain p cnf formulas can be solved"
            )
        if words[:1] == [b"p"]:
            raise self.error(self.line, f"header {found} should be 'p cnf VARIABLES CLAUSES'")
        raise self.error(self.line, f"'p cnf VARIABLES CLAUSES' expected before the clauses, found {found}")

    def error(self, line: int, problem: str) -> InputError:
        return InputError(f"{self.path}, line {line}: {problem}")


class _Body:
    """The clauses read so far, and data by which errors found later can name a line."""

    def __init__(self, header: _Header) -> None:
        self._header = header
        self._error = header.error
        self._literals: Literals = np.zeros(0, dtype=np.int32)
        self._clauses = 0
        #: index of an XOR among the input's clauses -> number of clauses that it becomes
        self._xors: dict[int, int] = {}
        #: number of clauses beyond the number in the input, because XORs become several
        self._added = 0
        #: line of the first clause beyond the declared number
        self._surplus_line: int | None = None
        #: the last chunk with text, and its first line
        self._last = (header.line, b"")

    def literals(self) -> Literals:
        """Return all literals. Raises InputError if the clauses are not as the header declares."""
        self._check_clauses()
        return self._literals

    def line_starts(self) -> NDArray[np.int64] | None:
        """Return the line starts, as in `Formula`."""
        if not self._xors:
            return None
        sizes = np.ones(self._clauses - self._added, dtype=np.int64)
        sizes[list(self._xors)] = list(self._xors.values())
        return np.cumsum(sizes) - sizes

    def read(self, chunks: Iterator[bytes]) -> None:
        line = self._header.line
        chunk: bytes | None = self._header.rest
        while chunk is not None:
            text = _without_comments(chunk)
            if b"%" in text:
                text += _without_comments(b"".join(chunks))
                text = _without_trailer(text)
            if b"x" in text:
                text = self._with_clauses_for_xors(line, text)
            self._take(line, text)
            line += text.count(b"\n")
            chunk = next(chunks, None)

    def _with_clauses_for_xors(self, line: int, text: bytes) -> bytes:
        """Replace each XOR by clauses on its line; the header counts an XOR as one clause."""
        parts, at = list[bytes](), 0
        found, is_open = self._clauses, bool(self._literals.size and self._literals[-1])
        for match in _XOR.finditer(text):
            words = match[1].split()
            if words[-1:] != [b"0"] or not all(map(_XOR_LITERAL.fullmatch, words[:-1])):
                continue  # reported later, like other wrong text
            before = text[at : match.start()]
            if last := before.split()[-1:]:
                is_open = not _ZERO.fullmatch(last[0])
            clauses = xor_clauses([int(word) for word in words[:-1]])
            if clauses is None or is_open:
                problem = "an XOR inside of a clause; close the clause by a 0 before the XOR"
                if clauses is None:
                    problem = f"an XOR of more than {XOR_LENGTH_MAX} literals; split it with new variables"
                raise self._error(line + text.count(b"\n", 0, match.start()), problem)
            found += len(_ZERO.findall(before))
            self._xors[found - self._added] = len(clauses)
            found += len(clauses)
            self._added += len(clauses) - 1
            self._header.n_clauses += len(clauses) - 1
            parts += [before, b" ".join(b"%d" % literal for clause in clauses for literal in (*clause, 0))]
            at = match.end()
        return b"".join((*parts, text[at:]))

    def _take(self, line: int, text: bytes) -> None:
        if not text.strip(_BLANKS):
            return  # because fromstring would read a 0 from white space
        integers = self._convert(line, text)
        ends = integers == 0
        found = int(np.count_nonzero(ends))
        self._last = (line, text)
        if self._surplus_line is None and self._clauses + found >= self._header.n_clauses:
            left = self._header.n_clauses - self._clauses
            surplus = int(np.flatnonzero(ends)[left - 1]) + 1 if left else 0
            if surplus < integers.size:
                self._surplus_line = _line_of_token(surplus, line, text)
        size = self._literals.size
        # `resize` moves pages instead of bytes, so that a large array never exists twice.
        self._literals.resize(size + integers.size, refcheck=False)
        self._literals[size:] = integers
        self._clauses += found

    def _convert(self, line: int, text: bytes) -> NDArray[np.int64]:
        if not _is_well_formed(text):
            raise self._explain(line, text)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # numpy only warns about text that it cannot convert
            try:
                integers = np.fromstring(text, dtype=np.int64, sep=" ")
            except (ValueError, DeprecationWarning):
                raise self._explain(line, text) from None
        if int(integers.max()) > self._header.n_vars or int(integers.min()) < -self._header.n_vars:
            raise self._explain(line, text)
        return integers

    def _explain(self, line: int, text: bytes) -> InputError:
        """Make the error for the first wrong token of a chunk that has failed the fast checks."""
        for match in _TOKEN.finditer(text):
            token = match[0]
            problem = self._problem(token)
            if problem:
                return self._error(line + text.count(b"\n", 0, match.start()), problem)
        return self._error(line, "text that cannot be read as clauses")

    def _problem(self, token: bytes) -> str | None:
        n_vars = self._header.n_vars
        if not _INTEGER.fullmatch(token):
            hint = "; comments need a line of their own" if token.startswith(b"c") else ""
            return f"{_quote(token)} is not an integer literal{hint}"
        if len(token) > 20 or abs(int(token)) > MAX_VARIABLE:
            return f"literal {_quote(token)} is too large; at most {MAX_VARIABLE} is possible"
        if abs(int(token)) > n_vars:
            return f"literal {int(token)} is beyond the {n_vars} variables declared in the header"
        return None

    def _check_clauses(self) -> None:
        declared, found = self._header.n_clauses - self._added, self._clauses - self._added
        line, text = self._last
        last_line = line + text.rstrip().count(b"\n")
        if self._literals.size and self._literals[-1] != 0:
            raise self._error(last_line, "the last clause is not closed by 0; is the file truncated?")
        if found < declared:
            raise self._error(
                last_line,
                f"the file ends after {found} clauses but its header declares {declared}; truncated?"
                " Correct the header if not",
            )
        if found > declared:
            raise self._error(
                self._surplus_line or last_line,
                f"a clause beyond the {declared} that the header declares ({found} found); correct the"
                " header if all belong to the formula",
            )


def _quote(token: bytes) -> str:
    shown = token[:24].decode("ascii", "backslashreplace")
    readable = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in shown)
    return f"'{readable}'" + ("..." if len(token) > 24 else "")


def _whole_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a text in pieces that end at line ends, except for the last piece."""
    begun: list[bytes] = []
    for block in blocks:
        end = block.rfind(b"\n") + 1
        if end:
            yield b"".join((*begun, block[:end]))
            begun.clear()
        if end < len(block):
            begun.append(block[end:])
    if begun:
        yield b"".join(begun)


def _line_of_token(number: int, line: int, text: bytes) -> int:
    match = next(islice(_TOKEN.finditer(text), number, None))
    return line + text.count(b"\n", 0, match.start())


def _is_well_formed(text: bytes) -> bool:
    """Tell whether every token is digits, or a minus sign and digits."""
    if text.translate(None, _ALLOWED):
        return False
    codes: NDArray[np.uint8] = np.frombuffer(text, dtype=np.uint8)
    minus = codes == _MINUS
    if minus[-1]:
        return False
    glued = minus[1:] & (codes[:-1] > _SPACE)
    bare = minus[:-1] & (codes[1:] < _ZERO_DIGIT)
    return not (glued.any() or bare.any())


def _without_comments(text: bytes) -> bytes:
    """Blank out comment lines, but keep line ends for counting."""
    at = text.find(b"c")
    if at < 0:
        return text
    parts: list[bytes] = []
    begin = 0
    while at >= 0:
        line_start = text.rfind(b"\n", 0, at) + 1
        line_end = text.find(b"\n", at)
        line_end = len(text) if line_end < 0 else line_end
        if not text[line_start:at].strip(b" \t"):
            parts.append(text[begin:line_start])
            begin = line_end
        at = text.find(b"c", line_end)
    parts.append(text[begin:])
    return b"".join(parts)


def _without_trailer(text: bytes) -> bytes:
    """Cut SATLIB's trailer: a line of `%`, a line of `0`, blank lines."""
    at = text.find(b"%")
    if text[text.rfind(b"\n", 0, at) + 1 : at].strip() or not _TRAILER.fullmatch(text, at):
        return text
    return text[:at]
