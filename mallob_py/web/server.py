"""The web server's process: its socket, its token, its end."""

from __future__ import annotations

import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import uvicorn

from mallob_py.async_loop import LoopWatch
from mallob_py.service import ServiceError
from mallob_py.web.connections import WAITING_MAX, Places, connections
from mallob_py.web.jobs import Jobs
from mallob_py.web.looks import Arrivals
from mallob_py.web.receiving import Limits, Receiver
from mallob_py.web.routes import Interface, make_app
from mallob_py.web.store import Store, load_token
from mallob_py.web.tokens import UserTokens

#: the number of connections at a time; most of them wait, which costs next to nothing
_CONNECTIONS_MAX = 1000
#: the number of descriptors beside connections: files, folders, libraries, and a file for each large answer
_OTHER_DESCRIPTORS = 200 + _CONNECTIONS_MAX
#: the number of callers that wait to be accepted; in one turn of its loop, asyncio tries to accept this
#: number at most
_BACKLOG = 128
_FAREWELL_S = 2


def serve(
    api_dir: Path,
    client: int,
    host: str,
    port: int,
    token_file: Path | None,
    allow_paths: Path | None,
    limits: Limits,
    look_at_batch: Callable[[], object] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM. `look_at_batch`: see `Interface`. Raises ServiceError."""
    _allow_descriptors(WAITING_MAX + _CONNECTIONS_MAX + _OTHER_DESCRIPTORS)
    listening = _listen(host, port)
    store = Store(api_dir)
    token = load_token(token_file or store.path / "token")
    jobs = Jobs(api_dir, client, store, allow_paths)
    arrivals = Arrivals(jobs.out_dir)
    loop = LoopWatch(lambda line: print(f"mallob-py web: {line}", file=sys.stderr, flush=True))
    receiver = Receiver(jobs, store, limits)
    app = make_app(
        Interface(token, UserTokens(api_dir), store, jobs, receiver, arrivals, loop, look_at_batch)
    )
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        backlog=_BACKLOG,
        limit_concurrency=WAITING_MAX + _CONNECTIONS_MAX,
        http=connections(Places()),  # type: ignore[arg-type]
        timeout_graceful_shutdown=_FAREWELL_S,
        ws="none",
    )
    server = _Server(config, arrivals)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, server.note_signal)
    address = f"http://{_printable(host)}:{listening.getsockname()[1]}/"
    if token.is_new:
        print(f"mallob-py web: {address}#token={token.secret.decode()}", flush=True)
    else:
        print(f"mallob-py web: {address} (the token is in {token.path})", flush=True)
    try:
        loop.run(server.serve(sockets=[listening]))
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # Python's own end would restore the default actions
        store.close()


class _Server(uvicorn.Server):
    """A server that ends in order at the first signal, whenever it arrives, and ignores further signals.

    uvicorn leaves its loop at once at a second signal, or at a signal before the loop has begun.
    """

    def __init__(self, config: uvicorn.Config, arrivals: Arrivals) -> None:
        super().__init__(config)
        self._arrivals = arrivals
        self._is_to_end = False

    def note_signal(self, number: int, frame: FrameType | None) -> None:
        self._is_to_end = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self._is_to_end

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._arrivals.close()
        await super().shutdown(sockets)


def _allow_descriptors(count: int) -> None:
    """Raise the limit of descriptors to `count`, as far as this process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ServiceError(f"cannot listen at {host} port {port}: {reason}; choose others") from None


def _printable(host: str) -> str:
    return f"[{host}]" if ":" in host else host
