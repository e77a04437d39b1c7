"""Simulate random plans until told to stop; shrink every kind of failure and print it.

python -m mallob_py.simulation.fuzz --seconds 60        as many seeds as fit
python -m mallob_py.simulation.fuzz --seed 4711         this seed; a failure is shrunk and described
python -m mallob_py.simulation.fuzz --bags              plans of bag jobs instead of clusters
python -m mallob_py.simulation.fuzz --replay FILE       a shrunk plan, described with its traceback

A plan says what happens to a cluster or, with `--bags`, to a bag job (`lives.py`); `shrinking.py` tells how a
failure is shrunk.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import queue
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mallob_py.runtime.processes import python
from mallob_py.simulation.lives import BAGS, CLUSTERS, Lives
from mallob_py.simulation.replay import ReplayError, replay
from mallob_py.simulation.shrinking import Failure

_BATCH = 4
_FAILURES_MAX = 10
_PROGRESS_EVERY_S = 5.0
_COMMAND = " ".join([*python(), "-m", "mallob_py.simulation.fuzz"])


@dataclass(frozen=True)
class Found:
    """A failing plan, and its failure."""

    plan: Any
    failure: Failure


def play(seed: int, lives: Lives[Any] = CLUSTERS) -> Found | None:
    """Return the first failure of a seed, if it has any."""
    for plan in lives.plans_of(seed):
        if (failure := lives.failure_of(plan)) is not None:
            return Found(plan, failure)
    return None


def tell(found: Found, folder: Path, seconds_max: float, lives: Lives[Any] = CLUSTERS) -> str:
    """Shrink a failure, write the small plan to a file and describe it."""
    shrunk = lives.shrink(found.plan, found.failure, seconds_max)
    path = folder / f"failure_{found.plan.seed}.json"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lives.to_json(shrunk.plan))
    unfinished = "" if shrunk.is_minimal else " (more --shrink-seconds may make it smaller)"
    command = _COMMAND + lives.options
    return "\n".join(
        [
            f"== seed {found.plan.seed} fails: {shrunk.failure.kind}",
            shrunk.failure.text.rstrip(),
            f"-- the smallest failing one of {shrunk.tried} plans: {lives.size_of(found.plan)}"
            f" became {lives.size_of(shrunk.plan)}{unfinished}",
            lives.schedule_of(shrunk.plan),
            f"replay: {command} --replay {path}",
            f"from the seed: {command} --seed {found.plan.seed}",
        ]
    )


class _Fuzz:
    """Simulates the plans of seeds on all cores; meanwhile one core shrinks failures of each new kind."""

    def __init__(self, pool: Any, options: argparse.Namespace) -> None:
        self._pool = pool
        self._options = options
        self._lives = lives_of(options)
        self._results: queue.Queue[list[Found | None] | str | BaseException] = queue.Queue()
        self._under_way = 0
        self._shrinking = 0
        #: kind of failure -> seeds
        self._kinds: dict[str, list[int]] = {}
        self._began_s = self._told_s = time.monotonic()
        self.next_seed: int = options.first
        self.played = 0
        self.failed = 0

    def run(self) -> None:
        """Simulate seeds until the time is over or there are many failures; then wait for seeds under way."""
        deadline_s = self._began_s + self._options.seconds
        while True:
            goes_on = time.monotonic() < deadline_s and self.failed < _FAILURES_MAX
            while goes_on and self._under_way < 2 * self._options.jobs:
                self._start(_play_all, range(self.next_seed, self.next_seed + _BATCH), self._lives)
                self.next_seed += _BATCH
            if not self._under_way:
                return
            with suppress(queue.Empty):
                self._take(self._results.get(timeout=1.0))
            self._tell_progress()

    def _start(self, work: Any, *arguments: Any) -> None:
        self._under_way += 1
        self._pool.apply_async(work, arguments, callback=self._results.put, error_callback=self._results.put)

    def _take(self, result: list[Found | None] | str | BaseException) -> None:
        self._under_way -= 1
        if isinstance(result, BaseException):
            raise result
        if isinstance(result, str):
            self._shrinking -= 1
            print(f"\n{result}\n", flush=True)
            return
        self.played += len(result)
        for found in result:
            if found is None:
                continue
            self.failed += 1
            seeds = self._kinds.setdefault(found.failure.kind, [])
            seeds.append(found.plan.seed)
            if len(seeds) > 1:
                print(f"seed {found.plan.seed} fails in the same way: {found.failure.kind}", flush=True)
            else:
                print(f"seed {found.plan.seed} fails, shrinking: {found.failure.kind}", flush=True)
                self._shrinking += 1
                self._start(tell, found, self._options.folder, self._options.shrink_seconds, self._lives)

    def _tell_progress(self) -> None:
        now = time.monotonic()
        if now - self._told_s >= _PROGRESS_EVERY_S:
            self._told_s = now
            shrinking = f", shrinking {self._shrinking}" if self._shrinking else ""
            print(self._counts() + shrinking, flush=True)

    def _counts(self) -> str:
        rate = self.played / max(1e-9, time.monotonic() - self._began_s)
        return f"{self.played} seeds from {self._options.first} on, {rate:.1f}/s, {self.failed} failed"

    def summary(self) -> str:
        """Return the failures, and the commands that play them again."""
        command = _COMMAND + self._lives.options
        lines = [self._counts()]
        for kind, seeds in self._kinds.items():
            lines.append(f"  {kind}\n    seeds {', '.join(map(str, seeds))}: {command} --seed {seeds[0]}")
        if not self._kinds:
            lines.append(
                f"no failure; go on with the seeds that follow: --first {self._options.first + self.played}"
            )
        return "\n".join(lines)


def lives_of(options: argparse.Namespace) -> Lives[Any]:
    return BAGS if options.bags else CLUSTERS


def _play_all(seeds: range, lives: Lives[Any]) -> list[Found | None]:
    return [play(seed, lives) for seed in seeds]


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def fuzz(options: argparse.Namespace) -> int:
    """Simulate plans of random seeds in parallel; return 1 if any of them fails."""
    with multiprocessing.get_context("fork").Pool(options.jobs, _leave_interrupts_to_the_parent) as pool:
        fuzzing = _Fuzz(pool, options)
        try:
            fuzzing.run()
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
    print(fuzzing.summary())
    return 1 if fuzzing.failed else 0


def replay_seed(seed: int, folder: Path, shrink_seconds: float, lives: Lives[Any] = CLUSTERS) -> int:
    """Simulate one seed's plan and report its shrunk failure."""
    found = play(seed, lives)
    if found is None:
        print(f"seed {seed}: all invariants hold")
        return 0
    print(tell(found, folder, shrink_seconds, lives))
    return 1


def replay_file(path: Path) -> int:
    """Replay a plan, or the stimuli of a real run, from a file, and report what happens."""
    try:
        return replay(path)
    except ReplayError as error:
        print(error, file=sys.stderr)
        return 2


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bags", action="store_true", help="play plans of bag jobs, not of clusters")
    parser.add_argument("--seconds", type=float, default=60.0, help="stop after this time")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="number of processes")
    parser.add_argument("--first", type=int, default=0, help="seed to begin with")
    parser.add_argument("--seed", type=int, help="play this one seed")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="play the plan in this file")
    parser.add_argument("--folder", type=Path, default=Path(), help="folder for shrunk plans")
    parser.add_argument(
        "--shrink-seconds",
        type=float,
        default=60.0,
        help="time for shrinking each kind of failure, in seconds",
    )
    options = parser.parse_args()
    if options.replay is not None:
        return replay_file(options.replay)
    if options.seed is not None:
        return replay_seed(options.seed, options.folder, options.shrink_seconds, lives_of(options))
    return fuzz(options)


if __name__ == "__main__":
    raise SystemExit(main())
