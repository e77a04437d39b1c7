"""Finding new files in a folder, at a cost that grows with the new files, not with the awaited ones.

Where inotify works, it reports new files. Elsewhere the folder is listed when its modification time has
changed, once more soon after (clocks of file systems are coarse), and once a second. At most a fifth of the
time is spent on listing, which is slow if old replies are never removed.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import time
from collections.abc import Iterable
from pathlib import Path

from mallob_py.service.store.in_folder import InotifyWatch, is_remote

#: period of listing beside inotify, in case inotify misses a file
_RELIST_S = 10.0
_RELIST_POLLING_S = 1.0
#: longest wait for news from inotify
_LOOK_S = 1.0
#: resolution of modification times: two changes within it may leave the same time
_CLOCK_STEP_S = 0.02
_SHARE_OF_TIME = 0.2


class NewFiles:
    """Finds the names of new files in a folder; may find older files too, or a name twice."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._inotify_wanted = not is_remote(folder)
        self._watch: InotifyWatch | None = None
        self._changed_ns = -1
        self._allowed_s = -float("inf")
        self._due_s = -float("inf")

    def look(self) -> Iterable[str]:
        """Return the names of files that are new since the last look; at the first look, of all files."""
        now = time.monotonic()
        names: list[str] = []
        if self._watch is not None:
            news = self._watch.news()
            names = news.complete
            if news.lost:
                self._watch.close()
                self._watch = None
        if self._watch is None and self._inotify_wanted:
            self._start_watch()
        has_changed = self._watch is None and self._has_changed()
        if has_changed:
            self._due_s = now
        if self._due_s <= now and self._allowed_s <= now:
            names += self._all()
            spent_s = time.monotonic() - now
            self._allowed_s = now + spent_s / _SHARE_OF_TIME
            pause_s = _RELIST_POLLING_S if self._watch is None else _RELIST_S
            self._due_s = now + (_CLOCK_STEP_S if has_changed else pause_s)
        return names

    def wait(self, wake: int, delay_s: float | None) -> bool:
        """Wait until another look may find files; return whether `wake`, an eventfd, was written to.

        The wait ends at news from inotify, or without inotify after `delay_s` (None: only at `wake`).
        """
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        if delay_s is not None and self._watch is not None:
            poll.register(self._watch.fileno(), select.POLLIN)
            delay_s = _LOOK_S
        poll.poll(None if delay_s is None else math.ceil(1000 * delay_s))
        with contextlib.suppress(BlockingIOError):
            return os.eventfd_read(wake) > 0
        return False

    def close(self) -> None:
        """Close inotify's descriptor."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _start_watch(self) -> None:
        try:
            self._watch = InotifyWatch(self._folder)
            self._due_s = -float("inf")
        except FileNotFoundError:
            pass  # the folder was removed; the service creates it again
        except OSError:
            self._inotify_wanted = False

    def _has_changed(self) -> bool:
        try:
            changed_ns = os.stat(self._folder).st_mtime_ns
        except OSError:
            return False
        is_new = changed_ns != self._changed_ns
        self._changed_ns = changed_ns
        return is_new

    def _all(self) -> list[str]:
        try:
            return os.listdir(self._folder)
        except OSError:
            return []
