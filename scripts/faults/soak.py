"""Random jobs of all kinds for minutes, with kills in between: is a reply lost, or does a rank leak?

The soak works in rounds: submit a random mix of jobs, kill worker processes (sometimes a fork server) while
they run, await every reply, and then, when no job is left, record memory and open descriptors of the ranks.
Without `--rank-loss restart`, ranks are also killed, stopped until the others give them up, added and
drained. When few initial ranks are left, the service is started again, or these ranks are killed, too, and
the service restarts by itself. Disks are full for seconds; other users have files and locks in all folders;
some names cannot be printed. An executor calls functions meanwhile (`functions.py`). Jobs also come over
HTTP, beside clients that are silent, slow or do not read (`web_clients.py`).

Checks: each job file has one reply, and no other file is in `out/`; answers, models and outcomes of jobs that
were not killed are right; neither memory nor descriptors grow with the number of jobs, and no rank stays
large; after a loss, the other ranks keep their processes; orders of more or fewer ranks are carried out; at
the end the exit code is 0, and no process and no file in shared memory is left.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from faults import jobs as mixes
from faults.disks import Disks
from faults.foreign import Foreign, Locks
from faults.functions import Functions
from faults.jobs import Jobs
from faults.processes import (
    Family,
    Wrong,
    descriptors,
    parent_of,
    proportional_bytes,
    resident_bytes,
    wait_until,
)
from faults.ranks import Ranks
from faults.service import Service
from faults.strikes import ENCODINGS, PARTS, SOAK_DISKS, SOAK_ENDS, SOAK_PROCESSES, Target, draw, hit
from faults.web_clients import WebClients
from mallob_py import Executor
from mallob_py.protocol.config import Config

#: user of the executor's jobs, whose replies `is_foreign` recognises by their names
FUNCTIONS_USER = "foreign-functions"
#: number of first rounds that are not compared, because pools and caches fill
WARM_UP_ROUNDS = 3
ROUND_JOBS_MAX = 60
BURST_JOBS = 200
IN_FLIGHT_MAX = 120
#: longest wait for a reply: REPLY_DEADLINE_S, and if ranks may be lost REPLY_DEADLINE_TIMEOUTS times
#: --rank-timeout more, because hangs must be noticed, and few ranks do all work
REPLY_DEADLINE_S, REPLY_DEADLINE_TIMEOUTS = 90.0, 20
#: permitted growth of a rank's memory: a client remembers 100 000 ended jobs, since later jobs may depend on
#: them; this takes some 30 MB
RSS_GROWTH_MAX_BYTES = 48 << 20
FDS_GROWTH_MAX = 24
#: greatest memory of a rank at the end, after large messages' memory is freed: a new rank has 16 MB, a
#: client's rank 25 MB after some jobs, and a rank that frees nothing some hundred MB more
RANK_AT_END_MAX_BYTES = 60_000_000
#: memory that the ranks of a host share, so that a rank alone on its host has all of it
SHARED_BYTES = 15_000_000
GIVE_BACK_DEADLINE_S = 40.0
#: time limit for the end of workers; obsolete entries are kept for some time after a change of ranks
REST_DEADLINE_S = Config().succession_patience_s + 60.0
#: greatest number of worker processes per PE when no job is left
WORKERS_AT_REST_MAX = 3
SPARE_FORK_SERVER_S = 3.0
#: probability per step that a client of the web server acts
WEB_RATE = 0.05
#: shortest and longest time for which a disk is full
FULL_S = (0.5, 5.0)


@dataclass(frozen=True, slots=True)
class Sample:
    """The largest memory and number of descriptors of a rank when no job is left."""

    resident_bytes: int
    fds: int
    server_fds: int
    workers: int

    @classmethod
    def of(cls, mark: str) -> Sample:
        family = Family.of(mark)
        return cls(
            max(map(resident_bytes, family.ranks)),
            max(map(descriptors, family.ranks)),
            max(map(descriptors, family.fork_servers)),
            len(family.workers),
        )

    def __str__(self) -> str:
        return (
            f"rank at most {self.resident_bytes / 2**20:.1f} MB, {self.fds} descriptors; "
            f"fork server at most {self.server_fds}; {self.workers} worker processes"
        )


class Soak:
    """The soak: a service, its jobs, its ranks, and samples of their memory for comparison."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self._rng = rng = random.Random(options.seed)
        self._options = options
        survives = options.rank_loss != "restart"
        clients, further = rng.choice((1, 1, 2)), _random_options(options, folder, rng)
        print(f"seed {options.seed}: {clients} clients, {' '.join(further)}; {folder}", flush=True)
        self._disks = Disks(folder)
        self._foreign = Foreign(folder)
        environment = {"PYTHONIOENCODING": draw(ENCODINGS, rng)}
        print(f"{environment}; small disks: {self._disks.are_there}", flush=True)
        self.service = Service(
            folder, options.ranks, clients, further, environment, self._disks, Locks(folder)
        )
        self.service.await_ready()
        self._jobs = Jobs(self.service, mixes.SOAK, rng, options.ranks + 1, are_late=survives)
        self._functions = Functions(self._executor, options.seed)
        self._deeds: Counter[str] = Counter()
        self._ranks = Ranks(self.service, options.rank_timeout, rng, self._deeds) if survives else None
        self._silence_s = REPLY_DEADLINE_S + REPLY_DEADLINE_TIMEOUTS * options.rank_timeout * survives
        #: pid of a rank -> earliest time of the next kill of its fork server
        self._spared_until_s: dict[int, float] = {}
        self._samples: list[Sample] = []
        self._web = WebClients(self.service, rng, self._deeds)

    def _executor(self) -> Executor:
        return Executor(self.service.api_dir, user=FUNCTIONS_USER)

    def _finish_functions(self) -> None:
        """Await the function calls of a round; remove the replies of the executor's jobs. Raises Wrong."""
        self._functions.finish()
        for path in (self.service.api_dir / "jobs.0" / "out").glob(f"{FUNCTIONS_USER}.*"):
            path.unlink()

    def play(self) -> None:
        """Run all rounds. Raises Wrong."""
        try:
            self._play()
            self._web.end()
        finally:
            self._web.kill()

    def _play(self) -> None:
        end_s, rounds, ranks = time.monotonic() + 60 * self._options.minutes, 0, self._ranks
        while time.monotonic() < end_s:
            self._play_round()
            rounds += 1
            if rounds >= WARM_UP_ROUNDS:
                self._samples.append(self._at_rest())
            if rounds % 5 == 0 and self._samples:
                print(f"round {rounds}, {self._jobs.count} replies: {self._samples[-1]}", flush=True)
            if ranks is not None:
                if self._rng.random() < 0.3:
                    ranks.strike_under_one_job(self._jobs)
                if ranks.is_used_up:
                    self._end_life(ranks)
                    self._samples, rounds = [], 0
        self._check_growth()
        check_size_at_end(self.service.mark)
        self._functions.check()
        self.service.stop()
        self._foreign.check()

    def _end_life(self, ranks: Ranks) -> None:
        """Stop the service or kill all its initial ranks, few of which are left; all ranks start again."""
        self._check_growth()
        sizes = ", ".join(
            f"{proportional_bytes(pid) / 1e6:.0f}" for pid in Family.of(self.service.mark).ranks
        )
        print(
            f"all ranks start again after {self._jobs.count} replies; memory of the old ranks in MB: {sizes}",
            flush=True,
        )
        if draw(SOAK_ENDS, self._rng) == "stop":
            self.service.stop()
            self._foreign.check()
            self.service.start()
            self.service.await_ready()
            ranks.begin()
            return
        for _ in range(self._rng.randint(0, ROUND_JOBS_MAX)):
            self._jobs.submit()
        ranks.lose_all_founders()
        self._jobs.await_all(self.service.check_alive, self._silence_s)

    def _check_growth(self) -> None:
        """Check that no rank has grown since all ranks started; it may be freed later. Raises Wrong."""

        def has_not_grown() -> bool:
            self.service.check_alive()
            if grown_bytes(self._samples) > RSS_GROWTH_MAX_BYTES:
                self._samples[-1] = self._at_rest()
            return grown_bytes(self._samples) <= RSS_GROWTH_MAX_BYTES

        if self._samples:
            text = "a rank that has grown frees its memory"
            wait_until(has_not_grown, text, GIVE_BACK_DEADLINE_S, 1.0)
            check_descriptors(self._samples)

    def tell(self) -> None:
        print(f"functions: {dict(self._functions.outcomes)}")
        print(f"killed: {dict(self._deeds)}; replies: {dict(sorted(self._jobs.outcomes.items()))}")
        for kind, latencies_s in sorted(self._jobs.latencies_s.items()):
            ordered = sorted(latencies_s)
            print(f"{kind}: median {ordered[len(ordered) // 2]:.3f} s, longest {ordered[-1]:.3f} s")
        for sample in (self._samples[0], self._samples[-1]) if self._samples else ():
            print(sample)

    def _play_round(self) -> None:
        """Run a round of jobs and faults. In a soak with losses of ranks, ranks also leave and join."""
        rng, jobs, ranks = self._rng, self._jobs, self._ranks
        is_burst = rng.random() < 0.15
        kill_rate = rng.choice((0.0, 0.03, 0.15))
        loss_rate = rng.choice((0.0, 0.003, 0.01))
        order_rate = rng.choice((0.0, 0.01, 0.03))
        full_rate = rng.choice((0.0, 0.003, 0.01))

        def look() -> None:
            self.service.check_alive()
            self._disks.look()
            if rng.random() < WEB_RATE:
                self._web.look(jobs)
            if rng.random() < full_rate:
                self._fill_a_disk()
            if rng.random() < kill_rate / 10:
                self._kill_a_process()
            if ranks is not None:
                ranks.look()
                if rng.random() < loss_rate:
                    ranks.strike()
                if rng.random() < order_rate:
                    ranks.order()

        self._functions.begin()
        for _ in range(BURST_JOBS if is_burst else rng.randint(1, ROUND_JOBS_MAX)):
            if is_burst:
                jobs.submit_one(rng.choice(("noop", "noop", "wallclock", "file", "cpu")))
            else:
                jobs.submit()
                time.sleep(rng.choice((0.0, 0.0, 0.005, 0.05)))  # so that jobs meet other jobs in all states
            if rng.random() < kill_rate:
                self._kill_a_process()
            look()
            while len(jobs.awaited) > IN_FLIGHT_MAX and not is_burst:
                jobs.look()
                look()
                time.sleep(0.02)
        jobs.await_all(look, self._silence_s)
        self._disks.relieve()
        if ranks is not None:
            ranks.settle()
        self._finish_functions()
        jobs.look()
        if left := [name for name in jobs.left() if name.startswith("in/")]:
            raise Wrong(f"not taken from in/: {left[:10]}")

    def _fill_a_disk(self) -> None:
        if self._disks.is_full or not self._disks.are_there:
            return
        name, duration_s = draw(SOAK_DISKS, self._rng), self._rng.uniform(*FULL_S)
        self._deeds[f"fill {name}"] += 1
        self.service.note(f"{name} is full for {duration_s:.1f} s")
        self._disks.fill(self.service.folder / name, duration_s)
        if self._ranks is not None:
            self._ranks.note_full_disk()

    def _kill_a_process(self) -> None:
        part = draw(SOAK_PROCESSES, self._rng)
        victims = PARTS[part](Target.of(self.service, self._rng))
        for victim in victims:
            parent, now_s = parent_of(victim), time.monotonic()
            if part == "fork server":
                # A rank gives up if several fork servers in a row end before they have done any work.
                if now_s < self._spared_until_s.get(parent, 0.0):
                    return
                self._spared_until_s[parent] = now_s + SPARE_FORK_SERVER_S
            self._deeds[part] += 1
            hit(self.service, "kill", f"{part} of {parent}", [victim])

    def _at_rest(self) -> Sample:
        """Wait until workers and files of ended jobs are gone; return a sample."""
        ranks = self._options.ranks if self._ranks is None else self._ranks.left
        most = WORKERS_AT_REST_MAX * self._options.pes * ranks

        def is_at_rest() -> bool:
            self.service.check_alive()
            family = Family.of(self.service.mark)
            servers, workers = len(family.fork_servers), len(family.workers)
            return (
                len(family.ranks) == servers == ranks and workers <= most and not self.service.descriptions()
            )

        wait_until(is_at_rest, "workers and descriptions of ended jobs are gone", REST_DEADLINE_S)
        return Sample.of(self.service.mark)


def _random_options(options: argparse.Namespace, folder: Path, rng: random.Random) -> list[str]:
    further = ["--job-cache", str(rng.choice((0, 1, 4, 4))), "--threads", str(rng.choice((1, 1, 2)))]
    if rng.random() < 0.5:
        rules = folder / "users.toml"
        rules.write_text("[default]\nactive-jobs = 10\nshare = 0.75\n")
        further += ["--users", str(rules)]
    if rng.random() < 0.25:
        further += ["--durable"]
    if options.rank_loss != "restart":
        further += ["--rank-timeout", f"{options.rank_timeout:g}s", "--restarts", "1000"]
    return [*further, "--rank-loss", options.rank_loss, "--pes", str(options.pes)]


def _early_and_late(samples: Sequence[Sample]) -> tuple[Sequence[Sample], Sequence[Sample]]:
    third = len(samples) // 3 or 1
    return samples[:third], samples[-third:]


def grown_bytes(samples: Sequence[Sample]) -> int:
    """Return by how much the samples' memory has grown, from the first to the last third."""
    early, late = _early_and_late(samples)
    return min(one.resident_bytes for one in late) - max(one.resident_bytes for one in early)


def check_descriptors(samples: Sequence[Sample]) -> None:
    """Check that the numbers of descriptors do not grow between two starts of all ranks. Raises Wrong."""
    early, late = _early_and_late(samples)
    for what in ("fds", "server_fds"):
        grown = min(getattr(one, what) for one in late) - max(getattr(one, what) for one in early)
        if grown > FDS_GROWTH_MAX:
            raise Wrong(f"the number of {what} has grown by {grown}")


def check_size_at_end(mark: str, deadline_s: float = GIVE_BACK_DEADLINE_S) -> None:
    """Check that no rank stays large after all jobs. Raises Wrong."""

    sizes: dict[int, int] = {}

    def are_small() -> bool:
        sizes.clear()
        sizes.update((pid, proportional_bytes(pid)) for pid in Family.of(mark).ranks)
        alone_bytes = SHARED_BYTES if len(sizes) == 1 else 0
        return max(sizes.values(), default=0) < RANK_AT_END_MAX_BYTES + alone_bytes

    limit = f"{RANK_AT_END_MAX_BYTES / 1e6:.0f} MB"
    try:
        wait_until(are_small, f"each rank without jobs has less than {limit} of memory", deadline_s, 1.0)
    except Wrong as wrong:
        told = ", ".join(f"process {pid}: {size / 1e6:.0f} MB" for pid, size in sizes.items())
        raise Wrong(f"{wrong} ({told})") from None
