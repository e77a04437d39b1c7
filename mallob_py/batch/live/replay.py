"""A workload over real processes: the counterpart of `simulate` in real time.

A separate scheduler (`mallob-py batch serve`) receives the workload's jobs at their times of submission. By
default, each job is a program that works by waiting (`timed`). This process measures the jobs' times.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from mallob_py.batch.costs import Delays
from mallob_py.batch.job import Job, Kind, Truth, Workload
from mallob_py.batch.live.folder import Folder
from mallob_py.batch.live.launch import RunEnd
from mallob_py.batch.live.requests import Done, LiveError, Nodes, Submit, ask, own_environment
from mallob_py.batch.live.script import ANY_NUMBER
from mallob_py.batch.live.timed import Event, Told, now_s, told
from mallob_py.batch.speedup import LINEAR
from mallob_py.runtime.processes import die_with, import_places, no_orphans, python

_POLL_S = 0.01
_UP_S = 60.0


class ReplayError(Exception):
    """A job has not run to its end, or the scheduler does not run. The error's text is one line."""


class Life(msgspec.Struct, frozen=True):
    """The record of a job's real run. Times are seconds since the host's boot.

    `told`: the events that a timed program reported; `output`: the output of any other program; `shrinks`,
    `grows`: how many orders the job got.
    """

    submit_s: float
    start_s: float
    end_s: float
    told: list[Told]
    output: str = ""
    shrinks: int = 0
    grows: int = 0


#: a function that returns the lines that follow the headers in a job's script
Body = Callable[[Job, Truth], str]


def timed_body(job: Job, truth: Truth) -> str:
    """Return the script lines that run a program which works by waiting (`timed`)."""
    command = [*python(), "-m", "mallob_py.batch.live.timed", str(truth.run_s), str(job.nodes)]
    return f"exec {shlex.join(command)}"


def scaled(workload: Workload, second_s: float) -> Workload:
    """Return the workload for a live scheduler: each of its seconds lasts `second_s` real seconds.

    A job's estimate then holds on any number of nodes, and its true speedup is linear.
    """
    jobs = [
        msgspec.structs.replace(
            job,
            submit_s=job.submit_s * second_s,
            estimate_s=_milliseconds(job.estimate_s * second_s) / 1000,
            speedup=ANY_NUMBER,
        )
        for job in workload.jobs
    ]
    truths = [Truth(truth.run_s * second_s, LINEAR) for truth in workload.truths]
    return msgspec.structs.replace(workload, jobs=jobs, truths=truths)


def _milliseconds(time_s: float) -> int:
    return max(1, round(time_s * 1000))


def replay(
    workload: Workload, policy: str, tell: Callable[[int], None], body: Body = timed_body
) -> list[Life]:
    """Run a workload; return each job's record. `tell` is called repeatedly with the number of ended jobs.

    The workload must come from `scaled` and have no moldable jobs; `body` returns the jobs' scripts. No
    process or file is left afterwards, even after Ctrl-C. Raises ReplayError, OSError.
    """
    orders: Counter[tuple[int, str]] = Counter()
    with _folder() as path:
        with no_orphans(), _scheduler(path, policy, workload.nodes, orders):
            ends_s = _play(workload, path, tell, body)
        folder = Folder(path)
        clock = folder.clock()
        assert clock is not None
        zero_s = clock.up_s - clock.now_s
        lives = list[Life]()
        for job in folder.ended(len(ends_s)):
            submitted, run, status = job.submitted(), job.run(), job.status()
            output = job.output.read_text() if job.output.exists() else ""
            if run is None or status is None or status.ending is not RunEnd.EXITED or status.code != 0:
                last = (output.splitlines() or ["it has printed nothing"])[-1]
                raise ReplayError(f"job {job.number} under {policy}: {status}; {last}")
            times_s = submitted.submit_s + zero_s, run.start_s + zero_s, ends_s[job.number]
            is_timed = body is timed_body
            number = job.number
            lives.append(
                Life(
                    *times_s,
                    told(output) if is_timed else [],
                    "" if is_timed else output,
                    orders[number, "shrink"],
                    orders[number, "grow"],
                )
            )
        return lives


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    path = tempfile.mkdtemp(prefix="mallob-py-batch-")
    try:
        yield Path(path)
    finally:
        shutil.rmtree(path)


@contextlib.contextmanager
def _scheduler(path: Path, policy: str, slots: int, orders: Counter[tuple[int, str]]) -> Iterator[None]:
    """Context manager that runs a scheduler in a session of its own, so that Ctrl-C does not reach it.

    On exit, the numbers of orders are added to `orders`: (job, shrink or grow) -> number of orders.
    """
    us = os.getpid()
    log = path.with_suffix(".log")
    command = [*python(), "-m", "mallob_py", "batch", "serve", "--dir", str(path)]
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, "--slots", str(slots), "--policy", policy],
                env=os.environ | import_places(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=lambda: die_with(us, signal.SIGTERM),
            )
        try:
            until_s = now_s() + _UP_S
            while not _is_up(path):
                if process.poll() is not None or now_s() > until_s:
                    said = log.read_text(errors="replace").strip() or "the scheduler does not start"
                    raise ReplayError(said.splitlines()[-1].removeprefix("mallob-py: "))
                time.sleep(_POLL_S)
            yield
        finally:
            process.terminate()
            process.wait()
            orders.update(_orders_in(log.read_text(errors="replace")))
    finally:
        log.unlink(missing_ok=True)


def _orders_in(log: str) -> Iterator[tuple[int, str]]:
    """Yield each order (job, shrink or grow) that a scheduler's output reports."""
    for number, order in re.findall(r"^job (\d+) .*: (shrink|grow) \d", log, re.MULTILINE):
        yield int(number), order


def _is_up(path: Path) -> bool:
    with contextlib.suppress(LiveError):
        ask(path, Nodes())
        return True
    return False


def _play(workload: Workload, path: Path, tell: Callable[[int], None], body: Body) -> dict[int, float]:
    """Submit the jobs and wait for their ends; return job number -> time [s] of its end."""
    began_s = now_s()
    ends_s: dict[int, float] = {}
    limit_s = sum(job.submit_s + job.estimate_s for job in workload.jobs) + _UP_S
    handed_in = 0
    while len(ends_s) < len(workload.jobs):
        now = now_s()
        for name in os.listdir(path / "ended"):
            ends_s.setdefault(int(name), now)
        tell(len(ends_s))
        if now - began_s > limit_s:
            raise ReplayError(f"the jobs have not ended after {limit_s:.0f} s")
        if handed_in < len(workload.jobs) and workload.jobs[handed_in].submit_s <= now - began_s:
            _submit(
                path, workload.jobs[handed_in], body(workload.jobs[handed_in], workload.truths[handed_in])
            )
            handed_in += 1
        else:
            time.sleep(_POLL_S)
    return ends_s


def _submit(path: Path, job: Job, body: str) -> None:
    headers = [f"JOB_CLASS {job.kind.value}", f"REQUIRED_TIME {_milliseconds(job.estimate_s)}"]
    headers.append(f"NODES {job.nodes}")
    if job.kind is not Kind.RIGID:
        headers += [f"MIN_NODES {job.low}", f"MAX_NODES {job.high}"]
    script = "\n".join(["#!/bin/sh", *(f"#{line}" for line in headers), f"{body}\n"])
    environment = own_environment() | import_places()
    try:
        answer = ask(path, Submit(script, f"job{job.number}", str(path), environment))
    except LiveError as error:
        raise ReplayError(f"job {job.number}: {error}") from None
    assert isinstance(answer, Done)


# --- output of the scheduler -----------------------------------------------------------------


def delays_of(life: Life) -> Delays:
    """Return the delays of one job, as means over its orders; 0: no such event was measured."""
    took_s: dict[str, list[float]] = {name: [] for name in Delays.__struct_fields__}
    last_s = dict[Event, float]()
    for one in life.told:
        match one.event:
            case Event.WORKS if Event.WORKS not in last_s:
                took_s["start_s"].append(one.at_s - life.start_s)
            case Event.WORKS:
                took_s["grow_s"].append(one.at_s - last_s[Event.GROWS])
            case Event.READY:
                took_s["ready_s"].append(one.at_s - life.start_s)
            case Event.HAS_SHRUNK:
                took_s["shrink_s"].append(one.at_s - last_s[Event.SHRINKS])
            case Event.DONE:
                took_s["end_s"].append(life.end_s - one.at_s)
        last_s[one.event] = one.at_s
    return Delays(**{name: sum(times) / len(times) for name, times in took_s.items() if times})
