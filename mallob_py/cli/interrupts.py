"""Ctrl-C at any moment: no traceback, exit code 130, and a shell that loops over us ends its loop.

The script begins with `end_at_once`, long before the command is known to the interpreter; the command
itself is run between `raise_in_command` and `let_go`. A process that was started with SIGINT ignored, as
shells do in the background, goes on to ignore it; one that embeds `main` keeps its own handler.

A shell ends its loop if we die of the signal; told 130, bash takes the Ctrl-C for dealt with and goes on.
So that is how the process ends if the signal came from a terminal, where the shell has got it as well.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from mallob_py.launchers import OF_RANKS

INTERRUPTED = 128 + signal.SIGINT


def end_at_once() -> None:
    """From now on, Ctrl-C ends this process without further ado; of `solve`, an answer is said first."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_in_command() -> None:
    """From now on, Ctrl-C is KeyboardInterrupt."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def let_go() -> None:
    """The command is over, and so is what could be said: an interpreter that ends prints tracebacks."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def exit_with(code: int) -> NoReturn:
    """End the process; of the signal that has interrupted it, if a shell is to notice.

    What was printed has been flushed. `solve` has nothing else to take down, which takes 10 ms.
    """
    if code == INTERRUPTED and _in_terminal():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    if sys.argv[1:2] == ["solve"]:
        os._exit(code)
    sys.exit(code)


def _end(_number: int, _frame: FrameType | None) -> None:
    if sys.argv[1:2] == ["solve"] and os.environ.keys().isdisjoint(OF_RANKS):
        os.write(1, b"s UNKNOWN\n")
    if _in_terminal():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(INTERRUPTED)


def _in_terminal() -> bool:
    """Whether Ctrl-C in a terminal reaches us, and with us the shell."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
