"""Realistic arrivals of jobs (P 5.3): utilisation, latencies, reuse of workers.

Four clients bring bursts of jobs of all priorities, demands and limits. Jobs are drawn with the paper's
distributions by default, or read from a CSV file. The stream is played in ten variants: three strategies of
reuse, six ways of matching, three rates of arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from mallob_py.experiments import paper
from mallob_py.experiments.intervals import PARTS, around, parts, ratio, winner
from mallob_py.experiments.output import Output, Table, side_by_side
from mallob_py.protocol.config import Config, Matching, Reuse
from mallob_py.simulation.run import Measures, Simulation, Summary, share_cell
from mallob_py.simulation.setting import Setting, job_stream
from mallob_py.text_table import Cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PES = 1536
SECONDS = 3600.0
#: windows of the moving averages in P Fig. 5, in seconds
WINDOWS_S = (1.0, 15.0, 60.0)
_PREFIX_SUM = "prefix sum"
_QUANTILES = 400
_SAMPLE_S = 2.0


class Variant(msgspec.Struct, frozen=True):
    """One run of the experiment."""

    name: str
    setting: Setting


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """The values of a run's consecutive parts: medians over equal numbers of latencies, shares of busy PEs
    over equal times (without the first part), and sums over equal numbers of ended jobs.
    """

    root_ms: list[float]
    balancing_ms: list[float]
    worker_ms: list[float]
    busy: list[float]
    created: list[float]
    largest_volumes: list[float]


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The kept measures of a run; each curve is (x values, y values)."""

    name: str
    #: mean time between arrivals of one client; None: the stream comes from a file
    interarrival_s: float | None
    summary: Summary
    active_jobs: tuple[list[float], list[float]]
    utilisation: dict[float, tuple[list[float], list[float]]]
    #: latencies in ms at equally spaced quantiles: until a root is placed, until a further worker is placed
    root_ms: list[float]
    worker_ms: list[float]
    parts: Parts


def variants(setting: Setting) -> dict[str, Variant]:
    """Return all runs by name."""

    def with_protocol(name: str, **changes: object) -> Variant:
        protocol: Config = msgspec.structs.replace(setting.protocol, **changes)
        return Variant(name, msgspec.structs.replace(setting, protocol=protocol))

    def with_interarrival(interarrival_s: float) -> Variant:
        jobs = msgspec.structs.replace(setting.jobs, interarrival_s=interarrival_s)
        return Variant(f"1/lambda = {interarrival_s:g} s", msgspec.structs.replace(setting, jobs=jobs))

    runs = [with_protocol(_PREFIX_SUM)]
    runs += [with_protocol(f"reuse {reuse.value}", reuse=reuse) for reuse in (Reuse.NONE, Reuse.BASIC)]
    runs += [with_protocol("routing tree", matcher=Matching.ROUTING_TREE)]
    runs += [
        with_protocol(
            f"random walk h={'inf' if hops < 0 else hops}", matcher=Matching.ROUTING_TREE, random_hops=hops
        )
        for hops in (10, 100, 1000, -1)
    ]
    if setting.jobs.stream is None:
        others = [each for each in paper.BUSY_MEDIAN if each != setting.jobs.interarrival_s]
        runs += [with_interarrival(interarrival_s) for interarrival_s in others]
    return {run.name: run for run in runs}


def measure(variant: Variant) -> Measured:
    """Simulate one variant."""
    setting = variant.setting
    simulation = Simulation(setting)
    simulation.submit_all(job_stream(setting.jobs, setting.pes, setting.seconds, setting.seed))
    simulation.play()
    measures = simulation.measures
    utilisation = {window_s: measures.utilisation(window_s, 0.0, setting.seconds) for window_s in WINDOWS_S}
    return Measured(
        name=variant.name,
        interarrival_s=None if setting.jobs.stream else setting.jobs.interarrival_s,
        summary=simulation.summary(),
        active_jobs=_sampled(measures.active_jobs, setting.seconds),
        utilisation=utilisation,
        root_ms=_quantiles(measures.latencies_ms["scheduled"]),
        worker_ms=_quantiles(measures.latencies_ms["adopted"]),
        parts=parts_of(measures, utilisation[WINDOWS_S[0]][1]),
    )


def parts_of(measures: Measures, busy: Sequence[float]) -> Parts:
    """Return the values of a run's consecutive parts; `busy`: shares of busy PEs over time."""

    def medians_ms(kind: str) -> list[float]:
        return [median(part) for part in parts(measures.latencies_ms[kind])]

    ended = parts([job for job in measures.ended if job.max_volume])
    return Parts(
        root_ms=medians_ms("scheduled"),
        balancing_ms=medians_ms("balanced"),
        worker_ms=medians_ms("adopted"),
        busy=[fmean(part) for part in parts(busy)[1:]],
        created=[sum(job.created for job in part) for part in ended],
        largest_volumes=[sum(job.max_volume for job in part) for part in ended],
    )


def _sampled(steps: Sequence[tuple[float, int]], seconds: float) -> tuple[list[float], list[float]]:
    instants = np.arange(0.0, seconds, _SAMPLE_S)
    times = np.array([0.0, *(when_s for when_s, _ in steps)])
    values = np.array([0, *(value for _, value in steps)])
    place = np.searchsorted(times, instants, side="right") - 1
    return instants.tolist(), values[place].astype(float).tolist()


def _quantiles(values: Sequence[float]) -> list[float]:
    if not len(values):
        return []
    quantiles: list[float] = np.quantile(np.array(values), np.linspace(0.0, 1.0, _QUANTILES + 1)).tolist()
    return quantiles


def run(setting: Setting, folder: Path, processes: int | None) -> None:
    """Simulate all variants, print tables, and draw figures."""
    output = Output(folder, "realistic")
    done = side_by_side(
        measure,
        variants(setting).values(),
        processes,
        lambda variant: variant.name,
        lambda name, result: output.keep(name, result.summary),
    )
    results = {result.name: result for result in done}
    output.tables(
        [
            _reuse_table(results, setting),
            _matching_table(results),
            _load_table(results),
            _ahead_table(results),
        ],
        "root, worker: latency until a job's root and any further worker is placed, in ms.\n"
        "busy: PEs busy after the first minute. WCR: created workers of a job / its largest volume.\n"
        f"CS: context switches. a ± b: value and 95 % interval over {PARTS} consecutive parts of the run.",
    )
    output.figure("fig5-load", lambda figure: _draw_load(figure, results))
    output.figure("fig6-latencies", lambda figure: _draw_latencies(figure, results))


def _reuse_table(results: dict[str, Measured], setting: Setting) -> Table:
    rows = []
    for reuse, name in (("none", "reuse none"), ("basic", "reuse basic"), ("full", _PREFIX_SUM)):
        summary = results[name].summary
        ours = (
            summary.creation_ratio_median,
            summary.creation_ratio_max,
            _total(results[name].parts),
            summary.context_switches_median,
            summary.context_switches_mean,
            summary.jobs_ended,
            summary.response_mean_s,
        )
        spread = tuple(f"{share:.3f}" for share in summary.created_on_at_most.values())
        root = _cell(summary.latencies[0].median_ms, results[name].parts.root_ms)
        rows.append((reuse, *ours, *spread, root))
        rows.append((f"{reuse}, paper", *paper.REUSE[reuse], *("-",) * len(spread), _PAPER_ROOT_MS[reuse]))
    return Table(
        f"Reuse of workers (P Table 2), {setting.pes} PEs, {setting.seconds:g} s",
        (
            *("reuse", "WCR median", "max", "total", "CS median", "mean", "processed", "response [s]"),
            *("<=1 PE", "<=2", "<=5", "<=10", "<=25", "root median"),
        ),
        tuple(rows),
    )


_PAPER_ROOT_MS = {
    "none": paper.LATENCIES_WITHOUT_REUSE_MS[0],
    "basic": paper.LATENCIES_WITHOUT_REUSE_MS[0],
    "full": paper.LATENCIES_MS["routing tree"][0],
}


def _matching_table(results: dict[str, Measured]) -> Table:
    rows = []
    for name in (_PREFIX_SUM, *paper.LATENCIES_MS):
        summary, of_parts = results[name].summary, results[name].parts
        root, _, worker = summary.latencies
        paper_root, paper_worker = paper.LATENCIES_MS.get(name, (None, None))
        rows.append(
            (
                *(name, _cell(root.median_ms, of_parts.root_ms), root.p99_ms, root.max_ms, paper_root),
                *(_cell(worker.median_ms, of_parts.worker_ms), worker.p99_ms, worker.max_ms, paper_worker),
                *(summary.messages, _cell(summary.utilisation, of_parts.busy, 5)),
            )
        )
    return Table(
        "Ways of matching (P Fig. 6), full reuse",
        (
            *("matching", "root median", "p99", "max", "paper's median"),
            *("worker median", "p99", "max", "paper's median", "messages", "busy"),
        ),
        tuple(rows),
    )


def _load_table(results: dict[str, Measured]) -> Table:
    rows = []
    for result in _by_load(results):
        summary = result.summary
        rows.append(
            (
                _load_name(result),
                summary.jobs_submitted,
                round(max(result.active_jobs[1], default=0)),
                _cell(summary.utilisation, result.parts.busy, 5),
                share_cell(summary.busy_median),
                share_cell(paper.BUSY_MEDIAN.get(result.interarrival_s or 0.0)),
                _cell(summary.latencies[1].median_ms, result.parts.balancing_ms, 3),
                summary.played_s,
                round(summary.messages / summary.played_s),
            )
        )
    return Table(
        "Load (P Fig. 5)",
        (
            *("arrivals", "jobs", "most active", "busy", "median PE busy", "paper's"),
            *("balancing median [ms]", "played in [s]", "messages/s"),
        ),
        tuple(rows),
    )


def _cell(value: float | None, of_parts: Sequence[float], digits: int = 2) -> str | None:
    return None if value is None else around(value, of_parts).text(digits)


def _total(of_parts: Parts) -> str | None:
    """Return the ratio of all created workers to the sum of largest volumes; None: no job has ended."""
    return ratio(of_parts.created, of_parts.largest_volumes).text(3) if of_parts.created else None


def _ahead_table(results: dict[str, Measured]) -> Table:
    """Return a table that names, for each measure, the run of smallest value, if the intervals show one."""

    def ahead(names: Sequence[str], values: Callable[[Parts], list[float]]) -> Cell:
        by_name = {name: values(results[name].parts) for name in names}
        counts = {len(found) for found in by_name.values()}
        return (winner(by_name) or "none") if len(counts) == 1 and counts != {0} else None

    reuses = (_PREFIX_SUM, "reuse basic", "reuse none")
    matchers = (_PREFIX_SUM, *paper.LATENCIES_MS)
    return Table(
        "Ahead of all others, part by part (95 % intervals of the differences)",
        ("least", "among", "ahead"),
        (
            ("WCR, total", "ways of reuse", ahead(reuses, _ratios)),
            ("root median", "ways of reuse", ahead(reuses, lambda found: found.root_ms)),
            ("root median", "ways of matching", ahead(matchers, lambda found: found.root_ms)),
            ("worker median", "ways of matching", ahead(matchers, lambda found: found.worker_ms)),
            ("idle share", "ways of matching", ahead(matchers, lambda found: [-busy for busy in found.busy])),
        ),
    )


def _ratios(of_parts: Parts) -> list[float]:
    return [one / other for one, other in zip(of_parts.created, of_parts.largest_volumes, strict=True)]


def _by_load(results: dict[str, Measured]) -> list[Measured]:
    """Return one run per rate of arrival, the highest rate first."""
    usual = results[_PREFIX_SUM].interarrival_s
    others = [result for result in results.values() if result.interarrival_s != usual]
    return sorted([results[_PREFIX_SUM], *others], key=lambda result: result.interarrival_s or 0.0)


def _load_name(result: Measured) -> str:
    return "stream" if result.interarrival_s is None else f"1/lambda = {result.interarrival_s:g} s"


def _draw_load(figure: Figure, results: dict[str, Measured]) -> None:
    left, right = figure.subplots(1, 2)
    for result in _by_load(results):
        left.plot(*result.active_jobs, label=_load_name(result), linewidth=0.8)
    left.set_xlabel("time [s]")
    left.set_ylabel("active jobs")
    left.set_ylim(bottom=0)
    left.legend()
    for window_s, curve in results[_PREFIX_SUM].utilisation.items():
        right.plot(*curve, label=f"{window_s:g} s", linewidth=0.7)
    right.set_xlabel("time [s]")
    right.set_ylabel("share of busy PEs, moving average")
    right.set_ylim(0.99, 1.0005)
    right.legend()


def _draw_latencies(figure: Figure, results: dict[str, Measured]) -> None:
    left, right = figure.subplots(1, 2, sharey=True)
    names = [_PREFIX_SUM, *paper.LATENCIES_MS]
    _draw_distributions(left, "until a job's root is placed [ms]", [(n, results[n].root_ms) for n in names])
    _draw_distributions(right, "until a worker is placed [ms]", [(n, results[n].worker_ms) for n in names])
    left.set_ylabel("share of requests")
    if left.lines:
        left.legend()


def _draw_distributions(axes: Axes, label: str, curves: Sequence[tuple[str, list[float]]]) -> None:
    for name, quantiles in curves:
        if quantiles and quantiles[-1] > 0.0:
            axes.semilogx(quantiles, np.linspace(0.0, 1.0, len(quantiles)), label=name, linewidth=1.0)
    axes.set_xlabel(label)
