"""Files in the temporary folder that tell clients on this host where a service takes jobs, as in Mallob.

`edu.kit.iti.mallob.apipath.<pid>`, and `mallob.apipath.<pid>` for earlier releases of Mallob's IPASIR bridge,
hold the absolute path of a client's folder while its service runs. Who else may write to the temporary
folder may have put anything there under such a name; so what is there is neither waited for nor written
through.

Guarantees: nothing of another user is read, written or removed. Files that killed services of this user
have left are removed.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

from mallob_py.service.lock import is_locked

_PREFIXES = ("edu.kit.iti.mallob.apipath.", "mallob.apipath.")
_PATH_BYTES_MAX = 4096


class Advertisement:
    """There from construction to `close`. What prevents that is told by `log`."""

    def __init__(self, client_dir: Path, temporary: Path, log: Callable[[str], None]) -> None:
        """`client_dir` is ours: we hold its lock."""
        self._paths: list[Path] = []
        content = os.fsencode(client_dir)
        for prefix in _PREFIXES:
            path = temporary / f"{prefix}{os.getpid()}"
            try:
                for older in temporary.glob(f"{prefix}*"):
                    _remove_if_stale(older, content)
                _write(path, content)
                self._paths.append(path)
            except OSError as error:
                log(f"cannot write {path}: {error.strerror}; clients must be told the api folder")

    def close(self) -> None:
        while self._paths:
            with contextlib.suppress(OSError):
                self._paths.pop().unlink()


def _write(path: Path, content: bytes) -> None:
    """By a rename, which follows no link and which nobody's pipe holds up. Raises OSError."""
    hidden = path.with_name(f".mallob-py.{os.urandom(8).hex()}")
    descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
        os.rename(hidden, path)
    except BaseException:
        os.unlink(hidden)
        raise


def _remove_if_stale(path: Path, own: bytes) -> None:
    """Remove it if it is ours, but names a folder that no service holds (or that we do)."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                return
            content = file.read(_PATH_BYTES_MAX)
        if content == own or _is_abandoned(Path(os.fsdecode(content))):
            path.unlink()


def _is_abandoned(client_dir: Path) -> bool:
    """Folders of the original have no lock, so nothing is known about them."""
    return not client_dir.exists() or ((client_dir / ".lock").exists() and not is_locked(client_dir))
