"""The results of policies as one self-contained HTML file: metrics, energy by state of nodes, pictures."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

import msgspec

from mallob_py.batch.metrics import Energy, Metrics, NodePower
from mallob_py.text_table import Cell, format_cell

_JOULES_PER_KWH = 3.6e6
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; } th, td { padding: .2rem .7rem; border-bottom: 1px solid #8884; }
td { text-align: right; font-variant-numeric: tabular-nums; }
td:first-child, th:first-child { text-align: left; }
img { max-width: 100%; background: white; } .scroll { overflow-x: auto; }
@media (prefers-color-scheme: dark) { body { background: #1b1e23; color: #ddd; } }
"""


class PolicyResult(msgspec.Struct, frozen=True):
    """The result of one policy, with its pictures, if any."""

    metrics: Metrics
    energy: Energy
    pictures: Sequence[Path]


def page(title: str, results: Sequence[PolicyResult], power: NodePower) -> str:
    """Return the page as HTML. Raises OSError if a picture cannot be read."""
    metrics = _table(
        ("policy", "jobs", "makespan [s]", "mean wait [s]", "longest wait [s]", "run time [s]",
         "turnaround [s]", "slowdown", "bounded slowdown", "stretched slowdown", "stretched, bounded",
         "utilisation", "resizes"),
        [
            (one.policy, one.jobs, one.makespan_s, one.wait_s, one.wait_max_s, one.run_s, one.turnaround_s,
             one.slowdown, one.bounded_slowdown, one.stretched_slowdown, one.stretched_bounded_slowdown,
             one.utilisation, one.resizes)
            for one in (result.metrics for result in results)
        ],
    )  # fmt: skip
    energy = _table(
        ("policy", "busy [node-h]", "idle [node-h]", "busy [kWh]", "idle [kWh]", "together [kWh]"),
        [
            (result.metrics.policy, one.busy_node_s / 3600, one.idle_node_s / 3600,
             one.busy_j / _JOULES_PER_KWH, one.idle_j / _JOULES_PER_KWH, one.total_j / _JOULES_PER_KWH)
            for result, one in ((result, result.energy) for result in results)
        ],
    )  # fmt: skip
    pictures = "".join(
        f"<h2>{escape(result.metrics.policy)}</h2>\n{''.join(map(_image, result.pictures))}\n"
        for result in results
        if result.pictures
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style></head>
<body>
<h1>{escape(title)}</h1>
<h2>Metrics</h2>
{metrics}
<p>Means over the jobs. Slowdown is turnaround divided by the run time on the nodes that a job asks for;
stretched slowdown is turnaround divided by the run time under this policy. Bounded slowdowns count run times
below 10 s as 10 s.</p>
<h2>Energy</h2>
{energy}
<p>From the first submission to the last end, at {power.busy_w:g} W for each node that runs a job and
{power.idle_w:g} W for each other node.</p>
{pictures}</body>
</html>
"""


def _table(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "\n".join(
        f"<tr>{''.join(f'<td>{escape(format_cell(cell))}</td>' for cell in row)}</tr>" for row in rows
    )
    return f'<div class="scroll"><table>\n<tr>{head}</tr>\n{body}\n</table></div>'


def _image(path: Path) -> str:
    encoded = base64.b64encode(path.read_bytes()).decode()
    return f'<p><img alt="{escape(path.stem)}" src="data:image/svg+xml;base64,{encoded}"></p>'
