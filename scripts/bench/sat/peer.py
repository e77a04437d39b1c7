"""One formula, one other solver: prints its answer as solvers do. For `hard.py` and `batch.py`.

python peer.py cadical195 FILE        # any of PySAT's solvers, through its public classes
python peer.py cryptominisat FILE     # two threads
python peer.py ortools FILE           # CP-SAT, two workers
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import sys
from pathlib import Path

_THREADS = 2
_OPENERS = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


def clauses_of(path: Path) -> list[list[int]]:
    """Clauses end with 0, wherever the lines do."""
    clauses: list[list[int]] = [[]]
    with _OPENERS.get(path.suffix, open)(path, "rt") as file:
        for line in file:
            if line.startswith("%"):
                break
            if line.startswith(("c", "p")):
                continue
            for literal in map(int, line.split()):
                if literal:
                    clauses[-1].append(literal)
                else:
                    clauses.append([])
    clauses.pop()
    return clauses


def pysat(name: str, path: Path) -> bool:
    from pysat.solvers import Solver

    with Solver(name=name, bootstrap_with=clauses_of(path)) as solver:
        return bool(solver.solve())


def cryptominisat(path: Path) -> bool:
    from pycryptosat import Solver

    solver = Solver(threads=_THREADS)
    solver.add_clauses(clauses_of(path))
    return bool(solver.solve()[0])


def ortools(path: Path) -> bool:
    from ortools.sat.python import cp_model

    clauses = clauses_of(path)
    model = cp_model.CpModel()
    variables = [model.new_bool_var("") for _ in range(max(abs(x) for clause in clauses for x in clause))]
    for clause in clauses:
        model.add_bool_or(variables[x - 1] if x > 0 else ~variables[-x - 1] for x in clause)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = _THREADS
    status = solver.solve(model)
    assert status in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.INFEASIBLE), status
    return bool(status != cp_model.INFEASIBLE)


def main() -> None:
    name, path = sys.argv[1], Path(sys.argv[2])
    solve = {"cryptominisat": cryptominisat, "ortools": ortools}.get(name)
    satisfiable = solve(path) if solve else pysat(name, path)
    print("s SATISFIABLE" if satisfiable else "s UNSATISFIABLE")


if __name__ == "__main__":
    main()
