"""Workers' CPU time is reported often at first, then ever more seldom, and completely when they stop."""

import math
from pathlib import Path
from typing import Any

from mallob_py.protocol.effects import ResumeWorker, StartWorker, SuspendWorker, TerminateWorker
from mallob_py.protocol.messages import Description
from mallob_py.protocol.stimuli import WorkerAnswered, WorkerCrashed, WorkerLeft
from mallob_py.runtime.workers.hosted import HostedWorkers

JOB, WORKER = 7, 3


class FakePool:
    """A pool whose processes use one second of CPU time per second."""

    def __init__(self) -> None:
        self.used_s: dict[tuple[int, int], float] = {}
        self.is_alone = False

    def start(self, key: tuple[int, int], *others: Any) -> None:
        self.used_s[key] = 0.0
        self.is_alone = others[-1]

    def suspend(self, key: tuple[int, int]) -> None: ...

    def resume(self, key: tuple[int, int], *_: Any) -> None: ...

    def terminate(self, key: tuple[int, int]) -> None: ...

    def cpu_seconds_of(self, key: tuple[int, int]) -> float | None:
        return self.used_s.get(key)


class Host:
    def __init__(self, pes: int = 4) -> None:
        self.now = 0.0
        self.pool = FakePool()
        self.workers = HostedWorkers(self.pool, 2, lambda job: Path(str(job)), lambda: pes)  # type: ignore[arg-type]
        self.told_s: list[float] = []

    def start(self) -> None:
        self.workers.execute(1, StartWorker(WORKER, JOB, 0, 1, Description(0, b"")), self.now)

    def run(self, until_s: float) -> int:
        """Measure whenever a measurement is due; return the number of measurements."""
        looks = 0
        while self.workers.cpu_look_at_s <= until_s:
            self.now = self.workers.cpu_look_at_s
            self.use(self.now)
            for slot, used in self.workers.cpu_news(self.now):
                assert (slot, used.worker) == (1, WORKER)
                self.told_s.append(used.cpu_s)
            looks += 1
        self.now = until_s
        return looks

    def use(self, used_s: float) -> None:
        self.pool.used_s = dict.fromkeys(self.pool.used_s, used_s)


def test_what_is_told_lags_by_a_fiftieth_at_most_and_gets_rare() -> None:
    host = Host()
    host.start()
    looks = host.run(10_000.0)
    assert 0.98 * 10_000 - 0.1 <= sum(host.told_s) <= 10_000
    assert looks < 500
    assert host.told_s[0] <= 0.2


def test_thousands_of_pes_tell_no_more_than_a_thousand_times_a_second() -> None:
    host = Host(pes=5000)
    host.start()
    host.run(20.0)
    assert min(host.told_s) >= 4.9


def test_a_worker_hears_whether_there_is_another_pe() -> None:
    for pes in (1, 2):
        host = Host(pes)
        host.start()
        assert host.pool.is_alone == (pes == 1)


def test_a_suspended_worker_is_looked_at_once_more() -> None:
    host = Host()
    host.start()
    host.run(5.0)
    host.use(5.05)
    host.workers.execute(1, SuspendWorker(WORKER), host.now)
    while host.workers.cpu_look_at_s < math.inf:
        host.now = host.workers.cpu_look_at_s
        host.told_s += [used.cpu_s for _, used in host.workers.cpu_news(host.now)]
    assert host.now < 5.2
    assert math.isclose(sum(host.told_s), 5.05)
    host.workers.execute(1, ResumeWorker(WORKER, 0, 1), host.now)
    assert host.workers.cpu_look_at_s < math.inf


def test_a_result_tells_the_rest() -> None:
    host = Host()
    host.start()
    host.run(5.0)
    slot, answered = host.workers.hear(WorkerAnswered(WORKER * 2 + 1, b"yes", 7, 5.3))
    assert isinstance(answered, WorkerAnswered)
    assert (slot, answered.worker, answered.body, answered.peak_memory_bytes) == (1, WORKER, b"yes", 7)
    assert math.isclose(sum(host.told_s) + answered.cpu_s, 5.3)
    assert host.workers.hear(WorkerCrashed(WORKER * 2 + 1, "died", 5.3)) == (
        1,
        WorkerCrashed(WORKER, "died", 0.0),
    )


def test_who_has_left_tells_the_rest_and_is_forgotten() -> None:
    host = Host()
    host.start()
    host.run(5.0)
    slot, left = host.workers.hear(WorkerLeft(WORKER * 2 + 1, 5.3))
    assert isinstance(left, WorkerLeft)
    assert (slot, left.worker) == (1, WORKER)
    assert math.isclose(sum(host.told_s) + left.cpu_s, 5.3)
    assert host.workers.jobs() == set()


def test_nothing_is_told_of_a_worker_that_is_gone() -> None:
    host = Host()
    host.start()
    host.workers.execute(1, TerminateWorker(WORKER), host.now)
    assert host.workers.hear(WorkerCrashed(WORKER * 2 + 1, "died", 9.0)) == (
        1,
        WorkerCrashed(WORKER, "died", 0.0),
    )
    host.now = 1.0
    assert host.workers.cpu_news(1.0) == []
    assert host.workers.cpu_look_at_s == math.inf
