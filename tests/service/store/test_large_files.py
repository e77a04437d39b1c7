"""Large job files: parsed in a process of their own, with the same results as small ones."""

import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from waiting import poll_until

from mallob_py.service import JobFileError
from mallob_py.service.jobs.job_file import JOB_FILE_BYTES_MAX, InputUse, Interruption, JobFile, parse_job
from mallob_py.service.store import directory as directory_module
from mallob_py.service.store.directory import JobDirectory
from mallob_py.service.store.large_files import LARGE_BYTES, LargeFiles, Parsed

APPLICATIONS = {"SAT": InputUse.REQUIRED}


@pytest.fixture
def files() -> Iterator[LargeFiles]:
    opened = LargeFiles(APPLICATIONS, JOB_FILE_BYTES_MAX)
    yield opened
    opened.close()


def parsed(files: LargeFiles, count: int) -> list[Parsed]:
    found: list[Parsed] = []

    def is_there() -> bool:
        found.extend(files.take())
        return len(found) >= count

    poll_until(is_there)
    return found


def written(folder: Path, name: str, **fields: Any) -> str:
    path = folder / name
    path.write_text(json.dumps({"user": "u", "name": name} | fields))
    return str(path)


def test_a_file_says_the_same_as_if_it_were_parsed_here(files: LargeFiles, tmp_path: Path) -> None:
    path = written(
        tmp_path, "large", literals=list(range(-20_000, 20_000)), configuration={"seed": [1, None]}
    )
    files.ask(7, path)
    (found,) = parsed(files, 1)
    assert found.internal_id == 7
    assert isinstance(found.request, JobFile)
    assert found.request == parse_job(Path(path).read_bytes(), APPLICATIONS)


def test_files_come_in_the_order_asked_for_and_what_is_refused_is_told(
    files: LargeFiles, tmp_path: Path
) -> None:
    files.ask(1, written(tmp_path, "a", literals=[1, "two"]))
    files.ask(2, written(tmp_path, "b", interrupt=True))
    files.ask(3, str(tmp_path / "nowhere"))
    found = parsed(files, 3)
    assert [one.internal_id for one in found] == [1, 2, 3]
    refused, interruption, gone = (one.request for one in found)
    assert isinstance(refused, JobFileError)
    assert (refused.field, refused.identity) == ("literals", "u.a")
    assert interruption == Interruption("u", "b")
    assert isinstance(gone, JobFileError)
    assert "No such file" in gone.message


def test_a_parser_that_dies_again_and_again_is_told(
    files: LargeFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mallob_py.service.store.large_files.python", lambda: ["/bin/false"])
    files.ask(1, written(tmp_path, "a", literals=[1]))
    (found,) = parsed(files, 1)
    assert isinstance(found.request, JobFileError)
    assert "its parser ended with status 1" in found.request.message


def test_a_file_that_memory_does_not_suffice_for_holds_up_no_other(
    files: LargeFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as shortage:
        shortage.setattr(subprocess.Popen, "communicate", MagicMock(side_effect=MemoryError))
        files.ask(1, written(tmp_path, "a", literals=[1]))
        (found,) = parsed(files, 1)
    assert isinstance(found.request, JobFileError)
    assert "MemoryError" in found.request.message
    assert files.process is not None
    assert files.process.returncode is not None
    files.ask(2, written(tmp_path, "b", interrupt=True))
    assert [one.request for one in parsed(files, 1)] == [Interruption("u", "b")]


def test_a_file_that_no_thread_can_be_started_for_is_refused_and_a_later_one_is_not(
    files: LargeFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as shortage:
        shortage.setattr(threading.Thread, "start", MagicMock(side_effect=RuntimeError("can't start")))
        files.ask(1, written(tmp_path, "a", literals=[1]))
    (refused,) = files.take()
    assert isinstance(refused.request, JobFileError)
    assert files.under_way == 0
    files.ask(2, written(tmp_path, "b", interrupt=True))
    assert [one.request for one in parsed(files, 1)] == [Interruption("u", "b")]


def test_who_closes_waits_for_no_parser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mallob_py.service.store.large_files.python", lambda: ["sleep", "600"])
    monkeypatch.setattr("mallob_py.service.store.large_files.__name__", "600")
    files = LargeFiles(APPLICATIONS, JOB_FILE_BYTES_MAX)
    files.ask(1, "600")
    poll_until(lambda: files.process is not None)
    files.close()
    assert files.process is not None
    assert files.process.returncode is not None


def test_a_large_file_is_claimed_without_being_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = JobDirectory(tmp_path / "api", tmp_dir=tmp_path)
    try:
        hidden = written(directory.path / "in", "~large", group=" " * LARGE_BYTES)
        Path(hidden).rename(directory.path / "in" / "large.json")

        def refuse(path: str, size_max: int = -1) -> bytes:
            raise AssertionError("it is read")

        monkeypatch.setattr(directory_module.journal, "contents", refuse)
        (incoming,) = directory.take()
        assert incoming.data is None
        assert Path(incoming.path).stat().st_size > LARGE_BYTES
    finally:
        directory.close()


def test_a_file_that_has_grown_without_end_is_refused(files: LargeFiles, tmp_path: Path) -> None:
    (tmp_path / "endless").symlink_to("/dev/zero")
    files.ask(1, str(tmp_path / "endless"))
    (found,) = parsed(files, 1)
    assert isinstance(found.request, JobFileError)
    assert "has grown" in found.request.message
