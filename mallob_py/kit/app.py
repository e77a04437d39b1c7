"""The interface that an application implements, and the one that it is given.

The package's docstring is the overview. An Application lives in helper processes, where it reads inputs,
and in worker processes, where it runs; no rank imports one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from mallob_py.kit.declaration import Declaration

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    #: A job's input as a worker sees it: named numpy arrays, read-only in workers.
    Payload = Mapping[str, NDArray[Any]]
else:
    Payload = Mapping


class InputError(Exception):
    """The job's input cannot be used. The message reaches the user as the job's error reply.

    `field` names the job-file field at fault (default "files").
    """

    def __init__(self, message: str, field: str = "files") -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class ProcessKilled(RuntimeError):
    """The worker's child processes were killed (signal 9), and the worker cannot go on without them.

    The worker ends by the same signal, so that its rank takes a host that is short of memory into account.
    """


@dataclass(frozen=True)
class JobInput:
    """The part of a job file that an application reads its payload from."""

    files: Sequence[str] = ()
    literals: Sequence[int] | None = None
    configuration: Mapping[str, Any] = field(default_factory=dict)
    #: number of this revision of an incremental job, from 0 on; None: a job of its own
    revision: int | None = None
    #: the payload of the revision before it
    former: Payload | None = None
    #: literals to be assumed, besides those that the input itself names
    assumptions: Sequence[int] = ()


@dataclass(frozen=True)
class Result:
    """An answer. `code` is as the application likes (see `Declaration.result_strings`); 0 is UNKNOWN.

    `solution` are integers (a model as literals, for SAT), or bytes, which replies hold in Base64;
    `fields` are further JSON fields of the reply's `result` object; NaN and infinity are an error, as JSON
    does not have them.
    """

    code: int
    solution: Sequence[int] | NDArray[np.integer[Any]] | bytes | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TreeMessage:
    """Bytes that another worker of the same job sent along the job tree.

    `returned` is set when it is a message of our own that could not be delivered since
    its receiver has left, or has not taken us in yet. `source` is the sender's (or, if
    returned, the receiver's) index, -1 if that is not known. Messages from one worker to another arrive
    in order. Some may get lost without a word: what lies with a worker that is suspended or whose
    process dies.
    """

    source: int
    data: bytes
    returned: bool = False
    #: the address of the sender (if returned, the receiver) for `send_to`, as long as it stays in the tree
    sender: tuple[int, int] = (-1, -1)


#: of one checkpoint
CHECKPOINT_BYTES_MAX = 1 << 28
#: reports of progress are passed on at most this often
PROGRESS_PERIOD_S = 0.2
#: longer names of units are cut
PROGRESS_UNIT_MAX = 20


def check_progress(done: float, total: float | None) -> None:
    """Raises ValueError for what `WorkerContext.report_progress` does not take."""
    if not (math.isfinite(done) and done >= 0):
        raise ValueError(f"progress cannot be {done!r} done: it is a number, 0 or more")
    if total is not None and not (math.isfinite(total) and total > 0):
        raise ValueError(f"progress cannot be of {total!r} in all: it is a number above 0, or None")


#: offers are passed on at most this often
OFFER_PERIOD_S = 0.2
#: of one offered result
OFFER_BYTES_MAX = 1 << 28
#: offered integers within these are exact wherever they are told
OFFER_INTEGER_MIN, OFFER_INTEGER_MAX = -(2**63), 2**64 - 1


def check_offer(result: Result | None, value: float | None, bound: float | None) -> None:
    """Raises ValueError or TypeError for what `WorkerContext.offer` does not take."""
    if result is None and bound is None:
        raise ValueError("an offer has a result, a bound, or both")
    if result is None and value is not None:
        raise ValueError("the value of an offer is that of its result, which is missing")
    if result is not None and not isinstance(result, Result):
        raise TypeError(f"what is offered must be a Result or None, not {result!r:.80}")
    for name, number in (("value", value), ("bound", bound)):
        if number is None:
            continue
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise TypeError(f"an offer's {name} must be an int or a float, not {number!r:.80}")
        if isinstance(number, int):
            if not OFFER_INTEGER_MIN <= number <= OFFER_INTEGER_MAX:
                raise ValueError(f"an offer's {name} must lie between -2^63 and 2^64-1, not {number}")
        elif not math.isfinite(number):
            raise ValueError(f"an offer's {name} is {number}, with which nothing can be compared")


class WorkerContext(ABC):
    """A running worker's view of its job. All of it may be used from the thread of `run` only."""

    #: internal id of the job
    job: int
    #: id of the chain of revisions that the job belongs to (0: none), and its number there
    chain: int = 0
    revision: int = 0
    #: this worker's index i in its job tree. It may change while suspended (see `poll`), so ask anew
    #: for whoever is the root (index 0) each time
    index: int
    #: the job's present number of workers
    volume: int
    #: indices of the children present now
    children: tuple[int, ...]
    payload: Payload
    configuration: Mapping[str, Any]
    #: number of cores this worker may use
    threads: int
    #: it has to go: of an application that `leaves_in_order` only (see there)
    leaving: bool = False

    @abstractmethod
    def poll(self, timeout_s: float = 0.0) -> list[TreeMessage]:
        """Take in news (volume, index, children) and return the messages that arrived.

        Waits up to `timeout_s` for the first of them; 0 only looks.
        """

    @abstractmethod
    def fileno(self) -> int:
        """Readable when there may be news: for `select` beside descriptors of one's own. Poll first."""

    @abstractmethod
    def park(self) -> NoReturn:
        """Stay in the job tree without computing until the job ends.

        Messages are thrown away; a worker of a `TreeReduction` calls its `park` instead.
        """

    @abstractmethod
    def set_demand(self, demand: int) -> None:
        """Ask for `demand` workers from now on (heard from the root, index 0; bounded by max-demand)."""

    @abstractmethod
    def send_to_parent(self, data: bytes) -> None:
        """Send to the worker with index (i-1)//2. At the root: no effect."""

    @abstractmethod
    def send_to_children(self, data: bytes) -> None:
        """Send to each child present now."""

    def send_to(self, address: tuple[int, int], data: bytes) -> None:
        """Send to the worker that `TreeMessage.sender` named, wherever it is in the tree."""
        raise NotImplementedError

    def report_progress(  # noqa: B027 (without effect where nobody looks)
        self, done: float, total: float | None = None, unit: str = ""
    ) -> None:
        """Tell how far the job is: so much is `done`, of `total` where that is known, in this `unit`.

        Heard from the root (index 0), and there as often as you like: the last one is passed on, at most
        every PROGRESS_PERIOD_S, what waits when you poll. Commands and the web page show it, with its change
        per second. `done` should grow; after the loss of a root it may go back. A `unit` is a word such as
        "tasks". Raises ValueError for what is no count.
        """

    def offer(  # noqa: B027 (without effect where nobody looks)
        self, result: Result | None = None, *, value: float | None = None, bound: float | None = None
    ) -> None:
        """Offer an answer that need not be the last word, or a bound that no answer can beat.

        The job's client keeps the best `result` by its `value` and the best `bound`, of all workers: larger
        values are better unless the application `minimizes`; a result without a value replaces another such.
        Commands and the web page show both, and a job that reaches a limit or is interrupted is answered with
        them, marked `"complete": false`. Heard of any worker, as often as you like: the best is passed on,
        at most every OFFER_PERIOD_S, the rest when you poll. Do not change a solution that you have offered.
        An offer does not end the job. Raises ValueError or TypeError for what cannot be compared or is
        larger than OFFER_BYTES_MAX.
        """

    def checkpoint(self, data: bytes) -> None:  # noqa: B027 (without effect where nobody keeps it)
        """Have the job go on from here if this root is lost: `data` is what the next one finds.

        Heard from the root (index 0), also while it leaves; each replaces the one before. The job's client
        keeps it; with a service it outlives the service. Raises ValueError above CHECKPOINT_BYTES_MAX.
        """

    def last_checkpoint(self) -> bytes | None:
        """The job's last checkpoint, for a root that begins; None if there is none.

        Asks the job's client, and waits for the answer. It is None, too, if this is no root or has to leave
        meanwhile: look at `index` and `leaving` before you begin anew.
        """
        return None

    def note_memory(self) -> None:  # noqa: B027 (without effect where nobody counts)
        """Count what this process and its children have needed so far, before children end.

        Only for exact statistics of short jobs: otherwise it is looked at once a second.
        """

    @abstractmethod
    def finish(self, result: Result) -> NoReturn:
        """End the whole job with this result; the same as returning it from `run`."""


class Application(Declaration, ABC):
    """One kind of job, with all that it declares. Instances are made without arguments, one per process."""

    def check(self, configuration: Mapping[str, Any]) -> None:
        """Refuse a job's `configuration` with an `InputError` (called before `read`)."""

    @abstractmethod
    def read(self, job: JobInput) -> Payload:
        """Read the job's input. Raises InputError. Runs in a helper process at the client."""

    def prepare(self) -> None:
        """Load what takes its time at its first use, so that workers begin at once.

        Called once before any `run`, if possible in the process that workers are forked from. So it must
        start neither threads nor processes, and open no files or connections that workers would share.
        """

    def check_laws(self, payload: Payload, configuration: Mapping[str, Any]) -> str:
        """For `mallob-py run --check-laws`: try what workers rely on, and say in one line what was tried.

        Bags of tasks have such laws. Raises an exception whose text says which one is broken.
        """
        raise NotImplementedError(f"{self.name} has no laws that could be checked")

    @abstractmethod
    def run(self, context: WorkerContext) -> Result | None:
        """Work as worker `context.index`; the first result of any worker ends the job.

        Returning None says that this worker has nothing left to do (it stays parked), or that it has left
        as it was told to (`context.leaving`). Any exception ends the job with its traceback in the reply,
        an InputError with its message.
        """
