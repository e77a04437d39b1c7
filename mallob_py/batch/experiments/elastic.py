"""ElasticJobScheduler's policies on batches of 25 jobs on 32 nodes, with more and more malleable jobs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mallob_py.batch.costs import JVM_RESIZES, FreeResizes, ResizeCost
from mallob_py.batch.metrics import Metrics, metrics_of
from mallob_py.batch.registry import policy_of
from mallob_py.batch.simulator import simulate
from mallob_py.batch.workload.glb_batch import glb_batch
from mallob_py.experiments.output import Output, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BATCHES = 10
SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
#: by policy: makespan [s], utilisation [%], turnaround [s], each for no and for only malleable jobs
PUBLISHED: dict[str, tuple[float | str, ...]] = {
    "elastic-fcfs": (1157, 1022, 75.5, 88.2, 366, 306),
    "backfilling": (1035, 1005, 84.5, 89.5, 284, 282),
    "elastic-easy": (1172, 1014, 74.8, 88.8, "", ""),
    "elastic:ready-s=6": (1168, 1006, 74.8, 90.5, 369, 353),
}
_UNPUBLISHED = ("elastic:start=code,shrink=code,grow=code,ready-s=6", "fair")
_NONE: tuple[float | str, ...] = ("",) * 6
_REMARKS = f"""\
Means of {BATCHES} batches; in brackets what was published, measured on a real cluster. Its run times are not
to be had as numbers: those here follow from its aim of 8 node-hours a batch, and speedup is linear. So only
the directions can be compared. Resizes cost nothing, or {JVM_RESIZES.grow_s} s to grow and
{JVM_RESIZES.shrink_s} s to shrink, the published means, during which a job stands still."""
_TITLES = ("Makespan [s]", "Utilisation [%]", "Turnaround [s]")


class Row(msgspec.Struct, frozen=True):
    """A policy, and what resizes cost."""

    policy: str
    has_costs: bool = False

    @property
    def costs(self) -> ResizeCost:
        return JVM_RESIZES if self.has_costs else FreeResizes()

    @property
    def label(self) -> str:
        return f"{self.policy}, resizes cost" if self.has_costs else self.policy


#: (makespan [s], utilisation [%], turnaround [s])
Means = dict[tuple[Row, float], tuple[float, float, float]]


def run(
    output: Output, processes: int | None, traces: Path | None, full: bool = False, live: bool = False
) -> None:
    """Write the tables. Neither processes nor traces are needed: it takes seconds.

    `live`: of a batch over real processes, which takes minutes. `full`: with more shares of malleable jobs.
    """
    if live:
        from mallob_py.batch.experiments import elastic_live

        elastic_live.run_live(output, elastic_live.SHARES_IN_FULL if full else elastic_live.SHARES)
        return
    if full:
        raise ValueError("--full: without --live, the experiment elastic is never shortened")
    policies = (*PUBLISHED, *_UNPUBLISHED)
    rows = [Row(policy) for policy in policies]
    rows += [Row(policy, True) for policy in policies if policy.startswith(("elastic:", "fair"))]
    means: Means = {}
    for row in rows:
        for share in SHARES:
            found = list[Metrics]()
            for seed in range(BATCHES):
                batch = glb_batch(seed, share)
                found.append(metrics_of(simulate(batch, policy_of(row.policy), costs=row.costs)))
                output.keep(f"{row.label} {share:.0%} {seed}", found[-1])
            means[row, share] = (
                sum(one.makespan_s for one in found) / BATCHES,
                100.0 * sum(one.utilisation for one in found) / BATCHES,
                sum(one.turnaround_s for one in found) / BATCHES,
            )
    output.tables([_ends(rows, means), _by_share(rows, means)], _REMARKS)
    output.figure("elastic", partial(_draw, rows, means))


def _ends(rows: list[Row], means: Means) -> Table:
    """Without malleable jobs and with no others; what was published of it in brackets."""
    lines = list[tuple[str, ...]]()
    for row in rows:
        ours = [means[row, share][place] for place in range(len(_TITLES)) for share in (0.0, 1.0)]
        said = _NONE if row.has_costs else PUBLISHED.get(row.policy, _NONE)
        cells = [
            f"{our:.0f} ({their})" if their else f"{our:.0f}" for our, their in zip(ours, said, strict=True)
        ]
        lines.append((row.label, *cells))
    header = ("policy", *(f"{title}, {share}" for title in _TITLES for share in ("0 %", "100 %")))
    return Table("No job malleable, and all", header, tuple(lines))


def _by_share(rows: list[Row], means: Means) -> Table:
    return Table(
        "Makespan [s] by the share of malleable jobs",
        ("policy", *(f"{share:.0%}" for share in SHARES)),
        tuple((row.label, *(means[row, share][0] for share in SHARES)) for row in rows),
    )


def _draw(rows: list[Row], means: Means, figure: Figure) -> None:
    """All three against the share; crosses are published, dashes have costs."""
    policies = list(dict.fromkeys(row.policy for row in rows))
    for place, axes in enumerate(figure.subplots(1, 3)):
        for row in rows:
            colour = f"C{policies.index(row.policy)}"
            axes.plot(
                [100.0 * share for share in SHARES],
                [means[row, share][place] for share in SHARES],
                "--" if row.has_costs else "o-",
                color=colour,
                markersize=4,
                label=row.label,
            )
            said = _NONE if row.has_costs else PUBLISHED.get(row.policy, _NONE)[2 * place : 2 * place + 2]
            for share, value in zip((0.0, 100.0), said, strict=False):
                if value:
                    axes.plot([share], [value], "x", color=colour)
        axes.set(title=_TITLES[place], xlabel="malleable jobs [%]")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    short = [label.replace(_UNPUBLISHED[0], "elastic as in the code") for label in labels]
    figure.legend(handles, short, loc="outside lower center", ncols=3, fontsize="small")
