"""If the service is killed at any single step, each job file still gets exactly one reply.

A child process plays a service and kills itself at the n-th moment around its changes to the
file system (before it, after it, and in the middle of a write); then a second service
starts on the same folder. This is done for every n until a child survives.
"""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import poll_until

from mallob_py.protocol.effects import Outcome
from mallob_py.service import JobFileError
from mallob_py.service.jobs.chains import ChainBook
from mallob_py.service.jobs.job_file import InputUse, JobFile
from mallob_py.service.jobs.reply import Ending, JobStatistics, result_reply
from mallob_py.service.store import journal, own_folder
from mallob_py.service.store.directory import JobDirectory
from mallob_py.service.store.flush_policy import FlushPolicy

APPLICATIONS = {"NOOP": InputUse.NONE, "SAT": InputUse.REVISIONS}
SURVIVED = 0


class Doom:
    """A stand-in for the module `os` that kills the process at a given moment."""

    def __init__(self, moment: int) -> None:
        self._left = moment

    def watch(self, module: Any) -> None:
        deadly = {name: self._deadly(getattr(os, name)) for name in ("open", "rename", "replace", "unlink")}
        deadly["write"] = self._deadly_write
        module.os = SimpleNamespace(**{**vars(os), **deadly})

    def _tick(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def _deadly(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self._tick()
            result = function(*arguments, **options)
            self._tick()
            return result

        return call

    def _deadly_write(self, descriptor: int, data: Any) -> int:
        self._tick()
        half = os.write(descriptor, data[: len(data) // 2])
        self._tick()
        rest = os.write(descriptor, data[len(data) // 2 :])
        self._tick()
        return half + rest


def run_service(tmp_path: Path, life: int, flush_policy: FlushPolicy | None = None) -> list[str]:
    """Run a service that answers all job files; return the names of the files that it ran."""
    directory = JobDirectory(tmp_path / "api", tmp_dir=tmp_path, flush_policy=flush_policy)
    ran: list[str] = []
    while batch := directory.take(2):
        for incoming in batch:
            ran.append(incoming.file_name)
            try:
                job = incoming.parse(APPLICATIONS)
            except JobFileError as error:
                directory.refuse(incoming, error)
                continue
            assert isinstance(job, JobFile)
            beside = directory.solution_path(incoming.internal_id, job.identity)
            ending = Ending(Outcome.RESULT, 10, json.dumps({"life": life}).encode(), bytes(8))
            # the solution of b is stored in a file beside its reply
            inline_max = 0 if job.name == "b" else 10
            reply = result_reply(
                job, incoming.internal_id, ending, JobStatistics(), beside, inline_max=inline_max
            )
            directory.reply(incoming.internal_id, job.identity, reply)
    directory.close()
    return ran


def run_doomed_service(tmp_path: Path, moment: int) -> int:
    return run_doomed(lambda: run_service(tmp_path, life=1), moment)


def run_doomed(service: Callable[[], object], moment: int) -> int:
    child = os.fork()
    if child == 0:
        doom = Doom(moment)
        doom.watch(journal)
        doom.watch(own_folder)
        try:
            service()
        finally:
            os._exit(SURVIVED)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def submit_files(tmp_path: Path) -> None:
    JobDirectory(tmp_path / "api", tmp_dir=tmp_path).close()
    inbox = tmp_path / "api" / "jobs.0" / "in"
    for name in ("a", "b"):
        (inbox / f"{name}.json").write_text(json.dumps({"user": "u", "name": name, "application": "NOOP"}))
    (inbox / "bad.json").write_text(json.dumps({"user": "u", "name": "bad", "priority": 0}))
    (inbox / "ugly.json").write_text(json.dumps([]))


EXPECTED = {"u.a.json", "u.b.json", "u.bad.json", "ugly.json.error.json"}
ENDED = {"u.a", "u.b", "u.bad"}


def out_files(tmp_path: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (tmp_path / "api/jobs.0/out").iterdir()}


def test_kill_at_every_step_leaves_each_file_exactly_one_reply(tmp_path: Path) -> None:
    moment = 0
    status = -signal.SIGKILL
    while status != SURVIVED:
        moment += 1
        assert moment < 1000, "the service never came to its end"
        place = tmp_path / str(moment)
        place.mkdir()
        submit_files(place)
        status = run_doomed_service(place, moment)
        assert status in (SURVIVED, -signal.SIGKILL)
        published = out_files(place)
        ran_again = run_service(place, life=2)
        final = out_files(place)
        story = f"killed at moment {moment}"
        assert {name for name in final if name.endswith(".json")} == EXPECTED, story
        for name, content in published.items():
            if name.endswith(".json"):
                assert final[name] == content, f"{story}: the reply {name} was given twice"
                assert f"{name.removeprefix('u.')}" not in ran_again, f"{story}: {name} ran again"
        beside = json.loads(final["u.b.json"])["result"]["solution-file"]
        assert Path(beside).read_bytes() == bytes(8), story
        assert os.listdir(place / "api/jobs.0/in") == [], story
        assert os.listdir(place / "api/jobs.0/journal") == [], story
        survivor = JobDirectory(place / "api", tmp_dir=place)
        assert set(survivor.finished) >= ENDED, story
        survivor.close()
    assert moment > 40


def test_wherever_the_service_dies_each_job_runs_again_or_is_known_to_have_ended(tmp_path: Path) -> None:
    """Otherwise jobs that depend on an ended job would wait for ever if its reply was removed from `out/`."""
    status = -signal.SIGKILL
    for moment in range(1, 1000):
        place = tmp_path / str(moment)
        place.mkdir()
        submit_files(place)
        status = run_doomed_service(place, moment)
        directory = JobDirectory(place / "api", tmp_dir=place)
        for path in (place / "api/jobs.0/out").iterdir():
            path.unlink()
        again = {f"u.{Path(incoming.file_name).stem}" for incoming in directory.take()}
        directory.close()
        assert again | set(directory.finished) >= ENDED, f"killed at moment {moment}"
        if status == SURVIVED:
            return
    raise AssertionError("it never survived")


def test_what_was_accepted_runs_again_in_its_order_before_new_files(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        directory = JobDirectory(tmp_path / "api", tmp_dir=tmp_path)
        for name in ("z", "m", "a"):
            (directory.path / "in" / name).write_text("{}")
            poll_until(directory.take)  # at once, except where the folder is polled
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    (tmp_path / "api/jobs.0/in/new").write_text("{}")
    directory = JobDirectory(tmp_path / "api", tmp_dir=tmp_path)
    assert directory.recovered_count == 3
    taken = directory.take()
    directory.close()
    assert [incoming.file_name for incoming in taken] == ["z", "m", "a", "new"]
    assert [incoming.internal_id for incoming in taken[:3]] == [1, 2, 3]
    assert taken[3].internal_id > 3


def test_ids_of_replied_jobs_do_not_come_again_after_a_kill(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        submit_files(tmp_path)
        ran = JobDirectory(tmp_path / "api", tmp_dir=tmp_path)
        for incoming in ran.take():
            ran.refuse(incoming, JobFileError("", "done with"))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    directory = JobDirectory(tmp_path / "api", tmp_dir=tmp_path)
    (directory.path / "in" / "new").write_text("{}")
    (incoming,) = directory.take()
    directory.close()
    assert incoming.internal_id > len(EXPECTED)


@pytest.mark.parametrize("name", ["stranger", "x.job.y", "1.job", "12.other.z"])
def test_strangers_in_the_journal_do_no_harm(tmp_path: Path, name: str) -> None:
    JobDirectory(tmp_path / "api", tmp_dir=tmp_path).close()
    (tmp_path / "api/jobs.0/journal" / name).write_text("?")
    assert run_service(tmp_path, life=1) == []


def test_what_was_being_written_at_the_time_of_death_is_removed(tmp_path: Path) -> None:
    JobDirectory(tmp_path / "api", tmp_dir=tmp_path).close()
    (tmp_path / "api/jobs.0/journal/~99").write_text("half a rep")
    run_service(tmp_path, life=1)
    assert os.listdir(tmp_path / "api/jobs.0/journal") == []


# --- chains of revisions ----------------------------------------------------------------------------

CHAINED = {"u.r0.json", "u.r1.json", "u.r2.json"}


def run_chain_service(tmp_path: Path, flush_policy: FlushPolicy | None = None) -> int:
    """Run a service that answers all revisions and ends finished chains; return the number of chains left."""
    directory = JobDirectory(tmp_path / "api", tmp_dir=tmp_path, flush_policy=flush_policy)
    book = ChainBook(1e9)
    for first, incoming in directory.revisions():
        file = incoming.parse(APPLICATIONS)
        assert isinstance(file, JobFile)
        assert book.restore(incoming.internal_id, first, file, 0.0)
    while batch := directory.take(1):
        for incoming in batch:
            job, file = incoming.internal_id, incoming.parse(APPLICATIONS)
            assert isinstance(file, JobFile)
            book.check(file)
            book.admit(job, file, 0.0)
            if (chain := book.chain_to_end(job)) is not None:
                directory.end_chain(chain.first, job, file.identity)
                book.end(chain, "done")
            else:
                place = book.place_of(job)
                assert place is not None
                first, number = place[0].first, place[1].number
                reply = result_reply(
                    file, first, Ending(Outcome.RESULT), JobStatistics(), tmp_path / "none", revision=number
                )
                directory.reply(job, file.identity, reply, first)
            book.ended(job, None, 0.0)
    directory.close()
    return len(book)


def submit_chain(tmp_path: Path, *, ends: bool) -> None:
    JobDirectory(tmp_path / "api", tmp_dir=tmp_path).close()
    inbox = tmp_path / "api" / "jobs.0" / "in"
    for number in range(4 if ends else 3):
        job: dict[str, Any] = {"user": "u", "name": f"r{number}", "application": "SAT", "incremental": True}
        if number:
            job["precursor"] = f"u.r{number - 1}"
        if number == 3:
            job["done"] = True
        path = inbox / f"{number}.json"
        path.write_text(json.dumps(job))
        os.utime(path, (number, number))


@pytest.mark.parametrize("ends", [True, False])
def test_a_chain_survives_a_death_at_any_step_and_is_gone_once_it_has_ended(
    tmp_path: Path, ends: bool
) -> None:
    for moment in range(1, 1000):
        folder = tmp_path / str(moment)
        folder.mkdir()
        submit_chain(folder, ends=ends)
        code = run_doomed(lambda folder=folder: run_chain_service(folder), moment)  # type: ignore[misc]
        client_dir = folder / "api" / "jobs.0"
        ids = {}
        for path in (client_dir / "out").iterdir():
            ids[path.name] = path.stat().st_ino
        assert run_chain_service(folder) == (0 if ends else 1), moment
        replies = {path.name: json.loads(path.read_bytes()) for path in (client_dir / "out").iterdir()}
        assert set(replies) == CHAINED, moment
        (first,) = {reply["internal_id"] for reply in replies.values()}
        assert [replies[name]["internal_revision"] for name in sorted(replies)] == [0, 1, 2]
        for name, inode in ids.items():  # a restart must not replace published replies
            assert (client_dir / "out" / name).stat().st_ino == inode
        kept = sorted((path.name for path in (client_dir / "journal").iterdir()), key=lambda name: name[-6:])
        expected = [] if ends else [f"revision.{first}.{number}.json" for number in range(3)]
        assert [name.partition(".")[2] for name in kept] == expected, moment
        survivor = JobDirectory(folder / "api", tmp_dir=folder)
        assert set(survivor.finished) == {f"u.r{number}" for number in range(4 if ends else 3)}, moment
        survivor.close()
        if code == SURVIVED:
            return
    raise AssertionError("it never survived")


# --- renames that succeed and are reported as failed --------------------------------------------------


def repeat_renames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Call each function twice and return the second result, as an NFS client does if an answer was lost."""

    def twice(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            function(*arguments)
            return function(*arguments)

        return call

    repeated = {name: twice(getattr(os, name)) for name in ("rename", "replace", "unlink")}
    monkeypatch.setattr(journal, "os", SimpleNamespace(**{**vars(os), **repeated}))


def test_renames_that_are_done_and_reported_as_failed_lose_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit_files(tmp_path)
    repeat_renames(monkeypatch)
    assert len(run_service(tmp_path, life=1)) == len(EXPECTED)
    assert {name for name in out_files(tmp_path) if name.endswith(".json")} == EXPECTED
    assert os.listdir(tmp_path / "api/jobs.0/journal") == []


@pytest.mark.parametrize("ends", [True, False])
def test_renames_that_are_done_and_reported_as_failed_keep_chains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    submit_chain(tmp_path, ends=ends)
    repeat_renames(monkeypatch)
    assert run_chain_service(tmp_path) == (0 if ends else 1)
    assert set(out_files(tmp_path)) == CHAINED
    assert len(os.listdir(tmp_path / "api/jobs.0/journal")) == (0 if ends else 3)
