"""Small disks below a service's folders. Now and then, a disk is full for some seconds."""

import contextlib
import math
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

#: folder of the service -> size of its disk
SIZES_BYTES: Mapping[str, int] = {"api": 192 << 20, "logs": 128 << 20, "tmp": 32 << 20}
_BLOCK = bytes(1 << 20)
_NAME = ".filling"
#: time longer than the longest delay before the service repeats a failed write
_RETRIES_S = 45.0


@dataclass(frozen=True, slots=True)
class _Filling:
    path: Path
    until_s: float


class Disks:
    """File systems in memory, one for each folder, if this user may mount them (root)."""

    def __init__(self, folder: Path) -> None:
        self._mounted: list[Path] = []
        self._filling: _Filling | None = None
        self._relieved_s = -math.inf
        for name, size_bytes in SIZES_BYTES.items():
            path = folder / name
            path.mkdir(exist_ok=True)
            options = f"size={size_bytes},mode=0755"
            command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
            if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                self._mounted.append(path)

    @property
    def are_there(self) -> bool:
        return bool(self._mounted)

    @property
    def is_full(self) -> bool:
        return self._filling is not None

    @property
    def holds_replies_up(self) -> bool:
        """Tell whether a disk delays replies: it is full or was just full, and writes are repeated later."""
        return self.is_full or time.monotonic() < self._relieved_s + _RETRIES_S

    def fill(self, folder: Path, duration_s: float) -> None:
        """Fill the disk of this folder until no byte fits. After `duration_s`, `look` frees it again."""
        path = folder / _NAME
        # Only this user may open the file: while anybody has it open, its removal frees nothing.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        with open(descriptor, "wb", buffering=0) as file:
            for size in (len(_BLOCK), 4096, 1):
                with contextlib.suppress(OSError):
                    while file.write(_BLOCK[:size]) == size:
                        pass
        self._filling = _Filling(path, time.monotonic() + duration_s)

    def look(self) -> None:
        if self._filling is not None and time.monotonic() > self._filling.until_s:
            self.relieve()

    def relieve(self) -> None:
        if self._filling is not None:
            self._filling.path.unlink(missing_ok=True)
            self._filling = None
            self._relieved_s = time.monotonic()

    def close(self, is_kept: bool) -> None:
        """Unmount the disks. `is_kept`: whether their content is copied into the folders, for the user."""
        self.relieve()
        while self._mounted:
            path = self._mounted.pop()
            aside = path.with_name(f"{path.name}.kept")
            if is_kept:
                shutil.copytree(path, aside, symlinks=True, ignore=_no_files, ignore_dangling_symlinks=True)
            subprocess.run(["umount", "-l", str(path)], check=False)
            if is_kept:
                path.rmdir()
                aside.rename(path)


def _no_files(folder: str, names: list[str]) -> list[str]:
    """Return the names of FIFOs and sockets, which must not be copied: that would wait for ever."""
    return [name for name in names if Path(folder, name).is_fifo() or Path(folder, name).is_socket()]
