"""How a job grows from 1 to m workers, counted in virtual time."""

import math
from itertools import pairwise
from pathlib import Path

import pytest

from mallob_py.experiments.growth import WAYS, Way, grow, measure, run
from mallob_py.experiments.network import HOPS

_BULK, _LAYERS, _TREE, _WALK = WAYS


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_all_ways_lead_to_a_whole_job_tree(way: Way) -> None:
    *_, cluster = grow(way, 33, HOPS, 0.0)
    assert sorted(pe.workers.active.index for pe in cluster.pes if pe.workers.active) == list(range(33))


def test_with_bulk_requests_hops_grow_by_a_constant_per_layer_of_the_job_tree() -> None:
    hops = [measure(_BULK, 2**layers, 0.0).hops for layers in (4, 5, 6, 7, 8, 9)]
    assert max(after - before for before, after in pairwise(hops)) <= 4


@pytest.mark.parametrize("way", [_LAYERS, _TREE, _WALK], ids=lambda way: way.name)
def test_layer_by_layer_growth_takes_more_hops_and_messages_than_bulk_requests(way: Way) -> None:
    bulk, layers = measure(_BULK, 256, 0.0), measure(way, 256, 0.0)
    assert layers.hops > 2 * bulk.hops
    assert layers.messages_per_worker > bulk.messages_per_worker


def test_with_bulk_requests_no_pe_handles_more_messages_in_a_larger_system() -> None:
    small, large = (measure(_BULK, size, 0.0003).hottest_messages for size in (64, 1024))
    assert large <= small + 2 * math.log2(1024 / 64)


def test_the_table_names_all_ways(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run(tmp_path, sizes=(4,))
    printed = capsys.readouterr().out
    assert all(way.name in printed for way in WAYS)
