"""The invariants of a quiescent cluster: fair volumes, gapless and linked trees, nothing left over.

Volumes are fair by capacity: C1 and C2 (P 2.3) hold for the sum of all ranks' capacities, which is
the number of PEs, and no rank runs more workers than its capacity.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, TypeAlias

from mallob_py.protocol.balancing import volumes_of
from mallob_py.protocol.distributed_balancing import DistributedBalancer
from mallob_py.protocol.pe import PE
from mallob_py.protocol.rotation import fair_shares
from mallob_py.protocol.worker import Worker, WorkerState
from mallob_py.simulation.desks import DeskFolders
from mallob_py.trees import children_of, parent_of

if TYPE_CHECKING:
    from mallob_py.simulation.cluster import Cluster
    from mallob_py.simulation.processes import Process

#: (place, PE) of each present PE
Present: TypeAlias = Sequence[tuple[int, PE]]

#: states in which a worker in a tree may be while the cluster rests
_AT_REST = (WorkerState.RUNNING, WorkerState.PAUSED, WorkerState.DEAD)


def check_invariants(cluster: Cluster) -> None:
    """Raise AssertionError with the seed if a resting cluster violates an invariant."""
    try:
        present = list(cluster.present())
        live = _check_jobs(cluster, present)
        volumes = _check_volumes(cluster, present, live)
        _check_trees(cluster, present, volumes)
        _check_capacities(cluster, present, volumes)
        _check_idle(present)
        _check_nothing_left(cluster, present, live)
    except AssertionError as error:
        raise AssertionError(
            f"seed {cluster.seed}, m {cluster.size}, t {cluster.now:.6f}: {error}"
        ) from error


def _check_jobs(cluster: Cluster, present: Present) -> set[int]:
    """Check that every job handed in either waits at a desk, or is live at its client, or has ended."""
    live: set[int] = set()
    for _, pe in present:
        live |= set(pe.client.jobs)
    assert not live & set(cluster.ended), "a job that has ended is still live"
    at_desks = cluster.folders.at_desks()
    assert not live & at_desks, "a job is live although it still waits at a desk"
    assert live | at_desks >= cluster.folders.open, "a job is lost"
    assert live | at_desks <= cluster.folders.open, "there is a job that nobody has handed in"
    if isinstance(cluster.folders, DeskFolders):
        cluster.folders.check_rest(live)
    return live


def _check_volumes(cluster: Cluster, present: Present, live: set[int]) -> dict[int, int]:
    """Check that all images agree, and C1, C2 hold."""
    _, some = present[0]
    first = some.balancer
    assert set(first.jobs) == live, f"the image has {sorted(first.jobs)}, live jobs are {sorted(live)}"
    for _, pe in present:
        assert pe.balancer.epoch == first.epoch, "two PEs rest in different epochs"
        assert pe.balancer.jobs == first.jobs, "two PEs have different images"
        if isinstance(first, DistributedBalancer):
            assert isinstance(pe.balancer, DistributedBalancer)
            assert pe.balancer.epoch_volumes == first.epoch_volumes, "two PEs know different volumes"
            assert pe.balancer.is_at_rest(), "a computation of volumes has no end"
    volumes = {job: first.volume(job) or 0 for job in live}
    if first.rotation.is_on:
        _check_rotation(volumes, fair_shares(first.jobs, cluster.size))
    else:
        fair = volumes_of(first.jobs, cluster.size)
        assert volumes == {job: fair.get(job, 0) for job in live}, (
            f"the volumes are {volumes}, but fair volumes are {fair}"
        )
    assert first.total_volume == sum(volumes.values())
    demands = {job: first.jobs[job].demand for job in live}
    if len(live) > cluster.size and not first.rotation.is_on:
        assert sorted(volumes.values(), reverse=True)[: cluster.size] == [1] * cluster.size
    elif len(live) <= cluster.size:
        assert all(1 <= volumes[job] <= demands[job] for job in live), f"C2: {volumes} {demands}"
    assert sum(volumes.values()) == min(cluster.size, sum(demands.values())), f"C1: {volumes}"
    return volumes


def _check_rotation(volumes: dict[int, int], shares: dict[int, float]) -> None:
    """Check that each job always has its share, rounded down or up."""
    for job, share in shares.items():
        rounded = math.floor(share + 1e-9), math.ceil(share - 1e-9)
        assert volumes[job] in rounded, f"job {job} has {volumes[job]} PEs, its share is {share}"


def _check_trees(cluster: Cluster, present: Present, volumes: dict[int, int]) -> None:
    """Check that each job has workers 0..v-1, and that each worker runs and is linked with its parent."""
    workers: dict[int, dict[int, tuple[int, Worker]]] = {job: {} for job in volumes}
    for place, pe in present:
        if (worker := pe.workers.active) is not None:
            assert worker.job in workers, f"rank {pe.rank} works for job {worker.job}, which is over"
            assert worker.index not in workers[worker.job], f"two workers {worker.index} of job {worker.job}"
            workers[worker.job][worker.index] = (place, worker)
    for job, tree in workers.items():
        assert sorted(tree) == list(range(volumes[job])), f"job {job}: {sorted(tree)}, volume {volumes[job]}"
        client = cluster.submitted[job]
        for index, (rank, worker) in tree.items():
            assert worker.state in _AT_REST, f"job {job} worker {index} is {worker.state}"
            process = cluster.processes[rank, worker.number] if worker.state.has_process else None
            if process is not None:
                _check_process(process, index, volumes[job], tree)
            if index == 0:
                seat = cluster.pes[client].client.jobs[job].seats.seat(0)
                parent_rank = client
            else:
                parent_rank, parent = tree[parent_of(index)]
                seat = parent.seats.seat(index)
                assert worker.parent_stay == parent.stay
            assert worker.parent == cluster.pes[parent_rank].rank, (
                f"job {job} worker {index} has a wrong parent"
            )
            assert seat is not None
            assert (seat.rank, seat.stay) == (cluster.pes[rank].rank, worker.stay), (
                f"job {job}: seat {index} names another worker"
            )


def _check_process(process: Process, index: int, volume: int, tree: Collection[int]) -> None:
    """Check that the worker's process runs and knows its place."""
    assert process.is_started
    assert not process.is_suspended
    assert (process.index, process.volume) == (index, volume)
    assert set(process.children) == {child for child in children_of(index) if child in tree}


def _check_capacities(cluster: Cluster, present: Present, volumes: dict[int, int]) -> None:
    """Check that processes run within each rank's capacity, and as the volumes say."""
    running: Counter[int] = Counter()
    for (pe, _), process in cluster.processes.items():
        running[cluster.host_of(pe)] += process.is_started and not process.is_suspended
    for rank, count in running.items():
        capacity = len(cluster.places_of(rank))
        assert count <= capacity, f"rank {rank} of capacity {capacity} runs {count} workers"
    active = [pe.workers.active for _, pe in present]
    dead = sum(worker is not None and worker.is_bereft for worker in active)
    assert running.total() + dead == sum(volumes.values()), (
        f"{running} workers run, {dead} have no process, the volumes are {volumes}"
    )


def _check_idle(present: Present) -> None:
    """Check that the root of the tree counts the idle PEs and the open requests correctly.

    All trees are whole (`_check_trees`), so no request is open, with one exception: if no PE is idle, a
    request that has outlived its parent may wait for the next idle PE or epoch.
    """
    idle = sum(pe.workers.active is None for _, pe in present)
    supplies = [pe.matcher.supply() for _, pe in present if pe.matcher.is_root()]
    orphans = 0 if idle else sum(len(pe.matcher.carried()) for _, pe in present)
    assert supplies == [(orphans, idle)], f"matching knows {supplies}, idle PEs are {idle}"


def _check_nothing_left(cluster: Cluster, present: Present, live: set[int]) -> None:
    """Check that ended jobs left no trace, caches are within bounds, and each process has a worker."""
    held: set[tuple[int, int]] = set()
    for place, pe in present:
        workers = list(pe.workers.suspended.values())
        roots = sum(worker.index == 0 for worker in workers)
        assert roots <= cluster.config.roots_kept(pe.size)
        assert len(workers) - roots <= cluster.config.job_cache
        if pe.workers.active is not None:
            workers.append(pe.workers.active)
        for worker in workers:
            assert worker.job in live, f"rank {pe.rank} keeps a worker of ended job {worker.job}"
            if worker.state.has_process:
                held.add((place, worker.number))
        assert not pe.workers.parenting.early, "an early answer waits for ever"
        assert not len(pe.workers.leaving), "a leaving worker never ends"
    assert set(cluster.processes) == held, "processes without workers"
