"""The folder `in/` of a client: which of its files are to be claimed next.

A file that inotify reports is complete. One that is merely found (at start, by polling) may
still be written: if it is no JSON yet, it is left alone until it has not changed for `SETTLE_S`
(longer where inotify would tell of its completion). That is measured with our clock between
two looks, as a file server's may differ. Names that start with "~" or "." are ignored, and those of copies
that editors keep. An empty file is left alone for `REST_S`: it may be about to be filled, or a probe.

Files are named oldest first. Where many wait, those that came last are glanced at, too: one that has nothing
to do with other files and names a priority, or is of a user who has few among those that wait, may be more
important than all before it. While there is no `Room` for more, only such files are named as are few of their
kind (user and priority), and what speaks of other jobs: interruptions, revisions. Nothing here takes longer
the more files there are: each call hears, lists and glances at a bounded number of names.

inotify tells of new files where it works; polling where it cannot. On network file systems inotify is
accepted by the kernel but stays silent about what other hosts write, so the kind of file system decides,
not the success of the call.
"""

from __future__ import annotations

import enum
import heapq
import math
import os
import re
import stat
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from inotify_simple import INotify, flags, parse_events

from mallob_py.service.store.entries import is_job_file
from mallob_py.service.store.journal import contents, contents_of_file, is_json

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


#: of the kernel's queue of events: a thousand or so at a time
_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class News:
    """`complete` files were closed or renamed into place; `lost`: something was missed, look yourself."""

    complete: list[str]
    lost: bool


class InotifyWatch:
    """News of one folder through a file descriptor that an event loop can wait on."""

    def __init__(self, directory: Path) -> None:
        self._inotify = INotify(nonblocking=True)
        try:
            self.watch(directory)
        except OSError:
            self._inotify.close()
            raise

    def watch(self, directory: Path) -> None:
        """Hear of this folder from now on, which may have been made anew. Raises OSError."""
        self._inotify.add_watch(directory, flags.CLOSE_WRITE | flags.MOVED_TO | flags.ONLYDIR)

    def fileno(self) -> int:
        return int(self._inotify.fileno())

    def news(self) -> News:
        """Return news as far as it does not take long; the descriptor stays readable while there is more."""
        complete: list[str] = []
        lost = False
        try:
            data = os.read(self.fileno(), _READ_BYTES)
        except BlockingIOError:
            data = b""
        for event in parse_events(data):
            # IGNORED: the folder itself is gone and with it the watch.
            lost = lost or bool(event.mask & (flags.Q_OVERFLOW | flags.IGNORED))
            if event.name:
                complete.append(event.name)
        return News(complete, lost)

    def close(self) -> None:
        self._inotify.close()


def file_system_type(path: Path) -> str:
    """Such as "ext4" or "nfs4"; "" if it cannot be told."""
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
    """Whether other hosts may write here without this kernel knowing."""
    return file_system_type(path) in _REMOTE_TYPES


SETTLE_S = 1.0
SETTLE_WATCHED_S = 30.0  # inotify tells of a slow writer's end; this is for what it missed
POLL_INTERVAL_S = 0.05
RESCAN_INTERVAL_S = 5.0  # with inotify: a safety net, and brings back a deleted folder
RETRY_DELAY_S = 1.0
#: an empty file is left alone until nothing has come of it for this long
REST_S = 2.0
#: of the folder's listing, per call
_LISTED_AT_ONCE = 1000
_PAUSE_PER_NAME_S = 2e-5
#: files glanced at per call, and how much of each is read
_GLANCES_AT_ONCE = 64
_GLANCE_BYTES = 4096
#: a larger file is not looked into to see whether it is complete
_LOOKED_INTO_BYTES_MAX = 1 << 17
#: a file that says something of this must not overtake others, unless there is no room for these: the first
#: ones speak of jobs that may have been taken in
_OF_ENDS = (b'"interrupt"', b'"done"')
_OF_JOBS = (*_OF_ENDS, b'"incremental"', b'"precursor"')
_BOUND_BY_ORDER = (*_OF_JOBS, b'"dependencies"')
_KIND = re.compile(rb'"(user|priority)"\s*:\s*("[^"]*"|[^\s,}]*)')
#: few are less than one of so many; of which so many are told apart
_FEW, _KINDS_MAX = 8, 1000


@dataclass(frozen=True, slots=True)
class _Look:
    signature: tuple[int, int, int]
    due: float


class Room(enum.Enum):
    """What there is room for."""

    ALL = "all"
    #: files that are few of their kind, and what speaks of other jobs
    FEW = "few"
    #: what ends others
    ENDS = "ends"


@dataclass(frozen=True, slots=True)
class _Glance:
    """`kind`: its user and the priority that it names, as they stand there."""

    kind: tuple[bytes, bytes]
    data: bytes

    def says(self, words: tuple[bytes, ...]) -> bool:
        return any(word in self.data for word in words)


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
        #: names that wait, in this order, and then those found in a listing, oldest first
        self._queue: deque[str] = deque()
        self._found: list[tuple[int, str]] = []
        #: all of both
        self._waiting: set[str] = set()
        #: told by inotify
        self._complete: set[str] = set()
        #: not glanced at yet, the last ones last
        self._fresh: deque[str] = deque()
        #: glanced at, and to be again when there is more or less room: what speaks of other jobs
        self._speaking: list[str] = []
        #: the kinds of those that have been, since nothing waited last
        self._kinds: Counter[tuple[bytes, bytes]] = Counter()
        self._room = Room.ALL
        self._looks: dict[str, _Look] = {}
        #: files that could not be claimed, or are empty
        self.put_off_names: set[str] = set()
        #: when empty files have rested long enough
        self._rests: dict[str, float] = {}
        #: (when, name) of looks and stuck files that are to be tried again; some have gone meanwhile
        self._again: list[tuple[float, str]] = []
        self._next_scan = -math.inf
        self._listing: Iterator[os.DirEntry[str]] | None = None
        #: once, at least
        self._is_listed = False
        #: when `look` is to be called at the latest
        self.deadline_s = -math.inf
        self._watch: InotifyWatch | None = None
        self._is_watch_wanted = watching is Watching.AUTO and not is_remote(path)
        self._start_watch()

    def fileno(self) -> int | None:
        """Readable when there is something new, always the same one; None while polling."""
        return self._watch.fileno() if self._watch is not None else None

    def __len__(self) -> int:
        """Return the number of names that wait, as far as is known."""
        return len(self._waiting)

    def _note_deadline(self) -> None:
        if self._listing is not None or (self._waiting if self._room is Room.ALL else self._fresh):
            self.deadline_s = -math.inf
        else:
            self.deadline_s = min(self._next_scan, self._again[0][0] if self._again else math.inf)

    def look(self, now: float) -> None:
        """Hear of new files, and see to those that are to be looked at again; `next_names` does so first."""
        if self._watch is not None:
            news = self._watch.news()
            for name in news.complete:
                if is_job_file(name):
                    self._complete.add(name)
                    if self._enqueue(name):
                        self._fresh.append(name)
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

    def next_names(self, count: int, now: float, room: Room = Room.ALL) -> list[str]:
        """Return at most `count` complete files that have not been named since they came or were put off."""
        if room is not self._room:
            self._room = room
            self._fresh.extend(self._speaking)
            self._speaking.clear()
        self.look(now)
        if room is not Room.ALL:
            names = self.important_names(count)
            count = 0
        else:
            names = self.important_names(count // 2) if len(self._waiting) > count else []
        for _ in range(count):
            if len(names) >= count or (name := self._next()) is None:
                break
            if name in self._complete or self._settled(name, now):
                self._named(name, names)
        if not self._waiting:
            self._kinds.clear()
            self._fresh.clear()
            self._speaking.clear()
        self._note_deadline()
        return names

    def names(self) -> Iterator[str]:
        """Yield all that wait or were put off, in no order."""
        yield from self._waiting
        yield from self.put_off_names - self._waiting

    @property
    def is_known(self) -> bool:
        """Whether it is known what was there when `look` was called last."""
        return self._is_listed and self._listing is None

    def pull(self, names: Iterable[str]) -> list[str]:
        """Name some of those that wait or were put off before their turn."""
        pulled: list[str] = []
        for name in names:
            if name in self._waiting or name in self.put_off_names:
                self._waiting.discard(name)
                self._named(name, pulled)
        return pulled

    def forget(self, name: str) -> None:
        """A file that was put off is not here any more."""
        self.put_off_names.discard(name)
        self._rests.pop(name, None)

    def put_off(self, name: str, now: float) -> bool:
        """The file cannot be claimed: it is named again later. False if that is known already."""
        is_new = name not in self.put_off_names
        self.put_off_names.add(name)
        self._complete.add(name)
        heapq.heappush(self._again, (now + RETRY_DELAY_S, name))
        self._note_deadline()
        return is_new

    def let_rest(self, name: str, now: float) -> None:
        """Name an empty file again when it is reported complete, or has rested."""
        self.put_off_names.add(name)
        if self._watch is not None:
            self._complete.add(name)
        self._rests[name] = now + REST_S
        heapq.heappush(self._again, (now + REST_S, name))
        self._note_deadline()

    def rested(self, now: float) -> set[str]:
        """Return the empty files that have rested."""
        return {name for name, due_s in self._rests.items() if due_s <= now}

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    # --- names ------------------------------------------------------------------------------

    def _enqueue(self, name: str) -> bool:
        """Whether that is news."""
        if name in self._waiting:
            return False
        self._waiting.add(name)
        self._queue.append(name)
        return True

    def _next(self) -> str | None:
        """The name that has waited longest."""
        # What was here before us comes first: what came since may be an interruption of it, or go on from it.
        while self._is_listed and ((self._found and self._listing is None) or self._queue):
            if self._found and self._listing is None:
                name = heapq.heappop(self._found)[1]
            else:
                name = self._queue.popleft()
            if name in self._waiting:
                self._waiting.remove(name)
                return name
        return None

    def important_names(self, count: int) -> list[str]:
        """Return at most `count` of the latest files that may be more important than those before them.

        Each is glanced at once.
        """
        glances: list[tuple[str, _Glance]] = []
        while self._fresh and len(glances) < _GLANCES_AT_ONCE:
            name = self._fresh.pop()
            if name in self._waiting and (glance := self._glance(name)) is not None:
                glances.append((name, glance))
        if len(self._kinds) > _KINDS_MAX:
            self._kinds.clear()
        self._kinds.update(glance.kind for _, glance in glances)
        important: list[str] = []
        for name, glance in reversed(glances):
            if self._may_overtake(glance):
                important.append(name)
            elif glance.says(_OF_JOBS):
                self._speaking.append(name)
        for name in important[count:]:
            self._fresh.append(name)
        names: list[str] = []
        for name in important[:count]:
            self._waiting.remove(name)
            self._named(name, names)
        return names

    def _named(self, name: str, names: list[str]) -> None:
        """It is claimed or put off now."""
        self._complete.discard(name)
        self._looks.pop(name, None)
        names.append(name)

    def _may_overtake(self, glance: _Glance) -> bool:
        is_one_of_few = _FEW * self._kinds[glance.kind] < self._kinds.total()
        match self._room:
            case Room.ALL:
                return not glance.says(_BOUND_BY_ORDER) and (is_one_of_few or bool(glance.kind[1]))
            case Room.FEW:
                return is_one_of_few or glance.says(_OF_JOBS)
            case Room.ENDS:
                return glance.says(_OF_ENDS)

    def _glance(self, name: str) -> _Glance | None:
        """Return what can be seen of a file; None if it may not be complete, or is none."""
        try:
            data = contents_of_file(f"{self._own}/{name}", _GLANCE_BYTES + 1)
        except OSError:
            return None
        if not (name in self._complete or (len(data) <= _GLANCE_BYTES and is_json(data))):
            return None
        if len(data) > _GLANCE_BYTES and self._room is Room.ALL:
            return None  # more may be said further below
        said = dict(_KIND.findall(data))
        return _Glance((said.get(b"user", b""), said.get(b"priority", b"")), data)

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
            return True  # unreadable: claimed all the same, and told so
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
        """A part of the listing at a time; what is found waits until the listing is complete."""
        try:
            if self._listing is None:
                interval_s = POLL_INTERVAL_S if self._watch is None else RESCAN_INTERVAL_S
                self._next_scan = now + interval_s
                self._start_watch()  # it may be another folder than before
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
                self._fresh.append(name)
                heapq.heappush(self._found, (_mtime_ns(entry), name))
        if len(entries) < _LISTED_AT_ONCE:
            self._listing = None
            self._is_listed = True
            # A folder that takes long to list is not listed all the time.
            self._next_scan = max(self._next_scan, now + _PAUSE_PER_NAME_S * len(self._waiting))

    def _bring_back(self) -> None:
        try:
            self._make_folder()
        except OSError:
            return  # the next scan will say so again
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
            pass  # the scan says so, and has it made anew
        except OSError as error:
            self._log(f"inotify does not work here ({error.strerror}); polling {self.path}")
            self._is_watch_wanted = False
            self.close()


def _mtime_ns(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_mtime_ns
    except OSError:
        return 0
