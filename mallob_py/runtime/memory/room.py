"""How much memory is left here, and how much of it is to stay free.

What is left: on the host, and in each control group with a limit that this process is in. The kernel's own
estimate for the host (`MemAvailable`) counts what it could take back from caches of files. A group's usage
counts these too, so the part of them that has not been used lately is taken off. Groups are those of
version 2 or 1; a container may show only its own, as the root of all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple


class Reserve(NamedTuple):
    """The larger of the two holds; both 0: nothing is kept free."""

    size_bytes: int = 0
    share: float = 0.0

    def of(self, total_bytes: int) -> int:
        return max(self.size_bytes, int(self.share * total_bytes))


_LINE_OF_GROUP = re.compile(r"^\d+:([^:]*):(/.*)$", re.MULTILINE)


class Room(NamedTuple):
    """What is left of so much memory."""

    left_bytes: int
    total_bytes: int


class _Files(NamedTuple):
    """What one version of control groups calls its files, and the line of `stat` with idle caches."""

    folders: tuple[str, ...]
    limit: str
    usage: str
    stat: str


_VERSION_1 = _Files(("memory",), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = _Files(("", "unified"), "memory.max", "memory.current", "inactive_file")


def rooms(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> list[Room]:
    """The host's first; empty where the kernel tells nothing."""
    with suppress(OSError, ValueError, KeyError):
        lines = _numbers((proc / "meminfo").read_text().replace(":", ""))
        host = Room(1024 * lines["MemAvailable"], 1024 * lines["MemTotal"])
        return [host, *_rooms_of_groups(proc, groups, host.total_bytes)]
    return []


def _rooms_of_groups(proc: Path, groups: Path, host_bytes: int) -> Iterator[Room]:
    with suppress(OSError):
        for controllers, path in _LINE_OF_GROUP.findall((proc / "self/cgroup").read_text()):
            if "memory" in controllers.split(","):
                yield from _rooms_along(path, groups, _VERSION_1, host_bytes)
            elif not controllers:
                yield from _rooms_along(path, groups, _VERSION_2, host_bytes)


def _rooms_along(path: str, groups: Path, files: _Files, host_bytes: int) -> Iterator[Room]:
    """A group is bound by the limits of all groups above it, too."""
    place = PurePosixPath(path)
    for above in (place, *place.parents):
        for folder in files.folders:
            # Without a limit there is no file, a word instead of a number, or a number beyond all memory.
            with suppress(OSError, ValueError, KeyError):
                group = groups / folder / above.relative_to("/")
                limit_bytes = int((group / files.limit).read_text())
                if limit_bytes < host_bytes:
                    idle_bytes = _numbers((group / "memory.stat").read_text())[files.stat]
                    used_bytes = int((group / files.usage).read_text()) - idle_bytes
                    yield Room(limit_bytes - used_bytes, limit_bytes)


def _numbers(text: str) -> dict[str, int]:
    """Lines of a name and a number."""
    return {name: int(number) for name, number, *_ in map(str.split, text.splitlines())}
