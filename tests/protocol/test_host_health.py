"""A host that fails to start processes rests, longer each time, until it runs a process."""

from mallob_py.protocol.config import Config
from mallob_py.protocol.host_health import Fault, HostHealth

CONFIG = Config(rest_s=0.25, rest_max_s=60.0, doubt_rest_s=0.05)


def test_each_failure_after_a_rest_doubles_the_rest_up_to_a_bound() -> None:
    health, now, rests = HostHealth(CONFIG), 100.0, []
    for _ in range(12):
        until_s = health.blame(Fault.HOST, "fork: Resource temporarily unavailable", now)
        rests.append(until_s - now)
        now = until_s
    assert rests[:4] == [0.25, 0.5, 1.0, 2.0]
    assert rests[-1] == 60.0
    assert health.failures == 12
    for _ in range(2000):
        now = health.blame(Fault.HOST, "fork", now)


def test_failures_during_a_rest_are_one() -> None:
    health = HostHealth(CONFIG)
    assert {health.blame(Fault.HOST, "fork", 10.0 + late_s) for late_s in (0.0, 0.1, 0.2)} == {10.25}
    assert health.failures == 1
    assert health.trouble(10.2) == "gives workers no processes: fork"


def test_after_its_rest_nobody_says_that_a_host_fails_still() -> None:
    health = HostHealth(CONFIG)
    health.blame(Fault.HOST, "fork", 10.0)
    told = "gave the last worker no process, and is tried again with the next one: fork"
    assert health.trouble(10.25) == told
    assert health.trouble(1000.0) == told


def test_a_process_that_runs_clears_the_host_of_all_failures() -> None:
    health = HostHealth(CONFIG)
    for now in (0.0, 1.0, 2.0):
        health.blame(Fault.HOST, "fork", now)
    assert health.trouble(2.0) == "gives workers no processes, 3 times in a row: fork"
    health.clear()
    assert health.trouble(3.0) is None
    assert health.blame(Fault.HOST, "fork", 2.1) == 2.35


def test_who_may_be_innocent_rests_for_a_moment_and_is_not_accused() -> None:
    health = HostHealth(CONFIG)
    for now in (0.0, 1.0, 2.0):
        assert health.blame(Fault.UNCLEAR, "it died", now) == now + 0.05
    assert health.trouble(3.0) is None
