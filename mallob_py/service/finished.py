"""The identities of jobs that have ended, on file: dependencies must survive a restart.

One identity per line, appended with each reply, compacted to the newest `keep_max`.
"""

from __future__ import annotations

import os
from pathlib import Path

KEEP_MAX = 100_000


class FinishedLog:
    """An append-only file of identities, of bounded length."""

    def __init__(self, path: Path, keep_max: int = KEEP_MAX) -> None:
        self.path = path
        self._keep_max = keep_max
        self._descriptor = -1
        self._line_count = 0

    def load(self) -> list[str]:
        """The identities that ended, oldest first; [] if there is no such file."""
        try:
            text = self.path.read_text("utf-8", errors="replace")
        except FileNotFoundError:
            return []
        lines = text.split("\n")
        if lines.pop():  # the last line lacks its end: a write that was cut off
            self._rewrite(lines)
        self._line_count = len(lines)
        return lines[-self._keep_max :]

    def append(self, identity: str) -> None:
        if self._descriptor < 0:
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.write(self._descriptor, f"{identity}\n".encode())
        self._line_count += 1
        if self._line_count > 2 * self._keep_max:
            self._rewrite(self.path.read_text("utf-8", errors="replace").splitlines())

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _rewrite(self, lines: list[str]) -> None:
        kept = lines[-self._keep_max :]
        temporary = self.path.with_name("~" + self.path.name.lstrip("."))
        temporary.write_text("".join(f"{line}\n" for line in kept), "utf-8")
        os.replace(temporary, self.path)
        self._line_count = len(kept)
        self.close()  # the descriptor leads to the file that was replaced
