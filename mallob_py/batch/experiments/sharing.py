"""SD-Policy beyond its cut-offs: generated workloads, kinds of jobs, days, energy, and the worst model.

Source: D'Amico, Jokanovic, Corbalan, ICPP 2019: workloads 1 and 2 (figures 1 to 3), heatmaps (figures 4 to
6), slowdown by day (figure 7), the two runtime models (figure 8), energy. Workloads 1 and 2 are of the model
of Cirne and Berman there; here they are like it (`cirne`), with as much work as keeps the machine a tenth
more than busy, since the load is not published. Curie is that of the experiment `sd`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from mallob_py.batch.experiments import sd
from mallob_py.batch.experiments.traces import path_in
from mallob_py.batch.job import Kind, Workload
from mallob_py.batch.metrics import NodePower, energy_of
from mallob_py.batch.policies.backfilling import Easy
from mallob_py.batch.policies.sd import SdPolicy
from mallob_py.batch.policy import Policy
from mallob_py.batch.simulator import Imbalance, Schedule, simulate
from mallob_py.batch.workload.changes import with_arrivals_scaled, with_exact_estimates
from mallob_py.batch.workload.generators import cirne_like
from mallob_py.experiments.intervals import Interval, interval
from mallob_py.experiments.output import Output, Table
from mallob_py.text_table import Cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEPTH = 10
SEEDS = (1, 2, 3)
JOBS = 5000
NODES = 1024
#: the largest job of workloads 1 and 2
LARGEST = 128
LOAD = 1.1
#: the paper's listing, the default of `sd` here, and what comes nearest to its numbers on Curie
FORMS: dict[str, dict[str, str]] = {
    "paper's listing": {"waits": "map"},
    "default": {},
    "three mates": {"mates": "3"},
    "no check": {"check": "no", "counts_shared": "no", "again": "no"},
}
#: among the sizes of its jobs, sets of three take long to be found
ON_CURIE = tuple(form for form in FORMS if form != "three mates")
CUTOFFS = (10.0, None)
CURIE = sd.CASES[0]
_DAY_S = 86400.0
#: bounds of the kinds of jobs: nodes, and run times [s]
_NODES = (1, 2, 8, 32, 128, 512, 1024, math.inf)
_TIMES_S = (0.0, 900.0, 3600.0, 4 * 3600.0, 12 * 3600.0, _DAY_S, math.inf)
_TIME_NAMES = ("< 15 min", "< 1 h", "< 4 h", "< 12 h", "< 1 day", "longer")
_REMARKS = f"""\
Relative to EASY of depth {DEPTH} on the same jobs; below 1 is better. Workload 1 has users' estimates,
workload 2 exact ones; means over {len(SEEDS)} seeds with half of the 95 % interval. Forms: the paper's
listing (static_end by a map of reservations), the default of `sd` (by the head's reservation), the default
with up to three mates of a guest, no check (reservations do not count on shared nodes, guests are mates
once). Kinds of jobs: EASY's mean over that of SD-Policy, as in the publication, so above 1 is better; in
brackets how many jobs. Energy: nodes take 200 W where they are busy, 100 W where they are idle."""


class Run(msgspec.Struct, frozen=True):
    """`form` None: EASY. `seed` 0: Curie."""

    seed: int
    exact: bool
    form: str | None = None
    cutoff: float | None = None
    worst: bool = False

    def policy(self) -> Policy:
        if self.form is None:
            return Easy(DEPTH)
        said = FORMS[self.form]
        return SdPolicy(
            10.0 if self.cutoff is None else self.cutoff,
            self.cutoff is None,
            "check" not in said,
            "counts_shared" not in said,
            DEPTH,
            mates=int(said.get("mates", 2)),
            again="again" not in said,
            replan="again" not in said,
            waits=said.get("waits", "head"),
        )

    def name(self) -> str:
        what = "Curie" if not self.seed else f"workload {2 if self.exact else 1}, seed {self.seed}"
        if self.form is None:
            return f"{what}, EASY"
        model = ", worst model" if self.worst else ""
        return f"{what}, {self.form}, cut-off {'dyn' if self.cutoff is None else f'{self.cutoff:g}'}{model}"

    def base(self) -> Run:
        return Run(self.seed, self.exact)


class Kinds(msgspec.Struct, frozen=True):
    """By (nodes, run time): how many jobs, and sums of their slowdowns, run times and waits."""

    counts: list[list[int]]
    slowdowns: list[list[float]]
    runs_s: list[list[float]]
    waits_s: list[list[float]]


class Measured(msgspec.Struct, frozen=True):
    makespan_s: float
    response_s: float
    slowdown: float
    energy_j: float
    guests: int
    #: by day of submission: mean slowdown, and guests that started
    days: list[float]
    guests_by_day: list[int]
    kinds: Kinds


def run(output: Output, processes: int | None, traces: Path | None) -> None:
    """Without the trace of Curie, workloads 1 and 2 alone. OSError, SwfError: it cannot be read."""
    runs = [
        Run(seed, exact, form, cutoff)
        for seed in SEEDS
        for exact in (False, True)
        for form, cutoff in [(None, None), *((form, cutoff) for form in FORMS for cutoff in CUTOFFS)]
    ]
    runs += [
        Run(seed, exact, form, None, True) for seed in SEEDS for exact in (False, True) for form in FORMS
    ]
    has_curie = path_in(traces, CURIE.trace.file) is not None
    if has_curie:
        runs += [Run(0, False), *(Run(0, False, form, 10.0) for form in ON_CURIE)]
        runs += [Run(0, False, "no check", None, worst) for worst in (False, True)]
    results = output.play(partial(_play, traces), runs, processes, Run.name)
    tables = [_generated(results), _models(results, has_curie)]
    if has_curie:
        tables += _heatmaps(results, Run(0, False, "no check", 10.0))
        tables.append(_by_day(results))
    output.tables(tables, _REMARKS)
    if has_curie:
        output.figure("sharing-days", partial(_draw_days, results))


# --- workloads ----------------------------------------------------------------------------


def generated(seed: int, exact: bool) -> Workload:
    """Workload 1, or 2 if `exact`; all jobs can share nodes."""
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
    if one.seed:
        workload = generated(one.seed, one.exact)
    else:
        assert traces is not None
        workload = sd.load(CURIE, traces)
    imbalance = Imbalance.WORST if one.worst else Imbalance.IDEAL
    return measured(simulate(workload, one.policy(), imbalance=imbalance))


def measured(schedule: Schedule) -> Measured:
    jobs = schedule.workload.jobs
    submissions = np.array([job.submit_s for job in jobs])
    starts, ends = np.asarray(schedule.starts_s), np.asarray(schedule.ends_s)
    runs = np.array([truth.run_s for truth in schedule.workload.truths])
    responses = ends - submissions
    slowdowns = responses / runs
    guests = {span.guest: span.start_s for span in schedule.shared}
    days = ((submissions - submissions.min()) // _DAY_S).astype(int)
    of_guests = [0] * (int(days.max()) + 1)
    for guest in guests:
        of_guests[int(days[guest])] += 1
    counts = np.bincount(days)
    sums = np.bincount(days, weights=slowdowns)
    nodes = np.array([job.nodes for job in jobs])
    return Measured(
        float(ends.max() - submissions.min()),
        float(responses.mean()),
        float(slowdowns.mean()),
        energy_of(schedule, NodePower()).total_j,
        len(guests),
        (sums / np.maximum(1, counts)).tolist(),
        of_guests,
        kinds_of(nodes, runs, slowdowns, ends - starts, starts - submissions),
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


# --- tables and figures ---------------------------------------------------------------------


def _over_seeds(results: dict[Run, Measured], one: Run, of: Callable[[Measured], float]) -> Interval:
    ratios = list[float]()
    for seed in SEEDS:
        this = msgspec.structs.replace(one, seed=seed)
        ratios.append(of(results[this]) / of(results[this.base()]))
    return interval(ratios)


_MEASURES: tuple[tuple[str, Callable[[Measured], float]], ...] = (
    ("makespan", lambda one: one.makespan_s),
    ("response", lambda one: one.response_s),
    ("slowdown", lambda one: one.slowdown),
    ("energy", lambda one: one.energy_j),
)


def _generated(results: dict[Run, Measured]) -> Table:
    rows = list[tuple[Cell, ...]]()
    for exact in (False, True):
        for form in FORMS:
            for cutoff in CUTOFFS:
                one = Run(1, exact, form, cutoff)
                cells = [_over_seeds(results, one, of).text(3) for _, of in _MEASURES]
                label = "dyn" if cutoff is None else f"{cutoff:g}"
                rows.append((2 if exact else 1, form, label, *cells))
    header = ("workload", "form", "cut-off", *(name for name, _ in _MEASURES))
    return Table("Workloads 1 and 2, relative to EASY", header, tuple(rows))


def _models(results: dict[Run, Measured], has_curie: bool) -> Table:
    """The worst model over the ideal one, with the dynamic cut-off."""
    rows = list[tuple[Cell, ...]]()
    for exact in (False, True):
        for form in FORMS:
            cells = list[str]()
            for _, of in _MEASURES[:3]:
                ratios = [
                    of(results[Run(seed, exact, form, None, True)])
                    / of(results[Run(seed, exact, form, None)])
                    for seed in SEEDS
                ]
                cells.append(interval(ratios).text(3))
            rows.append((f"workload {2 if exact else 1}", form, *cells))
    if has_curie:
        worst, ideal = (results[Run(0, False, "no check", None, is_worst)] for is_worst in (True, False))
        cells = [f"{of(worst) / of(ideal):.3f}" for _, of in _MEASURES[:3]]
        rows.append(("Curie", "no check", *cells))
    header = ("jobs", "form", *(name for name, _ in _MEASURES[:3]))
    return Table("The worst runtime model over the ideal one, cut-off dyn", header, tuple(rows))


def _heatmaps(results: dict[Run, Measured], one: Run) -> list[Table]:
    base, own = results[one.base()].kinds, results[one].kinds
    maps: Sequence[tuple[str, list[list[float]], list[list[float]]]] = (
        ("slowdown", base.slowdowns, own.slowdowns),
        ("run time", base.runs_s, own.runs_s),
        ("wait", base.waits_s, own.waits_s),
    )
    tables = list[Table]()
    for name, before, after in maps:
        rows = list[tuple[Cell, ...]]()
        for place, (least, most) in enumerate(pairwise(_NODES)):
            label = f"{least + (1 if place else 0):g} to {most:g}" if most < math.inf else f"over {least:g}"
            cells = [
                f"{before[place][column] / after[place][column]:.2f} ({base.counts[place][column]})"
                if base.counts[place][column] and after[place][column]
                else ""
                for column in range(len(_TIME_NAMES))
            ]
            rows.append((label, *cells))
        tables.append(
            Table(
                f"Curie, {name} by nodes and run time: EASY / {one.form}",
                ("nodes", *_TIME_NAMES),
                tuple(rows),
            )
        )
    return tables


def _by_day(results: dict[Run, Measured]) -> Table:
    """The differences between the days: of how many the mean slowdown is less, and the worst days."""
    base = results[Run(0, False)]
    rows = list[tuple[Cell, ...]]()
    for form in ON_CURIE:
        own = results[Run(0, False, form, 10.0)]
        less = sum(mine < theirs for mine, theirs in zip(own.days, base.days, strict=True))
        more = sum(mine > theirs for mine, theirs in zip(own.days, base.days, strict=True))
        rows.append(
            (
                form, less, more, round(max(base.days)), round(max(own.days)), own.guests,
                f"{own.slowdown / base.slowdown:.3f}", f"{own.energy_j / base.energy_j:.3f}",
            )
        )  # fmt: skip
    header = (
        "form, cut-off 10", "days with less", "with more", "EASY's worst day", "its worst day", "guests",
        "slowdown", "energy",
    )  # fmt: skip
    return Table("Curie, mean slowdown by day of submission", header, tuple(rows))


def _draw_days(results: dict[Run, Measured], figure: Figure) -> None:
    """Mean slowdown by day, as lines; guests as bars."""
    axes = figure.subplots()
    own = results[Run(0, False, "no check", 10.0)]
    axes.bar(range(len(own.guests_by_day)), own.guests_by_day, color="lightgrey", label="guests")
    axes.set(xlabel="day", ylabel="guests")
    right = axes.twinx()
    right.plot(results[Run(0, False)].days, label="EASY")
    right.plot(own.days, label="SD-Policy, no check, cut-off 10")
    right.set(ylabel="mean slowdown")
    figure.legend(loc="outside lower center", ncols=3, fontsize="small")
