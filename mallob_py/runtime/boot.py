"""Starting and ending a rank: fork server, MPI, desk (where jobs come in) and loop, in order.

The fork server starts before MPI, and the signal handlers before both, so that a signal never kills a rank
that has children. If a rank fails at the start, all ranks end: with a clear message if the user can act
(`DeskError`), else with a traceback and MPI's abort. A rank that fails later ends alone if the others can go
on (`RankLoss.SURVIVE`).

With `--pes auto`, a rank hosts as many PEs as its share of its host's cores: a core that k ranks may use
counts 1/k for each such rank. So a rank bound to cores of its own gets all these cores, and unbound
ranks get equal parts.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
from msgspec.structs import replace

from mallob_py import __version__
from mallob_py.log_events import LogEvent
from mallob_py.protocol.config import Config
from mallob_py.protocol.generation import AnyChange, EndReason
from mallob_py.protocol.node import Node
from mallob_py.protocol.placement import Placement
from mallob_py.protocol.rank_book import Origin
from mallob_py.protocol.rank_messages import RankProcess
from mallob_py.runtime.bells import Bells, StopBell
from mallob_py.runtime.desk import Desk, EventSink
from mallob_py.runtime.memory import Reserve, rooms
from mallob_py.runtime.memory_watch import HostVote, MemoryWatch
from mallob_py.runtime.notices import tell, tell_error
from mallob_py.runtime.processes import descriptor_shortage, raise_descriptor_limit
from mallob_py.runtime.rank import PeerFailure, Rank, service_clock
from mallob_py.runtime.stimulus_log import StimulusLog
from mallob_py.runtime.workers.giving import GivingSocket
from mallob_py.runtime.workers.links import ForkServer, WorkerLimits
from mallob_py.runtime.workers.pool import WorkerPool
from mallob_py.runtime.workers.supply import PoolOptions
from mallob_py.runtime.world import guard, mpi
from mallob_py.runtime.world.carrier import Carrier
from mallob_py.runtime.world.deadlines import (
    DESK_PATIENCES,
    OTHER_RANKS,
    Launcher,
    LauncherGone,
    at_most,
    start_patience_s,
)
from mallob_py.runtime.world.failure_detector import LocalPeers, Ring, host_name, patience_of, process_here
from mallob_py.runtime.world.joining import JoinError, is_invited, join, read_invitation

if TYPE_CHECKING:
    from mallob_py.runtime.world.transport import Transport


class CapacityOffer(msgspec.Struct, frozen=True):
    """The capacity that a rank reports at the start. `pes` None: as many PEs as its cores allow."""

    pes: int | None
    threads: int
    host: int
    cores: frozenset[int]

    @staticmethod
    def here(pes: int | None, threads: int, host: int) -> CapacityOffer:
        return CapacityOffer(pes, threads, host, frozenset(os.sched_getaffinity(0)))


def capacities_of(offers: Sequence[CapacityOffer]) -> tuple[int, ...]:
    """Return each rank's number of PEs, computed from the offers of all ranks."""
    users = Counter((offer.host, core) for offer in offers for core in offer.cores)
    #: number of parts of a core: a multiple of every number of ranks that share a core
    parts = math.lcm(*users.values())

    def share(offer: CapacityOffer) -> int:
        owned = sum(parts // users[offer.host, core] for core in offer.cores)
        return max(1, owned // (parts * offer.threads))

    return tuple(share(offer) if offer.pes is None else offer.pes for offer in offers)


class WorldSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a rank, equal on all ranks except `pes` (None: by the rank's share of the cores)."""

    config: Config
    pes: int | None = 1
    clients: int = 1
    warm: int = 1
    memory_limit_bytes: int | None = None
    input_max_bytes: int | None = None
    time_limit_s: float | None = None
    memory_reserve: Reserve | None = None
    rank_timeout_s: float | None = None
    rank_loss: mpi.RankLoss = mpi.RankLoss.RESTART
    preload: tuple[str, ...] = ()
    #: folder for workers' output, with a file per job; None: workers write to standard error
    output_dir: str | None = None
    #: folder for the logs of all stimuli; None: stimuli are not logged
    stimuli_dir: str | None = None


class _Arrival(msgspec.Struct, frozen=True):
    """The message by which a rank reports to all others that it is up."""

    #: time of the rank's arrival, in seconds since 1970; rank 0's time of arrival is the start of the system
    now_s: float
    offer: CapacityOffer
    process: RankProcess


class DeskError(Exception):
    """Error: the desk cannot be opened (exit code 2), or must close (exit code 1).

    All ranks end with this message.
    """


def client_rank(client: int, placement: Placement) -> int:
    """Return the rank of a client; client 0 is the rank with the root of the tree of PEs."""
    root = placement.rank_of[placement.size // 2]
    return (root + client) % placement.ranks


def run_rank(
    settings: WorldSettings,
    make_log: Callable[[int, int, float], EventSink],
    make_desk: Callable[[Rank], Desk | None],
    exit_code: Callable[[], int] = lambda: 0,
    fork_server: socket.socket | None = None,
) -> NoReturn:
    """Run a rank until the system stops; does not return.

    `make_log(rank, first PE, start)` opens this rank's event log; `start` is the same on all ranks.
    `make_desk(rank)` opens its desk, or returns None; it may raise DeskError. `fork_server`: the control
    socket of a fork server that runs already; None: fork one.
    """
    stop_bell = StopBell(mpi.stop_signals())
    descriptors = raise_descriptor_limit()
    limits = WorkerLimits(
        settings.memory_limit_bytes,
        output_dir=settings.output_dir or "",
        input_max_bytes=settings.input_max_bytes,
    )
    if fork_server is None:
        server = ForkServer.fork(settings.preload, limits)
    else:
        server = ForkServer.start(settings.preload, limits, fork_server)
    if is_invited(os.environ):
        run_newcomer(settings, make_log, make_desk, exit_code, server, stop_bell)
    launcher, patience_s = Launcher(), start_patience_s(os.environ)
    try:
        with at_most(patience_s, OTHER_RANKS, launcher):
            world, transport, arrivals = _meet_others(settings)
    except (mpi.LaunchError, mpi.OthersRefused):
        server.stop()
        raise
    settings = replace(settings, rank_loss=transport.rank_loss)
    start_s = arrivals[0].now_s
    placement = Placement(capacities_of([each.offer for each in arrivals]))
    pes = placement.pes_of(transport.rank)
    pool_options = _pool_options(settings, pes)
    pool = WorkerPool(server, pool_options)
    #: greatest number of suspended workers per PE; each other process runs a worker, is kept for a chain,
    #: or is spare
    suspended_per_pe = settings.config.job_cache + settings.config.roots_kept(placement.size)
    processes_per_pe = 1 + suspended_per_pe + settings.warm + pool_options.kept_max // len(pes)
    closed = may_be_lost = False
    try:
        log = make_log(transport.rank, pes[0], start_s)
        processes = {number: each.process for number, each in enumerate(arrivals)}
        hosts = {each: transport.hosts[each] for each in placement.members}
        origin = Origin(placement.capacities, start_s, processes, hosts)
        survives = settings.rank_loss is mpi.RankLoss.SURVIVE
        node = Node(
            transport.rank,
            origin,
            settings.config,
            patience_s=patience_of(settings.rank_timeout_s),
            survives=survives,
        )
        clock = service_clock(start_s)
        rank = _make_rank(settings, node, origin, transport, pool, log, stop_bell, clock)
        rank.lookout.end_with(launcher)
        if transport.rank == 0 and (warning := mpi.binding_warning()) is not None:
            tell(f"warning: {warning}")
        with at_most(DESK_PATIENCES * patience_s, "the clients' ranks to open their folders", launcher):
            problem = (
                descriptor_shortage(len(pes), processes_per_pe, descriptors, _links(rank, transport))
                or watch_memory(settings, rank)
                or _log_stimuli(settings, rank, origin)
                or _open_desk(rank, make_desk)
            )
            told = mpi.gathered(world, (problem, pool.inspection.known if rank.node.survives else {}))
        problems = [text for text, _ in told if text is not None]
        # A rank that takes over a desk later thus need not inspect the applications itself.
        pool.inspection.told = next((known for _, known in told if known), {})
        code = 2
        if problems:
            if transport.rank == 0:
                tell(problems[0])
        else:
            log.write(rank.now(), LogEvent.START, _start_of(settings, placement, len(pes), start_s))
            if settings.rank_loss is mpi.RankLoss.SURVIVE:
                may_be_lost = True
                guard.may_be_lost()
            _run(rank, pes)
            code = exit_code()
        closed = rank.close()
    except LauncherGone as error:
        _end_without_launcher(error, pool)
    except BaseException as error:
        _end_by(error, pool, may_be_lost)
    mpi.leave(transport.rank, code, closed and not guard.needs_no_farewell(), rank.node.placement.members[0])


def _meet_others(settings: WorldSettings) -> tuple[Any, Transport, list[_Arrival]]:
    """Meet all ranks; return the communicator, this rank's transport, and each rank's arrival."""
    world = mpi.start_mpi(within_a_host=guard.is_fork(os.environ) or not mpi.in_mpi_world())
    # Imported late: importing the transport initialises MPI.
    from mallob_py.runtime.world.transport import Transport

    transport = Transport(world, settings.rank_loss)
    host = transport.hosts[transport.rank]
    offer = CapacityOffer.here(settings.pes, settings.config.threads, host)
    return world, transport, mpi.gathered(world, _Arrival(time.time(), offer, process_here()))


def _start_of(settings: WorldSettings, placement: Placement, capacity: int, start_s: float) -> dict[str, Any]:
    return {
        "ranks": placement.ranks,
        "pes": placement.size,
        "capacity": capacity,
        "clients": settings.clients,
        "version": __version__,
        "mode": "real",
        "unix_s": start_s,
    }


def _end_by(error: BaseException, pool: WorkerPool, may_be_lost: bool) -> NoReturn:
    """End because of an error: this rank alone if the others can go on and its desk is sound, else all."""
    is_alone = may_be_lost and not isinstance(error, DeskError)
    if isinstance(error, PeerFailure | DeskError) and not is_alone:
        tell(f"{error}; all ranks end")
    else:
        tell_error(error)
    sys.stderr.flush()
    pool.close()
    if is_alone:
        os._exit(guard.CRASHED)
    mpi.abort_world(1)


def _links(rank: Rank, transport: Carrier) -> int:
    """Return the number of ranks on other hosts, each reached by a link; 0 if ranks cannot be lost."""
    hosts = [transport.hosts[each] for each in rank.node.placement.members]
    return sum(host != transport.hosts[rank.rank] for host in hosts) if rank.node.survives else 0


def _pool_options(settings: WorldSettings, pes: range) -> PoolOptions:
    return PoolOptions.for_pes(len(pes), settings.warm, settings.config.threads)


def _make_rank(
    settings: WorldSettings,
    node: Node,
    origin: Origin,
    transport: Carrier,
    pool: WorkerPool,
    log: EventSink,
    stop_bell: StopBell,
    clock: Callable[[], float],
) -> Rank:
    transport.links.patience_s = patience_of(settings.rank_timeout_s)
    with contextlib.suppress(OSError):  # without the socket, a worker that moves starts from scratch
        pool.processes.exchange(GivingSocket(transport.folder.path, transport.rank))
    members = node.placement.members
    peers = LocalPeers(transport.rank, origin.processes, origin.hosts)
    return Rank(
        node,
        transport,
        pool,
        log,
        clock,
        Ring(transport.rank, members, settings.rank_timeout_s),
        Bells(transport, pool, stop_bell, peers),
        settings.time_limit_s if settings.time_limit_s is not None else math.inf,
        peers,
    )


def run_newcomer(
    settings: WorldSettings,
    make_log: Callable[[int, int, float], EventSink],
    make_desk: Callable[[Rank], Desk | None],
    exit_code: Callable[[], int],
    server: ForkServer,
    stop_bell: StopBell,
) -> NoReturn:
    """Run a rank that joins a running system: like `run_rank`, but without MPI and a common start."""
    settings = replace(settings, rank_loss=mpi.RankLoss.SURVIVE)  # only such systems let ranks join
    try:
        invitation = read_invitation()
        carrier, newcomer = join(invitation, settings.pes, patience_of(settings.rank_timeout_s))
    except JoinError as error:
        tell(f"{error}; this process ends")
        server.stop()
        os._exit(guard.CRASHED)
    welcome, after = newcomer.welcome, newcomer.generation
    assert welcome is not None, "a member has been welcomed"
    assert after is not None, "it is a member now"
    processes = {each: peer.process for each, peer in newcomer.peers.items()}
    processes[carrier.rank] = process_here()
    hosts = {each: carrier.hosts[each] for each in processes}
    origin = Origin(welcome.founders, welcome.start_s, processes, hosts)
    node = Node(carrier.rank, origin, settings.config, newcomer.membership)
    pes = range(node.first_logged, node.first_logged + len(node.pes))
    pool = WorkerPool(server, _pool_options(settings, pes))
    try:
        log = make_log(carrier.rank, pes[0], welcome.start_s)
        clock = service_clock(invitation.start_s)
        rank = _make_rank(settings, node, origin, carrier, pool, log, stop_bell, clock)
        for problem in (
            watch_memory(settings, rank),
            _log_stimuli(settings, rank, origin, tuple(newcomer.changes)),
            _open_desk(rank, make_desk),
        ):
            if problem is not None:
                tell(problem)
        log.write(rank.now(), LogEvent.JOINED, {"generation": after.number, "pes": len(pes)})
        _run(rank, pes)
        code = exit_code()
        rank.close()
    except BaseException as error:
        tell_error(error)
        pool.close()
        os._exit(guard.CRASHED)
    mpi.leave(carrier.rank, code, closed=False)


def _run(rank: Rank, pes: range) -> None:
    """Run a rank until the system stops; does not return if the others go on without this rank."""
    rank.run()
    if rank.node.end_reason is not None:
        _end_alone(rank, pes)
    for pe in pes:
        rank.log.write(rank.now(), LogEvent.STOP, {}, pe)


def _end_alone(rank: Rank, pes: range) -> NoReturn:
    """End while the other ranks go on."""
    if rank.node.end_reason is EndReason.LEFT:
        guard.leaves()
        for pe in pes:
            rank.log.write(rank.now(), LogEvent.STOP, {}, pe)
        rank.leave()
        os._exit(0)
    tell(f"rank {rank.rank} did not answer for so long that the others go on without it; it ends")
    rank.pool.close()
    rank.log.flush()
    os._exit(guard.CRASHED)


def _end_without_launcher(error: LauncherGone, pool: WorkerPool) -> NoReturn:
    """End without waiting for other ranks, which may have lost their launchers, too."""
    tell(str(error))
    pool.close()
    os._exit(guard.CRASHED)


def watch_memory(settings: WorldSettings, rank: Rank) -> str | None:
    """Set the rank's memory watch if the settings want one; return the error that prevents that."""
    if settings.memory_reserve is None:
        return None
    here = [each for each in rank.node.placement.members if rank.hosts[each] == rank.hosts[rank.rank]]
    path = rank.transfer.folder / "memory"
    try:
        vote = HostVote(path, rank.rank, len(here))
    except OSError as error:
        return f"the memory watch cannot write {path}: {error.strerror}"
    host = host_name()

    def complain(text: str) -> None:
        tell(f"{host} is {text}")

    def log(event: str, fields: Mapping[str, object]) -> None:
        rank.log.write(rank.now(), event, fields)

    watch = MemoryWatch(settings.memory_reserve, rooms, rank.reclaimable, vote, log, complain)
    rank.set_memory_watch(watch, here)
    return None


def _log_stimuli(
    settings: WorldSettings, rank: Rank, origin: Origin, joined: tuple[tuple[float, AnyChange], ...] = ()
) -> str | None:
    """Open the log of stimuli if the settings want one; return the error that prevents that."""
    if settings.stimuli_dir is None:
        return None
    folder = StimulusLog.folder_of_run(settings.stimuli_dir, origin.start_s)
    patience_s = patience_of(settings.rank_timeout_s)
    try:
        rank.stimuli = StimulusLog(folder, rank.node, origin, patience_s, tell, joined)
    except OSError as error:
        return f"--log-stimuli {settings.stimuli_dir}: {error.strerror}"
    return None


def _open_desk(rank: Rank, make_desk: Callable[[Rank], Desk | None]) -> str | None:
    """Open the rank's desk, if it has one; return the error that prevents that."""
    try:
        if (desk := make_desk(rank)) is not None:
            rank.set_desk(desk)
    except DeskError as error:
        return str(error)
    return None
