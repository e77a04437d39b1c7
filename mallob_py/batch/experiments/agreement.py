"""The agreement policies of PECS 2023 on its workloads, beside what was published of them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mallob_py.batch.experiments.traces import missing
from mallob_py.batch.registry import policy_of
from mallob_py.batch.simulator import EventOrder, simulate
from mallob_py.batch.workload.elastisim import Statistics, read_elastisim, statistics_of
from mallob_py.experiments.output import Output, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_RIGID, _MALLEABLE = "pecs23_S0_rigid_jobs.json.gz", "pecs23_S0_malleable100_jobs.json.gz"
#: wait, job time, turnaround, end [s], utilisation
PUBLISHED: dict[tuple[str, str], tuple[float, ...]] = {
    (_RIGID, "rigid-easy:quirks=pecs23"): (209519.4583, 3357.7957, 212877.2566, 3008130, 0.8609),
    (_MALLEABLE, "agreement:quirks=pecs23"): (9874.8274, 7365.3145, 17240.1424, 2602540, 0.9666),
}
_OTHERS = [
    (_RIGID, "rigid-easy"),
    *(
        (_MALLEABLE, f"agreement:size={size},nodes={nodes}{quirks}")
        for quirks in (",quirks=pecs23", "")
        for size in ("min", "pref", "average")
        for nodes in ("agreed", "steal", "pool")
    ),
]
_HEADER = ("jobs", "policy", "wait [s]", "job time [s]", "turnaround [s]", "end [s]", "utilisation")
_REMARKS = """\
2,317 jobs on 128 nodes, seed S0. Rows (P) are published. `quirks=pecs23` is the published reference; without
it, estimates are in seconds, so that jobs may overtake, and any number of jobs starts per decision."""


def run(output: Output, processes: int | None, traces: Path | None) -> None:
    """Write the table. The workloads are in `traces`, or in a folder `oracle` in it or beside it."""
    folders = (traces, traces / "oracle", traces.parent / "oracle") if traces else ()
    folder = next((one for one in folders if (one / _MALLEABLE).exists()), None)
    if folder is None:
        raise missing("agreement", (f"{_MALLEABLE} (also in a folder oracle in it or beside it)",))
    rows = list[tuple[str | float, ...]]()
    found = output.play(partial(_play, folder), [*PUBLISHED, *_OTHERS], processes, " ".join)
    for cell, one in found.items():
        kind = "rigid" if cell[0] == _RIGID else "malleable"
        if cell in PUBLISHED:
            rows.append((kind, f"{cell[1]} (P)", *map(str, PUBLISHED[cell])))
        numbers = (one.wait_s, one.job_time_s, one.turnaround_s)
        rows.append(
            (
                kind,
                cell[1],
                *(f"{number:.4f}" for number in numbers),
                f"{one.end_s:.0f}",
                f"{one.utilisation:.4f}",
            )
        )
    output.tables([Table("Agreement policies", _HEADER, tuple(rows))], _REMARKS)
    output.figure("agreement", partial(draw, found))


def draw(results: dict[tuple[str, str], Statistics], figure: Figure) -> None:
    """Mean turnaround as waiting and running, of the policies on malleable jobs; crosses are published."""
    axes = figure.subplots()
    shown = {policy: one for (jobs, policy), one in results.items() if jobs == _MALLEABLE}
    places = range(len(shown))
    waits_h = [one.wait_s / 3600 for one in shown.values()]
    axes.barh(places, waits_h, label="waits")
    axes.barh(places, [one.job_time_s / 3600 for one in shown.values()], left=waits_h, label="runs")
    for place, policy in enumerate(shown):
        if (published := PUBLISHED.get((_MALLEABLE, policy))) is not None:
            axes.plot([published[2] / 3600], [place], "kx", label="published turnaround")
    axes.set_yticks(places, list(shown), fontsize="x-small")
    axes.invert_yaxis()
    axes.set(title="All jobs malleable, 128 nodes", xlabel="mean turnaround [h]")
    figure.legend(loc="outside lower center", ncols=3, fontsize="small")


def _play(folder: Path, cell: tuple[str, str]) -> Statistics:
    jobs, policy = cell
    workload = read_elastisim(folder / jobs)
    return statistics_of(simulate(workload, policy_of(policy), order=EventOrder.ELASTISIM))
