"""The history of a client: one line for each job that has ended, which outlives the service.

`jobs.<i>/history.jsonl` holds `EndedJob`s as JSON, oldest first. At `SIZE_MAX_BYTES` it is renamed to
`history.1.jsonl`, replacing the former file: a client keeps at most 64 MB, some 200,000 jobs. A job's
line is appended in the turn of the event loop in which its reply is decided; a kill at that very moment can
lose the line, but never the reply. On a full disk the last `WAITING_MAX` lines wait in memory.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import msgspec

from mallob_py.service.store import own_folder
from mallob_py.service.telemetry.status import EndedJob

SIZE_MAX_BYTES = 32 << 20
WAITING_MAX = 10_000
#: number of bytes at the end of each file that `RecentHistory` reads
RECENT_BYTES_MAX = 4 << 20
_NAME, _OLDER_NAME = "history.jsonl", "history.1.jsonl"
#: names in a client's folder, the older file first
HISTORY_FILES = (_OLDER_NAME, _NAME)
#: time after now from which on a job cannot have ended
_AHEAD_MAX_S = 86400.0
#: a job's client, its internal id, and the time of its end
_Key: TypeAlias = tuple[int, int, float]
#: bytes copied at once
_COPIED_BYTES = 1 << 20


class HistoryWriter:
    """The history of one client, for appending."""

    def __init__(self, client_dir: Path) -> None:
        self._path = client_dir / _NAME
        self._waiting: deque[bytes] = deque(maxlen=WAITING_MAX)

    @property
    def has_news(self) -> bool:
        return bool(self._waiting)

    def add(self, job: EndedJob) -> None:
        """Have `flush` write a line for the job."""
        self._waiting.append(msgspec.json.encode(job) + b"\n")

    def flush(self) -> None:
        """Append all waiting lines. After an OSError, the lines still wait."""
        if not self._waiting:
            return
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        descriptor = own_folder.open_file(self._path, flags, 0o666)
        try:
            size_bytes = os.fstat(descriptor).st_size
            data = b"".join(self._waiting)
            if size_bytes and os.pread(descriptor, 1, size_bytes - 1) != b"\n":
                data = b"\n" + data  # this ends an incomplete line that a crash has left
            if os.write(descriptor, data) < len(data):
                os.ftruncate(descriptor, size_bytes)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        finally:
            os.close(descriptor)
        self._waiting.clear()
        if size_bytes + len(data) > SIZE_MAX_BYTES:
            self._path.replace(self._path.with_name(_OLDER_NAME))


def read_history(api_dir: Path) -> list[EndedJob]:
    """Return all ended jobs of all clients, in the order of their ends. Raises OSError."""
    jobs = [job for folder in api_dir.glob("jobs.*") for job in _jobs_in(folder)]
    return sorted(jobs, key=lambda job: job.ended)


class RecentHistory:
    """The last ended jobs, some ten thousand for each client, for callers that ask repeatedly."""

    def __init__(self, api_dir: Path) -> None:
        self._api_dir = api_dir
        self._signature: tuple[tuple[str, int, int], ...] = ()
        self._jobs: list[EndedJob] = []

    def jobs(self) -> list[EndedJob]:
        """Return the jobs in the order of their ends, read again if a file has changed. Raises OSError."""
        paths = [folder / name for folder in self._api_dir.glob("jobs.*") for name in HISTORY_FILES]
        signature = tuple(
            (str(path), (found := path.stat()).st_ino, found.st_size) for path in paths if path.is_file()
        )
        if signature != self._signature:
            tails = [_lines_of(Path(path), RECENT_BYTES_MAX) for path, _, _ in signature]
            self._jobs = sorted((job for lines in tails for job in lines), key=lambda job: job.ended)
            self._signature = signature
        return self._jobs


class NewlyEnded:
    """The jobs that end after this object was made, each told once."""

    def __init__(self, api_dir: Path) -> None:
        self._history = RecentHistory(api_dir)
        #: jobs in the history, as read last; None: never read
        self._jobs: list[EndedJob] | None = None
        #: keys of the jobs read last, and of the jobs read before: a file may have been missed while it was
        #: renamed
        self._seen: set[_Key] = set()
        self._seen_before: set[_Key] = set()
        self.news()

    def news(self) -> list[EndedJob]:
        """Return the jobs that have come into the history since the last call."""
        try:
            jobs = self._history.jobs()
        except OSError:
            return []  # a client's folder is being made or removed
        if jobs is self._jobs:
            return []
        is_first, self._jobs = self._jobs is None, jobs
        seen = self._seen | self._seen_before
        self._seen_before, self._seen = self._seen, {(job.client, job.id, job.ended) for job in jobs}
        return [] if is_first else [job for job in jobs if (job.client, job.id, job.ended) not in seen]


def _jobs_in(client_dir: Path) -> Iterator[EndedJob]:
    for name in HISTORY_FILES:
        yield from _lines_of(client_dir / name, sys.maxsize)


def _lines_of(path: Path, bytes_max: int) -> Iterator[EndedJob]:
    """Return the jobs in the last bytes of a file; no jobs if the file is missing."""
    decoder = msgspec.json.Decoder(EndedJob)
    with contextlib.suppress(FileNotFoundError), open(own_folder.open_file(path, os.O_RDONLY), "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - bytes_max))
        for line in file:
            try:
                yield decoder.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue  # an incomplete line after a crash, or a line of another release


# --- retention ------------------------------------------------------------------------------


def old_lines(path: Path, before_s: float, now_s: float) -> Iterator[tuple[EndedJob | None, int]]:
    """Yield (job, size in bytes of the lines that may be dropped) for the jobs that ended before a time.

    Stops at the first job that ended later. The job None stands for an unreadable line, or for a line of a
    clock that was ahead; the latter is dropped only before an old line, since `now_s` may be wrong instead.
    Raises OSError.
    """
    decoder = msgspec.json.Decoder(EndedJob)
    with contextlib.suppress(FileNotFoundError), open(own_folder.open_file(path, os.O_RDONLY), "rb") as file:
        end_bytes = dropped_bytes = 0
        for line in file:
            end_bytes += len(line)
            job: EndedJob | None = None
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
                job = decoder.decode(line)
            if not line.endswith(b"\n"):
                return
            if job is not None and job.ended > now_s + _AHEAD_MAX_S:
                yield None, dropped_bytes
                continue
            if job is not None and job.ended >= before_s:
                return
            dropped_bytes = end_bytes
            yield job, dropped_bytes


def drop_beginning(path: Path, size_bytes: int) -> Iterator[None]:
    """Drop the first bytes of a history, in steps between which lines may be appended. Raises OSError."""
    temporary = path.with_name(f"~{path.name}")
    with open(own_folder.open_file(path, os.O_RDONLY), "rb") as old:
        with open(own_folder.open_to_write(temporary, 0o666), "wb") as new:
            old.seek(size_bytes)
            while len(piece := old.read(_COPIED_BYTES)) == _COPIED_BYTES:
                new.write(piece)
                yield
            new.write(piece)
        # No yield from here on: otherwise a line could be appended after the last piece, and be lost.
        is_same = os.path.samestat(os.fstat(old.fileno()), os.lstat(path))
        has_lines = temporary.stat().st_size > 0
    if is_same and has_lines:
        temporary.replace(path)
        return
    temporary.unlink()
    if is_same:
        path.unlink()
