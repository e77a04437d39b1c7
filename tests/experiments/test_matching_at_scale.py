"""Bounds on the matchers' hops and messages in large systems, in virtual time."""

import math
import random

import pytest

from mallob_py.experiments.matching import (
    CONTENDERS,
    Case,
    Contender,
    MatchingRow,
    measure,
    measure_all,
    placement,
    table,
)
from mallob_py.experiments.network import HOPS, MatcherNetwork
from mallob_py.protocol.config import Config

_PREFIX_SUM, _ROUTING_TREE, _WALK_100, _ENDLESS_WALK = CONTENDERS
_DELAY_S = 0.0003


def _row(contender: Contender, case: Case, size: int) -> MatchingRow:
    return measure(contender, case, size, _DELAY_S)


@pytest.mark.parametrize("case", Case)
@pytest.mark.parametrize("size", [64, 1024])
def test_prefix_sums_take_two_ways_through_the_tree_and_three_hops(case: Case, size: int) -> None:
    """The hops lead to the root and back, to the PE where request and token meet, and to the idle PE; at most
    one more round follows.
    """
    assert _row(_PREFIX_SUM, case, size).hops_max <= 4 * math.log2(size) + 3


@pytest.mark.parametrize("case", [Case.HALF_SCATTERED, Case.HALF_APART, Case.ALL_FROM_HALF])
def test_with_prefix_sums_no_pe_handles_more_than_a_few_messages_per_level_of_the_tree(case: Case) -> None:
    small, large = (_row(_PREFIX_SUM, case, size) for size in (128, 2048))
    assert large.hottest_messages <= 10 * math.log2(2048)
    assert large.hottest_messages <= 3 * small.hottest_messages


def test_all_requests_for_the_other_half_go_through_the_root_of_the_routing_tree() -> None:
    row = _row(_ROUTING_TREE, Case.HALF_APART, 1024)
    assert row.hottest_messages >= row.requests
    assert row.latency_max_us > _row(_PREFIX_SUM, Case.HALF_APART, 1024).latency_max_us


def test_one_request_costs_the_routing_tree_fewer_hops_than_prefix_sums() -> None:
    tree, sums = (_row(contender, Case.ONE, 1024) for contender in (_ROUTING_TREE, _PREFIX_SUM))
    assert tree.hops_mean < sums.hops_mean
    assert tree.hops_max <= 2 * math.log2(1024)


def test_the_last_of_many_random_walks_is_late_unless_the_tree_ends_it() -> None:
    endless, ended = (_row(contender, Case.HALF_APART, 1024) for contender in (_ENDLESS_WALK, _WALK_100))
    assert endless.hops_max > 10 * endless.hops_mean
    assert ended.hops_max <= 100 + 2 * math.log2(1024) + 2 < endless.hops_max


def test_a_random_walk_to_the_only_idle_pe_takes_about_m_hops() -> None:
    """40 % are three standard deviations of the mean of 60 geometrically distributed numbers."""
    network = MatcherNetwork(64, _ENDLESS_WALK.config(0.0), HOPS)
    choose = random.Random(1)
    hops = [network.match(*placement(Case.ONE, 64, choose)).latencies_s[0] for _ in range(60)]
    assert 0.6 * 64 < sum(hops) / 60 < 1.4 * 64


@pytest.mark.parametrize("contender", CONTENDERS, ids=lambda contender: contender.name)
@pytest.mark.parametrize("case", Case)
def test_a_network_can_be_used_again_and_counts_each_trial_by_itself(
    contender: Contender, case: Case
) -> None:
    network = MatcherNetwork(32, contender.config(0.0), HOPS)
    choose = random.Random(1)
    for _ in range(3):
        askers, idle = placement(case, 32, choose)
        usage = network.match(askers, idle)
        assert len(usage.latencies_s) == len(askers)
        assert all(matcher.is_at_rest() and not matcher.carried() for matcher in network.matchers)
        assert usage.hottest_messages <= 2 * usage.messages


def test_a_delay_trades_latency_for_messages() -> None:
    eager, patient = (measure(_PREFIX_SUM, Case.HALF_SCATTERED, 256, delay_s) for delay_s in (0.0, _DELAY_S))
    assert eager.messages_per_request > patient.messages_per_request
    assert eager.hops_max == patient.hops_max, "hops are counted without delays"


def test_the_table_has_a_line_for_each_row() -> None:
    rows = list(measure_all(sizes=(8,), cases=(Case.ONE,), delay_s=Config().matching_delay_s))
    assert [row.contender for row in rows] == [contender.name for contender in CONTENDERS]
    lines = table("a case", rows).rows
    assert len(lines) == len(rows)
    assert "routing tree" in lines[1]
