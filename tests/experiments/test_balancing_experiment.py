"""The experiment that compares local with distributed balancing: its counts, its model, its table."""

import msgspec
import pytest

from mallob_py.experiments.balancing import crossover, crossovers, measure


def test_counts_follow_from_rounds_and_the_depth_of_the_tree() -> None:
    (row,) = measure([(15, 9)])
    assert row.rounds >= 2
    assert row.span_hops == 3 * (2 + 2 * row.rounds)
    assert row.messages == 14 * (2 * row.rounds + 1)
    assert 0 < row.longest_bytes < row.total_bytes < row.messages * row.longest_bytes


def test_a_slower_network_costs_the_distributed_way_more() -> None:
    (fast,) = measure([(31, 20)], hop_s=0.0)
    (slow,) = measure([(31, 20)], hop_s=1.0)
    assert slow.rounds == fast.rounds
    assert slow.local_latency_s == pytest.approx(8.0, abs=0.5)
    assert slow.distributed_latency_s == pytest.approx(slow.span_hops, abs=0.5)


def test_more_jobs_than_pes_and_a_single_pe_can_be_measured() -> None:
    rows = measure([(1, 1), (1, 5), (4, 40)])
    assert [row.span_hops for row in rows[:2]] == [0, 0]
    assert rows[2].rounds >= 1


def test_the_crossover_lies_where_the_latencies_are_equal() -> None:
    (row,) = measure([(3, 2)])
    rows = [
        msgspec.structs.replace(row, pes=9, jobs=jobs, distributed_latency_s=1.0, local_latency_s=latency_s)
        for jobs, latency_s in ((10, 0.1), (100, 0.5), (10_000, 2.0))
    ]
    assert crossover(rows, 9) == 1000
    assert crossover(rows[:2], 9) is None
    assert "9 PEs: distributed is faster from about 1000 jobs on" in crossovers(rows)
