"""Rounds of jobs with kills in between, and a look at the ranks when they are at rest."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mallob_py.protocol.config import Config
from soaking.jobs import Mix
from soaking.processes import (
    Family,
    Wrong,
    descriptors,
    parent_of,
    proportional_bytes,
    resident_bytes,
    wait_until,
)
from soaking.ranks import Ranks
from soaking.service import STOP_DEADLINE_S, Service

ROUND_JOBS_MAX = 60
BURST_JOBS = 200
IN_FLIGHT_MAX = 120
#: a client remembers 100 000 ended jobs for dependencies: some 30 MB that may come
RSS_GROWTH_MAX_BYTES = 48 << 20
FDS_GROWTH_MAX = 24
#: of each rank at the end, when it has had the time to give back what large messages have left
RANK_AT_END_MAX_BYTES = 60_000_000
GIVE_BACK_DEADLINE_S = 40.0
#: after a change of ranks, what nobody speaks of any more is kept for so long
REST_DEADLINE_S = Config().succession_patience_s + STOP_DEADLINE_S
#: per PE
WORKERS_AT_REST_MAX = 3
SPARE_FORK_SERVER_S = 3.0


@dataclass(frozen=True, slots=True)
class Sample:
    """The ranks at rest."""

    resident_bytes: int
    fds: int
    server_fds: int
    workers: int

    @classmethod
    def of(cls, mark: str) -> Sample:
        family = Family.of(mark)
        return cls(
            max(map(resident_bytes, family.ranks)),
            max(map(descriptors, family.ranks)),
            max(map(descriptors, family.fork_servers)),
            len(family.workers),
        )

    def __str__(self) -> str:
        return (
            f"rank at most {self.resident_bytes / 2**20:.1f} MB, {self.fds} descriptors; "
            f"fork server at most {self.server_fds}; {self.workers} worker processes"
        )


def kill_somebody(service: Service, rng: random.Random, kills: Counter[str]) -> None:
    family = Family.of(service.mark)
    part = "fork server" if rng.random() < 0.1 else "worker"
    victims = family.fork_servers if part == "fork server" else family.workers
    if not victims:
        return
    victim = rng.choice(victims)
    parent, now_s = parent_of(victim), time.monotonic()
    if part == "fork server":
        # A rank gives up on fork servers that end before they have done anything, several in a row.
        if now_s < service.spared_until_s.get(parent, 0.0):
            return
        service.spared_until_s[parent] = now_s + SPARE_FORK_SERVER_S
    kills[part] += 1
    service.note_kill(f"{part} {victim}, child of {parent}")
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim, signal.SIGKILL)


def play_round(
    service: Service, mix: Mix, rng: random.Random, kills: Counter[str], ranks: Ranks | None
) -> None:
    """With `ranks`, ranks are lost, leave and join in some rounds, too."""

    def look() -> None:
        if rng.random() < kill_rate / 10:
            kill_somebody(service, rng, kills)
        if ranks is not None:
            ranks.look()
            if rng.random() < loss_rate:
                ranks.strike()
            if rng.random() < order_rate:
                ranks.order()

    is_burst = rng.random() < 0.15
    kill_rate = rng.choice((0.0, 0.03, 0.15))
    loss_rate = rng.choice((0.0, 0.003, 0.01))
    order_rate = rng.choice((0.0, 0.01, 0.03))
    for _ in range(BURST_JOBS if is_burst else rng.randint(1, ROUND_JOBS_MAX)):
        if is_burst:
            mix.submit_one(rng.choice(("noop", "noop", "wallclock", "file", "cpu")))
        else:
            mix.submit()
            time.sleep(rng.choice((0.0, 0.0, 0.005, 0.05)))  # so that jobs meet others in all states
        if rng.random() < kill_rate:
            kill_somebody(service, rng, kills)
        look()
        while len(mix.awaited) > IN_FLIGHT_MAX and not is_burst:
            mix.collect()
            look()
            time.sleep(0.02)
    mix.collect_all(look)
    if ranks is not None:
        ranks.settle()
    mix.check_nothing_else()


def at_rest(service: Service, ranks: int, pes: int) -> Sample:
    """Once no worker process of an ended job is left."""

    def is_at_rest() -> bool:
        service.check_alive()
        family = Family.of(service.mark)
        servers, workers = len(family.fork_servers), len(family.workers)
        most = WORKERS_AT_REST_MAX * pes * ranks
        return len(family.ranks) == servers == ranks and workers <= most and not service.descriptions()

    wait_until(is_at_rest, "workers and descriptions of ended jobs are gone", REST_DEADLINE_S)
    return Sample.of(service.mark)


def check_growth(samples: Sequence[Sample]) -> None:
    """Of one life. Raises Wrong."""
    if not samples:
        return
    early, late = samples[: len(samples) // 3 or 1], samples[-(len(samples) // 3 or 1) :]
    grown_bytes = min(one.resident_bytes for one in late) - max(one.resident_bytes for one in early)
    if grown_bytes > RSS_GROWTH_MAX_BYTES:
        raise Wrong(f"memory of a rank has grown by {grown_bytes / 2**20:.1f} MB")
    for what in ("fds", "server_fds"):
        grown = min(getattr(one, what) for one in late) - max(getattr(one, what) for one in early)
        if grown > FDS_GROWTH_MAX:
            raise Wrong(f"{what} have grown by {grown}")


def check_size_at_end(mark: str, deadline_s: float = GIVE_BACK_DEADLINE_S) -> None:
    """No rank stays large when all jobs are over. Raises Wrong."""

    def are_small() -> bool:
        return max(map(proportional_bytes, Family.of(mark).ranks), default=0) < RANK_AT_END_MAX_BYTES

    limit = f"{RANK_AT_END_MAX_BYTES / 1e6:.0f} MB"
    wait_until(are_small, f"each rank at rest has less than {limit} of memory of its own", deadline_s, 1.0)
