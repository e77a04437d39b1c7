"""An executor's own ranks: a service on a temporary folder, which ends with the executor."""

from __future__ import annotations

import operator
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

from mallob_py.runtime.processes import die_with, python
from mallob_py.runtime.workers.output import OUTPUT_FOLDER
from mallob_py.runtime.world.session_folder import PrivateFolder, temporary_folder
from mallob_py.service import ServiceError
from mallob_py.service.client import service_is_running
from mallob_py.service.telemetry.printed import Printed

#: period of passing on what calls print
_PRINTING_S = 0.1
_START_S = 60.0
_LOOK_S = 0.005
_STOP_S = 10.0
_LINES_SHOWN = 5


class OwnRanks:
    """Starts ranks; `api_dir` is the folder of their service. Raises ServiceError if they do not start.

    The future `ended` is done once the ranks have ended for any reason. They end at the latest with the
    program.
    """

    def __init__(self, ranks: int) -> None:
        try:
            self.count = operator.index(ranks)
        except TypeError:
            raise TypeError(f"ranks must be a whole number, not {ranks!r}") from None
        if self.count < 1:
            raise ValueError(f"ranks must be a number above 0, not {ranks}")
        try:
            folder = temporary_folder()
        except OSError as error:
            raise ServiceError(str(error)) from None
        self.api_dir = folder.path / "api"
        self._output = folder.path / "output"
        prints = _Prints(self.api_dir)
        command = [*python(), "-m", "mallob_py", "serve", "--ranks", str(self.count), "--preload", "CALLS"]
        command += ["--many-ranks", "--api-dir", str(self.api_dir)]
        self.ended: Future[None] = Future()
        started: Future[subprocess.Popen[bytes]] = Future()
        # The kernel ends the ranks with the thread that started them, so they get a thread of their own.
        threading.Thread(
            target=_look_after,
            args=(command, self._output, prints, started, self.ended),
            name="mallob-py-ranks",
            daemon=True,
        ).start()
        try:
            self._process = started.result()
        except BaseException:
            folder.remove()
            raise
        self._end = weakref.finalize(self, _end, os.getpid(), self._process, prints, folder)
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    def _wait(self) -> None:
        deadline_s = time.monotonic() + _START_S
        while not ((self.api_dir / "jobs.0" / "in").is_dir() and service_is_running(self.api_dir)):
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise ServiceError("the executor's ranks have not started: " + self.last_words())
            time.sleep(_LOOK_S)

    def last_words(self) -> str:
        """Return the end of the ranks' output."""
        with suppress(OSError):
            return " ".join(self._output.read_text(errors="replace").splitlines()[-_LINES_SHOWN:])
        return ""

    def stop(self) -> None:
        self._end()


class _Prints:
    """The output of calls, which is passed on to the program's standard output."""

    def __init__(self, api_dir: Path) -> None:
        self._api_dir = api_dir
        self._mutex = threading.Lock()
        #: job -> its output, and the size [bytes] of its output file at the last look
        self._jobs: dict[int, tuple[Printed, int]] = {}

    def pass_on(self) -> None:
        """Print the new output."""
        with self._mutex, suppress(Exception):  # the folder does not exist yet, or stdout is closed
            for entry in sorted(os.scandir(self._api_dir / OUTPUT_FOLDER), key=lambda one: one.name):
                job, _, rest = entry.name.partition(".")
                size_bytes = entry.stat(follow_symlinks=False).st_size
                printed, before_bytes = self._jobs.get(int(job)) or (Printed(self._api_dir, int(job)), 0)
                if rest == "log" and size_bytes != before_bytes:
                    self._jobs[int(job)] = printed, size_bytes
                    sys.stdout.write(printed.text())
                    sys.stdout.flush()


def _look_after(
    command: list[str],
    output: Path,
    prints: _Prints,
    started: Future[subprocess.Popen[bytes]],
    ended: Future[None],
) -> None:
    """Start the ranks, and wait until they have ended."""
    ours = os.getpid()
    try:
        with output.open("wb") as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: die_with(ours, signal.SIGTERM),
            )
    except BaseException as error:
        started.set_exception(error)
        return
    started.set_result(process)
    pidfd = os.pidfd_open(process.pid)
    is_over = select.poll()
    is_over.register(pidfd)
    while not is_over.poll(1000 * _PRINTING_S):
        prints.pass_on()
    os.close(pidfd)
    process.wait()
    ended.set_result(None)


def _end(ours: int, process: subprocess.Popen[bytes], prints: _Prints, folder: PrivateFolder) -> None:
    if os.getpid() != ours:  # a fork of the program that started the ranks
        return
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    prints.pass_on()
    folder.remove()
