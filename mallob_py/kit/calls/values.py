"""Functions, arguments, results and exceptions as bytes and back: pickles of protocol 5.

A *snapshot* is a value at one moment: the value itself if it is immutable (a number, a string), else a
pickle of its own, so that two calls never share an object. Large arrays travel beside the pickle (out-of-band
buffers) and are writable at the receiver. Importable objects are sent by reference; others (lambdas,
functions within functions, names of the program's own script) are sent by value, by cloudpickle.
"""

from __future__ import annotations

import functools
import io
import linecache
import pickle
import re
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType, NoneType, TracebackType
from typing import Any, NamedTuple

import cloudpickle

from mallob_py.kit.calls.sharing import Shared
from mallob_py.kit.calls.wire import Buffer

_PROTOCOL = 5
#: size of the smallest buffer that is sent beside the pickle; smaller buffers are copied into it
_BUFFER_BYTES_MIN = 1 << 13
#: the program's own script, a module that workers cannot import
_MAIN = b"__main__"
#: types of immutable objects
ATOMS = frozenset((NoneType, bool, int, float, complex, str, bytes))
_NESTED_MAX = 20
_TRACEBACK_CHARACTERS_MAX = 64_000
#: a frame of a traceback that lacks its source line
_BARE_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+), in .+\n(?!    )', re.MULTILINE)


class CannotSend(pickle.PicklingError):
    """A function, argument or result cannot be pickled; the message names it, and says what to do."""


class CallError(Exception):
    """Stand-in for an exception that this process cannot unpickle, with the exception's type and message."""


class RemoteTraceback(Exception):
    """The `__cause__` of a call's exception: its text is the traceback in the worker."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


class Pickled(NamedTuple):
    """A pickled function with out-of-band buffers, and the function's name for messages."""

    buffers: list[Buffer]
    name: str
    #: whether a worker may load the function once for all calls, since no call can change it
    is_kept: bool


def dump(value: Any, what: str, *, is_copied: bool = True) -> list[Buffer]:
    """Return the pickle of `value`, followed by the out-of-band buffers.

    `is_copied`: whether these buffers are copies, which later changes of `value` do not change. Raises
    CannotSend, whose message calls the value `what`.
    """
    buffers: list[Buffer] = [_MAIN]
    with suppress(Exception, SystemExit, GeneratorExit):  # cloudpickle then succeeds or says why not
        buffers = _dump(_dumps_writable, value)
    if _MAIN in buffers[0]:
        try:
            buffers = _dump(_dumps_by_value, value)
        except (Exception, SystemExit, GeneratorExit) as error:
            raise CannotSend(f"{what} cannot be pickled: {told(error)}") from error
    # The buffers are copied only here, because the value may have been pickled twice.
    return [buffers[0], *map(bytearray, buffers[1:])] if is_copied else buffers


def _dumps_writable(
    value: Any, *, buffer_callback: Callable[[pickle.PickleBuffer], bool], protocol: int
) -> bytes:
    """Pickle by reference. Raises BufferError for a read-only array, which would arrive read-only."""

    def take(buffer: pickle.PickleBuffer) -> bool:
        if memoryview(buffer).readonly:
            raise BufferError("the array is read-only")
        return buffer_callback(buffer)

    return pickle.dumps(value, protocol, buffer_callback=take)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """A pickler by value that keeps the file names of code, for tracebacks, and sends writable arrays."""

    def reducer_override(self, value: Any) -> Any:
        if _is_array(value) and not value.flags.writeable:
            return value.copy(order="K").__reduce_ex__(_PROTOCOL)
        if not isinstance(value, CodeType):
            return super().reducer_override(value)
        make, parts = self.dispatch_table[CodeType](value)
        return make, tuple(value.co_filename if part == "<dynamic-code>" else part for part in parts)


def _dumps_by_value(value: Any, pickler: type[_Pickler] = _Pickler, **options: Any) -> bytes:
    with io.BytesIO() as written:
        pickler(written, **options).dump(value)
        return written.getvalue()


def _dump(dumps: Callable[..., bytes], value: Any, buffer_bytes_min: int = _BUFFER_BYTES_MIN) -> list[Buffer]:
    buffers: list[Buffer] = []

    def take(buffer: pickle.PickleBuffer) -> bool:
        try:
            view = buffer.raw()
        except BufferError:
            return True  # the array is not contiguous
        if view.nbytes < buffer_bytes_min:
            return True
        buffers.append(view)
        return False

    return [dumps(value, protocol=_PROTOCOL, buffer_callback=take), *buffers]


class _SharingPickler(_Pickler):
    """A pickler that passes every array out of band, because arrays in read-only buffers are read-only."""

    def reducer_override(self, value: Any) -> Any:
        if not _is_array(value):
            return super().reducer_override(value)
        if type(value).__name__ == "memmap" or not value.flags.forc:
            import numpy as np

            return np.array(value, order="C").__reduce_ex__(_PROTOCOL)
        return NotImplemented


def _is_array(value: Any) -> bool:
    """Tell whether `value` is an array of numbers."""
    kind = type(value)
    is_array = kind.__module__.startswith("numpy") and kind.__name__ in ("ndarray", "memmap")
    return is_array and not value.dtype.hasobject


def dump_to_share(value: Any) -> list[Buffer]:
    """Return the pickle of `value`, followed by out-of-band buffers, without copies. Raises CannotSend."""
    try:
        return _dump(functools.partial(_dumps_by_value, pickler=_SharingPickler), value, 1)
    except (Exception, SystemExit, GeneratorExit) as error:
        raise CannotSend(f"the object cannot be pickled: {told(error)}") from error


def load(buffers: Sequence[Buffer]) -> Any:
    """Return the object of which `dump` made `buffers`. Raises any error of unpickling."""
    return pickle.loads(buffers[0], buffers=buffers[1:])


def are_atoms(values: Iterable[Any]) -> bool:
    """Tell whether all values are immutable."""
    return ATOMS.issuperset(map(type, values))


def snapshot(result: Any) -> Any:
    """Return a result itself if it is immutable, else the buffers of its `dump`. Raises CannotSend."""
    return result if type(result) in ATOMS else dump(result, "its result")


def snapshot_of_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the arguments themselves if all are immutable, else the buffers of `dump`.

    Raises CannotSend.
    """
    call = args, kwargs
    return call if are_atoms(args) and are_atoms(kwargs.values()) else dump(call, "its arguments")


def restored(value: Any) -> Any:
    """Return the object of which `snapshot` or `snapshot_of_call` made `value`.

    Raises any error of unpickling.
    """
    return load(value) if type(value) is list else value


def copied(value: Any) -> Any:
    """Copy a snapshot with its buffers, so that changes of the restored value do not change the original."""
    return [value[0], *map(bytearray, value[1:])] if type(value) is list else value


def packed(snapshots: Iterable[Any]) -> list[Buffer]:
    """Pack snapshots into one pickle, followed by large buffers; `load` returns the list of snapshots."""
    return _dump(pickle.dumps, [_beside(one) if type(one) is list else one for one in snapshots])


def _beside(buffers: list[Buffer]) -> list[Any]:
    return [pickle.PickleBuffer(one) if len(one) >= _BUFFER_BYTES_MIN else one for one in buffers]


def pickled(function: Callable[..., Any]) -> Pickled:
    """Pickle a function in its present state. Raises CannotSend."""
    if not callable(function):
        raise TypeError(f"{function!r:.80} cannot be called")
    name = name_of(function)
    return Pickled(dump(function, f"the function {name}"), name, is_kept(function))


def is_kept(value: Any, nested: int = 0) -> bool:
    """Tell whether no call can change `value` (a function, or a value that a function holds) or its parts.

    Globals do not count, because in the worker they belong to a module, which all calls share.
    """
    kind = type(value)
    if kind in ATOMS or isinstance(value, type | ModuleType | Shared):
        return True
    if nested > _NESTED_MAX:
        return False
    inner: tuple[Any, ...]
    if kind is FunctionType:
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        keywords = (value.__kwdefaults__ or {}).values()
        inner = (*cells, *(value.__defaults__ or ()), *keywords, *value.__dict__.values())
    elif kind is BuiltinFunctionType:
        inner = (value.__self__,)
    elif kind is functools.partial:
        inner = (value.func, *value.args, *value.keywords.values(), *value.__dict__.values())
    elif kind is tuple or kind is frozenset:
        inner = tuple(value)
    else:
        return False
    return all(is_kept(one, nested + 1) for one in inner)


def _is_filled(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def dump_error(error: BaseException, own_file: str) -> tuple[bytes | None, str, str]:
    """Return an exception's pickle or None, its text, and its traceback without leading frames of `own_file`.

    Never raises, even if the exception's own code does.
    """
    message = text = type(error).__name__
    with suppress(BaseException):
        message = told(error)
        trace = user_frames(error.__traceback__, own_file)
        text = "".join(traceback.format_exception(type(error), error, trace))
        if len(text) > _TRACEBACK_CHARACTERS_MAX:
            text = "...\n" + text[-_TRACEBACK_CHARACTERS_MAX:]
    for dumps in (_dumps_plain, _dumps_bare):
        with suppress(BaseException):
            data = dumps(error)
            if _is_same(pickle.loads(data), error):
                return data, message, text
    return None, message, text


def _dumps_plain(error: BaseException) -> bytes:
    with suppress(Exception):
        data = pickle.dumps(error, _PROTOCOL)
        if _MAIN not in data:
            return data
    return _dumps_by_value(error, protocol=_PROTOCOL)


def _dumps_bare(error: BaseException) -> bytes:
    return _dumps_by_value(error, _BarePickler, protocol=_PROTOCOL)


class _BarePickler(_Pickler):
    """A pickler of exceptions by their attributes, for classes that cannot be called with `args`."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, BaseException):
            return super().reducer_override(value)
        return _error_of, (type(value), value.args, dict(vars(value)))


def _error_of(kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    error = kind.__new__(kind, *args)
    _set(error, "args", args)
    vars(error).update(state)
    return error


def _set(error: BaseException, name: str, value: object) -> None:
    """Set an attribute of an exception, even if its class guards it."""
    BaseException.__dict__[name].__set__(error, value)


def _is_same(error: Any, other: BaseException) -> bool:
    return type(error) is type(other) and str(error) == str(other) and repr(error.args) == repr(other.args)


def load_error(dumped: tuple[bytes | None, str, str], where: str) -> BaseException:
    """Return the exception, with the worker's traceback as its cause and the note `where`.

    A StopIteration becomes a RuntimeError (PEP 479), because it would end the user's iteration. Never raises,
    even if the exception's own code does.
    """
    data, message, text = dumped
    error: BaseException = CallError(message)
    if data is not None:
        with suppress(BaseException):
            loaded = pickle.loads(data)
            if isinstance(loaded, BaseException):
                error = loaded
    _dress(error, RemoteTraceback(_BARE_FRAME.sub(_with_source, text)), where)
    return no_stop(error)


def _with_source(frame: re.Match[str]) -> str:
    """Add a frame's source line, which, as for a notebook's cell, only the caller's process may know."""
    line = linecache.getline(frame["file"], int(frame["line"])).strip()
    return frame[0] + (f"    {line}\n" if line else "")


def no_stop(error: BaseException) -> BaseException:
    """Return the exception, or in place of a StopIteration a RuntimeError caused by it."""
    if not isinstance(error, StopIteration):
        return error
    stopped = RuntimeError("the call raised StopIteration")
    stopped.__cause__ = error
    for note in getattr(error, "__notes__", ()):
        stopped.add_note(note)
    return stopped


def _dress(error: BaseException, cause: BaseException, note: str) -> None:
    """Give an exception a cause and a note, even if its class guards attributes."""
    with suppress(BaseException):
        _set(error, "__cause__", cause)
        notes = vars(error).setdefault("__notes__", [])
        if isinstance(notes, list):
            notes.append(note)


def told(error: BaseException) -> str:
    """Return an exception's type and message."""
    try:
        return "".join(traceback.format_exception_only(type(error), error)).rstrip("\n")
    except BaseException:
        return type(error).__name__


def user_frames(trace: TracebackType | None, own_file: str) -> TracebackType | None:
    """Return the traceback without leading frames of `own_file`; if it has no others, the whole traceback."""
    inner = trace
    while inner is not None and inner.tb_frame.f_code.co_filename == own_file:
        inner = inner.tb_next
    return trace if inner is None else inner


def name_of(function: Any) -> str:
    """Return a function's name for messages."""
    while (inner := getattr(function, "func", None)) is not None and callable(inner):
        function = inner  # the function in a partial
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    module = getattr(function, "__module__", None)
    return f"{module}.{name}" if module not in (None, "builtins", "__main__") else str(name)
