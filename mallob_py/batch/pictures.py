"""Pictures of a schedule as SVG, written by hand: Gantt chart, and nodes in use over time.

Large schedules are aggregated, since a million boxes can be neither seen nor drawn: more than `BOXES_MAX`
boxes become a grid whose cells show how busy their nodes are within their time, and a curve has at most
`STEPS` steps, each the exact mean over its time.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Iterator
from html import escape

import numpy as np
from numpy.typing import NDArray

from mallob_py.batch.schedule_files import intervals
from mallob_py.batch.simulator import Schedule

BOXES_MAX = 10_000
STEPS = 1500
_ROWS, _COLUMNS = 250, 900
_DAY_S, _HOUR_S = 86_400.0, 3_600.0
_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 960, 64, 14, 26, 40
#: colours of jobs, in turn: distant hues, two shades of each
_COLOURS = [
    f"hsl({hue} 52% {light}%)" for light in (52, 72) for hue in (212, 28, 140, 350, 268, 46, 186, 316, 90, 0)
]
_USED, _WANTED = "#2f6fae", "#d9862b"

Floats = NDArray[np.float64]


def gantt(schedule: Schedule) -> str:
    """Draw nodes over time: a box for each piece of a job, in the job's colour, or a grid (see above)."""
    boxes, jobs = boxes_of(schedule)
    begin_s, end_s = _span(schedule)
    unit_s, unit = _unit(end_s - begin_s)
    shifted = boxes.copy()
    shifted[:, :2] = (boxes[:, :2] - begin_s) / unit_s
    length = (end_s - begin_s) / unit_s
    frame = _Frame(_TOP, 420, length, float(schedule.nodes))
    if len(boxes) > BOXES_MAX:
        grid = busy_grid(shifted, length, schedule.nodes, min(_ROWS, schedule.nodes), _COLUMNS)
        title = f"{schedule.policy}: {len(boxes)} pieces of jobs, aggregated: the darker, the busier"
        inside = _image_of(grid, frame)
    else:
        title = schedule.policy
        inside = "".join(_boxes(shifted, jobs, frame))
    return _svg(frame.bottom + _BOTTOM, title, frame.drawn(inside, "node", f"time [{unit}]"))


def utilisation(schedule: Schedule) -> str:
    """Draw the nodes that run jobs, and below them the nodes that waiting jobs ask for, over time."""
    begin_s, end_s = _span(schedule)
    unit_s, unit = _unit(end_s - begin_s)
    edges = np.linspace(begin_s, end_s, STEPS + 1)
    pieces = [(piece.start_s, piece.end_s, len(piece.nodes)) for piece in schedule.all_pieces()]
    # Nodes shared by two jobs are in use once.
    pieces += [(span.start_s, span.end_s, -span.nodes) for span in schedule.shared]
    waits = [
        (job.submit_s, start_s, job.nodes)
        for job, start_s in zip(schedule.workload.jobs, schedule.starts_s, strict=True)
    ]
    used, wanted = mean_over_steps(np.array(pieces), edges), mean_over_steps(np.array(waits), edges)
    length = (end_s - begin_s) / unit_s
    upper = _Frame(_TOP, 190, length, schedule.nodes * 1.05)
    lower = _Frame(upper.bottom + 30, 190, length, max(1.0, float(wanted.max())) * 1.05)
    limit = upper.y(schedule.nodes)
    line = f'<path d="M{_LEFT} {limit:.1f}H{_WIDTH - _RIGHT}" class="line"/>'
    parts = upper.drawn(_curve(used, upper, _USED) + line, "nodes in use", "")
    parts += lower.drawn(_curve(wanted, lower, _WANTED), "asked for by waiting jobs", f"time [{unit}]")
    return _svg(lower.bottom + _BOTTOM, schedule.policy, parts)


class _Frame:
    """A rectangle of the picture, with axes from 0 to `length` and to `most`."""

    def __init__(self, top: int, height: int, length: float, most: float) -> None:
        self.bottom = top + height
        self.length = length or 1.0
        self.most = most
        self._top = top

    def x(self, value: float) -> float:
        return float(_LEFT + (_WIDTH - _LEFT - _RIGHT) * value / self.length)

    def y(self, value: float) -> float:
        return float(self.bottom - (self.bottom - self._top) * value / self.most)

    def drawn(self, inside: str, what: str, below: str) -> str:
        ticks = []
        for value in _ticks(self.length, 10):
            x = self.x(value)
            ticks.append(f'<path d="M{x:.1f} {self.bottom}v4" class="line"/>')
            ticks.append(f'<text x="{x:.1f}" y="{self.bottom + 16}" text-anchor="middle">{value:g}</text>')
        for value in _ticks(self.most, 6):
            y = self.y(value)
            ticks.append(f'<path d="M{_LEFT - 4} {y:.1f}h4" class="line"/>')
            ticks.append(f'<text x="{_LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
        middle = (self._top + self.bottom) / 2
        label = f'<text transform="translate(14 {middle:g}) rotate(-90)" text-anchor="middle">{what}</text>'
        legend = f'<text x="{_WIDTH / 2:g}" y="{self.bottom + 33}" text-anchor="middle">{below}</text>'
        axes = f'<path d="M{_LEFT} {self._top}V{self.bottom}H{_WIDTH - _RIGHT}" class="line"/>'
        return inside + axes + "".join(ticks) + label + legend


def _svg(height: int, title: str, parts: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}"'
        f' viewBox="0 0 {_WIDTH} {height}" role="img"><title>{escape(title)}</title>'
        "<style>text { font: 12px system-ui, sans-serif; fill: #333 } .line { stroke: #333; fill: none }"
        f'</style><rect width="{_WIDTH}" height="{height}" fill="#fff"/>'
        f'<text x="{_WIDTH / 2:g}" y="17" text-anchor="middle">{escape(title)}</text>{parts}</svg>\n'
    )


def _ticks(most: float, about: int) -> Iterator[float]:
    """Yield round numbers from 0 to `most`."""
    rough = most / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    for number in range(int(most / step) + 1):
        yield round(number * step, 12)


def _boxes(boxes: Floats, jobs: NDArray[np.int64], frame: _Frame) -> Iterator[str]:
    """Yield boxes as paths, one path per colour."""
    for place, colour in enumerate(_COLOURS):
        path = []
        for begin, end, first, behind in boxes[jobs % len(_COLOURS) == place]:
            left, top = frame.x(begin), frame.y(behind)
            wide, high = frame.x(end) - left, frame.y(first) - top
            path.append(f"M{left:.1f} {top:.1f}h{wide:.2f}v{high:.2f}h{-wide:.2f}z")
        if path:
            yield f'<path d="{"".join(path)}" fill="{colour}" stroke="#fff" stroke-width=".4"/>'


def _image_of(grid: Floats, frame: _Frame) -> str:
    """Return the cells as an image, the first node at the bottom; white: idle, dark: busy."""
    share = np.clip(grid[::-1, :, None], 0.0, 1.0)
    pixels = (255 - share * (255 - np.array([8, 48, 107]))).astype(np.uint8)
    height, width = grid.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 9))
    encoded = base64.b64encode(png + chunk(b"IEND", b"")).decode()
    top = frame.y(frame.most)
    return (
        f'<image x="{_LEFT}" y="{top:g}" width="{_WIDTH - _LEFT - _RIGHT}" height="{frame.bottom - top:g}"'
        f' preserveAspectRatio="none" style="image-rendering: pixelated"'
        f' href="data:image/png;base64,{encoded}"/>'
    )


def _curve(values: Floats, frame: _Frame, colour: str) -> str:
    path, last = [f"M{_LEFT} {frame.bottom}"], ""
    for step, value in enumerate(values):
        y = f"{frame.y(value):.1f}"
        if y != last:
            path.append(f"H{frame.x(step * frame.length / len(values)):.1f}V{y}")
            last = y
    return f'<path d="{"".join(path)}H{_WIDTH - _RIGHT}V{frame.bottom}z" fill="{colour}"/>'


def boxes_of(schedule: Schedule) -> tuple[Floats, NDArray[np.int64]]:
    """Return boxes as rows (begin [s], end [s], first node, node behind the last), and their jobs."""
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
    # Second differences along both axes: a box has only sixteen of them, whatever its size.
    grid = np.zeros((rows + 2) * (columns + 2))
    for y, in_y in zip(places_y, amounts_y, strict=True):
        for x, in_x in zip(places_x, amounts_x, strict=True):
            grid += np.bincount(y * (columns + 2) + x, in_y * in_x, len(grid))
    covered: Floats = grid.reshape(rows + 2, columns + 2).cumsum(0).cumsum(1)[:rows, :columns]
    return covered / (length / columns * nodes / rows)


def mean_over_steps(spans: Floats, edges: Floats) -> Floats:
    """Return the mean within each of equal steps of the sum of spans (begin, end, amount)."""
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
    """Yield, for each bin, a span's overlap with the bin minus that with the previous bin, unless 0."""
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
