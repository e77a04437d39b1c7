"""A service beside other systems that run jobs on two cores: start, time per job, a job on busy cores.

    python scripts/bench/bench_systems.py                 # all installed systems, one after the other
    python scripts/bench/bench_systems.py --formulas      # 60 formulas at once, most of them small

Each system runs alone, in a process of its own. A job is the smallest job of the system: a NOOP job for
mallob-py, a function that returns for pools, Dask and Ray, the program `true` for Slurm, `touch` for
HyperQueue. Missing systems are left out (`pip install 'dask[distributed]' ray`; Slurm needs root and
Debian's packages, see `tests/slurm`). All systems solve the formulas with the same CaDiCaL.
"""

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from common import ends_within, print_absent, print_table, running_service

from mallob_py.runtime.processes import import_places, python
from mallob_sat import generate

CORES = 2
ONE_BY_ONE = 30
AT_ONCE = 300
#: time limit of a job that is submitted while all workers are busy
BUSY_LIMIT_S = 10.0
#: time for which the script waits for one of many unanswered formulas before it turns to the next
_SHORT_S = 0.002
ROOT = Path(__file__).resolve().parents[2]


class System(NamedTuple):
    """A system. `begin(is_endless)` submits a job; the function that it returns waits for the job's end.

    The argument of this function is the longest time to wait [s]. `solve(path)` submits a formula in the same
    way.
    """

    begin: Callable[[bool], Callable[[float], bool]]
    solve: Callable[[str], Callable[[float], bool]] | None = None


def nothing() -> None:
    """Return at once: the smallest job."""


def endless() -> None:
    """Compute without end: a job that occupies a worker."""
    while True:
        pass


def solve(path: str) -> bool:
    """Decide whether a formula is satisfiable, by the solver that the service uses in this benchmark."""
    from pysat.formula import CNF
    from pysat.solvers import Solver

    with Solver("cadical195", bootstrap_with=CNF(from_file=path).clauses) as solver:
        return bool(solver.solve())


@contextmanager
def mallob() -> Iterator[System]:
    with running_service(CORES, ["--portfolio", "c"]) as service:
        numbers = iter(range(1 << 30))

        def hand_in(**fields: Any) -> Callable[[float], bool]:
            job = service.drop({"user": "bench", "name": f"job{next(numbers)}", **fields})

            def await_end(limit_s: float) -> bool:
                if limit_s <= _SHORT_S:  # a client that polls all the time would take a core from solvers
                    time.sleep(limit_s)
                    return job.reply_path.exists()
                with suppress(Exception):
                    service.await_reply(job, limit_s, 0.0002 if limit_s <= BUSY_LIMIT_S else 0.005)
                return job.reply_path.exists()

            return await_end

        yield System(
            lambda is_endless: hand_in(application="SLEEP" if is_endless else "NOOP"),
            lambda path: hand_in(files=[path]),
        )
        for job in range(next(numbers)):
            service.interrupt(f"bench.job{job}")


def _of_futures(submit: Callable[..., Any], wait: Callable[[Any, float], bool]) -> System:
    def begin(function: Callable[..., Any], *arguments: Any) -> Callable[[float], bool]:
        future = submit(function, *arguments)
        return lambda limit_s: wait(future, limit_s)

    return System(
        lambda is_endless: begin(endless if is_endless else nothing), lambda path: begin(solve, path)
    )


def _wait(future: Any, limit_s: float) -> bool:
    try:
        future.result(timeout=limit_s)
    except TimeoutError:
        return False
    return True


@contextmanager
def pool() -> Iterator[System]:
    executor = ProcessPoolExecutor(CORES)
    yield _of_futures(executor.submit, _wait)


@contextmanager
def dask() -> Iterator[System]:
    from distributed import Client

    client = Client(n_workers=CORES, threads_per_worker=1, dashboard_address=None)

    def wait(future: Any, limit_s: float) -> bool:
        with suppress(Exception):
            future.result(timeout=limit_s)
        return bool(future.done())

    yield _of_futures(lambda *call: client.submit(*call, pure=False), wait)


@contextmanager
def ray() -> Iterator[System]:
    os.environ |= {"RAY_worker_niceness": "0"}
    import ray as library

    library.init(num_cpus=CORES, include_dashboard=False, log_to_driver=False)

    def wait(reference: Any, limit_s: float) -> bool:
        return bool(library.wait([reference], timeout=limit_s)[0])

    yield _of_futures(lambda function, *rest: library.remote(function).remote(*rest), wait)


def _slurm_here() -> Any:
    """Import the tests' module that sets up Slurm on this machine."""
    sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("slurm", "ranks", ".")]
    return importlib.import_module("virtual_cluster")


@contextmanager
def slurm_cluster() -> Iterator[Any]:
    """Set up Slurm with two nodes of one core each; a job occupies a whole node."""
    with tempfile.TemporaryDirectory(prefix="slurm.") as folder:
        cluster = _slurm_here().Cluster(Path(folder))
        cluster.start()
        cluster.run("scontrol", "update", "PartitionName=main", "OverSubscribe=EXCLUSIVE")
        yield cluster
        cluster.stop()


@contextmanager
def slurm() -> Iterator[System]:
    with slurm_cluster() as cluster:

        def begin(is_endless: bool) -> Callable[[float], bool]:
            # Not `sbatch --wait`, because it polls every 2 s.
            command = ["srun", "--quiet", *(("sleep", "1d") if is_endless else ("true",))]
            process = subprocess.Popen(
                command, env=cluster.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )

            return lambda limit_s: ends_within(process, limit_s) and process.wait() == 0

        yield System(begin)


@contextmanager
def hyperqueue() -> Iterator[System]:
    from hyperqueue import Job, LocalCluster
    from hyperqueue.cluster import WorkerConfig

    cluster = LocalCluster()
    cluster.start_worker(WorkerConfig(cores=CORES))
    client = cluster.client()
    folder = Path(tempfile.mkdtemp(prefix="hyperqueue."))
    numbers = iter(range(1 << 30))

    def begin(is_endless: bool) -> Callable[[float], bool]:
        # A job reports its end by a file, because HyperQueue's own wait polls every second.
        done = folder / str(next(numbers))
        job = Job(max_fails=0)
        job.program(["sleep", "1d"] if is_endless else ["touch", str(done)])
        client.submit(job)

        def wait(limit_s: float) -> bool:
            end_s = time.monotonic() + limit_s
            while not done.exists() and time.monotonic() < end_s:
                time.sleep(0.0005)
            return done.exists()

        return wait

    yield System(begin)
    cluster.stop()


SYSTEMS: dict[str, tuple[str, Callable[[], Any]]] = {
    "mallob-py": ("the package itself", mallob),
    "concurrent.futures": ("Python itself", pool),
    "Dask": ("pip install 'dask[distributed]'", dask),
    "Ray": ("pip install ray", ray),
    "HyperQueue": ("pip install hyperqueue", hyperqueue),
    "Slurm": ("root, and Debian's slurmctld slurmd slurm-client munge", slurm),
}


_MODULES = {"Dask": "distributed", "Ray": "ray", "HyperQueue": "hyperqueue"}


def is_there(name: str) -> bool:
    from importlib.util import find_spec

    if name == "Slurm":
        return _slurm_here().what_is_missing() is None
    return name not in _MODULES or find_spec(_MODULES[name]) is not None


# --- one system, in a process of its own ----------------------------------------------------


def be_system(name: str) -> None:
    """Print times [s]: start to first answer, a job alone, each of many jobs, a job while all are busy."""
    begin_s = time.monotonic()
    with SYSTEMS[name][1]() as system:
        assert system.begin(False)(60.0)
        took = {"first": time.monotonic() - begin_s}
        alone = []
        for _ in range(ONE_BY_ONE):
            begin_s = time.monotonic()
            assert system.begin(False)(60.0)
            alone.append(time.monotonic() - begin_s)
        took["one"] = statistics.median(alone)
        count = AT_ONCE // 10 if name == "Slurm" else AT_ONCE
        begin_s = time.monotonic()
        for await_end in [system.begin(False) for _ in range(count)]:
            assert await_end(300.0)
        took["of many"] = (time.monotonic() - begin_s) / count
        busy = [system.begin(True) for _ in range(2 * CORES)]
        for await_end in busy:
            assert not await_end(0.5)
        begin_s = time.monotonic()
        is_answered = system.begin(False)(BUSY_LIMIT_S)
        took["busy"] = time.monotonic() - begin_s if is_answered else float("inf")
        _print(took)


def be_solver(name: str, folder: Path) -> None:
    """Submit the formulas of a folder at once; print the times until the answers: mean, median, last.

    Before this, the last formula is solved once per core, so that solvers are loaded.
    """
    formulas = [str(path) for path in sorted(folder.iterdir())]
    with SYSTEMS[name][1]() as system:
        for first in [system.solve(formulas[-1]) for _ in range(CORES)]:
            assert first(60.0)
        begin_s = time.monotonic()
        waiting = list(map(system.solve, formulas))
        times = []
        while waiting:
            for await_end in list(waiting):
                if await_end(_SHORT_S):
                    times.append(time.monotonic() - begin_s)
                    waiting.remove(await_end)
        _print({"mean": statistics.mean(times), "median": statistics.median(times), "last": max(times)})


def _print(took: dict[str, float]) -> None:
    print("RESULT " + json.dumps(took), flush=True)


def measured(name: str, *arguments: str, script: str = __file__) -> dict[str, Any]:
    """Measure a system in a process group of its own, which is killed afterwards; return its times."""
    process = subprocess.Popen(
        [*python(), script, "--system", name, *arguments],
        env=os.environ | import_places(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    result: dict[str, Any] = {}
    for line in process.stdout:
        if line.startswith("RESULT "):
            result = json.loads(line.removeprefix("RESULT "))
            break
    with suppress(subprocess.TimeoutExpired):
        process.wait(15.0 if name in ("mallob-py", "Slurm") else 0.1)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait()
    return result


# --- tables ---------------------------------------------------------------------------------


def _seconds(values: Iterable[float]) -> str:
    value = statistics.median(values)
    if value == float("inf"):
        return f"not within {BUSY_LIMIT_S:.0f} s"
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.1f} ms"


def compare(names: list[str], rounds: int) -> None:
    took: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            took[name].append(measured(name))
            print(name, took[name][-1], file=sys.stderr, flush=True)
    columns = {
        "first": "first answer",
        "one": "a job alone",
        "of many": "each of many",
        "busy": "while all is busy",
    }
    rows = [
        [name, *(_seconds(each[column] for each in took[name]) for column in columns)]
        for name in names
        if all(took[name])
    ]
    print_table(f"Medians of {rounds} rounds of all systems", ["system", *columns.values()], rows)


def compare_formulas(names: list[str], rounds: int) -> None:
    with tempfile.TemporaryDirectory(prefix="formulas.") as text:
        folder = Path(text)
        write_formulas(folder)
        took: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for _ in range(rounds):
            for name in names:
                took[name].append(measured(name, "--folder", text))
                print(name, took[name][-1], file=sys.stderr, flush=True)
    rows = [
        [name, *(_seconds(each[column] for each in took[name]) for column in ("mean", "median", "last"))]
        for name in names
        if all(took[name])
    ]
    header = ["system", "mean time to the answer", "median", "last answer"]
    print_table(f"60 formulas at once, medians of {rounds} rounds of all systems", header, rows)


def write_formulas(folder: Path) -> None:
    """Write 60 formulas. By name, the first 4 take seconds to solve, 16 about a second, most milliseconds."""
    formulas = [generate.uniform(240, 1022, seed) for seed in range(4)]
    formulas += [generate.uniform(190, 809, seed) for seed in range(16)]
    formulas += [generate.planted(150, 600, seed) for seed in range(40)]
    for number, formula in enumerate(formulas):
        (folder / f"{number:02d}.cnf").write_text("".join(formula.text("")))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--formulas", action="store_true", help="60 formulas at once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--system", choices=SYSTEMS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.system:
        if options.folder:
            be_solver(options.system, options.folder)
        else:
            be_system(options.system)
        return 0
    names = [name for name in SYSTEMS if name in options.only]
    for name in names:
        if not is_there(name):
            print_absent(name, SYSTEMS[name][0])
    names = [name for name in names if is_there(name)]
    if options.formulas:
        compare_formulas([name for name in names if name not in ("HyperQueue", "Slurm")], options.rounds)
    else:
        compare(names, options.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
