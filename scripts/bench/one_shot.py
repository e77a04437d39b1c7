"""`solve` of one formula: how long until its workers search, and all of it beside other solvers' commands."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from bench_sat import pysat_command
from common import BenchmarkError, print_absent
from measured import Measured

from mallob_py.log_events import LogEvent
from mallob_py.runtime.processes import python
from mallob_py.service.telemetry.event_log import read_events
from mallob_sat.generate import commutativity

_TINY_FORMULA = "p cnf 2 2\n1 2 0\n-1 0\n"
_SOLVE = (*python(), "-m", "mallob_py", "solve", "--quiet", "-n")
_RANKS = 2
_LOOK_S = 0.05
_PATIENCE_S = 30.0


def measure_solve(quick: bool) -> list[Measured]:
    times = 3 if quick else 15
    with tempfile.TemporaryDirectory(prefix="mallob-py-bench.") as name:
        folder = Path(name)
        tiny, hard = folder / "tiny.cnf", folder / "hard.cnf"
        tiny.write_text(_TINY_FORMULA)
        hard.write_text(commutativity(16).text("hard"))
        searching_s = [_until_all_search_s(hard, folder / f"log-{number}") for number in range(times)]
        measured = [Measured.of(f"solve -n {_RANKS}: until all search", "s", searching_s, target=0.35)]
        commands: dict[str, list[str]] = {
            f"solve -n {ranks}, trivial formula": [*_SOLVE, str(ranks)] for ranks in (1, 2, 4)
        }
        commands["PySAT's CaDiCaL in one process, trivial formula"] = pysat_command("cadical195")
        for other in ("kissat", "cadical"):
            if shutil.which(other) is None:
                print_absent(other, "on PATH")
            else:
                commands[f"{other}'s own command, trivial formula"] = [other, "-q"]
        for what, command in commands.items():
            took_s = [_whole_s([*command, str(tiny)]) for _ in range(times)]
            recorded = "0.7 to 0.9" if "-n 4" in what else ""
            measured.append(Measured.of(what, "s", took_s, recorded=recorded))
    return measured


def _whole_s(command: list[str]) -> float:
    """From the start of a command to its end."""
    begin_s = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    took_s = time.monotonic() - begin_s
    if done.returncode != 10:
        raise BenchmarkError(f"{command[0]} ended with {done.returncode}: {done.stderr or done.stdout}")
    return took_s


def _until_all_search_s(formula: Path, log_dir: Path) -> float:
    """From the start of the command until the last of its workers runs its application, by their logs."""
    begin_unix_s = time.time()
    process = subprocess.Popen(
        [*_SOLVE, str(_RANKS), "--log-dir", str(log_dir), str(formula)], stdout=subprocess.DEVNULL
    )
    try:
        deadline_s = time.monotonic() + _PATIENCE_S
        while len(started := _started_unix_s(log_dir)) < _RANKS:
            if time.monotonic() > deadline_s or process.poll() is not None:
                raise BenchmarkError("the workers of solve have not started")
            time.sleep(_LOOK_S)
        return max(started) - begin_unix_s
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _started_unix_s(log_dir: Path) -> list[float]:
    """When each worker started, as far as that has been written."""
    if not log_dir.exists():
        return []
    events = list(read_events(log_dir))
    starts = [float(event.fields["unix_s"]) for event in events if event.event == LogEvent.START]
    return [starts[0] + event.t for event in events if event.event == LogEvent.STARTED] if starts else []
