"""Copies of formulas that are a little scrambled: the same difficulty, other luck.

On a satisfiable formula one run of one solver says little, since another numbering of the variables may
take a tenth or ten times the time. Each variable and each clause moves by up to one hundredth of their
number; nothing is negated, and the order within clauses stays. (More would destroy the structure that
solvers live on: Biere and Heule, The effect of scrambling CNFs, POS 2018.)

    python scripts/bench/sat/scramble.py --copies 3 copies/ data/*.cnf.gz
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mallob_py.kit.input_file import decompressed_blocks
from mallob_sat.dimacs import read_dimacs
from mallob_sat.formula import Formula

_WINDOW = 0.01


def moved_a_little(count: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """A permutation of 0..count-1 that moves nothing by more than a hundredth of `count`."""
    return np.argsort(np.arange(count) + rng.uniform(0, _WINDOW * count, count), kind="stable")


def scrambled(formula: Formula, seed: int) -> list[NDArray[np.int32]]:
    """The clauses, each closed by 0."""
    rng = np.random.default_rng(seed)
    new_name = np.concatenate(([0], 1 + moved_a_little(formula.n_vars, rng))).astype(np.int32)
    literals = np.sign(formula.literals) * new_name[np.abs(formula.literals)]
    clauses = np.split(literals, np.flatnonzero(literals == 0)[:-1] + 1)
    return [clauses[each] for each in moved_a_little(formula.n_clauses, rng)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="takes NAME~SEED.cnf")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--copies", type=int, default=1, metavar="N", help="of each (default 1)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of the first copy (default 1)")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for path in options.files:
        formula = read_dimacs(decompressed_blocks(str(path)), str(path))
        for seed in range(options.seed, options.seed + options.copies):
            lines = [" ".join(map(str, clause)) for clause in scrambled(formula, seed)]
            copy = options.folder / f"{path.name.partition('.')[0]}~{seed}.cnf"
            copy.write_text(f"p cnf {formula.n_vars} {formula.n_clauses}\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
