"""Pools of worker processes that end with their test."""

from collections.abc import Iterator

import pytest
from pool_rank import APPS, HERE, Make, Rank
from waiting import DEADLINE_S

from mallob_py.runtime.workers.links import ForkServer, WorkerLimits
from mallob_py.runtime.workers.pool import TAKE_UP_S, WorkerPool
from mallob_py.runtime.workers.supply import PoolOptions


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setenv("MALLOB_PY_APPS", APPS)
    monkeypatch.syspath_prepend(str(HERE))
    ranks: list[Rank] = []

    def make_rank(
        options: PoolOptions | None = None, limits: WorkerLimits | None = None, preload: tuple[str, ...] = ()
    ) -> Rank:
        server = ForkServer.start(preload, limits)
        ranks.append(Rank(WorkerPool(server, options), server))
        return ranks[-1]

    yield make_rank
    for rank in ranks:
        rank.pool.close()


@pytest.fixture
def rank(make: Make) -> Rank:
    return make()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for processes that a busy machine delays; leave a process stopped that stopped itself."""
    monkeypatch.setattr("mallob_py.runtime.workers.pool.TAKE_UP_S", DEADLINE_S)
    monkeypatch.setattr("mallob_py.runtime.workers.pool._STOPPED_S", DEADLINE_S)


@pytest.fixture
def impatient(patient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for processes only as long as a service does."""
    monkeypatch.setattr("mallob_py.runtime.workers.pool.TAKE_UP_S", TAKE_UP_S)
