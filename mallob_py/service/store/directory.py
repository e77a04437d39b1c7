"""A client's folder `jobs.<i>/`: detects job files, claims them, publishes replies.

Used within an event loop: wait on `fileno()` (if there is one) until `deadline_s`, then call `take`. Nothing
blocks for longer than one batch of file operations. `take`, `reply`, `refuse` and `dismiss` never raise an
error because of a file in `in/` or a full disk: what cannot be written is kept, reported through `log` and
tried again. On a disk that is slow to flush, replies wait for the next `take`, which is due at once, and are
flushed together.

`ThreadedDirectory` does all file operations in a thread of its own, for slow media: the event loop hands over
replies and gets claimed files, without blocking. Requests that gather while the thread waits for the disk are
flushed together.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import stat
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import msgspec

from mallob_py.accepting import is_shortage
from mallob_py.service import JobFileError, ServiceError
from mallob_py.service.jobs.job_file import JOB_FILE_BYTES_MAX, InputUse, Interruption, JobFile, parse_job
from mallob_py.service.jobs.reply import Reply, outcome_in, refusal_reply
from mallob_py.service.store import entries, format_mark, journal, own_folder
from mallob_py.service.store.checkpoints import Checkpoints
from mallob_py.service.store.flush_policy import Buffered, FlushPolicy, leave_mark
from mallob_py.service.store.in_folder import RESCAN_INTERVAL_S, InFolder, Watching
from mallob_py.service.store.large_files import LARGE_BYTES
from mallob_py.service.store.lock import Advertisement, DirectoryLock


class Incoming(msgspec.Struct, frozen=True):
    """A claimed file. The service must call exactly one of `reply`, `refuse` and `dismiss` for it."""

    internal_id: int
    file_name: str
    #: content; None: the file is large, and has not been read
    data: bytes | JobFileError | None
    #: time (seconds since 1970) when the file was put into `in/`; if `is_known`: when it was claimed
    handed_in_s: float
    #: whether the file was claimed earlier: by a former service, or by this service, which reads it again
    is_known: bool = False
    #: present path of the file
    path: str = ""
    #: user id of the file's owner; None: unknown
    owner: int | None = None

    @property
    def size_bytes(self) -> int:
        return len(self.data) if isinstance(self.data, bytes) else 0

    def parse(self, applications: Mapping[str, InputUse]) -> JobFile | Interruption:
        """Parse the file. Raises JobFileError if it must be refused."""
        if isinstance(self.data, JobFileError):
            raise self.data
        try:
            data = journal.contents(self.path) if self.data is None else self.data
        except OSError as error:
            raise JobFileError("", f"{self.file_name} cannot be read: {error.strerror}") from None
        return parse_job(data, applications)


class JobDirectory:
    """The folder of client `client_index` out of `clients` below `api_dir`."""

    def __init__(
        self,
        api_dir: Path,
        client_index: int = 0,
        clients: int = 1,
        tmp_dir: Path | None = None,
        watching: Watching = Watching.AUTO,
        log: Callable[[str], None] = lambda message: None,
        clock: Callable[[], float] = time.monotonic,
        flush_policy: FlushPolicy | None = None,
        size_max_bytes: int = JOB_FILE_BYTES_MAX,
    ) -> None:
        """`flush_policy`: by default Buffered. `size_max_bytes`: larger job files are not read."""
        self.path = (api_dir / f"jobs.{client_index}").absolute()
        self._log = log
        self._clock = clock
        self.size_max_bytes = size_max_bytes
        self._finished = journal.FinishedLog(self.path / journal.FINISHED)
        self._flush_policy = flush_policy or Buffered()
        self._journal = journal.Journal(self.path, self._finished, self._flush_policy)
        self._out = os.fspath(self._journal.out_dir)
        self._replies = journal.Replies(self._journal, self._flush_policy, log, clock)
        self._checkpoints = Checkpoints(self.path, self._flush_policy, log, clock)
        #: failed removals of files from the journal, the time of their next try, and the delay before that
        self._removals: list[Callable[[], None]] = []
        self._removals_due_s, self._removal_delay_s = math.inf, journal.RETRY_DELAY_MIN_S
        self._closed = False
        self._next_look_at_folder_s = clock() + RESCAN_INTERVAL_S
        try:
            self._journal.create()
            self._lock = DirectoryLock(self.path, log)
            with contextlib.ExitStack() as undo:
                undo.callback(self._lock.close)
                format_mark.settle(self.path, self._flush_policy)
                #: identity of an ended job -> its outcome, for dependencies
                self.finished = self._finished.load()
                leave_mark(self.path, self._flush_policy)
                self._ids = journal.InternalIds(api_dir, client_index, clients, log, self._flush_policy)
                claimed, decided, lost = self._journal.recover(log)
                self._recovered = deque(claimed)
                self._checkpoints.recover({one.internal_id for one in claimed})
                decided = [self._with_outcome(entry) for entry in decided]
                self.finished |= {entry.identity: entry.outcome for entry in (*decided, *lost)}
                self._in = InFolder(self._journal.in_dir, watching, self._bring_back, log, clock)
                self._advertisement = Advertisement(self.path, tmp_dir or Path(tempfile.gettempdir()), log)
                undo.pop_all()
        except OSError as error:
            raise _unusable(self.path, error) from error
        self._replies.add_recovered(decided)
        for entry in lost:
            why = JobFileError("", "its reply was damaged, perhaps by a loss of power; submit it again")
            self._replies.add(entry, refusal_reply(why, entry.target, entry.internal_id))
        #: whether the last call of `take` had room for files (`limit` above 0)
        self._has_room = True
        #: time when `take` must be called; it must be called earlier once there is room for files again
        self.deadline_s = -math.inf

    def revisions(self) -> Iterator[tuple[int, Incoming]]:
        """Yield (id of the chain, file) for each kept revision of a live chain, in order of internal ids."""
        for kept in self._journal.kept():
            yield kept.chain, self._read(kept)

    def end_chain(self, chain: int, internal_id: int | None = None, identity: str = "") -> None:
        """Drop all files of a chain, and the claimed file that ends the chain, if there is one."""
        self._remove(f"chain {chain}", partial(self._end_chain, chain, internal_id, identity))

    def _end_chain(self, chain: int, internal_id: int | None, identity: str) -> None:
        self._replies.finish_due()
        self._replies.check_decided(chain)  # a later reply would keep its revision's file
        self._journal.end_chain(chain, internal_id, identity)

    def _remove(self, what: str, removal: Callable[[], None]) -> None:
        """Remove something from the journal, now or, if that fails, at a later `take`."""
        try:
            removal()
        except OSError as error:
            self._log(f"cannot remove {what} from the journal: {error.strerror}; trying again")
            self._removals.append(removal)
            self._removals_due_s = min(self._removals_due_s, self._clock() + journal.RETRY_DELAY_MIN_S)
        self._note_deadline()

    def _remove_again(self, now: float) -> None:
        """Try all failed removals again."""
        removals, self._removals = self._removals, []
        for removal in removals:
            try:
                removal()
            except OSError:
                self._removals.append(removal)
        delay_s = min(2 * self._removal_delay_s, journal.RETRY_DELAY_MAX_S)
        self._removal_delay_s = delay_s if self._removals else journal.RETRY_DELAY_MIN_S
        self._removals_due_s = now + delay_s if self._removals else math.inf

    @property
    def recovered_count(self) -> int:
        """The number of a former service's claimed files that `take` has not returned yet."""
        return len(self._recovered)

    @property
    def known_files(self) -> int:
        """The number of files that wait to be taken, as far as known."""
        return len(self._in)

    def fileno(self) -> int | None:
        """Return a descriptor that is readable when `take` has news; None while polling."""
        return self._in.fileno()

    def _note_deadline(self) -> None:
        is_due = self._has_room and (self._recovered or self._in.has_names)
        deadline_s = min(self._in.deadline_s, self._replies.deadline_s, self._removals_due_s)
        self.deadline_s = -math.inf if is_due else deadline_s

    def take(self, limit: int = 64) -> list[Incoming]:
        """Claim up to `limit` files, the oldest first; 0: there is no room.

        Files that a former service claimed come first, since new files may refer to their jobs.
        Raises ServiceError if the folder has become another service's.
        """
        now = self._clock()
        self._has_room = limit > 0
        if now >= self._next_look_at_folder_s:
            self._next_look_at_folder_s = now + RESCAN_INTERVAL_S
            self._look_at_folder()
        if now >= self._replies.deadline_s:
            self._replies.finish_due()
        if now >= self._removals_due_s:
            self._remove_again(now)
        taken = [self._read(self._recovered.popleft()) for _ in range(min(limit, len(self._recovered)))]
        if names := self._in.next_names(limit - len(taken), now):
            taken += self._claim_all(names, now)
        self._note_deadline()
        return taken

    def read_again(self, internal_id: int) -> Incoming:
        """Read again a file that `take` has returned and that has no reply yet."""
        return self._read(self._journal.claimed(internal_id))

    def reply(
        self,
        internal_id: int,
        identity: str,
        reply: Reply,
        chain: int | None = None,
        on_decided: Callable[[], None] | None = None,
    ) -> None:
        """Publish the reply of an accepted job, once and durably.

        A revision's submission is kept until its `chain` ends. `on_decided` is called when the job will never
        run again, before the reply can be seen.
        """
        if internal_id in self._checkpoints.jobs:
            on_decided = partial(self._drop_checkpoint, internal_id, on_decided)
        kind = entries.Kind.ENDED if chain is None else entries.Kind.REVISION
        decided = entries.Decided(internal_id, kind, entries.reply_name(identity), chain, reply.outcome)
        self._replies.add(decided, reply, on_decided)
        self._note_deadline()

    def _drop_checkpoint(self, internal_id: int, then: Callable[[], None] | None) -> None:
        self._checkpoints.remove(internal_id)
        if then is not None:
            then()

    def save(self, internal_id: int, checkpoint: bytes) -> None:
        """Keep the last checkpoint of a job without a reply."""
        self._checkpoints.save(internal_id, checkpoint)

    def saved(self, internal_id: int) -> bytes | None:
        """Return the last checkpoint of a job that this service or a former service has kept."""
        return self._checkpoints.load(internal_id)

    def is_saved(self, internal_id: int) -> bool:
        """Tell whether a job has a checkpoint, without reading it."""
        return internal_id in self._checkpoints.jobs

    def refuse(self, incoming: Incoming, error: JobFileError) -> None:
        """Publish an error reply, named after the job or, if that is not allowed, after the file."""
        target = (
            entries.reply_name(error.identity) if error.identity else entries.refusal_name(incoming.file_name)
        )
        reply = refusal_reply(error, incoming.file_name, incoming.internal_id)
        self._replies.add(
            entries.Decided(incoming.internal_id, entries.Kind.REFUSED, target, outcome=reply.outcome), reply
        )
        self._note_deadline()

    def dismiss(self, internal_id: int, answered: int | None = None) -> None:
        """Drop a file that gets no reply.

        `answered`: the job whose reply is the answer to this file, an interruption that was obeyed. While the
        disk is too full for the reply, the file stays: after a crash, the job must be interrupted again.
        """
        if answered is None:
            self._dismiss(internal_id)
        else:
            self._replies.once_decided(answered, partial(self._dismiss, internal_id))

    def _dismiss(self, internal_id: int) -> None:
        self._remove(f"file {internal_id}", partial(self._journal.dismiss, internal_id))

    def is_unpublished(self, identity: str) -> bool:
        """Tell whether a reply of this name has yet to come to `out/`."""
        return entries.reply_name(identity) in self._replies.targets

    def await_reply(self, identity: str) -> None:
        """Note that another thread will call `reply` or `refuse` for this name; callable from any thread."""
        self._replies.targets.add(entries.reply_name(identity))

    def came_before_reply(self, incoming: Incoming, identity: str) -> bool:
        """Tell whether a file was put into `in/` before the last reply of this name came to `out/`.

        All times are of renames in one file system. A reply from the future proves nothing: the clock of the
        file system was set back.
        """
        if self.is_unpublished(identity):
            return True
        try:
            replied_s = os.stat(f"{self._out}/{entries.reply_name(identity)}").st_ctime
            # The folder changed last when the new file was moved into it.
            now_s = os.stat(self._journal.folder).st_mtime
        except OSError:
            return False
        return not incoming.is_known and incoming.handed_in_s < replied_s <= now_s

    def replied(self, identity: str) -> str | None:
        """Return the outcome in the reply of this name; "": unreadable, None: no reply."""
        path = f"{self._out}/{entries.reply_name(identity)}"
        return _outcome_at(path) if os.path.lexists(path) else None

    def _with_outcome(self, decided: entries.Decided) -> entries.Decided:
        return msgspec.structs.replace(decided, outcome=_outcome_at(self._journal.path(decided)))

    def solution_path(self, internal_id: int, identity: str) -> str:
        """Return the path for a solution that is too large for the reply."""
        return f"{self._out}/{identity}.{internal_id}.solution"

    def in_turn(self, request: Callable[[], None]) -> None:
        """Call a function at a time when no reply is being published."""
        request()

    def discard_solution(self, internal_id: int, identity: str) -> None:
        """Remove a file of a solution that no one will read any more."""
        with contextlib.suppress(OSError):
            os.unlink(self.solution_path(internal_id, identity))

    @property
    def unpublished(self) -> int:
        """The number of replies that wait to be written."""
        return len(self._replies)

    def untaken(self) -> int:
        """The number of job files that have not been taken."""
        try:
            return sum(map(entries.is_job_file, os.listdir(self.path / "in")))
        except OSError:
            return 0

    def close(self) -> None:
        """Close; unpublished replies get a last try, claimed files run again at the next start."""
        if self._closed:
            return
        self._closed = True
        self._checkpoints.close()
        self._replies.close()
        self._remove_again(self._clock())
        self._ids.close()
        self._finished.close()
        self._in.close()
        self._advertisement.close()
        self._lock.close()

    def _look_at_folder(self) -> None:
        if self._lock.is_lost() or not self._journal.is_whole():
            try:
                self._bring_back()
            except OSError as error:
                self._log(f"cannot make {self.path} anew: {error.strerror}; trying again")

    def _bring_back(self) -> None:
        """Make removed parts of the folder again. Raises OSError; ServiceError if it is not ours."""
        self._journal.create()
        if not self._lock.is_lost():
            return
        self._log(f"{self.path} was removed; it is made anew, and jobs that were in it are lost")
        self._lock.close()
        self._lock = DirectoryLock(self.path, self._log)
        self._finished.close()
        format_mark.settle(self.path, self._flush_policy)
        leave_mark(self.path, self._flush_policy)

    def _claim_all(self, names: list[str], now: float) -> list[Incoming]:
        try:
            claims = self._journal.claim(names, self._ids, self._in.rested(now))
        except OSError as error:
            if len(names) > 1:  # perhaps only one of the files cannot be claimed
                return [incoming for name in names for incoming in self._claim_all([name], now)]
            self._put_off(names[0], error, now)
            return []
        put_off = self._in.put_off_names
        claimed: list[tuple[entries.Claimed, str, os.stat_result | None]] = []
        for name, entry, handed_in, path in claims:
            if entry is None:
                self._in.let_rest(name, now)
                continue
            if isinstance(entry, OSError) and os.path.lexists(f"{self._in.path}/{name}"):
                self._put_off(name, entry, now)
                continue
            if isinstance(entry, entries.Claimed):  # otherwise the owner has withdrawn the file
                claimed.append((entry, path, handed_in))
            if name in put_off:
                self._in.forget(name)
        try:
            if self._flush_policy.is_slow:
                self._journal.confirm_claims()
        except OSError as error:
            self._log(f"cannot flush {self.path}: {error.strerror}; a loss of power may cost the newest jobs")
        return [self._content(*one) for one in claimed]

    def _put_off(self, name: str, error: OSError, now: float) -> None:
        if self._in.put_off(name, now):
            self._log(f"cannot move {name!a} out of {self._in.path}: {error.strerror}; trying again")

    def _read(self, claimed: entries.Claimed | entries.Kept) -> Incoming:
        """Read a file that was claimed earlier."""
        return self._content(claimed, self._journal.path(claimed))

    def _content(
        self, claimed: entries.Claimed | entries.Kept, path: str, handed_in: os.stat_result | None = None
    ) -> Incoming:
        """Read a claimed file.

        `handed_in`: the file's status before it was moved to the journal; None: the file was claimed earlier.
        """
        data: bytes | JobFileError | None
        owner: int | None = None
        handed_in_s = time.time()
        try:
            seen = handed_in or os.lstat(path)
            handed_in_s = seen.st_ctime
            if stat.S_ISREG(seen.st_mode):
                with journal.opened_to_read(path, os.O_NOFOLLOW) as descriptor:
                    status = os.fstat(descriptor)
                    owner = _owner_in(status)
                    data = self._data(claimed.file_name, status, descriptor)
            elif stat.S_ISREG((status := os.stat(path)).st_mode):
                with journal.opened_to_read(path) as descriptor:
                    data = self._data(claimed.file_name, status, descriptor)
            else:
                kind = "a folder" if stat.S_ISDIR(status.st_mode) else "no regular file"
                data = JobFileError("", f"{claimed.file_name} is {kind}; a job file is one JSON object")
        except OSError as error:
            data = JobFileError("", f"{claimed.file_name} cannot be read: {error.strerror}")
            if is_shortage(error):
                data = None  # the file is read later, as large files are
                owner = _owner_at(path)
        is_known = handed_in is None
        return Incoming(claimed.internal_id, claimed.file_name, data, handed_in_s, is_known, path, owner)

    def _data(self, file_name: str, status: os.stat_result, descriptor: int) -> bytes | JobFileError | None:
        """Return the content of a job file; None: the file is large. Raises OSError."""
        if status.st_size > self.size_max_bytes:
            return self._too_large(file_name, status.st_size)
        if status.st_size > LARGE_BYTES:
            return None
        return journal.read_all(descriptor, self.size_max_bytes, status.st_size)

    def _too_large(self, file_name: str, size_bytes: int) -> JobFileError:
        size, most = f"{size_bytes / (1 << 20):.6g}", f"{self.size_max_bytes / (1 << 20):.6g}"
        return JobFileError(
            "",
            f"{file_name} has {size} MB, but a job file may have at most {most} MB (see --max-job-file); "
            "put the input into a file of its own and name that file in files",
        )


def _owner_in(status: os.stat_result) -> int | None:
    """Return the owner of a file; None: no file, or one that another user may have linked."""
    return status.st_uid if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 else None


def _owner_at(path: str) -> int | None:
    """Return the owner of a claimed file that cannot be opened for now; None: unknown."""
    try:
        return _owner_in(os.lstat(path))
    except OSError:
        return None


def _outcome_at(path: str) -> str:
    try:
        return outcome_in(own_folder.read_file(path))
    except OSError:
        return ""


def orphaned_folders(api_dir: Path, clients: int) -> list[Path]:
    """Return folders of former clients that hold jobs without a reply.

    After a restart with fewer clients, these jobs wait until there are as many again.
    """
    orphaned: list[Path] = []
    for folder in sorted(api_dir.glob("jobs.*")):
        index = folder.name.removeprefix("jobs.")
        if index.isdecimal() and int(index) >= clients:
            is_waiting = any(folder.glob("in/[!~.]*")) or (
                (folder / "journal").is_dir()
                and any(
                    isinstance(entry, entries.Claimed | entries.Decided)
                    for entry in entries.read_entries(folder / "journal")
                )
            )
            orphaned += [folder] if is_waiting else []
    return orphaned


def _unusable(path: Path, error: OSError) -> ServiceError:
    where = f" ({error.filename})" if error.filename else ""
    return ServiceError(
        f"cannot use {path} for jobs: {error.strerror}{where}; make it writable or give another --api-dir"
    )


#: number of claimed files waiting for the event loop at which no further files are claimed
_READY_MAX = 64
_WAIT_MAX_S = 1.0


class ThreadedDirectory:
    """A `JobDirectory` used from one thread; its own thread starts with the first `take`."""

    def __init__(
        self, open_directory: Callable[[Callable[[str], None]], JobDirectory], log: Callable[[str], None]
    ) -> None:
        """`open_directory` opens the directory, given a function for complaints, and may raise."""
        self._log = log
        self._thread = threading.Thread(target=self._serve, name="mallob-py-directory", daemon=True)
        #: complaints of the thread, and the files that the thread has claimed
        self._complaints: deque[str] = deque()
        self._ready: deque[Incoming] = deque()
        self._failure: BaseException | None = None
        self.known_files = 0
        #: whether the last `take` asked for files, as the thread needs to know
        self._has_room = True
        self._requests: deque[Callable[[], None]] = deque()
        #: job -> last checkpoint, which waits to be written or is being written; changed under the lock
        self._unsaved: dict[int, bytes] = {}
        self._unsaved_lock = threading.Lock()
        self._is_closing = False
        self._directory = open_directory(self._complain)
        self.path = self._directory.path
        self.finished = self._directory.finished
        self.recovered_count = self._directory.recovered_count
        self.size_max_bytes = self._directory.size_max_bytes
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._request_bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    # --- the interface of a JobDirectory --------------------------------------------------------

    def fileno(self) -> int:
        return self._bell

    @property
    def deadline_s(self) -> float:
        has_news = self._ready or self._complaints or self._failure is not None
        return -math.inf if has_news or not self._thread.ident else math.inf

    def take(self, limit: int = 64) -> list[Incoming]:
        if (has_room := limit > 0) is not self._has_room:
            self._has_room = has_room
            os.eventfd_write(self._request_bell, 1)
        if not self._thread.ident:
            self._thread.start()
        _silence(self._bell)
        self._tell()
        if self._failure is not None:
            raise self._failure
        taken = [self._ready.popleft() for _ in range(min(limit, len(self._ready)))]
        if taken:
            os.eventfd_write(self._request_bell, 1)  # wake the thread: there is room for files again
        return taken

    def read_again(self, internal_id: int) -> Incoming:
        return self._directory.read_again(internal_id)

    def revisions(self) -> Iterator[tuple[int, Incoming]]:
        """Yield the kept revisions; to be called before the first `take`."""
        return self._directory.revisions()

    def replied(self, identity: str) -> str | None:
        return self._directory.replied(identity)

    def is_unpublished(self, identity: str) -> bool:
        return self._directory.is_unpublished(identity)

    def came_before_reply(self, incoming: Incoming, identity: str) -> bool:
        return self._directory.came_before_reply(incoming, identity)

    def solution_path(self, internal_id: int, identity: str) -> str:
        return self._directory.solution_path(internal_id, identity)

    def in_turn(self, request: Callable[[], None]) -> None:
        """Have the thread call a function between its own work."""
        self._request(request)

    def discard_solution(self, internal_id: int, identity: str) -> None:
        self._request(partial(self._directory.discard_solution, internal_id, identity))

    def reply(
        self,
        internal_id: int,
        identity: str,
        reply: Reply,
        chain: int | None = None,
        on_decided: Callable[[], None] | None = None,
    ) -> None:
        """Publish a reply; `on_decided` is called by the thread."""
        self._directory.await_reply(identity)
        self._request(partial(self._directory.reply, internal_id, identity, reply, chain, on_decided))

    def save(self, internal_id: int, checkpoint: bytes) -> None:
        with self._unsaved_lock:
            self._unsaved[internal_id] = checkpoint
        self._request(partial(self._save, internal_id))

    def saved(self, internal_id: int) -> bytes | None:
        unsaved = self._unsaved.get(internal_id)
        return self._directory.saved(internal_id) if unsaved is None else unsaved

    def is_saved(self, internal_id: int) -> bool:
        return internal_id in self._unsaved or self._directory.is_saved(internal_id)

    def refuse(self, incoming: Incoming, error: JobFileError) -> None:
        if error.identity:
            self._directory.await_reply(error.identity)
        self._request(partial(self._directory.refuse, incoming, error))

    def dismiss(self, internal_id: int, answered: int | None = None) -> None:
        self._request(partial(self._directory.dismiss, internal_id, answered))

    def end_chain(self, chain: int, internal_id: int | None = None, identity: str = "") -> None:
        self._request(partial(self._directory.end_chain, chain, internal_id, identity))

    @property
    def unpublished(self) -> int:
        return self._directory.unpublished

    def untaken(self) -> int:
        return self._directory.untaken()

    def close(self) -> None:
        """Close, after all requests are done."""
        if self._is_closing:
            return
        self._is_closing = True
        if self._thread.ident:
            os.eventfd_write(self._request_bell, 1)
            self._thread.join()
        self._directory.close()
        self._tell()
        os.close(self._bell)
        os.close(self._request_bell)

    # --- between the threads --------------------------------------------------------------------

    def _request(self, request: Callable[[], None]) -> None:
        self._requests.append(request)
        os.eventfd_write(self._request_bell, 1)

    def _complain(self, message: str) -> None:
        if threading.current_thread() is not self._thread:
            self._log(message)
            return
        self._complaints.append(message)
        os.eventfd_write(self._bell, 1)

    def _tell(self) -> None:
        while self._complaints:
            self._log(self._complaints.popleft())

    # --- the thread -----------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while not self._is_closing:
                self._turn()
                self._wait()
            self._do_requests()
        except BaseException as error:
            self._failure = error
            os.eventfd_write(self._bell, 1)

    def _turn(self) -> None:
        self._do_requests()
        taken = self._directory.take(max(0, _READY_MAX - len(self._ready)) if self._has_room else 0)
        if taken:
            self._ready.extend(taken)
            os.eventfd_write(self._bell, 1)
        self.recovered_count = self._directory.recovered_count + len(self._ready)
        self.known_files = self._directory.known_files

    def _do_requests(self) -> None:
        _silence(self._request_bell)
        while self._requests:
            self._requests.popleft()()

    def _save(self, internal_id: int) -> None:
        checkpoint = self._unsaved.get(internal_id)
        if checkpoint is None:
            return  # an earlier request has saved it
        self._directory.save(internal_id, checkpoint)
        with self._unsaved_lock:
            if self._unsaved[internal_id] is checkpoint:  # no newer one has come meanwhile
                del self._unsaved[internal_id]

    def _wait(self) -> None:
        """Wait until there is something to do."""
        descriptors = [self._request_bell]
        wait_s = _WAIT_MAX_S
        if len(self._ready) < _READY_MAX:
            wait_s = min(wait_s, max(0.0, self._directory.deadline_s - time.monotonic()))
            if (watched := self._directory.fileno()) is not None:
                descriptors.append(watched)
        poll = select.poll()
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        poll.poll(math.ceil(1000 * wait_s))


def _silence(bell: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.eventfd_read(bell)
