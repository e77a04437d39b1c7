"""Impact of priorities (P 5.2, Fig. 4): volumes in proportion to priorities.

Each of nine streams has its own priority and always one job in the system, which runs for at most 300 s. Each
stream plays a permutation of the same 80 instances, again and again; response times are those of each
instance's first job. The protocol sets the volumes. The run time of a job cannot be simulated. It comes from
a model fitted to two numbers of the paper (27 and 58 of 80 jobs solved with 1.0 and 176.6 workers): work with
a logarithmic normal distribution, of which the instances are the quantiles, and a speed of volume ** 0.5.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import NormalDist, fmean
from typing import TYPE_CHECKING

import msgspec

from mallob_py.experiments import paper
from mallob_py.experiments.intervals import interval, ratio
from mallob_py.experiments.output import Output, Table
from mallob_py.experiments.uniform import ClosedLoop
from mallob_py.protocol.balancing import volumes_of
from mallob_py.protocol.messages import JobEvent
from mallob_py.simulation.run import Simulation
from mallob_py.simulation.setting import JobSpec, Setting, SettingError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PES = 384
#: time in which the slowest stream plays all its instances
SECONDS = 21600.0
INSTANCES = 80
_WALLCLOCK_S = 300.0
_SPEEDUP = 0.5
_WORK_DECADES = NormalDist(2.94, 1.1)


class PriorityRow(msgspec.Struct, frozen=True, kw_only=True):
    """One stream. `fair_volume` is the stream's exact share, without rounding. None: no job has ended."""

    priority: float
    mean_volume: float | None
    assigned_volume: int
    fair_volume: float
    mean_response_s: float | None
    jobs: int
    #: for each ended job: the seconds for which its workers have run, and (wallclock_s) its own run time
    worker_s: list[float]
    wallclock_s: list[float]
    #: instance -> response time of its first job
    responses_s: dict[int, float]


def _permutation(priority: float, seed: int) -> list[int]:
    return random.Random(f"priorities {seed} {priority}").sample(range(INSTANCES), INSTANCES)


def specs_of(priority: float, client: int, seed: int) -> Iterator[JobSpec]:
    while True:
        for instance in _permutation(priority, seed):
            yield JobSpec(
                arrival_s=0.0,
                client=client,
                name=str(instance),
                priority=priority,
                wallclock_limit_s=_WALLCLOCK_S,
                max_demand=0,
                work_s=10.0 ** _WORK_DECADES.inv_cdf((instance + 0.5) / INSTANCES),
                speedup=_SPEEDUP,
            )


def measure(setting: Setting) -> list[PriorityRow]:
    """Simulate all streams together. Raises SettingError if there are fewer PEs than streams."""
    if setting.pes < len(paper.PRIORITIES):
        raise SettingError(f"pes: {setting.pes} are too few for {len(paper.PRIORITIES)} jobs at a time")
    simulation = Simulation(setting)
    priorities = list(paper.PRIORITIES)
    loop = ClosedLoop(
        simulation,
        [
            specs_of(priority, number % setting.pes, setting.seed)
            for number, priority in enumerate(priorities)
        ],
    )
    simulation.play()
    events = {job: JobEvent(job, 1, setting.pes, priority, 0.0) for job, priority in enumerate(priorities)}
    assigned = volumes_of(events, setting.pes)
    shares = _shares(priorities, setting.pes)
    rows = []
    for stream, priority in enumerate(priorities):
        ended = [job for job in simulation.measures.ended if loop.stream_of[job.job] == stream]
        wallclock_s = [job.wallclock_s for job in ended]
        worker_s = [simulation.measures.worker_s[job.job] for job in ended]
        order = _permutation(priorities[stream], setting.seed)
        responses_s = {instance: job.response_s for instance, job in zip(order, ended, strict=False)}
        rows.append(
            PriorityRow(
                priority=priority,
                mean_volume=sum(worker_s) / sum(wallclock_s) if ended else None,
                assigned_volume=assigned.get(stream, 0),
                fair_volume=shares[stream],
                mean_response_s=fmean(responses_s.values()) if ended else None,
                jobs=len(ended),
                worker_s=worker_s,
                wallclock_s=wallclock_s,
                responses_s=responses_s,
            )
        )
    return rows


def _shares(priorities: list[float], pes: int) -> list[float]:
    """Return max(1, alpha * p) for each priority p; alpha is found by bisection, so that the sum is `pes`."""
    low, high = 0.0, pes / min(priorities)
    for _ in range(200):
        alpha = (low + high) / 2
        if sum(max(1.0, alpha * priority) for priority in priorities) > pes:
            high = alpha
        else:
            low = alpha
    return [max(1.0, low * priority) for priority in priorities]


def run(setting: Setting, folder: Path, _processes: int | None) -> None:
    """Simulate all streams, print a table, and draw a figure."""
    output = Output(folder, "priorities")
    rows = measure(setting)
    for row in rows:
        output.keep(f"priority {row.priority:g}", row)
    table = Table(
        f"Priorities on {setting.pes} PEs, {setting.seconds:g} s",
        (
            *("priority", "mean volume", "assigned", "exact share", "paper's mean volume"),
            *("response [s] (model)", "sooner than next lower priority [s]", "paper's response [s]", "jobs"),
        ),
        tuple(
            (
                row.priority,
                ratio(row.worker_s, row.wallclock_s).text() if row.jobs else None,
                row.assigned_volume,
                row.fair_volume,
                paper.PRIORITIES[row.priority][0],
                interval(list(row.responses_s.values())).text(1) if row.jobs else None,
                _gain(below, row),
                paper.PRIORITIES[row.priority][1],
                row.jobs,
            )
            for below, row in zip([None, *rows], rows, strict=False)
        ),
    )
    remarks = (
        "mean volume: seconds for which the jobs' workers have run, divided by the jobs' run times.\n"
        "The response times follow from a model of the work, not from solving anything.\n"
        "a ± b is a mean with its 95 % interval over instances; differences are taken instance by instance."
    )
    output.tables([table], remarks)
    output.figure("fig4-priorities", lambda figure: _draw(figure, rows))


def _gain(below: PriorityRow | None, row: PriorityRow) -> str | None:
    """Return how much earlier the same instances end than with the next lower priority [s]."""
    both = [] if below is None else sorted(below.responses_s.keys() & row.responses_s.keys())
    if below is None or not both:
        return None
    return interval([below.responses_s[one] - row.responses_s[one] for one in both]).text(1)


def _draw(figure: Figure, rows: list[PriorityRow]) -> None:
    volumes = figure.subplots()
    responses = volumes.twinx()
    priorities = [row.priority for row in rows]
    volumes.set_xscale("log")
    volumes.set_yscale("log")

    def points(axes: Axes, values: Sequence[float | None], marker: str, color: str, label: str) -> None:
        known = {p: value for p, value in zip(priorities, values, strict=True) if value is not None}
        axes.plot(list(known), list(known.values()), marker, color=color, label=label)

    points(volumes, [row.mean_volume for row in rows], "^", "tab:blue", "mean volume")
    points(volumes, [paper.PRIORITIES[p][0] for p in priorities], "+", "navy", "mean volume, paper")
    modelled = [row.mean_response_s for row in rows]
    points(responses, modelled, "s", "tab:orange", "mean response (model of the work)")
    points(responses, [paper.PRIORITIES[p][1] for p in priorities], "x", "sienna", "mean response, paper")
    volumes.set_xlabel("priority")
    volumes.set_ylabel("mean volume [workers]")
    responses.set_ylabel("mean response time [s]")
    responses.set_ylim(bottom=0)
    figure.legend(loc="outside upper center", ncols=2)
