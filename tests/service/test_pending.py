"""The jobs without a reply, found from a client's folder at every step of a job."""

import json
from pathlib import Path

import pytest

from mallob_py.service import JobFileError, client
from mallob_py.service.client import PendingJob, PendingJobs
from mallob_py.service.client import _entries as entries_of
from mallob_py.service.jobs.reply import Reply
from mallob_py.service.store.directory import JobDirectory
from mallob_py.service.store.journal import Journal, contents_of_file

JOB = {"user": "u", "name": "a"}


def test_a_job_is_pending_from_its_submission_to_its_reply(tmp_path: Path, directory: JobDirectory) -> None:
    jobs = PendingJobs(directory.path)
    assert jobs.look().identities == set()
    submission = client.submit(tmp_path / "api", JOB)
    assert jobs.look().identities == {"u.a"}
    assert jobs.look().file_names == {submission.file_name}
    assert json.loads(Path(jobs.look().paths["u.a"]).read_bytes()) == JOB
    (incoming,) = directory.take()
    assert jobs.look().identities == {"u.a"}
    assert jobs.look().file_names == {submission.file_name}
    assert json.loads(Path(jobs.look().paths["u.a"]).read_bytes()) == JOB
    directory.reply(incoming.internal_id, "u.a", Reply(b"{}"))
    assert jobs.look().paths == {}
    assert jobs.look().identities == set()
    assert jobs.look().file_names == set()


def test_a_job_whose_reply_is_decided_but_not_published_is_pending(
    tmp_path: Path, directory: JobDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.submit(tmp_path / "api", JOB)
    (incoming,) = directory.take()
    monkeypatch.setattr("mallob_py.service.store.journal.Journal.publish", lambda self, *_: self.dismiss(1))
    directory.reply(incoming.internal_id, "u.a", Reply(b"{}"))
    found = PendingJobs(directory.path).look()
    assert found.identities == {"u.a"}
    assert found.file_names == set()


def test_a_job_whose_refusal_is_decided_but_not_published_is_pending(
    tmp_path: Path, directory: JobDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    submission = client.submit(tmp_path / "api", JOB)
    (incoming,) = directory.take()
    monkeypatch.setattr("mallob_py.service.store.journal.Journal.publish", lambda self, *_: self.dismiss(1))
    directory.refuse(incoming, JobFileError("name", "is live"))
    assert PendingJobs(directory.path).look().file_names == {submission.file_name}


def test_a_revision_whose_answer_is_decided_but_not_published_is_pending_and_a_kept_one_is_not(
    tmp_path: Path, directory: JobDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.submit(tmp_path / "api", JOB | {"incremental": True})
    (incoming,) = directory.take()
    jobs = PendingJobs(directory.path)
    with monkeypatch.context() as patch:
        patch.setattr("mallob_py.service.store.journal.Journal.publish", _cannot_publish)
        directory.reply(incoming.internal_id, "u.a", Reply(b"{}"), chain=incoming.internal_id)
        assert sorted(path.name.split(".")[1] for path in (directory.path / "journal").iterdir()) == [
            "answer",
            "revision",
        ]
        assert jobs.look().identities == {"u.a"}
    directory.close()  # closing publishes the reply
    assert (directory.path / "out/u.a.json").exists()
    assert jobs.look().identities == set()


def _cannot_publish(journal: Journal, source: str, target: str) -> None:
    raise OSError(28, "No space left on device")


def test_a_reply_to_a_job_named_error_is_that_jobs_and_hides_no_other(
    tmp_path: Path, directory: JobDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.submit(tmp_path / "api", {"user": "u", "name": "error"})
    (incoming,) = directory.take()
    monkeypatch.setattr("mallob_py.service.store.journal.Journal.publish", _cannot_publish)
    directory.reply(incoming.internal_id, "u.error", Reply(b"{}"))
    found = PendingJobs(directory.path).look()
    assert (found.identities, found.file_names) == ({"u.error"}, set())


def test_a_reply_that_a_listing_missed_is_found_by_the_next(
    tmp_path: Path, directory: JobDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.submit(tmp_path / "api", JOB)
    (incoming,) = directory.take()
    listed: list[Path] = []

    def decided_meanwhile(folder: Path) -> list[tuple[str, tuple[int, int]]]:
        listed.append(folder)
        if listed.count(directory.path / "journal") == 1 and folder.name == "journal":
            monkeypatch.setattr(
                "mallob_py.service.store.journal.Journal.publish", lambda self, *_: self.dismiss(1)
            )
            directory.reply(incoming.internal_id, "u.a", Reply(b"{}"))
            return []
        return entries_of(folder)

    monkeypatch.setattr(client, "_entries", decided_meanwhile)
    assert PendingJobs(directory.path).look().identities == {"u.a"}


def test_a_job_that_moves_on_between_two_looks_into_folders_is_still_seen(
    tmp_path: Path, directory: JobDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.submit(tmp_path / "api", JOB)
    moved = list[str]()

    def claimed_just_before(path: str, size_max: int) -> bytes:
        if not moved:
            moved.append(path)
            directory.take()
        return contents_of_file(path, size_max)

    monkeypatch.setattr(client, "contents_of_file", claimed_just_before)
    assert PendingJobs(directory.path).look().identities == {"u.a"}
    assert Path(moved[0]).parent.name == "in"


@pytest.mark.parametrize("moment", ["is_unfinished", "contents_of_file"])
def test_looking_ends_however_many_jobs_end_meanwhile(
    moment: str, tmp_path: Path, directory: JobDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs end while the folder is listed, or while its files are read."""
    for number in range(60):
        client.submit(tmp_path / "api", JOB | {"name": f"j{number}"})
    live = {}
    while taken := directory.take():
        for incoming in taken:
            assert isinstance(incoming.data, bytes)
            live[incoming.internal_id] = f"u.{json.loads(incoming.data)['name']}"
    whole = getattr(client, moment)

    def ends_just_before(path: str, *others: int) -> object:
        number = Path(path).name.partition(".")[0]
        if number.isdecimal() and len(live) > 20 and int(number) in live:
            directory.reply(int(number), live.pop(int(number)), Reply(b"{}"))
        return whole(path, *others)

    monkeypatch.setattr(client, moment, ends_just_before)
    assert PendingJobs(directory.path).look().identities == set(live.values())
    assert len(live) == 20


def test_a_file_name_that_is_used_again_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    jobs = PendingJobs(tmp_path)
    for name in ("a", "b"):
        (tmp_path / "in" / "~new").write_text(json.dumps({"user": "u", "name": name}))
        (tmp_path / "in" / "~new").rename(tmp_path / "in" / "job.json")
        assert jobs.look().identities == {f"u.{name}"}


@pytest.mark.parametrize("content", ["", "[]", "{", '{"user": "u", "name": "a", "interrupt": true}'])
def test_what_is_no_job_has_no_identity(tmp_path: Path, content: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "job.json").write_text(content)
    assert PendingJobs(tmp_path).look().identities == set()


def test_a_job_is_pending_in_its_group_and_the_end_of_a_chain_is_in_none(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    jobs = {
        "a": {"group": "g"},
        "b": {},
        "c": {"group": 7},
        "d": {"group": "../x"},
        "e": {"group": "g", "done": True},
    }
    for name, fields in jobs.items():
        (tmp_path / "in" / f"{name}.json").write_text(json.dumps({"user": "u", "name": name} | fields))
    found = PendingJobs(tmp_path).look()
    assert found.grouped == {PendingJob("u", "a", "g")}
    assert found.identities == {f"u.{name}" for name in jobs}


def test_a_folder_that_no_service_has_used_has_no_jobs(tmp_path: Path) -> None:
    assert PendingJobs(tmp_path / "none").look().identities == set()
