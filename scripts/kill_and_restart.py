"""Small jobs flow in while everything is killed again and again: exactly one right reply each?

    python scripts/kill_and_restart.py --jobs 500 --kills 20 --ranks 4 --seed 1

A kill hits the service at a random moment, its start included: either all of its processes at
once (as when a machine loses power), or the launching process alone, whereupon the others
must end by themselves. Then the service is started again on the same folder. Exits with 1, and
keeps the folder, if something is wrong.

Checked: one reply per job, with the right answer; no reply changes once it is there; nothing else
in `out/`, nothing left in `in/` and in the journal; no process and no file in shared memory is
left; at the end exit code 0.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

from soaking.jobs import Formulas, satisfies
from soaking.processes import MARK, Wrong, marked_processes, wait_until

from mallob_py.runtime.session_folder import shared_folder
from mallob_py.service.client import service_is_running
from mallob_sat.generate import Formula

JOB_EVERY_S = 0.1
LIFE_MAX_S = 3.0
DEADLINE_S = 120.0
USER = "kill"


class Service:
    """One service in many lives."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self.api_dir = folder / "api"
        self.output_path = folder / "output"
        self.mark = uuid.uuid4().hex
        #: of all processes that were alive at a kill, or at the end
        self.pids: set[int] = set()
        self._command = [sys.executable, "-m", "mallob_py.cli.main", "serve", "-n", str(ranks)]
        self._command += ["--api-dir", str(self.api_dir), "--log-dir", str(folder / "logs")]
        self._environment = os.environ | {MARK: self.mark, "TMPDIR": str(folder)}
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        with open(self.output_path, "ab") as output:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )
        return self.process

    def kill_everything(self) -> None:
        while pids := marked_processes(self.mark):
            self.pids.update(pids)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def kill_launching_process(self) -> None:
        self.pids.update(marked_processes(self.mark))
        self.process.kill()
        self.process.wait()
        wait_until(
            lambda: not marked_processes(self.mark), "all ranks end without their launcher", DEADLINE_S
        )

    def stop(self) -> None:
        # One that is still being started has no reply to a signal but to die of it.
        wait_until(lambda: service_is_running(self.api_dir), "the service runs", DEADLINE_S)
        self.pids.update(marked_processes(self.mark))
        self.process.send_signal(signal.SIGTERM)
        if (code := self.process.wait(DEADLINE_S)) != 0:
            raise Wrong(f"the service ended with code {code}")
        wait_until(lambda: not marked_processes(self.mark), "no process is left", DEADLINE_S)
        names = [path.name for path in shared_folder().glob("mallob-py.*")]
        if left := [name for name in names if int(name.split(".")[1].split("-")[0]) in self.pids]:
            raise Wrong(f"left in shared memory: {left}")


class Killer(threading.Thread):
    """Kills and starts the service, so many times."""

    def __init__(self, service: Service, kills: int, rng: random.Random) -> None:
        super().__init__()
        self._service = service
        self._kills = kills
        self._rng = rng
        self.done: Counter[str] = Counter()
        self.problem: Wrong | None = None

    def run(self) -> None:
        try:
            for _ in range(self._kills):
                time.sleep(self._rng.uniform(0.0, LIFE_MAX_S))
                kill = self._rng.choice((self._service.kill_everything, self._service.kill_launching_process))
                kill()
                self.done[kill.__name__] += 1
                self._service.start()
        except Wrong as wrong:
            self.problem = wrong


class Jobs:
    """Hands in jobs, and takes down every reply when it is first seen."""

    def __init__(self, service: Service, folder: Path, rng: random.Random) -> None:
        self._box = service.api_dir / "jobs.0"
        self._rng = rng
        self._formulas = Formulas(folder, rng)
        #: by the name of the reply: how it must end, and of which formula
        self._expected: dict[str, tuple[str, int, Formula | None]] = {}
        self._seen: dict[str, tuple[int, int]] = {}
        self.outcomes: Counter[str] = Counter()

    def submit(self) -> None:
        number = len(self._expected)
        fields: dict[str, Any]
        formula = None
        outcome, code = "result", 10
        match self._rng.choice(("noop", "sleep", "formula", "formula")):
            case "noop":
                fields = {"application": "NOOP"}
            case "sleep":
                fields = {"application": "SLEEP", "wallclock-limit": "200ms"}
                outcome, code = "wallclock-limit", 0
            case _:
                formula, code, path = self._rng.choice(self._formulas.known)
                fields = {"files": [str(path)]}
        if self._rng.random() < 0.5:
            fields["max-demand"] = 1
        name = f"job-{number}"
        self._expected[f"{USER}.{name}.json"] = (outcome, code, formula)
        hidden = self._box / "in" / f"~{name}.json"
        hidden.write_text(json.dumps({"user": USER, "name": name, **fields}))
        hidden.rename(hidden.with_name(f"{name}.json"))

    def look(self) -> int:
        """How many replies are missing. Raises Wrong for one that is wrong, unexpected or not the first."""
        present = {entry.name: entry.stat() for entry in os.scandir(self._box / "out")}
        if strangers := present.keys() - self._expected.keys():
            raise Wrong(f"unexpected in out/: {sorted(strangers)[:10]}")
        if vanished := self._seen.keys() - present.keys():
            raise Wrong(f"vanished from out/: {sorted(vanished)[:10]}")
        for name, status in present.items():
            signature = (status.st_ino, status.st_mtime_ns)
            if name not in self._seen:
                self._seen[name] = signature
                self._check(name)
            elif self._seen[name] != signature:
                raise Wrong(f"{name} was replied to twice")
        return len(self._expected) - len(present)

    def _check(self, name: str) -> None:
        reply = json.loads((self._box / "out" / name).read_bytes())
        outcome, code, formula = self._expected[name]
        result = reply["result"]
        if (result["outcome"], result["resultcode"]) != (outcome, code):
            raise Wrong(f"{name}: expected {outcome} {code}, got {json.dumps(reply)[:1000]}")
        if formula is not None and code == 10 and not satisfies(formula, result["solution"]):
            raise Wrong(f"{name}: the model does not satisfy the formula")
        self.outcomes[f"{outcome} {code}"] += 1

    def check_nothing_left(self) -> None:
        for part in ("in", "journal"):
            if left := os.listdir(self._box / part):
                raise Wrong(f"left in {part}/: {left[:10]}")


def play(options: argparse.Namespace, folder: Path) -> None:
    rng = random.Random(options.seed)
    service = Service(folder, options.ranks)
    inbox = service.api_dir / "jobs.0" / "in"
    wait_until(inbox.exists, "the service makes its folders", DEADLINE_S)
    jobs = Jobs(service, folder, rng)
    killer = Killer(service, options.kills, random.Random(rng.random()))
    try:
        killer.start()
        for _ in range(options.jobs):
            jobs.submit()
            jobs.look()
            time.sleep(rng.expovariate(1 / JOB_EVERY_S))
        while killer.is_alive():
            jobs.look()
            time.sleep(JOB_EVERY_S)
        if killer.problem is not None:
            raise killer.problem
        wait_until(lambda: jobs.look() == 0, "all jobs are answered", DEADLINE_S)
        service.stop()
        jobs.look()
        jobs.check_nothing_left()
    finally:
        killer.join()
        service.kill_everything()
    print(f"{options.jobs} jobs, one right reply each: {dict(sorted(jobs.outcomes.items()))}")
    print(f"kills: {dict(killer.done)}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="kill-and-restart-"))
    try:
        play(options, folder)
    except Wrong as wrong:
        print(f"WRONG: {wrong}\n{(folder / 'output').read_text()[-3000:]}\nkept: {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
