"""The log of a client's machine (`desk_machine.py`): its calls, and the orders that it gives, in one file.

The first line is the machine's initial state (`DeskHead`), each further line a call, an order, or what a call
or order returned. `depth` is the depth of nesting: the orders of a call at depth 0 have depth 1; a call that
comes before such an order has returned has depth 2. The orders and the returns of calls follow from all other
lines alone, so `mallob-py simulate --replay` can check them (`simulation/replay.py`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast, get_type_hints

import msgspec

from mallob_py import __version__
from mallob_py.runtime.stimulus_log import LineLog, StimulusLog, error_line
from mallob_py.service.desk_machine import DeskMachine, DeskSetting, Hands
from mallob_py.service.jobs.job_file import JobFile
from mallob_py.service.jobs.live import LiveJob, LiveJobs

SUFFIX = ".desk.jsonl"


class DeskHead(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The initial state of a client's `DeskMachine`. `version`: the version of the program that wrote it."""

    client: int
    desk: DeskSetting
    version: str


class Call(msgspec.Struct, frozen=True, tag_field="line", tag="call"):
    """A call of the machine at time `t`."""

    depth: int
    t: float
    name: str
    args: Any


class Order(msgspec.Struct, frozen=True, tag_field="line", tag="order"):
    """An order of the machine: the name of a method of `Hands`, and its arguments."""

    depth: int
    name: str
    args: Any


class Return(msgspec.Struct, frozen=True, tag_field="line", tag="return"):
    """The value that a call or an order returned, if any, or the error that a call raised."""

    depth: int
    value: Any = None
    error: str | None = None


def _argument_types(method: Callable[..., object]) -> Any:
    hints = get_type_hints(method)
    types = (hints[name] for name in inspect.signature(method).parameters if name != "self")
    return tuple.__class_getitem__(tuple(types))


def _public(kind: type) -> dict[str, Callable[..., object]]:
    return {name: one for name, one in vars(kind).items() if inspect.isfunction(one) and name[0] != "_"}


#: the machine's calls, each with the types of its arguments
CALLS = {name: _argument_types(method) for name, method in _public(DeskMachine).items()}


def hands_by(execute: Callable[..., Any]) -> Hands:
    """Return a `Hands` that passes each order of the machine to `execute(name, *args)`."""
    return cast(Hands, SimpleNamespace(**{name: partial(execute, name) for name in _public(Hands)}))


def encoder_for(jobs: LiveJobs) -> Callable[[object], bytes]:
    """Return the encoder of a log's lines: it writes a live job's id, and all of a job to be admitted."""

    def plain(thing: object) -> Any:
        assert isinstance(thing, LiveJob), thing
        if thing.id in jobs:
            return thing.id
        unused: dict[str, Any] = {"literals": None, "configuration": {}, "submitted": {}, "warnings": ()}
        file = msgspec.structs.replace(thing.known_file, files=(), assumptions=(), **unused)
        return thing.id, file, thing.accepted_s, thing.since_s

    return msgspec.json.Encoder(enc_hook=plain).encode


def decoder_for(jobs: LiveJobs, kind: Any) -> Callable[[bytes], Any]:
    """Return the decoder of arguments of type `kind`."""

    def live(_kind: type, value: Any) -> LiveJob:
        if isinstance(value, int):
            return jobs[value]
        return LiveJob(*msgspec.convert(value, tuple[int, JobFile, float, float]))

    return msgspec.json.Decoder(kind, dec_hook=live).decode


class DeskLog:
    """The log of one client's machine; `machine` is this machine, whose calls are all logged."""

    def __init__(self, hands: Hands, setting: DeskSetting, file: LineLog) -> None:
        self.machine = DeskMachine(hands_by(self._order), setting)
        self._hands = hands
        self._file = file
        self._encode = encoder_for(self.machine.jobs)
        self._depth = 0
        for name in CALLS:
            setattr(self.machine, name, partial(self._call, name, getattr(self.machine, name)))

    def _note(self, line: Call | Order | Return) -> None:
        self._file.note(self._encode(line))

    def _noted(self, value: Any) -> Any:
        """Log the value that a call or an order returned, if any, and return the value."""
        if value is not None:
            self._note(Return(self._depth, value))
        return value

    def _call(self, name: str, method: Callable[..., Any], *args: object) -> Any:
        self._note(Call(self._depth, self._hands.now(), name, args))
        self._depth += 1
        try:
            value = method(*args)
        except Exception as error:
            self._note(Return(self._depth - 1, error=error_line(error)))
            self._file.flush()
            raise
        finally:
            self._depth -= 1
        return self._noted(value)

    def _order(self, name: str, *args: object) -> Any:
        self._note(Order(self._depth, name, args))
        self._depth += 1
        try:
            value = getattr(self._hands, name)(*args)
        except BaseException:  # the log ends: a replay could not raise such an error again
            self._file.flush()
            self._file.end()
            raise
        finally:
            self._depth -= 1
        return self._noted(value)


def logged_machine(
    hands: Hands, setting: DeskSetting, stimuli: StimulusLog, rank: int, client: int
) -> DeskMachine:
    """Return a client's new machine, logged beside the stimuli of its rank if possible."""
    head = DeskHead(client=client, desk=setting, version=__version__)
    file = stimuli.open_beside(f"{rank}.{client}{SUFFIX}", head)
    return DeskMachine(hands, setting) if file is None else DeskLog(hands, setting, file).machine
