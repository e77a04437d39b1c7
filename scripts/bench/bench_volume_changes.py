"""How soon a running job has a worker less or more, beside other systems, on two cores.

    python scripts/bench/bench_volume_changes.py          # the systems that are installed, in turns

mallob-py: a job has both PEs; another one comes, and gets one of them; it ends, and the first has both
again. *Less*: from the arrival until the worker that has to go has done its last turn; *more*: from the
reply until it goes on. Dask: a map runs on one worker; `scale(2)` until a task begins at the second one,
`scale(1)` until that has ended. Ray: an actor more until it answers, and `ray.kill` until its process has
ended. Slurm: `scontrol update NumNodes=1` of a job that has two nodes, until a job that waits for the other
runs (root and Debian's packages, see `tests/slurm`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from bench_systems import SYSTEMS as INSTALLATION
from bench_systems import is_there, measured, slurm_cluster
from common import print_absent, print_table, running_service

from mallob_py.kit import Application, JobInput, Payload, WorkerContext

TIMES = 5
#: a worker that says nothing for so long has been stopped
GAP_S = 0.02
LIMIT_S = 60.0

#: seconds until there is a worker less, and one more
Changes = tuple[list[float], list[float]]


class Beats(Application):
    """Each worker writes down when it has been stopped, and until when."""

    name: ClassVar[str] = "BEATS"
    takes_input: ClassVar[bool] = False

    def check(self, configuration: Mapping[str, Any]) -> None:
        """The configuration is that of this bench."""

    def read(self, job: JobInput) -> Payload:
        return {}

    def run(self, context: WorkerContext) -> NoReturn:
        path = Path(context.configuration["folder"]) / f"{context.index}.{os.getpid()}"
        with open(path, "a", buffering=1) as file:
            last_s = time.monotonic()
            file.write(f"begun {last_s}\n")
            while True:
                context.poll(0.0005)
                now_s = time.monotonic()
                if now_s - last_s > GAP_S:
                    file.write(f"{last_s} {now_s}\n")
                last_s = now_s


def until(is_so: Callable[[], bool]) -> float:
    """Wait; the time when it was so."""
    deadline_s = time.monotonic() + LIMIT_S
    while not is_so():
        if time.monotonic() > deadline_s:
            raise TimeoutError
        time.sleep(0.0005)
    return time.monotonic()


def mallob() -> Changes:
    less, more = list[float](), list[float]()
    here = Path(__file__)
    os.environ["MALLOB_PY_APPS"] = f"BEATS={here.stem}:Beats"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(here.parent), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as text, running_service(2, ["--preload", "BEATS"]) as service:
        folders = [Path(text) / name for name in ("long", "short")]
        for folder in folders:
            folder.mkdir()
        long, short = ({"folder": str(folder)} for folder in folders)
        service.drop({"user": "a", "name": "long", "application": "BEATS", "configuration": long})
        until(lambda: len(list(folders[0].iterdir())) == 2)
        for number in range(TIMES):
            time.sleep(1.0)
            job = {"user": "b", "name": f"short{number}", "application": "BEATS", "max-demand": 1}
            dropped = service.drop(job | {"configuration": short})
            until(lambda before=number: len(list(folders[1].iterdir())) > before)
            time.sleep(0.5)
            service.interrupt(dropped.identity)
            service.await_reply(dropped)
            replied_s = time.monotonic()
            time.sleep(1.0)
            lines = [line for path in folders[0].iterdir() for line in path.read_text().splitlines()]
            gaps = [tuple(map(float, line.split())) for line in lines if not line.startswith("begun")]
            stopped_s, resumed_s = min(gaps, key=lambda gap: abs(gap[1] - replied_s))
            less.append(stopped_s - dropped.dropped_s)
            more.append(resumed_s - replied_s)
        service.interrupt("a.long")
    return less, more


def _short_task(folder: str) -> None:
    with contextlib.suppress(FileNotFoundError):  # it has been cancelled, and goes on
        Path(folder, str(os.getpid())).touch()
    time.sleep(0.01)


def dask() -> Changes:
    from distributed import Client, LocalCluster

    less, more = list[float](), list[float]()
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        for _ in range(TIMES):
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                calls = client.map(_short_task, [folder] * 2000, pure=False)
                begin_s = time.monotonic()
                cluster.scale(2)
                more.append(until(lambda path=folder: len(os.listdir(path)) == 2) - begin_s)
                processes = [Path("/proc", pid) for pid in os.listdir(folder)]
                begin_s = time.monotonic()
                cluster.scale(1)
                less.append(until(lambda them=processes: not all(one.exists() for one in them)) - begin_s)
                client.cancel(calls)
    return less, more


def ray() -> Changes:
    import ray as library

    os.environ |= {"RAY_worker_niceness": "0"}
    library.init(num_cpus=2, include_dashboard=False, log_to_driver=False)

    class Worker:
        def pid(self) -> int:
            return os.getpid()

    less, more = list[float](), list[float]()
    for _ in range(TIMES):
        begin_s = time.monotonic()
        actor = library.remote(Worker).remote()
        pid = library.get(actor.pid.remote())
        more.append(time.monotonic() - begin_s)
        begin_s = time.monotonic()
        library.kill(actor)
        less.append(until(lambda pid=pid: not os.path.exists(f"/proc/{pid}")) - begin_s)
    library.shutdown()
    return less, more


def slurm() -> Changes:
    less = list[float]()
    with tempfile.TemporaryDirectory() as text, slurm_cluster() as cluster:
        folder = Path(text)
        for number in range(TIMES):
            job = ("--parsable", "--output=/dev/null", "--nodes=2", "--wrap", "sleep 1d")
            wide = cluster.run("sbatch", *job).strip()
            until(lambda job=wide: cluster.run("squeue", "-h", "-j", job, "-o", "%t").strip() == "R")
            done = folder / f"done{number}"
            waits = subprocess.Popen(["srun", "--quiet", "touch", str(done)], env=cluster.environment)
            time.sleep(1.0)
            begin_s = time.monotonic()
            cluster.run("scontrol", "update", f"JobId={wide}", "NumNodes=1")
            less.append(until(done.exists) - begin_s)
            waits.wait()
            cluster.run("scancel", wide)
            until(lambda: not cluster.run("squeue", "-h").strip())
    return less, []


SYSTEMS: dict[str, Callable[[], Changes]] = {"mallob-py": mallob, "Dask": dask, "Ray": ray, "Slurm": slurm}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--system", choices=SYSTEMS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.system:
        print(
            "RESULT " + json.dumps(dict(zip(("less", "more"), SYSTEMS[options.system](), strict=True))),
            flush=True,
        )
        return 0
    rows = []
    for name in options.only:
        if not is_there(name):
            print_absent(name, INSTALLATION[name][0])
        elif took := measured(name, script=__file__):
            rows.append([name, _told(took["less"]), _told(took["more"])])
    print_table("Medians, and the longest", ["system", "a worker less", "a worker more"], rows)
    return 0


def _told(times_s: list[float]) -> str:
    if not times_s:
        return "-"
    return f"{1000 * statistics.median(times_s):.1f} ms ({1000 * max(times_s):.0f})"


if __name__ == "__main__":
    sys.exit(main())
