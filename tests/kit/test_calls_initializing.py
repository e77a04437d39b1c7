"""An initializer and later functions in a worker, each loaded from its own pickle."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mallob_py.kit.calls.initializing import Initialized
from mallob_py.kit.calls.values import dump, load

_SCRIPT = """
import functools

TABLE = "not set"

def fill(text):
    global TABLE, ADDED
    TABLE, ADDED = text, text + "!"

def plainly(x):
    return TABLE, ADDED, x

class Reader:
    def method(self, x):
        return plainly(x)
    __call__ = method

@functools.wraps(plainly)
def decorated(x):
    return plainly(x)

def count():
    global TABLE
    TABLE += "."
    return TABLE
"""


@pytest.fixture
def script() -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(_SCRIPT, names)
    return names


def sent(script: dict[str, Any], function: Callable[..., Any], mark: str) -> Callable[..., Any]:
    initializer = dump((script["fill"], ("filled",)), "the initializer")
    loaded: Callable[..., Any] = load(dump(Initialized(mark, initializer, function), "the function"))
    return loaded


def test_functions_of_a_script_see_the_globals_that_the_initializer_sets(script: dict[str, Any]) -> None:
    plainly, reader = script["plainly"], script["Reader"]()
    for function in (plainly, partial(plainly), reader.method, reader, script["decorated"]):
        assert sent(script, function, "one executor")(3) == ("filled", "filled!", 3)


def test_what_a_call_sets_later_stays_set(script: dict[str, Any]) -> None:
    count = sent(script, script["count"], "another executor")
    assert (count(), count()) == ("filled.", "filled..")


def test_functions_of_one_executor_share_one_call_of_the_initializer(tmp_path: Path) -> None:
    initializer = dump((_note, (str(tmp_path / "calls"),)), "the initializer")
    for function in (len, max):
        called = load(dump(Initialized("a third executor", initializer, function), "the function"))
        called("abc")
        called("abc")
    assert (tmp_path / "calls").read_text() == "x"


def _note(path: str) -> None:
    with open(path, "a") as file:
        file.write("x")
