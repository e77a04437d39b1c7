"""Pictures of a schedule, drawn into a figure of matplotlib: Gantt chart, and nodes in use over time.

Large schedules are aggregated, since nobody can see, nor a browser draw, a million boxes: more than
`BOXES_MAX` boxes become a grid whose cells tell how busy their nodes are within their time, and a curve has
at most `STEPS` steps, each the exact mean over its time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mallob_py.batch.schedule_files import intervals
from mallob_py.batch.simulator import Schedule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BOXES_MAX = 10_000
STEPS = 1500
_ROWS, _COLUMNS = 250, 900
_DAY_S, _HOUR_S = 86_400.0, 3_600.0

Floats = NDArray[np.float64]


def draw_gantt(schedule: Schedule, figure: Figure) -> None:
    """Nodes over time: a box for each piece of a job, in the colour of the job, or a grid (see above)."""
    axes = figure.subplots()
    boxes, jobs = boxes_of(schedule)
    begin_s, end_s = _span(schedule)
    unit_s, unit = _unit(end_s - begin_s)
    shifted = boxes.copy()
    shifted[:, :2] = (boxes[:, :2] - begin_s) / unit_s
    length = (end_s - begin_s) / unit_s
    if len(boxes) > BOXES_MAX:
        grid = busy_grid(shifted, length, schedule.nodes, min(_ROWS, schedule.nodes), _COLUMNS)
        image = axes.imshow(
            grid,
            aspect="auto",
            origin="lower",
            extent=(0.0, length, 0.0, schedule.nodes),
            vmin=0.0,
            vmax=1.0,
            cmap="Blues",
            interpolation="nearest",
        )
        figure.colorbar(image, label="busy")
        title = f"{schedule.policy}: {len(boxes)} pieces of jobs, aggregated"
    else:
        from matplotlib import colormaps
        from matplotlib.collections import PolyCollection

        x0, x1, y0, y1 = shifted.T
        corners = np.stack([np.stack([x0, x0, x1, x1], 1), np.stack([y0, y1, y1, y0], 1)], 2)
        colours = colormaps["tab20"](jobs % 20)
        axes.add_collection(
            PolyCollection(list(corners), facecolors=colours, edgecolors="white", linewidths=0.3)
        )
        title = schedule.policy
    axes.set(
        xlim=(0.0, length), ylim=(0, schedule.nodes), xlabel=f"time [{unit}]", ylabel="node", title=title
    )


def draw_utilisation(schedule: Schedule, figure: Figure) -> None:
    """Nodes that run jobs, and below it those that waiting jobs ask for, over time."""
    upper, lower = figure.subplots(2, 1, sharex=True)
    begin_s, end_s = _span(schedule)
    unit_s, unit = _unit(end_s - begin_s)
    edges = np.linspace(begin_s, end_s, STEPS + 1)
    at = (edges - begin_s) / unit_s
    pieces = [(piece.start_s, piece.end_s, len(piece.nodes)) for piece in schedule.all_pieces()]
    # Nodes that two jobs share are in use once.
    pieces += [(span.start_s, span.end_s, -span.nodes) for span in schedule.shared]
    waits = [
        (job.submit_s, start_s, job.nodes)
        for job, start_s in zip(schedule.workload.jobs, schedule.starts_s, strict=True)
    ]
    upper.stairs(mean_over_steps(np.array(pieces), edges), at, fill=True, color="tab:blue")
    upper.axhline(schedule.nodes, color="black", linewidth=0.8)
    upper.set(ylabel="nodes in use", ylim=(0, schedule.nodes * 1.05), title=schedule.policy)
    lower.stairs(mean_over_steps(np.array(waits), edges), at, fill=True, color="tab:orange")
    lower.set(xlabel=f"time [{unit}]", ylabel="nodes asked for\nby waiting jobs", xlim=(0, at[-1]), ylim=0)


def boxes_of(schedule: Schedule) -> tuple[Floats, NDArray[np.int64]]:
    """Boxes as rows (begin [s], end [s], first node, node behind the last), and their jobs."""
    boxes, jobs = list[tuple[float, float, int, int]](), list[int]()
    for piece in schedule.all_pieces():
        for first, last in intervals(piece.nodes):
            boxes.append((piece.start_s, piece.end_s, first, last + 1))
            jobs.append(piece.job)
    return np.array(boxes, dtype=np.float64).reshape(-1, 4), np.array(jobs, dtype=np.int64)


def busy_grid(boxes: Floats, length: float, nodes: int, rows: int, columns: int) -> Floats:
    """Return how busy each cell of a grid is: the share of its area that boxes cover."""
    places_x, amounts_x = _overlap_differences(boxes[:, 0], boxes[:, 1], length / columns, columns)
    places_y, amounts_y = _overlap_differences(boxes[:, 2], boxes[:, 3], nodes / rows, rows)
    # Differences of what is wanted, along both axes: a box has but sixteen of them, however large it is.
    grid = np.zeros((rows + 2) * (columns + 2))
    for y, in_y in zip(places_y, amounts_y, strict=True):
        for x, in_x in zip(places_x, amounts_x, strict=True):
            grid += np.bincount(y * (columns + 2) + x, in_y * in_x, len(grid))
    covered: Floats = grid.reshape(rows + 2, columns + 2).cumsum(0).cumsum(1)[:rows, :columns]
    return covered / (length / columns * nodes / rows)


def mean_over_steps(spans: Floats, edges: Floats) -> Floats:
    """The mean within each of equal steps of what spans (begin, end, amount) add up to."""
    step, count = edges[1] - edges[0], len(edges) - 1
    places, overlaps = _overlap_differences(spans[:, 0] - edges[0], spans[:, 1] - edges[0], step, count)
    differences = np.zeros(count + 2)
    for place, overlap in zip(places, overlaps, strict=True):
        differences += np.bincount(place, overlap * spans[:, 2], count + 2)
    means: Floats = differences.cumsum()[:count] / step
    return means


def _overlap_differences(
    begins: Floats, ends: Floats, width: float, count: int
) -> tuple[list[NDArray[np.int64]], list[Floats]]:
    """By how much the overlap of a span with each bin exceeds that with the bin before, where it does."""
    places, amounts = list[NDArray[np.int64]](), list[Floats]()
    for borders, sign in ((ends, 1.0), (begins, -1.0)):
        bins = np.clip((borders / width).astype(np.int64), 0, count)
        rest = borders - bins * width
        places += [bins, bins + 1]
        amounts += [sign * (rest - width), -sign * rest]
    return places, amounts


def _span(schedule: Schedule) -> tuple[float, float]:
    return min(job.submit_s for job in schedule.workload.jobs), max(schedule.ends_s)


def _unit(length_s: float) -> tuple[float, str]:
    if length_s > 3 * _DAY_S:
        return _DAY_S, "days"
    return (_HOUR_S, "h") if length_s > 3 * _HOUR_S else (1.0, "s")
