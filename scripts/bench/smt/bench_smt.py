"""SMT scripts: `run SMT` with one worker and `solve` with three, beside the engines' own commands.

On each script, each engine's own command runs first, then ours with one worker, then ours with three; the
best of several rounds counts. One worker is compared with the own command of the engine that answered, by
processor time (of the job and of the command: wall times are unreliable on a busy machine). Three workers are
compared with the best command, by wall time, and need three cores. An answer that contradicts another one, or
the script's `:status`, ends the benchmark.

    python scripts/bench/smt/bench_smt.py --limit 30 --rounds 2 *.smt2
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mallob_py.runtime.processes import python

_PEER = Path(__file__).parent / "peer.py"
_ENGINES = ("z3", "cvc5", "bitwuzla")
#: the extra time to start several ranks instead of one process
_START_S = 0.4
_STATUS = re.compile(r"\(set-info\s+:status\s+(sat|unsat|unknown)\s*\)")


class Contradiction(Exception):
    """Two contradictory answers to one script."""


@dataclass(frozen=True)
class Run:
    """A run. `word` is the last answer, "" without one; `engine` gave it; wall and processor time."""

    word: str
    engine: str
    seconds: float
    cpu_s: float

    @property
    def is_answer(self) -> bool:
        return self.word in ("sat", "unsat")


def _timed(command: Sequence[str], limit_s: float) -> tuple[str, float, float]:
    """Return the output of a command, wall and processor time."""
    begin_s, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
        printed = done.stdout
    except subprocess.TimeoutExpired:
        printed = ""
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return printed, time.monotonic() - begin_s, cpu_s


def own_command(engine: str, path: Path, limit_s: float) -> Run:
    """Run the engine alone."""
    z3 = shutil.which("z3", path=str(Path(sys.executable).parent)) or "z3"
    command = [z3, "-smt2"] if engine == "z3" else [*python(), str(_PEER), engine]
    printed, seconds, cpu_s = _timed([*command, str(path)], limit_s)
    is_void = "(error" in printed.partition("sat")[0]
    return Run("" if is_void else _last_word(printed), engine, seconds, cpu_s)


def one_worker(path: Path, limit_s: float) -> Run:
    """Run this package with all engines in turn; the reply contains the job's processor time."""
    command = [*python(), "-m", "mallob_py", "run", "SMT", "-n", "1", "--time-limit", f"{limit_s}s"]
    printed, seconds, _ = _timed([*command, str(path)], limit_s + 20)
    if not printed:
        return Run("", "", seconds, 0.0)
    reply = json.loads(printed)
    words = reply["result"].get("answers", [])
    cpu_s = reply["stats"]["used_cpu_seconds"]
    return Run(words[-1] if words else "", reply["result"].get("solver", ""), seconds, cpu_s)


def three_workers(path: Path, limit_s: float) -> Run:
    """Run this package with all engines in parallel."""
    command = [*python(), "-m", "mallob_py", "solve", "-n", "3", "--time-limit", f"{limit_s}s"]
    printed, seconds, cpu_s = _timed([*command, str(path)], limit_s + 20)
    return Run(_last_word(printed), "", seconds, cpu_s)


def _last_word(printed: str) -> str:
    words = [line for line in printed.split("\n") if line in ("sat", "unsat", "unknown")]
    return words[-1] if words else ""


def _best(runs: Sequence[Run], time_of: Callable[[Run], float]) -> Run:
    return min(runs, key=lambda run: (not run.is_answer, time_of(run)))


def _cpu_s(run: Run) -> float:
    return run.cpu_s


def _wall_s(run: Run) -> float:
    return run.seconds


def _check(path: Path, runs: Sequence[Run]) -> None:
    status = _STATUS.search(path.read_text(errors="replace"))
    words = {run.word for run in runs if run.is_answer}
    if status is not None:
        words.add(status.group(1))
    if {"sat", "unsat"} <= words:
        raise Contradiction(f"{path}: {runs}")


def _cell(run: Run, seconds: float) -> str:
    return f"{seconds:.2f}" if run.is_answer else "-"


def _row(path: Path, runs: Mapping[str | int, Sequence[Run]]) -> list[str]:
    by_cpu = {name: _best(each, _cpu_s) for name, each in runs.items()}
    one = by_cpu[1]
    own = by_cpu.get(one.engine.partition("(")[0])
    ratio = f"{one.cpu_s / own.cpu_s:.2f}" if own is not None and own.is_answer and one.is_answer else "-"
    first = _best([run for engine in _ENGINES for run in runs[engine]], _wall_s)
    three = _best(runs[3], _wall_s)
    both = first.is_answer and three.is_answer
    over = f"{three.seconds / (first.seconds + _START_S):.2f}" if both else "-"
    cells = [_cell(by_cpu[name], by_cpu[name].cpu_s) for name in (*_ENGINES, 1)]
    walls = [_cell(first, first.seconds), _cell(three, three.seconds)]
    return [path.name, *cells, one.engine or "-", ratio, *walls, over]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--limit", type=float, default=20.0, metavar="S")
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    print(
        f"load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores; CPU s, the last three: wall"
    )
    print("| script | z3 | cvc5 | bitwuzla | 1 worker | by | ratio | best | 3 workers | over best + 0.4 s |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for path in given.files:
        runs: dict[str | int, list[Run]] = {name: [] for name in (*_ENGINES, 1, 3)}
        for _ in range(given.rounds):
            for engine in _ENGINES:
                runs[engine].append(own_command(engine, path, given.limit))
            runs[1].append(one_worker(path, given.limit))
            runs[3].append(three_workers(path, given.limit))
        _check(path, [run for each in runs.values() for run in each])
        print(f"| {' | '.join(_row(path, runs))} |", flush=True)


if __name__ == "__main__":
    main()
