"""SplitMix64: from 64 bits to 64 bits that look random; good enough for hashes and random choices.

SplitMix64 is a bijection, so different numbers have different hashes. `volumes.py` has the same function for
whole arrays.
"""

from __future__ import annotations

WORD = 2**64 - 1
#: step between states of a stream of random numbers
STEP = 0x9E3779B97F4A7C15


def splitmix64(number: int) -> int:
    """Return the random number after the state `number`, or the hash of `number`."""
    x = (number + STEP) & WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & WORD
    return x ^ (x >> 31)
