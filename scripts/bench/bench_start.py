"""From the launch of a service to its first answer, which is that of a job that lies ready in its folder.

Beside it what the original took on a quiet machine of two cores: such figures say something only if ours are
taken on one like it. The processor time, of all processes and with the end of the service, says something on
a busy machine, too. Python may have been told to write no bytecode (PYTHONDONTWRITEBYTECODE): then each start
would compile all sources, which takes longer than anything else, so they are compiled before.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import resource
import signal
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from common import REPLY_POLL_S, START_TIMEOUT_S, STOP_TIMEOUT_S, BenchmarkError, print_table, write_results

from mallob_py.runtime.processes import python

#: C++ Mallob on a quiet machine of two cores, by the number of its ranks: taken once, not measured here
ORIGINAL_S = {4: 0.43, 16: 0.71, 64: 3.35}
_ROOT = Path(__file__).resolve().parents[2]
_JOB = {"user": "bench", "name": "first", "application": "NOOP", "priority": 1}


class Start(NamedTuple):
    """The time of the first answer, and the processor time of the whole service, both in seconds."""

    answer_s: float
    cpu_s: float


def start(ranks: int) -> Start:
    """Start a service and end it again."""
    before_s = _children_cpu_s()
    with tempfile.TemporaryDirectory(prefix="mallob-py-bench.") as folder:
        client = Path(folder) / "jobs.0"
        (client / "in").mkdir(parents=True)
        (client / "in" / "bench.first.json").write_text(json.dumps(_JOB))
        command = [*python(), "-m", "mallob_py.cli.main", "serve", "-n", str(ranks), "--api-dir", folder]
        begin_s = time.monotonic()
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            _await_reply(process, client / "out" / "bench.first.json", begin_s + START_TIMEOUT_S)
            taken_s = time.monotonic() - begin_s
            process.send_signal(signal.SIGTERM)
            process.wait(STOP_TIMEOUT_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return Start(taken_s, _children_cpu_s() - before_s)


def _children_cpu_s() -> float:
    """Return the CPU time of all processes that have ended and were waited for, with theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _await_reply(process: subprocess.Popen[bytes], reply: Path, deadline_s: float) -> None:
    while not reply.exists():
        if process.poll() is not None:
            raise BenchmarkError(f"the service ended with exit code {process.returncode}")
        if time.monotonic() > deadline_s:
            raise BenchmarkError(f"no answer within {START_TIMEOUT_S:.0f} s")
        time.sleep(REPLY_POLL_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--times", type=int, default=3, help="the median of so many is told")
    options = parser.parse_args()
    for folder in ("mallob_py", "apps"):
        compileall.compile_dir(_ROOT / folder, quiet=1)
    measured: dict[int, Start] = {}
    for ranks in options.ranks:
        starts = [start(ranks) for _ in range(options.times)]
        measured[ranks] = Start(*(statistics.median(values) for values in zip(*starts, strict=True)))
    rows = [
        (ranks, f"{taken.answer_s:.2f}", ORIGINAL_S.get(ranks, ""), f"{taken.cpu_s:.2f}")
        for ranks, taken in measured.items()
    ]
    print_table(
        "launch to first answer", ("ranks", "seconds", "the original, once", "processor seconds"), rows
    )
    for what in Start._fields:
        write_results(
            f"start_{what}", {str(ranks): getattr(taken, what) for ranks, taken in measured.items()}
        )


if __name__ == "__main__":
    main()
