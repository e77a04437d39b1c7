"""Notices are lines; notices of a service begin with the time."""

import errno
import re

import pytest

from mallob_py.runtime import notices
from mallob_py.runtime.notices import say, tell, tell_error


def test_a_notice_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "_has_time_stamps", False)  # whatever earlier tests have set
    notices.tell("two\nlines")
    assert capsys.readouterr().err == "mallob-py: two lines\n"


def test_a_services_notice_has_the_time_in_front(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "_has_time_stamps", False)  # restored after the test
    notices.with_time_stamps()
    notices.tell("it ends")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ mallob-py: it ends\n", capsys.readouterr().err)


def test_letters_that_turn_a_line_around_are_told_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    for word in (tell, say):
        word("a\u202eb \x1b[2J\udce9 é")
        assert capsys.readouterr().err.endswith("a\\u202eb \\x1b[2J\\udce9 é\n")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "memory has run out"),
        (RuntimeError("can't start new thread"), "no further thread can be started"),
        (BlockingIOError(errno.EAGAIN, "busy"), "no further process can be started"),
        (OSError(errno.ENOMEM, "none"), "memory has run out"),
        (OSError(errno.EMFILE, "many"), "too many files are open"),
    ],
)
def test_a_limit_of_the_machine_is_one_line(
    error: Exception, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tell_error(error)
    (line,) = capsys.readouterr().err.splitlines()
    assert f"a limit of this machine is reached: {said}" in line


def test_an_error_of_ours_keeps_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    for error in (RuntimeError("x"), OSError(errno.EAGAIN, "busy", "file")):
        tell_error(error)
        assert type(error).__name__ in capsys.readouterr().err
