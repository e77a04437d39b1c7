"""The web server with clients that send nothing, send slowly or do not read: its resources are bounded."""

import json
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from test_web_api import FORMULA, Desk, integers
from waiting import poll_until
from web_process import WebServer

from mallob_py.protocol.effects import Outcome
from mallob_py.service.jobs.reply import Ending

SILENT = 1_100
UNREAD = 40
VARIABLES = 250_000
#: bound on the server's memory while answers are not read: room for a few answers that are being made, and
#: for a piece of each answer
MEMORY_BYTES_MAX = 250 << 20


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    opened = Desk(tmp_path)
    yield opened
    opened.directory.close()


@pytest.fixture
def web(tmp_path: Path, desk: Desk) -> Iterator[WebServer]:
    server = WebServer(tmp_path / "api")
    yield server
    server.stop()


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    """Yield a stack for more connections than the usual limit of descriptors permits; raise this limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = SILENT + 500
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"this process may have no more than {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    with ExitStack() as stack:
        yield stack
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connected(web: WebServer, opened: ExitStack) -> socket.socket:
    netloc = urlsplit(web.url)
    return opened.enter_context(socket.create_connection((netloc.hostname, netloc.port), timeout=60.0))


def head(web: WebServer, method: str, path: str, *lines: str) -> bytes:
    given = [f"{method} {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {web.token}", *lines]
    return ("\r\n".join(given) + "\r\n\r\n").encode()


def peak_bytes(web: WebServer) -> int:
    status = Path(f"/proc/{web.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def test_silent_connections_keep_nobody_out(web: WebServer, opened: ExitStack) -> None:
    for number in range(SILENT):
        connection = connected(web, opened)
        if number % 2:
            connection.sendall(b"GET /api/jobs HTTP/1.1\r\nHost: x\r\nX-")
    for _ in range(5):
        answer = web.get("/api/service")
        assert (answer.status, answer.json["running"]) == (200, False)
    assert sum(name.startswith("socket:") for name in web.open_files()) < SILENT / 2


def test_slow_uploads_of_one_user_keep_no_other_from_handing_in(
    web: WebServer, desk: Desk, opened: ExitStack
) -> None:
    for _ in range(6):
        connected(web, opened).sendall(
            head(web, "POST", "/api/jobs?user=slow", "Content-Length: 1000000") + FORMULA
        )
    poll_until(lambda: len(web.uploads()) >= 4)
    assert web.upload(FORMULA, "user=other").status == 202
    desk.finish()


def test_answers_that_nobody_reads_take_no_memory_and_keep_nobody_waiting(
    web: WebServer, desk: Desk, opened: ExitStack
) -> None:
    job = json.loads(web.upload(FORMULA, "user=u&name=n").text)["id"]
    internal_id, taken = desk.take()
    solution = integers(*range(1, VARIABLES + 1))
    desk.answer(internal_id, taken, Ending(Outcome.RESULT, 10, b"{}", solution, name="SAT"))
    poll_until(lambda: web.get(f"/api/jobs/{job}").json["ended"])
    unread = [connected(web, opened) for _ in range(UNREAD)]
    for connection in unread:
        connection.sendall(head(web, "GET", f"/api/jobs/{job}/model"))
    first = unread[0].recv(12)
    assert first == b"HTTP/1.1 200"
    assert web.get("/api/jobs").status == 200
    assert web.upload(FORMULA, "user=other").status == 202
    for connection in unread[1:]:
        assert connection.recv(12) in (b"HTTP/1.1 200", b"HTTP/1.1 429")
    assert web.get("/api/jobs").status == 200
    assert peak_bytes(web) < MEMORY_BYTES_MAX
    model = web.get(f"/api/jobs/{job}/model").text
    assert model.startswith("s SATISFIABLE")
    assert model.count(str(VARIABLES)) == 1
    desk.finish()
