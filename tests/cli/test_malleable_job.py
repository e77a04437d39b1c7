"""What the ranks of a malleable or evolving job tell its scheduler."""

from pathlib import Path

import pytest

from mallob_py.cli.malleable_job import Wishes, allotted, evolves
from mallob_py.malleable import wish_for_processes
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

    wishes = Wishes(Expectation(), tell)
    wishes.look(None, 0.0)
    for at in range(8):
        wishes.look(Progress(float(at), float(at) + 20.0), float(at))
    deaf = False
    for _ in range(2):
        wishes.look(Progress(7.0, 27.0), 7.0)
    assert told == [10], "at the first look that reaches the scheduler, and no more"
    for _ in range(30):
        wishes.look(Progress(7.0, 27.0), 7.0)
    assert told == [10] * 4


def test_a_wish_without_a_scheduler_has_no_effect(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in ("JOB_SOCKET", "SCHEDULER_SOCKET", "SCHEDULER_PORT"):
        monkeypatch.delenv(variable, raising=False)
    wish_for_processes(3)
    # ElasticJobScheduler knows no wishes.
    monkeypatch.setenv("SCHEDULER_IP", "127.0.0.2")
    monkeypatch.setenv("SCHEDULER_PORT", "1")
    wish_for_processes(3)
    with pytest.raises(ValueError, match="0 processes are wished for, not 1 or more"):
        wish_for_processes(0)
    monkeypatch.setenv("JOB_SOCKET", str(tmp_path / "orders.sock"))
    monkeypatch.setenv("SCHEDULER_SOCKET", str(tmp_path / "scheduler.sock"))
    with pytest.raises(FileNotFoundError):
        wish_for_processes(3)
