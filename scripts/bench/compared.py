"""The measures of `compare.py`: each function runs one round of a measure on one tree.

A measure takes a tree and returns name of a quantity -> value. Smaller values are better for all quantities.
For both trees, this process writes job files before the clock starts, and then renames them into place.
"""

import os
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

from common import BenchmarkError, DroppedJob, Service, running_service
from footprint import Footprint, SystemCalls
from latencies import Timeline
from processes import everyone_below, memory

#: file systems on which an api folder is measured
TMPFS, DISK = Path("/dev/shm"), Path(os.environ.get("TMPDIR", "/var/tmp"))
_SETTLE_S, _IDLE_SETTLE_S, _IDLE_S = 0.7, 3.0, 4.0
_PAUSE_S = 0.004
_LOOK_S = 0.0005
_TREE_PES = 16
_FORMULAS = 60
_PATIENCE_S = 300.0

_CALLS = """
import sys, time
import numpy as np
from mallob_py import Executor

def spin(seconds):
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        pass
    return 1

def bump(array):
    array = array + 1
    return array

begin_s = time.perf_counter()
with Executor(ranks=2) as executor:
    executor.submit(spin, 0.0).result()
    print("start", time.perf_counter() - begin_s)
    list(executor.map(spin, [0.0] * 2000))
    for name, function, items in (
        ("10us", spin, [1e-5] * 100_000),
        ("1ms", spin, [1e-3] * 2000),
        ("10ms", spin, [1e-2] * 400),
        ("arrays", bump, [np.full(1 << 17, float(number)) for number in range(200)]),
    ):
        begin_s = time.perf_counter()
        for _ in executor.map(function, items):
            pass
        print(name, time.perf_counter() - begin_s)
"""


@dataclass(frozen=True)
class Tree:
    """A checkout, installed into an environment of its own."""

    name: str
    interpreter: Path

    def run(self, *arguments: str) -> tuple[float, float, str]:
        """Run the tree's Python to its end; return wall seconds, CPU seconds with children, and output."""
        before, begin_s = os.times(), time.monotonic()
        with tempfile.TemporaryDirectory(prefix="mallob-py-compare.") as folder:
            done = subprocess.run(
                [self.interpreter, "-P", *arguments],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=_PATIENCE_S,
            )
        took_s, after = time.monotonic() - begin_s, os.times()
        if done.returncode not in (0, 10, 20):
            raise BenchmarkError(f"{self.name}: {' '.join(arguments)}: {done.stderr.strip()[-300:]}")
        cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
        return took_s, cpu_s, done.stdout


@contextmanager
def warm_service(tree: Tree, ranks: int, folder: Path = TMPFS) -> Iterator[Service]:
    with running_service(ranks, interpreter=str(tree.interpreter), parent=folder) as service:
        service.await_reply(service.drop(noop("first")))
        time.sleep(_SETTLE_S)
        yield service


def noop(name: str) -> dict[str, Any]:
    return {"user": "bench", "name": name, "application": "NOOP"}


def _sat(name: str) -> dict[str, Any]:
    return {"user": "bench", "name": name, "application": "SAT", "literals": [1, 2, 0, -1, 0]}


def one_by_one(make: Callable[[str], dict[str, Any]], ranks: int, count: int, tree: Tree) -> dict[str, float]:
    """Measure jobs one at a time, each from the rename of its file until its reply is seen."""
    with warm_service(tree, ranks) as service:
        latencies(service, make, "warm", 20)
        footprint = Footprint(service.process.pid)
        latencies_s = sorted(latencies(service, make, "job", count))
        cost = footprint.per(count)
        with SystemCalls(service.process.pid) as calls:
            latencies(service, make, "traced", 20)
    tail_s = latencies_s[int(0.9 * count)]
    return {"wall ms": 1e3 * median(latencies_s), "p90 ms": 1e3 * tail_s, **cost, **calls.per(20)}


def latencies(service: Service, make: Callable[[str], dict[str, Any]], name: str, count: int) -> list[float]:
    latencies_s = []
    for number in range(count):
        latencies_s.append(service.await_reply(service.drop(make(f"{name}-{number}"))))
        time.sleep(_PAUSE_S)
    return latencies_s


def burst(jobs: int, folder: Path, tree: Tree) -> dict[str, float]:
    """Measure NOOP jobs that are submitted at once, until the last reply."""
    with warm_service(tree, 4, folder) as service:
        drop_at_once(service, "warm", 50)
        footprint = Footprint(service.process.pid)
        took_s = drop_at_once(service, "burst", jobs)
        cost = footprint.per(jobs)
        if jobs != 500:
            return {"wall ms": 1e3 * took_s / jobs, **cost}
        with SystemCalls(service.process.pid) as calls:
            drop_at_once(service, "traced", jobs)
    return {"wall ms": 1e3 * took_s / jobs, **cost, **calls.per(jobs)}


def drop_at_once(service: Service, name: str, jobs: int) -> float:
    out = service.api_dir / "jobs.0" / "out"
    there = len(os.listdir(out))
    prepared = [service.prepare(noop(f"{name}-{number}")) for number in range(jobs)]
    begin_s = time.monotonic()
    for each in prepared:
        each.drop()
    while len(os.listdir(out)) < there + jobs:
        if time.monotonic() > begin_s + _PATIENCE_S or service.process.poll() is not None:
            raise BenchmarkError(f"{len(os.listdir(out)) - there} of {jobs} replies")
        time.sleep(max(_LOOK_S, 4e-6 * jobs))
    return time.monotonic() - begin_s


def whole_tree(tree: Tree) -> dict[str, float]:
    """Measure the time from the rename of a job's file until all 16 ranks work on the job."""
    times_s = []
    with warm_service(tree, _TREE_PES) as service:
        footprint = Footprint(service.process.pid)
        dropped: list[DroppedJob] = []
        for number in range(12):
            job = service.drop({"user": "bench", "name": f"tree-{number}", "application": "SLEEP"})
            dropped.append(job)
            time.sleep(0.3)
            service.interrupt(job.identity)
            service.await_reply(job)
            time.sleep(0.05)
        cost = footprint.per(len(dropped))
    timeline = Timeline(service.events)
    times_s = [at for job in dropped if (at := timeline.all_active_s(job, _TREE_PES)) is not None]
    if not times_s:
        raise BenchmarkError("no job had all 16 workers")
    return {"wall ms": 1e3 * median(times_s), **cost}


def start(ranks: int, tree: Tree) -> dict[str, float]:
    """Measure the time from the start of `serve` until the service accepts jobs."""
    with running_service(ranks, interpreter=str(tree.interpreter), parent=TMPFS) as service:
        cpu_s = Footprint(service.process.pid, since_start=True).cpu_s()
        return {"wall ms": 1e3 * service.start_s, "CPU ms": 1e3 * cpu_s}


def idle(tree: Tree) -> dict[str, float]:
    """Measure four ranks without jobs; all costs are per second."""
    with warm_service(tree, 4) as service:
        time.sleep(_IDLE_SETTLE_S)
        footprint = Footprint(service.process.pid)
        time.sleep(_IDLE_S)
        cost = footprint.per(_IDLE_S)
        pss = memory(everyone_below(service.process.pid)).proportional_bytes
        return {**cost, "PSS MB": pss / 1e6}


def solve(ranks: int, tree: Tree) -> dict[str, float]:
    """Measure a whole command `solve` on a formula of two clauses."""
    with tempfile.NamedTemporaryFile("w", suffix=".cnf") as file:
        file.write("p cnf 2 2\n1 2 0\n-1 0\n")
        file.flush()
        took_s, cpu_s, _ = tree.run("-m", "mallob_py", "solve", "--quiet", "-n", str(ranks), file.name)
    return {"wall ms": 1e3 * took_s, "CPU ms": 1e3 * cpu_s}


def calls(tree: Tree) -> dict[str, float]:
    """Measure calls of Python functions on two ranks of an executor."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(_CALLS)
        file.flush()
        _, cpu_s, printed = tree.run(file.name)
    rows = (line.split() for line in printed.splitlines())
    return {**{f"{name} s": float(seconds) for name, seconds in rows}, "CPU s": cpu_s}


def bag(application: str, fields: Sequence[str], tree: Tree) -> dict[str, float]:
    """Measure a bag of tasks on two ranks."""
    took_s, cpu_s, _ = tree.run("-m", "mallob_py", "run", application, "-n", "2", "--set", *fields)
    return {"wall s": took_s, "CPU s": cpu_s}


def formulas(tree: Tree) -> dict[str, float]:
    """Measure random formulas that are submitted at once to two ranks: times of the mean and last answer."""
    generator = random.Random(60)
    with warm_service(tree, 2) as service:
        prepared = []
        for number in range(_FORMULAS):
            job = {"user": "bench", "name": f"f-{number}", "application": "SAT"}
            prepared.append(service.prepare(job | {"literals": _random_3sat(generator, 175)}))
        footprint = Footprint(service.process.pid)
        waiting = {each.drop() for each in prepared}
        answered_s = []
        while waiting:
            there = {job for job in waiting if job.reply_path.exists()}
            answered_s += [time.monotonic() - job.dropped_s for job in there]
            waiting -= there
            time.sleep(0.002)
        cost = footprint.per(_FORMULAS)
    return {"mean s": fmean(answered_s), "last s": max(answered_s), **cost}


def _random_3sat(generator: random.Random, variables: int) -> list[int]:
    literals = []
    for _ in range(int(4.26 * variables)):
        for variable in generator.sample(range(1, variables + 1), 3):
            literals.append(generator.choice((variable, -variable)))
        literals.append(0)
    return literals


def simulation(tree: Tree) -> dict[str, float]:
    """Measure a simulation of 1536 PEs in virtual time."""
    _, cpu_s, _ = tree.run("-m", "mallob_py", "simulate", "--pes", "1536", "--seconds", "4s", "--seed", "1")
    return {"CPU s": cpu_s}


def batch(tree: Tree) -> dict[str, float]:
    """Measure batch simulations of a generated trace under three policies."""
    generator = random.Random(3)
    lines, submitted = ["; MaxProcs: 128\n", "; MaxNodes: 128\n"], 0.0
    for number in range(1, 2001):
        submitted += generator.expovariate(1 / 300)
        size, took = 2 ** generator.randrange(7), int(generator.lognormvariate(7, 1.5)) + 1
        fields = [
            number,
            int(submitted),
            -1,
            took,
            size,
            -1,
            -1,
            size,
            2 * took,
            -1,
            1,
            number % 9,
            *[-1] * 6,
        ]
        lines.append(" ".join(map(str, fields)) + "\n")
    with tempfile.NamedTemporaryFile("w", suffix=".swf") as file:
        file.writelines(lines)
        file.flush()
        policies = ("easy", "elastic", "fair", "--malleable", "50%")
        _, cpu_s, _ = tree.run("-m", "mallob_py", "batch", "simulate", file.name, "--policy", *policies)
    return {"CPU s": cpu_s}


@dataclass(frozen=True)
class Measure:
    """A measure, which is repeated at least `rounds` times."""

    run: Callable[[Tree], dict[str, float]]
    rounds: int = 3


MEASURES = {
    "noop-4": Measure(partial(one_by_one, noop, 4, 100)),
    "noop-1": Measure(partial(one_by_one, noop, 1, 100)),
    "noop-16": Measure(partial(one_by_one, noop, 16, 100)),
    "sat-4": Measure(partial(one_by_one, _sat, 4, 60)),
    "sat-1": Measure(partial(one_by_one, _sat, 1, 60)),
    "sat-16": Measure(partial(one_by_one, _sat, 16, 60)),
    "burst-500": Measure(partial(burst, 500, TMPFS)),
    "burst-1000": Measure(partial(burst, 1000, TMPFS)),
    "burst-500-disk": Measure(partial(burst, 500, DISK)),
    "burst-3000": Measure(partial(burst, 3000, TMPFS), 2),
    "tree-16": Measure(whole_tree),
    "solve-1": Measure(partial(solve, 1), 5),
    "solve-2": Measure(partial(solve, 2), 5),
    "solve-4": Measure(partial(solve, 4), 5),
    "start-4": Measure(partial(start, 4), 5),
    "start-16": Measure(partial(start, 16)),
    "start-64": Measure(partial(start, 64), 2),
    "idle": Measure(idle, 2),
    "calls": Measure(calls),
    "queens": Measure(partial(bag, "QUEENS", ("n=12",)), 2),
    "uts": Measure(partial(bag, "UTS", ("depth=11",)), 2),
    "formulas": Measure(formulas, 2),
    "simulate": Measure(simulation, 2),
    "batch": Measure(batch, 2),
    "burst-20000": Measure(partial(burst, 20_000, TMPFS), 1),
    "burst-20000-disk": Measure(partial(burst, 20_000, DISK), 1),
}
