"""`mallob-py top`: the service's jobs, volumes and queue, live.

In a terminal it takes the whole screen, listens to keys and gives the screen back at the end; elsewhere it
prints one block of plain lines per interval. It reads the api folder only, so it waits for a service that
is down and goes on when that is back. Exit code 0 after q or Ctrl-C; with --once, 1 if no service is running.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from types import FrameType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from mallob_py.cli.client_options import TopOptions
from mallob_py.cli.screen import picture
from mallob_py.cli.status_tables import of_user
from mallob_py.service.telemetry.status import read_status

#: key -> what it sorts by
_SORT_KEYS = {
    **{"v": "volume", "p": "priority", "d": "demand", "a": "age"},
    **{"u": "user", "n": "name", "s": "state", "i": "id"},
}
_HINT = "q quits, r reverses; sort by " + " ".join(f"{key}:{name}" for key, name in _SORT_KEYS.items())
_PLAIN_LINES = 1_000_000


class _View:
    """What is shown, and how it is sorted."""

    def __init__(self, options: TopOptions) -> None:
        self._options = options
        self._sort = options.sort
        self._is_reversed = False

    def press(self, key: str) -> None:
        if key == "r":
            self._is_reversed = not self._is_reversed
        elif key in _SORT_KEYS:
            self._sort, self._is_reversed = _SORT_KEYS[key], False

    def look(self, columns: int, lines: int) -> tuple[RenderableType, bool]:
        """What to show, and whether a service is running."""
        status = read_status(self._options.api_dir)
        if status is not None and not status.is_stale():
            status = of_user(status, self._options.user)
            return picture(status, columns, lines, self._sort, self._is_reversed), True
        last = "" if status is None else f" (its last sign of life is {status.age_s():.0f} s old)"
        text = Text(f"no service is running on {self._options.api_dir}{last}", no_wrap=True)
        text.overflow = "ellipsis"
        return text, False


def run(options: TopOptions) -> int:
    console = Console(highlight=False, emoji=False)
    view = _View(options)
    if options.once:
        return 0 if _print_block(console, view) else 1
    try:
        if console.is_terminal and not console.is_dumb_terminal:
            _fill_the_terminal(console, view, options.interval_s)
        else:
            while True:
                _print_block(console, view)
                print(flush=True)
                time.sleep(options.interval_s)
    except KeyboardInterrupt:
        pass
    return 0


def _print_block(console: Console, view: _View) -> bool:
    columns = shutil.get_terminal_size((80, 24)).columns
    shown, is_running = view.look(columns, _PLAIN_LINES)
    with console.capture() as capture:
        console.print(shown, width=columns)
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))
    return is_running


def _fill_the_terminal(console: Console, view: _View, interval_s: float) -> None:
    hint = Text(_HINT, "dim", no_wrap=True, overflow="ellipsis")
    with _events() as wait, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            shown, _ = view.look(console.width, console.height - 1)
            live.update(Group(shown, hint), refresh=True)
            for key in wait(interval_s):
                if key in "qQ":
                    return
                view.press(key)


@contextlib.contextmanager
def _events() -> Iterator[Callable[[float], str]]:
    """A function that waits for keys, a new size of the window or so many seconds, and returns the keys.

    SIGTERM ends the view as Ctrl-C does, so that the terminal is as before afterwards.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def wait(seconds: float) -> str:
        readable, _, _ = select.select([woken, *keyboard], [], [], seconds)
        if woken in readable:
            os.read(woken, 64)
        return os.read(keyboard[0], 64).decode(errors="replace") if keyboard[0:1] == readable[-1:] else ""

    keyboard = [sys.stdin.fileno()] if sys.stdin is not None and sys.stdin.isatty() else []
    woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGWINCH, lambda number, frame: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    before = [termios.tcgetattr(fd) for fd in keyboard]
    try:
        for fd in keyboard:
            tty.setcbreak(fd)
        yield wait
    finally:
        for fd, attributes in zip(keyboard, before, strict=True):
            termios.tcsetattr(fd, termios.TCSADRAIN, attributes)
        signal.set_wakeup_fd(-1)
