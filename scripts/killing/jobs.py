"""Jobs of all kinds whose right answers are known, and what is checked of each reply.

A client that keeps nothing: some replies are removed from `out/` as soon as they are read.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from soaking.jobs import Formulas, satisfies
from soaking.processes import Wrong

from mallob_sat.generate import Formula

USER = "kill"
CHAIN_LENGTH_MAX = 6
REMOVED_SHARE = 0.3


@dataclass(slots=True)
class Expected:
    """A reply that must come: what it may say, and after which other replies."""

    name: str
    #: of these, (outcome, resultcode)
    answers: tuple[tuple[str, int], ...]
    formula: Formula | None = None
    after: tuple[str, ...] = ()
    #: of a revision: its number, and its chain
    revision: int = 0
    chain: Chain | None = None
    signature: tuple[int, int] | None = None
    is_removed: bool = False


@dataclass(slots=True)
class Chain:
    """Revision k adds the clause k -> k + 1; the first one says 1. So each answer needs all of them."""

    number: int
    length: int
    names: list[str] = field(default_factory=list)
    internal_id: int | None = None


class Jobs:
    """Hands in jobs, and takes down every reply when it is first seen."""

    KINDS: tuple[tuple[str, int], ...] = (
        ("noop", 2), ("sleep", 2), ("formula", 5), ("dependent", 4), ("chain", 6), ("interrupted", 3),
        ("refused", 1),
    )  # fmt: skip

    def __init__(self, box: Path, folder: Path, rng: random.Random) -> None:
        self._box = box
        self._rng = rng
        self._formulas = Formulas(folder, rng)
        self._expected: dict[str, Expected] = {}
        #: replies of these names may come as well, once: interruptions of what has ended meanwhile
        self._possible: dict[str, tuple[int, int] | None] = {}
        self._chains: list[Chain] = []
        self._chain_count = 0
        self._number = 0
        self._mtimes_ns: dict[str, int] = {}
        self.outcomes: Counter[str] = Counter()

    # --- handing in -----------------------------------------------------------------------------------

    def submit(self) -> None:
        kinds, weights = zip(*self.KINDS, strict=True)
        (kind,) = self._rng.choices(kinds, weights)
        self._number += 1
        name = f"{kind}-{self._number}"
        match kind:
            case "chain":
                self._go_on_with_a_chain()
            case "interrupted":
                self._submit(Expected(name, (("interrupted", 0),)), {"application": "SLEEP"})
                self._interrupt(name)
            case "refused":
                self._submit(Expected(name, (("refused", 0),)), {"application": "NOOP", "priority": 0})
            case "dependent":
                candidates = [one.name for one in self._expected.values() if one.answers != (("refused", 0),)]
                after = tuple(self._rng.sample(candidates, min(len(candidates), self._rng.randint(1, 3))))
                identities = [f"{USER}.{one}" for one in after]
                expected = Expected(name, (("result", 10),), after=after)
                self._submit(expected, {"application": "NOOP", "dependencies": identities})
            case "noop":
                self._submit(Expected(name, (("result", 10),)), {"application": "NOOP"})
            case "sleep":
                fields = {"application": "SLEEP", "wallclock-limit": f"{self._rng.choice((1, 200, 1000))}ms"}
                self._submit(Expected(name, (("wallclock-limit", 0),)), fields)
            case _:
                formula, code, path = self._rng.choice(self._formulas.known)
                self._submit(Expected(name, (("result", code),), formula), {"files": [str(path)]})

    def end_chains(self) -> None:
        """So that nothing of them is kept in the journal."""
        for chain in self._chains:
            self._end(chain)
        self._chains.clear()

    def _submit(self, expected: Expected, fields: dict[str, Any]) -> None:
        self._expected[f"{USER}.{expected.name}.json"] = expected
        if self._rng.random() < 0.5:
            fields["max-demand"] = 1
        self._drop(f"{self._number}-{expected.name}.json", {"user": USER, "name": expected.name, **fields})

    def _drop(self, file_name: str, fields: dict[str, Any]) -> None:
        hidden = self._box / "in" / f"~{file_name}"
        hidden.write_text(json.dumps(fields))
        hidden.rename(hidden.with_name(file_name))

    def _interrupt(self, name: str) -> None:
        file_name = f"{self._number}-{name}-stop.json"
        self._possible[f"{file_name}.error.json"] = None
        self._drop(file_name, {"user": USER, "name": name, "interrupt": True})

    def _go_on_with_a_chain(self) -> None:
        if not self._chains or (len(self._chains) < 4 and self._rng.random() < 0.3):
            self._chain_count += 1
            self._chains.append(Chain(self._chain_count, self._rng.randint(1, CHAIN_LENGTH_MAX)))
        chain = self._rng.choice(self._chains)
        number = len(chain.names)
        if number == chain.length:
            self._end(chain)
            self._chains.remove(chain)
            return
        clauses = [(1,), *((-k, k + 1) for k in range(1, number + 1))]
        name = f"chain-{chain.number}-{number}"
        is_unsat = self._rng.random() < 0.5
        fields: dict[str, Any] = {
            "incremental": True,
            "literals": [1, 0] if number == 0 else [-number, number + 1, 0],
            "assumptions": [-(number + 1)] if is_unsat else [],
        }
        after: tuple[str, ...] = ()
        if number:
            fields["precursor"] = f"{USER}.{chain.names[-1]}"
            after = (chain.names[-1],)
        chain.names.append(name)
        answers: tuple[tuple[str, int], ...] = (("result", 20 if is_unsat else 10),)
        is_interrupted = self._rng.random() < 0.1
        if is_interrupted:
            answers, after = (*answers, ("interrupted", 0)), ()
        self._submit(Expected(name, answers, Formula(number + 1, clauses), after, number, chain), fields)
        if is_interrupted:
            self._interrupt(name)

    def _end(self, chain: Chain) -> None:
        if chain.names:
            name = f"chain-{chain.number}-done"
            fields = {"user": USER, "name": name, "incremental": True, "done": True}
            self._number += 1
            self._drop(f"{self._number}-{name}.json", fields | {"precursor": f"{USER}.{chain.names[-1]}"})

    # --- replies --------------------------------------------------------------------------------------

    def look(self) -> int:
        """How many replies are missing. Raises Wrong for one that is wrong, unexpected or not the first."""
        present: dict[str, os.stat_result] = {}
        for entry in os.scandir(self._box / "out"):
            with contextlib.suppress(FileNotFoundError):
                present[entry.name] = entry.stat()
        for name, status in sorted(present.items(), key=lambda one: one[1].st_mtime_ns):
            signature = (status.st_ino, status.st_mtime_ns)
            if name in self._possible:
                self._check_refused_interruption(name, signature)
                continue
            if (expected := self._expected.get(name)) is None:
                raise Wrong(f"unexpected in out/: {name}: {self._content(name)}")
            if expected.signature is None:
                expected.signature = signature
                self._mtimes_ns[expected.name] = status.st_mtime_ns
                self._check(name, expected)
                if self._rng.random() < REMOVED_SHARE:
                    expected.is_removed = True
                    (self._box / "out" / name).unlink()
            elif expected.is_removed or expected.signature != signature:
                raise Wrong(f"{name} was replied to twice")
        for name, expected in self._expected.items():
            if expected.signature is not None and not expected.is_removed and name not in present:
                raise Wrong(f"vanished from out/: {name}")
        return len(self.missing())

    def missing(self) -> list[str]:
        return [name for name, expected in self._expected.items() if expected.signature is None]

    @property
    def count(self) -> int:
        return len(self._expected)

    def _content(self, name: str) -> str:
        return (self._box / "out" / name).read_text()[:1000]

    def _check_refused_interruption(self, name: str, signature: tuple[int, int]) -> None:
        """Only that it was too late, and once: the job had its reply."""
        known = self._possible[name]
        if known not in (None, signature):
            raise Wrong(f"{name} was replied to twice")
        if known is None and "no live job" not in self._content(name):
            raise Wrong(f"{name}: {self._content(name)}")
        self._possible[name] = signature

    def _check(self, name: str, expected: Expected) -> None:
        reply = json.loads((self._box / "out" / name).read_bytes())
        result = reply.get("result", {"outcome": "refused", "resultcode": 0})
        answer = (result["outcome"], result["resultcode"])
        if answer not in expected.answers:
            raise Wrong(f"{name}: expected {expected.answers}, got {json.dumps(reply)[:1000]}")
        if (
            expected.formula is not None
            and answer[1] == 10
            and not satisfies(expected.formula, result["solution"])
        ):
            raise Wrong(f"{name}: the model does not satisfy the formula")
        for other in expected.after:
            if self._answered_ns(other) > self._mtimes_ns[expected.name]:
                raise Wrong(f"{name} was answered before {other}, which it had to wait for")
        if (chain := expected.chain) is not None:
            if chain.internal_id is None:
                chain.internal_id = reply["internal_id"]
            place = (reply["internal_id"], reply["internal_revision"])
            if place != (chain.internal_id, expected.revision):
                raise Wrong(f"{name}: has id and revision {place}, expected {chain.internal_id}")
        self.outcomes[f"{answer[0]} {answer[1]}"] += 1

    def _answered_ns(self, name: str) -> int:
        """When that reply was written. A listing may have missed one that came while it was made."""
        if (seen := self._mtimes_ns.get(name)) is not None:
            return seen
        try:
            return (self._box / "out" / f"{USER}.{name}.json").stat().st_mtime_ns
        except FileNotFoundError:
            return 1 << 63

    def left(self) -> list[str]:
        """What is not dealt with: files of jobs, and of chains whose end has no reply."""
        return [f"{part}/{name}" for part in ("in", "journal") for name in os.listdir(self._box / part)]

    def check_nothing_left(self) -> None:
        if left := self.left():
            raise Wrong(f"left: {left[:10]}")
