"""The numbers of one simulated run that P Table 1 and 2 and Fig. 4 to 6 are made of."""

from __future__ import annotations

from statistics import fmean, median

import msgspec

from mallob_py.run_figures import CREATION_RATIO_MEANS, LATENCIES, LatencyRow
from mallob_py.simulation.measures import DISTINCT_PES
from mallob_py.simulation.run import Simulation
from mallob_py.text_table import Cell, format_cell, format_table

_WARM_UP_S_MAX = 60.0
_WINDOW_S = 1.0


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Utilisation is that after the first minute (or tenth of the run): before, jobs are too few."""

    pes: int
    seconds: float
    seed: int
    jobs_submitted: int
    jobs_ended: int
    response_mean_s: float | None
    utilisation: float | None
    busy_median: float
    latencies: tuple[LatencyRow, ...]
    creation_ratio_median: float | None
    creation_ratio_max: float | None
    creation_ratio_total: float | None
    created_on_at_most: dict[int, float]
    context_switches_median: float
    context_switches_mean: float
    epochs: int
    messages: int
    played_s: float


def summarise(simulation: Simulation) -> Summary:
    """The numbers of a run that is over."""
    measures, setting = simulation.measures, simulation.setting
    warm_up_s = min(_WARM_UP_S_MAX, setting.seconds / 10)
    _, shares = measures.utilisation(_WINDOW_S, warm_up_s, setting.seconds)
    ratio = measures.creation_ratio()
    return Summary(
        pes=setting.pes,
        seconds=setting.seconds,
        seed=setting.seed,
        jobs_submitted=len(simulation.cluster.submitted),
        jobs_ended=len(measures.ended),
        response_mean_s=fmean(job.response_s for job in measures.ended) if measures.ended else None,
        utilisation=fmean(shares) if shares else None,
        busy_median=median(measures.busy_shares(setting.seconds)),
        latencies=tuple(measures.latency(kind) for kind in ("scheduled", "balanced", "adopted")),
        creation_ratio_median=ratio.median,
        creation_ratio_max=ratio.max,
        creation_ratio_total=ratio.total,
        created_on_at_most=dict(zip(DISTINCT_PES, measures.shares_created_on_at_most(), strict=True)),
        context_switches_median=median(measures.context_switches),
        context_switches_mean=fmean(measures.context_switches),
        epochs=simulation.cluster.pes[0].balancer.epoch,
        messages=simulation.cluster.messages_sent,
        played_s=simulation.played_s,
    )


def describe(summary: Summary) -> str:
    """The summary as text."""
    latencies = [
        (LATENCIES[row.kind], row.count, row.median_ms, row.p90_ms, row.p99_ms, row.max_ms)
        for row in summary.latencies
    ]
    spread = ", ".join(f"<={pes}: {share:.3f}" for pes, share in summary.created_on_at_most.items())
    facts: list[tuple[str, Cell]] = [
        ("jobs submitted", summary.jobs_submitted),
        ("jobs ended", summary.jobs_ended),
        ("mean response [s]", summary.response_mean_s),
        ("utilisation", share_cell(summary.utilisation)),
        ("busy share of the median PE", share_cell(summary.busy_median)),
        ("worker creation ratio, median", summary.creation_ratio_median),
        ("worker creation ratio, max", summary.creation_ratio_max),
        ("worker creation ratio, total", summary.creation_ratio_total),
        ("workers created on so many PEs", spread),
        ("context switches per PE, median", summary.context_switches_median),
        ("context switches per PE, mean", summary.context_switches_mean),
        ("epochs", summary.epochs),
        ("messages", summary.messages),
        ("messages per real second", round(summary.messages / max(summary.played_s, 1e-9))),
    ]
    return "\n\n".join(
        (
            f"{summary.pes} PEs, {summary.seconds:g} s in virtual time, seed {summary.seed}, "
            f"played in {summary.played_s:.1f} s",
            "\n".join(f"{name:<34}{format_cell(value)}" for name, value in facts),
            CREATION_RATIO_MEANS,
            format_table(("latency [ms] until", "n", "median", "p90", "p99", "max"), latencies),
        )
    )


def share_cell(value: float | None) -> str | None:
    """A share with digits enough to tell 0.9985 from 0.9977; None where the run was too short for one."""
    return None if value is None else f"{value:.4f}"
