"""A guard: a process that looks after a job whose script runs on another node than the scheduler.

The job's keeper starts the guard on the script's node (see `remote`). There the guard starts, resizes and
ends the job, as keepers themselves do on the scheduler's host. A guard has a temporary folder for the sockets
between a malleable program and its scheduler. If a guard is killed, its parent ends the job's processes, even
those that have changed environment and session.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import IO

import msgspec

from mallob_py.batch.live import remote
from mallob_py.batch.live.keeper import keep
from mallob_py.batch.live.launch import ALLOTMENT, SIGNALS, write_atomically
from mallob_py.batch.live.requests import REQUEST_MAX_BYTES
from mallob_py.malleable.sockets import connect, listen
from mallob_py.malleable.wire import LINE_MAX_BYTES
from mallob_py.runtime.processes import die_with, no_orphans
from mallob_py.runtime.world.session_folder import temporary_folder

#: the greatest size of a keeper's message, which may contain a script and an environment; JSON may need six
#: bytes for one byte
_MESSAGE_BYTES_MAX = 6 * REQUEST_MAX_BYTES


def main() -> int:
    """Run a guard as a child of this process, which ends the job's processes if the guard is killed."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    outer = os.getpid()
    with no_orphans():
        if (guard := os.fork()) == 0:
            die_with(outer, signal.SIGTERM)
            return _be_guard()
        while not (ended := os.waitid(os.P_PID, guard, os.WEXITED | os.WNOHANG | os.WNOWAIT)):
            if (came := signal.sigwait(SIGNALS)) != signal.SIGCHLD:
                os.kill(guard, came)
    return ended.si_status if ended.si_code == os.CLD_EXITED else 1


def _be_guard() -> int:
    # Messages to the keeper go to standard error, because standard output is the program's.
    lines, keeper = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(2), "wb")
    begin = next_message(lines)
    if not isinstance(begin, remote.Begin):
        return 1
    folder = temporary_folder()
    try:
        return _Guard(folder.path, begin, lines, keeper).run()
    finally:
        folder.remove()


def next_message(lines: IO[bytes]) -> remote.ToGuard | None:
    """Return the keeper's next message; None: the keeper has ended, has closed the input, or broke off."""
    line = lines.readline(_MESSAGE_BYTES_MAX)
    return msgspec.json.decode(line, type=remote.ToGuard) if line.endswith(b"\n") else None


class _Guard:
    def __init__(self, folder: Path, begin: remote.Begin, lines: IO[bytes], keeper: IO[bytes]) -> None:
        self._folder = folder
        self._begin = begin
        self._lines = lines
        self._keeper = keeper
        self._sending = threading.Lock()
        self._orders: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._program = str(folder / "orders.sock")
        self._notices: socket.socket | None = None

    def run(self) -> int:
        launch = self._begin.launch
        script, nodes, scheduler = (self._folder / name for name in ("script", "nodes", "scheduler.sock"))
        script.write_text(self._begin.script, encoding="latin-1")
        script.chmod(0o700)
        nodes.write_text(self._begin.nodes, encoding="utf-8")
        environment = launch.environment | {"NODE_FILE": str(nodes)}
        if launch.takes_orders:
            environment |= {"SCHEDULER_SOCKET": str(scheduler), "JOB_SOCKET": self._program}
            self._notices = listen(str(scheduler))
        launch = msgspec.structs.replace(launch, command=[str(script)], environment=environment)
        self._say(remote.Ready())
        if not isinstance(next_message(self._lines), remote.Go):
            return 1
        begun_s = time.monotonic()
        with no_orphans():
            status = keep(launch, 1, self._folder / ALLOTMENT, self._listen)
        ran_s = time.monotonic() - begun_s
        self._say(remote.Ended(msgspec.structs.replace(status, ran_s=ran_s)))
        return 0

    def _listen(self) -> None:
        """Start the threads. The program must run already, because forking with threads is not safe."""
        threading.Thread(target=self._hear, daemon=True).start()
        if self._notices is not None:
            threading.Thread(target=self._give_orders, daemon=True).start()
            threading.Thread(target=self._take_notices, args=(self._notices,), daemon=True).start()

    def _hear(self) -> None:
        while (message := next_message(self._lines)) is not None:
            match message:
                case remote.OrderLine(line):
                    self._orders.put(line)
                case remote.Reallot(allotment):
                    write_atomically(self._folder / ALLOTMENT, msgspec.json.encode(allotment))
                    os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)

    def _give_orders(self) -> None:
        while True:
            order = self._orders.get()
            # If the program has ended or is silent, the scheduler sees that no answer comes.
            with contextlib.suppress(OSError, UnicodeDecodeError), connect(self._program) as program:
                program.sendall(f"{order}\n".encode())
                with program.makefile("r", encoding="utf-8", newline="\n") as answers:
                    while answer := answers.readline(LINE_MAX_BYTES):
                        self._say(remote.AnswerLine(answer.rstrip("\n")))
            self._say(remote.Answered())

    def _take_notices(self, server: socket.socket) -> None:
        for _, line in remote.callers(server):
            self._say(remote.NoticeLine(line))

    def _say(self, message: remote.ToKeeper) -> None:
        with contextlib.suppress(OSError), self._sending:
            remote.send(self._keeper, message)


if __name__ == "__main__":
    sys.exit(main())
