"""A worker of calls: the main thread runs calls, a second thread exchanges messages with executor and job.

So the executor can recall waiting calls while a call runs, and a call may use functions that only main
threads may use. Calls of a batch arrive together. Their results are sent together, but a finished result
waits at most 10 ms. No two calls share argument objects, and each result is pickled when its call returns.

A call whose result is not wanted any more is interrupted as by Ctrl-C. If it continues, the process ends.

A worker that is suspended or killed hands over nothing, because the executor knows which calls it had.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from mallob_calls.fetching import Fetcher
from mallob_py.kit import InputError, Result, WorkerContext
from mallob_py.kit.calls import here, messages, sharing, wire
from mallob_py.kit.calls.values import ATOMS, copied, dump, dump_error, load, packed
from mallob_py.kit.declaration import DONE, UNKNOWN

if TYPE_CHECKING:
    from mallob_calls.inner import Pools

#: longest time that a finished result waits for the other results of its batch
_FLUSH_S = 0.01
_TOLD_S = 0.1
_CONNECT_S = 10.0
#: time after which the message thread checks its deadlines if no message comes
_LOOK_S = 0.25
#: time within which an interrupted call must end
_STOP_S = 1.0
#: time between two messages that show the executor that the worker is not suspended
_PLACE_S = 0.5


class Stopped(KeyboardInterrupt):
    """The exception raised in a call whose result is not wanted any more."""


class Meeting(msgspec.Struct, frozen=True):
    """A job's configuration: how workers reach the executor."""

    #: the executor's host, and the path of its Unix socket on that host
    host: str
    socket: str
    #: the executor's key in hexadecimal digits; empty if the kernel identifies the executor's user
    secret: str
    #: user id of the executor's process
    user: int
    #: numbers that identify the job among the executor's jobs
    lane: int
    serial: int
    #: the executor's Python version, such as "3.11"
    python: str
    #: the executor's TCP addresses for other hosts
    hosts: list[tuple[str, int]] = []
    #: the executor's `sys.path`
    path: list[str] = []


class _Batch:
    __slots__ = ("buffers", "order", "told")

    def __init__(self, told: messages.Calls, buffers: list[wire.Buffer]) -> None:
        self.told = told
        self.buffers = buffers
        #: places of the batch's calls that have not begun; the worker begins from the left, gives back from
        #: the right
        self.order = deque(range(told.count))


class Worker:
    """A worker of the application `CALLS` that serves one run."""

    def __init__(self, context: WorkerContext, meeting: Meeting) -> None:
        self._context = context
        self._meeting = meeting
        self._batches: SimpleQueue[_Batch | None] = SimpleQueue()
        #: batch number -> batch that may have waiting calls
        self._open: dict[int, _Batch] = {}
        #: function number -> pickled function
        self._raw_functions: dict[int, list[wire.Buffer]] = {}
        self._functions: dict[int, Any] = {}
        #: numbers of the functions that are unpickled once for several calls
        self._kept: set[int] = set()
        self._is_idle = True
        #: batch number of the running call, and its place in the batch
        self._running: tuple[int, int] | None = None
        #: unwanted calls: their batch, their places, and the time at which the process ends if one still runs
        self._unwanted: tuple[int, frozenset[int], float] | None = None
        self._next_told_s = 0.0
        self._mutex = threading.Lock()
        #: number of calls done, and of all calls of the job, as the executor counts them
        self._progress: tuple[int, int] | None = None
        self._pools: Pools | None = None
        self._fetcher = Fetcher(self.send, meeting.user)
        self._process = os.getpid()

    def run(self) -> Result | None:
        """Run calls until the job ends; return None if the executor cannot be reached any more."""
        if self._meeting.python != (python := f"{sys.version_info.major}.{sys.version_info.minor}"):
            raise InputError(
                f"the executor runs Python {self._meeting.python}, workers of the service {python};"
                " use the same version for both",
                "application",
            )
        connection = self.connect()
        if connection is None:
            return None
        program = self._meeting.path
        sys.path[:] = [*program, *(entry for entry in sys.path if entry not in program)]
        self._socket = connection
        self._writer = wire.FrameWriter(connection)
        meeting = self._meeting
        self.send(
            messages.Hello(meeting.lane, meeting.serial, meeting.python, socket.gethostname(), os.getpid())
        )
        here.worker, sharing.fetch = self, self._fetcher.fetch
        signal.signal(signal.SIGUSR2, self._on_stop)
        threading.Thread(target=self._talk, name="mallob-py-talk", daemon=True).start()
        while (batch := self._batches.get()) is not None:
            if batch.order:
                self._is_idle = False
                self._do(batch)
                self._is_idle = True
            self._open.pop(batch.told.batch, None)
        return None

    def connect(self) -> socket.socket | None:
        """Connect to the executor. If that fails, return None; at the root, raise InputError."""
        meeting, key = self._meeting, bytes.fromhex(self._meeting.secret)
        addresses: list[tuple[int, Any]] = []
        if meeting.host == socket.gethostname() and os.path.exists(meeting.socket):
            addresses.append((socket.AF_UNIX, meeting.socket))
        if key:
            addresses += ((socket.AF_INET, tuple(address)) for address in meeting.hosts)
        why = f"its socket {meeting.socket} does not exist on this host"
        for family, address in addresses:
            connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            connection.settimeout(_CONNECT_S)
            try:
                connection.connect(address)
                if family == socket.AF_UNIX and wire.peer_user(connection) != meeting.user:
                    raise wire.NotTrusted
                wire.prove_and_check(connection, key, messages.WORKER, messages.CLIENT)
            except (OSError, wire.PeerGone, wire.NotTrusted) as error:
                why = f"{address}: {str(error) or type(error).__name__}"
                connection.close()
                continue
            if family == socket.AF_UNIX:
                wire.let_hold_arrays(connection)
            else:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
        if self._context.index > 0:
            return None
        raise InputError(
            f"the executor on {meeting.host} that wants the calls cannot be reached from"
            f" {socket.gethostname()} ({why}); has it ended?",
            "configuration",
        )

    # --- the main thread: calls ---------------------------------------------------------------------

    def _do(self, batch: _Batch) -> None:
        told = batch.told
        try:
            items = load(batch.buffers)
            function = self._function(told.function)
        except BaseException as error:
            batch.order.clear()
            self.send(messages.Unreadable(told.batch), packed([_unreadable(error)]))
            return
        batch.buffers = []
        outcomes = _Outcomes(told.batch)
        last_s = begun_s = time.perf_counter()
        order = batch.order
        while True:
            try:
                place = order.popleft()
            except IndexError:
                break
            item, items[place] = items[place], None
            try:
                is_ok, value = self._call(told, place, function, item)
            except Stopped as error:  # the interrupt came after the call had ended
                self._running = None
                is_ok, value = False, dump_error(error, __file__)
            self._end_if_forked(None)
            outcomes.add(place, is_ok, value)
            item = None
            now_s = time.perf_counter()
            is_due = now_s - last_s > _FLUSH_S or (type(value) is list and len(value) > 1)
            if is_due and order and not told.is_whole:
                self._send_outcomes(outcomes, now_s - begun_s)
                last_s = begun_s = time.perf_counter()
            value = None
        if outcomes.places:
            self._send_outcomes(outcomes, time.perf_counter() - begun_s)

    def _call(self, told: messages.Calls, place: int, function: Any, item: Any) -> tuple[bool, Any]:
        """Run a call. Return True and a snapshot of its result, or False and its dumped exception."""
        tries = told.retries
        while True:
            is_read = False
            try:
                self._running = (told.batch, place)
                callee = function if function is not None else self._fresh_function(told.function)
                arguments = item if type(item) is not list else load(copied(item) if tries else item)
                is_read = True
                value = callee(*arguments[0], **arguments[1]) if told.has_keywords else callee(*arguments)
                if type(value) not in ATOMS:
                    # A result with buffers is sent before the next call begins, so that its buffers need no
                    # copy.
                    value = dump(value, "its result", is_copied=told.is_whole)
                self._running = None
                return True, value
            except BaseException as error:  # SystemExit and KeyboardInterrupt also come from the user's code
                self._running = None
                self._end_if_forked(error)
                if tries > 0 and is_read and isinstance(error, Exception):
                    tries -= 1
                    continue
                return False, dump_error(error, __file__) if is_read else _unreadable(error)

    def _on_stop(self, *_: object) -> None:
        """Interrupt the running call if its result is not wanted. Runs in the main thread, by a signal."""
        if (unwanted := self._unwanted) is not None and self._is_running(unwanted):
            raise Stopped("nobody wants the result of this call any more")

    def _is_running(self, unwanted: tuple[int, frozenset[int], float]) -> bool:
        running = self._running
        return running is not None and running[0] == unwanted[0] and running[1] in unwanted[1]

    def _stop(self, batch: int, places: list[int]) -> None:
        unwanted = self._unwanted = (batch, frozenset(places), time.monotonic() + _STOP_S)
        if self._is_running(unwanted):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR2)

    def _look_after_stopped(self, now_s: float) -> None:
        """End the process if an interrupted call has not ended in time; the job gets another worker."""
        if (unwanted := self._unwanted) is None:
            return
        if not self._is_running(unwanted):
            self._unwanted = None
        elif now_s >= unwanted[2]:
            os._exit(1)

    def _end_if_forked(self, error: BaseException | None) -> None:
        """End this process if it is a child that a call has forked, because only the parent may answer."""
        if os.getpid() == self._process:
            return
        code = 0 if error is None else 1
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        elif error is not None:
            traceback.print_exception(error)
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(code & 0xFF)

    def _function(self, number: int) -> Any:
        """Return a function that several calls use; None: each call must unpickle the function anew."""
        if number not in self._kept:
            return None
        if number not in self._functions:
            self._functions[number] = load(self._raw_functions[number])
        return self._functions[number]

    def _fresh_function(self, number: int) -> Any:
        return load(copied(self._raw_functions[number]))

    def _send_outcomes(self, outcomes: _Outcomes, spent_s: float) -> None:
        message = messages.Results(outcomes.batch, outcomes.places, outcomes.is_ok, spent_s)
        self.send(message, packed(outcomes.values))
        outcomes.clear()

    def report_progress(self, done: float, total: float | None) -> None:
        """Report how much of the running call is done; see `mallob_py.kit.calls.here.Here`."""
        now_s, running = time.monotonic(), self._running
        if running is not None and now_s >= self._next_told_s:
            self._next_told_s = now_s + _TOLD_S
            self.send(messages.Told(*running, float(done), None if total is None else float(total)))

    def inner_pool(self) -> here.InnerPool:
        """Make a pool for an executor within a call; see `mallob_py.kit.calls.here.Here`."""
        from mallob_calls.inner import Pools

        with self._mutex:
            if self._pools is None:
                self._pools = Pools(self.send)
        return self._pools.new()

    def send(self, message: messages.FromWorker, buffers: Sequence[wire.Buffer] = ()) -> None:
        """Send a message from any thread. A closed connection is no error here: `_talk` handles it."""
        data = messages.encode(message)
        with self._mutex:
            self._writer.put(data, buffers)
            with suppress(wire.PeerGone):
                self._writer.flush_all()

    # --- the other thread: messages --------------------------------------------------------------------

    def _talk(self) -> NoReturn:
        try:
            self._listen()
        except wire.PeerGone:
            self._lose_executor()
        except BaseException:  # the rank is lost, or the job continues without this worker
            os._exit(0)
        os._exit(0)

    def _listen(self) -> None:
        context, reader = self._context, wire.FrameReader(self._socket)
        poll = select.poll()
        poll.register(context.fileno(), select.POLLIN)
        poll.register(self._socket, select.POLLIN)
        place = (-1, -1)
        next_place_s = 0.0
        while True:
            context.poll()
            now_s = time.monotonic()
            if place != (context.index, context.volume) or now_s >= next_place_s:
                place, next_place_s = (context.index, context.volume), now_s + _PLACE_S
                self.send(messages.Place(*place))
            for frame in reader.read():
                self._take(messages.decode_to_worker(frame.head), list(frame.buffers))
            self._look_after_stopped(now_s)
            if self._pools is not None:
                self._pools.deliverer.look(now_s)
            if self._progress is not None and self._progress[1]:
                context.report_progress(*self._progress, "calls")
            poll.poll(_LOOK_S * 1000)

    def _take(self, message: messages.ToWorker, buffers: list[wire.Buffer]) -> None:
        match message:
            case messages.Calls():
                batch = self._open[message.batch] = _Batch(message, buffers)
                self._batches.put(batch)
            case messages.Function(number, is_kept):
                self._raw_functions[number] = buffers
                if is_kept:
                    self._kept.add(number)
            case messages.Forget(numbers):
                for number in numbers:
                    self._raw_functions.pop(number, None)
                    self._functions.pop(number, None)
                    self._kept.discard(number)
            case messages.Recall(numbers):
                for number in numbers:
                    self._give_back(number)
            case messages.Stop(batch_number, places):
                self._stop(batch_number, places)
            case messages.Found():
                self._fetcher.take(message, buffers)
            case messages.Release(mark):
                sharing.regions.pop(mark, None)
            case messages.Steer(demand, done, total):
                self._context.set_demand(demand)
                self._progress = (done, total)
            case messages.Finish(done):
                self._finish(Result(DONE, fields={"calls": done}))
            case messages.Wanted(count):
                if self._pools is not None:
                    self._pools.give(count)
            case messages.InnerResults(group, is_ok):
                assert self._pools is not None
                self._pools.take_results(group, is_ok, buffers)

    def _give_back(self, number: int) -> None:
        batch = self._open.get(number)
        places: list[int] = []
        while batch is not None:
            try:
                places.append(batch.order.pop())
            except IndexError:
                break
        if places:
            self.send(messages.GivenBack(number, places))

    def _finish(self, result: Result) -> NoReturn:
        """End the job and this process, even if the main thread runs a call."""
        with suppress(BaseException):
            self._context.finish(result)
        os._exit(0)

    def _lose_executor(self) -> None:
        """End this worker, because the executor has ended. The root ends the job; idle workers await that."""
        if self._context.index == 0:
            self._finish(Result(UNKNOWN, fields={"why": "the executor has ended"}))
        while self._is_idle and self._context.index > 0:
            with suppress(Exception):
                self._context.poll(_LOOK_S)
        if self._context.index == 0:
            self._finish(Result(UNKNOWN, fields={"why": "the executor has ended"}))


class _Outcomes:
    """Results and exceptions that are not sent to the executor yet."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.clear()

    def clear(self) -> None:
        self.places: list[int] = []
        self.is_ok: list[bool] = []
        #: for each call, a snapshot of its result or its dumped exception
        self.values: list[Any] = []

    def add(self, place: int, is_ok: bool, value: Any) -> None:
        self.places.append(place)
        self.is_ok.append(is_ok)
        self.values.append(value)


def _unreadable(error: BaseException) -> tuple[bytes | None, str, str]:
    """Dump an error of unpickling, with advice in its text."""
    _, told, text = dump_error(error, __file__)
    where = f"on {socket.gethostname()} with {sys.executable}"
    hint = "the worker cannot unpickle the function or its arguments; is their module installed there?"
    note = f"{hint} ({where})"
    return None, f"{told}; {note}", f"{text}{note}\n"
