"""Descriptions on the move: once per host, in chunks, without stalling the event loop.

A large description is a file in shared memory, which all workers of a host map. The lowest
rank of each host is its *keeper*: ranks ask their keeper for a description, the keeper gets
it once from the keeper of another host (the parent's in the job tree, or the client's) in
chunks of 256 KB, at most WINDOW of them unacknowledged, on the bulk channel. A keeper that
is itself waiting lets others wait for it only if it waits for the client's: so no two hosts
wait for each other.

Room for the whole description is reserved before its first byte is asked for. Each time a keeper asks
another one, it gives that transfer a new number; chunks are taken in the order of their offsets, those of
any other transfer are refused, which ends it at its sender. So a file is what it should be or is not there.

A rank holds a shared lock on each description that its workers need. What nobody on the host has locked can
be dropped when memory is short, but on the client's host, which others may ask.

Files lie in the session's private folder and are removed when the job is over, or with that folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Set
from pathlib import Path
from typing import TypeAlias

import msgspec

from mallob_py.protocol.host_health import Fault
from mallob_py.protocol.messages import Blob
from mallob_py.runtime.world.envelope import WireError

CHUNK_BYTES = 256 << 10
WINDOW = 4
# Requests that were under way when their job ended are late by milliseconds, not by so many jobs.
_OVER_MAX = 10_000


class BlobNeeded(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=60):
    """To the keeper of one's own host: bring this description here."""

    blob: Blob
    sources: tuple[int, ...]


class BlobHere(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=61):
    """From the keeper: the file is complete."""

    key: str


class BlobWanted(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=62):
    """To the keeper of a host that should have it: send me its `size` bytes as transfer `number` of mine."""

    key: str
    size: int
    number: int


class BlobMissing(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=63):
    """Answer to `BlobWanted`: not here, for this reason."""

    key: str
    number: int
    reason: str


class BlobFailed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=65):
    """From the keeper: the description cannot be had on this host."""

    key: str
    reason: str
    fault: Fault


class ChunkTaken(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=64):
    """Acknowledgement of one chunk."""

    key: str
    number: int


class ChunkRefused(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=66):
    """Nobody waits for this transfer any more: send nothing further."""

    key: str
    number: int


TransferMessage: TypeAlias = (
    BlobNeeded | BlobHere | BlobWanted | BlobMissing | BlobFailed | ChunkTaken | ChunkRefused
)


class _ChunkHeader(msgspec.Struct, frozen=True, array_like=True, gc=False):
    key: str
    number: int
    offset: int


_encode = msgspec.msgpack.Encoder().encode
_decode_header = msgspec.msgpack.Decoder(_ChunkHeader).decode


def _open_chunk(data: bytes | bytearray) -> tuple[_ChunkHeader, memoryview]:
    """A chunk's header and content. Raises WireError."""
    view = memoryview(data)
    start = 2 + int.from_bytes(view[:2], "little")
    try:
        return _decode_header(view[2:start]), view[start:]
    except msgspec.MsgspecError as error:
        raise WireError(f"a chunk without a header: {error}") from error


def _write(file: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written


class _Incoming:
    """A description on its way to this host. Raises OSError if there is no room for it."""

    def __init__(self, blob: Blob, sources: tuple[int, ...], path: Path) -> None:
        self.size = blob.size
        self.sources = list(sources)
        #: of the present transfer, and who sends it
        self.number = -1
        self.sender = -1
        self.received = 0
        #: why those asked so far do not have it
        self.missing: list[str] = []
        self.path = path
        #: asked for at the client's host, which has it as long as the job lives
        self.is_from_origin = False
        self.waiting: set[int] = set()
        self.wanted_by: list[tuple[int, BlobWanted]] = []
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(self.file, 0, self.size)
        except OSError:
            self.discard()
            raise

    def discard(self) -> None:
        os.close(self.file)
        self.path.unlink(missing_ok=True)


class _Outgoing:
    """A description on its way from this host to another keeper, as that one's transfer `number`."""

    def __init__(self, path: Path, number: int) -> None:
        self.file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self.file).st_size
        self.number = number
        self.offset = 0
        self.unacknowledged = 0


class Transfer:
    """One rank's part. `send(rank, message)` and `send_bulk(rank, data)` never block.

    `on_here(key)` is called when a description that this rank asked for is on its host,
    `on_failed(key, reason, fault)` when it cannot be had there.
    """

    def __init__(
        self,
        rank: int,
        folder: Path,
        keeper_of: Callable[[int], int],
        send: Callable[[int, TransferMessage], None],
        send_bulk: Callable[[int, bytes], None],
        on_here: Callable[[str], None],
        on_failed: Callable[[str, str, Fault], None],
    ) -> None:
        self._rank = rank
        self._keeper_of = keeper_of
        self._keeper = keeper_of(rank)
        self._send = send
        self._send_bulk = send_bulk
        self._on_here = on_here
        self._on_failed = on_failed
        self._folder = folder
        self._incoming: dict[str, _Incoming] = {}
        self._outgoing: dict[tuple[str, int], _Outgoing] = {}
        self._transfers = 0
        self._over: OrderedDict[str, None] = OrderedDict()
        #: locked files of descriptions that this rank needs
        self._used: dict[str, int] = {}
        #: what this rank has asked its keeper for
        self._asked: dict[str, BlobNeeded] = {}
        #: of a keeper: descriptions that came from other hosts, the one used last at the end
        self._fetched: OrderedDict[str, None] = OrderedDict()

    def path_of(self, key: str) -> Path:
        """The file of a description on this host."""
        return self._folder / key

    def fetch(self, blob: Blob, sources: tuple[int, ...]) -> None:
        """Bring a description to this host.

        `on_here` or `on_failed` follows, or nothing if the job ends before.
        """
        if self._use(blob.key):
            self._on_here(blob.key)
        elif self._keeper == self._rank:
            self._need(self._rank, blob, sources)
        else:
            self._asked[blob.key] = BlobNeeded(blob, sources)
            self._send(self._keeper, self._asked[blob.key])

    def _use(self, key: str) -> bool:
        """Have nobody drop a description, if it is here."""
        if key in self._used:
            return True
        try:
            file = os.open(self.path_of(key), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        fcntl.flock(file, fcntl.LOCK_SH)
        if os.fstat(file).st_nlink == 0:  # dropped in between
            os.close(file)
            return False
        self._used[key] = file
        if key in self._fetched:
            self._fetched.move_to_end(key)
        return True

    def keep_only(self, keys: Set[str]) -> None:
        """No worker of this rank needs any other description now."""
        for key in self._used.keys() - keys:
            os.close(self._used.pop(key))

    def drop_unused(self, wanted_bytes: int) -> int:
        """Remove descriptions that no rank of the host needs, until so much has come free; how much has."""
        given_bytes = 0
        for key in list(self._fetched):
            if given_bytes < wanted_bytes:
                given_bytes += self._drop(key)
        return given_bytes

    def _drop(self, key: str) -> int:
        path = self.path_of(key)
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
            del self._fetched[key]
            return os.fstat(file).st_size
        except BlockingIOError:
            return 0
        finally:
            os.close(file)

    def forget(self, key: str) -> None:
        """The job is over: remove what is here of its description."""
        self._asked.pop(key, None)
        if (file := self._used.pop(key, None)) is not None:
            os.close(file)
        if self._keeper != self._rank:
            return
        self._fetched.pop(key, None)
        self._over[key] = None
        if len(self._over) > _OVER_MAX:
            self._over.popitem(last=False)
        for taker in [taker for sent, taker in self._outgoing if sent == key]:
            self._stop_sending(key, taker)
        if (incoming := self._incoming.pop(key, None)) is not None:
            incoming.discard()
        # Most jobs have no file, and every rank's keeper comes through here for every job.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self._folder}/{key}")

    # --- messages -----------------------------------------------------------------------

    def receive(self, source: int, message: TransferMessage) -> None:
        match message:
            case BlobNeeded(blob, sources):
                self._need(source, blob, sources)
            case BlobHere(key):
                self._find(key)
            case BlobFailed(key, reason, fault):
                self._asked.pop(key, None)
                self._on_failed(key, reason, fault)
            case BlobWanted():
                self._want(source, message)
            case BlobMissing(key, number, reason):
                incoming = self._incoming.get(key)
                if incoming is not None and incoming.number == number:
                    incoming.missing.append(reason)
                    self._ask_next(key, incoming)
            case ChunkTaken(key, number):
                if (outgoing := self._outgoing_to(source, key, number)) is not None:
                    outgoing.unacknowledged -= 1
                    self._send_chunks(key, source, outgoing)
            case ChunkRefused(key, number):
                if self._outgoing_to(source, key, number) is not None:
                    self._stop_sending(key, source)

    def _outgoing_to(self, taker: int, key: str, number: int) -> _Outgoing | None:
        """What is on its way there as that transfer of the taker's; not what was, or will be."""
        outgoing = self._outgoing.get((key, taker))
        return outgoing if outgoing is not None and outgoing.number == number else None

    def _stop_sending(self, key: str, taker: int) -> None:
        os.close(self._outgoing.pop((key, taker)).file)

    def _find(self, key: str) -> None:
        """The keeper has told that a description is here. It may be gone again: then ask once more."""
        if (asked := self._asked.pop(key, None)) is not None:
            self.fetch(asked.blob, asked.sources)

    def _need(self, rank: int, blob: Blob, sources: tuple[int, ...]) -> None:
        if self.path_of(blob.key).exists():
            self._tell(rank, blob.key)
            return
        if blob.key in self._over:
            return  # the job has ended, as the rank that asks will hear soon
        incoming = self._incoming.get(blob.key)
        if incoming is not None:
            incoming.waiting.add(rank)
            return
        try:
            incoming = _Incoming(blob, sources, self._folder / f"{blob.key}~")
        except OSError as error:
            self._refuse([rank], blob.key, self._no_room(error), Fault.HOST)
            return
        self._incoming[blob.key] = incoming
        incoming.waiting.add(rank)
        self._ask_next(blob.key, incoming)

    def _ask_next(self, key: str, incoming: _Incoming) -> None:
        """Ask the next host that may have it; hosts are named by their keepers."""
        while incoming.sources:
            keeper = self._keeper_of(incoming.sources.pop(0))
            if keeper != self._rank:
                incoming.is_from_origin = all(self._keeper_of(each) == keeper for each in incoming.sources)
                self._transfers += 1
                incoming.number, incoming.sender, incoming.received = self._transfers, keeper, 0
                self._send(keeper, BlobWanted(key, incoming.size, incoming.number))
                return
        reason = "; ".join(incoming.missing) or "no other host has it"
        self._give_up(key, f"cannot get the job's description: {reason}", Fault.NOBODY)

    def _want(self, taker: int, wanted: BlobWanted) -> None:
        key = wanted.key
        if (incoming := self._incoming.get(key)) is not None and incoming.is_from_origin:
            incoming.wanted_by.append((taker, wanted))
            return
        if (key, taker) in self._outgoing:  # of a transfer that has failed there
            self._stop_sending(key, taker)
        try:
            outgoing = _Outgoing(self.path_of(key), wanted.number)
        except OSError as error:
            self._send(taker, BlobMissing(key, wanted.number, f"rank {self._rank}: {error.strerror}"))
            return
        self._outgoing[key, taker] = outgoing
        if outgoing.size != wanted.size:
            self._stop_sending(key, taker)
            reason = f"rank {self._rank} has {outgoing.size} bytes, not {wanted.size}"
            self._send(taker, BlobMissing(key, wanted.number, reason))
            return
        self._send_chunks(key, taker, outgoing)

    def _send_chunks(self, key: str, taker: int, outgoing: _Outgoing) -> None:
        while outgoing.unacknowledged < WINDOW and outgoing.offset < outgoing.size:
            data = os.pread(outgoing.file, CHUNK_BYTES, outgoing.offset)
            header = _encode(_ChunkHeader(key, outgoing.number, outgoing.offset))
            self._send_bulk(taker, len(header).to_bytes(2, "little") + header + data)
            outgoing.offset += len(data)
            outgoing.unacknowledged += 1
        if outgoing.unacknowledged <= 0:
            self._stop_sending(key, taker)

    def receive_chunk(self, source: int, data: bytes | bytearray) -> None:
        """Raises WireError if this is no chunk."""
        header, chunk = _open_chunk(data)
        key = header.key
        incoming = self._incoming.get(key)
        if incoming is None or (incoming.number, incoming.sender) != (header.number, source):
            self._send(source, ChunkRefused(key, header.number))
            return
        if header.offset != incoming.received or not 0 < len(chunk) <= incoming.size - incoming.received:
            what = f"rank {source} sent {len(chunk)} bytes at {header.offset} of the job's description"
            self._give_up(key, f"{what} after {incoming.received} of {incoming.size}", Fault.NOBODY)
            self._send(source, ChunkRefused(key, header.number))
            return
        try:
            _write(incoming.file, chunk, header.offset)
        except OSError as error:
            self._give_up(key, self._no_room(error), Fault.HOST)
            self._send(source, ChunkRefused(key, header.number))
            return
        self._send(source, ChunkTaken(key, header.number))
        incoming.received += len(chunk)
        if incoming.received < incoming.size:
            return
        del self._incoming[key]
        os.close(incoming.file)
        incoming.path.rename(self.path_of(key))
        self._fetched[key] = None
        for rank in incoming.waiting:
            self._tell(rank, key)
        for taker, wanted in incoming.wanted_by:
            self._want(taker, wanted)

    def _no_room(self, error: OSError) -> str:
        return f"cannot store the job's description in {self._folder}: {error.strerror}"

    def _give_up(self, key: str, reason: str, fault: Fault) -> None:
        """A description on its way here will not come: who waits for it cannot work for this job."""
        incoming = self._incoming.pop(key)
        incoming.discard()
        for taker, wanted in incoming.wanted_by:
            self._send(taker, BlobMissing(key, wanted.number, f"rank {self._rank}: {reason}"))
        self._refuse(incoming.waiting, key, reason, fault)

    def _refuse(self, asking: Iterable[int], key: str, reason: str, fault: Fault) -> None:
        for rank in asking:
            if rank == self._rank:
                self._on_failed(key, reason, fault)
            else:
                self._send(rank, BlobFailed(key, reason, fault))

    def _tell(self, rank: int, key: str) -> None:
        if rank != self._rank:
            self._send(rank, BlobHere(key))
        elif self._use(key):
            self._on_here(key)
