"""A pool of processes that solve formulas with PySAT, for `batch.py`: python pools.py KIND SIZE SOLVER.

Reads a JSON list of files from each line of its input and prints the seconds that the pool took
and the answers.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from peer import pysat

#: whether the formula in a file is satisfiable
Decide = Callable[[str], bool]


def is_satisfiable(solver: str, file: str) -> bool:
    return pysat(solver, Path(file))


def processes(size: int, decide: Decide) -> Callable[[list[str]], list[bool]]:
    pool = multiprocessing.Pool(size)
    return lambda files: pool.map(decide, files, chunksize=1)


def dask(size: int, decide: Decide) -> Callable[[list[str]], list[bool]]:
    from dask.distributed import Client

    client = Client(n_workers=size, threads_per_worker=1, dashboard_address=None)
    return lambda files: list(client.gather(client.map(decide, files, pure=False)))


def ray(size: int, decide: Decide) -> Callable[[list[str]], list[bool]]:
    import ray

    ray.init(num_cpus=size, include_dashboard=False, log_to_driver=False)
    task = ray.remote(lambda file: decide(file))  # it takes functions only
    return lambda files: list(ray.get([task.remote(file) for file in files]))


def main() -> None:
    kind, size, solver = sys.argv[1:]
    pool = {"processes": processes, "dask": dask, "ray": ray}[kind]
    solve = pool(int(size), partial(is_satisfiable, solver))
    for line in sys.stdin:
        files = json.loads(line)
        begin_s = time.monotonic()
        answers = solve(files)
        print(json.dumps([time.monotonic() - begin_s, answers]), flush=True)


if __name__ == "__main__":
    main()
