"""Uniform jobs (P 5.1, Table 1): how near does the throughput come to that of a perfect rigid schedule?

At any time n_par jobs of equal size are in the system; each has a CPU budget of 1920 / n_par
core-minutes at 4 cores per PE. So if all 1536 PEs are busy, a job takes 18.75 s. theta is the number of
processed jobs per second since the start, at the moment when it is largest; theta_opt is the theta of
a schedule without any overhead. eta is the time for which the workers of finished jobs have run,
divided by the jobs' budgets.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, repeat
from pathlib import Path
from statistics import fmean

import msgspec

from mallob_py.experiments import paper
from mallob_py.experiments.intervals import around
from mallob_py.experiments.output import Output, Table, side_by_side
from mallob_py.simulation.run import Simulation, Summary, share_cell
from mallob_py.simulation.setting import JobSpec, Setting, SettingError

PES = 1536
SECONDS = 320.0
CORES_PER_PE = 4
#: seconds that one job takes if the PEs are shared perfectly
GENERATION_S = 18.75
_CLIENTS = 4


class Case(msgspec.Struct, frozen=True):
    """A row of the table that is still to be measured."""

    setting: Setting
    jobs_at_a_time: int


class UniformRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of P Table 1, with the duration of each generation of jobs and the eta of its jobs."""

    jobs_at_a_time: int
    theta: float
    theta_opt: float
    eta: float
    generations_s: list[float]
    etas: list[float]
    summary: Summary


def measure(case: Case) -> UniformRow:
    """Simulate one case, and return its row of the table."""
    setting, jobs = case.setting, case.jobs_at_a_time
    budget_s = GENERATION_S * CORES_PER_PE * setting.pes / jobs
    simulation = Simulation(setting)
    clients = [setting.pes - 1 - number % _CLIENTS for number in range(jobs)]
    ClosedLoop(
        simulation,
        [
            repeat(
                JobSpec(
                    arrival_s=0.0,
                    client=max(0, client),
                    name="uniform",
                    priority=1.0,
                    wallclock_limit_s=0.0,
                    cpu_limit_s=budget_s,
                    max_demand=0,
                )
            )
            for client in clients
        ],
    )
    simulation.play()
    measures = simulation.measures
    theta = max((count / job.ended_s for count, job in enumerate(measures.ended, 1)), default=0.0)
    shares = [measures.worker_s[job.job] * CORES_PER_PE / budget_s for job in measures.ended]
    generations = len(shares) // jobs
    ends_s = [0.0, *(measures.ended[(number + 1) * jobs - 1].ended_s for number in range(generations))]
    return UniformRow(
        jobs_at_a_time=jobs,
        theta=theta,
        theta_opt=jobs / GENERATION_S,
        eta=fmean(shares) if shares else 0.0,
        generations_s=[end_s - begin_s for begin_s, end_s in pairwise(ends_s)],
        etas=[fmean(shares[number * jobs : (number + 1) * jobs]) for number in range(generations)],
        summary=simulation.summary(),
    )


def cases(setting: Setting) -> list[Case]:
    """Return the paper's rows that fit: the number of PEs must be a multiple of the jobs at a time.

    Raises SettingError if there is none.
    """
    if setting.pes % min(paper.UNIFORM):
        raise SettingError(
            f"pes: {setting.pes} is no multiple of {min(paper.UNIFORM)}, the least number of jobs at a time"
        )
    protocol = msgspec.structs.replace(setting.protocol, threads=CORES_PER_PE)
    setting = msgspec.structs.replace(setting, protocol=protocol)
    return [Case(setting, jobs) for jobs in paper.UNIFORM if setting.pes % jobs == 0]


def run(setting: Setting, folder: Path, processes: int | None) -> None:
    """Measure all rows, and print and write their table."""
    output = Output(folder, "uniform")
    todo = cases(setting)
    rows = side_by_side(measure, todo, processes, lambda case: f"{case.jobs_at_a_time} jobs", output.keep)
    table = Table(
        f"Uniform jobs on {setting.pes} PEs, {setting.seconds:g} s",
        (
            *("n_par", "theta", "theta_opt", "theta/theta_opt", "paper", "eta", "paper's"),
            *("root [ms]", "worker [ms]", "busy", "messages"),
        ),
        tuple(
            (
                row.jobs_at_a_time,
                row.theta,
                row.theta_opt,
                around(row.theta / row.theta_opt, [GENERATION_S / took for took in row.generations_s]).text(
                    4
                ),
                f"{paper.UNIFORM[row.jobs_at_a_time][1]:.3f}",
                around(row.eta, row.etas).text(4),
                f"{paper.UNIFORM[row.jobs_at_a_time][2]:.3f}",
                row.summary.latencies[0].median_ms,
                row.summary.latencies[2].median_ms,
                share_cell(row.summary.utilisation),
                row.summary.messages,
            )
            for row in rows
        ),
    )
    remarks = (
        "root, worker: median latency until a job's first and any further worker is placed.\n"
        "a ± b is a mean with its 95 % interval over groups of n_par jobs that end in succession."
    )
    output.tables([table], remarks)


class ClosedLoop:
    """Keeps one job of each stream in the system until the stream is empty (P 5.1, 5.2)."""

    def __init__(self, simulation: Simulation, streams: list[Iterator[JobSpec]]) -> None:
        self._simulation = simulation
        self._streams = streams
        #: job -> its stream
        self.stream_of: dict[int, int] = {}
        simulation.on_job_ended = self._ended
        for stream in range(len(streams)):
            self._submit_next(stream)

    def _ended(self, job: int) -> None:
        self._submit_next(self.stream_of[job])

    def _submit_next(self, stream: int) -> None:
        spec = next(self._streams[stream], None)
        if spec is not None:
            spec = msgspec.structs.replace(spec, arrival_s=self._simulation.cluster.now)
            self.stream_of[self._simulation.submit(spec)] = stream
