"""A service in many lives, and all the ways in which a part of it dies or stops."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from soaking.processes import (
    MARK,
    Family,
    Wrong,
    command_line,
    marked_processes,
    parent_of,
    rank_number,
    wait_until,
)

from mallob_py.runtime.world.session_folder import shared_folder, sweep
from mallob_py.service.client import service_is_running

#: a service whose ranks are being started again may be silent for so long (the longest delay and a start)
DEADLINE_S = 180.0
#: shorter than a stop, so that ranks give each other up
RANK_TIMEOUT_S = 10.0
LIFE_MEAN_S = 2.0
#: before so many of the kills, the service has come up
UP_SHARE = 0.8


class Service:
    """`mallob-py serve` in many lives; all its processes inherit a mark."""

    def __init__(self, folder: Path, ranks: int, options: Sequence[str]) -> None:
        self.api_dir = folder / "api"
        self.output_path = folder / "output"
        self.log_dir = folder / "logs"
        self.mark = uuid.uuid4().hex
        #: of all processes that were alive at a kill, or at the end
        self.pids: set[int] = set()
        self._command = [sys.executable, "-m", "mallob_py.cli.main", "serve", "-n", str(ranks)]
        self._command += ["--api-dir", str(self.api_dir), "--log-dir", str(self.log_dir)]
        self._command += ["--rank-timeout", f"{RANK_TIMEOUT_S:g}s", "--restarts", "1000", *options]
        self._environment = os.environ | {MARK: self.mark, "TMPDIR": str(folder)}
        self.start()

    @property
    def output(self) -> str:
        return self.output_path.read_text()

    def start(self) -> None:
        with open(self.output_path, "ab") as output:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )

    def start_if_ended(self) -> None:
        """The launching process may have ended by itself: ranks that never came up are not started again."""
        if self.process.poll() is not None:
            self.await_nobody("all ranks end with their launching process")
            self.start()

    def tell(self, what: str) -> None:
        """Into the output, between what the service says."""
        with open(self.output_path, "a") as output:
            output.write(f"--- {time.time():.3f} {what}\n")

    def await_running(self) -> None:
        """Until it takes jobs: before that it has no answer to a signal but to die."""

        def runs() -> bool:
            self.start_if_ended()
            return service_is_running(self.api_dir)

        wait_until(runs, "the service runs", DEADLINE_S)

    def await_nobody(self, what: str) -> None:
        wait_until(lambda: not marked_processes(self.mark), what, DEADLINE_S)

    def kill_everything(self) -> None:
        while pids := marked_processes(self.mark):
            self.pids.update(pids)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        self.await_running()
        self.pids.update(marked_processes(self.mark))
        self.process.send_signal(signal.SIGTERM)
        if (code := self.process.wait(DEADLINE_S)) != 0:
            raise Wrong(f"the service ended with code {code}")
        self.await_nobody("no process is left")
        sweep(shared_folder())  # as the next session would
        names = [path.name for path in shared_folder().glob("mallob-py.*")]
        if left := [name for name in names if int(name.split(".")[1].split("-")[0]) in self.pids]:
            raise Wrong(f"left in shared memory: {left}")

    # --- its parts ------------------------------------------------------------------------------------

    def first_rank(self, ranks: Sequence[int]) -> list[int]:
        return sorted(ranks, key=rank_number)[:1]

    def client_rank(self, ranks: Sequence[int]) -> list[int]:
        with contextlib.suppress(OSError, ValueError, IndexError):
            holder = int((self.api_dir / "jobs.0/.lock").read_text().split()[0])
            return [rank for rank in ranks if rank == holder]
        return []

    def parts(self) -> dict[str, list[int]]:
        """The processes that can be hit, by what they are; parts that there are none of are left out."""
        pids = marked_processes(self.mark)
        family = Family.of(self.mark)
        named = {
            "launching process": [self.process.pid],
            "launcher": [pid for pid in pids if parent_of(pid) == self.process.pid and _is(pid, "mpiexec")],
            "proxy": [pid for pid in pids if _is(pid, "hydra_pmi_proxy")],
            "rank": family.ranks,
            "fork server": family.fork_servers,
            "worker": family.workers,
        }
        return {name: found for name, found in named.items() if found}


def _is(pid: int, program: str) -> bool:
    words = command_line(pid).split(" ")
    return any(Path(word).name.startswith(program) for word in words[:2])


class Killer(threading.Thread):
    """Kills and stops parts of the service, so many times, and sees that there is one again."""

    #: what is killed how often
    KILLS: tuple[tuple[str, int], ...] = (
        ("everything", 3), ("launching process", 3), ("launcher", 2), ("proxy", 2), ("rank", 6),
        ("worker", 3), ("fork server", 1),
    )  # fmt: skip
    #: those of ranks that the others survive
    LOSSES: tuple[tuple[str, int], ...] = (("first rank", 3), ("client's rank", 4), ("two ranks", 3))
    STOPS: tuple[str, ...] = ("everything", "launching process", "launcher", "proxy", "rank")

    def __init__(
        self,
        service: Service,
        kills: int,
        stops: Sequence[int],
        stop_s: float,
        rng: random.Random,
        *,
        survives: bool,
    ) -> None:
        """`stops`: which of the kills are stops of `stop_s` instead; `survives`: a rank that is lost."""
        super().__init__()
        self._service = service
        self._kills = kills
        self._stops = frozenset(stops)
        self._stop_s = stop_s
        self._rng = rng
        self._survives = survives
        self.done: Counter[str] = Counter()
        self.problem: Wrong | None = None

    def run(self) -> None:
        try:
            for number in range(self._kills):
                self._let_live()
                if number in self._stops:
                    self._hit("stop", self.STOPS, [1] * len(self.STOPS), self._pause)
                else:
                    names, weights = zip(*self.KILLS, *self.LOSSES * self._survives, strict=True)
                    self._hit("kill", names, weights, self._kill)
            self._service.start_if_ended()
        except Wrong as wrong:
            self.problem = wrong

    def _let_live(self) -> None:
        """Mostly until it takes jobs, and then for a while; sometimes it is hit while it starts."""
        if self._rng.random() < UP_SHARE:
            self._service.await_running()
        time.sleep(self._rng.expovariate(1 / LIFE_MEAN_S))
        self._service.start_if_ended()

    def _hit(
        self, verb: str, names: Sequence[str], weights: Sequence[int], hit: Callable[[Sequence[int]], None]
    ) -> None:
        """One of the parts that are there now; ranks may just be waiting for their restart."""
        parts = self._service.parts()
        ranks = parts.get("rank", [])
        if found := self._service.client_rank(ranks):
            parts["client's rank"] = found
        if len(ranks) > 2:
            parts["two ranks"] = ranks
        if ranks:
            parts["first rank"] = self._service.first_rank(ranks)
        self._service.pids.update(pid for pids in parts.values() for pid in pids)
        present = [name == "everything" or name in parts for name in names]
        weights = [weight * here for weight, here in zip(weights, present, strict=True)]
        (name,) = self._rng.choices(names, weights)
        if name == "everything" and verb == "kill":
            self._service.tell("kill everything")
            self._service.kill_everything()
        else:
            pids = sorted({pid for found in parts.values() for pid in found})
            if name != "everything":
                pids = self._rng.sample(parts[name], 2 if name == "two ranks" else 1)
            self._service.tell(f"{verb} {name} {pids}")
            told = len(self._service.output)
            hit(pids)
            left = set(ranks) - set(pids)
            if self._survives and verb == "kill" and name.endswith(("rank", "ranks")) and left:
                self._check_others(pids, left, told)
        self.done[f"{verb} {name}"] += 1

    def _kill(self, pids: Sequence[int]) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._service.process.pid in pids:
            self._service.process.wait()
            self._service.await_nobody("all ranks end without their launching process")

    def _check_others(self, victims: Sequence[int], left: set[int], told: int) -> None:
        """They go on, unless a victim was just starting: then all are started again."""
        news = ""

        def is_over() -> bool:
            nonlocal news
            news = self._service.output[told:]
            return "ranks have crashed" in news or service_is_running(self._service.api_dir)

        wait_until(is_over, "the other ranks go on, or all are started again", DEADLINE_S)
        if "ranks have crashed" in news:
            epitaphs = [re.search(rf"process {pid}\).*the others go on", news) for pid in victims]
            if all(epitaphs):
                raise Wrong(f"the ranks were started again, though {left} were left over")
        elif gone := [pid for pid in left if not os.path.exists(f"/proc/{pid}")]:
            raise Wrong(f"ranks {gone} have gone with {victims}")

    def _pause(self, pids: Sequence[int]) -> None:
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            if number == signal.SIGSTOP:
                time.sleep(self._stop_s)
