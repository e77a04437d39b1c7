"""How a command ends, whatever happens in it: an exit code, and one line on standard error if it failed.

Files of the user that cannot be used, wherever that shows, are such a line as well. What is left are
errors of ours, which keep their traceback.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable

from mallob_py.cli import CommandError
from mallob_py.cli.interrupts import INTERRUPTED

#: of OSErrors that name no file: what happens to output that is written to somebody else's file
_OUTPUT_IS_LOST = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO))
#: of OSErrors that name no file: there are too many processes, files, or bytes
_LIMITS = frozenset((errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM))


def outcome_of(command: str, work: Callable[[], int]) -> int:
    """Do the work and flush its output; the exit code."""
    try:
        try:
            return work()
        finally:
            sys.stdout.flush()  # here, where a reader who has left can still be dealt with
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output (head, less) has enough; nothing more may be flushed to it.
        _give_up_output()
        return 0
    except OSError as error:
        if (line := _line_of(error)) is None:
            raise
        if error.filename is None:
            _give_up_output()
        return fail(f"{command}: {line}")
    except Exception as error:
        if not isinstance(error, _expected()):
            raise
        return fail(f"{command}: {error}") if str(error) else 2


def fail(line: str) -> int:
    print(line.replace("\n", " "), file=sys.stderr)
    return 2


def _line_of(error: OSError) -> str | None:
    """What to tell the user; None of an error that no file of the user's is to blame for."""
    if error.filename is not None:
        name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else str(error.filename)
        return f"{name}: {error.strerror}"
    if error.errno in _LIMITS:
        return f"a limit of this machine is reached: {error.strerror}"
    if error.errno in _OUTPUT_IS_LOST:
        return f"the output cannot be written: {error.strerror}"
    return None


def _expected() -> tuple[type[Exception], ...]:
    """Errors that are worded for the user. Imported late: most commands have none."""
    from mallob_py.runtime.world.mpi import LaunchError, OthersRefused
    from mallob_py.service import ServiceError

    return CommandError, LaunchError, OthersRefused, ServiceError


def _give_up_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
