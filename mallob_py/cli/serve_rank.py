"""A rank of `mallob-py serve`; the rank of a client has the client's job folder (`serve_desk.py`).

If this rank is lost, the folder moves to another rank (`holders`).
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from mallob_py.cli.rank_options import ServeOptions, event_log_of, settings_of
from mallob_py.launchers import EXIT_FILE_VARIABLE
from mallob_py.protocol.placement import heir_of
from mallob_py.runtime import boot
from mallob_py.runtime.desk import Desk
from mallob_py.runtime.notices import tell
from mallob_py.runtime.processes import die_with
from mallob_py.runtime.rank import Rank
from mallob_py.runtime.workers.output import OUTPUT_FOLDER
from mallob_py.runtime.world import guard
from mallob_py.runtime.world.joining import is_invited
from mallob_py.runtime.world.mpi import RankLoss, declared_world_size, spares_others
from mallob_py.service import ServiceError

if TYPE_CHECKING:
    from mallob_py.cli.serve_desk import ClientDesks


def be_rank(options: ServeOptions) -> NoReturn:
    is_of_mpi = EXIT_FILE_VARIABLE in os.environ and declared_world_size(os.environ) > 1
    can_have_guard = guard.is_needed(os.environ)
    is_fork = guard.is_fork(os.environ)
    if is_of_mpi and not is_fork and not is_invited(os.environ):
        # MPI's launcher may miss the end of its proxy, our parent; then nothing else would end this process.
        die_with(os.getppid(), signal.SIGKILL)
    is_alone = declared_world_size(os.environ) == 1  # no other rank can be lost, except ranks that join
    rank_loss = RankLoss.wanted(
        options.rank_loss, is_alone or can_have_guard or is_fork or spares_others(os.environ)
    )
    if can_have_guard and rank_loss is RankLoss.SURVIVE:
        guard.stand_guard()
    if rank_loss is RankLoss.SURVIVE and options.rank_loss == "auto":
        rank_loss = RankLoss.IF_LINKED
    boot.run_rank(
        settings_of(
            options,
            rank_loss,
            clients=options.clients,
            preload=options.preload,
            time_limit_s=options.time_limit_s,
            output_dir=os.path.abspath(os.path.join(options.api_dir, OUTPUT_FOLDER)),
        ),
        event_log_of(options, options.keep_s),
        functools.partial(_open, options),
    )


def _open(options: ServeOptions, rank: Rank) -> Desk | None:
    ranks = rank.node.founders.ranks
    first = [boot.client_rank(client, rank.node.founders) for client in range(min(options.clients, ranks))]
    #: each client's rank; `follow` updates this list in place
    present = holders(first, rank.node.placement.members)
    rank.tell_news_to(present[0])
    if options.clients > ranks and rank.rank in first:
        raise boot.DeskError(f"--clients {options.clients} needs as many ranks, but there are {ranks}")
    desks: list[ClientDesks] = []

    def follow() -> None:
        """Adapt to a changed world, in which clients may have moved to other ranks."""
        before, present[:] = present.copy(), holders(first, rank.node.placement.members)
        rank.tell_news_to(present[0])
        moved = [client for client, holder in enumerate(present) if holder != before[client]]
        if not desks and rank.rank in present:
            desks.append(_desks(options, rank, present))
        if desks:
            desks[0].follow(moved)
        if present[0] == rank.rank and rank.orders is None:
            _take_orders(options, rank, present, is_new_service=False)

    rank.on_change = follow
    if rank.rank not in first:
        return None
    desks.append(_desks(options, rank, present))
    desk = desks[0].begin_with(first.index(rank.rank))
    if rank.rank == first[0]:
        _take_orders(options, rank, present, is_new_service=True)
    return desk


def _desks(options: ServeOptions, rank: Rank, present: list[int]) -> ClientDesks:
    from mallob_py.cli.serve_desk import ClientDesks  # imported late: only clients' ranks need the service

    return ClientDesks(options, rank, present)


def _take_orders(options: ServeOptions, rank: Rank, clients: Sequence[int], *, is_new_service: bool) -> None:
    """Have the first client's rank take the orders given to the service."""
    from mallob_py.service.resizing import Resizing
    from mallob_py.service.store.in_folder import Watching
    from mallob_py.service.store.orders import OrderFolder

    try:
        watching = Watching.POLL if options.poll_directory else Watching.AUTO
        folder = OrderFolder(Path(options.api_dir), is_new_service, watching, tell)
        rank.set_orders(Resizing(rank, folder, clients))
    except ServiceError as error:
        tell(str(error))


def holders(first: Sequence[int], members: tuple[int, ...]) -> list[int]:
    """Return for each client the rank in `members` that has its folder; `first`: the clients' first ranks.

    This must be the rank whose PE gets the client's state from other PEs (`protocol.succession`).
    """
    return [heir_of(own, members) for own in first]
