"""The stimulus log: all stimuli and effects of a rank, in one file per rank.

A file's first line describes the rank's initial state (`Head`); each further line is a stimulus with its time
and effects (`Entry`), over all generations. The effects follow from the stimuli alone, so `mallob-py simulate
--replay` can check whether the same program, or a changed one, has the same effects (`simulation/replay.py`).
The head of a newcomer has all changes of its membership before its first generation. The log holds messages
and results with all their bytes, so it is for debugging only.

Beside this log, the decisions on a client's jobs are logged in a file of their own (`service/desk_log.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from io import FileIO
from itertools import islice
from pathlib import Path

import msgspec

from mallob_py import __version__
from mallob_py.protocol.config import Config
from mallob_py.protocol.generation import AnyChange, Membership
from mallob_py.protocol.node import Node
from mallob_py.protocol.rank_book import Origin
from mallob_py.protocol.rank_effects import AnyRankEffect
from mallob_py.protocol.rank_stimuli import AnyRankStimulus

SUFFIX = ".stimuli.jsonl"
_LINES_MAX = 256


class Head(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The initial state of the node of rank `rank`. `version`: the version of the program that wrote it."""

    rank: int
    origin: Origin
    config: Config
    patience_s: float
    survives: bool
    version: str
    #: for a newcomer: (time, change) of each change that its membership handled before its first generation
    joined: tuple[tuple[float, AnyChange], ...] = ()

    def node(self) -> Node:
        """Return a new node in the initial state; its first effects count as executed."""
        node = Node(
            self.rank,
            self.origin,
            self.config,
            self._membership(),
            patience_s=self.patience_s,
            survives=self.survives,
        )
        node.effects.clear()
        return node

    def _membership(self) -> Membership | None:
        """Return a newcomer's membership as of its first generation."""
        if not self.joined:
            return None
        membership = Membership(self.rank, None, self.patience_s)
        for now, change in self.joined:
            membership.handle(change, now)
        membership.take_effects()
        return membership


class Entry(msgspec.Struct, frozen=True):
    """A logged stimulus. `t`: the time given to `Node.handle`. `error`: the exception raised, if any."""

    t: float
    stimulus: AnyRankStimulus
    effects: msgspec.Raw
    error: str | None = None


_encode = msgspec.json.Encoder(enc_hook=str).encode


def encode_effects(effects: list[AnyRankEffect]) -> bytes:
    """Encode effects as an entry of the log contains them."""
    return _encode(effects)


def error_line(error: Exception) -> str:
    """Return the first line of an error's text, as an entry of the log contains it."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


class LineLog:
    """A log of lines, in one file. `complain(text)` is called once if the file cannot be written."""

    def __init__(self, path: Path, head: msgspec.Struct, complain: Callable[[str], None]) -> None:
        """Open the log. Raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._complain = complain
        self._file: FileIO | None = FileIO(path, "a")
        self._lines: list[bytes] = [_encode(head)]
        self.flush()

    def note(self, line: bytes) -> None:
        self._lines.append(line)
        if len(self._lines) >= _LINES_MAX:
            self.flush()

    def flush(self) -> None:
        """Write all lines to the file, which need not reach the disk."""
        left = memoryview(b"".join(line + b"\n" for line in self._lines))
        self._lines.clear()
        try:
            while left and self._file is not None:
                left = left[self._file.write(left) :]
        except OSError as error:
            self._complain(f"the stimuli in {self.path} end here: {error.strerror}")
            self.end()

    def end(self) -> None:
        """End the log, since a log with a gap cannot be replayed."""
        if self._file is not None:
            self._file.close()
            self._file = None


class StimulusLog(LineLog):
    """The stimulus log of one rank."""

    def __init__(
        self,
        folder: Path,
        node: Node,
        origin: Origin,
        patience_s: float,
        complain: Callable[[str], None],
        joined: tuple[tuple[float, AnyChange], ...] = (),
    ) -> None:
        """Open the log of a new node, which has handled no stimulus. Raises OSError."""
        head = Head(
            rank=node.rank,
            origin=origin,
            config=node.config,
            patience_s=patience_s,
            survives=node.survives,
            version=__version__,
            joined=joined,
        )
        self._beside: list[LineLog] = []
        super().__init__(folder / f"{node.rank}{SUFFIX}", head, complain)

    @staticmethod
    def folder_of_run(parent: str, start_unix_s: float) -> Path:
        """Return the folder in `parent` for the logs of the system started at `start_unix_s`."""
        start = time.strftime("%Y-%m-%dT%H-%M-%S", time.gmtime(start_unix_s))
        return Path(parent) / f"{start}.{int(start_unix_s * 1000) % 1000:03}Z"

    def handle(self, node: Node, stimulus: AnyRankStimulus, now: float) -> None:
        """Have the node handle a stimulus, and log its effects."""
        before = len(node.effects)
        try:
            node.handle(stimulus, now)
        except Exception as error:
            self.note(_encode(Entry(now, stimulus, _effects_since(node, before), error_line(error))))
            self.flush()
            raise
        self.note(_encode(Entry(now, stimulus, _effects_since(node, before))))

    def flush(self) -> None:
        """Write the lines of this log and of the logs beside it."""
        super().flush()
        for log in self._beside:
            log.flush()

    def open_beside(self, name: str, head: msgspec.Struct) -> LineLog | None:
        """Open a further log, which is flushed with this one; None if it cannot be opened."""
        path = self.path.with_name(name)
        try:
            self._beside.append(LineLog(path, head, self._complain))
        except OSError as error:
            self._complain(f"no stimuli in {path}: {error.strerror}")
            return None
        return self._beside[-1]


def _effects_since(node: Node, before: int) -> msgspec.Raw:
    return msgspec.Raw(encode_effects(list(islice(node.effects, before, None))))
