"""The notices of a command to people and log collectors on standard error, a line at a time.

A service's lines have the time in front, since they are read days later; those of other commands do not: who
typed them sits before them.
"""

from __future__ import annotations

import sys
import time

_has_time_stamps = False


def with_time_stamps() -> None:
    """From now on this process's notices tell when they were made (UTC)."""
    global _has_time_stamps
    _has_time_stamps = True


def printable(text: str) -> str:
    """Return the text with escapes for what would move the cursor, change colours, end or turn the line."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


#: of errors of the system: what has run out, by the name of the number
_SHORT_OF = {
    "EAGAIN": "no further process can be started (ulimit -u, or pids.max of a control group)",
    "ENOMEM": "memory has run out (ulimit -d or -v, or a control group)",
    "EMFILE": "too many files are open (ulimit -n)",
    "ENFILE": "too many files are open on this host",
}


def limit_of(error: BaseException) -> str | None:
    """Return a line on the limit of this machine that an error tells of; None if the error tells of none."""
    what = None
    if isinstance(error, MemoryError):
        what = _SHORT_OF["ENOMEM"]
    elif isinstance(error, RuntimeError) and str(error) == "can't start new thread":
        what = "no further thread can be started (ulimit -u, or pids.max of a control group)"
    elif isinstance(error, OSError) and error.filename is None:
        import errno

        what = _SHORT_OF.get(errno.errorcode.get(error.errno or 0, ""))
    return None if what is None else f"a limit of this machine is reached: {what}"


def tell_error(error: BaseException) -> None:
    """Tell of a limit in one line, of an error of ours with its traceback."""
    if (line := limit_of(error)) is not None:
        tell(line)
        return
    import traceback

    traceback.print_exception(error)
    sys.stderr.flush()


def say(line: str) -> None:
    """Print a line of a command to people on standard error, with escapes (`printable`)."""
    print(printable(line.replace("\n", " ")), file=sys.stderr, flush=True)


def tell(message: str) -> None:
    """One line on standard error. It is lost if nothing reads there, or if the disk of that file is full."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ ", time.gmtime()) if _has_time_stamps else ""
    line = printable(message.replace("\n", " "))
    try:  # noqa: SIM105  # guards import this, and no contextlib
        print(f"{stamp}mallob-py: {line}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass
