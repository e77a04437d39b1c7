"""How large a file is when decompressed, found out without ever holding it.

A few kilobytes can hide gigabytes. So an upload is decompressed piece by piece, and thrown away
again, before the service gets to see it. Damaged data counts up to the damage: saying what is
wrong with it is up to whoever reads it.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_PIECE_BYTES = 1 << 18
_LZMA_MEMORY_BYTES_MAX = 512 << 20


class TooMuchMemory(Exception):
    """Decompressing takes more memory than any honest compressor asks for."""


def decompressed_size(path: Path, limit_bytes: int) -> int:
    """Counts no further than to what exceeds the limit. Raises TooMuchMemory."""
    size = 0
    try:
        with open(path, "rb") as file:
            for piece in _pieces(file):
                size += len(piece)
                if size > limit_bytes:
                    break
    except (OSError, EOFError, zlib.error):
        pass  # damaged
    except lzma.LZMAError as error:
        if "limit" in str(error).lower():
            raise TooMuchMemory from None
    return size


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    start = file.read(6)
    file.seek(0)
    if start.startswith((b"\xfd7zXZ\x00", b"\x5d\x00\x00")):
        yield from _lzma_pieces(file)
        return
    plain: BinaryIO | gzip.GzipFile | bz2.BZ2File = file
    if start.startswith(b"\x1f\x8b"):
        plain = gzip.GzipFile(fileobj=file)
    elif start.startswith(b"BZh"):
        plain = bz2.BZ2File(file)
    while piece := plain.read(_PIECE_BYTES):
        yield piece


def _lzma_pieces(file: BinaryIO) -> Iterator[bytes]:
    """By hand, as the standard library's file class has no bound of memory."""
    rest = file.read(_PIECE_BYTES)
    while rest:
        stream = lzma.LZMADecompressor(memlimit=_LZMA_MEMORY_BYTES_MAX)
        while not stream.eof:
            data = (rest or file.read(_PIECE_BYTES)) if stream.needs_input else b""
            if stream.needs_input and not data:
                return  # cut short
            rest = b""
            yield stream.decompress(data, _PIECE_BYTES)
        rest = (stream.unused_data or file.read(_PIECE_BYTES)).lstrip(b"\0")
