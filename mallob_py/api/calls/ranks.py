"""Ranks of an executor's own: a service in a folder of its own, which ends with the executor."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from mallob_py.runtime.processes import die_with
from mallob_py.service import ServiceError
from mallob_py.service.client import service_is_running

_START_S = 60.0
_LOOK_S = 0.005
_STOP_S = 10.0
_LINES_SHOWN = 5


class OwnRanks:
    """Starts so many ranks; `api_dir` is their service's folder. Raises ServiceError if they do not start."""

    def __init__(self, ranks: int) -> None:
        if ranks < 1:
            raise ValueError(f"ranks is a number above 0, not {ranks}")
        self.count = ranks
        self._folder = Path(tempfile.mkdtemp(prefix="mallob-py-ranks-"))
        self.api_dir = self._folder / "api"
        self._output = self._folder / "output"
        ours = os.getpid()
        command = [sys.executable, "-m", "mallob_py", "serve", "--ranks", str(ranks), "--preload", "CALLS"]
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, "--many-ranks", "--api-dir", str(self.api_dir)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: die_with(ours, signal.SIGTERM),
            )
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    def _wait(self) -> None:
        deadline_s = time.monotonic() + _START_S
        while not ((self.api_dir / "jobs.0" / "in").is_dir() and service_is_running(self.api_dir)):
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                lines = self._output.read_text(errors="replace").splitlines()[-_LINES_SHOWN:]
                raise ServiceError("the executor's ranks have not started: " + " ".join(lines))
            time.sleep(_LOOK_S)

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
