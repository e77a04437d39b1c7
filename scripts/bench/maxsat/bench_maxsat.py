"""Weighted formulas: `solve` with one and two workers beside RC2 and CP-SAT with one and two.

On each formula, all solvers run in turns with the same limit of wall time. Printed for each solver: the
number of optima that it proves; wall and processor time for the optima that all solvers with an answer in the
row prove; and its mean score: (1 + best known cost) / (1 + cost found), 0 without a solution. The best known
cost is that of this run, or of a manifest (`--manifest`: CSV with the columns file and best_known). If
another solver finds less than a claimed optimum, the benchmark ends.

A long benchmark can be run in pieces: with `--results FILE`, results are kept in the file, a line of JSON
each, and not measured again; with `--for SECONDS`, no run begins that could last longer, and the last piece
prints the table.

    python scripts/bench/maxsat/bench_maxsat.py --limit 60 *.wcnf.xz
    python scripts/bench/maxsat/bench_maxsat.py --results 60s.jsonl --for 240 --limit 60 *.wcnf.xz
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from mallob_py.runtime.processes import python

_PEER = Path(__file__).parent / "peer.py"
_OPTIMUM = re.compile(r"^s OPTIMUM FOUND$", re.MULTILINE)
_COST = re.compile(r"^o (\d+)$", re.MULTILINE)
#: the time that a run usually needs beyond its limit
_GRACE_S = 3.0
SOLVERS = ("ours 1", "ours 2", "rc2 1", "cpsat 1", "cpsat 2")


@dataclass(frozen=True)
class Run:
    """A run of a solver. `cost` is None without a solution."""

    cost: int | None
    is_optimal: bool
    seconds: float
    cpu_s: float

    def __str__(self) -> str:
        cost = "-" if self.cost is None else str(self.cost)
        return f"{'*' if self.is_optimal else ''}{cost} {self.cpu_s:.1f}"


class Results:
    """The results so far, in a file if one is given, by formula, solver and limit."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._runs: dict[tuple[str, str, float], Run] = {}
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                row = json.loads(line)
                name, solver, limit_s = row.pop("file"), row.pop("solver"), row.pop("limit_s")
                self._runs[name, solver, limit_s] = Run(**row)

    def run(self, solver: str, path: Path, limit_s: float, until_s: float) -> Run | None:
        """Return a known result, or run the solver; None if there is no time for the run."""
        key = (path.name, solver, limit_s)
        if key not in self._runs:
            if time.monotonic() + limit_s + _GRACE_S > until_s:
                return None
            self._runs[key] = one = run(solver, path, limit_s, ())
            if self._path is not None:
                row = {"file": path.name, "solver": solver, "limit_s": limit_s, **asdict(one)}
                with open(self._path, "a") as file:
                    file.write(f"{json.dumps(row)}\n")
        return self._runs[key]


def run(solver: str, path: Path, limit_s: float, options: Sequence[str]) -> Run:
    name, _, workers = solver.partition(" ")
    if name == "ours":
        command = [*python(), "-m", "mallob_py", "solve", "-n", workers, "--quiet", *options]
        command += ["--time-limit", f"{limit_s}s", str(path)]
    else:
        command = [*python(), str(_PEER), name, workers, str(limit_s), str(path)]
    grace_s = 15 if name == "ours" else 3 if name == "cpsat" else 0
    begin_s, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    # Waiting with a limit would poll, up to 50 ms late.
    limit = threading.Timer(limit_s + grace_s, process.kill)
    limit.start()
    printed, _ = process.communicate()
    seconds = time.monotonic() - begin_s
    limit.cancel()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    costs = [int(cost) for cost in _COST.findall(printed)]
    cost = costs[-1] if costs else None
    return Run(cost, _OPTIMUM.search(printed) is not None, seconds, cpu_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of wall time for each run")
    parser.add_argument("--manifest", type=Path, help="CSV with the best costs known")
    parser.add_argument("--results", type=Path, help="where runs are kept, and taken from")
    parser.add_argument(
        "--for", dest="for_s", type=float, default=math.inf, help="seconds of wall time in all"
    )
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
    results, until_s = Results(options.results), time.monotonic() + options.for_s
    for path in options.files:
        runs = {}
        for solver in solvers:
            if (one := results.run(solver, path, options.limit, until_s)) is None:
                sys.exit(f"no time for {solver} on {path.name}; the same command goes on from here")
            runs[solver] = one
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
