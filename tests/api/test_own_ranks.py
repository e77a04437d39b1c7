"""The part of an executor that starts ranks of its own, tested without ranks."""

from pathlib import Path

import pytest

from mallob_py.api.calls.ranks import _Prints
from mallob_py.runtime.workers.output import OUTPUT_FOLDER


def test_a_letter_that_is_printed_in_two_parts_is_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / OUTPUT_FOLDER).mkdir()
    prints = _Prints(tmp_path)
    with (tmp_path / OUTPUT_FOLDER / "1.log").open("wb", buffering=0) as log:
        for part in (b"gr\xc3", b"\xbcn\n"):
            log.write(part)
            prints.pass_on()
    assert capsys.readouterr().out == "grün\n"
