"""Latency depending on the number of PEs: ten seconds of the same arrivals (P 5.3) on 256 to 65,536 PEs.

Changes of jobs, epochs and requests go up and down the tree of m PEs, so medians should grow like log m.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mallob_py.experiments.output import Output, Table
from mallob_py.simulation.run import Simulation, Summary
from mallob_py.simulation.setting import Setting, job_stream
from mallob_py.text_table import Cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES = (2**8, 2**10, 2**12, 2**14, 2**16)
_SECONDS = 10.0
_HEADER = (
    *("m", "roots", "root median", "p99", "balancing median", "p99"),
    *("workers", "worker median", "p90", "p99", "messages", "messages per PE", "played in [s]"),
)


def measure(pes: int, seconds: float = _SECONDS) -> Summary:
    setting = Setting(pes=pes, seconds=seconds)
    simulation = Simulation(setting)
    simulation.submit_all(job_stream(setting.jobs, pes, seconds, setting.seed))
    simulation.play()
    return simulation.summary()


def run(folder: Path, sizes: Sequence[int] = SIZES) -> None:
    """Simulate each size, print a table, and draw a figure."""
    output = Output(folder, "sizes")
    summaries = []
    for pes in sizes:
        summaries.append(measure(pes))
        output.keep(f"{pes} PEs", summaries[-1])
    output.tables(
        [Table("Latency by the number of PEs", _HEADER, tuple(map(_line, summaries)))],
        f"Latencies in ms. The stream of P 5.3 with seed 0, {_SECONDS:g} s in virtual time.",
    )
    output.figure("latency-by-pes", lambda figure: _draw(figure, summaries))


def _line(summary: Summary) -> tuple[Cell, ...]:
    root, balancing, worker = summary.latencies
    return (
        *(summary.pes, root.count, root.median_ms, root.p99_ms, balancing.median_ms, balancing.p99_ms),
        *(worker.count, worker.median_ms, worker.p90_ms, worker.p99_ms),
        *(summary.messages, summary.messages / summary.pes, summary.played_s),
    )


def _draw(figure: Figure, summaries: Sequence[Summary]) -> None:
    axes = figure.subplots()
    pes = [summary.pes for summary in summaries]
    names = ("a job's root is placed", "a job has a volume", "a further worker is placed")
    for place, name in enumerate(names):
        rows = [summary.latencies[place] for summary in summaries]
        medians, late = np.array([(row.median_ms, row.p99_ms) for row in rows], float).T
        line = axes.plot(pes, medians, "o-", label=f"{name}, median")[0]
        axes.plot(pes, late, "o:", color=line.get_color(), label=f"{name}, p99")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set(xlabel="PEs", ylabel="latency [ms]")
    axes.legend(fontsize="small")
