"""A client that does what Mallob's IPASIR bridge does, which people link their programs with.

It writes its job files straight into `in/`, under their final names, hands over formulas as raw
integers through named pipes, and reads each reply from a named pipe that it has made where the reply
will be (its later releases), or from a file (its earlier ones). It opens that pipe for reading when it
has handed over the formula, removes it when it has the reply, and asks nothing else of anybody.
A model is indexed by variable, so something stands at index 0.
"""

from __future__ import annotations

import array
import json
import os
import threading
from pathlib import Path
from typing import Any

from waiting import DEADLINE_S, poll_until

ASSUMPTIONS_MARK = 2**31 - 1
_USER = "ipasir"


class IpasirBridge:
    """One solver. `ends_clauses_with`: what stands between clauses and assumptions in its release."""

    def __init__(
        self,
        client_dir: Path,
        pipes: Path,
        number: int = 0,
        *,
        incremental: bool = True,
        has_piped_replies: bool = True,
        ends_clauses_with: int = ASSUMPTIONS_MARK,
    ) -> None:
        self._client_dir = client_dir
        self._pipes = pipes
        self._number = number
        self._incremental = incremental
        self._has_piped_replies = has_piped_replies
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
        """10, 20 or 0. `terminates`: its user wants it to end as soon as it has begun."""
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
        if self._has_piped_replies:
            job["piped-response"] = True
            os.mkfifo(reply_path, 0o777)
        if self._incremental and self.revision:
            job["precursor"] = f"{_USER}.{self._name(self.revision - 1)}"
        self._write(job, f"{_USER}.{name}.json")
        within_time(lambda: pipe.write_bytes(self._content()), "the formula is read")
        if terminates:
            stop = {"user": _USER, "name": name, "application": "SAT"}
            stop |= {"incremental": self._incremental, "interrupt": True}
            self._write(stop, f"{_USER}.{name}.interrupt.json")
        if not self._has_piped_replies:
            poll_until(reply_path.exists, f"{reply_path}")
        reply = json.loads(within_time(reply_path.read_bytes, f"a reply comes to {reply_path}"))
        reply_path.unlink()
        self.revision += 1
        if self._incremental:
            self._formula, self._assumptions = [], []
        return self._take(reply["result"])

    def value(self, literal: int) -> int:
        """As the bridge has it: the variable's entry of the model, with the literal's sign."""
        return (-1 if literal < 0 else 1) * self.model[abs(literal)]

    def release(self) -> None:
        if self.revision and self._incremental:
            name = self._name(self.revision)
            end = {"user": _USER, "name": name, "application": "SAT", "incremental": True, "done": True}
            end["precursor"] = f"{_USER}.{self._name(self.revision - 1)}"
            self._write(end, f"{_USER}.{name}.json")

    def _name(self, revision: int) -> str:
        return f"job-{os.getpid()}_{self._number}-{revision}"

    def _content(self) -> bytes:
        integers = list(self._formula)
        if self._incremental:
            integers += [self._ends_clauses_with, *self._assumptions, 0]
        else:  # assumptions are clauses for good
            integers += [one for literal in self._assumptions for one in (literal, 0)]
            integers += [self._ends_clauses_with, 0]
        return array.array("i", integers).tobytes()

    def _write(self, job: dict[str, Any], file_name: str) -> None:
        with open(self._client_dir / "in" / file_name, "w") as file:
            json.dump(job, file, indent=4)
            file.write("\n")

    def _take(self, result: dict[str, Any]) -> int:
        code: int = result["resultcode"]
        integers = result.get("solution", [])
        if "solution-file" in result:
            raw = array.array("i")
            with open(result["solution-file"], "rb") as file:
                raw.fromfile(file, result["solution-size"])
            integers = raw.tolist()
        self.model = integers if code == 10 else []
        self.failed = set(integers) if code == 20 else set()
        return code


def within_time(function: Any, what: str) -> Any:
    """What a function that may block returns."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()), daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    assert results, f"not in time: {what}"
    return results[0]
