"""What notebooks show: escaped tables, and bars that are updated in the thread of the iteration."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from desk import SAT, Desk
from waiting import poll_until

from mallob_py.api.calls.sinks import LazyResults, MapResults
from mallob_py.api.shown import NO_BAR, html_table, progress_bar
from mallob_py.service.telemetry.status import ServiceStatus, write_status


class FakeTqdm:
    """Records what a bar of tqdm would show."""

    bars: list[FakeTqdm]

    def __init__(self, total: int | None, unit: str) -> None:
        self.total, self.unit, self.n = total, unit, 0.0
        self.is_closed = False
        self.threads = {threading.get_ident()}
        self.bars.append(self)

    def __bool__(self) -> bool:
        raise TypeError("as tqdm's, without a total")

    def update(self, more: float) -> None:
        self.n += more
        self.threads.add(threading.get_ident())

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> list[FakeTqdm]:
    module: Any = ModuleType("tqdm.auto")
    module.tqdm = FakeTqdm
    monkeypatch.setitem(sys.modules, "tqdm", ModuleType("tqdm"))
    monkeypatch.setitem(sys.modules, "tqdm.auto", module)
    monkeypatch.setattr(FakeTqdm, "bars", [], raising=False)
    return FakeTqdm.bars


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    opened = Desk(tmp_path / "<b>api")
    yield opened
    opened.close()


def html_of(shown: object) -> str:
    """Return the HTML that IPython shows for an object."""
    return str(getattr(shown, "_repr_html_")())  # noqa: B009


def results_of(count: int, **how: Any) -> MapResults[int]:
    settings = {"is_ordered": True, "is_collecting": False, "deadline_s": None, "cancel": lambda: None} | how
    return MapResults(count, bar=progress_bar(True, count, "call"), **settings)


def test_a_bar_counts_done_calls_while_the_first_is_awaited(bars: list[FakeTqdm]) -> None:
    results = results_of(3)
    results.sink.deliver([1, 2], [True, True], [11, 12])

    def end_the_first() -> None:
        poll_until(lambda: bars[0].n == 2)
        results.sink.deliver([0], [True], [10])

    thread = threading.Thread(target=end_the_first)
    thread.start()
    assert list(results) == [10, 11, 12]
    thread.join()
    assert [(bar.total, bar.unit, bar.n, bar.is_closed) for bar in bars] == [(3, " calls", 3, True)]
    assert bars[0].threads == {threading.get_ident()}


def test_a_bar_ends_with_an_iteration_that_fails(bars: list[FakeTqdm]) -> None:
    results = results_of(3)
    results.sink.deliver([0], [False], [ValueError("no")])
    with pytest.raises(ValueError, match="no"):
        next(results)
    assert bars[0].is_closed


def test_a_bar_of_results_without_a_length_counts_what_is_taken(bars: list[FakeTqdm]) -> None:
    def submit(item: tuple[Any, ...]) -> Future[int]:
        future: Future[int] = Future()
        future.set_result(item[0])
        return future

    settings: dict[str, Any] = {"is_ordered": True, "is_collecting": False, "deadline_s": None}
    results = LazyResults(submit, zip(range(5)), 2, bar=progress_bar(True, None, "call"), **settings)
    assert list(results) == list(range(5))
    assert [(bar.total, bar.n, bar.is_closed) for bar in bars] == [(None, 5, True)]


@pytest.mark.parametrize("how", ["in order", "as they end"])
def test_a_group_of_formulas_has_a_bar(desk: Desk, bars: list[FakeTqdm], how: str) -> None:
    group = desk.client.map_formulas([[[1]], [[2]]], progress=True)
    jobs = [desk.take() for _ in range(2)]
    desk.say(SAT)(*jobs[1])

    def end_the_first() -> None:
        poll_until(lambda: bars and bars[0].n == 1)
        desk.say(SAT)(*jobs[0])

    thread = threading.Thread(target=end_the_first)
    thread.start()
    ended = list(group) if how == "in order" else list(group.as_completed())
    thread.join()
    assert len(ended) == 2
    assert [(bar.total, bar.unit, bar.n, bar.is_closed) for bar in bars] == [(2, " jobs", 2, True)]


def test_without_tqdm_a_bar_is_refused_before_anything_is_handed_in(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.delitem(sys.modules, "tqdm.auto", raising=False)
    assert progress_bar(False, 3, "call") is NO_BAR
    with pytest.raises(ImportError, match=r"progress=True needs tqdm: pip install 'mallob-py\[progress\]'"):
        desk.client.map_formulas([[[1]]], progress=True)
    assert desk.directory.take() == []


def test_all_that_is_shown_is_escaped(desk: Desk) -> None:
    assert html_table("<i>", {"<b>": "&"}) == (
        "<div><b>&lt;i&gt;</b><table><tr><th>&lt;b&gt;</th><td>&amp;</td></tr></table></div>"
    )
    shown = html_of(desk.client)
    assert "&lt;b&gt;api" in shown
    assert "none is running" in shown
    status = ServiceStatus(time=time.time(), ranks=3, pes=6, busy=2, states={"running": 2})
    write_status(desk.client.api_dir, status)
    shown = html_of(desk.client)
    for row in ("<th>ranks</th><td>3</td>", "<td>2 of 6</td>", "<th>jobs running</th><td>2</td>"):
        assert row in shown
