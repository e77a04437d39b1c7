"""Formulas that tests give as text."""

from mallob_sat.dimacs import read_dimacs
from mallob_sat.formula import Formula


def parse_dimacs(text: bytes, path: str, block_bytes: int = 1 << 21) -> Formula:
    """Read a formula from a text, as from a file with this name in blocks of this size."""
    blocks = (text[begin : begin + block_bytes] for begin in range(0, len(text), block_bytes))
    return read_dimacs(blocks, path)
