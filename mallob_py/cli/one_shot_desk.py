"""The base class of the desks of `solve` and `run`: the part of one rank that submits one user's jobs.

All ranks end when the last job has ended.
"""

from __future__ import annotations

import math
import os
import socket
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TextIO

import msgspec

from mallob_py.cli.malleable_job import ORDERS_VARIABLE
from mallob_py.cli.rank_options import STANDARD_INPUT, event_log_of, settings_of
from mallob_py.kit.declaration import UNKNOWN
from mallob_py.protocol.effects import JobEnded
from mallob_py.protocol.messages import Description
from mallob_py.runtime import boot
from mallob_py.runtime import worker_wire as wire
from mallob_py.runtime.desk import Desk, JobNews
from mallob_py.runtime.notices import tell
from mallob_py.runtime.rank import INLINE_BYTES_MAX, Rank, portable
from mallob_py.runtime.world.mpi import RankLoss

if TYPE_CHECKING:
    from mallob_py.cli.rank_options import RunOptions, SolveOptions


#: file in the session's folder with the answered jobs, and its size
_NOTE, _NOTE_BYTES = "answered", 100


class Answered(msgspec.Struct, frozen=True, array_like=True):
    """The desk's progress, from which another rank continues if the desk's rank is lost."""

    #: number of jobs that were answered or failed
    count: int = 0
    #: result of the last job
    result: int = UNKNOWN
    #: exit code of the last job
    code: int = 0
    has_failed: bool = False


class OneDesk(Desk):
    """The desk, which submits jobs, on one rank; a stand-in on all others. If its rank is lost, it moves.

    Only the desk's rank knows the answered jobs. So it must report them to the other ranks after each answer,
    also after the last one: by messages, and to the ranks of its host by a file as well, because messages of
    a killed rank may be lost. A rank that replaces the desk's rank begins with the first unanswered job,
    under the job's old number, so that the workers on the other ranks continue.
    """

    def __init__(
        self, rank: Rank, make: Callable[[Answered], Desk], take_orders: Callable[[], None] | None
    ) -> None:
        """Create the stand-in; `make(answered)` makes the desk for the jobs that have no answer.

        `take_orders` has this rank take orders; None: the command takes no orders.
        """
        self._rank = rank
        self._take_orders = take_orders
        self._hear_of_ranks()
        self._make = make
        self._answered = Answered()
        self._note = rank.transfer.folder / _NOTE
        #: the desk; None: the desk is on another rank
        self.desk: Desk | None = None
        rank.on_change = self._follow

    def open(self) -> Desk:
        """Return this rank's desk, or the stand-in."""
        return self._begin() if self._is_ours() else self

    def tell_answered(self, answered: Answered) -> None:
        """Report the answered jobs to the other ranks."""
        self._answered = answered
        if self._rank.node.survives:
            self._note_answered()
            data = msgspec.msgpack.encode(answered)
            for rank in self._rank.node.placement.members:
                if rank != self._rank.rank:
                    self._rank.tell_desk(rank, data)

    def _note_answered(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        with suppress(OSError), open(os.open(self._note, flags, 0o600), "wb", buffering=0) as note:
            note.write(msgspec.json.encode(self._answered).ljust(_NOTE_BYTES))

    def _hear_of_answered(self, told: Answered) -> None:
        self._answered = max(self._answered, told, key=lambda each: each.count)

    def _is_ours(self) -> bool:
        return self._rank.rank == self._rank.node.placement.members[0]

    def _hear_of_ranks(self) -> None:
        if self._take_orders is not None:
            self._rank.tell_news_to(self._rank.node.placement.members[0])

    def _begin(self) -> Desk:
        if self._take_orders is not None:
            self._take_orders()
        with suppress(OSError, msgspec.DecodeError):
            self._hear_of_answered(msgspec.json.decode(self._note.read_bytes(), type=Answered))
        self.desk = self._make(self._answered)
        return self.desk

    def _follow(self) -> None:
        self._hear_of_ranks()
        if self.desk is not None:
            self.tell_answered(self._answered)  # ranks that have joined must know the answered jobs, too
        elif self._is_ours():
            self._rank.set_desk(self._begin())

    # --- the interface of a desk, without jobs ------------------------------------------------

    def hear(self, rank: int, data: bytes, now: float) -> None:
        self._hear_of_answered(msgspec.msgpack.decode(data, type=Answered))


class OneShotDesk(Desk):
    """The base class of desks. `_is_busy`: whether a job runs; `_limit_s`: time when all jobs must end."""

    #: time between reports of progress
    progress_s: ClassVar[float]

    def __init__(self, rank: Rank, time_limit_s: float | None) -> None:
        self._rank = rank
        self._limit_s = math.inf if time_limit_s is None else time_limit_s
        self._next_progress_s = math.inf
        self._is_busy = False

    @property
    @abstractmethod
    def exit_code(self) -> int: ...

    @abstractmethod
    def _begin(self, now: float) -> None:
        """Begin the next job, or end all ranks after the last job."""

    @abstractmethod
    def _time_is_up(self, now: float) -> None: ...

    @abstractmethod
    def _tell_progress(self, now: float) -> None: ...

    @abstractmethod
    def _job_ended(self, ended: JobEnded, now: float) -> None: ...

    # --- calls of the event loop ----------------------------------------------------------

    @property
    def deadline_s(self) -> float:
        return min(self._next_progress_s, self._limit_s) if self._is_busy else -math.inf

    def turn(self, now: float) -> None:
        if not self._is_busy:
            self._begin(now)
        elif now >= self._limit_s:
            self._limit_s = math.inf
            self._time_is_up(now)
        elif now >= self._next_progress_s:
            self._next_progress_s = now + self.progress_s
            self._tell_progress(now)

    def hear_of_job(self, news: JobNews, now: float) -> None:
        if isinstance(news, JobEnded):
            self._job_ended(news, now)

    # --- a job ----------------------------------------------------------------------------

    def _read(
        self, job: int, application: str, files: tuple[str, ...], configuration: Mapping[str, Any]
    ) -> None:
        path = self._rank.transfer.path_to_read(job)
        names = tuple(map(os.fsencode, files))
        task = wire.Read(application, names, None, dict(configuration), path, INLINE_BYTES_MAX)
        self._rank.pool.read(job, task)

    def _brought(self, job: int, description: wire.LocalDescription) -> Description:
        """Attach the description that was read, and return it in the form in which the job is submitted."""
        if isinstance(description, wire.Mapped):
            self._rank.transfer.bring(job, description.path)
        return portable(description)

    def _interrupt(self, job: int) -> bool:
        """End a job; return False if its input was still being read: no end of the job is then reported."""
        self._rank.pool.cancel_read(job)
        return self._rank.interrupt(job)

    def _workers(self, job: int) -> str:
        volume = self._rank.node.pe.balancer.volume(job) or 0
        return f"{volume} worker{'s' * (volume != 1)}"


def be_rank(
    options: SolveOptions | RunOptions,
    application: str,
    desk_of: Callable[[Rank, Answered, Callable[[Answered], None]], OneShotDesk],
    fork_server: socket.socket | None,
) -> NoReturn:
    """Run a rank until its end. The exit code is the desk's; the desk is on rank 0 unless rank 0 is lost.

    `desk_of(rank, answered, tell_answered)` makes the desk for the jobs without an answer; the desk must call
    `tell_answered` after each answer.
    """
    desks: list[OneShotDesk] = []
    orders = options.orders or os.environ.get(ORDERS_VARIABLE)

    def open_desk(rank: Rank) -> Desk | None:
        def make(answered: Answered) -> OneShotDesk:
            desks.append(desk_of(rank, answered, one.tell_answered))
            return desks[0]

        def take_orders() -> None:
            assert orders is not None
            _take_orders(rank, Path(orders), has_input=not set(STANDARD_INPUT).isdisjoint(options.files))

        one = OneDesk(rank, make, None if orders is None else take_orders)
        return one.open() if rank.node.survives or rank.rank == 0 else None

    boot.run_rank(
        settings_of(
            options,
            RankLoss.wanted(options.rank_loss, launcher_spares_others=fork_server is not None),
            preload=(application,),
        ),
        event_log_of(options),
        open_desk,
        lambda: desks[0].exit_code if desks else 0,
        fork_server,
    )


def _take_orders(rank: Rank, place: Path, *, has_input: bool) -> None:
    """Have a rank take orders from a folder to change the number of ranks."""
    from mallob_py.service import ServiceError
    from mallob_py.service.resizing import Resizing
    from mallob_py.service.store.orders import OrderFolder

    try:
        orders = OrderFolder(place, is_new_service=rank.node.present.number == 1, log=tell)
        must_stay = "it has standard input" if has_input else ""
        rank.set_orders(Resizing(rank, orders, (), must_stay))
    except ServiceError as error:
        tell(str(error))


def write_to(stream: TextIO, lines: Iterable[str]) -> str | None:
    """Write lines; return None, or why they are not written ("": the reader, such as head, has enough)."""
    try:
        stream.writelines(lines)
        stream.flush()
    except OSError as error:
        # The rest of the stream's buffer must not be written again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return "" if isinstance(error, BrokenPipeError) else str(error.strerror)
    return None
