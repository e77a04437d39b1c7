"""Internal ids of jobs: unique over all clients, and going on after a restart.

Client i of k gives out the ids counter * k + i + 1. `jobs.<i>/.last_id` holds an id that no
given one exceeds; it is written for blocks of ids ahead, not per job. A restart begins above
every client's file and journal, so that the number of clients may change in between.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from mallob_py.service.entries import read_entries
from mallob_py.service.journal import write_file
from mallob_py.service.medium import Medium

RESERVED_IDS = 1000
_FILE_NAME = ".last_id"


class InternalIds:
    """Gives out the ids of one client."""

    def __init__(
        self, api_dir: Path, client_index: int, clients: int, log: Callable[[str], None], medium: Medium
    ) -> None:
        self._path = api_dir / f"jobs.{client_index}" / _FILE_NAME
        self._step = clients
        self._log = log
        self._medium = medium
        last = _last_id(api_dir)
        self._next = ((last - client_index - 1) // clients + 1) * clients + client_index + 1
        self._reserved = last

    def peek(self) -> int:
        """The id that comes next. Reserves it, with others, on file."""
        if self._next > self._reserved:
            self._reserve(self._next + (RESERVED_IDS - 1) * self._step)
        return self._next

    def take(self) -> int:
        internal_id = self.peek()
        self._next += self._step
        return internal_id

    def close(self) -> None:
        """Give back what was reserved and not used."""
        self._reserve(max(self._next - self._step, 0))

    def _reserve(self, last: int) -> None:
        temporary = self._path.with_name("~last_id")
        try:
            write_file(temporary, str(last).encode())
            self._medium.flush([temporary])
            os.replace(temporary, self._path)
            self._medium.flush([self._path.parent])
        except OSError as error:
            # Live jobs stay unique through the journal; ids of ended ones might come again.
            self._log(f"cannot write {self._path}: {error.strerror}; going on")
            return
        self._reserved = last


def _last_id(api_dir: Path) -> int:
    last = 0
    for client_dir in api_dir.glob("jobs.*"):
        # A file that is absent or damaged does not matter as long as the journal is there.
        with contextlib.suppress(OSError, ValueError):
            last = max(last, int((client_dir / _FILE_NAME).read_text("ascii").strip()[:18]))
        with contextlib.suppress(OSError):
            for entry in read_entries(client_dir / "journal"):
                last = max(last, entry.internal_id)
    return last
