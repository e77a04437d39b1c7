"""Compare this checkout with another commit: run both alternately, never at once, and report what is worse.

    make compare BASE=v0.1.0                 all measures, about ten minutes
    make compare BASE=v0.1.0 ONLY="noop-4 burst-500"

The other commit (the base) is checked out and installed below `build/compare/`, and kept there for later
comparisons. A measure is repeated on both trees alternately (A B, B A, ...), until the interval of each of
its ratios is within 5 %, or its share of the time is used up. A ratio is the geometric mean of HEAD / base
over all rounds, with Student's 95 % interval. Smaller values are better for all measures; `worse` and
`better` are printed only if the whole interval differs from 1 by more than 1 %. The exit code is 1 if
anything is worse. Counts (system calls, wake-ups) hardly depend on other programs; times do, so the machine
should be idle.
"""

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

from common import BenchmarkError, write_results
from compared import MEASURES, Measure, Tree

from mallob_py.runtime.processes import python
from mallob_py.text_table import format_table

_ROOT = Path(__file__).resolve().parents[2]
_FOLDER = _ROOT / "build" / "compare"
#: Student's t for 95 %; the index is the degrees of freedom
_T = (math.inf, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
_PRECISE = 0.05
#: relative difference up to which two values count as equal
_SAME = 0.01

Rounds = list[tuple[dict[str, float], dict[str, float]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("base", metavar="COMMIT")
    parser.add_argument("--only", nargs="+", choices=list(MEASURES), metavar="M", help=", ".join(MEASURES))
    parser.add_argument(
        "--limit", type=float, default=600.0, metavar="S", help="seconds for all measures (600)"
    )
    options = parser.parse_args()
    commit = _git("rev-parse", "--verify", f"{options.base}^{{commit}}")
    trees = (_installed(_checkout(commit), commit[:12]), _installed(_ROOT, "head"))
    names = options.only or list(MEASURES)
    rows, results, worse = list[Sequence[object]](), dict[str, object](), list[str]()
    begin_s = time.monotonic()
    for at, name in enumerate(names):
        left_s = options.limit - (time.monotonic() - begin_s)
        try:
            rounds = _in_turns(MEASURES[name], trees, left_s / (len(names) - at))
        except (BenchmarkError, subprocess.SubprocessError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            worse.append(f"{name} (failed)")
            continue
        results[name] = [dict(zip(("base", "head"), each, strict=True)) for each in rounds]
        for quantity in rounds[0][0]:
            row, is_worse = _row(name, quantity, rounds)
            rows.append(row)
            if is_worse:
                worse.append(f"{name} {quantity}")
        print(
            f"{name}: {len(rounds)} rounds, {time.monotonic() - begin_s:.0f} s", file=sys.stderr, flush=True
        )
    print(format_table(("measure", "quantity", commit[:8], "HEAD", "ratio", "interval", ""), rows))
    print(f"\nworse: {', '.join(worse) or 'nothing'}")
    write_results("compare", {"base": commit, "rounds": results})
    sys.exit(1 if worse else 0)


def _in_turns(measure: Measure, trees: tuple[Tree, Tree], limit_s: float) -> Rounds:
    rounds: Rounds = []
    begin_s = time.monotonic()
    while True:
        base, head = trees
        if len(rounds) % 2:
            second = measure.run(head)
            first = measure.run(base)
        else:
            first, second = measure.run(base), measure.run(head)
        rounds.append((first, second))
        each_s = (time.monotonic() - begin_s) / len(rounds)
        is_over = time.monotonic() - begin_s + each_s > limit_s
        if len(rounds) >= measure.rounds and (is_over or _is_precise(rounds) or len(rounds) == len(_T)):
            return rounds
        if is_over and len(rounds) >= 2 and each_s * measure.rounds > 2 * limit_s:
            return rounds


def _is_precise(rounds: Rounds) -> bool:
    return all(_ratio(quantity, rounds)[1] <= math.log1p(_PRECISE) for quantity in rounds[0][0])


def _ratio(quantity: str, rounds: Rounds) -> tuple[float, float]:
    """Return the mean logarithm of HEAD / base, and half the length of its interval."""
    logs = [
        math.log(head[quantity] / base[quantity])
        for base, head in rounds
        if base.get(quantity, 0.0) > 0.0 and head.get(quantity, 0.0) > 0.0
    ]
    if len(logs) < 2:
        return (logs[0] if logs else 0.0), math.inf
    return fmean(logs), _T[len(logs) - 1] * stdev(logs) / math.sqrt(len(logs))


def _row(name: str, quantity: str, rounds: Rounds) -> tuple[Sequence[object], bool]:
    ratio, half = _ratio(quantity, rounds)
    base, head = (fmean(each[tree].get(quantity, 0.0) for each in rounds) for tree in (0, 1))
    interval = f"{math.exp(ratio - half):.2f} .. {math.exp(ratio + half):.2f}" if half < 3.0 else "one round"
    is_worse, is_better = ratio - half > _SAME, ratio + half < -_SAME
    word = "worse" if is_worse else "better" if is_better else ""
    row = (name, quantity, f"{base:.4g}", f"{head:.4g}", f"{math.exp(ratio):.2f}", interval, word)
    return row, is_worse


def _checkout(commit: str) -> Path:
    folder = _FOLDER / commit[:12]
    if not folder.exists():
        _git("worktree", "prune")
        _git("worktree", "add", "--detach", str(folder), commit)
    return folder


def _installed(root: Path, name: str) -> Tree:
    """Install the tree into an environment of its own that has only its requirements and MPI."""
    environment = _FOLDER / f"{name}.venv"
    stamp, project = environment / "pyproject.toml", (root / "pyproject.toml").read_text()
    tree = Tree(name, environment / "bin" / "python")
    if not stamp.exists() or stamp.read_text() != project:
        print(f"installing {name} ...", file=sys.stderr, flush=True)
        inner = [str(tree.interpreter), "-P", "-m"]
        for command in (
            [*python(), "-m", "venv", str(environment)],
            [*inner, "pip", "install", "--quiet", "--editable", f"{root}[mpich]", "cloudpickle"],
        ):
            subprocess.run(command, check=True)
        stamp.write_text(project)
    # Otherwise each start would compile the modules that have changed, if PYTHONDONTWRITEBYTECODE is set.
    folders = [str(root / folder) for folder in ("mallob_py", "apps")]
    subprocess.run([tree.interpreter, "-P", "-m", "compileall", "-q", *folders], check=True)
    return tree


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(_ROOT), *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"compare: git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


if __name__ == "__main__":
    main()
