"""A service of one rank whose transport reports that another rank has failed. Argument: the api-dir."""

from __future__ import annotations

import sys

from mallob_py.runtime.world.mpi import start_mpi

start_mpi()
from mallob_py.cli.main import main  # noqa: E402
from mallob_py.runtime.world.transport import Transport  # noqa: E402


def take_lost(_: Transport) -> list[int]:
    return [3]


def progress(transport: Transport) -> None:
    transport.has_lost = True


Transport.take_lost = take_lost  # type: ignore[method-assign]
Transport.progress = progress  # type: ignore[method-assign]
sys.argv = [
    "mallob-py",
    "serve",
    "-n",
    "1",
    "--restarts",
    "0",
    "--rank-loss",
    "restart",
    "--api-dir",
    sys.argv[1],
]
sys.exit(main())
