"""The last checkpoints of live jobs on file: with them jobs go on after a service has ended, in whatever way.

`jobs.<i>/checkpoints/<id>` is one job's: a line that says what it is, the checksum of what follows, and that.
Each replaces the one before atomically and goes when the job's reply is decided. All that it is worth is
work: one that cannot be written is reported and done without, one that is damaged (as by a loss of power) is
not used, and its job begins anew. So is what is no plain file or larger than any of ours, whoever has put it
there: a pipe or a device is neither waited for nor read.
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
_SUM_BYTES = 4
_BYTES_MAX = len(_HEADER) + _SUM_BYTES + CHECKPOINT_BYTES_MAX
#: of the time may be spent on writing those of all jobs: the rank does nothing else meanwhile
_SHARE = 0.02
#: of one, and of one that is being written
_NAME = re.compile("~?[0-9]{1,19}")


class Checkpoints:
    """The checkpoints of one client's jobs. Its folder is made when there is something to be put into it."""

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
        #: jobs that have one on file, and only they have one that was passed over
        self.jobs: set[int] = set()
        #: when that of a job may be written again
        self._next_s: dict[int, float] = {}
        #: those of jobs that were passed over last
        self._passed_over: dict[int, bytes] = {}
        self._is_failing = False

    def recover(self, live: Collection[int]) -> None:
        """See which ones a former service has left; those of jobs that are over are removed."""
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
        """Keep this one. If the disk is slow, some are passed over: a newer one comes."""
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
        """The last one of a job, if there is one and it is whole."""
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
            self._log(f"{path} is damaged; its job begins anew")
            return None
        return data

    def remove(self, internal_id: int) -> None:
        """The job is over."""
        self._next_s.pop(internal_id, None)
        self._passed_over.pop(internal_id, None)
        if internal_id in self.jobs:
            self.jobs.discard(internal_id)
            with suppress(OSError), own_folder.opened(self._dir) as folder:
                os.unlink(str(internal_id), dir_fd=folder)

    def close(self) -> None:
        """No newer ones come: keep those that were passed over."""
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
