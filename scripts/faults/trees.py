"""Bags of tasks with known results on a service whose workers change and are killed: is each result exact?

The trees are jobs of a service, one after the other. Meanwhile, jobs of higher priority arrive and end, so
that a tree's volume changes several times a second and is sometimes 0 (its root must leave), and a computing
worker process is killed every few seconds. Once the job has a checkpoint, heavier faults follow in random
order: with `--losses` a rank is killed, the others continue, and a new rank is ordered; with `--restarts` all
processes of the service are killed at once (as when a machine loses power), and the service is started again
on its folder.

Prints the expected and the actual result, and the amount of repeated work.
"""

import argparse
import random
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from faults.jobs import TIMED_OUT, Expected, Jobs, Mix
from faults.kills import RANK_TIMEOUT_S
from faults.known_trees import TREES, KnownTree
from faults.processes import Wrong, wait_until
from faults.service import DEADLINE_S, Service
from faults.strikes import PARTS, Target, hit
from mallob_py.log_events import LogEvent
from mallob_py.protocol.config import Config
from mallob_py.runtime.processes import python
from mallob_py.service.telemetry.event_log import read_events, runs_of
from mallob_py.text_table import Cell, format_table

_POLL_S = 0.02
#: mean times between random events of a kind
_CHANGE_EVERY_S = 0.2
_CROWD_EVERY_S = 3.0
_KILL_EVERY_S = 2.0
#: shortest and longest delay of a heavy fault after the first checkpoint, or after the recovery from the last
#: fault
_BLOW_AFTER_S = (1.0, 3.0)


def chosen(names: Sequence[str]) -> list[KnownTree]:
    """Return the trees with these names. Raises ValueError for an unknown name."""
    if not names:
        return [tree for tree in TREES if not tree.is_large]
    if unknown := [name for name in names if not any(fnmatch(tree.name, name) for tree in TREES)]:
        raise ValueError(
            f"no tree is called {unknown[0]!r}; known are {', '.join(tree.name for tree in TREES)}"
        )
    return [tree for tree in TREES if any(fnmatch(tree.name, name) for name in names)]


@dataclass
class Unrest:
    """The number of other jobs and of faults of each kind while the nodes of a tree were counted."""

    changes: int = 0
    workers_killed: int = 0
    ranks_lost: int = 0
    restarts: int = 0


@dataclass(frozen=True)
class Counted:
    """A tree and how its count went: a row of the table."""

    tree: KnownTree
    unrest: Unrest
    took_s: float
    result: Mapping[str, Any]

    @property
    def is_right(self) -> bool:
        return all(self.result.get(field) == value for field, value in self.tree.expected.items())

    def row(self) -> tuple[Cell, ...]:
        result, unrest = self.result, self.unrest
        return (
            self.tree.name,
            self.tree.expected["value"],
            result.get("value"),
            "exact" if self.is_right else "WRONG",
            self.took_s,
            unrest.changes,
            unrest.workers_killed,
            unrest.ranks_lost,
            unrest.restarts,
            result.get("tasks_restored"),
            f"{result.get('tasks_in_vain', 0) / max(1, result.get('tasks', 0)):.1%}",
        )


HEADER = (
    "tree", "expected", "found", "", "s", "jobs beside", "workers killed", "ranks lost", "restarts",
    "tasks restored", "in vain",
)  # fmt: skip


class Trees:
    """The campaign: a service counts trees, while other jobs come and faults occur."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self._options = options
        self._rng = random.Random(options.seed)
        further = ["--rank-timeout", f"{RANK_TIMEOUT_S:g}s", "--restarts", "1000"]
        self.service = Service(folder, options.ranks, 1, further)
        self.service.await_running()
        self._jobs = Jobs(self.service, Mix({}), self._rng, 1, are_late=False)
        self._number = 0
        self._kills_left = Config().restarts_max
        self._killed_at_s = 0.0
        self._losses_left = options.ranks - 1
        #: running command that restores the number of ranks
        self._resize: subprocess.Popen[str] | None = None
        self._counted: list[Counted] = []

    def play(self) -> None:
        """Count all trees. Raises Wrong."""
        for tree in self._options.trees:
            self._counted.append(self._count(tree))
            print(*self._counted[-1].row(), sep="  ", flush=True)
        wait_until(lambda: not self._is_resizing(), "the ordered ranks have joined", DEADLINE_S)
        self._jobs.await_all(lambda: None)
        self.service.stop()
        if wrong := [one.tree.name for one in self._counted if not one.is_right]:
            self.tell()
            raise Wrong(f"not exact: {', '.join(wrong)}")

    def tell(self) -> None:
        print(f"\n{format_table(HEADER, [each.row() for each in self._counted])}")

    def _count(self, tree: KnownTree) -> Counted:
        """Count a tree. Raises Wrong if there is no result."""
        began_s = time.monotonic()
        fields = {"application": tree.application, "configuration": tree.configuration, "priority": 1}
        fields["max-demand"] = 0
        expected = self._jobs.add("tree", tree.name.replace(" ", "-"), fields, ())
        unrest = self._endure(expected)
        assert expected.reply is not None
        if expected.reply.get("result", {}).get("resultstring") != "DONE":
            raise Wrong(f"{tree.name}: {expected.reply}"[:1000], expected.identity)
        return Counted(tree, unrest, time.monotonic() - began_s, expected.reply["result"])

    def _endure(self, expected: Expected) -> Unrest:
        """Submit other jobs and cause faults until the reply is there. Raises Wrong if it is late."""
        rng, unrest, ranks = self._rng, Unrest(), self._options.ranks
        blows = ["loss"] * self._options.losses + ["restart"] * self._options.restarts
        rng.shuffle(blows)
        change_s = crowd_s = kill_s = blow_s = time.monotonic()
        limit_s = time.monotonic() + 60 * self._options.minutes
        while expected.reply is None:
            now = time.monotonic()
            if now > limit_s:
                raise Wrong(f"no reply in time: {expected.path.name}", expected.identity)
            if now >= change_s:
                unrest.changes += self._let_others_come(rng.randint(1, ranks))
                change_s = now + rng.expovariate(1 / _CHANGE_EVERY_S)
            if now >= crowd_s:
                unrest.changes += sum(self._let_others_come(1) for _ in range(ranks + 1))
                crowd_s = now + rng.expovariate(1 / _CROWD_EVERY_S)
            if now >= kill_s:
                unrest.workers_killed += self._kill_a_worker()
                kill_s = now + rng.expovariate(1 / _KILL_EVERY_S)
            if not any((self.service.box() / "checkpoints").glob("[0-9]*")) or self._is_resizing():
                blow_s = now + rng.uniform(*_BLOW_AFTER_S)
            elif blows and now >= blow_s:
                if blows.pop() == "loss":
                    unrest.ranks_lost += self._lose_a_rank()
                else:
                    self._restart_the_service()
                    unrest.restarts += 1
                blow_s = time.monotonic() + rng.uniform(*_BLOW_AFTER_S)
            time.sleep(_POLL_S)
            self._jobs.look()
        return unrest

    def _let_others_come(self, workers: int) -> bool:
        """Submit a brief job of higher priority and return True, unless too many jobs wait already."""
        if len(self._jobs.awaited) > 2 * self._options.ranks:
            return False
        self._number += 1
        fields = {
            "application": "SLEEP",
            "priority": self._rng.uniform(1.5, 5.0),
            "max-demand": workers,
            "wallclock-limit": f"{self._rng.randint(20, 400)}ms",
        }
        self._jobs.add("other", f"other-{self._number}", fields, (TIMED_OUT,))
        return True

    def _kill_a_worker(self) -> bool:
        """Kill a computing worker; return whether one was killed.

        A job fails if its root is killed too often, so kills are limited until a root has left again.
        """
        if self._root_left_at_s() > self._killed_at_s:
            self._kills_left = Config().restarts_max
        victims = PARTS["computing worker"](Target.of(self.service, self._rng))
        if not victims or not self._kills_left:
            return False
        self._kills_left -= 1
        self._killed_at_s = time.time()
        hit(self.service, "kill", "computing worker", victims)
        return True

    def _root_left_at_s(self) -> float:
        """Return when a root last left [s since 1970], by the logs since the service's start; 0: none has."""
        runs = runs_of(self.service.log_dir) if self.service.log_dir.exists() else []
        at_s = 0.0
        for run in runs[-1:]:
            start_s = datetime.strptime(run.name, "%Y-%m-%dT%H-%M-%S.%fZ").replace(tzinfo=UTC).timestamp()
            for event in read_events(run):
                if event.event == LogEvent.LEAVING and event.fields["index"] == 0:
                    at_s = max(at_s, start_s + event.t)
        return at_s

    def _lose_a_rank(self) -> bool:
        """Kill a rank, order a new one and return True, unless no initial rank might be left."""
        if self._losses_left == 0:
            return False
        self._losses_left -= 1
        (pid,) = victims = PARTS["rank"](Target.of(self.service, self._rng))
        hit(self.service, "kill", "rank", victims)
        epitaph = re.compile(rf"process {pid} on .*\(generation")
        wait_until(lambda: bool(epitaph.search(self.service.output)), "the others go on", DEADLINE_S)
        self.service.await_running()
        command = [*python(), "-m", "mallob_py.cli.main", "resize", f"={self._options.ranks}"]
        self._resize = subprocess.Popen(
            [*command, "--api-dir", str(self.service.api_dir)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return True

    def _is_resizing(self) -> bool:
        if self._resize is None:
            return False
        if self._resize.poll() is None:
            return True
        said, _ = self._resize.communicate()
        if self._resize.returncode:
            raise Wrong(f"no rank has joined in place of the lost rank: {said}")
        self.service.note(said.rstrip())
        self._resize = None
        return False

    def _restart_the_service(self) -> None:
        self.service.note("kill everything")
        self.service.kill()
        told = len(self.service.output)
        self.service.start()
        # Before this point, the loss of a rank would end the service.
        wait_until(lambda: "accepting jobs" in self.service.output[told:], "it takes jobs", DEADLINE_S)
        self._kills_left = Config().restarts_max
        self._losses_left = self._options.ranks - 1
