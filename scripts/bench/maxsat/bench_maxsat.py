"""Weighted formulas: `solve` with one and two workers beside RC2 and CP-SAT with one and two.

All in turns on each formula, with the same limit of wall time. For each solver: how many optima it proves,
wall and processor time of those that all of a row's solvers with an answer prove, and its score: (1 + best
known cost) / (1 + cost found), 0 without a solution, on average. The best known cost is that of this run, or
of a manifest (`--manifest`: CSV with the columns file and best_known). An optimum that another one beats ends
the benchmark.

    python scripts/bench/maxsat/bench_maxsat.py --limit 60 *.wcnf.xz
"""

from __future__ import annotations

import argparse
import csv
import re
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_PEER = Path(__file__).parent / "peer.py"
_OPTIMUM = re.compile(r"^s OPTIMUM FOUND$", re.MULTILINE)
_COST = re.compile(r"^o (\d+)$", re.MULTILINE)
SOLVERS = ("ours 1", "ours 2", "rc2 1", "cpsat 1", "cpsat 2")


@dataclass(frozen=True)
class Run:
    """`cost` is None without a solution."""

    cost: int | None
    is_optimal: bool
    seconds: float
    cpu_s: float

    def __str__(self) -> str:
        cost = "-" if self.cost is None else str(self.cost)
        return f"{'*' if self.is_optimal else ''}{cost} {self.cpu_s:.1f}"


def run(solver: str, path: Path, limit_s: float, options: Sequence[str]) -> Run:
    name, _, workers = solver.partition(" ")
    if name == "ours":
        command = [sys.executable, "-m", "mallob_py", "solve", "-n", workers, "--quiet", *options]
        command += ["--time-limit", f"{limit_s}s", str(path)]
    else:
        command = [sys.executable, str(_PEER), name, workers, str(limit_s), str(path)]
    begin_s, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    grace_s = 15 if name == "ours" else 3 if name == "cpsat" else 0
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        printed, _ = process.communicate(timeout=limit_s + grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        printed, _ = process.communicate()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    costs = [int(cost) for cost in _COST.findall(printed)]
    cost = costs[-1] if costs else None
    return Run(cost, _OPTIMUM.search(printed) is not None, time.monotonic() - begin_s, cpu_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of wall time for each run")
    parser.add_argument("--manifest", type=Path, help="CSV with the best costs known")
    parser.add_argument("--solvers", default=",".join(SOLVERS))
    options = parser.parse_args()
    solvers = options.solvers.split(",")
    known: dict[str, int] = {}
    if options.manifest is not None:
        with open(options.manifest, newline="") as table:
            rows = [row for row in csv.DictReader(table) if row["best_known"]]
            known = {row["file"]: int(row["best_known"]) for row in rows}
    table_of: dict[str, dict[str, Run]] = {}
    print("(* proved; cost, processor seconds)  " + "  ".join(f"{solver:>14}" for solver in solvers))
    for path in options.files:
        runs = {solver: run(solver, path, options.limit, ()) for solver in solvers}
        found = [one.cost for one in runs.values() if one.cost is not None]
        for solver, one in runs.items():
            if one.is_optimal and one.cost != min(found):
                sys.exit(f"{path}: {solver} says that {one.cost} is optimal, but {min(found)} was found")
        table_of[path.name] = runs
        known[path.name] = min([*found, known.get(path.name, 2**64)])
        print(f"{path.name[:36]:<36} " + "  ".join(f"{one!s:>14}" for one in runs.values()), flush=True)
    proved_by_any = [runs for runs in table_of.values() if any(one.is_optimal for one in runs.values())]
    print(f"{len(table_of)} formulas, {len(proved_by_any)} of them proved by any")
    for solver in solvers:
        runs = {name: row[solver] for name, row in table_of.items()}
        proved = sum(one.is_optimal for one in runs.values())
        wall_s = sum(row[solver].seconds for row in proved_by_any)
        cpu_s = sum(row[solver].cpu_s for row in proved_by_any)
        scores = [
            0.0 if one.cost is None else (1 + known[name]) / (1 + one.cost) for name, one in runs.items()
        ]
        score = sum(scores) / len(scores)
        print(f"{solver:>8}: {proved} proved, {wall_s:.1f} s, CPU {cpu_s:.1f} s, score {score:.3f}")


if __name__ == "__main__":
    main()
