"""A root that prefers a certain PE gets this PE if it is free, and another PE otherwise."""

from functools import partial

import pytest
from stories import (
    answer,
    cluster_of,
    hold_kind,
    is_idle,
    lively,
    needs,
    only,
    play,
    processes_of,
    rest,
    told_with_luck,
    tree_children,
    volume,
    watch,
)

from mallob_py.protocol.config import Balancing, Matching
from mallob_py.protocol.effects import Outcome
from mallob_py.protocol.messages import Adopt, Epoch, MeetRequest, Prefer, Rejected, RequestFailed
from mallob_py.simulation.cluster import Cluster

_SETTINGS = [
    {"matcher": matcher, "random_hops": hops, "balancing": balancing}
    for matcher in Matching
    for hops in (0, 3)
    for balancing in Balancing
]


def root_of(cluster: Cluster, job: int) -> int:
    (rank,) = {rank for (rank, _), process in cluster.processes.items() if process.job == job}
    return rank


def answer_of(cluster: Cluster, job: int) -> None:
    """Let the job's root find the result."""
    answer(cluster, *cluster.running(job)[0])


@pytest.mark.parametrize("settings", _SETTINGS)
def test_a_root_goes_where_it_had_better_be_if_that_pe_is_idle(settings: dict[str, object]) -> None:
    for seed in range(10):
        cluster = lively(8, seed, 3, **settings)
        near = next(rank for rank in range(8) if is_idle(cluster, rank))
        cluster.submit(1, seed % 8, max_demand=1, near=near)
        rest(cluster)
        assert root_of(cluster, 1) == near
        answer_of(cluster, 1)
        rest(cluster)
        assert cluster.ended[1].stats.root == near


@pytest.mark.parametrize("settings", _SETTINGS)
def test_a_busy_pe_passes_the_root_on(settings: dict[str, object]) -> None:
    for seed in range(10):
        cluster = cluster_of(8, seed, **settings)
        cluster.submit(51, 0, max_demand=1)
        rest(cluster)
        busy = root_of(cluster, 51)
        cluster.submit(1, 5, max_demand=1, near=busy)
        rest(cluster)
        assert root_of(cluster, 1) != busy
        assert root_of(cluster, 51) == busy


@told_with_luck
def test_a_pe_that_is_promised_to_somebody_else_passes_the_root_on(seed: int) -> None:
    cluster = lively(8, seed, 3)
    near = seed % 8
    late = hold_kind(cluster, Adopt, dest=near)
    clients = [rank for rank in range(8) if not is_idle(cluster, rank)]
    needs(bool(clients))
    cluster.submit(2, clients[0], max_demand=1)
    play(cluster)
    needs(only(late, Adopt))
    cluster.submit(1, clients[0], max_demand=1, near=near)
    play(cluster)
    assert is_idle(cluster, near)
    assert root_of(cluster, 1) != near
    late.release()
    rest(cluster)
    assert root_of(cluster, 2) == near


@pytest.mark.parametrize("settings", _SETTINGS)
def test_chains_of_revisions_end_one_after_the_other_whatever_else_goes_on(
    settings: dict[str, object],
) -> None:
    """Each revision follows the reply to the revision before; other jobs fill all PEs, crash, come and go."""
    for seed in range(8):
        cluster = cluster_of(1 + seed, seed, **settings)
        last = {100: 100, 200: 200}

        def go_on(ended: object, cluster: Cluster = cluster, last: dict[int, int] = last) -> None:
            job: int = ended.job  # type: ignore[attr-defined]
            chain = job - job % 100
            if chain in last and job < chain + 20:
                last[chain] = job + 1
                root = cluster.ended[job].stats.root
                submit = partial(cluster.submit, job + 1, chain // 100 % cluster.size, near=root)
                cluster.at(cluster.now, submit)

        cluster.on_ended = go_on
        for number, filler in enumerate((1, 2, 3)):
            cluster.at(0.01 * number, partial(cluster.submit, filler, 0, priority=0.1 + number))
        for chain in last:
            cluster.submit(chain, chain // 100 % cluster.size)
        for turn in range(400):
            if all(job % 100 == 20 and job in cluster.ended for job in last.values()):
                break
            play(cluster, for_s=0.02)
            for job in last.values():
                if turn % 7 == 3 and job not in cluster.ended:
                    cluster.interrupt(job)
                elif cluster.running(job):
                    answer_of(cluster, job)
        assert len([job for job in cluster.ended if job >= 100]) == 42
        rest(cluster)


@told_with_luck
def test_a_preference_that_arrives_after_the_end_of_its_job_leaves_nothing_behind(seed: int) -> None:
    cluster = lively(8, seed, 0)
    client, near = seed % 8, (seed + 3) % 8
    needs(is_idle(cluster, near))
    late = hold_kind(cluster, Prefer)
    cluster.submit(1, client, near=near)
    play(cluster)
    needs(only(late, Prefer))
    cluster.interrupt(1)
    play(cluster)
    rejections = watch(cluster, Rejected)
    late.release()
    rest(cluster)
    assert cluster.ended[1].outcome is Outcome.INTERRUPTED
    assert [dest for _, dest, _ in rejections] == [near]
    assert is_idle(cluster, near)
    assert not processes_of(cluster, 1)


def test_a_preference_from_a_past_epoch_goes_back_and_is_asked_anew_without_it() -> None:
    cluster = cluster_of(8)
    cluster.submit(51, 3, max_demand=1)
    rest(cluster)
    busy = root_of(cluster, 51)
    late = hold_kind(cluster, Prefer)
    cluster.submit(1, 5, max_demand=1, near=busy)
    play(cluster)
    assert only(late, Prefer)
    cluster.submit(52, 2, max_demand=1)
    play(cluster)
    failures = watch(cluster, RequestFailed)
    preferences = watch(cluster, Prefer)
    late.release()
    rest(cluster)
    assert [dest for _, dest, _ in failures] == [5]
    assert not preferences[1:]
    assert len(processes_of(cluster, 1)) == 1


@told_with_luck
def test_a_preference_for_a_root_that_is_no_longer_deserved_goes_back(seed: int) -> None:
    """The preferred PE knows of a job that takes the last seat; the client does not yet."""
    cluster = cluster_of(8, seed)
    for job in range(51, 58):
        cluster.submit(job, max_demand=1)
    rest(cluster)
    (near,) = (rank for rank in range(8) if is_idle(cluster, rank))
    client, other = (near + 1 + seed % 7) % 8, (near + 1 + seed // 7 % 7) % 8
    needs(client != other and not tree_children(cluster, client))
    late, other_late = hold_kind(cluster, Prefer, job=1), hold_kind(cluster, Prefer, job=2)
    cluster.submit(1, client, max_demand=1, near=near)
    play(cluster, 1.0)
    late_epoch = hold_kind(cluster, Epoch, dest=client)
    cluster.submit(2, other, max_demand=1, priority=9.0, near=near)
    play(cluster)
    needs(only(late, Prefer) and only(other_late, Prefer) and only(late_epoch, Epoch))
    needs((volume(cluster, 1, near), volume(cluster, 1, client)) == (0, 1))
    failures = watch(cluster, RequestFailed)
    late.release()
    play(cluster)
    assert [(source, dest) for source, dest, _ in failures] == [(near, client)]
    late_epoch.release()
    other_late.release()
    rest(cluster)
    assert root_of(cluster, 2) == near
    cluster.interrupt(51)
    rest(cluster)
    assert len(cluster.running(1)) == 1


@told_with_luck
def test_a_preference_from_a_coming_epoch_waits_for_it(seed: int) -> None:
    """The preferred PE becomes free only by the epoch in which it is asked."""
    cluster = cluster_of(4, seed)
    cluster.submit(51, seed % 4)
    rest(cluster)
    (last,) = (rank for (rank, _), process in cluster.processes.items() if process.index == 3)
    client = (last + 1 + seed // 4 % 3) % 4
    late = cluster.hold(lambda _, dest, message: isinstance(message, Epoch) and dest == last)
    cluster.submit(1, client, max_demand=1, near=last)
    play(cluster)
    needs(only(late, Epoch))
    assert not processes_of(cluster, 1)
    matched = watch(cluster, MeetRequest)
    late.release()
    rest(cluster)
    assert root_of(cluster, 1) == last
    assert not [request for _, _, request in matched if request.request.job == 1]
