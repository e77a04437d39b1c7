"""Result files: results too large for a message, from a worker to the file that the user named.

The client makes a folder with an unguessable name beside that file. Workers write in it. A worker that does
not find the folder does not share the client's file system, so the user would not find the result: the worker
refuses to work. Only a complete file gets the file's name. Where the file system permits, unfinished files
have no name and vanish with their process. The client removes the folder at the end of the job.

`solve` writes files that belong to its user: `deliver` replaces the file atomically. `prepare_result_file`
removes an older file, so that it is never taken for the new one.

Jobs of a service are confined to a `ResultsFolder`: any user may name files there, so no existing file is
replaced or removed. A delivered file keeps a second name in the job's folder of unfinished files, whose name
contains the job's: so the same job, run again after a crash, finds its own file and may replace it. Below the
folder for results no symbolic link is followed, neither in preparing nor in writing.

The message of a ResultFileError is one line.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from mallob_py.kit.app import InputError, Payload

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class ResultFileError(Exception):
    """A result file cannot be written. The message is one line that names the file."""


class ResultsFolder(msgspec.Struct, frozen=True, array_like=True):
    """The only folder below which `job` (a unique name) may write results; `path` is absolute."""

    path: str
    job: str

    def resolve(self, path: str) -> str:
        """Return the absolute path of a file that the job names. Raises ResultFileError."""
        relative = path
        if os.path.isabs(path):
            roots = (self.path, os.path.realpath(self.path))
            inside = [path.removeprefix(f"{root}/") for root in roots if path.startswith(f"{root}/")]
            if not inside:
                raise ResultFileError(
                    f"{path}: is outside of {self.path}, the folder for results (serve --results-dir);"
                    " name a file below it"
                )
            relative = inside[0]
        if "\0" in path or any(part[:1] in ("", ".") for part in relative.split("/")):
            raise ResultFileError(f"{path!r}: no part of the path may be empty, begin with '.' or hold a NUL")
        return f"{self.path}/{relative}"


#: folder to which the present task of this process is confined; None: not confined
_confinement: ResultsFolder | None = None


@contextmanager
def confined_to(folder: ResultsFolder | None) -> Iterator[None]:
    """Context manager that confines the preparing of result files to the folder, and to the folder's job."""
    global _confinement
    previous, _confinement = _confinement, folder
    try:
        yield
    finally:
        _confinement = previous


def prepare_result_file(path: str) -> str:
    """Check, at the client, that the file can be written, and make its folder of unfinished files.

    Args:
        path: an absolute path.

    Returns:
        What `UnfinishedFile` needs in order to write the file.

    Raises:
        ResultFileError: the file cannot be written; the message is one line that names the file.
    """
    folder, root = _confinement, None
    if folder is not None:
        path, root = folder.resolve(path), folder.path
    unfinished = f"{_prefix(path, folder)}{os.urandom(8).hex()}"
    try:
        with _parent_of(path, root) as parent:
            _make_room(path, parent, folder)
            _remove_unfinished(path, parent, folder)
            os.mkdir(unfinished, 0o700, dir_fd=parent)
    except OSError as error:
        raise _failure(path, root, error) from None
    return json.dumps([unfinished, root])


def discard_unfinished(path: str, folder: ResultsFolder | None = None) -> None:
    """Remove, at the client, the folders of unfinished files. The job's workers must have ended."""
    root = None if folder is None else folder.path
    with suppress(OSError), _parent_of(path, root) as parent:
        _remove_unfinished(path, parent, folder)


def is_delivered(path: str, folder: ResultsFolder) -> bool:
    """Tell whether the job has delivered the file. Must be called before `discard_unfinished`."""
    try:
        with _parent_of(path, folder.path) as parent:
            return _is_own(path, parent, folder)
    except OSError:
        return False


def open_result(path: str, root: str) -> int:
    """Open a result file below `root` for reading, without following links. Raises OSError."""
    with _parent_of(path, root) as parent:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(os.path.basename(path), flags, dir_fd=parent)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is no regular file")
    return descriptor


def remove_result(path: str, root: str, before_s: float) -> None:
    """Remove a result below `root` if it `is_old`. Raises OSError."""
    with _parent_of(path, root) as parent:
        remove_old(os.path.basename(path), parent, before_s)


def is_old(name: str, folder: int, before_s: float) -> bool:
    """Tell whether `name` in `folder` is a plain file of this process's user, last written before `before_s`.

    Raises OSError, ValueError.
    """
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
    return is_ours and status.st_mtime < before_s


def remove_old(name: str, folder: int, before_s: float) -> None:
    """Remove a file if it `is_old`. Raises OSError, ValueError."""
    if is_old(name, folder, before_s):
        os.unlink(name, dir_fd=folder)


def discard(path: str) -> None:
    """Remove a path's unfinished files and complete file; the job must not be confined. Raises OSError."""
    discard_unfinished(path)
    if _may_be_replaced(path):
        with suppress(FileNotFoundError):
            os.unlink(path)


def _make_room(path: str, parent: int, folder: ResultsFolder | None) -> None:
    """Remove an older file at the path. Raises ResultFileError if that is not permitted."""
    name = os.path.basename(path)
    if folder is None:
        if not _may_be_replaced(path):
            raise ResultFileError(f"{path}: exists and is no regular file")
        with suppress(FileNotFoundError):
            os.unlink(path)
    elif _exists(name, parent):
        if not _is_own(path, parent, folder):
            raise _taken(path)
        os.unlink(name, dir_fd=parent)


def _is_own(path: str, parent: int, folder: ResultsFolder) -> bool:
    """Tell whether the folder's job has delivered the file at the path."""
    for unfinished in _unfinished(path, parent, folder):
        with _opened(unfinished, parent) as own:
            if _has_same_file(own, os.path.basename(path), parent):
                return True
    return False


def _remove_unfinished(path: str, parent: int, folder: ResultsFolder | None) -> None:
    for name in _unfinished(path, parent, folder):
        shutil.rmtree(name, ignore_errors=True, dir_fd=parent)


def _unfinished(path: str, parent: int, folder: ResultsFolder | None) -> list[str]:
    """Return the folders of a path's unfinished files; if confined to a job (`folder`), that job's only."""
    prefix = _prefix(path, folder)
    with _opened(".", parent) as listed:
        return [name for name in os.listdir(listed) if name.startswith(prefix)]


def _prefix(path: str, folder: ResultsFolder | None) -> str:
    return f".{os.path.basename(path)}.unfinished-" + ("" if folder is None else f"{folder.job}-")


def _may_be_replaced(path: str) -> bool:
    """Tell whether the path is free or a regular file; a device such as /dev/null must not be replaced."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return True


def _exists(name: str, parent: int) -> bool:
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _has_same_file(own: int, name: str, parent: int) -> bool:
    """Tell whether the folder `own` has a second name of the file `name` in the folder `parent`."""
    status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    with os.scandir(own) as entries:
        return any(os.path.samestat(status, entry.stat(follow_symlinks=False)) for entry in entries)


@contextmanager
def _parent_of(path: str, root: str | None) -> Iterator[int]:
    """Open the folder of a file. Below `root`, follow no symbolic links. Raises OSError."""
    folder = os.path.dirname(path)
    descriptor = os.open(folder if root is None else root, _FOLDER)
    try:
        if root is not None and folder != root:
            for part in folder.removeprefix(f"{root}/").split("/"):
                inner = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _opened(name: str, parent: int) -> Iterator[int]:
    """Open a folder for reading; a symbolic link is refused. Raises OSError."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _taken(path: str) -> ResultFileError:
    return ResultFileError(f"{path}: exists already; name another file, or remove this file")


def _failure(path: str, root: str | None, error: OSError, where: str = "") -> ResultFileError:
    links = " (symbolic links below the folder for results are not followed)"
    hint = links if root is not None and isinstance(error, NotADirectoryError) else ""
    return ResultFileError(f"{path}: cannot be written{where}: {error.strerror}{hint}")


class UnfinishedFile:
    """A result file in a worker, while the worker writes it to `fd`."""

    def __init__(self, path: str, prepared: str) -> None:
        """Open a file without a name or with a temporary name.

        Args:
            path: the absolute path of the result.
            prepared: what `prepare_result_file` returned.
        """
        self._path = path
        self._name = os.urandom(8).hex()
        self._has_name = False
        folder, self._root = json.loads(prepared)
        try:
            with _parent_of(path, self._root) as parent:
                self._folder = os.open(folder, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
                self._parent = os.dup(parent)
            if os.fstat(self._folder).st_uid != os.geteuid():
                raise PermissionError(errno.EPERM, "the folder of unfinished files belongs to another user")
            self.fd = self._open()
        except FileNotFoundError:
            raise ResultFileError(
                f"{path}: the file's folder does not exist on host {os.uname().nodename}; name a file on a"
                " file system that all hosts share"
            ) from None
        except OSError as error:
            raise self.failure(error) from None

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC
        try:
            return os.open(".", flags | os.O_TMPFILE, 0o666, dir_fd=self._folder)
        except FileNotFoundError:
            raise
        except OSError:  # a file system without O_TMPFILE, such as NFS
            self._has_name = True
            return os.open(self._name, flags | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=self._folder)

    def failure(self, error: OSError) -> ResultFileError:
        """Convert `error`, with which writing to `fd` failed, into the error to raise."""
        return _failure(self._path, self._root, error, f" on host {os.uname().nodename}")

    def write(self, data: bytes) -> None:
        """Append data and flush it to the disk. Raises ResultFileError."""
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self.fd, left) :]
            os.fsync(self.fd)
        except OSError as error:
            raise self.failure(error) from None

    def deliver(self) -> None:
        """Give the file its name. The file must be complete and on the disk."""
        target = os.path.basename(self._path)
        try:
            if not self._has_name:
                # A folder's descriptor is given: without one, Python would link the symbolic link itself.
                os.link(f"/proc/self/fd/{self.fd}", self._name, src_dir_fd=self.fd, dst_dir_fd=self._folder)
            if self._root is None:
                os.replace(self._name, target, src_dir_fd=self._folder, dst_dir_fd=self._parent)
            else:
                self._deliver_as_new(target)
        except OSError as error:
            raise self.failure(error) from None

    def _deliver_as_new(self, target: str) -> None:
        """Give the file its name, and keep its first name, which proves that the file is the job's."""
        try:
            os.link(self._name, target, src_dir_fd=self._folder, dst_dir_fd=self._parent)
        except FileExistsError:
            with _opened(".", self._folder) as own:
                if not _has_same_file(own, target, self._parent):
                    raise _taken(self._path) from None
            # Another worker of the job delivered the file before.
            twin = f"{self._name}~"
            os.link(self._name, twin, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            os.replace(twin, target, src_dir_fd=self._folder, dst_dir_fd=self._parent)
        self._has_name = False

    def close(self) -> None:
        """Close the file, delivered or not."""
        os.close(self.fd)
        if self._has_name:
            with suppress(OSError):
                os.unlink(self._name, dir_fd=self._folder)
        os.close(self._folder)
        os.close(self._parent)


@dataclass(frozen=True, slots=True)
class ResultPath:
    """The file named by configuration key `key`, as an absolute path on the client's host."""

    key: str
    path: str

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any], key: str) -> ResultPath | None:
        """Return the path of the file; None: no file is named. Raises InputError."""
        path = configuration.get(key)
        if path is None:
            return None
        if not isinstance(path, str) or not os.path.isabs(path) or path.endswith("/"):
            raise InputError(
                f"{key} is {path!r:.80}; it must be the absolute path of a file", "configuration"
            )
        return cls(key, path)

    def prepare(self) -> Payload:
        """Return, at the client, the part of the job's payload that workers need. Raises InputError."""
        try:
            folder = prepare_result_file(self.path)
        except ResultFileError as error:
            raise self.refusal(error) from None
        import numpy as np  # imported here, since the service needs this module without numpy

        return {self._payload_key: np.frombuffer(os.fsencode(folder), dtype=np.uint8)}

    def begin(self, payload: Payload) -> UnfinishedFile:
        """Open the file in a worker. Raises ResultFileError."""
        return UnfinishedFile(self.path, os.fsdecode(payload[self._payload_key].tobytes()))

    def refusal(self, error: ResultFileError) -> InputError:
        """Convert `error`, for which the file cannot be written, into the error to raise."""
        return InputError(f"{self.key} {error}", "configuration")

    @property
    def _payload_key(self) -> str:
        return f"{self.key}_folder"
