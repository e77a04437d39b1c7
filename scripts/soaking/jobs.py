"""Random jobs of all kinds, and what their replies may say.

Every job is finite by itself, by a limit or by an interruption, so a reply that is missing is lost.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mallob_sat.generate import Formula, parity, pigeonhole, planted
from soaking.processes import Wrong
from soaking.service import Service

REPLY_DEADLINE_S = 90.0
USER = "soak"
#: what failures that come of our kills say
KILL_WORDS = ("signal 9", "SIGKILL", "fork server ended", "ended early", "died")


@dataclass(slots=True)
class Expected:
    """A reply that is awaited, and what it may say."""

    kind: str
    identity: str | None
    path: Path
    outcomes: tuple[str, ...]
    code: int = 0
    formula: Formula | None = None
    submitted_s: float = field(default_factory=time.monotonic)


class Formulas:
    """Small ones, with their answers; `files` of them as well."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.known: list[tuple[Formula, int, Path]] = []
        made = [(planted(n, int(n * 4.1), rng.randrange(1 << 30)), 10) for n in (3, 20, 60, 120)]
        made += [(pigeonhole(holes), 20) for holes in (2, 5, 7)]
        made += [(parity(8, rng.randrange(1 << 30)), 20)]
        chain = [(1,), *((-v, v + 1) for v in range(1, 60_000))]
        made += [(Formula(60_000, chain), 10), (Formula(1, [(1,)]), 10), (Formula(1, [(1,), (-1,)]), 20)]
        for number, (formula, code) in enumerate(made):
            path = folder / f"{number}.cnf"
            path.write_text(formula.text("soak"))
            self.known.append((formula, code, path))


def satisfies(formula: Formula, model: Sequence[int]) -> bool:
    true = set(model)
    return all(any(literal in true for literal in clause) for clause in formula.clauses)


class Mix:
    """Submits random jobs and checks their replies."""

    KINDS: tuple[tuple[str, int], ...] = (
        ("noop", 6), ("wallclock", 4), ("cpu", 3), ("file", 6), ("inline", 4), ("bad", 2), ("missing", 1),
        ("interrupted", 4), ("held", 2), ("unknown", 1), ("dependent", 3), ("ahead", 1), ("arriving", 1),
        ("twice", 1), ("failing", 2),
    )  # fmt: skip

    def __init__(
        self, service: Service, clients: int, ranks: int, rng: random.Random, rank_timeout_s: float | None
    ) -> None:
        """`rank_timeout_s`: when ranks that hang are given up, if any are lost at all."""
        self._service = service
        self._rank_timeout_s = rank_timeout_s
        self._clients = clients
        self._ranks = ranks
        self._rng = rng
        self._formulas = Formulas(service.folder, rng)
        self._number = 0
        self._last = ["" for _ in range(clients)]
        self.awaited: list[Expected] = []
        self.done: Counter[str] = Counter()
        self.latencies_s: dict[str, list[float]] = {}

    def submit(self) -> None:
        names, weights = zip(*self.KINDS, strict=True)
        self.submit_one(self._rng.choices(names, weights)[0])

    def submit_one(self, kind: str) -> None:
        rng, client = self._rng, self._rng.randrange(self._clients)
        self._number += 1
        name = f"{kind}-{self._number}"
        fields: dict[str, Any]
        sleep = {"application": "SLEEP", "wallclock-limit": f"{rng.choice((1, 30, 150, 400))}ms"}
        endless = {"application": "SLEEP", "wallclock-limit": "60s"}
        limit = ("wallclock-limit",)
        match kind:
            case "noop":
                self._job(client, kind, name, {"application": "NOOP"}, ("result",), 10)
            case "wallclock":
                self._job(client, kind, name, sleep, limit)
            case "cpu":
                cpu = {"application": "SLEEP", "cpu-limit": f"{rng.choice((1, 30, 300))}ms"}
                self._job(client, kind, name, cpu, ("cpu-limit",))
            case "file" | "inline":
                self._formula(client, kind, name)
            case "bad":
                text = rng.choice(("{", "", "[]", '{"user": 1}', '{"user": "soak"}', "nonsense", '{"a":1,}'))
                self._service.drop(client, f"{name}.json", text)
                self._await(client, kind, None, f"{name}.json.error.json", ("refused",))
            case "failing":
                how = rng.choice(("raise", "segfault", "exit", "kill"))
                configuration = {"how": how, "where": rng.choice(("read", "run"))}
                failing = {"application": "FAIL", "configuration": configuration}
                self._job(client, kind, name, failing, ("failed",))
            case "missing":
                self._job(client, kind, name, {"files": ["/does/not/exist.cnf"]}, ("failed",))
            case "interrupted":
                self._job(client, kind, name, endless, ("interrupted",))
                for _ in range(rng.choice((0, 0, 1, 3))):  # others in between: it may run by then
                    self.submit_one(rng.choice(("noop", "wallclock", "file")))
                self._interrupt(client, name)
            case "held":
                never: dict[str, Any] = rng.choice(({"arrival": 1e6}, {"dependencies": ["a.b"]}))
                self._job(client, kind, name, {"application": "NOOP", **never}, ("interrupted",))
                self._interrupt(client, name)
            case "unknown":
                self._interrupt(client, name)
                self._await(client, kind, None, f"stop-{name}.json.error.json", ("refused",))
            case "dependent":
                earlier = [self._last[client]] if self._last[client] else []
                fields = {"application": "NOOP", "dependencies": earlier}
                self._job(client, kind, name, fields, ("result",), 10)
            case "ahead":  # on a job that is yet to be submitted
                fields = {"application": "NOOP", "dependencies": [f"{USER}.{name}-first"]}
                self._job(client, kind, name, fields, ("result",), 10)
                self._job(client, kind, f"{name}-first", sleep, limit)
            case "arriving":
                fields = {"application": "NOOP", "arrival": rng.uniform(0, 30)}
                self._job(client, kind, name, fields, ("result",), 10)
            case "twice":
                self._job(client, kind, name, endless, ("interrupted",))
                again = json.dumps({"user": USER, "name": name, "application": "NOOP"})
                self._service.drop(client, f"{name}-again.json", again)
                self._await(client, kind, None, f"{name}-again.json.error.json", ("refused",))
                self._interrupt(client, name)

    def begin_endless(self) -> str:
        """A job that runs on all ranks until `end_endless`; its name."""
        self._number += 1
        name = f"endless-{self._number}"
        self._service.drop(
            0, f"{name}.json", json.dumps({"user": USER, "name": name, "application": "SLEEP"})
        )
        return name

    def end_endless(self, name: str) -> None:
        """Raises Wrong if it has ended before."""
        path = self._service.box(0) / "out" / f"{USER}.{name}.json"
        if path.exists():
            raise Wrong(f"ended by itself: {path.read_text()}", f"{USER}.{name}")
        self._await(0, "endless", f"{USER}.{name}", path.name, ("interrupted",))
        self._interrupt(0, name)

    def _formula(self, client: int, kind: str, name: str) -> None:
        formula, code, path = self._rng.choice(self._formulas.known)
        fields: dict[str, Any] = {"files": [str(path)]}
        if kind == "inline":
            fields = {"literals": [each for clause in formula.clauses for each in (*clause, 0)]}
        self._job(client, kind, name, fields, ("result",), code, formula)

    def _job(
        self,
        client: int,
        kind: str,
        name: str,
        fields: dict[str, Any],
        outcomes: tuple[str, ...],
        code: int = 0,
        formula: Formula | None = None,
    ) -> None:
        rng = self._rng
        job = {"user": USER, "name": name, "priority": rng.choice((0.01, 0.5, 1, 1, 1, 7.5)), **fields}
        if rng.random() < 0.3:
            job["max-demand"] = rng.randint(1, self._ranks + 1)
        identity = f"{USER}.{name}"
        self._service.drop(client, f"{name}.json", json.dumps(job))
        self._await(client, kind, identity, f"{identity}.json", outcomes, code, formula)
        self._last[client] = identity

    def _await(
        self,
        client: int,
        kind: str,
        identity: str | None,
        file_name: str,
        outcomes: tuple[str, ...],
        code: int = 0,
        formula: Formula | None = None,
    ) -> None:
        path = self._service.box(client) / "out" / file_name
        self.awaited.append(Expected(kind, identity, path, outcomes, code, formula))

    def _interrupt(self, client: int, name: str) -> None:
        request = {"user": USER, "name": name, "interrupt": True}
        self._service.drop(client, f"stop-{name}.json", json.dumps(request))

    # --- replies --------------------------------------------------------------------------------------

    def collect_all(self, meanwhile: Callable[[], None]) -> None:
        while self.awaited:
            self.collect()
            meanwhile()
            time.sleep(0.02)

    def collect(self) -> None:
        """Take the replies that are there; raises Wrong for one that is overdue."""
        self._service.check_alive()
        now_s = time.monotonic()
        # Where ranks are lost, each hang takes its time to be found out, and few ranks do the work of all.
        deadline_s = REPLY_DEADLINE_S + 20 * (self._rank_timeout_s or 0)
        left = []
        for expected in self.awaited:
            if expected.path.exists():
                self._check(expected, json.loads(expected.path.read_bytes()))
                expected.path.unlink()
                self.latencies_s.setdefault(expected.kind, []).append(now_s - expected.submitted_s)
            elif now_s > expected.submitted_s + deadline_s:
                raise Wrong(f"no reply after {deadline_s} s: {expected}", expected.identity)
            else:
                left.append(expected)
        self.awaited = left

    def _check(self, expected: Expected, reply: dict[str, Any]) -> None:
        result = reply["result"]
        outcome = result["outcome"]
        if outcome == "failed" and any(word in str(reply["error"]) for word in KILL_WORDS):
            self.done[f"{expected.kind} killed"] += 1
            return
        self.done[f"{expected.kind} {outcome}"] += 1
        if outcome not in expected.outcomes or result["resultcode"] != expected.code:
            short = json.dumps(reply)[:2000]
            raise Wrong(
                f"{expected.kind}: {outcome}, expected {expected.outcomes}: {short}", expected.identity
            )
        if expected.formula is not None and expected.code == 10:
            model = result["solution"]
            if len(model) < expected.formula.n_vars or not satisfies(expected.formula, model):
                raise Wrong("the model does not satisfy the formula", expected.identity)

    def check_nothing_else(self) -> None:
        for client in range(self._clients):
            self._take_late_refusals(client)
            for name in ("in", "out"):
                if strangers := os.listdir(self._service.box(client) / name):
                    raise Wrong(f"unexpected in {name}/ of client {client}: {strangers[:10]}")

    def _take_late_refusals(self, client: int) -> None:
        """An interruption whose rank was lost is read once more, when its job may have ended by it."""
        if self._rank_timeout_s is not None:
            for path in (self._service.box(client) / "out").glob("stop-*.json.error.json"):
                if "no live job" in path.read_text():
                    path.unlink()
