"""A line on standard error that says how a job is getting on; nothing where that is no terminal."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from mallob_py.cli.status_text import printable, progress_text
from mallob_py.service.telemetry.status import read_live_status

if TYPE_CHECKING:
    from rich.live import Live

_PERIOD_S = 0.5


class ProgressLine:
    """`tick` as often as you like; `clear` before anything else is printed."""

    def __init__(self, api_dir: str, client: int) -> None:
        self._api_dir = api_dir
        self._client = client
        self._is_shown = sys.stderr.isatty()
        self._started_s = time.monotonic()
        self._next_s = self._started_s + _PERIOD_S  # short jobs have no progress to tell
        self._live: Live | None = None

    def tick(self, identity: str) -> None:
        now = time.monotonic()
        if not self._is_shown or now < self._next_s:
            return
        self._next_s = now + _PERIOD_S
        status = read_live_status(self._api_dir)
        text = progress_text(identity, status, self._client, now - self._started_s)
        self._show(printable(text))

    def clear(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _show(self, text: str) -> None:
        # Late: short jobs do not pay for it.
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        if self._live is None:
            self._live = Live(
                console=Console(stderr=True),
                transient=True,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)
