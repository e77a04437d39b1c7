"""`mallob-py solve | run | serve | web`: start the processes of these commands.

The code of ranks is in other modules (`solve_rank`, `run_rank`, `serve_rank`), because it imports much more.
`solve` and `run` fork their ranks if possible. `serve`, unless started by a launcher, starts ranks, and
restarts them after a crash. `run --check-laws` starts no ranks. `web` is a process on the service's host, or
on any host that shares the api folder. It may start before the service and outlive the service; its exit code
is 0 after Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib
import math
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from mallob_py.applications import DEFAULT_APPLICATION, OURS, application_of, declaration_of
from mallob_py.cli import CommandError
from mallob_py.cli.malleable_job import allotted, order_folder, taking_orders
from mallob_py.cli.values import is_descriptor
from mallob_py.kit.declaration import UNKNOWN
from mallob_py.launchers import EXIT_FILE_VARIABLE, INVITED_VARIABLE, OF_RANKS, RANK_VARIABLES
from mallob_py.runtime.inherited import forget_launcher_of_one
from mallob_py.runtime.notices import tell
from mallob_py.runtime.processes import StopRequests
from mallob_py.runtime.world.forked_world import ForkedServers
from mallob_py.runtime.world.mpi import RankLoss, WorldEnd, declared_world_size, in_mpi_world

if TYPE_CHECKING:
    from mallob_py.cli.client_options import TokenOptions, WebOptions
    from mallob_py.cli.rank_options import RunOptions, ServeOptions, SolveOptions
    from mallob_py.runtime.memory import Room
    from mallob_py.runtime.world.exit_file import ExitFile

    _Named = TypeVar("_Named", SolveOptions, RunOptions)

#: period of looking for a free folder
_LOOK_S = 0.2
#: shortest time limit of ranks
_MOMENT_S = 0.001
#: greatest number of ranks that are started without a check of memory and process limits
_UNSUSPICIOUS = 4
#: smallest memory of a rank, its fork server, a worker, and a process kept ready
_RANK_BYTES = 60 << 20
#: number of processes: a rank, its fork server, a worker, and a process kept ready
_RANK_PROCESSES = 4
#: smallest limits on a rank's data at start and on all its mapped memory: limit, bytes, name, flag of ulimit
_RANK_LIMITS = (
    (resource.RLIMIT_DATA, 64 << 20, "data", "-d"),
    (resource.RLIMIT_AS, 256 << 20, "memory", "-v"),
)
#: modules that every rank of a service needs
_OF_SERVICE = (
    *("cli.serve_rank", "cli.serve_desk", "service.resizing", "service.telemetry.event_log"),
    "runtime.workers.process",
)
#: fork servers that `begin_early` started
_servers: ForkedServers | None = None


def begin_early(words: Sequence[str]) -> None:
    """Start the fork servers of `solve`, whose imports take longest, before its options are parsed.

    The servers import the applications that the `words` of the command line name, or that its files need. If
    the command is refused, the servers end with it. Only the script may call this, and only once: a program
    that calls `main` may have threads.
    """
    global _servers
    if os.environ.keys().isdisjoint(OF_RANKS):
        gc.disable()  # imported objects stay: collecting would take a twelfth of the imports' time
        named = dict.fromkeys(word if word in OURS else application_of(word) for word in words)
        others = [name for name in named if name != DEFAULT_APPLICATION]
        _servers = ForkedServers(tuple(others or (DEFAULT_APPLICATION,)))


def run_solve(options: SolveOptions) -> int:
    from mallob_py.cli.rank_options import STANDARD_INPUT

    _leave_launcher_of_one(options.ranks)
    options = _with_open_files(options)
    keep_input = not set(STANDARD_INPUT).isdisjoint(options.files)
    for file in set(options.files).difference(STANDARD_INPUT):
        _check_is_there(file)

    def be_rank(fork_server: socket.socket | None = None) -> int:
        from mallob_py.cli import solve_rank

        return solve_rank.be_rank(options, fork_server)

    if in_mpi_world():
        _check_takes_no_orders(options.orders)
        return be_rank()
    ranks = ranks_of(options)
    with StopRequests() as stops:
        end = launch(
            ranks,
            "solve",
            be_rank,
            stops,
            options.rank_loss,
            application=options.application_of(options.files[0]),
            keep_input=keep_input,
            orders=options.orders,
        )
    if end.stopped_by is not None and (end.code is None or end.code == 0 or end.code > 128):
        if end.code is None:
            for file in options.files:
                declared = declaration_of(options.application_of(file))
                print(*declared.answer_lines({"resultcode": UNKNOWN}, ()), sep="\n")
        return 128 + end.stopped_by
    return end.exit_code


def run_run(options: RunOptions) -> int:
    _leave_launcher_of_one(options.ranks)
    _check_is_installed(options.application)
    options = _with_open_files(options)
    if options.check_laws:
        return _check_laws(options)
    _log_loans(options.log_loans)

    def be_rank(fork_server: socket.socket | None = None) -> int:
        from mallob_py.cli import run_rank

        return run_rank.be_rank(options, fork_server)

    if in_mpi_world():
        _check_takes_no_orders(options.orders)
        return be_rank()
    with StopRequests() as stops:
        end = launch(
            ranks_of(options),
            "run",
            be_rank,
            stops,
            options.rank_loss,
            application=options.application,
            orders=options.orders,
        )
    if end.stopped_by is not None and (end.code is None or end.code > 128):
        return 128 + end.stopped_by
    return end.exit_code


def _leave_launcher_of_one(ranks: int | None) -> None:
    """Ignore a launcher that started one process if several ranks are wanted: this command starts them."""
    is_ours = EXIT_FILE_VARIABLE in os.environ or INVITED_VARIABLE in os.environ
    if (ranks or 0) > 1 and in_mpi_world() and not is_ours and declared_world_size(os.environ) == 1:
        forget_launcher_of_one(os.environ)


def _check_is_there(file: str) -> None:
    try:
        os.stat(file)
    except FileNotFoundError:
        is_left_behind = in_mpi_world() and is_descriptor(file)
        hint = "; under a launcher, pipes of the shell do not reach ranks: name a file" * is_left_behind
        raise CommandError(f"{file}: no such file{hint}") from None


def _with_open_files(options: _Named) -> _Named:
    """Replace names of files that are open in this process, such as `<(...)`, by names for all ranks."""
    if in_mpi_world():
        return options
    places = {
        file: f"/proc/{os.getpid()}/fd/{os.path.basename(file)}"
        for file in options.files
        if is_descriptor(file) and os.path.exists(file)
    }
    if not places:
        return options
    sys.argv[1:] = [places.get(word, word) for word in sys.argv[1:]]
    return dataclasses.replace(options, files=tuple(places.get(file, file) for file in options.files))


def _check_takes_no_orders(orders: str | None) -> None:
    """Refuse `--orders` under a launcher of MPI, which ends all ranks when one ends."""
    if orders is not None and INVITED_VARIABLE not in os.environ:
        raise CommandError("--orders is for ranks that this command starts itself (-n), with MPICH")


def _check_is_installed(application: str) -> None:
    from mallob_py.applications import UnknownApplication, place_of

    try:
        place_of(application)
    except UnknownApplication as error:
        raise CommandError(str(error)) from None


def _check_laws(options: RunOptions) -> int:
    """Check, without ranks, whether an application obeys the laws for applications; return the exit code."""
    from mallob_py.applications import imported, place_of
    from mallob_py.kit import Application, InputError, JobInput

    name, configuration = options.application, options.whole_configuration
    try:
        application: Application = imported(place_of(name))()
        application.check(configuration)
        job = JobInput(tuple(map(os.path.abspath, options.files)), configuration=configuration)
        payload = application.read(job)
    except InputError as error:
        raise CommandError(error.message) from None
    except Exception as error:
        raise CommandError(f"{name} cannot be used: {type(error).__name__}: {error}") from error
    try:
        checked = application.check_laws(payload, configuration)
    except NotImplementedError as error:
        raise CommandError(str(error)) from None
    except Exception as error:
        raise CommandError(f"{name}: {error}") from error
    print(f"{name}: {checked}")
    return 0


def _log_loans(folder: str | None) -> None:
    """Make the folder for logs of lent tasks; pass its path to workers by an environment variable."""
    if folder is None:
        return
    from mallob_py.kit.bags.application import LOG_LOANS

    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise CommandError(f"--log-loans {folder} cannot be made: {error.strerror}") from None
    os.environ[LOG_LOANS] = os.path.abspath(folder)


def run_serve(options: ServeOptions) -> int:
    from mallob_py.runtime.notices import with_time_stamps

    with_time_stamps()
    _leave_launcher_of_one(options.ranks)
    try:
        Path(options.api_dir).absolute()
    except FileNotFoundError:
        raise CommandError(f"--api-dir {options.api_dir}: the working folder has been removed") from None
    for application in options.preload:
        _check_is_installed(application)
    _log_loans(options.log_loans)
    if _is_first_process():
        from mallob_py.cli.doctor import problems_here

        for problem in problems_here():
            tell(problem)
    if options.on_end is not None and _is_first_process():
        from mallob_py.cli import on_end

        on_end.start(Path(options.api_dir), options.on_end)
    ranks = ranks_of(options)
    end_s = None if options.time_limit_s is None else time.monotonic() + options.time_limit_s
    if options.wait and INVITED_VARIABLE not in os.environ:
        _collect_from_now_on()
        if not _wait_for_folders(options, math.inf if end_s is None else end_s):
            return 0
        if end_s is not None:
            options = with_time_left(options, end_s - time.monotonic())
    from mallob_py.runtime.processes import want_no_numeric_threads

    want_no_numeric_threads()
    if in_mpi_world() or (ranks == 1 and options.restarts == 0):
        from mallob_py.cli.serve_rank import be_rank

        _collect_from_now_on()
        return be_rank(options)
    from mallob_py.runtime.world.launch import run_world, supervise

    def ranks_again(before: int) -> int:
        from mallob_py.service.store.orders import ordered_ranks

        return max(options.clients, ordered_ranks(Path(options.api_dir)) or before)

    def run(count: int, env: Mapping[str, str], stops: StopRequests) -> WorldEnd:
        now = options if end_s is None else with_time_left(options, end_s - time.monotonic())
        if _allows_forks():
            return _run_forks(now, count, env, stops)
        _collect_from_now_on()
        # The changed options come last, because the last value of a repeated option counts.
        argv = ["-m", "mallob_py.cli.main", *sys.argv[1:]]
        if count != ranks:
            argv += ["-n", str(count)]
        if now.time_limit_s is not None:
            argv += ["--time-limit", f"{now.time_limit_s:.3f}s"]
        return run_world(count, argv, env, stops, options.rank_timeout_s)

    survives = RankLoss.wanted(options.rank_loss, launcher_spares_others=True) is RankLoss.SURVIVE
    with taking_orders(ranks, survives, Path(options.api_dir)):
        return supervise(ranks, run, options.restarts, ranks_again)


def _collect_from_now_on() -> None:
    """Enable garbage collections after imports, whose objects no collection needs to examine."""
    gc.freeze()
    gc.enable()


def _is_first_process() -> bool:
    """Tell whether this is the process that the user started, or the first rank of a launcher."""
    if EXIT_FILE_VARIABLE in os.environ or INVITED_VARIABLE in os.environ:
        return False
    return all(os.environ.get(variable, "0") == "0" for variable in RANK_VARIABLES)


def with_time_left(options: ServeOptions, left_s: float) -> ServeOptions:
    """Return the options for ranks that are started now: their time limit is the time left to the command."""
    return dataclasses.replace(options, time_limit_s=max(_MOMENT_S, left_s))


def _allows_forks() -> bool:
    """Tell whether ranks can be forks of this process; if so, import what ranks need."""
    if threading.active_count() > 1:  # such as the thread that takes a scheduler's orders
        return False
    from mallob_py.runtime.world.forked_world import library_allows_forks

    for module in _OF_SERVICE:
        importlib.import_module(f"mallob_py.{module}")
    if not library_allows_forks():
        return False
    importlib.import_module("mallob_py.runtime.world.transport")
    return True


def _run_forks(options: ServeOptions, ranks: int, env: Mapping[str, str], stops: StopRequests) -> WorldEnd:
    from mallob_py.cli.main import outcome_of
    from mallob_py.cli.serve_rank import be_rank
    from mallob_py.runtime.world.forked_world import ForkedWorld
    from mallob_py.runtime.world.launch import with_exit_file

    _collect_from_now_on()

    def outcome_of_rank(_fork_server: socket.socket | None) -> int:
        return outcome_of("mallob-py serve", lambda: be_rank(options))

    def run_world(exit_file: ExitFile) -> WorldEnd:
        if stops.first is not None:
            return WorldEnd(None, False, 0, stops.first)
        world = ForkedWorld(
            ranks,
            outcome_of_rank,
            stops,
            title="mallob-py serve: rank",
            env={**env, **exit_file.environment},
            rank_loss=RankLoss.wanted(options.rank_loss, launcher_spares_others=True),
        )
        return world.wait(exit_file)

    return with_exit_file(run_world, options.rank_timeout_s)


def _wait_for_folders(options: ServeOptions, until_s: float) -> bool:
    """Wait until no other service uses a client's folder; return False if this service must end earlier.

    Every rank waits before it starts MPI. So the first rank takes the folders only after all ranks have seen
    the folders free.
    """
    from mallob_py.service.store.lock import holder_of

    folders = [Path(options.api_dir).absolute() / f"jobs.{client}" for client in range(options.clients)]
    is_told = any(os.environ.get(name, "0") != "0" for name in RANK_VARIABLES)  # the first rank reports it
    with StopRequests() as stops:
        while held := next(((each, who) for each in folders if (who := holder_of(each)) is not None), None):
            if not is_told:
                is_told = True
                tell(f"{held[0]} is used by a running service ({held[1]}); waiting until it ends")
            # No event announces a released lock, and blocking on it would ignore signals.
            stops.wait(min(_LOOK_S, until_s - time.monotonic()))
            if stops.first is not None or time.monotonic() > until_s:
                return False
    return True


def run_web(options: WebOptions) -> int:
    try:
        from mallob_py.batch.live.overview import batch_overview
        from mallob_py.web.receiving import Limits
        from mallob_py.web.server import serve
    except ModuleNotFoundError as error:
        raise CommandError(f"{error.name} is missing; install it: pip install starlette uvicorn") from None
    if options.allow_paths is not None and not Path(options.allow_paths).is_dir():
        raise CommandError(f"--allow-paths {options.allow_paths} is no folder")
    serve(
        Path(options.api_dir),
        options.client,
        options.host,
        options.port,
        None if options.token_file is None else Path(options.token_file),
        None if options.allow_paths is None else Path(options.allow_paths),
        Limits(options.upload_limit_bytes, options.input_limit_bytes, options.store_limit_bytes),
        None if options.batch_dir is None else partial(batch_overview, Path(options.batch_dir)),
    )
    return 0


def run_token(options: TokenOptions) -> int:
    from mallob_py.service.jobs.job_file import unfit_for_file_name
    from mallob_py.web import tokens

    api_dir = Path(options.api_dir)
    if not api_dir.is_dir():
        raise CommandError(f"{api_dir} is no folder of a service; name it with --api-dir")
    if problem := unfit_for_file_name(options.user):
        raise CommandError(f"the user {options.user[:60]!r} {problem}")
    if not options.remove:
        print(tokens.grant(api_dir, options.user))
        return 0
    if not tokens.revoke(api_dir, options.user):
        raise CommandError(f"{options.user} has no token in {api_dir}")
    return 0


# --- how many ranks ------------------------------------------------------------------------


def ranks_of(options: SolveOptions | RunOptions | ServeOptions) -> int:
    """Return how many ranks to start: as given, else one per slot of a malleable job or per usable core.

    Raises CommandError if memory or limits of processes do not suffice.
    """
    for limit, needed, what, flag in _RANK_LIMITS:
        if 0 <= (allowed := resource.getrlimit(limit)[0]) < needed:  # a value below 0 means no limit
            raise CommandError(
                f"a process may have {allowed >> 20} MB of {what}, and a rank needs {needed >> 20} MB:"
                f" raise this limit (ulimit {flag})"
            )
    ranks = options.ranks or allotted() or len(os.sched_getaffinity(0))
    if ranks > _UNSUSPICIOUS and not options.many_ranks and not in_mpi_world():
        from mallob_py.runtime.memory import rooms

        bound, reason = min(_bounds(rooms()), default=(ranks, ""))
        if ranks > bound:
            raise CommandError(
                f"-n {ranks} is too many: {reason}, enough for about {bound} ranks (--many-ranks starts all)"
            )
    return ranks


def _bounds(rooms: list[Room]) -> Iterator[tuple[int, str]]:
    """Yield upper bounds on the number of ranks, each with its reason."""
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


# --- ranks as forks, or by mpiexec ---------------------------------------------------------


def launch(
    ranks: int,
    command: str,
    be_rank: Callable[[socket.socket | None], int],
    stops: StopRequests,
    rank_loss: str,
    *,
    application: str = DEFAULT_APPLICATION,
    keep_input: bool = False,
    orders: str | None = None,
) -> WorldEnd:
    """Run this command on `ranks` ranks of this machine; return how the ranks ended.

    If ranks can be forks of this process, `be_rank(fork server)` is called in each rank; the modules for
    `command` are imported before the forks, and `application` by the ranks' fork servers. Otherwise mpiexec
    starts the ranks with the same arguments.
    """
    from mallob_py.cli.main import outcome_of
    from mallob_py.runtime.processes import raise_descriptor_limit
    from mallob_py.runtime.world.forked_world import ForkedWorld, library_allows_forks
    from mallob_py.runtime.world.session_folder import nothing_left

    def outcome_of_rank(fork_server: socket.socket | None) -> int:
        return outcome_of(f"mallob-py {command}", lambda: be_rank(fork_server))

    raise_descriptor_limit()
    with nothing_left():
        servers = _servers or ForkedServers((application,))
        servers.open(ranks)
        importlib.import_module(f"mallob_py.cli.{command}_rank")
        _collect_from_now_on()
        if library_allows_forks():
            importlib.import_module("mallob_py.runtime.world.transport")
            if stops.first is not None:
                return WorldEnd(None, False, 0, stops.first)
            loss = RankLoss.wanted(rank_loss, launcher_spares_others=True)
            with order_folder(orders) as folder:
                world = ForkedWorld(
                    ranks,
                    outcome_of_rank,
                    stops,
                    title=f"mallob-py {command}: rank",
                    servers=servers,
                    keep_input=keep_input,
                    rank_loss=loss,
                )
                with taking_orders(ranks, loss is RankLoss.SURVIVE, folder):
                    return world.wait()
        servers.close()
    _check_takes_no_orders(orders)
    from mallob_py.runtime.world.launch import run_world

    return run_world(ranks, ["-m", "mallob_py", *sys.argv[1:]], os.environ, stops, keep_input=keep_input)
