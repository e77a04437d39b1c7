"""`mallob-py solve`: formulas in, answers out."""

from __future__ import annotations

import os
import socket

from mallob_py.cli import CommandError
from mallob_py.cli.launching import default_ranks, launch
from mallob_py.cli.rank_options import SolveOptions
from mallob_py.runtime.stop_requests import StopRequests
from mallob_py.runtime.world import in_mpi_world


def run(options: SolveOptions) -> int:
    for file in options.files:
        if file in ("-", "/dev/stdin"):
            raise CommandError("a formula cannot come from standard input; give a file or a named pipe")
        _check_is_there(file)

    def be_rank(fork_server: socket.socket | None = None) -> int:
        from mallob_py.cli import solve_rank

        return solve_rank.be_rank(options, fork_server)

    if in_mpi_world():
        return be_rank()
    with StopRequests() as stops:
        end = launch(options.ranks or default_ranks(), "mallob_py.cli.solve_rank", be_rank, ("SAT",), stops)
    if end.stopped_by is not None and (end.code is None or end.code == 0 or end.code > 128):
        if end.code is None:
            print("s UNKNOWN\n" * len(options.files), end="")
        return 128 + end.stopped_by
    return end.exit_code


def _check_is_there(file: str) -> None:
    try:
        os.stat(file)
    except FileNotFoundError:
        raise CommandError(f"{file}: no such file") from None
