"""Notices are lines; those of a service have the time in front."""

from __future__ import annotations

import re

import pytest

from mallob_py.runtime import notices


def test_a_notice_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "_has_time_stamps", False)  # whatever ran here before
    notices.tell("two\nlines")
    assert capsys.readouterr().err == "mallob-py: two lines\n"


def test_a_services_notice_has_the_time_in_front(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "_has_time_stamps", False)  # and so again afterwards
    notices.with_time_stamps()
    notices.tell("it ends")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ mallob-py: it ends\n", capsys.readouterr().err)
