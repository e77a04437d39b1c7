"""ElasticJobScheduler's policies on batches of 25 jobs on 32 nodes, with more and more malleable jobs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mallob_py.batch.costs import JVM_RESIZES, FreeResizes, ResizeCost
from mallob_py.batch.metrics import Apart, Metrics, apart_of, metrics_of
from mallob_py.batch.registry import policy_of
from mallob_py.batch.simulator import simulate
from mallob_py.batch.workload.glb_batch import glb_batch
from mallob_py.experiments.intervals import Interval, interval, winner
from mallob_py.experiments.output import Output, Table
from mallob_py.text_table import Cell

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
Means of {BATCHES} batches, behind ± half of their 95 % interval; in brackets what was published, measured
on a real cluster. Its run times are not to be had as numbers: those here follow from its aim of 8 node-hours
a batch, and speedup is linear. So only the directions can be compared. Resizes cost nothing, or
{JVM_RESIZES.grow_s} s to grow and {JVM_RESIZES.shrink_s} s to shrink, the published means, during which a job
stands still. Ahead: the policy whose difference to each other one, batch by batch, has an interval that
excludes 0."""
#: published: orders to shrink and to grow per malleable job, by the share
_PUBLISHED_ORDERS = {0.2: (0.78, 0.96), 1.0: (0.71, 0.58)}
_APART = ("elastic-easy", "elastic:ready-s=6", "fair")
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


class Played(msgspec.Struct, frozen=True):
    """All batches of a row at a share."""

    metrics: list[Metrics]
    apart: list[Apart]
    #: by batch and job: turnaround [s], and whether it is malleable
    turnarounds_s: list[list[tuple[float, bool]]]

    def values(self, place: int) -> list[float]:
        """Makespans [s], utilisation [%] or turnarounds [s]."""
        if place == 1:
            return [100.0 * one.utilisation for one in self.metrics]
        return [one.turnaround_s if place else one.makespan_s for one in self.metrics]

    def interval(self, place: int) -> Interval:
        return interval(self.values(place))


Means = dict[tuple[Row, float], Played]


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
            found, apart = list[Metrics](), list[Apart]()
            turnarounds = list[list[tuple[float, bool]]]()
            for seed in range(BATCHES):
                schedule = simulate(glb_batch(seed, share), policy_of(row.policy), costs=row.costs)
                found.append(metrics_of(schedule))
                apart.append(apart_of(schedule))
                turnarounds.append(
                    [
                        (end_s - job.submit_s, job.is_malleable)
                        for job, end_s in zip(schedule.workload.jobs, schedule.ends_s, strict=True)
                    ]
                )
                output.keep(f"{row.label} {share:.0%} {seed}", found[-1])
            means[row, share] = Played(found, apart, turnarounds)
    tables = [
        _ends(rows, means),
        _by_share(rows, means),
        _winners(rows, means),
        _orders(means),
        _apart(means),
    ]
    output.tables(tables, _REMARKS)
    output.figure("elastic", partial(_draw, rows, means))


def _ends(rows: list[Row], means: Means) -> Table:
    """Without malleable jobs and with no others; what was published of it in brackets."""
    lines = list[tuple[str, ...]]()
    for row in rows:
        ours = [
            means[row, share].interval(place).text(0) for place in range(len(_TITLES)) for share in (0.0, 1.0)
        ]
        said = _NONE if row.has_costs else PUBLISHED.get(row.policy, _NONE)
        cells = [f"{our} ({their})" if their else our for our, their in zip(ours, said, strict=True)]
        lines.append((row.label, *cells))
    header = ("policy", *(f"{title}, {share}" for title in _TITLES for share in ("0 %", "100 %")))
    return Table("No job malleable, and all", header, tuple(lines))


def _by_share(rows: list[Row], means: Means) -> Table:
    return Table(
        "Makespan [s] by the share of malleable jobs",
        ("policy", *(f"{share:.0%}" for share in SHARES)),
        tuple((row.label, *(means[row, share].interval(0).text(0) for share in SHARES)) for row in rows),
    )


def _winners(rows: list[Row], means: Means) -> Table:
    """The policy that is ahead of each other one that has the same costs, if there is one."""
    lines = list[tuple[str, ...]]()
    for title, place in (("makespan", 0), ("turnaround", 2)):
        for share in SHARES:
            cells = [
                winner(
                    {row.policy: means[row, share].values(place) for row in rows if row.has_costs is costly}
                )
                or "none"
                for costly in (False, True)
            ]
            lines.append((title, f"{share:.0%}", *cells))
    return Table("Ahead of each other policy", ("least", "malleable", "free", "resizes cost"), tuple(lines))


def _orders(means: Means) -> Table:
    """Orders per malleable job."""
    lines = list[tuple[Cell, ...]]()
    for policy in ("elastic:ready-s=6", "fair"):
        for share in SHARES[1:]:
            apart = means[Row(policy), share].apart
            shrinks, grows = interval([one.shrinks for one in apart]), interval([one.grows for one in apart])
            said = _PUBLISHED_ORDERS.get(share, ("", "")) if policy.startswith("elastic") else ("", "")
            lines.append((policy, f"{share:.0%}", shrinks.text(), said[0], grows.text(), said[1]))
    header = ("policy", "malleable", "shrinks", "published", "grows", "published")
    return Table("Orders per malleable job, resizes for nothing", header, tuple(lines))


def _apart(means: Means) -> Table:
    """Mean turnarounds of malleable and of rigid jobs, over those of the same jobs where all are rigid."""
    lines = list[tuple[Cell, ...]]()
    for policy in _APART:
        before = means[Row(policy), 0.0].turnarounds_s
        for share in SHARES[1:]:
            after = means[Row(policy), share].turnarounds_s
            cells = list[str]()
            for kind in (True, False):
                ratios = [
                    sum(own for own, _ in pairs) / sum(rigid for _, rigid in pairs)
                    for own_batch, rigid_batch in zip(after, before, strict=True)
                    if (
                        pairs := [
                            (own_s, rigid_s)
                            for (own_s, is_one), (rigid_s, _) in zip(own_batch, rigid_batch, strict=True)
                            if is_one is kind
                        ]
                    )
                ]
                cells.append(interval(ratios).text() if ratios else "")
            lines.append((policy, f"{share:.0%}", *cells))
    title = "Turnaround over that of the same jobs where all are rigid"
    return Table(title, ("policy", "malleable", "malleable jobs", "rigid jobs"), tuple(lines))


def _draw(rows: list[Row], means: Means, figure: Figure) -> None:
    """All three against the share; crosses are published, dashes have costs."""
    policies = list(dict.fromkeys(row.policy for row in rows))
    for place, axes in enumerate(figure.subplots(1, 3)):
        for row in rows:
            colour = f"C{policies.index(row.policy)}"
            axes.plot(
                [100.0 * share for share in SHARES],
                [means[row, share].interval(place).mean for share in SHARES],
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
