"""The hub: the thread of an executor that talks to all workers of its jobs.

Workers connect to a socket in a folder that only the executor's user can enter; if the service has ranks on
other hosts, workers there connect to a TCP port. Before any other byte is read from a connection, both ends
prove that they know the executor's key (`kit.calls.wire`), which stands in the job's file. Only the
executor's user can read this file.

If a trusted user runs the service, that user must be able to read the job's file and to reach the socket, so
both are open to all users, and there is no key. Instead the kernel tells whose process is at the other end:
the hub lets in only the executor's user and the service's user, and workers accept only the executor's user.
There is no TCP port, since the kernel does not tell the user at the other end of a TCP connection.
"""

from __future__ import annotations

import os
import secrets
import selectors
import socket
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from mallob_py.accepting import Doorkeeper
from mallob_py.api.calls.book import Group
from mallob_py.api.calls.lane import CallSet, FunctionRef, Lane, Terms
from mallob_py.api.calls.shelf import Shelf
from mallob_py.api.calls.sinks import CallFuture, FutureSink, MapResults
from mallob_py.api.client import Answer, Client
from mallob_py.kit.calls import messages, wire
from mallob_py.kit.calls.delivering import Deliverer
from mallob_py.kit.calls.sharing import Region
from mallob_py.kit.calls.values import Pickled, told
from mallob_py.runtime.world.session_folder import PrivateFolder, temporary_folder
from mallob_py.service import ServiceError

#: greatest number of separately submitted calls of one function in one group
_GROUP_MAX = 4096
#: greatest number of commands and submitted calls that are taken in before workers are served again
_TAKE_AT_ONCE = 2000
_BACKLOG = 512
#: longest duration of a connection's handshake
_HANDSHAKE_S = 10.0
_LAST_REPLIES_S = 5.0
#: greatest length of the path of a socket's folder, so that a socket's path has at most the 107 bytes that
#: the system permits
_PATH_BYTES_MAX = 105
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))

_NOT_ELSEWHERE = (
    "the service belongs to another user and has ranks on other hosts, with which an executor cannot talk"
    " safely, because all users could read its key: use a service of your own, or one on this host only"
)


#: the hubs of this process
_hubs: weakref.WeakSet[Hub] = weakref.WeakSet()


class _Connection:
    """A worker's connection. Its `lane` is set when the worker says hello."""

    def __init__(self, hub: Hub, connection: socket.socket, number: int, deadline_s: float) -> None:
        self.number = number
        self.lane: Lane | None = None
        #: the worker's host and process id, once the worker has said hello
        self.host, self.pid = "", 0
        self.deadline_s = deadline_s
        self.is_closed = False
        self._hub = hub
        self.socket = connection
        self._reader = wire.FrameReader(connection)
        self._writer = wire.FrameWriter(connection)
        self.handshake: wire.Handshake | None = None
        self.is_writing = False

    def send(self, message: messages.ToWorker, buffers: Sequence[wire.Buffer] = ()) -> None:
        if self.is_closed:
            return
        self._writer.put(messages.encode(message), buffers)
        self.flush()

    def flush(self) -> None:
        try:
            self._writer.flush()
        except wire.PeerGone:
            self.is_closed = True
            self._hub.is_gone(self)
            return
        if self._writer.is_done == self.is_writing:
            self.is_writing = not self.is_writing
            self._hub.watch(self)

    def receive(self) -> list[tuple[messages.FromWorker, list[wire.Buffer]]]:
        """Return the messages that have arrived. Raises PeerGone, NotTrusted."""
        if self.handshake is not None:
            if not self.handshake.advance():
                return []
            self.handshake = None
        try:
            return [
                (messages.decode_from_worker(frame.head), list(frame.buffers))
                for frame in self._reader.read()
            ]
        except msgspec.DecodeError:
            raise wire.NotTrusted from None


class _Submitted(NamedTuple):
    """A separately submitted call; `call` is a snapshot of args and kwargs."""

    terms: Terms
    function: Pickled
    call: Any
    future: CallFuture[Any]
    retries: int


class _OpenGroup:
    """A group of separately submitted calls of one function; further calls may be added."""

    def __init__(self, lane: Lane, terms: Terms, function: Pickled, retries: int, sink: FutureSink) -> None:
        self._lane = lane
        self._terms = terms
        self._retries = retries
        self._function = function
        self._group: Group | None = None
        self._count = 0
        self.items: list[Any] = []
        self.sink = sink

    def fits(self, terms: Terms, function: Pickled, retries: int) -> bool:
        """Tell whether a call with these properties may be added."""
        if len(self.items) >= _GROUP_MAX or (terms is not self._terms and terms != self._terms):
            return False
        is_same = retries == self._retries and (function is self._function or function == self._function)
        return is_same and (self._group is None or self._group.left > 0)

    def hand_on(self) -> bool:
        """Hand the lane the calls that it does not have yet; return whether more calls may be added."""
        new, self._count = len(self.items) - self._count, len(self.items)
        if self._group is None:
            function = self._lane.function_of(self._function)
            content = CallSet(function, self.items, True, self.sink, self._retries)
            self._group = Group(content)
        if new:
            self._lane.add(self._group, new)
        return self._group.left > 0


class MapCalls:
    """The calls of a map; their arguments are handed in part by part."""

    def __init__(self, hub: Hub, lane_of: Callable[[], Lane], group: Group, content: CallSet) -> None:
        self._hub = hub
        self._lane_of = lane_of
        self._group = group
        self._content = content
        #: the lane of the calls, once the hub has taken them in
        self._lane: Lane | None = None

    def begin(self, function: Pickled) -> None:
        """Hand the function and the group to a lane; called in the hub's thread."""
        self._lane = lane = self._lane_of()
        self._content.function = lane.function_of(function)
        lane.add(self._group)

    def extend(self, items: Sequence[Any], bad: Mapping[int, BaseException]) -> None:
        """Hand in the arguments of the next calls. `bad`: number of an unsendable call -> its error."""

        def extend() -> None:
            if self._lane is not None:  # None: the map has no calls
                self._lane.extend(self._group, items, bad)

        self._hub.call(extend)

    def cancel(self) -> None:
        def cancel() -> None:
            if self._lane is not None:
                self._lane.cancel(self._group, time.monotonic())

        self._hub.call(cancel)


class Hub:
    """The thread that talks to all workers of an executor. Any thread may call the public methods.

    The user's code (unpickling, callbacks) never runs in the hub's thread. If the hub's thread ends, all
    calls end with an error, later calls as well.
    """

    def __init__(self, client: Client, other_hosts: Callable[[], bool], service_user: int) -> None:
        """Start the hub's thread, which hands in jobs through `client`.

        `other_hosts`, called when a job begins, tells whether the service has ranks on other hosts;
        `service_user` is the user id of the service's workers.
        """
        self._client = client
        self._users = {os.geteuid(), service_user}
        self._is_others = len(self._users) > 1
        self.other_hosts = other_hosts
        self._key = b"" if self._is_others else secrets.token_bytes(wire.KEY_BYTES)
        folder = temporary_folder(_PATH_BYTES_MAX)
        self._remove_folder = weakref.finalize(self, _removed_by, os.getpid(), folder)
        self.path = str(folder.path / "s")
        self._selector = selectors.DefaultSelector()
        self._doorkeeper = Doorkeeper()
        self._listeners = [_listener(socket.AF_UNIX, self.path)]
        if self._is_others:
            os.chmod(self.path, 0o666)
            os.chmod(folder.path, 0o711)
        self._tcp: socket.socket | None = None
        self._selector.register(self._listeners[0], selectors.EVENT_READ, self._listeners[0])
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        weakref.finalize(self, os.close, self._wake)  # not earlier: other threads write to this descriptor
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        #: commands and separately submitted calls, in the order in which they were given
        self._commands: deque[Callable[[], None] | _Submitted] = deque()
        self._deliverer = Deliverer("mallob-py-results", self._all_delivered)
        self._is_woken = False
        self._shelf = Shelf(is_others=self._is_others)
        self._lanes: dict[Terms, Lane] = {}
        self._all_lanes: list[Lane] = []
        #: number of calls done by lanes that have ended
        self._done_before = 0
        self._connections: dict[int, _Connection] = {}
        self._gone: list[_Connection] = []
        #: the last job, and earlier jobs that had no reply when the last job was begun
        self._jobs: list[Future[Answer]] = []
        self._numbers = 0
        self._open_group: _OpenGroup | None = None
        self._is_closing = False
        #: function that makes each call's error from the call's name; None unless the ranks have ended or
        #: the workers do not start
        self._broken: Callable[[str], BaseException] | None = None
        #: function that makes the error of each call once the thread has ended
        self._over: Callable[[], BaseException] | None = None
        self._refusing = threading.RLock()
        self._thread = threading.Thread(target=self._run, name="mallob-py-calls", daemon=True)
        self._thread.start()
        _hubs.add(self)

    # --- methods for other threads -------------------------------------------------------------

    def submit(
        self, terms: Terms, function: Pickled, call: Any, future: CallFuture[Any], retries: int = 0
    ) -> None:
        """Submit one call; `call` is a snapshot of args and kwargs."""
        self.call(_Submitted(terms, function, call, future, retries))

    def map(
        self,
        terms: Terms,
        function: Pickled,
        count: int,
        chunk: int,
        retries: int,
        is_own_job: bool,
        results_of: Callable[[Callable[[], None]], MapResults[Any]],
    ) -> tuple[MapCalls, MapResults[Any]]:
        """Submit a map. `results_of` makes the map's results from the function that cancels the map."""
        group = Group(None, count, chunk=chunk, limit=0)
        ref = FunctionRef(0, function)
        calls: MapCalls
        results = results_of(lambda: calls.cancel())
        group.content = CallSet(ref, [], False, results.sink, retries, of=count)
        calls = MapCalls(
            self, lambda: self._new_lane(terms) if is_own_job else self._lane(terms), group, group.content
        )
        if count:
            self.call(lambda: calls.begin(function))
        return calls, results

    def end_lane(self, terms: Terms) -> None:
        """End the lane of a map, to which no further call is submitted, once all its calls are done."""

        def end() -> None:
            if (lane := self._lanes.pop(terms, None)) is not None:
                lane.is_own = True

        self.call(end)

    def _abandon(self, sink: FutureSink, number: int) -> None:
        """End a submitted call whose outcome is no longer wanted."""

        def abandon() -> None:
            for lane in self._all_lanes:
                lane.abandon(sink, number, time.monotonic())

        self.call(abandon)

    def share(self, mark: str, region: Region) -> None:
        """Keep a shared object for calls until `drop_shared`."""
        self.call(lambda: self._shelf.add(mark, region))

    def drop_shared(self, mark: str) -> None:
        """Release a shared object once all present calls are done."""

        def drop() -> None:
            self._shelf.drop(mark, (group for lane in self._all_lanes for group in lane.groups))

        self.call(drop)

    def call(self, command: Callable[[], None] | _Submitted) -> None:
        """Run a command, or take in a call, in the hub's thread."""
        self._commands.append(command)
        self._call()

    def _call(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            with suppress(OSError):
                os.eventfd_write(self._wake, 1)
        if self._over is not None:
            self._refuse(self._over)

    @property
    def is_own_thread(self) -> bool:
        """Tell whether the calling thread is the hub's, or runs callbacks of the hub's futures."""
        return threading.current_thread() is self._thread or self._deliverer.is_own_thread

    @property
    def left(self) -> int:
        """The number of calls without an outcome that the hub has taken in."""
        return sum(lane.left for lane in tuple(self._all_lanes))

    @property
    def done(self) -> int:
        """The number of calls with an outcome."""
        return self._done_before + sum(lane.done for lane in tuple(self._all_lanes))

    @property
    def running(self) -> int:
        """The number of workers that have calls, as far as is known."""
        return sum(lane.running for lane in tuple(self._all_lanes))

    def cancel_waiting(self) -> None:
        """Cancel the calls that no worker has begun."""

        def cancel() -> None:
            for lane in self._all_lanes:
                lane.cancel_waiting()

        self.call(cancel)

    def cancel_all(self) -> None:
        """Cancel all calls, also running ones."""

        def cancel() -> None:
            now = time.monotonic()
            for lane in self._all_lanes:
                lane.cancel_all(now)

        self.call(cancel)

    def break_off(self, error_of: Callable[[str], BaseException]) -> None:
        """End all calls, also later ones, each with the error that `error_of` returns for the call's name."""

        def break_off() -> None:
            self._broken = self._broken or error_of

        self.call(break_off)

    @property
    def failure(self) -> str:
        """The reason why no further calls are taken, or ""."""
        return "" if self._over is None else str(self._over())

    def close(self) -> None:
        """Have the hub end when all present calls are done; return at once."""

        def begin_to_close() -> None:
            self._is_closing = True

        self.call(begin_to_close)

    def join(self) -> None:
        """Wait until the hub has ended; in a callback, return at once, since the hub waits for callbacks."""
        if not self.is_own_thread:
            self._thread.join()

    # --- methods of the hub's thread --------------------------------------------------------------

    def _run(self) -> None:
        over: Callable[[], BaseException] = partial(RuntimeError, "the executor was shut down; not done")
        try:
            while not (self._is_closing and self._has_ended()):
                self._turn()
        except BaseException as error:
            over = partial(RuntimeError, f"the executor has failed: {told(error)}; not done")
        finally:
            self._over = over
            self._refuse(over)
            self._end()

    def _refuse(self, over: Callable[[], BaseException]) -> None:
        """End all calls with an error, since the thread ends."""
        with self._refusing:
            self._fail_lanes(over)
            while self._commands:
                command = self._commands.popleft()
                with suppress(BaseException):
                    if not isinstance(command, _Submitted):
                        command()
                    elif command.future.wants_outcome():
                        command.future.set_exception(over())
            self._fail_lanes(over)

    def _fail_lanes(self, over: Callable[[], BaseException]) -> None:
        for lane in tuple(self._all_lanes):
            lane.fail(lambda call: _with_note(over(), call))

    def _all_delivered(self) -> None:
        if self._is_closing:
            self._call()

    def _has_ended(self) -> bool:
        if self._commands or any(lane.left for lane in self._all_lanes):
            return False
        if not self._deliverer.is_done:  # callbacks may submit further calls, or wait for calls
            return False
        for lane in self._all_lanes:
            if lane.job is not None:
                lane.end_job()
        return not any(connection.is_writing for connection in self._connections.values())

    def _turn(self) -> None:
        now = time.monotonic()
        due_s = [due for lane in self._all_lanes if (due := lane.next_turn_s(now)) is not None]
        if (look_s := self._deliverer.look(now)) is not None:
            due_s.append(look_s)
        due_s += [each.deadline_s for each in self._connections.values() if each.handshake is not None]
        timeout_s = None if not due_s else max(0.0, min(due_s) - now)
        if self._is_closing:
            timeout_s = 0.1 if timeout_s is None else min(timeout_s, 0.1)
        for key, events in self._selector.select(timeout_s):
            if key.data is None:
                # The flag is reset after reading; otherwise a wake-up in between would be read, but the
                # flag would stay set for ever.
                with suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
                self._is_woken = False
            elif isinstance(key.data, _Connection):
                if events & selectors.EVENT_WRITE:
                    key.data.flush()
                if events & selectors.EVENT_READ:
                    self._hear(key.data)
            else:
                self._accept(key.data)
        self._take_commands()
        self._bury()
        now = time.monotonic()
        for lane in tuple(self._all_lanes):
            if self._broken is not None:
                lane.fail(self._broken)
            lane.turn(now)
            if lane.is_own and lane.is_over:
                lane.end_job()
                self._done_before += lane.done
                self._all_lanes.remove(lane)
        self._shelf.turn()
        self._bury()
        for each in tuple(self._connections.values()):
            if each.handshake is not None and now >= each.deadline_s:
                self.is_gone(each)
        self._bury()

    def _take_commands(self) -> None:
        for _ in range(min(len(self._commands), _TAKE_AT_ONCE)):
            command = self._commands.popleft()
            if isinstance(command, _Submitted):
                self._take_in(command)
            else:
                self._close_group()  # so that the command finds the calls before it in their lanes
                command()
        self._close_group()
        if self._commands:
            self._call()

    def _take_in(self, one: _Submitted) -> None:
        if one.future.done():
            return
        group = self._open_group
        if group is None or not group.fits(one.terms, one.function, one.retries):
            self._close_group()
            sink = FutureSink(self._abandon, self._deliverer.put)
            lane = self._lane(one.terms)
            group = self._open_group = _OpenGroup(lane, one.terms, one.function, one.retries, sink)
        group.items.append(one.call)
        group.sink.add(one.future)
        if one.future.done():  # cancelled in between, when the future did not know its sink
            self._abandon(group.sink, len(group.items) - 1)

    def _close_group(self) -> None:
        """Hand on the calls collected in the open group."""
        if self._open_group is not None and not self._open_group.hand_on():
            self._open_group = None

    def _lane(self, terms: Terms) -> Lane:
        lane = self._lanes.get(terms)
        if lane is None:
            lane = self._lanes[terms] = self._new_lane(terms, is_own=False)
        return lane

    def _new_lane(self, terms: Terms, *, is_own: bool = True) -> Lane:
        lane = Lane(
            self._number(),
            terms,
            self._start_job,
            self._number,
            self._deliverer,
            self.break_off,
            is_own=is_own,
        )
        self._all_lanes.append(lane)
        return lane

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _start_job(self, lane: Lane) -> Future[Answer]:
        hosts: list[Any] = []
        if self.other_hosts():
            if self._is_others:
                elsewhere: Future[Answer] = Future()
                elsewhere.set_exception(ServiceError(_NOT_ELSEWHERE))
                return self._noted(lane, elsewhere)
            hosts = self._tcp_addresses()
        terms = lane.terms
        configuration = {
            "socket": self.path,
            "hosts": hosts,
            "host": socket.gethostname(),
            "secret": self._key.hex(),
            "user": os.geteuid(),
            "lane": lane.number,
            "serial": lane.serial,
            "python": f"{sys.version_info.major}.{sys.version_info.minor}",
            "path": import_path(),
        }
        job: Future[Answer]
        try:
            job = self._client.submit(
                application="CALLS",
                configuration=configuration,
                priority=terms.priority,
                max_demand=terms.max_demand,
                time_limit_s=terms.time_limit_s,
                cpu_limit_s=terms.cpu_limit_s,
                name=terms.name if lane.serial == 1 else "",
                file_mode=0o644 if self._is_others else 0o600,
            )
        except Exception as error:
            job = Future()
            job.set_exception(error)
        return self._noted(lane, job)

    def _noted(self, lane: Lane, job: Future[Answer]) -> Future[Answer]:
        self._jobs = [each for each in self._jobs if not each.done()]
        self._jobs.append(job)
        job.add_done_callback(lambda done: self.call(lambda: lane.job_ended(done)))
        return job

    def _tcp_addresses(self) -> list[Any]:
        if self._tcp is None:
            self._tcp = _listener(socket.AF_INET, ("", 0))
            self._listeners.append(self._tcp)
            self._selector.register(self._tcp, selectors.EVENT_READ, self._tcp)
        return [
            [socket.getfqdn(), self._tcp.getsockname()[1]],
            [socket.gethostname(), self._tcp.getsockname()[1]],
        ]

    # --- connections --------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection = self._doorkeeper.accept(listener)
        except OSError:
            return
        if connection is None:
            return
        if connection.family == socket.AF_UNIX:
            if wire.peer_user(connection) not in self._users:
                connection.close()
                return
            wire.let_hold_arrays(connection)
        else:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE:
                connection.setsockopt(socket.IPPROTO_TCP, name, value)
        connection.setblocking(False)
        one = _Connection(self, connection, self._number(), time.monotonic() + _HANDSHAKE_S)
        self._connections[one.number] = one
        self._selector.register(connection, selectors.EVENT_READ, one)
        try:
            one.handshake = wire.Handshake(connection, self._key, messages.CLIENT, messages.WORKER)
        except wire.PeerGone:
            self.is_gone(one)

    def _hear(self, one: _Connection) -> None:
        if one.is_closed:
            return
        try:
            heard = one.receive()
        except (wire.PeerGone, wire.NotTrusted):
            self.is_gone(one)
            return
        now = time.monotonic()
        for message, buffers in heard:
            if isinstance(message, messages.Hello):
                lane = next((each for each in self._all_lanes if each.number == message.lane), None)
                if one.lane is not None or lane is None or lane.job is None or lane.serial != message.serial:
                    self.is_gone(one)
                    return
                one.lane, one.host, one.pid = lane, message.host, message.pid
                lane.joined(one, now)
            elif one.lane is None or not one.lane.has(one.number):
                continue
            elif isinstance(message, messages.Fetch | messages.Kept):
                self._shelf.hear(one, message)
            else:
                one.lane.heard(one.number, message, buffers, now)

    def watch(self, one: _Connection) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if one.is_writing else 0)
        if not one.is_closed:
            self._selector.modify(one.socket, events, one)

    def is_gone(self, one: _Connection) -> None:
        """Record that a connection is closed; `_bury` removes it."""
        one.is_closed = True
        self._gone.append(one)

    def _bury(self) -> None:
        while self._gone:
            one = self._gone.pop()
            if self._connections.pop(one.number, None) is None:
                continue
            self._selector.unregister(one.socket)
            one.socket.close()
            self._shelf.lost(one)
            if one.lane is not None:
                one.lane.lost(one.number)

    def _end(self) -> None:
        for one in self._connections.values():
            one.socket.close()
        for listener in self._listeners:
            listener.close()
        self._doorkeeper.close()
        self._shelf.clear()
        self._selector.close()
        self._deliverer.close()
        self._await_replies()
        self._client.close()
        self._remove_folder()

    def _await_replies(self) -> None:
        """Wait for the replies to the jobs, so that no job stays in the service."""
        deadline_s = time.monotonic() + (0.0 if self._broken is not None else _LAST_REPLIES_S)
        for job in self._jobs:
            with suppress(Exception):
                job.result(max(0.0, deadline_s - time.monotonic()))


def _end_all() -> None:
    """Wait for all calls when the interpreter ends; cancel the calls if Ctrl-C ends the interpreter."""
    hubs = tuple(_hubs)
    for hub in hubs:
        if getattr(sys, "last_type", None) is KeyboardInterrupt:
            hub.cancel_all()
        hub.close()
    for hub in hubs:
        hub.join()


# Later, at `atexit`, no thread can be started any more, so no outcome could be delivered.
threading._register_atexit(_end_all)  # type: ignore[attr-defined]
os.register_at_fork(after_in_child=_hubs.clear)


def import_path() -> list[str]:
    """Return the entries of `sys.path` as absolute paths, without the entries that name no folder."""
    entries: list[str] = []
    for entry in sys.path:
        with suppress(TypeError, OSError, UnicodeEncodeError):  # the present folder may be removed
            path = str(Path(entry).absolute())
            path.encode()
            entries.append(path)
    return entries


def _with_note(error: BaseException, call: str) -> BaseException:
    error.add_note(call)
    return error


def _removed_by(process: int, folder: PrivateFolder) -> None:
    """Remove the folder, unless this process is a fork of the process that made the folder."""
    if os.getpid() == process:
        folder.remove()


def _listener(family: int, address: Any) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    listener.bind(address)
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    return listener
