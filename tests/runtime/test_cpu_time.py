"""CPU time of a process is what it used, what its children used, and what these were waited for with."""

from __future__ import annotations

import os
import time

from test_memory import child_after

from mallob_py.runtime.cpu_time import cpu_seconds_of, own_cpu_seconds

WORK_S = 0.2


def work() -> None:
    """Use so much CPU time, however long it takes."""
    end_s = time.process_time() + WORK_S
    while time.process_time() < end_s:
        pass


def work_in_a_child() -> None:
    if (pid := os.fork()) == 0:
        work()
        os._exit(0)
    os.waitpid(pid, 0)


def test_a_process_that_waits_uses_nothing() -> None:
    with child_after(lambda: True) as pid:
        assert cpu_seconds_of(pid) < WORK_S


def test_children_count_alive_and_dead() -> None:
    def work_everywhere() -> object:
        work()
        work_in_a_child()
        return child_after(lambda: work() or True).__enter__()

    with child_after(work_everywhere) as pid:
        assert cpu_seconds_of(pid) >= 3 * WORK_S - 0.05


def test_a_process_knows_its_own() -> None:
    before_s = own_cpu_seconds()
    work()
    work_in_a_child()
    with child_after(lambda: work() or True):
        assert own_cpu_seconds() - before_s >= 3 * WORK_S - 0.05


def test_of_a_process_that_is_gone_nothing_is_known() -> None:
    with child_after(lambda: True) as pid:
        pass
    assert cpu_seconds_of(pid) == 0.0
