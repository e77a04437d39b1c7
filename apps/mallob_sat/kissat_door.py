"""The kissat door: options, learned clauses and foreign clauses for PySAT's kissat during its search.

PySAT only offers kissat's call to solve. But PySAT's compiled module contains all of kissat's functions by
name, and they call each other through the module's jump table. So nothing needs to be compiled: `KissatDoor`
calls the functions through ctypes, and redirects the table's entry of `kissat_restart` to this module. There,
between two conflicts, it takes kissat back to decision level 0 and adds foreign clauses as if kissat had
learned them. Kissat's own learned clauses are read from its proof (DRAT, binary).

Before the door opens (`door_is_open`), this module checks everything that it assumes of the compiled module:
the functions' names, the table's entry and its permission, the one part of kissat's state that it writes (the
clause that is being added), and the bytes of a proof. If anything differs, kissat shares no clauses.

Why this is sound. Let F be the formula.

(1) Every clause that kissat has or writes to its proof follows from F, except for definitions of new
    variables. Kissat adds clauses by conflict analysis, probing, vivification, sweeping, congruence closure,
    equivalent literals and resolution (of variables that it eliminates); steps that only preserve
    satisfiability (elimination itself, substitution) remove clauses. New variables come from `factor`. Their
    numbers are above all numbers that kissat knows, and thus, after `import_variables`, above F's; clauses
    with new variables are not passed on. A definition loses no model of F, so its consequences over F's
    variables follow from F. Kissat gets assumptions as clauses, so with assumptions it must not give clauses.
(2) A model of kissat's irredundant clauses extends to a model of F.
(3) Adding a clause that follows from F keeps (1) true, and (2) as well, because the clause removes no model
    of F.
(4) A clause over a variable that has been eliminated or substituted is dropped, because the search does not
    have the variable any more. A literal is left out only if it is false on level 0, hence in all models of
    F; a clause with a literal that is true on level 0 is not needed.

The tests try (1) and (3) on many formulas against all assignments.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import time
from collections.abc import Callable
from ctypes import c_bool, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache
from typing import Any

import numpy as np
import pysolvers
from numpy.typing import NDArray

from mallob_sat.clauses import Clauses

_INVALID = 0xFFFFFFFF
#: number of conflicts that no search reaches
_FAR = 0xFFFFFFFE
_NAMES: dict[str, tuple[Any, list[Any]]] = {
    "kissat_init": (c_void_p, []),
    "kissat_add": (None, [c_void_p, c_int]),
    "kissat_release": (None, [c_void_p]),
    "kissat_options_has": (c_void_p, [c_char_p]),
    "kissat_set_option": (c_int, [c_void_p, c_char_p, c_int]),
    "kissat_terminate": (None, [c_void_p]),
    "kissat_value": (c_int, [c_void_p, c_int]),
    "kissat_import_literal": (c_uint, [c_void_p, c_int]),
    "kissat_activate_literals": (None, [c_void_p, c_uint, c_void_p]),
    "kissat_backtrack_without_updating_phases": (None, [c_void_p, c_uint]),
    "kissat_learned_unit": (None, [c_void_p, c_uint]),
    "kissat_new_binary_clause": (None, [c_void_p, c_uint, c_uint]),
    "kissat_new_redundant_clause": (c_uint, [c_void_p, c_uint]),
    "kissat_init_proof": (None, [c_void_p, c_void_p, c_bool]),
    "kissat_release_proof": (None, [c_void_p]),
    "kissat_set_conflict_limit": (None, [c_void_p, c_uint]),
    "kissat_restart": (None, [c_void_p]),
    "kissat_switch_search_mode": (None, [c_void_p]),
}
_RESTART = "kissat_restart"
_SWITCH = "kissat_switch_search_mode"
#: inprocessing functions whose clauses are not passed on, because each kissat runs these functions anyway
_UNTOLD = ("kissat_eliminate", "kissat_congruence", "kissat_sweep", "kissat_factor", "kissat_substitute")
_Function = ctypes.CFUNCTYPE(None, c_void_p)
#: type of the functions in _UNTOLD: they take kissat and perhaps a flag, and return a status or nothing
_Inprocessing = ctypes.CFUNCTYPE(c_int, c_void_p, c_int)
_Stack = c_uint64 * 3
#: literals of the clause that the checks add, to find where kissat's state refers to a new clause
_PROBE = (3, -1, 2)
#: the step of a proof that adds unit clause 2
_PROOF_OF_2 = b"a\x04\x00"


class DoorIsClosed(Exception):
    """PySAT's compiled module is not as this file assumes. The message is one line."""


class _File(ctypes.Structure):
    """Kissat's file for a proof."""

    _fields_ = (
        ("stream", c_void_p),
        ("close", c_bool),
        ("reading", c_bool),
        ("compressed", c_bool),
        ("path", c_char_p),
        ("bytes", c_uint64),
    )


@cache
def door_is_open() -> bool:
    """Tell whether kissat can be reached in PySAT's compiled module."""
    try:
        _module()
    except DoorIsClosed:
        return False
    return True


class KissatDoor:
    """The door of one kissat. Order: options, `trace_proof`, clauses, `at_restarts`, PySAT's `solve`."""

    def __init__(self, capsule: object) -> None:
        """Open the door of the kissat that `pysolvers.kissat404_new` returned. Raises DoorIsClosed."""
        self._module = _module()
        pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
        pointer_of.restype, pointer_of.argtypes = c_void_p, [ctypes.py_object, c_char_p]
        self._kissat: int = c_void_p.from_address(pointer_of(capsule, None)).value or 0
        self._file: _File | None = None
        #: whether a clause was given whose literals are all false on level 0
        self.is_refuted = False
        self._failure: BaseException | None = None
        #: number of given clauses over variables that kissat has eliminated
        self.removed = 0

    def set_option(self, name: str, value: int) -> None:
        """Set an option. Must be called before clauses are added. Raises ValueError if kissat lacks it."""
        if not self._module.kissat_options_has(name.encode()):
            raise ValueError(f"kissat has no option {name!r}")
        self._module.kissat_set_option(self._kissat, name.encode(), value)

    def trace_proof(self, fd: int) -> None:
        """Write clauses learned from now on to a copy of `fd`, except clauses derived by _UNTOLD."""
        self._file = _opened(fd)
        self._open_proof()

    def flush_proof(self) -> None:
        """Write all learned clauses so far to the proof's file."""
        if self._file is not None:  # kissat writes its buffer only when a proof ends
            self._close_proof()
            self._open_proof()

    def _open_proof(self) -> None:
        assert self._file is not None
        self._module.kissat_init_proof(self._kissat, ctypes.addressof(self._file), True)
        _tracing[self._kissat] = self

    def _close_proof(self) -> None:
        del _tracing[self._kissat]
        self._module.kissat_release_proof(self._kissat)

    def focus(self, is_wanted: bool) -> None:
        """Avoid stable phases while `is_wanted`, else alternate between phases again.

        The action of `at_restarts` must call `focus` each time, because a running stable phase goes on to its
        end. Answers and clauses are not affected, because the formula stays the same.
        """
        if not (is_wanted and _switches[self._kissat] % 2):
            self._module.kissat_set_option(self._kissat, b"stable", int(not is_wanted))

    @property
    def conflicts(self) -> int:
        """Return the number of conflicts so far."""
        self._module.kissat_set_conflict_limit(self._kissat, _FAR)  # the limit becomes conflicts + _FAR
        return c_uint64.from_address(self._kissat + _limit_offset()).value - _FAR

    def import_variables(self, n_vars: int) -> None:
        """Make the formula's variables known, so that kissat's own variables get higher numbers."""
        self._module.kissat_import_literal(self._kissat, n_vars)

    def at_restarts(self, action: Callable[[], None], interval_s: float) -> None:
        """Call `action` at restarts, at most every `interval_s` of CPU time; only there `give` is allowed."""
        next_s = time.process_time() + interval_s

        def turn() -> None:
            nonlocal next_s
            if time.process_time() < next_s or self._failure is not None:
                return
            try:
                action()
            except BaseException as error:  # the exception must not pass through kissat
                self._failure = error
                self._module.kissat_terminate(self._kissat)
            next_s = time.process_time() + interval_s

        _turns[self._kissat] = turn
        _switches[self._kissat] = 0

    def give(self, clauses: Clauses) -> int:
        """Add clauses that follow from the formula; return how many kissat uses.

        Must be called by the action of `at_restarts`. There is only one call of a kissat function for each
        variable and each clause, because a call takes a microsecond.
        """
        if self.is_refuted or not len(clauses):
            return 0
        self._module.kissat_backtrack_without_updating_phases(self._kissat, 0)
        names, values = self._names_and_values(clauses)
        starts = np.cumsum(clauses.lengths, dtype=np.intp) - clauses.lengths
        is_removed = np.logical_or.reduceat(names == _INVALID, starts)
        is_used = ~is_removed & ~np.logical_or.reduceat(values > 0, starts)
        is_kept = (values == 0) & np.repeat(is_used, clauses.lengths)
        sizes = np.add.reduceat(is_kept, starts, dtype=np.intp)
        is_long = sizes > 1
        of_long = np.repeat(is_long, clauses.lengths)
        self._add(names[is_kept & of_long], sizes[is_long], clauses.glues[is_long])
        self._learn(clauses.literals[is_kept & ~of_long].tolist())  # last, because units change values
        if (is_used & (sizes == 0)).any():
            self._refute()
        self.removed += int(np.count_nonzero(is_removed))
        return int(np.count_nonzero(is_used))

    def _names_and_values(self, clauses: Clauses) -> tuple[NDArray[np.uint32], NDArray[np.int32]]:
        """Return, for each literal, kissat's name or _INVALID, and its value: 1 true, -1 false, 0 unknown."""
        module, kissat = self._module, self._kissat
        variables = np.abs(clauses.literals)
        names = np.zeros(int(variables.max()) + 1, np.uint32)
        values = np.zeros(names.size, np.int32)
        names[variables] = 1
        for variable in np.flatnonzero(names).tolist():
            names[variable] = name = module.kissat_import_literal(kissat, variable)
            if name != _INVALID:
                values[variable] = module.kissat_value(kissat, variable)
        is_negative, names = clauses.literals < 0, names[variables]
        return (
            np.where(names == _INVALID, names, names ^ is_negative),
            np.sign(values[variables]) * np.sign(clauses.literals),
        )

    def _learn(self, units: list[int]) -> None:
        for unit in units:
            value = self._module.kissat_value(self._kissat, unit)
            if not value:
                name = self._module.kissat_import_literal(self._kissat, unit)
                self._module.kissat_activate_literals(self._kissat, 1, ctypes.byref(c_uint(name)))
                self._module.kissat_learned_unit(self._kissat, name)
            elif value != unit:
                self._refute()

    def _refute(self) -> None:
        self.is_refuted = True
        self._module.kissat_terminate(self._kissat)

    def _add(self, literals: NDArray[np.uint32], sizes: NDArray[np.intp], glues: NDArray[np.uint8]) -> None:
        """Add clauses of at least two literals without a value."""
        module, kissat = self._module, self._kissat
        literals = np.ascontiguousarray(literals)
        begin = literals.ctypes.data
        module.kissat_activate_literals(kissat, literals.size, begin)
        stack = _Stack.from_address(kissat + _clause_offset())
        before = list(stack)
        glues = np.clip(glues, 1, sizes - 1)
        for size, glue in zip(sizes.tolist(), glues.tolist(), strict=True):
            end = begin + size * literals.itemsize
            stack[0], stack[1], stack[2] = begin, end, end
            if size == 2:
                module.kissat_new_binary_clause(kissat, *(c_uint * 2).from_address(begin))
            else:
                module.kissat_new_redundant_clause(kissat, glue)
            begin = end
        stack[0], stack[1], stack[2] = before

    def raise_failure(self) -> None:
        """Raise the exception of `at_restarts`'s action, if any. Kissat's answer is void in that case."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Complete the proof. Must be called before kissat itself is freed."""
        _turns.pop(self._kissat, None)
        _switches.pop(self._kissat, None)
        if self._file is not None:
            self._close_proof()
            _libc().fclose(self._file.stream)
            self._file = None


#: address of a kissat that writes a proof -> its door
_tracing: dict[int, KissatDoor] = {}
#: address of a kissat -> action at its restarts
_turns: dict[int, Callable[[], None]] = {}
#: address of a kissat -> number of its switches between focused and stable phases
_switches: dict[int, int] = {}


@cache
def _libc() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    library.fdopen.restype, library.fdopen.argtypes = c_void_p, [c_int, c_char_p]
    library.setvbuf.argtypes = [c_void_p, c_void_p, c_int, c_size_t]
    library.fclose.argtypes = [c_void_p]
    library.malloc_usable_size.restype, library.malloc_usable_size.argtypes = c_size_t, [c_void_p]
    return library


def _opened(fd: int) -> _File:
    unbuffered = 2
    stream = _libc().fdopen(os.dup(fd), b"wb")
    _libc().setvbuf(stream, None, unbuffered, 0)
    return _File(stream, False, False, False, b"proof", 0)


@cache
def _module() -> ctypes.CDLL:
    """Return PySAT's compiled module with the types of kissat's functions, after all checks."""
    try:
        module = ctypes.CDLL(pysolvers.__file__)
        for name, (result, arguments) in _NAMES.items():
            function = getattr(module, name)
            function.restype, function.argtypes = result, arguments
        _lead_here(module, _RESTART, _turn)
        _lead_here(module, _SWITCH, _count_switch)
        for name in _UNTOLD:
            _silence(module, name)
    except (OSError, AttributeError, ValueError, struct.error) as error:
        raise DoorIsClosed(f"PySAT's kissat cannot be reached: {error}") from None
    _check_proofs(module)
    _clause_offset_in(module)
    _limit_offset_in(module)
    return module


def _check_proofs(module: ctypes.CDLL) -> None:
    fd = os.memfd_create("proof")
    kissat = module.kissat_init()
    for literal in (1, 2, 0):
        module.kissat_add(kissat, literal)
    file = _opened(fd)
    module.kissat_init_proof(kissat, ctypes.addressof(file), True)
    module.kissat_learned_unit(kissat, module.kissat_import_literal(kissat, 2))
    module.kissat_release_proof(kissat)
    module.kissat_release(kissat)
    _libc().fclose(file.stream)
    written = os.pread(fd, 100, 0)
    os.close(fd)
    if written != _PROOF_OF_2:
        raise DoorIsClosed(f"PySAT's kissat writes proofs in another format: {written!r}")


def _clause_offset() -> int:
    return _clause_offset_in(_module())


@cache
def _clause_offset_in(module: ctypes.CDLL) -> int:
    """Return the offset in kissat's state of the clause being added: add literals, and search for them."""
    kissat = module.kissat_init()
    for literal in _PROBE:
        module.kissat_add(kissat, literal)
    wanted = b"".join(struct.pack("=I", module.kissat_import_literal(kissat, one)) for one in _PROBE)
    words = (c_uint64 * (_libc().malloc_usable_size(kissat) // 8)).from_address(kissat)[:]
    found = [
        8 * place
        for place, (begin, end, allocated) in enumerate(zip(words, words[1:], words[2:], strict=False))
        if begin and end - begin == len(wanted) and end <= allocated <= begin + mmap.PAGESIZE
        if _is_writable(begin) and ctypes.string_at(begin, len(wanted)) == wanted
    ]
    module.kissat_add(kissat, 0)
    module.kissat_release(kissat)
    if len(found) != 1:
        raise DoorIsClosed(f"PySAT's kissat has the new clause at {len(found)} places; 1 was expected")
    return found[0]


def _limit_offset() -> int:
    return _limit_offset_in(_module())


@cache
def _limit_offset_in(module: ctypes.CDLL) -> int:
    """Find the offset of the limit of conflicts in kissat's state, by setting the limit."""
    kissat = module.kissat_init()
    module.kissat_set_conflict_limit(kissat, _FAR)
    words = (c_uint64 * (_libc().malloc_usable_size(kissat) // 8)).from_address(kissat)[:]
    module.kissat_release(kissat)
    if words.count(_FAR) != 1:
        raise DoorIsClosed(
            f"PySAT's kissat has its conflict limit at {words.count(_FAR)} places instead of one"
        )
    return int(8 * words.index(_FAR))


def _lead_here(module: ctypes.CDLL, name: str, follow: Callable[[int], None]) -> None:
    """Have `follow` called after each call of kissat's function `name`. Raises ValueError if impossible."""
    address, entry = _function_and_entry(module, name)
    function = _Function(address)

    def function_and_follow(kissat: int) -> None:
        function(kissat)
        follow(kissat)

    _redirect(entry, _Function(function_and_follow))


def _silence(module: ctypes.CDLL, name: str) -> None:
    """Have kissat write no proof during its function `name`. Raises ValueError if that is impossible."""
    address, entry = _function_and_entry(module, name)
    function = _Inprocessing(address)

    def without_proof(kissat: int, flag: int) -> int:
        door = _tracing.get(kissat)
        if door is not None:
            door._close_proof()
        status: int = function(kissat, flag)
        if door is not None:
            door._open_proof()
        return status

    _redirect(entry, _Inprocessing(without_proof))


def _function_and_entry(module: ctypes.CDLL, name: str) -> tuple[int, int]:
    """Return the addresses of a function and of its entry in the jump table. Raises ValueError."""
    entry_at, function_at = _entry_and_function(pysolvers.__file__, name.encode())
    address = ctypes.cast(getattr(module, name), c_void_p).value or 0
    entry = address - function_at + entry_at
    if not _is_writable(entry):
        raise ValueError("its table of jumps is read-only")
    return address, entry


def _redirect(entry: int, ours: Any) -> None:
    _kept.append(ours)
    c_uint64.from_address(entry).value = ctypes.cast(ours, c_void_p).value or 0


def _turn(kissat: int) -> None:
    if (turn := _turns.get(kissat)) is not None:
        turn()


def _count_switch(kissat: int) -> None:
    if kissat in _switches:
        _switches[kissat] += 1


#: callbacks of kissat, which must not be freed
_kept: list[object] = []


def _is_writable(address: int) -> bool:
    with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:
        for line in maps:
            span, rights = line.split(maxsplit=2)[:2]
            begin, end = (int(each, 16) for each in span.split("-"))
            if begin <= address < end:
                return "w" in rights
    return False


_SECTION = struct.Struct("<IIQQQQIIQQ")
_SECTION_OF_RELOCATIONS = 4
#: kinds of relocations for the jump table: x86-64, AArch64
_JUMPS = (7, 1026)
_SYMBOL = np.dtype([("name", "<u4"), ("kind", "<u4"), ("value", "<u8"), ("size", "<u8")])
_RELOCATION = np.dtype([("offset", "<u8"), ("kind", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])


def _entry_and_function(path: str, name: bytes) -> tuple[int, int]:
    """Find the addresses of a function's jump-table entry and of the function in a 64-bit ELF library.

    Raises ValueError if the library has no such entry.
    """
    with open(path, "rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("it is no ELF file of 64 bits")
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    sections = [_SECTION.unpack_from(data, table + size * i) for i in range(count)]
    for section in sections:
        _, kind, _, _, begin, length, link, *_ = section
        if kind != _SECTION_OF_RELOCATIONS or not link:
            continue
        symbols = _entries(data, _SYMBOL, sections[link])
        _, _, _, _, names_begin, names_length, *_ = sections[sections[link][6]]
        name_at = data.find(b"\0" + name + b"\0", names_begin, names_begin + names_length) + 1 - names_begin
        symbol = np.flatnonzero(symbols["name"] == name_at)
        relocations = np.frombuffer(data, _RELOCATION, length // _RELOCATION.itemsize, begin)
        jumps = relocations[np.isin(relocations["kind"], _JUMPS) & np.isin(relocations["symbol"], symbol)]
        if symbol.size == jumps.size == 1:
            return int(jumps["offset"][0]), int(symbols["value"][symbol[0]])
    raise ValueError(f"its table of jumps has no {name.decode()}")


def _entries(data: mmap.mmap, entry: np.dtype[Any], section: tuple[int, ...]) -> Any:
    return np.frombuffer(data, entry, section[5] // entry.itemsize, section[4])
