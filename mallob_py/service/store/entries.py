"""The names of files in a client's folder, and the only parser of them.

In `in/`, names that start with "~" (being written), "." or "#", or end with "~", are ignored. In `journal/`:

    <id>.job.<file>                Claimed: a job file that is ours
    <id>.reply.<target>            Decided: a reply, to be published as `out/<target>`
    <id>.error.<target>            Decided: a reply that refuses the file
    <id>.answer.<chain>.<target>   Decided: the reply of a revision
    <id>.revision.<chain>.<file>   Kept: the submission of a revision that has its reply
    <id>.done.<chain>.<file>       ChainEnd: a file that has ended the chain

A chain is named by the id of its first revision; `journal` says what each state means. Code that handles
entries must match all four classes (`assert_never` checks it).
"""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Iterator
from typing import TypeAlias

import msgspec

_ENTRY = re.compile(
    r"([0-9]{1,19})\.(?:(job|reply|error)|(answer|revision|done)\.([0-9]{1,19}))\.(.+)", re.DOTALL
)
#: prefix of job files written by the web server
_HTTP_PREFIX = "http-"
_REPLY_SUFFIX = ".json"
_REFUSED_FILE_SUFFIX = ".error.json"


def http_file_name(submission: str) -> str:
    """Return the name of the job file of a submission over HTTP."""
    return f"{_HTTP_PREFIX}{submission}.json"


def came_over_http(file_name: str) -> bool:
    """Tell whether the web server wrote this job file."""
    return file_name.startswith(_HTTP_PREFIX)


class Kind(enum.Enum):
    """The kind of a reply: the job ended (dependents may start), or was never accepted."""

    ENDED = "reply"
    REFUSED = "error"
    #: the job ended as a revision of a chain that goes on
    REVISION = "answer"


class Claimed(msgspec.Struct, frozen=True):
    """A claimed file. `file_name`: its name in `in/`, made valid Unicode and short enough."""

    internal_id: int
    file_name: str

    @property
    def entry(self) -> str:
        return f"{self.internal_id}.job.{self.file_name}"


class Kept(msgspec.Struct, frozen=True):
    """The submission of a revision that has its reply."""

    internal_id: int
    file_name: str
    chain: int

    @property
    def entry(self) -> str:
        return f"{self.internal_id}.revision.{self.chain}.{self.file_name}"


class ChainEnd(msgspec.Struct, frozen=True):
    """A file that has ended its chain, kept until nothing else of the chain is left."""

    internal_id: int
    file_name: str
    chain: int

    @property
    def entry(self) -> str:
        return f"{self.internal_id}.done.{self.chain}.{self.file_name}"


class Decided(msgspec.Struct, frozen=True):
    """A reply in the journal that must still be published. `chain`: the chain of a revision, else None.

    `outcome`: the outcome of the job, which is not part of the file's name; "": unknown.
    """

    internal_id: int
    kind: Kind
    target: str
    chain: int | None = None
    outcome: str = ""

    @property
    def entry(self) -> str:
        chain = "" if self.chain is None else f"{self.chain}."
        return f"{self.internal_id}.{self.kind.value}.{chain}{self.target}"

    @property
    def identity(self) -> str:
        """The identity after which the reply is named; no job's identity if a refused file gave the name."""
        return self.target.removesuffix(_REPLY_SUFFIX)

    @property
    def refused_file_name(self) -> str | None:
        """Return the file after which the reply is named, if any. (A job named "error" looks the same.)"""
        if self.kind is Kind.REFUSED and self.target.endswith(_REFUSED_FILE_SUFFIX):
            return self.target.removesuffix(_REFUSED_FILE_SUFFIX)
        return None


Entry: TypeAlias = Claimed | Kept | ChainEnd | Decided


def parse_entry(name: str) -> Entry | None:
    """Return the entry for a name in `journal/`; None: the name is not ours."""
    match = _ENTRY.fullmatch(name)
    if match is None:
        return None
    number, state, state_in_chain, chain, rest = match.groups()
    internal_id = int(number)
    match state or state_in_chain:
        case "job":
            return Claimed(internal_id, rest)
        case "revision":
            return Kept(internal_id, rest, int(chain))
        case "done":
            return ChainEnd(internal_id, rest, int(chain))
        case kind:
            return Decided(internal_id, Kind(kind), rest, None if chain is None else int(chain))


def read_entries(journal_dir: str | os.PathLike[str]) -> Iterator[Entry]:
    """Yield the entries of a journal, unordered; other names are skipped."""
    for name in os.listdir(journal_dir):
        if (entry := parse_entry(name)) is not None:
            yield entry


def reply_name(identity: str) -> str:
    """Return the name of an accepted job's reply in `out/`."""
    return f"{identity}{_REPLY_SUFFIX}"


def refusal_name(file_name: str) -> str:
    """Return the name of the reply to a file that is no job, or that has another job's identity."""
    return f"{file_name}{_REFUSED_FILE_SUFFIX}"


def is_job_file(name: str) -> bool:
    """Tell whether a name in `in/` is a complete file for the service, and no editor's copy."""
    return not (name.startswith(("~", ".", "#")) or name.endswith(("~", "___jb_tmp___", "___jb_old___")))


def is_unfinished(name: str) -> bool:
    """Tell whether a name in `journal/` is of a file still being written."""
    return name.startswith("~")
