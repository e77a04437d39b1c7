"""Formulas that tests write down as text."""

from mallob_sat.dimacs import read_dimacs
from mallob_sat.formula import Formula


def parse_dimacs(text: bytes, path: str, block_bytes: int = 1 << 21) -> Formula:
    """As it is read from a file of that name, in blocks of that size."""
    blocks = (text[begin : begin + block_bytes] for begin in range(0, len(text), block_bytes))
    return read_dimacs(blocks, path)
