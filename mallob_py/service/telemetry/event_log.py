"""The event log: what each rank did and when, as JSON lines; and how to read it back.

One event a line: {"t": seconds since the service started, "rank", "event", ...fields}. "rank" is the number
of the event's PE, which is the rank if each rank hosts one PE. PEs keep their number in logs when ranks come
and go. The simulator writes the same lines.

Writing stays off the hot path: callers append to a list; only `flush`, which the event loop calls now and
then and when the list is long, encodes and writes. Guarantee: no method raises because of the disk. When the
file cannot be written, this is reported once on standard error; later events are dropped and counted, and the
count is logged as soon as writing works again.

Earlier parts of a log may be missing: each further part begins with an event `continued`, which repeats the
fields of `start`, and with an event `busy` for each busy PE.

The folder of logs:

    <log-dir>/<run>/<rank>.jsonl       how a rank's log of a run begins
    <log-dir>/<run>/<rank>.<k>.jsonl   its k-th further part

A run's name is its start (UTC, to the millisecond). Every start is a run of its own, so no run overwrites
another run's logs; files are never renamed, so ranks of many hosts can share the folder. A rank keeps at most
`size_max_bytes` over all runs: before it begins a part, it removes its oldest parts, and once an hour the
parts that nobody has written to for `keep_s`. Files that do not look like ours are never touched. Logs in the
folder itself (of a simulation, or if the folder is a run's) are also a run.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from mallob_py.log_events import LogEvent
from mallob_py.runtime.notices import tell
from mallob_py.service.store import own_folder

#: number of parts that make up a log's allowed size: a tenth of the log is removed at a time
PARTS = 10
#: greatest number of files of a rank: a service that fails at each start must not fill the folder with logs
_FILES_MAX = 1000
#: time between two checks for old parts
_LOOK_S = 3600.0
_RUN = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d\.\d{3}Z")
_PART = re.compile(r"(.+?)(?:\.(\d+))?\.jsonl")


def run_name(start_unix_s: float) -> str:
    """Return a run's name, such as 2026-01-31T12-00-05.123Z; names and starts of runs have the same order."""
    start = datetime.fromtimestamp(start_unix_s, UTC)
    return f"{start:%Y-%m-%dT%H-%M-%S}.{start.microsecond // 1000:03d}Z"


def runs_of(log_dir: Path) -> list[Path]:
    """Return the folders of runs with events, oldest first; a file is a run, too. Raises OSError."""
    if log_dir.is_file():
        return [log_dir] if log_dir.stat().st_size else []
    folders = sorted(path for path in log_dir.iterdir() if _RUN.fullmatch(path.name))
    return [folder for folder in (log_dir, *folders) if any(path.stat().st_size for path in parts_of(folder))]


def parts_of(run: Path) -> list[Path]:
    """Return the files of a run, each rank's files in order."""
    if run.is_file():
        return [run]
    return sorted(run.glob("*.jsonl"), key=author_and_part)


def author_and_part(path: Path) -> tuple[str, int]:
    """Return the rank that wrote a log file, and the number of this part of the log, from 0."""
    match = _PART.fullmatch(path.name)
    return (match[1], int(match[2] or 0)) if match is not None else (path.name, 0)


class LogFiles:
    """The files of one rank in a run, opened one after the other. Methods raise OSError."""

    def __init__(
        self, run: Path, rank: int, size_max_bytes: int | None = None, keep_s: float | None = None
    ) -> None:
        """`size_max_bytes`: bound on the size of this rank's files in all runs together; None: no bound.

        `keep_s`: how long a finished part is kept; None: for ever.
        """
        self._keep_s = keep_s
        self._next_look_s = math.inf if keep_s is None else -math.inf
        self._run = run
        self._rank = rank
        self._size_max_bytes = size_max_bytes
        self._part = 0
        self._is_looked_up = False
        self._older: deque[tuple[Path, int]] = deque()

    @property
    def path(self) -> Path:
        """Return the path of the part to be written."""
        return self._run / (f"{self._rank}.{self._part}.jsonl" if self._part else f"{self._rank}.jsonl")

    def is_full(self, size_bytes: int) -> bool:
        """Tell whether a part of this size is full, so that the next part must begin."""
        return self._size_max_bytes is not None and size_bytes >= self._size_max_bytes // PARTS

    def open(self) -> int:
        """Begin the part; return its descriptor."""
        self._run.mkdir(parents=True, exist_ok=True)
        self._make_room()
        return own_folder.open_file(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def turn_over(self, size_bytes: int) -> None:
        """Turn to the next part; `size_bytes`: size of the part that ends."""
        self._older.append((self.path, size_bytes))
        self._part += 1

    def remove_old(self) -> None:
        """Remove finished parts that are too old, at most once an hour. Never raises."""
        if self._keep_s is None or (now := time.monotonic()) < self._next_look_s:
            return
        self._next_look_s = now + _LOOK_S
        with contextlib.suppress(OSError):
            self._look_up()
        before_s = time.time() - self._keep_s
        while self._older and _written_s(self._older[0][0]) < before_s:
            _remove(self._older.popleft()[0])

    def _look_up(self) -> None:
        if not self._is_looked_up:
            self._older.extendleft(reversed(self._of_earlier_runs()))
            self._is_looked_up = True

    def _make_room(self) -> None:
        if self._size_max_bytes is None:
            return
        self._look_up()
        room_bytes = self._size_max_bytes - self._size_max_bytes // PARTS
        total_bytes = sum(size for _, size in self._older)
        while self._older and (total_bytes > room_bytes or len(self._older) >= _FILES_MAX):
            path, size_bytes = self._older.popleft()
            total_bytes -= size_bytes
            _remove(path)

    def _of_earlier_runs(self) -> list[tuple[Path, int]]:
        found: list[tuple[Path, int]] = []
        runs = [path for path in self._run.parent.iterdir() if _RUN.fullmatch(path.name)]
        for run in sorted(path for path in runs if path != self._run):
            with contextlib.suppress(OSError), own_folder.opened(run) as folder:
                if not own_folder.is_ours(folder):
                    continue
                mine = [path for path in parts_of(run) if author_and_part(path)[0] == str(self._rank)]
                found += [
                    (path, path.stat().st_size) for path in mine if own_folder.is_file(path.name, folder)
                ]
        return found


def _written_s(path: Path) -> float:
    """Return when a file was last written to (seconds since 1970); -inf: the file is missing."""
    try:
        return path.lstat().st_mtime
    except OSError:
        return -math.inf


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
        path.parent.rmdir()  # this fails if logs of other ranks are in the folder


#: the events that describe the run: at its start, and at the start of each further part of a log
OPENINGS = (LogEvent.START, LogEvent.CONTINUED)

# Greatest number of unwritten bytes that are kept while the disk is full.
_UNWRITTEN_BYTES_MAX = 4 << 20


class Event(msgspec.Struct, frozen=True):
    """One line of a log that was read."""

    t: float
    rank: int
    event: str
    fields: Mapping[str, Any]


class EventLog:
    """One rank's log. Without files it drops all events."""

    def __init__(self, files: LogFiles | None, first_pe: int, epoch_start: float) -> None:
        """`epoch_start`: the service's start, on the clock of `write`."""
        self._files = files
        self.is_kept = files is not None
        self._first_pe = first_pe
        self._epoch_start = epoch_start
        #: events for `flush` to write: time, name, fields, PE
        self.taken: list[tuple[float, str, Mapping[str, Any], int]] = []
        #: number of taken events at which `write` flushes them
        self.taken_max = 512
        self._events: list[dict[str, Any]] = []
        self._unwritten = b""
        self._dropped = 0
        self._complained = False
        self._encoder = msgspec.json.Encoder(enc_hook=str)
        self._descriptor = -1
        self._part_bytes = 0
        #: the event with which further parts begin
        self._start: dict[str, Any] = {}
        self._busy: set[int] = set()

    def write(self, now: float, event: str, fields: Mapping[str, Any], pe: int | None = None) -> None:
        """Log an event at time `now` of PE `pe`; None: of the rank as a whole, logged as its first PE."""
        if self._files is None:
            return
        self.taken.append((now, event, fields, self._first_pe if pe is None else pe))
        if len(self.taken) >= self.taken_max:
            self.flush()

    def flush(self) -> None:
        """Hand all events to the operating system."""
        if self._files is None or not (self.taken or self._events or self._unwritten):
            return
        taken, self.taken = self.taken, []
        self._events += [
            {"t": round(now - self._epoch_start, 6), "rank": author, "event": event, **fields}
            for now, event, fields, author in taken
        ]
        if not self._unwritten and self._files.is_full(self._part_bytes):
            self._turn_over(self._files)
        self._files.remove_old()
        lines = b"".join(self._encoder.encode(event) + b"\n" for event in self._events)
        count = len(self._events)
        last_t = self._events[-1]["t"] if self._events else 0.0
        self._take_note(self._events)
        self._events = []
        pending = self._unwritten + lines
        try:
            if self._descriptor < 0:
                self._descriptor = self._files.open()
            written = os.write(self._descriptor, pending)
        except OSError as error:
            self._complain(self._files.path, error)
            self._keep(lines, count)
            return
        self._part_bytes += written
        # A disk that fills up may store only the beginning of a line; the rest is kept and written later.
        self._unwritten = pending[written:]
        if self._dropped:
            notice = {"t": last_t, "rank": self._first_pe, "event": LogEvent.DROPPED, "events": self._dropped}
            self._events.append(notice)
            self._dropped = 0

    def close(self) -> None:
        """Flush and close. Later events are dropped."""
        self.flush()
        self._files, self.is_kept = None, False
        self._close_part()

    def _close_part(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _turn_over(self, files: LogFiles) -> None:
        """Begin the next part; the events that are being written go there."""
        self._close_part()
        files.turn_over(self._part_bytes)
        self._part_bytes = 0
        t = self._events[0]["t"]
        opening = [self._start | {"t": t, "rank": self._first_pe, "event": LogEvent.CONTINUED}]
        opening += [{"t": t, "rank": pe, "event": LogEvent.BUSY} for pe in sorted(self._busy)]
        self._events = opening + self._events

    def _take_note(self, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            match line["event"]:
                case LogEvent.START:
                    self._start = line
                case LogEvent.BUSY:
                    self._busy.add(line["rank"])
                case LogEvent.IDLE:
                    self._busy.discard(line["rank"])

    def _keep(self, lines: bytes, count: int) -> None:
        if len(self._unwritten) + len(lines) <= _UNWRITTEN_BYTES_MAX:
            self._unwritten += lines
        else:
            self._dropped += count

    def _complain(self, path: Path, error: OSError) -> None:
        if self._complained:
            return
        self._complained = True
        reason = os.strerror(error.errno or 0)
        tell(f"the event log {path} cannot be written: {reason}")


def read_events(log_dir: Path, on_bad_line: Callable[[Path, int], None] | None = None) -> list[Event]:
    """Return all ranks' events of the newest run, by time; `log_dir` may also be a run's folder or file.

    Clocks of several hosts differ a little, so neighbouring events may be swapped. A killed rank's unfinished
    last line is skipped; so is any other unreadable line, after `on_bad_line(path, line_number)`. If a rank's
    first parts are missing, the events of all ranks begin where that rank's log begins.
    """
    events: list[Event] = []
    begin_s = -math.inf
    authors = set()
    for run in runs_of(log_dir)[-1:]:
        for path in parts_of(run):
            author, part = author_and_part(path)
            found = _read_file(path, on_bad_line)
            if part > 0 and author not in authors and found:
                begin_s = max(begin_s, found[0].t)
            authors.add(author)
            events.extend(found)
    events.sort(key=lambda event: event.t)
    return _from(begin_s, events)


def _from(begin_s: float, events: list[Event]) -> list[Event]:
    """Return the events from `begin_s` on, after the opening events that hold at that time."""
    openings: dict[tuple[int, str], Event] = {}
    for event in events:
        if event.t >= begin_s:
            break
        if event.event in OPENINGS:
            openings[event.rank, LogEvent.CONTINUED] = event
        elif event.event == LogEvent.BUSY:
            openings[event.rank, LogEvent.BUSY] = event
        elif event.event in (LogEvent.IDLE, LogEvent.STOP):
            openings.pop((event.rank, LogEvent.BUSY), None)
    told = [Event(begin_s, event.rank, kind, event.fields) for (_, kind), event in openings.items()]
    return told + [event for event in events if event.t >= begin_s]


def _read_file(path: Path, on_bad_line: Callable[[Path, int], None] | None) -> list[Event]:
    events: list[Event] = []
    decoder = msgspec.json.Decoder(dict[str, Any])
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                events.append(_event(decoder.decode(line)))
            except (msgspec.DecodeError, KeyError, TypeError, ValueError):
                if on_bad_line is not None and line.endswith(b"\n"):
                    on_bad_line(path, number)
    return events


def _event(line: dict[str, Any]) -> Event:
    t, rank, event = float(line.pop("t")), int(line.pop("rank")), str(line.pop("event"))
    return Event(t, rank, event, line)
