"""The thread of an executor handles every call from other threads."""

import os
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from waiting import DEADLINE_S

from mallob_py.api.calls import hub as hub_module
from mallob_py.api.calls.hub import Hub
from mallob_py.api.calls.lane import JobEnded, Terms
from mallob_py.api.calls.sinks import CallFuture, FutureSink
from mallob_py.api.executor import Executor
from mallob_py.kit.calls.values import pickled


class _NoClient:
    """A client that submits nothing."""

    def close(self) -> None: ...


class _DeafClient(_NoClient):
    """A client whose jobs get no reply."""

    def __init__(self) -> None:
        self.jobs: list[Future[Any]] = []

    def submit(self, **terms: Any) -> Future[Any]:
        self.jobs.append(Future())
        return self.jobs[-1]


def test_a_call_that_comes_just_as_another_one_is_heard_silences_none_after_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    client: Any = _NoClient()
    hub = Hub(client, lambda: False, os.geteuid())
    read, heard = os.eventfd_read, [threading.Event() for _ in range(3)]
    told: list[int] = []

    def read_after_another_call(descriptor: int) -> int:
        if not told:
            told.append(1)
            hub.call(heard[1].set)
        return read(descriptor)

    monkeypatch.setattr(hub_module.os, "eventfd_read", read_after_another_call)
    hub.call(heard[0].set)
    assert heard[0].wait(DEADLINE_S)
    assert heard[1].wait(DEADLINE_S)
    hub.call(heard[2].set)
    assert heard[2].wait(DEADLINE_S)
    hub.close()
    hub.join()


def test_an_interrupt_ends_the_calls_before_it_and_no_later_call() -> None:
    client: Any = _NoClient()  # a job that is begun ends at once with an error, and its calls with it
    hub = Hub(client, lambda: False, os.geteuid())
    asked, goes_on, over = threading.Event(), threading.Event(), threading.Event()

    def pause() -> None:
        asked.set()
        goes_on.wait()

    hub.call(pause)
    assert asked.wait(DEADLINE_S)
    before: CallFuture[Any] = CallFuture()
    after: CallFuture[Any] = CallFuture()
    hub.submit(Terms(), pickled(abs), ((1,), {}), before)
    hub.cancel_all()
    hub.submit(Terms(), pickled(abs), ((2,), {}), after)
    hub.call(over.set)
    goes_on.set()
    assert over.wait(DEADLINE_S)
    assert isinstance(after.exception(DEADLINE_S), JobEnded)
    assert before.cancelled()
    hub.close()
    hub.join()


@pytest.mark.parametrize("moment", ["before the call is taken in", "while the call is taken in"])
def test_a_call_cancelled_before_the_hub_knows_it_needs_no_job(
    monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    client: Any = _DeafClient()
    hub = Hub(client, lambda: False, os.geteuid())
    asked, goes_on = threading.Event(), threading.Event()
    future: CallFuture[Any] = CallFuture()

    def pause() -> None:
        asked.set()
        goes_on.wait()

    def add_cancelled(sink: FutureSink, one: CallFuture[Any]) -> None:
        one.cancel()
        add(sink, one)

    hub.call(pause)
    assert asked.wait(DEADLINE_S)
    hub.submit(Terms(), pickled(abs), ((1,), {}), future)
    if moment.startswith("before"):
        future.cancel()
    else:
        add = FutureSink.add
        monkeypatch.setattr(FutureSink, "add", add_cancelled)
    hub.close()
    goes_on.set()
    joining = threading.Thread(target=hub.join, daemon=True)
    joining.start()
    joining.join(DEADLINE_S)
    has_ended = not joining.is_alive()
    hub.break_off(RuntimeError)  # so that a failure of this test ends, too
    assert has_ended
    assert moment.startswith("while") or not client.jobs


def test_a_stopped_call_ends_the_calls_of_its_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopped(KeyboardInterrupt): ...

    done: list[str] = []
    monkeypatch.setattr(Executor, "interrupt", lambda _: done.append("interrupt"))
    monkeypatch.setattr(Executor, "shutdown", lambda _: done.append("shutdown"))
    with pytest.raises(Stopped), object.__new__(Executor):
        raise Stopped
    assert done == ["interrupt", "shutdown"]


def test_workers_get_the_entries_of_the_import_path_that_are_folders(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    odd: list[Any] = ["", None, b"/bytes", 3, os.fsdecode(b"/\xff")]
    monkeypatch.setattr(sys, "path", [str(tmp_path), *odd, "/last"])
    assert hub_module.import_path() == [str(tmp_path), "/last"]
