"""Descriptions on the move: once per host, in chunks, without stalling the event loop.

A large description is a file in shared memory, which all workers of a host map. The lowest
rank of each host is its *keeper*: ranks ask their keeper for a description, the keeper gets
it once from the keeper of another host (the parent's in the job tree, or the client's) in
chunks of 256 KB, at most WINDOW of them unacknowledged, on the bulk channel. A keeper that
is itself waiting lets others wait for it only if it waits for the client's: so no two hosts
wait for each other.

A rank holds a shared lock on each description that its workers need. What nobody on the host has locked can
be dropped when memory is short, but on the client's host, which others may ask.

Files carry the session in their name and are removed when the job is over. A service that
was killed leaves them behind; the next one on the same host sweeps what no living process
holds the lock of.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Set
from pathlib import Path
from typing import TypeAlias

import msgspec

from mallob_py.protocol.messages import Blob

CHUNK_BYTES = 256 << 10
WINDOW = 4
# Requests that were under way when their job ended are late by milliseconds, not by so many jobs.
_OVER_MAX = 10_000
_PREFIX = "mallob-py."


class BlobNeeded(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=60):
    """To the keeper of one's own host: bring this description here."""

    blob: Blob
    sources: tuple[int, ...]


class BlobHere(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=61):
    """From the keeper: the file is complete."""

    key: str


class BlobWanted(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=62):
    """To the keeper of a host that should have it: send it to me."""

    key: str


class BlobMissing(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=63):
    """Answer to `BlobWanted`: not here."""

    key: str


class BlobFailed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=65):
    """From the keeper: the description cannot be had on this host."""

    key: str
    reason: str


class ChunkTaken(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=64):
    """Acknowledgement of one chunk."""

    key: str


TransferMessage: TypeAlias = BlobNeeded | BlobHere | BlobWanted | BlobMissing | BlobFailed | ChunkTaken


class _ChunkHeader(msgspec.Struct, frozen=True, array_like=True, gc=False):
    key: str
    offset: int


_encode = msgspec.msgpack.Encoder().encode
_decode_header = msgspec.msgpack.Decoder(_ChunkHeader).decode


def shared_folder() -> Path:
    """Where descriptions lie: shared memory if there is any, else the temporary folder."""
    shared = Path("/dev/shm")
    return shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())


def _hold(path: Path) -> int:
    """Create and lock a file; another service's sweep may get in between, for an instant."""
    while True:
        lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock).st_nlink > 0:
            return lock
        os.close(lock)


class _Incoming:
    """A description on its way to this host."""

    def __init__(self, blob: Blob, sources: tuple[int, ...], path: Path) -> None:
        self.size = blob.size
        self.sources = list(sources)
        self.received = 0
        self.path = path
        #: asked for at the client's host, which has it as long as the job lives
        self.is_from_origin = False
        self.waiting: set[int] = set()
        self.wanted_by: list[int] = []
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)

    def discard(self) -> None:
        os.close(self.file)
        self.path.unlink(missing_ok=True)


class _Outgoing:
    """A description on its way from this host to another keeper."""

    def __init__(self, path: Path) -> None:
        self.file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self.file).st_size
        self.offset = 0
        self.unacknowledged = 0


class Transfer:
    """One rank's part. `send(rank, message)` and `send_bulk(rank, data)` never block.

    `on_here(key)` is called when a description that this rank asked for is on its host,
    `on_failed(key, reason)` when there is no room for it.
    """

    def __init__(
        self,
        rank: int,
        session: str,
        keeper_of: Callable[[int], int],
        send: Callable[[int, TransferMessage], None],
        send_bulk: Callable[[int, bytes], None],
        on_here: Callable[[str], None],
        on_failed: Callable[[str, str], None],
    ) -> None:
        self._rank = rank
        self._keeper_of = keeper_of
        self._keeper = keeper_of(rank)
        self._send = send
        self._send_bulk = send_bulk
        self._on_here = on_here
        self._on_failed = on_failed
        self._folder = shared_folder()
        self._prefix = f"{_PREFIX}{session}.{self._keeper}."
        self._incoming: dict[str, _Incoming] = {}
        self._outgoing: dict[tuple[str, int], _Outgoing] = {}
        self._over: OrderedDict[str, None] = OrderedDict()
        #: locked files of descriptions that this rank needs
        self._used: dict[str, int] = {}
        #: what this rank has asked its keeper for
        self._asked: dict[str, BlobNeeded] = {}
        #: of a keeper: descriptions that came from other hosts, the one used last at the end
        self._fetched: OrderedDict[str, None] = OrderedDict()
        self._lock: int | None = None
        if self._keeper == rank:
            self._sweep_stale()
            self._lock = _hold(self._folder / f"{self._prefix}lock")

    def path_of(self, key: str) -> Path:
        """The file of a description on this host."""
        return self._folder / f"{self._prefix}{key}"

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
        for taker in [taker for taker in self._outgoing if taker[0] == key]:
            os.close(self._outgoing.pop(taker).file)
        if (incoming := self._incoming.pop(key, None)) is not None:
            incoming.discard()
        # Most jobs have no file, and every rank's keeper comes through here for every job.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self._folder}/{self._prefix}{key}")

    def close(self) -> None:
        """Remove all files of this session on this host."""
        self.keep_only(set())
        if self._lock is not None:
            for path in self._folder.glob(f"{self._prefix}*"):
                path.unlink(missing_ok=True)
            os.close(self._lock)

    def _sweep_stale(self) -> None:
        for lock_path in self._folder.glob(f"{_PREFIX}*.lock"):
            with contextlib.suppress(OSError):
                lock = os.open(lock_path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    for path in self._folder.glob(lock_path.name.removesuffix("lock") + "*"):
                        path.unlink(missing_ok=True)
                finally:
                    os.close(lock)

    # --- messages -----------------------------------------------------------------------

    def receive(self, source: int, message: TransferMessage) -> None:
        match message:
            case BlobNeeded(blob, sources):
                self._need(source, blob, sources)
            case BlobHere(key):
                self._find(key)
            case BlobFailed(key, reason):
                self._asked.pop(key, None)
                self._on_failed(key, reason)
            case BlobWanted(key):
                self._want(source, key)
            case BlobMissing(key):
                if (incoming := self._incoming.get(key)) is not None:
                    self._ask_next(key, incoming)
            case ChunkTaken(key):
                if (outgoing := self._outgoing.get((key, source))) is not None:
                    outgoing.unacknowledged -= 1
                    self._send_chunks(key, source, outgoing)

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
            incoming = _Incoming(blob, sources, self._folder / f"{self._prefix}{blob.key}~")
        except OSError as error:
            self._give_up(blob.key, error, [rank])
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
                self._send(keeper, BlobWanted(key))
                return
        # Nobody has it: the job has ended meanwhile, and everybody will hear so.
        self.forget(key)

    def _want(self, taker: int, key: str) -> None:
        if (incoming := self._incoming.get(key)) is not None and incoming.is_from_origin:
            incoming.wanted_by.append(taker)
            return
        try:
            outgoing = self._outgoing[key, taker] = _Outgoing(self.path_of(key))
        except OSError:
            self._send(taker, BlobMissing(key))
            return
        self._send_chunks(key, taker, outgoing)

    def _send_chunks(self, key: str, taker: int, outgoing: _Outgoing) -> None:
        while outgoing.unacknowledged < WINDOW and outgoing.offset < outgoing.size:
            data = os.pread(outgoing.file, CHUNK_BYTES, outgoing.offset)
            header = _encode(_ChunkHeader(key, outgoing.offset))
            self._send_bulk(taker, len(header).to_bytes(2, "little") + header + data)
            outgoing.offset += len(data)
            outgoing.unacknowledged += 1
        if outgoing.unacknowledged == 0:
            os.close(outgoing.file)
            del self._outgoing[key, taker]

    def receive_chunk(self, source: int, data: bytes | bytearray) -> None:
        view = memoryview(data)
        start = 2 + int.from_bytes(view[:2], "little")
        header = _decode_header(view[2:start])
        self._send(source, ChunkTaken(header.key))
        incoming = self._incoming.get(header.key)
        if incoming is None:
            return
        try:
            os.pwrite(incoming.file, view[start:], header.offset)
        except OSError as error:
            self._give_up(header.key, error, incoming.waiting)
            return
        incoming.received += len(view) - start
        if incoming.received < incoming.size:
            return
        del self._incoming[header.key]
        os.close(incoming.file)
        incoming.path.rename(self.path_of(header.key))
        self._fetched[header.key] = None
        for rank in incoming.waiting:
            self._tell(rank, header.key)
        for taker in incoming.wanted_by:
            self._want(taker, header.key)

    def _give_up(self, key: str, error: OSError, asking: Iterable[int]) -> None:
        """Shared memory is full: those who ask here cannot work for this job; others go on."""
        reason = f"cannot store the job's description in {self._folder}: {error.strerror}"
        incoming = self._incoming.pop(key, None)
        if incoming is not None:
            for taker in incoming.wanted_by:
                self._send(taker, BlobMissing(key))
            incoming.discard()
        for rank in asking:
            if rank == self._rank:
                self._on_failed(key, reason)
            else:
                self._send(rank, BlobFailed(key, reason))

    def _tell(self, rank: int, key: str) -> None:
        if rank != self._rank:
            self._send(rank, BlobHere(key))
        elif self._use(key):
            self._on_here(key)
