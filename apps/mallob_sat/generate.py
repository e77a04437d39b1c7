"""Formulas for trials: `python -m mallob_sat.generate KIND ... [-o FILE]`.

Kinds: uniform and planted random 3-SAT, `large` for millions of clauses, pigeons in holes, parity on a random
graph, factoring by an array multiplier, and the equivalence of two multipliers. A formula depends only on its
arguments (including the seed), so the same command always writes the same formula. The output is DIMACS text,
compressed if the file's suffix says so (.gz, .bz2, .xz).
"""

from __future__ import annotations

import argparse
import bz2
import gzip
import lzma
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

_CLAUSES_PER_BLOCK = 50_000


class LargeFormula:
    """Clauses of three literals as rows of an array: drawn at once, and converted to text in blocks.

    `uniform` would take about 4 us per clause, because it draws clause by clause with Python's random
    numbers.
    """

    def __init__(self, n_vars: int, clauses: NDArray[np.int32]) -> None:
        self.n_vars = n_vars
        self.clauses = clauses

    def text(self, comment: str) -> str:
        return f"c {comment}\np cnf {self.n_vars} {len(self.clauses)}\n" + "".join(self._blocks())

    def _blocks(self) -> Iterator[str]:
        for begin in range(0, len(self.clauses), _CLAUSES_PER_BLOCK):
            block = self.clauses[begin : begin + _CLAUSES_PER_BLOCK]
            yield "%d %d %d 0\n" * len(block) % tuple(block.ravel().tolist())


def large(n_vars: int, n_clauses: int, seed: int) -> LargeFormula:
    """Return random 3-SAT, fast even for millions of clauses; it needs at least three variables."""
    if n_vars < 3:
        raise ValueError(f"a clause needs 3 variables, n_vars is {n_vars}")
    draw = np.random.Generator(np.random.PCG64(seed))
    variables = draw.integers(1, n_vars + 1, (n_clauses, 3), dtype=np.int32)
    first, second, third = variables.T
    while (again := np.flatnonzero((first == second) | (first == third) | (second == third))).size:
        variables[again] = draw.integers(1, n_vars + 1, (again.size, 3), dtype=np.int32)
    variables *= draw.choice(np.array([-1, 1], dtype=np.int32), (n_clauses, 3))
    return LargeFormula(n_vars, variables)


Clause = tuple[int, ...]


class Circuit:
    """The clauses of a growing circuit (Tseitin's encoding). A wire is a literal."""

    def __init__(self) -> None:
        self.n_vars = 0
        self.clauses: list[Clause] = []
        self.false = self.wire()
        self.require(-self.false)

    def wire(self) -> int:
        self.n_vars += 1
        return self.n_vars

    def wires(self, count: int) -> list[int]:
        return [self.wire() for _ in range(count)]

    def require(self, *clause: int) -> None:
        self.clauses.append(clause)

    def and_(self, a: int, b: int) -> int:
        out = self.wire()
        self.clauses += [(-out, a), (-out, b), (out, -a, -b)]
        return out

    def xor(self, a: int, b: int) -> int:
        out = self.wire()
        self.clauses += [(-out, a, b), (-out, -a, -b), (out, -a, b), (out, a, -b)]
        return out

    def full_adder(self, a: int, b: int, carry: int) -> tuple[int, int]:
        """Return sum and carry of three bits."""
        half = self.xor(a, b)
        total = self.xor(half, carry)
        out = self.wire()
        for x, y in combinations((a, b, carry), 2):
            self.clauses += [(-x, -y, out), (x, y, -out)]
        return total, out

    def multiply(self, a: Sequence[int], b: Sequence[int]) -> list[int]:
        """Return the len(a) + len(b) bits of the product, lowest first, by adding a row per bit of b."""
        total = [self.and_(x, b[0]) for x in a] + [self.false]
        product_bits = [total[0]]
        for bit in b[1:]:
            row = [self.and_(x, bit) for x in a]
            carry, sums = self.false, []
            for x, y in zip(total[1:], row, strict=True):
                out, carry = self.full_adder(x, y, carry)
                sums.append(out)
            total = [*sums, carry]
            product_bits.append(total[0])
        return product_bits + total[1:]


class Formula:
    """Clauses over variables 1..n_vars."""

    def __init__(self, n_vars: int, clauses: Sequence[Clause]) -> None:
        self.n_vars = n_vars
        self.clauses = clauses

    def text(self, comment: str) -> str:
        lines = [f"c {comment}", f"p cnf {self.n_vars} {len(self.clauses)}"]
        lines += [" ".join(map(str, (*clause, 0))) for clause in self.clauses]
        return "\n".join(lines) + "\n"


def uniform(n_vars: int, n_clauses: int, seed: int) -> Formula:
    """Return random 3-SAT, which is hardest near 4.26 clauses per variable."""
    rng = random.Random(seed)
    return Formula(n_vars, [_random_clause(rng, n_vars) for _ in range(n_clauses)])


def planted(n_vars: int, n_clauses: int, seed: int) -> Formula:
    """Return random 3-SAT whose clauses a hidden assignment satisfies."""
    rng = random.Random(seed)
    hidden = {variable: rng.choice((-1, 1)) * variable for variable in range(1, n_vars + 1)}
    clauses: list[Clause] = []
    while len(clauses) < n_clauses:
        clause = _random_clause(rng, n_vars)
        if any(hidden[abs(literal)] == literal for literal in clause):
            clauses.append(clause)
    return Formula(n_vars, clauses)


def _random_clause(rng: random.Random, n_vars: int) -> Clause:
    if n_vars < 3:
        raise ValueError(f"a clause needs 3 variables, n_vars is {n_vars}")
    return tuple(rng.choice((-1, 1)) * v for v in rng.sample(range(1, n_vars + 1), 3))


def pigeonhole(holes: int) -> Formula:
    """Return the claim that holes + 1 pigeons have a hole each: UNSAT, exponentially hard for resolution."""
    pigeons = holes + 1
    clauses: list[Clause] = [tuple(p * holes + h + 1 for h in range(holes)) for p in range(pigeons)]
    for hole in range(holes):
        clauses += [
            (-(p * holes + hole + 1), -(q * holes + hole + 1)) for p, q in combinations(range(pigeons), 2)
        ]
    return Formula(pigeons * holes, clauses)


def parity(vertices: int, seed: int) -> Formula:
    """Return the claim that parities on a random 4-regular multigraph sum to 1 (Urquhart, Tseitin): UNSAT."""
    rng = random.Random(seed)
    ends = [vertex for vertex in range(vertices) for _ in range(4)]
    rng.shuffle(ends)
    incident: list[list[int]] = [[] for _ in range(vertices)]
    n_edges = 0
    for first, second in zip(ends[::2], ends[1::2], strict=True):
        if first != second:  # a loop counts twice at its vertex and cancels
            n_edges += 1
            incident[first].append(n_edges)
            incident[second].append(n_edges)
    clauses: list[Clause] = []
    for vertex, edges in enumerate(incident):
        wanted = 1 if vertex == 0 else 0
        for signs in product((1, -1), repeat=len(edges)):
            if signs.count(1) % 2 != wanted:  # forbid the assignment `signs` of wrong parity
                clauses.append(tuple(-sign * edge for sign, edge in zip(signs, edges, strict=True)))
    return Formula(n_edges, clauses)


def factoring(number: int) -> Formula:
    """Return the claim that an odd number has two factors above 1: SAT if composite, UNSAT if prime."""
    bits = number.bit_length()
    circuit = Circuit()
    large, small = circuit.wires(bits - 1), circuit.wires((bits + 1) // 2)
    result = circuit.multiply(large, small)
    for position, wire in enumerate(result):
        circuit.require(wire if number >> position & 1 else -wire)
    circuit.require(*large[1:])
    circuit.require(*small[1:])
    return Formula(circuit.n_vars, circuit.clauses)


def commutativity(bits: int) -> Formula:
    """Return the claim that a * b differs from b * a for some a and b: UNSAT, hard from 7 bits on."""
    circuit = Circuit()
    a, b = circuit.wires(bits), circuit.wires(bits)
    pairs = zip(circuit.multiply(a, b), circuit.multiply(b, a), strict=True)
    circuit.require(*[circuit.xor(x, y) for x, y in pairs])
    return Formula(circuit.n_vars, circuit.clauses)


class _Writable(Protocol):
    def text(self, comment: str) -> str: ...


_KINDS: dict[str, tuple[Callable[..., _Writable], tuple[str, ...]]] = {
    "uniform": (uniform, ("n_vars", "n_clauses", "seed")),
    "large": (large, ("n_vars", "n_clauses", "seed")),
    "planted": (planted, ("n_vars", "n_clauses", "seed")),
    "pigeonhole": (pigeonhole, ("holes",)),
    "parity": (parity, ("vertices", "seed")),
    "factoring": (factoring, ("number",)),
    "commutativity": (commutativity, ("bits",)),
}


def write(text: str, path: Path) -> None:
    """Write text, compressed as the path's suffix says. The same text always gives the same bytes."""
    data = text.encode()
    match path.suffix:
        case ".gz":
            data = gzip.compress(data, mtime=0)
        case ".bz2":
            data = bz2.compress(data)
        case ".xz":
            data = lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)
        case _:
            pass
    path.write_bytes(data)


def _non_negative(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m mallob_sat.generate", description="Write a formula.")
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    for kind, (function, names) in _KINDS.items():
        summary = (function.__doc__ or "").splitlines()[0]
        one = kinds.add_parser(kind, help=summary, description=summary)
        for name in names:
            one.add_argument(name, type=_non_negative)
        one.add_argument("-o", "--output", type=Path, help="file to write (default: standard output)")
    options = parser.parse_args(arguments)
    function, names = _KINDS[options.kind]
    values = [getattr(options, name) for name in names]
    try:
        formula = function(*values)
    except ValueError as error:
        parser.error(f"{options.kind}: {error}")
    text = formula.text(" ".join(["mallob_sat.generate", options.kind, *map(str, values)]))
    if options.output is None:
        sys.stdout.write(text)
    else:
        write(text, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
