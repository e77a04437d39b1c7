"""A result too large for a message gets from a worker to the file that the user named.

The client's host makes a folder beside that file, with a name that nobody can guess. Workers write
in there, and those who do not find it refuse to work: they are on another host and do not share the
file system, so the result would appear where the user does not look. What is complete gets the file's
name; what is not never has it. Where the file system can, unfinished files have no name at all and
vanish with their process. The client removes the folder when the job has ended.

`solve` writes what its own user names: `deliver` replaces the file at once and as a whole; an older file
is gone from the moment of `prepare_result_file`, so that it is never taken for the new one.

Jobs of a service are confined to a `ResultsFolder`: anybody may name files there, so none that exists is
replaced or removed. What a job has delivered keeps a second name in its folder of unfinished files, which
bears the job's name; by that the same job, run again after a crash, knows its own file and may replace it.
Below the folder no symbolic link is followed, neither when the file is prepared nor when it is written.

A ResultFileError is one line.
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
    """A result file cannot be written. One line that names the file."""


class ResultsFolder(msgspec.Struct, frozen=True, array_like=True):
    """Below `path`, which is absolute, and nowhere else may results of this `job` (a unique name) be."""

    path: str
    job: str

    def resolve(self, path: str) -> str:
        """The absolute path of a file that the job names. Raises ResultFileError."""
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
            raise ResultFileError(f"{path!r}: no part of it may be empty, begin with '.' or hold a NUL")
        return f"{self.path}/{relative}"


#: what the present task of this process may write, None: whatever its user may
_confinement: ResultsFolder | None = None


@contextmanager
def confined_to(folder: ResultsFolder | None) -> Iterator[None]:
    """Meanwhile, result files are prepared for this job and below this folder only."""
    global _confinement
    previous, _confinement = _confinement, folder
    try:
        yield
    finally:
        _confinement = previous


def prepare_result_file(path: str) -> str:
    """At the client: see that the file can be written. Returns what `UnfinishedFile` needs to write it."""
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
    """Remove, at the client after the job, all but the complete file; no worker delivers any more."""
    root = None if folder is None else folder.path
    with suppress(OSError), _parent_of(path, root) as parent:
        _remove_unfinished(path, parent, folder)


def is_delivered(path: str, folder: ResultsFolder) -> bool:
    """Whether the job has delivered the file at this path; to be asked before `discard_unfinished`."""
    try:
        with _parent_of(path, folder.path) as parent:
            return _is_own(path, parent, folder)
    except OSError:
        return False


def open_result(path: str, root: str) -> int:
    """A descriptor of a result file below `root`, as little trusting as writing it was. Raises OSError."""
    with _parent_of(path, root) as parent:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(os.path.basename(path), flags, dir_fd=parent)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is no regular file")
    return descriptor


def discard(path: str) -> None:
    """At the client of one's own files: remove the complete file too. Raises OSError."""
    discard_unfinished(path)
    if _may_be_replaced(path):
        with suppress(FileNotFoundError):
            os.unlink(path)


def _make_room(path: str, parent: int, folder: ResultsFolder | None) -> None:
    """Remove an older file if it may go."""
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
    """Whether the file there is one that the job has delivered."""
    for unfinished in _unfinished(path, parent, folder):
        with _opened(unfinished, parent) as own:
            if _has_same_file(own, os.path.basename(path), parent):
                return True
    return False


def _remove_unfinished(path: str, parent: int, folder: ResultsFolder | None) -> None:
    for name in _unfinished(path, parent, folder):
        shutil.rmtree(name, ignore_errors=True, dir_fd=parent)


def _unfinished(path: str, parent: int, folder: ResultsFolder | None) -> list[str]:
    """The folders of unfinished files for this path; of a confined job, its own ones only."""
    prefix = _prefix(path, folder)
    with _opened(".", parent) as listed:
        return [name for name in os.listdir(listed) if name.startswith(prefix)]


def _prefix(path: str, folder: ResultsFolder | None) -> str:
    return f".{os.path.basename(path)}.unfinished-" + ("" if folder is None else f"{folder.job}-")


def _may_be_replaced(path: str) -> bool:
    """Not so a device such as /dev/null."""
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
    """Whether a file of the folder `own` is the same as `name` in the folder `parent`."""
    status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    with os.scandir(own) as entries:
        return any(os.path.samestat(status, entry.stat(follow_symlinks=False)) for entry in entries)


@contextmanager
def _parent_of(path: str, root: str | None) -> Iterator[int]:
    """The folder of a file, opened; from `root` on without following symbolic links. Raises OSError."""
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
    """A folder, no symbolic link, opened for reading. Raises OSError."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _taken(path: str) -> ResultFileError:
    return ResultFileError(f"{path}: exists already; name another file, or remove that one")


def _failure(path: str, root: str | None, error: OSError, where: str = "") -> ResultFileError:
    links = " (symbolic links below the folder for results are not followed)"
    hint = links if root is not None and isinstance(error, NotADirectoryError) else ""
    return ResultFileError(f"{path}: cannot be written{where}: {error.strerror}{hint}")


class UnfinishedFile:
    """In a worker: a result while it is written to `fd`."""

    def __init__(self, path: str, prepared: str) -> None:
        """`path` is absolute, `prepared` what `prepare_result_file` said."""
        self._path = path
        self._name = os.urandom(8).hex()
        self._has_name = False
        folder, self._root = json.loads(prepared)
        try:
            with _parent_of(path, self._root) as parent:
                self._folder = os.open(folder, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
                self._parent = os.dup(parent)
            if os.fstat(self._folder).st_uid != os.geteuid():
                raise PermissionError(errno.EPERM, "somebody else has put a folder in the way")
            self.fd = self._open()
        except FileNotFoundError:
            raise ResultFileError(
                f"{path}: its folder is not there on host {os.uname().nodename}; name a file on a file system"
                " that all hosts share"
            ) from None
        except OSError as error:
            raise self.failure(error) from None

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC
        try:
            return os.open(".", flags | os.O_TMPFILE, 0o666, dir_fd=self._folder)
        except FileNotFoundError:
            raise
        except OSError:  # a file system without nameless files, such as NFS
            self._has_name = True
            return os.open(self._name, flags | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=self._folder)

    def failure(self, error: OSError) -> ResultFileError:
        """Return the error to raise if writing to `fd` fails."""
        return _failure(self._path, self._root, error, f" on host {os.uname().nodename}")

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
        target = os.path.basename(self._path)
        try:
            if not self._has_name:
                # With a folder's descriptor, or else Python would link the symbolic link itself.
                os.link(f"/proc/self/fd/{self.fd}", self._name, src_dir_fd=self.fd, dst_dir_fd=self._folder)
            if self._root is None:
                os.replace(self._name, target, src_dir_fd=self._folder, dst_dir_fd=self._parent)
            else:
                self._deliver_as_new(target)
        except OSError as error:
            raise self.failure(error) from None

    def _deliver_as_new(self, target: str) -> None:
        """The file keeps its own name, too, by which it is known to be the job's."""
        try:
            os.link(self._name, target, src_dir_fd=self._folder, dst_dir_fd=self._parent)
        except FileExistsError:
            with _opened(".", self._folder) as own:
                if not _has_same_file(own, target, self._parent):
                    raise _taken(self._path) from None
            # Another worker of the job has delivered before us, and is a worker no more.
            twin = f"{self._name}~"
            os.link(self._name, twin, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            os.replace(twin, target, src_dir_fd=self._folder, dst_dir_fd=self._parent)
        self._has_name = False

    def close(self) -> None:
        """The end, delivered or not."""
        os.close(self.fd)
        if self._has_name:
            with suppress(OSError):
                os.unlink(self._name, dir_fd=self._folder)
        os.close(self._folder)
        os.close(self._parent)


@dataclass(frozen=True, slots=True)
class ResultPath:
    """The file that configuration key `key` names, by an absolute path on the client's host."""

    key: str
    path: str

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any], key: str) -> ResultPath | None:
        """None if no file is named. Raises InputError."""
        path = configuration.get(key)
        if path is None:
            return None
        if not isinstance(path, str) or not os.path.isabs(path) or path.endswith("/"):
            raise InputError(
                f"{key} is {path!r:.80}; it must be the absolute path of a file", "configuration"
            )
        return cls(key, path)

    def prepare(self) -> Payload:
        """At the client: what workers need, to be put into the job's payload. Raises InputError."""
        try:
            folder = prepare_result_file(self.path)
        except ResultFileError as error:
            raise self.refusal(error) from None
        import numpy as np  # the service and the fork server, who know this module, do without

        return {self._payload_key: np.frombuffer(os.fsencode(folder), dtype=np.uint8)}

    def begin(self, payload: Payload) -> UnfinishedFile:
        """In a worker. Raises ResultFileError."""
        return UnfinishedFile(self.path, os.fsdecode(payload[self._payload_key].tobytes()))

    def refusal(self, error: ResultFileError) -> InputError:
        """Return the error to raise if the file cannot be written."""
        return InputError(f"{self.key} {error}", "configuration")

    @property
    def _payload_key(self) -> str:
        return f"{self.key}_folder"
