"""`mallob-py solve`: formulas in, answers out."""

from __future__ import annotations

import os
import socket

from mallob_py.cli import CommandError
from mallob_py.cli.launching import launch, ranks_of
from mallob_py.cli.rank_options import STANDARD_INPUT, SolveOptions
from mallob_py.runtime.processes import StopRequests
from mallob_py.runtime.world.mpi import in_mpi_world


def run(options: SolveOptions) -> int:
    keep_input = not set(STANDARD_INPUT).isdisjoint(options.files)
    for file in set(options.files).difference(STANDARD_INPUT):
        _check_is_there(file)

    def be_rank(fork_server: socket.socket | None = None) -> int:
        from mallob_py.cli import solve_rank

        return solve_rank.be_rank(options, fork_server)

    if in_mpi_world():
        return be_rank()
    ranks = ranks_of(options)
    with StopRequests() as stops:
        end = launch(ranks, "mallob_py.cli.solve_rank", be_rank, stops, keep_input=keep_input)
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
