"""Bytes of an input file, decompressed, in blocks, so that large content need not be in memory twice.

Files may be plain, gzip, bzip2, xz or lzma, recognised by their first bytes, so names do not matter and
named pipes work. A cut or damaged file is always an error, because half an input would give a wrong answer.

Guarantee: the functions give the complete content, or raise InputError, at the latest after the last block.
The message names the file and says what to do.
"""

from __future__ import annotations

import bz2
import lzma
import os
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Protocol

from mallob_py.kit.app import InputError
from mallob_py.kit.declaration import COMPRESSED_SUFFIXES as COMPRESSED_SUFFIXES


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


def _gzip() -> _Decompressor:
    return zlib.decompressobj(wbits=31)


_FORMATS: tuple[tuple[bytes, str, Callable[[], _Decompressor]], ...] = (
    (b"\x1f\x8b", "gzip", _gzip),
    (b"BZh", "bzip2", bz2.BZ2Decompressor),
    (b"\xfd7zXZ\x00", "xz", lzma.LZMADecompressor),
    (b"\x5d\x00\x00", "lzma", lzma.LZMADecompressor),
)
_FOREIGN = ((b"\x28\xb5\x2f\xfd", "zstd"), (b"PK\x03\x04", "zip"), (b"7z\xbc\xaf\x27\x1c", "7z"))
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BLOCK_BYTES = 1 << 21
#: bytes of a compressed file that are decompressed at a time; few, because decompression may multiply them
COMPRESSED_BLOCK_BYTES = 1 << 18


#: greatest number of decompressed bytes of a file that the present task may read; None: no bound
_max_bytes: int | None = None


@contextmanager
def at_most(max_bytes: int | None, paths: Iterable[str]) -> Iterator[None]:
    """Refuse files larger than `max_bytes`. In the context, reading more bytes of a file is an error, too.

    Raises:
        InputError: a file is too large.
    """
    global _max_bytes
    previous, _max_bytes = _max_bytes, max_bytes
    try:
        for path in paths if max_bytes is not None else ():
            with suppress(OSError, ValueError):  # the reader of the file reports the error
                status = os.stat(path)
                if stat.S_ISREG(status.st_mode):
                    _check_size(path, status.st_size)
        yield
    finally:
        _max_bytes = previous


def _check_size(path: str, size_bytes: int, words: str = "the file has") -> None:
    if _max_bytes is not None and size_bytes > _max_bytes:
        raise InputError(
            f"{path}: {words} {size_bytes:,} bytes, more than the {_max_bytes:,} of --input-max; "
            "give a smaller input, or start with a larger --input-max"
        )


def read_plain(path: str) -> bytes:
    """Return the file's bytes as they are. Waits on a named pipe until its writer has closed it.

    Raises:
        InputError: the file cannot be read.
    """
    return b"".join(plain_blocks(path))


def read_decompressed(path: str) -> bytes:
    """Return the file's content, decompressed if its first bytes show a known format.

    Raises:
        InputError: the file cannot be read, or is damaged.
    """
    return b"".join(decompressed_blocks(path))


def read_text(path: str) -> bytes:
    """Return a text's content, decompressed, without a byte order mark. An empty file is an empty text."""
    with suppress(OSError, ValueError):  # `text_blocks` below reports the error
        status = os.stat(path)
        if stat.S_ISREG(status.st_mode) and not status.st_size:
            return b""
    return b"".join(text_blocks(path))


def text_blocks(path: str) -> Iterator[bytes]:
    """Yield a text's content, decompressed, without a byte order mark."""
    blocks = decompressed_blocks(path)
    first = next(blocks, b"")
    while len(first) < len(_BYTE_ORDER_MARK) and (block := next(blocks, b"")):
        first += block
    if first.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{path}: the text is in UTF-16; save it as UTF-8")
    return chain([first.removeprefix(_BYTE_ORDER_MARK)], blocks)


def plain_blocks(path: str) -> Iterator[bytes]:
    """Yield the file's bytes as they are, in blocks that are never empty. Raises InputError."""
    size_bytes = 0
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if (stat.S_ISCHR(mode) or stat.S_ISBLK(mode)) and not file.isatty():
                raise InputError(f"{path}: is a device; give a file or a named pipe")
            while block := file.read(_BLOCK_BYTES):
                size_bytes += len(block)
                _check_size(path, size_bytes, "the file has at least")
                yield block
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a directory; name the file inside it") from None
    except PermissionError:
        raise InputError(f"{path}: not readable by this user (permission denied)") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path}: cannot be read: {reason}") from None
    if not size_bytes:
        raise InputError(f"{path}: the file is empty")


def decompressed_blocks(path: str) -> Iterator[bytes]:
    """Yield the file's content in blocks, decompressed if in a known format. Raises InputError."""
    blocks = plain_blocks(path)
    first = next(blocks)
    for magic, name in _FOREIGN:
        if first.startswith(magic):
            raise InputError(f"{path}: {name} files are not supported; use plain, gzip, bzip2, xz or lzma")
    for magic, name, make in _FORMATS:
        if first.startswith(magic):
            return _decompressed(path, chain([first], blocks), name, make)
    return chain([first], blocks)


def _decompressed(
    path: str, blocks: Iterator[bytes], name: str, make: Callable[[], _Decompressor]
) -> Iterator[bytes]:
    """Yield the content of all concatenated streams of a file; zero bytes may separate the streams."""
    stream = make()
    size_bytes = 0
    for rest in _smaller(blocks):
        while rest:
            if stream.eof:
                if not (rest := rest.lstrip(b"\0")):
                    break
                stream = make()
            try:
                text = stream.decompress(rest)
            except (zlib.error, OSError, lzma.LZMAError, EOFError) as error:
                raise InputError(f"{path}: damaged {name} file ({error}); copy it again") from None
            if text:
                size_bytes += len(text)
                _check_size(path, size_bytes, "decompressed, the file has at least")
                yield text
            rest = stream.unused_data
    if not stream.eof:
        raise InputError(f"{path}: the {name} file is truncated; copy it again")
    if not size_bytes:
        raise InputError(f"{path}: the {name} file holds nothing")


def _smaller(blocks: Iterator[bytes]) -> Iterator[bytes]:
    for block in blocks:
        for begin in range(0, len(block), COMPRESSED_BLOCK_BYTES):
            yield block[begin : begin + COMPRESSED_BLOCK_BYTES]
