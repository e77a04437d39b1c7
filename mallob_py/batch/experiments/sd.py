"""SD-Policy on the workloads of its paper, beside the published numbers.

Source: D'Amico, Jokanovic, Corbalan, ICPP 2019, table 1 and sections 4.1 to 4.3: CEA Curie (the partition
with 198,509 jobs, 5040 nodes of 16 cores) and 10,000 jobs of RICC (1024 nodes of 8 cores). The paper
generates workloads 1 and 2 by the model of Cirne and Berman; here a similar model (`cirne`) generates them.
The load is not published; here it is 1.1 times the machine's capacity. Workload 2 has exact estimates. All
jobs can share nodes. The slowdown is the turnaround divided by the run time in the trace.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from mallob_py.batch.experiments.traces import CURIE, RICC, Trace, path_in
from mallob_py.batch.job import Kind, Workload
from mallob_py.batch.metrics import NodePower, energy_of
from mallob_py.batch.policies.backfilling import Easy
from mallob_py.batch.policy import Policy
from mallob_py.batch.registry import policy_of
from mallob_py.batch.simulator import Imbalance, Schedule, simulate
from mallob_py.batch.workload.changes import with_arrivals_scaled, with_exact_estimates
from mallob_py.batch.workload.generators import cirne_like
from mallob_py.experiments import frame
from mallob_py.experiments.frame import draw, grid
from mallob_py.experiments.intervals import PARTS, Interval, interval, parts, ratio
from mallob_py.experiments.output import Output, Table
from mallob_py.text_table import Cell

DEPTH = 10
#: the generated workloads: seeds, jobs, nodes, nodes of the largest job, work divided by the machine's
#: capacity
SEEDS = (1, 2, 3, 4, 5)
JOBS = 5000
NODES = 1024
LARGEST = 128
LOAD = 1.1
#: the cut-offs of the slowdown; None: the dynamic cut-off
CUTOFFS = (5.0, 10.0, 50.0, math.inf, None)
#: name -> settings of `sd`: the paper's listing, our default, the authors' code, the listing with more mates
FORMS = {
    "listing": "waits=map",
    "head": "",
    "no check": "check=no,again=no,replan=no,counts_shared=no",
    "three mates": "waits=map,mates=3",
}
#: the forms of the policy that are played on traces; with three mates, the search takes too long there
ON_TRACES = ("listing", "head", "no check")
_DAY_S = 86400.0
#: the bounds of groups of jobs, by nodes and by run times [s]
_NODES = (1, 2, 8, 32, 128, 512, 1024, math.inf)
_TIMES_S = (0.0, 900.0, 3600.0, 4 * 3600.0, 12 * 3600.0, _DAY_S, math.inf)
_TIME_NAMES = ("< 15 min", "< 1 h", "< 4 h", "< 12 h", "< 1 day", "longer")
_REMARKS = f"""\
Relative to EASY of depth {DEPTH} on the same jobs; below 1 is better. listing: the paper's listing (a job
becomes a guest only if, by a map of reservations, it then ends earlier than after waiting); head: the same
test by the head's reservation alone, the default of `sd`; no check: like the authors' code, without this
test, where reservations do not count on shared nodes, former guests cannot be mates and a reservation is made
once per decision; three mates: the listing with up to three mates per guest. dyn: the cut-off is the mean of
the running jobs' estimated slowdowns. worst: the worst runtime model; otherwise the ideal one. a ± b is a
mean with its 95 % interval: for generated workloads over {len(SEEDS)} seeds, for traces by leaving out each
of {PARTS} parts of equal size in turn. Kinds of jobs: EASY's mean divided by SD-Policy's, as in the paper, so
above 1 is better; the number of jobs is in brackets. Energy: a node takes 200 W while busy, 100 W while
idle."""


class Case(msgspec.Struct, frozen=True):
    """A trace, and its published numbers."""

    trace: Trace
    #: EASY's published makespan [s], response [s], slowdown
    published_easy: tuple[float, float, float]
    published: tuple[str | float, ...]
    rows: slice | None = None


CASES = {
    "Curie": Case(
        CURIE,
        (21615111, 29858.5, 3666.5),
        ("published, MAXSD 10", "1.0", ".50", ".296", "", "20476", "17102"),
    ),
    "RICC": Case(
        RICC, (407043, 43537, 1341), ("published, best", "", "", ".743", "", "", ""), slice(414770, 424770)
    ),
}
GENERATED = ("workload 1", "workload 2")


class Run(frame.Run, frozen=True):
    """A run of SD-Policy in a form on a workload; `form` "": a run of EASY."""

    workload: str
    form: str = ""
    cutoff: float | None = 10.0
    worst: bool = False
    seed: int = 0

    def policy(self) -> Policy:
        if not self.form:
            return Easy(DEPTH)
        cutoff = "dynamic=yes" if self.cutoff is None else f"max_slowdown={self.cutoff}"
        return policy_of(f"sd:{cutoff},depth={DEPTH},{FORMS[self.form]}")

    def base(self) -> Run:
        return Run(self.workload, seed=self.seed)


class Kinds(msgspec.Struct, frozen=True):
    """Jobs by [group of nodes][group of run times]: their number, and their sums of slowdowns, run times,
    waits.
    """

    counts: list[list[int]]
    slowdowns: list[list[float]]
    runs_s: list[list[float]]
    waits_s: list[list[float]]


class Measured(msgspec.Struct, frozen=True):
    """The measurements of a run; `responses_s`, `slowdowns`: a sum for each part of the jobs; `days`: the
    mean slowdown of each day.
    """

    makespan_s: float
    response_s: float
    slowdown: float
    energy_j: float
    guests: int
    mates: int
    responses_s: list[float]
    slowdowns: list[float]
    days: list[float]
    kinds: Kinds


Results = dict[Run, Measured]
_MEASURES: dict[str, Callable[[Measured], float]] = {
    "makespan": lambda one: one.makespan_s,
    "response": lambda one: one.response_s,
    "slowdown": lambda one: one.slowdown,
    "energy": lambda one: one.energy_j,
}


def run(output: Output, processes: int | None, traces: Path | None) -> None:
    """Do all runs, write tables; without traces, only for workloads 1 and 2. Raises OSError, SwfError."""
    here = [name for name, case in CASES.items() if path_in(traces, case.trace.file)]
    if traces is not None and not here:
        files = " or ".join(case.trace.file for case in CASES.values())
        raise ValueError(f"the experiment sd needs a folder with {files}: give it by --traces")
    runs = [one for name in here for one in _runs(name, 0)]
    runs += [one for name in GENERATED for seed in SEEDS for one in _runs(name, seed)]
    results = output.play(partial(_play, traces), runs, processes, Run.name)
    tables = [_easy_table(here, results)] if here else []
    of_forms = [_forms(name, results) for name in (*here, *GENERATED)]
    tables += [*of_forms, _models((*here, *GENERATED), results)]
    if "Curie" in here:
        tables += [*_heatmaps(results, Run("Curie", "no check")), _by_day(results)]
    output.tables(tables, _REMARKS)
    for name, table in zip((*here, *GENERATED), of_forms, strict=True):
        output.figure(f"sd-{name.lower().replace(' ', '-')}", partial(draw, table))


def _runs(workload: str, seed: int) -> Iterator[Run]:
    yield Run(workload, seed=seed)
    for form in ON_TRACES if workload in CASES else FORMS:
        yield from (Run(workload, form, cutoff, seed=seed) for cutoff in CUTOFFS)
        yield Run(workload, form, None, True, seed)


# --- workloads ----------------------------------------------------------------------------


def load(name: str, traces: Path) -> Workload:
    """Return the jobs of a trace; all of them can share nodes.

    Jobs of unknown size get one node, jobs shorter than a second get one second: this matches the published
    number of jobs.
    """
    case = CASES[name]
    workload = case.trace.part(traces, case.rows, repaired=True)
    jobs = [msgspec.structs.replace(job, kind=Kind.MALLEABLE) for job in workload.jobs]
    return msgspec.structs.replace(workload, jobs=jobs)


def generated(seed: int, exact: bool) -> Workload:
    """Return workload 1 or, if `exact`, workload 2; all jobs can share nodes."""
    plain = cirne_like(JOBS, NODES, seed)
    jobs = [
        msgspec.structs.replace(job, nodes=min(LARGEST, job.nodes), kind=Kind.MALLEABLE) for job in plain.jobs
    ]
    workload = msgspec.structs.replace(plain, jobs=jobs)
    work_s = sum(job.nodes * truth.run_s for job, truth in zip(jobs, workload.truths, strict=True))
    span_s = jobs[-1].submit_s - jobs[0].submit_s
    workload = with_arrivals_scaled(workload, work_s / (NODES * span_s * LOAD))
    return with_exact_estimates(workload) if exact else workload


def _play(traces: Path | None, one: Run) -> Measured:
    if one.workload in CASES:
        assert traces is not None
        workload = load(one.workload, traces)
    else:
        workload = generated(one.seed, one.workload == GENERATED[1])
    imbalance = Imbalance.WORST if one.worst else Imbalance.IDEAL
    return measured(simulate(workload, one.policy(), imbalance=imbalance))


def measured(schedule: Schedule) -> Measured:
    jobs = schedule.workload.jobs
    submissions = np.array([job.submit_s for job in jobs])
    starts, ends = np.asarray(schedule.starts_s), np.asarray(schedule.ends_s)
    runs = np.array([truth.run_s for truth in schedule.workload.truths])
    responses = ends - submissions
    slowdowns = responses / runs
    days = ((submissions - submissions.min()) // _DAY_S).astype(int)
    return Measured(
        float(ends.max() - submissions.min()),
        float(responses.mean()),
        float(slowdowns.mean()),
        energy_of(schedule, NodePower()).total_j,
        len({span.guest for span in schedule.shared}),
        len({span.mate for span in schedule.shared}),
        [sum(part) for part in parts(responses.tolist())],
        [sum(part) for part in parts(slowdowns.tolist())],
        (np.bincount(days, weights=slowdowns) / np.maximum(1, np.bincount(days))).tolist(),
        kinds_of(np.array([job.nodes for job in jobs]), runs, slowdowns, ends - starts, starts - submissions),
    )


def kinds_of(
    nodes: NDArray[np.int64],
    static_s: NDArray[np.float64],
    slowdowns: NDArray[np.float64],
    runs_s: NDArray[np.float64],
    waits_s: NDArray[np.float64],
) -> Kinds:
    rows = np.digitize(nodes, _NODES[1:-1], right=True)
    columns = np.digitize(static_s, _TIMES_S[1:-1])
    shape = len(_NODES) - 1, len(_TIMES_S) - 1

    def total(values: NDArray[np.float64]) -> list[list[float]]:
        sums = np.zeros(shape)
        np.add.at(sums, (rows, columns), values)
        found: list[list[float]] = sums.tolist()
        return found

    counts = [[int(cell) for cell in row] for row in total(np.ones(len(nodes)))]
    return Kinds(counts, total(slowdowns), total(runs_s), total(waits_s))


# --- tables -------------------------------------------------------------------------------


def _easy_table(names: list[str], results: Results) -> Table:
    rows = list[tuple[Cell, ...]]()
    for name in names:
        easy = results[Run(name)]
        rows.append((f"{name}, published", *CASES[name].published_easy))
        rows.append((f"{name}, here", round(easy.makespan_s), easy.response_s, easy.slowdown))
    header = (f"EASY, depth {DEPTH}", "makespan [s]", "response [s]", "slowdown")
    return Table("EASY, with which SD-Policy is compared", header, tuple(rows))


def over(results: Results, one: Run, base: Run, measure: str) -> Interval:
    """Return the ratio of two runs' values of a measure, with its interval over seeds or parts of a trace."""
    of = _MEASURES[measure]
    if one.workload in CASES:
        own, other = results[one], results[base]
        if measure in ("response", "slowdown"):
            field = "responses_s" if measure == "response" else "slowdowns"
            return ratio(getattr(own, field), getattr(other, field))
        return Interval(of(own) / of(other), math.inf)
    seeded = [[msgspec.structs.replace(run, seed=seed) for run in (one, base)] for seed in SEEDS]
    return interval([of(results[run]) / of(results[other]) for run, other in seeded])


def _forms(name: str, results: Results) -> Table:
    rows = list[tuple[Cell, ...]]([CASES[name].published] if name in CASES else [])
    for one in _runs(name, 0 if name in CASES else SEEDS[0]):
        if one.form:
            cutoff = "dyn" if one.cutoff is None else f"{one.cutoff:g}"
            label = f"{one.form}, {cutoff}{', worst' if one.worst else ''}"
            cells = [over(results, one, one.base(), measure).text(3) for measure in _MEASURES]
            rows.append((label, *cells, results[one].guests, results[one].mates))
    header = ("form, cut-off", *_MEASURES, "guests", "mates")
    return Table(f"SD-Policy on {name}, relative to EASY", header, tuple(rows))


def _models(names: tuple[str, ...], results: Results) -> Table:
    def cell(one: Run, measure: str) -> str:
        return over(results, one, msgspec.structs.replace(one, worst=False), measure).text(3)

    rows = {
        f"{name}, {form}": Run(name, form, None, True, 0 if name in CASES else SEEDS[0])
        for name in names
        for form in (ON_TRACES if name in CASES else FORMS)
    }
    title = "The worst runtime model relative to the ideal one, dynamic cut-off"
    return grid(title, "jobs, form", rows, {name: name for name in list(_MEASURES)[:3]}, cell)


def _heatmaps(results: Results, one: Run) -> Iterator[Table]:
    base, own = results[one.base()].kinds, results[one].kinds
    labels = {
        f"{least + (1 if place else 0):g} to {most:g}" if most < math.inf else f"over {least:g}": place
        for place, (least, most) in enumerate(pairwise(_NODES))
    }
    columns = {name: column for column, name in enumerate(_TIME_NAMES)}
    for name, before, after in (
        ("slowdown", base.slowdowns, own.slowdowns),
        ("run time", base.runs_s, own.runs_s),
        ("wait", base.waits_s, own.waits_s),
    ):

        def cell(row: int, column: int, before=before, after=after) -> str:  # type: ignore[no-untyped-def]
            if not base.counts[row][column] or not after[row][column]:
                return ""
            return f"{before[row][column] / after[row][column]:.2f} ({base.counts[row][column]})"

        title = f"Curie, {name} by nodes and run time: EASY / {one.form}, cut-off {one.cutoff:g}"
        yield grid(title, "nodes", labels, columns, cell)


def _by_day(results: Results) -> Table:
    """Count the days with a mean slowdown below and above EASY's; return both counts and the worst days."""
    base = results[Run("Curie")]
    rows = list[tuple[Cell, ...]]()
    for form in ON_TRACES:
        own = results[Run("Curie", form)]
        pairs = list(zip(own.days, base.days, strict=True))
        less, more = (
            sum(mine < theirs for mine, theirs in pairs),
            sum(mine > theirs for mine, theirs in pairs),
        )
        rows.append((form, less, more, round(max(base.days)), round(max(own.days)), own.guests))
    header = (
        "form, cut-off 10",
        "days with less",
        "with more",
        "EASY's worst day",
        "its worst day",
        "guests",
    )
    return Table("Curie, mean slowdown by day of submission", header, tuple(rows))
