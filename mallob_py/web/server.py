"""The web server's process: its socket, its token, its end.

The token is the secret that lets people in: a file that only its owner can read, made at first start. It
travels in the header `Authorization: Bearer TOKEN` only. A browser never adds that by itself, so no page of
somebody else can act in our user's name, and no cookie is needed.
"""

from __future__ import annotations

import hmac
import os
import re
import resource
import secrets
import signal
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import uvicorn

from mallob_py.service import ServiceError
from mallob_py.web.jobs import Jobs
from mallob_py.web.looks import Arrivals
from mallob_py.web.receiving import Limits, Receiver
from mallob_py.web.routes import Interface, make_app
from mallob_py.web.store import Store

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


#: most of them wait, which costs next to nothing
_CONNECTIONS_MAX = 1000
#: files, folders and the libraries' own beside the connections
_OTHER_DESCRIPTORS = 200
_FAREWELL_S = 2


def serve(
    api_dir: Path,
    client: int,
    host: str,
    port: int,
    token_file: Path | None,
    allow_paths: Path | None,
    limits: Limits,
) -> None:
    """Until SIGINT or SIGTERM. Raises ServiceError."""
    _allow_descriptors(_CONNECTIONS_MAX + _OTHER_DESCRIPTORS)
    listening = _listen(host, port)
    store = Store(api_dir)
    token = load_token(token_file or store.path / "token")
    jobs = Jobs(api_dir, client, store, allow_paths)
    app = make_app(Interface(token, store, jobs, Receiver(jobs, store, limits), Arrivals(jobs.out_dir)))
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=_CONNECTIONS_MAX,
        timeout_graceful_shutdown=_FAREWELL_S,
        ws="none",
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)  # uvicorn has its own meanwhile, and repeats the signal at its end
    address = f"http://{_printable(host)}:{listening.getsockname()[1]}/"
    if token.is_new:
        print(f"mallob-py web: {address}#token={token.secret.decode()}", flush=True)
    else:
        print(f"mallob-py web: {address} (the token is in {token.path})", flush=True)
    try:
        uvicorn.Server(config).run(sockets=[listening])
    finally:
        store.close()


def _allow_descriptors(count: int) -> None:
    """As far as this process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=128)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ServiceError(f"cannot listen at {host} port {port}: {reason}; choose others") from None


def _printable(host: str) -> str:
    return f"[{host}]" if ":" in host else host
