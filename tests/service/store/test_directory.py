"""The client's folder: which files are noticed, when they are taken in, and what happens to odd entries."""

import errno
import json
import os
import select
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hand_clock import Clock
from waiting import poll_until

from mallob_py.protocol.effects import Outcome
from mallob_py.service import JobFileError, ServiceError
from mallob_py.service.jobs.job_file import InputUse, JobFile
from mallob_py.service.jobs.reply import Ending, JobStatistics, Reply, result_reply
from mallob_py.service.store import directory as directory_module
from mallob_py.service.store import in_folder, journal
from mallob_py.service.store.directory import Incoming, JobDirectory, orphaned_folders
from mallob_py.service.store.flush_policy import Buffered, Durable, FlushPolicy
from mallob_py.service.store.in_folder import REST_S, Watching, file_system_type, is_remote
from mallob_py.service.store.journal import FinishedLog
from mallob_py.service.store.spare_file import SpareFile

APPLICATIONS = {"NOOP": InputUse.NONE}
Open = Callable[..., JobDirectory]


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def open_directory(tmp_path: Path, clock: Clock, log: list[str]) -> Iterator[Open]:
    opened: list[JobDirectory] = []

    def open_one(**options: Any) -> JobDirectory:
        settings: dict[str, Any] = {"tmp_dir": tmp_path, "log": log.append, "clock": clock, **options}
        opened.append(JobDirectory(tmp_path / "api", **settings))
        return opened[-1]

    yield open_one
    for directory in opened:
        directory.close()


def text(name: str = "a", **fields: Any) -> str:
    return json.dumps({"user": "u", "name": name, "application": "NOOP", **fields})


def drop(directory: JobDirectory, file_name: str, content: str) -> Path:
    temporary = directory.path / "in" / f"~{file_name}"
    temporary.write_text(content)
    return temporary.rename(directory.path / "in" / file_name)


def answer(
    directory: JobDirectory, incoming: Incoming, on_decided: Callable[[], None] = lambda: None
) -> None:
    """Answer a job file as a service does, in short."""
    try:
        job = incoming.parse(APPLICATIONS)
    except JobFileError as error:
        directory.refuse(incoming, error)
        return
    assert isinstance(job, JobFile)
    beside = directory.solution_path(incoming.internal_id, job.identity)
    reply = result_reply(job, incoming.internal_id, Ending(Outcome.RESULT, 10), JobStatistics(), beside)
    directory.reply(incoming.internal_id, job.identity, reply, on_decided=on_decided)


def replies(directory: JobDirectory) -> dict[str, Any]:
    return {path.name: json.loads(path.read_bytes()) for path in (directory.path / "out").glob("*.json")}


def left_over(directory: JobDirectory) -> list[str]:
    return os.listdir(directory.path / "in") + os.listdir(directory.path / "journal")


@pytest.mark.parametrize("watching", list(Watching))
def test_a_job_is_taken_journalled_and_replied_to(
    open_directory: Open, clock: Clock, watching: Watching
) -> None:
    directory = open_directory(watching=watching)
    assert directory.take() == []
    drop(directory, "job.json", text())
    clock.now += 0.1
    (incoming,) = directory.take()
    assert os.listdir(directory.path / "in") == []
    assert os.listdir(directory.path / "journal") == [f"{incoming.internal_id}.job.job.json"]
    answer(directory, incoming)
    assert replies(directory)["u.a.json"]["internal_id"] == incoming.internal_id
    assert left_over(directory) == []
    assert directory.take() == []


def test_an_event_loop_is_woken_by_the_descriptor(open_directory: Open) -> None:
    directory = open_directory()
    directory.take()
    descriptor = directory.fileno()
    assert descriptor is not None
    assert select.select([descriptor], [], [], 0)[0] == []
    drop(directory, "job.json", text())
    assert select.select([descriptor], [], [], 10)[0] == [descriptor]
    assert len(directory.take()) == 1


def test_names_with_tilde_or_dot_are_ignored(open_directory: Open, clock: Clock) -> None:
    directory = open_directory()
    for name in ("~x.json", ".x.json"):
        (directory.path / "in" / name).write_text(text())
    clock.now += 100
    assert directory.take() == []


def test_files_from_before_the_start_are_taken_oldest_first(open_directory: Open) -> None:
    directory = open_directory()
    for age, name in ((1, "new"), (3, "b-old"), (3, "a-old"), (2, "middle")):
        path = drop(directory, name, text(name))
        os.utime(path, (10_000 - age, 10_000 - age))
    directory.close()
    names = [incoming.file_name for incoming in open_directory().take()]
    assert names == ["a-old", "b-old", "middle", "new"]


def test_thousands_of_files_are_taken_in_batches_and_each_gets_one_reply(open_directory: Open) -> None:
    directory = open_directory()
    directory.take()
    for index in range(5000):
        (directory.path / "in" / f"{index}.json").write_text(text(f"j{index}"))
    ids: set[int] = set()
    while batch := directory.take(100):
        assert len(batch) <= 100
        ids.update(incoming.internal_id for incoming in batch)
        for incoming in batch:
            answer(directory, incoming)
    assert len(ids) == 5000
    assert len(os.listdir(directory.path / "out")) == 5000
    assert left_over(directory) == []


def test_more_waiting_files_ask_for_the_next_call_at_once(open_directory: Open, clock: Clock) -> None:
    directory = open_directory()
    for index in range(3):
        drop(directory, f"{index}.json", text(f"j{index}"))
    directory.take(2)
    assert directory.deadline_s < clock.now
    directory.take(2)
    assert directory.deadline_s > clock.now


def test_a_lost_inotify_queue_leads_to_a_look_into_the_folder(
    open_directory: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = open_directory()
    directory.take()
    drop(directory, "job.json", text())
    lost = in_folder.InotifyWatch.news
    monkeypatch.setattr(in_folder.InotifyWatch, "news", lambda self: type(lost(self))(complete=[], lost=True))
    assert len(directory.take()) == 1


def test_polling_takes_over_where_inotify_fails(
    open_directory: Open, monkeypatch: pytest.MonkeyPatch, log: list[str]
) -> None:
    def fail(path: Path) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(in_folder, "InotifyWatch", fail)
    directory = open_directory()
    drop(directory, "job.json", text())
    assert directory.fileno() is None
    assert len(directory.take()) == 1
    assert "polling" in log[0]


def test_a_half_written_file_is_left_alone_until_it_is_json(open_directory: Open, clock: Clock) -> None:
    directory = open_directory(watching=Watching.POLL)
    path = directory.path / "in" / "slow.json"
    content = text()
    path.write_text(content[:20])
    assert directory.take() == []
    clock.now += 0.9
    path.write_text(content[:30])
    clock.now += 0.2
    assert directory.take() == []  # the file grew, so the wait begins again
    path.write_text(content)
    clock.now = directory.deadline_s
    while not (taken := directory.take()):
        clock.now = directory.deadline_s
    assert isinstance(taken[0].parse(APPLICATIONS), JobFile)


def test_a_byte_order_mark_before_a_job_file_is_no_part_of_it(open_directory: Open, clock: Clock) -> None:
    directory = open_directory(watching=Watching.POLL)
    (directory.path / "in" / "marked.json").write_text(text(), encoding="utf-8-sig")
    (taken,) = directory.take()  # taken at once, because the JSON is complete
    assert isinstance(taken.parse(APPLICATIONS), JobFile)


def test_a_slow_writer_is_waited_for_where_inotify_tells_of_its_end(
    open_directory: Open, clock: Clock
) -> None:
    directory = open_directory()
    directory.take()
    clock.now += 60
    with open(directory.path / "in" / "slow.json", "w") as file:
        file.write(text()[:20])
        file.flush()
        for _ in range(3):
            assert directory.take() == []
            clock.now += 5
        file.write(text()[20:])
    (incoming,) = directory.take()
    assert isinstance(incoming.parse(APPLICATIONS), JobFile)


def test_a_file_that_never_becomes_json_gets_its_error_once_it_rests(
    open_directory: Open, clock: Clock
) -> None:
    directory = open_directory(watching=Watching.POLL)
    (directory.path / "in" / "bad.json").write_text('{"user":')
    assert directory.take() == []
    clock.now += 1.1
    (incoming,) = directory.take()
    answer(directory, incoming)
    assert replies(directory)["bad.json.error.json"]["error"]["message"].startswith("not JSON")
    assert left_over(directory) == []


def test_a_file_that_was_withdrawn_is_forgotten(open_directory: Open, log: list[str]) -> None:
    directory = open_directory()
    drop(directory, "job.json", text()).unlink()
    assert directory.take() == []
    assert log == []


@pytest.mark.parametrize("flush_policy", [Buffered(), Durable()], ids=["buffered", "durable"])
def test_folders_pipes_sockets_and_dead_links_get_an_error_and_leave(
    open_directory: Open, clock: Clock, monkeypatch: pytest.MonkeyPatch, flush_policy: FlushPolicy
) -> None:
    directory = open_directory(flush_policy=flush_policy)
    inbox = directory.path / "in"
    (inbox / "folder").mkdir()
    (inbox / "folder" / "precious").write_text("x")
    os.mkfifo(inbox / "pipe")
    os.symlink("/nowhere/at/all", inbox / "link")
    os.symlink("loop", inbox / "loop")
    os.symlink("/dev/null/below", inbox / "below")
    os.symlink("x" * 300, inbox / "long")
    monkeypatch.chdir(inbox)  # because the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
    clock.now += 100
    for incoming in directory.take():
        answer(directory, incoming)
    directory.take()
    names = ("folder", "pipe", "link", "loop", "below", "long", "socket")
    assert set(replies(directory)) == {f"{name}.error.json" for name in names}
    assert left_over(directory) == []
    (kept,) = (directory.path / "refused").iterdir()
    assert (kept / "precious").exists()
    clock.now += 100
    assert directory.take() == []


def test_a_file_that_cannot_be_flushed_holds_up_and_blames_no_other_file(
    open_directory: Open, clock: Clock, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = open_directory(flush_policy=Durable())
    for name in "abc":
        drop(directory, f"{name}.json", text(name))
    fsync = os.fsync

    def fail_for_one(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("b.json"):
            raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)

    with monkeypatch.context() as trouble:
        trouble.setattr(os, "fsync", fail_for_one)
        assert [incoming.file_name for incoming in directory.take()] == ["a.json", "c.json"]
        clock.now += 2
        assert directory.take() == []
    assert ["b.json" in line for line in log] == [True]
    clock.now += 2
    assert [incoming.file_name for incoming in directory.take()] == ["b.json"]


def test_an_unreadable_file_gets_an_error(open_directory: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int, size_max: int, size_bytes: int) -> bytes:
        raise PermissionError(13, "Permission denied")

    directory = open_directory()
    drop(directory, "job.json", text())
    monkeypatch.setattr(directory_module.journal, "read_all", fail)
    (incoming,) = directory.take()
    answer(directory, incoming)
    assert "Permission denied" in replies(directory)["job.json.error.json"]["error"]["message"]


@pytest.mark.parametrize("seen_bytes", [0, 3, 10, 100_000])
def test_a_file_that_has_changed_since_its_size_was_seen_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen_bytes: int
) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    monkeypatch.setattr(journal, "_READ_MIN_BYTES", 3)
    with journal.opened_to_read(os.fspath(tmp_path / "file")) as descriptor:
        assert journal.read_all(descriptor, -1, seen_bytes) == b"0123456789"


def test_a_file_that_gives_way_to_a_link_while_it_is_claimed_has_no_owner(
    open_directory: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = open_directory()
    ours = tmp_path / "ours"
    ours.write_text(text())
    job = drop(directory, "job.json", text())
    replace = os.replace

    def too_late(source: str, target: str) -> None:
        if source == os.fspath(job):
            job.unlink()
            job.symlink_to(ours)
        replace(source, target)

    monkeypatch.setattr(os, "replace", too_late)
    (incoming,) = directory.take()
    assert incoming.owner is None
    assert isinstance(incoming.data, JobFileError)


@pytest.mark.parametrize("is_link", [False, True])
def test_the_owner_of_a_file_is_known_also_while_no_descriptor_is_free_to_read_it(
    open_directory: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_link: bool
) -> None:
    directory = open_directory()
    job = drop(directory, "job.json", text())
    if is_link:
        os.link(job, tmp_path / "other")
    opened = os.open

    def fail(path: str, *rest: Any, **options: Any) -> int:
        if ".job." in os.fspath(path):
            raise OSError(errno.EMFILE, "Too many open files")
        return opened(path, *rest, **options)

    monkeypatch.setattr(os, "open", fail)
    (incoming,) = directory.take()
    assert incoming.data is None
    assert incoming.owner == (None if is_link else os.geteuid())


def test_a_very_long_file_name_gets_its_error_reply(open_directory: Open) -> None:
    directory = open_directory()
    (directory.path / "in" / ("x" * 255)).write_text("{}")
    for incoming in directory.take():
        answer(directory, incoming)
    (name,) = replies(directory)
    assert name.startswith("x" * 100)
    assert name.endswith(".error.json")


def test_a_file_name_that_is_no_unicode_gets_its_error_reply(open_directory: Open) -> None:
    directory = open_directory()
    (directory.path / "in" / os.fsdecode(b"odd\xff.json")).write_text("{}")
    for incoming in directory.take():
        answer(directory, incoming)
    assert list(replies(directory)) == ["odd\\udcff.json.error.json"]
    assert left_over(directory) == []


def test_an_error_takes_the_name_of_the_job_only_if_it_may(open_directory: Open) -> None:
    directory = open_directory()
    drop(directory, "one.json", text(priority=-1))
    (incoming,) = directory.take()
    answer(directory, incoming)
    assert replies(directory)["u.a.json"]["error"]["field"] == "priority"
    drop(directory, "two.json", text())
    (incoming,) = directory.take()
    directory.refuse(incoming, JobFileError("name", "a job of this name is live"))
    assert replies(directory)["two.json.error.json"]["error"]["field"] == "name"


def test_a_large_solution_is_there_before_its_reply(open_directory: Open) -> None:
    directory = open_directory()
    drop(directory, "one.json", text())
    (incoming,) = directory.take()
    beside = directory.solution_path(incoming.internal_id, "u.a")
    directory.reply(incoming.internal_id, "u.a", Reply(b"{}", beside, b"\1\0\0\0"))
    assert Path(beside).read_bytes() == b"\1\0\0\0"
    assert replies(directory) == {"u.a.json": {}}


def test_an_obeyed_interruption_leaves_without_a_reply_of_its_own(open_directory: Open) -> None:
    directory = open_directory()
    drop(directory, "stop.json", text(interrupt=True))
    (incoming,) = directory.take()
    directory.dismiss(incoming.internal_id)
    assert left_over(directory) == []
    assert replies(directory) == {}


@pytest.mark.parametrize("failing", ["open", "write"])
def test_an_obeyed_interruption_stays_until_the_jobs_reply_is_in_the_journal(
    open_directory: Open, clock: Clock, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """Else the job would run to its end if the rank is lost before the disk has room."""
    directory = open_directory()
    drop(directory, "one.json", text())
    drop(directory, "stop.json", text(interrupt=True))
    job, stop = directory.take()
    with monkeypatch.context() as full_disk:
        full_disk.setattr(os, failing, _no_room)
        answer(directory, job)
        directory.dismiss(stop.internal_id, job.internal_id)
    assert len(left_over(directory)) == 2
    clock.now += 100
    directory.take()
    assert left_over(directory) == []
    assert list(replies(directory)) == ["u.a.json"]


def test_an_interruption_whose_jobs_reply_is_out_leaves_at_once(open_directory: Open) -> None:
    directory = open_directory()
    drop(directory, "one.json", text())
    drop(directory, "stop.json", text(interrupt=True))
    job, stop = directory.take()
    answer(directory, job)
    directory.dismiss(stop.internal_id, job.internal_id)
    assert left_over(directory) == []


@pytest.mark.parametrize("failing", ["open", "write", "replace"])
def test_a_full_disk_delays_replies_and_loses_none(
    open_directory: Open, clock: Clock, log: list[str], monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    directory = open_directory()
    drop(directory, "one.json", text())
    (incoming,) = directory.take()

    def fail(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full_disk:
        full_disk.setattr(os, failing, fail)
        answer(directory, incoming)
        clock.now = directory.deadline_s
        directory.take()
    assert replies(directory) == {}
    assert "No space left on device; again in 1 s" in log[0]
    assert "again in 2 s" in log[1]
    clock.now += 100
    directory.take()
    assert list(replies(directory)) == ["u.a.json"]
    assert left_over(directory) == []


@pytest.mark.parametrize("where", ["journal", "out"])
def test_one_reply_that_cannot_be_written_does_not_hold_up_those_gathered_with_it(
    open_directory: Open, clock: Clock, log: list[str], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    directory = open_directory(flush_policy=Durable())
    for name in "abc":
        drop(directory, f"{name}.json", text(name))
    replace = os.replace

    def fail_for_one(source: str, target: str) -> None:
        if str(target).endswith("u.b.json") and f"/{where}/" in str(target):
            raise OSError(28, "No space left on device")
        replace(source, target)

    with monkeypatch.context() as trouble:
        trouble.setattr(os, "replace", fail_for_one)
        for incoming in directory.take():
            answer(directory, incoming)
        assert replies(directory) == {}, "they are not gathered"
        directory.take()
    assert set(replies(directory)) == {"u.a.json", "u.c.json"}
    assert ["u.b.json" in line for line in log] == [True]
    clock.now += 100
    directory.take()
    assert set(replies(directory)) == {"u.a.json", "u.b.json", "u.c.json"}
    assert left_over(directory) == []


@pytest.mark.parametrize("flush_policy", [Buffered(), Durable()], ids=["buffered", "durable"])
def test_the_end_of_a_job_is_noted_once_however_often_its_reply_is_tried(
    open_directory: Open, clock: Clock, flush_policy: FlushPolicy
) -> None:
    directory = open_directory(flush_policy=flush_policy)
    (directory.path / "out" / "u.a.json").mkdir()
    drop(directory, "a.json", text())
    (incoming,) = directory.take()
    answer(directory, incoming)
    for _ in range(4):
        clock.now += 100
        directory.take()
    assert directory.unpublished == 1
    assert (directory.path / journal.FINISHED).read_text() == "u.a\tresult\n"
    (directory.path / "out" / "u.a.json").rmdir()
    clock.now += 100
    directory.take()
    assert list(replies(directory)) == ["u.a.json"]
    assert left_over(directory) == []


def test_gathered_replies_are_seen_in_the_order_in_which_jobs_have_ended(
    open_directory: Open, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that waited for a later job must not be answered before the later job."""
    directory = open_directory(flush_policy=Durable())
    for name in "abc":
        drop(directory, f"{name}.json", text(name))
    taken = directory.take()
    for incoming in (taken[1], taken[2], taken[0]):
        answer(directory, incoming)
        clock.now += 0.01
    seen: list[str] = []
    replace = os.replace

    def note(source: str, target: str) -> None:
        replace(source, target)
        if "/out/" in str(target):
            seen.append(Path(target).name)

    monkeypatch.setattr(os, "replace", note)
    directory.take()
    names = [incoming.file_name.removesuffix(".json") for incoming in (taken[1], taken[2], taken[0])]
    assert seen == [f"u.{name}.json" for name in names]


def test_a_try_to_write_a_reply_for_which_there_was_no_room_leaves_nothing(
    open_directory: Open, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = open_directory()
    drop(directory, "a.json", text("a"))

    def write_a_part(path: str, data: bytes) -> None:
        Path(path).write_bytes(data[:1])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as trouble:
        trouble.setattr(SpareFile, "put", lambda *_: False)
        trouble.setattr(journal, "write_file", write_a_part)
        for incoming in directory.take():
            answer(directory, incoming)
        assert replies(directory) == {}
    monkeypatch.setattr(SpareFile, "put", lambda _, path, data: bool(Path(path).write_bytes(data)))
    clock.now += 100
    directory.take()
    assert set(replies(directory)) == {"u.a.json"}
    assert left_over(directory) == []


@pytest.mark.parametrize("flush_policy", [Buffered(), Durable()], ids=["buffered", "durable"])
@pytest.mark.parametrize("failing", [None, "replace"])
def test_a_job_is_tidied_up_after_when_it_will_never_run_again_and_before_its_reply_is_seen(
    open_directory: Open,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    flush_policy: FlushPolicy,
    failing: str | None,
) -> None:
    directory = open_directory(flush_policy=flush_policy)
    drop(directory, "one.json", text())
    (incoming,) = directory.take()
    seen: list[tuple[bool, list[str]]] = []

    def look() -> None:
        is_decided = (directory.path / "journal" / f"{incoming.internal_id}.reply.u.a.json").exists()
        seen.append((is_decided, list(replies(directory))))

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full_disk:
        if failing is not None:
            full_disk.setattr(os, failing, fail)
        answer(directory, incoming, look)
        directory.take()
    assert seen == ([] if failing else [(True, [])])
    clock.now += 100
    directory.take()
    assert list(replies(directory)) == ["u.a.json"]
    assert seen == [(True, [])]


def test_a_file_that_cannot_be_moved_stays_is_reported_once_and_taken_later(
    open_directory: Open, clock: Clock, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = open_directory()
    drop(directory, "one.json", text())

    def fail(*arguments: object) -> None:
        raise OSError(13, "Permission denied")

    with monkeypatch.context() as no_rights:
        no_rights.setattr("mallob_py.service.store.journal._move", fail)
        for _ in range(5):
            assert directory.take() == []
            clock.now += 2
    assert len(log) == 1
    assert len(directory.take()) == 1


def test_deleted_folders_come_back(open_directory: Open, clock: Clock) -> None:
    directory = open_directory()
    directory.take()
    (directory.path / "in").rmdir()
    (directory.path / "out").rmdir()
    clock.now += 100
    directory.take()
    drop(directory, "one.json", text())
    (incoming,) = directory.take()
    answer(directory, incoming)
    assert list(replies(directory)) == ["u.a.json"]


def test_two_services_on_one_folder_are_refused_with_the_holder_named(open_directory: Open) -> None:
    open_directory()
    with pytest.raises(ServiceError, match=rf"process {os.getpid()} on .*--api-dir"):
        open_directory()


def test_clients_of_one_service_have_folders_of_their_own(open_directory: Open) -> None:
    first = open_directory(client_index=0, clients=2)
    second = open_directory(client_index=1, clients=2)
    assert (first.path.name, second.path.name) == ("jobs.0", "jobs.1")


def test_a_place_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ServiceError, match="give another --api-dir"):
        JobDirectory(tmp_path / "file" / "api")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_a_clear_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ServiceError, match="Permission denied"):
        JobDirectory(tmp_path / "api")


def test_a_read_only_file_system_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    JobDirectory(tmp_path / "api", tmp_dir=tmp_path).close()

    def fail(*arguments: object, **options: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(ServiceError, match="Read-only file system"):
        JobDirectory(tmp_path / "api", tmp_dir=tmp_path)


def test_internal_ids_interleave_and_go_on_after_a_restart(open_directory: Open) -> None:
    seen: list[int] = []
    for clients in (1, 2, 2, 3):
        directory = open_directory(client_index=0, clients=clients)
        for index in range(2):
            drop(directory, f"{index}.json", text(f"j{index}"))
        for incoming in directory.take():
            seen.append(incoming.internal_id)
            assert incoming.internal_id % clients == 1 % clients
            answer(directory, incoming)
        directory.close()
    assert seen == sorted(set(seen))
    assert seen[:4] == [1, 2, 3, 5]
    assert max(seen) < 20


def test_jobs_of_clients_that_are_no_more_can_be_told(open_directory: Open, tmp_path: Path) -> None:
    open_directory(client_index=0, clients=3)
    open_directory(client_index=1, clients=3)
    directory = open_directory(client_index=2, clients=3)
    drop(directory, "one.json", text())
    directory.take()
    assert orphaned_folders(tmp_path / "api", 1) == [directory.path]
    assert orphaned_folders(tmp_path / "api", 3) == []


def test_a_damaged_id_file_does_not_lead_to_ids_of_live_jobs(open_directory: Open) -> None:
    directory = open_directory()
    drop(directory, "one.json", text())
    (first,) = directory.take()
    directory.close()
    (directory.path / ".last_id").write_text("rubbish")
    directory = open_directory()
    drop(directory, "two.json", text("b"))
    recovered, second = directory.take()
    assert (recovered.internal_id, recovered.data) == (first.internal_id, first.data)
    assert second.internal_id > first.internal_id


def test_all_that_have_a_reply_are_known_after_a_restart(open_directory: Open) -> None:
    directory = open_directory()
    drop(directory, "one.json", text())
    drop(directory, "two.json", text("bad", priority=0))
    for incoming in directory.take():
        answer(directory, incoming)
    directory.close()
    assert open_directory().finished == {"u.a": "result", "u.bad": "refused"}


@pytest.mark.parametrize("name", ["x\nu.victim\tresult\ny", "u.victim\tresult"])
def test_the_name_of_a_refused_file_tells_no_end_of_another_job(open_directory: Open, name: str) -> None:
    directory = open_directory()
    drop(directory, name, "{}")
    (incoming,) = directory.take()
    answer(directory, incoming)
    assert list(replies(directory)) == [f"{name}.error.json"]
    directory.close()
    assert open_directory().finished == {}
    assert not journal.ended_before(directory.path)("u.victim")


def test_how_a_job_ended_is_known_though_its_reply_was_not_published(open_directory: Open) -> None:
    directory = open_directory()
    directory.close()
    for number, text in ((7, '{"result": {"outcome": "cpu-limit"}}'), (8, '{"result": 1}')):
        (directory.path / "journal" / f"{number}.reply.u.{number}.json").write_text(text + "\n")
    assert open_directory().finished == {"u.7": "cpu-limit", "u.8": ""}


def test_how_jobs_ended_stands_in_replies_whatever_lies_there(open_directory: Open, tmp_path: Path) -> None:
    directory = open_directory()
    out = directory.path / "out"
    (out / "u.a.json").write_text('{"result": {"outcome": "interrupted"}}')
    os.mkfifo(out / "u.fifo.json")
    (tmp_path / "other").write_text('{"result": {"outcome": "result"}}')
    (out / "u.link.json").symlink_to(tmp_path / "other")
    outcomes = [directory.replied(f"u.{name}") for name in ("a", "fifo", "link", "none")]
    assert outcomes == ["interrupted", "", "", None]


def test_the_file_system_of_a_path_can_be_told() -> None:
    assert file_system_type(Path("/proc/self")) == "proc"
    assert not is_remote(Path("/proc"))


def test_files_wait_untouched_while_there_is_no_room_and_are_taken_by_age_then(
    open_directory: Open, clock: Clock
) -> None:
    directory = open_directory()
    for number in range(30):
        drop(directory, f"{number}.json", text(str(number)))
    assert len(directory.take(30)) == 30
    directory.close()
    directory = open_directory()
    drop(directory, "stop.json", json.dumps({"user": "u", "name": "29", "interrupt": True}))
    drop(directory, "urgent.json", text("urgent", priority=10.0))
    for _ in range(3):
        clock.now += 1.0
        assert directory.take(0) == []
        assert directory.deadline_s > clock.now
    assert (directory.recovered_count, directory.known_files) == (30, 2)
    names = [incoming.file_name for _ in range(4) for incoming in directory.take(10)]
    assert names == [*(f"{number}.json" for number in range(30)), "stop.json", "urgent.json"]


def test_a_file_that_a_listing_finds_comes_before_one_that_is_told_of_during_the_listing(
    open_directory: Open, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = open_directory()
    directory.take()
    monkeypatch.setattr(in_folder, "_LISTED_AT_ONCE", 1)
    with monkeypatch.context() as deaf:
        deaf.setattr(in_folder.InotifyWatch, "news", lambda watch: in_folder.News([], False))
        drop(directory, "job.json", text("a"))
        clock.now += in_folder.RESCAN_INTERVAL_S
        assert directory.take() == []
    monkeypatch.setattr(in_folder, "_LISTED_AT_ONCE", 0)  # the listing stops before it has seen all files
    drop(directory, "a-stop.json", json.dumps({"user": "u", "name": "a", "interrupt": True}))
    assert directory.take() == []
    monkeypatch.setattr(in_folder, "_LISTED_AT_ONCE", 1000)
    names = [incoming.file_name for _ in range(2) for incoming in directory.take()]
    assert names == ["job.json", "a-stop.json"]


def test_files_that_are_told_of_before_the_folder_can_be_listed_ask_for_no_turn_at_once(
    open_directory: Open, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = open_directory()
    drop(directory, "job.json", text())

    def fail(path: str) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as shortage:
        shortage.setattr(os, "scandir", fail)
        assert directory.take() == []
    assert directory.known_files == 1
    assert directory.deadline_s > clock.now
    clock.now = directory.deadline_s
    assert [incoming.file_name for incoming in directory.take()] == ["job.json"]


def test_what_was_in_the_folder_at_the_start_comes_before_what_is_told_of_later(open_directory: Open) -> None:
    directory = open_directory()
    directory.close()
    drop(directory, "job.json", text("a"))
    directory = open_directory()
    drop(directory, "a-stop.json", json.dumps({"user": "u", "name": "a", "interrupt": True}))
    assert [incoming.file_name for incoming in directory.take()] == ["job.json", "a-stop.json"]


def test_a_taken_file_can_be_read_again_until_it_has_its_reply(open_directory: Open) -> None:
    directory = open_directory()
    drop(directory, "job.json", text("a", priority=2.0))
    (incoming,) = directory.take()
    again = directory.read_again(incoming.internal_id)
    assert again.parse(APPLICATIONS) == incoming.parse(APPLICATIONS)


def test_replies_that_a_full_disk_has_held_up_for_minutes_are_there_seconds_after_it_has_room(
    open_directory: Open, clock: Clock, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = open_directory()
    for number in range(5):
        drop(directory, f"{number}.json", text(str(number)))
    taken = directory.take()
    with monkeypatch.context() as patch:
        patch.setattr("mallob_py.service.store.journal.write_file", _no_room)
        patch.setattr("mallob_py.service.store.spare_file.SpareFile.put", lambda *_: False)
        for incoming in taken:
            answer(directory, incoming)
        for _ in range(400):
            clock.now += 0.5
            directory.take()
    assert replies(directory) == {}
    assert len(log) <= 6 * len(taken)
    for _ in range(6):
        clock.now += 0.5
        directory.take()
    assert len(replies(directory)) == 5


def _no_room(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("failing", ["FinishedLog.append", "_move", "_remove", "write_file"])
@pytest.mark.parametrize("is_closed", [False, True])
def test_a_chain_that_ends_while_the_disk_is_full_is_gone_once_there_is_room(
    open_directory: Open,
    clock: Clock,
    log: list[str],
    monkeypatch: pytest.MonkeyPatch,
    failing: str,
    is_closed: bool,
) -> None:
    directory = open_directory()
    for name in ("first", "second", "end"):
        drop(directory, f"{name}.json", text(name))
        clock.now += 1
    first, second, end = directory.take()
    directory.reply(first.internal_id, "u.first", Reply(b"{}"), first.internal_id)
    with monkeypatch.context() as full_disk:
        full_disk.setattr(SpareFile, "put", lambda *_: False)
        full_disk.setattr(f"mallob_py.service.store.journal.{failing}", _no_room)
        directory.reply(second.internal_id, "u.second", Reply(b"{}"), first.internal_id)
        directory.end_chain(first.internal_id, end.internal_id, "u.end")
        for _ in range(100):
            clock.now = max(clock.now, directory.deadline_s)
            directory.take()
    assert len([line for line in log if "chain" in line]) == 1
    if is_closed:
        directory.close()
    else:
        clock.now += 30
        directory.take()
        clock.now += 30
        directory.take()
    assert left_over(directory) == []
    assert set(replies(directory)) == {"u.first.json", "u.second.json"}


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_file_without_a_reply_that_cannot_be_dropped_now_is_dropped_later(
    open_directory: Open, clock: Clock, log: list[str], monkeypatch: pytest.MonkeyPatch, is_closed: bool
) -> None:
    directory = open_directory()
    drop(directory, "stop.json", text())
    (stop,) = directory.take()
    with monkeypatch.context() as trouble:
        trouble.setattr(os, "unlink", _no_room)
        directory.dismiss(stop.internal_id)
        assert directory.deadline_s <= clock.now + 1
    if is_closed:
        directory.close()
    else:
        clock.now = directory.deadline_s
        directory.take()
    assert left_over(directory) == []
    assert len(log) == 1


def test_a_line_of_an_ended_job_for_which_there_is_no_room_leaves_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = FinishedLog(tmp_path / ".finished")
    finished.append("u.a", "result")
    write = os.write
    with monkeypatch.context() as full_disk:
        full_disk.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:4]))
        with pytest.raises(OSError, match="No space left on device"):
            finished.append("u.bbbb", "result")
    finished.append("u.c", "result")
    finished.close()
    assert FinishedLog(tmp_path / ".finished").load() == {"u.a": "result", "u.c": "result"}


def test_a_cut_line_of_an_ended_job_is_dropped_without_any_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / ".finished"
    path.write_text("u.a\tresult\nu.cut")
    with monkeypatch.context() as full_disk:
        full_disk.setattr("mallob_py.service.store.own_folder.replace_file", _no_room)
        finished = FinishedLog(path)
        assert finished.load() == {"u.a": "result"}
    finished.append("u.b", "result")
    finished.close()
    assert path.read_text() == "u.a\tresult\nu.b\tresult\n"


def test_ended_jobs_are_noted_also_while_there_is_no_room_to_drop_the_oldest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "KEEP_MAX", 2)
    finished = FinishedLog(tmp_path / ".finished")
    with monkeypatch.context() as full_disk:
        full_disk.setattr("mallob_py.service.store.own_folder.replace_file", _no_room)
        for number in range(9):
            finished.append(f"u.{number}", "result")
    finished.append("u.9", "result")
    finished.append("u.10", "result")
    finished.close()
    assert (tmp_path / ".finished").read_text() == "u.9\tresult\nu.10\tresult\n"


def test_ended_jobs_are_noted_also_where_the_file_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "KEEP_MAX", 1)
    finished = FinishedLog(tmp_path / ".finished")
    with monkeypatch.context() as trouble:
        trouble.setattr("mallob_py.service.store.own_folder.read_file", _no_room)
        for number in range(3):
            finished.append(f"u.{number}", "result")
    finished.append("u.3", "result")
    finished.append("u.4", "result")
    finished.close()
    assert (tmp_path / ".finished").read_text() == "u.4\tresult\n"


def test_ended_jobs_are_noted_also_after_their_file_was_removed(tmp_path: Path) -> None:
    finished = FinishedLog(tmp_path / ".finished")
    finished.append("u.a", "result")
    (tmp_path / ".finished").unlink()
    finished.append("u.b", "result")
    finished.close()
    assert FinishedLog(tmp_path / ".finished").load() == {"u.b": "result"}


def test_a_folder_of_thousands_is_listed_in_parts_and_taken_oldest_first(
    open_directory: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_folder, "_LISTED_AT_ONCE", 7)
    directory = open_directory()
    directory.close()
    for number in range(50):
        path = drop(directory, f"{number}.json", text(str(number)))
        os.utime(path, (10_000 - number, 10_000 - number))
    directory = open_directory(watching=Watching.POLL)
    names: list[str] = []
    while directory.deadline_s == float("-inf") or not names:
        names += [incoming.file_name for incoming in directory.take(4)]
    assert names == [f"{number}.json" for number in reversed(range(50))]


def test_a_file_above_the_bound_is_refused_unread_now_and_at_every_later_start(
    open_directory: Open, clock: Clock
) -> None:
    directory = open_directory(watching=Watching.POLL, size_max_bytes=1000)
    huge = directory.path / "in" / "~huge"
    huge.touch()
    os.truncate(huge, 1 << 40)
    huge.rename(directory.path / "in" / "huge.json")
    drop(directory, "large.json", text("large", group=" " * 1000))
    drop(directory, "fits.json", text("fits"))
    taken: dict[str, Incoming] = {}
    for _ in range(100):
        taken |= {incoming.file_name: incoming for incoming in directory.take()}
        clock.now += 1.0
    assert isinstance(taken["fits.json"].data, bytes)
    directory.close()
    directory = open_directory(size_max_bytes=1000)
    for incoming in directory.take():
        answer(directory, incoming)
    errors = {
        name: reply["error"]["message"] for name, reply in replies(directory).items() if "error" in reply
    }
    assert errors.keys() == {"huge.json.error.json", "large.json.error.json"}
    assert "1.04858e+06 MB" in errors["huge.json.error.json"]
    assert "--max-job-file" in errors["large.json.error.json"]
    assert left_over(directory) == []


def test_a_folder_that_was_removed_and_made_again_is_locked_again(
    open_directory: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mallob_py.service.store.directory.RESCAN_INTERVAL_S", 0.0)
    monkeypatch.setattr(in_folder, "RESCAN_INTERVAL_S", 0.0)
    directory = open_directory()
    shutil.rmtree(directory.path.parent)
    directory.take()
    assert (directory.path / "in").is_dir()
    with pytest.raises(ServiceError, match=f"process {os.getpid()}"):
        open_directory()
    drop(directory, "job.json", text())
    poll_until(lambda: [incoming.internal_id for incoming in directory.take()] == [1])


@pytest.mark.parametrize("part", ["in", "journal", "out"])
def test_a_part_that_was_removed_while_the_rest_was_made_anew_comes_back(
    open_directory: Open, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """The removal of the folder may still be going on, which the lock alone does not show."""
    monkeypatch.setattr("mallob_py.service.store.directory.RESCAN_INTERVAL_S", 0.0)
    monkeypatch.setattr(in_folder, "RESCAN_INTERVAL_S", 0.0)
    directory = open_directory()
    shutil.rmtree(directory.path / part)
    directory.take()
    drop(directory, "job.json", text())
    answer(directory, *directory.take())
    assert len(replies(directory)) == 1


def test_a_folder_whose_lock_was_not_taken_at_the_first_try_is_made_anew_at_the_next(
    open_directory: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mallob_py.service.store.directory.RESCAN_INTERVAL_S", 0.0)
    directory = open_directory()
    shutil.rmtree(directory.path.parent)

    def no_room(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", no_room)
        directory.take()
    assert (directory.path / ".lock").exists()
    directory.take()
    with pytest.raises(ServiceError, match=f"process {os.getpid()}"):
        open_directory()


def test_a_folder_that_others_have_made_again_is_heard_of_at_once(open_directory: Open) -> None:
    directory = open_directory()
    shutil.rmtree(directory.path / "in")
    (directory.path / "in").mkdir()
    assert directory.take() == []
    drop(directory, "job.json", text())
    assert select.select([directory.fileno()], [], [], 10.0)[0]
    assert [incoming.file_name for incoming in directory.take()] == ["job.json"]


def test_a_folder_that_another_service_has_made_again_is_left_to_it(
    open_directory: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mallob_py.service.store.directory.RESCAN_INTERVAL_S", 0.0)
    directory = open_directory()
    shutil.rmtree(directory.path.parent)
    other = open_directory()
    drop(other, "job.json", text())
    with pytest.raises(ServiceError, match="is used by a running service"):
        directory.take()
    assert [incoming.file_name for incoming in other.take()] == ["job.json"]


def test_a_reply_from_after_now_says_nothing_of_what_came_before_it(open_directory: Open) -> None:
    directory = open_directory()
    directory.take()
    drop(directory, "first.json", text())
    drop(directory, "later.json", text())
    for incoming in (taken := directory.take()):
        assert not directory.came_before_reply(incoming, "u.a")
    answer(directory, taken[0])
    folder = directory.path / "journal"
    later = msgspec.structs.replace(taken[1], handed_in_s=taken[1].handed_in_s - 10.0)
    os.utime(folder, (time.time() + 10.0,) * 2)
    assert directory.came_before_reply(later, "u.a")
    os.utime(folder, (time.time() - 10.0,) * 2)  # as if the clock had been set back
    assert not directory.came_before_reply(later, "u.a")


@pytest.mark.parametrize("watching", list(Watching))
def test_an_empty_file_may_be_filled_before_it_has_rested(
    open_directory: Open, clock: Clock, watching: Watching
) -> None:
    directory = open_directory(watching=watching)
    path = directory.path / "in" / "slow.json"
    path.touch()
    for _ in range(20):
        assert directory.take() == []
        clock.now += 0.05
    path.write_text(text())
    while not (taken := directory.take()):
        clock.now = max(clock.now + 0.01, directory.deadline_s)
    assert isinstance(taken[0].parse(APPLICATIONS), JobFile)
    answer(directory, taken[0])
    directory.take()
    clock.now += 10
    assert directory.take() == []
    assert list(replies(directory)) == ["u.a.json"]


def test_an_empty_file_that_has_rested_is_refused(open_directory: Open, clock: Clock) -> None:
    directory = open_directory()
    (directory.path / "in" / "void.json").touch()
    assert directory.take() == []
    clock.now += REST_S - 0.1
    assert directory.take() == []
    # closed again after writing, so the wait begins again
    (directory.path / "in" / "void.json").open("w").close()
    assert directory.take() == []
    clock.now += 0.2
    assert directory.take() == []
    clock.now = directory.deadline_s
    while not (taken := directory.take()):
        clock.now = directory.deadline_s
    answer(directory, taken[0])
    directory.take()
    assert list(replies(directory)) == ["void.json.error.json"]


def test_what_editors_leave_behind_or_try_out_is_no_job(open_directory: Open, clock: Clock) -> None:
    directory = open_directory()
    folder = directory.path / "in"
    (folder / "4913").touch()
    (folder / "4913").unlink()
    for name in ("a~", "#a.json#", ".#a.json", ".a.json.swp", "a.json___jb_tmp___", "a.json___jb_old___"):
        (folder / name).write_text(text())
    (folder / "5036").touch()
    assert directory.take() == []
    (folder / "5036").unlink()
    for _ in range(9):
        clock.now += 1
        assert directory.take() == []
    assert replies(directory) == {}
    assert directory.untaken() == 0
