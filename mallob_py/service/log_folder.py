"""The folder of event logs: which runs it holds, and how it stays small.

    <log-dir>/<run>/<rank>.jsonl       how a rank's log of a run begins
    <log-dir>/<run>/<rank>.<k>.jsonl   its k-th further part

A run is named by when it started (UTC, to the millisecond). Every start is a run of its own, so none
overwrites another's logs; and ranks on many hosts that share the folder need no word about it, as
nothing is ever renamed. A rank keeps to `size_max_bytes` over all runs: before it begins a part, its
oldest ones go. What does not look like ours is never touched.

Logs that lie in the folder itself (a simulation's; or the folder is that of one run) are a run as well.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import deque
from datetime import UTC, datetime
from pathlib import Path

#: so many make up the size that is allowed: the tenth part of a log goes at a time
PARTS = 10
#: a service that fails at each start must not fill the folder with short logs either
_FILES_MAX = 1000
_RUN = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d\.\d{3}Z")
_PART = re.compile(r"(.+?)(?:\.(\d+))?\.jsonl")


def run_name(start_unix_s: float) -> str:
    """Such as 2026-01-31T12-00-05.123Z; in the order of their names, runs are in that of their starts."""
    start = datetime.fromtimestamp(start_unix_s, UTC)
    return f"{start:%Y-%m-%dT%H-%M-%S}.{start.microsecond // 1000:03d}Z"


def runs_of(log_dir: Path) -> list[Path]:
    """The folders of runs that have logged something, oldest first; a file is a run, too. Raises OSError."""
    if log_dir.is_file():
        return [log_dir] if log_dir.stat().st_size else []
    folders = sorted(path for path in log_dir.iterdir() if _RUN.fullmatch(path.name))
    return [folder for folder in (log_dir, *folders) if any(path.stat().st_size for path in parts_of(folder))]


def parts_of(run: Path) -> list[Path]:
    """The files of a run, those of each rank in their order."""
    if run.is_file():
        return [run]
    return sorted(run.glob("*.jsonl"), key=author_and_part)


def author_and_part(path: Path) -> tuple[str, int]:
    """Whose log a file belongs to, and which part of it it is; 0 is the first."""
    match = _PART.fullmatch(path.name)
    return (match[1], int(match[2] or 0)) if match is not None else (path.name, 0)


class LogFiles:
    """Gives one rank the files of a run, one after the other. Its methods raise OSError."""

    def __init__(self, run: Path, rank: int, size_max_bytes: int | None = None) -> None:
        """`size_max_bytes`: of this rank's files in all runs beside this one, too; None: no bound."""
        self._run = run
        self._rank = rank
        self._size_max_bytes = size_max_bytes
        self._part = 0
        self._is_looked_up = False
        self._older: deque[tuple[Path, int]] = deque()

    @property
    def path(self) -> Path:
        """The part that is to be written."""
        return self._run / (f"{self._rank}.{self._part}.jsonl" if self._part else f"{self._rank}.jsonl")

    def is_full(self, size_bytes: int) -> bool:
        """Whether a part of this size is to be the last."""
        return self._size_max_bytes is not None and size_bytes >= self._size_max_bytes // PARTS

    def open(self) -> int:
        """Begin the part; its descriptor."""
        self._run.mkdir(parents=True, exist_ok=True)
        self._make_room()
        return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def turn_over(self, size_bytes: int) -> None:
        """The part has this size, and the next one is due."""
        self._older.append((self.path, size_bytes))
        self._part += 1

    def _make_room(self) -> None:
        if self._size_max_bytes is None:
            return
        if not self._is_looked_up:
            self._older.extendleft(reversed(self._of_earlier_runs()))
            self._is_looked_up = True
        room_bytes = self._size_max_bytes - self._size_max_bytes // PARTS
        total_bytes = sum(size for _, size in self._older)
        while self._older and (total_bytes > room_bytes or len(self._older) >= _FILES_MAX):
            path, size_bytes = self._older.popleft()
            total_bytes -= size_bytes
            with contextlib.suppress(OSError):
                path.unlink()
                path.parent.rmdir()  # unless others' logs are there

    def _of_earlier_runs(self) -> list[tuple[Path, int]]:
        found: list[tuple[Path, int]] = []
        runs = [path for path in self._run.parent.iterdir() if _RUN.fullmatch(path.name)]
        for run in sorted(path for path in runs if path != self._run):
            with contextlib.suppress(OSError):
                mine = [path for path in parts_of(run) if author_and_part(path)[0] == str(self._rank)]
                found += [(path, path.stat().st_size) for path in mine]
        return found
