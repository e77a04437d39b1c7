"""ElasticJobScheduler's policies on batches of 25 jobs on 32 nodes, with more and more malleable jobs."""

from __future__ import annotations

from pathlib import Path

from mallob_py.batch.metrics import Metrics, metrics_of
from mallob_py.batch.registry import policy_of
from mallob_py.batch.simulator import simulate
from mallob_py.batch.workload.glb_batch import glb_batch
from mallob_py.experiments.output import Output, Table

BATCHES = 10
SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
#: by policy: makespan [s], utilisation [%], turnaround [s], each for no and for only malleable jobs
PUBLISHED: dict[str, tuple[float | str, ...]] = {
    "elastic-fcfs": (1157, 1022, 75.5, 88.2, 366, 306),
    "backfilling": (1035, 1005, 84.5, 89.5, 284, 282),
    "elastic-easy": (1172, 1014, 74.8, 88.8, "", ""),
    "elastic:ready-s=6": (1168, 1006, 74.8, 90.5, 369, 353),
    "elastic:start=code,shrink=code,grow=code,ready-s=6": ("", "", "", "", "", ""),
}
_REMARKS = """\
Means of 10 batches; (P) is what was published, measured on a real cluster. Its run times are not
to be had as numbers: those here follow from its aim of 8 node-hours a batch, speedup is linear, and resizes
cost nothing. So only the directions can be compared."""


def run(output: Output, processes: int | None, traces: Path | None) -> None:
    """Write the tables. Neither processes nor traces are needed: it takes seconds."""
    means: dict[tuple[str, float], tuple[float, float, float]] = {}
    for policy in PUBLISHED:
        for share in SHARES:
            found = list[Metrics]()
            for seed in range(BATCHES):
                found.append(metrics_of(simulate(glb_batch(seed, share), policy_of(policy))))
                output.keep(f"{policy} {share:.0%} {seed}", found[-1])
            means[policy, share] = (
                sum(one.makespan_s for one in found) / BATCHES,
                100.0 * sum(one.utilisation for one in found) / BATCHES,
                sum(one.turnaround_s for one in found) / BATCHES,
            )
    ends = ("0 %", "0 % (P)", "100 %", "100 % (P)")
    tables = [
        Table(
            title,
            ("policy", *ends),
            tuple(
                (
                    policy,
                    means[policy, 0.0][place],
                    said[2 * place],
                    means[policy, 1.0][place],
                    said[2 * place + 1],
                )
                for policy, said in PUBLISHED.items()
            ),
        )
        for place, title in enumerate(("Makespan [s]", "Utilisation [%]", "Turnaround [s]"))
    ]
    tables.append(
        Table(
            "Makespan [s] by the share of malleable jobs",
            ("policy", *(f"{share:.0%}" for share in SHARES)),
            tuple((policy, *(means[policy, share][0] for share in SHARES)) for policy in PUBLISHED),
        )
    )
    output.tables(tables, _REMARKS)
