"""Sessions: an engine answers a script part by part, in a process of its own, by its package's interface.

All engines get the script as text, not as a file. Z3 is called through its C interface, because its Python
package takes ten times as long to import, and its `z3` command would be a further process.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from mallob_smt.engines import Strategy

#: option -> Z3's name for the option, if different
_Z3_NAMES = {"produce-assertions": "interactive-mode"}
_Z3_LACKS = ("produce-interpolants",)
_RESET = re.compile(r"\(\s*reset\s*\)\s*\Z")
_REASON = "(get-info :reason-unknown)"
#: options that Bitwuzla supports
_BITWUZLA_KNOWS = ("produce-models", "produce-unsat-cores", "produce-unsat-assumptions")


class EngineError(Exception):
    """The engine cannot continue with this script. The message is the reason."""


class Session(Protocol):
    """An engine that has executed a script's commands so far."""

    def answer(self, text: str) -> str:
        """Execute further commands; return the engine's output. Raises EngineError."""
        ...

    def reason_unknown(self) -> str:
        """Return the reason that the engine prints for its last `unknown`, or "" if it prints none."""
        ...


def load(engine: str) -> None:
    """Import what sessions of an engine need, so that processes forked from this one begin at once."""
    if engine == "z3":
        _z3_library()
    else:
        importlib.import_module(engine)


def open_session(strategy: Strategy, needs: Sequence[str], is_incremental: bool) -> Session:
    """Open a session. `needs`: options that the script's commands need. Raises EngineError."""
    match strategy.engine:
        case "z3":
            return _Z3(strategy, needs)
        case "cvc5":
            return _Cvc5(strategy, needs, is_incremental)
        case _:
            return _Bitwuzla(strategy, needs)


def _command(option: str) -> str:
    return f"(set-option :{option} true)"


_library: Any = None


def _z3_library() -> Any:
    global _library
    if _library is None:
        package = importlib.util.find_spec("z3")
        assert package is not None
        assert package.submodule_search_locations
        (folder,) = package.submodule_search_locations
        _library = ctypes.CDLL(str(next(Path(folder).glob("lib/libz3.so"))))
        for name, arguments, result in (
            ("Z3_mk_config", [], ctypes.c_void_p),
            ("Z3_mk_context", [ctypes.c_void_p], ctypes.c_void_p),
            ("Z3_set_error_handler", [ctypes.c_void_p, ctypes.c_void_p], None),
            ("Z3_global_param_set", [ctypes.c_char_p, ctypes.c_char_p], None),
            ("Z3_eval_smtlib2_string", [ctypes.c_void_p, ctypes.c_char_p], ctypes.c_char_p),
        ):
            function = getattr(_library, name)
            function.argtypes, function.restype = arguments, result
    return _library


class _Z3:
    def __init__(self, strategy: Strategy, needs: Sequence[str]) -> None:
        self._library = _z3_library()
        for name, value in strategy.options:
            self._library.Z3_global_param_set(name.encode(), value.encode())
        self._context = self._library.Z3_mk_context(self._library.Z3_mk_config())
        # Z3's default handler ends the process. An error is in the answer's text anyway.
        self._handler = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)(lambda context, code: None)
        self._library.Z3_set_error_handler(self._context, ctypes.cast(self._handler, ctypes.c_void_p))
        wanted = [_Z3_NAMES.get(need, need) for need in needs if need not in _Z3_LACKS]
        self._first = "".join(map(_command, wanted))
        self._prefix = self._first

    def answer(self, text: str) -> str:
        # The prefix must not add lines: Z3 counts lines as if all calls were one text.
        answer = self._library.Z3_eval_smtlib2_string(self._context, (self._prefix + text).encode())
        self._prefix = self._first if _RESET.search(text) is not None else ""
        return answer.decode(errors="replace") if answer else ""

    def reason_unknown(self) -> str:
        return self.answer(_REASON)


class _Cvc5:
    def __init__(self, strategy: Strategy, needs: Sequence[str], is_incremental: bool) -> None:
        self._module = importlib.import_module("cvc5")
        self._options = [("incremental", str(is_incremental).lower()), *((need, "true") for need in needs)]
        self._options += strategy.options
        self._begin()

    def _begin(self) -> None:
        self._manager = self._module.TermManager()
        self._solver = self._module.Solver(self._manager)
        self._symbols = self._module.SymbolManager(self._manager)
        self._parser = self._module.InputParser(self._solver, self._symbols)
        for name, value in self._options:
            self._solver.setOption(name, value)

    def answer(self, text: str) -> str:
        if _RESET.search(text) is not None:  # cvc5's own reset would keep the logic, but not the options
            self._begin()
            return ""
        self._parser.setStringInput(self._module.InputLanguage.SMT_LIB_2_6, text, "script")
        printed = []
        try:
            while not (command := self._parser.nextCommand()).isNull():
                printed.append(command.invoke(self._solver, self._symbols))
        except RuntimeError as error:
            raise EngineError(str(error)) from None
        return "".join(printed)

    def reason_unknown(self) -> str:
        return self.answer(_REASON)


class _Bitwuzla:
    """Bitwuzla, whose standard output is redirected to a file in memory."""

    def __init__(self, strategy: Strategy, needs: Sequence[str]) -> None:
        self._module = importlib.import_module("bitwuzla")
        options = self._module.Options()
        for need in needs:
            if need not in _BITWUZLA_KNOWS:
                continue
            options.set(need, True)
        for name, value in strategy.options:
            options.set(name, int(value))
        self._parser = self._module.Parser(self._module.TermManager(), options)
        self._library = ctypes.CDLL(None)
        self._printed = os.memfd_create("printed")
        os.dup2(self._printed, 1)

    def answer(self, text: str) -> str:
        try:
            self._parser.parse(text, False, False)
        except self._module.BitwuzlaException as error:
            raise EngineError(str(error)) from None
        self._library.fflush(None)
        size = os.lseek(self._printed, 0, os.SEEK_END)
        answer = os.pread(self._printed, size, 0)
        os.ftruncate(self._printed, 0)
        os.lseek(self._printed, 0, os.SEEK_SET)
        return answer.decode(errors="replace")

    def reason_unknown(self) -> str:
        return ""  # Bitwuzla has no command for it
