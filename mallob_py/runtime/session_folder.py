"""The private folder that the ranks of a host share while they run: descriptions, doorbells, the board.

The lowest rank of each host makes it in shared memory (or in the temporary folder, where there is none),
after it has removed what dead sessions left there; the others join it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mallob_py.runtime.private_folder import PrivateFolder, sweep
from mallob_py.runtime.world import LaunchError, OthersRefused

if TYPE_CHECKING:
    from mpi4py import MPI

#: what MPICH shares among the ranks of a host; killed ranks leave it behind
_MPICH_FILE = "/dev/shm/mpich_shm_"


def shared_folder() -> Path:
    """Where session folders lie: shared memory if there is any, else the temporary folder."""
    shared = Path("/dev/shm")
    return shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())


def open_session_folder(comm: MPI.Intracomm, hosts: Sequence[int]) -> PrivateFolder:
    """This host's folder (collective over `comm`). `hosts` names for each rank the lowest one on its host.

    Raises LaunchError where it cannot be made or entered, OthersRefused on all other ranks.
    """
    rank = comm.Get_rank()
    keeper = hosts[rank]
    folder, problem = None, None
    if keeper == rank:
        folder, problem = _created()
    paths: list[str | None] = comm.allgather(None if folder is None else str(folder.path))
    if keeper != rank and (path := paths[keeper]) is not None:
        folder, problem = _joined(Path(path))
    has_failed: list[bool] = comm.allgather(problem is not None)
    if folder is not None and not any(has_failed):
        return folder
    if folder is not None:
        folder.remove()
    raise OthersRefused if problem is None else LaunchError(problem)


def _created() -> tuple[PrivateFolder | None, str | None]:
    parent = shared_folder()
    sweep(parent)
    try:
        folder = PrivateFolder.create(parent)
        folder.note_outside(_mapped_files(_MPICH_FILE))
    except OSError as error:
        return None, f"cannot make a folder in {parent}: {error.strerror}"
    return folder, None


def _joined(path: Path) -> tuple[PrivateFolder | None, str | None]:
    try:
        return PrivateFolder.join(path), None
    except OSError as error:
        return None, f"cannot use {path}: {error.strerror}"


def _mapped_files(prefix: str) -> list[str]:
    """The files that this process has mapped whose paths begin so."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.split(maxsplit=5)[-1] for line in lines}
    return sorted(path for path in paths if path.startswith(prefix))
