"""The output of a job's workers for readers: its last part, and all that follows while the job runs.

The files are written by `runtime/workers/output.py`, under the job's internal id, on each host that reaches
the folder of the service.
"""

from __future__ import annotations

import codecs
import os
from pathlib import Path

from mallob_py.runtime.workers.output import OUTPUT_FOLDER, log_names
from mallob_py.service import client as service_client
from mallob_py.service.store import own_folder
from mallob_py.service.store.entries import reply_name
from mallob_py.service.telemetry.history import RecentHistory
from mallob_py.service.telemetry.status import read_live_status

#: greatest number of bytes read at once, more than any output file has
_READ_BYTES_MAX = 16 << 20


def number_of(api_dir: Path, client: int, identity: str) -> int | None:
    """Return the internal id of the live or last ended job of a name; None: no such job. Raises OSError."""
    status = read_live_status(str(api_dir))
    if status is not None and (job := status.job(identity, client)) is not None:
        return job.id
    for ended in reversed(RecentHistory(api_dir).jobs()):
        if ended.client == client and f"{ended.user}.{ended.name}" == identity:
            return ended.id
    folder = service_client.folder_of(api_dir, client)
    reply = service_client.read_reply(folder / "out" / reply_name(identity))
    number = None if reply is None else reply.get("internal_id")
    return number if isinstance(number, int) else None


class Printed:
    """A job's output, read piece by piece."""

    def __init__(self, api_dir: Path, job: int) -> None:
        self._folder = api_dir / OUTPUT_FOLDER
        self._older, self._newest = log_names(job)
        #: inode of the file that was read last (0: none), and the number of bytes read of that file
        self._file = self._read_bytes = 0
        #: decoder that completes a letter if a piece ends within the letter
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def text(self) -> str:
        """Return the output since the last call as text (see `news`)."""
        return self._decoder.decode(self.news())

    def news(self) -> bytes:
        """Return the output since the last call, at first all of it. Raises OSError, also for a link."""
        try:
            with own_folder.opened(self._folder) as folder:
                before = b"" if self._is_at(self._newest, folder) else self._rest_of(self._older, folder)
                return before + self._rest_of(self._newest, folder)
        except FileNotFoundError:
            return b""

    def _is_at(self, name: str, folder: int) -> bool:
        try:
            return os.stat(name, dir_fd=folder, follow_symlinks=False).st_ino == self._file
        except FileNotFoundError:
            return False

    def _rest_of(self, name: str, folder: int) -> bytes:
        try:
            descriptor = own_folder.open_file(name, os.O_RDONLY, within=folder)
        except FileNotFoundError:
            return b""
        with open(descriptor, "rb") as file:
            number = os.fstat(descriptor).st_ino
            if number != self._file:
                self._file, self._read_bytes = number, 0
            file.seek(self._read_bytes)
            data = file.read(_READ_BYTES_MAX)
            self._read_bytes += len(data)
            return data
