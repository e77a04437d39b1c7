"""Small jobs arrive while all parts of a service are killed again and again: exactly one right reply each?

Jobs depend on other jobs, form chains of revisions, are interrupted, and are sometimes invalid. A kill hits
the service at a random moment, also during its start: all its processes at once (as when a machine loses
power), the launching process alone, MPI's launcher or its proxy, one rank, a fork server, or a worker (which
may be reading an input); without `--rank-loss restart` also the first rank, a client's rank, or two ranks.
Some parts are stopped instead, for `--stop-seconds`, longer than ranks may be silent. If the service does not
restart by itself, it is started on the same folder.

Checks: each job has one reply, with the right answer, and after the replies of its dependencies; no reply
changes once it exists, or reappears after its removal; no other file is in `out/`, and no file is left in
`in/` and the journal; files of other users are unchanged; no process and no file in shared memory is left;
the exit code is 0. Without `--rank-loss restart`, ranks must not be started again while any rank is left.
"""

import argparse
import os
import random
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from faults import jobs as mixes
from faults.foreign import Foreign, Locks
from faults.jobs import Jobs
from faults.processes import Wrong, wait_until
from faults.service import DEADLINE_S, Service
from faults.strikes import ENCODINGS, KILLS, LOSSES, PARTS, STOPS, Target, draw, hit, signal_all
from mallob_py.service.client import service_is_running

JOB_EVERY_S = 0.1
#: the service's --rank-timeout, shorter than a stop, so that ranks give up stopped ranks
RANK_TIMEOUT_S = 10.0
LIFE_MEAN_S = 2.0
#: share of kills that wait until the service is up
UP_SHARE = 0.8


class Campaign:
    """A service that is killed many times, and its jobs."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self._rng = random.Random(options.seed)
        self._options = options
        further = ["--rank-timeout", f"{RANK_TIMEOUT_S:g}s", "--restarts", "1000"]
        further += ["--rank-loss", options.rank_loss, *["--durable"] * options.durable]
        self._foreign = Foreign(folder)
        environment = {"PYTHONIOENCODING": draw(ENCODINGS, self._rng)}
        self.service = Service(folder, options.ranks, 1, further, environment, locks=Locks(folder))
        wait_until((self.service.box() / "in").exists, "the service makes its folders", DEADLINE_S)
        self._jobs = Jobs(self.service, mixes.KILLS, self._rng, options.ranks + 1, are_late=True)
        self._killer = Killer(self.service, options, random.Random(self._rng.random()))

    def play(self) -> None:
        """Submit jobs during all kills, and check the replies. Raises Wrong."""
        jobs, killer, service = self._jobs, self._killer, self.service
        try:
            killer.start()
            for _ in range(self._options.jobs):
                self._go_on(JOB_EVERY_S)
            while killer.is_alive():  # the service must have jobs at each kill
                self._go_on(10 * JOB_EVERY_S)
            if killer.problem is not None:
                raise killer.problem
            jobs.submit()  # this job's reply shows that the ranks are up again
            jobs.end_chains()
            # Ranks hit by the last kill before they came up are not started again.
            jobs.await_all(service.start_if_ended)
            wait_until(lambda: not jobs.left(), "the chains have ended", DEADLINE_S)
            service.await_running()
            service.stop()
            jobs.look()
            if left := jobs.left():
                raise Wrong(f"left: {left[:10]}")
            self._foreign.check()
        finally:
            killer.join()

    def tell(self) -> None:
        print(
            f"{self._jobs.count} jobs with one right reply each: {dict(sorted(self._jobs.outcomes.items()))}"
        )
        print(f"kills: {dict(self._killer.done)}")

    def _go_on(self, mean_s: float) -> None:
        self._jobs.submit()
        self._jobs.look()
        time.sleep(self._rng.expovariate(1 / mean_s))


class Killer(threading.Thread):
    """A thread that kills or stops parts of the service, `kills` times, and restarts it if needed."""

    def __init__(self, service: Service, options: argparse.Namespace, rng: random.Random) -> None:
        super().__init__()
        self._service = service
        self._kills = options.kills
        self._stops = frozenset(rng.sample(range(options.kills), min(options.stops, options.kills)))
        self._stop_s = options.stop_seconds
        self._rng = rng
        self._survives = options.rank_loss != "restart"
        self.done: Counter[str] = Counter()
        #: processes killed last, which may still exist for a moment on a busy machine
        self._dying: set[int] = set()
        self.problem: Wrong | None = None

    def run(self) -> None:
        try:
            for number in range(self._kills):
                self._let_live()
                if number in self._stops:
                    self._hit("stop", STOPS)
                else:
                    self._hit("kill", KILLS | LOSSES if self._survives else KILLS)
            self._service.start_if_ended()
        except Wrong as wrong:
            self.problem = wrong

    def _let_live(self) -> None:
        """Wait: mostly until some time after the service accepts jobs, sometimes only until it starts."""
        if self._rng.random() < UP_SHARE:
            self._service.await_running()
        time.sleep(self._rng.expovariate(1 / LIFE_MEAN_S))
        self._service.start_if_ended()

    def _hit(self, verb: str, weights: Mapping[str, int]) -> None:
        """Hit one of the service's parts that exist now."""
        service, target = self._service, Target.of(self._service, self._rng)
        victims = {part: PARTS[part](target) for part in weights}
        part = draw({part: weights[part] for part, pids in victims.items() if pids}, self._rng)
        pids = victims[part]
        told = len(service.output)
        hit(service, verb, part, pids)
        if verb == "stop":
            time.sleep(self._stop_s)
            signal_all(pids, signal.SIGCONT)
        elif part == "everything":
            service.kill()
        elif service.process.pid in pids:
            service.process.wait()
            service.await_nobody("all ranks end without their launching process")
        elif self._survives and part.endswith(("rank", "ranks")):
            self._check_others(pids, set(target.ranks) - set(pids) - self._dying, told)
        self._dying = set(pids)
        self.done[f"{verb} {part}"] += 1

    def _check_others(self, victims: Sequence[int], left: set[int], told: int) -> None:
        """Check that the other ranks continue. If a victim was starting, the service may restart or end."""
        news = ""

        def is_over() -> bool:
            nonlocal news
            news = self._service.output[told:]
            if "ranks have crashed" in news or service_is_running(self._service.api_dir):
                return True
            return self._service.process.poll() is not None

        if not left:
            return
        wait_until(is_over, "the other ranks go on, all are started again, or the service ends", DEADLINE_S)
        if "ranks have crashed" in news:
            epitaphs = [re.search(rf"process {pid}\).*the others go on", news) for pid in victims]
            if all(epitaphs):
                raise Wrong(f"the ranks were started again, though ranks {left} were left")
        elif self._service.process.poll() is not None:
            if "this ends the others" not in news:  # the victim never came up
                raise Wrong(f"the service has ended with ranks {victims}, though ranks {left} were left")
        elif gone := [pid for pid in left if not os.path.exists(f"/proc/{pid}")]:
            raise Wrong(f"ranks {gone} have ended with the killed ranks {victims}")
