"""Connections and users of the web server, without sockets: waits, cut-offs, and bounds for each user."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from starlette.requests import Request
from starlette.responses import Response
from uvicorn import Config
from uvicorn.server import ServerState

from mallob_py.web import ApiError, receiving
from mallob_py.web.connections import HEAD_MAX_S, UNREAD_MAX_S, Connection, Places
from mallob_py.web.receiving import Limits, Receiver
from mallob_py.web.shares import LARGE_BYTES, Answers, Counts, Ending
from mallob_py.web.shares import Places as UserPlaces


class Waiting:
    def __init__(self) -> None:
        self.is_cut_off = False

    def cut_off(self) -> None:
        self.is_cut_off = True


def test_a_further_silent_connection_takes_the_oldest_place_of_the_peer_with_most() -> None:
    places = Places(most=4)
    few, many = [Waiting()], [Waiting() for _ in range(3)]
    places.take("few", few[0])
    for one in many:
        places.take("many", one)
    newcomer = Waiting()
    places.take("new", newcomer)
    assert [one.is_cut_off for one in [*few, *many, newcomer]] == [False, True, False, False, False]
    assert len(places) == 4
    places.leave("many", many[1])
    places.leave("many", many[1])
    assert len(places) == 3


class Loop:
    """A stand-in for an event loop, whose timers the test fires."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Any, Mock]] = []

    def call_later(self, delay_s: float, call: Any, *args: Any) -> Mock:
        timer = Mock()
        self.timers.append((delay_s, call, timer))
        return timer

    def create_task(self, coroutine: Any, **_: Any) -> Mock:
        coroutine.close()
        return Mock()

    def ring(self, delay_s: float) -> None:
        for each in [one for one in self.timers if one[0] == delay_s and not one[2].cancel.called]:
            self.timers.remove(each)
            each[1]()


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def places() -> Places:
    return Places()


@pytest.fixture
def connection(loop: Loop, places: Places) -> Connection:
    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    config = Config(app, log_config=None)
    config.load()
    made = Connection(places, config=config, server_state=ServerState(), app_state={}, _loop=loop)
    transport: Any = Mock()
    transport.get_extra_info.return_value = None
    transport.get_write_buffer_size.return_value = 0
    transport.is_closing.return_value = False
    made.connection_made(transport)
    return made


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: "])
def test_a_head_that_does_not_come_whole_in_time_ends_the_connection(
    said: bytes, connection: Connection, loop: Loop
) -> None:
    if said:
        connection.data_received(said)
    loop.ring(HEAD_MAX_S)
    connection.transport.abort.assert_called_once_with()  # type: ignore[attr-defined]


def test_a_head_that_has_come_whole_ends_the_waiting(
    connection: Connection, places: Places, loop: Loop
) -> None:
    connection.data_received(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
    assert len(places) == 0
    loop.ring(HEAD_MAX_S)
    assert not connection.transport.abort.called  # type: ignore[attr-defined]


def test_who_does_not_read_is_cut_off_and_who_reads_on_is_not(connection: Connection, loop: Loop) -> None:
    connection.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    connection.pause_writing()
    connection.resume_writing()
    loop.ring(UNREAD_MAX_S)
    assert not connection.transport.abort.called  # type: ignore[attr-defined]
    connection.pause_writing()
    loop.ring(UNREAD_MAX_S)
    connection.transport.abort.assert_called_once_with()  # type: ignore[attr-defined]


def test_places_of_one_user_are_waited_for_by_that_user_alone() -> None:
    async def play() -> None:
        places, order = UserPlaces(1), list[str]()
        holds = asyncio.Event()

        async def hold(user: str) -> None:
            async with places.place(user):
                order.append(user)
                await holds.wait()

        tasks = [asyncio.create_task(hold(user)) for user in ("a", "a", "b")]
        await asyncio.sleep(0)
        assert order == ["a", "b"]
        holds.set()
        await asyncio.gather(*tasks)
        assert order == ["a", "b", "a"]

    asyncio.run(play())


def test_what_a_user_may_hold_is_counted_for_each_user() -> None:
    counts = Counts(2, 429, "too many")
    counts.take("a", 2)
    counts.take("b")
    with pytest.raises(ApiError, match="too many"):
        counts.take("a")
    counts.give_back("a", 2)
    counts.take("a")


def test_a_large_answer_waits_in_a_file_until_it_is_read_or_cannot_be(tmp_path: Path) -> None:
    """One user has as many bytes of answers as permitted; small answers stay in memory."""
    body = b"x" * (LARGE_BYTES + 1)

    async def play() -> None:
        answers = Answers(tmp_path, 2 * len(body))
        small = Response(b"small")
        assert (await answers.kept(small, "a"))[0] is small
        kept = [await answers.kept(Response(body), "a") for _ in range(2)]
        with pytest.raises(ApiError):
            await answers.kept(Response(body), "a")
        await answers.kept(Response(body), "b")
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            await asyncio.Event().wait()

        response, read = kept[0]
        await Ending(response, [read])({"type": "http", "asgi": {"spec_version": "2.3"}}, receive, send)
        assert b"".join(message.get("body", b"") for message in sent) == body
        assert max(len(message.get("body", b"")) for message in sent) < LARGE_BYTES
        await answers.kept(Response(body), "a")

    asyncio.run(play())


def _request(bodies: list[bytes], user: str, closes: asyncio.Event | None = None) -> Request:
    """Return a request that sends these pieces, and then nothing, or disconnects when `closes` is set."""
    pieces = iter(bodies)

    async def receive() -> dict[str, Any]:
        if (piece := next(pieces, None)) is not None:
            return {"type": "http.request", "body": piece, "more_body": piece != b""}
        await (closes or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    query = f"user={user}".encode()
    scope = {"type": "http", "method": "POST", "headers": [], "query_string": query, "path": "/"}
    return Request(scope, receive)


@pytest.fixture
def receiver(tmp_path: Path) -> Receiver:
    def begin() -> Any:
        path = tmp_path / str(len(list(tmp_path.iterdir())))
        return SimpleNamespace(path=path, discard=Mock())

    jobs: Any = Mock(submit=lambda fields, upload, size, is_unique: fields["user"])
    store: Any = Mock(begin=begin, path=tmp_path, upload_bytes=lambda: 0)
    return Receiver(jobs, store, Limits(None, None, 1000))


def test_slow_uploads_of_one_user_stop_no_other_user(receiver: Receiver) -> None:
    async def play() -> None:
        gone = asyncio.Event()
        slow = [asyncio.create_task(receiver.receive(_request([b"p cnf"], "slow", gone))) for _ in range(8)]
        await asyncio.sleep(0)
        record: Any = await receiver.receive(_request([b"p cnf 1 1", b""], "other"))
        assert record == "other"
        gone.set()
        errors = await asyncio.gather(*slow, return_exceptions=True)
        assert all(isinstance(error, ApiError) and error.status == 400 for error in errors)
        assert not receiver.under_way

    asyncio.run(play())


def test_an_upload_that_comes_too_slowly_is_ended(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The upload sends a byte now and then, so it is never silent for long."""
    monkeypatch.setattr(receiving, "_SILENCE_MAX_S", 0.5)

    async def trickle() -> dict[str, Any]:
        await asyncio.sleep(0.02)
        return {"type": "http.request", "body": b"x", "more_body": True}

    scope = {"type": "http", "method": "POST", "headers": [], "query_string": b"", "path": "/"}
    with pytest.raises(ApiError, match="fewer than") as raised:
        asyncio.run(receiver.receive(Request(scope, trickle)))
    assert raised.value.status == 408


def test_unfinished_uploads_of_one_user_leave_room_for_others(receiver: Receiver) -> None:
    receiver.under_way.update(a=500, b=100)
    receiver.check_store("a")
    receiver.under_way["a"] = 501
    with pytest.raises(ApiError):
        receiver.check_store("a")
    receiver.check_store("b")
