"""How often PEs use the rule by which idle PEs wait for suspended workers (P 3.3), and with what success.

    .venv/bin/python scripts/bench/reuse.py [--pes 384] [--seconds 600] [--seeds 1]

The script plays the realistic arrivals of P 5.3 with each strategy of reuse and each seed from 0 on. Under
the strategy `full`, an idle PE keeps itself free (a *hold*) for a suspended worker whose job has just grown
beyond the worker's index, for at most 5 ms. The strategy `published` is `full` with the exact rule of P 3.3:
a PE that becomes idle keeps itself free for each suspended worker whose index is below its job's volume,
until the worker's parent has said whether it needs the worker. The script counts:

- queries for suspended workers, by their answers and the reasons for denials;
- holds that begin, that end with the query, and that end in vain;
- roots of other jobs that a PE rejects during a hold. (A hold also keeps out other workers of other jobs.
  These cannot be counted, because a PE with a hold offers no token and so gets no request.)

The script prints a table of the counts and of some measures: for several seeds, each value is a mean ± half
of its 95 % interval. Below the table, it names for each measure the strategy with the smallest value, if the
intervals of the differences, seed by seed, decide it.
"""

import argparse
from collections import Counter
from typing import Any

import msgspec

from mallob_py.experiments.intervals import interval, winner
from mallob_py.protocol.config import Reuse
from mallob_py.protocol.local_workers import LocalWorkers
from mallob_py.protocol.worker_cache import WorkerCache
from mallob_py.simulation.run import Simulation, Summary
from mallob_py.simulation.setting import Setting, job_stream
from mallob_py.text_table import format_table

#: time longer than any run, for waits without limit
_UNTIL_TOLD_S = 1e6

COUNTED = (
    "queries",
    "resumed where asked",
    "denied",
    "denied, PE busy with another job",
    "denied, token granted",
    "denied, worker not there",
    "holds begun",
    "holds that ended with the query",
    "holds that turned a root away, then ended with the query",
    "holds in vain",
    "roots of other jobs turned away",
)


def count_into(counts: Counter[str]) -> None:
    """Wrap the methods that apply the rule so that they count, for this process only."""
    query, renew, tick, is_free = (
        LocalWorkers.receive_query,
        WorkerCache.renew_holds,
        LocalWorkers.tick,
        LocalWorkers.is_free,
    )

    refused = set[int]()

    def counted_query(self: LocalWorkers, request: Any, now: float) -> None:
        held, before = request.job in self.cache.holds, self.active
        was_there = request.job in self.suspended
        was_granted = self._matcher.token_granted
        query(self, request, now)
        is_resumed = before is None and self.active is not None and self.active.job == request.job
        counts["queries"] += 1
        counts["resumed where asked" if is_resumed else "denied"] += 1
        counts["holds that ended with the query"] += held and is_resumed
        refused_here = id(self) in refused
        counts["holds that turned a root away, then ended with the query"] += (
            held and is_resumed and refused_here
        )
        refused.discard(id(self))
        if not is_resumed:
            if before is not None:
                counts["denied, PE busy with another job"] += 1
            elif was_granted:
                counts["denied, token granted"] += 1
            elif not was_there:
                counts["denied, worker not there"] += 1

    def counted_renew(self: WorkerCache, *how: Any) -> None:
        before = set(self.holds)
        if self._config.reuse_patience_s == _UNTIL_TOLD_S:
            for worker in self.workers.values():
                worker.volume = 0
        renew(self, *how)
        counts["holds begun"] += len(set(self.holds) - before)

    def counted_tick(self: LocalWorkers, now: float) -> None:
        before = len(self.cache.holds)
        tick(self, now)
        counts["holds in vain"] += max(0, before - len(self.cache.holds))

    def counted_is_free(self: LocalWorkers, job: int | None = None) -> bool:
        if self.cache.holds and job not in self.cache.holds:
            counts["roots of other jobs turned away"] += 1
            refused.add(id(self))
        return is_free(self, job)

    methods: Any = LocalWorkers
    methods.receive_query = counted_query
    cache: Any = WorkerCache
    cache.renew_holds = counted_renew
    methods.tick, methods.is_free = counted_tick, counted_is_free


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pes", type=int, default=384)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    count_into(counts)
    found = dict[str, list[tuple[float, ...]]]()
    for reuse in (*(one.value for one in (Reuse.NONE, Reuse.BASIC, Reuse.FULL)), "published"):
        found[reuse] = []
        for seed in range(options.seeds):
            counts.clear()
            summary = played(Setting(pes=options.pes, seconds=options.seconds, seed=seed), reuse)
            measures = (
                summary.creation_ratio_total,
                summary.context_switches_median,
                summary.context_switches_mean,
                summary.utilisation,
            )
            found[reuse].append((*(counts[name] for name in COUNTED), *(one or 0.0 for one in measures)))
    names = (*COUNTED, "WCR total", "switches median", "mean", "busy")
    rows = [
        (
            reuse,
            *(interval(values).text(3 if max(values) < 10 else 1) for values in zip(*of_seeds, strict=True)),
        )
        for reuse, of_seeds in found.items()
    ]
    print(format_table(("reuse", *names), rows))
    for place, name in enumerate(names[len(COUNTED) :], len(COUNTED)):
        least = winner({reuse: [one[place] for one in of_seeds] for reuse, of_seeds in found.items()})
        print(f"smallest {name}: {least or 'not decided by the intervals'}")


def played(setting: Setting, strategy: str) -> Summary:
    protocol = msgspec.structs.replace(setting.protocol, reuse=Reuse.FULL, reuse_patience_s=_UNTIL_TOLD_S)
    if strategy != "published":
        protocol = msgspec.structs.replace(setting.protocol, reuse=Reuse(strategy))
    simulation = Simulation(msgspec.structs.replace(setting, protocol=protocol))
    simulation.submit_all(job_stream(setting.jobs, setting.pes, setting.seconds, setting.seed))
    simulation.play()
    return simulation.summary()


if __name__ == "__main__":
    main()
