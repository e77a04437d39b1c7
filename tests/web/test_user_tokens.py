"""Tokens of users: made and taken back while a server runs, and never readable by others."""

import errno
import fcntl
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from other_user import as_nobody, folder_for_all, needs_root

from mallob_py.cli import main as main_module
from mallob_py.service.store import own_folder
from mallob_py.web import tokens
from mallob_py.web.tokens import UserTokens, Visitor


def granted(api_dir: Path, user: str, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main_module.main(["token", "--api-dir", str(api_dir), user, *options]) == 0
    return capsys.readouterr().out.strip()


def test_a_token_is_its_users_until_the_next_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = UserTokens(tmp_path)
    assert known.visitor("Bearer x") is None
    alices, bobs = granted(tmp_path, "alice", capsys), granted(tmp_path, "bob", capsys)
    assert known.visitor(f"Bearer {alices}") == Visitor("alice")
    assert known.visitor(f"bearer  {bobs} ") == Visitor("bob")
    for wrong in (None, "", alices, f"Basic {alices}", f"Bearer {alices}x", "Bearer \udcff"):
        assert known.visitor(wrong) is None
    newer = granted(tmp_path, "alice", capsys)
    assert known.visitor(f"Bearer {alices}") is None
    assert known.visitor(f"Bearer {newer}") == Visitor("alice")
    granted(tmp_path, "alice", capsys, "--remove")
    assert known.visitor(f"Bearer {newer}") is None
    assert known.visitor(f"Bearer {bobs}") == Visitor("bob")
    path = tokens.path_of(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert bobs not in path.read_text()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [(["a.b"], "has a dot"), (["a/b"], "'/'"), (["nobody", "--remove"], "nobody has no token")],
)
def test_what_cannot_be_is_one_line(
    tmp_path: Path, arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main_module.main(["token", "--api-dir", str(tmp_path), *arguments]) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1


def test_a_damaged_file_admits_no_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = granted(tmp_path, "alice", capsys)
    tokens.path_of(tmp_path).write_text("{")
    assert UserTokens(tmp_path).visitor(f"Bearer {token}") is None
    assert "holds no tokens of users" in capsys.readouterr().out
    assert main_module.main(["token", "--api-dir", str(tmp_path), "bob"]) == 2


def test_of_tokens_that_are_given_at_the_same_time_none_is_lost(tmp_path: Path) -> None:
    users = [f"user{number}" for number in range(8)]
    with ThreadPoolExecutor(len(users)) as threads:
        given = list(threads.map(lambda user: [tokens.grant(tmp_path, user) for _ in range(5)][-1], users))
    known = UserTokens(tmp_path)
    assert [known.visitor(f"Bearer {token}") for token in given] == [Visitor(user) for user in users]
    assert [path.name for path in tokens.path_of(tmp_path).parent.iterdir()] == ["user-tokens.json"]


def test_a_folder_that_another_process_has_locked_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "_PATIENCE_S", 0.1)
    granted(tmp_path, "alice", capsys)
    before = tokens.path_of(tmp_path).read_text()
    with own_folder.opened(tmp_path / "web") as folder:
        fcntl.flock(folder, fcntl.LOCK_SH)
        assert main_module.main(["token", "--api-dir", str(tmp_path), "bob"]) == 2
    assert "is locked by another process; try again" in capsys.readouterr().err
    assert tokens.path_of(tmp_path).read_text() == before


def test_nothing_is_written_through_a_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "api").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "api" / "web").symlink_to(tmp_path / "elsewhere")
    assert main_module.main(["token", "--api-dir", str(tmp_path / "api"), "alice"]) == 2
    assert "a link, or no folder" in capsys.readouterr().err
    assert not list((tmp_path / "elsewhere").iterdir())


@needs_root
def test_a_folder_of_another_user_is_not_used(capsys: pytest.CaptureFixture[str]) -> None:
    with folder_for_all() as api_dir:
        as_nobody(lambda: (api_dir / "web").mkdir(mode=0o777))
        assert main_module.main(["token", "--api-dir", str(api_dir), "alice"]) == 2
        assert "belongs to another user" in capsys.readouterr().err
        assert not list((api_dir / "web").iterdir())


def test_tokens_are_valid_all_the_same_while_no_descriptor_is_free(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = UserTokens(tmp_path)
    alices = granted(tmp_path, "alice", capsys)
    assert known.visitor(f"Bearer {alices}") == Visitor("alice")
    bobs = granted(tmp_path, "bob", capsys)

    def fail(*_: object, **__: object) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched:
        patched.setattr(own_folder, "read_file", fail)
        assert known.visitor(f"Bearer {alices}") == Visitor("alice")
    assert known.visitor(f"Bearer {bobs}") == Visitor("bob")
