"""Transfers of descriptions between hosts: once per host, in chunks, without stalling the event loop.

A large description is a file in shared memory, which all workers of a host map. The lowest live rank of each
host is the host's *keeper*: ranks ask their keeper for a description, and the keeper gets the description
once from the keeper of another host (the host of the parent in the job tree, or of the client) on the bulk
channel, in chunks of 256 KB, at most WINDOW of them unacknowledged. A keeper that itself waits for a
description lets other keepers wait for it only if it gets the description from the client's host: so no two
hosts wait for each other.

Room for the whole description is reserved before its first byte is asked for; if there is no room, the keeper
looks for room a few times more, about once a second. Each time a keeper asks another keeper, it gives the
transfer a new number. Chunks are taken in the order of their offsets; chunks of an old transfer are refused,
which ends that transfer at its sender. So a file is either complete and right, or absent.

A rank holds a shared lock on each description that its workers need. When memory is short, descriptions
without a lock can be dropped, except on the client's host, which other hosts may ask for them.

When ranks are lost, all transfers are given up (`halt`), and descriptions are asked for again afterwards. The
new keeper finds the files of the former keeper, and removes the files that the former keeper would have
removed: unfinished files, and files of ended jobs. Inputs that a lost rank's client was reading are removed,
too. Only lost ranks may have heard that a job has ended; so descriptions that no rank mentions any more
are removed.

Files lie in the session's private folder and are removed when their job ends, or with that folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Set
from pathlib import Path

import msgspec

from mallob_py.protocol.host_health import Fault
from mallob_py.protocol.rank_messages import (
    AnyFileMessage,
    ChunkRefused,
    ChunkTaken,
    FileFailed,
    FileHere,
    FileMissing,
    FileNeeded,
    FileWanted,
)
from mallob_py.runtime.memory import NO_ROOM
from mallob_py.runtime.world.envelope import WireError

CHUNK_BYTES = 256 << 10
WINDOW = 4
#: number of ended jobs remembered: requests for an ended job arrive within milliseconds of its end
_OVER_MAX = 10_000
#: greatest number of checks for room in shared memory, which other processes may fill for a moment
_LOOKS_MAX = 5


class _ChunkHeader(msgspec.Struct, frozen=True, array_like=True, gc=False):
    job: int
    number: int
    offset: int


_encode = msgspec.msgpack.Encoder().encode
_decode_header = msgspec.msgpack.Decoder(_ChunkHeader).decode


def _open_chunk(data: bytes | bytearray) -> tuple[_ChunkHeader, memoryview]:
    """Return a chunk's header and content. Raises WireError."""
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
    """A description on its way to this host. Construction raises OSError if there is no room for it."""

    def __init__(self, size: int, sources: tuple[int, ...], path: Path) -> None:
        self.size = size
        self.sources = list(sources)
        #: the present transfer's number, and the rank that sends
        self.number = -1
        self.sender = -1
        self.received = 0
        #: reasons for not having the description, one from each keeper asked so far
        self.missing: list[str] = []
        self.path = path
        #: whether the description comes from the client's host, which has it as long as the job lives
        self.is_from_origin = False
        self.waiting: set[int] = set()
        self.wanted_by: list[tuple[int, FileWanted]] = []
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(self.file, 0, self.size)
        except OSError:
            self.discard()
            raise

    def discard(self) -> None:
        os.close(self.file)
        self.path.unlink(missing_ok=True)


class _Roomless:
    """A description that waits for room on this host."""

    def __init__(self, size: int, sources: tuple[int, ...]) -> None:
        self.size = size
        self.sources = sources
        self.waiting: set[int] = set()
        self.looks = 0


class _Outgoing:
    """A description on its way from this host to another keeper. `number`: that keeper's transfer number."""

    def __init__(self, path: Path, number: int) -> None:
        self.file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self.file).st_size
        self.number = number
        self.offset = 0
        self.unacknowledged = 0


class Transfer:
    """The transfers of one rank. `send(rank, message)` and `send_bulk(rank, data)` never block.

    `keeper_of(rank)` returns the keeper of a rank's host; None: no rank lives on that host.
    `on_here(job)` is called when a description that this rank asked for is on this host,
    `on_failed(job, reason, fault)` when the host cannot get it.
    """

    def __init__(
        self,
        rank: int,
        folder: Path,
        keeper_of: Callable[[int], int | None],
        send: Callable[[int, AnyFileMessage], None],
        send_bulk: Callable[[int, bytes], None],
        on_here: Callable[[int], None],
        on_failed: Callable[[int, str, Fault], None],
    ) -> None:
        self._rank = rank
        self._keeper_of = keeper_of
        self._keeper = keeper_of(rank)
        self._send = send
        self._send_bulk = send_bulk
        self._on_here = on_here
        self._on_failed = on_failed
        #: the session's folder on this host, in shared memory
        self.folder = folder
        self._incoming: dict[int, _Incoming] = {}
        self._roomless: dict[int, _Roomless] = {}
        self._outgoing: dict[tuple[int, int], _Outgoing] = {}
        self._transfers = 0
        self._over: OrderedDict[int, None] = OrderedDict()
        #: job whose description this rank needs -> locked file of the description
        self._used: dict[int, int] = {}
        #: job whose description this rank's client has made -> locked file of the description
        self._brought: dict[int, int] = {}
        #: job -> unanswered request of this rank to its keeper
        self._asked: dict[int, FileNeeded] = {}
        #: for a keeper: jobs whose descriptions came from other hosts, in order of last use
        self._fetched: OrderedDict[int, None] = OrderedDict()
        #: for a keeper: jobs whose descriptions were on this host when the set of ranks changed, until
        #: `drop_unheard`
        self._inherited: list[int] = []
        #: for a keeper: jobs whose descriptions were on this host when the set of ranks changed: a lost rank
        #: may have brought them
        self._found: set[int] = set()
        #: jobs whose descriptions must be removed once no other process has them locked
        self._lingering: set[int] = set()

    def halt(self) -> None:
        """Give up all transfers because the set of ranks changes; ranks ask again when all have halted."""
        for job, taker in list(self._outgoing):
            self._stop_sending(job, taker)
        for incoming in self._incoming.values():
            incoming.discard()
        self._incoming.clear()
        self._roomless.clear()
        self._asked.clear()

    def go_on(self, members: Container[int]) -> None:
        """Go on after a change of the set of ranks; `keeper_of` refers to the new `members` already."""
        former, self._keeper = self._keeper, self._keeper_of(self._rank)
        names = [path.name for path in self.folder.glob("[0-9]*")] if self._keeper == self._rank else []
        for name in names:
            reader = name.partition("+")[2]
            if reader and int(reader) not in members:
                self._unlink(name)
        if former != self._rank:
            self._tidy_up(names)
        self._inherited = [int(name) for name in names if name.isdecimal()]
        self._found = set(self._inherited)
        # A job whose client was lost before its reply was published is live again, under the same number.
        self._over.clear()

    def _tidy_up(self, names: Iterable[str]) -> None:
        """Remove, in place of the lost keeper, unfinished descriptions, and descriptions of ended jobs."""
        for name in names:
            job = name.removesuffix("~")
            if job.isdecimal() and (job != name or int(job) in self._over):
                self._unlink(name)

    def _unlink(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.folder / name)

    def drop_unheard(self, live: Container[int]) -> None:
        """Drop the descriptions of jobs that are no longer live, after a change of the set of ranks."""
        for job in self._inherited:
            if job not in live:
                self.let_go(job)
        self._inherited.clear()

    def path_of(self, job: int) -> Path:
        """Return the path of a description on this host."""
        return self.folder / str(job)

    def fetch(self, job: int, size: int, sources: tuple[int, ...]) -> None:
        """Bring a description to this host, then call `on_here` or `on_failed` unless the job ends before."""
        if self._use(job):
            self._on_here(job)
        elif self._keeper == self._rank:
            self._need(self._rank, job, size, sources)
        else:
            assert self._keeper is not None, "a live rank has a keeper"
            self._asked[job] = FileNeeded(job, size, sources)
            self._send(self._keeper, self._asked[job])

    def _use(self, job: int) -> bool:
        """Lock a description that is on this host, so that it is not dropped; return whether it is here."""
        if job in self._used:
            return True
        try:
            file = os.open(self.path_of(job), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        fcntl.flock(file, fcntl.LOCK_SH)
        if os.fstat(file).st_nlink == 0:  # the file was removed in between
            os.close(file)
            return False
        self._used[job] = file
        if job in self._fetched:
            self._fetched.move_to_end(job)
        return True

    def keep_only(self, jobs: Set[int]) -> None:
        """Release descriptions of jobs not in `jobs`: no worker here needs them. Called once a second."""
        for job in self._used.keys() - jobs:
            os.close(self._used.pop(job))
        lingering, self._lingering = self._lingering, set()
        for job in lingering:
            self._remove(job)
        for job, roomless in list(self._roomless.items()):
            del self._roomless[job]
            for rank in roomless.waiting:
                self._need(rank, job, roomless.size, roomless.sources, roomless.looks)

    def drop_unused(self, wanted_bytes: int) -> int:
        """Remove unlocked descriptions until `wanted_bytes` are freed; return the number of bytes freed."""
        given_bytes = 0
        for job in list(self._fetched):
            if given_bytes < wanted_bytes:
                given_bytes += self._drop(job)
        return given_bytes

    def _drop(self, job: int) -> int:
        path = self.path_of(job)
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # another rank of the host has removed the file
            del self._fetched[job]
            return 0
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            del self._fetched[job]
            if os.fstat(file).st_nlink == 0:  # another rank has removed the file in between
                return 0
            path.unlink()
            return os.fstat(file).st_size
        except BlockingIOError:
            return 0
        finally:
            os.close(file)

    def forget(self, job: int) -> None:
        """Remove an ended job's description, even if unfinished, and refuse requests for it."""
        self._over[job] = None
        if len(self._over) > _OVER_MAX:
            self._over.popitem(last=False)
        self.let_go(job)

    def let_go(self, job: int) -> None:
        """Remove a description, even if unfinished; ranks may ask for it again.

        A rank that never used the description does not look for a file, since most jobs have none.
        """
        self._asked.pop(job, None)
        may_be_here = job in self._found or job in self._fetched
        self._found.discard(job)
        for locked in (self._used, self._brought):
            if (file := locked.pop(job, None)) is not None:
                os.close(file)
                may_be_here = True
        if self._keeper == self._rank:
            self._fetched.pop(job, None)
            for taker in [taker for sent, taker in self._outgoing if sent == job]:
                self._stop_sending(job, taker)
            self._roomless.pop(job, None)
            if (incoming := self._incoming.pop(job, None)) is not None:
                incoming.discard()
        if may_be_here:
            self._remove(job)

    def _remove(self, job: int) -> None:
        """Remove a description; if a rank of the host has it locked, `keep_only` removes it later.

        A rank may have it locked because a job that was given up was submitted again, and its client's rank
        needs the description; or, for a moment, because a process being started shares its rank's open files.
        """
        try:
            file = os.open(f"{self.folder}/{job}", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(f"{self.folder}/{job}")
        except BlockingIOError:
            self._lingering.add(job)
        except FileNotFoundError:
            pass
        finally:
            os.close(file)

    def path_to_read(self, job: int) -> str:
        """Return the path for a description that this rank's client makes of an input; then call `bring`."""
        return f"{self.folder}/{job}+{self._rank}"

    def bring(self, job: int, path: str) -> None:
        """Make the file at `path`, which this rank's client has made of the input, the job's description.

        If the job was submitted before, other ranks may hear of its former end only now.
        """
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(file, fcntl.LOCK_SH)
        if (former := self._brought.pop(job, None)) is not None:
            os.close(former)
        self._brought[job] = file
        os.rename(path, self.path_of(job))

    # --- messages -----------------------------------------------------------------------

    def receive(self, source: int, message: AnyFileMessage) -> None:
        match message:
            case FileNeeded(job, size, sources):
                self._need(source, job, size, sources)
            case FileHere(job):
                self._find(job)
            case FileFailed(job, reason, fault):
                self._asked.pop(job, None)
                self._on_failed(job, reason, fault)
            case FileWanted():
                self._want(source, message)
            case FileMissing(job, number, reason):
                incoming = self._incoming.get(job)
                if incoming is not None and incoming.number == number:
                    incoming.missing.append(reason)
                    self._ask_next(job, incoming)
            case ChunkTaken(job, number):
                if (outgoing := self._outgoing_to(source, job, number)) is not None:
                    outgoing.unacknowledged -= 1
                    self._send_chunks(job, source, outgoing)
            case ChunkRefused(job, number):
                if self._outgoing_to(source, job, number) is not None:
                    self._stop_sending(job, source)

    def _outgoing_to(self, taker: int, job: int, number: int) -> _Outgoing | None:
        """Return the transfer to rank `taker` if one with this number is under way, else None."""
        outgoing = self._outgoing.get((job, taker))
        return outgoing if outgoing is not None and outgoing.number == number else None

    def _stop_sending(self, job: int, taker: int) -> None:
        os.close(self._outgoing.pop((job, taker)).file)

    def _find(self, job: int) -> None:
        """Use a description that the keeper has reported to be on this host; ask again if it was removed."""
        if (asked := self._asked.pop(job, None)) is not None:
            self.fetch(job, asked.size, asked.sources)
        else:
            self._remove(job)

    def _need(self, rank: int, job: int, size: int, sources: tuple[int, ...], looks: int = 0) -> None:
        if self.path_of(job).exists():
            self._tell(rank, job)
            return
        if job in self._over:
            # Usually the asking rank soon hears that the job has ended; else the job runs again, and the rank
            # asks again.
            del self._over[job]
            self._refuse([rank], job, "the job was over", Fault.NOBODY)
            return
        incoming = self._incoming.get(job)
        if incoming is not None:
            incoming.waiting.add(rank)
            return
        if (roomless := self._roomless.get(job)) is not None:
            roomless.waiting.add(rank)
            return
        try:
            incoming = _Incoming(size, sources, self.folder / f"{job}~")
        except OSError as error:
            if error.errno not in NO_ROOM or looks >= _LOOKS_MAX:
                self._refuse([rank], job, self._no_room(error), Fault.HOST)
                return
            roomless = self._roomless[job] = _Roomless(size, sources)
            roomless.waiting.add(rank)
            roomless.looks = looks + 1
            return
        self._incoming[job] = incoming
        incoming.waiting.add(rank)
        self._ask_next(job, incoming)

    def _ask_next(self, job: int, incoming: _Incoming) -> None:
        """Ask the keeper of the next host that may have the description."""
        while incoming.sources:
            keeper = self._keeper_of(incoming.sources.pop(0))
            if keeper is not None and keeper != self._rank:
                incoming.is_from_origin = all(self._keeper_of(each) == keeper for each in incoming.sources)
                self._transfers += 1
                incoming.number, incoming.sender, incoming.received = self._transfers, keeper, 0
                self._send(keeper, FileWanted(job, incoming.size, incoming.number))
                return
        reason = "; ".join(incoming.missing) or "no other host has it"
        self._give_up(job, f"cannot get the job's description: {reason}", Fault.NOBODY)

    def _want(self, taker: int, wanted: FileWanted) -> None:
        job = wanted.job
        if (incoming := self._incoming.get(job)) is not None and incoming.is_from_origin:
            incoming.wanted_by.append((taker, wanted))
            return
        if (job, taker) in self._outgoing:  # a former transfer has failed at the taker
            self._stop_sending(job, taker)
        try:
            outgoing = _Outgoing(self.path_of(job), wanted.number)
        except OSError as error:
            self._send(taker, FileMissing(job, wanted.number, f"rank {self._rank}: {error.strerror}"))
            return
        self._outgoing[job, taker] = outgoing
        if outgoing.size != wanted.size:
            self._stop_sending(job, taker)
            reason = f"rank {self._rank} has {outgoing.size} bytes, not {wanted.size}"
            self._send(taker, FileMissing(job, wanted.number, reason))
            return
        self._send_chunks(job, taker, outgoing)

    def _send_chunks(self, job: int, taker: int, outgoing: _Outgoing) -> None:
        while outgoing.unacknowledged < WINDOW and outgoing.offset < outgoing.size:
            data = os.pread(outgoing.file, CHUNK_BYTES, outgoing.offset)
            header = _encode(_ChunkHeader(job, outgoing.number, outgoing.offset))
            self._send_bulk(taker, len(header).to_bytes(2, "little") + header + data)
            outgoing.offset += len(data)
            outgoing.unacknowledged += 1
        if outgoing.unacknowledged <= 0:
            self._stop_sending(job, taker)

    def receive_chunk(self, source: int, data: bytes | bytearray) -> None:
        """Take in a chunk of a description. Raises WireError if `data` is no chunk."""
        header, chunk = _open_chunk(data)
        job = header.job
        incoming = self._incoming.get(job)
        if incoming is None or (incoming.number, incoming.sender) != (header.number, source):
            self._send(source, ChunkRefused(job, header.number))
            return
        if header.offset != incoming.received or not 0 < len(chunk) <= incoming.size - incoming.received:
            what = f"rank {source} sent {len(chunk)} bytes at {header.offset} of the job's description"
            self._give_up(job, f"{what} after {incoming.received} of {incoming.size}", Fault.NOBODY)
            self._send(source, ChunkRefused(job, header.number))
            return
        try:
            _write(incoming.file, chunk, header.offset)
        except OSError as error:
            self._give_up(job, self._no_room(error), Fault.HOST)
            self._send(source, ChunkRefused(job, header.number))
            return
        self._send(source, ChunkTaken(job, header.number))
        incoming.received += len(chunk)
        if incoming.received < incoming.size:
            return
        del self._incoming[job]
        os.close(incoming.file)
        incoming.path.rename(self.path_of(job))
        self._fetched[job] = None
        for rank in incoming.waiting:
            self._tell(rank, job)
        for taker, wanted in incoming.wanted_by:
            self._want(taker, wanted)

    def _no_room(self, error: OSError) -> str:
        return f"cannot store the job's description in {self.folder}: {error.strerror}"

    def _give_up(self, job: int, reason: str, fault: Fault) -> None:
        """Give up a description on its way here, and refuse it to all ranks that wait for it."""
        incoming = self._incoming.pop(job)
        incoming.discard()
        for taker, wanted in incoming.wanted_by:
            self._send(taker, FileMissing(job, wanted.number, f"rank {self._rank}: {reason}"))
        self._refuse(incoming.waiting, job, reason, fault)

    def _refuse(self, asking: Iterable[int], job: int, reason: str, fault: Fault) -> None:
        for rank in asking:
            if rank == self._rank:
                self._on_failed(job, reason, fault)
            else:
                self._send(rank, FileFailed(job, reason, fault))

    def _tell(self, rank: int, job: int) -> None:
        if rank != self._rank:
            self._send(rank, FileHere(job))
        elif self._use(job):
            self._on_here(job)
