"""Weighted formulas in WCNF text, in the old and the new format: fast for valid files, precise in errors.

New format (since 2022): no header; `h LITERALS 0` is a hard clause, `WEIGHT LITERALS 0` a soft clause. Old
format: a header `p wcnf VARIABLES CLAUSES [TOP]`; a clause with a weight of TOP or more is hard, and without
TOP no clause is hard. With `p cnf VARIABLES CLAUSES` every clause is soft with weight 1. Comments begin with
`c`, on lines of their own. Weights are from 0 to 2^63-1, their sum is at most 2^64-2; a clause of weight 0 is
ignored.

numpy parses a file in which each clause has a line of its own, as is usual. Any other file, and a file with
numbers of 19 digits, is parsed word by word, which is slower and tells the line of an error. The rules are
those of the MaxSAT Evaluations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mallob_py.kit import InputError
from mallob_sat.formula import MAX_VARIABLE, Literals

WEIGHT_MAX = 2**63 - 1
WEIGHT_SUM_MAX = 2**64 - 2
#: a comment, up to a line feed or a carriage return, because some files have no line feeds
_COMMENT = re.compile(rb"^[ \t]*c[^\r\n]*", re.MULTILINE)
_HEADER = re.compile(
    rb"[ \t\r\n]*p[ \t]+(wcnf|cnf)[ \t]+([0-9]+)[ \t]+([0-9]+)(?:[ \t]+([0-9]+))?[ \t\r]*(?=\n|$)"
)
_WORD = re.compile(rb"[^ \t\r\n]+")
_INTEGER = re.compile(rb"-?[0-9]+")
_LONG = re.compile(rb"[0-9]{19}")
_HARD = -1
_BLANK_MAX, _NEWLINE, _H = 32, 10, ord("h")


@dataclass(frozen=True, slots=True)
class WeightedFormula:
    """A weighted formula. Clauses end with 0; `weights[i]` is the weight of soft clause i, at least 1.

    `base` is a cost that every assignment has: the sum of the weights of empty soft clauses, which are left
    out.
    """

    n_vars: int
    hard: Literals
    soft: Literals
    weights: NDArray[np.uint64]
    base: int

    def to_payload(self) -> dict[str, NDArray[np.generic]]:
        shape = np.array([self.n_vars, self.base], dtype=np.uint64)
        return {"shape": shape, "hard": self.hard, "soft": self.soft, "weights": self.weights}


@dataclass(frozen=True, slots=True)
class _Header:
    """A header in the old format. `top`: smallest weight of hard clauses; None: no clause is hard."""

    is_weighted: bool
    n_vars: int
    n_clauses: int
    top: int | None


def read_wcnf(text: bytes, path: str) -> WeightedFormula:
    """Parse a formula; errors name the file by `path`. Raises InputError, which names the line."""
    if b"c" in text:
        text = _COMMENT.sub(b"", text)
    header, body, line = header_of(text, path)
    clauses = by_lines(body, header) if len(body) else None
    if clauses is None:
        clauses = by_words(body, line, header, path)
    return _assembled(clauses, header, path)


def _error(path: str, line: int, problem: str) -> InputError:
    return InputError(f"{path}, line {line}: {problem}")


def header_of(text: bytes, path: str) -> tuple[_Header | None, bytes, int]:
    """Return the header or None, the text after the header, and the number of that text's first line."""
    match = _HEADER.match(text)
    if match is None:
        begin = _WORD.search(text)
        if begin is not None and begin[0].startswith(b"p"):
            line = 1 + text.count(b"\n", 0, begin.start())
            raise _error(
                path, line, "the header should be 'p wcnf VARIABLES CLAUSES TOP' or 'p cnf VARIABLES CLAUSES'"
            )
        return None, text, 1
    line = 1 + text.count(b"\n", 0, match.end())
    n_vars, n_clauses = _clipped(match[2]), _clipped(match[3])
    is_weighted = match[1] == b"wcnf"
    if match[4] is not None and not is_weighted:
        raise _error(path, line, "'p cnf' has two numbers, of variables and clauses")
    top = None if match[4] is None else _clipped(match[4])
    if n_vars > MAX_VARIABLE:
        raise _error(path, line, f"{n_vars} variables declared; at most {MAX_VARIABLE} are possible")
    if top == 0:
        raise _error(path, line, "TOP is 0; it is the weight of hard clauses, and must be at least 1")
    return _Header(is_weighted, n_vars, n_clauses, top), text[match.end() :], line


@dataclass(frozen=True, slots=True)
class _Clauses:
    """All clauses in order, each ended by 0, and their weights (_HARD: the clause is hard)."""

    literals: NDArray[np.int64]
    weights: NDArray[np.int64]


def by_lines(text: bytes, header: _Header | None) -> _Clauses | None:
    """Parse by lines. If anything is irregular, return None; `by_words` then finds the error."""
    if _LONG.search(text):
        return None
    codes: NDArray[np.uint8] = np.frombuffer(text, dtype=np.uint8)
    is_word = codes > _BLANK_MAX
    starts = np.flatnonzero(is_word & ~np.concatenate(([False], is_word[:-1])))
    if not starts.size:
        return _Clauses(np.zeros(0, np.int64), np.zeros(0, np.int64))
    hard_at = np.zeros(0, np.intp)
    if b"h" in text:
        hard_at = np.flatnonzero(codes == _H)
        after = np.minimum(hard_at + 1, codes.size - 1)
        if (
            header is not None
            or (is_word[after] & (after > hard_at)).any()
            or not np.isin(hard_at, starts).all()
        ):
            return None
        text = text.replace(b"h", b"0")
    if text.translate(None, b"0123456789- \t\r\n") or _has_bad_minus(codes):
        return None
    try:
        numbers = np.array(text.split(), dtype=np.int64) if starts.size < 64 else _converted(text)
    except (ValueError, OverflowError):
        return None
    if numbers.size != starts.size:
        return None
    lines = np.cumsum(codes == _NEWLINE)[starts]
    is_first = np.concatenate(([True], lines[1:] != lines[:-1]))
    is_last = np.concatenate((is_first[1:], [True]))
    if header is not None and not header.is_weighted:
        inner = ~is_last
        if (numbers[is_last] != 0).any() or (numbers[inner] == 0).any():
            return None
        weights = np.ones(int(is_last.sum()), np.int64)
        literals = numbers
    else:
        middle = ~(is_first | is_last)
        if (is_first & is_last).any() or (numbers[is_last] != 0).any() or (numbers[middle] == 0).any():
            return None
        weights = numbers[is_first].copy()
        weights[np.isin(starts[is_first], hard_at)] = _HARD
        if hard_at.size != int((weights == _HARD).sum()) or (weights < _HARD).any():
            return None
        if header is not None:
            if (weights < 0).any():
                return None
            if header.top is not None:
                weights[weights >= min(header.top, WEIGHT_MAX)] = _HARD
        literals = numbers[~is_first]
    limit = MAX_VARIABLE if header is None else header.n_vars
    if literals.size and (int(literals.max()) > limit or int(literals.min()) < -limit):
        return None
    if header is not None and weights.size != header.n_clauses:
        return None
    return _Clauses(literals, weights)


def _converted(text: bytes) -> NDArray[np.int64]:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy only warns of text that it cannot convert
        try:
            return np.fromstring(text, dtype=np.int64, sep=" ")
        except DeprecationWarning as warning:
            raise ValueError(str(warning)) from None


def _has_bad_minus(codes: NDArray[np.uint8]) -> bool:
    minus = codes == ord("-")
    if not minus.any():
        return False
    return bool(
        minus[-1]
        or (minus[1:] & (codes[:-1] > _BLANK_MAX)).any()
        or (minus[:-1] & (codes[1:] < ord("0"))).any()
    )


def by_words(text: bytes, line: int, header: _Header | None, path: str) -> _Clauses:
    """Parse word by word, with precise errors."""
    literals: list[int] = []
    weights: list[int] = []
    has_weights = header is None or header.is_weighted
    limit = MAX_VARIABLE if header is None else header.n_vars
    is_within = False
    last_line = line
    for line, word in _words(text, line):  # noqa: B020 (the loop must leave the last line)
        if not is_within:
            if header is not None and len(weights) == header.n_clauses:
                problem = f"a clause beyond the {header.n_clauses} that the header declares"
                raise _error(path, line, problem)
            is_within, last_line = True, line
            if has_weights:
                weights.append(_weight(word, header, path, line))
                continue
            weights.append(1)
        if header is None and line != last_line and word.isdigit() and word != b"0":
            problem = f"the clause is not closed by 0, and line {line} may be meant as the next one"
            raise _error(path, last_line, problem)
        last_line = line
        if not _INTEGER.fullmatch(word):
            hint = "; a hard clause begins with h" if word == b"h" else ""
            hint = hint or ("; comments need a line of their own" if word.startswith(b"c") else "")
            raise _error(path, line, f"{_quote(word)} is not an integer literal{hint}")
        literal = _clipped(word)
        if abs(literal) > limit:
            problem = f"literal {_quote(word)} is too large; at most {MAX_VARIABLE} is possible"
            if header is not None and abs(literal) <= MAX_VARIABLE:
                problem = f"literal {literal} is beyond the {limit} variables declared in the header"
            raise _error(path, line, problem)
        literals.append(literal)
        is_within = literal != 0
    if is_within:
        raise _error(path, line, "the last clause is not closed by 0; is the file truncated?")
    if header is not None and len(weights) < header.n_clauses:
        problem = f"the file ends after {len(weights)} clauses but its header declares {header.n_clauses}"
        raise _error(path, line, f"{problem}; truncated? Correct the header if not")
    return _Clauses(np.array(literals, np.int64), np.array(weights, np.int64))


def _words(text: bytes, line: int) -> Iterator[tuple[int, bytes]]:
    at = 0
    for match in _WORD.finditer(text):
        line += text.count(b"\n", at, match.start())
        at = match.start()
        yield line, match[0]


def _weight(word: bytes, header: _Header | None, path: str, line: int) -> int:
    if word == b"h":
        if header is not None:
            raise _error(
                path, line, "'h' marks hard clauses in files without a header; give a weight of TOP or more"
            )
        return _HARD
    if word[:1] == b"p" or (header is not None and not word[:1].isdigit() and word[:1] != b"-"):
        raise _error(path, line, f"{_quote(word)} stands where a clause must begin")
    if not _INTEGER.fullmatch(word):
        kind = (
            "a weight has to be a whole number"
            if word[:1].isdigit() or word[:1] in b"-.+"
            else ("a clause begins with its weight, or with h")
        )
        raise _error(path, line, f"{_quote(word)}: {kind}")
    weight = _clipped(word)
    if weight < 0:
        raise _error(path, line, f"a weight of {_quote(word)}; a weight must not be negative")
    if header is not None and header.top is not None and weight >= header.top:
        return _HARD
    if weight > WEIGHT_MAX:
        raise _error(
            path, line, f"a weight of {_quote(word)}; weights go up to {WEIGHT_MAX}, which is 2^63-1"
        )
    return weight


def _clipped(word: bytes) -> int:
    """Return an integer; if it has more than 30 digits, the first 30 of them, which are out of range, too."""
    digits = int(word.lstrip(b"-0")[:30] or b"0")
    return -digits if word.startswith(b"-") else digits


def _quote(word: bytes) -> str:
    shown = word[:24].decode("ascii", "backslashreplace")
    readable = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in shown)
    return f"'{readable}'" + ("..." if len(word) > 24 else "")


def _assembled(clauses: _Clauses, header: _Header | None, path: str) -> WeightedFormula:
    literals, weights = clauses.literals, clauses.weights
    n_vars = 0 if header is None else header.n_vars
    if literals.size:
        n_vars = max(n_vars, int(np.abs(literals).max()))
    ends = np.flatnonzero(literals == 0)
    lengths = np.diff(ends, prepend=-1)
    is_hard = weights == _HARD
    is_soft = (weights > 0) & (lengths > 1)
    base = sum(weights[(weights > 0) & (lengths == 1)].tolist())
    total = base + sum(weights[is_soft].tolist())
    if total > WEIGHT_SUM_MAX:
        raise InputError(f"{path}: the weights of soft clauses add up to {total}, above 2^64-2")
    belongs = np.repeat(is_hard, lengths)
    belongs_soft = np.repeat(is_soft, lengths)
    return WeightedFormula(
        n_vars,
        literals[belongs].astype(np.int32),
        literals[belongs_soft].astype(np.int32),
        weights[is_soft].astype(np.uint64),
        base,
    )
