"""One large formula: how fast it is read and loaded, what memory that takes, and who has to wait for it.

    python scripts/bench/sat/large_input.py                      # 5 million clauses, some 130 MB
    python scripts/bench/sat/large_input.py --clauses 500000 --only read load

Peers (numpy alone, PySAT) are measured in the same run. Reading and loading are given in CPU seconds,
each in a process of its own, so that other programs and earlier measurements matter little; times of the
service are wall-clock times. PySAT gets a tenth of the formula, since it needs gigabytes for all.
"""

from __future__ import annotations

import argparse
import os
import pickle
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common import BenchmarkError, DroppedJob, Service, print_table, running_service, summary
from processes import rank_processes

from mallob_py.kit import JobInput
from mallob_py.service.telemetry.event_log import Event
from mallob_sat import generate
from mallob_sat.app import read_formula
from mallob_sat.solvers import Solver

MB = 1e6
ENGINES = ("cadical195", "kissat404", "glucose42")
_SMALL = {"user": "bench", "application": "SAT", "literals": [1, 2, 0, -1, 0]}
_POLL_S = 0.002
_LOADING_MAX_S = 45.0


def in_process_of_its_own(work: Callable[[], float]) -> tuple[float, float]:
    """CPU seconds that `work` says it has taken, and the peak of its process in MB."""
    ours, theirs = os.pipe()
    if (pid := os.fork()) == 0:
        with suppress(BaseException):
            os.write(theirs, pickle.dumps(work()))
        os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as answer:
        content = answer.read()
    _, _, usage = os.wait4(pid, 0)
    if not content:
        raise BenchmarkError("a process that was measured has failed")
    return float(pickle.loads(content)), usage.ru_maxrss * 1024 / MB


# --- reading and loading -------------------------------------------------------------------------


def measure_reading(large: Path, tenth: Path) -> None:
    def ours(path: Path) -> float:
        begin_s = time.process_time()
        read_formula(JobInput(files=[str(path)]))
        return time.process_time() - begin_s

    def numpy_alone(path: Path) -> float:
        begin_s = time.process_time()
        text = path.read_bytes()
        np.fromstring(text[text.index(b"\n", text.index(b"p cnf")) :], dtype=np.int64, sep=" ")
        return time.process_time() - begin_s

    def pysat(path: Path) -> float:
        from pysat.formula import CNF

        begin_s = time.process_time()
        CNF(from_file=str(path))
        return time.process_time() - begin_s

    rows = []
    runs = (("mallob_sat", ours, large), ("numpy.fromstring, no checks", numpy_alone, large))
    for title, read, path in (*runs, ("mallob_sat", ours, tenth), ("pysat.formula.CNF", pysat, tenth)):
        cpu_s, peak_mb = in_process_of_its_own(lambda read=read, path=path: read(path))
        size_mb = path.stat().st_size / MB
        rows.append((title, size_mb, cpu_s, size_mb / cpu_s, peak_mb))
    print_table("Reading", ("reader", "file [MB]", "CPU [s]", "MB/s", "peak [MB]"), rows)


def measure_loading(large: Path, tenth: Path) -> None:
    def ours(engine: str, path: Path) -> float:
        formula = read_formula(JobInput(files=[str(path)]))
        solver = Solver(engine)
        begin_s = time.process_time()
        solver.add_formula(formula)
        return time.process_time() - begin_s

    def pysat(engine: str, path: Path) -> float:
        from pysat.solvers import Solver as Facade

        literals = read_formula(JobInput(files=[str(path)])).literals
        clauses = literals.reshape(-1, 4)[:, :3].tolist()
        begin_s = time.process_time()
        Facade(name=engine, bootstrap_with=clauses)
        return time.process_time() - begin_s

    rows = []
    runs = [("mallob_sat", ours, engine, large) for engine in ENGINES]
    runs += [("mallob_sat", ours, ENGINES[0], tenth), ("pysat.solvers", pysat, ENGINES[0], tenth)]
    for title, load, engine, path in runs:
        cpu_s, peak_mb = in_process_of_its_own(lambda load=load, engine=engine, path=path: load(engine, path))
        rows.append((title, engine, path.stat().st_size / MB, cpu_s, peak_mb))
    print_table("Loading", ("loader", "engine", "file [MB]", "CPU [s]", "peak [MB]"), rows)


# --- processes of a service -----------------------------------------------------------------------


def children(pid: int) -> list[int]:
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return []


def status(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def roles(service: Service) -> Iterator[tuple[str, int]]:
    """Each process of a service and what it is for."""
    for number, rank in enumerate(rank_processes(service.process.pid)):
        yield f"rank {number}", rank.rank
        server = rank.helpers[0]
        yield f"fork server {number}", server
        for worker in children(server):
            yield f"reader or worker {number}", worker
            for solver in children(worker):
                yield f"solver {number}", solver


def solvers(service: Service) -> list[int]:
    return [pid for role, pid in roles(service) if role.startswith("solver")]


def wait_for(condition: Callable[[], Any], timeout_s: float = 120.0) -> float:
    """Seconds until it holds."""
    begin_s = time.monotonic()
    while not condition():
        if time.monotonic() > begin_s + timeout_s:
            raise BenchmarkError("something did not happen in time")
        time.sleep(_POLL_S)
    return time.monotonic() - begin_s


def large_job(path: Path, workers: int, name: str = "large") -> dict[str, Any]:
    return {"user": "bench", "name": name, "files": [str(path)], "max-demand": workers}


@contextmanager
def watched_peaks(service: Service) -> Iterator[dict[str, float]]:
    """The largest peak of each role's processes, in MB, while the block runs."""
    peaks: dict[str, float] = {}
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.1):
            for role, pid in roles(service):
                if peak := status(pid).get("VmHWM"):
                    peaks[role] = max(peaks.get(role, 0.0), int(peak.split()[0]) * 1024 / MB)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield peaks
    finally:
        ended.set()
        watcher.join()


def measure_stops(large: Path, repetitions: int) -> None:
    """Suspended while solvers load, and interrupted while they do: when they begin, and with more memory."""
    step_mb = 3 * large.stat().st_size / MB
    suspended_ms, interrupted_ms, gone_ms = [], [], []
    with running_service(2) as service:
        for number in range(repetitions):
            job = service.drop(large_job(large, 2, f"large-{number}"))
            wait_for(lambda: len(solvers(service)) == 2)
            loading = solvers(service)
            wait_for(lambda pids=loading, mb=number * step_mb: max(map(resident_mb, pids)) >= mb)
            urgent = service.prepare(
                {"user": "bench", "name": f"urgent-{number}", "application": "SLEEP", "priority": 9}
            ).drop()
            took_s = wait_for(lambda pids=loading: any(status(pid)["State"][0] == "T" for pid in pids))
            suspended_ms.append(took_s * 1e3)
            service.interrupt(urgent.identity)
            service.await_reply(urgent)
            wait_for(lambda pids=loading: all(status(pid)["State"][0] != "T" for pid in pids))
            begin_s = time.monotonic()
            service.interrupt(job.identity)
            while not os.path.exists(job.reply_path):
                time.sleep(_POLL_S)
            interrupted_ms.append((time.monotonic() - begin_s) * 1e3)
            wait_for(lambda: not solvers(service))
            gone_ms.append((time.monotonic() - begin_s) * 1e3)
    rows = [
        (what, len(values), summary(values).median, summary(values).max)
        for what, values in (
            ("an urgent job's file is there -> a loading solver stands still", suspended_ms),
            ("an interruption's file is there -> reply", interrupted_ms),
            ("an interruption's file is there -> no solver is left", gone_ms),
        )
    ]
    print_table("Stopping solvers that load [ms]", ("what", "n", "median", "max"), rows)


def measure_small_jobs(large: Path, seconds: float) -> None:
    """Small jobs one after the other on 4 ranks (two pretended hosts), beside jobs of two workers."""
    os.environ["MALLOB_PY_RANKS_PER_HOST"] = "2"
    hard = [x for clause in generate.pigeonhole(14).clauses for x in (*clause, 0)]
    rows: list[tuple[str, int, float, float, float]] = []
    with running_service(4) as service, watched_peaks(service) as peaks:

        def small_jobs(title: str, is_over: Callable[[], bool] = lambda: True) -> None:
            latencies_ms = []
            end_s = time.monotonic() + seconds
            while time.monotonic() < end_s or not (is_over() or time.monotonic() > end_s + _LOADING_MAX_S):
                job = service.drop(_SMALL | {"name": f"{len(rows)}-{len(latencies_ms)}"})
                latencies_ms.append(service.await_reply(job) * 1e3)
                time.sleep(0.02)
            s = summary(latencies_ms)
            rows.append((title, s.count, s.median, s.p99, s.max))

        def end(job: DroppedJob) -> dict[str, Any]:
            service.interrupt(job.identity)
            service.await_reply(job)
            return service.reply(job)

        service.await_reply(service.drop(_SMALL | {"name": "first"}))
        small_jobs("nothing else")
        beside = {"user": "bench", "name": "hard", "literals": hard, "max-demand": 2}
        busy = service.drop(beside)
        wait_for(lambda: len(solvers(service)) == 2)
        small_jobs("a small hard formula")
        end(busy)
        before_mb = ranks_mb(service)
        job = service.drop(large_job(large, 2))
        load_mb = 3 * large.stat().st_size / MB
        small_jobs(
            "a large formula: read, passed on, loaded",
            lambda: len(pids := solvers(service)) == 2 and min(map(resident_mb, pids)) > load_mb,
        )
        statistics = end(job)["stats"]
        wait_for(lambda: not solvers(service))
        small_jobs("nothing else again")
        after_mb = ranks_mb(service)
        wait_for(lambda: not shared_files())
        left = shared_files()
    began = {event.fields.get("index"): event.t for event in of_large(service, "started")}
    (accepted,), (submitted,) = of_large(service, "accepted"), of_large(service, "submitted")
    phases = [("read", submitted.t - accepted.t)]
    phases += [(f"worker {index} started", at_s - submitted.t) for index, at_s in sorted(began.items())]
    print_table("The large job [s]", ("what", "after"), phases)
    print_table("Small jobs' latency [ms] beside", ("what", "n", "median", "p99", "max"), rows)
    memory = sorted(peaks.items())
    memory.append(("the reply's stats.peak_memory_bytes", statistics["peak_memory_bytes"] / MB))
    memory += [(f"rank {n} before", mb) for n, mb in enumerate(before_mb)]
    memory += [(f"rank {n} after", mb) for n, mb in enumerate(after_mb)]
    print_table(f"Memory [MB]; files left in shared memory: {len(left)}", ("what", "peak"), memory)


def of_large(service: Service, kind: str) -> list[Event]:
    """The events of the job `large`."""
    accepted = next(e for e in service.events if e.event == "accepted" and e.fields["name"] == "large")
    job = accepted.fields["job"]
    return [event for event in service.events if event.event == kind and event.fields.get("job") == job]


def ranks_mb(service: Service) -> list[float]:
    """What is resident of each rank, now."""
    return [resident_mb(rank.rank) for rank in rank_processes(service.process.pid)]


def resident_mb(pid: int) -> float:
    return int(status(pid)["VmRSS"].split()[0]) * 1024 / MB


def shared_files() -> list[str]:
    """Descriptions of jobs in shared memory."""
    return [
        path.name for path in Path("/dev/shm").glob("mallob-py.*") if path.suffix not in (".lock", ".memory")
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--clauses", type=int, default=5_000_000)
    parser.add_argument("--repetitions", type=int, default=3, help="of stops")
    parser.add_argument("--seconds", type=float, default=10.0, help="of small jobs in each setting")
    measures = ("read", "load", "stop", "small")
    parser.add_argument("--only", nargs="+", choices=measures, default=measures)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mallob-py-bench.") as folder:
        large, tenth = Path(folder) / "large.cnf", Path(folder) / "tenth.cnf"
        for path, clauses in ((large, options.clauses), (tenth, options.clauses // 10)):
            generate.main(["large", str(clauses // 3), str(clauses), "1", "-o", str(path)])
        if "read" in options.only:
            measure_reading(large, tenth)
        if "load" in options.only:
            measure_loading(large, tenth)
        if "stop" in options.only:
            measure_stops(large, options.repetitions)
        if "small" in options.only:
            measure_small_jobs(large, options.seconds)


if __name__ == "__main__":
    main()
