"""Bodies of HTTP requests, bounded in size, in time, and in number per user.

A body that still arrives occupies no resource that other users need; few bodies at a time are processed.

A body is either a job's input, which is written to a file piece by piece, or a small job as JSON. Guarantee:
an upload that is refused, too slow or cut off leaves nothing behind.

A few kilobytes can hide gigabytes. So an upload is first decompressed piece by piece, without being kept,
before the service can read it. Damaged data counts up to the damage; the parser of the input reports the
damage.
"""

from __future__ import annotations

import asyncio
import bz2
import gzip
import json
import lzma
import tempfile
import uuid
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request

from mallob_py.applications import DEFAULT_APPLICATION, options_of
from mallob_py.protocol.job_terms import TERMS
from mallob_py.service import JobFileError
from mallob_py.service.jobs.job_file import decode_fields
from mallob_py.web import ApiError
from mallob_py.web.jobs import INPUT_FIELDS, Jobs
from mallob_py.web.shares import Places
from mallob_py.web.store import Record, Store

_DECOMPRESSED_BYTES = 1 << 18
_LZMA_MEMORY_BYTES_MAX = 512 << 20


class TooMuchMemory(Exception):
    """An error: decompression needs more memory than any usual compressor requires."""


def decompressed_size(path: Path, limit_bytes: int) -> int:
    """Return the decompressed size, counted until it exceeds the limit. Raises TooMuchMemory."""
    size = 0
    try:
        with open(path, "rb") as file:
            for piece in _decompressed(file):
                size += len(piece)
                if size > limit_bytes:
                    break
    except (OSError, EOFError, zlib.error):
        pass  # damaged data
    except lzma.LZMAError as error:
        if "limit" in str(error).lower():
            raise TooMuchMemory from None
    return size


def _decompressed(file: BinaryIO) -> Iterator[bytes]:
    start = file.read(6)
    file.seek(0)
    if start.startswith((b"\xfd7zXZ\x00", b"\x5d\x00\x00")):
        yield from _lzma_pieces(file)
        return
    plain: BinaryIO | gzip.GzipFile | bz2.BZ2File = file
    if start.startswith(b"\x1f\x8b"):
        plain = gzip.GzipFile(fileobj=file)
    elif start.startswith(b"BZh"):
        plain = bz2.BZ2File(file)
    while piece := plain.read(_DECOMPRESSED_BYTES):
        yield piece


def _lzma_pieces(file: BinaryIO) -> Iterator[bytes]:
    """Decompress LZMA without the standard library's file class, which has no bound of memory."""
    rest = file.read(_DECOMPRESSED_BYTES)
    while rest:
        stream = lzma.LZMADecompressor(memlimit=_LZMA_MEMORY_BYTES_MAX)
        while not stream.eof:
            data = (rest or file.read(_DECOMPRESSED_BYTES)) if stream.needs_input else b""
            if stream.needs_input and not data:
                return  # truncated data
            rest = b""
            yield stream.decompress(data, _DECOMPRESSED_BYTES)
        rest = (stream.unused_data or file.read(_DECOMPRESSED_BYTES)).lstrip(b"\0")


_JSON_BYTES_MAX = 16 << 20
_SILENCE_MAX_S = 60.0
#: the lowest permitted rate of a body that takes longer than `_SILENCE_MAX_S`
_RATE_MIN_BYTES_S = 1000
#: greatest number of bodies of one user that arrive at a time; greatest number of bodies that are checked at
#: a time, of one user and of all users
_AT_ONCE, _LOOKED_AT, _LOOKED_AT_MAX = 4, 2, 8
_DEFAULT_USER = "web"
_USER_MAX = 200
#: the size up to which a job as JSON is kept in memory while it arrives
_IN_MEMORY_BYTES = 64 << 10
#: fields that are text in the query and JSON in a job file
_JSON_FIELDS = (
    *(term.file_name for term in TERMS if not term.is_duration),
    *("configuration", "dependencies", "after-ok", "arrival"),
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of uploads in bytes; None means no limit."""

    upload: int | None
    #: the limit of a decompressed input
    decompressed: int | None
    store: int | None


@dataclass(slots=True)
class Receiver:
    jobs: Jobs
    store: Store
    limits: Limits
    #: user -> bytes of arriving uploads
    under_way: Counter[str] = field(default_factory=Counter)
    _coming: Places = field(default_factory=lambda: Places(_AT_ONCE))
    _looked_at: Places = field(default_factory=lambda: Places(_LOOKED_AT, _LOOKED_AT_MAX))

    async def receive(self, request: Request, user: str | None = None) -> Record:
        """Submit the job of this request, as a job of `user` if one is given. Raises ApiError."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "multipart/form-data":
            raise ApiError(415, "send the input itself as the body, such as with curl --data-binary")
        # An operator submits jobs of other users, whose names are not checked.
        whose = user or request.query_params.get("user", "")[:_USER_MAX]
        async with self._coming.place(whose):
            try:
                if kind == "application/json":
                    return await self._receive_job(request, user, whose)
                return await self._receive_input(request, user, whose)
            except ClientDisconnect:
                raise ApiError(400, "the connection was closed before everything was sent") from None
            except OSError as error:
                raise ApiError(507, f"the upload cannot be kept: {error.strerror}") from None

    async def _receive_job(self, request: Request, user: str | None, whose: str) -> Record:
        limit_bytes = min(_JSON_BYTES_MAX, self.limits.upload or _JSON_BYTES_MAX)
        with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES, dir=str(self.store.path)) as body:
            async for piece in _pieces(request, limit_bytes):
                await run_in_threadpool(body.write, piece)
            async with self._looked_at.place(whose):
                body.seek(0)
                fields = await run_in_threadpool(lambda: _decoded(body.read()))
                await run_in_threadpool(_add_settings, fields, request.query_params.get("settings"))
                is_name_unique = _fill_in(fields, user)
                upload = self.store.begin()
                try:
                    record: Record = await run_in_threadpool(
                        self.jobs.submit, fields, upload, 0, is_name_unique
                    )
                    return record
                finally:
                    upload.discard()

    async def _receive_input(self, request: Request, user: str | None, whose: str) -> Record:
        fields = _fields_of_query(request)
        await run_in_threadpool(_add_settings, fields, request.query_params.get("settings"))
        is_name_unique = _fill_in(fields, user)
        upload = self.store.begin()
        size = 0
        try:
            with open(upload.path, "xb") as file:
                async for piece in _pieces(request, self.limits.upload):
                    size += len(piece)
                    self.under_way[whose] += len(piece)
                    self.check_store(whose)
                    await run_in_threadpool(file.write, piece)
            if not size:
                raise ApiError(400, "the body is empty; send the input of a job")
            async with self._looked_at.place(whose):
                await run_in_threadpool(_check_decompressed, upload.path, self.limits.decompressed)
                record: Record = await run_in_threadpool(
                    self.jobs.submit, fields, upload, size, is_name_unique
                )
            return record
        finally:
            self.under_way[whose] -= size
            if not self.under_way[whose]:
                del self.under_way[whose]
            upload.discard()

    def check_store(self, whose: str) -> None:
        """Raise ApiError if the store has no room; while others upload, a user may take half of the room."""
        if (limit := self.limits.store) is None:
            return
        left = limit - self.store.upload_bytes()
        others = self.under_way.total() - self.under_way[whose]
        if self.under_way[whose] > left - others or (others and self.under_way[whose] > left / 2):
            raise ApiError(507, "too many uploads of jobs that have not ended; try again later")


async def _pieces(request: Request, limit_bytes: int | None) -> AsyncIterator[bytes]:
    """Yield the body in pieces; it must not grow too large, fall silent, or arrive too slowly."""
    declared = request.headers.get("content-length", "")
    too_large = ApiError(413, f"the body is larger than the limit of {limit_bytes} bytes")
    if limit_bytes is not None and declared.isdecimal() and int(declared[:20]) > limit_bytes:
        raise too_large
    stream = request.stream()
    received = 0
    began_s = asyncio.get_running_loop().time()
    while True:
        lasted_s = asyncio.get_running_loop().time() - began_s
        left_s = _SILENCE_MAX_S + received / _RATE_MIN_BYTES_S - lasted_s
        try:
            piece = await asyncio.wait_for(anext(stream), min(_SILENCE_MAX_S, left_s))
        except StopAsyncIteration:
            return
        except TimeoutError:
            slow = f"fewer than {_RATE_MIN_BYTES_S} bytes a second came in {lasted_s:.0f} s"
            silent = f"nothing came for {_SILENCE_MAX_S:g} s"
            raise ApiError(408, silent if left_s >= _SILENCE_MAX_S else slow) from None
        received += len(piece)
        if limit_bytes is not None and received > limit_bytes:
            raise too_large
        if piece:
            yield piece


def _check_decompressed(path: Path, limit_bytes: int | None) -> None:
    if limit_bytes is None:
        return
    try:
        size = decompressed_size(path, limit_bytes)
    except TooMuchMemory:
        raise ApiError(
            413, "the input takes too much memory to decompress; compress it with a smaller dictionary"
        ) from None
    if size > limit_bytes:
        raise ApiError(413, f"decompressed, the input is larger than the limit of {limit_bytes} bytes")


def _fields_of_query(request: Request) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, text in request.query_params.multi_items():
        if key in ("wait", "settings"):
            continue
        if key in fields:
            raise ApiError(400, "given twice; keep one", key[:60])
        if key in (*INPUT_FIELDS, "interrupt"):
            raise ApiError(400, "the body is the job's input; leave this out", key)
        fields[key] = text
        if key in _JSON_FIELDS:
            try:
                fields[key] = json.loads(text)
            except (ValueError, RecursionError):
                raise ApiError(400, f"{text[:60]!r} is not JSON", key) from None
    return fields


def _decoded(body: bytes) -> dict[str, Any]:
    try:
        return decode_fields(body)
    except JobFileError as error:
        raise ApiError(400, error.message, error.field) from None


def _add_settings(fields: dict[str, Any], text: str | None) -> None:
    """Add settings to the configuration. Texts are converted by the type of the application's option, or else
    as by `--set`. Raises ApiError.
    """
    if text is None:
        return
    try:
        settings = msgspec.json.decode(text, type=dict[str, str])
    except (msgspec.DecodeError, RecursionError):
        raise ApiError(400, "must be a JSON object of texts", "settings") from None
    options = options_of(str(fields.get("application", DEFAULT_APPLICATION)))
    values = {}
    for key, value in settings.items():
        try:
            values[key] = options[key].parse(value) if key in options else _json_or_text(value)
        except ValueError as error:
            raise ApiError(400, str(error), key[:60]) from None
    given = fields.get("configuration", {})
    if not isinstance(given, dict):
        raise ApiError(400, "must be a JSON object", "configuration")
    fields["configuration"] = {**given, **values}


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _fill_in(fields: dict[str, Any], user: str | None) -> bool:
    """Fill in user and name if they are missing; return whether the name is new, so that no other job has it.

    Raises ApiError if `user` is given and the job, or the job that it continues, is another user's, or has a
    name with a dot, which can be read as another user's.
    """
    fields.setdefault("user", user or _DEFAULT_USER)
    if user is not None:
        if fields["user"] != user:
            raise ApiError(403, f"this token is for jobs of {user}", "user")
        if "." in str(fields.get("name", "")):
            raise ApiError(403, "a token of a user is for jobs whose names have no dot", "name")
        owner, _, name = str(fields.get("precursor", "")).partition(".")
        if "precursor" in fields and (owner != user or "." in name):
            raise ApiError(403, f"this token is for chains of {user}, if job names have no dot", "precursor")
    if "name" in fields:
        return False
    fields["name"] = f"job-{uuid.uuid4().hex[:12]}"
    return True
