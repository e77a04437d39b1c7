from __future__ import annotations

import os

import pytest

from mallob_py.runtime.world import guard, mpi

NAMES = ("UCX_TLS", "UCX_MEM_MMAP_HOOK_MODE")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[list[str | None]]:
    """Return a list to which each initialisation of MPI adds the environment's values."""
    found: list[list[str | None]] = []

    class World:
        def allgather(self, value: bool) -> list[bool]:
            return [value]

    def join() -> World:
        found.append([os.environ.get(name) for name in NAMES])
        return World()

    monkeypatch.setattr(mpi, "_join_world", join)
    monkeypatch.setattr(mpi, "is_of_wheel", lambda: True)
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    return found


def test_only_a_world_of_one_host_has_the_quick_network(seen: list[list[str | None]]) -> None:
    mpi.start_mpi()
    mpi.start_mpi(within_a_host=True)
    assert seen == [[None] * 2, ["sysv", "none"]]


def test_what_is_started_later_does_not_hear_of_it(seen: list[list[str | None]]) -> None:
    mpi.start_mpi(within_a_host=True)
    assert [os.environ.get(name) for name in NAMES] == [None] * 2


def test_what_the_user_has_set_stays(seen: list[list[str | None]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "self,tcp")
    mpi.start_mpi(within_a_host=True)
    assert seen == [["self,tcp", "none"]]
    assert os.environ["UCX_TLS"] == "self,tcp"


def test_our_own_setting_for_networks_gives_way_and_comes_back(
    seen: list[list[str | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UCX_TLS", "^posix,sysv")
    mpi.start_mpi(within_a_host=True)
    assert seen == [["sysv", "none"]]
    assert os.environ["UCX_TLS"] == "^posix,sysv"


def test_a_rank_with_a_guard_is_no_fork_of_who_starts_all(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not guard.is_fork({})
    monkeypatch.setattr(guard, "_link", 7)
    assert guard.is_fork({"PMI_FD": "5"})
    assert not guard.is_fork({"PMI_FD": "5", "HYDI_CONTROL_FD": "6"})
