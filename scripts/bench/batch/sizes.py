"""Seconds to schedule 10^3 to 10^6 jobs by policy, and how they grow; beside AccaSim where it is installed.

    python scripts/bench/batch/sizes.py [--jobs 1000 10000 100000 1000000] [--policy easy ...] [--trace FILE]
        [--peer PYTHON]

Without a trace, jobs come from a generator with a seed: a machine of 256 nodes that is nearly full, so that
the queue is long. AccaSim (pip install accasim) plays the same trace by its EASY backfilling, to 10^3 jobs:
it would take hours with 10^6. Its seconds contain the start of its process. It may have an environment of its
own: `--peer /tmp/peer/bin/python`.

The last column is nanoseconds per n log2 n: where it does not grow, the cost grows by no more than that.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np

from mallob_py.batch.job import Workload
from mallob_py.batch.registry import policy_of
from mallob_py.batch.simulator import simulate
from mallob_py.batch.workload.swf import read_swf, workload_of
from mallob_py.runtime.processes import python as python_command
from mallob_py.text_table import format_table

NODES = 256
#: share of the machine that the generated jobs ask for
LOAD = 0.85
PEER_JOBS_MAX = 1_000
PEER_SECONDS_MAX = 100
_PEER_NAME = "AccaSim's EASY"

_PEER = """
import sys, collections, collections.abc
collections.Mapping = collections.abc.Mapping  # which AccaSim looks for where Python 3.9 had it
from accasim.base.simulator_class import Simulator
from accasim.base.scheduler_class import EASYBackfilling
from accasim.base.allocator_class import FirstFit
Simulator(sys.argv[1], sys.argv[2], EASYBackfilling(FirstFit()), RESULTS_FOLDER_PATH=sys.argv[3]
    ).start_simulation()
"""


def write_trace(path: Path, jobs: int, seed: int = 1) -> None:
    """Sizes are powers of two, run times log-normal, estimates up to five times as long."""
    random = np.random.default_rng(seed)
    sizes = 2 ** random.integers(0, 7, jobs)
    runs = np.ceil(np.minimum(random.lognormal(7.0, 1.5, jobs), 86_400.0)).astype(int)
    estimates = np.ceil(runs * random.uniform(1.0, 5.0, jobs)).astype(int)
    gap_s = (sizes * runs).mean() / (NODES * LOAD)
    submissions = np.cumsum(random.exponential(gap_s, jobs)).astype(int)
    with path.open("w", encoding="utf-8") as file:
        file.write(f"; MaxNodes: {NODES}\n; MaxProcs: {NODES}\n; UnixStartTime: 0\n")
        for number, (at, run, size, estimate) in enumerate(
            zip(submissions.tolist(), runs.tolist(), sizes.tolist(), estimates.tolist(), strict=True), 1
        ):
            file.write(f"{number} {at} -1 {run} {size} -1 -1 {size} {estimate} -1 1 1 1 1 1 1 -1 -1\n")


def seconds(workload: Workload, policy: str) -> float:
    first = msgspec.structs.replace(workload, jobs=workload.jobs[:100], truths=workload.truths[:100])
    simulate(first, policy_of(policy))  # what is compiled at first use is compiled now
    began_s = time.process_time()
    simulate(workload, policy_of(policy))
    return max(1e-9, time.process_time() - began_s)


def peer_seconds(python: str, trace: Path, folder: Path) -> float | None:
    """None: AccaSim is not installed, or did not end."""
    system = folder / "system.json"
    system.write_text(f'{{"groups": {{"g": {{"core": 1}}}}, "resources": {{"g": {NODES}}}}}')
    began_s = time.monotonic()
    try:
        done = subprocess.run(
            [python, "-I", "-c", _PEER, str(trace), str(system), str(folder)],
            capture_output=True,
            text=True,
            timeout=PEER_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        print(f"AccaSim: not done after {PEER_SECONDS_MAX} s", file=sys.stderr)
        return None
    if done.returncode:
        print(f"AccaSim: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    return time.monotonic() - began_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, nargs="+", default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--policy", nargs="+", default=["fcfs", "easy", "conservative", "fair"])
    parser.add_argument("--trace", type=Path, help="the first jobs of this one instead of generated ones")
    parser.add_argument("--peer", default=python_command()[0], help="the Python that has AccaSim")
    given = parser.parse_args()
    rows = list[tuple[str, int, float]]()
    names = ["loading", *given.policy, _PEER_NAME]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for jobs in given.jobs:
            trace = given.trace or folder / "generated.swf"
            if given.trace is None:
                write_trace(trace, jobs)
            began_s = time.process_time()
            workload = workload_of(read_swf(trace), rows=slice(jobs))
            rows.append(("loading", jobs, time.process_time() - began_s))
            for policy in given.policy:
                rows.append((policy, jobs, seconds(workload, policy)))
                print(f"{policy}, {jobs} jobs: done", file=sys.stderr)
            if (
                jobs <= PEER_JOBS_MAX
                and given.trace is None
                and (spent_s := peer_seconds(given.peer, trace, folder))
            ):
                rows.append((_PEER_NAME, jobs, spent_s))
    # Who was measured at several sizes stands in neighbouring rows.
    rows.sort(key=lambda row: (names.index(row[0]), row[1]))
    table = [
        (name, jobs, spent_s, jobs / spent_s / 1000, 1e9 * spent_s / (jobs * math.log2(jobs)))
        for name, jobs, spent_s in rows
    ]
    print(format_table(("policy", "jobs", "seconds", "10^3 jobs/s", "ns/(n log2 n)"), table))


if __name__ == "__main__":
    main()
