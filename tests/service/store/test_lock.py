"""The lock of a client's folder excludes other services, and foreign entries in its place stay unchanged."""

import errno
import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest
from foreign_files import Kind, found, put
from other_user import as_nobody, folder_for_all, needs_root

from mallob_py.service import ServiceError
from mallob_py.service.store import lock
from mallob_py.service.store.lock import DirectoryLock, holder_of, is_locked


def _lock(folder: Path) -> DirectoryLock:
    return DirectoryLock(folder, pytest.fail)


def test_what_lies_in_its_place_is_left_alone(tmp_path: Path) -> None:
    for kind in Kind:
        folder = tmp_path / kind.value
        put(folder / ".lock", kind, tmp_path / "elsewhere")
        before = found(tmp_path)
        assert holder_of(folder) is None
        with pytest.raises(OSError, match=r"a link, or no file|\.lock is not ours"):
            _lock(folder)
        assert found(tmp_path) == before


@pytest.mark.parametrize("wanting", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_want_of_descriptors_does_not_say_that_no_service_is_there(
    wanting: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(wanting, os.strerror(wanting))

    held = _lock(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(lock.own_folder, "open_file", fail)
        with pytest.raises(OSError, match=os.strerror(wanting)):
            is_locked(tmp_path)
    assert is_locked(tmp_path)
    held.close()


@pytest.mark.parametrize("text", ["precious\n", "1\n", "1 2 3\n", "1 a\n\n", " 1 a\n", "1" * 400])
def test_a_file_that_does_not_look_like_a_lock_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text(text)
    with pytest.raises(OSError, match="not ours"):
        _lock(tmp_path)
    assert (tmp_path / ".lock").read_text() == text


@pytest.mark.parametrize("text", ["", "12", "123 a.b-c\n", "123 a\0\0", "\0\0\0"])
def test_what_a_former_service_has_left_is_one(text: str, tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text(text)
    held = _lock(tmp_path)
    assert (tmp_path / ".lock").read_text().split()[0] == str(os.getpid())
    held.close()


def test_nobody_else_may_open_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        held = _lock(tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / ".lock").stat().st_mode) == 0o600
    held.close()


def test_who_has_that_of_an_earlier_release_open_does_not_get_it(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch(0o644)
    (tmp_path / ".lock").chmod(0o644)
    with open(tmp_path / ".lock") as waiting:
        held = _lock(tmp_path)
        assert stat.S_IMODE((tmp_path / ".lock").stat().st_mode) == 0o600
        fcntl.flock(waiting, fcntl.LOCK_EX | fcntl.LOCK_NB)  # this file is the lock of no service
        assert not held.is_lost()
        assert holder_of(tmp_path) == f"process {os.getpid()} on {os.uname().nodename}"
        with pytest.raises(ServiceError, match="is used by a running service"):
            _lock(tmp_path)
        held.close()
        _lock(tmp_path).close()
    assert os.listdir(tmp_path) == [".lock"]


def test_one_who_opened_the_old_file_takes_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".lock").touch(0o644)
    really = fcntl.flock
    faster: list[DirectoryLock] = []

    def flock(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(lock.fcntl, "flock", really)
        faster.append(_lock(tmp_path))  # the slower service has opened the file and not locked it yet
        really(descriptor, operation)

    monkeypatch.setattr(lock.fcntl, "flock", flock)
    with pytest.raises(ServiceError, match="is used by a running service"):
        _lock(tmp_path)
    faster[0].close()


@needs_root
def test_other_users_cannot_hold_it_and_see_whether_it_is_held() -> None:
    with folder_for_all() as folder:
        (folder / ".lock").touch(0o644)
        held = _lock(folder)

        def attack() -> str:
            with suppress(PermissionError), open(folder / ".lock") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return "got it"
            return "could not open it"

        assert as_nobody(attack) == "could not open it"
        assert as_nobody(lambda: holder_of(folder)) == f"process {os.getpid()} of another user"
        held.close()
        assert as_nobody(lambda: holder_of(folder)) is None


@needs_root
def test_where_the_kernel_does_not_know_all_holders_a_lock_of_another_user_may_be_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lock, "is_remote", lambda path: True)
    with folder_for_all() as folder:
        _lock(folder).close()
        assert as_nobody(lambda: holder_of(folder)) == "another user's process, perhaps"
        (folder / ".lock").unlink()
        assert as_nobody(lambda: holder_of(folder)) is None
