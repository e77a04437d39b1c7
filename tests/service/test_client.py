"""Submission of jobs by other programs."""

import threading
from pathlib import Path

import pytest
from waiting import DEADLINE_S

from mallob_py.service import JobFileError, ServiceError, client
from mallob_py.service.jobs.reply import Reply
from mallob_py.service.store.directory import JobDirectory

JOB = {"user": "u", "name": "a"}


def test_a_submitted_job_is_taken_and_its_reply_returned(tmp_path: Path, directory: JobDirectory) -> None:
    submission = client.submit(tmp_path / "api", JOB)
    (incoming,) = directory.take()
    directory.reply(incoming.internal_id, "u.a", Reply(b'{"answer":1}'))
    assert client.wait(submission, timeout_s=DEADLINE_S) == {"answer": 1}


def test_waiting_ends_when_the_reply_appears(tmp_path: Path, directory: JobDirectory) -> None:
    submission = client.submit(tmp_path / "api", JOB)
    found: list[dict[str, object]] = []
    waiter = threading.Thread(target=lambda: found.append(client.wait(submission, timeout_s=DEADLINE_S)))
    waiter.start()
    (incoming,) = directory.take()
    directory.reply(incoming.internal_id, "u.a", Reply(b'{"answer":1}'))
    waiter.join(DEADLINE_S)
    assert found == [{"answer": 1}]


def test_an_older_reply_of_that_name_is_not_mistaken_for_ours(
    tmp_path: Path, directory: JobDirectory
) -> None:
    (directory.path / "out" / "u.a.json").write_text('{"answer":"old"}')
    submission = client.submit(tmp_path / "api", JOB)
    with pytest.raises(TimeoutError, match=r"u\.a\.json"):
        client.wait(submission, timeout_s=0)
    (incoming,) = directory.take()
    directory.reply(incoming.internal_id, "u.a", Reply(b'{"answer":"new"}'))
    assert client.wait(submission, timeout_s=DEADLINE_S) == {"answer": "new"}


def test_a_refusal_finds_its_submitter(tmp_path: Path, directory: JobDirectory) -> None:
    submission = client.interrupt(tmp_path / "api", "u", "nobody")
    (incoming,) = directory.take()
    directory.refuse(incoming, JobFileError("interrupt", "no such job"))
    assert client.wait(submission, timeout_s=DEADLINE_S)["error"]["field"] == "interrupt"


def test_submitting_where_no_service_ever_ran_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="mallob-py serve"):
        client.submit(tmp_path / "api", JOB)


def test_whether_a_service_runs_can_be_told(tmp_path: Path) -> None:
    assert not client.service_is_running(tmp_path / "api")
    directory = JobDirectory(tmp_path / "api", tmp_dir=tmp_path)
    assert client.service_is_running(tmp_path / "api")
    directory.close()
    assert not client.service_is_running(tmp_path / "api")
