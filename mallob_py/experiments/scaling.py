"""Strong scaling of one bag of tasks on 1 to 16 workers, in virtual time.

Source: the ElasticJobScheduler publication, figure 6, which measures rigid GLB programs on 1 to 16 nodes.
Here a node is a worker, and the bags are trees of UTS's kind with the real books (`lifelines`), of several
seeds. `mallob-py batch experiment bags` measures real programs on the cores that there are.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from mallob_py.experiments.intervals import interval
from mallob_py.experiments.lifelines import Sharers, Sharing
from mallob_py.experiments.output import Output, Table

WORKERS = (1, 2, 4, 8, 16)
DEPTHS = (13, 14, 15, 16)
SEEDS = 5


class Case(msgspec.Struct, frozen=True):
    """One run: a tree of this depth and seed on so many workers."""

    depth: int
    workers: int
    seed: int

    def __str__(self) -> str:
        return f"depth {self.depth}, seed {self.seed}, {self.workers} workers"


def measure(case: Case) -> Sharing:
    return Sharers(case.workers, case.depth, "job tree", case.seed).play()


def run(folder: Path) -> None:
    """Play all trees on all numbers of workers, and print a table. Raises OSError."""
    output = Output(folder, "scaling")
    cases = [Case(depth, workers, seed) for depth in DEPTHS for workers in WORKERS for seed in range(SEEDS)]
    found = output.play(measure, cases, None, str)
    rows = []
    for depth in DEPTHS:
        for workers in WORKERS:
            runs = [(found[Case(depth, 1, seed)], found[Case(depth, workers, seed)]) for seed in range(SEEDS)]
            speedups = [alone.seconds / one.seconds for alone, one in runs]
            rows.append(
                (
                    depth,
                    workers,
                    interval([one.seconds for _, one in runs]).text(),
                    interval(speedups).text(),
                    f"{sum(speedups) / SEEDS / workers:.3f}",
                    sum(one.loans for _, one in runs) / SEEDS,
                )
            )
    header = ("depth", "workers", "time [s]", "speedup", "efficiency", "loans")
    output.tables(
        [Table("A tree of UTS's kind on 1 to 16 workers", header, tuple(rows))],
        f"Means over {SEEDS} trees; behind ± is half of the 95 % interval. Workers begin when their layer of"
        " the job tree does: the start of processes is not in it.",
    )
