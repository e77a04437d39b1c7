"""A checker of proofs in LRAT, on which certified answers of unsatisfiability rest.

A proof adds clauses to the formula, one by one, until it adds the empty clause. A clause may be added only if
this does not change whether the formula is satisfiable. The clause's hints must show it:

- RUP (reverse unit propagation): assume that all literals of the clause are false, and look at the clauses
  that the hints name, one after the other. Each has one literal that is not false, which must then be true,
  or none at all: a contradiction, so the added clause follows.
- RAT (resolution asymmetric tautology): if the hints give no contradiction, the first literal p is the pivot.
  For each clause D that contains -p, assume also that D's other literals are false; a group of hints `-D, H1,
  H2, ...` must then lead to a contradiction (no group is needed if one of D's other literals is true). Then
  in a model in which p is false, p can be made true.

The checker searches for nothing and trusts nothing: if a hint's clause has more than one literal that is not
false, this is an error. Source: Cruz-Filipe, Heule, Hunt, Kaufmann and Schneider-Kamp, Efficient Certified
RAT Verification, CADE 2017. The checker is stricter than needed, because all known writers comply: ids must
ascend, and deleted clauses must exist.

All code that a verdict relies on is in this file. It shares no code with the solvers' fast readers: if both
misread a formula in the same way, a wrong refutation would pass unnoticed. So `read_clauses` is simple: it
reads word by word.

Steps of a proof come as a stream: text or binary, told apart by content.

Text, one step a line:   ID LITERALS 0 HINTS 0      adds a clause; hints name clauses
                         ID d IDS 0                 deletes clauses (the first ID has no meaning)
Binary (as CaDiCaL writes it):  'a' ID LITERALS 0 HINTS 0  and  'd' IDS 0, where an integer x is the
number 2|x| + (x < 0) in groups of seven bits, lowest first, all but the last with the eighth bit set.

Guarantees:

- `check` returns only if the empty clause was derived, else it raises Refuted.
- `read_clauses` returns the clauses in the file's order; a proof numbers them from 1 in this order. An XOR (a
  line `x1 2 -3 0`: an odd number of the literals is true) becomes several clauses, one for each assignment
  that the XOR excludes. The variables of each clause ascend. The clauses follow each other like the excluded
  assignments, read as binary numbers: the smallest variable is the first digit, and the digit 1 means true.
  If the file has more or fewer clauses and XORs than its header says, Unreadable is raised.
- `read_steps` yields only complete steps. At any other step it raises MalformedStep, which names the place. A
  proof is never in memory as a whole.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import BinaryIO, NamedTuple, cast


class Unreadable(Exception):
    """A file cannot be read. The message is one line that names the file."""


@contextmanager
def open_input(path: str) -> Iterator[BinaryIO]:
    """Context manager that yields the file's content, decompressed, as a stream. May raise Unreadable."""
    try:
        with open(path, "rb") as file, _decompressed(file.peek(6)[:6], file) as content:
            yield content
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise Unreadable(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def _decompressed(magic: bytes, file: BinaryIO) -> BinaryIO:
    if magic.startswith(b"\x1f\x8b"):
        return cast(BinaryIO, gzip.open(file))
    if magic.startswith(b"BZh"):
        return cast(BinaryIO, bz2.open(file))
    if magic.startswith((b"\xfd7zXZ\x00", b"\x5d\x00\x00")):
        return cast(BinaryIO, lzma.open(file))
    return file


Clause = tuple[int, ...]
_XOR_VARIABLES_MAX = 10


def read_clauses(path: str) -> list[Clause]:
    """Read all clauses in the file's order. Raises Unreadable."""
    with open_input(path) as file:
        text = file.read()
    try:
        return _clauses(text.removeprefix(codecs.BOM_UTF8))
    except ValueError as error:
        raise Unreadable(f"{path}: {error}") from None


def _clauses(text: bytes) -> list[Clause]:
    header: list[bytes] | None = None
    clauses: list[Clause] = []
    literals: list[int] = []
    for number, line in enumerate(text.split(b"\n"), 1):
        words = line.split()
        if not words or words[0].startswith(b"c"):
            continue
        if words[0] == b"%":  # the trailer of SATLIB: a line of %, a line of 0
            break
        if header is None:
            if len(words) != 4 or words[:2] != [b"p", b"cnf"]:
                raise ValueError(f"line {number}: 'p cnf VARIABLES CLAUSES' expected")
            header = words
            n_vars, n_clauses = int(header[2]), int(header[3])
            continue
        if words[0].startswith(b"x"):
            if literals:
                raise ValueError(f"line {number}: an XOR inside of a clause")
            xor = _parity_clauses(line.replace(b"x", b" ", 1), n_vars, number)
            clauses += xor
            n_clauses += len(xor) - 1
            continue
        if line.translate(None, b"-0123456789 \t\r"):  # int() also reads 1_0 and +1
            raise ValueError(f"line {number}: not all words are integers: {line[:60]!r}")
        for literal in map(int, words):
            if literal == 0:
                clauses.append(tuple(literals))
                literals = []
            elif -n_vars <= literal <= n_vars:
                literals.append(literal)
            else:
                raise ValueError(f"line {number}: literal {literal}, but there are {n_vars} variables")
    if header is None:
        raise ValueError("no line 'p cnf VARIABLES CLAUSES'")
    if literals:
        raise ValueError("the last clause is not closed by 0 (truncated?)")
    if len(clauses) != n_clauses:
        raise ValueError(f"{len(clauses)} clauses found, but {n_clauses} declared")
    return clauses


def _parity_clauses(line: bytes, n_vars: int, number: int) -> list[Clause]:
    words = line.split()
    literals = [] if line.translate(None, b"-0123456789 \t\r") else [int(word) for word in words[:-1]]
    variables = sorted({abs(x) for x in literals if sum(abs(x) == abs(y) for y in literals) % 2})
    if len(literals) != len(words) - 1 or words[-1] != b"0" or 0 in literals:
        raise ValueError(f"line {number}: not an XOR, such as x1 2 -3 0")
    if max(map(abs, literals), default=0) > n_vars or len(variables) > _XOR_VARIABLES_MAX:
        raise ValueError(f"line {number}: an XOR of more than ten variables, or of one above {n_vars}")
    clauses = []
    for values in product((0, 1), repeat=len(variables)):
        # A variable outside of `variables` occurs an even number of times, so its value does not matter.
        true = {variable: value for variable, value in zip(variables, values, strict=True)}
        if sum(true.get(abs(x), 0) == (x > 0) for x in literals) % 2 == 0:
            clauses.append(tuple(-x if true[x] else x for x in variables))
    return clauses


#: number of bytes read at a time; a file's first chunk must contain the end of its first step, because the
#: end of a step shows whether the file is binary
_CHUNK_BYTES = 1 << 20
_ADDITION, _DELETION = ord("a"), ord("d")


class Step(NamedTuple):
    """A step of a proof, at `place` in its file. `hints` is None if it deletes the clauses `integers`."""

    place: str
    id: int
    integers: list[int]
    hints: list[int] | None


class MalformedStep(Exception):
    """A part of a proof is not a step of LRAT."""


def read_steps(file: BinaryIO) -> Iterator[Step]:
    """Yield all steps in order."""
    first = file.read(_CHUNK_BYTES)
    # Each binary step contains a zero byte, and no text does.
    return _binary_steps(first, file) if b"\0" in first else _text_steps(first, file)


class _Literals(dict[bytes, int]):
    """A table word -> integer with one object per literal, which saves time and memory."""

    def __missing__(self, word: bytes) -> int:
        self[word] = literal = int(word)
        return literal


def _lines(first: bytes, file: BinaryIO) -> Iterator[bytes]:
    begin = first.rfind(b"\n") + 1
    yield from first[:begin].splitlines()
    yield first[begin:] + file.readline()
    yield from file


def _text_steps(first: bytes, file: BinaryIO) -> Iterator[Step]:
    literals = _Literals()
    for number, line in enumerate(_lines(first, file), 1):
        words = line.split()
        if not words or words[0] == b"c":
            continue
        place = f"line {number}"
        try:
            if words[-1] != b"0":
                raise MalformedStep(f"{place}: does not end with 0 (truncated?)")
            if words[0] == b"d":
                raise MalformedStep(
                    f"{place}: a DRAT step; only LRAT proofs, which have hints, can be checked"
                )
            if words[1] == b"d":
                deleted = [int(word) for word in words[2:-1]]
                if 0 in deleted:
                    raise MalformedStep(f"{place}: 0 inside of a deletion")
                yield Step(place, int(words[0]), deleted, None)
                continue
            end = words.index(b"0", 1)
            if end == len(words) - 1:
                raise MalformedStep(f"{place}: no list of hints (DRAT? only LRAT can be checked)")
            hints = [int(word) for word in words[end + 1 : -1]]
            if 0 in hints:
                raise MalformedStep(f"{place}: more than two lists")
            clause = [literals[word] for word in words[1:end]]
            if 0 in clause:
                raise MalformedStep(f"{place}: a zero inside of a clause")
            yield Step(place, int(words[0]), clause, hints)
        except (ValueError, IndexError):
            raise MalformedStep(f"{place}: not a step of LRAT: {line[:60]!r}") from None


def _binary_steps(first: bytes, file: BinaryIO) -> Iterator[Step]:
    data, at, number = first, 0, 0
    while True:
        number += 1
        place = f"step {number}"
        if at == len(data):
            data, at = file.read(_CHUNK_BYTES), 0
            if not data:
                return
        tag = data[at]
        if tag not in (_ADDITION, _DELETION):
            raise MalformedStep(f"{place}: begins with byte {tag}, neither 'a' nor 'd'")
        while True:  # until the step is complete in `data`
            end = data.find(b"\0", at + 1)
            if tag == _ADDITION and end >= 0:
                first_end, end = end, data.find(b"\0", end + 1)
            if end >= 0:
                break
            more = file.read(_CHUNK_BYTES)
            if not more:
                raise MalformedStep(f"{place}: is incomplete (truncated?)")
            data, at = data[at:] + more, 0
        if tag == _DELETION:
            yield Step(place, 0, _integers(data[at + 1 : end], place), None)
        else:
            head = _integers(data[at + 1 : first_end], place)
            if not head:
                raise MalformedStep(f"{place}: has no id")
            yield Step(place, head[0], head[1:], _integers(data[first_end + 1 : end], place))
        at = end + 1


def _integers(data: bytes, place: str) -> list[int]:
    """Decode integers. No byte of `data` is 0, so no last group is empty, and the encoding is unique."""
    integers = []
    number = shift = 0
    for byte in data:
        if byte & 0x80:
            number |= (byte & 0x7F) << shift
            shift += 7
            continue
        number |= byte << shift
        if number < 2:
            raise MalformedStep(f"{place}: a zero inside of a list")
        integers.append(-(number >> 1) if number & 1 else number >> 1)
        number = shift = 0
    if shift:
        raise MalformedStep(f"{place}: a list ends inside of a number")
    return integers


class Refuted(Exception):
    """The proof is wrong. The message says in one line where and why."""


class Checker:
    """The checker of one proof, with id -> clause for all clauses that hold at its present step."""

    def __init__(self, formula: Iterable[Sequence[int]]) -> None:
        """Begin with the formula, whose clause k, counted from 1, gets the id k."""
        self.clauses: dict[int, Clause] = {
            id_: tuple(dict.fromkeys(clause)) for id_, clause in enumerate(formula, 1)
        }
        self.steps = 0
        self._last_id = len(self.clauses)
        #: literals of all clauses so far; a clause whose pivot's negation is not among them needs no hints
        self._known = {literal for clause in self.clauses.values() for literal in clause}

    def check(self, steps: Iterator[Step]) -> None:
        """Follow the proof up to the empty clause; if the formula contains it, return at once.

        Raises Refuted if the proof is wrong.
        """
        if () in self.clauses.values():
            return
        for step in steps:
            self.steps += 1
            if step.hints is None:
                self._delete(step)
                continue
            self._add(step)
            if not step.integers:
                return
        raise Refuted(f"the proof ends after {self.steps} steps without the empty clause")

    def _delete(self, step: Step) -> None:
        for id_ in step.integers:
            if self.clauses.pop(id_, None) is None:
                raise Refuted(f"{step.place}: deletes clause {id_}, which does not exist")

    def _add(self, step: Step) -> None:
        if step.id <= self._last_id:
            raise Refuted(f"{step.place}: id {step.id} does not exceed {self._last_id}, the one before")
        clause, hints = step.integers, step.hints
        assert hints is not None
        false = set(clause)
        if len(false) < len(clause):
            clause = list(dict.fromkeys(clause))
        if not hints or min(hints) > 0:
            contradiction = self._propagate(hints, false, step)
        else:
            start = next(at for at, hint in enumerate(hints) if hint < 0)
            contradiction = self._propagate(hints[:start], false, step)
            hints = hints[start:]
        if not contradiction:
            self._check_rat(clause, hints if hints and hints[0] < 0 else [], false, step)
        self.clauses[step.id] = tuple(clause)
        self._last_id = step.id
        self._known.update(clause)

    def _propagate(self, hints: Sequence[int], false: set[int], step: Step) -> bool:
        """Follow hints, add implied literals' negations to `false`; return whether a contradiction arises."""
        clauses = self.clauses
        for hint in hints:
            left = 0
            try:
                clause = clauses[hint]
            except KeyError:
                raise Refuted(f"{step.place}: hint {hint} names no clause that exists") from None
            for literal in clause:
                if literal not in false:
                    if left:
                        raise Refuted(f"{step.place}: hint {hint} has more than one literal left")
                    left = literal
            if not left:
                return True
            false.add(-left)
        return False

    def _check_rat(self, clause: Sequence[int], hints: Sequence[int], false: set[int], step: Step) -> None:
        if not clause:
            raise Refuted(f"{step.place}: the hints do not lead to the empty clause")
        opposite = -clause[0]
        groups = _groups(hints)
        if opposite not in self._known:
            return
        for id_, other in self.clauses.items():
            if opposite not in other:
                continue
            rest = [literal for literal in other if literal != opposite]
            if any(-literal in false for literal in rest):
                continue
            if id_ not in groups:
                raise Refuted(
                    f"{step.place}: the hints lead to no contradiction"
                    + (f", and no hints are for clause {id_} with {opposite}" if groups else "")
                )
            if not self._propagate(groups[id_], false.union(rest), step):
                raise Refuted(f"{step.place}: the hints for clause {id_} lead to no contradiction")


def _groups(hints: Sequence[int]) -> dict[int, list[int]]:
    """Group hints `-D, H1, H2, ..., -E, ...` by the clauses D, E, ...: D -> [H1, H2, ...]."""
    groups: dict[int, list[int]] = {}
    group: list[int] = []
    for hint in hints:
        if hint < 0:
            group = groups.setdefault(-hint, [])
        else:
            group.append(hint)
    return groups
