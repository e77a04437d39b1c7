"""SD-Policy on the traces of its publication, beside the numbers published there.

Source: D'Amico, Jokanovic, Corbalan, ICPP 2019, table 1 and sections 4.1 to 4.3: CEA Curie (the partition
of 198,509 jobs, 5040 nodes of 16 cores) and 10,000 jobs of RICC (1024 nodes of 8 cores). All jobs can share
nodes. The slowdown is the turnaround over the run time that the trace tells.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from mallob_py.batch.experiments.traces import CURIE, RICC, Trace, missing, path_in
from mallob_py.batch.job import Kind, Workload
from mallob_py.batch.policies.backfilling import Easy
from mallob_py.batch.policies.sd import SdPolicy
from mallob_py.batch.policy import Policy
from mallob_py.batch.simulator import Imbalance, Schedule, simulate
from mallob_py.experiments.intervals import PARTS, parts, ratio
from mallob_py.experiments.output import Output, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DEPTH = 10
_CUTOFFS = (5.0, 10.0, 50.0, math.inf, None)
#: (static_end check, reservations count on shared nodes, former guests can be mates and reservations are
#: made anew within a decision, how unbalanced jobs behave, cut-offs); the check's waits are told by the
#: head's reservation or by a map of all
_FORMS = (
    ("head", True, True, Imbalance.IDEAL, _CUTOFFS),
    ("map", True, True, Imbalance.IDEAL, _CUTOFFS),
    ("map", False, True, Imbalance.IDEAL, _CUTOFFS),
    ("off", True, True, Imbalance.IDEAL, _CUTOFFS),
    ("off", False, True, Imbalance.IDEAL, _CUTOFFS),
    ("off", False, False, Imbalance.IDEAL, _CUTOFFS),
    ("off", True, True, Imbalance.WORST, (None,)),
)
_EASY_HEADER = (f"EASY, depth {_DEPTH}", "makespan [s]", "response [s]", "slowdown")
_HEADER = ("cut-off", "check", "shared nodes", "makespan", "response", "slowdown", "guests", "mates")
_REMARKS = (
    "Tables of traces are relative to EASY with the same depth. check: whether a job is made a guest only if"
    " it ends earlier so than by waiting (static_end), by the estimates, where the wait is told by the head's"
    " reservation or by a map of reservations for all before it. shared nodes: whether the head's reservation"
    " counts on nodes that two jobs share; once: a job that was a guest is no mate later, and the"
    " reservation is made once within a decision; worst: the worst runtime model, else the ideal one."
    " Cut-off dyn: the mean of the running jobs' estimated slowdowns. Rows named published are from the"
    " paper's text; what it shows in figures only is left out. Behind ±: half of a 95 % interval, by leaving"
    f" out one of {PARTS} parts of the trace after the other, each of as many jobs submitted in turn."
)


class Case(msgspec.Struct, frozen=True):
    """A trace, and what was published of it."""

    trace: Trace
    #: makespan [s], response [s], slowdown
    published_easy: tuple[float, float, float]
    published: tuple[str | float, ...]
    rows: slice | None = None

    @property
    def name(self) -> str:
        return self.trace.name


CASES = (
    Case(
        CURIE,
        (21615111, 29858.5, 3666.5),
        ("published, MAXSD 10", "", "", "1.0", ".50", ".296", "20476", "17102"),
    ),
    Case(
        RICC,
        (407043, 43537, 1341),
        ("published, best", "", "", "", "", ".743", "", ""),
        slice(414770, 424770),
    ),
)


class Run(msgspec.Struct, frozen=True):
    """EASY if there is no `check` (head, map or off); a cut-off of None is the dynamic one."""

    case: str
    check: str | None = None
    counts_shared: bool = True
    again: bool = True
    imbalance: Imbalance = Imbalance.IDEAL
    cutoff: float | None = None

    def policy(self) -> Policy:
        if self.check is None:
            return Easy(_DEPTH)
        return SdPolicy(
            10.0 if self.cutoff is None else self.cutoff,
            self.cutoff is None,
            self.check != "off",
            self.counts_shared,
            _DEPTH,
            again=self.again,
            replan=self.again,
            waits="map" if self.check == "map" else "head",
        )

    def label(self) -> str:
        if self.check is None:
            return "EASY"
        return "dyn" if self.cutoff is None else f"{self.cutoff:g}"

    def form(self) -> str:
        """The way in which the head's reservation takes shared nodes, and what else is not usual."""
        form = "counted" if self.counts_shared else "not counted"
        form += "" if self.again else ", once"
        return form if self.imbalance is Imbalance.IDEAL else f"{form}, {self.imbalance.value}"

    def name(self) -> str:
        if self.check is None:
            return f"{self.case} EASY"
        return f"{self.case}, cut-off {self.label()}, check {self.check}, shared nodes {self.form()}"


class Measured(msgspec.Struct, frozen=True):
    """`took_s`: of the simulation. `responses_s`, `slowdowns`: sums over each part of the trace."""

    makespan_s: float
    response_s: float
    slowdown: float
    guests: int
    mates: int
    took_s: float
    responses_s: list[float]
    slowdowns: list[float]


def run(output: Output, processes: int | None, traces: Path | None) -> None:
    """Raises ValueError if none of the traces is in the folder; OSError, SwfError: one cannot be read."""
    cases = {case.name: case for case in CASES if path_in(traces, case.trace.file)}
    if traces is None or not cases:
        raise missing("sd", (case.trace.file for case in CASES))
    runs = [one for case in cases for one in _runs(case)]
    results = output.play(partial(_play, traces), runs, processes, Run.name)
    tables = [_easy_table(cases.values(), results), *(_table(case, results) for case in cases.values())]
    output.tables(tables, _REMARKS)
    for case in cases:
        output.figure(f"sd-{case.lower()}", partial(_draw, case, results))


def _runs(case: str) -> list[Run]:
    return [
        Run(case),
        *(
            Run(case, check, counts, again, imbalance, cutoff)
            for check, counts, again, imbalance, cutoffs in _FORMS
            for cutoff in cutoffs
        ),
    ]


def load(case: Case, traces: Path) -> Workload:
    """The jobs of a case, all of which can share nodes.

    Jobs of unknown size count as one node, those of less than a second as one second, as in the
    publication's number of jobs.
    """
    workload = case.trace.part(traces, case.rows, repaired=True)
    jobs = [msgspec.structs.replace(job, kind=Kind.MALLEABLE) for job in workload.jobs]
    return msgspec.structs.replace(workload, jobs=jobs)


def _play(traces: Path, one: Run) -> Measured:
    workload = load(next(case for case in CASES if case.name == one.case), traces)
    began_s = time.monotonic()
    schedule = simulate(workload, one.policy(), imbalance=one.imbalance)
    return measured(schedule, time.monotonic() - began_s)


def measured(schedule: Schedule, took_s: float = 0.0) -> Measured:
    submissions = np.array([job.submit_s for job in schedule.workload.jobs])
    ends = np.asarray(schedule.ends_s)
    responses = ends - submissions
    slowdowns = responses / np.array([truth.run_s for truth in schedule.workload.truths])
    return Measured(
        float(ends.max() - submissions.min()),
        float(responses.mean()),
        float(slowdowns.mean()),
        len({span.guest for span in schedule.shared}),
        len({span.mate for span in schedule.shared}),
        took_s,
        [sum(part) for part in parts(responses.tolist())],
        [sum(part) for part in parts(slowdowns.tolist())],
    )


def _easy_table(cases: Iterable[Case], results: dict[Run, Measured]) -> Table:
    rows = list[tuple[str | float, ...]]()
    for case in cases:
        easy = results[Run(case.name)]
        rows.append((f"{case.name}, published", *case.published_easy))
        rows.append((f"{case.name}, here", round(easy.makespan_s), easy.response_s, easy.slowdown))
    return Table("What SD-Policy is compared with", _EASY_HEADER, tuple(rows))


def _table(case: Case, results: dict[Run, Measured]) -> Table:
    base = results[Run(case.name)]
    rows = [
        (
            one.label(),
            one.check or "",
            one.form(),
            result.makespan_s / base.makespan_s,
            ratio(result.responses_s, base.responses_s).text(3),
            ratio(result.slowdowns, base.slowdowns).text(3),
            result.guests,
            result.mates,
        )
        for one, result in results.items()
        if one.case == case.name and one.check is not None
    ]
    return Table(f"SD-Policy on {case.name}, relative to EASY", _HEADER, (case.published, *rows))


def _draw(case: str, results: dict[Run, Measured], figure: Figure) -> None:
    """Slowdown against the cut-off, relative to EASY, one curve per form."""
    axes = figure.subplots()
    base = results[Run(case)].slowdown
    for check, counts, again, imbalance, cutoffs in _FORMS:
        if len(cutoffs) > 1:
            runs = [Run(case, check, counts, again, imbalance, cutoff) for cutoff in cutoffs]
            label = f"check {check}, shared nodes {runs[0].form()}"
            axes.plot(
                [one.label() for one in runs],
                [results[one].slowdown / base for one in runs],
                "o-",
                label=label,
            )
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set(title=f"SD-Policy on {case}", ylabel="mean slowdown / EASY", ylim=(0.0, None))
    axes.legend()
