"""`mallob-py top`: the service's jobs, volumes and queue, live.

In a terminal it takes the whole screen and gives it back at the end; elsewhere it prints one block
of plain lines per interval. It reads the api folder only, so it waits for a service that is down and
goes on when that is back. Exit code 0 after Ctrl-C; with --once, 1 if no service is running.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from types import FrameType

from mallob_py.cli.client_options import TopOptions
from mallob_py.cli.status_text import clipped, screen
from mallob_py.service.status_file import read_status

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_PLAIN_LINES = 1_000_000


def run(options: TopOptions) -> int:
    if options.once:
        lines, is_running = _view(options, *_plain_size())
        print("\n".join(lines))
        return 0 if is_running else 1
    try:
        if sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb":
            _fill_the_terminal(options)
        else:
            _print_blocks(options)
    except KeyboardInterrupt:
        pass
    return 0


def _fill_the_terminal(options: TopOptions) -> None:
    with _screen_of_our_own():
        while True:
            size = shutil.get_terminal_size()
            lines, _ = _view(options, size.columns, size.lines - 1)
            sys.stdout.write(_HOME + "".join(f"{line}{_CLEAR_LINE}\r\n" for line in lines) + _CLEAR_BELOW)
            sys.stdout.flush()
            # A new size of the window is worth a new picture at once.
            signal.sigtimedwait({signal.SIGWINCH}, options.interval_s)


def _print_blocks(options: TopOptions) -> None:
    while True:
        lines, _ = _view(options, *_plain_size())
        print("\n".join([*lines, ""]), flush=True)
        signal.sigtimedwait({signal.SIGWINCH}, options.interval_s)


@contextlib.contextmanager
def _screen_of_our_own() -> Iterator[None]:
    """The terminal is as before afterwards, also after SIGTERM."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGWINCH})
    sys.stdout.write(_ENTER)
    try:
        yield
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()


def _plain_size() -> tuple[int, int]:
    return shutil.get_terminal_size((80, 24)).columns, _PLAIN_LINES


def _view(options: TopOptions, columns: int, lines: int) -> tuple[list[str], bool]:
    """What to show, and whether a service is running."""
    status = read_status(options.api_dir)
    if status is not None and not status.is_stale():
        return screen(status, columns, lines), True
    last = "" if status is None else f" (its last sign of life is {status.age_s():.0f} s old)"
    return [clipped(f"no service is running on {options.api_dir}{last}", columns)], False
