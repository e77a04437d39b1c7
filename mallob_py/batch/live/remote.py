"""A job whose script runs on another node: the keeper's side, and its messages to and from the guard there.

The keeper starts the guard (`guard.py`) by a remote shell such as ssh. Messages are lines of JSON, to the
guard's standard input and from its standard error; its standard output is what the job prints. So a node
needs only Python with this package: it has no open port, and no access to the scheduler's folder.

    keeper to guard    Begin (what to run), Go, Order (shrink or grow), Reallot (other cores); closing the
                       input: end the job
    guard to keeper    Ready, Notice (from the program), Answer and Answered (to an order), Ended

The guard starts the program only at Go: a job whose guard was not Ready has not run, and may run on another
node. If the connection breaks, the guard ends the job, and the keeper considers the node lost; neither waits
for the other.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from mallob_py.accepting import Doorkeeper
from mallob_py.batch.live.launch import (
    ALLOTMENT,
    SIGNALS,
    Allotment,
    Launch,
    RunEnd,
    Status,
    open_output,
    read_allotment,
)
from mallob_py.malleable.sockets import connect, listen
from mallob_py.malleable.wire import LINE_MAX_BYTES, Notice, WireError, notice_line, parse_notice
from mallob_py.malleable.wire import Ready as ProgramReady
from mallob_py.runtime.processes import STOP_SIGNALS, die_with, python

#: the longest time [s] until a guard is ready
START_S = 30.0
#: the longest time [s] from the job's end to the guard's last message
LAST_WORDS_S = 15.0
_RETRY_S = 0.5
_LINE_S = 20.0
#: the greatest size of a message: JSON may need six bytes for one byte of a program's line
_MESSAGE_BYTES_MAX = 8 * LINE_MAX_BYTES


class Begin(msgspec.Struct, frozen=True, tag=True):
    """Run a script. Each character of `script` is a byte; `nodes` is the content of the job's node file."""

    launch: Launch
    script: str
    nodes: str


class Go(msgspec.Struct, frozen=True, tag=True):
    pass


class OrderLine(msgspec.Struct, frozen=True, tag="Order"):
    """Give the program an order; the next order must wait for `Answered`."""

    line: str


class Reallot(msgspec.Struct, frozen=True, tag=True):
    allotment: Allotment


class Ready(msgspec.Struct, frozen=True, tag=True):
    pass


class NoticeLine(msgspec.Struct, frozen=True, tag="Notice"):
    line: str


class AnswerLine(msgspec.Struct, frozen=True, tag="Answer"):
    line: str


class Answered(msgspec.Struct, frozen=True, tag=True):
    """Record that no further answer to the present order follows."""


class Ended(msgspec.Struct, frozen=True, tag=True):
    status: Status


ToGuard = Begin | Go | OrderLine | Reallot
ToKeeper = Ready | NoticeLine | AnswerLine | Answered | Ended


def send(pipe: IO[bytes], message: ToGuard | ToKeeper) -> None:
    """Send a message. Raises OSError, and ValueError on a closed pipe."""
    pipe.write(msgspec.json.encode(message) + b"\n")
    pipe.flush()


def keep_remotely(folder: Path, launch: Launch) -> Status:
    """Look after a job on another node until it ends; return its status. See the module's docstring."""
    keeper = os.getpid()

    def begin() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        die_with(keeper, signal.SIGTERM)

    try:
        output = open_output(folder, launch.output)
    except OSError as error:
        return Status(RunEnd.NOT_STARTED, error=f"{error.filename}: {error.strerror}")
    try:
        with output:
            shell = subprocess.Popen(
                [*launch.remote, *python(), "-m", "mallob_py.batch.live.guard"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=begin,
            )
    except (OSError, subprocess.SubprocessError) as error:
        return Status(RunEnd.UNREACHABLE, error=str(error))
    return Link(folder, launch, shell).keep()


class Link:
    """The link to one job's guard."""

    def __init__(self, folder: Path, launch: Launch, shell: subprocess.Popen[bytes]) -> None:
        assert shell.stdin is not None
        assert shell.stderr is not None
        self._folder = folder
        self._launch = launch
        self._shell = shell
        self._to_guard, self._from_guard = shell.stdin, shell.stderr
        self._sending = threading.Lock()
        self.is_ready = threading.Event()
        self._status: Status | None = None
        #: the last line that was no message of the guard, such as an error of the remote shell
        self.said = ""
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._notices: queue.SimpleQueue[Notice] = queue.SimpleQueue()
        self._orders = str(folder / "orders.sock")

    def keep(self) -> Status:
        folder = self._folder
        script = (folder / "script").read_text(encoding="latin-1")
        nodes = (folder / "nodes").read_text(encoding="utf-8")
        reader = threading.Thread(target=self.hear, daemon=True)
        reader.start()
        self._tell(Begin(self._launch, script, nodes))
        ending = self._wait()
        if ending is not None:
            self._end_of_words()
            self._await_end(time.monotonic() + self._launch.grace_s + LAST_WORDS_S)
        reader.join(LAST_WORDS_S)
        # A guard ends the job unasked only if its connection to this keeper broke.
        is_cut = ending is None and self._status is not None and self._status.ending is RunEnd.CANCELLED
        if self._status is not None and not is_cut:
            return self._status
        if ending is RunEnd.CANCELLED:
            return Status(ending)
        why = self.said or f"{self._launch.remote[0]} has ended with code {self._shell.returncode}"
        if ending is RunEnd.UNREACHABLE:
            why = f"not ready after {START_S:g} s; {self.said}".removesuffix("; ")
        return Status(RunEnd.NODE_LOST if self.is_ready.is_set() else RunEnd.UNREACHABLE, error=why)

    def _wait(self) -> RunEnd | None:
        """Wait until the remote shell has ended (return None) or must be ended (return the reason)."""
        begun_s, limit_s = time.monotonic(), self._launch.limit_s
        while self._shell.poll() is None:
            now_s = time.monotonic()
            # The guard itself ends an overdue job and reports it, which takes time.
            until_s = begun_s + limit_s + self._launch.grace_s + START_S + LAST_WORDS_S
            if not self.is_ready.is_set():
                until_s = begun_s + START_S
            if now_s >= until_s:
                return RunEnd.NODE_LOST if self.is_ready.is_set() else RunEnd.UNREACHABLE
            came = signal.sigtimedwait(SIGNALS, min(until_s - now_s, START_S))
            if came is not None and came.si_signo in STOP_SIGNALS:
                return RunEnd.CANCELLED
            if came is not None and came.si_signo == signal.SIGUSR1:
                allotment = read_allotment(self._folder / ALLOTMENT)
                limit_s = allotment.limit_s
                self._tell(Reallot(allotment))
        return None

    def _await_end(self, until_s: float) -> None:
        while self._shell.poll() is None:
            if (left_s := until_s - time.monotonic()) <= 0.0:
                os.killpg(self._shell.pid, signal.SIGKILL)
                self._shell.wait()
                return
            signal.sigtimedwait((signal.SIGCHLD,), left_s)

    def _tell(self, message: ToGuard) -> None:
        """Send the guard a message. If this fails, the remote shell ends soon, which `_wait` sees."""
        with contextlib.suppress(OSError, ValueError), self._sending:
            send(self._to_guard, message)

    def _end_of_words(self) -> None:
        """Close the guard's input: this ends the job, or a remote shell that still reads its input."""
        with contextlib.suppress(OSError), self._sending:
            self._to_guard.close()

    # --- messages of the guard -----------------------------------------------------------------

    def hear(self) -> None:
        # A remote shell may print anything, even endless lines.
        while line := self._from_guard.readline(_MESSAGE_BYTES_MAX):
            try:
                message: ToKeeper = msgspec.json.decode(line, type=ToKeeper)
            except (msgspec.DecodeError, RecursionError):
                self.said = line.decode(errors="replace").strip()[:200] or self.said
                continue
            match message:
                case Ready():
                    self.is_ready.set()
                    self._tell(Go())
                case NoticeLine(text):
                    self._notice(text)
                case AnswerLine(text):
                    self._answers.put(text)
                case Answered():
                    self._answers.put(None)
                case Ended(status):
                    self._status = status
                    self._end_of_words()
        self._answers.put(None)

    def _notice(self, text: str) -> None:
        """Pass a program's notice on to the scheduler, with the keeper's address instead of the program's."""
        try:
            notice = parse_notice(text)
        except WireError:
            return
        if isinstance(notice, ProgramReady):
            threading.Thread(target=self._take_orders, args=(listen(self._orders),), daemon=True).start()
            threading.Thread(target=self._deliver_notices, daemon=True).start()
            self._notices.put(ProgramReady(self._orders))
        else:
            self._notices.put(msgspec.structs.replace(notice, address=self._orders))

    def _deliver_notices(self) -> None:
        """Deliver notices to the scheduler; retry while no scheduler listens."""
        scheduler = self._launch.environment["SCHEDULER_SOCKET"]
        while True:
            notice = self._notices.get()
            while not _delivered(scheduler, notice):
                time.sleep(_RETRY_S)

    def _take_orders(self, server: socket.socket) -> None:
        for connection, order in callers(server):
            self._tell(OrderLine(order))
            while (answer := self._answers.get()) is not None:
                with contextlib.suppress(OSError):  # the scheduler has ended, and the answer is lost
                    connection.sendall(f"{answer}\n".encode())


def callers(server: socket.socket) -> Iterator[tuple[socket.socket, str]]:
    """Yield connections to a listening socket, each with the line that it sends; close them afterwards."""
    doorkeeper = Doorkeeper()
    while True:
        if (connection := doorkeeper.accept(server)) is None:
            continue
        with connection, contextlib.suppress(OSError, UnicodeDecodeError):
            connection.settimeout(_LINE_S)
            with connection.makefile("r", encoding="utf-8", newline="\n") as lines:
                line = lines.readline(LINE_MAX_BYTES)
            if line:
                yield connection, line.rstrip("\n")


def _delivered(scheduler: str, notice: Notice) -> bool:
    try:
        with connect(scheduler, _LINE_S) as connection:
            connection.sendall(f"{notice_line(notice)}\n".encode())
    except OSError:
        return False
    return True
