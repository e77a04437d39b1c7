"""Foreign entries in the service's folders stay there, and delay no program."""

import os
import struct
from pathlib import Path
from typing import cast

import pytest
from foreign_files import Kind, found, put, put_all

from mallob_py.cli import CommandError
from mallob_py.cli.malleable_job import order_folder
from mallob_py.runtime.world.mpi import Crash
from mallob_py.service import ServiceError
from mallob_py.service.jobs.crashes import RunningJobs
from mallob_py.service.store.checkpoints import Checkpoints
from mallob_py.service.store.directory import JobDirectory
from mallob_py.service.store.flush_policy import Buffered, Durable, leave_mark
from mallob_py.service.store.journal import FinishedLog, write_file
from mallob_py.service.store.orders import FOLDER, OrderFolder, Resize, give, ordered_ranks
from mallob_py.service.telemetry.status import ServiceStatus, write_status

_ID = "0123456789abcdef" * 2
#: names in the folder of orders that the service itself uses
_OWN = [
    f"{_ID}.json",
    f"~{_ID}.json",
    f"{_ID}.answer",
    f"~{_ID}.answer",
    "mallob-py.ranks",
    "~mallob-py.ranks",
]
_ALMOST = [
    f"{_ID}x.json",
    f"{_ID[1:]}.json",
    f"~~{_ID}.json",
    f"{_ID}.json~",
    f"{_ID.upper()}.json",
    "my.json",
    "ranks",
    "~ranks",
]


def _open_for_orders(place: Path) -> None:
    OrderFolder(place, is_new_service=True).close()


def _name_for_orders(place: Path) -> None:
    with order_folder(str(place)):
        pass
    (place / FOLDER / ".lock").unlink()


@pytest.mark.parametrize("begin", [_open_for_orders, _name_for_orders])
def test_orders_of_a_former_service_go_and_all_else_stays(begin: object, tmp_path: Path) -> None:
    assert callable(begin)
    put_all(tmp_path / FOLDER, tmp_path / "elsewhere")
    for name in _ALMOST:
        put(tmp_path / FOLDER / name, Kind.FILE, tmp_path)
    before = found(tmp_path)
    for name in _OWN:
        put(tmp_path / FOLDER / name, Kind.FILE, tmp_path)
    give(tmp_path, Resize(by=1))
    begin(tmp_path)
    assert found(tmp_path) == before


def test_the_number_of_ranks_is_noted_in_no_file_of_the_users(tmp_path: Path) -> None:
    put(tmp_path / FOLDER / "ranks", Kind.FILE, tmp_path)
    before = found(tmp_path)
    folder = OrderFolder(tmp_path, is_new_service=True)
    folder.note_ranks(7)
    assert ordered_ranks(tmp_path) == 7
    folder.close()
    assert before.items() <= found(tmp_path).items()


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.FILE])
def test_what_is_no_file_stays_under_names_of_orders_as_well(kind: Kind, tmp_path: Path) -> None:
    for name in _OWN:
        put(tmp_path / FOLDER / name, kind, tmp_path / "elsewhere")
    before = found(tmp_path)
    _open_for_orders(tmp_path)
    assert found(tmp_path) == before


@pytest.mark.parametrize("begin", [_open_for_orders, _name_for_orders])
def test_a_link_to_a_folder_takes_no_orders(begin: object, tmp_path: Path) -> None:
    assert callable(begin)
    elsewhere = tmp_path / "elsewhere"
    put(tmp_path / FOLDER, Kind.LINK_TO_FOLDER, elsewhere)
    put(elsewhere / f"{_ID}.json", Kind.FILE, elsewhere)
    before = found(tmp_path, elsewhere)
    with pytest.raises((ServiceError, CommandError), match="a link, or no folder"):
        begin(tmp_path)
    assert found(tmp_path, elsewhere) == before


def test_orders_are_removed_by_nobody_who_does_not_hold_the_folder(tmp_path: Path) -> None:
    with order_folder(str(tmp_path)):
        given = give(tmp_path, Resize(by=1))
        with pytest.raises(CommandError, match="is in use"), order_folder(str(tmp_path)):
            pass
        assert os.path.exists(given)


# --- checkpoints ----------------------------------------------------------------------------


def _checkpoints(folder: Path, complaints: list[str], *live: int) -> Checkpoints:
    checkpoints = Checkpoints(folder, Buffered(), complaints.append, lambda: 0.0)
    checkpoints.recover(live)
    return checkpoints


@pytest.mark.parametrize("kind", list(Kind))
def test_of_checkpoints_only_those_of_jobs_that_are_over_go(kind: Kind, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    put_all(folder, tmp_path / "elsewhere")
    for name in ("٣", "1.bak", "~", "~~1", "1" * 20):
        put(folder / name, kind, tmp_path / "elsewhere")
    if kind is not Kind.FILE:
        for name in ("1", "2", "~1", "~2"):
            put(folder / name, kind, tmp_path / "elsewhere")
    before = found(tmp_path)
    for name in ("3", "~3"):
        put(folder / name, Kind.FILE, tmp_path)
    complaints: list[str] = []
    checkpoints = _checkpoints(tmp_path, complaints, 1)
    checkpoints.save(4, b"state")
    assert checkpoints.load(4) == b"state"
    checkpoints.remove(4)
    assert complaints == []
    if kind is not Kind.FILE:
        checkpoints.save(1, b"state")
        assert checkpoints.load(1) is None
        assert "a link, or no file" in complaints[0]
    assert found(tmp_path) == before


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.FOLDER])
@pytest.mark.parametrize("name", ["", "in", "out", "journal", "refused"])
def test_no_job_is_taken_out_of_a_folder_that_is_only_linked(name: str, kind: Kind, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    put(tmp_path / "api" / "jobs.0" / name, kind, elsewhere)
    before = found(tmp_path / "api" / "jobs.0" / name, elsewhere) if elsewhere.exists() else {}
    with pytest.raises(ServiceError, match=r"a link, or no folder|File exists"):
        JobDirectory(tmp_path / "api", tmp_dir=tmp_path)
    after = found(tmp_path / "api" / "jobs.0" / name, elsewhere) if elsewhere.exists() else {}
    assert after == before


def test_checkpoints_of_another_folder_are_left_alone(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    put(tmp_path / "checkpoints", Kind.LINK_TO_FOLDER, elsewhere)
    before = found(tmp_path)
    complaints: list[str] = []
    checkpoints = _checkpoints(tmp_path, complaints, 5)
    checkpoints.save(1, b"state")
    checkpoints.remove(1)
    assert found(tmp_path) == before
    assert ["a link, or no folder" in complaint for complaint in complaints] == [True, True]


# --- files that are written -----------------------------------------------------------------

_NO_FILES = [kind for kind in Kind if kind is not Kind.FILE]


@pytest.mark.parametrize("kind", list(Kind))
def test_of_the_journal_only_what_was_being_written_goes(kind: Kind, tmp_path: Path) -> None:
    journal = tmp_path / "jobs.0" / "journal"
    put_all(journal, tmp_path / "elsewhere")
    for name in ("~mine", "~", "~~1", "~1.bak", "7.bak"):
        put(journal / name, kind, tmp_path / "elsewhere")
    if kind is not Kind.FILE:
        put(journal / "~2", kind, tmp_path / "elsewhere")
    before = found(journal, tmp_path / "elsewhere")
    put(journal / "~1", Kind.FILE, tmp_path)
    JobDirectory(tmp_path, tmp_dir=tmp_path).close()
    after = found(tmp_path)
    assert {path: after.get(path) for path in before} == before
    assert not (journal / "~1").exists()


@pytest.mark.parametrize("kind", _NO_FILES)
@pytest.mark.parametrize("name", ["~last_id", ".last_id", ".running"])
def test_what_is_no_file_under_names_of_the_service_is_not_written_to(
    name: str, kind: Kind, tmp_path: Path
) -> None:
    put(tmp_path / "jobs.0" / name, kind, tmp_path / "elsewhere")
    before = found(tmp_path)
    if name == ".last_id":
        before.pop(tmp_path / "jobs.0" / name)  # the service replaces this file by a rename
    complaints: list[str] = []
    directory = JobDirectory(tmp_path, tmp_dir=tmp_path, log=complaints.append)
    RunningJobs(directory.path, Crash.KILLED, complaints.append)
    put(tmp_path / "jobs.0" / "in" / "job.json", Kind.FILE, tmp_path)
    directory.close()
    after = found(tmp_path)
    assert {path: after.get(path) for path in before} == before


@pytest.mark.parametrize("kind", _NO_FILES)
@pytest.mark.parametrize("name", [".finished", ".lock"])
def test_where_the_service_needs_a_file_something_else_is_an_error(
    name: str, kind: Kind, tmp_path: Path
) -> None:
    put(tmp_path / "jobs.0" / name, kind, tmp_path / "elsewhere")
    before = found(tmp_path)
    with pytest.raises(ServiceError, match="a link, or no file"):
        JobDirectory(tmp_path, tmp_dir=tmp_path)
    after = found(tmp_path)
    assert {path: after.get(path) for path in before} == before


@pytest.mark.parametrize("kind", _NO_FILES)
def test_files_are_written_through_no_link(kind: Kind, tmp_path: Path) -> None:
    put(tmp_path / "~1", kind, tmp_path / "elsewhere")
    put(tmp_path / "~status.json", kind, tmp_path / "elsewhere")
    put(tmp_path / FOLDER / "~mallob-py.ranks", kind, tmp_path / "elsewhere")
    folder = OrderFolder(tmp_path, is_new_service=True)
    before = found(tmp_path)
    with pytest.raises(OSError, match="a link, or no file"):
        write_file(tmp_path / "~1", b"text")
    with pytest.raises(OSError, match="a link, or no file"):
        write_status(tmp_path, cast(ServiceStatus, Resize()))
    with pytest.raises(OSError, match="a link, or no file"):
        folder.note_ranks(2)
    folder.close()
    assert found(tmp_path) == before


def test_the_mark_of_a_durable_service_is_not_written_through_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    (tmp_path / ".durable").symlink_to(victim)
    with pytest.raises(OSError, match="link"):
        leave_mark(tmp_path, Durable())
    assert not victim.exists()
    leave_mark(tmp_path, Buffered())
    leave_mark(tmp_path, Durable())
    assert (tmp_path / ".durable").is_file()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_another_user_says_of_jobs_at_work_and_of_ends_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / ".finished").write_text("u.a\tresult\n")
    (tmp_path / ".running").write_bytes(struct.pack("<qii", 7, 9, 99))
    for name in (".finished", ".running"):
        os.chown(tmp_path / name, 12345, 12345)
    assert FinishedLog(tmp_path / ".finished").load() == {}
    running = RunningJobs(tmp_path, Crash.OF_ITSELF, print)
    assert running.blamed == {}
    running.begin(8, 0.0)
    running.close()
    assert (tmp_path / ".running").stat().st_uid == 0
