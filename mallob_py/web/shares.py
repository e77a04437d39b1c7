"""Bounds of each user on the resources of the web server.

A request that waits for its peer to send or to read occupies only places of its own user. So only further
requests of this user must wait for places or are refused.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, BinaryIO

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from mallob_py.web import ApiError

#: size above which answers wait in files for their readers
LARGE_BYTES = 256 << 10
_PIECE_BYTES = 64 << 10


class Places:
    """A number of places for each user and for all users; requests wait first for a place of their user."""

    def __init__(self, each: int, most: int | None = None) -> None:
        self._each = each
        self._all = None if most is None else asyncio.Semaphore(most)
        self._of_users: dict[str, asyncio.Semaphore] = {}
        self._wanting: Counter[str] = Counter()

    @asynccontextmanager
    async def place(self, user: str) -> AsyncIterator[None]:
        """Hold one of the user's places while this context is open."""
        own = self._of_users.setdefault(user, asyncio.Semaphore(self._each))
        self._wanting[user] += 1
        try:
            async with own:
                if self._all is None:
                    yield
                else:
                    async with self._all:
                        yield
        finally:
            self._wanting[user] -= 1
            if not self._wanting[user]:
                del self._wanting[user], self._of_users[user]


class Counts:
    """Counts what each user holds (`take`), and refuses requests beyond a bound for each user."""

    def __init__(self, each: int, status: int, why: str) -> None:
        self._each = each
        self._status, self._why = status, why
        self._held: Counter[str] = Counter()

    def take(self, user: str, amount: int = 1) -> None:
        """Raise ApiError if the user would exceed the bound."""
        if self._held[user] and self._held[user] + amount > self._each:
            raise ApiError(self._status, self._why)
        self._held[user] += amount

    def give_back(self, user: str, amount: int = 1) -> None:
        self._held[user] -= amount
        if not self._held[user]:
            del self._held[user]


class FromFile(StreamingResponse):
    """An answer from a file, which is closed in the end, whether it was read or not."""

    def __init__(self, file: BinaryIO, status: int = 200, **of_starlette: Any) -> None:
        super().__init__(iter(lambda: file.read(_PIECE_BYTES), b""), status, **of_starlette)
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._file.close()


class Ending:
    """A response, and callbacks that are called when it has been sent, or can no longer be sent."""

    def __init__(self, response: Response, then: Iterable[Callable[[], None]]) -> None:
        self._response = response
        self._then = then

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._response(scope, receive, send)
        finally:
            for end in self._then:
                end()


class Answers:
    """Large answers in files until they are read: only a piece of each is in memory."""

    def __init__(self, folder: Path, each_bytes: int) -> None:
        self._folder = folder
        why = "too many bytes of your answers are unread; read these answers first"
        self._unread = Counts(each_bytes, 429, why)

    async def kept(self, response: Response, user: str) -> tuple[Response, Callable[[], None]]:
        """Return the response, streamed from a file if it is large, and a callback for the end of reading.

        Raises ApiError.
        """
        if isinstance(response, StreamingResponse) or len(response.body) <= LARGE_BYTES:
            return response, lambda: None
        body, size = bytes(response.body), len(response.body)
        self._unread.take(user, size)
        try:
            file = await run_in_threadpool(self._file_of, body)
        except BaseException as error:
            self._unread.give_back(user, size)
            if isinstance(error, OSError):
                raise ApiError(507, f"the answer cannot be kept: {error.strerror}") from None
            raise
        streamed = FromFile(file, response.status_code)
        streamed.raw_headers = response.raw_headers
        return streamed, lambda: self._unread.give_back(user, size)

    def _file_of(self, body: bytes) -> BinaryIO:
        file: BinaryIO = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
        try:
            file.write(body)
            file.seek(0)
        except BaseException:
            file.close()
            raise
        return file
