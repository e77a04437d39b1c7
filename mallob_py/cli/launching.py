"""Starting the ranks of `solve`; apart from what ranks do, which imports much more."""

from __future__ import annotations

import importlib
import os
import socket
import sys
from collections.abc import Callable

from mallob_py.cli.outcome import outcome_of
from mallob_py.runtime.stop_requests import StopRequests
from mallob_py.runtime.world_end import WorldEnd


def default_ranks() -> int:
    """One rank per core that this process may use."""
    return len(os.sched_getaffinity(0))


def launch(
    ranks: int,
    rank_module: str,
    be_rank: Callable[[socket.socket | None], int],
    preload: tuple[str, ...],
    stops: StopRequests,
    *,
    keep_input: bool = False,
) -> WorldEnd:
    """Run this same command on so many ranks of this machine.

    `be_rank(fork server)` is called in each where they can be forks of this process; `rank_module` is then
    imported before, for all. Otherwise mpiexec starts them with the same arguments.
    """
    from mallob_py.runtime.forked_world import ForkedServers, ForkedWorld, library_allows_forks
    from mallob_py.runtime.orphans import no_orphans

    def outcome_of_rank(fork_server: socket.socket) -> int:
        return outcome_of("mallob-py solve", lambda: be_rank(fork_server))

    with no_orphans():
        servers = ForkedServers(ranks, preload)
        if library_allows_forks():
            importlib.import_module("mallob_py.runtime.transport")
            importlib.import_module(rank_module)
            if stops.first is not None:
                return WorldEnd(None, False, 0, stops.first)
            return ForkedWorld(servers, outcome_of_rank, stops, keep_input=keep_input).wait()
        servers.close()
    from mallob_py.runtime.launch import run_world

    return run_world(ranks, ["-m", "mallob_py", *sys.argv[1:]], os.environ, stops)
