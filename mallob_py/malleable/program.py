"""A program that accepts orders: the socket at which they arrive, and a thread that carries them out.

Environment variables contain the scheduler's address. If jobs share a host, `SCHEDULER_SOCKET` is the path of
the scheduler's socket and `JOB_SOCKET` the path of the program's socket, both in folders of the user.
Otherwise `SCHEDULER_IP` and `SCHEDULER_PORT` are the scheduler's address, and the program listens at its own
address and the same port, as ElasticJobScheduler requires. (There, `127.0.0.1` means no scheduler.) Without
any of these variables, there is no scheduler.

Only the scheduler can give orders: the folders are the user's, and over IP, only connections from the
scheduler's address are accepted. (The protocol has no secret: any user who can log in on the scheduler's host
can give orders, too.)
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import sys
import threading
from collections.abc import Callable, Sequence

from mallob_py.accepting import Doorkeeper
from mallob_py.malleable import wire
from mallob_py.malleable.orders import MalleableHandler, Processes, carry_out
from mallob_py.malleable.sockets import Address, connect, listen

#: pause between attempts to reach the scheduler, which may be restarting
_RETRY_S = 0.5
#: time limit for one line from or to the scheduler
_LINE_S = 20.0
#: time limit for the last message to the scheduler
_LAST_LINE_S = 5.0
_LOCAL = "127.0.0.1"

_program: _Program | None = None


def define_malleable_handler(handler: MalleableHandler, processes: Processes) -> bool:
    """Begin to carry out the scheduler's orders; return whether there is a scheduler.

    Raises RuntimeError if called twice, OSError if the program cannot listen. After an exception in a
    handler's method, which is printed, no more orders are accepted; the program continues with its places.
    """
    global _program
    if _program is not None:
        raise RuntimeError("a malleable handler is defined already; a program can define only one")
    if (addresses := _addresses()) is None:
        return False
    _program = _Program(handler, processes, *addresses)
    return True


def ask_for_processes(count: int) -> None:
    """Request `count` further processes from the scheduler. If it grants them, the handler is called.

    A new request replaces an earlier one that was not met. A restarted scheduler does not know the request.
    Raises RuntimeError if no handler accepts orders, ValueError for a count below 1, OSError if the scheduler
    does not listen.
    """
    if _program is None or _program.takes_no_orders.is_set():
        raise RuntimeError("there is no scheduler to ask; see define_malleable_handler")
    if count < 1:
        raise ValueError(f"{count} processes are asked for; ask for 1 or more")
    _program.ask_for(count)


def wish_for_processes(count: int) -> None:
    """Tell the scheduler that the program has work for `count` processes in all, until the next wish.

    Any process of the program can call this, also repeatedly, since a restarted scheduler forgets wishes. Has
    no effect under ElasticJobScheduler, or before the program accepts orders. Raises ValueError for a count
    below 1, OSError if the scheduler does not listen.
    """
    if count < 1:
        raise ValueError(f"{count} processes are wished for, not 1 or more")
    _tell_local_scheduler(lambda ours: wire.Wish(count, ours))


def report_progress(done: float) -> None:
    """Tell the scheduler how much work the program has done in all, in any unit of its own.

    From the reports, the scheduler measures how the program's speed depends on its number of processes. Any
    process of the program can call this, about once a second. Has no effect under ElasticJobScheduler.
    Raises ValueError for an amount that is negative or not finite, OSError if the scheduler does not listen.
    """
    if not 0.0 <= done < math.inf:
        raise ValueError(f"{done} is no amount of work")
    _tell_local_scheduler(lambda ours: wire.Progress(float(done), ours))


def _tell_local_scheduler(notice: Callable[[str], wire.Notice]) -> None:
    """Send a notice that only a scheduler on this host understands; `notice` gets the program's address."""
    scheduler, ours = _addresses() or ("", "")
    if isinstance(scheduler, str) and isinstance(ours, str) and scheduler:
        # A Unix socket accepts a line at once, or fails.
        _told(scheduler, notice(ours), 0.0).close()


def disable_malleable_handler() -> None:
    """Stop accepting orders, and report this to the scheduler; return when the current order is carried out.

    No order can be accepted again.
    """
    if _program is not None:
        _program.stop()


def _addresses() -> tuple[Address, Address] | None:
    """Return the addresses of the scheduler and of this program; None: no scheduler. Raises OSError."""
    ours, theirs = os.environ.get("JOB_SOCKET"), os.environ.get("SCHEDULER_SOCKET")
    # A rigid job may have inherited the sockets of the job that submitted it.
    if ours and theirs and os.environ.get("ELASTIC", "malleable") in ("malleable", "evolving"):
        return theirs, ours
    ip, port = os.environ.get("SCHEDULER_IP", _LOCAL), os.environ.get("SCHEDULER_PORT", "")
    if ip == _LOCAL or not port.isdecimal():
        return None
    # Find this host's address towards the scheduler; nothing is sent.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as towards:
        towards.connect((ip, int(port)))
        return towards.getpeername(), (towards.getsockname()[0], int(port))


def _told(scheduler: Address, notice: wire.Notice, timeout_s: float) -> socket.socket:
    """Send the scheduler a notice; return the connection used. Raises OSError."""
    connection = connect(scheduler, timeout_s)
    try:
        connection.sendall(f"{wire.notice_line(notice)}\n".encode())
    except OSError:
        connection.close()
        raise
    return connection


class _Program:
    def __init__(
        self, handler: MalleableHandler, processes: Processes, scheduler: Address, ours: Address
    ) -> None:
        self._handler = handler
        self._processes = processes
        self._scheduler = scheduler
        self._ours = ours
        self._is_announced = False
        self.takes_no_orders = threading.Event()
        self._server = listen(ours)
        self._thread = threading.Thread(target=self._take_orders, name="orders", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.takes_no_orders.set()
        if threading.current_thread() is not self._thread:
            # Wake the thread, which may wait for a connection, or may have ended.
            with contextlib.suppress(OSError):
                connect(self._ours, _LINE_S).close()
            self._thread.join()

    def _take_orders(self) -> None:
        try:
            self._announce()
            doorkeeper = Doorkeeper()
            while not self.takes_no_orders.is_set():
                if (connection := doorkeeper.accept(self._server)) is None:
                    continue
                with connection, contextlib.suppress(OSError):
                    if not self.takes_no_orders.is_set() and self._is_scheduler(connection.getpeername()):
                        self._take(connection)
        finally:
            self._say_farewell()
            self._server.close()
            if isinstance(self._ours, str):
                with contextlib.suppress(OSError):
                    os.unlink(self._ours)

    def _is_scheduler(self, origin: Address) -> bool:
        if isinstance(self._scheduler, str) or origin[0] == self._scheduler[0]:
            return True
        why = f"it came from {origin[0]}; only the scheduler's host {self._scheduler[0]} may give orders"
        print(f"mallob_py.malleable: order refused: {why}", file=sys.stderr)
        return False

    def _announce(self) -> None:
        """Report to the scheduler that the program is ready, as soon as the scheduler listens."""
        while not self.takes_no_orders.is_set():
            try:
                self._told(wire.Ready(self._address)).close()
                self._is_announced = True
                return
            except OSError:
                self.takes_no_orders.wait(_RETRY_S)

    def _say_farewell(self) -> None:
        """Report to the scheduler that no more orders are accepted, and wait until it has read the report.

        The connection of an order that arrives meanwhile is closed; the report tells the scheduler why.
        """
        self.takes_no_orders.set()
        if self._is_announced:
            with contextlib.suppress(OSError), self._told(wire.Unready(self._address)) as connection:
                connection.settimeout(_LAST_LINE_S)
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1)

    def ask_for(self, count: int) -> None:
        """Send a request for processes. Raises OSError."""
        self._told(wire.Wanted(count, self._address)).close()

    def _told(self, notice: wire.Notice) -> socket.socket:
        return _told(self._scheduler, notice, _LINE_S)

    @property
    def _address(self) -> str:
        return self._ours if isinstance(self._ours, str) else self._ours[0]

    def _take(self, connection: socket.socket) -> None:
        connection.settimeout(_LINE_S)
        try:
            with connection.makefile("r", encoding="utf-8", newline="\n") as lines:
                order = wire.parse_order(lines.readline(wire.LINE_MAX_BYTES))
        except (OSError, UnicodeDecodeError, wire.WireError) as error:
            print(f"mallob_py.malleable: cannot read an order: {error}", file=sys.stderr)
            return

        def release(hosts: Sequence[str]) -> None:
            try:
                connection.sendall("".join(f"{host}\n" for host in hosts).encode())
            except OSError as error:
                print(f"mallob_py.malleable: the scheduler is gone: {error}", file=sys.stderr)

        carry_out(order, self._handler, self._processes, release)
