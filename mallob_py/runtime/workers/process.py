"""A worker process: it runs applications and reads inputs, one task after the other.

A worker process is forked from the fork server and talks to its rank over one socket. It has a single thread:
a solver may hold the interpreter for any time, since nothing else needs to run here. Suspension needs no code
here: the rank stops and continues the whole process by signals.

Guarantees
- The rank hears how every task ended: with a result, a traceback, or the process's death.
- After a result, after reading an input, or after handing over its work (`Leave`), the process offers itself
  for the next task, unless the task has left threads or child processes behind. After an exception it exits.
- A worker of a chain of revisions may get the next revision at any time: its present run ends at its next
  poll, and the application's state stays. If its run has ended, the worker may get the next revision's input
  to read, and go on with that revision's run.
- An application's output goes to its job's file if the service keeps such files (`output.py`), else to
  stderr; stdout belongs to the rank.
"""

from __future__ import annotations

import array
import math
import mmap
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, NoReturn

import msgspec

from mallob_py.applications import (
    UnknownApplication,
    declared_apart,
    imported,
    installed,
    places_without_search,
    unknown,
)
from mallob_py.kit.app import (
    CHECKPOINT_BYTES_MAX,
    PROGRESS_PERIOD_S,
    PROGRESS_UNIT_MAX,
    Application,
    InputError,
    JobInput,
    Payload,
    ProcessKilled,
    Result,
    TreeMessage,
    WorkerContext,
    check_progress,
)
from mallob_py.kit.declaration import Declaration
from mallob_py.kit.payload import decode_description, description_parts, encode_description
from mallob_py.kit.result_file import confined_to
from mallob_py.protocol.progress import Progress
from mallob_py.restarts import backoff_s
from mallob_py.runtime import worker_wire as wire
from mallob_py.runtime.memory import NO_ROOM, Memory, OwnPeak, own_cpu_seconds, own_usage, peak_bytes_of
from mallob_py.runtime.notices import tell
from mallob_py.runtime.processes import has_children
from mallob_py.runtime.workers.offering import Offering
from mallob_py.runtime.workers.output import Printed

_RECEIVE_BYTES = 1 << 18
#: delay before a root asks for its checkpoint again: an answer may be lost
_ASK_AGAIN_S = 1.0
#: greatest size of a description that is run as soon as it is read
_AHEAD_BYTES_MAX = 1 << 18
_MAX_TRACEBACK_CHARACTERS = 16_000
#: greatest number of levels in a result's fields: the rank of the job's client must be able to decode them
_LEVELS_MAX = 500

#: the folder of this package
_OUR_FILES = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
#: score of workers (-1000 to 1000), so that the kernel kills them before ranks when memory runs out
_OOM_SCORE = b"500"
#: longest wait for room for a description in shared memory; shortest and longest nap meanwhile
_ROOM_PATIENCE_S, _ROOM_NAPS_S = 60.0, (0.25, 4.0)
_THREADS = "/proc/self/task"
_LINKS_OF_ONE = 3


class AppRegistry:
    """The applications: name -> place ("module:Class"), and the application objects made so far.

    Application objects are made on demand, in the fork server and in worker processes only: a rank never
    imports an application. One object serves all tasks of a process.
    """

    def __init__(self, places: dict[str, str]) -> None:
        self._places = places
        self._loaded: dict[str, Application] = {}
        self._prepared: set[str] = set()

    @classmethod
    def discover(cls) -> AppRegistry:
        """Return a registry that looks for installed applications when an unknown name is asked for."""
        return cls(places_without_search())

    def names(self) -> tuple[str, ...]:
        self._look_for_installed()
        return tuple(sorted(self._places))

    def _look_for_installed(self) -> None:
        self._places = installed() | self._places

    @property
    def loaded(self) -> frozenset[str]:
        return frozenset(self._loaded)

    def is_prepared(self, name: str) -> bool:
        return name in self._prepared

    def prepared(self, name: str) -> Application:
        """Return the application, prepared for its first use. Raises any exception of the application."""
        application = self.load(name)
        if name not in self._prepared:
            application.prepare()
            self._prepared.add(name)
        return application

    def load(self, name: str) -> Application:
        """Import and instantiate the application. Raises any exception of its module."""
        if name in self._loaded:
            return self._loaded[name]
        place = self._place_of(name)
        made = imported(place)()
        if not isinstance(made, Application):
            raise TypeError(f"{place} is not a mallob_py.kit.Application")
        self._loaded[name] = made
        return made

    def declared(self, name: str) -> Declaration | type[Declaration]:
        """Return an application's declaration; import the application only if it declares nothing elsewhere.

        Raises any exception of the import.
        """
        return declared_apart(name, self._place_of(name)) or self.load(name)

    def _place_of(self, name: str) -> str:
        if name not in self._places:
            self._look_for_installed()
        if name not in self._places:
            raise UnknownApplication(unknown(name, self._places))
        return self._places[name]


class RankGone(Exception):
    """Error: the socket to the rank is closed."""


class RankLink:
    """The worker's end of the socket to its rank.

    A fork of this process that the application made is no worker: it would do tasks a second time. So if the
    fork returns from the application, it ends at its first use of this link, with a message.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._owner = os.getpid()
        self._buffer = wire.FrameBuffer()
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def send(self, *messages: wire.ProcessMessage) -> None:
        self._end_copy()
        try:
            self._socket.sendall(b"".join(wire.frame(message) for message in messages))
        except (BrokenPipeError, ConnectionResetError):
            raise RankGone from None

    def receive(self) -> wire.ToWorker:
        """Wait for the next message and return it."""
        while (message := self._next(0)) is None:
            pass
        return message

    def look(self) -> wire.ToWorker | None:
        """Return the next message if one has arrived, else None."""
        return self._next(socket.MSG_DONTWAIT)

    def _next(self, flags: int) -> wire.ToWorker | None:
        """Return the next message, reading at most once; None: no message is complete yet."""
        self._end_copy()
        if (body := self._buffer.take()) is None:
            if not flags:
                self._poll.poll()  # unlike a wait in `recv`, not woken when the rank reads
            try:
                data = self._socket.recv(_RECEIVE_BYTES, flags)
            except BlockingIOError:
                return None
            except ConnectionResetError:
                raise RankGone from None
            if not data:
                raise RankGone
            self._buffer.feed(data)
            if (body := self._buffer.take()) is None:
                return None
        return wire.decode_to_worker(body)

    def fileno(self) -> int:
        return self._socket.fileno()

    def wait(self, timeout_s: float | None) -> None:
        """Wait for a message, at most `timeout_s`."""
        self._poll.poll(None if timeout_s is None else timeout_s * 1000)

    def _end_copy(self) -> None:
        if os.getpid() != self._owner:
            tell(
                f"process {os.getpid()}, which an application has forked from worker process {self._owner}, "
                "went on as if it were that worker, and was ended; end forked processes by os._exit"
            )
            _exit(1)


class _Finished(BaseException):
    """Unwinds `Application.run` after `finish`, which has sent the result."""


class _Left(BaseException):
    """Unwinds `Application.run` of a parked worker that must leave, and has no work to hand over."""


class _Superseded(BaseException):
    """Unwinds `Application.run` when the rank has handed the process the next revision."""

    def __init__(self, run: wire.Run) -> None:
        self.run = run


class _Context(WorkerContext):
    """The context of one run, which talks to the rank (see `mallob_py.kit.app.WorkerContext`)."""

    def __init__(
        self, link: RankLink, run: wire.Run, cpu_before_s: float, printed: Printed | None = None
    ) -> None:
        """`cpu_before_s`: CPU time of this process before this task. `printed`: the job's output, if kept."""
        self._printed = printed
        description = decode_description(_open_description(run.description))
        self.application = description.application
        self.job = run.job
        self.chain = run.chain
        self.revision = run.revision
        self.index = run.index
        self.volume = run.volume
        self.children = run.children
        self.threads = run.threads
        self.is_alone = run.is_alone
        self.payload = description.payload
        self.configuration = description.configuration
        self._link = link
        #: messages that arrived while `last_checkpoint` waited for its answer
        self._held: list[TreeMessage] = []
        self._taken_leaving = 0
        self._last_checkpoint: wire.CheckpointGiven | None = None
        self._peak_memory_bytes = 0
        self._next_progress_s = time.monotonic() + PROGRESS_PERIOD_S  # short jobs report no progress
        #: progress that the application has reported, not passed on yet
        self._progress: Progress | None = None
        self._offering = Offering(self._encoded, lambda interim: link.send(wire.Offered(interim)))
        #: function that returns the name of a result code
        self.result_string: Callable[[int], str] = str
        self.cpu_before_s = cpu_before_s

    def poll(self, timeout_s: float = 0.0) -> list[TreeMessage]:
        if self._offering.due_s < math.inf:
            self._offering.turn(time.monotonic())
        if self._progress is not None:
            self._pass_on_progress()
        was_leaving = self.leaving
        messages = self._held + self._take_in()
        self._held = []
        # A leaving worker has only a second, and must not spend it waiting for messages.
        if not messages and timeout_s > 0 and self.leaving == was_leaving:
            self._link.wait(timeout_s)
            messages = self._take_in()
        return messages

    def _take_in(self) -> list[TreeMessage]:
        messages: list[TreeMessage] = []
        while (message := self._link.look()) is not None:
            match message:
                case wire.Update(index, volume, children):
                    self.index, self.volume, self.children = index, volume, children
                case wire.Deliver(source, sender, data, returned):
                    messages.append(TreeMessage(source, data, returned, sender))
                    self._taken_leaving += self.leaving
                case wire.CheckpointGiven():
                    self._last_checkpoint = message
                case wire.Leave():
                    self.leaving = True
                case wire.Run():
                    raise _Superseded(message)
                case wire.Quit():
                    raise RankGone
        return messages

    def fileno(self) -> int:
        return self._link.fileno()

    def park(self) -> NoReturn:
        self._offering.flush_news()
        while True:
            self._take_in()
            if self.leaving:
                raise _Left
            self._link.wait(None)

    def set_demand(self, demand: int) -> None:
        self._link.send(wire.Demand(demand))

    def report_progress(self, done: float, total: float | None = None, unit: str = "") -> None:
        check_progress(done, total)
        total = None if total is None else float(total)
        self._progress = Progress(float(done), total, unit[:PROGRESS_UNIT_MAX])
        self._pass_on_progress()

    def _pass_on_progress(self) -> None:
        now = time.monotonic()
        if self.index == 0 and self._progress is not None and now >= self._next_progress_s:
            self._next_progress_s = now + PROGRESS_PERIOD_S
            self._link.send(wire.Progressed(self._progress))
            self._progress = None

    def offer(
        self, result: Result | None = None, *, value: float | None = None, bound: float | None = None
    ) -> None:
        self._offering.offer(result, value, bound, time.monotonic())

    def declare(self, application: Application) -> None:
        """Note which application runs."""
        self.result_string = application.result_string
        self._offering.declare(application)

    def _encoded(self, result: Result) -> bytes:
        return wire.encode_result(_result_body(result, self.result_string))

    def checkpoint(self, data: bytes) -> None:
        if len(data) > CHECKPOINT_BYTES_MAX:
            raise ValueError(f"a checkpoint has {len(data)} bytes; the limit is {CHECKPOINT_BYTES_MAX}")
        if self.index == 0:
            self._link.send(wire.Checkpoint(bytes(data)))

    def last_checkpoint(self) -> bytes | None:
        self._last_checkpoint = None
        while self.index == 0 and not self.leaving:
            self._link.send(wire.CheckpointWanted())
            ask_again_s = time.monotonic() + _ASK_AGAIN_S
            while (left_s := ask_again_s - time.monotonic()) > 0:
                self._link.wait(left_s)
                self._held += self._take_in()
                if self._last_checkpoint is not None:
                    return self._last_checkpoint.data
        return None

    def send_to_parent(self, data: bytes) -> None:
        if self.index > 0:
            self._link.send(wire.ToParent(bytes(data)))

    def send_to_children(self, data: bytes) -> None:
        if self.children:
            self._link.send(wire.ToChildren(bytes(data)))

    def send_to(self, address: tuple[int, int], data: bytes) -> None:
        self._link.send(wire.ToAddress(*address, bytes(data)))

    def note_memory(self) -> None:
        self._peak_memory_bytes = max(self._peak_memory_bytes, peak_bytes_of(os.getpid()))

    def finish(self, result: Result) -> NoReturn:
        message, _ = self.result_message(result)
        self._link.send(message)
        raise _Finished

    def result_message(self, result: Result) -> tuple[wire.ResultFound, tuple[Memory, float]]:
        """Return a message of a result, this process's memory, and its CPU time until now."""
        if self._printed is not None:
            self._printed.settle()
        memory, cpu_s = own_usage()
        peak_bytes = max(self._peak_memory_bytes, memory.peak_bytes)
        message = _result_message(result, self.result_string, peak_bytes, cpu_s - self.cpu_before_s)
        return message, (memory, cpu_s)

    def left_message(self) -> wire.Left:
        self._offering.flush_news()
        return wire.Left(own_cpu_seconds() - self.cpu_before_s, self._taken_leaving)


def work(
    connection: socket.socket,
    registry: AppRegistry,
    configuration: wire.Configure,
    printed: Printed | None = None,
) -> None:
    """Do tasks until the rank sends `Quit` or ends; then exit."""
    _settle(configuration)
    _touch()
    worker = _Worker(RankLink(connection), registry, printed, configuration.input_max_bytes)
    with suppress(RankGone):
        worker.run()
    _exit(0)


class _Worker:
    def __init__(
        self, link: RankLink, registry: AppRegistry, printed: Printed | None, input_max_bytes: int | None
    ) -> None:
        self._link = link
        self._registry = registry
        self._printed = printed
        self._input_max_bytes = input_max_bytes
        #: applications that the fork server has imported for this process
        self._inherited = registry.loaded
        #: applications whose import this process has reported to the rank
        self._told: set[str] = set()
        self._peak = OwnPeak()
        #: CPU time of all earlier tasks
        self._cpu_before_s = 0.0
        self._is_of_chain = False

    def run(self) -> None:
        while True:
            self._count_anew()  # counted anew here: no rank waits for this process now
            following: wire.Run | None = None
            match self._link.receive():
                case wire.Run() as run:
                    following = self._run(run)
                case wire.Read() as read:
                    following = self._read(read)
                case wire.Inspect(names):
                    self._inspect(names)
                case wire.Quit():
                    return
                case _:  # an update or a message for an ended task
                    pass
            while following is not None:
                self._count_anew()
                following = self._run(following)

    def _inheritance(self, application: str) -> tuple[wire.ProcessMessage, ...]:
        """Return the report that the fork server has imported the application, once for each application."""
        if application in self._told or application not in self._inherited:
            return ()
        self._told.add(application)
        return (wire.Imports(application, False),)

    def _turn_to(self, job: int) -> None:
        if self._printed is not None:
            self._printed.turn_to(job)

    def _count_anew(self) -> None:
        """Count memory and CPU time from now on for the next task."""
        self._peak.forget()
        self._cpu_before_s = own_cpu_seconds()

    def _run(self, run: wire.Run) -> wire.Run | None:
        """Run a task; return the run that supersedes it, if any. Exits after an exception."""
        last: tuple[wire.ProcessMessage, ...] = ()
        usage: tuple[Memory, float] | None = None
        self._is_of_chain = run.chain > 0
        try:
            self._turn_to(run.job)
            context = _Context(self._link, run, self._cpu_before_s, self._printed)
            newly_imported = not self._registry.is_prepared(context.application)
            application = self._registry.prepared(context.application)
            context.declare(application)
            started = wire.Started(
                context.application,
                newly_imported,
                run.job,
                run.number,
                context.cpu_before_s,
                application.leaves_in_order,
            )
            self._link.send(*self._inheritance(context.application), started)
            result = application.run(context)
            if result is not None:
                message, usage = context.result_message(result)
                last = (message,)
            elif context.leaving:
                last = (context.left_message(),)
            else:
                context.park()
        except _Finished:
            pass
        except _Left:
            last = (context.left_message(),)
        except _Superseded as news:
            return news.run
        except RankGone:
            raise
        except ProcessKilled:
            signal.raise_signal(signal.SIGKILL)
        except InputError as error:  # an expected error: its text needs no traceback
            self._fail(wire.Failed(_valid(error.message)))
        except BaseException as error:  # users' code may raise SystemExit and KeyboardInterrupt, too
            self._fail(wire.Failed(_describe(error)))
        if not run.chain and not _left_clean():
            self._fail(*last)
        memory, cpu_s = usage or own_usage()
        # The end of the task is sent in one write with the result, so that the rank never finds the process
        # still running after its result.
        self._link.send(*last, wire.Idle(memory.private_bytes, cpu_s))
        return None

    def _read(self, read: wire.Read) -> wire.Run | None:
        """Read an input; return the run to begin with it, if any."""
        self._turn_to(0)
        then: wire.Run | None = None
        try:
            description = self._description(read)
            if self._is_of_chain and read.then is not None:
                data = _open_description(description)
                if len(data) <= _AHEAD_BYTES_MAX:  # a copy, since the rank may move the file
                    then = msgspec.structs.replace(read.then, description=wire.Inline(bytes(data)))
            answer: wire.ProcessMessage = wire.InputRead(description, then is not None)
        except InputError as error:
            answer = wire.InputRefused(_valid(error.message), error.field)
        except RankGone:
            raise
        except BaseException as error:
            self._fail(wire.InputRefused(_describe(error), "application"))
        last: tuple[wire.ProcessMessage, ...] = ()
        if not self._is_of_chain and _left_clean():
            memory, cpu_s = own_usage()
            # The end of the task is sent in one write with the answer, so that the job can run in this
            # process, whose memory is warm.
            last = (wire.Idle(memory.private_bytes, cpu_s),)
        try:
            self._link.send(answer, *last)
        except RankGone:
            with suppress(FileNotFoundError):
                os.unlink(read.path)
            raise
        if not self._is_of_chain and not last:
            self._fail()
        return then  # for a process kept for a chain, the rank needs no `Idle`

    def _description(self, read: wire.Read) -> wire.LocalDescription:
        from mallob_py.kit.input_file import at_most  # imports decompressors, which workers do without

        application = self._registry.load(read.application)
        if read.application not in self._told:
            self._told.add(read.application)
            self._link.send(wire.Imports(read.application, read.application not in self._inherited))
        _check_takes_input(application, read)
        application.check(read.configuration)
        number, former = _before(application, read)
        literals = _integers(read.literals)
        job = JobInput(_names(read.files), literals, read.configuration, number, former, read.assumptions)
        with confined_to(read.results), at_most(self._input_max_bytes, job.files):
            payload = application.read(job)
        parts = description_parts(read.application, read.configuration, payload)
        size_bytes = sum(map(len, parts))
        if size_bytes <= read.inline_limit_bytes:
            return wire.Inline(b"".join(parts))
        write_description(read.path, parts, size_bytes)
        return wire.Mapped(read.path, size_bytes)

    def _inspect(self, names: tuple[str, ...]) -> None:
        """Report each application separately: if one ends this process, the rank knows which one."""
        for name in names:
            try:
                one = self._registry.declared(name)
                traits = wire.ApplicationTraits(
                    name,
                    one.takes_input,
                    one.revises,
                    tuple(one.result_files),
                    dict(one.exit_codes),
                    runs_code=one.runs_code,
                )
            except BaseException as error:
                traits = wire.ApplicationTraits(name, problem=_describe(error))
            self._link.send(traits)
        # This process may have imported all applications, so it is too large for a worker.
        _exit(0)

    def _fail(self, *last: wire.ProcessMessage) -> NoReturn:
        if self._printed is not None:
            self._printed.settle()
        if last:
            self._link.send(*last)
        _exit(0)


def _settle(configuration: wire.Configure) -> None:
    """Give this fork of the server its own signals, output and limits."""
    # Signals of terminals and batch systems are for the rank, which decides. SIGTERM has a handler instead of
    # SIG_IGN, so that programs that an application starts have the default action.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _ignore)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.dup2(2, 1)
    with suppress(OSError):
        score = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(score, _OOM_SCORE)
        finally:
            os.close(score)
    if configuration.memory_limit_bytes is not None:
        _limit_memory(configuration.memory_limit_bytes)
    # Random generators are seeded anew: otherwise all forks would draw the same numbers. (Python reseeds its
    # own generator at each fork.)
    if (generator := sys.modules.get("numpy.random")) is not None:  # a later import seeds its generator
        generator.seed(int.from_bytes(os.urandom(4), "little"))


def _limit_memory(limit_bytes: int) -> None:
    """Limit this process's memory, unless a lower limit holds already, which no process may raise."""
    # RLIMIT_DATA counts private memory only, so a mapped description does not count.
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit_bytes = limit_bytes if hard == resource.RLIM_INFINITY else min(limit_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))


def _touch() -> None:
    """Have the kernel copy, before the first task comes, the shared pages that starting a task writes."""
    decode_description(encode_description("", {}, {}))
    wire.decode_to_worker(wire.encode(wire.Run(0, 0, 0, 1, (), 1, wire.Inline(b""))))
    memory, cpu_s = own_usage()
    wire.frame(_result_message(Result(0, [0]), str, memory.peak_bytes, cpu_s))
    _left_clean()


def _ignore(number: int, frame: FrameType | None) -> None:
    pass


def _open_description(description: wire.LocalDescription) -> memoryview:
    if isinstance(description, wire.Inline):
        return memoryview(description.data)
    fd = os.open(description.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return memoryview(mmap.mmap(fd, description.size_bytes, mmap.MAP_SHARED, mmap.PROT_READ))
    finally:
        os.close(fd)


def write_description(path: str, parts: Sequence[bytes | memoryview], size_bytes: int) -> None:
    """Write a description by plain writes: through a mapping, a full tmpfs would kill this process (SIGBUS).

    If there is no room, wait for a while: other processes may have filled the shared memory for a moment.
    """
    patience_s, naps = time.monotonic() + _ROOM_PATIENCE_S, 0
    while (error := _written(path, parts)) is not None:
        may_wait = error.errno in NO_ROOM and time.monotonic() <= patience_s
        if may_wait:
            status = os.statvfs(os.path.dirname(path))
            may_wait = size_bytes < status.f_frsize * status.f_blocks
        if not may_wait:
            text = f"no room for the job's {size_bytes / 1e6:.1f} MB in shared memory: {error}"
            raise InputError(text) from error
        # The naps are long, so that this read counts as stalled and other inputs are read meanwhile.
        while True:
            naps += 1
            time.sleep(backoff_s(*_ROOM_NAPS_S, naps))
            status = os.statvfs(os.path.dirname(path))
            if size_bytes < status.f_frsize * status.f_bavail or time.monotonic() > patience_s:
                break


def _written(path: str, parts: Sequence[bytes | memoryview]) -> OSError | None:
    """Write a new file; if that fails, leave no file, and return the error."""
    # A lost client may have written the file before; workers that have mapped that file keep it.
    with suppress(FileNotFoundError):
        os.unlink(path)
    try:
        with open(path, "xb", opener=_create) as file:
            file.writelines(parts)
    except OSError as error:
        with suppress(OSError):
            os.unlink(path)
        return error
    return None


def _create(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)


def _before(application: Application, read: wire.Read) -> tuple[int | None, Payload | None]:
    """Return the number of the revision to read, and the payload of all revisions before it."""
    before = read.before
    if before is None:
        return None, None
    former: Payload | None = None
    if before.former is not None:
        try:
            former = decode_description(_open_description(before.former)).payload
        except OSError as error:
            raise InputError(f"its earlier revisions are gone from memory: {error}", "precursor") from error
    number = before.revision - len(before.inputs)
    for one in before.inputs:
        try:
            # The former revision's results were written when it ran.
            named = application.result_files
            configuration = {key: value for key, value in one.configuration.items() if key not in named}
            former = application.read(
                JobInput(_names(one.files), _integers(one.literals), configuration, number, former)
            )
        except InputError as error:
            text = f"the input of its earlier revision {one.identity} cannot be read: {error.message}"
            raise InputError(text, "precursor") from error
        number += 1
    return before.revision, former


def _names(files: tuple[bytes, ...]) -> tuple[str, ...]:
    return tuple(map(os.fsdecode, files))


def _valid(text: str) -> str:
    """Escape characters that cannot be encoded, such as those of odd file names, so the text can be sent."""
    return text.encode(errors="backslashreplace").decode()


def _check_takes_input(application: Application, read: wire.Read) -> None:
    if application.takes_input:
        return
    if read.files:
        raise InputError(f"application {read.application} takes no files", "files")
    if read.literals is not None:
        raise InputError(f"application {read.application} takes no literals", "literals")


def _result_message(
    result: Result, result_string: Callable[[int], str], peak_memory_bytes: int, cpu_s: float
) -> wire.ResultFound:
    body = wire.encode_result(_result_body(result, result_string))
    return wire.ResultFound(body, peak_memory_bytes, cpu_s)


def _result_body(result: Result, result_string: Callable[[int], str]) -> wire.ResultBody:
    if not isinstance(result, Result):
        raise TypeError(f"an application's result must be a Result or None, not {result!r:.80}")
    fields = msgspec.json.encode(dict(result.fields))
    if b"null" in fields:  # non-finite numbers are encoded as null, too
        for name, value in result.fields.items():
            _check_finite(name, value)
    if fields.count(b"[") + fields.count(b"{") > _LEVELS_MAX:
        _check_levels(msgspec.json.decode(fields), _LEVELS_MAX)
    if isinstance(result.solution, bytes):
        solution, form = result.solution, wire.SolutionForm.BYTES
    else:
        solution, form = _int32_bytes(result.solution), wire.SolutionForm.INTEGERS
    code = int(result.code)
    name = result_string(code)
    if not isinstance(name, str):
        raise TypeError(f"the name of result code {code} must be a text, not {name!r:.80}")
    return wire.ResultBody(code, fields, solution, form, name)


def _check_finite(name: str, value: object) -> None:
    """Raise ValueError if a value contains a number that JSON cannot express."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"a result's {name} is {value}, which no JSON number can be")
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            _check_finite(name, item)


def _check_levels(value: object, levels: int) -> None:
    """Raise ValueError if a JSON value has more than `levels` levels of objects and lists."""
    if not isinstance(value, dict | list):
        return
    if levels == 0:
        raise ValueError(f"a result's fields have more than {_LEVELS_MAX} levels")
    for item in value.values() if isinstance(value, dict) else value:
        _check_levels(item, levels - 1)


def _integers(literals: bytes | None) -> list[int] | None:
    return None if literals is None else array.array("i", literals).tolist()


def _int32_bytes(solution: Any) -> bytes:
    if solution is None:
        return b""
    if isinstance(solution, list | tuple) and sys.byteorder == "little":
        try:
            return array.array("i", solution).tobytes()
        except OverflowError:
            raise ValueError("a solution's integers must fit into 32 bits") from None
    import numpy as np  # imported late: numpy would double the memory

    numbers = np.asarray(solution)
    if numbers.size == 0:
        return b""
    if numbers.dtype.kind not in "iu":
        raise TypeError(f"a solution must consist of integers, not of {numbers.dtype}")
    bounds = np.iinfo(np.int32)
    if numbers.min() < bounds.min or numbers.max() > bounds.max:
        raise ValueError("a solution's integers must fit into 32 bits")
    return numbers.astype("<i4").tobytes()


def _describe(error: BaseException) -> str:
    """Return a traceback without our own leading frames; of a very long traceback, only the end."""
    if isinstance(error, MemoryError):
        detail = _valid(f" ({error})") if str(error) else ""
        return f"out of memory{detail}: raise --memory-limit, or start the service with fewer --threads"
    text = "".join(traceback.format_exception(type(error), error, _user_frames(error.__traceback__)))
    if len(text) > _MAX_TRACEBACK_CHARACTERS:
        text = "...\n" + text[-_MAX_TRACEBACK_CHARACTERS:]
    return _valid(text.rstrip("\n"))


def _user_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback from the application's first frame on.

    Without such frames, the traceback begins with the first frame of another file.
    """
    return _frames_after(_OUR_FILES, trace) or _frames_after(__file__, trace)


def _frames_after(files: str, trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(files):
        trace = trace.tb_next
    return trace


def _left_clean() -> bool:
    """Tell whether a task left neither threads nor child processes behind."""
    return threading.active_count() == 1 and _has_one_thread() and not has_children()


def _has_one_thread() -> bool:
    """Tell whether this process has only one thread; threads of libraries count, too."""
    # The number of links of the threads' folder tells that without reading the folder.
    return os.stat(_THREADS).st_nlink == _LINKS_OF_ONE or len(os.listdir(_THREADS)) == 1


def _exit(status: int) -> NoReturn:
    """Exit without the interpreter's shutdown, so that no code of server or application runs again."""
    with suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)
