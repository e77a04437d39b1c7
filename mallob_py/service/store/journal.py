"""The journal of one client: every job file gets exactly one reply, whenever processes are killed.

A file's way is a chain of atomic renames within `jobs.<i>/`, with each state visible in a name:

    in/<file>                              the file is the client's
    journal/<id>.job.<file>                the file is ours: claimed, without a reply
    journal/<id>.reply.<target>            the reply is decided ("error" instead of "reply": a refusal)
    out/<target>                           the reply is published

A revision's submission is kept after its reply, until its chain (named by its first revision's id) ends,
since later revisions add to it:

    journal/<id>.answer.<chain>.<target>   its reply is decided
    journal/<id>.revision.<chain>.<file>   its reply is published, or decided and about to be
    journal/<id>.done.<chain>.<file>       this file, ours, has ended the chain: the chain's files are void

Between the second and the third state both files exist for a moment; the reply wins. At a restart `recover`
finishes replies and returns claimed files, to be run again. Files whose names start with "~" are incomplete
and void. All methods may raise OSError, and may then be called again: each step can be repeated.

The journal survives the death of processes (kill -9) and, on a `Durable` disk, the loss of power: before a
file loses its name, its successor is flushed, and so is the folder with the successor's name. On a `Buffered`
disk a loss of power may leave empty or cut files. All files are JSON, so damage shows; damaged files are
moved to `refused/`.

Two more files lie beside the journal: the identities of ended jobs (`.finished`), since dependencies must
survive a restart, and an upper bound of all ids given out (`.last_id`). Client i of k gives out the ids
counter * k + i + 1. After a restart, new ids are above all ids in every client's `.last_id` and journal, so
the number of clients may change.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import hashlib
import heapq
import math
import os
import re
import stat
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, assert_never

import msgspec

from mallob_py.protocol.effects import Outcome
from mallob_py.service.jobs.reply import Reply
from mallob_py.service.store import own_folder
from mallob_py.service.store.entries import ChainEnd, Claimed, Decided, Entry, Kept, read_entries
from mallob_py.service.store.flush_policy import FlushPolicy
from mallob_py.service.store.reply_pipes import ReplyPipes
from mallob_py.service.store.spare_file import SpareFile

KEEP_MAX = 100_000
#: name of the log of ended jobs in a client's folder
FINISHED = ".finished"
_FINISHED_BYTES_MAX = 1 << 26
#: names of files that a former service may have been writing
_UNFINISHED = re.compile("~[0-9]{1,19}")


#: separator, which no identity contains
_BETWEEN = "\t"
#: control characters, which only the name of a refused file may contain
_CONTROL = re.compile("[\0-\x1f\x7f]")


class FinishedLog:
    """An append-only file of identities and outcomes, of bounded length."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1
        self._line_count = 0

    def load(self) -> dict[str, str]:
        """Return the outcomes ("": unknown) of ended jobs by identity, oldest first; {}: no such file."""
        try:
            own_folder.remove_if_foreign(self.path)  # another user's file could claim that jobs have ended
            data = own_folder.read_file(self.path)
        except FileNotFoundError:
            return {}
        lines = data.decode("utf-8", "replace").split("\n")
        if lines.pop():  # the last line was cut off
            os.ftruncate(self._opened(), data.rfind(b"\n") + 1)
        self._line_count = len(lines)
        ended: dict[str, str] = {}
        for line in lines[-KEEP_MAX:]:
            identity, _, outcome = line.partition(_BETWEEN)
            ended.pop(identity, None)  # of several jobs of one name, the last one counts
            ended[identity] = outcome
        return ended

    def append(self, identity: str, outcome: str) -> None:
        """Append a line, as a whole or not at all. Raises OSError."""
        if _CONTROL.search(identity):
            return  # no job has this identity, and a line feed would forge lines of others' jobs
        descriptor = self._opened()
        line = f"{identity}{_BETWEEN}{outcome}\n".encode()
        if (written_bytes := os.write(descriptor, line)) < len(line):
            os.ftruncate(descriptor, os.fstat(descriptor).st_size - written_bytes)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        self._line_count += 1
        if self._line_count > 2 * KEEP_MAX:
            self._drop_oldest()

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _opened(self) -> int:
        if self._descriptor >= 0 and not os.fstat(self._descriptor).st_nlink:
            self.close()  # somebody has removed the file
            self._line_count = 0
        if self._descriptor < 0:
            self._descriptor = own_folder.open_file(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        return self._descriptor

    def _drop_oldest(self) -> None:
        self._line_count = KEEP_MAX
        with contextlib.suppress(OSError):  # the next try comes after `KEEP_MAX` further lines
            lines = own_folder.read_file(self.path).decode("utf-8", "replace").split("\n")[:-1]
            kept = lines[-KEEP_MAX:]
            self._line_count = len(kept)
            own_folder.replace_file(self.path, "".join(f"{line}\n" for line in kept).encode("utf-8"))
            self.close()  # the open descriptor belongs to the replaced file


def ended_before(client_dir: Path) -> Callable[[str], bool]:
    """Return a function that tells whether a job of an identity is known to have ended. Raises OSError.

    It changes nothing, so other processes than the service may use it.
    """
    try:
        lines = b"\n" + own_folder.read_file(client_dir / FINISHED, bytes_max=_FINISHED_BYTES_MAX)
    except FileNotFoundError:
        lines = b""
    return lambda identity: f"\n{identity}{_BETWEEN}".encode() in lines


#: bytes read at once: few at first, since most files are small
_READ_MIN_BYTES, _READ_MAX_BYTES = 1 << 16, 1 << 24
#: size of the largest file that is examined for damage, since this takes time per byte
_LOOKED_INTO_BYTES_MAX = 1 << 28
_FILE_NAME_SIZE_MAX = 200  # leaves room in the 255 bytes of a name for id, state and suffix


class Claim(NamedTuple):
    """The fate of a file in `in/`; `entry` None: it is empty and stays, since it may be about to be filled.

    `handed_in`: its status before it was moved, with the time when it was put into `in/`.
    """

    file_name: str
    entry: Claimed | OSError | None
    handed_in: os.stat_result | None = None
    #: present path of the file
    path: str = ""


class Journal:
    """The folders `in`, `journal`, `out` and `refused` of a client."""

    def __init__(self, client_dir: Path, finished: FinishedLog, flush_policy: FlushPolicy) -> None:
        self.in_dir = client_dir / "in"
        self.out_dir = client_dir / "out"
        self._dir = client_dir / "journal"
        self._refused_dir = client_dir / "refused"
        # Paths are strings, since pathlib would take a third of the time of a small job's reply.
        self._in, self._out, self._own = (os.fspath(d) for d in (self.in_dir, self.out_dir, self._dir))
        self._finished = finished
        self._flush_policy = flush_policy
        self._spare = SpareFile(self._own)
        #: ids of claimed files that are damaged, to be moved to `refused/` after their reply
        self._damaged: set[int] = set()
        self._claimed: dict[int, Claimed] = {}
        #: chain -> its kept revisions, in the order of ids
        self._kept: dict[int, list[Kept]] = {}

    @property
    def folder(self) -> str:
        """The path of the folder for accepted files."""
        return self._own

    def create(self) -> None:
        client_dir = self.in_dir.parent
        for directory in (client_dir, self._dir, self.out_dir, self.in_dir, self._refused_dir):
            if directory != self._refused_dir:
                directory.mkdir(parents=True, exist_ok=True)
            # Files are moved away from this folder, so it must not be a link.
            with contextlib.suppress(FileNotFoundError), own_folder.opened(directory):
                pass
        self._flush((client_dir, client_dir.parent, client_dir.parent.parent))

    def is_whole(self) -> bool:
        """Tell whether all folders exist that are needed to take and answer jobs."""
        return all(map(os.path.isdir, (self._in, self._own, self._out)))

    def _flush(self, paths: Iterable[str | Path]) -> None:
        if self._flush_policy.is_slow:
            self._flush_policy.flush(paths)

    def path(self, entry: Entry) -> str:
        return f"{self._own}/{entry.entry}"

    def claimed(self, internal_id: int) -> Claimed:
        """Return a claimed file without a reply."""
        return self._claimed[internal_id]

    def reply_path(self, decided: Decided) -> str:
        """Return the path of a published reply."""
        return f"{self._out}/{decided.target}"

    def claim(self, file_names: Sequence[str], ids: InternalIds, rested: Container[str]) -> list[Claim]:
        """Claim files of `in/`; `confirm_claims` must follow. `rested`: names to claim even if empty."""
        self._flush([f"{self._in}/{name}" for name in file_names])  # a claimed file must be whole
        return [self._claim(name, ids, rested) for name in file_names]

    def _claim(self, file_name: str, ids: InternalIds, rested: Container[str]) -> Claim:
        source = f"{self._in}/{file_name}"
        claimed = Claimed(ids.peek(), _fitting(file_name))
        try:
            # The status holds the time of the client's renaming, which our own renaming will replace.
            status = os.lstat(source)
            if not status.st_size and stat.S_ISREG(status.st_mode) and file_name not in rested:
                return Claim(file_name, None)
            _move(source, path := self.path(claimed))
        except OSError as error:
            return Claim(file_name, error)
        ids.take()
        self._claimed[claimed.internal_id] = claimed
        return Claim(file_name, claimed, status, path)

    def confirm_claims(self) -> None:
        """Make claims survive a loss of power."""
        self._flush((self._own, self._in))

    def decide(self, batch: Sequence[tuple[int, str, Reply]]) -> None:
        """Make replies final: they survive a crash. `batch`: (internal id, path in the journal, reply)."""
        solutions = [
            (internal_id, reply.solution_path, reply.solution)
            for internal_id, _, reply in batch
            if reply.solution_path is not None
        ]
        if solutions:
            self._write(solutions, self._out)
        self._write([(internal_id, path, reply.body) for internal_id, path, reply in batch], self._own)

    def release(self, batch: Sequence[Decided]) -> None:
        """Drop or keep answered jobs' files, so that these jobs never run again; call before `publish`."""
        for decided in batch:
            if decided.chain is None:
                self._dismiss(decided.internal_id)
            else:
                self._keep(decided.internal_id, decided.chain)
            self._finished.append(decided.identity, decided.outcome)
        if self._flush_policy.is_slow:
            self._flush((self._own, self._finished.path, self._finished.path.parent))

    def publish(self, source: str, target: str) -> None:
        """Publish a decided reply by renaming."""
        try:
            _move(source, target)
        except FileNotFoundError:  # `out/` was removed
            self.out_dir.mkdir(exist_ok=True)
            _move(source, target)

    def prepare(self) -> None:
        """Prepare a spare file for the next reply while there is time."""
        self._spare.prepare()

    def confirm_publications(self) -> None:
        """Make published replies survive a loss of power."""
        self._flush((self._out, self._own))

    def dismiss(self, internal_id: int) -> None:
        """Drop a claimed file."""
        self._dismiss(internal_id)
        self._flush([self._own])

    def _dismiss(self, internal_id: int) -> None:
        """Drop a claimed entry; move it to `refused/` if it is no file, or damaged."""
        claimed = self._claimed.get(internal_id)
        if claimed is None:
            return
        path = self.path(claimed)
        try:
            if internal_id in self._damaged:
                self._set_aside(claimed)
            else:
                os.unlink(path)
        except FileNotFoundError:
            pass  # an earlier try has removed the file
        except (IsADirectoryError, PermissionError):
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                raise
            self._set_aside(claimed)
        self._damaged.discard(internal_id)
        del self._claimed[internal_id]

    def _set_aside(self, entry: Claimed | Kept | Decided) -> str:
        """Move an entry to `refused/`; return its new path."""
        path = self._place_aside(entry)
        _move(self.path(entry), path)
        return path

    def _keep_copy(self, path: str, entry: Decided) -> None:
        """Keep a copy in `refused/`, if possible, of a reply that another one will replace."""
        with contextlib.suppress(OSError):
            os.link(path, self._place_aside(entry))

    def _place_aside(self, entry: Claimed | Kept | Decided) -> str:
        self._refused_dir.mkdir(exist_ok=True)
        name = entry.target if isinstance(entry, Decided) else entry.file_name
        return f"{self._refused_dir}/{entry.internal_id}.{name}"

    def _keep(self, internal_id: int, chain: int) -> None:
        """Keep a claimed file for later revisions."""
        claimed = self._claimed.get(internal_id)
        if claimed is None:
            return
        kept = Kept(internal_id, claimed.file_name, chain)
        with contextlib.suppress(FileNotFoundError):  # the whole folder was removed
            _move(self.path(claimed), self.path(kept))
            self._kept.setdefault(chain, []).append(kept)
        del self._claimed[internal_id]

    def end_chain(self, chain: int, internal_id: int | None, identity: str = "") -> None:
        """Drop all revisions of a chain, and the file that ended the chain, if there is one."""
        claimed = self._claimed.get(internal_id) if internal_id is not None else None
        end = None
        if claimed is not None:
            end = ChainEnd(claimed.internal_id, claimed.file_name, chain)
            self._finished.append(identity, Outcome.RESULT.value)
            self._flush([self._finished.path])
            _move(self.path(claimed), self.path(end))
            self._flush([self._own])
        kept = self._kept.get(chain, [])
        while kept:  # the last revision first, so that the rest is a chain
            _remove(self.path(kept[-1]))
            kept.pop()
        self._kept.pop(chain, None)
        if end is not None:
            self._flush([self._own])
            _remove(self.path(end))
            del self._claimed[end.internal_id]  # only now, so that each step above can be repeated

    def recover(self, log: Callable[[str], None]) -> tuple[list[Claimed], list[Decided], list[Decided]]:
        """Return what a former service left: files to run again, replies to publish, damaged replies."""
        claimed: list[Claimed] = []
        decided: list[Decided] = []
        kept: list[Kept] = []
        ends: list[ChainEnd] = []
        with own_folder.opened(self._dir) as folder:
            own_folder.remove_files(folder, _UNFINISHED)
        for entry in sorted(read_entries(self._dir), key=lambda entry: (entry.internal_id, entry.entry)):
            match entry:
                case Claimed():
                    claimed.append(entry)
                case Decided():
                    decided.append(entry)
                case Kept():
                    kept.append(entry)
                case ChainEnd():
                    ends.append(entry)
                case other:
                    assert_never(other)
        self._recover_chains(kept, ends, log)
        self._claimed = {file.internal_id: file for file in claimed}
        whole: list[Decided] = []
        lost: list[Decided] = []
        for reply in decided:
            path = self.path(reply)
            if is_whole(path):
                whole.append(reply)
            elif reply.internal_id in self._claimed:
                log(f"the reply {path} is damaged, now {self._set_aside(reply)}; its job runs again")
            else:
                log(f"the reply {path} is damaged, now in {self._refused_dir}; its job gets an error reply")
                self._keep_copy(path, reply)
                lost.append(reply)
        replied = {reply.internal_id for reply in whole}
        claimed = [file for file in claimed if file.internal_id not in replied]
        for file in claimed:
            if not is_whole(self.path(file)):
                log(f"{self.path(file)} is damaged; it gets an error reply and goes to {self._refused_dir}")
                self._damaged.add(file.internal_id)
        return claimed, whole, lost

    def _recover_chains(self, kept: list[Kept], ends: list[ChainEnd], log: Callable[[str], None]) -> None:
        broken: set[int] = set()
        for entry in kept:
            if entry.chain in broken or not is_whole(self.path(entry)):
                broken.add(entry.chain)  # later revisions add to this damaged one
                aside = self._set_aside(entry)
                log(f"the chain of {entry.file_name} in the journal is damaged; this revision is now {aside}")
            else:
                self._kept.setdefault(entry.chain, []).append(entry)
        for end in ends:
            self.end_chain(end.chain, None)
            _remove(self.path(end))

    def kept(self) -> list[Kept]:
        """Return the kept revisions of live chains, by id."""
        return sorted(
            (one for chain in self._kept.values() for one in chain), key=lambda one: one.internal_id
        )

    def _write(self, files: Sequence[tuple[int, str, bytes]], folder: str) -> None:
        """Write files, given as (internal id, path in `folder`, content)."""
        if not self._flush_policy.is_slow:  # a slow policy needs files flushed before they get their names
            files = [file for file in files if not self._spare.put(file[1], file[2])]
        temporaries = [f"{self._own}/~{internal_id}" for internal_id, _, _ in files]
        try:
            for temporary, (_, _, data) in zip(temporaries, files, strict=True):
                if not self._spare.put(temporary, data):
                    write_file(temporary, data)
            self._flush(temporaries)
            for temporary, (_, path, _) in zip(temporaries, files, strict=True):
                _move(temporary, path)
        except OSError:
            for temporary in temporaries:  # without unfinished files, the next try may have room
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
            raise
        self._flush([folder])


RETRY_DELAY_MIN_S, RETRY_DELAY_MAX_S = 1.0, 30.0
#: period of trying one waiting reply before it is due; shortest time between two tries of all replies (once a
#: reply could be written, all others are tried)
_PROBE_S, _HASTEN_S = 2.0, 1.0


@dataclass(slots=True)
class _Unpublished:
    decided: Decided
    #: path in the journal
    path: str
    reply: Reply | None  # None: the reply was written already
    #: functions to call once the reply is in the journal
    on_decided: list[Callable[[], None]] = field(default_factory=list)
    #: whether the job's file is dropped or kept, and its end noted
    is_released: bool = False
    delay_s: float = 0.0
    due: float = -math.inf


class Replies:
    """The unpublished replies of one client: a reply that cannot be written now is kept and tried again.

    On a fast disk, each reply is written at once. On a disk that is slow to flush, replies gather until
    `finish_due` and are flushed together, in the order in which their jobs ended, since one job may have
    waited for another.
    """

    def __init__(
        self,
        journal: Journal,
        flush_policy: FlushPolicy,
        log: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._journal = journal
        self._flush_policy = flush_policy
        self._log = log
        self._clock = clock
        self._unpublished: dict[int, _Unpublished] = {}
        #: targets of unpublished replies, also of replies that another thread is about to add
        self.targets: set[str] = set()
        #: heap of (time of the next try, job), except for replies that are being written just now
        self._due: list[tuple[float, int]] = []
        self._next_probe_s = -math.inf
        self._next_hasten_s = -math.inf
        self._pipes = ReplyPipes(clock)
        #: time when `finish_due` must be called
        self.deadline_s = math.inf

    def __len__(self) -> int:
        return len(self._unpublished)

    def add(self, decided: Decided, reply: Reply, on_decided: Callable[[], None] | None = None) -> None:
        """Add a reply; `on_decided` is called after it is in the journal and before it is published."""
        self.targets.add(decided.target)
        item = self._unpublished[decided.internal_id] = _Unpublished(
            decided,
            self._journal.path(decided),
            reply,
            [] if on_decided is None else [on_decided],
            due=self._clock(),
        )
        if self._flush_policy.is_slow:
            self._await(item)
        else:
            self._finish([item])
        self._note_deadline()

    def once_decided(self, internal_id: int, call: Callable[[], None]) -> None:
        """Call a function once a job's reply is in the journal: now, unless the reply cannot be written."""
        item = self._unpublished.get(internal_id)
        if item is None or item.reply is None:
            call()
        else:
            item.on_decided.append(call)

    def check_decided(self, chain: int) -> None:
        """Raise OSError if the reply of a chain's revision has yet to be written to the journal."""
        for item in self._unpublished.values():
            if item.reply is not None and item.decided.chain == chain:
                raise OSError(errno.EAGAIN, f"the reply {item.decided.target} cannot be written")

    def add_recovered(self, decided: Iterable[Decided]) -> None:
        """Add replies that a former service left in the journal."""
        for entry in decided:
            self.targets.add(entry.target)
            item = _Unpublished(entry, self._journal.path(entry), None)
            self._unpublished[entry.internal_id] = item
            self._await(item)
        self.finish_due()

    def finish_due(self) -> None:
        """Write due replies; to be called at `deadline_s`."""
        now = self._clock()
        if self.deadline_s > now:
            return
        self._pipes.feed_due()
        due = []
        while self._due and self._due[0][0] <= now:
            _, internal_id = heapq.heappop(self._due)
            due.append(self._unpublished[internal_id])
        if self._due and not due and now >= self._next_probe_s:
            due.append(self._unpublished[heapq.heappop(self._due)[1]])
        self._next_probe_s = now + _PROBE_S
        self._finish(due)
        self._note_deadline()

    def _note_deadline(self) -> None:
        due_s = min(self._due[0][0], self._next_probe_s) if self._due else math.inf
        self.deadline_s = min(due_s, self._pipes.deadline_s)

    def _hasten(self) -> None:
        """Try all replies soon, since one has been written."""
        now = self._clock()
        if self._due and now >= self._next_hasten_s:
            self._next_hasten_s = now + _HASTEN_S
            self._due = sorted((min(due_s, now), internal_id) for due_s, internal_id in self._due)

    def close(self) -> None:
        """Try all replies a last time; the next service publishes the decided replies."""
        self._due.clear()
        self._finish(list(self._unpublished.values()))
        self._pipes.close()

    def _finish(self, items: list[_Unpublished]) -> None:
        if not items:
            return
        try:
            undecided = [
                (item.decided.internal_id, item.path, item.reply) for item in items if item.reply is not None
            ]
            if undecided:
                self._journal.decide(undecided)
            for item in items:
                if item.reply is not None:
                    for call in item.on_decided:
                        call()
                item.reply = None
            unreleased = [item for item in items if not item.is_released]
            if unreleased:
                self._journal.release([item.decided for item in unreleased])
            for item in unreleased:
                item.is_released = True
        except OSError as error:
            if len(items) == 1:
                self._postpone(items[0], error)
                return
            for item in items:  # perhaps only one of the replies cannot be written
                self._finish([item])
            return
        for item in items:
            try:
                self._publish(item)
                del self._unpublished[item.decided.internal_id]
                self.targets.discard(item.decided.target)
                self._hasten()
            except OSError as error:
                self._postpone(item, error)
        try:
            self._journal.confirm_publications()
        except OSError as error:
            self._log(f"cannot flush replies: {error.strerror}; a loss of power may bring them back")
        if len(items) == 1:  # for many replies at once, a spare file makes no difference
            self._journal.prepare()

    def _await(self, item: _Unpublished) -> None:
        heapq.heappush(self._due, (item.due, item.decided.internal_id))
        self.deadline_s = min(self.deadline_s, item.due)

    def _publish(self, item: _Unpublished) -> None:
        """Publish a reply. Raises OSError."""
        target = self._journal.reply_path(item.decided)
        pipe = self._pipes.at(target, lambda: contents(item.path))
        try:
            self._journal.publish(item.path, target)
        except OSError:
            if pipe is not None:
                pipe.close()
            raise
        if pipe is not None:
            self._pipes.feed(pipe)

    def _postpone(self, item: _Unpublished, error: OSError) -> None:
        before_s, item.delay_s = (
            item.delay_s,
            min(max(2 * item.delay_s, RETRY_DELAY_MIN_S), RETRY_DELAY_MAX_S),
        )
        item.due = self._clock() + item.delay_s
        self._await(item)
        if item.delay_s > before_s:
            text = f"{error.strerror}; again in {item.delay_s:g} s at the latest"
            self._log(f"cannot write the reply {item.decided.target}: {text}")


def _move(source: str, target: str) -> None:
    """Rename. Over NFS, a completed rename may be asked for again and fail, since the source is gone."""
    try:
        os.replace(source, target)
    except FileNotFoundError:
        if os.path.lexists(source) or not os.path.lexists(target):
            raise


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def write_file(path: str | Path, data: bytes) -> None:
    """Write a new file. Raises OSError, also if something that is no file has the name."""
    descriptor = own_folder.open_to_write(path, 0o666)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def opened_to_read(path: str, flags: int = 0) -> Iterator[int]:
    """Open a file for reading; yield its descriptor. Raises OSError."""
    # The file is opened non-blocking, since a pipe may have replaced it.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def contents(path: str, size_max: int = -1) -> bytes:
    """Return the content of a file, or at most its first `size_max` bytes. Raises OSError."""
    with opened_to_read(path) as descriptor:
        return read_all(descriptor, size_max)


def read_all(descriptor: int, size_max: int, size_bytes: int = -1) -> bytes:
    """Return the content of a file, or at most `size_max` bytes. Raises OSError.

    `size_bytes`: the file's size, if known, which saves the read that meets the end.
    """
    parts: list[bytes] = []
    step_bytes = _READ_MIN_BYTES
    while part := os.read(descriptor, asked := step_bytes if size_max < 0 else min(step_bytes, size_max)):
        parts.append(part)
        if len(part) == size_bytes < asked:
            break
        size_max -= len(part) if size_max > 0 else 0
        step_bytes = min(2 * step_bytes, _READ_MAX_BYTES)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def contents_of_file(path: str, size_max: int) -> bytes:
    """Return at most `size_max` bytes of a regular file. Raises OSError, also for a pipe, without reading."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "no regular file", path)
    return contents(path, size_max)


def is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data.removeprefix(codecs.BOM_UTF8), type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def is_whole(path: str) -> bool:
    """Tell whether a file is undamaged JSON; also true if the file cannot be examined."""
    try:
        status = os.stat(path)
        is_small = stat.S_ISREG(status.st_mode) and status.st_size <= _LOOKED_INTO_BYTES_MAX
        return not is_small or is_json(contents(path, _LOOKED_INTO_BYTES_MAX))
    except OSError:
        return True


def _fitting(file_name: str) -> str:
    """Return `file_name`, or a similar name that is valid Unicode and short enough."""
    file_name = file_name.encode("utf-8", "backslashreplace").decode()
    encoded = file_name.encode()
    if len(encoded) <= _FILE_NAME_SIZE_MAX:
        return file_name
    digest = hashlib.sha256(encoded).hexdigest()[:16]
    return encoded[: _FILE_NAME_SIZE_MAX - 17].decode("utf-8", "ignore") + "-" + digest


RESERVED_IDS = 1000
_LAST_ID_NAME = ".last_id"


class InternalIds:
    """Gives out the ids of one client."""

    def __init__(
        self,
        api_dir: Path,
        client_index: int,
        clients: int,
        log: Callable[[str], None],
        flush_policy: FlushPolicy,
    ) -> None:
        self._path = api_dir / f"jobs.{client_index}" / _LAST_ID_NAME
        self._step = clients
        self._log = log
        self._flush_policy = flush_policy
        last = _last_id(api_dir)
        self._next = ((last - client_index - 1) // clients + 1) * clients + client_index + 1
        self._reserved = last

    def peek(self) -> int:
        """Return the next id; before that, reserve it and further ids in the file `.last_id`."""
        if self._next > self._reserved:
            self._reserve(self._next + (RESERVED_IDS - 1) * self._step)
        return self._next

    def take(self) -> int:
        internal_id = self.peek()
        self._next += self._step
        return internal_id

    def close(self) -> None:
        """Give back reserved ids that were not used."""
        self._reserve(max(self._next - self._step, 0))

    def _reserve(self, last: int) -> None:
        try:
            own_folder.replace_file(self._path, str(last).encode(), flush=self._flush_policy.flush)
        except OSError as error:
            # The journal keeps the ids of live jobs unique, but ids of ended jobs may be given out again.
            self._log(f"cannot write {self._path}: {error.strerror}; going on")
            return
        self._reserved = last


def _last_id(api_dir: Path) -> int:
    last = 0
    for client_dir in api_dir.glob("jobs.*"):
        # A missing or damaged `.last_id` does not matter as long as the journal exists.
        with contextlib.suppress(OSError, ValueError):
            last = max(last, int(own_folder.read_file(client_dir / _LAST_ID_NAME).strip()[:18]))
        with contextlib.suppress(OSError):
            for entry in read_entries(client_dir / "journal"):
                last = max(last, entry.internal_id)
    return last
