"""The secret that lets people in: a file that only its owner can read, made at first start.

It travels in the header `Authorization: Bearer TOKEN` only. A browser never adds that by itself, so
no page of somebody else can act in our user's name, and no cookie is needed.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path

from mallob_py.service.errors import ServiceError

_TOKEN = re.compile(rb"[A-Za-z0-9_.~+/=-]{20,200}")


@dataclass(frozen=True, slots=True)
class Token:
    """`is_new`: nobody knows it yet."""

    path: Path
    secret: bytes
    is_new: bool

    def admits(self, authorization: str | None) -> bool:
        """Whether this header holds the token; takes as long for a wrong one as for the right one."""
        scheme, _, given = (authorization or "").partition(" ")
        is_equal = hmac.compare_digest(given.strip().encode("utf-8", "replace"), self.secret)
        return scheme.lower() == "bearer" and is_equal


def load_token(path: Path) -> Token:
    """The token of this file, or of a new one. Raises ServiceError."""
    try:
        return Token(path, _create(path), is_new=True)
    except FileExistsError:
        pass
    except OSError as error:
        raise ServiceError(f"{path}: cannot be written: {error.strerror}") from None
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            secret = file.read(1000).strip()
    except OSError as error:
        raise ServiceError(f"{path}: cannot be read: {error.strerror}") from None
    if stat.S_IMODE(mode) & 0o077:
        raise ServiceError(f"{path}: others can read the token; remove it (a new one is made) or: chmod 600")
    if not _TOKEN.fullmatch(secret):
        raise ServiceError(
            f"{path}: holds no token of at least 20 letters and digits; remove it for a new one"
        )
    return Token(path, secret, is_new=False)


def _create(path: Path) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    secret = secrets.token_urlsafe(32).encode()
    # Complete from the first moment on, and never readable by others.
    temporary = path.with_name(f"~{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(secret + b"\n")
        os.link(temporary, path)
    finally:
        os.unlink(temporary)
    return secret
