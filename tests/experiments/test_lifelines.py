"""Bags of tasks on many workers in virtual time: who asks whom, and what it costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from mallob_py.experiments.lifelines import LIFELINES, Case, SampledTree, measure, run


def nodes_of(depth: int) -> int:
    bag = SampledTree(depth).first_bag()
    while not bag.is_empty():
        bag.process(1 << 20)
    return bag.take_result()


@pytest.mark.parametrize("lifelines", LIFELINES)
def test_each_node_is_counted_once_whoever_is_asked(lifelines: str) -> None:
    assert measure(Case(24, 12, lifelines)).nodes == nodes_of(12)


def test_workers_are_busy_most_of_the_time_if_there_is_much_to_do() -> None:
    shared = measure(Case(16, 14))
    assert shared.efficiency > 0.9
    assert shared.before_first < 0.02
    assert 0 < shared.taking < 0.02
    assert 0 < shared.searching < 0.1


def test_no_worker_is_asked_so_often_that_others_wait_for_it() -> None:
    """A message keeps a rank busy for 45 us, so one can deal with 22,000 in a second."""
    small, large = measure(Case(16, 13)), measure(Case(128, 14))
    assert small.hottest_messages_per_s < 4000
    assert large.hottest_messages_per_s < 4000


def test_the_table_has_a_line_for_each_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, (Case(4, 10), Case(4, 10, "random")))
    printed = capsys.readouterr().out
    assert "job tree" in printed
    assert "random" in printed
