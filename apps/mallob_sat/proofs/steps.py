"""LRAT proofs as a stream of steps: text or binary, told apart by content.

Text, one step a line:   ID LITERALS 0 HINTS 0      adds a clause; hints name clauses, see `checker`
                         ID d IDS 0                 deletes clauses (the first ID says nothing)
Binary (as CaDiCaL writes it):  'a' ID LITERALS 0 HINTS 0  and  'd' IDS 0, where an integer x is the
number 2|x| + (x < 0) in groups of seven bits, lowest first, all but the last with the eighth bit set.

Part of what a verdict relies on. Guarantees: a step is yielded only if it is complete; everything
else raises MalformedStep with its place. The file is never held in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

#: so much of a file must hold the end of its first step, by which binary files are known
_CHUNK_BYTES = 1 << 20
_ADDITION, _DELETION = ord("a"), ord("d")


class Step(NamedTuple):
    """`place` says where it stands in the file. `hints` is None for a deletion of clauses `integers`."""

    place: str
    id: int
    integers: list[int]
    hints: list[int] | None


class MalformedStep(Exception):
    """Something in a proof that is not a step of LRAT."""


def read_steps(file: BinaryIO) -> Iterator[Step]:
    """All steps in order."""
    first = file.read(_CHUNK_BYTES)
    # Each binary step holds a zero byte, and no text does.
    return _binary_steps(first, file) if b"\0" in first else _text_steps(first, file)


class _Literals(dict[bytes, int]):
    """Words as integers: one object for each literal, which saves time and memory."""

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
    """No byte of `data` is 0, so a number's last group may not be empty: its encoding is unique."""
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
