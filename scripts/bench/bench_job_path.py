"""Three paths through a rank: how many calls lead from one module of `mallob_py` to another.

Ranks record each such call. The script counts the calls

- of a NOOP job, on one rank, from the rename of the job's file into `in/` until its reply is seen;
- of `resize +1`, from the order until a second after the answer;
- of a rank's loss: in the seconds after the kill of a rank without a client.

For the last two paths, the rank with the most calls is reported. The list of calls shows where a path could
be shorter. Recording makes ranks several times slower, but the script measures paths and not time. So the
ranks' clock is slowed as well, and they wait by this clock. Then a job that usually ends within its first
milliseconds, before other ranks hear of it, does so here, too, and no turn of a rank's loop is counted that
happens only because waiting ended too early.
"""

import argparse
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from common import Service, print_table, running_service

from mallob_py.runtime.processes import python
from mallob_py.service.telemetry.status import read_status

_JOBS = 20
#: number of ranks that are added, and of ranks that are killed
_CHANGES = 3
#: time until all ranks have heard of an answer; time until ranks continue without a lost rank
_HEARD_S, _LOSS_S = 1.0, 3.0
#: greatest factor by which recording slows a rank, even on a busy machine
_SLOWNESS = 30.0

#: source of a module that every Python process of the service imports; it acts only in ranks
_SITECUSTOMIZE = r"""
import os, sys, time

def _install():
    folder = os.environ["BENCH_JOB_PATH_OUT"]
    log, names = [], {}

    def module_of(code):
        name = names.get(code)
        if name is None:
            path = code.co_filename
            at = path.rfind("/mallob_py/")
            name = names[code] = path[at + 11 : -3].replace("/", ".") if at >= 0 else ""
        return name

    def profile(frame, event, _arg, clock=time.monotonic):
        if event != "call" or not (dest := module_of(frame.f_code)):
            return
        caller = frame.f_back
        while caller is not None and not (source := module_of(caller.f_code)):
            caller = caller.f_back
        if caller is not None and source != dest:
            log.append((clock(), source, dest))

    from mallob_py.runtime import rank as module
    from mallob_py.runtime.bells import Bells
    from mallob_py.runtime.rank import Rank

    service_clock, slowness = module.service_clock, float(os.environ["BENCH_JOB_PATH_SLOWNESS"])

    def slow_clock(start_s):
        clock = service_clock(start_s)
        return lambda: clock() / slowness

    module.service_clock = slow_clock
    park = Bells.park
    Bells.park = lambda self, timeout_s: park(self, timeout_s * slowness)
    run = Rank.run

    def profiled(self):
        out = f"{folder}/{self.rank}.{os.getpid()}"
        open(out, "w").close()
        sys.setprofile(profile)
        try:
            run(self)
        finally:
            sys.setprofile(None)
            with open(out, "w") as file:
                file.writelines(f"{when} {source} {dest}\n" for when, source, dest in log)

    Rank.run = profiled

class _Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "mallob_py.runtime.boot":
            return None
        sys.meta_path.remove(self)
        _install()
        return None

sys.meta_path.insert(0, _Finder())
"""

#: begin and end of a path [s of the monotonic clock]
Span = tuple[float, float]
#: calling and called module
Way = tuple[str, str]


def measure(ranks: int, trips: Callable[[Service, Path], list[Span]]) -> list[tuple[str, Counter[Way]]]:
    """Return, for each path, the rank with the most calls between modules, and its calls."""
    with tempfile.TemporaryDirectory(prefix="mallob-py-path.") as name:
        folder, out = Path(name), Path(name) / "out"
        out.mkdir()
        (folder / "sitecustomize.py").write_text(_SITECUSTOMIZE)
        paths = [name, *filter(None, [os.environ.get("PYTHONPATH")])]
        before = dict(os.environ)
        os.environ |= {
            "PYTHONPATH": ":".join(paths),
            "BENCH_JOB_PATH_OUT": str(out),
            "BENCH_JOB_PATH_SLOWNESS": str(_SLOWNESS),
        }
        try:
            with running_service(ranks) as service:
                spans = trips(service, out)
        finally:
            os.environ.clear()
            os.environ |= before
        found: list[dict[str, Counter[Way]]] = [{} for _ in spans]
        for path in out.iterdir():
            for when, source, dest in map(str.split, path.read_text().splitlines()):
                for number, (begin_s, end_s) in enumerate(spans):
                    if begin_s <= float(when) <= end_s:
                        found[number].setdefault(path.name, Counter())[source, dest] += 1
    return [max(by_rank.items(), key=lambda one: one[1].total()) for by_rank in found]


def jobs(service: Service, _: Path) -> list[Span]:
    """Run NOOP jobs one after the other; leave out the first job, which imports the application."""
    spans = []
    for number in range(_JOBS + 1):
        time.sleep(0.3)  # work for the previous job must not count for this job
        job = service.drop({"user": "bench", "name": f"noop{number}", "application": "NOOP"})
        service.await_reply(job)
        spans.append((job.dropped_s, time.monotonic()))
    return spans[1:]


def growth(service: Service, _: Path) -> list[Span]:
    """Add a rank, _CHANGES times."""
    command = [*python(), "-m", "mallob_py", "resize", "+1", "--api-dir", str(service.api_dir)]
    spans = []
    for _ in range(_CHANGES):
        begin_s = time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=120.0)
        time.sleep(_HEARD_S)
        spans.append((begin_s, time.monotonic()))
    return spans


def losses(service: Service, out: Path) -> list[Span]:
    """Kill a rank without a client, _CHANGES times; the other ranks continue."""
    deadline_s = time.monotonic() + 60.0
    while (status := read_status(service.api_dir)) is None:
        assert time.monotonic() < deadline_s, "the service writes no status"
        time.sleep(0.1)
    clients = {process.pid for process in status.processes}
    pids = [pid for pid in (int(path.suffix[1:]) for path in out.iterdir()) if pid not in clients]
    spans = []
    for pid in pids[:_CHANGES]:
        begin_s = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        time.sleep(_LOSS_S)
        spans.append((begin_s, time.monotonic()))
    return spans


#: name of a path -> number of ranks at the start, function that produces the path several times
TRIPS: dict[str, tuple[int, Callable[[Service, Path], list[Span]]]] = {
    "NOOP": (1, jobs),
    "resize +1": (2, growth),
    "a rank's death": (2 + _CHANGES, losses),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--only", choices=TRIPS, nargs="+", default=list(TRIPS))
    parser.add_argument(
        "--ways", type=int, default=12, help="show this number of calls, the most frequent first"
    )
    options = parser.parse_args()
    for name in options.only:
        found = measure(*TRIPS[name])
        counts = [ways.total() for _, ways in found]
        told = f"median {statistics.median(counts):g}, smallest {min(counts)}, largest {max(counts)}"
        ranks = ", ".join(dict.fromkeys(f"rank {rank.partition('.')[0]}" for rank, _ in found))
        whole = sum((ways for _, ways in found), Counter[Way]())
        rows = [(f"{source} -> {dest}", count / len(found)) for (source, dest), count in whole.most_common()]
        title = f"{name}: calls between modules in {len(found)} runs: {told} ({ranks})"
        print_table(title, ("call", "mean number"), rows[: options.ways])


if __name__ == "__main__":
    main()
