"""The reports of a malleable or evolving job's ranks to its scheduler."""

from pathlib import Path

import pytest

from mallob_py.cli.malleable_job import Reports, allotted, evolves
from mallob_py.malleable import report_progress, wish_for_processes
from mallob_py.malleable.expectation import Expectation
from mallob_py.protocol.progress import Progress


@pytest.mark.parametrize(
    ("kind", "slots", "wishes"), [("malleable", 2, False), ("evolving", 2, True), ("rigid", None, False)]
)
def test_only_an_evolving_job_wishes(
    kind: str, slots: int | None, wishes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nodes").write_text("localhost\nlocalhost\n")
    monkeypatch.setenv("ELASTIC", kind)
    monkeypatch.setenv("JOB_SOCKET", str(tmp_path / "orders.sock"))
    monkeypatch.setenv("NODE_FILE", str(tmp_path / "nodes"))
    assert (allotted(), evolves()) == (slots, wishes)
    monkeypatch.delenv("JOB_SOCKET")
    assert (allotted(), evolves()) == (None, False)


def test_a_wish_is_told_again_now_and_then_and_when_the_scheduler_did_not_hear_it() -> None:
    told: list[int] = []
    deaf = True

    def tell(wish: int) -> None:
        if deaf:
            raise OSError("nobody listens")
        told.append(wish)

    reports = Reports(Expectation(), tell, lambda done: None)
    reports.look(None, 0.0)
    for at in range(8):
        reports.look(Progress(float(at), float(at) + 20.0), float(at))
    deaf = False
    for _ in range(2):
        reports.look(Progress(7.0, 27.0), 7.0)
    assert told == [10], "at the first look that reaches the scheduler, and no more"
    for _ in range(30):
        reports.look(Progress(7.0, 27.0), 7.0)
    assert told == [10] * 4


def test_a_job_without_wishes_reports_each_progress_once_and_to_a_scheduler_that_is_there() -> None:
    told: list[float] = []

    def tell(done: float) -> None:
        told.append(done)
        if done == 2.0:
            raise OSError("nobody listens")

    reports = Reports(None, lambda wish: pytest.fail("no wish"), tell)
    reports.look(None, 0.0)
    for done in (0.0, 1.0, 1.0, 2.0, 2.0, 7.0):
        reports.look(Progress(done, 20.0), done)
    assert told == [0.0, 1.0, 2.0, 7.0]


def test_a_wish_or_progress_without_a_scheduler_has_no_effect(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for variable in ("JOB_SOCKET", "SCHEDULER_SOCKET", "SCHEDULER_PORT"):
        monkeypatch.delenv(variable, raising=False)
    wish_for_processes(3)
    report_progress(3.5)
    # ElasticJobScheduler does not know wishes.
    monkeypatch.setenv("SCHEDULER_IP", "127.0.0.2")
    monkeypatch.setenv("SCHEDULER_PORT", "1")
    wish_for_processes(3)
    report_progress(3.5)
    with pytest.raises(ValueError, match="0 processes are wished for, not 1 or more"):
        wish_for_processes(0)
    with pytest.raises(ValueError, match="nan is no amount of work"):
        report_progress(float("nan"))
    monkeypatch.setenv("JOB_SOCKET", str(tmp_path / "orders.sock"))
    monkeypatch.setenv("SCHEDULER_SOCKET", str(tmp_path / "scheduler.sock"))
    with pytest.raises(FileNotFoundError):
        wish_for_processes(3)
    with pytest.raises(FileNotFoundError):
        report_progress(3.5)


def test_a_rigid_job_takes_no_orders_of_the_job_that_submitted_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("SCHEDULER_PORT", raising=False)
    monkeypatch.setenv("JOB_SOCKET", str(tmp_path / "orders.sock"))
    monkeypatch.setenv("SCHEDULER_SOCKET", str(tmp_path / "scheduler.sock"))
    monkeypatch.setenv("ELASTIC", "rigid")
    wish_for_processes(3)
    monkeypatch.setenv("ELASTIC", "evolving")
    with pytest.raises(FileNotFoundError):
        wish_for_processes(3)
