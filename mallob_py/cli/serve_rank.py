"""A rank of `mallob-py serve`: on client ranks with a job folder (`serve_desk.py`)."""

from __future__ import annotations

import functools
import os
import signal
from typing import NoReturn

from mallob_py.cli.rank_options import ServeOptions, event_log_of, settings_of
from mallob_py.runtime import boot
from mallob_py.runtime.processes import die_with
from mallob_py.runtime.rank import Desk, Rank
from mallob_py.runtime.world.mpi import EXIT_FILE_VARIABLE, declared_world_size


def be_rank(options: ServeOptions) -> NoReturn:
    if EXIT_FILE_VARIABLE in os.environ and declared_world_size(os.environ) > 1:
        # MPI's launcher does not always notice that its proxy, our parent, is gone; nobody else would end us.
        die_with(os.getppid(), signal.SIGKILL)
    boot.run_rank(
        settings_of(
            options, clients=options.clients, preload=options.preload, time_limit_s=options.time_limit_s
        ),
        event_log_of(options),
        functools.partial(_open, options),
    )


def _open(options: ServeOptions, rank: Rank) -> Desk | None:
    ranks = rank.placement.ranks
    clients = [boot.client_rank(client, rank.placement) for client in range(min(options.clients, ranks))]
    rank.tell_news_to(clients[0])
    if rank.rank not in clients:
        return None
    if options.clients > ranks:
        raise boot.DeskError(f"--clients {options.clients} needs as many ranks, but there are {ranks}")
    from mallob_py.cli.serve_desk import open_desk  # imports the service, which other ranks do without

    return open_desk(options, rank, clients.index(rank.rank), clients)
