"""The way of a trivial job through a rank: how often it goes from one of our modules to another.

A service of one rank gets NOOP jobs, one after the other. Its rank notes each call that leads from one module
of `mallob_py` into another; counted are those between the rename of a job file into
`in/` and the sight of its reply. Which modules and which ways these are tells where a job's path could be
shorter. The rank is several times as slow as otherwise: this is about its paths, not about time. So its clock
is as slow: a job that is over within its first milliseconds, before others are told of it, is so here.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

_JOBS = 20
_DEADLINE_S = 60.0
#: so many times as slow is a rank that notes its calls, at most, on a busy machine too
_SLOWNESS = 30.0

#: found by every Python that starts below; only a rank's loop imports that module
_SITECUSTOMIZE = """
import atexit, os, sys, time

def _install():
    out = os.environ["BENCH_JOB_PATH_OUT"]
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
    from mallob_py.runtime.rank import Rank

    service_clock, slowness = module.service_clock, float(os.environ["BENCH_JOB_PATH_SLOWNESS"])

    def slow_clock(start_s):
        clock = service_clock(start_s)
        begin_s = clock()
        return lambda: begin_s + (clock() - begin_s) / slowness

    module.service_clock = slow_clock
    run = Rank.run

    def profiled(self):
        sys.setprofile(profile)
        try:
            run(self)
        finally:
            sys.setprofile(None)
            with open(out, "w") as file:
                file.writelines(f"{when} {source} {dest}\\\\n" for when, source, dest in log)

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


def measure(jobs: int) -> tuple[list[int], Counter[str], Counter[tuple[str, str]]]:
    """Return for each job how many changes of module; then the changes into each module, and of each pair."""
    with tempfile.TemporaryDirectory(prefix="mallob-py-path.") as name:
        folder = Path(name)
        (folder / "sitecustomize.py").write_text(_SITECUSTOMIZE.replace("\\\\n", "\\n"))
        ways, out = folder / "api", folder / "ways"
        paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": ":".join(paths), "BENCH_JOB_PATH_OUT": str(out)}
        environment["BENCH_JOB_PATH_SLOWNESS"] = str(_SLOWNESS)
        command = [sys.executable, "-m", "mallob_py", "serve", "-n", "1", "--api-dir", str(ways)]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as service:
            assert service.stdout is not None
            while "accepting jobs" not in (line := service.stdout.readline()):
                if not line:
                    raise SystemExit("the service did not start")
            spans = [_one_job(ways, number) for number in range(jobs + 1)][1:]  # the first one imports
            service.terminate()
        changes = [line.split(" ") for line in out.read_text().splitlines()]
    counts = [0] * len(spans)
    into: Counter[str] = Counter()
    pairs: Counter[tuple[str, str]] = Counter()
    for when, source, dest in changes:
        for number, (begin_s, end_s) in enumerate(spans):
            if begin_s <= float(when) <= end_s:
                counts[number] += 1
                into[dest] += 1
                pairs[source, dest] += 1
    return counts, into, pairs


def _one_job(api_dir: Path, number: int) -> tuple[float, float]:
    """When its file was there, and when its reply was."""
    time.sleep(0.3)  # what the job before has left to do is not this one's
    inbox, reply = api_dir / "jobs.0/in", api_dir / f"jobs.0/out/bench.noop{number}.json"
    hidden = inbox / f".noop{number}.json"
    hidden.write_text(f'{{"user": "bench", "name": "noop{number}", "application": "NOOP"}}')
    begin_s = time.monotonic()
    hidden.rename(inbox / f"noop{number}.json")
    while not reply.exists():
        if time.monotonic() > begin_s + _DEADLINE_S:
            raise SystemExit(f"no reply within {_DEADLINE_S:g} s")
        time.sleep(0.0005)
    return begin_s, time.monotonic()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=_JOBS)
    parser.add_argument("--ways", type=int, default=12, help="so many of the most frequent ways are shown")
    options = parser.parse_args()
    counts, into, pairs = measure(options.jobs)
    jobs = len(counts)
    median = statistics.median(counts)
    print(
        f"changes of module of a NOOP job, over {jobs} jobs: median {median:g}, least {min(counts)}, ", end=""
    )
    print(f"most {max(counts)}; {len(into)} modules")
    for module, count in into.most_common(options.ways):
        print(f"  {count / jobs:6.1f}  into {module}")
    for (source, dest), count in pairs.most_common(options.ways):
        print(f"  {count / jobs:6.1f}  {source} -> {dest}")


if __name__ == "__main__":
    main()
