"""A client's folder whose file operations are done by a thread of their own: nobody waits for a slow medium.

The event loop hands over replies and gets claimed files in return; neither blocks. Whatever is to be done
to files is done by one thread, in the order of the requests. While it waits for the medium, further
requests gather, and are flushed together.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from mallob_py.service.directory import Incoming, JobDirectory
from mallob_py.service.errors import JobFileError
from mallob_py.service.reply import Reply

#: claimed files that the loop has not fetched yet; no more are claimed then
_READY_MAX = 64
_WAIT_MAX_S = 1.0


class ThreadedDirectory:
    """Used as a `JobDirectory`, from one thread. The other one starts with the first `take`."""

    def __init__(
        self, open_directory: Callable[[Callable[[str], None]], JobDirectory], log: Callable[[str], None]
    ) -> None:
        """`open_directory`: opens it, given where it may complain. Raises what that raises."""
        self._log = log
        self._thread = threading.Thread(target=self._serve, name="mallob-py-directory", daemon=True)
        #: from the thread: what it has to say, and claimed files
        self._complaints: deque[str] = deque()
        self._ready: deque[Incoming] = deque()
        self._failure: BaseException | None = None
        #: to the thread
        self._requests: deque[Callable[[], None]] = deque()
        self._is_closing = False
        self._directory = open_directory(self._complain)
        self.path = self._directory.path
        self.finished = self._directory.finished
        self.recovered_count = self._directory.recovered_count
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._request_bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    # --- as of a JobDirectory -------------------------------------------------------------------

    def fileno(self) -> int:
        return self._bell

    def next_deadline(self) -> float:
        has_news = self._ready or self._complaints or self._failure is not None
        return -math.inf if has_news or not self._thread.ident else math.inf

    def take(self, limit: int = 64) -> list[Incoming]:
        if not self._thread.ident:
            self._thread.start()
        _silence(self._bell)
        self._tell()
        if self._failure is not None:
            raise self._failure
        taken = [self._ready.popleft() for _ in range(min(limit, len(self._ready)))]
        if taken:
            os.eventfd_write(self._request_bell, 1)  # there is room again
        return taken

    def read_again(self, internal_id: int) -> Incoming:
        return self._directory.read_again(internal_id)

    def revisions(self) -> Iterator[tuple[int, Incoming]]:
        """To be called before the first `take`."""
        return self._directory.revisions()

    def has_reply(self, identity: str) -> bool:
        return self._directory.has_reply(identity)

    def came_before_reply(self, incoming: Incoming, identity: str) -> bool:
        return self._directory.came_before_reply(incoming, identity)

    def solution_path(self, internal_id: int, identity: str) -> Path:
        return self._directory.solution_path(internal_id, identity)

    def reply(
        self,
        internal_id: int,
        identity: str,
        reply: Reply,
        chain: int | None = None,
        on_decided: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_decided` is called by the thread."""
        self._request(partial(self._directory.reply, internal_id, identity, reply, chain, on_decided))

    def refuse(self, incoming: Incoming, error: JobFileError) -> None:
        self._request(partial(self._directory.refuse, incoming, error))

    def dismiss(self, internal_id: int) -> None:
        self._request(partial(self._directory.dismiss, internal_id))

    def end_chain(self, chain: int, internal_id: int | None = None, identity: str = "") -> None:
        self._request(partial(self._directory.end_chain, chain, internal_id, identity))

    @property
    def unpublished(self) -> int:
        return self._directory.unpublished

    def untaken(self) -> int:
        return self._directory.untaken()

    def close(self) -> None:
        """Returns when all that was asked for is done."""
        if self._is_closing:
            return
        self._is_closing = True
        if self._thread.ident:
            os.eventfd_write(self._request_bell, 1)
            self._thread.join()
        self._directory.close()
        self._tell()
        os.close(self._bell)
        os.close(self._request_bell)

    # --- between the threads --------------------------------------------------------------------

    def _request(self, request: Callable[[], None]) -> None:
        self._requests.append(request)
        os.eventfd_write(self._request_bell, 1)

    def _complain(self, message: str) -> None:
        if threading.current_thread() is not self._thread:
            self._log(message)
            return
        self._complaints.append(message)
        os.eventfd_write(self._bell, 1)

    def _tell(self) -> None:
        while self._complaints:
            self._log(self._complaints.popleft())

    # --- the thread -----------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while not self._is_closing:
                self._turn()
                self._wait()
            self._do_requests()
        except BaseException as error:
            self._failure = error
            os.eventfd_write(self._bell, 1)

    def _turn(self) -> None:
        self._do_requests()
        taken = self._directory.take(max(0, _READY_MAX - len(self._ready)))
        if taken:
            self._ready.extend(taken)
            os.eventfd_write(self._bell, 1)
        self.recovered_count = self._directory.recovered_count + len(self._ready)

    def _do_requests(self) -> None:
        _silence(self._request_bell)
        while self._requests:
            self._requests.popleft()()

    def _wait(self) -> None:
        """Until there is something to do."""
        descriptors = [self._request_bell]
        wait_s = _WAIT_MAX_S
        if len(self._ready) < _READY_MAX:
            wait_s = min(wait_s, max(0.0, self._directory.next_deadline() - time.monotonic()))
            if (watched := self._directory.fileno()) is not None:
                descriptors.append(watched)
        poll = select.poll()
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        poll.poll(math.ceil(1000 * wait_s))


def _silence(bell: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.eventfd_read(bell)
