"""A result too large for a message: how it gets from a worker to the file that the user named.

The client's host makes a folder beside that file, with a name that nobody can guess. Workers write
in there, and those who do not find it refuse to work: they are on another host and do not share the
file system, so the result would appear where the user does not look. What is complete gets the file's
name; what is not never has it. Where the file system can, unfinished files have no name at all and
vanish with their process. The client removes the folder when the job has ended.

Guarantees: `deliver` replaces the file at once and as a whole; an older file is gone from the moment
of `prepare_result_file`, so that it is never taken for the new one. A ResultFileError is one line.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

#: keys of a job's configuration that may name such a file
RESULT_FILE_KEYS = ("proof", "core", "solutions-file")


class ResultFileError(Exception):
    """A result file cannot be written. One line that names the file."""


def result_files_of(configuration: Mapping[str, Any]) -> dict[str, str]:
    """The files that a job's configuration names, by their keys."""
    named = {key: configuration.get(key) for key in RESULT_FILE_KEYS}
    return {key: path for key, path in named.items() if isinstance(path, str)}


def prepare_result_file(path: str) -> str:
    """At the client: see that the file can be written. Returns the folder for unfinished ones."""
    try:
        if not _may_be_replaced(path):
            raise ResultFileError(f"{path}: exists and is no regular file")
        discard(path)
        folder = f"{_prefix(path)}{os.urandom(8).hex()}"
        os.mkdir(folder)
    except OSError as error:
        raise ResultFileError(f"{path}: cannot be written: {error.strerror}") from None
    return folder


def discard_unfinished(path: str) -> None:
    """At the client, after the job: remove all but the complete file, and let nobody deliver any more."""
    parent, prefix = os.path.dirname(path), _prefix(path)
    with suppress(OSError):
        for entry in os.scandir(parent):
            if entry.path.startswith(prefix):
                shutil.rmtree(entry.path, ignore_errors=True)


def discard(path: str) -> None:
    """At the client: remove the complete file too. Raises OSError."""
    discard_unfinished(path)
    if _may_be_replaced(path):
        with suppress(FileNotFoundError):
            os.unlink(path)


def _may_be_replaced(path: str) -> bool:
    """Not so a device such as /dev/null."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return True


def _prefix(path: str) -> str:
    parent, name = os.path.split(path)
    return os.path.join(parent, f".{name}.unfinished-")


class UnfinishedFile:
    """In a worker: a result while it is written to `fd`."""

    def __init__(self, path: str, folder: str) -> None:
        """`path` is absolute, `folder` what `prepare_result_file` said."""
        self._path = path
        self._folder = folder
        self._name = os.path.join(folder, os.urandom(8).hex())
        self._has_name = False
        try:
            self.fd = self._open()
        except FileNotFoundError:
            raise ResultFileError(
                f"{path}: its folder is not there on host {os.uname().nodename}; name a file on a file system"
                " that all hosts share"
            ) from None
        except OSError as error:
            raise self.failure(error) from None

    def _open(self) -> int:
        try:
            return os.open(self._folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            raise
        except OSError:  # a file system without nameless files, such as NFS
            self._has_name = True
            return os.open(self._name, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o666)

    def failure(self, error: OSError) -> ResultFileError:
        """What to raise if writing to `fd` fails."""
        return ResultFileError(
            f"{self._path}: cannot be written on host {os.uname().nodename}: {error.strerror}"
        )

    def write(self, data: bytes) -> None:
        """Append, down to the disk. Raises ResultFileError."""
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self.fd, left) :]
            os.fsync(self.fd)
        except OSError as error:
            raise self.failure(error) from None

    def deliver(self) -> None:
        """Give the file, which must be complete and on the disk, its name."""
        try:
            if not self._has_name:
                # With a folder's descriptor, or else Python would link the symbolic link itself.
                os.link(f"/proc/self/fd/{self.fd}", self._name, src_dir_fd=self.fd)
            os.replace(self._name, self._path)
        except OSError as error:
            raise self.failure(error) from None

    def close(self) -> None:
        """The end, delivered or not."""
        os.close(self.fd)
        if self._has_name:
            with suppress(OSError):
                os.unlink(self._name)
