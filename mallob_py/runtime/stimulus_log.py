"""Everything that a rank was told, and what it wanted done, in one file for each rank.

The first line of a file says which rank it is, and how it began (`Head`), each further one is a stimulus with
its time and its effects (`Entry`), in all generations. What a rank does follows from these alone, so
`mallob-py simulate --replay` finds out whether the same program, or a changed one, comes to the same effects
(`simulation/replay.py`). The head of a rank that has joined has what its membership was told until then.

Messages between workers and results are in it with all their bytes: it is for finding a fault, not for
every day.
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
    """The node `rank`, made as `node` does, of a system that this version ran."""

    rank: int
    origin: Origin
    config: Config
    patience_s: float
    survives: bool
    version: str
    #: of a rank that has joined: what its membership was told up to its first generation, each with its time
    joined: tuple[tuple[float, AnyChange], ...] = ()

    def node(self) -> Node:
        """Another one, as it was in the beginning. Its first effects have been executed."""
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
        """That of a rank that has joined, as of its first generation."""
        if not self.joined:
            return None
        membership = Membership(self.rank, None, self.patience_s)
        for now, change in self.joined:
            membership.handle(change, now)
        membership.take_effects()
        return membership


class Entry(msgspec.Struct, frozen=True):
    """`t`: as it was given to `Node.handle`. `error`: what the node raised, in one line."""

    t: float
    stimulus: AnyRankStimulus
    effects: msgspec.Raw
    error: str | None = None


_encode = msgspec.json.Encoder(enc_hook=str).encode


def encode_effects(effects: list[AnyRankEffect]) -> bytes:
    """As in an entry."""
    return _encode(effects)


def error_line(error: Exception) -> str:
    """As in an entry: what follows the first line is a story of what was before."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


class StimulusLog:
    """The file of one rank. `complain(text)` is called once if it cannot be written any more."""

    def __init__(
        self,
        folder: Path,
        node: Node,
        origin: Origin,
        patience_s: float,
        complain: Callable[[str], None],
        joined: tuple[tuple[float, AnyChange], ...] = (),
    ) -> None:
        """Open the log of a node that has been told nothing yet, and so was made. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._complain = complain
        self._file: FileIO | None = FileIO(folder / f"{node.rank}{SUFFIX}", "a")
        head = Head(
            rank=node.rank,
            origin=origin,
            config=node.config,
            patience_s=patience_s,
            survives=node.survives,
            version=__version__,
            joined=joined,
        )
        self._lines: list[bytes] = [_encode(head)]
        self.flush()

    @staticmethod
    def folder_of_run(parent: str, start_unix_s: float) -> Path:
        """The folder of a system that started then: each start has a folder of its own."""
        start = time.strftime("%Y-%m-%dT%H-%M-%S", time.gmtime(start_unix_s))
        return Path(parent) / f"{start}.{int(start_unix_s * 1000) % 1000:03}Z"

    def handle(self, node: Node, stimulus: AnyRankStimulus, now: float) -> None:
        """Have the node handle it, and note what it wants done."""
        before = len(node.effects)
        try:
            node.handle(stimulus, now)
        except Exception as error:
            self._note(Entry(now, stimulus, _effects_since(node, before), error_line(error)))
            self.flush()
            raise
        self._note(Entry(now, stimulus, _effects_since(node, before)))

    def _note(self, entry: Entry) -> None:
        self._lines.append(_encode(entry))
        if len(self._lines) >= _LINES_MAX:
            self.flush()

    def flush(self) -> None:
        """Hand everything to the operating system."""
        left = memoryview(b"".join(line + b"\n" for line in self._lines))
        self._lines.clear()
        try:
            while left and self._file is not None:
                left = left[self._file.write(left) :]
        except OSError as error:
            self._complain(f"the stimuli in {self._folder} end here: {error.strerror}")
            self._give_up()

    def _give_up(self) -> None:
        """A log with a gap cannot be played again."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _effects_since(node: Node, before: int) -> msgspec.Raw:
    return msgspec.Raw(encode_effects(list(islice(node.effects, before, None))))
