"""A client that waits for its reply at a named pipe gets the reply there; no other client must wait for
it.
"""

import contextlib
import errno
import fcntl
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hand_clock import Clock
from waiting import DEADLINE_S, PipeReader, poll_until

from mallob_py.service.jobs.reply import Reply
from mallob_py.service.store import reply_pipes
from mallob_py.service.store.directory import JobDirectory


@pytest.fixture
def directory(tmp_path: Path, clock: Clock) -> Iterator[JobDirectory]:
    opened = JobDirectory(tmp_path / "api", tmp_dir=tmp_path, clock=clock)
    yield opened
    opened.close()


@pytest.fixture
def job(directory: JobDirectory) -> int:
    (directory.path / "in" / "a.json").write_text(json.dumps({"user": "u", "name": "a"}))
    (incoming,) = directory.take()
    return incoming.internal_id


@pytest.fixture
def pipe(directory: JobDirectory) -> Path:
    path = directory.path / "out" / "u.a.json"
    os.mkfifo(path)
    return path


class Reader:
    """A thread that reads a path to its end."""

    def __init__(self, path: Path) -> None:
        self._contents: list[bytes] = []
        self._thread = threading.Thread(target=lambda: self._contents.append(path.read_bytes()), daemon=True)
        self._thread.start()

    @property
    def content(self) -> bytes:
        self._thread.join(DEADLINE_S)
        (content,) = self._contents
        return content

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()


def is_held(path: Path) -> bool:
    """Tell whether this process has the file open, also if the file's name was removed."""
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith(f"{path} "):
                return True
    return False


def body_of(size_bytes: int) -> bytes:
    return json.dumps({"answer": "x" * size_bytes}).encode()


def turn_until(directory: JobDirectory, clock: Clock, condition: Callable[[], Any]) -> None:
    def turn() -> Any:
        clock.now = max(clock.now, directory.deadline_s)
        directory.take()
        return condition()

    poll_until(turn)


def reading(pipe: Path) -> int:
    """Open the pipe for reading; return the descriptor, from which the test reads."""
    return os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)


@pytest.mark.parametrize("size_bytes", [10, 5_000_000])
def test_who_waits_at_the_pipe_reads_what_the_file_holds(
    directory: JobDirectory, job: int, pipe: Path, clock: Clock, size_bytes: int
) -> None:
    reader = PipeReader(pipe)
    body = body_of(size_bytes)
    directory.reply(job, "u.a", Reply(body))
    assert pipe.is_file()
    assert pipe.read_bytes() == body
    turn_until(directory, clock, reader.is_over)
    reader.close()
    assert reader.received == body
    assert directory.deadline_s > clock.now


def test_who_opens_the_path_after_the_reply_reads_the_file(
    directory: JobDirectory, job: int, pipe: Path
) -> None:
    directory.reply(job, "u.a", Reply(body_of(10)))
    assert Reader(pipe).content == body_of(10)


def test_a_reader_that_comes_between_look_up_and_reply_is_served(
    directory: JobDirectory, job: int, pipe: Path, clock: Clock
) -> None:
    node = os.open(pipe, os.O_PATH)
    directory.reply(job, "u.a", Reply(body_of(10)))
    late = Reader(Path(f"/proc/self/fd/{node}"))
    turn_until(directory, clock, lambda: late.is_done)
    assert late.content == body_of(10)
    os.close(node)


def test_a_pipe_without_reader_is_given_up(
    directory: JobDirectory, job: int, pipe: Path, clock: Clock
) -> None:
    began_s = clock.now
    directory.reply(job, "u.a", Reply(body_of(10)))
    assert is_held(pipe)
    turn_until(directory, clock, lambda: not is_held(pipe))
    assert clock.now < began_s + 2


def test_a_reader_that_takes_nothing_comes_to_an_end(
    directory: JobDirectory, job: int, pipe: Path, clock: Clock
) -> None:
    descriptor = reading(pipe)
    body = body_of(5_000_000)
    directory.reply(job, "u.a", Reply(body))
    held_bytes = fcntl.fcntl(descriptor, fcntl.F_GETPIPE_SZ)
    clock.now += reply_pipes.GIVE_UP_S + 1
    directory.take()
    received = b""
    while block := os.read(descriptor, 1 << 16):
        received += block
    assert received == body[:held_bytes]
    os.close(descriptor)


def test_a_reader_that_leaves_disturbs_nobody(
    directory: JobDirectory, job: int, pipe: Path, clock: Clock
) -> None:
    descriptor = reading(pipe)
    directory.reply(job, "u.a", Reply(body_of(5_000_000)))
    os.close(descriptor)
    clock.now += 1
    directory.take()
    assert directory.deadline_s > clock.now


def test_only_so_many_readers_are_waited_for(
    directory: JobDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply_pipes, "PIPES_MAX", 2)
    descriptors = []
    for number in range(3):
        (directory.path / "in" / "a.json").write_text(json.dumps({"user": "u", "name": f"{number}"}))
        (incoming,) = directory.take()
        path = directory.path / "out" / f"u.{number}.json"
        os.mkfifo(path)
        descriptors.append(reading(path))
        directory.reply(incoming.internal_id, f"u.{number}", Reply(body_of(5_000_000)))
    while os.read(descriptors[0], 1 << 16):
        pass
    for descriptor in descriptors[1:]:
        while True:
            try:
                assert os.read(descriptor, 1 << 16)
            except BlockingIOError:
                break
    for descriptor in descriptors:
        os.close(descriptor)


def test_a_reply_that_was_decided_before_a_crash_reaches_the_pipe(tmp_path: Path, clock: Clock) -> None:
    first = JobDirectory(tmp_path / "api", tmp_dir=tmp_path, clock=clock)
    (first.path / "in" / "a.json").write_text(json.dumps({"user": "u", "name": "a"}))
    (incoming,) = first.take()
    pipe = first.path / "out" / "u.a.json"
    os.mkfifo(pipe)
    body = body_of(10)
    (first.path / "journal" / f"{incoming.internal_id}.reply.u.a.json").write_bytes(body)
    first.close()
    descriptor = reading(pipe)
    second = JobDirectory(tmp_path / "api", tmp_dir=tmp_path, clock=clock)
    assert os.read(descriptor, 1 << 16) == body
    second.close()
    os.close(descriptor)


def test_what_is_no_pipe_is_replaced_as_ever(directory: JobDirectory, job: int, tmp_path: Path) -> None:
    path = directory.path / "out" / "u.a.json"
    target = tmp_path / "pipe"
    os.mkfifo(target)
    path.symlink_to(target)
    directory.reply(job, "u.a", Reply(body_of(10)))
    assert path.read_bytes() == body_of(10)
    assert not path.is_symlink()


@pytest.mark.parametrize("needed_for", ["out/u.a.json", "journal/1.reply.u.a.json", "/proc/self/fd/"])
def test_a_pipe_keeps_its_name_until_a_descriptor_is_free_for_it(
    directory: JobDirectory,
    job: int,
    pipe: Path,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    needed_for: str,
) -> None:
    descriptor = reading(pipe)
    opened = os.open
    failed: list[str] = []

    def fail(path: str, *rest: Any, **options: Any) -> int:
        if needed_for in os.fspath(path):
            failed.append(path)
            raise OSError(errno.EMFILE, "Too many open files")
        return opened(path, *rest, **options)

    with monkeypatch.context() as shortage:
        shortage.setattr(os, "open", fail)
        directory.reply(job, "u.a", Reply(body_of(10)))
    assert failed
    assert pipe.is_fifo()
    turn_until(directory, clock, lambda: not directory.unpublished)
    assert os.read(descriptor, 1 << 16) == body_of(10)
    assert pipe.read_bytes() == body_of(10)
    os.close(descriptor)
