"""`mallob-py serve`: the job-file service on all ranks.

Unless a launcher has started it, this process starts the ranks, and starts them again when they
have crashed. Logs of ranks before a restart go to `<log-dir>/before-restart-<n>/`.
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

from mallob_py.cli.rank_options import ServeOptions
from mallob_py.runtime.launch import default_ranks
from mallob_py.runtime.world import in_mpi_world


def run(options: ServeOptions) -> int:
    ranks = options.ranks or default_ranks()
    if in_mpi_world() or (ranks == 1 and options.restarts == 0):
        from mallob_py.cli.serve_rank import be_rank

        return be_rank(options)
    from mallob_py.runtime.supervisor import supervise

    end_s = None if options.time_limit_s is None else time.monotonic() + options.time_limit_s

    def argv() -> list[str]:
        command = ["-m", "mallob_py.cli.main", *sys.argv[1:]]
        if end_s is None:
            return command
        # What is left of it; of an option that is given twice, the second counts.
        return [*command, "--time-limit", f"{max(0.001, end_s - time.monotonic()):.3f}s"]

    def before_restart(number: int) -> None:
        if options.log_dir is not None:
            _put_aside(Path(options.log_dir), number)

    return supervise(ranks, argv, options.restarts, options.rank_timeout_s, before_restart)


def _put_aside(log_dir: Path, number: int) -> None:
    """Logs of the ranks before a restart; a full disk must not prevent the restart."""
    aside = log_dir / f"before-restart-{number}"
    with contextlib.suppress(OSError):
        aside.mkdir(exist_ok=True)
        for path in log_dir.glob("*.jsonl"):
            path.replace(aside / path.name)
