"""A world on this machine whose ranks are forks of one process, which has imported everything for them.

With mpiexec each rank is a program of its own: it starts an interpreter, imports, loads the MPI library,
then starts a fork server that does so again. For a single job that takes longer than the job. Here one
process imports for all ranks, a second one meanwhile for all of their fork servers, both are forked, and
we are the process manager that MPICH asks for the addresses of the others (`pmi.py`). Open MPI asks for
more than that, so its worlds are started by mpiexec (`launch.py`).

Guarantees, as of `launch.launch_world`: signals are passed on to the ranks, a second Ctrl-C or ranks that
are not gone after STOP_GRACE_S end it all by force; a rank that crashes ends the others; when we are gone
the kernel asks the ranks to end; nothing of the world outlives the caller's `no_orphans`.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import NoReturn

from mallob_py.runtime.forked_servers import ForkedServers, signals_held_back, use_no_input
from mallob_py.runtime.orphans import die_with
from mallob_py.runtime.pmi import PmiServer, pmi_environment
from mallob_py.runtime.stop_requests import StopRequests
from mallob_py.runtime.world import load_mpi
from mallob_py.runtime.world_end import WorldEnd

#: how long ranks may take to end after they have been asked to
STOP_GRACE_S = 30.0
_LOOK_MAX_S = 60.0
_RECEIVE_BYTES = 1 << 16
#: the exit code of a rank that could not go on, which says nothing of how it all ended
_CRASHED = 1


def library_allows_forks() -> bool:
    """Load the MPI library, for the ranks to come too. Raises LaunchError if there is none."""
    return load_mpi().startswith("MPICH Version")


class ForkedWorld:
    """Ranks that run `be_rank(rank)`, whose value is their exit code; `servers` are theirs.

    The caller has a single thread, and is inside `no_orphans`.
    """

    def __init__(
        self,
        servers: ForkedServers,
        be_rank: Callable[[socket.socket], int],
        stops: StopRequests,
        *,
        keep_input: bool = False,
    ) -> None:
        self._stops = stops
        self._ranks = len(servers.controls)
        self._pmi = PmiServer(self._ranks, f"mallob_py_{os.getpid()}_{time.time_ns():x}")
        pairs = [socket.socketpair() for _ in range(self._ranks)]
        self._sockets = [ours for ours, _ in pairs]
        #: by rank, as long as it lives
        self._pids: dict[int, int] = {}
        self._statuses: dict[int, int] = {}
        #: when the ranks have had time enough to end
        self._deadline_s = math.inf
        self._told_to_stop = False
        gc.freeze()  # else collections in the ranks would copy what they share
        parent = os.getpid()
        with signals_held_back():  # a rank answers them from when it has its own handlers
            for rank in range(self._ranks):
                pid = os.fork()
                if pid == 0:
                    mine, control = pairs[rank][1], servers.controls[rank]
                    for each in (*(one for pair in pairs for one in pair), *servers.controls):
                        if each is not mine and each is not control:
                            each.close()
                    _become_rank(rank, self._ranks, mine, parent, keep_input)
                    _end_with(be_rank, control)
                self._pids[rank] = pid
        for _, theirs in pairs:
            theirs.close()
        servers.close()
        self._pidfds = {os.pidfd_open(pid): rank for rank, pid in self._pids.items()}

    def wait(self) -> WorldEnd:
        """Until all ranks have ended."""
        listening = {each.fileno(): rank for rank, each in enumerate(self._sockets)}
        while self._pids:
            if self._stops.first is not None and not self._told_to_stop:
                self._told_to_stop = True
                self._deadline_s = time.monotonic() + STOP_GRACE_S
                self._signal_all(signal.SIGINT if self._stops.first == signal.SIGINT else signal.SIGTERM)
            if self._stops.insisted or time.monotonic() > self._deadline_s or self._pmi.is_aborted:
                self._signal_all(signal.SIGKILL)
            timeout_s = min(_LOOK_MAX_S, self._deadline_s - time.monotonic())
            for descriptor in self._stops.wait(timeout_s, *listening, *self._pidfds):
                if descriptor in self._pidfds:
                    self._bury(descriptor)
                elif not self._serve(listening[descriptor]):
                    del listening[descriptor]
        for each in self._sockets:
            each.close()
        status = self._statuses[0]
        code = status if status >= 0 and status != _CRASHED else None
        return WorldEnd(code, True, status, self._stops.first)

    def _serve(self, rank: int) -> bool:
        """Answer a question about the world; False if this rank has none any more."""
        try:
            data = self._sockets[rank].recv(_RECEIVE_BYTES)
            for asker, answer in self._pmi.receive(rank, data):
                self._sockets[asker].sendall(answer)
        except OSError:  # it has died meanwhile, and will be buried
            return False
        return bool(data)

    def _bury(self, pidfd: int) -> None:
        rank = self._pidfds.pop(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(self._pids.pop(rank), 0)
        self._statuses[rank] = os.waitstatus_to_exitcode(status)
        if rank in self._pmi.finalized:
            return
        if self._statuses[rank] < 0 or self._statuses[rank] == _CRASHED:
            self._signal_all(signal.SIGKILL)  # who is left would wait for it
        else:  # all end now with words of their own, unless somebody waits for it
            self._deadline_s = min(self._deadline_s, time.monotonic() + STOP_GRACE_S)

    def _signal_all(self, number: int) -> None:
        for pid in self._pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _become_rank(rank: int, ranks: int, link: socket.socket, parent_pid: int, keep_input: bool) -> None:
    die_with(parent_pid, signal.SIGTERM)
    os.setsid()  # Ctrl-C in a terminal is for the process that we stem from
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if rank > 0 or not keep_input:
        use_no_input()
    link.set_inheritable(True)
    os.environ.update(pmi_environment(rank, ranks, link.fileno()))


def _end_with(be_rank: Callable[[socket.socket], int], control: socket.socket) -> NoReturn:
    status = _CRASHED
    try:
        status = be_rank(control)
    finally:
        os._exit(status)
