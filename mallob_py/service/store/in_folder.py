"""The folder `in/` of a client: the order in which its files are claimed.

A file that inotify reports is complete. A file merely found (at start, by polling) may still be written: if
it is no JSON yet, it is left alone until it has not changed for `SETTLE_S` (longer where inotify would report
its completion). This time is measured by our clock between two checks, since a file server's clock may
differ. Names that start with "~" or ".", and names of editors' copies, are ignored. An empty file is left
alone for `REST_S`: it may soon be filled, or be a probe.

Names are returned oldest first: files that refer to other jobs (interruptions and revisions) come after the
files of these jobs. No call takes longer when there are more files: each call hears and lists a bounded
number of names.

New files are reported by inotify where it works, and found by polling elsewhere. On network file systems the
kernel accepts inotify but reports no files of other hosts, so the kind of file system decides, not the
success of the call.
"""

from __future__ import annotations

import enum
import heapq
import math
import os
import stat
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from inotify_simple import INotify, flags, parse_events

from mallob_py.service.store.entries import is_job_file
from mallob_py.service.store.journal import contents, is_json

_REMOTE_TYPES = frozenset(
    (
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "fuse.sshfs",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "panfs",
        "smb3",
        "virtiofs",
    )
)


class Watching(enum.Enum):
    """The ways to hear of new job files."""

    AUTO = "auto"
    POLL = "poll"


#: number of bytes read at once from the kernel's queue of events: about a thousand events
_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class News:
    """`complete` files were closed or renamed into place; `lost`: events were missed, so list the folder."""

    complete: list[str]
    lost: bool


class InotifyWatch:
    """News of one folder, with a descriptor for event loops."""

    def __init__(self, directory: Path) -> None:
        self._inotify = INotify(nonblocking=True)
        try:
            self.watch(directory)
        except OSError:
            self._inotify.close()
            raise

    def watch(self, directory: Path) -> None:
        """From now on, watch this folder, which may have been made anew. Raises OSError."""
        self._inotify.add_watch(directory, flags.CLOSE_WRITE | flags.MOVED_TO | flags.ONLYDIR)

    def fileno(self) -> int:
        return int(self._inotify.fileno())

    def news(self) -> News:
        """Return some news quickly; the descriptor stays readable while there is more."""
        complete: list[str] = []
        lost = False
        try:
            data = os.read(self.fileno(), _READ_BYTES)
        except BlockingIOError:
            data = b""
        for event in parse_events(data):
            # IGNORED: the folder was removed, and the watch with it.
            lost = lost or bool(event.mask & (flags.Q_OVERFLOW | flags.IGNORED))
            if event.name:
                complete.append(event.name)
        return News(complete, lost)

    def close(self) -> None:
        self._inotify.close()


def file_system_type(path: Path) -> str:
    """Return a file system's type, such as "ext4" or "nfs4"; "": unknown."""
    resolved = os.fspath(path.resolve())
    best = ("", "")
    try:
        lines = Path("/proc/self/mountinfo").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        before, _, after = line.partition(" - ")
        mount_point = before.split(" ")[4].replace("\\040", " ")
        inside = resolved == mount_point or resolved.startswith(mount_point.rstrip("/") + "/")
        if inside and len(mount_point) >= len(best[0]):
            best = (mount_point, after.split(" ")[0])
    return best[1]


def is_remote(path: Path) -> bool:
    """Tell whether other hosts may write here unnoticed by this kernel."""
    return file_system_type(path) in _REMOTE_TYPES


SETTLE_S = 1.0
SETTLE_WATCHED_S = 30.0  # with inotify: time without a change that makes a file complete
POLL_INTERVAL_S = 0.05
RESCAN_INTERVAL_S = 5.0  # period of listing beside inotify, which may miss events
RETRY_DELAY_S = 1.0
#: time without a change after which an empty file is complete
REST_S = 2.0
#: greatest number of names read from a listing per call
_LISTED_AT_ONCE = 1000
_PAUSE_PER_NAME_S = 2e-5
#: size of the largest file that is read to see whether it is complete
_LOOKED_INTO_BYTES_MAX = 1 << 17


@dataclass(frozen=True, slots=True)
class _Look:
    signature: tuple[int, int, int]
    due: float


class InFolder:
    """The names in `in/` that wait to be claimed."""

    def __init__(
        self,
        path: Path,
        watching: Watching,
        bring_back: Callable[[], None],
        log: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        """`bring_back`: makes the folder anew; may raise OSError."""
        self.path = path
        self._own = os.fspath(path)
        self._make_folder = bring_back
        self._log = log
        self._started = clock()
        #: waiting names in order of arrival; heap of (modification time [ns], name) found in a listing
        self._queue: deque[str] = deque()
        self._found: list[tuple[int, str]] = []
        #: all waiting names
        self._waiting: set[str] = set()
        #: names reported complete by inotify
        self._complete: set[str] = set()
        self._looks: dict[str, _Look] = {}
        #: files that could not be claimed, or are empty
        self.put_off_names: set[str] = set()
        #: name of an empty file -> time when the file counts as complete
        self._rests: dict[str, float] = {}
        #: heap of (time, name): files to be examined again; some of them may be removed meanwhile
        self._again: list[tuple[float, str]] = []
        self._next_scan = -math.inf
        self._listing: Iterator[os.DirEntry[str]] | None = None
        #: whether the folder was listed at least once
        self._is_listed = False
        #: time [s] when `next_names` must be called, even if no names wait or there is no room for them
        self.deadline_s = -math.inf
        self._watch: InotifyWatch | None = None
        self._is_watch_wanted = watching is Watching.AUTO and not is_remote(path)
        self._start_watch()

    def fileno(self) -> int | None:
        """Return a descriptor, always the same, that is readable at news; None while polling."""
        return self._watch.fileno() if self._watch is not None else None

    def __len__(self) -> int:
        """Return the number of waiting names, as far as known."""
        return len(self._waiting)

    @property
    def has_names(self) -> bool:
        """Whether names wait that `next_names` may return: none before the folder was listed once."""
        return self._is_listed and bool(self._waiting)

    def _note_deadline(self) -> None:
        if self._listing is not None:
            self.deadline_s = -math.inf
        else:
            self.deadline_s = min(self._next_scan, self._again[0][0] if self._again else math.inf)

    def _look(self, now: float) -> None:
        """Take in news of files, and examine files again that are due."""
        if self._watch is not None:
            news = self._watch.news()
            for name in news.complete:
                if is_job_file(name):
                    self._complete.add(name)
                    self._enqueue(name)
            if news.lost:
                self._next_scan = now
        while self._again and self._again[0][0] <= now:
            _, name = heapq.heappop(self._again)
            is_due = self._rests.get(name, now) <= now
            if is_due and (name in self._looks or name in self.put_off_names):
                self._enqueue(name)
        if self._listing is not None or now >= self._next_scan:
            self._scan(now)
        self._note_deadline()

    def next_names(self, count: int, now: float) -> list[str]:
        """Return the names of at most `count` complete files, each once until the file is put off."""
        self._look(now)
        names: list[str] = []
        for _ in range(count):
            if (name := self._next()) is None:
                break
            if name in self._complete or self._settled(name, now):
                self._complete.discard(name)
                self._looks.pop(name, None)
                names.append(name)
        return names

    def forget(self, name: str) -> None:
        """Forget a file that was put off and is no longer there."""
        self.put_off_names.discard(name)
        self._rests.pop(name, None)

    def put_off(self, name: str, now: float) -> bool:
        """Have `next_names` return an unclaimable file again later; return False if it was put off before."""
        is_new = name not in self.put_off_names
        self.put_off_names.add(name)
        self._complete.add(name)
        heapq.heappush(self._again, (now + RETRY_DELAY_S, name))
        self._note_deadline()
        return is_new

    def let_rest(self, name: str, now: float) -> None:
        """Have `next_names` return an empty file when it is complete, or has not changed for `REST_S`."""
        self.put_off_names.add(name)
        if self._watch is not None:
            self._complete.add(name)
        self._rests[name] = now + REST_S
        heapq.heappush(self._again, (now + REST_S, name))
        self._note_deadline()

    def rested(self, now: float) -> set[str]:
        """Return the empty files that have not changed for `REST_S`."""
        return {name for name, due_s in self._rests.items() if due_s <= now}

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    # --- names ------------------------------------------------------------------------------

    def _enqueue(self, name: str) -> None:
        if name not in self._waiting:
            self._waiting.add(name)
            self._queue.append(name)

    def _next(self) -> str | None:
        """Return the name that has waited longest."""
        # Files present at the start come first, since later files may be interruptions or revisions of their
        # jobs. Later, too, a file found by listing may be older than a file reported by inotify.
        while self._is_listed and (self._found or self._queue):
            if not self._found:
                name = self._queue.popleft()
            elif self._listing is None:
                name = heapq.heappop(self._found)[1]
            else:
                return None
            if name in self._waiting:
                self._waiting.remove(name)
                return name
        return None

    def _settled(self, name: str, now: float) -> bool:
        path = f"{self._own}/{name}"
        try:
            status = os.lstat(path)
            if not stat.S_ISREG(status.st_mode):
                return True
            if status.st_size <= _LOOKED_INTO_BYTES_MAX and is_json(contents(path, _LOOKED_INTO_BYTES_MAX)):
                return True
        except FileNotFoundError:
            self._looks.pop(name, None)
            self.forget(name)
            return False
        except OSError:
            return True  # unreadable files are claimed, and then refused
        signature = (status.st_ino, status.st_size, status.st_mtime_ns)
        look = self._looks.get(name)
        if look is None or look.signature != signature:
            at_start = now < self._started + RESCAN_INTERVAL_S
            wait_s = SETTLE_S if self._watch is None or at_start else SETTLE_WATCHED_S
            self._looks[name] = _Look(signature, now + wait_s)
            heapq.heappush(self._again, (now + wait_s, name))
            return False
        return now >= look.due

    # --- listing ------------------------------------------------------------------------------

    def _scan(self, now: float) -> None:
        """List a part of the folder; names found wait until the listing is complete."""
        try:
            if self._listing is None:
                interval_s = POLL_INTERVAL_S if self._watch is None else RESCAN_INTERVAL_S
                self._next_scan = now + interval_s
                self._start_watch()  # watch anew, since the folder may have been replaced
                self._listing = os.scandir(self._own)
            entries = list(islice(self._listing, _LISTED_AT_ONCE))
        except OSError as error:
            self._listing = None
            self._log(f"cannot list {self.path}: {error.strerror}; trying again")
            self._bring_back()
            return
        for entry in entries:
            name = entry.name
            if is_job_file(name) and not (
                name in self._waiting or name in self._looks or name in self.put_off_names
            ):
                self._waiting.add(name)
                heapq.heappush(self._found, (_mtime_ns(entry), name))
        if len(entries) < _LISTED_AT_ONCE:
            self._listing = None
            self._is_listed = True
            # A folder that is slow to list is listed less often.
            self._next_scan = max(self._next_scan, now + _PAUSE_PER_NAME_S * len(self._waiting))

    def _bring_back(self) -> None:
        try:
            self._make_folder()
        except OSError:
            return  # the next scan reports the missing folder again
        self._start_watch()

    def _start_watch(self) -> None:
        if not self._is_watch_wanted:
            return
        try:
            if self._watch is None:
                self._watch = InotifyWatch(self.path)
            else:
                self._watch.watch(self.path)
        except FileNotFoundError:
            pass  # the scan reports the missing folder, and has it made again
        except OSError as error:
            self._log(f"inotify does not work here ({error.strerror}); polling {self.path}")
            self._is_watch_wanted = False
            self.close()


def _mtime_ns(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_mtime_ns
    except OSError:
        return 0
