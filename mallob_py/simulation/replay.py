"""Replay of a file: the logged stimuli of a real run, or a plan that random tests have shrunk.

A log of stimuli (`runtime/stimulus_log.py`) has all stimuli of one rank, in all generations. A new `Node`
with the same beginning handles them at the same times, and must have the same effects, line by line.
Otherwise the program has changed, or depends on something that is no stimulus.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec

from mallob_py import __version__
from mallob_py.protocol.node import Node
from mallob_py.runtime.stimulus_log import SUFFIX, Entry, Head, encode_effects, error_line
from mallob_py.simulation.lives import BAGS, CLUSTERS, Lives

_WIDTH_MAX = 400
_decode_head = msgspec.json.Decoder(Head).decode
_decode_entry = msgspec.json.Decoder(Entry).decode


class ReplayError(Exception):
    """A file cannot be played; the message names file, line and reason."""


class Difference(msgspec.Struct, frozen=True):
    """The first line of a log whose effects differ in the replay."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def replay(path: Path) -> int:
    """Play a log, a folder of logs, or a plan, and report; 1: it differs or fails. Raises ReplayError."""
    try:
        if path.is_dir():
            return _replay_logs(sorted(path.rglob(f"*{SUFFIX}")), path)
        with path.open("rb") as file:
            is_log = b'"config"' in file.readline()  # a plan takes many lines
        return _replay_logs([path], path) if is_log else _replay_plan(path)
    except OSError as error:
        raise ReplayError(f"{error.filename or path}: {error.strerror}") from None


def _replay_plan(path: Path) -> int:
    lives, plan = _plan_in(path)
    print(lives.schedule_of(plan))
    failure = lives.failure_of(plan)
    if failure is not None:
        print(failure.text)
    return 0 if failure is None else 1


def _plan_in(path: Path) -> tuple[Lives[Any], Any]:
    """Return a plan and its kind of lives. Raises OSError; ReplayError if the file is no plan."""
    text, reasons = path.read_bytes(), []
    for lives in (CLUSTERS, BAGS):
        try:
            return lives, lives.from_json(text)
        except msgspec.DecodeError as error:
            reasons.append(error)
    raise ReplayError(f"{path} holds no plan and no stimuli that could be replayed: {reasons[0]}")


def _replay_logs(paths: list[Path], given: Path) -> int:
    if not paths:
        raise ReplayError(f"{given} holds no stimuli (what --log-stimuli is for)")
    differences = 0
    for path in paths:
        found = replay_log(path)
        if isinstance(found, Difference):
            differences += 1
            print(found)
        else:
            print(f"{path}: {found} stimuli, the same effects")
    return 1 if differences else 0


def replay_log(path: Path) -> Difference | int:
    """Play a rank's log; return its first difference or its count of stimuli. Raises OSError, ReplayError."""
    with path.open("rb") as file:
        lines = _whole_lines(file, path)
        try:
            head = _decode_head(next(lines, b""))
        except msgspec.DecodeError as error:
            raise ReplayError(f"{path}:1: no head of a log of stimuli: {error}") from None
        if head.version != __version__:
            print(f"{path} was written by version {head.version}, this is {__version__}", file=sys.stderr)
        if not (head.joined or 0 <= head.rank < len(head.origin.founders)):
            raise ReplayError(f"{path}:1: there is no rank {head.rank} of {len(head.origin.founders)}")
        node = head.node()
        number = 1
        for number, line in enumerate(lines, 2):
            try:
                entry = _decode_entry(line)
            except msgspec.DecodeError as error:
                raise ReplayError(f"{path}:{number}: {error}") from None
            if (text := _difference(node, entry)) is not None:
                return Difference(path, number, text)
    return number - 1


def _whole_lines(file: Any, path: Path) -> Iterator[bytes]:
    """Yield all lines, except an incomplete last one of a killed run."""
    for line in file:
        if line.endswith(b"\n"):
            yield line
        else:
            print(f"{path}: its last line is not complete and is left out", file=sys.stderr)


def _difference(node: Node, entry: Entry) -> str | None:
    """Have the node handle a stimulus; return the difference from the logged effects, if there is one."""
    raised: str | None = None
    try:
        node.handle(entry.stimulus, entry.t)
    except Exception as error:
        raised = error_line(error)
    effects = encode_effects(node.take_effects())
    if raised == entry.error and effects == bytes(entry.effects):
        return None
    about = f"at {entry.t:.6f} s, after {_short(entry.stimulus)}:"
    if raised != entry.error:
        return f"{about} {raised or 'nothing is raised'}; in the log {entry.error or 'nothing is'}"
    now, then = msgspec.json.decode(effects), msgspec.json.decode(entry.effects)
    for place, (one, other) in enumerate(zip_longest(now, then)):
        if one != other:
            is_now, was = _short(one or "missing"), _short(other or "missing")
            return f"{about} effect {place} is {is_now}; in the log {was}"
    return f"{about} the effects are the same in other words"


def _short(thing: object) -> str:
    text = str(thing)
    return text if len(text) <= _WIDTH_MAX else text[: _WIDTH_MAX - 3] + "..."
