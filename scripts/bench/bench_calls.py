"""Calls of Python functions: an executor beside other pools of two processes, in turns in one run.

    python scripts/bench/bench_calls.py              # the pools that are installed
    python scripts/bench/bench_calls.py --users      # two users at once on two workers

Each pool is warm (it has done some calls) and is the only one that runs. Dask, Ray and joblib are left out
where they are not installed (`pip install 'dask[distributed]' ray joblib`). Each is used as usual: a task for
each call, `multiprocessing.Pool` with equal chunks.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
from common import print_absent, print_table, running_service

from mallob_py import Executor
from mallob_py.runtime.processes import import_places, python

PROCESSES = 2
#: a function that calls a function with each item
Map = Callable[[Callable[[Any], Any], list[Any]], Iterable[Any]]


def spin(seconds: float) -> None:
    """Use a core for this time."""
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        pass


def ten_microseconds(_: Any) -> int:
    spin(1e-5)
    return 1


def millisecond(_: Any) -> int:
    spin(1e-3)
    return 1


def array_of_a_megabyte(array: Any) -> Any:
    spin(1e-2)
    return array


def two_seconds(_: Any) -> int:
    spin(2.0)
    return 1


def numbers(count: int) -> list[Any]:
    return [0] * count


def arrays(count: int) -> list[Any]:
    """Return new arrays at each call, since pickle sends a repeated array only once."""
    base = np.zeros((1 << 17) + count)
    return [base[begin : begin + (1 << 17)] for begin in range(count)]


#: kinds of calls by their names on the command line: number, function, items, printed text
KINDS: dict[str, tuple[int, Callable[[Any], Any], Callable[[int], list[Any]], str]] = {
    "10us": (100_000, ten_microseconds, numbers, "10 us"),
    "1ms": (10_000, millisecond, numbers, "1 ms"),
    "arrays": (1000, array_of_a_megabyte, arrays, "10 ms, 1 MB"),
    "2s": (4, two_seconds, numbers, "2 s"),
}


def workloads(kinds: list[str], share: float) -> dict[str, tuple[Callable[[Any], Any], list[Any]]]:
    """Return function and items by name; `share` of the calls, but all calls of 2 s."""
    chosen = {}
    for kind in kinds:
        calls, function, items, text = KINDS[kind]
        number = calls if kind == "2s" else int(calls * share)
        chosen[f"{number:,} of {text}"] = function, items(number)
    return chosen


@contextmanager
def mallob() -> Iterator[Map]:
    with Executor(ranks=PROCESSES) as executor:
        yield lambda function, items: executor.map(function, items)


@contextmanager
def pool() -> Iterator[Map]:
    with multiprocessing.Pool(PROCESSES) as processes:
        yield lambda function, items: processes.map(
            function, items, chunksize=max(1, len(items) // PROCESSES if len(items) > 4 else 1)
        )


@contextmanager
def futures() -> Iterator[Map]:
    with ProcessPoolExecutor(PROCESSES) as executor:
        yield lambda function, items: executor.map(function, items, chunksize=max(1, len(items) // 64))


@contextmanager
def dask() -> Iterator[Map]:
    from distributed import Client

    with Client(n_workers=PROCESSES, threads_per_worker=1, dashboard_address=None) as client:
        yield lambda function, items: client.gather(client.map(function, items, pure=False))


@contextmanager
def ray() -> Iterator[Map]:
    os.environ |= {"RAY_worker_niceness": "0"}
    import ray as library

    library.init(num_cpus=PROCESSES, include_dashboard=False, log_to_driver=False)
    yield lambda function, items: library.get([library.remote(function).remote(item) for item in items])
    library.shutdown()


@contextmanager
def loky() -> Iterator[Map]:
    from joblib import Parallel, delayed

    with Parallel(n_jobs=PROCESSES, backend="loky") as parallel:
        yield lambda function, items: parallel(delayed(function)(item) for item in items)


PEERS: dict[str, tuple[str, Callable[[], Any]]] = {
    "mallob-py": ("mallob_py", mallob),
    "Pool": ("multiprocessing", pool),
    "concurrent.futures": ("concurrent", futures),
    "joblib/loky": ("joblib", loky),
    "Dask": ("distributed", dask),
    "Ray": ("ray", ray),
}


def be_peer(name: str, kinds: list[str], share: float) -> None:
    """Measure one pool in this process; print the seconds of each workload in JSON."""
    with PEERS[name][1]() as mapped:
        list(mapped(millisecond, [0] * 100))
        took = {}
        for workload, (function, items) in workloads(kinds, share).items():
            begin_s = time.perf_counter()
            count = sum(1 for _ in mapped(function, items))
            took[workload] = time.perf_counter() - begin_s
            assert count == len(items)
    print("RESULT " + json.dumps(took), flush=True)


def compare(names: list[str], kinds: list[str], share: float, rounds: int) -> None:
    took: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            command = [*python(), __file__, "--peer", name, "--share", str(share), "--calls", *kinds]
            output = subprocess.run(
                command, env=os.environ | import_places(), capture_output=True, text=True, check=True
            ).stdout
            line = next(line for line in output.splitlines() if line.startswith("RESULT "))
            took[name].append(json.loads(line.removeprefix("RESULT ")))
            print(name, took[name][-1], file=sys.stderr, flush=True)
    rows = []
    for workload in workloads(kinds, share):
        ours = min(each[workload] for each in took[names[0]])
        best = [min(each[workload] for each in took[name]) for name in names]
        rows.append([workload, *(f"{one:.2f} s ({one / ours:.2f})" for one in best)])
    print_table(f"Best of {rounds} rounds in turns (and as a multiple of ours)", ["calls", *names], rows)


def users() -> None:
    """Run 400 calls of 10 ms for each of two users on two workers; the second user begins a little later."""
    rows = []
    with running_service(PROCESSES, ["--preload", "CALLS"]) as service:
        for _ in range(3):
            ends: dict[str, float] = {}

            def use(name: str, results: Any, ends: dict[str, float] = ends) -> None:
                sum(1 for _ in results)
                ends[name] = time.perf_counter()

            with Executor(service.api_dir, user="a") as one, Executor(service.api_dir, user="b") as two:
                begin_s = time.perf_counter()
                items = [np.zeros(1)] * 400
                first = threading.Thread(target=use, args=("a", one.map(array_of_a_megabyte, items)))
                second = threading.Thread(target=use, args=("b", two.map(array_of_a_megabyte, items)))
                first.start()
                second.start()
                first.join()
                second.join()
            rows.append([f"{ends['a'] - begin_s:.2f} s", f"{ends['b'] - begin_s:.2f} s"])
    print_table("Two users at once, 4 s of work each on two workers: until each has all", ["a", "b"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--peer", choices=PEERS)
    parser.add_argument("--share", type=float, default=1.0, help="of the calls (default 1)")
    parser.add_argument("--calls", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--users", action="store_true")
    options = parser.parse_args()
    if options.peer is not None:
        be_peer(options.peer, options.calls, options.share)
        return
    if options.users:
        users()
        return
    for name in [name for name in options.only if importlib.util.find_spec(PEERS[name][0]) is None]:
        print_absent(name, f"pip install {PEERS[name][0]}")
        options.only.remove(name)
    compare(options.only, options.calls, options.share, options.rounds)


if __name__ == "__main__":
    main()
