"""With "auto", each rank gets its share of its host's cores. Also: how long joining ranks wait."""

import errno
import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from rank_parts import Parts

from mallob_py.protocol.config import Config
from mallob_py.runtime import boot
from mallob_py.runtime.boot import CapacityOffer, WorldSettings, capacities_of, watch_memory
from mallob_py.runtime.memory import Reserve
from mallob_py.runtime.world.failure_detector import patience_of


def auto(cores: range, host: int = 0, threads: int = 1) -> CapacityOffer:
    return CapacityOffer(None, threads, host, frozenset(cores))


def test_unbound_ranks_share_the_cores_of_their_host() -> None:
    assert capacities_of([auto(range(12))] * 3) == (4, 4, 4)
    assert capacities_of([auto(range(7))] * 7) == (1,) * 7


def test_bound_ranks_have_their_cores_to_themselves() -> None:
    assert capacities_of([auto(range(0, 8)), auto(range(8, 12))]) == (8, 4)


def test_cores_of_another_host_are_other_cores() -> None:
    assert capacities_of([auto(range(12), host=0), auto(range(4), host=1)]) == (12, 4)


def test_workers_of_several_threads_need_as_many_cores() -> None:
    assert capacities_of([auto(range(12), threads=4)] * 2) == (1, 1)
    assert capacities_of([auto(range(12), threads=3)]) == (4,)


def test_a_rank_without_a_whole_core_hosts_one_pe() -> None:
    assert capacities_of([auto(range(2))] * 5) == (1,) * 5


def test_a_number_that_was_asked_for_is_kept_beside_others() -> None:
    told = CapacityOffer(5, 1, 0, frozenset(range(4)))
    assert capacities_of([told, auto(range(4))]) == (5, 2)


def test_a_full_shared_memory_prevents_the_memory_watch_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", fill)
    settings = WorldSettings(config=Config(), memory_reserve=Reserve(1))
    problem = watch_memory(settings, Parts(tmp_path).rank)
    assert problem == f"the memory watch cannot write {tmp_path / 'memory'}: No space left on device"


class Joins(Exception):
    pass


@pytest.mark.parametrize("timeout_s", [None, 7.5])
def test_a_rank_that_joins_waits_as_long_as_the_others_for_one_that_hangs(
    timeout_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator waits for the hanging rank; a less patient new rank would count it as lost."""
    patience: list[float] = []

    def join(invitation: Any, pes: int | None, patience_s: float) -> None:
        patience.append(patience_s)
        raise Joins

    nothing: Any = None
    monkeypatch.setattr(boot, "read_invitation", lambda: nothing)
    monkeypatch.setattr(boot, "join", join)
    settings = WorldSettings(config=Config(), rank_timeout_s=timeout_s)
    with pytest.raises(Joins):
        boot.run_newcomer(settings, nothing, nothing, lambda: 0, nothing, nothing)
    assert patience == [patience_of(timeout_s)]


def test_a_newcomer_that_cannot_log_stimuli_opens_its_desk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its desk, the rank could not take over the jobs of a lost client."""

    def end(status: int) -> None:
        raise Joins

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    replaced = ("read_invitation", "Node", "Origin", "WorkerPool", "PoolOptions", "_make_rank", "StimulusLog")
    for name in replaced:
        monkeypatch.setattr(boot, name, mock.MagicMock())
    monkeypatch.setattr(boot, "range", lambda *_: [0], raising=False)
    monkeypatch.setattr(boot, "join", lambda *_: (mock.MagicMock(), mock.MagicMock()))
    monkeypatch.setattr(boot.StimulusLog, "side_effect", refuse)
    monkeypatch.setattr(os, "_exit", end)
    make_desk = mock.Mock(side_effect=Joins)
    settings = WorldSettings(config=Config(), stimuli_dir="stimuli")
    with pytest.raises(Joins):
        boot.run_newcomer(settings, mock.Mock(), make_desk, lambda: 0, mock.Mock(), mock.Mock())
    make_desk.assert_called_once()
