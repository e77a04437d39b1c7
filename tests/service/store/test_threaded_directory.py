"""Calls of a threaded directory never wait for the disk, and nothing is lost."""

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from waiting import DEADLINE_S, poll_until

from mallob_py.service import JobFileError, ServiceError
from mallob_py.service.jobs.reply import Reply
from mallob_py.service.store.directory import Incoming, JobDirectory, ThreadedDirectory


class Stalling:
    """A disk whose flushes take as long as the test wants."""

    is_slow = True

    def __init__(self) -> None:
        self.is_fast = threading.Event()
        self.is_fast.set()
        self.flushes = 0
        self.stalled = threading.Event()

    def flush(self, paths: Iterable[str | Path]) -> None:
        list(paths)
        self.flushes += 1
        if not self.is_fast.is_set():
            self.stalled.set()
            assert self.is_fast.wait(DEADLINE_S)


class Box:
    """A client's folder under test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.disk = Stalling()
        self.said: list[tuple[str, threading.Thread]] = []
        self.directory = self.open()

    def open(self) -> ThreadedDirectory:
        def open_directory(log: Callable[[str], None]) -> JobDirectory:
            return JobDirectory(self.folder / "api", tmp_dir=self.folder, log=log, flush_policy=self.disk)

        return ThreadedDirectory(
            open_directory, lambda message: self.said.append((message, threading.current_thread()))
        )

    def drop(self, name: str) -> None:
        hidden = self.directory.path / "in" / f"~{name}"
        hidden.write_text(json.dumps({"user": "u", "name": name, "application": "NOOP"}))
        hidden.rename(hidden.with_name(f"{name}.json"))

    def take(self, count: int) -> list[Incoming]:
        taken: list[Incoming] = []

        def is_there() -> bool:
            taken.extend(self.directory.take())
            return len(taken) >= count

        poll_until(is_there)
        return taken

    def replies(self) -> set[str]:
        return {path.name for path in (self.directory.path / "out").iterdir()}


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    box = Box(tmp_path)
    yield box
    box.disk.is_fast.set()
    box.directory.close()


def test_files_are_claimed_and_replies_published_by_the_other_thread(box: Box) -> None:
    for name in ("a", "b"):
        box.drop(name)
    taken = box.take(2)
    assert [incoming.file_name for incoming in taken] == ["a.json", "b.json"]
    for incoming in taken:
        box.directory.reply(incoming.internal_id, f"u.{incoming.file_name[0]}", Reply(b"{}"))
    poll_until(lambda: box.replies() == {"u.a.json", "u.b.json"})
    assert not os.listdir(box.directory.path / "journal")


def test_nobody_waits_for_a_disk_that_stalls_and_what_gathers_is_flushed_together(box: Box) -> None:
    names = [f"{number:02}" for number in range(20)]
    for name in names:
        box.drop(name)
    taken = box.take(20)
    box.disk.is_fast.clear()
    box.directory.reply(taken[0].internal_id, "u.00", Reply(b"{}"))
    assert box.disk.stalled.wait(DEADLINE_S)
    for name, incoming in zip(names[1:], taken[1:], strict=True):
        box.directory.reply(incoming.internal_id, f"u.{name}", Reply(b"{}"))
    box.drop("late")
    assert box.directory.take() == []  # returns at once, although the disk still stalls
    flushes = box.disk.flushes
    box.disk.is_fast.set()
    poll_until(lambda: len(box.replies()) == 20)
    assert box.disk.flushes - flushes < 20
    assert [incoming.file_name for incoming in box.take(1)] == ["late.json"]


def test_closing_waits_for_what_was_asked_for(box: Box) -> None:
    box.drop("a")
    box.drop("b")
    first, second = box.take(2)
    box.disk.is_fast.clear()
    box.directory.reply(first.internal_id, "u.a", Reply(b"{}"))
    box.directory.refuse(second, JobFileError("", "no", "u.b"))
    closing = threading.Thread(target=box.directory.close)
    closing.start()
    assert box.disk.stalled.wait(DEADLINE_S)
    box.disk.is_fast.set()
    closing.join(DEADLINE_S)
    assert not closing.is_alive()
    assert box.replies() == {"u.a.json", "u.b.json"}
    assert set(box.open().finished) == {"u.a", "u.b"}


def test_files_of_a_former_service_come_back_and_the_loop_is_told_when_all_are_there(box: Box) -> None:
    for number in range(100):
        box.drop(f"{number:02}")
    box.take(100)
    box.directory.close()
    box.directory = box.open()
    assert box.directory.recovered_count == 100
    assert [incoming.file_name for incoming in box.take(100)] == [
        f"{number:02}.json" for number in range(100)
    ]
    poll_until(lambda: box.directory.take() == [] and box.directory.recovered_count == 0)


def test_complaints_of_the_thread_are_made_by_the_loop(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    box.drop("a")
    (incoming,) = box.take(1)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mallob_py.service.store.journal.Journal.decide", fail)
    box.directory.reply(incoming.internal_id, "u.a", Reply(b"{}"))
    poll_until(lambda: box.directory.deadline_s < 0)
    assert box.said == []
    box.directory.take()
    ((said, thread),) = box.said
    assert "No space left on device" in said
    assert thread is threading.current_thread()


def test_what_goes_wrong_in_the_thread_is_raised_in_the_loop(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ServiceError("the folder is lost")

    monkeypatch.setattr(JobDirectory, "take", fail)
    with pytest.raises(ServiceError, match="is lost"):
        poll_until(lambda: box.directory.take() == [] and False)


def test_a_checkpoint_is_there_from_when_it_is_given_also_while_an_older_one_is_written(box: Box) -> None:
    box.drop("a")
    (incoming,) = box.take(1)
    job = incoming.internal_id
    box.disk.is_fast.clear()
    assert not box.directory.is_saved(job)
    box.directory.save(job, b"older")
    assert box.directory.is_saved(job)
    assert box.directory.saved(job) == b"older"
    assert box.disk.stalled.wait(DEADLINE_S)
    assert box.directory.saved(job) == b"older"
    box.directory.save(job, b"newer")
    assert box.directory.saved(job) == b"newer"
    box.disk.is_fast.set()
    box.directory.close()
    box.directory = box.open()
    assert box.directory.is_saved(job)
    assert box.directory.saved(job) == b"newer"
