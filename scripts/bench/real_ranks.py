"""Uniform jobs and priorities (P 5.1, 5.2) on real ranks with real formulas, scaled to this machine.

    .venv/bin/python scripts/bench/real_ranks.py [--ranks 4] [--pes 2] [--seconds 20]

The script starts a service of `ranks` x `pes` PEs and prints two tables:

- uniform jobs: n jobs at any time, random 3-SAT that no PE solves in time, all with the same CPU limit; their
  throughput beside the throughput of a schedule without overhead on as many PEs, the used share of the CPU
  limits (eta), and the utilisation of this machine's cores (u);
- priorities: a stream of jobs for each priority, all at the same time; the mean volume of each priority's
  jobs beside its exact share, which the simulator reaches (`mallob-py experiment priorities`).

a ± b is a mean with its 95 % interval: the ratio's over generations of jobs, other intervals over jobs.
Formulas are drawn by seed. With more PEs than cores, workers share cores; PE-seconds are wall seconds.
"""

import argparse
import os
import tempfile
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from common import DroppedJob, Service, print_table, running_service

from mallob_py.experiments.intervals import around, interval
from mallob_py.protocol.volumes import fair_volumes
from mallob_sat import generate

VARIABLES = 700
RATIO = 4.6
FORMULAS = 8
PRIORITIES = (0.1, 0.2, 0.3, 0.5, 1.0)
_POLL_S = 0.02
#: time in which a schedule without overhead ends all uniform jobs that are present
_GENERATION_S = 4.0


def formulas(folder: Path) -> list[str]:
    """Write random 3-SAT formulas above the threshold of satisfiability, which no solver decides within
    minutes.
    """
    paths = list[str]()
    for seed in range(FORMULAS):
        path = folder / f"random{seed}.cnf"
        path.write_text(generate.uniform(VARIABLES, round(RATIO * VARIABLES), seed).text("random 3-SAT"))
        paths.append(str(path))
    return paths


class Loop:
    """A closed loop of jobs: the service always has one job of each stream.

    `replies`: stream -> (time, reply) of each ended job.
    """

    def __init__(self, service: Service, paths: list[str], fields: list[dict[str, Any]], tag: str) -> None:
        self._service, self._paths, self._fields, self._tag = service, paths, fields, tag
        self._count = 0
        self._there: dict[int, DroppedJob] = {}
        self.replies: dict[int, list[tuple[float, dict[str, Any]]]] = defaultdict(list)

    def play(self, seconds: float) -> float:
        """Run for `seconds`; return the actual time."""
        began_s = time.monotonic()
        for stream in range(len(self._fields)):
            self._submit(stream)
        while (now_s := time.monotonic()) - began_s < seconds:
            for stream, job in list(self._there.items()):
                if job.reply_path.exists():
                    self.replies[stream].append((now_s - began_s, self._service.reply(job)))
                    self._submit(stream)
            time.sleep(_POLL_S)
        for job in self._there.values():
            self._service.interrupt(job.identity)
        return time.monotonic() - began_s

    def _submit(self, stream: int) -> None:
        self._count += 1
        job = {
            "user": "bench",
            "name": f"{self._tag}-{self._count}",
            "files": [self._paths[self._count % len(self._paths)]],
            "priority": 1.0,
            **self._fields[stream],
        }
        self._there[stream] = self._service.drop(job)


def uniform(service: Service, paths: list[str], pes: int, seconds: float) -> list[tuple[Any, ...]]:
    rows = list[tuple[Any, ...]]()
    jobs = 1
    while jobs <= pes:
        budget_s = _GENERATION_S * pes / jobs
        loop = Loop(service, paths, [{"cpu-limit": f"{budget_s:g}s"}] * jobs, f"uniform{jobs}")
        began = _cpu_s()
        took_s = loop.play(seconds)
        used = (_cpu_s() - began) / took_s
        done = [(at_s, reply) for replies in loop.replies.values() for at_s, reply in replies]
        done.sort(key=lambda one: one[0])
        theta = max((count / at_s for count, (at_s, _) in enumerate(done, 1)), default=0.0)
        ends_s = [0.0, *(at_s for at_s, _ in done[jobs - 1 :: jobs])]
        ratios = [_GENERATION_S / (end_s - begin_s) for begin_s, end_s in pairwise(ends_s)]
        etas = [reply["stats"]["used_pe_seconds"] / budget_s for _, reply in done]
        ratio, eta = around(theta / (jobs / _GENERATION_S), ratios), interval(etas or [0.0])
        rows.append((jobs, len(done), theta, jobs / _GENERATION_S, ratio.text(3), eta.text(3), used))
        jobs *= 2
    return rows


def _cpu_s() -> float:
    """Return the time for which this machine's cores were busy with any process, as a mean over cores."""
    user, nice, system, _, _, irq, soft, steal = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK") / (os.cpu_count() or 1)


def priorities(service: Service, paths: list[str], pes: int, seconds: float) -> list[tuple[Any, ...]]:
    limit_s = max(4.0, seconds / 5)
    fields = [{"priority": one, "wallclock-limit": f"{limit_s:g}s"} for one in PRIORITIES]
    loop = Loop(service, paths, fields, "priority")
    loop.play(seconds)
    exact = fair_volumes(np.array(PRIORITIES), np.full(len(PRIORITIES), pes), pes).tolist()
    rows = list[tuple[Any, ...]]()
    for stream, one in enumerate(PRIORITIES):
        stats = [reply["stats"] for _, reply in loop.replies[stream]]
        volumes = [each["used_pe_seconds"] / each["used_wallclock_seconds"] for each in stats]
        share = pes * one / sum(PRIORITIES)
        rows.append((one, len(stats), interval(volumes).text(3) if volumes else None, exact[stream], share))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--pes", type=int, default=2, help="PEs per rank")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="time per row of the first table, and for the second"
    )
    options = parser.parse_args()
    pes = options.ranks * options.pes
    with tempfile.TemporaryDirectory(prefix="mallob-py-real-") as folder:
        paths = formulas(Path(folder))
        with running_service(options.ranks, ["--pes", str(options.pes)]) as service:
            header = ("n_par", "jobs", "theta", "theta_opt", "theta/theta_opt", "eta", "u")
            rows = uniform(service, paths, pes, options.seconds)
            print_table(f"Uniform jobs on {pes} PEs", header, rows)
            header = ("priority", "jobs", "mean volume", "assigned", "exact share")
            print_table(f"Priorities on {pes} PEs", header, priorities(service, paths, pes, options.seconds))


if __name__ == "__main__":
    main()
