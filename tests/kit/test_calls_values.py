"""Functions, arguments and results as bytes."""

import functools
import linecache
import sys
import traceback
import tracemalloc
from typing import Any

import numpy as np
import pytest

from mallob_py.kit.calls import values


def test_large_arrays_travel_beside_the_pickle_and_can_be_written_to() -> None:
    array = np.arange(1 << 16, dtype=np.float64)
    buffers = values.dump([array, array[:3]], "it", is_copied=False)
    assert len(buffers) == 2
    assert np.shares_memory(np.frombuffer(buffers[1], dtype=np.float64), array)
    received = [bytearray(bytes(each)) for each in buffers]
    whole, part = values.load(received)
    assert np.array_equal(whole, array)
    assert np.array_equal(part, array[:3])
    assert whole.flags.writeable
    assert np.shares_memory(whole, np.frombuffer(received[1], dtype=np.float64))


def test_an_array_that_is_not_contiguous_travels_too() -> None:
    array = np.arange(1 << 16).reshape(256, 256)[:, ::2]
    assert np.array_equal(values.load(values.dump(array, "it")), array)


@pytest.mark.parametrize("count", [0, 3, 5000])
def test_a_read_only_array_arrives_writable(count: int) -> None:
    array = np.asfortranarray(np.arange(2.0 * count).reshape(2, count))
    array.flags.writeable = False
    for value in ([array, array], [array, lambda: 0]):
        loaded = values.load(values.load(values.packed([values.dump(value, "it", is_copied=False)]))[0])
        assert np.array_equal(loaded[0], array)
        assert loaded[0].flags.f_contiguous
        assert loaded[0].flags.writeable
    assert not array.flags.writeable


def test_a_lambda_is_sent_by_value() -> None:
    assert values.load(values.dump(lambda number: 2 * number, "it"))(21) == 42


def test_code_that_is_sent_by_value_tells_which_file_it_is_of() -> None:
    def outer() -> object:
        return (lambda: 1 / 0)()

    with pytest.raises(ZeroDivisionError) as caught:
        values.load(values.dump(outer, "it"))()
    files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert files == [__file__] * 3


def test_what_nobody_can_pickle_is_named() -> None:
    with pytest.raises(values.CannotSend, match="its arguments cannot be pickled"):
        values.dump(sys._getframe(), "its arguments")


class Picky(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def failing(error: Exception) -> Exception:
    try:
        raise error
    except Exception as raised:
        return raised


def test_an_exception_comes_with_where_it_was_raised_and_which_call_it_was() -> None:
    error = values.load_error(values.dump_error(failing(KeyError("k")), "nowhere.py"), "call 3 of 4: f(1)")
    assert isinstance(error, KeyError)
    assert isinstance(error.__cause__, values.RemoteTraceback)
    assert "in failing" in str(error.__cause__)
    assert error.__notes__ == ["call 3 of 4: f(1)"]


def test_source_lines_that_only_the_caller_knows_are_in_the_traceback() -> None:
    cell = "def half(number):\n    return 1 / number\n"
    names: dict[str, Any] = {}
    exec(compile(cell, "/a notebook/cell.py", "exec"), names)  # compiled as IPython compiles cells
    try:
        names["half"](0)
    except ZeroDivisionError as raised:
        dumped = values.dump_error(raised, "nowhere.py")
    linecache.cache["/a notebook/cell.py"] = len(cell), None, cell.splitlines(True), "cell"
    cause = str(values.load_error(dumped, "half(0)").__cause__)
    assert '  File "/a notebook/cell.py", line 2, in half\n    return 1 / number\nZeroDivisionError' in cause
    assert cause.count('names["half"](0)\n') == 1  # only the worker had this line's source


def test_an_exception_of_two_arguments_arrives_as_itself() -> None:
    error = values.load_error(values.dump_error(failing(Picky(1, 2)), "nowhere.py"), "f()")
    assert type(error) is Picky
    assert str(error) == "1 and 2"


def test_functions_have_names() -> None:
    assert values.name_of(pow) == "pow"
    assert values.name_of(functools.partial(np.add, 1)).endswith("add")
    assert values.name_of(failing).endswith("test_calls_values.failing")


def test_a_large_array_is_copied_once_also_if_cloudpickle_has_to_help() -> None:
    array = np.zeros(1 << 20)
    for value in (array, (array, lambda: 0), {"of": "__main__", "array": array}):
        values.dump(value, "it")
        tracemalloc.start()
        buffers = values.dump(value, "it")
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert isinstance(buffers[1], bytearray)
        assert peak_bytes < 1.5 * array.nbytes
