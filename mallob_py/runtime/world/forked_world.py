"""A world on this machine whose ranks are forks of one process, which has imported everything for them.

With mpiexec each rank is a program of its own: it starts an interpreter, imports, loads the MPI library. Here
one process imports for all ranks, which are its forks; where all are to run one application, a second process
imports that meanwhile, for all of their fork servers (`ForkedServers`). And we are the process manager that
MPICH asks for the addresses of the others. Open MPI asks for more than that, so its worlds are started by
mpiexec (`launch.py`).

The process manager (`PmiServer`, pure: bytes in, bytes out) speaks PMI-1, what mpiexec answers on the
descriptor that it leaves each rank (`PMI_FD`): lines of `key=value` words, every question answered by one
line, barriers by one line to all. The protocol is that of MPICH's `src/pmi/src/pmi_v1.c`, which hydra,
Slurm and others have been serving unchanged for twenty years. Only what a world of fixed size on one host
asks is served; every other wish (spawning ranks) is declined.

Guarantees, as of `launch.launch_world`: signals are passed on to the ranks, a second Ctrl-C or ranks that
are not gone after STOP_GRACE_S end it all by force; a rank that crashes ends the others, unless they are to
survive it and all were at work (`guard.may_be_lost`); when we are gone the kernel asks the ranks to end;
nothing of the world outlives the caller's `nothing_left`.
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

#: limits that the ranks are told, as hydra does
_KEY_LENGTH_MAX = 64
_VALUE_LENGTH_MAX = 1024


def pmi_environment(rank: int, ranks: int, descriptor: int) -> dict[str, str]:
    """Return what a rank must find in its environment when it initialises MPI."""
    return {"PMI_RANK": str(rank), "PMI_SIZE": str(ranks), "PMI_FD": str(descriptor)}


class PmiServer:
    """Serves all ranks of one world.

    No other world of this host may ever have had its `name`: MPICH names shared memory after it, and takes
    what a killed world has left behind for its own.
    """

    def __init__(self, ranks: int, name: str) -> None:
        self._ranks = ranks
        self._name = name
        # One node holds all ranks.
        self._values = {"PMI_process_mapping": f"(vector,(0,1,{ranks}))"}
        self._partial = [b""] * ranks
        self._at_barrier: set[int] = set()
        #: ranks that have left MPI in order
        self.finalized: set[int] = set()
        #: whether a rank wants all to end
        self.is_aborted = False

    def receive(self, rank: int, data: bytes) -> list[tuple[int, bytes]]:
        """Return what to send to which ranks after this rank has sent `data`."""
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


#: how long ranks may take to end after they have been asked to
STOP_GRACE_S = 30.0
_LOOK_MAX_S = 60.0
#: of the file that MPICH shares, for each rank
_SHARED_BYTES = 2_200_000
_RECEIVE_BYTES = 1 << 16


def library_allows_forks() -> bool:
    """Load the MPI library, for the ranks to come too. Raises LaunchError if there is none."""
    return load_mpi().startswith("MPICH Version")


class ForkedServers:
    """The fork servers of all ranks to come, by one process that begins to import at once.

    The caller has a single thread. If `open` is not called, nothing comes of it.
    """

    def __init__(self, preload: Sequence[str]) -> None:
        #: by rank: the control socket of its server
        self.controls: list[socket.socket] = []
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        with signals_held_back(), theirs:
            if os.fork() == 0:
                self._orders.close()
                _raise_servers(theirs, preload, parent)

    def open(self, ranks: int) -> None:
        """Have servers for so many ranks. Raises OSError, as for want of descriptors, and LaunchError."""
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
        """They end by themselves then."""
        for each in (self._orders, *self.controls):
            each.close()


def _raise_servers(orders: socket.socket, preload: Sequence[str], parent_pid: int) -> NoReturn:
    try:
        use_no_input()
        from mallob_py.runtime.workers.fork_server import import_for_servers  # imports much more than we do

        import_for_servers(orders, preload, parent_pid)
    except BaseException as error:
        tell(f"workers cannot be started: {type(error).__name__}: {error}")
    finally:
        os._exit(1)


class ForkedWorld:
    """Ranks that run `be_rank(control)`, whose value is their exit code.

    `servers`: those that ranks have instead of starting their own; `control` is the socket of one's server,
    or None. `env`: the ranks' environment (None: ours). `title`: what `ps` shows, with the rank's number
    behind.
    The caller has a single thread, and is inside `nothing_left`.
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
        #: by rank: what it says by `guard.may_be_lost`
        self._links: list[int] = []
        #: by rank, as long as it lives
        self._pids: dict[int, int] = {}
        self._statuses: dict[int, int] = {}
        self._said = [b""] * ranks
        #: when the ranks have had time enough to end
        self._deadline_s = math.inf
        self._told_to_stop = False
        #: whoever dies from now on was killed by us
        self._ends_by_force = False
        #: how those ended that nobody had asked to, in this order
        self._crashes: list[int] = []
        self._was_silent = False
        sys.stdout.flush()  # else each rank would print it, too
        gc.freeze()  # else collections in the ranks would copy what they share
        parent = os.getpid()
        with signals_held_back():  # a rank answers them from when it has its own handlers
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
                os.set_blocking(reader, False)  # what a rank has left behind may hold the other end
                self._links.append(reader)
                self._pids[rank] = pid
        for _, theirs in pairs:
            theirs.close()
        if servers is not None:
            servers.close()
        self._pidfds = {os.pidfd_open(pid): rank for rank, pid in self._pids.items()}

    def wait(self, exit_file: ExitFile | None = None) -> WorldEnd:
        """Until all ranks have ended. With `exit_file`, those that are silent for too long are ended."""
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
            bury_orphans(self._pids.values())  # what lost ranks have left
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
            # Whoever spoke for all at last says how it all ended, the others end with 0.
            status = max(sound, default=status)
        # Not of one that was killed because another one had crashed, nor of one that somebody has killed.
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
        pid = self._pids.pop(rank)
        _, status = os.waitpid(pid, 0)
        self._statuses[rank] = os.waitstatus_to_exitcode(status)
        said = self._said_by(rank)
        if rank in self._pmi.finalized or guard.LEAVES in said:
            return
        if self._statuses[rank] < 0 or self._statuses[rank] == guard.CRASHED:
            if not self._told_to_stop and not self._ends_by_force:
                self._crashes.append(self._statuses[rank])
            # When all others are at work, this one has done its part at the start, whether it said so or not.
            if self._rank_loss is RankLoss.SURVIVE and self._pids and (said or self._others_are_at_work()):
                tell(guard.epitaph(rank, pid, self._statuses[rank]))
                return
            self._end_by_force(rank, pid)
        else:  # all end now with words of their own, unless somebody waits for it
            self._deadline_s = min(self._deadline_s, time.monotonic() + STOP_GRACE_S)

    def _said_by(self, rank: int) -> bytes:
        """Return what a rank has said by `guard` so far."""
        with contextlib.suppress(BlockingIOError):
            self._said[rank] += os.read(self._links[rank], 2)
        return self._said[rank]

    def _others_are_at_work(self) -> bool:
        return all([self._said_by(rank) for rank in self._pids])

    def _end_by_force(self, rank: int, pid: int) -> None:
        """End the others if a rank has died, as they would wait for it; tell why, unless it was wanted."""
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
    """Make the folder of so many ranks to come. Raises LaunchError, also for want of what MPI could not start
    without: it would say so in many words that name nothing.
    """
    if (problem := descriptor_shortage(1, 1, raise_descriptor_limit())) is not None:
        raise LaunchError(problem)
    if shared_folder() != SHARED_MEMORY:
        raise LaunchError(f"MPICH needs {SHARED_MEMORY}, which cannot be written to: mount it as a tmpfs")
    allowed, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if 0 <= allowed < ranks * _SHARED_BYTES:  # less than 0: as large as they like
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
    os.setsid()  # Ctrl-C in a terminal is for the process that we stem from
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
