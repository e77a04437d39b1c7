"""A client's folder `jobs.<i>/`: hears of job files, claims them, publishes replies.

Used from inside an event loop: wait on `fileno()` (if there is one) until `next_deadline()`,
then call `take`. Nothing here blocks for longer than file operations of one batch take, and
nothing that lies in `in/` or goes wrong on the disk raises out of `take`, `reply`, `refuse` or
`dismiss`: what cannot be written is kept, reported through `log` and tried again. On a medium that is
slow to flush, replies wait for the next `take`, which is due at once, and are flushed together there.

A file that inotify reports is complete. One that is merely found (at start, by polling) may
still be written: if it is no JSON yet, it is left alone until it has not changed for `SETTLE_S`
(longer where inotify would tell of its completion). That is measured with our clock between
two looks, as a file server's may differ.
Names that start with "~" or "." are ignored.
"""

from __future__ import annotations

import os
import stat
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mallob_py.service.advertisement import Advertisement
from mallob_py.service.entries import (
    Claimed,
    Decided,
    Kept,
    Kind,
    is_job_file,
    read_entries,
    refusal_name,
    reply_name,
)
from mallob_py.service.errors import JobFileError, ServiceError
from mallob_py.service.finished import FinishedLog
from mallob_py.service.internal_ids import InternalIds
from mallob_py.service.job_file import InputUse, Interruption, JobFile, parse_job
from mallob_py.service.journal import Journal, contents, is_json
from mallob_py.service.lock import DirectoryLock
from mallob_py.service.medium import Buffered, Medium, leave_mark
from mallob_py.service.replies import RETRY_DELAY_MIN_S, Replies
from mallob_py.service.reply import Reply, refusal_reply
from mallob_py.service.watching import InotifyWatch, Watching, is_remote

SETTLE_S = 1.0
SETTLE_WATCHED_S = 30.0  # inotify tells of a slow writer's end; this is for what it missed
POLL_INTERVAL_S = 0.05
RESCAN_INTERVAL_S = 5.0  # with inotify: a safety net, and brings back a deleted folder


@dataclass(frozen=True, slots=True)
class Incoming:
    """A claimed file. It gets exactly one `reply`, `refuse` or `dismiss`."""

    internal_id: int
    file_name: str
    data: bytes | JobFileError

    def parse(self, applications: Mapping[str, InputUse]) -> JobFile | Interruption:
        """Raises JobFileError if the file must be refused."""
        if isinstance(self.data, JobFileError):
            raise self.data
        return parse_job(self.data, applications)


@dataclass(frozen=True, slots=True)
class _Look:
    signature: tuple[int, int, int]
    due: float


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
        medium: Medium | None = None,
    ) -> None:
        """`medium`: Buffered unless given."""
        self.path = (api_dir / f"jobs.{client_index}").absolute()
        self._log = log
        self._clock = clock
        self._finished = FinishedLog(self.path / ".finished")
        self._medium = medium or Buffered()
        self._journal = Journal(self.path, self._finished, self._medium)
        self._queue: deque[str] = deque()
        self._queued: set[str] = set()
        self._complete: set[str] = set()
        self._looks: dict[str, _Look] = {}
        self._stuck: dict[str, float] = {}
        self._replies = Replies(self._journal, self._medium, log, clock)
        self._next_scan = float("-inf")
        self._started = clock()
        self._closed = False
        self._watch: InotifyWatch | None = None
        try:
            self._journal.create()
            self._lock = DirectoryLock(self.path, log)
        except OSError as error:
            raise _unusable(self.path, error) from error
        try:
            #: identities that ended before, for the bookkeeping of dependencies
            self.finished = self._finished.load()
            leave_mark(self.path, self._medium)
            self._ids = InternalIds(api_dir, client_index, clients, log, self._medium)
            claimed, decided, lost = self._journal.recover(log)
            self._recovered = deque(claimed)
            self.finished += [entry.identity for entry in (*decided, *lost)]
            self._inotify_wanted = watching is Watching.AUTO and not is_remote(self.path)
            self._advertisement = Advertisement(self.path, tmp_dir or Path(tempfile.gettempdir()), log)
        except OSError as error:
            self._lock.close()
            raise _unusable(self.path, error) from error
        self._start_watch()
        self._replies.add_recovered(decided)
        for entry in lost:
            why = JobFileError("", "its reply was damaged, as by a loss of power; submit it again")
            self._replies.add(entry, refusal_reply(why, entry.target, entry.internal_id))

    def revisions(self) -> Iterator[tuple[int, Incoming]]:
        """What a former service has kept of live chains, with the chain's id, first ones first."""
        for kept in self._journal.kept():
            yield kept.chain, self._read(kept)

    def end_chain(self, chain: int, internal_id: int | None = None) -> None:
        """Keep nothing of a chain any more, nor the claimed file that says so."""
        self._replies.finish_due()
        try:
            self._journal.end_chain(chain, internal_id)
        except OSError as error:
            self._log(f"cannot remove chain {chain} from the journal: {error.strerror}")

    @property
    def recovered_count(self) -> int:
        """Jobs of a former service that `take` will still give back."""
        return len(self._recovered)

    def fileno(self) -> int | None:
        """Readable when `take` has something new; None while polling."""
        return self._watch.fileno() if self._watch is not None else None

    def next_deadline(self) -> float:
        """When `take` is to be called at the latest."""
        if self._queue or self._recovered:
            return float("-inf")
        deadlines = [self._next_scan, self._replies.next_deadline(), *self._stuck.values()]
        deadlines.extend(look.due for look in self._looks.values())
        return min(deadlines)

    def take(self, limit: int = 64) -> list[Incoming]:
        """Claim up to `limit` files, those of a former service first; more wait for the next call."""
        now = self._clock()
        self._replies.finish_due()
        self._look_around(now)
        taken: list[Incoming] = []
        while self._recovered and len(taken) < limit:
            taken.append(self._read(self._recovered.popleft()))
        ready: list[str] = []
        while self._queue and len(taken) + len(ready) < limit:
            name = self._queue.popleft()
            self._queued.discard(name)
            if name in self._complete or self._settled(name, now):
                ready.append(name)
        return taken + [self._read(claimed) for claimed in self._claim_all(ready, now)]

    def reply(self, internal_id: int, identity: str, reply: Reply, chain: int | None = None) -> None:
        """Publish the reply of an accepted job, once and durably.

        The submission of a revision is kept until its `chain` ends.
        """
        kind = Kind.ENDED if chain is None else Kind.REVISION
        self._replies.add(Decided(internal_id, kind, reply_name(identity), chain), reply)

    def refuse(self, incoming: Incoming, error: JobFileError) -> None:
        """Publish an error reply, named after the job or, if it may not be, after the file."""
        target = reply_name(error.identity) if error.identity else refusal_name(incoming.file_name)
        reply = refusal_reply(error, incoming.file_name, incoming.internal_id)
        self._replies.add(Decided(incoming.internal_id, Kind.REFUSED, target), reply)

    def dismiss(self, internal_id: int) -> None:
        """Forget a file whose answer is another file's reply (an interruption that was obeyed)."""
        self._replies.finish_due()
        try:
            self._journal.dismiss(internal_id)
        except OSError as error:
            self._log(f"cannot remove file {internal_id} from the journal: {error.strerror}")

    def has_reply(self, identity: str) -> bool:
        """Whether a reply of that name is there to be read."""
        return os.path.lexists(f"{self._journal.out_dir}/{reply_name(identity)}")

    def solution_path(self, internal_id: int, identity: str) -> Path:
        """Where a solution goes that is too large for the reply."""
        return self._journal.out_dir / f"{identity}.{internal_id}.solution"

    def close(self) -> None:
        """Unpublished replies get a last try; what stays claimed runs again at the next start."""
        if self._closed:
            return
        self._closed = True
        self._replies.close()
        self._ids.close()
        self._finished.close()
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        self._advertisement.close()
        self._lock.close()

    def _look_around(self, now: float) -> None:
        if self._watch is not None:
            news = self._watch.news()
            for name in news.complete:
                if is_job_file(name):
                    self._complete.add(name)
                    self._enqueue(name)
            if news.lost:
                self._next_scan = now
        due = [name for name, look in self._looks.items() if look.due <= now]
        due += [name for name, again in self._stuck.items() if again <= now]
        for name in due:
            self._enqueue(name)
        if now >= self._next_scan:
            self._scan(now)

    def _scan(self, now: float) -> None:
        self._next_scan = now + (POLL_INTERVAL_S if self._watch is None else RESCAN_INTERVAL_S)
        found: list[tuple[int, str]] = []
        try:
            with os.scandir(self._journal.in_dir) as entries:
                for entry in entries:
                    if is_job_file(entry.name) and not self._is_known(entry.name):
                        found.append((_mtime_ns(entry), entry.name))
        except OSError as error:
            self._log(f"cannot list {self._journal.in_dir}: {error.strerror}; trying again")
            self._bring_back()
            return
        for _, name in sorted(found):
            self._enqueue(name)

    def _bring_back(self) -> None:
        try:
            self._journal.create()
        except OSError:
            return  # the next scan will say so again
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        self._start_watch()

    def _start_watch(self) -> None:
        if not self._inotify_wanted:
            return
        try:
            self._watch = InotifyWatch(self._journal.in_dir)
        except OSError as error:
            self._log(f"inotify does not work here ({error.strerror}); polling {self._journal.in_dir}")
            self._inotify_wanted = False

    def _is_known(self, name: str) -> bool:
        return name in self._queued or name in self._looks or name in self._stuck

    def _enqueue(self, name: str) -> None:
        if name not in self._queued:
            self._queued.add(name)
            self._queue.append(name)

    def _settled(self, name: str, now: float) -> bool:
        path = f"{self._journal.in_dir}/{name}"
        try:
            status = os.lstat(path)
            if not stat.S_ISREG(status.st_mode) or is_json(contents(path)):
                return True
        except FileNotFoundError:
            self._forget(name)
            return False
        except OSError:
            return True  # unreadable: claimed all the same, and told so
        signature = (status.st_ino, status.st_size, status.st_mtime_ns)
        look = self._looks.get(name)
        if look is None or look.signature != signature:
            at_start = now < self._started + RESCAN_INTERVAL_S
            wait_s = SETTLE_S if self._watch is None or at_start else SETTLE_WATCHED_S
            self._looks[name] = _Look(signature, now + wait_s)
            return False
        return now >= look.due

    def _claim_all(self, names: list[str], now: float) -> list[Claimed]:
        if not names:
            return []
        try:
            self._journal.prepare_claims(names)
        except OSError as error:
            for name in names:
                self._postpone_claim(name, error, now)
            return []
        claimed = [one for name in names if (one := self._claim(name, now)) is not None]
        try:
            self._journal.confirm_claims()
        except OSError as error:
            self._log(f"cannot flush {self.path}: {error.strerror}; a loss of power may cost the newest jobs")
        return claimed

    def _claim(self, name: str, now: float) -> Claimed | None:
        internal_id = self._ids.peek()
        try:
            claimed = self._journal.claim(name, internal_id)
        except OSError as error:
            if not os.path.lexists(self._journal.in_dir / name):
                self._forget(name)  # withdrawn by its owner
                return None
            self._postpone_claim(name, error, now)
            return None
        self._ids.take()
        self._forget(name)
        return claimed

    def _postpone_claim(self, name: str, error: OSError, now: float) -> None:
        if name not in self._stuck:
            self._log(f"cannot move {name!a} out of {self._journal.in_dir}: {error.strerror}; trying again")
        self._stuck[name] = now + RETRY_DELAY_MIN_S

    def _forget(self, name: str) -> None:
        self._complete.discard(name)
        self._looks.pop(name, None)
        self._stuck.pop(name, None)

    def _read(self, claimed: Claimed | Kept) -> Incoming:
        path = self._journal.path(claimed)
        data: bytes | JobFileError
        try:
            mode = os.stat(path).st_mode
            if stat.S_ISREG(mode):
                data = contents(path)
            else:
                kind = "a folder" if stat.S_ISDIR(mode) else "no regular file"
                data = JobFileError("", f"{claimed.file_name} is {kind}; a job file is one JSON object")
        except OSError as error:
            data = JobFileError("", f"{claimed.file_name} cannot be read: {error.strerror}")
        return Incoming(claimed.internal_id, claimed.file_name, data)


def orphaned_folders(api_dir: Path, clients: int) -> list[Path]:
    """Folders of clients that no longer exist, but hold jobs without a reply.

    After a restart with fewer clients these jobs wait until there are as many again.
    """
    orphaned: list[Path] = []
    for folder in sorted(api_dir.glob("jobs.*")):
        index = folder.name.removeprefix("jobs.")
        if index.isdecimal() and int(index) >= clients:
            is_waiting = any(folder.glob("in/[!~.]*")) or (
                (folder / "journal").is_dir()
                and any(isinstance(entry, Claimed | Decided) for entry in read_entries(folder / "journal"))
            )
            orphaned += [folder] if is_waiting else []
    return orphaned


def _mtime_ns(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_mtime_ns
    except OSError:
        return 0


def _unusable(path: Path, error: OSError) -> ServiceError:
    return ServiceError(
        f"cannot use {path} for jobs: {error.strerror} ({error.filename}); "
        "make it writable or give another --api-dir"
    )
