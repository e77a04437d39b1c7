"""SHA-1 of many short messages side by side: the states of children in UTS trees.

A message is the 20 bytes of a node's state and the number of a child: one block of SHA-1, whose padding is
known. The functions for SHA-1's steps take numbers or whole arrays. With Numba they are compiled as the body
of a loop over `LANES` messages, which LLVM turns into vector instructions of the machine's width (AVX2: 8
messages at a time; AVX-512: 16); without Numba, NumPy computes each step on whole arrays.

Source: FIPS 180-4; the trees are those of Olivier et al., "UTS: An Unbalanced Tree Search Benchmark".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mallob_bags.compiled import HAS_NUMBA, compiled, inlined

#: number of messages in the compiled loop: their words fill one register of AVX-512, or two of AVX2
LANES = 16

#: a 32-bit word or an array of words. Numba widens sums, so `word` must cut each sum to 32 bits again
Word: TypeAlias = Any
Words: TypeAlias = tuple[Word, ...]
if HAS_NUMBA:
    word = np.uint32
else:

    def word(value: Word) -> Word:  # type: ignore[no-redef]
        """Return the value unchanged, because NumPy keeps 32 bits."""
        return value


_START = tuple(map(np.uint32, (0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0)))
#: the remainder of a message's block: a bit, zeros, and the length of the message in bits
_PADDING = tuple(map(np.uint32, (0x80000000, 0, 0, 0, 0, 0, 0, 0, 0, 192)))
_K0, _K1, _K2, _K3 = map(np.uint32, (0x5A827999, 0x6ED9EBA1, 0x8F1BBCDC, 0xCA62C1D6))
_1, _2, _5, _27, _30, _31 = map(np.uint32, (1, 2, 5, 27, 30, 31))


@inlined
def _left_1(x: Word) -> Word:
    return word((x << _1) | (x >> _31))


@inlined
def _left_5(x: Word) -> Word:
    return word((x << _5) | (x >> _27))


@inlined
def _left_30(x: Word) -> Word:
    return word((x << _30) | (x >> _2))


@inlined
def _choice(b: Word, c: Word, d: Word) -> Word:
    return word(((c ^ d) & b) ^ d)


@inlined
def _parity(b: Word, c: Word, d: Word) -> Word:
    return word(b ^ c ^ d)


@inlined
def _majority(b: Word, c: Word, d: Word) -> Word:
    return word((b & c) | (d & (b | c)))


def _five(mix: Callable[[Word, Word, Word], Word], k: Word) -> Callable[[Words, Words], Words]:
    """Return a function that does five rounds with `mix` and `k` and keeps the words' order."""

    @inlined
    def five(s: Words, w: Words) -> Words:
        a, b, c, d, e = s
        e = word(_left_5(a) + mix(b, c, d) + e + k + w[0])
        b = _left_30(b)
        d = word(_left_5(e) + mix(a, b, c) + d + k + w[1])
        a = _left_30(a)
        c = word(_left_5(d) + mix(e, a, b) + c + k + w[2])
        e = _left_30(e)
        b = word(_left_5(c) + mix(d, e, a) + b + k + w[3])
        d = _left_30(d)
        a = word(_left_5(b) + mix(c, d, e) + a + k + w[4])
        return a, b, _left_30(c), d, e

    return five


#: functions for five of the rounds 0 to 19, 20 to 39, 40 to 59 and 60 to 79
_five_0, _five_1 = _five(_choice, _K0), _five(_parity, _K1)
_five_2, _five_3 = _five(_majority, _K2), _five(_parity, _K3)


@inlined
def _next_16(w: Words) -> Words:
    """Compute the next 16 words of the message schedule."""
    w00 = _left_1(w[13] ^ w[8] ^ w[2] ^ w[0])
    w01 = _left_1(w[14] ^ w[9] ^ w[3] ^ w[1])
    w02 = _left_1(w[15] ^ w[10] ^ w[4] ^ w[2])
    w03 = _left_1(w00 ^ w[11] ^ w[5] ^ w[3])
    w04 = _left_1(w01 ^ w[12] ^ w[6] ^ w[4])
    w05 = _left_1(w02 ^ w[13] ^ w[7] ^ w[5])
    w06 = _left_1(w03 ^ w[14] ^ w[8] ^ w[6])
    w07 = _left_1(w04 ^ w[15] ^ w[9] ^ w[7])
    w08 = _left_1(w05 ^ w00 ^ w[10] ^ w[8])
    w09 = _left_1(w06 ^ w01 ^ w[11] ^ w[9])
    w10 = _left_1(w07 ^ w02 ^ w[12] ^ w[10])
    w11 = _left_1(w08 ^ w03 ^ w[13] ^ w[11])
    w12 = _left_1(w09 ^ w04 ^ w[14] ^ w[12])
    w13 = _left_1(w10 ^ w05 ^ w[15] ^ w[13])
    w14 = _left_1(w11 ^ w06 ^ w00 ^ w[14])
    w15 = _left_1(w12 ^ w07 ^ w01 ^ w[15])
    return w00, w01, w02, w03, w04, w05, w06, w07, w08, w09, w10, w11, w12, w13, w14, w15


@inlined
def _child(state: Words, number: Word) -> Words:
    """Compute the state of child `number` of a node."""
    # Each block of the schedule is computed just before its use, so that arrays stay within caches.
    w = state + (number,) + _PADDING  # noqa: RUF005 (Numba unpacks no tuples)
    s = _five_0(_START, w[0:5])
    s = _five_0(s, w[5:10])
    s = _five_0(s, w[10:15])
    v, w = w, _next_16(w)
    s = _five_0(s, v[15:16] + w[0:4])
    s = _five_1(s, w[4:9])
    s = _five_1(s, w[9:14])
    v, w = w, _next_16(w)
    s = _five_1(s, v[14:16] + w[0:3])
    s = _five_1(s, w[3:8])
    s = _five_2(s, w[8:13])
    v, w = w, _next_16(w)
    s = _five_2(s, v[13:16] + w[0:2])
    s = _five_2(s, w[2:7])
    s = _five_2(s, w[7:12])
    v, w = w, _next_16(w)
    s = _five_3(s, v[12:16] + w[0:1])
    s = _five_3(s, w[1:6])
    s = _five_3(s, w[6:11])
    s = _five_3(s, w[11:16])
    return (
        word(s[0] + _START[0]),
        word(s[1] + _START[1]),
        word(s[2] + _START[2]),
        word(s[3] + _START[3]),
        word(s[4] + _START[4]),
    )


@compiled("void(u4[:,::1], u4[:,::1])")
def hash_lanes(parents: NDArray[np.uint32], children: NDArray[np.uint32]) -> None:
    """Hash `LANES` children, one per column.

    `parents` has 6 rows: 5 with the parents' states, and 1 with the children's numbers. The children's states
    are written into the 5 rows of `children`.
    """
    for j in range(LANES):
        state = (parents[0, j], parents[1, j], parents[2, j], parents[3, j], parents[4, j])
        s = _child(state, parents[5, j])
        children[0, j] = s[0]
        children[1, j] = s[1]
        children[2, j] = s[2]
        children[3, j] = s[3]
        children[4, j] = s[4]


def hash_arrays(parents: Sequence[NDArray[np.uint32]]) -> tuple[NDArray[np.uint32], ...]:
    """Hash any number of children by NumPy. The rows (6 given, 5 returned) are as in `hash_lanes`."""
    a, b, c, d, e, number = parents
    with np.errstate(over="ignore"):
        return _child((a, b, c, d, e), number)
