"""The web server's own folder."""

import os
import stat
from pathlib import Path

import pytest
from foreign_files import Kind, found, put, put_all
from other_user import as_nobody, folder_for_all, needs_root

from mallob_py.service import ServiceError
from mallob_py.service.store.flush_policy import Buffered
from mallob_py.web.store import Ended, Record, Store, load_token, now


@pytest.mark.parametrize("umask", [0, 0o022])
def test_what_users_hand_in_is_for_the_server_and_the_service_only(umask: int, tmp_path: Path) -> None:
    previous = os.umask(umask)
    try:
        (tmp_path / "web").mkdir(mode=0o755)  # with the mode that an earlier version gave it
        store = Store(tmp_path)
        upload = store.begin()
        upload.path.write_text("p cnf 0 0\n")
        under_way = stat.S_IMODE(upload.path.parent.stat().st_mode)
        upload.keep(Record(upload.id, "u", "n", "SAT", 0, now(), None), Buffered())
        store.close()
    finally:
        os.umask(previous)
    kept = store.path / "submissions" / upload.id
    modes = [stat.S_IMODE(folder.stat().st_mode) for folder in (store.path, kept.parent, kept)]
    assert [under_way, *modes] == [0o700] * 4


def test_an_upload_that_an_earlier_version_has_kept_is_found_and_goes_with_its_job(tmp_path: Path) -> None:
    store = Store(tmp_path)
    upload = store.begin()
    upload.path.write_text("p cnf 0 0\n")
    record = Record(upload.id, "u", "n", "SAT", 0, now(), None)
    upload.keep(record, Buffered())
    store.add(record)
    former = store.upload_path(upload.id).rename(store.upload_path(upload.id).with_name("formula"))
    assert store.upload_path(upload.id) == former
    assert store.upload_pattern.fullmatch(str(former))
    store.end(record, Ended("result"), None)
    assert not former.exists()
    store.close()


def test_what_others_have_among_the_submissions_stays_and_uploads_that_were_cut_off_go(
    tmp_path: Path,
) -> None:
    submissions, elsewhere = tmp_path / "web" / "submissions", tmp_path / "elsewhere"
    put_all(tmp_path / "web", elsewhere)
    put_all(submissions, elsewhere)
    for number, kind in enumerate(Kind):
        put(submissions / f"{number:032x}" / "record.json", kind, elsewhere)
        put(submissions / f"~{number:032x}", kind, elsewhere)
        put(submissions / f"{number:032}.mine", kind, elsewhere)
    (tmp_path / "web").chmod(0o755)
    before = found(tmp_path)
    put(submissions / f"~{9:032x}" / "input", Kind.FILE, elsewhere)
    Store(tmp_path).close()
    (tmp_path / "web" / ".lock").unlink()
    assert found(tmp_path) == before


def test_a_folder_of_somebody_else_takes_no_uploads(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    put(tmp_path / "web" / "submissions", Kind.LINK_TO_FOLDER, elsewhere)
    before = found(elsewhere)
    with pytest.raises(ServiceError, match="a link, or no folder"):
        Store(tmp_path)
    (tmp_path / "web" / "submissions").unlink()
    put(tmp_path / "web" / "submissions" / "notes", Kind.FILE, elsewhere)
    (tmp_path / "web" / "submissions").chmod(0o755)
    with pytest.raises(ServiceError, match="'notes' in it is not ours: chmod 700"):
        Store(tmp_path)
    assert stat.S_IMODE((tmp_path / "web" / "submissions").stat().st_mode) == 0o755
    assert found(elsewhere) == before


def test_nobody_waits_at_a_pipe_for_the_token(tmp_path: Path) -> None:
    put(tmp_path / "token", Kind.FIFO, tmp_path)
    with pytest.raises(ServiceError, match="is not a regular file"):
        load_token(tmp_path / "token")


@needs_root
@pytest.mark.parametrize("part", ["web", "web/submissions"])
def test_a_folder_that_another_user_has_made_is_refused(part: str) -> None:
    with folder_for_all() as api_dir:
        (api_dir / part).parent.mkdir(mode=0o1777, exist_ok=True)
        (api_dir / part).parent.chmod(0o1777)
        as_nobody(lambda: (api_dir / part).mkdir(mode=0o777))
        with pytest.raises(ServiceError, match=f"{part} belongs to another user"):
            Store(api_dir)
        assert not list((api_dir / part).iterdir())


@needs_root
def test_a_token_that_another_user_has_laid_out_admits_nobody() -> None:
    with folder_for_all() as folder:

        def lay_out() -> None:
            (folder / "token").touch(0o600)
            (folder / "token").write_text("known-to-another-user")

        as_nobody(lay_out)
        with pytest.raises(ServiceError, match="belongs to another user"):
            load_token(folder / "token")


def test_after_a_restart_jobs_are_in_the_order_of_their_ends_and_damaged_records_are_left_out(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path)
    records = []
    for number in range(3):
        upload = store.begin()
        upload.path.write_text("p cnf 0 0\n")
        records.append(Record(upload.id, "u", f"n{number}", "SAT", 0, float(number), None))
        upload.keep(records[-1], Buffered())
        store.add(records[-1])
    damaged = store.path / "submissions" / records[1].id / "record.json"
    damaged.write_bytes(damaged.read_bytes().replace(b"n1", b"\xff"))
    store.end(records[2], Ended("result", at=10.0), None)
    store.end(records[0], Ended("result", at=20.0), None)
    store.close()
    again = Store(tmp_path)
    assert [record.name for record in again.recent(9)] == ["n0", "n2"]
    again.close()
