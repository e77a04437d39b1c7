"""Where the jobs of `mallob-py serve` come in: the job folder of a client, on the rank that has it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from mallob_py.applications import our_declarations
from mallob_py.cli.rank_options import ServeOptions
from mallob_py.runtime import boot
from mallob_py.runtime.notices import tell
from mallob_py.runtime.rank import Rank
from mallob_py.runtime.worker_wire import ApplicationTraits
from mallob_py.runtime.world.mpi import Crash
from mallob_py.service import ServiceError
from mallob_py.service.jobs.crashes import RunningJobs
from mallob_py.service.jobs.job_file import InputUse
from mallob_py.service.jobs.reply import RESULTS_FOLDER, ResultFiles
from mallob_py.service.jobs.users import UserBook, read_user_rules
from mallob_py.service.service import Service
from mallob_py.service.store.directory import JobDirectory, ThreadedDirectory, orphaned_folders
from mallob_py.service.store.flush_policy import Buffered, Durable
from mallob_py.service.store.in_folder import Watching
from mallob_py.service.turns import Decider


def open_desk(
    options: ServeOptions, rank: Rank, client: int, clients: Sequence[int], others: Set[int] | None = None
) -> Service:
    """The desk of that client; `clients` are the ranks of all, now and later. Raises `boot.DeskError`.

    `others`: of a client that is taken over from a rank that is gone, those that go on where they are.
    """
    api_dir = Path(options.api_dir)
    is_taken_over = others is not None

    def complain(message: str) -> None:
        tell(message)
        rank.log.write(rank.now(), "problem", {"message": message})

    if options.results_dir is not None:
        _check_results_dir(options.results_dir, options.api_dir)
    try:
        users = None
        if options.users is not None:
            rules = read_user_rules(Path(options.users))
            users = UserBook(rules, rank.placement.size, client, options.clients, others)
        policy = None if options.policy is None else _policy(options.policy, rank, complain)
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
    return Service(
        rank,
        directory,
        {name: _use_of(one) for name, one in known.items()},
        RunningJobs(directory.path, Crash.KILLED if is_taken_over else Crash.told(os.environ), complain),
        api_dir,
        client,
        clients,
        options.chain_timeout_s,
        functools.partial(with_defaults, options.defaults),
        ResultFiles(results_dir, directory.path, {name: one.result_files for name, one in known.items()}),
        users,
        policy,
        functools.partial(_greet, rank, client, is_taken_over),
    )


def _policy(text: str, rank: Rank, complain: Callable[[str], None]) -> Decider:
    """Raises DeskError."""
    from mallob_py.batch.live.service_policy import ServicePolicy
    from mallob_py.batch.registry import PolicyTextError, policy_for

    try:
        return ServicePolicy(policy_for(text), rank.placement.size, complain)
    except PolicyTextError as error:
        raise boot.DeskError(f"--policy: {error}") from error


def _greet(rank: Rank, client: int, has_moved: bool, folder: Path) -> None:
    """Say that jobs are taken in now, once for the service, and once when a client has moved."""
    if has_moved:
        tell(f"jobs in {folder} go on at rank {rank.rank}")
    elif client == 0:
        print(f"mallob-py: {rank.placement.describe()}, accepting jobs in {folder}", flush=True)


def _check_results_dir(results_dir: str, api_dir: str) -> None:
    """Raises DeskError."""
    paths = [os.path.realpath(results_dir), os.path.realpath(api_dir)]
    if os.path.commonpath(paths) in paths:
        raise boot.DeskError(
            f"--results-dir {results_dir} and --api-dir {api_dir} overlap, so that jobs could write job files"
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
    """A job's configuration with what the service's options say, unless it says so itself."""
    whole = dict(configuration)
    for declared in our_declarations():
        one = declared.service_option
        if one is None or declared.name != application or declared.settles_default & configuration.keys():
            continue
        if one.key in defaults:
            whole[one.key] = defaults[one.key]
    return whole
