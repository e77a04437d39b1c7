"""Counts of the system calls of a no-op job. Unlike times, counts are the same on any machine, and show if
the work has doubled.
"""

import shutil
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest
from running import needs_mpiexec

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts/bench"))

from compared import Tree, drop_at_once, latencies, noop, warm_service
from footprint import SystemCalls

pytestmark = [needs_mpiexec, pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")]

_JOBS = 200
#: bounds of system calls per no-op over all processes of four ranks: about 1.6 times the counts of a quiet
#: machine, and above the counts of a machine with 17 other busy processes
_OF_A_BURST = {"calls": 120, "epoll_wait": 10, "openat": 6.5, "read": 7.5, "newfstatat": 12.5, "sendto": 12}
_OF_ONE_ALONE = {"calls": 150, "epoll_wait": 17, "openat": 7, "read": 8, "newfstatat": 14, "sendto": 14}
#: greatest number of rounds, of which the best counts: on a busy machine, jobs take longer and cause more
#: messages
_ROUNDS = 4
#: time without jobs, in which the periodic system calls of the ranks are counted
_IDLE_S = 2.0


def _beyond(counted: list[dict[str, float]], bounds: Mapping[str, float]) -> dict[str, float]:
    least = {name: min(each[name] for each in counted) for name in bounds}
    return {name: number for name, number in least.items() if number > bounds[name]}


def test_a_no_op_makes_few_system_calls() -> None:
    bursts, alone = list[dict[str, float]](), list[dict[str, float]]()
    with warm_service(Tree("this", Path(sys.executable)), 4) as service:
        with SystemCalls(service.process.pid) as calls:
            time.sleep(_IDLE_S)
        idle = calls.per(_IDLE_S)

        def counted(jobs: int, run: Callable[[], object]) -> dict[str, float]:
            with SystemCalls(service.process.pid) as calls:
                begin_s = time.monotonic()
                run()
                took_s = time.monotonic() - begin_s
            return {name: number - took_s / jobs * idle[name] for name, number in calls.per(jobs).items()}

        for number in range(_ROUNDS):
            drop_at_once(service, f"warm-{number}", 50)
            bursts.append(counted(_JOBS, partial(drop_at_once, service, f"burst-{number}", _JOBS)))
            alone.append(counted(20, partial(latencies, service, noop, f"alone-{number}", 20)))
            if not _beyond(bursts, _OF_A_BURST) and not _beyond(alone, _OF_ONE_ALONE):
                break
    assert _beyond(bursts, _OF_A_BURST) == {}, "calls per no-op of a burst"
    assert _beyond(alone, _OF_ONE_ALONE) == {}, "calls per no-op that comes alone"
