"""Limits of a live scheduler on requests: a request beyond a limit is refused, and the error names the
limit.
"""

import asyncio
import socket
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mallob_py.batch.live import requests, server
from mallob_py.batch.live.folder import Folder, FolderError
from mallob_py.batch.live.requests import LiveError, Nodes, Refused, Submit, ask
from mallob_py.batch.live.script import SCRIPT_MAX_BYTES
from mallob_py.batch.live.server import _request_or_notice, _Server
from mallob_py.malleable.sockets import listen

SCRIPT = "#!/bin/sh\n#REQUIRED_TIME 1000\n#NODES 1\n"


def refusal(waiting: int, script: str) -> str:
    """Return why a scheduler with `waiting` waiting jobs, whose folder can save no further job, refuses a
    script.
    """
    one: Any = object.__new__(_Server)
    one._scheduler = type("Waiting", (), {"waiting": range(waiting)})
    one._nodes = SimpleNamespace(book=SimpleNamespace(most=1))
    one._folder, one._next = type("Kept", (), {"add": _keep}), 1
    one._epoch_s, one.default_s = 0.0, 60.0
    answer = one._submit(Submit(script, "job", "/", {}))
    assert isinstance(answer, Refused)
    return answer.error


def _keep(*_: object) -> None:
    raise OSError("kept")


def test_so_many_jobs_may_wait_and_no_more() -> None:
    assert refusal(server.WAITING_MAX - 1, SCRIPT) == "the job cannot be saved: kept"
    assert refusal(server.WAITING_MAX, SCRIPT) == "100000 jobs wait already"


def test_a_script_may_be_so_long_and_no_longer() -> None:
    padding = "#" * (SCRIPT_MAX_BYTES - len(SCRIPT))
    assert refusal(0, SCRIPT + padding) == "the job cannot be saved: kept"
    assert refusal(0, SCRIPT + padding + "#") == f"the script has more than {SCRIPT_MAX_BYTES} bytes"


@pytest.mark.parametrize(("first", "is_refused"), [(b"{", False), (b"E", True)])
def test_only_a_request_may_be_long(first: bytes, is_refused: bool) -> None:
    line = first + b"x" * (1 << 17) + b"\n"

    async def taken() -> bytes:
        reader = asyncio.StreamReader(limit=1 << 16)
        reader.feed_data(line)
        reader.feed_eof()
        return await _request_or_notice(reader)

    if is_refused:
        with pytest.raises(ValueError, match="the line is too long"):
            asyncio.run(taken())
    else:
        assert asyncio.run(taken()) == line


def test_a_request_may_be_so_long_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.requests, "REQUEST_MAX_BYTES", 1 << 17)

    async def taken(size_bytes: int) -> bytes:
        reader = asyncio.StreamReader(limit=1 << 16)
        reader.feed_data(b"{" + b"x" * size_bytes + b"\n")
        reader.feed_eof()
        return await _request_or_notice(reader)

    assert len(asyncio.run(taken(1 << 16))) > 1 << 16
    with pytest.raises(ValueError, match="the line is too long"):
        asyncio.run(taken(1 << 19))


def test_of_connections_that_say_nothing_the_oldest_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_SILENT_MAX", 2)

    async def closed() -> list[bool]:
        one: Any = object.__new__(_Server)
        one._silent = {}
        ends = [socket.socketpair() for _ in range(3)]
        tasks = []
        for ours, _ in ends:
            reader, writer = await asyncio.open_unix_connection(sock=ours)
            tasks.append(asyncio.create_task(one._take(reader, writer)))
            await asyncio.sleep(0)
        found = []
        for _, theirs in ends:
            theirs.settimeout(0.0)
            await asyncio.sleep(0)
            try:
                found.append(theirs.recv(1) == b"")
            except BlockingIOError:
                found.append(False)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _, theirs in ends:
            theirs.close()
        return found

    assert asyncio.run(closed()) == [True, False, False]


def test_a_request_that_is_too_long_is_not_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(requests, "REQUEST_MAX_BYTES", 300)
    with pytest.raises(LiveError, match="no scheduler runs in"):
        ask(tmp_path, Submit("x" * 100, "job", "/", {}))
    with pytest.raises(LiveError, match="300 can be sent"):
        ask(tmp_path, Submit("x" * 300, "job", "/", {}))


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        (b"", "has ended meanwhile"),
        (b'{"type":"Done"', "has ended meanwhile"),
        (b"x" * 20, "has more than 20 bytes"),
    ],
)
def test_an_answer_that_is_cut_off_or_endless_is_none(
    said: bytes, complaint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(requests, "ANSWER_MAX_BYTES", 20)
    with listen(str(tmp_path / "scheduler.sock")) as scheduler:
        monkeypatch.setattr(requests, "connect", lambda *_: _answered(scheduler, tmp_path, said))
        with pytest.raises(LiveError, match=complaint):
            ask(tmp_path, Nodes())


def _answered(scheduler: socket.socket, folder: Path, said: bytes) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(folder / "scheduler.sock"))
    other, _ = scheduler.accept()
    other.sendall(said)
    other.shutdown(socket.SHUT_WR)
    _kept.append(other)
    return connection


_kept: list[socket.socket] = []


def test_a_folder_of_somebody_else_is_not_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IRWXU)
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    with pytest.raises(FolderError, match="belongs to somebody else"):
        Folder(tmp_path).open()
