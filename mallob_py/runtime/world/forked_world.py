"""Forked worlds: all ranks of a world on this host are forks of one process, which imports modules for them.

With mpiexec each rank is a program of its own, which starts an interpreter, imports modules, and loads the
MPI library. Here one process imports the modules for all ranks, which are its forks; if all ranks run one
application, a second process meanwhile imports that application for all their fork servers (`ForkedServers`).
The first process is also the process manager that MPICH asks for the other ranks' addresses. Open MPI asks
for more, so its worlds are started by mpiexec (`launch.py`).

The process manager (`PmiServer`, pure: bytes in, bytes out) speaks PMI-1, as mpiexec does on the descriptor
that each rank gets (`PMI_FD`): lines of `key=value` words; every question is answered by one line, a barrier
by one line to all ranks. The protocol is that of MPICH's `src/pmi/src/pmi_v1.c`, which hydra, Slurm and
others have served unchanged for twenty years. Only the questions of a world of fixed size on one host are
answered; other requests (spawning ranks) are declined.

Guarantees, as in `launch.launch_world`: stop signals are passed on to the ranks; after a second Ctrl-C, or if
ranks have not ended after STOP_GRACE_S, all ranks are killed; a rank that crashes ends the others, unless
they must survive and all had come up (`guard.may_be_lost`); when this process ends, the kernel orders the
ranks to end; no process of the world outlives the caller's `nothing_left`.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from mallob_py.runtime.notices import tell, tell_error
from mallob_py.runtime.processes import (
    StopRequests,
    bury_orphans,
    descriptor_shortage,
    die_with,
    raise_descriptor_limit,
    set_title,
    signals_held_back,
    use_no_input,
)
from mallob_py.runtime.world import guard
from mallob_py.runtime.world.mpi import LaunchError, RankLoss, WorldEnd, load_mpi
from mallob_py.runtime.world.session_folder import (
    SHARED_MEMORY,
    open_for_forks,
    session_of,
    shared_folder,
    world_of_forks,
)

if TYPE_CHECKING:
    from mallob_py.runtime.world.exit_file import ExitFile
    from mallob_py.runtime.world.session_folder import PrivateFolder

#: limits that the process manager reports to ranks, the same as hydra's
_KEY_LENGTH_MAX = 64
_VALUE_LENGTH_MAX = 1024


def pmi_environment(rank: int, ranks: int, descriptor: int) -> dict[str, str]:
    """Return the environment variables that a rank needs to initialise MPI."""
    return {"PMI_RANK": str(rank), "PMI_SIZE": str(ranks), "PMI_FD": str(descriptor)}


class PmiServer:
    """The process manager of one world.

    The world's `name` must never be used twice on this host: MPICH names shared memory after the world, and
    would mistake the remains of a killed world for its own.
    """

    def __init__(self, ranks: int, name: str) -> None:
        self._ranks = ranks
        self._name = name
        # A single node holds all ranks.
        self._values = {"PMI_process_mapping": f"(vector,(0,1,{ranks}))"}
        self._partial = [b""] * ranks
        self._at_barrier: set[int] = set()
        #: ranks that have called MPI_Finalize
        self.finalized: set[int] = set()
        #: whether a rank has ordered all ranks to end
        self.is_aborted = False

    def receive(self, rank: int, data: bytes) -> list[tuple[int, bytes]]:
        """Take in a rank's data; return (rank, answer) for each answer."""
        *lines, self._partial[rank] = (self._partial[rank] + data).split(b"\n")
        return [answer for line in lines for answer in self._answers(rank, line.decode("ascii", "replace"))]

    def _answers(self, rank: int, line: str) -> list[tuple[int, bytes]]:
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        command = words.get("cmd", "")
        if command == "barrier_in":
            self._at_barrier.add(rank)
            if len(self._at_barrier) < self._ranks:
                return []
            self._at_barrier.clear()
            return [(each, b"cmd=barrier_out\n") for each in range(self._ranks)]
        if command == "abort":
            self.is_aborted = True
            return []
        return [(rank, f"cmd={self._answer(rank, command, words)}\n".encode("ascii"))]

    def _answer(self, rank: int, command: str, words: dict[str, str]) -> str:
        match command:
            case "init":
                return "response_to_init pmi_version=1 pmi_subversion=1 rc=0"
            case "get_maxes":
                return f"maxes kvsname_max=256 keylen_max={_KEY_LENGTH_MAX} vallen_max={_VALUE_LENGTH_MAX}"
            case "get_appnum":
                return "appnum appnum=0"
            case "get_universe_size":
                return f"universe_size size={self._ranks}"
            case "get_my_kvsname":
                return f"my_kvsname kvsname={self._name}"
            case "put":
                self._values[words.get("key", "")] = words.get("value", "")
                return "put_result rc=0 msg=success"
            case "get":
                if (value := self._values.get(words.get("key", ""))) is None:
                    return "get_result rc=-1 msg=key_not_found value=unknown"
                return f"get_result rc=0 msg=success value={value}"
            case "finalize":
                self.finalized.add(rank)
                return "finalize_ack"
            case _:
                return f"{command}_result rc=-1 msg=not_supported"


#: how long ranks may take to end after a stop signal
STOP_GRACE_S = 30.0
_LOOK_MAX_S = 60.0
#: bytes of MPICH's shared file, per rank
_SHARED_BYTES = 2_200_000
_RECEIVE_BYTES = 1 << 16


def library_allows_forks() -> bool:
    """Load the MPI library, and tell whether forked ranks can use it. Raises LaunchError."""
    return load_mpi().startswith("MPICH Version")


class ForkedServers:
    """The fork servers of all future ranks, forked by one process, which begins to import modules at once.

    The caller must have a single thread. `open` makes the servers.
    """

    def __init__(self, preload: Sequence[str]) -> None:
        # Imported late, because this import takes long; but before the fork, because the ranks need nearly
        # all of its modules, too.
        from mallob_py.runtime.workers.fork_server import import_for_servers

        #: control sockets of the servers, in the order of their ranks
        self.controls: list[socket.socket] = []
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        with signals_held_back(), theirs:
            if os.fork() == 0:
                self._orders.close()
                import_for_servers(theirs, preload, parent)

    def open(self, ranks: int) -> None:
        """Make `ranks` servers. Raises OSError, for example if descriptors are short, and LaunchError."""
        for _ in range(ranks):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.controls.append(ours)
            with theirs:
                try:
                    socket.send_fds(self._orders, [b"!"], [theirs.fileno()])
                except (BrokenPipeError, ConnectionResetError):
                    raise LaunchError("the process that was to start workers has ended") from None
        self._orders.close()

    def close(self) -> None:
        """Close the control sockets; servers that no rank uses end by themselves."""
        for each in (self._orders, *self.controls):
            each.close()


class ForkedWorld:
    """A world of forked ranks. Each rank runs `be_rank(control)`, which returns its exit code.

    `servers`: the ranks' fork servers; None: each rank forks its own. `control`: the control socket of the
    rank's server, or None. `env`: the ranks' environment (None: this process's). `title`: shown by `ps`
    before the rank's number. The caller must have a single thread, and be inside `nothing_left`.
    """

    def __init__(
        self,
        ranks: int,
        be_rank: Callable[[socket.socket | None], int],
        stops: StopRequests,
        *,
        title: str,
        servers: ForkedServers | None = None,
        env: Mapping[str, str] | None = None,
        keep_input: bool = False,
        rank_loss: RankLoss = RankLoss.RESTART,
    ) -> None:
        self._stops = stops
        self._rank_loss, self._ranks = rank_loss, ranks
        controls: list[socket.socket | None] = [None] * ranks if servers is None else [*servers.controls]
        self._folder = _open_folder(ranks)
        self._pmi = PmiServer(self._ranks, world_of_forks(session_of(self._folder)))
        pairs = [socket.socketpair() for _ in range(self._ranks)]
        self._sockets = [ours for ours, _ in pairs]
        #: pipes with the reports of the ranks (`guard.may_be_lost`), in the order of the ranks
        self._links: list[int] = []
        #: live rank -> its process id
        self._pids: dict[int, int] = {}
        self._statuses: dict[int, int] = {}
        self._said = [b""] * ranks
        #: time when ranks that have not ended are killed
        self._deadline_s = math.inf
        self._told_to_stop = False
        #: whether this process has killed all ranks, so that further deaths are no crashes
        self._ends_by_force = False
        #: exit codes of ranks that crashed although nobody had told them to end, the first crash first
        self._crashes: list[int] = []
        self._was_silent = False
        sys.stdout.flush()  # otherwise each rank would print the buffer, too
        gc.freeze()  # otherwise collections in the ranks would copy shared memory
        parent = os.getpid()
        with signals_held_back():  # ranks unblock signals once they have their own handlers
            for rank in range(self._ranks):
                reader, writer = os.pipe()
                pid = os.fork()
                if pid == 0:
                    for link in (*self._links, reader):
                        os.close(link)
                    guard.report_to(writer)
                    mine, control = pairs[rank][1], controls[rank]
                    for each in (*(one for pair in pairs for one in pair), *controls):
                        if each is not None and each is not mine and each is not control:
                            each.close()
                    _become_rank(rank, self._ranks, mine, parent, keep_input, env)
                    set_title(f"{title} {rank}")
                    _end_with(be_rank, control)
                os.close(writer)
                os.set_blocking(reader, False)  # a child of the rank may keep the pipe open
                self._links.append(reader)
                self._pids[rank] = pid
        for _, theirs in pairs:
            theirs.close()
        if servers is not None:
            servers.close()
        self._pidfds = {os.pidfd_open(pid): rank for rank, pid in self._pids.items()}

    def wait(self, exit_file: ExitFile | None = None) -> WorldEnd:
        """Wait for the end of all ranks. With `exit_file`, end ranks that are silent for too long."""
        listening = {each.fileno(): rank for rank, each in enumerate(self._sockets)}
        look_s = _LOOK_MAX_S if exit_file is None else exit_file.look_s
        while self._pids:
            if exit_file is not None:
                self._end_if_silent(exit_file)
            if self._stops.first is not None and not self._told_to_stop:
                self._told_to_stop = True
                self._deadline_s = time.monotonic() + STOP_GRACE_S
                self._signal_all(signal.SIGINT if self._stops.first == signal.SIGINT else signal.SIGTERM)
            if self._stops.insisted or time.monotonic() > self._deadline_s or self._pmi.is_aborted:
                self._signal_all(signal.SIGKILL)
            bury_orphans(self._pids.values())  # reap the orphans of lost ranks
            timeout_s = min(look_s, self._deadline_s - time.monotonic())
            for descriptor in self._stops.wait(timeout_s, *listening, *self._pidfds):
                if descriptor in self._pidfds:
                    self._bury(descriptor)
                elif not self._serve(listening[descriptor]):
                    del listening[descriptor]
        for each in self._sockets:
            each.close()
        for link in self._links:
            os.close(link)
        self._folder.leave()
        sound = [status for status in self._statuses.values() if status >= 0 and status != guard.CRASHED]
        status = self._statuses[0]
        if self._rank_loss is RankLoss.SURVIVE:
            # The rank that was the speaker at the end has the world's exit code, the other ranks have 0.
            status = max(sound, default=status)
        # The world's exit code is, if possible, that of a rank that crashed by itself, not of a rank that was
        # killed.
        status_of_crash = next(
            (each for each in self._crashes if each != -signal.SIGKILL), next(iter(self._crashes), status)
        )
        code = status if status in sound else None
        return WorldEnd(
            code,
            True,
            status if code is not None else status_of_crash,
            self._stops.first,
            self._was_silent,
            has_launcher=False,
        )

    def _end_if_silent(self, exit_file: ExitFile) -> None:
        now = time.monotonic()
        if exit_file.is_silent(now) and self._deadline_s == math.inf:
            tell(exit_file.complaint)
            self._was_silent = self._told_to_stop = True
            self._deadline_s = now + exit_file.grace_s
            self._signal_all(signal.SIGTERM)

    def _serve(self, rank: int) -> bool:
        """Answer a rank's question; return False if the rank will ask no more."""
        try:
            data = self._sockets[rank].recv(_RECEIVE_BYTES)
            for asker, answer in self._pmi.receive(rank, data):
                self._sockets[asker].sendall(answer)
        except OSError:  # the rank has ended meanwhile
            return False
        return bool(data)

    def _bury(self, pidfd: int) -> None:
        rank = self._pidfds.pop(pidfd)
        os.close(pidfd)
        pid = self._pids.pop(rank)
        _, status = os.waitpid(pid, 0)
        self._statuses[rank] = os.waitstatus_to_exitcode(status)
        said = self._said_by(rank)
        if rank in self._pmi.finalized or guard.LEAVES in said:
            return
        if self._statuses[rank] < 0 or self._statuses[rank] == guard.CRASHED:
            if not self._told_to_stop and not self._ends_by_force:
                self._crashes.append(self._statuses[rank])
            # If all other ranks have come up, this rank has done its part of the start, even if it has not
            # reported so.
            if self._rank_loss is RankLoss.SURVIVE and self._pids and (said or self._others_are_at_work()):
                tell(guard.epitaph(rank, pid, self._statuses[rank]))
                return
            self._end_by_force(rank, pid)
        else:  # all ranks end with messages of their own; a rank that waits is killed later
            self._deadline_s = min(self._deadline_s, time.monotonic() + STOP_GRACE_S)

    def _said_by(self, rank: int) -> bytes:
        """Return what a rank has reported so far by functions of `guard`."""
        with contextlib.suppress(BlockingIOError):
            self._said[rank] += os.read(self._links[rank], 2)
        return self._said[rank]

    def _others_are_at_work(self) -> bool:
        return all([self._said_by(rank) for rank in self._pids])

    def _end_by_force(self, rank: int, pid: int) -> None:
        """Report the death of a rank, and kill the other ranks, which would wait for it."""
        if self._statuses[rank] < 0 and not self._told_to_stop and not self._ends_by_force:
            consequence = "this ends the others" if self._pids else "none is left"
            tell(guard.epitaph(rank, pid, self._statuses[rank], consequence))
        self._signal_all(signal.SIGKILL)

    def _signal_all(self, number: int) -> None:
        self._ends_by_force |= number == signal.SIGKILL
        for pid in self._pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _open_folder(ranks: int) -> PrivateFolder:
    """Make the folder of `ranks` future ranks. Raises LaunchError, also if MPI would fail with no message."""
    if (problem := descriptor_shortage(1, 1, raise_descriptor_limit())) is not None:
        raise LaunchError(problem)
    if shared_folder() != SHARED_MEMORY:
        raise LaunchError(f"MPICH needs {SHARED_MEMORY}, which cannot be written to: mount it as a tmpfs")
    allowed, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if 0 <= allowed < ranks * _SHARED_BYTES:  # RLIM_INFINITY, which means no limit, is below 0
        raise LaunchError(
            f"MPICH needs a file of {ranks * _SHARED_BYTES} bytes for {ranks} ranks, and files may have"
            f" {allowed}: raise that limit (ulimit -f), or start fewer ranks"
        )
    return open_for_forks()


def _become_rank(
    rank: int,
    ranks: int,
    link: socket.socket,
    parent_pid: int,
    keep_input: bool,
    env: Mapping[str, str] | None,
) -> None:
    die_with(parent_pid, signal.SIGTERM)
    os.setsid()  # Ctrl-C in a terminal must reach only the process that forked the ranks
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if rank > 0 or not keep_input:
        use_no_input()
    link.set_inheritable(True)
    if env is not None:
        os.environ.clear()
        os.environ.update(env)
    os.environ.update(pmi_environment(rank, ranks, link.fileno()))


def _end_with(be_rank: Callable[[socket.socket | None], int], control: socket.socket | None) -> NoReturn:
    status = guard.CRASHED
    try:
        status = be_rank(control)
    except BaseException as error:
        tell_error(error)
    finally:
        os._exit(status)
