"""The journal of one client: every job file gets exactly one reply, whatever dies when.

A file's way is a chain of atomic renames within `jobs.<i>/`, each state visible in a name:

    in/<file>                    the client's
    journal/<id>.job.<file>      ours: claimed, not yet replied to
    journal/<id>.reply.<target>  the reply is decided ("error" instead of "reply": a refusal)
    out/<target>                 the reply is published

The submission of a revision is kept after its reply, until its chain (named by the id of its
first revision) ends, for later revisions add to it:

    journal/<id>.answer.<chain>.<target>   its reply is decided
    journal/<id>.revision.<chain>.<file>   it has its reply (or will have: see above)
    journal/<id>.done.<chain>.<file>       this file, ours, has ended the chain: nothing of it counts

Between the second and the third state both files exist for a moment; the reply wins. At a
restart `recover` finishes replies and gives back claimed files, to be run again. Names that
start with "~" are being written and worth nothing. Guarded against is the death of
processes (kill -9), not the loss of power: nothing is flushed to the medium.
All methods may raise OSError, and may then be called again: each step can be repeated.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mallob_py.service.finished import FinishedLog
from mallob_py.service.reply import Reply

_ENTRY = re.compile(r"([0-9]{1,19})\.(job|reply|error|answer|revision|done)\.(.+)", re.DOTALL)
_CHAIN = re.compile(r"([0-9]{1,19})\.(.+)", re.DOTALL)
_FILE_NAME_SIZE_MAX = 200  # leaves room for id, state and suffix within the 255 bytes of a name


class Kind(enum.Enum):
    """What a reply says of its job: it ended (dependents may start), or it was never accepted."""

    ENDED = "reply"
    REFUSED = "error"
    #: it ended, as a revision of a chain that goes on
    REVISION = "answer"


@dataclass(frozen=True, slots=True)
class Claimed:
    """A file that is ours. `file_name` is its name in `in/`, made valid Unicode and not too long."""

    internal_id: int
    file_name: str

    @property
    def entry(self) -> str:
        return f"{self.internal_id}.job.{self.file_name}"


@dataclass(frozen=True, slots=True)
class Kept:
    """The submission of a revision that has had its reply."""

    internal_id: int
    file_name: str
    chain: int

    @property
    def entry(self) -> str:
        return f"{self.internal_id}.revision.{self.chain}.{self.file_name}"


@dataclass(frozen=True, slots=True)
class Decided:
    """A reply in the journal that still has to be published. `chain`: of a revision, else None."""

    internal_id: int
    kind: Kind
    target: str
    chain: int | None = None

    @property
    def entry(self) -> str:
        chain = "" if self.chain is None else f"{self.chain}."
        return f"{self.internal_id}.{self.kind.value}.{chain}{self.target}"


class Journal:
    """The folders `in`, `journal`, `out` and `refused` of a client."""

    def __init__(self, client_dir: Path, finished: FinishedLog) -> None:
        self.in_dir = client_dir / "in"
        self.out_dir = client_dir / "out"
        self._dir = client_dir / "journal"
        self._refused_dir = client_dir / "refused"
        # Strings, as pathlib would take a third of the time of a small job's reply.
        self._in, self._out, self._own = (os.fspath(d) for d in (self.in_dir, self.out_dir, self._dir))
        self._finished = finished
        self._claimed: dict[int, Claimed] = {}
        #: by chain, in the order of their ids
        self._kept: dict[int, list[Kept]] = {}

    def create(self) -> None:
        for directory in (self._dir, self.out_dir, self.in_dir):
            directory.mkdir(parents=True, exist_ok=True)

    def path(self, claimed: Claimed | Kept) -> str:
        return f"{self._own}/{claimed.entry}"

    def claim(self, file_name: str, internal_id: int) -> Claimed:
        """Make a file of `in/` ours. FileNotFoundError: its owner took it back."""
        claimed = Claimed(internal_id, _fitting(file_name))
        os.rename(f"{self._in}/{file_name}", self.path(claimed))
        self._claimed[internal_id] = claimed
        return claimed

    def decide(self, decided: Decided, reply: Reply) -> None:
        """From now on this is the reply, also after a crash."""
        if reply.solution_path is not None:
            self._write(os.fspath(reply.solution_path), reply.solution, decided.internal_id)
        self._write(f"{self._own}/{decided.entry}", reply.body, decided.internal_id)

    def publish(self, decided: Decided) -> None:
        """Let the client see a decided reply."""
        if decided.chain is None:
            self.dismiss(decided.internal_id)
        else:
            self._keep(decided.internal_id, decided.chain)
        if decided.kind is not Kind.REFUSED:
            self._finished.append(decided.target.removesuffix(".json"))
        source, target = f"{self._own}/{decided.entry}", f"{self._out}/{decided.target}"
        try:
            os.replace(source, target)
        except FileNotFoundError:  # somebody has removed `out/`
            self.out_dir.mkdir(exist_ok=True)
            os.replace(source, target)

    def dismiss(self, internal_id: int) -> None:
        """Forget a claimed file. What is not a file is kept aside, as it may be worth something."""
        claimed = self._claimed.get(internal_id)
        if claimed is None:
            return
        path = self.path(claimed)
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass  # an earlier try came this far
        except (IsADirectoryError, PermissionError):
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                raise
            self._refused_dir.mkdir(exist_ok=True)
            os.rename(path, self._refused_dir / f"{internal_id}.{claimed.file_name}")
        del self._claimed[internal_id]

    def _keep(self, internal_id: int, chain: int) -> None:
        """A claimed file becomes what later revisions add to."""
        claimed = self._claimed.get(internal_id)
        if claimed is None:
            return
        kept = Kept(internal_id, claimed.file_name, chain)
        os.rename(self.path(claimed), self.path(kept))
        self._kept.setdefault(chain, []).append(kept)
        del self._claimed[internal_id]

    def end_chain(self, chain: int, internal_id: int | None) -> None:
        """Forget all revisions of a chain, and the file that says so, if one does."""
        claimed = self._claimed.get(internal_id) if internal_id is not None else None
        done = ""
        if claimed is not None:
            done = f"{self._own}/{claimed.internal_id}.done.{chain}.{claimed.file_name}"
            os.rename(self.path(claimed), done)
            del self._claimed[claimed.internal_id]
        kept = self._kept.get(chain, [])
        while kept:  # the last one first, so that what is left is a chain
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path(kept[-1]))
            kept.pop()
        self._kept.pop(chain, None)
        if done:
            os.unlink(done)

    def kept(self) -> list[Kept]:
        """The submissions of revisions of live chains, by id."""
        return sorted(
            (one for chain in self._kept.values() for one in chain), key=lambda one: one.internal_id
        )

    def recover(self) -> tuple[list[Claimed], list[Decided]]:
        """What a former service left: files to run again and replies to publish, by id."""
        claimed: list[Claimed] = []
        decided: list[Decided] = []
        kept: list[Kept] = []
        done: list[tuple[int, str]] = []
        for name in sorted(os.listdir(self._dir)):
            if name.startswith("~"):
                os.unlink(self._dir / name)
        for internal_id, kind, rest in journal_entries(self._dir):
            if kind == "job":
                claimed.append(Claimed(internal_id, rest))
            elif kind in ("reply", "error"):
                decided.append(Decided(internal_id, Kind(kind), rest))
            elif match := _CHAIN.fullmatch(rest):
                chain, name = int(match[1]), match[2]
                if kind == "answer":
                    decided.append(Decided(internal_id, Kind.REVISION, name, chain))
                elif kind == "revision":
                    kept.append(Kept(internal_id, name, chain))
                else:
                    done.append((chain, f"{self._own}/{internal_id}.{kind}.{rest}"))
        kept.sort(key=lambda entry: entry.internal_id)
        for entry in kept:
            self._kept.setdefault(entry.chain, []).append(entry)
        for chain, path in done:
            self.end_chain(chain, None)
            os.unlink(path)
        self._claimed = {entry.internal_id: entry for entry in claimed}
        replied = {entry.internal_id for entry in decided}
        claimed = [entry for entry in claimed if entry.internal_id not in replied]
        return (
            sorted(claimed, key=lambda entry: entry.internal_id),
            sorted(decided, key=lambda entry: entry.internal_id),
        )

    def _write(self, path: str, data: bytes, internal_id: int) -> None:
        temporary = f"{self._own}/~{internal_id}"
        write_file(temporary, data)
        os.replace(temporary, path)


def journal_entries(journal_dir: Path) -> Iterator[tuple[int, str, str]]:
    """(internal id, state, rest of the name) of all entries; strangers are passed over."""
    for name in os.listdir(journal_dir):
        if match := _ENTRY.fullmatch(name):
            yield int(match[1]), match[2], match[3]


def write_file(path: str | Path, data: bytes) -> None:
    """Write all of a new file, or raise OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
    finally:
        os.close(descriptor)


def _fitting(file_name: str) -> str:
    """The name if it is valid Unicode and short enough, else something like it that is."""
    file_name = file_name.encode("utf-8", "backslashreplace").decode()
    encoded = file_name.encode()
    if len(encoded) <= _FILE_NAME_SIZE_MAX:
        return file_name
    digest = hashlib.sha256(encoded).hexdigest()[:16]
    return encoded[: _FILE_NAME_SIZE_MAX - 17].decode("utf-8", "ignore") + "-" + digest
