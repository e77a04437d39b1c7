"""The event log: what each rank did and when, as JSON lines; and how to read it back.

`<log-dir>/<rank>.jsonl`, one event a line: {"t": seconds since the service started, "rank",
"event", ...fields}. "rank" is the number of the PE that it happened at; where each rank hosts
one PE, that is the rank. The simulator writes the same, so whatever reads this reads both.

Writing stays off the hot path: `write` only appends to a list; encoding and the file are
touched by `flush`, which the event loop calls now and then and which is due by itself after
`FLUSH_EVENTS` events. Guarantee: no method raises because of the disk. When the file cannot
be written, that is said once on standard error, and later events are dropped, counted, and
the count is logged as soon as writing works again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

FLUSH_EVENTS = 512

# One flush never has to hold more than this, however long the disk stays full.
_UNWRITTEN_BYTES_MAX = 4 << 20


class Event(msgspec.Struct, frozen=True):
    """One line of a log, as read back."""

    t: float
    rank: int
    event: str
    fields: Mapping[str, Any]


class EventLog:
    """One rank's log. Without a path it takes events and forgets them."""

    def __init__(self, path: Path | None, first_pe: int, epoch_start: float) -> None:
        """`epoch_start` is when the service started, on the clock that `write` is given."""
        self._path = path
        self._first_pe = first_pe
        self._epoch_start = epoch_start
        self._events: list[dict[str, Any]] = []
        self._unwritten = b""
        self._dropped = 0
        self._complained = False
        self._encoder = msgspec.json.Encoder(enc_hook=str)
        self._file_descriptor = -1 if path is None else self._open(path)

    def write(self, now: float, event: str, fields: Mapping[str, Any], pe: int | None = None) -> None:
        """Take down an event that happened at `now`, at `pe` or at the rank as a whole: its first PE."""
        if self._file_descriptor < 0:
            return
        author = self._first_pe if pe is None else pe
        line = {"t": round(now - self._epoch_start, 6), "rank": author, "event": event}
        line.update(fields)
        self._events.append(line)
        if len(self._events) >= FLUSH_EVENTS:
            self.flush()

    def flush(self) -> None:
        """Hand everything to the operating system."""
        if self._file_descriptor < 0 or not (self._events or self._unwritten):
            return
        lines = b"".join(self._encoder.encode(event) + b"\n" for event in self._events)
        count = len(self._events)
        last_t = self._events[-1]["t"] if self._events else 0.0
        self._events = []
        pending = self._unwritten + lines
        try:
            written = os.write(self._file_descriptor, pending)
        except OSError as error:
            self._complain(error)
            self._keep(lines, count)
            return
        # A disk that fills up takes the first part of a line; the rest is kept, so no line tears.
        self._unwritten = pending[written:]
        if self._dropped:
            notice = {"t": last_t, "rank": self._first_pe, "event": "dropped", "events": self._dropped}
            self._events.append(notice)
            self._dropped = 0

    def close(self) -> None:
        """Flush and close. Later events are forgotten."""
        self.flush()
        if self._file_descriptor >= 0:
            os.close(self._file_descriptor)
            self._file_descriptor = -1

    def _open(self, path: Path) -> int:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            self._complain(error)
            return -1

    def _keep(self, lines: bytes, count: int) -> None:
        if len(self._unwritten) + len(lines) <= _UNWRITTEN_BYTES_MAX:
            self._unwritten += lines
        else:
            self._dropped += count

    def _complain(self, error: OSError) -> None:
        if self._complained:
            return
        self._complained = True
        reason = os.strerror(error.errno or 0)
        print(f"mallob-py: the event log {self._path} cannot be written: {reason}", file=sys.stderr)


def read_events(log_dir: Path, on_bad_line: Callable[[Path, int], None] | None = None) -> list[Event]:
    """All ranks' events in order of time.

    Ranks share a clock only roughly across hosts, so neighbours may be swapped by that much.
    A last line that a killed rank left unfinished is passed over; any other unreadable line
    is too, after `on_bad_line(path, line_number)`.
    """
    events: list[Event] = []
    for path in sorted(log_dir.glob("*.jsonl")):
        events.extend(_read_file(path, on_bad_line))
    events.sort(key=lambda event: event.t)
    return events


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
