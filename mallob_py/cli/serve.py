"""`mallob-py serve`: the job-file service on all ranks.

Unless a launcher has started it, this process starts the ranks, and starts them again when they
have crashed.
"""

from __future__ import annotations

import sys
import time

from mallob_py.cli.launching import ranks_of
from mallob_py.cli.rank_options import ServeOptions
from mallob_py.notices import with_time_stamps
from mallob_py.runtime.processes import want_no_numeric_threads
from mallob_py.runtime.world.mpi import in_mpi_world


def run(options: ServeOptions) -> int:
    with_time_stamps()
    ranks = ranks_of(options)
    if in_mpi_world() or (ranks == 1 and options.restarts == 0):
        want_no_numeric_threads()
        from mallob_py.cli.serve_rank import be_rank

        return be_rank(options)
    from mallob_py.runtime.world.launch import supervise

    end_s = None if options.time_limit_s is None else time.monotonic() + options.time_limit_s

    def argv() -> list[str]:
        command = ["-m", "mallob_py.cli.main", *sys.argv[1:]]
        if end_s is None:
            return command
        # What is left of it; of an option that is given twice, the second counts.
        return [*command, "--time-limit", f"{max(0.001, end_s - time.monotonic()):.3f}s"]

    return supervise(ranks, argv, options.restarts, options.rank_timeout_s)
