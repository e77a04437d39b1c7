"""The stop of a change of generation, simulated: one of many ranks dies while jobs have all PEs.

For each size: the stop, which is the time from a rank's `Halt` to its `Begin`, the median and the longest of
all ranks; when all survivors have a running worker again, from the moment when one of them knows of it;
and how many of these have a new process, while the one that was there stays suspended.
Delays and costs per message are those of `simulate`; that of a message does not depend on its length there,
and a proposal to m ranks has some 4 m bytes.
"""

from __future__ import annotations

import argparse
import os
import statistics
from pathlib import Path

import msgspec

from mallob_py.protocol.rank_stimuli import RankLost
from mallob_py.simulation.cluster import Cluster
from mallob_py.simulation.delays import NetworkModel
from mallob_py.simulation.setting import Setting
from mallob_py.text_table import format_table

_GROWTH_S = 1.0
_LIMIT_S = 10.0


class Row(msgspec.Struct, frozen=True):
    """One line of the table."""

    ranks: int
    jobs: int
    stop_median_ms: float
    stop_longest_ms: float
    at_work_ms: float
    started_anew: int


def measured(ranks: int, jobs: int, seed: int) -> Row:
    """Grow jobs over all PEs, let the middle rank die, and play until all others are at work again."""
    setting = Setting(pes=ranks, seed=seed)
    cluster = Cluster(
        ranks,
        seed,
        setting.protocol,
        NetworkModel(setting),
        detect_s=_LIMIT_S,
        patience_s=_LIMIT_S,
    )
    for job in range(1, jobs + 1):
        cluster.submit(job, rank=job % ranks)
    cluster.run(until_s=_GROWTH_S)
    lost = ranks // 2
    running = sum(len(cluster.running(job)) for job in range(1, jobs + 1))
    assert running == ranks, f"{running} of {ranks} PEs are at work"
    before = set(cluster.processes)
    cluster.die(lost)
    began_s = cluster.now
    cluster.tell_rank(ranks - 1, RankLost(lost, "has died"))
    while True:
        cluster.run(until_s=cluster.now + 0.001)
        running = sum(len(cluster.running(job)) for job in range(1, jobs + 1))
        if len(cluster.stops) == ranks - 1 and running == ranks - 1:
            break
        assert cluster.now < began_s + _LIMIT_S, f"{running} of {ranks - 1} are at work"
    stops_ms = [stop_s * 1e3 for _, stop_s in cluster.stops]
    return Row(
        ranks,
        jobs,
        statistics.median(stops_ms),
        max(stops_ms),
        (cluster.now - began_s) * 1e3,
        len(cluster.processes.keys() - before),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 128, 1536])
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=Path("bench-results/generation.json"))
    options = parser.parse_args()
    rows = [measured(ranks, options.jobs, options.seed) for ranks in options.ranks]
    print(f"the stop of a change of generation, simulated; cores here {os.cpu_count()}")
    titles = ("ranks", "jobs", "stop median ms", "stop longest ms", "all at work ms", "started anew")
    print(format_table(titles, [msgspec.structs.astuple(row) for row in rows]))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_bytes(msgspec.json.format(msgspec.json.encode(rows)) + b"\n")


if __name__ == "__main__":
    main()
