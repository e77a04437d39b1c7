"""A lane: calls, and the malleable job that does them, from the first call until soon after the last.

The job may end before its calls. If a limit or an interruption ends it, the open calls fail and name this
reason. If repeated deaths of workers or a lost connection of its root end it, a new job begins, as long as
each job does some calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

from mallob_py.api.calls.book import Assignment, Book, Group
from mallob_py.api.calls.sinks import CallProgress, Sink
from mallob_py.api.client import Answer, JobError
from mallob_py.kit.calls import messages
from mallob_py.kit.calls.delivering import Deliverer
from mallob_py.kit.calls.initializing import NotInitialized
from mallob_py.kit.calls.values import (
    CallError,
    Pickled,
    dump_error,
    load,
    load_error,
    packed,
    restored,
    told,
)
from mallob_py.kit.calls.wire import Buffer

#: time after which a job without calls ends
LINGER_S = 1.0
#: longest time that a call may run on after its result became unwanted
GRACE_S = 1.0
#: number of functions above which functions without calls are forgotten, here and in workers
_FUNCTIONS_KEPT = 16
_STEER_S = 0.1
#: period of looking for overdue calls and silent workers
_RECALL_S = 0.02
_SILENCE_S = 0.5
#: number of successive jobs that end without any call done, after which the open calls fail
_FAILURES_MAX = 5
_ARGUMENTS_SHOWN = 100


class WorkerLost(CallError):
    """The workers of a call were lost repeatedly, so the call is not repeated."""


class JobEnded(CallError):
    """The job was interrupted, or reached a limit, before the call was done."""


class TimeLimit(JobEnded, TimeoutError):
    """The job reached its limit of time or CPU time before the call was done."""


class Terms(NamedTuple):
    """The terms of a job: its priority, limits and name; calls with equal terms share a job."""

    priority: float = 1.0
    max_demand: int = 0
    time_limit_s: float | None = None
    cpu_limit_s: float | None = None
    name: str = ""
    #: random id of a map that has a job of its own; "": the job serves any calls
    map: str = ""


class FunctionRef:
    """A pickled function; `number` identifies it in workers."""

    __slots__ = ("buffers", "is_kept", "name", "number")

    def __init__(self, number: int, function: Pickled) -> None:
        self.number = number
        self.buffers, self.name, self.is_kept = function


@dataclass(slots=True)
class CallSet:
    """The content of a group: calls of one function, and the sink of their outcomes."""

    function: FunctionRef
    #: snapshot of each call's arguments, or of its (args, kwargs); None: the call is done
    items: list[Any]
    has_keywords: bool
    sink: Sink
    retries: int = 0
    #: a map's number of calls, for messages such as "call 3 of 17"
    of: int | None = None

    def named(self, call: int, item: Any) -> str:
        """Return a call's description for messages. This unpickles the arguments and calls their `repr`."""
        which = "" if self.of is None else f"call {call} of {self.of}: "
        try:
            args, kwargs = restored(item) if self.has_keywords else (restored(item), {})
            shown = shown_arguments(args, kwargs)
        except BaseException:  # for example, the arguments were dropped
            shown = "..."
        return f"{which}{self.function.name}({shown})"


@dataclass(slots=True)
class InnerSet:
    """A batch of pickled calls that a call on worker `origin` has submitted."""

    function: FunctionRef
    origin: int
    group: int
    count: int
    buffers: list[Buffer]


class Worker(Protocol):
    """A connection to a worker, as seen by its lane."""

    number: int
    is_closed: bool

    def send(self, message: messages.ToWorker, buffers: Sequence[Buffer] = ()) -> None: ...


class _Member:
    """A worker of the job."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.index = -1
        #: batch -> its calls, in the order in which they were sent
        self.orders: dict[int, list[int]] = {}
        self.functions: set[int] = set()
        #: number of calls that this worker's calls have submitted, and that other workers may do
        self.offered = 0
        self.is_asked = False


class Lane:
    """Calls, and the malleable job that does them. Only the hub's thread uses a lane."""

    def __init__(
        self,
        number: int,
        terms: Terms,
        start: Callable[[Lane], Future[Answer]],
        new_number: Callable[[], int],
        deliverer: Deliverer,
        break_off: Callable[[Callable[[str], BaseException]], None],
        *,
        is_own: bool,
    ) -> None:
        """Create a lane without a job.

        `start` hands in a job; `new_number` numbers functions; `is_own`: the lane serves one map only.
        `break_off` is called if workers cannot be initialized, so that no call can be done.
        """
        self._deliverer = deliverer
        self._break_off = break_off
        self.number = number
        self.terms = terms
        self.is_own = is_own
        #: serial number of the present job; workers of former jobs are refused
        self.serial = 0
        self._start = start
        self._new_number = new_number
        self._book = Book()
        self._members: dict[int, _Member] = {}
        self.job: Future[Answer] | None = None
        self._has_had_workers = False
        self._done_before = 0
        self._failures = 0
        self._idle_since_s: float | None = None
        self._steered: tuple[int, int, int] = (-1, -1, -1)
        self._steer_s = 0.0
        #: time of the last turn
        self._now_s = 0.0
        self._groups: dict[Group, None] = {}
        self._functions: dict[int, FunctionRef] = {}
        self._pickled: dict[bytes, int] = {}
        #: unwanted running calls: the time until which they may run, their group, the calls (None: all)
        self._unwanted: list[tuple[float, Group, frozenset[int] | None]] = []

    # --- calls -----------------------------------------------------------------------------------

    @property
    def left(self) -> int:
        return self._book.left

    @property
    def done(self) -> int:
        return self._book.done

    @property
    def running(self) -> int:
        return self._book.running

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups of calls that are not done."""
        return tuple(self._groups)

    def add(self, group: Group, count: int = 0) -> None:
        """Take in a new group, or `count` more calls of a known group."""
        self._groups[group] = None
        self._idle_since_s = None
        self._book.add(group, count)

    def extend(self, group: Group, items: Sequence[Any], bad: Mapping[int, BaseException]) -> None:
        """Take in the arguments of a map's next calls. `bad`: number of an unsendable call -> its error."""
        content: CallSet = group.content
        content.items += items
        self._deliver(group, self._book.done_without_worker(group, tuple(bad)), bad.__getitem__)
        self._book.extend(group, len(content.items))

    def cancel(self, group: Group, now: float) -> None:
        """End a group's open calls with CancelledError."""
        calls = self._book.cancel(group)
        if isinstance(group.content, CallSet):
            self._deliver(group, calls, lambda _: CancelledError())
        elif calls:
            self._fail_inner(group, CancelledError())
        self._groups.pop(group, None)
        self._end_unwanted(group, None, now)

    def cancel_all(self, now: float) -> None:
        """End all open calls with CancelledError, also calls that running calls have submitted."""
        for group in tuple(self._groups):
            self.cancel(group, now)

    def abandon(self, sink: Sink, call: int, now: float) -> None:
        """End a submitted call, whose outcome is unwanted, with CancelledError."""
        for group in tuple(self._groups):
            if isinstance(group.content, CallSet) and group.content.sink is sink:
                self._deliver(
                    group, self._book.done_without_worker(group, [call]), lambda _: CancelledError()
                )
                self._end_unwanted(group, frozenset([call]), now)

    def _end_unwanted(self, group: Group, calls: frozenset[int] | None, now: float) -> None:
        """Have workers give back a group's unwanted calls; running calls are stopped after `GRACE_S`."""
        batches = self._book.batches_of(group, calls)
        for number, batch in batches:
            if calls is None:
                self._members[number].worker.send(messages.Recall([batch]))
        if batches:
            self._unwanted.append((now + GRACE_S, group, calls))

    def _stop_unwanted(self, now: float) -> None:
        """Have workers stop the unwanted calls that have not ended by themselves within `GRACE_S`."""
        if not self._unwanted:
            return
        due = [each for each in self._unwanted if each[0] <= now]
        kept = [each for each in self._unwanted if each[0] > now]
        self._unwanted = [each for each in kept if self._book.batches_of(each[1], each[2])]
        for _, group, calls in due:
            for number, batch in self._book.batches_of(group, calls):
                member = self._members[number]
                order = member.orders[batch]
                places = [place for place, call in enumerate(order) if calls is None or call in calls]
                member.worker.send(messages.Stop(batch, places))

    @property
    def is_over(self) -> bool:
        """Tell whether all calls are done, and no unwanted call is running."""
        return not self._book.left and not self._unwanted

    def fail(self, error_of: Callable[[str], BaseException]) -> None:
        """End all open calls; `error_of` makes a call's error from its name."""
        for group in tuple(self._groups):
            calls = self._book.cancel(group)
            content = group.content
            if isinstance(content, CallSet):
                self._fail(group, calls, error_of)
        self._groups.clear()

    def cancel_waiting(self) -> None:
        """Cancel the calls that no worker has begun, as far as is known."""
        for group in tuple(self._groups):
            if isinstance(group.content, CallSet):
                self._deliver(group, self._book.cancel_waiting(group), lambda _: CancelledError())

    # --- the job -----------------------------------------------------------------------------------

    def turn(self, now: float) -> None:
        """Send all calls that can be sent, and begin or end the job."""
        self._now_s = now
        if self._book.left and self.job is None:
            self._begin_job()
        self._stop_unwanted(now)
        if self._members:
            self._book.look_for_silent(now)
            for assignment in self._book.assignments(now):
                self._assign(assignment)
            for number, batches in self._book.recalls(now).items():
                self._members[number].worker.send(messages.Recall(batches))
            self._ask_for_inner()
            self._steer(now)
        if self._book.left or self.job is None:
            self._idle_since_s = None
        elif self._idle_since_s is None:
            self._idle_since_s = now
        elif now >= self._idle_since_s + LINGER_S:
            self.end_job()

    def next_turn_s(self, now: float) -> float | None:
        """Return the time at which `turn` must be called even if nothing happens; None: never."""
        due_s = [one[0] for one in self._unwanted]
        if self._idle_since_s is not None:
            due_s.append(self._idle_since_s + LINGER_S)
        if due_s:
            return min(due_s)
        if not self._book.left:
            return None
        return now + (_RECALL_S if self._book.has_batches else _SILENCE_S)

    def _begin_job(self) -> None:
        self.serial += 1
        self._has_had_workers = False
        self._done_before = self._book.done
        self._steered = (-1, -1, -1)
        self.job = self._start(self)

    def end_job(self) -> None:
        """End the job, because it has no more calls."""
        job, self.job = self.job, None
        root = next((member for member in self._members.values() if member.index == 0), None)
        if root is not None:
            root.worker.send(messages.Finish(self._book.done))
        elif job is not None:
            job.cancel()
        for number in tuple(self._members):
            self.lost(number, is_to_blame=False)
        self._idle_since_s = None

    def job_ended(self, job: Future[Answer]) -> None:
        """Take in the job's reply, which ends the job."""
        if job is not self.job:
            return
        self.job = None
        for number in tuple(self._members):
            self.lost(number)
        if not self._book.left:
            return
        error = job.exception()
        if error is None:
            outcome = str(job.result().reply["result"].get("outcome", ""))
            if outcome != "result":
                kind: type[JobEnded] = TimeLimit if "limit" in outcome else JobEnded
                self.fail(lambda call: kind(f"{_ENDINGS.get(outcome, outcome)} before this was done: {call}"))
                return
            error = JobError("application", "the job's root lost its connection to the executor")
        is_progress = self._book.done > self._done_before
        self._failures = 0 if is_progress else self._failures + 1
        if not self._has_had_workers or self._failures >= _FAILURES_MAX or not isinstance(error, JobError):
            self.fail(lambda call: _of_job(error, call))

    # --- workers ------------------------------------------------------------------------------------

    def has(self, number: int) -> bool:
        """Tell whether a worker belongs to the present job."""
        return number in self._members

    def joined(self, worker: Worker, now: float) -> None:
        self._has_had_workers = True
        self._members[worker.number] = _Member(worker)
        self._book.join(worker.number, now)

    def lost(self, number: int, is_to_blame: bool = True) -> None:
        if self._members.pop(number, None) is None:
            return
        for group, call in self._book.lose(number, is_to_blame):
            died = f"its workers died {_times(group.losses[call])}"
            if isinstance(group.content, CallSet):
                self._fail(group, [call], lambda name, died=died: WorkerLost(f"{died}: {name}"))  # type: ignore[misc]
            else:
                self._fail_inner(group, WorkerLost(f"{died}: a call within a call"))
        for group in tuple(self._groups):
            if isinstance(group.content, InnerSet) and group.content.origin == number:
                self.cancel(group, self._now_s)

    def heard(self, number: int, message: messages.FromWorker, buffers: list[Buffer], now: float) -> None:
        """Take in a message from a worker."""
        member = self._members[number]
        self._take(member, number, message, buffers, now)
        match message:
            case messages.Results(batch) | messages.GivenBack(batch) | messages.Unreadable(batch):
                if self._book.batch_of(number, batch) is None:
                    member.orders.pop(batch, None)
            case _:
                pass

    def _take(
        self, member: _Member, number: int, message: messages.FromWorker, buffers: list[Buffer], now: float
    ) -> None:
        match message:
            case messages.Place(index, volume):
                member.index = index
                self._book.place(number, index, volume, now)
            case messages.Results():
                self._take_results(number, message, buffers, now)
            case messages.GivenBack(batch, places):
                order = member.orders.get(batch, [])
                found = self._book.batch_of(number, batch)
                # A whole batch is one call of the book; its running call goes on until it is stopped.
                if found is not None and (not found.group.is_whole or len(places) == len(order)):
                    self._book.given_back(number, batch, [order[place] for place in places])
            case messages.Unreadable(batch):
                self._unreadable(number, batch, buffers, now)
            case messages.Told(batch, place, done, total):
                found = self._book.batch_of(number, batch)
                if found is not None and isinstance(found.group.content, CallSet):
                    call = member.orders[batch][place]
                    found.group.content.sink.told(call, CallProgress(done, total))
            case messages.Offered(count):
                member.offered = count
                member.is_asked = False
            case messages.Inner(group_number, count, function_buffers, is_kept):
                function = self.function_of(Pickled(buffers[:function_buffers], "", is_kept))
                content = InnerSet(function, number, group_number, count, buffers[function_buffers:])
                group = Group(content, 1, is_whole=True)
                self._groups[group] = None
                self._book.add(group, is_first=True)

    def _take_results(
        self, number: int, message: messages.Results, buffers: list[Buffer], now: float
    ) -> None:
        batch = self._book.batch_of(number, message.batch)
        if batch is None:
            return
        group, content = batch.group, batch.group.content
        if isinstance(content, InnerSet):
            self._take_inner_results(number, message, group, buffers, now)
            return
        order = self._members[number].orders[message.batch]
        calls, is_ok = [order[place] for place in message.places], message.is_ok
        self._book.note_bytes(group, len(calls), size_of(buffers))
        values = load(buffers)
        new = self._book.results(number, message.batch, calls, message.spent_s, now)
        if len(new) < len(calls):
            wanted = set(new)
            places = [place for place, call in enumerate(calls) if call in wanted]
            is_ok, values = [is_ok[place] for place in places], [values[place] for place in places]
        self._hand_out(group, new, is_ok, values)

    def _take_inner_results(
        self, number: int, message: messages.Results, group: Group, buffers: list[Buffer], now: float
    ) -> None:
        if self._book.results(number, message.batch, [0], message.spent_s, now):
            self._answer_inner(group, message.is_ok, buffers)

    def _answer_inner(self, group: Group, is_ok: list[bool], buffers: Sequence[Buffer]) -> None:
        content: InnerSet = group.content
        self._groups.pop(group, None)
        if (origin := self._members.get(content.origin)) is not None:
            origin.worker.send(messages.InnerResults(content.group, is_ok), buffers)

    def _fail_inner(self, group: Group, error: BaseException) -> None:
        """Send each call of an inner group's batch an error."""
        count = group.content.count
        self._answer_inner(group, [False] * count, packed([dump_error(error, __file__)] * count))

    def _unreadable(self, number: int, batch_number: int, buffers: list[Buffer], now: float) -> None:
        """Fail a batch that a worker cannot read, since other workers most likely lack the same module."""
        batch = self._book.batch_of(number, batch_number)
        if batch is None:
            return
        group, content, calls = batch.group, batch.group.content, sorted(batch.calls)
        if isinstance(content, InnerSet):
            message = messages.Results(batch_number, [0], [False] * content.count, 0.0)
            errors = packed(load(buffers) * content.count)
            self._take_inner_results(number, message, group, errors, now)
            return
        new = self._book.results(number, batch_number, calls, 0.0, now)
        self._hand_out(group, new, [False] * len(new), load(buffers) * len(new))

    def _deliver(self, group: Group, calls: Sequence[int], error_of: Callable[[int], BaseException]) -> None:
        if calls:
            self._hand_out(group, calls, [False] * len(calls), [error_of(call) for call in calls])

    def _fail(self, group: Group, calls: Sequence[int], error_of: Callable[[str], BaseException]) -> None:
        """Deliver an error to each call; `error_of` makes it from the call's name."""
        self._hand_out(group, calls, [False] * len(calls), [_Unnamed(error_of)] * len(calls))

    def _hand_out(
        self, group: Group, calls: Sequence[int], is_ok: Sequence[bool], values: Sequence[Any]
    ) -> None:
        """Deliver outcomes of calls: snapshots of results, and exceptions, pickled or not."""
        content: CallSet = group.content
        items = content.items
        names: dict[int, Any] | None = None
        if not all(is_ok) or list in map(type, values):
            names = {call: items[call] for call in calls if call < len(items)}
        handed_in = len(items)
        for call in calls:
            if call < handed_in:
                items[call] = None
        if not group.left:
            self._groups.pop(group, None)
        if calls:
            self._deliverer.put(partial(_deliver, self._break_off, content, calls, is_ok, values, names))

    # --- sending ------------------------------------------------------------------------------------

    def function_of(self, pickled: Pickled) -> FunctionRef:
        """Return the reference of a pickled function; functions with equal bytes share one reference."""
        buffers = pickled.buffers
        data = bytes(buffers[0])
        number = self._pickled.get(data) if len(buffers) == 1 else None
        if number is not None and number in self._functions:
            return self._functions[number]
        function = FunctionRef(self._new_number(), pickled)
        self._functions[function.number] = function
        if len(buffers) == 1:
            self._pickled[data] = function.number
        if len(self._functions) > _FUNCTIONS_KEPT:
            self._forget_functions()
        return function

    def _forget_functions(self) -> None:
        """Forget the oldest functions without calls, here and in workers."""
        needed = {group.content.function.number for group in self._groups}
        unneeded = [number for number in self._functions if number not in needed]
        gone = set(unneeded[: -_FUNCTIONS_KEPT // 2])
        for number in gone:
            function = self._functions.pop(number)
            if len(function.buffers) == 1:
                del self._pickled[bytes(function.buffers[0])]
        for member in self._members.values():
            if known := member.functions & gone:
                member.functions -= known
                member.worker.send(messages.Forget(sorted(known)))

    def _assign(self, assignment: Assignment) -> None:
        number, batch, group, calls = assignment
        member, content = self._members[number], group.content
        if isinstance(content, InnerSet):
            member.orders[batch] = [0] * content.count
            message = messages.Calls(batch, content.function.number, content.count, True, 0, is_whole=True)
            self._send_calls(member, message, content.function, content.buffers)
            return
        wanted = list(content.sink.begin(calls))
        buffers = packed(content.items[call] for call in wanted)
        if len(wanted) < len(calls):
            kept = set(wanted)
            dropped = [call for call in calls if call not in kept]
            self._book.drop(number, batch, dropped)
            self._hand_out(group, [], (), ())
        if not wanted:
            return
        member.orders[batch] = wanted
        self._book.note_bytes(group, len(wanted), size_of(buffers))
        message = messages.Calls(
            batch, content.function.number, len(wanted), content.has_keywords, content.retries, is_whole=False
        )
        self._send_calls(member, message, content.function, buffers)

    def _send_calls(
        self, member: _Member, message: messages.Calls, function: FunctionRef, buffers: list[Buffer]
    ) -> None:
        if function.number not in member.functions:
            member.functions.add(function.number)
            member.worker.send(messages.Function(function.number, function.is_kept), function.buffers)
        member.worker.send(message, buffers)

    def _ask_for_inner(self) -> None:
        """Ask workers for calls that their running calls have submitted, so that idle workers do these."""
        idle = self._book.idle
        if not idle or self._book.has_waiting:
            return
        for member in self._members.values():
            if member.offered and not member.is_asked:
                member.is_asked = True
                others = sum(number != member.worker.number for number in idle)
                if others:
                    share = max(1, member.offered // (4 * (others + 1)))
                    for _ in range(others):
                        member.worker.send(messages.Wanted(share))

    def _steer(self, now: float) -> None:
        root = next((each.worker for each in self._members.values() if each.index == 0), None)
        if root is None or root.is_closed:
            return
        demand = self._book.demand(sum(member.offered for member in self._members.values()))
        wanted = (root.number, demand, self._book.done)
        if wanted == self._steered or (now < self._steer_s and wanted[:2] == self._steered[:2]):
            return
        self._steered, self._steer_s = wanted, now + _STEER_S
        root.send(messages.Steer(demand, self._book.done, self._book.done + self._book.left))


def size_of(buffers: Sequence[Buffer]) -> int:
    return sum(memoryview(buffer).nbytes for buffer in buffers)


def shown_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return a call's arguments as text, for messages. This calls the arguments' `repr`."""
    shown = ", ".join([*map(_shown, args), *(f"{key}={_shown(value)}" for key, value in kwargs.items())])
    return shown if len(shown) <= _ARGUMENTS_SHOWN else shown[: _ARGUMENTS_SHOWN - 3] + "..."


class _Unnamed(NamedTuple):
    """An error that is made from its call's name only when it is delivered."""

    error_of: Callable[[str], BaseException]


def _deliver(
    break_off: Callable[[Callable[[str], BaseException]], None],
    content: CallSet,
    calls: Sequence[int],
    is_ok: Sequence[bool],
    values: Sequence[Any],
    items: Mapping[int, Any] | None,
) -> None:
    """Give outcomes of calls to their sink. This runs the user's code, which may raise any exception.

    `items`: call -> its arguments, to name them in errors; None: all outcomes are plain results.
    """
    if items is not None:
        found = [
            _outcome_or_error(content, call, ok, value, items.get(call))
            for call, ok, value in zip(calls, is_ok, values, strict=True)
        ]
        is_ok, values = [ok for ok, _ in found], [value for _, value in found]
        if failed := [value for value in values if isinstance(value, NotInitialized)]:
            why = str(failed[0])
            break_off(lambda call: NotInitialized(f"{why}; not done: {call}"))
    content.sink.deliver(calls, is_ok, values)


def _outcome_or_error(content: CallSet, call: int, is_ok: bool, value: Any, item: Any) -> tuple[bool, Any]:
    try:
        return _outcome(content, call, is_ok, value, item)
    except BaseException as error:
        return False, CallError(f"the call's outcome cannot be delivered: {told(error)}")


def _outcome(content: CallSet, call: int, is_ok: bool, value: Any, item: Any) -> tuple[bool, Any]:
    if is_ok:
        try:
            return True, restored(value)
        except BaseException as error:
            return False, CallError(
                f"a call's result cannot be read here: {told(error)}; the call: {content.named(call, item)}"
            )
    if isinstance(value, _Unnamed):
        return False, value.error_of(content.named(call, item))
    if isinstance(value, BaseException):
        return False, value
    return False, load_error(value, content.named(call, item))


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except BaseException:
        return f"<{type(value).__name__}>"
    return text if len(text) <= _ARGUMENTS_SHOWN else text[: _ARGUMENTS_SHOWN - 3] + "..."


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _of_job(error: BaseException, call: str) -> BaseException:
    """Convert the error with which a job ended into the error of one of its calls."""
    if isinstance(error, JobError):
        return JobError(error.field, error.message)
    return JobEnded(f"{error}; not done: {call}")


_ENDINGS = {
    "time-limit": "the time limit was reached",
    "cpu-limit": "the limit of CPU time was reached",
    "interrupted": "the job was interrupted",
}
