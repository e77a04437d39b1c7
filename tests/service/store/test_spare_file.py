import os
from pathlib import Path

import pytest

from mallob_py.service.store.spare_file import SpareFile


def prepared(folder: Path) -> SpareFile:
    spare = SpareFile(str(folder))
    spare.prepare()
    return spare


def test_a_spare_file_is_nowhere_until_it_is_put_and_then_holds_what_it_shall(tmp_path: Path) -> None:
    spare = prepared(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert spare.put(str(tmp_path / "~1"), b"content")
    assert (tmp_path / "~1").read_bytes() == b"content"
    assert [path.name for path in tmp_path.iterdir()] == ["~1"]


def test_it_has_the_rights_of_a_new_file(tmp_path: Path) -> None:
    assert prepared(tmp_path).put(str(tmp_path / "spare"), b"")
    (tmp_path / "new").write_bytes(b"")
    assert (tmp_path / "spare").stat().st_mode == (tmp_path / "new").stat().st_mode


def test_it_is_used_once(tmp_path: Path) -> None:
    spare = prepared(tmp_path)
    assert spare.put(str(tmp_path / "1"), b"")
    assert not spare.put(str(tmp_path / "2"), b"")
    spare.prepare()
    assert spare.put(str(tmp_path / "2"), b"")


def test_nothing_that_is_there_is_written_to_or_replaced(tmp_path: Path) -> None:
    (tmp_path / "others").write_bytes(b"others")
    (tmp_path / "link").symlink_to("others")
    for name in ("others", "link"):
        assert not prepared(tmp_path).put(str(tmp_path / name), b"ours")
    assert (tmp_path / "others").read_bytes() == b"others"
    assert (tmp_path / "link").is_symlink()


def test_where_there_are_no_such_files_all_is_as_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError

    monkeypatch.setattr(os, "open", refuse)
    assert not prepared(tmp_path).put(str(tmp_path / "1"), b"")


def test_its_descriptor_is_not_kept(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    spare = prepared(tmp_path)
    spare.put(str(tmp_path / "1"), b"")
    spare.prepare()
    spare.close()
    assert len(os.listdir("/proc/self/fd")) == before
