"""Listening and connecting at addresses: the path of a Unix socket, or an IP address and a port.

A path longer than the system's limit of 107 bytes is reached through its folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator

Address = str | tuple[str, int]


@contextlib.contextmanager
def short_path(path: str) -> Iterator[str]:
    """Context manager with a short name of the file at `path`."""
    folder = os.open(os.path.dirname(path) or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)


def listen(address: Address) -> socket.socket:
    """Return a socket that listens at an address, replacing a former socket file. Raises OSError."""
    if isinstance(address, tuple):
        return socket.create_server(address)
    server = socket.socket(socket.AF_UNIX)
    try:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.lstat(address).st_mode):
                raise FileExistsError(errno.EEXIST, "not a socket", address)
            os.unlink(address)
        with short_path(address) as path:
            server.bind(path)
        server.listen(128)
    except OSError:
        server.close()
        raise
    return server


def connect(address: Address, timeout_s: float | None = None) -> socket.socket:
    """Return a connection to an address. `timeout_s`: time limit for each operation. Raises OSError."""
    if isinstance(address, tuple):
        return socket.create_connection(address, timeout_s)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(timeout_s)
        with short_path(address) as path:
            connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection
