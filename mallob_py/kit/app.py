"""The interface that an application implements, and the interface that a worker is given.

The docstring of `mallob_py.kit` is the overview. An Application reads inputs in helper processes, and runs
in worker processes; no rank imports an application.
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
    """The job's input cannot be used. The message becomes the job's error reply.

    Attributes:
        field: the field of the job file that is wrong.
    """

    def __init__(self, message: str, field: str = "files") -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class ProcessKilled(RuntimeError):
    """Child processes of the worker were killed (signal 9), and the worker cannot go on without them.

    The worker then ends by the same signal, so that its rank learns that the host is short of memory.
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
    """A job's answer.

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

    Messages from one worker to another arrive in order. A message to a worker that is suspended or whose
    process dies may be lost without a report.

    Attributes:
        returned: whether this is this worker's own message, which came back because its receiver left or
            does not know this worker yet.
        source: index of the sender (if returned, of the receiver), -1 if unknown.
        sender: address of the sender (if returned, of the receiver) for `send_to`. The address is valid
            while that worker stays in the tree.
    """

    source: int
    data: bytes
    returned: bool = False
    sender: tuple[int, int] = (-1, -1)


#: greatest size of a checkpoint
CHECKPOINT_BYTES_MAX = 1 << 28
#: shortest time between two progress reports that leave a worker
PROGRESS_PERIOD_S = 0.2
#: greatest number of characters of a progress report's unit; further characters are cut off
PROGRESS_UNIT_MAX = 20


def check_progress(done: float, total: float | None) -> None:
    """Check the arguments of `WorkerContext.report_progress`. Raises ValueError."""
    if not (math.isfinite(done) and done >= 0):
        raise ValueError(f"a progress with done={done!r}: `done` must be a number of at least 0")
    if total is not None and not (math.isfinite(total) and total > 0):
        raise ValueError(f"a progress with total={total!r}: `total` must be a number above 0, or None")


#: shortest time between two offered results that leave a worker
OFFER_PERIOD_S = 0.2
#: greatest size of an offered result
OFFER_BYTES_MAX = 1 << 28
#: range of offered integers; all outputs show such integers exactly
OFFER_INTEGER_MIN, OFFER_INTEGER_MAX = -(2**63), 2**64 - 1


def check_offer(result: Result | None, value: float | None, bound: float | None) -> None:
    """Check the arguments of `WorkerContext.offer`. Raises ValueError or TypeError."""
    if result is None and bound is None:
        raise ValueError("an offer needs a result, a bound, or both")
    if result is None and value is not None:
        raise ValueError("an offer has a value but no result; give the result to which the value belongs")
    if result is not None and not isinstance(result, Result):
        raise TypeError(f"an offer's result must be a Result or None, not {result!r:.80}")
    for name, number in (("value", value), ("bound", bound)):
        if number is None:
            continue
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise TypeError(f"an offer's {name} must be an int or a float, not {number!r:.80}")
        if isinstance(number, int):
            if not OFFER_INTEGER_MIN <= number <= OFFER_INTEGER_MAX:
                raise ValueError(f"an offer's {name} must lie between -2^63 and 2^64-1, not {number}")
        elif not math.isfinite(number):
            raise ValueError(f"an offer's {name} is {number}; it must be finite")


class WorkerContext(ABC):
    """A running worker's view of its job. Must be used in the thread of `run` only."""

    #: internal id of the job
    job: int
    #: id of the chain of revisions to which the job belongs (0: no chain), and the job's number in the chain
    chain: int = 0
    revision: int = 0
    #: index of this worker in its job tree (0: the root). `poll` may change the index of a worker that was
    #: suspended: read the index anew after each `poll`
    index: int
    #: the job's present number of workers
    volume: int
    #: indices of the children present now
    children: tuple[int, ...]
    payload: Payload
    #: configuration of the job, as `check` has accepted it; the same in all workers
    configuration: Mapping[str, Any]
    #: number of cores this worker may use
    threads: int
    #: whether the system had only one PE when this worker began
    is_alone: bool = False
    #: whether the worker must leave; set only for applications with `leaves_in_order`
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
        """Return a descriptor that is readable when there may be news. Call `poll` before each `select`."""

    @abstractmethod
    def park(self) -> NoReturn:
        """Stay in the job tree without computing until the job ends.

        Messages are discarded; a worker with a `TreeReduction` calls the reduction's `park` instead.
        """

    @abstractmethod
    def set_demand(self, demand: int) -> None:
        """Ask for `demand` workers from now on, at most the job's max-demand. Only the root's calls count."""

    @abstractmethod
    def send_to_parent(self, data: bytes) -> None:
        """Send bytes to this worker's parent; no effect at the root."""

    @abstractmethod
    def send_to_children(self, data: bytes) -> None:
        """Send bytes to each child present now."""

    def send_to(self, address: tuple[int, int], data: bytes) -> None:
        """Send bytes to a worker, anywhere in the tree, whose address is the `sender` of a `TreeMessage`."""
        raise NotImplementedError

    def report_progress(  # noqa: B027 (without effect where nobody looks)
        self, done: float, total: float | None = None, unit: str = ""
    ) -> None:
        """Report how much of the job is done. Only calls of the root (index 0) count.

        Commands and the web page show the report and its change per second. Call as often as you like: at
        most every PROGRESS_PERIOD_S the latest report is passed on, by this call or a later `poll`.

        Args:
            done: the amount that is done. It should grow; after the loss of a root it may go back.
            total: the whole amount, in the same unit; None: unknown.
            unit: a word such as "tasks".

        Raises:
            ValueError: `done` is negative or not finite, or `total` is not positive or not finite.
        """

    def offer(  # noqa: B027 (without effect where nobody looks)
        self, result: Result | None = None, *, value: float | None = None, bound: float | None = None
    ) -> None:
        """Offer an answer that may be improved, or a bound that no answer can beat. Any worker may call it.

        The job's client keeps the `result` with the best `value`, and the best `bound`: a larger value is
        better unless the application sets `minimizes`; of results without a value, the last one is kept.
        Commands and the web page show both. If the job reaches a limit or is interrupted, they are
        its reply, marked `"complete": false`. An offer does not end the job. Call as often as you like: at
        most every OFFER_PERIOD_S the best offer is passed on, by this call or a later `poll`.

        Args:
            result: the answer; do not change its solution afterwards.
            value: the value of the answer.
            bound: a proved bound of the values of all answers.

        Raises:
            ValueError: the offer cannot be compared, or is larger than OFFER_BYTES_MAX.
            TypeError: an argument has the wrong type.
        """

    def checkpoint(self, data: bytes) -> None:  # noqa: B027 (without effect where nobody keeps it)
        """Save `data`, with which the job's next root continues if this root is lost.

        Only calls of the root (index 0) count, also while the root leaves.

        The job's client keeps the last checkpoint; a service keeps it over restarts.

        Args:
            data: what the next root finds in `last_checkpoint`.

        Raises:
            ValueError: `data` is larger than CHECKPOINT_BYTES_MAX.
        """

    def last_checkpoint(self) -> bytes | None:
        """Return the job's last checkpoint, for a root that begins. Waits for the job's client.

        Returns:
            The checkpoint; None: there is no checkpoint, or this worker is not the root or must leave. So
            look at `index` and `leaving` before you begin from nothing.
        """
        return None

    def note_memory(self) -> None:  # noqa: B027 (without effect where nobody counts)
        """Measure the memory of this process and its children now. Call before children end.

        Memory is also measured once a second. The call makes the statistics of short jobs exact.
        """

    @abstractmethod
    def finish(self, result: Result) -> NoReturn:
        """End the job with this result, as if `run` returned it."""


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

        Called once before any `run`, if possible in the process from which workers are forked. `prepare` must
        not start threads or processes, nor open files or connections that workers would share.
        """

    def check_laws(self, payload: Payload, configuration: Mapping[str, Any]) -> str:
        """Test the laws that workers rely on, for `mallob-py run --check-laws`. Only bags have laws.

        Args:
            payload: the payload of the job.
            configuration: the job's configuration.

        Returns:
            One line that says what was tested. If a law is broken, the exception raised names the law.
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
            InputError: the job ends with its message. With any other exception, it ends with the traceback.
        """
