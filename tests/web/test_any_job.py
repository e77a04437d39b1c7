"""Any data sent as a job is handed in, or refused with an error; nothing is left behind."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mallob_py.service.store.directory import JobDirectory
from mallob_py.web import ApiError
from mallob_py.web.jobs import Jobs
from mallob_py.web.store import Record, Store

#: texts, also with unpaired surrogates
TEXTS = st.one_of(
    st.text(st.characters(codec=None), max_size=8),
    st.sampled_from(
        ["", "u", "u.n", "SAT", "SLEEP", "5m", "0", "-1s", "~", "..", "/", "\0", "\ud800", "x" * 300]
    ),
)
NUMBERS = st.one_of(st.integers(), st.floats(), st.sampled_from([2**31, -(2**31), 2**64, 10**400]))
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=8,
)
FIELDS = (
    *("user", "name", "interrupt", "incremental", "precursor", "done", "application", "files", "literals"),
    *("assumptions", "priority", "wallclock-limit", "cpu-limit", "max-demand", "arrival", "dependencies"),
    *("group-id", "description-id", "content-mode", "checksum", "configuration", "piped-response"),
)
JOBS = st.dictionaries(st.one_of(st.sampled_from(FIELDS), TEXTS), VALUES, max_size=6)


@pytest.fixture(scope="module")
def api_dir() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())
    JobDirectory(folder, tmp_dir=folder).close()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def store(api_dir: Path) -> Iterator[Store]:
    opened = Store(api_dir)
    yield opened
    opened.close()


def handed_in(jobs: Jobs, store: Store, fields: dict[str, Any]) -> Record | ApiError:
    upload = store.begin()
    try:
        return jobs.submit(fields, upload, 0, is_name_unique=False)
    except ApiError as error:
        return error
    finally:
        upload.discard()


@given(job=JOBS)
def test_a_job_is_handed_in_or_refused_with_a_word(api_dir: Path, store: Store, job: dict[str, Any]) -> None:
    inbox, submissions = api_dir / "jobs.0" / "in", api_dir / "web" / "submissions"
    fields = {"user": "u", "name": "n", "literals": [1, 0]} | job
    result = handed_in(Jobs(api_dir, 0, store, None), store, fields)
    if isinstance(result, ApiError):
        assert 400 <= result.status < 500
        assert result.message
        json.dumps([result.field, result.message]).encode()
        assert not any(inbox.iterdir())
    else:
        assert store.get(result.id) == result
        (path,) = inbox.iterdir()
        assert isinstance(json.loads(path.read_bytes()), dict)
        path.unlink()
        store.forget(result.id)
    assert not any(submissions.iterdir())


def test_a_path_is_checked_in_each_field_that_names_a_path(
    api_dir: Path, store: Store, tmp_path: Path
) -> None:
    (tmp_path / "in.cnf").write_bytes(b"p cnf 1 1\n1 0\n")
    inbox = api_dir / "jobs.0" / "in"
    job = {"user": "u", "name": "n"}
    for allowed in (None, tmp_path):
        refused = handed_in(Jobs(api_dir, 0, store, allowed), store, job | {"file": "/etc/passwd"})
        assert isinstance(refused, ApiError)
        assert (refused.status, refused.field) == (403, "file")
        assert not any(inbox.iterdir())
    jobs = Jobs(api_dir, 0, store, tmp_path)
    taken = handed_in(jobs, store, job | {"file": "in.cnf"})
    assert isinstance(taken, Record)
    (path,) = inbox.iterdir()
    assert json.loads(path.read_bytes())["file"] == str(tmp_path / "in.cnf")
    assert jobs.job_file(taken.id)["file"] == "in.cnf"
    path.unlink()
    store.forget(taken.id)
