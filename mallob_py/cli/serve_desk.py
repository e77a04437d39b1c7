"""The desk of `mallob-py serve`: a client's job folder, on the client's rank."""

from __future__ import annotations

import functools
import math
import os
import select
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mallob_py.applications import our_declarations
from mallob_py.cli.rank_options import ServeOptions
from mallob_py.log_events import LogEvent
from mallob_py.runtime import boot
from mallob_py.runtime.desk import Desk, JobNews
from mallob_py.runtime.notices import tell
from mallob_py.runtime.rank import Rank
from mallob_py.runtime.worker_wire import ApplicationTraits
from mallob_py.runtime.workers.tasks import ReadDone, ReadFailed, ReadGoesOn, ReadStalled, WorkerEvent
from mallob_py.runtime.world.mpi import Crash
from mallob_py.service import ServiceError
from mallob_py.service.intake import CodeRule
from mallob_py.service.jobs.crashes import RunningJobs
from mallob_py.service.jobs.job_file import InputUse
from mallob_py.service.jobs.reply import RESULTS_FOLDER, ResultFiles
from mallob_py.service.jobs.users import UserRules, read_user_rules
from mallob_py.service.service import Service, ServiceSetting, decode_client_message
from mallob_py.service.store.directory import JobDirectory, ThreadedDirectory, orphaned_folders
from mallob_py.service.store.flush_policy import Buffered, Durable
from mallob_py.service.store.in_folder import Watching


def open_desk(
    options: ServeOptions, rank: Rank, client: int, clients: Sequence[int], is_taken_over: bool = False
) -> Service:
    """Open the desk of a client. Raises `boot.DeskError`.

    `clients`: each client's rank, kept up to date; `is_taken_over`: the client's former rank is lost.
    """
    api_dir = Path(options.api_dir)

    def complain(message: str) -> None:
        tell(message)
        rank.log.write(rank.now(), LogEvent.PROBLEM, {"message": message})

    if options.results_dir is not None:
        _check_results_dir(options.results_dir, options.api_dir)
    try:
        rules = UserRules() if options.users is None else read_user_rules(Path(options.users))
        directory = _directory(options, client, complain)
    except ServiceError as error:
        raise boot.DeskError(str(error)) from error
    if client == 0 and not is_taken_over:
        for folder in orphaned_folders(api_dir, options.clients):
            complain(f"{folder} holds unanswered jobs of a client that is not running; raise --clients")
    known = rank.pool.wait_for_applications()
    results_dir = (
        directory.path / RESULTS_FOLDER if options.results_dir is None else Path(options.results_dir)
    )
    setting = ServiceSetting(
        api_dir,
        client,
        clients,
        {name: _use_of(one) for name, one in known.items()},
        # An application whose traits cannot be read may run code.
        CodeRule({name for name, one in known.items() if one.runs_code or one.problem}, options.allow_code),
        functools.partial(with_defaults, options.defaults),
        rules,
        options.chain_timeout_s,
        options.keep_s,
        functools.partial(_greet, rank, client, is_taken_over),
    )
    return Service(
        rank,
        directory,
        RunningJobs(directory.path, Crash.KILLED if is_taken_over else Crash.told(os.environ), complain),
        ResultFiles(results_dir, directory.path, {name: one.result_files for name, one in known.items()}),
        setting,
    )


def _greet(rank: Rank, client: int, has_moved: bool, folder: Path) -> None:
    """Announce that the service accepts jobs, or that a moved client's jobs go on at this rank."""
    if has_moved:
        tell(f"jobs in {folder} go on at rank {rank.rank}")
    elif client == 0:
        print(f"mallob-py: {rank.node.placement.describe()}, accepting jobs in {folder}", flush=True)


def _check_results_dir(results_dir: str, api_dir: str) -> None:
    """Refuse a folder of results that overlaps the api folder. Raises DeskError."""
    paths = [os.path.realpath(results_dir), os.path.realpath(api_dir)]
    if os.path.commonpath(paths) in paths:
        raise boot.DeskError(
            f"--results-dir {results_dir} and --api-dir {api_dir} overlap, so jobs could write job files"
            " and replies; name another folder for results"
        )
    try:
        os.makedirs(results_dir, exist_ok=True)
    except OSError as error:
        raise boot.DeskError(f"--results-dir {results_dir} cannot be made: {error.strerror}") from None


def _directory(
    options: ServeOptions, client: int, complain: Callable[[str], None]
) -> JobDirectory | ThreadedDirectory:
    def directory(log: Callable[[str], None]) -> JobDirectory:
        return JobDirectory(
            Path(options.api_dir),
            client,
            options.clients,
            Path(options.tmp_dir) if options.tmp_dir else None,
            Watching.POLL if options.poll_directory else Watching.AUTO,
            log,
            flush_policy=Durable() if options.durable else Buffered(),
            size_max_bytes=options.max_job_file_bytes,
        )

    return ThreadedDirectory(directory, complain) if options.durable else directory(complain)


def _use_of(application: ApplicationTraits) -> InputUse:
    if application.problem:
        return InputUse.UNKNOWN
    if application.revises:
        return InputUse.REVISIONS
    return InputUse.REQUIRED if application.takes_input else InputUse.NONE


def with_defaults(
    defaults: Mapping[str, Any], application: str, configuration: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a job's configuration, completed by the defaults that the service's options set."""
    whole = dict(configuration)
    for declared in our_declarations():
        one = declared.service_option
        if one is None or declared.name != application or declared.settles_default & configuration.keys():
            continue
        if one.key in defaults:
            whole[one.key] = defaults[one.key]
    return whole


#: time between two tries to lock a folder: a killed process holds its locks until it has ended
_TRY_AGAIN_S = 0.2
#: time for which another process may hold a folder's lock before a message says so
_PATIENCE_S = 5.0


@dataclass(slots=True)
class _Wanted:
    """A client that this rank is to take over from another rank."""

    #: time when the takeover began
    since_s: float
    #: time when the takeover is tried next
    next_try_s: float
    #: messages of other clients to this client: (rank of the sender, message)
    said: list[tuple[int, bytes]] = field(default_factory=list)


class ClientDesks(Desk):
    """The clients of one rank (a `runtime.rank.Desk`): usually none or one, more after other ranks are lost.

    If a client's rank is lost, another rank takes over the client with its folder: the folder's journal names
    the jobs without a reply, which go on under their numbers, as after a restart of the service. The rank
    that holds the folder's lock has the client. While another process holds the lock, such as a hanging rank
    on another host, the takeover is tried again.

    A rank with only its first client uses that client's desk directly; after a takeover, this object passes
    events of a job on to the job's client.
    """

    def __init__(self, options: ServeOptions, rank: Rank, ranks: Sequence[int]) -> None:
        """Create the object without clients; `ranks`: each client's rank, kept up to date."""
        self._options = options
        self._rank = rank
        self._ranks = ranks
        #: client -> its service
        self._services: dict[int, Service] = {}
        #: clients to be taken over
        self._wanted: dict[int, _Wanted] = {}
        self._epoll = select.epoll()
        self._is_between = False

    def begin_with(self, client: int) -> Service:
        """Open the first client's desk. Raises `boot.DeskError`."""
        service = self._services[client] = open_desk(self._options, self._rank, client, self._ranks)
        return service

    def follow(self, moved: Sequence[int]) -> None:
        """Adapt to a changed world, in which the clients `moved` have moved to other ranks."""
        now = self._rank.now()
        for wanted in self._wanted.values():
            wanted.said = [each for each in wanted.said if decode_client_message(each[1]).source not in moved]
        for client in moved:
            if self._ranks[client] == self._rank.rank:
                self._wanted[client] = _Wanted(now, now)
        if self._wanted and not self._is_between:
            self._is_between = True
            for service in self._services.values():
                self._watch(service)
            self._rank.set_desk(self)
        for service in self._services.values():
            service.world_changed(moved)

    def _watch(self, service: Service) -> None:
        if (bell := service.fileno()) is not None:
            self._epoll.register(bell, select.EPOLLIN)

    def _take_over(self, client: int, now: float) -> None:
        wanted = self._wanted[client]
        try:
            service = open_desk(self._options, self._rank, client, self._ranks, True)
        except boot.DeskError as error:
            if wanted.since_s <= now - _PATIENCE_S:
                tell(f"client {client} cannot go on here yet: {error}")
                wanted.since_s = math.inf
            wanted.next_try_s = now + _TRY_AGAIN_S
            return
        del self._wanted[client]
        self._services[client] = service
        self._watch(service)
        for rank, data in wanted.said:
            service.hear(rank, data, now)

    # --- calls of the event loop ----------------------------------------------------------

    def fileno(self) -> int:
        return self._epoll.fileno()

    @property
    def deadline_s(self) -> float:
        tries = (wanted.next_try_s for wanted in self._wanted.values())
        turns = (service.deadline_s for service in self._services.values())
        return min(min(tries, default=math.inf), min(turns, default=math.inf))

    def turn(self, now: float) -> None:
        for client in [client for client, wanted in self._wanted.items() if wanted.next_try_s <= now]:
            self._take_over(client, now)
        for service in self._services.values():
            service.turn(now)

    def hear(self, rank: int, data: bytes, now: float) -> None:
        client = decode_client_message(data).dest
        if client in self._services:
            self._services[client].hear(rank, data, now)
        elif client in self._wanted:
            self._wanted[client].said.append((rank, data))

    def close(self) -> None:
        for service in self._services.values():
            service.close()
        self._epoll.close()

    def hand_over(self) -> None:
        for service in self._services.values():
            service.hand_over()

    # --- messages for a job's client ----------------------------------------------------------

    def _client_of(self, job: int) -> Service | None:
        return next((service for service in self._services.values() if service.has(job)), None)

    def hear_of_job(self, news: JobNews, now: float) -> None:
        if (service := self._client_of(news.job)) is not None:
            service.hear_of_job(news, now)

    def worker_event(self, event: WorkerEvent, now: float) -> None:
        match event:
            case ReadDone(job) | ReadFailed(job) | ReadStalled(job) | ReadGoesOn(job):
                if (service := self._client_of(job)) is not None:
                    service.worker_event(event, now)
