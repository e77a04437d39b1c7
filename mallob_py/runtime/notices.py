"""A command's notices to people and log collectors on standard error, line by line.

Lines of a service begin with the time, since they are read days later; lines of other commands do not.
"""

from __future__ import annotations

import sys
import time

_has_time_stamps = False


def with_time_stamps() -> None:
    """Have this process's notices begin with the time (UTC)."""
    global _has_time_stamps
    _has_time_stamps = True


def printable(text: str) -> str:
    """Escape all characters that move the cursor, change colours, or end or reverse the line."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


#: name of the system's error -> the resource that has run out
_SHORT_OF = {
    "EAGAIN": "no further process can be started (ulimit -u, or pids.max of a control group)",
    "ENOMEM": "memory has run out (ulimit -d or -v, or a control group)",
    "EMFILE": "too many files are open (ulimit -n)",
    "ENFILE": "too many files are open on this host",
}


def limit_of(error: BaseException) -> str | None:
    """Return a line about the machine's limit that caused an error; None: no limit caused it."""
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
    """Report an error: in one line if a limit of the machine caused it, else with its traceback."""
    if (line := limit_of(error)) is not None:
        tell(line)
        return
    import traceback

    traceback.print_exception(error)
    sys.stderr.flush()


def say(line: str) -> None:
    """Print a line to people on standard error, escaped (`printable`)."""
    print(printable(line.replace("\n", " ")), file=sys.stderr, flush=True)


def tell(message: str) -> None:
    """Print a notice; it is lost if standard error cannot be written (no reader, full disk)."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ ", time.gmtime()) if _has_time_stamps else ""
    line = printable(message.replace("\n", " "))
    try:  # noqa: SIM105  # guards import this module, but not contextlib
        print(f"{stamp}mallob-py: {line}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass
