"""Replay of a file: the logged stimuli of a real run, or a plan that random tests have shrunk.

A log of stimuli (`runtime/stimulus_log.py`) has all stimuli of one rank, in all generations. A new `Node`
with the same initial state handles them at the same times, and must have the same effects, line by line.
Otherwise the program has changed, or depends on something that is no stimulus.

A log of a client's machine (`service/desk_log.py`) is played in the same way: a new machine gets the logged
calls. Each order that it gives is compared with the next line, and the calls that the service made before the
order returned are made again.
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
from mallob_py.runtime import stimulus_log
from mallob_py.runtime.stimulus_log import Entry, Head, encode_effects, error_line
from mallob_py.service import desk_log
from mallob_py.service.desk_log import CALLS, Call, DeskHead, Order, Return
from mallob_py.service.desk_machine import DeskMachine
from mallob_py.simulation.lives import BAGS, CLUSTERS, Lives

_WIDTH_MAX = 400
_decode_head = msgspec.json.Decoder(Head).decode
_decode_entry = msgspec.json.Decoder(Entry).decode
_decode_desk_head = msgspec.json.Decoder(DeskHead).decode
_decode_desk_line = msgspec.json.Decoder(Call | Order | Return).decode
_SUFFIXES = (stimulus_log.SUFFIX, desk_log.SUFFIX)


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
    """Replay a log, a folder of logs, or a plan; return 1 if it differs or fails. Raises ReplayError."""
    try:
        if path.is_dir():
            logs = (log for suffix in _SUFFIXES for log in path.rglob(f"*{suffix}"))
            return _replay_logs(sorted(logs), path)
        with path.open("rb") as file:
            head = file.readline()  # a log has its head in one line; a plan takes many lines
        is_log = b'"config"' in head or b'"desk"' in head
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
    """Return a plan and its kind. Raises OSError; ReplayError if the file is no plan."""
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
    """Replay a log; return its first difference or its count of stimuli. Raises OSError, ReplayError."""
    with path.open("rb") as file:
        lines = _whole_lines(file, path)
        first = next(lines, b"")
        try:
            head = _decode_desk_head(first) if b'"desk"' in first else _decode_head(first)
        except msgspec.DecodeError as error:
            raise ReplayError(f"{path}:1: no head of a log of stimuli: {error}") from None
        if head.version != __version__:
            print(f"{path} was written by version {head.version}, this is {__version__}", file=sys.stderr)
        if isinstance(head, DeskHead):
            return _DeskReplay(path, head, lines).play()
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
    return f"{about} the effects are equal, but encoded otherwise"


class _LogEnds(BaseException):
    """A log ends within a call: its rank was killed, or the service failed."""


class _Differs(Exception):
    """The machine does something else than the log says."""


class _DeskReplay:
    """The replay of a desk's log."""

    def __init__(self, path: Path, head: DeskHead, lines: Iterator[bytes]) -> None:
        self._path = path
        self._lines = lines
        self._machine = DeskMachine(desk_log.hands_by(self._check_order), head.desk)
        jobs = self._machine.jobs
        self._encode = desk_log.encoder_for(jobs)
        self._decode = {name: desk_log.decoder_for(jobs, kind) for name, kind in CALLS.items()}
        #: depth of nesting of the next call or order
        self._depth = 0
        self._calls = 0
        self._call: Call | None = None
        self._number = 1
        self._go_on()

    def _go_on(self) -> None:
        """Read the next line of the log, if there is one."""
        self._number += 1
        self._text = next(self._lines, b"").rstrip()
        try:
            self._line = _decode_desk_line(self._text) if self._text else None
        except msgspec.DecodeError as error:
            raise ReplayError(f"{self._path}:{self._number}: {error}") from None

    def play(self) -> Difference | int:
        """Replay the whole log; return its first difference or its count of calls. Raises ReplayError."""
        try:
            self._play_calls()
            if self._line is not None:
                raise _Differs("nothing follows")
        except _LogEnds:
            pass
        except _Differs as difference:
            now, call = difference, self._call
            after = "at the beginning" if call is None else f"at {call.t:.6f} s, after {_short(call)}"
            text = f"{after}: {now}; in the log {_short(self._line)}"
            return Difference(self._path, self._number, text)
        return self._calls

    def _play_calls(self) -> None:
        """Replay the calls that follow at the present depth."""
        depth = self._depth
        while isinstance(call := self._line, Call) and call.depth == depth:
            self._call = call
            self._calls += 1
            try:
                args = self._decode[call.name](msgspec.json.encode(call.args))
            except (LookupError, msgspec.DecodeError) as error:
                raise ReplayError(f"{self._path}:{self._number}: {call.name}: {error}") from None
            self._go_on()
            self._depth, back = depth + 1, Return(depth)
            try:
                back = Return(depth, getattr(self._machine, call.name)(*args))
            except (_Differs, ReplayError):
                raise
            except Exception as error:
                back = Return(depth, error=error_line(error))
            self._depth = depth
            if back != Return(depth):
                self._expect(back)

    def _check_order(self, name: str, *args: object) -> Any:
        """Compare an order with the log; make the calls logged within it, and return its logged value."""
        depth = self._depth
        self._expect(Order(depth, name, args))
        self._depth = depth + 1
        self._play_calls()
        self._depth = depth
        if isinstance(back := self._line, Return) and back.depth == depth:
            self._go_on()
            return back.value
        return None

    def _expect(self, line: Order | Return) -> None:
        """Compare `line`, what the machine does now, with the log's next line."""
        if self._line is None:
            raise _LogEnds
        text = self._encode(line)
        if text != self._text:
            raise _Differs(f"{_short(_decode_desk_line(text))}")
        self._go_on()


def _short(thing: object) -> str:
    text = str(thing)
    return text if len(text) <= _WIDTH_MAX else text[: _WIDTH_MAX - 3] + "..."
