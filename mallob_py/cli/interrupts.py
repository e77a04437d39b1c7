"""Ctrl-C at any moment: no traceback, exit code 130, and a shell that loops over the command ends its loop.

The script begins with `end_at_once`, long before the command is known; the command runs between
`raise_in_command` and `let_go`. A process started with SIGINT ignored, as in a shell's background, keeps
ignoring the signal; a program that embeds `main` keeps its own handler.

A shell ends its loop only if the command dies of the signal; at exit code 130, bash believes that Ctrl-C was
handled, and goes on. So the process dies of the signal if the signal came from a terminal, because the shell
has received it, too.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType
from typing import NoReturn

from mallob_py.launchers import OF_RANKS

INTERRUPTED = 128 + signal.SIGINT


def end_at_once() -> None:
    """From now on, end this process at Ctrl-C without output; only `solve` prints an answer, UNKNOWN."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_in_command() -> None:
    """From now on, raise KeyboardInterrupt at Ctrl-C."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def let_go() -> None:
    """From now on, let Ctrl-C kill the process: an interpreter that ends would print a traceback."""
    in_charge = threading.current_thread() is threading.main_thread()  # else a program embeds `main`
    if in_charge and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def exit_with(code: int) -> NoReturn:
    """End the process with a code, or by SIGINT if Ctrl-C in a terminal has interrupted it.

    Output must be flushed, because `solve` skips the interpreter's clean-up, which takes 10 ms.
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
    """Tell whether Ctrl-C in a terminal reaches both this process and its shell."""
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
