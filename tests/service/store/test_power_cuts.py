"""If power is lost at any single step, each job file on a durable disk still gets exactly one reply.

A service runs while all its changes of files are recorded. For every moment, disks are then made up as they
may look after a loss of power: what was flushed is there; of the rest, files may be empty or cut off, and
changes of folders may be missing, each by itself. (Renaming is atomic, as it is on journalling file systems.)
On each such disk a second service starts.
"""

import json
import os
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_crashes import CHAINED, ENDED, EXPECTED, run_chain_service, run_service, submit_chain, submit_files

from mallob_py.service import client
from mallob_py.service.jobs.reply import Reply
from mallob_py.service.store import flush_policy, journal, own_folder, spare_file
from mallob_py.service.store.directory import JobDirectory
from mallob_py.service.store.flush_policy import Buffered, Durable, FlushPolicy

SEEDS = 2


@dataclass(eq=False)
class Inode:
    content: bytes = b""


@dataclass
class Change:
    """A change of folders: a file loses its name `source`, gets the name `target`, or both at once."""

    inode: Inode
    source: str | None
    target: str | None

    def folders(self) -> set[str]:
        return {os.path.dirname(name) for name in (self.source, self.target) if name is not None}


@dataclass
class Write:
    inode: Inode
    content: bytes


@dataclass
class FlushFile:
    inode: Inode
    content: bytes


@dataclass
class FlushFolder:
    path: str


@dataclass
class Tape:
    """A stand-in for `os` in the modules for the service's files, which records all changes of files."""

    root: Path
    steps: list[Change | Write | FlushFile | FlushFolder] = field(default_factory=list)

    def __post_init__(self) -> None:
        files = (path for path in self.root.rglob("*") if path.is_file())
        self.before = {str(path): Inode(path.read_bytes()) for path in files}
        self._names = dict(self.before)
        self._inodes: dict[int, Inode] = {}
        self._folders: dict[int, str] = {}
        self._mutex = threading.Lock()

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        watched: dict[str, Callable[..., Any]] = {
            "open": self.open,
            "write": self.write,
            "link": self.link,
            "rename": self.rename,
            "replace": self.rename,
            "unlink": self.unlink,
            "fsync": self.fsync,
            "ftruncate": self.ftruncate,
        }
        for module in (journal, flush_policy, own_folder, spare_file):
            patch.setattr(module, "os", SimpleNamespace(**{**vars(os), **watched}))

    def open(self, path: str | Path, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        name = _whole(path, dir_fd)
        with self._mutex:
            descriptor = os.open(name, flags, mode)
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                self._folders.pop(descriptor, None)
                self._inodes[descriptor] = Inode()
                return descriptor
            if os.path.isdir(name):
                self._folders[descriptor] = name
                return descriptor
            self._folders.pop(descriptor, None)
            if name not in self._names:
                self._change(Change(Inode(), None, name))
            self._inodes[descriptor] = inode = self._names[name]
            if flags & os.O_TRUNC and inode.content:
                self._set(inode, b"")
            return descriptor

    def write(self, descriptor: int, data: Any) -> int:
        with self._mutex:
            inode, before = self._inodes[descriptor], self._inodes[descriptor].content
            self._set(inode, before + bytes(data[: len(data) // 2]))
            self._set(inode, before + bytes(data))
            return os.write(descriptor, data)

    def link(self, source: str, target: str, *, src_dir_fd: int) -> None:
        """Give a nameless file a name."""
        with self._mutex:
            os.link(source, target, src_dir_fd=src_dir_fd)
            self._change(Change(self._inodes[src_dir_fd], None, target))

    def rename(self, source: str | Path, target: str | Path) -> None:
        with self._mutex:
            os.replace(source, target)
            self._change(Change(self._names[os.fspath(source)], os.fspath(source), os.fspath(target)))

    def unlink(self, path: str | Path, *, dir_fd: int | None = None) -> None:
        name = _whole(path, dir_fd)
        with self._mutex:
            os.unlink(name)
            self._change(Change(self._names[name], name, None))

    def ftruncate(self, descriptor: int, size: int) -> None:
        assert size == 0
        with self._mutex:
            os.ftruncate(descriptor, size)
            self._set(self._inodes[descriptor], b"")

    def fsync(self, descriptor: int) -> None:
        with self._mutex:
            if descriptor in self._folders:
                self.steps.append(FlushFolder(self._folders[descriptor]))
            else:
                inode = self._inodes[descriptor]
                self.steps.append(FlushFile(inode, inode.content))

    def _change(self, change: Change) -> None:
        _apply(change, self._names)
        self.steps.append(change)

    def _set(self, inode: Inode, content: bytes) -> None:
        inode.content = content
        self.steps.append(Write(inode, content))

    def disk_after(self, cut: int, survives: Callable[[], float]) -> dict[str, bytes]:
        """Return the disk's content, by names below the root, if power is lost before step `cut`.

        `survives()` is the part of unflushed data that survives, from 0 to 1.
        """
        names = dict(self.before)
        written = {inode: inode_before for inode, inode_before in self._contents_before()}
        flushed = dict(written)
        for number, step in enumerate(self.steps[:cut]):
            match step:
                case Change():
                    later = self.steps[number:cut]
                    is_flushed = any(
                        isinstance(one, FlushFolder) and one.path in step.folders() for one in later
                    )
                    if is_flushed or survives() >= 0.5:
                        _apply(step, names)
                case Write(inode, content):
                    written[inode] = content
                case FlushFile(inode, content):
                    flushed[inode] = content
        disk = {}
        for name, inode in names.items():
            safe, whole = flushed.get(inode, b""), written.get(inode, b"")
            length = len(safe) + int(survives() * (len(whole) - len(safe)))
            disk[os.path.relpath(name, self.root)] = whole[:length] if whole.startswith(safe) else safe
        return disk

    def _contents_before(self) -> Iterator[tuple[Inode, bytes]]:
        touched = {id(step.inode): step for step in reversed(self.steps) if isinstance(step, Write)}
        for inode in self.before.values():
            assert id(inode) not in touched, "the files that were there are not written to"
            yield inode, inode.content


def _whole(path: str | Path, folder: int | None) -> str:
    return os.path.join("" if folder is None else os.readlink(f"/proc/self/fd/{folder}"), path)


def _apply(change: Change, names: dict[str, Inode]) -> None:
    if change.source is not None and names.get(change.source) is change.inode:
        del names[change.source]
    if change.target is not None:
        names[change.target] = change.inode


def fates(cut: int) -> Iterator[tuple[str, Callable[[], float]]]:
    yield "nothing survives", lambda: 0.0
    yield "everything survives", lambda: 1.0
    for seed in range(SEEDS):
        yield f"seed {seed}", random.Random(SEEDS * cut + seed).random


def disks(tape: Tape, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Yield each possible disk as a folder, with a name for the power cut."""
    for cut in range(len(tape.steps) + 1):
        for fate, survives in fates(cut):
            folder = tmp_path / f"{cut}-{fate}"
            for place in ("in", "out", "journal"):
                (folder / "api/jobs.0" / place).mkdir(parents=True)
            for name, content in tape.disk_after(cut, survives).items():
                (folder / name).write_bytes(content)
            last = tape.steps[cut - 1] if cut else None
            yield f"power lost after step {cut} ({last}), {fate}", folder


def recorded(service: Callable[[Path, FlushPolicy], object], kind: type[FlushPolicy], root: Path) -> Tape:
    with pytest.MonkeyPatch.context() as patch:
        tape = Tape(root)
        tape.watch(patch)
        service(root, kind())
    return tape


def jobs_service(root: Path, slow: FlushPolicy) -> None:
    run_service(root, 1, slow)


def faults_of(folder: Path) -> list[str]:
    """Return the faults after a second service has answered the remaining files."""
    box = folder / "api/jobs.0"
    published = {path.name for path in (box / "out").glob("*.json")}
    ran_again = run_service(folder, life=2)
    faults = [f"{name} was run again" for name in ran_again if f"u.{name}" in published]
    replies = {path.name: path.read_bytes() for path in (box / "out").glob("*.json")}
    faults += [f"{name} is missing" for name in EXPECTED - set(replies)]
    faults += [f"{name} is one too many" for name in set(replies) - EXPECTED]
    faults += [f"{name} is damaged" for name, content in replies.items() if not journal.is_json(content)]
    faults += [
        f"{name} is not the job's own" for name in ("u.a.json", "u.b.json") if _is_error(replies, name)
    ]
    if not faults:
        beside = json.loads(replies["u.b.json"])["result"]["solution-file"]
        if (box / "out" / Path(beside).name).read_bytes() != bytes(8):
            faults.append("the solution is damaged")
    faults += [f"{path} is left" for place in ("in", "journal") for path in (box / place).iterdir()]
    survivor = JobDirectory(folder / "api", tmp_dir=folder)
    faults += ["ended jobs are forgotten"] if not set(survivor.finished) >= ENDED else []
    survivor.close()
    return faults


def _is_error(replies: dict[str, bytes], name: str) -> bool:
    return b'"error"' in replies.get(name, b"")


def test_on_a_durable_disk_each_file_has_exactly_one_reply_whenever_power_is_lost(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    submit_files(tmp_path / "first")
    tape = recorded(jobs_service, Durable, tmp_path / "first")
    assert len(tape.steps) > 60
    at_the_end = tape.disk_after(len(tape.steps), lambda: 0.0)
    published = {name.rpartition("/")[2] for name in at_the_end if "/out/" in name}
    assert published >= EXPECTED
    for story, folder in disks(tape, tmp_path):
        assert faults_of(folder) == [], story


def test_on_a_buffered_disk_much_may_be_lost_but_the_next_service_starts_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    submit_files(tmp_path / "first")
    tape = recorded(jobs_service, Buffered, tmp_path / "first")
    faults = [fault for _, folder in disks(tape, tmp_path) for fault in faults_of(folder)]
    assert {"u.a.json is missing", "ended jobs are forgotten"} <= set(faults)


@pytest.mark.parametrize("ends", [True, False])
def test_chains_of_revisions_survive_a_loss_of_power_on_a_durable_medium(tmp_path: Path, ends: bool) -> None:
    (tmp_path / "first").mkdir()
    submit_chain(tmp_path / "first", ends=ends)
    for path in (tmp_path / "first/api/jobs.0/in").iterdir():
        os.utime(path, (int(path.stem),) * 2)
    tape = recorded(run_chain_service, Durable, tmp_path / "first")
    for story, folder in disks(tape, tmp_path):
        box = folder / "api/jobs.0"
        for path in (box / "in").iterdir():
            os.utime(path, (int(path.stem),) * 2)
        assert run_chain_service(folder) == (0 if ends else 1), story
        replies = {path.name: json.loads(path.read_bytes()) for path in (box / "out").iterdir()}
        assert set(replies) == CHAINED, story
        assert [replies[name]["internal_revision"] for name in sorted(replies)] == [0, 1, 2], story
        assert len(list((box / "journal").iterdir())) == (0 if ends else 3), story


def test_a_job_that_was_taken_is_on_the_disk_even_if_its_submitter_has_flushed_nothing(
    tmp_path: Path,
) -> None:
    JobDirectory(tmp_path / "first/api", tmp_dir=tmp_path).close()
    content = json.dumps({"user": "u", "name": "a", "application": "NOOP"}).encode()

    def take(root: Path, slow: FlushPolicy) -> None:
        inbox = root / "api/jobs.0/in"
        journal.write_file(str(inbox / "~a"), content)
        journal.os.rename(inbox / "~a", inbox / "a.json")
        directory = JobDirectory(root / "api", tmp_dir=root, flush_policy=slow)
        assert [incoming.data for incoming in directory.take()] == [content]

    tape = recorded(take, Durable, tmp_path / "first")
    for _, survives in fates(0):
        disk = tape.disk_after(len(tape.steps), survives)
        assert [held for name, held in disk.items() if name.endswith(".job.a.json")] == [content]


def test_what_our_clients_hand_in_to_a_durable_service_is_on_the_disk_when_they_go_on(tmp_path: Path) -> None:
    JobDirectory(tmp_path / "api", tmp_dir=tmp_path, flush_policy=Durable()).close()
    inbox = tmp_path / "api/jobs.0/in"
    flushed: list[tuple[str, list[str]]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            flush_policy,
            "_flush",
            lambda path: flushed.append((Path(path).name[:1], [one.name[:1] for one in inbox.iterdir()])),
        )
        client.submit(tmp_path / "api", {"user": "u", "name": "a"}, file_name="job.json")
        assert flushed == [("~", ["~"]), ("i", ["j"])]  # flushed: the file, then its name in `in/`
        JobDirectory(tmp_path / "api", tmp_dir=tmp_path).close()
        flushed.clear()
        client.submit(tmp_path / "api", {"user": "u", "name": "b"})
        assert flushed == []


# --- what a loss of power may leave on a disk that is not durable ---------------------------------------


@pytest.mark.parametrize("damage", [b"", b'{"user": "u", "na', bytes(40)])
def test_a_damaged_job_in_the_journal_is_named_set_aside_and_answered(tmp_path: Path, damage: bytes) -> None:
    JobDirectory(tmp_path / "api", tmp_dir=tmp_path).close()
    box = tmp_path / "api/jobs.0"
    job = b'{"user": "u", "name": "a", "application": "NOOP"}'
    (box / "journal/1.job.broken.json").write_bytes(damage)
    (box / "journal/2.job.whole.json").write_bytes(job)
    told: list[str] = []
    JobDirectory(tmp_path / "api", tmp_dir=tmp_path, log=told.append).close()
    assert [str(box / "journal/1.job.broken.json") in line for line in told] == [True]
    run_service(tmp_path, 1)
    assert (box / "refused/1.broken.json").read_bytes() == damage
    assert "error" in json.loads((box / "out/broken.json.error.json").read_bytes())
    assert json.loads((box / "out/u.a.json").read_bytes())["result"]["resultcode"] == 10
    assert not list((box / "journal").iterdir())


@pytest.mark.parametrize("damage", [b"", b'{"user": "u", "resu', bytes(40)])
@pytest.mark.parametrize("state", ["reply", "answer.1"])
def test_a_damaged_reply_in_the_journal_is_named_and_its_job_runs_again_or_gets_an_error(
    tmp_path: Path, damage: bytes, state: str
) -> None:
    JobDirectory(tmp_path / "api", tmp_dir=tmp_path).close()
    box = tmp_path / "api/jobs.0"
    for number, name in ((1, "again"), (2, "lost")):
        (box / f"journal/{number}.{state}.u.{name}.json").write_bytes(damage)
    job = {"user": "u", "name": "again", "application": "NOOP"}
    (box / "journal/1.job.again").write_text(json.dumps(job))
    (box / "journal/3.reply.u.whole.json").write_text('{"fine": 1}')
    told: list[str] = []
    directory = JobDirectory(tmp_path / "api", tmp_dir=tmp_path, log=told.append)
    assert [incoming.file_name for incoming in directory.take()] == ["again"]
    directory.reply(1, "u.again", Reply(b'{"fine": 2}'))
    directory.close()
    replies = {path.name: json.loads(path.read_bytes()) for path in (box / "out").iterdir()}
    assert (replies["u.whole.json"], replies["u.again.json"]) == ({"fine": 1}, {"fine": 2})
    assert "submit it again" in replies["u.lost.json"]["error"]["message"]
    assert len(told) == 2
    assert all(f"{number}.{state}" in line for number, line in zip((1, 2), told, strict=True))
    assert {path.read_bytes() for path in (box / "refused").iterdir()} == {damage}
    assert len(list((box / "refused").iterdir())) == 2


def test_a_damaged_revision_takes_the_later_ones_of_its_chain_with_it_and_no_others(tmp_path: Path) -> None:
    submit_chain(tmp_path, ends=False)
    assert run_chain_service(tmp_path) == 1
    box = tmp_path / "api/jobs.0"
    (second,) = (box / "journal").glob("*.1.json")
    second.write_bytes(b"")
    other = {"user": "u", "name": "other", "application": "SAT", "incremental": True}
    (box / "journal/9.revision.9.other.json").write_text(json.dumps(other))
    told: list[str] = []
    directory = JobDirectory(tmp_path / "api", tmp_dir=tmp_path, log=told.append)
    assert [incoming.file_name for _, incoming in directory.revisions()] == ["0.json", "other.json"]
    directory.close()
    assert [name in line for name, line in zip(("1.json", "2.json"), told, strict=True)] == [True, True]
    assert sorted(path.name.split(".", 1)[1] for path in (box / "refused").iterdir()) == ["1.json", "2.json"]
