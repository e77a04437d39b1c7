"""A peer of `bench_maxsat.py` as a command of its own: RC2 of PySAT, or CP-SAT of OR-Tools.

    python scripts/bench/maxsat/peer.py rc2|cpsat WORKERS SECONDS FILE

Prints `o COST` for each better solution, then `s OPTIMUM FOUND`, `s UNSATISFIABLE` or `s UNKNOWN`.
"""

from __future__ import annotations

import sys

from mallob_maxsat.wcnf import WeightedFormula, read_wcnf
from mallob_py.kit import decompressed_blocks


def clauses_of(literals: list[int]) -> list[list[int]]:
    clauses: list[list[int]] = [[]]
    for literal in literals:
        if literal:
            clauses[-1].append(literal)
        else:
            clauses.append([])
    return clauses[:-1]


def by_rc2(formula: WeightedFormula) -> None:
    from pysat.examples.rc2 import RC2, RC2Stratified
    from pysat.formula import WCNF

    wcnf = WCNF()
    for clause in clauses_of(formula.hard.tolist()):
        wcnf.append(clause)
    for clause, weight in zip(clauses_of(formula.soft.tolist()), formula.weights.tolist(), strict=True):
        wcnf.append(clause, weight=weight)
    is_weighted = len(set(formula.weights.tolist())) > 1
    # the settings of RC2's own command with `-c b`, with which it was submitted to the evaluations
    settings = {"adapt": True, "exhaust": True, "minz": True}
    with RC2Stratified(wcnf, blo="div", **settings) if is_weighted else RC2(wcnf, **settings) as solver:
        model = solver.compute()
        if model is None:
            print("s UNSATISFIABLE", flush=True)
            return
        print(f"o {solver.cost + formula.base}\ns OPTIMUM FOUND", flush=True)


def by_cpsat(formula: WeightedFormula, workers: int, seconds: float) -> None:
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    variables = [model.new_bool_var(f"x{number}") for number in range(1, formula.n_vars + 1)]

    def literal_of(literal: int) -> cp_model.LiteralT:
        variable = variables[abs(literal) - 1]
        return variable if literal > 0 else ~variable

    for clause in clauses_of(formula.hard.tolist()):
        model.add_bool_or([literal_of(one) for one in clause])
    costs = []
    for clause, weight in zip(clauses_of(formula.soft.tolist()), formula.weights.tolist(), strict=True):
        if len(clause) == 1:
            costs.append(weight * ~literal_of(clause[0]))
        else:
            lost = model.new_bool_var("")
            model.add_bool_or([*(literal_of(one) for one in clause), lost])
            costs.append(weight * lost)
    model.minimize(sum(costs))

    class Told(cp_model.CpSolverSolutionCallback):
        def on_solution_callback(self) -> None:
            print(f"o {round(self.objective_value) + formula.base}", flush=True)

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = workers
    solver.parameters.max_time_in_seconds = seconds
    status = solver.solve(model, Told())
    words = {cp_model.OPTIMAL: "OPTIMUM FOUND", cp_model.INFEASIBLE: "UNSATISFIABLE"}
    print(f"s {words.get(status, 'UNKNOWN')}", flush=True)


if __name__ == "__main__":
    name, workers, seconds, path = sys.argv[1:]
    whole = read_wcnf(b"".join(decompressed_blocks(path)), path)
    if name == "rc2":
        by_rc2(whole)
    else:
        by_cpsat(whole, int(workers), float(seconds))
