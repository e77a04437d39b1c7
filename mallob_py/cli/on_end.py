"""`mallob-py serve --on-end COMMAND`: a process beside the service that runs a command for each ended job.

The process reads what each client of the service appends to its history. The command is a line for the shell;
it gets the job's line of the history (JSON) on standard input, and MALLOB_PY_JOB (USER.NAME) and
MALLOB_PY_OUTCOME in its environment; no part of a job enters the line itself. The command's output goes to
standard error.

The command runs once for each job that ends after the start of the service, which waits until the process
has read the history. The process ends when the service ends, which holds the other end of the process's
standard input.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec

from mallob_py.runtime.notices import tell, with_time_stamps
from mallob_py.runtime.processes import import_places, python
from mallob_py.service.telemetry.history import RecentHistory
from mallob_py.service.telemetry.status import EndedJob

_PERIOD_S = 0.2
#: greatest number of commands at a time
_AT_ONCE = 4
#: time after which a command is killed
LIMIT_S = 300.0
#: greatest number of jobs that wait for their command; of more jobs, the oldest are dropped
_WAITING_MAX = 10_000


#: a job's client, its internal id, and the time of its end
_Key: TypeAlias = tuple[int, int, float]


class _Running(NamedTuple):
    process: subprocess.Popen[bytes]
    job: EndedJob
    until_s: float


class OnEnd:
    """Runs `command` for each job of the folder that ends from now on."""

    def __init__(self, api_dir: Path, command: str) -> None:
        self._history = RecentHistory(api_dir)
        self._command = command
        #: jobs in the history, as read last; None: never read
        self._jobs: list[EndedJob] | None = None
        #: keys of the jobs read last, and of the jobs read before: a file may have been missed while it was
        #: renamed
        self._seen: set[_Key] = set()
        self._seen_before: set[_Key] = set()
        self._waiting: deque[EndedJob] = deque()
        self._running: list[_Running] = []
        self._new_jobs()

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self._running

    def look(self) -> None:
        """Read newly ended jobs, start commands, and reap ended commands."""
        self._waiting += self._new_jobs()
        while len(self._waiting) > _WAITING_MAX:
            given_up = self._waiting.popleft()
            tell(f"--on-end: jobs end faster than the command runs; not run for {_name(given_up)}")
        for one in tuple(self._running):
            self._look_after(one)
        while self._waiting and len(self._running) < _AT_ONCE:
            self._start(self._waiting.popleft())

    def _new_jobs(self) -> list[EndedJob]:
        """Return the jobs that have come into the history since the last call; none at the first call."""
        try:
            jobs = self._history.jobs()
        except OSError:
            return []  # a client's folder is being made or removed
        if jobs is self._jobs:
            return []
        is_first, self._jobs = self._jobs is None, jobs
        seen = self._seen | self._seen_before
        self._seen_before, self._seen = self._seen, set(map(_key, jobs))
        return [] if is_first else [job for job in jobs if _key(job) not in seen]

    def _start(self, job: EndedJob) -> None:
        told = {"MALLOB_PY_JOB": _name(job), "MALLOB_PY_OUTCOME": job.outcome}
        try:
            with open(os.memfd_create("job"), "w+b") as line:  # a pipe may be too small for a long error text
                line.write(msgspec.json.encode(job) + b"\n")
                line.seek(0)
                process = subprocess.Popen(
                    ["/bin/sh", "-c", self._command],
                    stdin=line,
                    stdout=sys.stderr,
                    env=os.environ | told,
                    start_new_session=True,
                )
        except (OSError, ValueError) as error:  # such as a name that the environment cannot hold
            tell(f"--on-end: {error}; not run for {told['MALLOB_PY_JOB']}")
            return
        self._running.append(_Running(process, job, time.monotonic() + LIMIT_S))

    def _look_after(self, one: _Running) -> None:
        name = _name(one.job)
        if (code := one.process.poll()) is not None:
            self._running.remove(one)
            if code != 0:
                tell(f"--on-end: the command ended with code {code} for {name}")
        elif time.monotonic() > one.until_s:
            os.killpg(one.process.pid, 9)
            one.process.wait()
            self._running.remove(one)
            tell(f"--on-end: the command was killed after {LIMIT_S:g} s for {name}")


def _key(job: EndedJob) -> _Key:
    return job.client, job.id, job.ended


def _name(job: EndedJob) -> str:
    """Return the job's identity; if the job was refused before its user was known, the file's name."""
    return f"{job.user}.{job.name}" if job.user else job.name


def start(api_dir: Path, command: str) -> None:
    """Start the process beside the service; it ends after this process and all forks made later.

    Returns when the process has read the history.
    """
    process = subprocess.Popen(
        [*python(), "-m", "mallob_py.cli.on_end", str(api_dir.absolute()), command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | import_places(),
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.read()
    process.stdout.close()
    os.dup(process.stdin.fileno())  # this copy of the pipe stays open when `process` is collected
    process.returncode = 0  # not waited for: the new process ends later, with its last commands


def main() -> None:
    with_time_stamps()
    api_dir, command = sys.argv[1:]
    ends = OnEnd(Path(api_dir), command)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # tells `start` that the history was read
    is_served = True
    while is_served or not ends.is_idle:
        if is_served:
            is_served = not select.select([0], [], [], _PERIOD_S)[0]
        else:
            time.sleep(_PERIOD_S / 4)
        ends.look()


if __name__ == "__main__":
    main()
