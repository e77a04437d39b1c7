"""Bytes of an input file, decompressed.

Files may be plain, gzip, bzip2, xz or lzma, told apart by their first bytes, so that a name
says nothing and named pipes work as well. A cut or damaged file is always an error: solving
half a formula would give a wrong answer.

Source: the compressed inputs of section 6 of the design. Guarantees: returns the complete
content or raises InputError whose text names the file and says what to do.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from mallob_py.app import InputError


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
COMPRESSED_SUFFIXES = (".gz", ".bz2", ".xz", ".lzma")


def read_plain(path: str) -> bytes:
    """The file's bytes as they are. Blocks on a named pipe until its writer has closed it."""
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a directory; name the formula file inside it") from None
    except PermissionError:
        raise InputError(f"{path}: not readable by this user (permission denied)") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path}: cannot be read: {reason}") from None
    if not content:
        raise InputError(f"{path}: the file is empty")
    return content


def read_decompressed(path: str) -> bytes:
    """The file's content, decompressed if its first bytes are those of a known format."""
    content = read_plain(path)
    for magic, name in _FOREIGN:
        if content.startswith(magic):
            raise InputError(f"{path}: {name} files are not supported; use plain, gzip, bzip2, xz or lzma")
    for magic, name, make in _FORMATS:
        if content.startswith(magic):
            text = _decompress(path, content, name, make)
            if not text:
                raise InputError(f"{path}: the {name} file holds nothing")
            return text
    return content


def _decompress(path: str, content: bytes, name: str, make: Callable[[], _Decompressor]) -> bytes:
    """All concatenated streams of one file; padding with zero bytes between them is allowed."""
    parts: list[bytes] = []
    rest = content
    while rest:
        stream = make()
        try:
            parts.append(stream.decompress(rest))
        except (zlib.error, OSError, lzma.LZMAError, EOFError) as error:
            raise InputError(f"{path}: damaged {name} file ({error}); copy it again") from None
        if not stream.eof:
            raise InputError(f"{path}: the {name} file is truncated; copy it again")
        rest = stream.unused_data.lstrip(b"\0")
    return parts[0] if len(parts) == 1 else b"".join(parts)
