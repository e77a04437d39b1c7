"""Formulas in DIMACS text: fast when the file is right, exact about the line when it is not.

The body is checked and converted by numpy in chunks of whole lines. The checks only say that
a chunk holds an error; a slow walk over that chunk's tokens then finds the first one and its
line. The two sides are independent, so a file that both misjudge must fool two readers.

Accepted: comments on lines of their own anywhere, CRLF, tabs, clauses over several lines or
several on one, the empty clause, the `%` trailer of SATLIB. Refused: everything from which
half a formula could be read by mistake, such as a clause count that does not fit the header.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from mallob_py.app import InputError
from mallob_sat.formula import MAX_VARIABLE, Formula, Literals

_PREAMBLE = re.compile(rb"(?:[ \t\r]*(?:c[^\n]*)?\n)*")
_HEADER = re.compile(rb"[ \t]*p[ \t]+cnf[ \t]+([0-9]+)[ \t]+([0-9]+)[ \t\r]*")
_TOKEN = re.compile(rb"[^ \t\r\n]+")
_INTEGER = re.compile(rb"-?[0-9]+")
_TRAILER = re.compile(rb"%[ \t\r]*(?:\n[ \t\r\n]*(?:0[ \t\r\n]*)?)?")
_ALLOWED = b"0123456789- \t\r\n"
_MINUS, _ZERO_DIGIT, _SPACE = 45, 48, 32
_CHUNK_SIZE_BYTES = 1 << 24


class _Reader:
    """The state of reading one file: where its body begins, and what the header declares."""

    def __init__(self, path: str, text: bytes) -> None:
        self.path = path
        start = _PREAMBLE.match(text).end()  # type: ignore[union-attr]  # matches the empty string too
        self.header_line = 1 + text.count(b"\n", 0, start)
        end = text.find(b"\n", start)
        end = len(text) if end < 0 else end
        self.n_vars, self.n_clauses = self._header(text[start:end])
        self.body = _without_trailer(_without_comments(text[end:]))

    def _header(self, line: bytes) -> tuple[int, int]:
        match = _HEADER.fullmatch(line)
        if match:
            n_vars, n_clauses = int(match[1][:20]), int(match[2][:20])
            if n_vars > MAX_VARIABLE:
                raise self.error(
                    self.header_line, f"{n_vars} variables declared; at most {MAX_VARIABLE} are possible"
                )
            return n_vars, n_clauses
        empty = not line.strip() or line.lstrip().startswith(b"c")  # an unended last comment
        found = "the end of the file" if empty else _quote(line.strip())
        words = line.split()
        if words[:2] == [b"p", b"wcnf"]:
            raise self.error(
                self.header_line, "a weighted formula (p wcnf); only plain p cnf formulas can be solved"
            )
        if words[:1] == [b"p"]:
            raise self.error(self.header_line, f"header {found} should be 'p cnf VARIABLES CLAUSES'")
        raise self.error(
            self.header_line, f"'p cnf VARIABLES CLAUSES' expected before the clauses, found {found}"
        )

    def error(self, line: int, problem: str) -> InputError:
        return InputError(f"{self.path}, line {line}: {problem}")

    def line_at(self, offset: int) -> int:
        """Line of the file that holds the body's byte `offset`."""
        return self.header_line + self.body.count(b"\n", 0, offset)

    def literals(self) -> Literals:
        parts = [self._convert(begin, end) for begin, end in _chunks(self.body)]
        literals = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)
        self._check_clauses(literals)
        return literals

    def _convert(self, begin: int, end: int) -> Literals:
        chunk = self.body[begin:end]
        if not chunk.strip():
            return np.zeros(0, dtype=np.int32)  # fromstring would read one 0 from white space
        if not _is_well_formed(chunk):
            raise self._explain(begin, chunk)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # numpy only warns of text that it cannot convert
            try:
                integers = np.fromstring(chunk, dtype=np.int64, sep=" ")
            except (ValueError, DeprecationWarning):
                raise self._explain(begin, chunk) from None
        if int(integers.max()) > self.n_vars or int(integers.min()) < -self.n_vars:
            raise self._explain(begin, chunk)
        return integers.astype(np.int32)

    def _explain(self, begin: int, chunk: bytes) -> InputError:
        """The error for the first wrong token of a chunk in which the fast checks failed."""
        for match in _TOKEN.finditer(chunk):
            token = match[0]
            problem = self._problem(token)
            if problem:
                return self.error(self.line_at(begin + match.start()), problem)
        return self.error(self.line_at(begin), "text that cannot be read as clauses")

    def _problem(self, token: bytes) -> str | None:
        if not _INTEGER.fullmatch(token):
            hint = "; comments need a line of their own" if token.startswith(b"c") else ""
            return f"{_quote(token)} is not an integer literal{hint}"
        if len(token) > 20 or abs(int(token)) > MAX_VARIABLE:
            return f"literal {_quote(token)} is too large; at most {MAX_VARIABLE} is possible"
        if abs(int(token)) > self.n_vars:
            return f"literal {int(token)} is beyond the {self.n_vars} variables declared in the header"
        return None

    def _check_clauses(self, literals: Literals) -> None:
        last_line = self.line_at(len(self.body.rstrip()))
        if literals.size and literals[-1] != 0:
            raise self.error(last_line, "the last clause is not closed by 0; the file is truncated?")
        found = int(np.count_nonzero(literals == 0))
        if found < self.n_clauses:
            raise self.error(
                last_line,
                f"the file ends after {found} clauses but its header declares {self.n_clauses}; truncated?"
                " Correct the header if not",
            )
        if found > self.n_clauses:
            ends = np.flatnonzero(literals == 0)
            surplus = int(ends[self.n_clauses - 1]) + 1 if self.n_clauses else 0
            raise self.error(
                self._line_of_token(surplus),
                f"a clause beyond the {self.n_clauses} that the header declares ({found} found); correct the"
                " header if all belong to the formula",
            )

    def _line_of_token(self, number: int) -> int:
        match = next(islice(_TOKEN.finditer(self.body), number, None))
        return self.line_at(match.start())


def parse_dimacs(text: bytes, path: str) -> Formula:
    """The formula in DIMACS `text`; `path` is what errors call it."""
    reader = _Reader(path, text)
    literals = reader.literals()
    return Formula(literals, reader.n_vars, reader.n_clauses, np.zeros(0, dtype=np.int32))


def _quote(token: bytes) -> str:
    shown = token[:24].decode("ascii", "backslashreplace")
    readable = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in shown)
    return f"'{readable}'" + ("..." if len(token) > 24 else "")


def _chunks(body: bytes) -> Iterator[tuple[int, int]]:
    """Bounds of consecutive pieces that end at line ends."""
    begin = 0
    while begin < len(body):
        end = body.find(b"\n", begin + _CHUNK_SIZE_BYTES) + 1 or len(body)
        yield begin, end
        begin = end


def _is_well_formed(chunk: bytes) -> bool:
    """Whether every token is digits, or one minus sign followed by digits."""
    if chunk.translate(None, _ALLOWED):
        return False
    codes: NDArray[np.uint8] = np.frombuffer(chunk, dtype=np.uint8)
    minus = np.flatnonzero(codes == _MINUS)
    if not minus.size:
        return True
    if minus[-1] == codes.size - 1:
        return False
    before = codes[minus[1:] - 1] if minus[0] == 0 else codes[minus - 1]
    return bool((before <= _SPACE).all() and (codes[minus + 1] >= _ZERO_DIGIT).all())


def _without_comments(body: bytes) -> bytes:
    """Blank out comment lines; their line ends stay, so that lines can still be counted."""
    at = body.find(b"c")
    if at < 0:
        return body
    parts: list[bytes] = []
    begin = 0
    while at >= 0:
        line_start = body.rfind(b"\n", 0, at) + 1
        line_end = body.find(b"\n", at)
        line_end = len(body) if line_end < 0 else line_end
        if not body[line_start:at].strip(b" \t"):
            parts.append(body[begin:line_start])
            begin = line_end
        at = body.find(b"c", line_end)
    parts.append(body[begin:])
    return b"".join(parts)


def _without_trailer(body: bytes) -> bytes:
    """Cut SATLIB's ending: a line of `%`, a line of `0`, blank lines."""
    at = body.find(b"%")
    if at < 0 or body[body.rfind(b"\n", 0, at) + 1 : at].strip() or not _TRAILER.fullmatch(body, at):
        return body
    return body[:at]
