"""What the checker reads, plain or compressed, told apart by content; one kind of error if it cannot.

Shares no code with `mallob_py.kit.input_file`, through which the solvers read (see `formula_file.py`).
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast


class Unreadable(Exception):
    """A file cannot be read; one line that names it."""


@contextmanager
def open_input(path: str) -> Iterator[BinaryIO]:
    """The file's content as a stream, for a `with`. Opening or reading it raises Unreadable."""
    try:
        with open(path, "rb") as file, _decompressed(file.peek(6)[:6], file) as content:
            yield content
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise Unreadable(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def _decompressed(magic: bytes, file: BinaryIO) -> BinaryIO:
    if magic.startswith(b"\x1f\x8b"):
        return cast(BinaryIO, gzip.open(file))
    if magic.startswith(b"BZh"):
        return cast(BinaryIO, bz2.open(file))
    if magic.startswith((b"\xfd7zXZ\x00", b"\x5d\x00\x00")):
        return cast(BinaryIO, lzma.open(file))
    return file
