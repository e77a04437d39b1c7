"""A client reads only new replies, however many replies it awaits and however many old ones exist."""

import errno
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest
from desk import SAT, Desk
from waiting import DEADLINE_S, poll_until

from mallob_py import Answer, Client
from mallob_py.api import client as client_module
from mallob_py.api import replies
from mallob_py.api.optimization import minimizing
from mallob_py.api.replies import NewFiles
from mallob_py.api.settled import IN_A_FORK
from mallob_py.service import client as service
from mallob_py.service.store import lock
from mallob_py.service.store.directory import JobDirectory
from mallob_py.service.store.in_folder import News

PENDING = 2000


@pytest.fixture(params=["inotify", "polling"])
def watching(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(replies, "is_remote", lambda path: request.param == "polling")
    return str(request.param)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Return the folder for replies of a service that has ended; the test writes the replies."""
    JobDirectory(tmp_path / "api", tmp_dir=tmp_path).close()
    return tmp_path / "api/jobs.0/out"


@pytest.fixture
def client(out: Path, watching: str) -> Iterator[Client]:
    with Client(out.parents[1], user="u", service_timeout_s=None) as one:  # no service runs in these tests
        yield one


def publish(path: Path, code: int = 20) -> None:
    hidden = path.parent.parent / "journal" / path.name
    hidden.write_text(f'{{"result": {{"resultcode": {code}, "solution": []}}}}')
    hidden.rename(path)


class Looks:
    """Counts the turns of a client's thread, and its calls that read files of replies."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.turns = 0
        self.at: set[str] = set()
        look, signature_of, read_reply = NewFiles.look, service.signature_of, service.read_reply

        def count(files: NewFiles) -> object:
            self.turns += 1
            return look(files)

        def note(path: Path) -> None:
            if threading.current_thread().name == "mallob-py-client":
                self.at.add(path.name)

        patch.setattr(NewFiles, "look", count)
        patch.setattr(service, "signature_of", lambda path: (note(path), signature_of(path))[1])
        patch.setattr(service, "read_reply", lambda path: (note(path), read_reply(path))[1])


def test_thousands_of_jobs_that_wait_cost_no_look_at_their_files(
    client: Client, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(100):
        publish(out / f"u.old-{number}.json")
    looks = Looks(monkeypatch)
    futures = [client.submit([[1]], name=f"j{number}") for number in range(PENDING)]
    turns = looks.turns
    poll_until(lambda: looks.turns > turns + 20)
    assert looks.at == set()
    for number in (7, 1999):
        publish(out / f"u.j{number}.json")
        assert futures[number].result(DEADLINE_S).satisfiable is False
    assert looks.at == {"u.j7.json", "u.j1999.json"}
    for future in futures:  # else the client's end would interrupt each job
        if not future.done():
            future.set_running_or_notify_cancel()


def test_a_reply_that_comes_at_once_is_seen(client: Client, out: Path) -> None:
    for number in range(50):
        future = client.submit([[1]], name=f"j{number}")
        publish(out / f"u.j{number}.json")
        assert future.result(DEADLINE_S).satisfiable is False


def test_a_name_is_free_when_its_job_has_its_answer(client: Client, out: Path) -> None:
    again: list[Future[Answer]] = []

    def ask_again(_: Future[Answer]) -> None:  # called in the thread that has found the reply
        again.append(client.submit([[1]], name="a"))

    future = client.submit([[1]], name="a")
    future.add_done_callback(ask_again)
    publish(out / "u.a.json", code=10)
    poll_until(lambda: again)
    publish(out / "u.a.json", code=20)
    assert again[0].result(DEADLINE_S).satisfiable is False


def test_callbacks_and_files_that_cannot_be_removed_stop_no_other_answer(
    client: Client, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def quit_now(_: Future[Answer]) -> None:
        raise SystemExit(1)

    def unlink(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    large = [[one] for one in range(1, 60_000)]
    futures = [client.submit(large, name=f"j{number}") for number in range(3)]
    futures[0].add_done_callback(quit_now)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", unlink)
        for number, future in enumerate(futures):
            publish(out / f"u.j{number}.json")
            assert future.result(DEADLINE_S).satisfiable is False


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_an_optimum_whose_job_is_cancelled_ends_for_all_that_wait(client: Client, how: str) -> None:
    future = client.optimize(minimizing([[1, 2]], {1: 1}))
    if how == "cancel":
        assert future.cancel()
    else:
        client.close()
    assert wait([future], DEADLINE_S).done == {future}
    assert future.cancelled()


def test_a_client_short_of_descriptors_reads_replies_later_and_misses_no_service(
    client: Client, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replies, "_RELIST_S", 0.1)
    monkeypatch.setattr(client, "_service_timeout_s", 0.0)
    tries: list[object] = []

    def fail(*path: object, **_: object) -> NoReturn:
        tries.append(path)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(service, "contents", fail)
        patch.setattr(lock.own_folder, "open_file", fail)
        future = client.submit([[1]], name="a")
        publish(out / "u.a.json")
        poll_until(lambda: len(tries) > 5)
        assert not future.done()
        monkeypatch.setattr(client, "_service_timeout_s", None)
    assert future.result(DEADLINE_S).satisfiable is False


def test_an_older_reply_of_that_name_is_left_alone(client: Client, out: Path) -> None:
    publish(out / "u.a.json", code=10)
    future = client.submit([[1]], name="a")
    publish(out / "u.other.json")  # another new file
    other = client.submit([[1]], name="b")
    publish(out / "u.b.json")
    other.result(DEADLINE_S)
    assert not future.done()
    publish(out / "u.a.json", code=20)
    assert future.result(DEADLINE_S).satisfiable is False


def test_replies_are_seen_in_a_folder_that_was_removed_and_made_again(client: Client, out: Path) -> None:
    before, after = (client.submit([[1]], name=name) for name in ("before", "after"))
    publish(out / "u.before.json")
    assert before.result(DEADLINE_S).satisfiable is False
    (out / "u.before.json").unlink()
    out.rmdir()
    out.mkdir()
    publish(out / "u.after.json")
    assert after.result(DEADLINE_S).satisfiable is False


def test_files_that_inotify_lost_are_found_by_listing(
    out: Path, watching: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = NewFiles(out)
    assert list(files.look()) == []
    if watching == "inotify":
        monkeypatch.setattr(replies.InotifyWatch, "news", lambda self: News([], True))
    publish(out / "u.a.json")
    assert "u.a.json" in [*files.look(), *_after(files, "u.a.json")]
    files.close()


def _after(files: NewFiles, name: str) -> list[str]:
    found: list[str] = []
    poll_until(lambda: name in found or bool(found.extend(files.look())))
    return found


class FullDisk:
    """A disk on which no order to end a job can be written for `count` tries."""

    def __init__(self, patch: pytest.MonkeyPatch, count: int) -> None:
        self.count = count
        self.ended: list[str] = []
        patch.setattr(service, "interrupt", self._interrupt)

    def _interrupt(self, api_dir: Path, user: str, name: str, *_: object, **__: object) -> None:
        if self.count:
            self.count -= 1
            try:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                raise service.ServiceError("cannot write a job") from error
        self.ended.append(name)


def test_a_job_that_is_cancelled_while_the_disk_is_full_is_ended_later(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FullDisk(monkeypatch, count=5)
    future = client.submit([[1]], name="one")
    assert future.cancel()
    poll_until(lambda: disk.ended == ["one"], "the job is ended")
    assert not caplog.records, "no callback raises"


def test_a_client_that_is_closed_while_the_disk_is_full_ends_its_jobs(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch, count=5)
    with Client(out.parents[1], user="u", service_timeout_s=None) as client:
        client.submit([[1]], name="one")
    assert disk.ended == ["one"]


def test_a_client_that_is_closed_says_which_jobs_go_on(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_CLOSE_MAX_S", 0.1)
    FullDisk(monkeypatch, count=10**9)
    client = Client(out.parents[1], user="u", service_timeout_s=None)
    client.submit([[1]], name="one")
    with pytest.raises(service.ServiceError, match=r"which go on: one \(cannot write"):
        client.close()


def test_a_cancelled_job_is_gone_with_its_services_folder(
    out: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Client(out.parents[1], user="u", service_timeout_s=None) as client:
        client.submit([[1]], name="one")
        shutil.rmtree(out.parent / "in")
    assert not caplog.records


def test_a_fork_neither_waits_for_its_parents_jobs_nor_ends_them(desk: Desk) -> None:
    future = desk.client.submit([[1]], name="parents")
    incoming, fields = desk.take()
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        told: list[str] = []
        uses = (
            partial(future.result, 1.0),
            partial(future.exception, 1.0),
            partial(desk.client.submit, [[1]]),
        )
        for use in uses:
            try:
                use()
            except Exception as error:
                told.append(f"{type(error).__name__} {error}")
        desk.client.close()
        os.write(write, "\n".join(told).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    said = os.read(read, 10_000).decode().splitlines()
    os.close(read)
    assert said == [f"RuntimeError {IN_A_FORK}"] * 3
    assert not desk.directory.take()
    desk.say(SAT)(incoming, fields)
    assert future.result(DEADLINE_S).satisfiable
