"""After the last change, a cluster comes to rest with fair volumes within a bounded number of message delays.

All messages take one unit of time and nothing else takes any, so time counts hops on the
longest chain of messages. A chain is some collectives (events up, epoch down; supplies up,
grants down) for each layer of the deepest job tree: O(log m) of O(log m) hops at worst.
"""

import math
import random
from typing import Any

import pytest

from mallob_py import trees
from mallob_py.protocol.config import Balancing, Config, Matching, Reuse
from mallob_py.simulation.check import check_invariants
from mallob_py.simulation.cluster import Cluster
from mallob_py.simulation.delays import RandomDelays

_HOP_S = 0.001
#: bound on hops per bit of the size; measured over all sizes and kinds of reuse below: at most 12.3
_HOPS_PER_BIT = 25
#: bound on hops per bit if all PEs compute the volumes together; measured: at most 23.3
_HOPS_PER_BIT_TOGETHER = 50
_QUIET_HOPS = 10
_HOPS_MAX = 2000


def _cluster(size: int, seed: int, **settings: Any) -> Cluster:
    return Cluster(
        size,
        seed,
        Config(
            balancing_delay_s=0.0,
            matching_delay_s=0.0,
            reuse_patience_s=4 * _HOP_S,
            growth_delay_s=0.0,
            turnover_max_s=0.0,
            slice_s=1e6,
            first_slice_s=1e6,
            turn_patience_s=4 * _HOP_S,
            **settings,
        ),
        RandomDelays(seed, message_s=(_HOP_S, _HOP_S), process_start_s=(0.0, 0.0), fetch_s=(0.0, 0.0)),
    )


def _hops_to_rest(cluster: Cluster) -> int:
    """Return the hops until the last message has arrived; the volumes must then be fair."""
    hops = last = 0
    while hops - last < _QUIET_HOPS:
        sent = cluster.messages_sent
        cluster.run(until_s=cluster.now + _HOP_S)
        hops += 1
        if cluster.messages_sent != sent or not cluster.is_quiescent():
            last = hops
        assert hops < _HOPS_MAX, f"no rest (seed {cluster.seed}, m {cluster.size})"
    check_invariants(cluster)
    return last


def hops_of_a_life(size: int, seed: int, **settings: Any) -> int:
    """Return the most hops that any of some sudden changes took."""
    choose = random.Random(f"liveness {size} {seed}")
    cluster = _cluster(size, seed, **settings)
    hops = 0
    live: list[int] = []
    for step in range(6):
        for number in range(choose.choice((1, 2, 5, 2 * size))):
            job = 1000 * step + number
            live.append(job)
            cluster.submit(
                job,
                choose.randrange(size),
                priority=choose.choice((0.5, 1.0, 3.0)),
                max_demand=choose.choice((0, 0, 1, 3)),
            )
        for _ in range(choose.choice((0, 0, 1, len(live) // 2, len(live) - 1))):
            cluster.interrupt(live.pop(choose.randrange(len(live))))
        hops = max(hops, _hops_to_rest(cluster))
    return hops


@pytest.mark.parametrize("reuse", Reuse)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 16, 33, 64])
def test_a_cluster_is_fair_again_a_few_rounds_after_the_last_news(size: int, reuse: Reuse) -> None:
    hops = max(hops_of_a_life(size, seed, reuse=reuse) for seed in range(3))
    assert hops <= _HOPS_PER_BIT * math.log2(size + 1)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 16, 33, 64])
def test_with_a_routing_tree_it_takes_as_few_rounds(size: int) -> None:
    hops = max(hops_of_a_life(size, seed, matcher=Matching.ROUTING_TREE) for seed in range(3))
    assert hops <= _HOPS_PER_BIT * math.log2(size + 1)


@pytest.mark.parametrize("children", [1, 3, 5])
def test_a_cluster_whose_trees_have_another_number_of_children_is_fair_as_well(
    children: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`trees.py` alone defines the shape of trees; with one child per worker, each layer is one worker."""
    monkeypatch.setattr(trees, "CHILDREN", children)
    for size in (2, 7, 16):
        layers = size if children == 1 else math.log2(size + 1)
        assert max(hops_of_a_life(size, seed) for seed in range(2)) <= _HOPS_PER_BIT * layers


@pytest.mark.parametrize("random_hops", [1, 10, -1])
def test_whatever_the_walks_one_job_gets_all_pes_and_then_nothing_moves(random_hops: int) -> None:
    cluster = _cluster(64, 0, matcher=Matching.ROUTING_TREE, random_hops=random_hops)
    _hops_to_rest(cluster)
    cluster.submit(1)
    _hops_to_rest(cluster)
    assert len(cluster.running(1)) == 64


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 16, 33, 64])
def test_so_is_one_whose_volumes_are_computed_together(size: int) -> None:
    hops = max(hops_of_a_life(size, seed, balancing=Balancing.DISTRIBUTED) for seed in range(3))
    assert hops <= _HOPS_PER_BIT_TOGETHER * math.log2(size + 1)


def test_one_job_on_an_idle_cluster_has_all_pes_after_a_round_per_layer_at_most() -> None:
    hops = {}
    for size in (8, 64, 256):
        cluster = _cluster(size, 0)
        _hops_to_rest(cluster)
        cluster.submit(1)
        hops[size] = _hops_to_rest(cluster)
    assert hops[256] <= 2 * hops[8] + 16, hops
