"""Common parts of the script tests: a small cluster, actions of users and processes, and repeated attempts
with different seeds.

A story sets up a cluster, holds some messages back, lets other messages overtake, releases the held messages,
and checks the cluster at rest. Which rank runs what follows from the seed. If a story needs certain places of
its workers and the seed gives others, the story raises `Unlucky` and is played again with the next seed.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest

from mallob_py.protocol.config import Config
from mallob_py.protocol.messages import AnyMessage, Message
from mallob_py.protocol.rank_stimuli import Said
from mallob_py.protocol.rank_tree import place_of
from mallob_py.protocol.stimuli import WorkerAnswered, WorkerCrashed, WorkerDemands
from mallob_py.protocol.worker import Worker
from mallob_py.simulation.check import check_invariants
from mallob_py.simulation.cluster import Cluster
from mallob_py.simulation.network import Hold

_SEEDS = 300


class Unlucky(Exception):
    """The seed does not put the ranks where the story needs them."""


def needs(condition: bool) -> None:
    """Raise Unlucky unless the ranks are where the story needs them."""
    if not condition:
        raise Unlucky


def told_with_luck(story: Callable[[int], None]) -> Callable[[], None]:
    """Return a test that plays `story(seed)` with the first seed that is not unlucky."""

    def test() -> None:
        for seed in range(_SEEDS):
            try:
                return story(seed)
            except Unlucky:
                continue
        return pytest.fail("no seed fits the story")

    test.__name__, test.__doc__ = story.__name__, story.__doc__
    return test


def cluster_of(size: int, seed: int = 0, **settings: Any) -> Cluster:
    return Cluster(size, seed, Config(**settings))


def lively(size: int, seed: int, bystanders: int = 3, **settings: Any) -> Cluster:
    """Return a cluster in which some jobs have ended, and up to `bystanders` PEs are busy with other jobs."""
    cluster = cluster_of(size, seed, **settings)
    choose = random.Random(f"story {seed}")
    for job in range(101, 101 + choose.randint(1, 4)):
        cluster.submit(job, choose.randrange(size), max_demand=choose.randint(1, size))
    rest(cluster)
    for job in list(cluster.submitted):
        cluster.interrupt(job)
    rest(cluster)
    for job in range(51, 51 + choose.randint(0, bystanders)):
        cluster.submit(job, choose.randrange(size), max_demand=1)
    rest(cluster)
    return cluster


def rest(cluster: Cluster) -> None:
    """Bring the cluster to rest, and check all invariants."""
    play(cluster)
    cluster.settle()
    check_invariants(cluster)


def play(cluster: Cluster, for_s: float = 0.05) -> None:
    """Let enough time pass for all messages that are not held back."""
    cluster.run(until_s=cluster.now + for_s)


def hold_kind(
    cluster: Cluster, kind: type[Message], dest: int | None = None, source: int | None = None, **fields: Any
) -> Hold:
    """Hold back messages of one kind, to or from one rank, with these fields (or their request's fields)."""

    def test(from_rank: int, to_rank: int, message: AnyMessage) -> bool:
        about = getattr(message, "request", message)
        return (
            isinstance(message, kind)
            and dest in (None, to_rank)
            and source in (None, from_rank)
            and all(getattr(about, name) == value for name, value in fields.items())
        )

    return cluster.hold(test)


def watch(cluster: Cluster, kind: type[Message]) -> list[tuple[int, int, Any]]:
    """Return a list to which each message of one kind is added from now on: (source, dest, message)."""
    seen: list[tuple[int, int, Any]] = []

    def test(source: int, dest: int, message: AnyMessage) -> bool:
        if isinstance(message, kind):
            seen.append((source, dest, message))
        return False

    cluster.hold(test)
    return seen


def only(hold: Hold, kind: type[Message]) -> bool:
    """Tell whether a message of this kind is held, and no other message waits behind it."""
    return bool(hold.messages) and all(isinstance(message, kind) for _, _, message in hold.messages)


def kinds_held(hold: Hold, kind: type[Message]) -> list[Any]:
    return [message for _, _, message in hold.messages if isinstance(message, kind)]


def places(cluster: Cluster, job: int) -> dict[int, int]:
    """Return the rank of each of the job's active workers, by index."""
    return {
        pe.workers.active.index: pe.rank
        for pe in cluster.pes
        if pe.workers.active is not None and pe.workers.active.job == job
    }


def post(cluster: Cluster, source: int, dest: int, message: AnyMessage) -> None:
    """Send a message between PEs of two ranks, as if the first rank had sent it."""
    present = cluster.generation_of(0)
    assert present is not None
    cluster.post(source, dest, Said(cluster.host_of(source), present.g, source, dest, message))


def heard_by(cluster: Cluster) -> list[tuple[float, int, int, AnyMessage]]:
    """Have PEs only listen from now on; return a list of what they hear: (time, PE, source, message)."""
    heard: list[tuple[float, int, int, AnyMessage]] = []

    def listen(pe: int) -> Callable[[int, AnyMessage, float], None]:
        return lambda source, message, now: heard.append((now, pe, source, message))

    for pe in cluster.pes:
        pe.receive = listen(pe.rank)  # type: ignore[method-assign]
        pe.handle = lambda stimulus, now: None  # type: ignore[method-assign]
    return heard


def active(cluster: Cluster, rank: int) -> Worker:
    worker = cluster.pes[rank].workers.active
    assert worker is not None, f"rank {rank} is idle"
    return worker


def is_idle(cluster: Cluster, rank: int) -> bool:
    return cluster.pes[rank].workers.active is None


def volume(cluster: Cluster, job: int, rank: int = 0) -> int | None:
    """Return the job's volume as known to `rank`."""
    return cluster.pes[rank].balancer.volume(job)


def tree_parent(cluster: Cluster, rank: int) -> int | None:
    """Return the rank from which `rank` hears of epochs and grants."""
    return place_of(rank, cluster.size).parent


def tree_children(cluster: Cluster, rank: int) -> list[int]:
    """Return the ranks that hear of epochs and grants from `rank`."""
    place = place_of(rank, cluster.size)
    return [child for child in (place.left, place.right) if child is not None]


def demand(cluster: Cluster, job: int, workers: int) -> None:
    """Have the application at the root want this number of workers."""
    rank = places(cluster, job)[0]
    number = active(cluster, rank).number
    cluster.tell(rank, WorkerDemands(number, workers))


def answer(cluster: Cluster, rank: int, number: int, body: bytes = b"result") -> None:
    cluster.tell(rank, WorkerAnswered(number, body))


def crash(cluster: Cluster, rank: int, number: int) -> None:
    """Kill a worker's process."""
    del cluster.processes[rank, number]
    cluster.tell(rank, WorkerCrashed(number, "killed by signal 9"))


def suspended(cluster: Cluster, job: int) -> list[tuple[int, int]]:
    """Return (rank, worker number) of the job's stopped processes."""
    return sorted(
        key for key, process in cluster.processes.items() if process.job == job and process.is_suspended
    )


def processes_of(cluster: Cluster, job: int) -> set[tuple[int, int]]:
    return {key for key, process in cluster.processes.items() if process.job == job}
