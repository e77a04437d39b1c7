"""Checkpoints of live jobs in files, from which the jobs go on after any end of a service.

A job's checkpoint is `jobs.<i>/checkpoints/<id>`: a line that identifies the format, the checksum of the
rest, and the rest. Each checkpoint replaces the one before atomically; the last one is removed when the job's
reply is decided. A lost checkpoint costs work only: if it cannot be written, this is reported; if it is
damaged (after a loss of power), its job begins anew. Anything else than a plain file, such as a pipe, and
files that are too large are ignored unread.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from mallob_py.kit.app import CHECKPOINT_BYTES_MAX
from mallob_py.service.store import own_folder
from mallob_py.service.store.flush_policy import FlushPolicy

_HEADER = b"mallob-py checkpoint 1\n"
_ANY_HEADER = re.compile(rb"mallob-py checkpoint [0-9]{1,9}\n")
_SUM_BYTES = 4
_BYTES_MAX = len(_HEADER) + _SUM_BYTES + CHECKPOINT_BYTES_MAX
#: greatest share of a rank's time for writing all checkpoints, since the rank does nothing else meanwhile
_SHARE = 0.02
#: names of checkpoints, finished or being written
_NAME = re.compile("~?[0-9]{1,19}")


class Checkpoints:
    """The checkpoints of one client's jobs. Their folder is made with the first checkpoint."""

    def __init__(
        self,
        client_dir: Path,
        flush_policy: FlushPolicy,
        log: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._dir = client_dir / "checkpoints"
        self._flush_policy = flush_policy
        self._log = log
        self._clock = clock
        #: jobs with a checkpoint in a file; only these jobs' further checkpoints may be passed over
        self.jobs: set[int] = set()
        #: job -> time when its next checkpoint may be written
        self._next_s: dict[int, float] = {}
        #: job -> last checkpoint that was passed over
        self._passed_over: dict[int, bytes] = {}
        self._is_failing = False

    def recover(self, live: Collection[int]) -> None:
        """List the checkpoints of a former service, and remove the checkpoints of jobs that have ended."""
        try:
            with own_folder.opened(self._dir) as folder:
                there = [name for name in os.listdir(folder) if _NAME.fullmatch(name)]
                for name in there:
                    if not own_folder.is_file(name, folder):
                        continue
                    if name.isdecimal() and int(name) in live:
                        self.jobs.add(int(name))
                    else:
                        with suppress(OSError):
                            os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            pass
        except OSError as error:
            self._log(f"cannot look for checkpoints in {self._dir}: {error.strerror}; jobs begin anew")

    def save(self, internal_id: int, data: bytes) -> None:
        """Keep a checkpoint; on a slow disk some are passed over, since newer checkpoints follow."""
        began_s = self._clock()
        if began_s < self._next_s.get(internal_id, 0.0):
            self._passed_over[internal_id] = data
            return
        self._passed_over.pop(internal_id, None)
        try:
            self._write(internal_id, data)
        except OSError as error:
            if not self._is_failing:
                self._log(f"cannot write checkpoints to {self._dir}: {error.strerror}; jobs go on without")
            self._is_failing = True
            return
        self._is_failing = False
        self.jobs.add(internal_id)
        self._next_s[internal_id] = began_s + (self._clock() - began_s) * len(self.jobs) / _SHARE

    def load(self, internal_id: int) -> bytes | None:
        """Return a job's last checkpoint if it is intact, else None."""
        if (newest := self._passed_over.get(internal_id)) is not None:
            return newest
        if internal_id not in self.jobs:
            return None
        path = self._dir / str(internal_id)
        try:
            with own_folder.opened(self._dir) as folder:
                content = own_folder.read_file(path.name, folder, _BYTES_MAX)
        except OSError as error:
            self._log(f"cannot read {path}: {error.strerror}; its job begins anew")
            return None
        data = content[len(_HEADER) + _SUM_BYTES :]
        if content[: len(_HEADER) + _SUM_BYTES] != _HEADER + _sum_of(data):
            if _ANY_HEADER.match(content) is not None and not content.startswith(_HEADER):
                self._log(f"{path} is of another version; its job begins anew")
            else:
                self._log(f"{path} is damaged; its job begins anew")
            return None
        return data

    def remove(self, internal_id: int) -> None:
        """Remove the checkpoint of a job that has ended."""
        self._next_s.pop(internal_id, None)
        self._passed_over.pop(internal_id, None)
        if internal_id in self.jobs:
            self.jobs.discard(internal_id)
            with suppress(OSError), own_folder.opened(self._dir) as folder:
                os.unlink(str(internal_id), dir_fd=folder)

    def close(self) -> None:
        """Write the checkpoints that were passed over, since no newer checkpoints follow."""
        self._next_s.clear()
        for internal_id, data in list(self._passed_over.items()):
            self.save(internal_id, data)

    def _write(self, internal_id: int, data: bytes) -> None:
        temporary = f"~{internal_id}"
        with suppress(FileExistsError):
            self._dir.mkdir()
        with own_folder.opened(self._dir) as folder:
            with open(own_folder.open_to_write(temporary, 0o666, folder), "wb") as file:
                file.writelines((_HEADER, _sum_of(data), data))
            self._flush_policy.flush([self._dir / temporary])
            own_folder.replace(temporary, str(internal_id), folder)
        self._flush_policy.flush([self._dir])


def _sum_of(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(_SUM_BYTES, "little")
