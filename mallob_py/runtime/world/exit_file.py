"""The exit file, by which a service's ranks report to the process that started them.

The starting process makes the file, empty and with the time of change 0. Once the ranks have come up, the
file holds `mpi.RUNNING`, and its time of change is renewed while a rank of the host lives
(`failure_detector.Ring`); at the end the file holds the exit code (`mpi.leave`). The time needs no room on
the disk, so it tells even on a full disk whether the ranks have come up.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from mallob_py.launchers import EXIT_FILE_VARIABLE
from mallob_py.runtime.world.failure_detector import Watch


@dataclass(frozen=True, slots=True)
class Said:
    """The content of an exit file at the end."""

    #: the world's exit code; None: no rank wrote it
    code: int | None
    #: whether the ranks had come up
    had_come_up: bool


class ExitFile:
    """The exit file, read by the starting process. `rank_timeout_s`: longest silence (None: no limit)."""

    #: message when silent ranks are ended
    complaint = "no rank answers any more; all ranks are ended by force"
    #: period of checking the file
    look_s = 0.5
    #: time within which silent ranks must end after a stop signal
    grace_s = 3.0

    def __init__(self, folder: Path, rank_timeout_s: float | None) -> None:
        self._path = folder / "exit-code"
        # The ranks may react first, since they know more.
        self._watch = Watch(None if rank_timeout_s is None else 1.5 * rank_timeout_s)
        #: the file's time of change, as seen last; 0: the ranks have not come up
        self._seen_ns = 0
        with contextlib.suppress(OSError):  # no room: the ranks may still be able to make the file
            os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            os.utime(self._path, ns=(0, 0))

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variable by which ranks find the file."""
        return {EXIT_FILE_VARIABLE: str(self._path)}

    def is_silent(self, now: float) -> bool:
        """Tell whether ranks that had come up are silent for too long; must be called every `look_s`."""
        if self._has_changed():
            self._watch.heard()
        return self._seen_ns != 0 and self._watch.is_silent(now)

    def said(self) -> Said:
        self._has_changed()
        code = None
        with contextlib.suppress(OSError, ValueError):  # a full disk may have kept a part of the content
            code = int(self._path.read_bytes())
        return Said(code, self._seen_ns != 0)

    def _has_changed(self) -> bool:
        before_ns = self._seen_ns
        with contextlib.suppress(OSError):
            self._seen_ns = os.stat(self._path).st_mtime_ns
        return self._seen_ns != before_ns
