"""The web page of a batch scheduler: its queue, its slots, and the jobs that had the slots."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browser import browsing, needs_browser
from test_live import Make, scheduler_maker, the_file
from waiting import poll_until
from web_process import WebServer

pytest.importorskip("starlette", reason="needs the extra web")
pytest.importorskip("uvicorn", reason="needs the extra web")


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    yield from scheduler_maker(tmp_path)


@pytest.fixture
def show(tmp_path: Path) -> Iterator[Callable[..., WebServer]]:
    """Yield a function that starts web servers for folders without a service."""
    made: list[WebServer] = []

    def web(*options: str) -> WebServer:
        api_dir = tmp_path / f"api{len(made)}"
        api_dir.mkdir()
        made.append(WebServer(api_dir, *options))
        return made[-1]

    yield web
    for one in made:
        assert one.stop() == (0, "")


def test_the_operator_sees_the_queue_and_who_has_which_slots(
    make: Make, show: Callable[..., WebServer], tmp_path: Path
) -> None:
    scheduler = make("--policy", "easy", slots=4)
    web = show("--batch-dir", str(scheduler.folder))
    go, waits = the_file(tmp_path, "go")
    first = scheduler.submit("REQUIRED_TIME 600000; NODES 3; JOB_NAME wide", waits)
    second = scheduler.submit("REQUIRED_TIME 600000; NODES 2", "true")
    poll_until(lambda: scheduler.queue().running, scheduler.story)
    assert web.get("/api/jobs").json["batch"] is True
    told = web.get("/api/batch").json
    assert [job["name"] for job in told["jobs"]["running"]] == ["wide"]
    assert told["jobs"]["waiting"][0]["reason"] == "wants 2 slots, 1 free"
    (bar,) = told["chart"]["bars"]
    assert (bar["job"], len(bar["slots"]), bar["end_s"]) == (first, 3, None)
    go.touch()
    assert scheduler.ended(second).state == "exit code 0"
    bars = web.get("/api/batch").json["chart"]["bars"]
    assert [bar["job"] for bar in bars] == [first, second]
    assert bars[0]["end_s"] <= bars[1]["start_s"]
    assert all(bar["end_s"] > bar["start_s"] for bar in bars)
    assert web.ask("GET", "/api/batch", token="").status == 401


def test_without_a_scheduler_or_its_folder_the_reason_is_told(
    show: Callable[..., WebServer], tmp_path: Path
) -> None:
    web = show()
    assert web.get("/api/jobs").json["batch"] is False
    assert "--batch-dir" in web.get("/api/batch").error["message"]
    told = show("--batch-dir", str(tmp_path / "none")).get("/api/batch").json
    assert "no scheduler runs" in told["error"]
    assert (told["jobs"], told["chart"]) == (None, None)


@needs_browser
def test_the_page_draws_slots_and_tells_why_jobs_wait(
    make: Make, show: Callable[..., WebServer], tmp_path: Path
) -> None:
    scheduler = make("--policy", "easy", slots=4)
    web = show("--batch-dir", str(scheduler.folder))
    go, waits = the_file(tmp_path, "go")
    scheduler.submit("REQUIRED_TIME 600000; NODES 3; JOB_NAME wide", waits)
    scheduler.submit("REQUIRED_TIME 600000; NODES 2; JOB_NAME fails", "exit 3")
    with browsing() as browser:
        browser.open(f"{web.url}#token={web.token}")
        browser.await_truth("at('batch-jobs').innerText.includes('wants 2 slots, 1 free')")
        assert browser.evaluate("at('batch-what').textContent") == "3 of 4 slots taken, policy easy"
        # The chart has four rows of slots, and one bar over three rows.
        assert browser.evaluate("document.querySelectorAll('#gantt rect.empty').length") == 4
        assert browser.evaluate("document.querySelectorAll('#gantt g rect').length") == 1
        assert "wide: 3 slots" in browser.evaluate("document.querySelector('#gantt [data-tip]').dataset.tip")
        browser.evaluate("at('gantt').focus()")
        browser.press("Home")
        assert "wide: 3 slots" in browser.evaluate("at('told').textContent")
        go.touch()
        failed = "document.querySelector('#batch-jobs .failed')"
        browser.await_truth(f"{failed} && {failed}.textContent === 'exit code 3'")
        browser.await_truth("document.querySelectorAll('#gantt g').length === 2")
        scheduler.kill()
        browser.await_truth("at('batch-error').textContent.includes('no scheduler runs')")
        assert browser.complaints == []
