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
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from common import BenchmarkError, DroppedJob, Service, print_absent, print_table, running_service, summary

from mallob_bags.betweenness import BetweennessApplication
from mallob_bags.queens import QueensApplication
from mallob_bags.uts import UtsApplication
from mallob_py.kit import JobInput
from mallob_py.kit.bags import BagApplication
from mallob_py.log_events import LogEvent
from mallob_py.runtime.processes import python
from mallob_py.service.telemetry.event_log import Event

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
    """Return how long a bag takes in a plain loop, and its result."""
    payload = application.read(JobInput(configuration=configuration))
    bag = application.first_bag(payload, configuration)
    begin_s = time.perf_counter()
    while not bag.is_empty():
        bag.process(step)
    result = bag.take_result()
    return time.perf_counter() - begin_s, result


def _side_by_side(
    number: int, application: BagApplication, configuration: dict[str, Any]
) -> tuple[float, float]:
    """Return how long plain loops take side by side, as the cores can do no better; CPU seconds of one."""
    context = multiprocessing.get_context("fork")
    ended: multiprocessing.SimpleQueue[tuple[float, float]] = context.SimpleQueue()
    loops = [
        context.Process(target=lambda: ended.put(_watched_loop(application, configuration)))
        for _ in range(number)
    ]
    for loop in loops:
        loop.start()
    spent = [ended.get() for _ in loops]
    for loop in loops:
        loop.join()
    return max(s for s, _ in spent), statistics.mean(cpu_s for _, cpu_s in spent)


def _watched_loop(application: BagApplication, configuration: dict[str, Any]) -> tuple[float, float]:
    before_s = time.process_time()
    took_s, _ = loop_s(application, configuration)
    return took_s, time.process_time() - before_s


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
    command = [*python(), "-c", script, str(Path(__file__).parent)]
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
            for _ in range(4):
                loops_s.append(loop_s(application, configuration)[0])
                ones_s.append(_job_s(service, application.name, configuration, max_demand=1))
                twos_s.append(_job_s(service, application.name, configuration, max_demand=2))
                pairs_s.append(_side_by_side(2, application, configuration)[0])
            loop, pair, one, two = map(min, (loops_s, pairs_s, ones_s, twos_s))
            what = f"{application.name} {json.dumps(configuration)}"
            ratios = [f"{ratio:.3f}" for ratio in (one / loop, one / two, 2 * loop / pair, 2 * two / pair)]
            rows.append((what, loop, one, ratios[0], two, *ratios[1:]))
    header = (
        "job",
        "plain loop, s",
        "1 worker, s",
        "/ loop (<= 1.03)",
        "2 workers, s",
        "speedup (>= 1.95)",
        "of 2 loops",
        "2 workers / 2 loops",
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


def changes(times: int = 40) -> None:
    """Measure how long a worker that joins is without tasks, and how long one that leaves hands over."""
    with tempfile.TemporaryDirectory(prefix="mallob-py-bench.") as name:
        os.environ |= {
            "PYTHONPATH": str(_BAGS),
            "MALLOB_PY_APPS": "WATCHED=watched:WatchedApplication",
            "MALLOB_PY_BENCH_FOLDER": name,
        }
        with running_service(2, ["--preload", "WATCHED", "SLEEP"]) as service:
            job = service.drop(_job("WATCHED", {"depth": 16}, priority=0.01))
            for _ in range(times):
                time.sleep(0.2)
                other = service.drop(_job("SLEEP", {}, max_demand=1, wallclock_limit="100ms"))
                service.await_reply(other, poll_s=0.005)
            service.interrupt(job.identity)
            service.await_reply(job)
        joins_ms = [(works_s - starts_s) * 1e3 for starts_s, works_s in sorted(_notes(Path(name)))[1:]]
    leaves_ms = list(_leaves_ms(service.events))
    rows = []
    for what, series in (
        ("joins: from its start to its first tasks (<= 5)", joins_ms),
        ("leaves: from its notice to the end of its process (<= 10)", leaves_ms),
    ):
        of = summary(series)
        rows.append((what, of.count, f"{of.median:.1f}", f"{of.p90:.1f}", f"{of.max:.1f}"))
    print_table(
        "A second worker of UTS that comes and goes",
        ("it", "times", "median, ms", "p90, ms", "max, ms"),
        rows,
    )


def _notes(folder: Path) -> Iterator[tuple[float, float]]:
    """When each worker started and had its first tasks, if it had some. A process may be several in turn."""
    for file in folder.iterdir():
        starts_s = math.inf
        for word, at_s in map(str.split, file.read_text().splitlines()):
            if word == "starts":
                starts_s = float(at_s)
            else:
                yield starts_s, float(at_s)


def _leaves_ms(events: Iterable[Event]) -> Iterator[float]:
    told_s: dict[tuple[int, Any], float] = {}
    for event in events:
        place = (event.rank, event.fields.get("index"))
        if event.event == LogEvent.LEAVING:
            told_s[place] = event.t
        elif event.event == LogEvent.LEFT and place[1] != 0:
            yield (event.t - told_s.pop(place)) * 1e3


_BREATH_S = 0.2


def breathing(depth: int = 14, rounds: int = 9) -> None:
    """A job on as many ranks as there are cores, or 8: others take all but one for 200 ms each time."""
    cores = len(os.sched_getaffinity(0))
    rows = [_breathing(workers, cores, depth, rounds) for workers in sorted({cores, 8})]
    header = ("workers", "cores", "changes", "CPU lost: median (< 3 %)", "least", "most", "tasks in vain")
    print_table(
        f"UTS depth {depth}, its volume changing between 1 and all every 200 ms, beside plain loops",
        header,
        rows,
    )


def _breathing(workers: int, cores: int, depth: int, rounds: int) -> tuple[Any, ...]:
    configuration = {"depth": depth}
    limit = f"{_BREATH_S * 1e3:.0f}ms"
    lost, vain, changes = [], 0.0, 0
    with running_service(workers, ["--preload", "UTS", "SLEEP"]) as service:
        before_s = _side_by_side(cores, UtsApplication(), configuration)[1]
        for _ in range(rounds):
            job = service.drop(_job("UTS", configuration, priority=0.01))
            while not job.reply_path.exists():
                time.sleep(_BREATH_S)
                other = service.drop(_job("SLEEP", {}, max_demand=workers - 1, wallclock_limit=limit))
                service.await_reply(other, poll_s=0.005)
                changes += 2
            reply = service.reply(job)
            after_s = _side_by_side(cores, UtsApplication(), configuration)[1]
            lost.append(1 - (before_s + after_s) / 2 / reply["stats"]["used_cpu_seconds"])
            before_s = after_s
            vain = max(vain, reply["result"]["tasks_in_vain"] / reply["result"]["tasks"])
    of = [f"{statistics.median(lost):.1%}", f"{min(lost):.1%}", f"{max(lost):.1%}"]
    return (workers, cores, changes, *of, f"{vain:.2%}")


#: jobs of one half each, or of all there is: priority, application, configuration
_MIXTURE: tuple[tuple[tuple[float, str, dict[str, Any]], ...], ...] = (
    ((1.0, "UTS", {"depth": 13}), (0.5, "QUEENS", {"n": 15}), (0.5, "UTS", {"depth": 13, "seed": 29})),
    ((1.0, "UTS", {"depth": 14}), (0.2, "BC", {"n": 12}), (0.5, "PI", {"points": 10**8})),
)


def halves() -> None:
    """Several jobs at once on all workers, beside the same jobs one after the other in fixed halves."""
    rows = []
    with running_service(2, ["--preload", "UTS", "QUEENS", "BC", "PI"]) as service:
        for _ in range(2):
            begin_s = time.monotonic()
            with ThreadPoolExecutor() as pool:
                waits = list(pool.map(lambda half: _in_turn(service, half), _MIXTURE))
            fixed_s = time.monotonic() - begin_s
            jobs = [_drop_of(service, each) for half in _MIXTURE for each in half]
            own = [service.await_reply(job, timeout_s=180, poll_s=0.005) for job in jobs]
            fixed = [each for half in waits for each in half]
            rows.append(("fixed halves", fixed_s, statistics.mean(fixed)))
            rows.append(("malleable", max(own), statistics.mean(own)))
    print_table(
        "Six bag jobs on two workers", ("how", "all done after, s", "a job done after, s (mean)"), rows
    )


def _drop_of(service: Service, each: tuple[float, str, dict[str, Any]], **fields: Any) -> DroppedJob:
    priority, application, configuration = each
    return service.drop(_job(application, configuration, priority=priority, **fields))


def _in_turn(service: Service, half: Iterable[tuple[float, str, dict[str, Any]]]) -> list[float]:
    """When each of them was done, in seconds from now."""
    begin_s, done = time.monotonic(), []
    for each in half:
        job = _drop_of(service, each, max_demand=1)
        service.await_reply(job, timeout_s=180, poll_s=0.005)
        done.append(time.monotonic() - begin_s)
    return done


def peers(depth: int = 14, rounds: int = 4) -> None:
    """A tree by others' pools of two processes, cut into 1000 pieces beforehand; the best of turns."""
    script, mpiexec = str(_BAGS / "peers.py"), str(Path(sys.executable).parent / "mpiexec")
    commands = {
        "pool": ("multiprocessing", [*python(), script]),
        "dask": ("distributed", [*python(), script]),
        "ray": ("ray", [*python(), script]),
        "mpi4py.futures": ("mpi4py", [mpiexec, "-n", "3", *python(), "-m", "mpi4py.futures", script]),
    }
    for peer in [peer for peer, (module, _) in commands.items() if importlib.util.find_spec(module) is None]:
        print_absent(peer, f"pip install {commands.pop(peer)[0]}")
    ours_s = math.inf
    theirs_s = dict.fromkeys(commands, math.inf)
    with running_service(2, ["--preload", "UTS"]) as service:
        for _ in range(rounds):
            for peer, (_, command) in commands.items():
                ours_s = min(ours_s, _job_s(service, "UTS", {"depth": depth}, max_demand=2))
                theirs_s[peer] = min(theirs_s[peer], _peer_s([*command, peer, str(depth)]))
    rows = [("mallob-py, 2 workers", ours_s, 1.0)]
    rows += [(peer, took_s, took_s / ours_s) for peer, took_s in theirs_s.items()]
    print_table(
        f"UTS depth {depth} on two processes",
        ("who", "s", "/ ours"),
        [(who, f"{took_s:.2f}", f"{ratio:.2f}") for who, took_s, ratio in rows],
    )


def _peer_s(command: list[str]) -> float:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchmarkError(f"{command[-2]} ended with {done.returncode}: {done.stderr[-500:]}")
    return float(done.stdout.split()[0])


PARTS = {part.__name__: part for part in (kernels, workers, changes, breathing, peers, halves)}


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
