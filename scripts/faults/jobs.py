"""Random jobs of all kinds, and their permitted replies.

Every job ends by itself, by a limit or by an interruption, so a missing reply is lost. Each reply is recorded
when it is first seen: afterwards it must not change, nor appear again once it is removed.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.foreign import is_foreign
from faults.processes import Wrong
from faults.service import DEADLINE_S, Service
from faults.strikes import draw
from mallob_sat.generate import Formula, parity, pigeonhole, planted

USER = "chaos"
CHAIN_LENGTH_MAX = 6
#: part of some names, which not every terminal can print
ODD_NAME = "größe-"
#: number of tasks of a bag of large tasks, and the size of each task
LARGE_TASKS, LARGE_TASK_BYTES = 60, 300_000
#: words in the messages of failures that the campaign's kills cause
KILL_WORDS = ("signal 9", "SIGKILL", "fork server ended", "ended early", "died")

Answer = tuple[str, int]
DONE: Answer = ("result", 10)
INTERRUPTED: Answer = ("interrupted", 0)
REFUSED: Answer = ("refused", 0)
FAILED: Answer = ("failed", 0)
TIMED_OUT: Answer = ("wallclock-limit", 0)
_ENDLESS = {"application": "SLEEP", "wallclock-limit": "60s"}

Fields = Callable[[random.Random], dict[str, Any]]
#: kind of job that needs no further steps -> function that makes the job's fields, its permitted answer
PLAIN: Mapping[str, tuple[Fields, Answer]] = {
    "noop": (lambda rng: {"application": "NOOP"}, DONE),
    "wallclock": (
        lambda rng: _ENDLESS | {"wallclock-limit": f"{rng.choice((1, 30, 200, 1000))}ms"},
        TIMED_OUT,
    ),
    "cpu": (
        lambda rng: {"application": "SLEEP", "cpu-limit": f"{rng.choice((1, 30, 300))}ms"},
        ("cpu-limit", 0),
    ),
    "arriving": (lambda rng: {"application": "NOOP", "arrival": rng.uniform(0, 30)}, DONE),
    "large bag": (
        lambda rng: {
            "application": "LARGE",
            "configuration": {
                "naps": LARGE_TASKS,
                "nap_s": rng.choice((0.002, 0.03)),
                "bytes_each": LARGE_TASK_BYTES,
            },
        },
        ("result", 1),
    ),
    "missing": (lambda rng: {"files": ["/does/not/exist.cnf"]}, FAILED),
    "refused": (lambda rng: {"application": "NOOP", "priority": 0}, REFUSED),
    "failing": (
        lambda rng: {
            "application": "FAIL",
            "configuration": {
                "how": rng.choice(("raise", "segfault", "exit", "kill")),
                "where": rng.choice(("read", "run")),
            },
        },
        FAILED,
    ),
}


@dataclass(frozen=True)
class Mix:
    """How often each kind of job is submitted in a campaign.

    `may_be_killed`: whether jobs may fail because their processes are killed too often. `removed_share`:
    share of the replies that are removed once read. `odd_share`: share of names with ODD_NAME.
    """

    weights: Mapping[str, int]
    may_be_killed: bool = False
    removed_share: float = 1.0
    odd_share: float = 0.2


SOAK = Mix(
    {
        "noop": 6, "wallclock": 4, "cpu": 3, "file": 6, "inline": 4, "bad": 2, "missing": 1, "interrupted": 4,
        "held": 2, "unknown": 1, "dependent": 3, "ahead": 1, "arriving": 1, "twice": 1, "failing": 2,
        "large bag": 1,
    },
    may_be_killed=True,
)  # fmt: skip
KILLS = Mix(
    {"noop": 2, "wallclock": 2, "file": 5, "dependent": 4, "chain": 6, "cut short": 3, "refused": 1},
    removed_share=0.3,
)


@dataclass(slots=True)
class Expected:
    """An expected reply: its permitted answers, and the replies that must precede it."""

    kind: str
    #: the job's user and name; None for a file that is refused
    identity: str | None
    path: Path
    #: permitted pairs of outcome and resultcode; empty: all
    answers: tuple[Answer, ...]
    formula: Formula | None = None
    #: right value of a bag
    value: int | None = None
    #: identities of jobs of the same client that must have replies before
    after: tuple[str, ...] = ()
    #: number of the revision in its chain, and the chain
    revision: int = 0
    chain: Chain | None = None
    submitted_s: float = field(default_factory=time.monotonic)
    reply: dict[str, Any] | None = None


@dataclass(slots=True)
class Chain:
    """A chain of revisions. Revision 0 has the clause 1, revision k adds the clause k -> k + 1.

    The right answer to a revision needs the clauses of all revisions before.
    """

    number: int
    length: int
    names: list[str] = field(default_factory=list)
    internal_id: int | None = None


class Formulas:
    """Small formulas with their answers and files."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.known: list[tuple[Formula, int, Path]] = []
        made = [(planted(n, int(n * 4.1), rng.randrange(1 << 30)), 10) for n in (3, 20, 60, 120)]
        made += [(pigeonhole(holes), 20) for holes in (2, 5, 7)]
        made += [(parity(8, rng.randrange(1 << 30)), 20)]
        chain = [(1,), *((-v, v + 1) for v in range(1, 60_000))]
        made += [(Formula(60_000, chain), 10), (Formula(1, [(1,)]), 10), (Formula(1, [(1,), (-1,)]), 20)]
        for number, (formula, code) in enumerate(made):
            path = folder / f"{number}.cnf"
            path.write_text(formula.text("chaos"))
            self.known.append((formula, code, path))


def satisfies(formula: Formula, model: Sequence[int]) -> bool:
    true = set(model)
    return len(model) >= formula.n_vars and all(
        any(literal in true for literal in clause) for clause in formula.clauses
    )


class Jobs:
    """The jobs of a campaign: submits jobs of a mix to all clients, and checks every reply."""

    def __init__(
        self, service: Service, mix: Mix, rng: random.Random, demand_max: int, *, are_late: bool
    ) -> None:
        """Prepare to submit jobs. `are_late`: whether interruptions may be refused because their jobs have
        ended.
        """
        self._service = service
        self._mix = mix
        self._rng = rng
        self._demand_max = demand_max
        self._are_late = are_late
        self._formulas = Formulas(service.folder, rng)
        self._number = 0
        #: for each client, the name of its newest job
        self._newest = ["" for _ in range(service.clients)]
        self._chains: list[Chain] = []
        self._chain_count = 0
        self.awaited: dict[Path, Expected] = {}
        #: path of a reply that was not removed -> its inode and time
        self._kept: dict[Path, tuple[int, int]] = {}
        self._removed: set[Path] = set()
        #: paths of replies that may appear: refusals of interruptions of jobs that have ended meanwhile
        self._possible: set[Path] = set()
        #: identity of a job -> time at which its reply was written
        self._answered_ns: dict[str, int] = {}
        self.outcomes: Counter[str] = Counter()
        self.latencies_s: dict[str, list[float]] = {}

    # --- submitting -----------------------------------------------------------------------------------

    def submit(self) -> None:
        self.submit_one(draw(self._mix.weights, self._rng))

    def submit_one(self, kind: str) -> None:
        rng, client = self._rng, self._rng.randrange(self._service.clients)
        self._number += 1
        odd = ODD_NAME if rng.random() < self._mix.odd_share else ""
        name = f"{odd}{kind.replace(' ', '-')}-{self._number}"
        noop: dict[str, Any] = {"application": "NOOP"}
        match kind:
            case "file" | "inline":
                formula, code, path = rng.choice(self._formulas.known)
                fields: dict[str, Any] = {"files": [str(path)]}
                if kind == "inline":
                    fields = {"literals": [each for clause in formula.clauses for each in (*clause, 0)]}
                self.add(kind, name, fields, (("result", code),), client).formula = formula
            case "bad":
                text = rng.choice(("{", "", "[]", '{"user": 1}', '{"user": "chaos"}', "nonsense", '{"a":1,}'))
                self._service.drop(f"{name}.json", text, client)
                self._await(kind, None, f"{name}.json.error.json", (REFUSED,), client)
            case "interrupted":
                self.add(kind, name, _ENDLESS, (INTERRUPTED,), client)
                for _ in range(rng.choice((0, 0, 1, 3))):  # often lets the job begin to run first
                    self.submit_one(rng.choice(("noop", "wallclock", "file")))
                self.interrupt(name, client)
            case "cut short":
                self.add(kind, name, {"application": "SLEEP"}, (INTERRUPTED,), client)
                self.interrupt(name, client)
            case "held":
                never: dict[str, Any] = rng.choice(({"arrival": 1e6}, {"dependencies": ["a.b"]}))
                self.add(kind, name, noop | never, (INTERRUPTED,), client)
                self.interrupt(name, client)
            case "unknown":
                refusal = self.interrupt(name, client)
                self._await(kind, None, refusal, (REFUSED,), client)
            case "dependent":
                earlier = [f"{USER}.{name}" for name in self._earlier(client)]
                fields = noop | {"dependencies": earlier}
                self.add(kind, name, fields, (DONE,), client).after = tuple(earlier)
            case "ahead":  # a job that depends on a job submitted later
                first = f"{USER}.{name}-first"
                self.add(kind, name, noop | {"dependencies": [first]}, (DONE,), client).after = (first,)
                self.add(kind, f"{name}-first", PLAIN["wallclock"][0](rng), (TIMED_OUT,), client)
            case "twice":
                self.add(kind, name, _ENDLESS, (INTERRUPTED,), client)
                again = json.dumps({"user": USER, "name": name, **noop})
                self._service.drop(f"{name}-again.json", again, client)
                self._await(kind, None, f"{name}-again.json.error.json", (REFUSED,), client)
                self.interrupt(name, client)
            case "chain":
                self._go_on_with_a_chain()
            case _:
                make, answer = PLAIN[kind]
                expected = self.add(kind, name, make(rng), (answer,), client)
                expected.value = sum(range(LARGE_TASKS)) if kind == "large bag" else None

    def add(
        self, kind: str, name: str, fields: Mapping[str, Any], answers: tuple[Answer, ...], client: int = 0
    ) -> Expected:
        """Submit a job with these fields, which must end with one of these answers."""
        rng = self._rng
        job = {"user": USER, "name": name, "priority": rng.choice((0.01, 0.5, 1, 1, 1, 7.5)), **fields}
        if rng.random() < 0.3 and "max-demand" not in fields:
            job["max-demand"] = rng.randint(1, self._demand_max)
        identity = f"{USER}.{name}"
        expected = self._await(kind, identity, f"{identity}.json", answers, client)
        self._newest[client] = name
        self._service.drop(f"{name}.json", json.dumps(job), client)
        return expected

    def handed_in(self, kind: str, name: str, answers: tuple[Answer, ...]) -> Expected:
        """Await the reply to a job of client 0 that another part of this program has submitted."""
        return self._await(kind, f"{USER}.{name}", f"{USER}.{name}.json", answers, 0)

    def interrupt(self, name: str, client: int = 0) -> str:
        """Request the interruption of a job; return the name of the file that a refusal would have."""
        if self._are_late:
            self._possible.add(self._box(client) / f"stop-{name}.json.error.json")
        request = {"user": USER, "name": name, "interrupt": True}
        self._service.drop(f"stop-{name}.json", json.dumps(request), client)
        return f"stop-{name}.json.error.json"

    def end_chains(self) -> None:
        """End the chains, so that their jobs leave the journal."""
        for chain in self._chains:
            self._end(chain)
        self._chains.clear()

    def _await(
        self, kind: str, identity: str | None, file_name: str, answers: tuple[Answer, ...], client: int
    ) -> Expected:
        path = self._box(client) / file_name
        expected = self.awaited[path] = Expected(kind, identity, path, answers)
        return expected

    def _box(self, client: int) -> Path:
        return self._service.box(client) / "out"

    def _earlier(self, client: int) -> list[str]:
        """Choose jobs as dependencies: the newest job, and some that may have no reply yet."""
        box = self._box(client)
        names = [
            one.identity.partition(".")[2]
            for path, one in self.awaited.items()
            if path.parent == box and one.identity is not None and REFUSED not in one.answers
        ]
        sampled = self._rng.sample(names, min(len(names), self._rng.randint(0, 2)))
        return list(dict.fromkeys([self._newest[client], *sampled])) if self._newest[client] else sampled

    def _go_on_with_a_chain(self) -> None:
        rng = self._rng
        if not self._chains or (len(self._chains) < 4 and rng.random() < 0.3):
            self._chain_count += 1
            self._chains.append(Chain(self._chain_count, rng.randint(1, CHAIN_LENGTH_MAX)))
        chain = rng.choice(self._chains)
        number = len(chain.names)
        if number == chain.length:
            self._end(chain)
            self._chains.remove(chain)
            return
        name = f"chain-{chain.number}-{number}"
        is_unsat = rng.random() < 0.5
        fields: dict[str, Any] = {
            "incremental": True,
            "literals": [1, 0] if number == 0 else [-number, number + 1, 0],
            "assumptions": [-(number + 1)] if is_unsat else [],
        }
        after: tuple[str, ...] = ()
        if number:
            after = (f"{USER}.{chain.names[-1]}",)
            fields["precursor"] = after[0]
        chain.names.append(name)
        answers: tuple[Answer, ...] = (("result", 20 if is_unsat else 10),)
        is_interrupted = rng.random() < 0.1
        if is_interrupted:
            answers, after = (*answers, INTERRUPTED), ()
        expected = self.add("chain", name, fields, answers)
        expected.formula = Formula(number + 1, [(1,), *((-k, k + 1) for k in range(1, number + 1))])
        expected.after, expected.revision, expected.chain = after, number, chain
        if is_interrupted:
            self.interrupt(name)

    def _end(self, chain: Chain) -> None:
        if chain.names:
            name = f"chain-{chain.number}-done"
            fields = {"user": USER, "name": name, "incremental": True, "done": True}
            self._service.drop(
                f"{name}.json", json.dumps(fields | {"precursor": f"{USER}.{chain.names[-1]}"})
            )

    # --- replies --------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Return the number of jobs with a reply."""
        return sum(self.outcomes.values())

    def await_all(self, meanwhile: Callable[[], None], silence_s: float = DEADLINE_S) -> None:
        """Wait until each job has its reply. Raises Wrong if no reply appears for `silence_s`."""
        missing, end_s = len(self.awaited), time.monotonic() + silence_s
        while self.awaited:
            self.look()
            if len(self.awaited) < missing:
                missing, end_s = len(self.awaited), time.monotonic() + silence_s
            elif time.monotonic() > end_s:
                late = list(self.awaited.values())
                raise Wrong(f"no reply for {silence_s:g} s to {late[:20]}", late[0].identity)
            meanwhile()
            time.sleep(0.02)

    def look(self) -> None:
        """Record the present replies. Raises Wrong for a wrong, unexpected or repeated reply."""
        present: dict[Path, os.stat_result] = {}
        for client in range(self._service.clients):
            with contextlib.suppress(FileNotFoundError):
                for entry in os.scandir(self._box(client)):
                    with contextlib.suppress(FileNotFoundError):
                        present[Path(entry.path)] = entry.stat()
        for path, status in sorted(present.items(), key=lambda one: one[1].st_mtime_ns):
            if path.name.startswith("~") or is_foreign(path.name):
                continue
            signature = (status.st_ino, status.st_mtime_ns)
            if path in self._removed and path in self._possible:
                path.unlink()  # another rank has taken over and read the request again
                continue
            if path in self._removed or self._kept.get(path, signature) != signature:
                raise Wrong(f"the reply {path.name} was written twice")
            if path in self._kept:
                continue
            if (expected := self.awaited.pop(path, None)) is not None:
                self._take(expected, status)
            elif path not in self._possible:
                raise Wrong(f"unexpected in out/: {path.name}: {path.read_text()[:1000]}")
            elif "no live job" not in path.read_text():  # refused for another reason than the job's end
                raise Wrong(f"{path.name}: {path.read_text()[:1000]}")
            if self._rng.random() < self._mix.removed_share:
                self._removed.add(path)
                path.unlink()
            else:
                self._kept[path] = signature
        if vanished := self._kept.keys() - present.keys():
            raise Wrong(f"vanished from out/: {sorted(vanished)}")

    def _take(self, expected: Expected, status: os.stat_result) -> None:
        """Record a reply. Raises Wrong if its answer is not permitted."""
        reply = expected.reply = json.loads(expected.path.read_bytes())
        if expected.identity is not None:
            self._answered_ns[expected.identity] = status.st_mtime_ns
        self.latencies_s.setdefault(expected.kind, []).append(time.monotonic() - expected.submitted_s)
        result = reply.get("result", {"outcome": "refused", "resultcode": 0})
        outcome, code = answer = (result["outcome"], result["resultcode"])
        failure = str(reply.get("error", "")) if self._mix.may_be_killed and outcome == "failed" else ""
        if any(word in failure for word in KILL_WORDS):
            self.outcomes[f"{expected.kind} killed"] += 1
            return
        self.outcomes[f"{expected.kind} {outcome}"] += 1
        if expected.answers and answer not in expected.answers:
            raise self._wrong(expected, f"expected {expected.answers}, got {json.dumps(reply)[:2000]}")
        if (
            expected.formula is not None
            and code == 10
            and not satisfies(expected.formula, result["solution"])
        ):
            raise self._wrong(expected, "the model does not satisfy the formula")
        if expected.value is not None and result["value"] != expected.value:
            raise self._wrong(expected, f"the bag's value is {result['value']}, not {expected.value}")
        for other in () if self._service.holds_replies_up else expected.after:
            if self._answered_when(other, expected.path.parent) > status.st_mtime_ns:
                raise self._wrong(expected, f"was answered before {other}, for which it had to wait")
        if (chain := expected.chain) is not None:
            if chain.internal_id is None:
                chain.internal_id = reply["internal_id"]
            place = (reply["internal_id"], reply["internal_revision"])
            if place != (chain.internal_id, expected.revision):
                raise self._wrong(expected, f"has id and revision {place}, expected {chain.internal_id}")

    def _wrong(self, expected: Expected, text: str) -> Wrong:
        return Wrong(f"{expected.path.name}: {text}", expected.identity)

    def _answered_when(self, identity: str, box: Path) -> int:
        """Return the time of a reply [ns since 1970], also of a reply that no listing has shown yet."""
        if (seen := self._answered_ns.get(identity)) is not None:
            return seen
        try:
            return (box / f"{identity}.json").stat().st_mtime_ns
        except FileNotFoundError:
            return 1 << 63

    def left(self) -> list[str]:
        """Return the files that remain in `in/` and the journal, such as those of chains without an end."""
        boxes = [self._service.box(client) for client in range(self._service.clients)]
        parts = [box / part for box in boxes for part in ("in", "journal")]
        found = [(part.name, name) for part in parts for name in os.listdir(part)]
        return [f"{part}/{name}" for part, name in found if not is_foreign(name)]
