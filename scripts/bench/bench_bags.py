"""Bags of tasks: the kernel, workers beside a plain loop, workers that come and go, and others' pools.

What is compared is measured in one run, best alone on the machine. Numba (the extra `fast`) is needed; Dask
and Ray are left out where they are not installed (`pip install 'dask[distributed]' ray`).
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import math
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import BenchmarkError, Service, print_absent, print_table, running_service

from mallob_bags.betweenness import BetweennessApplication
from mallob_bags.queens import QueensApplication
from mallob_bags.uts import UtsApplication
from mallob_py.kit import JobInput
from mallob_py.kit.bags import BagApplication

_BAGS = Path(__file__).parent / "bags"
_TREES: dict[str, dict[str, Any]] = {
    "fixed, depth 12": {"depth": 12},
    "T5 (linear)": {"shape": "linear", "depth": 20, "seed": 34},
    "T2 (cyclic)": {"shape": "cyclic", "depth": 16, "branching": 6, "seed": 502},
    "T3 (binomial)": {"type": "binomial", "branching": 2000, "q": 0.124875, "m": 8, "seed": 42},
}
#: nodes, edges or boards between two looks at how far a bag is: some milliseconds
_STEP = 400_000


def loop_s(
    application: BagApplication, configuration: dict[str, Any], step: int = _STEP
) -> tuple[float, Any]:
    """How long a bag takes in a plain loop, and its result."""
    payload = application.read(JobInput(configuration=configuration))
    bag = application.first_bag(payload, configuration)
    begin_s = time.perf_counter()
    while not bag.is_empty():
        bag.process(step)
    result = bag.take_result()
    return time.perf_counter() - begin_s, result


def _two_loops_s(application: BagApplication, configuration: dict[str, Any]) -> float:
    """How long two take side by side: what the two cores can do."""
    with multiprocessing.get_context("fork").Pool(2) as pool:
        both = [pool.apply_async(loop_s, (application, configuration)) for _ in range(2)]
        return max(each.get()[0] for each in both)


def kernels() -> None:
    """Million nodes of UTS per second on one core."""
    rows = []
    for name, configuration in _TREES.items():
        runs = [loop_s(UtsApplication(), configuration) for _ in range(3)]
        nodes = runs[0][1][0]
        rows.append((name, nodes, f"{nodes / min(s for s, _ in runs) / 1e6:.1f}"))
    script = (
        "import sys; sys.modules['numba'] = None; sys.path.insert(0, sys.argv[1]);"
        "import bench_bags; s, (nodes, *_) = bench_bags.loop_s(bench_bags.UtsApplication(), {'depth': 11});"
        "print(nodes, nodes / s / 1e6)"
    )
    command = [sys.executable, "-c", script, str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    nodes_text, rate = done.stdout.split()
    rows.append(("fixed, depth 11, by NumPy without Numba", int(nodes_text), f"{float(rate):.1f}"))
    begin_s = time.perf_counter()
    nodes = _by_hashlib(depth=11)
    rows.append(
        (
            "fixed, depth 11, a loop over hashlib",
            nodes,
            f"{nodes / (time.perf_counter() - begin_s) / 1e6:.1f}",
        )
    )
    print_table("The kernel on one core", ("tree", "nodes", "million nodes/s"), rows)


def _by_hashlib(depth: int) -> int:
    scale, sha1 = math.log(4 / 5), hashlib.sha1
    stack, nodes = [(sha1(bytes(16) + (19).to_bytes(4, "big")).digest(), depth)], 0
    while stack:
        state, below = stack.pop()
        nodes += 1
        v = int.from_bytes(state[16:], "big") & 0x7FFFFFFF
        children = int(math.log(1 - v / 2**31) / scale)
        if below == 1:
            nodes += children
        else:
            stack += [(sha1(state + i.to_bytes(4, "big")).digest(), below - 1) for i in range(children)]
    return nodes


def workers() -> None:
    """One and two workers of a service of two ranks beside a plain loop, and beside two of those."""
    rows = []
    cases: tuple[tuple[BagApplication, dict[str, Any]], ...] = (
        (UtsApplication(), {"depth": 14}),
        (QueensApplication(), {"n": 15}),
        (BetweennessApplication(), {"n": 13}),
    )
    with running_service(2, ["--preload", *(application.name for application, _ in cases)]) as service:
        for application, configuration in cases:
            loops_s, pairs_s, ones_s, twos_s = [], [], [], []
            for _ in range(2):
                loops_s.append(loop_s(application, configuration)[0])
                ones_s.append(_job_s(service, application.name, configuration, max_demand=1))
                twos_s.append(_job_s(service, application.name, configuration, max_demand=2))
                pairs_s.append(_two_loops_s(application, configuration))
            loop, pair, one, two = map(min, (loops_s, pairs_s, ones_s, twos_s))
            what = f"{application.name} {json.dumps(configuration)}"
            rows.append(
                (what, loop, one, f"{one / loop:.3f}", two, f"{one / two:.3f}", f"{2 * loop / pair:.3f}")
            )
    header = (
        "job",
        "plain loop, s",
        "1 worker, s",
        "/ loop (<= 1.03)",
        "2 workers, s",
        "speedup (>= 1.95)",
        "of 2 loops",
    )
    print_table("Workers, from the job's start to its end", header, rows)


_numbers: Iterator[int] = iter(range(10**9))


def _job(application: str, configuration: dict[str, Any], **fields: Any) -> dict[str, Any]:
    name = f"{application.lower()}-{next(_numbers)}"
    return {
        "user": "bench",
        "name": name,
        "application": application,
        "configuration": configuration,
        **{key.replace("_", "-"): value for key, value in fields.items()},
    }


def _job_s(service: Service, application: str, configuration: dict[str, Any], max_demand: int) -> float:
    job = service.drop(_job(application, configuration, max_demand=max_demand))
    service.await_reply(job, timeout_s=180, poll_s=0.01)
    reply = service.reply(job)
    if reply["result"]["resultstring"] != "DONE":
        raise BenchmarkError(f"{job.identity}: {reply}")
    return float(reply["stats"]["time"]["processing"])


def starts(times: int = 20) -> None:
    """How long a worker that joins is without tasks."""
    waits_ms = []
    with tempfile.TemporaryDirectory(prefix="mallob-py-bench.") as name:
        folder = Path(name)
        os.environ |= {
            "PYTHONPATH": str(_BAGS),
            "MALLOB_PY_APPS": "WATCHED=watched:WatchedApplication",
            "MALLOB_PY_BENCH_FOLDER": name,
        }
        with running_service(2) as service:
            for _ in range(times):
                _job_s(service, "WATCHED", {"depth": 13}, max_demand=2)
                notes = sorted(_notes(folder))
                if len(notes) == 2 and all(works_s < math.inf for _, works_s in notes):
                    starts_s, works_s = notes[1]
                    waits_ms.append((works_s - max(starts_s, notes[0][1])) * 1e3)
    if not waits_ms:
        raise BenchmarkError("no worker joined")
    row = (len(waits_ms), f"{statistics.median(waits_ms):.1f}", f"{max(waits_ms):.1f}")
    print_table(
        "A worker that joins: from its start, the first one being at work, to its first tasks",
        ("workers", "median, ms (<= 5)", "max, ms"),
        [row],
    )


def _notes(folder: Path) -> Iterator[tuple[float, float]]:
    """When each worker started and had its first tasks. Takes them away."""
    for file in list(folder.iterdir()):
        at_s = {word: float(text) for word, text in map(str.split, file.read_text().splitlines())}
        yield at_s["starts"], at_s.get("works", math.inf)
        file.unlink()


def breathing() -> None:
    """A job on 8 ranks, of which others take 7 for 200 ms each time."""
    with running_service(8) as service:
        job = service.drop(_job("UTS", {"depth": 14}, priority=0.01))
        ended = threading.Event()
        changes = 0
        while not ended.wait(0.2) and not job.reply_path.exists():
            other = service.drop(_job("SLEEP", {}, max_demand=7, wallclock_limit="200ms"))
            service.await_reply(other, poll_s=0.005)
            changes += 2
        result = service.reply(job)["result"]
    share = result["tasks_in_vain"] / result["tasks"]
    row = (changes, result["tasks"], result["tasks_in_vain"], f"{share:.2%}")
    print_table(
        "UTS depth 14 while its volume changes between 1 and 8 every 200 ms",
        ("changes", "nodes", "in vain", "share (< 3 %)"),
        [row],
    )


def peers(depth: int = 14) -> None:
    """The same tree by others' pools of two processes, cut into 1000 pieces beforehand."""
    with running_service(2) as service:
        ours_s = min(_job_s(service, "UTS", {"depth": depth}, max_demand=2) for _ in range(3))
    rows: list[tuple[str, float, str]] = [("mallob-py, 2 workers", ours_s, "1.00")]
    python, script = sys.executable, str(_BAGS / "peers.py")
    mpiexec = str(Path(python).parent / "mpiexec")
    commands = {
        "pool": ("multiprocessing", [python, script]),
        "dask": ("distributed", [python, script]),
        "ray": ("ray", [python, script]),
        "mpi4py.futures": ("mpi4py", [mpiexec, "-n", "3", python, "-m", "mpi4py.futures", script]),
    }
    for peer, (module, command) in commands.items():
        if importlib.util.find_spec(module) is None:
            print_absent(peer, f"pip install {module}")
            continue
        done = subprocess.run([*command, peer, str(depth)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BenchmarkError(f"{peer} ended with {done.returncode}: {done.stderr[-500:]}")
        took_s = float(done.stdout.split()[0])
        rows.append((peer, took_s, f"{took_s / ours_s:.2f}"))
    print_table(f"UTS depth {depth} on two processes", ("who", "s", "/ ours"), rows)


PARTS = {part.__name__: part for part in (kernels, workers, starts, breathing, peers)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all)")
    chosen = parser.parse_args().parts
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"no part is called {', '.join(unknown)}: there are {', '.join(PARTS)}")
    for name in chosen or PARTS:
        PARTS[name]()


if __name__ == "__main__":
    main()
