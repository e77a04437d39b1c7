"""`kit.input_file.at_most` refuses inputs of more bytes than `--input-max`, however they come."""

import bz2
import gzip
import lzma
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from mallob_py.kit import InputError
from mallob_py.kit.input_file import at_most, read_decompressed, read_plain, read_text

_TEXT = b"p cnf 1 1\n1 0\n" * 1000
_WAYS = {"plain": bytes, "gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress}


@pytest.mark.parametrize("read", [read_text, read_decompressed])
@pytest.mark.parametrize("pack", _WAYS.values(), ids=_WAYS)
def test_content_is_refused_from_the_first_byte_beyond_the_limit(
    tmp_path: Path, read: Callable[[str], bytes], pack: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "large.cnf"
    path.write_bytes(pack(_TEXT))
    with at_most(len(_TEXT), [str(path)]):
        assert read(str(path)) == _TEXT
    with (
        pytest.raises(
            InputError, match=r"large\.cnf: .*14,000 bytes, more than the 13,999 of --input-max; give"
        ),
        at_most(len(_TEXT) - 1, [str(path)]),
    ):
        read(str(path))
    assert read(str(path)) == _TEXT  # the limit holds only within the `with` block


def test_a_large_file_is_refused_before_the_application_reads(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"1")
    (tmp_path / "large").write_bytes(b"12")
    with (
        pytest.raises(InputError, match="large: the file has 2 bytes, more than the 1 of"),
        at_most(1, [str(tmp_path / "small"), str(tmp_path / "large"), "/nowhere"]),
    ):
        pytest.fail("read")


def test_what_comes_through_a_pipe_is_counted(tmp_path: Path) -> None:
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)

    def write() -> None:
        with open(pipe, "wb") as file:
            file.write(b"123")

    writer = threading.Thread(target=write)
    writer.start()
    with pytest.raises(InputError, match="pipe: the file has at least 3 bytes"), at_most(2, [pipe]):
        read_plain(pipe)
    writer.join()
