"""A script in SMT-LIB 2: its commands, checked and divided into parts that are answered one by one.

A part is one command with output (`check-sat`, `get-value`, ...), or all silent commands between two such
commands (`declare-fun`, `assert`, ...); so each output of an engine belongs to one part. Parts are found
without recursion and mostly without a loop over characters, because one term may have 100 MB.

Before an engine gets the script, commands that `commands` does not list are refused. Infos and options other
than PASSED_OPTIONS are removed: `print-success` is implemented in this module, and the answer to unknown
options is `unsupported`, as in the standard. `echo` is answered in this module, because engines differ.
Removed text, including comments, is replaced by spaces, so that lines and columns stay.

A script may have any encoding that extends ASCII: if it is not UTF-8, each byte is a letter of Latin-1. In
strings, letters outside of ASCII are written as in the standard, `\\u{e9}`.

Guarantees: parentheses are balanced, strings and quoted symbols are closed, the text is UTF-8 without NUL and
ends with `exit`; an InputError names file and line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from mallob_py.kit import InputError, Payload
from mallob_smt.commands import (
    CHANNELS,
    COMMANDS,
    NEEDS,
    PASSED_OPTIONS,
    PRINT_SUCCESS,
    SWALLOWED_OPTIONS,
    Kind,
)

_BLOCK_BYTES = 1 << 22
_OPEN, _CLOSE = ord("("), ord(")")
#: string literals (a doubled quote ends one and begins the next), quoted symbols, comments
_OPAQUE = re.compile(rb'"[^"]*"|\|[^|]*\||;[^\r\n]*')
#: in a text without comments: `echo` with its strings (which stay unchanged), strings, quoted symbols
_LETTERS = re.compile(rb'\(\s*echo\s*(?:"[^"]*")+|"[^"]*"|\|[^|]*\|')
_OTHER_LETTERS = re.compile(r"[^\x00-\x7f]")
_EXIT = re.compile(rb"\(\s*exit\s*\)")
_ECHO = re.compile(rb'\(\s*echo\s*((?:"[^"]*")+)\s*\)')
_UNCLOSED = re.compile(rb'["|]')
_HEAD = re.compile(rb"\(\s*([^\s()]*)")
_OPTION = re.compile(rb"\(\s*[gs]et-option\s+:([^\s()]+)\s*(.*?)\s*\)\Z", re.DOTALL)
_LOGIC = re.compile(rb"\(\s*set-logic\s+([^\s()]+)")
#: values of options that are passed on
_PLAIN_VALUE = re.compile(rb"true|false|\d+(\.\d+)?")
_BITS = re.compile(rb"BitVec|FloatingPoint|RoundingMode|Float(16|32|64|128)")
_NUMBERS = re.compile(rb"\b(Int|Real|String|Seq|Set|RegLan)\b|declare-datatype")
_QUANTIFIERS = re.compile(rb"\(\s*(forall|exists)\b")
_STRINGS = re.compile(rb"\b(String|RegLan|Seq|Set|Bag)\b")
_SHOWN = 60


class Part(NamedTuple):
    """A command with output, or several silent commands; `kind` is the largest kind of its commands."""

    begin: int
    end: int
    kind: Kind
    #: line on which the part begins, from 1 on
    line: int
    #: number of `success` lines to print
    successes: int


class Facts(msgspec.Struct, frozen=True):
    """What is known of a script before it runs."""

    logic: str = ""
    has_bits: bool = False
    has_numbers: bool = False
    has_quantifiers: bool = False
    has_strings: bool = False
    #: whether an engine must be able to continue after a check
    is_incremental: bool = False
    checks: int = 0
    #: options that commands of the script need
    needs: tuple[str, ...] = ()
    #: index of a part -> answer that is given without an engine
    replies: dict[int, str] = {}


@dataclass(frozen=True)
class Script:
    """A script in the form for engines. `table`: a row per part, with the fields of `Part` except `begin`."""

    text: NDArray[np.uint8]
    table: NDArray[np.int64]
    facts: Facts

    @classmethod
    def from_payload(cls, payload: Payload) -> Script:
        """Return the script of which `to_payload` made the payload, without copying the text."""
        facts = msgspec.json.decode(payload["facts"].tobytes(), type=Facts)
        return cls(payload["text"], payload["parts"], facts)

    def to_payload(self) -> Payload:
        facts = np.frombuffer(msgspec.json.encode(self.facts), dtype=np.uint8)
        return {"text": self.text, "parts": self.table, "facts": facts}

    def parts(self) -> Iterator[Part]:
        begin = 0
        for end, kind, line, successes in self.table.tolist():
            yield Part(begin, end, Kind(kind), line, successes)
            begin = end

    def text_of(self, part: Part) -> bytes:
        return self.text[part.begin : part.end].tobytes()


def script_from_text(text: bytes, name: str) -> Script:
    """Check a script and divide it into parts. Raises InputError, which calls the script `name`."""
    return _Cutter(text, name).cut()


@dataclass(slots=True)
class _Cutter:
    text: bytes
    name: str
    #: the text, with spaces in place of strings, quoted symbols and comments
    masked: bytearray = field(init=False)
    #: the text for engines
    given: bytearray = field(init=False)
    rows: list[tuple[int, int, int, int]] = field(default_factory=list)
    needs: dict[str, None] = field(default_factory=dict)
    replies: dict[int, str] = field(default_factory=dict)
    prints_success: bool = False
    #: silent commands since the last part: their largest kind, the line of the first one, and the number of
    #: `success` lines
    silent: Kind | None = None
    silent_line: int = 0
    successes: int = 0
    #: offset up to which newlines are counted
    counted: int = 0
    line: int = 1
    checks: int = 0
    is_incremental: bool = False

    def cut(self) -> Script:
        self._mask()
        self._end_at_exit()
        self._check_form()
        if not self.text.isascii():
            self._write_in_unicode()
        end = 0
        for begin, behind in self._commands():
            self._check_gap(end, begin)
            end = behind
            if not self._take(begin, behind):
                break
        else:
            self._check_gap(end, len(self.text))
        self._close_silent(end)
        end = self.rows[-1][0] if self.rows else 0
        text = np.frombuffer(bytes(self.given[:end]), dtype=np.uint8)
        return Script(text, np.array(self.rows, dtype=np.int64).reshape(-1, 4), self._facts())

    # --- the form of the text ---------------------------------------------------------------

    def _mask(self) -> None:
        self.given, self.masked = bytearray(self.text), bytearray(self.text)
        for found in _OPAQUE.finditer(self.text):
            begin, end = found.span()
            if self.text[begin] == ord(";"):
                self.given[begin:end] = self.masked[begin:end] = b" " * (end - begin)
            else:
                self.masked[begin:end] = b"x" * (end - begin)

    def _end_at_exit(self) -> None:
        """Remove the text after the first `exit` command; it need not be valid."""
        counted = depth = 0
        for found in _EXIT.finditer(self.masked):
            depth += self.masked.count(b"(", counted, found.start())
            depth -= self.masked.count(b")", counted, found.start())
            counted = found.start()
            if depth == 0:
                end = found.end()
                self.text, self.given, self.masked = self.text[:end], self.given[:end], self.masked[:end]
                return

    def _check_form(self) -> None:
        if (at := self.text.find(b"\0")) >= 0:
            raise self._error(at, "the text contains a NUL byte; it is not an SMT-LIB script")
        if (unclosed := _UNCLOSED.search(self.masked)) is not None:
            what = "string" if unclosed.group() == b'"' else "quoted symbol"
            raise self._error(unclosed.start(), f"the {what} that begins here is never closed")
        if b"#|" in self.text or b"\\|" in self.text:
            self._check_symbols()

    def _check_symbols(self) -> None:
        """Refuse quoted symbols behind which an engine would find commands that this module has not seen.

        For Z3, `#|` begins a comment; for older releases of Z3, a bar after a backslash ends no symbol.
        """
        for found in _OPAQUE.finditer(self.text):
            begin, end = found.span()
            if self.text[begin] != ord("|"):
                continue
            if self.text[begin - 1 : begin] == b"#":
                raise self._error(begin - 1, "'#|' has no meaning in SMT-LIB; comments begin with ';'")
            if self.text[end - 2] == ord("\\"):
                raise self._error(begin, "the quoted symbol that begins here ends with a backslash")

    def _write_in_unicode(self) -> None:
        """Remove comments, convert the text to UTF-8, and write its strings in ASCII."""
        text = bytes(self.given)
        try:
            text.decode()
        except UnicodeDecodeError:
            text = text.decode("latin-1").encode()
        self.text = _LETTERS.sub(_in_ascii, text)
        self._mask()

    def _commands(self) -> Iterator[tuple[int, int]]:
        """Yield the begin and the end of each command."""
        letters = np.frombuffer(self.masked, dtype=np.uint8)
        depth, begin = 0, -1
        for first in range(0, letters.size, _BLOCK_BYTES):
            block = letters[first : first + _BLOCK_BYTES]
            places = np.flatnonzero((block == _OPEN) | (block == _CLOSE))
            opens = block[places] == _OPEN
            depths = np.cumsum(np.where(opens, 1, -1)) + depth
            if depths.size:
                depth = int(depths[-1])
            too_many = np.flatnonzero(depths < 0)
            last = int(too_many[0]) if too_many.size else depths.size
            edges = np.flatnonzero(np.where(opens, depths == 1, depths == 0)[:last])
            for place, is_open in zip((places[edges] + first).tolist(), opens[edges].tolist(), strict=True):
                if is_open:
                    begin = place
                else:
                    yield begin, place + 1
            if too_many.size:
                place = int(places[too_many[0]]) + first
                raise self._error(place, "a ')' without its '('")
        if depth > 0:
            raise self._error(begin, f"the command that begins here is never closed: {depth} more ')' needed")

    def _check_gap(self, begin: int, end: int) -> None:
        if junk := self.masked[begin:end].strip():
            at = self.masked.find(junk[:1], begin)
            shown = self.text[at : at + _SHOWN].split()[0].decode(errors="replace")
            raise self._error(at, f"{shown!r} stands outside of any command")

    # --- one command ------------------------------------------------------------------------

    def _take(self, begin: int, end: int) -> bool:
        """Process a command; return False if it ends the script."""
        head = _HEAD.match(self.masked, begin, end)
        name = head.group(1).decode() if head is not None else ""
        kind = COMMANDS.get(name)
        if kind is None:
            raise self._error(begin, f"the command {name[:_SHOWN]!r} {_REFUSED.get(name, _UNKNOWN)}")
        if option := NEEDS.get(name):
            self.needs[option] = None
        if kind is Kind.OURS:
            return self._do(name, begin, end)
        if kind in (Kind.SILENT, Kind.ASSERTS):
            self.is_incremental |= name in ("push", "pop", "reset-assertions")
            self._add_silent(kind, begin)
        elif name == "get-option":
            self._get_option(begin, end)
        else:
            self.checks += kind is Kind.CHECK
            self.is_incremental |= name == "check-sat-assuming"
            self._close(begin, end, kind)
            if kind is Kind.RESET:
                self.prints_success = False
        return True

    def _do(self, name: str, begin: int, end: int) -> bool:
        """Execute a command of kind OURS, and hide it from engines; return False if it ends the script."""
        if name == "set-option":
            self._set_option(begin, end)
            return True
        if name == "echo":
            self._echo(begin, end)
            return True
        self._blank(begin, end)
        self._add_silent(Kind.SILENT, begin)
        return name != "exit"

    def _echo(self, begin: int, end: int) -> None:
        found = _ECHO.fullmatch(self.given, begin, end)
        if found is None:
            raise self._error(begin, 'echo needs one string, such as (echo "done")')
        text = found.group(1).decode()
        self._blank(begin, end)
        self._reply(begin, end, text)

    def _set_option(self, begin: int, end: int) -> None:
        found = _OPTION.match(self.given[begin:end])
        if found is None:
            raise self._error(begin, "set-option needs a keyword, such as :produce-models, and a value")
        option, value = found.group(1).decode(), found.group(2)
        if option in PASSED_OPTIONS:
            if _PLAIN_VALUE.fullmatch(value) is None:
                shown = value[:_SHOWN].decode(errors="replace")
                raise self._error(begin, f":{option} is {shown!r}; it must be true, false or a number")
            self._add_silent(Kind.SILENT, begin)
            return
        self._blank(begin, end)
        if option in CHANNELS and value.strip(b'"') not in (b"stdout", b"stderr"):
            raise self._error(
                begin, f":{option} names a file, but a job's engines write no files; remove this command"
            )
        if option == PRINT_SUCCESS:
            self.prints_success = value == b"true"
        if option in CHANNELS or option in SWALLOWED_OPTIONS or option == PRINT_SUCCESS:
            self._add_silent(Kind.SILENT, begin)
        else:
            self._reply(begin, end, "unsupported")

    def _get_option(self, begin: int, end: int) -> None:
        found = _OPTION.match(self.given[begin:end])
        option = found.group(1).decode() if found is not None else ""
        if option in PASSED_OPTIONS:
            self._close(begin, end, Kind.SPEAKS)
            return
        self._blank(begin, end)
        known = {name: f'"{channel}"' for name, channel in CHANNELS.items()}
        known[PRINT_SUCCESS] = str(self.prints_success).lower()
        self._reply(begin, end, known.get(option, "unsupported"))

    def _reply(self, begin: int, end: int, text: str) -> None:
        self._close(begin, end, Kind.OURS)
        self.replies[len(self.rows) - 1] = text

    def _add_silent(self, kind: Kind, begin: int) -> None:
        if self.silent is None:
            self.silent_line = self._line_of(begin)
        self.silent = kind if self.silent is None else max(self.silent, kind)
        self.successes += self.prints_success

    def _close_silent(self, end: int) -> None:
        if self.silent is not None:
            self.rows.append((end, self.silent, self.silent_line, self.successes))
        self.silent, self.successes = None, 0

    def _close(self, begin: int, end: int, kind: Kind) -> None:
        self._close_silent(begin)
        success = kind is Kind.RESET and self.prints_success
        self.rows.append((end, kind, self._line_of(begin), int(success)))

    def _blank(self, begin: int, end: int) -> None:
        newlines = self.given[begin:end].split(b"\n")
        self.given[begin:end] = b"\n".join(b" " * len(line) for line in newlines)

    # --- the whole script -------------------------------------------------------------------

    def _facts(self) -> Facts:
        head = bytes(self.masked[:_BLOCK_BYTES])
        logic = _LOGIC.search(head)
        name = "" if logic is None else logic.group(1).decode(errors="replace")
        return Facts(
            logic="" if name == "ALL" else name,
            has_bits=_BITS.search(head) is not None,
            has_numbers=_NUMBERS.search(head) is not None,
            has_quantifiers=_QUANTIFIERS.search(head) is not None,
            has_strings=_STRINGS.search(head) is not None,
            is_incremental=self.is_incremental or self.checks > 1,
            checks=self.checks,
            needs=tuple(self.needs),
            replies=self.replies,
        )

    def _line_of(self, place: int) -> int:
        if place < self.counted:
            return 1 + self.text.count(b"\n", 0, place)
        self.line += self.text.count(b"\n", self.counted, place)
        self.counted = place
        return self.line

    def _error(self, place: int, message: str) -> InputError:
        line = 1 + self.text.count(b"\n", 0, place)
        return InputError(f"{self.name}, line {line}: {message}")


def _in_ascii(found: re.Match[bytes]) -> bytes:
    """Write a string in ASCII; leave any other text unchanged."""
    if found.group()[:1] != b'"':
        return found.group()
    return _OTHER_LETTERS.sub(
        lambda letter: f"\\u{{{ord(letter.group()):x}}}", found.group().decode()
    ).encode()


_UNKNOWN = "is not passed on to engines; docs/smt.md lists the commands that are"
_REFUSED = {"include": "would read another file; write its content here", "": "has no name"}
