"""A client that acts as Mallob's IPASIR bridge, to which programs are linked.

It writes its job files straight into `in/`, under their final names, hands over formulas as raw integers
through named pipes, and reads each reply from a named pipe that it has made at the reply's path (later
releases), or from a file (earlier releases). The bridge opens this pipe for reading after handing over the
formula, removes the pipe after the reply, and makes no further requests. A model is indexed by variable, so
it has an entry at index 0. The bridge never removes a `solution-file`.

To end the wait for a reply, the later releases write a byte of ones to the reply's path when they are
interrupted. When a solver is released, they write this byte, too; if no reply is awaited then, a file of one
byte remains.
"""

import array
import json
import os
import threading
from enum import Enum
from pathlib import Path
from typing import Any

from waiting import DEADLINE_S, poll_until

ASSUMPTIONS_MARK = 2**31 - 1
_USER = "ipasir"
_END_OF_FILE = b"\xff"


class Release(Enum):
    """The releases of the bridge, the earliest first; they read replies in different ways."""

    #: reply from a file; cores as integers in the reply only
    INTEGER_CORES = "integer cores"
    #: reply from a file; cores also from `solution-file`
    FILES = "files"
    #: reply through a pipe, otherwise like FILES
    PIPED = "piped"
    #: reply through a pipe; solutions without a `solution-file` are lines of DIMACS
    STRINGS = "strings"
    #: the last release (STRINGS), compiled without its code for replies through pipes
    STRINGS_UNPIPED = "strings, unpiped"

    @property
    def is_piped(self) -> bool:
        return self in (Release.PIPED, Release.STRINGS)

    @property
    def says_whether_piped(self) -> bool:
        return self.is_piped or self is Release.STRINGS_UNPIPED

    def solution(self, code: int, result: dict[str, Any]) -> list[int]:
        """Return the solution as nlohmann's JSON in C++ reads it: a value of another type is an error."""
        in_reply_only = self is Release.INTEGER_CORES and code == UNSAT
        if "solution-file" in result and not in_reply_only:
            size = result["solution-size"]
            with open(result["solution-file"], "rb") as file:
                raw = file.read(4 * size)
            assert len(raw) == 4 * size, "bytes not read"
            return array.array("i", raw).tolist()
        wants_lines = self in (Release.STRINGS, Release.STRINGS_UNPIPED)
        kind = str if wants_lines else int
        for item in result["solution"]:
            assert type(item) is kind, f"type must be {kind.__name__}, but is {type(item).__name__}"
        return list(result["solution"]) if not wants_lines else _of_lines(result["solution"])


def _of_lines(lines: list[str]) -> list[int]:
    """Return the literals of lines such as `v 1 -2 0`, each at the index of its variable."""
    literals = [int(word) for line in lines for word in line.split()[1:] if word != "0"]
    model = [0] * (max(map(abs, literals), default=0) + 1)
    for literal in literals:
        model[abs(literal)] = literal
    return model


SAT, UNSAT, UNKNOWN = 10, 20, 0


class IpasirBridge:
    """One solver. `ends_clauses_with`: the separator of clauses and assumptions in the solver's release."""

    def __init__(
        self,
        client_dir: Path,
        pipes: Path,
        number: int = 0,
        *,
        incremental: bool = True,
        release: Release = Release.PIPED,
        ends_clauses_with: int = ASSUMPTIONS_MARK,
    ) -> None:
        self._client_dir = client_dir
        self._pipes = pipes
        self._number = number
        self._incremental = incremental
        self._release = release
        self._ends_clauses_with = ends_clauses_with
        self._formula: list[int] = []
        self._assumptions: list[int] = []
        self.revision = 0
        self.model: list[int] = []
        self.failed: set[int] = set()

    def add(self, *clause: int) -> None:
        self._formula += [*clause, 0]

    def assume(self, literal: int) -> None:
        self._assumptions.append(literal)

    def solve(self, *, terminates: bool = False) -> int:
        """Return 10, 20 or 0. `terminates`: the user interrupts the solver at once."""
        name = self._name(self.revision)
        pipe = self._pipes / f"ipasir_mallob_{os.getpid()}_{self._number}_{self.revision}.pipe"
        os.mkfifo(pipe)
        job: dict[str, Any] = {
            "user": _USER,
            "name": name,
            "application": "SAT",
            "files": [str(pipe)],
            "priority": 1.0,
            "wallclock-limit": "0",
            "cpu-limit": "0",
            "incremental": self._incremental,
            "content-mode": "raw",
        }
        reply_path = self._client_dir / "out" / f"{_USER}.{name}.json"
        if self._release.says_whether_piped:
            job["piped-response"] = self._release.is_piped
        if self._release.is_piped:
            os.mkfifo(reply_path, 0o777)
        if self._incremental and self.revision:
            job["precursor"] = f"{_USER}.{self._name(self.revision - 1)}"
        self._write(job, f"{_USER}.{name}.json")
        within_time(lambda: pipe.write_bytes(self._content()), "the formula is read")
        if terminates:
            stop = {"user": _USER, "name": name, "application": "SAT"}
            stop |= {"incremental": self._incremental, "interrupt": True}
            self._write(stop, f"{_USER}.{name}.interrupt.json")
        reply = self._reply(reply_path, is_interrupted=terminates and self._release.is_piped)
        self.revision += 1
        if self._incremental:
            self._formula, self._assumptions = [], []
        self.model, self.failed = [], set()
        return UNKNOWN if reply is None else self._take(reply["result"])

    def _reply(self, path: Path, *, is_interrupted: bool) -> dict[str, Any] | None:
        """Return the reply; None: the file is no reply, and stays."""
        if not self._release.is_piped:
            poll_until(path.exists, f"{path}")
        if is_interrupted:
            waker = threading.Thread(target=lambda: path.write_bytes(_END_OF_FILE), daemon=True)
            waker.start()
        content = within_time(path.read_bytes, f"a reply comes to {path}")
        try:
            reply: dict[str, Any] = json.loads(content)
        except ValueError:
            return None
        path.unlink()
        return reply

    def value(self, literal: int) -> int:
        """Return the model's entry for a variable, with the literal's sign, as the bridge does."""
        return (-1 if literal < 0 else 1) * self.model[abs(literal)]

    def release(self) -> None:
        if self.revision and self._incremental:
            name = self._name(self.revision)
            end = {"user": _USER, "name": name, "application": "SAT", "incremental": True, "done": True}
            end["precursor"] = f"{_USER}.{self._name(self.revision - 1)}"
            self._write(end, f"{_USER}.{name}.json")
        if self.revision and self._release.is_piped:
            (self._client_dir / "out" / f"{_USER}.{self._name(self.revision)}.json").write_bytes(_END_OF_FILE)

    def _name(self, revision: int) -> str:
        return f"job-{os.getpid()}_{self._number}-{revision}"

    def _content(self) -> bytes:
        integers = list(self._formula)
        if self._incremental:
            integers += [self._ends_clauses_with, *self._assumptions, 0]
        else:  # assumptions as unit clauses
            integers += [one for literal in self._assumptions for one in (literal, 0)]
            integers += [self._ends_clauses_with, 0]
        return array.array("i", integers).tobytes()

    def _write(self, job: dict[str, Any], file_name: str) -> None:
        with open(self._client_dir / "in" / file_name, "w") as file:
            json.dump(job, file, indent=4)
            file.write("\n")

    def _take(self, result: dict[str, Any]) -> int:
        code: int = result["resultcode"]
        if code == SAT:
            self.model = self._release.solution(code, result)
        elif code == UNSAT:
            self.failed = set(self._release.solution(code, result)) - {0}
        return code


def within_time(function: Any, what: str) -> Any:
    """Return the result of a function that may block."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()), daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    assert results, f"not in time: {what}"
    return results[0]
