"""Tokens of users: made and taken back while a server runs, and never readable by others."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from mallob_py.cli import main as main_module
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
