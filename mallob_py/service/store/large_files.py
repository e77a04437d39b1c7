"""Large job files: a separate process reads and parses them, so that the rank does not wait.

Parsing some megabytes takes up to a second, in which the rank would neither show life nor serve other jobs,
not even if a thread did the parsing, since a parser keeps Python's lock. So a thread waits for a process, one
file at a time, in order. Taking the result costs some milliseconds at most.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from queue import SimpleQueue
from typing import NamedTuple

from mallob_py.accepting import is_shortage
from mallob_py.runtime.processes import import_places, python
from mallob_py.service import JobFileError
from mallob_py.service.jobs.job_file import InputUse, Interruption, JobFile, parse_job
from mallob_py.service.store.journal import contents

#: smallest size of a large file; asking another process to parse a smaller file takes as long as parsing it
LARGE_BYTES = 1 << 16
_TRIES = 3
#: delay before the start of a process is tried again after a lack of descriptors or memory
_AGAIN_S = 1.0


class Parsed(NamedTuple):
    """The content of a large file, or the reason to refuse it. `size_bytes`: its size when pickled."""

    internal_id: int
    request: JobFile | Interruption | JobFileError
    size_bytes: int


class LargeFiles:
    """The large files of one client. `fileno` is readable when `take` returns files."""

    def __init__(self, applications: Mapping[str, InputUse], size_max_bytes: int) -> None:
        """`size_max_bytes`: size to which a file may grow after it was taken, since it stays its owner's."""
        self._size_max_bytes = size_max_bytes
        self._applications = json.dumps({name: use.value for name, use in applications.items()})
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread: threading.Thread | None = None
        self._asked: SimpleQueue[tuple[int, str] | None] = SimpleQueue()
        self._parsed: deque[Parsed] = deque()
        #: number of files that were given to `ask` and not yet returned by `take`
        self.under_way = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._closing = threading.Event()

    def fileno(self) -> int:
        return self._bell

    def ask(self, internal_id: int, path: str) -> None:
        """Have a file parsed; `take` will return it."""
        self.under_way += 1
        try:
            self._start()
        except (RuntimeError, MemoryError) as error:
            self._answer(Parsed(internal_id, _unparsed(f"no thread can be started for it: {error}"), 0))
        else:
            self._asked.put((internal_id, path))

    def take(self) -> list[Parsed]:
        """Return the files parsed since the last call, in order."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        taken = [self._parsed.popleft() for _ in range(len(self._parsed))]
        self.under_way -= len(taken)
        return taken

    def close(self) -> None:
        """End the process and drop files that are not parsed."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._asked.put(None)
        if (process := self.process) is not None:
            process.kill()
        if self._thread is not None:
            self._thread.join()
        os.close(self._bell)

    def _start(self) -> None:
        """Start the thread, unless it was started. Raises RuntimeError at a shortage."""
        if self._thread is None:
            thread = threading.Thread(target=self._serve, name="mallob-py-large-files", daemon=True)
            thread.start()
            self._thread = thread

    def _answer(self, parsed: Parsed) -> None:
        self._parsed.append(parsed)
        os.eventfd_write(self._bell, 1)

    def _serve(self) -> None:
        while (asked := self._asked.get()) is not None and not self._closing.is_set():
            internal_id, path = asked
            try:
                request, size_bytes = self._parse(path)
            except Exception as error:  # such as a lack of memory; other files can still be parsed
                self._end_process()
                request, size_bytes = _unparsed(f"{type(error).__name__} {error}".strip()), 0
            self._answer(Parsed(internal_id, request, size_bytes))

    def _end_process(self) -> None:
        if self.process is not None:
            self.process.kill()
            with self.process:
                pass  # its pipe is closed, and its end awaited

    def _parse(self, path: str) -> tuple[JobFile | Interruption | JobFileError, int]:
        command = [*python(), "-m", __name__, path, self._applications, str(self._size_max_bytes)]
        problem = ""
        tries = 0
        while tries < _TRIES and not self._closing.is_set():
            try:
                self.process = subprocess.Popen(
                    command,
                    env=os.environ | import_places(),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
                if self._closing.is_set():
                    self.process.kill()
                data, _ = self.process.communicate()
                if self.process.returncode == 0:
                    return _decoded(data), len(data)
                problem = f"its parser ended with status {self.process.returncode}"
            except OSError as error:
                if is_shortage(error):  # a shortage passes, so it is not counted as a try
                    self._closing.wait(_AGAIN_S)
                    continue
                problem = f"no process can be started for it: {error.strerror}"
            tries += 1
        return _unparsed(problem), 0


def _unparsed(problem: str) -> JobFileError:
    return JobFileError("", f"cannot be parsed: {problem}; hand it in again")


def _decoded(data: bytes) -> JobFile | Interruption | JobFileError:
    request: JobFile | Interruption | tuple[str, str, str | None, str, str] = pickle.loads(data)
    return JobFileError(*request) if isinstance(request, tuple) else request


def _main(path: str, applications: str, size_max_bytes: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the parent
    uses = {name: InputUse(use) for name, use in json.loads(applications).items()}
    request: JobFile | Interruption | tuple[str, str, str | None, str, str]
    try:
        data = contents(path, int(size_max_bytes) + 1)
        if len(data) > int(size_max_bytes):
            raise JobFileError("", "the file has grown beyond the bound of job files; hand in a new file")
        request = parse_job(data, uses)
    except JobFileError as error:
        request = (error.field, error.message, error.identity, error.user, error.group)
    except OSError as error:
        request = ("", f"cannot be read: {error.strerror}", None, "", "")
    pickle.dump(request, sys.stdout.buffer, pickle.HIGHEST_PROTOCOL)


if __name__ == "__main__":
    _main(*sys.argv[1:])
