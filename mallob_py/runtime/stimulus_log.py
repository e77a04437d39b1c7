"""Everything that the PEs of a rank were told, and what they wanted done, in one file for each PE.

The first line of a file says which PE it is of (`Head`), each further one is a stimulus with its time and its
effects (`Entry`). What a PE does follows from these alone, so `mallob-py simulate --replay` finds out whether
the same program, or a changed one, comes to the same effects (`simulation/replay.py`).

Messages between workers and results are in it with all their bytes: it is for finding a fault, not for
every day.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from io import FileIO
from itertools import islice
from pathlib import Path

import msgspec

from mallob_py import __version__
from mallob_py.protocol.config import Config
from mallob_py.protocol.effects import AnyEffect
from mallob_py.protocol.pe import PE
from mallob_py.protocol.stimuli import AnyStimulus

SUFFIX = ".stimuli.jsonl"
_LINES_MAX = 256


class Head(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """PE `pe` of `pes`, with these settings, of a system that this version ran."""

    pe: int
    pes: int
    config: Config
    version: str


class Entry(msgspec.Struct, frozen=True):
    """`t`: as it was given to `PE.handle`. `error`: what the PE raised, in one line."""

    t: float
    stimulus: AnyStimulus
    effects: msgspec.Raw
    error: str | None = None


_encode = msgspec.json.Encoder(enc_hook=str).encode


def encode_effects(effects: list[AnyEffect]) -> bytes:
    """As in an entry."""
    return _encode(effects)


def error_line(error: Exception) -> str:
    """As in an entry: what follows the first line is a story of what was before."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


class StimulusLog:
    """The files of one run. `complain(text)` is called once if they cannot be written any more."""

    def __init__(
        self, folder: Path, pes: Iterable[int], size: int, config: Config, complain: Callable[[str], None]
    ) -> None:
        """Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._complain = complain
        self._files: dict[int, FileIO] = {}
        self._lines: dict[int, list[bytes]] = {}
        for pe in pes:
            self._files[pe] = FileIO(folder / f"{pe}{SUFFIX}", "a")
            self._lines[pe] = [_encode(Head(pe=pe, pes=size, config=config, version=__version__))]
        self.flush()

    @staticmethod
    def folder_of_run(parent: str, start_unix_s: float) -> Path:
        """Of a system that started then: each start has a folder of its own."""
        start = time.strftime("%Y-%m-%dT%H-%M-%S", time.gmtime(start_unix_s))
        return Path(parent) / f"{start}.{int(start_unix_s * 1000) % 1000:03}Z"

    def handle(self, pe: PE, stimulus: AnyStimulus, now: float) -> None:
        """Have the PE handle it, and note what it wants done."""
        before = len(pe.effects)
        try:
            pe.handle(stimulus, now)
        except Exception as error:
            self._note(pe, Entry(now, stimulus, _effects_since(pe, before), error_line(error)))
            self.flush()
            raise
        self._note(pe, Entry(now, stimulus, _effects_since(pe, before)))

    def _note(self, pe: PE, entry: Entry) -> None:
        lines = self._lines[pe.rank]
        lines.append(_encode(entry))
        if len(lines) >= _LINES_MAX:
            self.flush()

    def flush(self) -> None:
        """Hand everything to the operating system."""
        for pe, lines in self._lines.items():
            left = memoryview(b"".join(line + b"\n" for line in lines))
            lines.clear()
            try:
                while left and pe in self._files:
                    left = left[self._files[pe].write(left) :]
            except OSError as error:
                self._complain(f"the stimuli in {self._folder} end here: {error.strerror}")
                self._give_up()

    def _give_up(self) -> None:
        """A log with a gap cannot be played again."""
        for file in self._files.values():
            file.close()
        self._files.clear()


def _effects_since(pe: PE, before: int) -> msgspec.Raw:
    return msgspec.Raw(encode_effects(list(islice(pe.effects, before, None))))
