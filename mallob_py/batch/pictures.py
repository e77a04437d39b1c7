"""Pictures of a schedule as SVG, by matplotlib (extra `plot`): Gantt chart, and nodes in use over time.

Large schedules are simplified: more than `BOXES_MAX` boxes are drawn as one image of pixels. A curve has
at most `STEPS` steps, each at the exact mean over its span of time.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from numpy.typing import NDArray

from mallob_py.batch.schedule_files import intervals
from mallob_py.batch.simulator import Schedule

BOXES_MAX = 10_000
STEPS = 1500
_DAY_S, _HOUR_S = 86_400.0, 3_600.0

Floats = NDArray[np.float64]


def gantt(schedule: Schedule) -> str:
    """Draw nodes over time, with a box in the job's colour for each piece of each job."""
    figure, (axes,) = _figure(schedule, ["node"])
    begin_s, _, unit_s, _ = _span(schedule)
    boxes, jobs = boxes_of(schedule)
    boxes[:, :2] = (boxes[:, :2] - begin_s) / unit_s
    corners = list(boxes[:, [0, 2, 0, 3, 1, 3, 1, 2]].reshape(-1, 4, 2))
    colours = mpl.colormaps["tab20"](jobs % 20)
    many = len(boxes) > BOXES_MAX
    lines = 0.0 if many else 0.3
    axes.add_collection(
        PolyCollection(corners, facecolors=colours, edgecolors="white", linewidths=lines, rasterized=many)
    )
    axes.set_ylim(0, schedule.nodes)
    return _svg(figure)


def utilisation(schedule: Schedule) -> str:
    """Draw two curves over time: the nodes that run jobs, and below, the nodes that waiting jobs ask for."""
    figure, (upper, lower) = _figure(schedule, ["nodes in use", "asked for by waiting jobs"])
    begin_s, end_s, unit_s, _ = _span(schedule)
    pieces = [(piece.start_s, piece.end_s, len(piece.nodes)) for piece in schedule.all_pieces()]
    # A node that two jobs share must count once.
    pieces += [(span.start_s, span.end_s, -span.nodes) for span in schedule.shared]
    starts = zip(schedule.workload.jobs, schedule.starts_s, strict=True)
    waits = [(job.submit_s, start_s, job.nodes) for job, start_s in starts]
    edges = np.linspace(begin_s, end_s, STEPS + 1)
    for axes, spans, colour in ((upper, pieces, "#2f6fae"), (lower, waits, "#d9862b")):
        means = mean_over_steps(np.array(spans), edges)
        axes.stairs(means, (edges - begin_s) / unit_s, fill=True, color=colour)
    upper.axhline(schedule.nodes, color="black", linewidth=0.8)
    return _svg(figure)


def boxes_of(schedule: Schedule) -> tuple[Floats, NDArray[np.int64]]:
    """Return the boxes as rows (begin [s], end [s], first node, last node + 1), and the job of each box."""
    boxes, jobs = list[tuple[float, float, int, int]](), list[int]()
    for piece in schedule.all_pieces():
        for first, last in intervals(piece.nodes):
            boxes.append((piece.start_s, piece.end_s, first, last + 1))
            jobs.append(piece.job)
    return np.array(boxes, dtype=np.float64).reshape(-1, 4), np.array(jobs, dtype=np.int64)


def mean_over_steps(spans: Floats, edges: Floats) -> Floats:
    """Add up spans (begin, end, amount) over time; return the mean sum between neighbouring `edges`."""
    times = np.concatenate((spans[:, 0], spans[:, 1]))
    order = times.argsort()
    times, changes = times[order], np.concatenate((spans[:, 2], -spans[:, 2]))[order]
    area = np.concatenate(([0.0], (changes.cumsum()[:-1] * np.diff(times)).cumsum()))
    means: Floats = np.diff(np.interp(edges, times, area)) / np.diff(edges)
    return means


def _figure(schedule: Schedule, labels: Sequence[str]) -> tuple[Figure, Sequence[Axes]]:
    """Return a figure with one row of axes per label, all over the time of the schedule."""
    begin_s, end_s, unit_s, unit = _span(schedule)
    figure = Figure(figsize=(9.6, 4.8), layout="constrained")
    figure.suptitle(schedule.policy, parse_math=False)
    rows = figure.subplots(len(labels), sharex=True, squeeze=False)[:, 0]
    for axes, label in zip(rows, labels, strict=True):
        axes.set_ylabel(label)
    rows[-1].set_xlabel(f"time [{unit}]")
    rows[-1].set_xlim(0.0, (end_s - begin_s) / unit_s or 1.0)
    return figure, list(rows)


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "mallob-py"}):  # equal schedules give equal files
        figure.savefig(text, format="svg", dpi=150, metadata={"Date": None})
    return text.getvalue()


def _span(schedule: Schedule) -> tuple[float, float, float, str]:
    """Return begin and end [s] of a schedule, and the unit of its time axis: seconds per unit, and name."""
    begin_s, end_s = min(job.submit_s for job in schedule.workload.jobs), max(schedule.ends_s)
    for unit_s, unit in ((_DAY_S, "days"), (_HOUR_S, "h")):
        if end_s - begin_s > 3 * unit_s:
            return begin_s, end_s, unit_s, unit
    return begin_s, end_s, 1.0, "s"
