"""Many small formulas at once: the running service beside pools of processes.

All formulas are handed in at the same moment; the clock stops with the last answer. Everybody
stands ready before: the service is running, the pools' processes have imported PySAT and solved a
formula. The pools solve with one of PySAT's solvers, CaDiCaL 1.9.5 unless `--solver` names another; the
service chooses by itself, which is ergo for small formulas drawn by lot. The arms take turns, and every
answer is compared with those of the others.

    python scripts/bench/sat/batch.py --repeat 5 --peers-python peers/bin/python data/batch100/*.cnf
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from common import BenchmarkError, Service, print_absent, print_table, running_service, write_results

#: solves a batch: seconds, and for each formula whether it is satisfiable
Arm = Callable[[Sequence[str]], tuple[float, list[bool]]]

_PATIENCE_S = 600.0
#: a batch takes minutes, and the pools' master does not look all the time
_REPLY_POLL_S = 0.02
_POOLS = ("processes", "dask", "ray")
_POOL_SCRIPT = str(Path(__file__).with_name("pools.py"))


def of_service(service: Service) -> Arm:
    batches = 0

    def solve(files: Sequence[str]) -> tuple[float, list[bool]]:
        nonlocal batches
        batches += 1
        prepared = [
            service.prepare({"user": "bench", "name": f"{batches}-{n}", "files": [file]})
            for n, file in enumerate(files)
        ]
        begin_s = time.monotonic()
        jobs = [each.drop() for each in prepared]
        for job in jobs:
            service.await_reply(job, _PATIENCE_S, _REPLY_POLL_S)
        wall_s = time.monotonic() - begin_s
        return wall_s, [service.reply(job)["result"]["resultcode"] == 10 for job in jobs]

    return solve


@contextmanager
def pool(python: str, kind: str, size: int, solver: str) -> Iterator[Arm]:
    """A pool in a process of its own: files in a line of JSON, seconds and answers in another."""
    command = [python, _POOL_SCRIPT, kind, str(size), solver]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def solve(files: Sequence[str]) -> tuple[float, list[bool]]:
            stdin.write(json.dumps(files) + "\n")
            stdin.flush()
            line = stdout.readline()
            if not line:
                raise BenchmarkError(f"the pool of {kind} died")
            wall_s, answers = json.loads(line)
            return wall_s, answers

        yield solve
        stdin.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="batches of each (default 3)")
    parser.add_argument("--size", type=int, default=2, metavar="N", help="processes and ranks (default 2)")
    parser.add_argument(
        "--peers-python", default=sys.executable, help="an interpreter that has dask, ray and python-sat"
    )
    parser.add_argument(
        "--solver",
        default="cadical195",
        metavar="NAME",
        help="what the pools solve with (default cadical195)",
    )
    options = parser.parse_args()
    files = [str(Path(file).resolve()) for file in options.files]
    with ExitStack() as stack:
        arms = {
            f"service, {options.size} ranks": of_service(stack.enter_context(running_service(options.size)))
        }
        for kind in _POOLS:
            module = {"processes": "pysat"}.get(kind, kind)
            probe = [options.peers_python, "-c", f"import {module}"]
            if subprocess.run(probe, capture_output=True).returncode:
                print_absent(kind, f"pip install {module}")
            else:
                arms[kind] = stack.enter_context(
                    pool(options.peers_python, kind, options.size, options.solver)
                )
        seconds: dict[str, list[float]] = {name: [] for name in arms}
        expected: list[bool] | None = None
        for solve in arms.values():
            solve(files[: 2 * options.size])
        for _ in range(options.repeat):
            for name, solve in arms.items():
                wall_s, answers = solve(files)
                if answers != (expected := expected or answers):
                    raise BenchmarkError(f"{name} has other answers")
                seconds[name].append(wall_s)
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    base = medians.get("processes")
    rows = [
        (name, median, min(seconds[name]), max(seconds[name]), median / base if base else None)
        for name, median in medians.items()
    ]
    title = (
        f"{len(files)} formulas, wall seconds of {options.repeat} batches; pools solve with {options.solver}"
    )
    print_table(title, ("", "median", "least", "most", "to processes"), rows)
    write_results("sat_batch", seconds)


if __name__ == "__main__":
    main()
