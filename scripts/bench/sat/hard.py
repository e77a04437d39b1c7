"""Hard formulas, one after the other: `solve` with one, two and four workers beside other solvers.

Each run is a whole command, timed from its start to its end. Per formula all commands take turns,
so that a change of the machine's mood meets all of them. A run that reaches the limit counts with
the limit. Whatever is not installed is left out.

    python scripts/bench/sat/hard.py --repeat 3 data/*.cnf.gz
    python scripts/bench/sat/hard.py --only solve-1 solve-2 --peers-python peers/bin/python data/*.cnf.gz
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from common import BenchmarkError, print_absent, print_table, write_results

_PEER = str(Path(__file__).with_name("peer.py"))
#: PySAT's solvers that are worth trying alone
SINGLES = ("cadical195", "cadical153", "cadical300", "kissat404", "glucose4", "glucose42", "maplecm")
_UNSHARED = json.dumps({"sharing": False})


@dataclass(frozen=True)
class Run:
    """One run; no answer if it reached the limit."""

    answer: str | None
    wall_s: float
    cpu_s: float


def commands(peers_python: str) -> dict[str, list[str]]:
    """Of all that is installed, by name; the formula's path is to follow."""
    solve = [sys.executable, "-m", "mallob_py.cli.main", "solve", "--quiet"]
    found = {
        "solve-1": [*solve, "-n", "1"],
        "solve-2": [*solve, "-n", "2"],
        "solve-4": [*solve, "-n", "4"],
        "solve-2-unshared": [*solve, "-n", "2", "--configuration", _UNSHARED],
    }
    found |= {name: [sys.executable, _PEER, name] for name in SINGLES}
    for name, module in (("cryptominisat", "pycryptosat"), ("ortools", "ortools.sat")):
        if subprocess.run([peers_python, "-c", f"import {module}"], capture_output=True).returncode == 0:
            found[name] = [peers_python, _PEER, name]
        else:
            print_absent(name, f"pip install {module.partition('.')[0]}")
    syrup = shutil.which("glucose-syrup") or next(
        map(str, Path(peers_python).parents[1].glob("lib/*/site-packages/sage_wheels/bin/glucose-syrup")),
        None,
    )
    if syrup:
        found["glucose-syrup"] = [syrup, "-nthreads=2", "-maxmemory=8000"]
    else:
        print_absent("glucose-syrup", "pip install passagemath-glucose")
    return found


def run(command: Sequence[str], limit_s: float) -> Run:
    """Raises BenchmarkError if the command ends without an answer."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin_s = time.monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return Run(None, limit_s, limit_s)
    wall_s = time.monotonic() - begin_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    answer = next((line for line in output.splitlines() if line.startswith("s ")), None)
    if answer is None or "UNKNOWN" in answer:
        raise BenchmarkError(f"no answer from {' '.join(command)}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(answer, wall_s, cpu_s)


def print_ratios(sums: dict[str, float]) -> None:
    """Of the sums: each of ours to its measure."""
    singles = {name: sums[name] for name in SINGLES if name in sums}
    if not singles:
        return
    best = min(singles, key=singles.__getitem__)
    for ours, bound in (("solve-1", 1.03), ("solve-2", 0.7), ("solve-2-unshared", 1.0)):
        if ours in sums:
            print(f"{ours} / {best} (the best of PySAT's): {sums[ours] / sums[best]:.2f}, wanted {bound}")
    for other in ("solve-2-unshared", "cryptominisat", "ortools", "glucose-syrup"):
        if "solve-2" in sums and other in sums:
            print(f"solve-2 / {other}: {sums['solve-2'] / sums[other]:.2f}, wanted below 1")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="runs of each (default 1)")
    parser.add_argument("--limit", type=float, default=120, metavar="S", help="seconds per run (default 120)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these commands")
    parser.add_argument(
        "--peers-python", default=sys.executable, help="an interpreter that has the other solvers' packages"
    )
    options = parser.parse_args()
    chosen = commands(options.peers_python)
    if options.only:
        if unknown := set(options.only) - set(chosen):
            parser.error(
                f"unknown or not installed: {', '.join(sorted(unknown))}; there are {', '.join(chosen)}"
            )
        chosen = {name: chosen[name] for name in options.only}
    runs: dict[str, dict[str, list[Run]]] = {}
    rows: list[list[str | float]] = []
    for path in options.files:
        here = runs[path] = {name: [] for name in chosen}
        for _ in range(options.repeat):
            for name, command in chosen.items():
                here[name].append(run([*command, path], options.limit))
        answers = {one.answer for found in here.values() for one in found if one.answer}
        if len(answers) > 1:
            raise BenchmarkError(f"{path}: the answers differ: {here}")
        rows.append([Path(path).name.partition(".")[0], next(iter(answers), "none")[2:5]])
        rows[-1] += [round(statistics.median(one.wall_s for one in here[name]), 2) for name in chosen]
        print(*rows[-1], flush=True)
    sums = {
        name: sum(statistics.median(one.wall_s for one in runs[path][name]) for path in runs)
        for name in chosen
    }
    rows.append(["sum", "", *(round(total, 1) for total in sums.values())])
    print_table(f"wall seconds, medians of {options.repeat}", ("formula", "answer", *chosen), rows)
    print_ratios(sums)
    plain = {
        path: {name: [asdict(one) for one in found] for name, found in here.items()}
        for path, here in runs.items()
    }
    write_results("sat_hard", plain)


if __name__ == "__main__":
    main()
