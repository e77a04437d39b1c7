"""Wall seconds of `solve` on one and on two ranks, beside kissat's own command, formula by formula.

Of several rounds the shortest time counts, because other programs on a machine only lengthen times. Without
files, some formulas are generated. If kissat is neither on PATH nor given by --kissat, PySAT's kissat runs in
a process of its own. If answers differ, the benchmark ends with an error.
"""

import argparse
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from common import BenchmarkError, ends_within, print_table, write_results

from mallob_py.runtime.processes import python
from mallob_sat import generate

_SOLVE = (*python(), "-m", "mallob_py", "solve", "--quiet", "-n")
_PYSAT = """
import sys
from pysat.formula import CNF
from pysat.solvers import Solver
with Solver(sys.argv[1], bootstrap_with=CNF(from_file=sys.argv[2]).clauses) as solver:
    sys.exit(10 if solver.solve() else 20)
"""
#: exit codes of the answers SAT and UNSAT
_ANSWERS = (10, 20)


def pysat_command(solver: str) -> list[str]:
    """Return a command that runs one of PySAT's solvers on a file."""
    return [*python(), "-c", _PYSAT, solver]


def generated(folder: Path) -> list[Path]:
    """Write one formula of each kind; most take about a second or more. Return their paths."""
    texts = {
        "pigeons-10": generate.pigeonhole(10).text("pigeons"),
        "uniform-250": generate.uniform(250, 1065, 5).text("uniform"),
        "planted-500": generate.planted(500, 2100, 3).text("planted"),
        "commutativity-7": generate.commutativity(7).text("commutativity"),
        "two-clauses": "p cnf 2 2\n1 2 0\n-1 0\n",
    }
    for name, text in texts.items():
        (folder / f"{name}.cnf").write_text(text)
    return sorted(folder.glob("*.cnf"))


def wall_s(command: list[str], limit_s: float) -> tuple[float, int | None]:
    """Run a command; return its time and its exit code, which is None if it was ended at the limit."""
    begin_s = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if not ends_within(process, limit_s):
        process.terminate()
        process.wait()
        return limit_s, None
    took_s = time.monotonic() - begin_s
    if (code := process.wait()) not in _ANSWERS:
        raise BenchmarkError(f"{' '.join(command)} ended with {code}")
    return took_s, code


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="formulas, in a format that kissat reads")
    parser.add_argument("--kissat", default=shutil.which("kissat"), help="kissat's command")
    parser.add_argument("--rounds", type=int, default=1, help="runs per formula and command")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds per run")
    options = parser.parse_args()
    commands = {
        "kissat": [options.kissat, "-q", "-n"] if options.kissat else pysat_command("kissat404"),
        "solve -n 1": [*_SOLVE, "1"],
        "solve -n 2": [*_SOLVE, "2"],
    }
    rows, sums = [], dict.fromkeys(commands, 0.0)
    with tempfile.TemporaryDirectory(prefix="mallob-py-bench.") as folder:
        for file in options.files or generated(Path(folder)):
            rounds = [
                {name: wall_s([*command, str(file)], options.limit) for name, command in commands.items()}
                for _ in range(options.rounds)
            ]
            took = {name: min(each[name] for each in rounds) for name in commands}
            if len(codes := {code for each in rounds for _, code in each.values() if code is not None}) > 1:
                raise BenchmarkError(f"{file}: answers differ: {rounds}")
            for name, (seconds, _) in took.items():
                sums[name] += seconds
            answer = {10: "SAT", 20: "UNSAT"}.get(next(iter(codes), 0), "?")
            rows.append(_row(file.stem, answer, {name: seconds for name, (seconds, _) in took.items()}))
            print(*rows[-1], flush=True)
    rows.append(_row("sum", "", sums))
    print_table("wall seconds", ("formula", "", *commands, "ratio 1", "ratio 2"), rows)
    write_results("sat", {str(row[0]): row[1:] for row in rows})


def _row(name: str, answer: str, seconds: dict[str, float]) -> tuple[str, ...]:
    kissat_s, *ours_s = seconds.values()
    ratios = [f"{one_s / kissat_s:.2f}" for one_s in ours_s]
    return (name, answer, *(f"{one_s:.2f}" for one_s in seconds.values()), *ratios)


if __name__ == "__main__":
    main()
