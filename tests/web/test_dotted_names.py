"""A user's token reaches no job of another user whose name has a dot: USER.NAME can be read in two ways."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mallob_py.web import ApiError
from mallob_py.web.jobs import Jobs
from mallob_py.web.receiving import _fill_in
from mallob_py.web.store import Store

KEY = "anna.smith.job1"
ANNAS: dict[str, Any] = {"user": "anna", "name": "smith.job1"}
SMITHS: dict[str, Any] = {"user": "anna.smith", "name": "job1"}


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    for folder in ("in", "out", "journal"):
        (tmp_path / "jobs.0" / folder).mkdir(parents=True)
    return Jobs(tmp_path, 0, Store(tmp_path), None)


def publish(api_dir: Path, job: dict[str, Any]) -> None:
    reply = job | {"internal_id": 3, "result": {"resultcode": 10, "solution": [1]}}
    (api_dir / "jobs.0/out" / f"{KEY}.json").write_text(json.dumps(reply))


def hand_in(api_dir: Path, job: dict[str, Any], file_name: str = "a.json") -> None:
    (api_dir / "jobs.0/in" / file_name).write_text(json.dumps(job | {"literals": [42, 0]}))


def test_an_older_reply_does_not_tell_whose_a_waiting_job_is(tmp_path: Path, jobs: Jobs) -> None:
    publish(tmp_path, ANNAS)
    hand_in(tmp_path, SMITHS)
    with pytest.raises(ApiError) as refused:
        jobs.check_owner(KEY, 0, "anna")
    assert refused.value.status == 404


def test_a_waiting_job_is_its_users(tmp_path: Path, jobs: Jobs) -> None:
    hand_in(tmp_path, ANNAS)
    publish(tmp_path, SMITHS)
    jobs.check_owner(KEY, 0, "anna")
    with pytest.raises(ApiError) as refused:
        jobs.reply(KEY, 0, 3, "anna")
    assert refused.value.status == 404
    assert jobs.reply(KEY, 0, 3)["user"] == "anna.smith"  # for the operator


def test_nothing_is_told_of_another_users_reply(tmp_path: Path, jobs: Jobs) -> None:
    publish(tmp_path, SMITHS)
    ways: list[Callable[[str | None], object]] = [
        lambda user: jobs.get(KEY, 0, user),
        lambda user: jobs.explain(KEY, 0, user),
        lambda user: jobs.job_file(KEY, 0, user),
        lambda user: jobs.timeline(KEY, 0, user),
        lambda user: jobs.output(KEY, 0, None, user),
    ]
    for told_to in ways:
        told_to(None)  # the operator
        told_to("anna.smith")
        with pytest.raises(ApiError) as refused:
            told_to("anna")
        assert refused.value.status == 404


def test_a_key_of_two_waiting_jobs_is_no_users(tmp_path: Path, jobs: Jobs) -> None:
    hand_in(tmp_path, SMITHS)
    hand_in(tmp_path, ANNAS, "b.json")
    for user in ("anna", "anna.smith"):
        with pytest.raises(ApiError):
            jobs.check_owner(KEY, 0, user)


def test_a_users_token_is_for_names_without_a_dot() -> None:
    with pytest.raises(ApiError, match="no dot") as refused:
        _fill_in({"name": "smith.job1"}, "anna")
    assert refused.value.status == 403
    assert not _fill_in({"name": "smith.job1"}, None)
    assert not _fill_in({"name": "job1"}, "anna")
