"""The answers of an engine to a script, and their validity.

An engine is asked part by part, in a process of its own, and the output of each part is kept separately. So
the output of each check is known, and each error is assigned to its command:

- After an error in a declaration or an assertion, the engine has not read the whole script, and all its
  further output is void (Z3 for example continues without the assertion).
- A request that no engine could answer, such as `get-value` after `unsat`, gets an error from this module.
- After an error in any other request, the transcript is valid, but flawed: other engines may have an answer.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterator

import msgspec

from mallob_smt.commands import Kind
from mallob_smt.confinement import confine, deepen_stack
from mallob_smt.engines import Strategy
from mallob_smt.script import Part, Script
from mallob_smt.sessions import EngineError, Session, open_session

#: greatest number of bytes that an engine may print for one script
TRANSCRIPT_BYTES_MAX = 64 << 20
#: output of a check; cvc5 adds why the answer is unknown: `unknown (INCOMPLETE)`
_CHECKED = re.compile(r"\s*(sat|unsat|unknown)(?: \(\w+\))?\s*")
_COMPLAINT = re.compile(r"\s*(\(error|unsupported)")
_SIZE = struct.Struct("<Q")
_READ_BYTES = 1 << 16
_REASON_MAX = 300


class Checked(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The answer to the next check."""

    word: str


class Completed(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The end of the script: all parts are answered."""

    transcript: str
    #: number of the script's requests that this engine did not answer, but another engine perhaps can
    flaws: int
    reason_unknown: str


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The failure of an engine. `reason` is one line."""

    reason: str


class Printed(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """The output of an engine since the last `Printed`, sent when a later check begins."""

    text: str


Saying = Checked | Completed | Failed | Printed
_DECODER: msgspec.msgpack.Decoder[Saying] = msgspec.msgpack.Decoder(Saying)


class SayingReader:
    """Decoder of the messages of an engine's process."""

    def __init__(self) -> None:
        self._received = bytearray()

    def read(self, descriptor: int) -> list[Saying] | None:
        """Read once and return the messages that are complete; None: the process has closed the pipe."""
        data = os.read(descriptor, _READ_BYTES)
        if not data:
            return None
        self._received += data
        return list(self._complete())

    def _complete(self) -> Iterator[Saying]:
        while len(self._received) >= _SIZE.size:
            (size,) = _SIZE.unpack_from(self._received)
            if len(self._received) < _SIZE.size + size:
                return
            yield _DECODER.decode(self._received[_SIZE.size : _SIZE.size + size])
            del self._received[: _SIZE.size + size]


def say(descriptor: int, saying: Saying) -> None:
    """Write a message to a pipe that a `SayingReader` reads."""
    data = msgspec.msgpack.encode(saying)
    left = memoryview(_SIZE.pack(len(data)) + data)
    while left:
        left = left[os.write(descriptor, left) :]


def be_engine(script: Script, strategy: Strategy, descriptor: int) -> None:
    """Answer the script in this process, which becomes the engine's, and write messages to a pipe."""
    deepen_stack()

    def tell(saying: Saying) -> None:
        say(descriptor, saying)

    facts = script.facts
    try:
        session = open_session(strategy, facts.needs, facts.is_incremental)
        confine(TRANSCRIPT_BYTES_MAX if strategy.engine == "bitwuzla" else 0)
        tell(answer(script, session, tell))
    except EngineError as error:
        reason = one_line(str(error))
        tell(Failed("out of memory" if reason == "std::bad_alloc" else reason))
    except MemoryError:
        tell(Failed("out of memory"))


def answer(script: Script, session: Session, tell: Callable[[Saying], None]) -> Completed:
    """Let the engine answer all parts. Raises EngineError."""
    return _Dialogue(script, session, tell).hold()


def one_line(text: str) -> str:
    """Return an engine's text as one line, shortened if it is long."""
    line = " ".join(text.split())
    found = re.fullmatch(r'\(error "(.*?)"\).*', line)
    line = line if found is None else found.group(1)
    return line if len(line) <= _REASON_MAX else line[:_REASON_MAX] + "..."


class _Dialogue:
    def __init__(self, script: Script, session: Session, tell: Callable[[Saying], None]) -> None:
        self._script = script
        self._session = session
        self._tell = tell
        self._printed: list[str] = []
        self._size = 0
        #: number of pieces of `_printed` that have been sent
        self._told = 0
        self._flaws = 0
        #: answer to the last check; empty if something was asserted since
        self._word = ""
        self._has_checked = False
        self._reason_unknown = ""

    def hold(self) -> Completed:
        for number, part in enumerate(self._script.parts()):
            self._print("success\n" * part.successes)
            self._print(self._answer(number, part))
        return Completed("".join(self._printed), self._flaws, self._reason_unknown)

    def _print(self, text: str) -> None:
        if text and not text.endswith("\n"):
            text += "\n"
        self._size += len(text)
        if self._size > TRANSCRIPT_BYTES_MAX:
            raise EngineError(f"the engine printed more than {TRANSCRIPT_BYTES_MAX >> 20} MB")
        self._printed.append(text)

    def _answer(self, number: int, part: Part) -> str:
        match part.kind:
            case Kind.OURS:
                return self._script.facts.replies[number]
            case Kind.CHECK:
                return self._check(part)
            case Kind.MODEL if self._word not in ("sat", "unknown"):
                return self._refuse(part, "sat")
            case Kind.CORE if self._word != "unsat":
                return self._refuse(part, "unsat")
            case Kind.MODEL | Kind.CORE | Kind.SPEAKS:
                return self._request(part)
        if part.kind is not Kind.SILENT:
            self._word = ""
        if printed := self._ask(part).strip():
            raise EngineError(one_line(printed))
        return ""

    def _ask(self, part: Part) -> str:
        text = self._script.text_of(part).decode()
        return self._session.answer(text) if text and not text.isspace() else ""

    def _check(self, part: Part) -> str:
        self._tell_printed()
        printed = self._ask(part)
        if (found := _CHECKED.fullmatch(printed)) is None:
            raise EngineError(one_line(printed) or "no answer to a check")
        self._word = word = found.group(1)
        self._has_checked = True
        self._tell(Checked(word))
        if word == "unknown":
            self._reason_unknown = self._reason()
        return word

    def _tell_printed(self) -> None:
        """Send the output of the checks so far, because the next check may never end."""
        if self._has_checked and self._told < len(self._printed):
            self._tell(Printed("".join(self._printed[self._told :])))
            self._told = len(self._printed)

    def _reason(self) -> str:
        """Return the engine's reason for `unknown`; empty if it prints none."""
        try:
            printed = self._session.reason_unknown()
        except EngineError:
            return ""
        found = re.match(r'\s*\(:reason-unknown "?(.*?)"?\)\s*$', printed, re.DOTALL)
        return "" if found is None else one_line(found.group(1))

    def _request(self, part: Part) -> str:
        printed = self._ask(part)
        if not printed.strip():
            self._flaws += 1
            return f'(error "line {part.line}: no answer")'
        self._flaws += _COMPLAINT.match(printed) is not None
        return printed

    def _refuse(self, part: Part, wanted: str) -> str:
        name = re.split(r"[()\s]+", self._script.text_of(part).decode().lstrip(), maxsplit=2)[1]
        last = f"the last check said {self._word}" if self._word else "there is none"
        return f'(error "line {part.line}: {name} needs a check before it that says {wanted}; {last}")'
