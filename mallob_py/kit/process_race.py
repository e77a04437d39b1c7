"""A race between processes of one worker: the first answer wins, the others are killed.

There is one process per core of the PE (one worker, several solver threads). They are processes and not
threads, because an attempt may hold the interpreter's lock for long, and a crash should cost one attempt
only. The worker process does not compute: it waits for its children's pipes and for news of its job, and
calls `turn` for all other duties. All processes share the payload.

Worker i with T threads starts the attempts with numbers i*T to i*T+T-1. If an attempt's process dies (a
crash, lack of memory; the job's memory limit holds for each process), it is replaced, at most twice, by an
attempt with a number that no present worker uses.

Children stay in the worker's process group, by which the runtime suspends, continues and kills them.

Guarantees: no child is left when `race` returns or raises, and none outlives the worker process; an exception
in an attempt is an error of the job, as without a race; dead processes are an error only if no process is
left. An attempt's solution must hold 32-bit integers, and its fields must be JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import struct
import traceback
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Generic, NoReturn, Protocol, TypeVar

import numpy as np

from mallob_py.kit.app import InputError, ProcessKilled, Result, TreeMessage, WorkerContext
from mallob_py.restarts import RestartLimit


class Attempt(Protocol):
    """One way to find the answer: prepared in the worker process, run in a child."""

    #: descriptors needed by the child
    fds: tuple[int, ...]

    def run(self) -> Result:
        """Find the answer; called in the child."""
        ...

    def close(self) -> None:
        """Release resources; called in the worker process, after the child's end."""
        ...


A = TypeVar("A", bound=Attempt)
#: a function called with new messages and the live attempts, at least every `pause_s()` (see `race`); each
#: attempt that it returns is given up, and another attempt begins instead
Turn = Callable[[list[TreeMessage], Collection[A]], Collection[A] | None]

_MAX_RESTARTS = 2
#: longest time between two calls of `turn`, by default
_TURN_INTERVAL_S = 0.05
_READ_BYTES = 1 << 16
_PR_SET_PDEATHSIG = 1
_OUT_OF_MEMORY_STATUS = 12
#: header of an answer: kind, result code, bytes of text, bytes of solution
_HEADER = struct.Struct("<ciQQ")
_ANSWER = b"A"
_ERROR = b"E"
_REFUSAL = b"R"


def race(
    context: WorkerContext,
    prepare: Callable[[int], A],
    turn: Turn[A],
    judge: Callable[[Result], Result | None] = lambda result: result,
    pause_s: Callable[[], float] = lambda: _TURN_INTERVAL_S,
) -> Result:
    """Run `context.threads` attempts at once.

    Args:
        context: the worker's view of its job.
        prepare: makes the attempt with the given number.
        turn: a function called when messages have arrived, and at least every `pause_s()` seconds; it returns
            the attempts that must be given up.
        judge: turns an attempt's answer into the worker's result, or returns None to have another attempt
            begin instead.
        pause_s: returns the longest time until the next call of `turn`.

    Returns:
        The first result that `judge` returns.

    Raises:
        RuntimeError: an attempt raised an exception, or the processes of all attempts died.
        InputError: an attempt raised InputError.
    """
    with _Race(context, prepare, turn, judge, pause_s) as running:
        return running.first_answer()


@dataclass(slots=True)
class _Child(Generic[A]):
    """The process of an attempt: process `place` of the worker, attempt `number` in all, both from 0."""

    attempt: A
    pid: int
    fd: int
    place: int
    number: int
    received: bytearray = field(default_factory=bytearray)


class _Race(Generic[A]):
    def __init__(
        self,
        context: WorkerContext,
        prepare: Callable[[int], A],
        turn: Turn[A],
        judge: Callable[[Result], Result | None],
        pause_s: Callable[[], float],
    ) -> None:
        self._judge = judge
        self._pause_s = pause_s
        self._context = context
        self._prepare = prepare
        self._turn = turn
        self._selector = selectors.DefaultSelector()
        self._selector.register(context.fileno(), selectors.EVENT_READ)
        self._children: dict[int, _Child[A]] = {}  # process id -> child
        self._restarts = [RestartLimit(_MAX_RESTARTS) for _ in range(context.threads)]
        self._deaths: list[str] = []

    def __enter__(self) -> _Race[A]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._context.note_memory()
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)  # this child was not waited for, so its pid was not reused
        for child in list(self._children.values()):
            self._bury(child)
        self._selector.close()

    def first_answer(self) -> Result:
        first = self._context.index * self._context.threads
        for place in range(self._context.threads):
            self._start(place, first + place)
        while self._children:
            attempts = [child.attempt for child in self._children.values()]
            given_up = self._turn(self._context.poll(), attempts) or ()
            for child in [one for one in self._children.values() if one.attempt in given_up]:
                self._follow(child)
            for key, _ in self._selector.select(self._pause_s()):
                if key.data is None or (answer := self._hear(key.data)) is None:
                    continue
                if (result := self._judge(answer)) is not None:
                    return result
                self._follow(key.data)
        kind = ProcessKilled if any(map(_is_kill, self._deaths)) else RuntimeError
        raise kind(f"all processes of the worker died: {'; '.join(self._deaths)}")

    def _start(self, place: int, number: int) -> None:
        try:
            attempt = self._prepare(number)
        except OSError as error:  # such as no further descriptor: go on with the present processes
            self._deaths.append(f"attempt {number}: preparation: {error}")
            return
        ours, theirs = os.pipe()
        worker_pid = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:  # no further process can be made: go on with the present ones
            self._deaths.append(f"attempt {number}: fork: {error.strerror}")
            attempt.close()
            os.close(ours)
            os.close(theirs)
            return
        if pid == 0:
            run_and_exit(theirs, worker_pid, attempt)
        os.close(theirs)
        child = _Child(attempt, pid, ours, place, number)
        self._children[pid] = child
        self._selector.register(ours, selectors.EVENT_READ, child)

    def _hear(self, child: _Child[A]) -> Result | None:
        """Read from a child; return its answer once the answer is complete."""
        data = os.read(child.fd, _READ_BYTES)
        child.received += data
        if (message := _decode(child.received)) is None:
            if not data:
                self._replace(child)
            return None
        if isinstance(message, Exception):
            raise message
        return message

    def _replace(self, child: _Child[A]) -> None:
        self._deaths.append(f"attempt {child.number}: {self._bury(child)}")
        if self._restarts[child.place].next_delay_s() is not None:
            self._start_next(child)

    def _follow(self, child: _Child[A]) -> None:
        """Kill an attempt that is of no use any more, and start the next attempt instead."""
        self._context.note_memory()
        self._bury(child)
        self._start_next(child)

    def _start_next(self, child: _Child[A]) -> None:
        stride = max(1, self._context.volume) * self._context.threads
        self._start(child.place, child.number + stride)

    def _bury(self, child: _Child[A]) -> str:
        """Kill a child, release what belongs to it, and return why it ended."""
        # A damaged child may have closed its pipe and still run. The signal has no effect on an ended child.
        os.kill(child.pid, signal.SIGKILL)
        _, status = os.waitpid(child.pid, 0)
        self._selector.unregister(child.fd)
        os.close(child.fd)
        child.attempt.close()
        del self._children[child.pid]
        return _reason(status)


def run_and_exit(fd: int, worker_pid: int, attempt: Attempt) -> NoReturn:
    """Run the attempt in the child; never return into the worker's code."""
    try:
        die_with(worker_pid)
        # The worker's socket to the rank must close when the worker ends, so no child may hold the socket.
        _close_all_but(fd, *attempt.fds)
        _write(fd, _message_of(attempt))
        while True:  # the worker measures our memory, then kills us
            signal.pause()
    except MemoryError:
        os._exit(_OUT_OF_MEMORY_STATUS)
    except BrokenPipeError:  # the worker process has ended, so this child ends, too
        os._exit(1)
    except BaseException:
        with suppress(BaseException):
            traceback.print_exc()
        os._exit(1)
    finally:
        os._exit(0)


def _close_all_but(*fds: int) -> None:
    first = 3
    for fd in sorted(fds):
        os.closerange(first, fd)
        first = fd + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def _message_of(attempt: Attempt) -> bytes:
    try:
        result = attempt.run()
    except InputError as error:
        text = error.message.encode(errors="replace")
        return _HEADER.pack(_REFUSAL, 0, len(text), 0) + text
    except MemoryError:  # as after a kill by the kernel: other attempts may need less memory
        raise
    except Exception:
        text = traceback.format_exc().encode(errors="replace")
        return _HEADER.pack(_ERROR, 0, len(text), 0) + text
    text = json.dumps(dict(result.fields)).encode()
    solution = () if result.solution is None else result.solution
    numbers = np.asarray(solution, dtype=np.int32).tobytes()
    return _HEADER.pack(_ANSWER, result.code, len(text), len(numbers)) + text + numbers


def _decode(received: bytearray) -> Result | Exception | None:
    """Return a result or an error; None: the message is incomplete."""
    if len(received) < _HEADER.size:
        return None
    kind, code, text_bytes, solution_bytes = _HEADER.unpack_from(received)
    if len(received) != _HEADER.size + text_bytes + solution_bytes:
        return None
    text = received[_HEADER.size : _HEADER.size + text_bytes].decode()
    if kind == _ERROR:
        return RuntimeError(f"in a process of the worker:\n{text}")
    if kind == _REFUSAL:
        return InputError(text)
    solution = np.frombuffer(received, dtype=np.int32, offset=_HEADER.size + text_bytes)
    return Result(code, solution, json.loads(text))


def _write(fd: int, message: bytes) -> None:
    left = memoryview(message)
    while left:
        left = left[os.write(fd, left) :]


def die_with(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends, even if the parent is killed."""
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError("prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:  # the parent has ended already
        os._exit(1)


def _is_kill(death: str) -> bool:
    return death.endswith(signal.SIGKILL.name)


def _reason(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code == _OUT_OF_MEMORY_STATUS:
        return "out of memory"
    if code >= 0:
        return f"exit status {code}"
    with suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"
