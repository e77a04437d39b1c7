"""A file over HTTP that ends a chain of revisions gets no reply, and is not lost for that."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mallob_py.service.store.directory import JobDirectory
from mallob_py.service.store.entries import refusal_name
from mallob_py.web import ApiError
from mallob_py.web.jobs import Jobs
from mallob_py.web.store import Record, Store

END: dict[str, Any] = {"user": "u", "name": "end", "incremental": True, "precursor": "u.plan", "done": True}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def jobs(tmp_path: Path, store: Store) -> Jobs:
    JobDirectory(tmp_path, tmp_dir=tmp_path).close()
    return Jobs(tmp_path, 0, store, None)


def handed_in(jobs: Jobs, store: Store, fields: dict[str, Any]) -> Record:
    upload = store.begin()
    try:
        return jobs.submit(fields, upload, 0, is_name_unique=False)
    finally:
        upload.discard()


def take_in(folder: Path) -> None:
    """Remove the only job file, as a service does that has ended the chain."""
    (path,) = (folder / "jobs.0/in").iterdir()
    path.unlink()


def test_the_end_of_a_chain_has_ended_without_a_reply(tmp_path: Path, jobs: Jobs, store: Store) -> None:
    end = handed_in(jobs, store, END)
    jobs.sweep()
    assert jobs.get(end.id).ended is None
    take_in(tmp_path)
    jobs.sweep()
    ended = jobs.get(end.id).ended
    assert ended is not None
    assert (ended.outcome, ended.error) == ("chain-ended", None)
    assert jobs.explain(end.id) == "u.end has ended the chain of its precursor; such a file gets no reply."
    with pytest.raises(ApiError, match="gets no reply") as refused:
        jobs.reply(end.id)
    assert refused.value.status == 409


def test_a_refused_end_is_refused(tmp_path: Path, jobs: Jobs, store: Store) -> None:
    end = handed_in(jobs, store, END)
    take_in(tmp_path)
    refusal = {"error": {"field": "precursor", "message": "unknown"}, "result": {"outcome": "refused"}}
    (tmp_path / "jobs.0/out" / refusal_name(end.file_name)).write_text(json.dumps(refusal))
    jobs.sweep()
    ended = jobs.get(end.id).ended
    assert ended is not None
    assert ended.outcome == "refused"
    assert jobs.reply(end.id)["error"]["message"] == "unknown"


def test_the_end_of_a_chain_gets_no_reply_of_a_revision_of_its_name(
    tmp_path: Path, jobs: Jobs, store: Store
) -> None:
    end = handed_in(jobs, store, END | {"name": "plan"})
    take_in(tmp_path)
    reply = END | {"name": "plan", "result": {"resultcode": 10, "outcome": "result"}}
    (tmp_path / "jobs.0/out/u.plan.json").write_text(json.dumps(reply))
    jobs.sweep()
    ended = jobs.get(end.id).ended
    assert ended is not None
    assert ended.outcome == "chain-ended"


def test_a_job_without_a_reply_is_lost(tmp_path: Path, jobs: Jobs, store: Store) -> None:
    job = handed_in(jobs, store, {"user": "u", "name": "n", "literals": [1, 0]})
    take_in(tmp_path)
    jobs.sweep()
    ended = jobs.get(job.id).ended
    assert ended is not None
    assert ended.outcome == "lost"
