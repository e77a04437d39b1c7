"""Constraint programming and two set-ups of PBS on jobs of Eurora, beside the published numbers.

Source: Bridi et al., "A CP Scheduler for High-Performance Computers" (2016), table 1. Which jobs its two
tests had is not known; these are instances of the logs of the same machine, which were published with
PA-HPC-SIM: 200 jobs that come within three hours and one, 400 within six, and 1000 within eight.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mallob_py.batch.policy import Action, Policy, View
from mallob_py.batch.registry import policy_of
from mallob_py.batch.simulator import Schedule, simulate
from mallob_py.batch.workload.eurora import expected_wait_s, read_eurora
from mallob_py.experiments.output import Output, Table, side_by_side

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FILE = "eurora_pahpcsim.tar.gz"
INSTANCES = (
    "hist_200_20140402_131752",
    "hist_200_20140402_123504",
    "hist_400_20140402_113051",
    "hist_1000_20140403_112234",
)
POLICIES = ("pbsfifo", "pbswalltime", "cp")
_HEADER = ("jobs", "policy", "WQT", "NL", "TR [s]", "mean [ms]", "median [ms]")
_PUBLISHED = (
    ("published, test 1", "PBSFifo", 152.94, 65, 1298810, 470.0, None),
    ("published, test 1", "PBSWalltime", 137.74, 60, 1223690, 3140.0, None),
    ("published, test 1", "CP", 119.77, 46, 1003970, 11450.0, None),
    ("published, test 2", "PBSFifo", 1034.2, 234, 16798300, 1020.0, None),
    ("published, test 2", "PBSWalltime", 853.68, 200, 13693000, 15470.0, None),
    ("published, test 2", "CP", 2441.3, 376, 16774800, 34820.0, None),
)
_REMARKS = (
    "WQT: sum of wait/expected wait of the queue. NL: jobs that wait for longer than that. TR: by how much,"
    " summed. mean, median: of the time of a decision. The publication's jobs are not known, so that"
    " its rows are not to be reached number by number."
)


class Run(msgspec.Struct, frozen=True):
    instance: str
    policy: str


class Measured(msgspec.Struct, frozen=True):
    """See _REMARKS."""

    weighted_wait: float
    late: int
    tardiness_s: float
    overhead_s: float
    overhead_median_s: float


class _Timed:
    """A policy as it is, with the time of each decision."""

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


def run(output: Output, processes: int | None, traces: Path | None) -> None:
    """Raises ValueError if the logs are not in the folder or damaged, PolicyError without OR-Tools."""
    path = _path(traces)
    if path is None:
        raise ValueError(f"the experiment cp needs a folder with {_FILE}: give it by --traces")
    runs = [Run(instance, policy) for instance in INSTANCES for policy in POLICIES]
    schedules = side_by_side(
        partial(_play, path), runs, processes, lambda one: f"{one.instance} {one.policy}", output.keep
    )
    results = dict(zip(runs, schedules, strict=True))
    output.tables([_table(results)], _REMARKS)
    output.figure("cp", partial(_draw, results))


def _path(traces: Path | None) -> Path | None:
    """The logs, in the folder or in its folder `traces`."""
    if traces is None:
        return None
    return next((path for path in (traces / _FILE, traces / "traces" / _FILE) if path.exists()), None)


def _play(path: Path, one: Run) -> Measured:
    (workload,) = read_eurora(path, [one.instance])
    policy = _Timed(policy_of(one.policy))
    return measured(simulate(workload, policy), policy.times_s)


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
    )


def _table(results: dict[Run, Measured]) -> Table:
    rows = [
        (
            one.instance,
            one.policy,
            result.weighted_wait,
            result.late,
            round(result.tardiness_s),
            1000.0 * result.overhead_s,
            1000.0 * result.overhead_median_s,
        )
        for one, result in results.items()
    ]
    return Table("Jobs of Eurora", _HEADER, (*rows, *_PUBLISHED))


def _draw(results: dict[Run, Measured], figure: Figure) -> None:
    """Weighted waits, and how many jobs are late: a group of bars for each instance."""
    width = 0.8 / len(POLICIES)
    for axes, measure, title in zip(
        figure.subplots(1, 2),
        ("weighted_wait", "late"),
        ("WQT (wait/expected wait)", "NL (late jobs)"),
        strict=True,
    ):
        for place, policy in enumerate(POLICIES):
            heights = [getattr(results[Run(instance, policy)], measure) for instance in INSTANCES]
            at = [number + place * width for number in range(len(INSTANCES))]
            axes.bar(at, heights, width, label=policy.partition(":")[0])
        axes.set_xticks([number + width for number in range(len(INSTANCES))])
        names = [instance.replace("_2014", "\n2014").rsplit("_", 1) for instance in INSTANCES]
        axes.set_xticklabels(map("\n".join, names), fontsize="x-small")
        axes.set(title=title)
        axes.legend()
