"""Constraint programming and two configurations of PBS on jobs of Eurora, beside the published numbers.

Source: Bridi et al., "A CP Scheduler for High-Performance Computers" (2016), table 1. The jobs of its two
tests are unknown; the jobs here are instances of the same machine's logs, which were published with
PA-HPC-SIM: 200 jobs that arrive within three hours, 200 within one hour, 400 within six hours, and 1000
within eight hours. In full, the experiment plays every fifth instance, and the log joined from all instances.
"""

from __future__ import annotations

import re
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import msgspec

from mallob_py.batch.experiments.traces import missing, path_in
from mallob_py.batch.job import Workload
from mallob_py.batch.metrics import metrics_of
from mallob_py.batch.policy import Action, Policy, View
from mallob_py.batch.registry import policy_of
from mallob_py.batch.simulator import Schedule, simulate
from mallob_py.batch.workload.changes import with_exact_estimates
from mallob_py.batch.workload.eurora import CLUSTER, expected_wait_s, instances_of, joined, read_eurora
from mallob_py.experiments import frame
from mallob_py.experiments.intervals import interval, winner
from mallob_py.experiments.output import Output, Table
from mallob_py.text_table import Cell

_FILE = "eurora_pahpcsim.tar.gz"
INSTANCES = (
    "hist_200_20140402_131752",
    "hist_200_20140402_123504",
    "hist_400_20140402_113051",
    "hist_1000_20140403_112234",
)
POLICIES = ("pbsfifo", "pbswalltime", "pbswalltime:learn=yes", "cp:learn=no", "cp")
#: policy -> its name in the tables' rows
_LABELS = {"cp:learn=no": "cp:learn=no (published model)", "cp": "cp (learns)"}
#: (policy, are estimates exact): runs that show whether the published model lacks solver time, depth or good
#: estimates
_WHY = (
    ("pbswalltime", False),
    ("cp:learn=no", False),
    ("cp:learn=no,limit_s=1,cap_s=1", False),
    ("cp:learn=no,depth=400", False),
    ("pbswalltime", True),
    ("cp:learn=no", True),
)
_EVERY = 5
_LOG = "all logs"
_CORES = sum(capacity[0] for capacity in CLUSTER.capacities)
_HEADER = ("jobs", "policy", "WQT", "NL", "TR [s]", "cores in use", "mean [ms]", "median [ms]")
_PUBLISHED = (
    ("published, test 1", "PBSFifo", 152.94, 65, 1298810, None, 470.0, None),
    ("published, test 1", "PBSWalltime", 137.74, 60, 1223690, None, 3140.0, None),
    ("published, test 1", "CP", 119.77, 46, 1003970, None, 11450.0, None),
    ("published, test 2", "PBSFifo", 1034.2, 234, 16798300, None, 1020.0, None),
    ("published, test 2", "PBSWalltime", 853.68, 200, 13693000, None, 15470.0, None),
    ("published, test 2", "CP", 2441.3, 376, 16774800, None, 34820.0, None),
)
_REMARKS = (
    "WQT: sum over jobs of wait/expected wait of the queue. NL: number of jobs that wait for longer than the"
    " expected wait. TR: sum of the times beyond it. mean, median: time of a decision. Cores in use:"
    " mean, of 1024. The paper's jobs are not known, so its numbers cannot be reproduced one by one."
    " Exact: users' estimates are the true run times. a ± b is a mean with its 95 % interval over instances,"
    " which is too narrow, because instances have jobs in common."
)


class Run(frame.Run, frozen=True):
    """A run of a policy on an instance; `exact`: users' estimates are the run times."""

    instance: str
    policy: str
    exact: bool = False


class Measured(msgspec.Struct, frozen=True):
    """The measurements of a run, explained in `_REMARKS`."""

    weighted_wait: float
    late: int
    tardiness_s: float
    overhead_s: float
    overhead_median_s: float
    jobs: int = 0
    cores: float = 0.0


class _Timed:
    """A policy whose decisions are timed."""

    def __init__(self, policy: Policy) -> None:
        self.name = policy.name
        self.wants_all_arrivals = policy.wants_all_arrivals
        self._policy = policy
        self.times_s: list[float] = []

    def begin(self, nodes: int) -> None:
        self._policy.begin(nodes)

    def decide(self, view: View) -> Iterable[Action]:
        began_s = time.perf_counter()
        actions = list(self._policy.decide(view))
        self.times_s.append(time.perf_counter() - began_s)
        return actions


def run(output: Output, processes: int | None, traces: Path | None, full: bool = False) -> None:
    """Do all runs and write tables. `full`: every fifth instance, and the log joined from all instances.

    Raises ValueError for missing or damaged logs, PolicyError without OR-Tools.
    """
    path = path_in(traces, _FILE)
    if path is None:
        raise missing("cp", (_FILE,))
    if full:
        instances = (*[name for name in instances_of(path) if _size(name)][::_EVERY], _LOG)
        runs = [Run(instance, policy) for instance in instances for policy in POLICIES]
    else:
        runs = [Run(instance, policy) for instance in INSTANCES for policy in POLICIES]
        runs += [Run(INSTANCES[0], policy, exact) for policy, exact in _WHY]
    results = output.play(partial(_play, path), runs, processes, Run.name)
    if full:
        output.tables([by_size(results), _of_log(results)], _REMARKS)
        return
    why = _rows((one, results[one]) for one in (Run(INSTANCES[0], *row) for row in _WHY))
    output.tables(
        [table(results), Table(f"Why the published model loses on {INSTANCES[0]}", _HEADER, tuple(why))],
        _REMARKS,
    )


def _size(name: str) -> int:
    """Return the number of jobs that an instance's name states; 0: its jobs were chosen at random."""
    found = re.match(r"hist_(\d+)_", name)
    return int(found[1]) if found else 0


def _play(path: Path, one: Run) -> Measured:
    workload = _load(path, one.instance)
    if one.exact:
        workload = with_exact_estimates(workload)
    policy = _Timed(policy_of(one.policy))
    return measured(simulate(workload, policy), policy.times_s)


def _load(path: Path, instance: str) -> Workload:
    if instance == _LOG:
        return joined([one for one in read_eurora(path) if _size(one.name)], _LOG)
    (workload,) = read_eurora(path, [instance])
    return workload


def measured(schedule: Schedule, times_s: list[float]) -> Measured:
    waits = [
        (start - job.submit_s, expected_wait_s(job.queue))
        for job, start in zip(schedule.workload.jobs, schedule.starts_s, strict=True)
    ]
    return Measured(
        sum(wait_s / expected_s for wait_s, expected_s in waits),
        sum(wait_s > expected_s for wait_s, expected_s in waits),
        sum(max(0.0, wait_s - expected_s) for wait_s, expected_s in waits),
        statistics.mean(times_s),
        statistics.median(times_s),
        len(waits),
        _CORES * metrics_of(schedule).utilisation,
    )


def _rows(results: Iterable[tuple[Run, Measured]]) -> list[tuple[Cell, ...]]:
    return [
        (
            one.instance,
            _LABELS.get(one.policy, one.policy) + (", exact" if one.exact else ""),
            result.weighted_wait,
            result.late,
            round(result.tardiness_s),
            round(result.cores, 1),
            1000.0 * result.overhead_s,
            1000.0 * result.overhead_median_s,
        )
        for one, result in results
    ]


def table(results: dict[Run, Measured]) -> Table:
    here = ((one, results[one]) for one in results if one.policy in POLICIES and not one.exact)
    return Table("Jobs of Eurora", _HEADER, (*_rows(here), *_PUBLISHED))


def by_size(results: dict[Run, Measured]) -> Table:
    """Return WQT per job by the size of instances, and the policy ahead of all others, if any."""
    instances = defaultdict[int, list[str]](list)
    for name in dict.fromkeys(one.instance for one in results if one.instance != _LOG):
        instances[_size(name)].append(name)
    rows = list[tuple[Cell, ...]]()
    for size, names in sorted(instances.items()):
        of_policy = {
            policy: [
                results[Run(name, policy)].weighted_wait / results[Run(name, policy)].jobs for name in names
            ]
            for policy in POLICIES
        }
        cells = [interval(values).text(3) for values in of_policy.values()]
        rows.append((size, len(names), *cells, winner(of_policy) or "none"))
    header = ("jobs", "instances", *POLICIES, "ahead of all others")
    return Table("WQT per job, means over instances", header, tuple(rows))


def _of_log(results: dict[Run, Measured]) -> Table:
    here = ((one, result) for one, result in results.items() if one.instance == _LOG)
    return Table("The log put together from all instances", _HEADER, tuple(_rows(here)))
