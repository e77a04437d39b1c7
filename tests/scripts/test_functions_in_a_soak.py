"""The soak's checks of functions notice calls that share objects, and pass if calls share none."""

import copy
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from faults import functions
from faults.processes import Wrong


class _Pool:
    """An executor that runs calls at once; `taken` transforms arguments, `given` transforms results."""

    def __init__(self, taken: Callable[[Any], Any], given: Callable[[Any], Any]) -> None:
        self._taken, self._given = taken, given

    def submit(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        called, args, kwargs = self._taken((function, args, kwargs))
        future.set_result(self._given(called(*args, **kwargs)))
        return future

    def map(self, function: Callable[..., Any], *items: Any, **_: Any) -> list[Any]:
        return [self.submit(function, *each).result() for each in zip(*items, strict=True)]

    def shutdown(self) -> None: ...


def _itself(value: Any) -> Any:
    return value


def _rounds(
    taken: Callable[[Any], Any], given: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def within(kind: str, thing: Any, count: int) -> list[Any]:
        return _Pool(taken, given).map(functions.changed, [kind] * count, [thing] * count)

    monkeypatch.setattr(functions, "changed_within", within)
    played = functions.Functions(lambda: _Pool(taken, given), 1)
    for _ in range(20):
        played.begin()
        played.finish()
    played.check()
    assert set(played.outcomes) == {"right"}


def test_calls_with_objects_of_their_own_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    _rounds(copy.deepcopy, copy.deepcopy, monkeypatch)


def test_calls_that_share_their_arguments_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises((Wrong, KeyError, StopIteration)):
        _rounds(_itself, copy.deepcopy, monkeypatch)


def test_results_that_change_later_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Wrong, match="buffers"):
        _rounds(copy.deepcopy, _itself, monkeypatch)
