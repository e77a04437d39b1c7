"""Runs of several policies on one workload, in parallel processes, with progress on a terminal."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mallob_py.batch.costs import ResizeCost
from mallob_py.batch.job import Workload
from mallob_py.batch.metrics import NodePower, energy_of, metrics_of
from mallob_py.batch.page import PolicyResult
from mallob_py.batch.policy import Action, Policy, View, Wrapper
from mallob_py.batch.registry import policy_of
from mallob_py.batch.simulator import EventOrder, Schedule, simulate

if TYPE_CHECKING:
    from multiprocessing.queues import SimpleQueue

    from rich.progress import Progress, TaskID

_PERIOD_S = 0.3
#: a function that is told a run's index, the elapsed share of the submissions' time, and how many jobs wait
Tell = Callable[[int, float, int], None]


class Setting(msgspec.Struct, frozen=True):
    """The settings that all runs share. `folder`: where to write schedules and pictures; None: nowhere."""

    workload: Workload
    order: EventOrder
    costs: ResizeCost | None
    power: NodePower
    folder: Path | None


def side_by_side(setting: Setting, policies: Sequence[str], processes: int | None) -> list[PolicyResult]:
    """Simulate the workload under each policy; return the results in the order of `policies`.

    Raises the error that a run raised, and BrokenProcessPool if a run is killed from outside.
    """
    folders = [setting.folder and setting.folder / name for name in folder_names(policies)]
    processes = min(processes or os.cpu_count() or 1, len(policies))
    with _Bars(policies) as bars:
        runs = list(zip(range(len(policies)), policies, folders, strict=True))
        if processes == 1:
            return [_play(setting, bars.tell, *run) for run in runs]
        news: SimpleQueue[tuple[int, float, int]] = multiprocessing.SimpleQueue()
        fork = multiprocessing.get_context("fork")
        pool = ProcessPoolExecutor(processes, fork, _begin, (setting, news))
        try:
            futures = [pool.submit(_play_there, *run) for run in runs]
            left = set(futures)
            while left:
                done, left = wait(left, _PERIOD_S)
                for future in done:
                    future.result()
                while not news.empty():
                    bars.tell(*news.get())
            return [future.result() for future in futures]
        finally:
            # After an error, further runs must not begin.
            pool.shutdown(cancel_futures=True)


def folder_names(policies: Iterable[str]) -> list[str]:
    """Return a folder name for each policy, valid on all file systems: easy-depth-10 for easy:depth=10."""
    names = list[str]()
    for text in policies:
        name = plain = re.sub(r"[^A-Za-z0-9_.+]+", "-", text).strip("-.")
        number = 1
        while name in names:
            number += 1
            name = f"{plain}-{number}"
        names.append(name)
    return names


# --- one run ------------------------------------------------------------------------------


_there: tuple[Setting, Tell]


def _begin(setting: Setting, news: SimpleQueue[tuple[int, float, int]]) -> None:
    """Set up a process for runs. Ctrl-C reaches this process too, which must then end without a message."""
    global _there
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _there = setting, lambda *told: news.put(told)


def _play_there(place: int, policy: str, folder: Path | None) -> PolicyResult:
    return _play(*_there, place, policy, folder)


def _play(setting: Setting, tell: Tell, place: int, policy: str, folder: Path | None) -> PolicyResult:
    watched = _WithProgress(policy_of(policy), setting.workload, tell, place)
    schedule = simulate(setting.workload, watched, costs=setting.costs, order=setting.order)
    tell(place, 1.0, 0)
    metrics = metrics_of(schedule)
    pictures = () if folder is None else _written(schedule, folder, setting.power)
    return PolicyResult(metrics, energy_of(schedule, setting.power), pictures)


def _written(schedule: Schedule, folder: Path, power: NodePower) -> Sequence[Path]:
    """Write a schedule's files; return the paths of its pictures (none without matplotlib)."""
    from mallob_py.batch.schedule_files import write_schedule

    write_schedule(schedule, folder, power)
    try:
        from mallob_py.batch.pictures import gantt, utilisation
    except ImportError:
        return ()
    paths = folder / "utilisation.svg", folder / "gantt.svg"
    if schedule.workload.jobs:
        for path, draw in zip(paths, (utilisation, gantt), strict=True):
            path.write_text(draw(schedule), encoding="utf-8")
    return [path for path in paths if path.exists()]


class _WithProgress(Wrapper):
    """A policy that reports its progress from time to time."""

    def __init__(self, policy: Policy, workload: Workload, tell: Tell, place: int) -> None:
        super().__init__(policy)
        self._submissions_end_s = workload.jobs[-1].submit_s if workload.jobs else 0.0
        self._tell = tell
        self._place = place
        self._next_s = time.monotonic()

    def decide(self, view: View) -> Iterable[Action]:
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + _PERIOD_S
            share = min(1.0, view.now_s / (self._submissions_end_s or 1.0))
            self._tell(self._place, share, len(view.queue))
        return self._policy.decide(view)


# --- progress -----------------------------------------------------------------------------


class _Bars:
    """Progress bars, one for each policy; shown only if stderr is a terminal."""

    def __init__(self, policies: Sequence[str]) -> None:
        self._policies = policies
        self._progress: Progress | None = None
        self._tasks: list[TaskID] = []

    def __enter__(self) -> _Bars:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

            # Threads must not refresh the bars, because processes are forked meanwhile.
            self._progress = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TaskProgressColumn(),
                TextColumn("{task.fields[waiting]}"),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                auto_refresh=False,
                transient=True,
            )
            self._progress.start()
            self._tasks = [self._progress.add_task(name, total=1.0, waiting="") for name in self._policies]
        return self

    def tell(self, place: int, share: float, waiting: int) -> None:
        if self._progress is not None:
            text = f"{waiting} jobs wait" if share < 1.0 else ""
            self._progress.update(self._tasks[place], completed=share, waiting=text, refresh=True)

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()
