"""Starting the ranks of `solve`; apart from what ranks do, which imports much more."""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mallob_py.cli import CommandError, early
from mallob_py.cli.outcome import outcome_of
from mallob_py.runtime.processes import StopRequests
from mallob_py.runtime.world.mpi import WorldEnd, begin_loading_mpi, in_mpi_world

if TYPE_CHECKING:
    from mallob_py.cli.rank_options import ServeOptions, SolveOptions
    from mallob_py.runtime.memory.room import Room

#: so few are always tried
_UNSUSPICIOUS = 4
#: what a rank needs at least, with its fork server and one worker: memory, and processes with one kept ready
_RANK_BYTES = 60 << 20
_RANK_PROCESSES = 4


def ranks_of(options: SolveOptions | ServeOptions) -> int:
    """How many ranks to start: as asked for, else one per core that this process may use.

    Raises CommandError if memory or the limits of processes are not made for so many.
    """
    ranks = options.ranks or len(os.sched_getaffinity(0))
    if ranks > _UNSUSPICIOUS and not options.many_ranks and not in_mpi_world():
        from mallob_py.runtime.memory.room import rooms

        bound, reason = min(_bounds(rooms()), default=(ranks, ""))
        if ranks > bound:
            raise CommandError(
                f"-n {ranks} is too many: {reason}, enough for about {bound} ranks (--many-ranks starts all)"
            )
    return ranks


def _bounds(rooms: list[Room]) -> Iterator[tuple[int, str]]:
    """How many ranks there could be, and what bounds them."""
    for room in rooms:
        yield (
            max(1, room.left_bytes // _RANK_BYTES),
            f"{room.left_bytes / 1e9:.1f} GB of memory are left",
        )
    for processes in _process_limits():
        yield max(1, processes // _RANK_PROCESSES), f"{processes} processes are allowed"


def _process_limits() -> Iterator[int]:
    own = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if own != resource.RLIM_INFINITY:
        yield own
    for path in ("/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max", "/sys/fs/cgroup/pids.max"):
        with contextlib.suppress(OSError, ValueError):
            yield int(Path(path).read_text())


def launch(
    ranks: int,
    rank_module: str,
    be_rank: Callable[[socket.socket | None], int],
    stops: StopRequests,
    *,
    keep_input: bool = False,
) -> WorldEnd:
    """Run this same command on so many ranks of this machine.

    `be_rank(fork server)` is called in each where they can be forks of this process; `rank_module` is then
    imported before, for all. Otherwise mpiexec starts them with the same arguments.
    """
    from mallob_py.runtime.processes import no_orphans, raise_descriptor_limit
    from mallob_py.runtime.world.forked_world import ForkedServers, ForkedWorld, library_allows_forks

    def outcome_of_rank(fork_server: socket.socket) -> int:
        return outcome_of("mallob-py solve", lambda: be_rank(fork_server))

    raise_descriptor_limit()
    with no_orphans():
        servers = early.servers or ForkedServers(early.APPLICATIONS)
        servers.open(ranks)
        loading = begin_loading_mpi()
        importlib.import_module(rank_module)
        loading.join()  # whoever forks has one thread
        if library_allows_forks():
            importlib.import_module("mallob_py.runtime.world.transport")
            if stops.first is not None:
                return WorldEnd(None, False, 0, stops.first)
            return ForkedWorld(servers, outcome_of_rank, stops, keep_input=keep_input).wait()
        servers.close()
    from mallob_py.runtime.world.launch import run_world

    return run_world(ranks, ["-m", "mallob_py", *sys.argv[1:]], os.environ, stops, keep_input=keep_input)
