"""Our own folders below a folder that an option names, where other users may put anything under our names.

So such a folder is opened without following links, and read and cleared by its descriptor. Only files with
names that no one else uses are removed; all other files stay, and disturb nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

_OTHERS = 0o077
_NO_FILE_TEXT = "a link, or no file"
#: errors of opening something else than a file: a link, a folder, a socket, a FIFO without reader
_NO_FILE = (errno.ELOOP, errno.EISDIR, errno.ENXIO)

#: errors of a process that lacks descriptors or memory, which say nothing about the file
WANTING = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))


@contextlib.contextmanager
def opened(path: str | Path, within: int | None = None) -> Iterator[int]:
    """Open a folder; yield its descriptor. Raises OSError, also if the path is a link.

    `within`: descriptor of the folder from which a relative `path` starts.
    """
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)
    except NotADirectoryError as error:
        raise NotADirectoryError(errno.ENOTDIR, "a link, or no folder", str(path)) from error
    try:
        yield folder
    finally:
        os.close(folder)


def make(path: Path) -> None:
    """Make a folder unless something has its name. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)


def is_ours(descriptor: int) -> bool:
    return os.fstat(descriptor).st_uid == os.geteuid()


def is_private(folder: int) -> bool:
    """Tell whether a folder is ours, and closed to others."""
    return is_ours(folder) and not stat.S_IMODE(os.fstat(folder).st_mode) & _OTHERS


def is_file(name: str, folder: int) -> bool:
    """Tell whether a name in a folder is a regular file, and no link."""
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def remove_files(folder: int, names: re.Pattern[str]) -> None:
    """Remove the files of a folder whose names match `names`. Raises OSError."""
    for name in os.listdir(folder):
        if names.fullmatch(name) and is_file(name, folder):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)


# --- files of this user ---------------------------------------------------------------------


def open_file(path: str | Path, flags: int, mode: int = 0o600, within: int | None = None) -> int:
    """Open a regular file without blocking. Raises OSError, also for links and anything but files."""
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, mode, dir_fd=within)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise OSError(error.errno, _NO_FILE_TEXT, str(path)) from error
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, _NO_FILE_TEXT, str(path))


def open_to_write(path: str | Path, mode: int = 0o600, within: int | None = None) -> int:
    """Open a regular file for writing, new or emptied; leave all else unchanged. Raises OSError."""
    descriptor = open_file(path, os.O_WRONLY | os.O_CREAT, mode, within)
    try:
        if os.fstat(descriptor).st_size:
            os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_file(path: str | Path, within: int | None = None, bytes_max: int | None = None) -> bytes:
    """Return a file's content. Raises OSError, also if the file has more than `bytes_max` bytes."""
    with open(open_file(path, os.O_RDONLY, within=within), "rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if bytes_max is not None and size_bytes > bytes_max:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        return file.read()


def remove_if_foreign(path: str | Path) -> None:
    """Remove another user's file or link that has the name of one of ours. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        if os.lstat(path).st_uid != os.geteuid():
            os.unlink(path)


def replace_file(
    path: Path, data: bytes, mode: int = 0o666, flush: Callable[[list[Path]], object] | None = None
) -> None:
    """Give a file this content as a whole or not at all. Raises OSError.

    `flush` makes files and folders durable: first the content, then, after the renaming, the folder.
    """
    temporary = path.with_name("~" + path.name.lstrip("."))
    with open(open_to_write(temporary, mode), "wb") as file:
        file.write(data)
    if flush is not None:
        flush([temporary])
    os.replace(temporary, path)
    if flush is not None:
        flush([path.parent])


def replace(source: str, target: str, within: int) -> None:
    """Rename a file, unless the target exists and is no file. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(os.stat(target, dir_fd=within, follow_symlinks=False).st_mode):
            raise OSError(errno.EEXIST, _NO_FILE_TEXT, target)
    os.replace(source, target, src_dir_fd=within, dst_dir_fd=within)
