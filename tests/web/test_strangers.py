"""Strangers, odd replies and odd files: they cost the operator and other users nothing."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from mallob_py.service import ServiceError
from mallob_py.web import ApiError
from mallob_py.web.jobs import Jobs
from mallob_py.web.routes import PAGE, SERVICE, Operation, _guarded
from mallob_py.web.server import _listen
from mallob_py.web.shares import Answers, Counts, Places
from mallob_py.web.store import Store


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    for folder in ("in", "out", "journal"):
        (tmp_path / "jobs.0" / folder).mkdir(parents=True)
    return Jobs(tmp_path, 0, Store(tmp_path), None)


def test_requests_without_a_token_do_not_count_as_the_operators(tmp_path: Path) -> None:
    requests = Counts(1, 429, "too many")
    interface: Any = SimpleNamespace(
        token=SimpleNamespace(admits=lambda text: text == "token"),
        user_tokens=SimpleNamespace(visitor=lambda _: None),
        requests=requests,
        making=Places(1),
        answers=Answers(tmp_path, 1 << 20),
    )

    async def handler(_: Request) -> Response:
        return Response(b"")

    def status_of(operation: Operation, token: str = "") -> int:
        headers = [(b"authorization", token.encode())] if token else []
        scope = {"type": "http", "client": ("127.0.0.1", 1), "headers": headers}

        async def answer() -> Response:
            return await _guarded(operation, handler, interface)(Request(scope))

        return getattr(asyncio.run(answer()), "status_code", 200)  # the answer is never sent, so under way

    assert status_of(PAGE) == 200
    with pytest.raises(ApiError, match="too many"):
        status_of(PAGE)
    assert status_of(SERVICE, "token") == 200


@pytest.mark.parametrize("odd", [{"result": [1]}, {"error": "x"}, {"stats": 3}])
def test_a_reply_of_another_shape_is_shown_as_damaged(
    tmp_path: Path, jobs: Jobs, odd: dict[str, Any]
) -> None:
    reply = {"user": "anna", "name": "a", "internal_id": 3} | odd
    (tmp_path / "jobs.0/out/anna.a.json").write_text(json.dumps(reply))
    assert "damaged" in jobs.reply("anna.a", 0, None)["error"]["message"]


def test_ended_jobs_are_shown_while_the_history_cannot_be_read(tmp_path: Path, jobs: Jobs) -> None:
    (tmp_path / "elsewhere").write_text("")
    (tmp_path / "jobs.0/history.jsonl").symlink_to(tmp_path / "elsewhere")
    assert jobs.ended("", "all", "ended", True, 0, 10).total == 0


@pytest.mark.parametrize("host", ["node..1", ".x", "x" * 300])
def test_a_host_that_can_have_no_address_is_named(host: str) -> None:
    with pytest.raises(ServiceError, match="cannot listen at"):
        _listen(host, 0)
