"""The interface that an application implements, and the interface that a worker is given.

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

    #: a job's input as a worker sees it: named numpy arrays, read-only in workers
    Payload = Mapping[str, NDArray[Any]]
else:
    Payload = Mapping


class InputError(Exception):
    """The job's input cannot be used. The message is the job's error reply.

    Attributes:
        field: the field of the job file at fault.
    """

    def __init__(self, message: str, field: str = "files") -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class ProcessKilled(RuntimeError):
    """Child processes of the worker were killed (signal 9), and the worker cannot go on without them.

    The worker ends by the same signal, so that its rank notices a host that is short of memory.
    """


@dataclass(frozen=True)
class JobInput:
    """The part of a job file from which an application reads its payload."""

    files: Sequence[str] = ()
    literals: Sequence[int] | None = None
    configuration: Mapping[str, Any] = field(default_factory=dict)
    #: number of this revision of an incremental job, from 0; None: the job is not incremental
    revision: int | None = None
    #: payload of the previous revision
    former: Payload | None = None
    #: literals to assume, besides those named by the input
    assumptions: Sequence[int] = ()


@dataclass(frozen=True)
class Result:
    """An answer.

    Attributes:
        code: chosen by the application (see `Declaration.result_strings`); 0 is UNKNOWN.
        solution: integers (for SAT, a model as literals), or bytes, which replies hold in Base64.
        fields: further JSON fields of the reply's `result`; NaN and infinity are errors, as JSON lacks them.
    """

    code: int
    solution: Sequence[int] | NDArray[np.integer[Any]] | bytes | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TreeMessage:
    """Bytes that another worker of the job sent along the job tree.

    Messages from one worker to another arrive in order. Messages at a worker that is suspended or whose
    process dies may be lost without notice.

    Attributes:
        returned: whether this is our own message, undelivered since its receiver left or does not know us
            yet.
        source: index of the sender (if returned, of the receiver), -1 if unknown.
        sender: address of the sender (if returned, of the receiver) for `send_to`, valid while it stays in
            the tree.
    """

    source: int
    data: bytes
    returned: bool = False
    sender: tuple[int, int] = (-1, -1)


#: most bytes of a checkpoint
CHECKPOINT_BYTES_MAX = 1 << 28
#: least time between two reports of progress that are passed on
PROGRESS_PERIOD_S = 0.2
#: most characters of a unit; the rest is cut off
PROGRESS_UNIT_MAX = 20


def check_progress(done: float, total: float | None) -> None:
    """Check the arguments of `WorkerContext.report_progress`. Raises ValueError."""
    if not (math.isfinite(done) and done >= 0):
        raise ValueError(f"progress cannot be {done!r} done: it is a number, 0 or more")
    if total is not None and not (math.isfinite(total) and total > 0):
        raise ValueError(f"progress cannot be of {total!r} in all: it is a number above 0, or None")


#: least time between two offers that are passed on
OFFER_PERIOD_S = 0.2
#: most bytes of an offered result
OFFER_BYTES_MAX = 1 << 28
#: range of offered integers, exact in all outputs
OFFER_INTEGER_MIN, OFFER_INTEGER_MAX = -(2**63), 2**64 - 1


def check_offer(result: Result | None, value: float | None, bound: float | None) -> None:
    """Check the arguments of `WorkerContext.offer`. Raises ValueError or TypeError."""
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
    """A running worker's view of its job. Must be used in the thread of `run` only."""

    #: internal id of the job
    job: int
    #: id of the job's chain of revisions (0: none), and the job's number there
    chain: int = 0
    revision: int = 0
    #: this worker's index in its job tree (0: the root); it may change while the worker is suspended (see
    #: `poll`), so it must be read anew at each use
    index: int
    #: the job's present number of workers
    volume: int
    #: indices of the children present now
    children: tuple[int, ...]
    payload: Payload
    #: configuration of the job, as `check` has accepted it; every worker has the same
    configuration: Mapping[str, Any]
    #: number of cores this worker may use
    threads: int
    #: whether the worker must leave; for applications that set `leaves_in_order`
    leaving: bool = False

    @abstractmethod
    def poll(self, timeout_s: float = 0.0) -> list[TreeMessage]:
        """Take in news (volume, index, children) and messages.

        Args:
            timeout_s: longest time to wait for the first message, in seconds; 0: do not wait.

        Returns:
            The messages that arrived.
        """

    @abstractmethod
    def fileno(self) -> int:
        """Return a descriptor that is readable when there may be news, for `select`. Poll first."""

    @abstractmethod
    def park(self) -> NoReturn:
        """Stay in the job tree without computing until the job ends.

        Messages are discarded; a worker with a `TreeReduction` calls the reduction's `park` instead.
        """

    @abstractmethod
    def set_demand(self, demand: int) -> None:
        """Ask for `demand` workers from now on. Only the root (index 0) is heard; max-demand is the bound."""

    @abstractmethod
    def send_to_parent(self, data: bytes) -> None:
        """Send to the worker with index (i-1)//2; at the root: no effect."""

    @abstractmethod
    def send_to_children(self, data: bytes) -> None:
        """Send to each child present now."""

    def send_to(self, address: tuple[int, int], data: bytes) -> None:
        """Send to the worker at an address from `TreeMessage.sender`, at any place in the tree."""
        raise NotImplementedError

    def report_progress(  # noqa: B027 (without effect where nobody looks)
        self, done: float, total: float | None = None, unit: str = ""
    ) -> None:
        """Report how far the job is. Only the root (index 0) is heard.

        Commands and the web page show the report and its change per second. Call as often as you like: the
        last report is passed on, at most every PROGRESS_PERIOD_S, a waiting one when you poll.

        Args:
            done: the part that is done. It should grow; after the loss of a root it may go back.
            total: the whole, in the same unit; None: unknown.
            unit: a word such as "tasks".

        Raises:
            ValueError: `done` or `total` is no count.
        """

    def offer(  # noqa: B027 (without effect where nobody looks)
        self, result: Result | None = None, *, value: float | None = None, bound: float | None = None
    ) -> None:
        """Offer an answer that may be improved, or a bound that no answer can beat. All workers are heard.

        The job's client keeps the best `result` by `value` and the best `bound`: larger is better unless the
        application `minimizes`; a result without a value replaces another one without a value. Commands and
        the web page show both. A job that reaches a limit or is interrupted is answered with them, marked
        `"complete": false`. An offer does not end the job. Call as often as you like: the best offer is
        passed on, at most every OFFER_PERIOD_S, a waiting one when you poll.

        Args:
            result: the answer; do not change its solution afterwards.
            value: the value of the answer.
            bound: a proved bound of all values.

        Raises:
            ValueError: the offer cannot be compared, or is larger than OFFER_BYTES_MAX.
            TypeError: an argument has the wrong type.
        """

    def checkpoint(self, data: bytes) -> None:  # noqa: B027 (without effect where nobody keeps it)
        """Have the job continue from here if this root is lost.

        Only calls of the root (index 0) count, also while it leaves.

        The job's client keeps the last checkpoint; with a service, it outlives the service.

        Args:
            data: what the next root finds in `last_checkpoint`.

        Raises:
            ValueError: `data` is larger than CHECKPOINT_BYTES_MAX.
        """

    def last_checkpoint(self) -> bytes | None:
        """Return the job's last checkpoint, for a root that begins. Waits for the job's client.

        Returns:
            The checkpoint; None: there is none, or this is no root or must leave now: look at `index` and
            `leaving` before you begin from nothing.
        """
        return None

    def note_memory(self) -> None:  # noqa: B027 (without effect where nobody counts)
        """Count the memory needed so far by this process and its children, before children end.

        The call makes statistics of short jobs exact; otherwise memory is measured once a second.
        """

    @abstractmethod
    def finish(self, result: Result) -> NoReturn:
        """End the job with this result, as returning it from `run` does."""


class Application(Declaration, ABC):
    """One kind of job, with its declaration. Instances are created without arguments, one per process."""

    def check(self, configuration: Mapping[str, Any]) -> None:
        """Refuse a job's `configuration` by raising InputError. Called before `read`."""

    @abstractmethod
    def read(self, job: JobInput) -> Payload:
        """Read the job's input in a helper process at the client.

        Args:
            job: the part of the job file that concerns the input.

        Returns:
            The payload that workers get.

        Raises:
            InputError: the input cannot be used.
        """

    def prepare(self) -> None:
        """Load modules and data that are slow at first use, so that workers begin at once.

        Called once before any `run`, if possible in the process that workers are forked from. It must not
        start threads or processes, nor open files or connections that workers would share.
        """

    def check_laws(self, payload: Payload, configuration: Mapping[str, Any]) -> str:
        """Test the laws that workers rely on, for `mallob-py run --check-laws`; bags of tasks have such laws.

        Args:
            payload: the payload of the job.
            configuration: the job's configuration.

        Returns:
            One line that says what was tested. A broken law raises an exception that names the law.
        """
        raise NotImplementedError(f"{self.name} has no laws that could be checked")

    @abstractmethod
    def run(self, context: WorkerContext) -> Result | None:
        """Work as worker `context.index`; the first result of any worker ends the job.

        Args:
            context: the worker's view of its job.

        Returns:
            The job's result; None: this worker has nothing left to do and stays parked, or has left as
            `context.leaving` demanded.

        Raises:
            InputError: ends the job with this message; any other exception: with its traceback.
        """
