"""Finds the files of jobs that somebody speaks of before their turn.

Nothing in a file's name says which job it is, so each file that waits is looked into, a bounded number of
them per call. One pass serves all that are asked for before it begins; who asks later waits for the next.
"""

from __future__ import annotations

import codecs
import heapq
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

import msgspec

from mallob_py.service.jobs.job_file import identity_of
from mallob_py.service.store.journal import contents_of_file

#: per call; small files are many, large ones take long
_FILES_AT_ONCE = 128
_BYTES_AT_ONCE = 1 << 20
#: of one identity: all but the first will be refused
_OF_ONE_MAX = 64

_Name = TypeVar("_Name")
_Asker = TypeVar("_Asker")


class _Identified(msgspec.Struct):
    user: str = ""
    name: str = ""
    interrupt: object = False


class Candidate(NamedTuple, Generic[_Name]):
    """A file that may be that of a job which is asked for. `is_new`: its time is when it was handed in."""

    name: _Name
    path: str
    is_new: bool


class _Question(NamedTuple, Generic[_Asker]):
    due_s: float
    identity: str
    until_s: float
    asker: _Asker


class Findings(NamedTuple, Generic[_Name, _Asker]):
    """The names of the files that a pass has found, oldest first, and who had asked for them."""

    names: list[_Name]
    questions: list[_Question[_Asker]]


class FileSearch(Generic[_Name, _Asker]):
    """Searches among files, each of which has a name and is asked for by somebody."""

    def __init__(self, candidates: Callable[[], Iterable[Candidate[_Name]]], size_max_bytes: int) -> None:
        """`candidates`: yields the files of the moment when the first is asked for, of each of which so many
        bytes are read.
        """
        self._candidates = candidates
        self._size_max_bytes = size_max_bytes
        self._questions: list[_Question[_Asker]] = []
        #: of the pass that is under way
        self._left: Iterator[Candidate[_Name]] | None = None
        self._asked: list[_Question[_Asker]] = []
        self._until_s: dict[str, float] = {}
        self._found: dict[str, list[tuple[int, int, _Name]]] = {}
        self._count = itertools.count()
        #: when `go_on` is to be called at the latest
        self.deadline_s = math.inf

    def ask(self, identity: str, until_s: float, asker: _Asker, due_s: float = -math.inf) -> None:
        """Ask for a job's files, new ones as far as they were handed in by `until_s` (since 1970).

        The pass begins at `due_s` at the earliest.
        """
        self._questions.append(_Question(due_s, identity, until_s, asker))
        self.deadline_s = min(self.deadline_s, due_s)

    def go_on(self, now: float) -> Findings[_Name, _Asker] | None:
        """Look into some files; return what was found when all have been looked into."""
        if self._left is None:
            self._asked = [question for question in self._questions if question.due_s <= now]
            if not self._asked:
                return None
            self._questions = [question for question in self._questions if question.due_s > now]
            self._until_s = {}
            for question in self._asked:
                until_s = max(question.until_s, self._until_s.get(question.identity, 0.0))
                self._until_s[question.identity] = until_s
            self._found = {identity: [] for identity in self._until_s}
            self._left = iter(self._candidates())
            self.deadline_s = -math.inf
        bytes_left = _BYTES_AT_ONCE
        for _ in range(_FILES_AT_ONCE):
            if bytes_left <= 0:
                break
            if (candidate := next(self._left, None)) is None:
                self._left = None
                self.deadline_s = min((question.due_s for question in self._questions), default=math.inf)
                found = sorted(each for files in self._found.values() for each in files[:_OF_ONE_MAX])
                return Findings([name for _, _, name in found], self._asked)
            bytes_left -= self._look_into(candidate)
        return None

    def _look_into(self, candidate: Candidate[_Name]) -> int:
        """Return the bytes that were read."""
        data = b""
        try:
            changed_ns = os.lstat(candidate.path).st_ctime_ns
            data = contents_of_file(candidate.path, self._size_max_bytes)
            said = msgspec.json.decode(data.removeprefix(codecs.BOM_UTF8), type=_Identified)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return len(data)  # it has gone, cannot be read, or is no job
        identity = identity_of(said.user, said.name)
        found = self._found.get(identity)
        if found is None or said.interrupt is True:
            return len(data)
        if not candidate.is_new or changed_ns / 1e9 <= self._until_s[identity]:
            found.append((changed_ns, next(self._count), candidate.name))
            if len(found) > 2 * _OF_ONE_MAX:
                found[:] = heapq.nsmallest(_OF_ONE_MAX, found)
        return len(data)
