"""Calls of an executor while ranks are lost, the service is started again, or ranks are on another host."""

import os
import signal
import socket
from pathlib import Path
from typing import Any

import called
import numpy as np
import pytest
from other_user import NOBODY, as_nobody, needs_root
from running import needs_mpiexec, poll_until, serving
from test_growth import SURVIVE
from test_other_hosts import _what_is_missing, grow
from test_rank_losses import IS_MPICH, await_generation, ranks_of, victims_of

from mallob_py import Client, Executor
from mallob_py.api.calls.hub import Hub

CALLS = 300

pytestmark = [
    needs_mpiexec,
    pytest.mark.skipif(not IS_MPICH, reason="other launchers end all ranks when one dies"),
]


def _all_but(results: Any, count: int) -> list[int]:
    """Take the first `count` results of a map."""
    return [next(results) for _ in range(count)]


def _gates(folder: Path) -> list[str]:
    """Return the file that each call of a map waits for: none in the first half, `go` in the second half."""
    return [""] * (CALLS // 2) + [str(folder / "go")] * (CALLS // 2)


def test_each_call_counts_once_while_a_rank_is_lost(tmp_path: Path) -> None:
    with (
        serving(tmp_path, *SURVIVE, "--preload", "CALLS", ranks=3) as service,
        Executor(service.api_dir) as executor,
    ):
        poll_until(lambda: len(ranks_of(service)) == 3, "three ranks with fork servers")
        ranks = ranks_of(service)
        client, other = victims_of(service, ["client", "other"], ranks)
        results = executor.map(
            called.append_and_nap, [str(tmp_path)] * CALLS, range(CALLS), _gates(tmp_path), ordered=False
        )
        first = _all_but(results, 50)
        os.kill(ranks[other], signal.SIGKILL)
        await_generation(service, 2)
        first += _all_but(results, 50)
        os.kill(ranks[client], signal.SIGKILL)
        await_generation(service, 1)
        (tmp_path / "go").touch()
        assert sorted([*first, *results]) == list(range(CALLS))


def test_calls_go_on_when_the_service_is_started_again(tmp_path: Path) -> None:
    with serving(tmp_path, "--preload", "CALLS", ranks=2) as service:
        api_dir = service.api_dir
        executor = Executor(api_dir)
        results = executor.map(
            called.append_and_nap, [str(tmp_path)] * CALLS, range(CALLS), _gates(tmp_path), ordered=False
        )
        first = _all_but(results, 50)
        service.kill()
        (tmp_path / "go").touch()
    with executor, serving(tmp_path, "--preload", "CALLS", ranks=2) as service:
        assert service.api_dir == api_dir
        assert sorted([*first, *results]) == list(range(CALLS))


@pytest.mark.slow
@pytest.mark.skipif(_what_is_missing() is not None, reason=str(_what_is_missing()))
def test_workers_on_another_host_are_reached_by_tcp(tmp_path: Path) -> None:
    with serving(tmp_path, *SURVIVE, "--warm", "0", ranks=1) as service:
        grow(service, "+1", "node2")
        with Executor(service.api_dir) as executor:
            executor._hub.other_hosts = lambda: True  # type: ignore[union-attr]
            shared = executor.share(np.arange(9000))
            hosts: set[tuple[str, int]] = set()

            def both_have_worked() -> bool:
                hosts.update(
                    executor.map(lambda each: (called.host_of(each), int(shared.value[7])), range(20))
                )
                return hosts == {(socket.gethostname(), 7), ("node2", 7)}

            poll_until(both_have_worked, "workers on both hosts")


@needs_root
@pytest.mark.parametrize("is_let_in", [False, True])
def test_of_other_users_only_the_service_s_is_let_in(is_let_in: bool, tmp_path: Path) -> None:
    with serving(tmp_path, ranks=1) as service:
        hub = Hub(Client(service.api_dir), lambda: False, NOBODY if is_let_in else NOBODY - 1)
        try:

            def heard() -> bytes:
                with socket.socket(socket.AF_UNIX) as connection:
                    connection.settimeout(30.0)
                    connection.connect(hub.path)
                    return connection.recv(1)

            assert bool(as_nobody(heard)) == is_let_in
        finally:
            hub.close()
            hub.join()
