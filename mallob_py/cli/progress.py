"""A line on standard error that says how a job is getting on; nothing where that is no terminal."""

from __future__ import annotations

import shutil
import sys
import time

from mallob_py.cli.status_text import clipped, progress_text
from mallob_py.service.status_file import read_live_status

_PERIOD_S = 0.5


class ProgressLine:
    """`tick` as often as you like; `clear` before anything else is printed."""

    def __init__(self, api_dir: str, client: int) -> None:
        self._api_dir = api_dir
        self._client = client
        self._is_shown = sys.stderr.isatty()
        self._started_s = time.monotonic()
        self._next_s = self._started_s + _PERIOD_S  # short jobs have no progress to tell

    def tick(self, identity: str) -> None:
        now = time.monotonic()
        if not self._is_shown or now < self._next_s:
            return
        self._next_s = now + _PERIOD_S
        status = read_live_status(self._api_dir)
        text = progress_text(identity, status, self._client, now - self._started_s)
        self._write(clipped(text, shutil.get_terminal_size().columns - 1))

    def clear(self) -> None:
        if self._is_shown:
            self._write("")

    def _write(self, text: str) -> None:
        sys.stderr.write(f"\r{text}\x1b[K")
        sys.stderr.flush()
