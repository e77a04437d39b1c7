"""A client takes in files by age, up to a bound; files that name other jobs find these jobs."""

import errno
import itertools
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from waiting import DEADLINE_S, poll_until

from mallob_py.protocol.job_life import Happening, JobState
from mallob_py.runtime.world.mpi import Crash
from mallob_py.service import JobFileError, intake
from mallob_py.service.desk_machine import DeskMachine, DeskSetting
from mallob_py.service.intake import CodeRule, Intake
from mallob_py.service.jobs.chains import ChainBook
from mallob_py.service.jobs.crashes import RunningJobs
from mallob_py.service.jobs.job_file import InputUse, parse_job
from mallob_py.service.jobs.live import LiveJob
from mallob_py.service.jobs.reply import Reply, ResultFiles
from mallob_py.service.parts import Parts
from mallob_py.service.store import journal
from mallob_py.service.store.directory import Incoming, JobDirectory, ThreadedDirectory
from mallob_py.service.store.entries import http_file_name
from mallob_py.service.store.in_folder import Watching
from mallob_py.service.store.journal import contents
from mallob_py.service.store.large_files import LARGE_BYTES, Parsed
from mallob_py.service.store.spare_file import SpareFile

WAITING_MAX = 10
#: number of files that a thread may have claimed in advance
READY_MAX = 64


class Client:
    """The intake of a client whose jobs only wait after they are taken in."""

    def __init__(
        self,
        folder: Path,
        is_threaded: bool = False,
        watching: Watching = Watching.AUTO,
        results: Any = None,
    ) -> None:
        self.now = 0.0
        #: doubles that note failed jobs, and lines of the log
        self.endings: Any = MagicMock()
        self.log: Any = MagicMock()
        self.interrupted: list[str] = []
        self.refused: dict[str, str] = {}
        self.refused_identities: list[str | None] = []
        self._numbers = itertools.count()

        def opened(log: Callable[[str], None]) -> JobDirectory:
            return JobDirectory(folder, tmp_dir=folder, log=log, watching=watching)

        self.directory = ThreadedDirectory(opened, print) if is_threaded else opened(print)
        self.directory.refuse = self._refuse  # type: ignore[method-assign]
        self.running = RunningJobs(self.directory.path, None, print)
        rank: Any = SimpleNamespace(now=lambda: self.now, log=self.log)
        hands: Any = MagicMock()
        hands.end_unsubmitted = lambda live, now: self.interrupted.append(live.identity)
        hands.replied, hands.is_suspect = self.directory.replied, lambda job: False
        self.machine = DeskMachine(hands, DeskSetting(1, 60.0, finished=self.directory.finished))
        self.holds = self.machine.holds
        self.jobs = self.machine.jobs
        none: Any = MagicMock()
        parts = Parts(rank, self.directory, self.machine, ChainBook(100.0), self.running, results or none)
        self.status: Any = MagicMock()
        applications = {
            "NOOP": InputUse.NONE,
            "SAT": InputUse.REVISIONS,
            "OTHER": InputUse.UNKNOWN,
            "CODE": InputUse.NONE,
        }
        self.intake = Intake(parts, self.endings, self.status, applications, CodeRule({"CODE"}, False))

    def _refuse(self, incoming: Incoming, error: JobFileError) -> None:
        self.refused[incoming.file_name] = str(error)
        self.refused_identities.append(error.identity)

    def drop(self, user: str, name: str, **fields: Any) -> None:
        content = {"user": user, "name": name} | (fields or {"application": "NOOP"})
        hidden = self.directory.path / "in" / f"~{user}.{name}"
        hidden.write_text(json.dumps(content))
        hidden.rename(self.directory.path / "in" / f"{user}.{name}.{next(self._numbers)}.json")

    def turns(self, count: int = 30) -> None:
        """Call the intake as an event loop does; jobs that may begin are then queued."""
        for _ in range(count):
            self.now += 0.1
            self.intake.turn(self.now)
            for job in self.holds.ready(self.now):
                self.jobs.happens(self.jobs[job], Happening.FREED)
                self.machine.line.put(self.jobs[job])

    def begin(self, count: int) -> list[str]:
        """Let the first `count` queued jobs begin and end; return them."""
        waiting = [live for live in self.jobs.values() if live.state is JobState.QUEUED][:count]
        for live in waiting:
            self.end(live)
        return [live.identity for live in waiting]

    def end(self, live: LiveJob) -> None:
        self.machine.answer(live, "result")
        self.directory.reply(live.id, live.identity, Reply(b"{}"))

    def close(self) -> None:
        self.intake.close()
        self.directory.close()
        self.running.close()

    @property
    def identities(self) -> set[str]:
        return {live.identity for live in self.jobs.values()}

    @property
    def files(self) -> int:
        return self.directory.untaken()


@pytest.fixture(autouse=True)
def few_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "WAITING_MAX", WAITING_MAX)
    monkeypatch.setattr(intake, "_TAKE_AT_ONCE", 4)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    opened = Client(tmp_path)
    yield opened
    opened.close()


def test_a_job_that_is_refused_is_told_of_by_its_name_and_an_order_is_not(client: Client) -> None:
    client.drop("first.last", "live")
    client.turns()
    client.drop("first.last", "live")
    client.drop("first.last", "bad", application="NOSUCH", group="g")
    client.drop("first.last", "gone", interrupt=True)
    (client.directory.path / "in" / "~x").write_text('{"name": "whose"}')
    (client.directory.path / "in" / "~x").rename(client.directory.path / "in" / "x.json")
    client.turns()
    assert len(client.refused) == 4
    told = {(*call.args[1:3], call.args[4]) for call in client.status.refused.call_args_list}
    assert told == {("first.last", "live", ""), ("first.last", "bad", "g"), ("", "x.json", "")}


def test_as_many_files_become_jobs_as_may_wait_and_the_others_when_these_begin(client: Client) -> None:
    for number in range(100):
        client.drop("u", str(number))
    client.turns()
    assert WAITING_MAX <= len(client.jobs) < WAITING_MAX + 4
    assert client.files == 100 - len(client.jobs)
    assert client.intake.deadline_s > client.now
    begun: list[str] = []
    while client.jobs:
        begun += client.begin(3)
        if len(client.jobs) < WAITING_MAX and client.files:
            assert client.intake.deadline_s == float("-inf")
        client.turns(2)
        assert len(client.jobs) < WAITING_MAX + 4
    assert begun == [f"u.{number}" for number in range(100)]


def test_jobs_whose_files_came_at_once_wait_in_the_order_in_which_they_were_taken(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall_s = itertools.count(time.time() + 10.0, 0.003)  # time passes while the files of a turn are taken
    monkeypatch.setattr(intake.time, "time", lambda: next(wall_s))
    for number in range(8):
        client.drop("ada", f"{number}")
    client.turns()
    waits = [live.since_s for live in sorted(client.jobs.values(), key=lambda live: live.id)]
    assert len(waits) == 8
    assert all(earlier < later for earlier, later in itertools.pairwise(waits))


def test_nothing_is_lost_or_doubled_when_a_client_begins_anew_amid_thousands(tmp_path: Path) -> None:
    ended: list[str] = []
    client = Client(tmp_path)
    for number in range(60):
        client.drop("u", str(number))
    while len(ended) < 60:
        client.turns(3)
        ended += client.begin(7)
        client.close()  # claimed files stay in the journal, as after a crash
        client = Client(tmp_path)
    assert sorted(ended) == sorted(f"u.{number}" for number in range(60))
    assert client.files == 0
    assert sorted(os.listdir(client.directory.path / "out")) == sorted(f"{one}.json" for one in ended)
    client.close()


@pytest.mark.parametrize("is_threaded", [False, True])
def test_an_interruption_finds_its_job_among_a_thousand_files_that_came_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_threaded: bool
) -> None:
    monkeypatch.setattr(intake, "WAITING_MAX", 2000)
    monkeypatch.setattr(intake, "_TAKE_AT_ONCE", 64)
    Client(tmp_path).close()
    client = Client(tmp_path, is_threaded)
    for number in range(1000):
        client.drop("u", str(number))
    client.drop("u", "999", interrupt=True)
    client.drop("u", "none", interrupt=True)

    def are_answered() -> bool:
        client.turns(1)
        return bool(client.interrupted and client.refused)

    poll_until(are_answered)
    assert client.interrupted == ["u.999"]
    assert "no live job u.none" in "".join(client.refused.values())
    client.close()


def test_an_interruption_finds_its_job_in_a_full_journal_after_a_restart(tmp_path: Path) -> None:
    client = Client(tmp_path)
    for number in range(10 * WAITING_MAX):
        client.drop("u", str(number))
    while client.directory.take():
        pass  # claimed, and the service ends
    client.close()
    client = Client(tmp_path)
    client.drop("u", f"{10 * WAITING_MAX - 1}", interrupt=True)
    ended: list[str] = []
    while not client.interrupted:
        client.turns(3)
        ended += client.begin(5)
    assert client.interrupted == [f"u.{10 * WAITING_MAX - 1}"]
    assert client.refused == {}
    client.close()


@pytest.mark.parametrize("watching", list(Watching))
def test_an_interruption_that_is_as_old_as_its_job_and_has_a_name_before_it_finds_it(
    tmp_path: Path, watching: Watching
) -> None:
    client = Client(tmp_path, watching=watching)
    folder = client.directory.path / "in"
    for name, fields in (("b-job", {"application": "NOOP"}), ("a-stop", {"interrupt": True})):
        (folder / f"~{name}").write_text(json.dumps({"user": "u", "name": "x"} | fields))
        os.utime(folder / f"~{name}", (1e9, 1e9))
        (folder / f"~{name}").rename(folder / name)
    client.turns(3)
    assert client.interrupted == ["u.x"], client.refused
    client.close()


def test_a_job_that_came_after_an_interruption_of_its_name_is_not_meant_by_it(client: Client) -> None:
    client.drop("u", "again", interrupt=True)
    client.turns(1)
    time.sleep(0.05)  # file systems may not distinguish closer times
    client.drop("u", "again")
    client.turns(20)
    assert client.interrupted == []
    assert client.identities == {"u.again"}
    assert "no live job u.again" in "".join(client.refused.values())


def test_a_quiet_interruption_without_a_live_job_leaves_nothing(client: Client) -> None:
    client.drop("u", "ended", interrupt=True, quiet=True)
    client.drop("u", "told", interrupt=True)

    def is_told() -> bool:
        client.turns(1)
        return bool(client.refused)

    poll_until(is_told)
    client.turns(20)
    assert ["u.told" in reply for reply in client.refused.values()] == [True]
    assert client.files == 0


def test_an_interruption_that_is_taken_in_before_its_job_is_obeyed_after_a_restart(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.drop("u", "x")
    client.drop("u", "x", interrupt=True)
    folder = client.directory.path / "in"
    job, _ = sorted(folder.iterdir())
    os.rename(job, folder / "~aside")
    client.directory.take()  # claimed, and the service ends
    os.rename(folder / "~aside", job)
    client.directory.take()
    client.close()
    client = Client(tmp_path)
    client.turns(3)
    assert client.interrupted == ["u.x"], client.refused
    client.close()


def test_a_revision_that_waits_for_its_precursor_is_interrupted(client: Client) -> None:
    revision = {"application": "SAT", "incremental": True, "files": ["/x.cnf"]}
    for name, before in (("c", "u.b"), ("b", "u.a"), ("e", "u.d")):
        client.drop("u", name, **revision, precursor=before)
    client.drop("u", "c", interrupt=True)
    client.drop("u", "e", interrupt=True)
    client.turns(5)
    assert client.interrupted == []
    client.drop("u", "a", **revision)
    client.turns(30)
    assert client.interrupted == ["u.c"]
    assert client.identities == {"u.a", "u.b", "u.c"}
    # refused: u.e, whose precursor does not exist, and its interruption
    assert len(client.refused) == 2, client.refused


def test_a_revision_waits_for_a_precursor_that_there_is_no_room_for(client: Client) -> None:
    for number in range(2 * WAITING_MAX):
        client.drop("u", str(number))
    revision = {"application": "SAT", "incremental": True, "files": ["/x.cnf"]}
    client.drop("u", "a", **revision)
    client.turns()
    folder = client.directory.path / "in"
    client.drop("u", "b", **revision, precursor="u.a")
    (path,) = folder.glob("u.b.*")
    # as if claimed earlier than its precursor
    os.rename(path, client.directory.path / "journal" / "999.job.b")
    client.close()
    client = Client(folder.parents[1])
    ended: list[str] = []
    while len(ended) < 2 * WAITING_MAX + 2:
        client.turns(20)
        assert client.refused == {}
        ended += client.begin(3)
    assert ended[-2:] == ["u.a", "u.b"]
    client.close()


def test_a_withdrawn_file_is_not_missed(client: Client) -> None:
    for number in range(40):
        client.drop("u", str(number))
    client.turns()
    for path in (client.directory.path / "in").glob("u.3?.*.json"):
        path.unlink()
    ended: list[str] = []
    while client.jobs:
        ended += client.begin(5)
        client.turns(3)
    assert ended == [f"u.{number}" for number in range(30)]
    assert client.refused == {}


@pytest.mark.parametrize("fields", [{}, {"application": "NOSUCH"}], ids=["good", "bad"])
def test_a_name_is_not_free_before_the_reply_of_its_job_is_out(
    client: Client, monkeypatch: pytest.MonkeyPatch, fields: dict[str, str]
) -> None:
    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    reply = client.directory.path / "out" / "u.a.json"
    client.drop("u", "a")
    client.turns()
    with monkeypatch.context() as full_disk:
        full_disk.setattr(journal, "write_file", no_room)
        full_disk.setattr(SpareFile, "put", lambda *_: False)
        assert client.begin(1) == ["u.a"]
        client.drop("u", "a", **fields)
        client.turns()
        assert client.identities == set()
    assert len(client.refused) == 1
    assert client.refused_identities == [None], "the refusal would replace the reply"
    poll_until(lambda: bool(client.turns() or reply.exists()))
    client.refused.clear()
    client.drop("u", "a")
    client.turns()
    assert client.identities == {"u.a"}


def test_a_name_is_not_free_before_a_slow_disk_has_the_reply(tmp_path: Path) -> None:
    client = Client(tmp_path, is_threaded=True)
    may_go_on = threading.Event()

    def stall() -> None:
        assert may_go_on.wait(DEADLINE_S)

    client.drop("u", "a")
    poll_until(lambda: bool(client.turns() or client.jobs))
    client.drop("u", "a")
    poll_until(lambda: client.files == 0)
    client.directory.in_turn(stall)
    assert client.begin(1) == ["u.a"]
    poll_until(lambda: bool(client.turns() or client.refused or client.jobs))
    assert client.identities == set()
    may_go_on.set()
    poll_until((tmp_path / "jobs.0" / "out" / "u.a.json").exists)
    client.close()


def test_a_threaded_client_is_bounded_as_well(tmp_path: Path) -> None:
    client = Client(tmp_path, is_threaded=True)
    for number in range(300):
        client.drop("u", str(number))
    ended: list[str] = []
    while len(ended) < 300:
        client.turns(1)
        assert len(client.jobs) < WAITING_MAX + 4 + READY_MAX
        ended += client.begin(2)
    assert sorted(ended) == sorted(f"u.{number}" for number in range(300))
    client.close()


def test_more_files_are_taken_in_each_turn_where_very_many_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An important job at the end must not wait for as many turns as usual."""
    monkeypatch.setattr(intake, "WAITING_MAX", 10_000)
    monkeypatch.setattr(intake, "_FILES_PER_MORE", 2)
    client = Client(tmp_path)
    for number in range(300):
        client.drop("u", f"n{number}")
    turns = 0
    while len(client.jobs) < 300:
        client.turns(1)
        turns += 1
        assert turns < 10
    client.close()


CHANGES: list[dict[str, Any]] = [
    {"interrupt": True},
    {"application": "OTHER"},
    {"name": "b"},
    {"user": "v"},
    {"group": "g"},
    {"priority": 9},
    {"incremental": True},
]


@pytest.mark.parametrize("change", [{}, *CHANGES])
def test_a_job_whose_file_was_changed_by_its_owner_ends(
    client: Client, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    monkeypatch.setattr(intake, "_PARSED_BYTES_MAX", 0)
    client.drop("u", "a", application="SAT", literals=[1, 0])
    client.turns(1)
    (live,) = client.jobs.values()
    (path,) = (client.directory.path / "journal").iterdir()
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert client.intake.has_file(live, lambda live, now: None, client.now) is (not change)
    told = [str(call.args[1]) for call in client.endings.lose.call_args_list]
    assert ["changed" in text for text in told] == ([True] if change else [])


@pytest.mark.parametrize("change", [{"interrupt": True}, {"configuration": {"proof": "/etc/x"}}])
def test_a_kept_revision_that_was_changed_by_its_owner_stops_no_start(
    client: Client, change: dict[str, Any]
) -> None:
    client.drop("u", "a", application="SAT", incremental=True, literals=[1, 0])
    client.turns(1)
    (live,) = client.jobs.values()
    client.directory.reply(live.id, live.identity, Reply(b"{}"), chain=live.id)
    folder = client.directory.path
    client.close()
    (path,) = (folder / "journal").glob("*.revision.*")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    again = Client(folder.parent, results=ResultFiles(folder / "results", folder, {"SAT": ("proof",)}))
    again.intake.restore_chains(0.0)
    again.close()
    assert again.log.write.call_count == 1


class SlowParser:
    """Parses large files in order, each when the test asks for it."""

    def __init__(self, applications: dict[str, InputUse]) -> None:
        self._applications = applications
        self._bell = os.eventfd(0)
        self._asked: list[tuple[int, str]] = []
        self._parsed: list[Parsed] = []

    @property
    def under_way(self) -> int:
        return len(self._asked) + len(self._parsed)

    def fileno(self) -> int:
        return self._bell

    def ask(self, internal_id: int, path: str) -> None:
        self._asked.append((internal_id, path))

    def parse(self) -> None:
        internal_id, path = self._asked.pop(0)
        try:
            request: Any = parse_job(contents(path), self._applications)
        except JobFileError as error:
            request = error
        self._parsed.append(Parsed(internal_id, request, 0))

    def take(self) -> list[Parsed]:
        parsed, self._parsed = self._parsed, []
        return parsed

    def close(self) -> None:
        os.close(self._bell)


@pytest.fixture
def parser(monkeypatch: pytest.MonkeyPatch) -> list[SlowParser]:
    """The parsers of large files, one for each client that the test makes."""
    made: list[SlowParser] = []

    def parser(applications: dict[str, InputUse], size_max_bytes: int) -> SlowParser:
        made.append(SlowParser(applications))
        return made[-1]

    monkeypatch.setattr(intake, "LargeFiles", parser)
    return made


LARGE = [1, -2, 0] * (LARGE_BYTES // 8)


def test_of_large_files_only_the_one_being_parsed_is_blamed_for_a_crash(
    tmp_path: Path, parser: list[SlowParser]
) -> None:
    client = Client(tmp_path)
    for name in "abc":
        client.drop("u", name, application="SAT", literals=LARGE)
    blamed = []
    for number in range(4):
        client.turns(3)
        (tmp_path / str(number)).mkdir()
        shutil.copy(client.directory.path / ".running", tmp_path / str(number))
        blamed += [set(RunningJobs(tmp_path / str(number), Crash.OF_ITSELF, print).blamed)]
        if number < 3:
            assert len(client.jobs) == number
            parser[0].parse()
    assert blamed == [{1}, {2}, {3}, set()]
    assert client.identities == {"u.a", "u.b", "u.c"}
    client.close()


def test_a_job_after_one_that_may_not_run_code_begins(client: Client) -> None:
    folder = client.directory.path / "in"
    (folder / "~x").write_text(json.dumps({"user": "u", "name": "a", "application": "CODE"}))
    (folder / "~x").rename(folder / http_file_name("a"))
    client.drop("u", "b", application="NOOP", dependencies=["u.a"])
    client.turns(3)
    assert "--allow-code" in "".join(client.refused.values())
    assert client.begin(1) == ["u.b"]


def test_a_job_whose_file_cannot_be_read_again_for_want_of_descriptors_begins_later(
    tmp_path: Path, parser: list[SlowParser], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "_PARSED_BYTES_MAX", 0)
    client = Client(tmp_path)
    client.drop("u", "x")
    client.turns(3)
    (live,) = client.jobs.values()
    begun: list[int] = []
    with monkeypatch.context() as shortage:
        shortage.setattr(os, "open", MagicMock(side_effect=OSError(errno.EMFILE, "too many open files")))
        assert not client.intake.has_file(live, lambda job, now: begun.append(job.id), client.now)
    client.endings.lose.assert_not_called()
    parser[0].parse()
    client.turns(1)
    assert begun == [live.id]
    assert live.file is not None
    client.close()
