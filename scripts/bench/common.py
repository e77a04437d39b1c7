"""The common parts of the benchmarks: a service to measure, job files in, replies out, tables, JSON.

A job's latency is measured as in the comparison runs with the C++ system: the (monotonic) clock starts when
the job file is renamed into `in/`, and stops when a loop that looks every 0.2 ms sees the reply.
"""

import contextlib
import json
import os
import platform
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mallob_py.runtime.processes import python
from mallob_py.service.telemetry.event_log import Event, read_events
from mallob_py.text_table import Cell, format_table

REPLY_POLL_S = 0.0002
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
RESULTS_DIR = Path("bench-results")

_ACCEPTING = "accepting jobs"


class BenchmarkError(Exception):
    """A command of the benchmark failed or did not start."""


@dataclass(frozen=True)
class DroppedJob:
    """A job file that was put into `in/`. `dropped_unix_s` is the time `dropped_s`, in s since 1970."""

    identity: str
    reply_path: Path
    dropped_s: float
    dropped_unix_s: float


@dataclass(frozen=True)
class PreparedJob:
    """A job file that is in `in/` under a name that the service ignores."""

    identity: str
    hidden_path: Path
    in_path: Path
    reply_path: Path

    def drop(self) -> DroppedJob:
        dropped_s, dropped_unix_s = time.monotonic(), time.time()
        os.rename(self.hidden_path, self.in_path)
        return DroppedJob(self.identity, self.reply_path, dropped_s, dropped_unix_s)


@dataclass(frozen=True)
class Service:
    """A running service. `events` gets the events of all ranks when the service has stopped."""

    api_dir: Path
    log_dir: Path
    ranks: int
    process: subprocess.Popen[str]
    start_s: float
    events: list[Event] = field(default_factory=list)

    def drop(self, job: dict[str, Any], client: int = 0) -> DroppedJob:
        """Submit a job: write its file and rename the file into place."""
        return self.prepare(job, client).drop()

    def prepare(self, job: dict[str, Any], client: int = 0) -> PreparedJob:
        """Write a job file that the service does not see yet; `drop` then only renames it."""
        folder = self.api_dir / f"jobs.{client}"
        identity = f"{job['user']}.{job['name']}"
        hidden = folder / "in" / f"~{identity}.json"
        hidden.write_text(json.dumps(job))
        name = f"{identity}.json"
        return PreparedJob(identity, hidden, folder / "in" / name, folder / "out" / name)

    def await_reply(self, job: DroppedJob, timeout_s: float = 60.0, poll_s: float = REPLY_POLL_S) -> float:
        """Wait for a reply by fast polling, which takes a core's time; return the time since the drop."""
        path = os.fspath(job.reply_path)
        deadline_s = time.monotonic() + timeout_s
        while not os.path.exists(path):
            if time.monotonic() > deadline_s:
                raise BenchmarkError(f"no reply to {job.identity} within {timeout_s:.0f} s")
            if self.process.poll() is not None:
                raise BenchmarkError(f"the service ended with exit code {self.process.returncode}")
            time.sleep(poll_s)
        return time.monotonic() - job.dropped_s

    def reply(self, job: DroppedJob) -> dict[str, Any]:
        """Read a reply. Must be called after `await_reply`."""
        content: dict[str, Any] = json.loads(job.reply_path.read_bytes())
        return content

    def interrupt(self, identity: str, client: int = 0) -> None:
        """Request the interruption of a job."""
        user, _, name = identity.partition(".")
        folder = self.api_dir / f"jobs.{client}" / "in"
        hidden = folder / f"~{identity}.interrupt.json"
        hidden.write_text(json.dumps({"user": user, "name": name, "interrupt": True}))
        hidden.rename(folder / f"{identity}.interrupt.json")


@contextlib.contextmanager
def running_service(
    ranks: int,
    extra_arguments: Sequence[str] = (),
    interpreter: str | None = None,
    parent: Path | None = None,
) -> Iterator[Service]:
    """Run a service on a new api-dir below `parent`: the block begins when the service accepts jobs.

    At the block's end, the service is stopped; if it does not stop, it is killed, and BenchmarkError is
    raised. The service shares this process's standard error.
    """
    folder = Path(tempfile.mkdtemp(prefix="mallob-py-bench.", dir=parent))
    api_dir, log_dir = folder / "api", folder / "logs"
    command = [*(python() if interpreter is None else (interpreter, "-P")), "-m", "mallob_py", "serve"]
    command += ["-n", str(ranks)]
    command += ["--api-dir", str(api_dir), "--log-dir", str(log_dir), *extra_arguments]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a killed benchmark must stop the service
    begin_s = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        _await_accepting(process)
        service = Service(api_dir, log_dir, ranks, process, time.monotonic() - begin_s)
        yield service
        _stop(process)
        service.events.extend(read_events(log_dir))
    finally:
        _kill_group(process)
        if process.stdout is not None:
            process.stdout.close()
        shutil.rmtree(folder, ignore_errors=True)


def _await_accepting(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    watchdog = threading.Timer(START_TIMEOUT_S, _kill_group, [process])
    watchdog.start()
    try:
        for line in process.stdout:
            if _ACCEPTING in line:
                break
        else:
            raise BenchmarkError(f"the service did not start (exit code {process.wait()})")
    finally:
        watchdog.cancel()
    # Later output of the service must not fill the pipe.
    threading.Thread(target=_drain, args=[process], daemon=True).start()


def _drain(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    with contextlib.suppress(ValueError):  # the pipe is closed by another thread at the end
        for _ in process.stdout:
            pass


def ends_within(process: subprocess.Popen[Any], limit_s: float) -> bool:
    """Wait at most `limit_s` for a process's end, without the polling of `Popen.wait` (every 50 ms)."""
    if process.poll() is not None:
        return True
    descriptor = os.pidfd_open(process.pid)
    try:
        return bool(select.select([descriptor], [], [], limit_s)[0])
    finally:
        os.close(descriptor)


def _stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        exit_code = process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise BenchmarkError(f"the service did not stop within {STOP_TIMEOUT_S:.0f} s") from None
    if exit_code != 0:
        raise BenchmarkError(f"the service stopped with exit code {exit_code}")


def _kill_group(process: subprocess.Popen[str]) -> None:
    # Ranks share the launcher's session, which is empty after a clean end.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def print_table(title: str, header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """Print a table with a title."""
    print(f"\n{title}\n{format_table(header, rows)}", flush=True)


def print_absent(what: str, how_to_get_it: str) -> None:
    """Report that a system for comparison is not installed and is left out."""
    print(f"(left out: {what} is not installed; {how_to_get_it})", flush=True)


def write_results(benchmark: str, results: dict[str, Any]) -> Path:
    """Write `bench-results/<benchmark>.json`: the results, and facts about the machine and the time."""
    RESULTS_DIR.mkdir(exist_ok=True)
    path = RESULTS_DIR / f"{benchmark}.json"
    machine = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "cores": len(os.sched_getaffinity(0)),
        "load_1min": os.getloadavg()[0],
        "python": platform.python_version(),
        "kernel": platform.release(),
    }
    path.write_text(json.dumps({"benchmark": benchmark, "machine": machine, **results}, indent=2) + "\n")
    return path
