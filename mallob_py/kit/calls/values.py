"""Functions, arguments, results and exceptions as bytes and back: pickles of protocol 5.

Large arrays are not copied into a pickle: they travel beside it as they lie in memory (out-of-band buffers)
and are writable where they arrive. What can be found again by its name is sent by reference; what cannot (a
lambda, a function within a function, whatever the program's own script defines) is sent by value, which needs
cloudpickle, on both sides.
"""

from __future__ import annotations

import io
import pickle
import traceback
from collections.abc import Callable, Sequence
from types import CodeType, TracebackType
from typing import Any

from mallob_py.kit.calls.wire import Buffer

_PROTOCOL = 5
#: smaller ones are copied into the pickle
_BUFFER_BYTES_MIN = 1 << 13
#: a script's own names mean something else in a worker
_MAIN = b"__main__"
EXTRA = "pip install 'mallob-py[functions]'"
_TRACEBACK_CHARACTERS_MAX = 64_000


class CannotSend(pickle.PicklingError):
    """A function, an argument or a result cannot be pickled; the text says which, and what to do."""


class CallError(Exception):
    """Stands for a call's exception that cannot be unpickled here; its text has the type and the message."""


class RemoteTraceback(Exception):
    """Where an exception was raised, in the worker; it is the exception's `__cause__`."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


def dump(value: Any, what: str) -> list[Buffer]:
    """A pickle, and the buffers that belong to it. Raises CannotSend, which names `what`."""
    try:
        buffers = _dump(pickle.dumps, value)
        if _MAIN not in buffers[0]:
            return buffers
        why = "something of it is defined in the script that was started"
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
    try:
        import cloudpickle  # only for what needs it
    except ImportError:
        raise CannotSend(
            f"{what} cannot be sent by reference ({why}); put what it uses into a module that workers can"
            f" import, or have it sent by value: {EXTRA}"
        ) from None
    try:
        return _dump(_by_value(cloudpickle), value)
    except Exception as error:
        raise CannotSend(f"{what} cannot be pickled: {type(error).__name__}: {error}") from error


def _by_value(cloudpickle: Any) -> Callable[..., bytes]:
    """Return cloudpickle's `dumps`, but that code keeps the name of its file, for tracebacks."""

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            if not isinstance(value, CodeType):
                return super().reducer_override(value)
            make, parts = self.dispatch_table[CodeType](value)
            return make, tuple(value.co_filename if part == "<dynamic-code>" else part for part in parts)

    def dumps(value: Any, **options: Any) -> bytes:
        with io.BytesIO() as written:
            Pickler(written, **options).dump(value)
            return written.getvalue()

    return dumps


def _dump(dumps: Callable[..., bytes], value: Any) -> list[Buffer]:
    buffers: list[Buffer] = []

    def take(buffer: pickle.PickleBuffer) -> bool:
        try:
            view = buffer.raw()
        except BufferError:
            return True  # not contiguous
        if view.nbytes < _BUFFER_BYTES_MIN:
            return True
        buffers.append(view)
        return False

    return [dumps(value, protocol=_PROTOCOL, buffer_callback=take), *buffers]


def load(buffers: Sequence[Buffer]) -> Any:
    """The inverse of `dump`. Raises whatever unpickling raises."""
    return pickle.loads(buffers[0], buffers=buffers[1:])


def dump_error(error: BaseException, own_file: str) -> tuple[bytes | None, str, str]:
    """An exception, its text if it cannot be read, and the traceback without `own_file` at its top."""
    trace = user_frames(error.__traceback__, own_file)
    text = "".join(traceback.format_exception(type(error), error, trace))
    if len(text) > _TRACEBACK_CHARACTERS_MAX:
        text = "...\n" + text[-_TRACEBACK_CHARACTERS_MAX:]
    told = "".join(traceback.format_exception_only(type(error), error)).rstrip("\n")
    try:
        data = b"".join(map(bytes, dump(error.with_traceback(None), "an exception")[:1]))
        pickle.loads(data)
    except Exception:
        return None, told, text
    return data, told, text


def load_error(dumped: tuple[bytes | None, str, str], where: str) -> BaseException:
    """The exception, with the worker's traceback as its cause and a note that names the call."""
    data, told, text = dumped
    error: BaseException
    try:
        error = CallError(told) if data is None else pickle.loads(data)
        if not isinstance(error, BaseException):
            error = CallError(told)
    except Exception:
        error = CallError(told)
    error.__cause__ = RemoteTraceback(text)
    error.add_note(where)
    return error


def user_frames(trace: TracebackType | None, own_file: str) -> TracebackType | None:
    """Without the frames of ours that come first; all of them if there are no others."""
    inner = trace
    while inner is not None and inner.tb_frame.f_code.co_filename == own_file:
        inner = inner.tb_next
    return trace if inner is None else inner


def name_of(function: Any) -> str:
    """Return the name of a function, for messages."""
    while (inner := getattr(function, "func", None)) is not None and callable(inner):
        function = inner  # a partial
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    module = getattr(function, "__module__", None)
    return f"{module}.{name}" if module not in (None, "builtins", "__main__") else str(name)
