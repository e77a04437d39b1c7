"""The web server's own folder."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from mallob_py.service.store.flush_policy import Buffered
from mallob_py.web.store import Ended, Record, Store, now


@pytest.mark.parametrize("umask", [0, 0o022])
def test_what_users_hand_in_is_for_the_server_and_the_service_only(umask: int, tmp_path: Path) -> None:
    previous = os.umask(umask)
    try:
        (tmp_path / "web").mkdir(mode=0o755)  # as an earlier version made it
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
