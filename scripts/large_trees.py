"""Bags of tasks with known results on a service whose workers come, go and are killed: is each result exact?

    python scripts/large_trees.py                          all of up to 300 million tasks
    python scripts/large_trees.py T3L 'QUEENS *'           these
    python scripts/large_trees.py 'UTS 15' --losses 1      a rank is killed meanwhile, and another one joins
    python scripts/large_trees.py 'UTS 15' --restarts 1    the service is killed and started again meanwhile

One tree after the other is a job of a service. Beside it, all the time, jobs of higher priority come and
end, so that its volume changes every fraction of a second and now and then is 0 (its root has to leave);
a worker process that computes is killed every few seconds. Once the job has a checkpoint, there are heavier
blows, in any order: with `--losses` any rank is killed, the others go on, and a new one is ordered; with
`--restarts` all processes of the service are killed at once (as when a machine loses power), and the service
is started again on its folder.
Prints what was expected, what was found, and how much was done twice. Exits with 1, and keeps the folder, if
a result is wrong or does not come.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from killing.service import DEADLINE_S, Service
from killing.trees import TREES, KnownTree
from soaking.processes import Family, Wrong, wait_until

from mallob_py.protocol.config import Config
from mallob_py.service.telemetry.event_log import read_events, runs_of
from mallob_py.text_table import Cell, format_table

USER = "trees"
_POLL_S = 0.02
#: means of what comes at random times
_CHANGE_EVERY_S = 0.2
_CROWD_EVERY_S = 3.0
_KILL_EVERY_S = 2.0
#: from when there is a checkpoint, or after the blow before, which all ranks have to get over
_BLOW_AFTER_S = (1.0, 3.0)


@dataclass
class Unrest:
    """What has happened while a tree was counted."""

    changes: int = 0
    workers_killed: int = 0
    ranks_lost: int = 0
    restarts: int = 0


class Surroundings:
    """The jobs beside a tree, and the kills."""

    def __init__(self, service: Service, ranks: int, rng: random.Random) -> None:
        self._service = service
        self._box = service.api_dir / "jobs.0"
        self._ranks = ranks
        self._rng = rng
        self._number = 0
        #: jobs that are not known to have ended
        self._others: set[Path] = set()
        self._kills_left = Config().restarts_max
        self._killed_at_s = 0.0
        self._losses_left = ranks - 1
        #: brings the ranks back to their number
        self._resize: subprocess.Popen[str] | None = None

    def submit(self, name: str, **fields: Any) -> Path:
        """Hand in a job; where its reply will be."""
        self._number += 1
        job = {"user": USER, "name": name, **{key.replace("_", "-"): value for key, value in fields.items()}}
        hidden = self._box / "in" / f"~{self._number}.json"
        hidden.write_text(json.dumps(job))
        hidden.rename(hidden.with_name(f"{self._number}.json"))
        return self._box / "out" / f"{USER}.{name}.json"

    def endure(self, reply_path: Path, losses: int, restarts: int, limit_s: float) -> Unrest:
        """Until there is this reply. Raises Wrong if there is none in time."""
        rng, unrest = self._rng, Unrest()
        blows = ["loss"] * losses + ["restart"] * restarts
        rng.shuffle(blows)
        change_s = crowd_s = kill_s = blow_s = time.monotonic()
        limit_s += time.monotonic()
        while not reply_path.exists():
            now = time.monotonic()
            if now > limit_s:
                raise Wrong(f"no reply in time: {reply_path.name}")
            if now >= change_s:
                unrest.changes += self._let_others_come(rng.randint(1, self._ranks))
                change_s = now + rng.expovariate(1 / _CHANGE_EVERY_S)
            if now >= crowd_s:
                unrest.changes += sum(self._let_others_come(1) for _ in range(self._ranks + 1))
                crowd_s = now + rng.expovariate(1 / _CROWD_EVERY_S)
            if now >= kill_s:
                unrest.workers_killed += self._kill_a_worker()
                kill_s = now + rng.expovariate(1 / _KILL_EVERY_S)
            if not self._has_checkpoint() or self._is_resizing():
                blow_s = now + rng.uniform(*_BLOW_AFTER_S)
            elif blows and now >= blow_s:
                if blows.pop() == "loss":
                    unrest.ranks_lost += self._lose_a_rank()
                else:
                    self._restart_the_service()
                    unrest.restarts += 1
                blow_s = time.monotonic() + rng.uniform(*_BLOW_AFTER_S)
            time.sleep(_POLL_S)
        return unrest

    def _let_others_come(self, workers: int) -> bool:
        """A job of higher priority, for a moment, if there are not too many already."""
        self._are_others_done()
        if len(self._others) > 2 * self._ranks:
            return False
        path = self.submit(
            f"other-{self._number}",
            application="SLEEP",
            priority=self._rng.uniform(1.5, 5.0),
            max_demand=workers,
            wallclock_limit=f"{self._rng.randint(20, 400)}ms",
        )
        self._others.add(path)
        return True

    def _has_ended(self, path: Path) -> bool:
        try:
            outcome = json.loads(path.read_bytes())["result"]["outcome"]
        except FileNotFoundError:
            return False
        if outcome != "wallclock-limit":
            raise Wrong(f"{path.name}: {outcome}")
        path.unlink()
        return True

    def _has_checkpoint(self) -> bool:
        return any((self._box / "checkpoints").glob("[0-9]*"))

    def _kill_a_worker(self) -> bool:
        """One that computes. A root that keeps dying would end its job: after some kills one has to leave."""
        if self._root_left_at_s() > self._killed_at_s:
            self._kills_left = Config().restarts_max
        computing = [pid for pid in Family.of(self._service.mark).workers if _is_computing(pid)]
        if not computing or not self._kills_left:
            return False
        self._kills_left -= 1
        self._killed_at_s = time.time()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._rng.choice(computing), signal.SIGKILL)
        return True

    def _root_left_at_s(self) -> float:
        """When (in Unix time) one did last in this life of the service, as far as it has logged it."""
        runs = runs_of(self._service.log_dir) if self._service.log_dir.exists() else []
        at_s = 0.0
        for run in runs[-1:]:
            start_s = datetime.strptime(run.name, "%Y-%m-%dT%H-%M-%S.%fZ").replace(tzinfo=UTC).timestamp()
            for event in read_events(run):
                if event.event == "leaving" and event.fields["index"] == 0:
                    at_s = max(at_s, start_s + event.t)
        return at_s

    def _lose_a_rank(self) -> bool:
        """Any, unless it may be the last of those that were there at the start: with it all would end."""
        if self._losses_left == 0:
            return False
        self._losses_left -= 1
        pid = self._rng.choice(Family.of(self._service.mark).ranks)
        self._service.tell(f"kill rank of process {pid}")
        os.kill(pid, signal.SIGKILL)
        epitaph = re.compile(rf"process {pid} on .*\(generation")
        wait_until(lambda: bool(epitaph.search(self._service.output)), "the others go on", DEADLINE_S)
        self._service.await_running()
        command = [sys.executable, "-m", "mallob_py.cli.main", "resize", f"={self._ranks}"]
        self._resize = subprocess.Popen(
            [*command, "--api-dir", str(self._service.api_dir)],
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
            raise Wrong(f"no rank has joined for the lost one: {said}")
        self._service.tell(said.rstrip())
        self._resize = None
        return False

    def _restart_the_service(self) -> None:
        self._service.tell("kill everything")
        self._service.kill_everything()
        told = len(self._service.output)
        self._service.start()
        # Before, the loss of a rank would be the end of all.
        wait_until(lambda: "accepting jobs" in self._service.output[told:], "it takes jobs", DEADLINE_S)
        self._kills_left = Config().restarts_max
        self._losses_left = self._ranks - 1

    def end(self) -> None:
        """Until the last of these jobs has ended."""
        wait_until(lambda: not self._is_resizing(), "the ranks are as many as ordered", DEADLINE_S)
        wait_until(self._are_others_done, "the other jobs have ended", DEADLINE_S)

    def _are_others_done(self) -> bool:
        self._others = {path for path in self._others if not self._has_ended(path)}
        return not self._others


def _is_computing(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "R"
    return False


@dataclass(frozen=True)
class Counted:
    """One line of the table."""

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


def count(tree: KnownTree, surroundings: Surroundings, options: argparse.Namespace) -> Counted:
    """Have one tree counted. Raises Wrong if there is no result."""
    began_s = time.monotonic()
    reply_path = surroundings.submit(
        tree.name.replace(" ", "-"), application=tree.application, configuration=tree.configuration
    )
    unrest = surroundings.endure(reply_path, options.losses, options.restarts, options.minutes * 60)
    took_s = time.monotonic() - began_s
    reply = json.loads(reply_path.read_bytes())
    if reply.get("result", {}).get("resultstring") != "DONE":
        raise Wrong(f"{tree.name}: {json.dumps(reply)[:1000]}")
    return Counted(tree, unrest, took_s, reply["result"])


def play(trees: Sequence[KnownTree], options: argparse.Namespace, folder: Path) -> list[Counted]:
    service = Service(folder, options.ranks, [])
    counted: list[Counted] = []
    try:
        service.await_running()
        surroundings = Surroundings(service, options.ranks, random.Random(options.seed))
        for tree in trees:
            counted.append(count(tree, surroundings, options))
            print(*counted[-1].row(), sep="  ", flush=True)
        surroundings.end()
        service.stop()
    finally:
        service.kill_everything()
    return counted


def chosen(names: Sequence[str]) -> list[KnownTree]:
    """Raises ValueError for a name that no tree has."""
    if not names:
        return [tree for tree in TREES if not tree.is_large]
    if unknown := [name for name in names if not any(fnmatch(tree.name, name) for tree in TREES)]:
        raise ValueError(
            f"no tree is called {unknown[0]!r}: there are {', '.join(tree.name for tree in TREES)}"
        )
    return [tree for tree in TREES if any(fnmatch(tree.name, name) for name in names)]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "trees", nargs="*", metavar="TREE", help=f"of {', '.join(tree.name for tree in TREES)}"
    )
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--losses", type=int, default=0, help="of ranks, for each tree that lasts")
    parser.add_argument("--restarts", type=int, default=0, help="of the service, for each tree that lasts")
    parser.add_argument(
        "--minutes", type=float, default=30.0, help="a tree that takes longer is taken to hang"
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    try:
        trees = chosen(options.trees)
    except ValueError as error:
        parser.error(str(error))
    folder = Path(tempfile.mkdtemp(prefix="large-trees-"))
    try:
        counted = play(trees, options, folder)
    except Wrong as wrong:
        print(f"WRONG: {wrong}\n{(folder / 'output').read_text()[-3000:]}\nkept: {folder}")
        return 1
    print(f"\n{format_table(HEADER, [each.row() for each in counted])}")
    if not all(each.is_right for each in counted):
        print(f"kept: {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
