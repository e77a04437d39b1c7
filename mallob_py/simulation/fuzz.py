"""Play random plans until told to stop; shrink every kind of failure and print it.

python -m mallob_py.simulation.fuzz --seconds 60        as many seeds as fit
python -m mallob_py.simulation.fuzz --seed 4711         this seed: passes, or is shrunk and told
python -m mallob_py.simulation.fuzz --replay FILE       a shrunk plan, told with its traceback

Each seed is played twice: whole, and cut off at a random deed, after which the cluster must
come to rest in time (`scenario.py`).

From a plan that fails to a small one that fails in the same way (delta debugging): parts are left
out as long as the failure stays: whole jobs, single deeds, PEs, settings that differ from the
default, and at last delays: all messages take the shortest time but a few, and these few are the
race. It works since a plan without a part plays like the plan with it, as far as that part does not
matter (`plan.py`, `delays.py`).
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import queue
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from mallob_py.protocol.config import Config
from mallob_py.simulation.delays import Delayed, What, mixed
from mallob_py.simulation.plan import AnyDeed, Breakdown, Demand, Plan, Submit, draw_plan, to_json
from mallob_py.simulation.replay import ReplayError, replay
from mallob_py.simulation.scenario import Failure, Scenario, failure_in, failure_of, schedule_of

Part = TypeVar("Part")

_BATCH = 4
_FAILURES_MAX = 10
_PROGRESS_EVERY_S = 5.0
_COMMAND = f"{sys.executable} -m mallob_py.simulation.fuzz"
_SIZES_TRIED = (1, 2, 3, 4, 5, 6, 7, 8, 10, 13, 16, 24, 32, 48, 64, 128)


class Shrunk(msgspec.Struct, frozen=True):
    """The smallest plan found, how it fails, how many plans were tried, and whether time was left for all."""

    plan: Plan
    failure: Failure
    tried: int
    is_minimal: bool


def shrink(plan: Plan, failure: Failure, seconds_max: float = 60.0) -> Shrunk:
    """A small plan with a failure of the same kind, found within about that time."""
    return _Shrinker(plan, failure, time.monotonic() + seconds_max).shrunk()


def minimal(parts: Sequence[Part], fails: Callable[[Sequence[Part]], bool]) -> list[Part]:
    """A sublist that still fails and does not without any single part, if all tries are granted."""
    kept = list(parts)
    if kept and fails([]):
        return []
    width = (len(kept) + 1) // 2
    while width:
        first, removed = 0, False
        while first < len(kept):
            rest = kept[:first] + kept[first + width :]
            if rest and fails(rest):
                kept, removed = rest, True
            else:
                first += width
        if width == 1 and not removed:
            return kept
        width = max(1, width // 2)
    return kept


class _Shrinker:
    """The smallest plan so far, and the attempts to make it smaller."""

    def __init__(self, plan: Plan, failure: Failure, deadline: float) -> None:
        self._plan = plan
        self._failure = failure
        self._deadline = deadline
        self._tried = 0

    def shrunk(self) -> Shrunk:
        before = None
        while before != self._plan and self._has_time():
            before = self._plan
            self._end_early()
            self._drop_jobs()
            self._drop_deeds()
            self._use_fewer_pes()
            self._use_defaults()
            self._hasten()
        return Shrunk(self._plan, self._failure, self._tried, self._has_time())

    def _has_time(self) -> bool:
        return time.monotonic() < self._deadline

    def _try(self, plan: Plan) -> bool:
        """Go on from this plan if it fails in the same way."""
        if plan == self._plan:
            return True
        if not self._has_time():
            return False
        self._tried += 1
        failure = failure_of(plan)
        if failure is None or failure.kind != self._failure.kind:
            return False
        self._plan, self._failure = plan, failure
        return True

    def _try_with(self, **fields: Any) -> bool:
        return self._try(msgspec.structs.replace(self._plan, **fields))

    # --- what happens -----------------------------------------------------------------------

    def _end_early(self) -> None:
        """Nothing after the failure matters; most often not much before it either."""
        deeds = self._plan.deeds
        self._try_with(deeds=tuple(deed for deed in deeds if deed.at_s <= self._failure.at_s))

    def _drop_jobs(self) -> None:
        def fails(jobs: Sequence[int]) -> bool:
            return self._try_with(deeds=tuple(deed for deed in deeds if deed.job in set(jobs)))

        deeds = self._plan.deeds
        minimal(sorted({deed.job for deed in deeds}), fails)

    def _drop_deeds(self) -> None:
        def fails(deeds: Sequence[AnyDeed]) -> bool:
            return self._try_with(deeds=tuple(deeds))

        minimal(self._plan.deeds, fails)

    # --- where and how ----------------------------------------------------------------------

    def _use_fewer_pes(self) -> None:
        for size in _SIZES_TRIED:
            if size >= self._plan.size:
                return
            deeds = tuple(_on_fewer_pes(deed, size) for deed in self._plan.deeds)
            if self._try_with(size=size, deeds=deeds):
                return

    def _use_defaults(self) -> None:
        """One setting at a time, those of the cluster and those of the jobs."""
        self._try_with(largest_capacity=0)
        for config in _nearer_to(self._plan.config, Config()):
            self._try_with(config=msgspec.structs.replace(self._plan.config, **config))
        for place, deed in enumerate(self._plan.deeds):
            if isinstance(deed, Submit):
                plain = Submit(number=deed.number, at_s=deed.at_s, job=deed.job, rank=deed.rank)
                for fields in _nearer_to(deed, plain):
                    deeds = list(self._plan.deeds)
                    deeds[place] = msgspec.structs.replace(deeds[place], **fields)
                    self._try_with(deeds=tuple(deeds))

    def _hasten(self) -> None:
        """Let all that takes time take the shortest time, first by pairs of ranks, then one by one."""

        def fails_with(pairs: Sequence[tuple[What, int, int]]) -> bool:
            chosen = set(pairs)
            return self._try_with(special=tuple(each for each in special if each[:3] in chosen))

        def fails(few: Sequence[Delayed]) -> bool:
            return self._try_with(special=tuple(few))

        special = self._plan.special or ()
        if self._plan.special is None:
            scenario = Scenario(self._plan)
            failure_in(scenario)
            special = tuple(scenario.delays.all_so_far())
        minimal(sorted({each[:3] for each in special}, key=_by_rank), fails_with)
        if self._plan.special is not None:
            minimal(self._plan.special, fails)


def _by_rank(pair: tuple[What, int, int]) -> tuple[int, int, str]:
    what, source, dest = pair
    return source, dest, what.value


def _on_fewer_pes(deed: AnyDeed, size: int) -> AnyDeed:
    match deed:
        case Submit():
            near = None if deed.near is None else deed.near % size
            return msgspec.structs.replace(deed, rank=deed.rank % size, near=near)
        case Breakdown(rank=int(rank)):
            return msgspec.structs.replace(deed, rank=rank % size)
        case Demand():
            return msgspec.structs.replace(deed, workers=min(deed.workers, size))
        case _:
            return deed


def _nearer_to(present: msgspec.Struct, plain: msgspec.Struct) -> Iterator[dict[str, Any]]:
    """Each field that differs from the plain value, alone."""
    for name in present.__struct_fields__:
        if getattr(present, name) != getattr(plain, name):
            yield {name: getattr(plain, name)}


class Found(msgspec.Struct, frozen=True):
    """A seed that fails, and the plan of it that does."""

    plan: Plan
    failure: Failure


def plans_of(seed: int) -> Iterator[Plan]:
    """The whole plan of a seed, and the same without any news after some deed."""
    plan = draw_plan(seed)
    yield plan
    yield plan.cut_off(1 + mixed(seed) % len(plan.deeds))


def play(seed: int) -> Found | None:
    """The first failure of a seed, if it has any."""
    for plan in plans_of(seed):
        if (failure := failure_of(plan)) is not None:
            return Found(plan, failure)
    return None


def tell(found: Found, folder: Path, seconds_max: float) -> str:
    """Shrink a failure, write the small plan to a file and describe it."""
    shrunk = shrink(found.plan, found.failure, seconds_max)
    path = folder / f"failure_{found.plan.seed}.json"
    path.write_bytes(to_json(shrunk.plan))
    unfinished = "" if shrunk.is_minimal else " (more --shrink-seconds may make it smaller)"
    return "\n".join(
        [
            f"== seed {found.plan.seed} fails: {shrunk.failure.kind}",
            shrunk.failure.text.rstrip(),
            f"-- the smallest of {shrunk.tried} plans: {len(found.plan.deeds)} deeds on {found.plan.size} PEs"
            f" became {len(shrunk.plan.deeds)} on {shrunk.plan.size}{unfinished}",
            schedule_of(shrunk.plan),
            f"replay: {_COMMAND} --replay {path}",
            f"from the seed: {_COMMAND} --seed {found.plan.seed}",
        ]
    )


class _Fuzz:
    """Seeds on all cores; failures of a new kind are shrunk on one of them meanwhile."""

    def __init__(self, pool: Any, options: argparse.Namespace) -> None:
        self._pool = pool
        self._options = options
        self._results: queue.Queue[list[Found | None] | str | BaseException] = queue.Queue()
        self._under_way = 0
        self._shrinking = 0
        #: seeds by the kind of their failure
        self._kinds: dict[str, list[int]] = {}
        self._began_s = self._told_s = time.monotonic()
        self.next_seed: int = options.first
        self.played = 0
        self.failed = 0

    def run(self) -> None:
        """Until the time is over or there are many failures; what is under way is waited for."""
        deadline_s = self._began_s + self._options.seconds
        while True:
            goes_on = time.monotonic() < deadline_s and self.failed < _FAILURES_MAX
            while goes_on and self._under_way < 2 * self._options.jobs:
                self._start(_play_all, range(self.next_seed, self.next_seed + _BATCH))
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
                self._start(tell, found, self._options.folder, self._options.shrink_seconds)

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
        """What has failed, and what to do next."""
        lines = [self._counts()]
        for kind, seeds in self._kinds.items():
            lines.append(f"  {kind}\n    seeds {', '.join(map(str, seeds))}: {_COMMAND} --seed {seeds[0]}")
        if not self._kinds:
            lines.append(
                f"no failure; go on with the seeds that follow: --first {self._options.first + self.played}"
            )
        return "\n".join(lines)


def _play_all(seeds: range) -> list[Found | None]:
    return [play(seed) for seed in seeds]


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def fuzz(options: argparse.Namespace) -> int:
    """Random seeds, in parallel; 1 if any of them fails."""
    with multiprocessing.Pool(options.jobs, _leave_interrupts_to_the_parent) as pool:
        fuzzing = _Fuzz(pool, options)
        try:
            fuzzing.run()
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
    print(fuzzing.summary())
    return 1 if fuzzing.failed else 0


def replay_seed(seed: int, folder: Path, shrink_seconds: float) -> int:
    """Play one seed and tell its failure, shrunk."""
    found = play(seed)
    if found is None:
        print(f"seed {seed}: all invariants hold")
        return 0
    print(tell(found, folder, shrink_seconds))
    return 1


def replay_file(path: Path) -> int:
    """Play a plan, or stimuli of a real run, from a file and tell what happens."""
    try:
        return replay(path)
    except ReplayError as error:
        print(error, file=sys.stderr)
        return 2


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="stop after this time")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--first", type=int, default=0, help="seed to begin with")
    parser.add_argument("--seed", type=int, help="play this one seed")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="play the plan in this file")
    parser.add_argument("--folder", type=Path, default=Path(), help="where shrunk plans are written")
    parser.add_argument("--shrink-seconds", type=float, default=60.0, help="for each kind of failure")
    options = parser.parse_args()
    if options.replay is not None:
        return replay_file(options.replay)
    if options.seed is not None:
        return replay_seed(options.seed, options.folder, options.shrink_seconds)
    return fuzz(options)


if __name__ == "__main__":
    raise SystemExit(main())
