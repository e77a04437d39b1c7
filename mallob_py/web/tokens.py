"""Visitors: the operator, who has the token in `web/token`, or a user with a token of their own.

The file `web/user-tokens.json` maps users to SHA-256 digests of their tokens. `mallob-py token NAME` writes
the file; a running web server notices each change. A user's token permits operations on jobs of that user
alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mallob_py.service import ServiceError
from mallob_py.service.store import own_folder

_NAME = "user-tokens.json"
_BYTES_MAX = 16 << 20
#: the longest wait for the lock, which anyone with access to the folder may hold
_PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class Visitor:
    """The sender of a request. `user` is None for the operator, who sees and controls all users' jobs."""

    user: str | None = None


OPERATOR = Visitor()


def path_of(api_dir: Path) -> Path:
    return api_dir / "web" / _NAME


def read_digests(path: Path) -> dict[str, str]:
    """Return user -> digest of the token. Raises ServiceError if the file is not as `grant` writes it."""
    try:
        return msgspec.json.decode(own_folder.read_file(path, bytes_max=_BYTES_MAX), type=dict[str, str])
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ServiceError(f"{path}: cannot be read: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ServiceError(
            f"{path}: holds no tokens of users ({error}); remove it and make them anew"
        ) from None


def grant(api_dir: Path, user: str) -> str:
    """Return a new token for this user and make an older one invalid. Raises ServiceError."""
    token = secrets.token_urlsafe(32)
    with _changing(api_dir) as digests:
        digests[user] = _digest(token)
    return token


def revoke(api_dir: Path, user: str) -> bool:
    """Make the user's token invalid; return whether there was one. Raises ServiceError."""
    with _changing(api_dir) as digests:
        return digests.pop(user, None) is not None


@contextlib.contextmanager
def _changing(api_dir: Path) -> Iterator[dict[str, str]]:
    """Lock the digests to change them; write them at the end if they were changed. Raises ServiceError."""
    path = path_of(api_dir)
    try:
        own_folder.make(path.parent)
        with own_folder.opened(path.parent) as folder:
            if not own_folder.is_ours(folder):
                raise ServiceError(f"{path.parent} belongs to another user")
            _lock(folder, path.parent)
            digests = read_digests(path)
            before = dict(digests)
            yield digests
            if digests != before:
                _write(digests, folder)
    except OSError as error:
        raise ServiceError(f"{path}: cannot be written: {error.strerror}") from None


def _lock(folder: int, path: Path) -> None:
    """Lock the folder until `folder` is closed, if the file system has locks. Raises ServiceError."""
    until_s = time.monotonic() + _PATIENCE_S
    with contextlib.suppress(OSError):
        while True:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until_s:
                    raise ServiceError(f"{path} is locked by another process; try again") from None
                time.sleep(0.02)


def _write(digests: dict[str, str], folder: int) -> None:
    """Write the digests. Raises OSError."""
    temporary = f"~{_NAME}.{secrets.token_hex(8)}"
    try:
        with open(own_folder.open_to_write(temporary, 0o600, folder), "wb") as file:
            file.write(msgspec.json.encode(digests))
        own_folder.replace(temporary, _NAME, folder)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


class UserTokens:
    """The current tokens of users; may be used from any thread."""

    def __init__(self, api_dir: Path) -> None:
        self._path = path_of(api_dir)
        self._mutex = threading.Lock()
        self._signature: tuple[int, int, int] | None = None
        #: digest of a token -> its user
        self._users: Mapping[str, str] = {}

    def visitor(self, authorization: str | None) -> Visitor | None:
        """Return the user whose token this header has, if any, by comparing digests of tokens."""
        scheme, _, given = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        with self._mutex:
            self._refresh()
            user = self._users.get(_digest(given.strip()))
        return None if user is None else Visitor(user)

    def _refresh(self) -> None:
        try:
            found = os.stat(self._path)
            signature = (found.st_ino, found.st_mtime_ns, found.st_size)
        except OSError:
            signature = None
        if signature == self._signature:
            return
        try:
            self._users = {digest: user for user, digest in read_digests(self._path).items()}
        except ServiceError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in own_folder.WANTING:
                return  # the next request reads the file again
            print(f"mallob-py web: {error}", flush=True)
            self._users = {}
        self._signature = signature
