"""Which jobs have no reply yet, seen from outside: from a client's folder alone, service or not.

A job file goes from `in/` to `journal/`, and from there its reply to `out/`, always by renames (see
`journal`). Looked at in this order no job is missed: who is in neither place has its reply.
The identity of a job stands in its file, which is read once.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, assert_never

from mallob_py.service.entries import (
    ChainEnd,
    Claimed,
    Decided,
    Kept,
    is_job_file,
    is_unfinished,
    parse_entry,
)
from mallob_py.service.job_file import identity_of

_TRIES = 10


@dataclass(frozen=True, slots=True)
class Pending:
    """Jobs without a reply: the names of their job files, and their identities."""

    file_names: frozenset[str]
    identities: frozenset[str]


class _File(NamedTuple):
    """A job file; it keeps its inode and time on its way."""

    name: str
    signature: tuple[int, int]


class PendingJobs:
    """Of one client. `look` costs two listings and the reading of files that are new."""

    def __init__(self, client_dir: Path) -> None:
        self._in_dir = client_dir / "in"
        self._journal_dir = client_dir / "journal"
        #: file -> identity, "" for what is no job
        self._known: dict[_File, str] = {}

    def look(self) -> Pending:
        for _ in range(_TRIES - 1):
            try:
                return self._look()
            except FileNotFoundError:
                continue  # a file has moved on under our eyes; what is known stays known
        return self._look()

    def _look(self) -> Pending:
        still_known: dict[_File, str] = {}
        leaving_names: set[str] = set()
        leaving_identities: set[str] = set()
        for name, signature in _entries(self._in_dir):
            if is_job_file(name):
                file = _File(name, signature)
                still_known[file] = self._identity(file, self._in_dir / name)
        # Twice, as a listing may miss a reply that appears in its place behind what was listed already.
        journal = dict([*_entries(self._journal_dir), *_entries(self._journal_dir)])
        for own_name, signature in journal.items():
            match entry := parse_entry(own_name):
                case Claimed():
                    file = _File(entry.file_name, signature)
                    still_known[file] = self._identity(file, self._journal_dir / entry.entry)
                case Decided():
                    if (refused := entry.refused_file_name) is not None:
                        leaving_names.add(refused)
                    leaving_identities.add(entry.identity)
                case Kept() | ChainEnd() | None:
                    pass  # it has its reply, or gets none
                case other:
                    assert_never(other)
        self._known = still_known
        identities = {identity for identity in still_known.values() if identity} | leaving_identities
        return Pending(frozenset({file.name for file in still_known} | leaving_names), frozenset(identities))

    def _identity(self, file: _File, path: Path) -> str:
        known = self._known.get(file)
        if known is None:
            known = self._known[file] = _identity_in(path)
        return known


def _identity_in(path: Path) -> str:
    """Raises FileNotFoundError."""
    try:
        fields = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError):
        return ""
    if not isinstance(fields, dict) or fields.get("interrupt") is True:
        return ""
    return identity_of(str(fields.get("user", "")), str(fields.get("name", "")))


def _entries(folder: Path) -> list[tuple[str, tuple[int, int]]]:
    """Names with inode and time, without what is being written. Raises FileNotFoundError."""
    try:
        entries = os.scandir(folder)
    except FileNotFoundError:
        return []
    with entries:
        found = []
        for entry in entries:
            if not is_unfinished(entry.name):
                status = entry.stat(follow_symlinks=False)
                found.append((entry.name, (status.st_ino, status.st_mtime_ns)))
        return found
