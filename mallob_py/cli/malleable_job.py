"""A command's ranks as a malleable job: a batch scheduler's orders make ranks join and leave.

`serve`, `solve` and `run`, started in a job of `mallob-py batch serve` or a like scheduler, register for
orders (`mallob_py.malleable`). A thread of the process that started the ranks, which outlives each rank,
turns an order into one of `mallob-py resize`. The rank with the desk of `run` tells the scheduler how much
work is done and, in an evolving job, for how many slots there is work (`Reports`).

Each rank has a slot of its own; all slots are on one host. An order that cannot be carried out is reported,
and the job is rigid from then on.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mallob_py.cli import CommandError
from mallob_py.runtime.notices import tell

if TYPE_CHECKING:
    from mallob_py.malleable import Place
    from mallob_py.malleable.expectation import Expectation
    from mallob_py.protocol.progress import Progress
    from mallob_py.service.store.lock import DirectoryLock

#: environment variable with the folder of orders for `solve` and `run`, as their option `--orders`
ORDERS_VARIABLE = "MALLOB_PY_ORDERS"
_LOOK_S = 0.02
#: number of looks after which an unchanged number of wanted slots is reported again, since the scheduler may
#: have been restarted
_AGAIN_LOOKS = 10


def allotted() -> int | None:
    """Return the number of slots if a scheduler has allotted them and may change their number, else None."""
    if os.environ.get("ELASTIC") not in ("malleable", "evolving") or "JOB_SOCKET" not in os.environ:
        return None
    from mallob_py import malleable

    with contextlib.suppress(OSError, ValueError):
        return len(malleable.allotted_hosts())
    return None


def evolves() -> bool:
    """Tell whether a scheduler expects to hear how many slots the job could use."""
    return os.environ.get("ELASTIC") == "evolving" and allotted() is not None


class Reports:
    """The reports of a job to its scheduler; `look` sends them as the job progresses.

    `expectation`: computes how many slots an evolving job can use; None: the job does not evolve.
    """

    def __init__(
        self,
        expectation: Expectation | None,
        tell_wish: Callable[[int], None],
        tell_done: Callable[[float], None],
    ) -> None:
        self._expectation = expectation
        self._tell_wish = tell_wish
        self._tell_done = tell_done
        self._done = -1.0
        self._told: int | None = None
        self._looks = 0

    def look(self, progress: Progress | None, cpu_s: float) -> None:
        if progress is None:
            return
        if progress.done != self._done:
            self._done = progress.done
            with contextlib.suppress(OSError):  # the scheduler is being restarted
                self._tell_done(progress.done)
        if self._expectation is None:
            return
        wish = self._expectation.look(progress.done, progress.total, cpu_s)
        self._looks += 1
        if wish is not None and (wish != self._told or self._looks >= _AGAIN_LOOKS):
            with contextlib.suppress(OSError):
                self._tell_wish(wish)
                self._told, self._looks = wish, 0


@contextlib.contextmanager
def order_folder(named: str | None) -> Iterator[Path | None]:
    """Context manager that yields the folder where ranks of `solve` and `run` find orders; None: no orders.

    A folder that the user has `named` is locked within the context; any other folder is removed afterwards.
    Raises CommandError.
    """
    if named is not None:
        lock = _locked(Path(named))
        try:
            yield Path(named)
        finally:
            lock.close()
    elif allotted() is None:
        yield None
    else:
        from mallob_py.runtime.world.session_folder import temporary_folder

        try:
            folder = temporary_folder()
        except OSError as error:
            raise CommandError(str(error)) from None
        try:
            os.environ[ORDERS_VARIABLE] = str(folder.path)
            yield folder.path
        finally:
            folder.remove()


def _locked(place: Path) -> DirectoryLock:
    """Lock a folder; the lock shows other commands that orders are accepted there. Raises CommandError."""
    from mallob_py.service import ServiceError
    from mallob_py.service.store.lock import DirectoryLock, holder_of
    from mallob_py.service.store.orders import FOLDER, OrderFolder

    for folder in (place / FOLDER, place / "jobs.0"):
        if (who := holder_of(folder)) is not None:
            raise CommandError(f"--orders {place} is in use ({who}); name another folder")
    try:
        OrderFolder(place, is_new_service=False).close()
        lock = DirectoryLock(place / FOLDER, tell)
        try:
            OrderFolder(place, is_new_service=True).close()  # this removes orders of an earlier command
        except BaseException:
            lock.close()
            raise
    except ServiceError as error:
        raise CommandError(f"--orders: {error}") from None
    except OSError as error:
        raise CommandError(f"--orders {place} cannot be used: {error.strerror}") from None
    return lock


@contextlib.contextmanager
def taking_orders(ranks: int, survives: bool, folder: Path | None) -> Iterator[None]:
    """Within the context, pass a scheduler's orders on to `folder`, where the ranks look for orders."""
    if folder is None or (slots := allotted()) is None:
        yield
        return
    from mallob_py import malleable

    hosts = malleable.allotted_hosts()
    if problem := _problem(slots, ranks, survives, hosts):
        tell(f"{problem}; the number of ranks stays as it is")
        yield
        return
    job = _Job(folder, hosts)
    malleable.define_malleable_handler(job, job)
    try:
        yield
    finally:
        job.is_over.set()
        malleable.disable_malleable_handler()


def _problem(slots: int, ranks: int, survives: bool, hosts: Sequence[str]) -> str:
    if not survives:
        return "a job that may grow and shrink needs --rank-loss survive"
    if slots != ranks:
        return f"a job that may grow and shrink needs a rank for each slot (-n {slots})"
    if len(set(hosts)) > 1:
        return "ranks can join on one host only, and this job has several hosts"
    return ""


class _Job:
    """Handles orders by starting and ending processes; the ranks themselves move the work."""

    def __init__(self, folder: Path, hosts: Sequence[str]) -> None:
        from mallob_py.malleable import Place

        self._folder = folder
        self._place = Place
        self.places = [Place(number, host) for number, host in enumerate(hosts)]
        self._count = len(hosts)
        #: set once no order can be carried out any more
        self.is_over = threading.Event()

    def pre_shrink(self, count: int) -> list[Place]:
        if count >= len(self.places):
            self._give_up("one rank has to stay")
        return self.places[-count:]

    def post_shrink(self, now: int, removed: Sequence[Place]) -> None:
        pass

    def pre_grow(self, count: int) -> None:
        pass

    def post_grow(self, now: int, continued: Sequence[Place], added: Sequence[Place]) -> None:
        pass

    def start(self, hosts: Sequence[str]) -> list[Place]:
        if strange := set(hosts) - {place.host for place in self.places}:
            self._give_up(f"ranks cannot join on {', '.join(sorted(strange))}")
        self._resize(len(self.places) + len(hosts))
        added = [self._place(self._count + number, host) for number, host in enumerate(hosts)]
        self._count += len(added)
        self.places += added
        return added

    def end(self, places: Sequence[Place]) -> None:
        self._resize(len(self.places) - len(places))
        self.places = [place for place in self.places if place not in places]

    def _resize(self, to: int) -> None:
        """Have the number of ranks changed, and return when it has changed."""
        from mallob_py.service import ServiceError
        from mallob_py.service.store.orders import Resize, answer_to, give

        order = None
        while not self.is_over.wait(_LOOK_S):
            try:
                if order is None:
                    order = give(self._folder, Resize(to=to))
                elif (answer := answer_to(order)) is not None:
                    if answer.refusal:
                        self._give_up(answer.refusal)
                    return
                elif not order.exists():  # the ranks were restarted
                    order = None
            except ServiceError:  # the ranks are not up yet
                order = None
        raise SystemExit  # this ends the present thread only

    def _give_up(self, why: str) -> None:
        tell(f"the batch scheduler's order cannot be carried out: {why}; the number of ranks stays as it is")
        raise SystemExit
