"""The web server's process: its socket, its token, its end."""

from __future__ import annotations

import resource
import signal
import socket
from pathlib import Path
from types import FrameType

import uvicorn

from mallob_py.service import ServiceError
from mallob_py.web.jobs import Jobs
from mallob_py.web.looks import Arrivals
from mallob_py.web.receiving import Limits, Receiver
from mallob_py.web.routes import Interface, make_app
from mallob_py.web.store import Store, load_token

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
