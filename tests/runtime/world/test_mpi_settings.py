"""Settings for each MPI library before it is loaded, and what ranks learn from their launcher."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import DEADLINE_S

from mallob_py.runtime.world.mpi import LaunchError, prepare_mpi, spares_others


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Use the environment of a fresh shell, with MPICH's wheel; restore the environment afterwards."""
    library = tmp_path / "lib" / "libmpi.so.12"
    library.parent.mkdir()
    library.touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(os, "environ", {"PATH": "/bin"})


def test_mpichs_wheel_goes_without_the_shared_memory_of_ucx() -> None:
    prepare_mpi()
    assert os.environ["UCX_TLS"] == "^posix,sysv"


HANGS_UP = """
import os, signal, sys
from mallob_py.runtime.world.mpi import load_mpi

signal.signal(signal.SIGHUP, lambda *_: sys.exit(7))
load_mpi()
signal.raise_signal(signal.SIGHUP)
"""


def test_a_closed_terminal_is_heard_of_once_mpi_is_loaded() -> None:
    pytest.importorskip("mpi4py")
    assert subprocess.run([sys.executable, "-c", HANGS_UP], timeout=DEADLINE_S).returncode == 7


LOADS = """
import ctypes, os
from mallob_py.runtime.world.mpi import is_of_wheel, load_mpi

function = ctypes.cast(ctypes.CDLL(None).munmap, ctypes.c_void_p).value
before = ctypes.string_at(function, 16)
known = dict(os.environ)
load_mpi()
assert not is_of_wheel() or ctypes.string_at(function, 16) == before, "it is rewritten"
assert "UCX_MEM_MMAP_HOOK_MODE" not in {*os.environ} - {*known}, "what a job starts would have it, too"
"""


def test_the_functions_of_the_c_library_are_not_rewritten_which_takes_long() -> None:
    pytest.importorskip("mpi4py")
    subprocess.run([sys.executable, "-c", LOADS], timeout=DEADLINE_S, check=True)


def test_what_keeps_mpi4py_from_being_imported_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(LaunchError, match=r"no usable MPI library \(import of mpi4py halted"):
        prepare_mpi()


def test_who_names_networks_keeps_them() -> None:
    os.environ["UCX_TLS"] = "rc,self,sm"
    prepare_mpi()
    assert os.environ["UCX_TLS"] == "rc,self,sm"


def test_another_mpi_keeps_the_shared_memory_of_ucx(tmp_path: Path) -> None:
    (tmp_path / "lib" / "libmpi.so.12").unlink()
    prepare_mpi()
    assert "UCX_TLS" not in os.environ


def test_an_mpi_that_is_named_keeps_the_shared_memory_of_ucx() -> None:
    os.environ["MPI4PY_LIBMPI"] = "/opt/openmpi/lib/libmpi.so"
    prepare_mpi()
    assert "UCX_TLS" not in os.environ


def test_open_mpi_that_survives_ranks_tells_them() -> None:
    assert not spares_others({"OMPI_COMM_WORLD_SIZE": "4"})
    assert not spares_others({"OMPI_MCA_mpi_ft_enable": "0"})
    assert spares_others({"OMPI_MCA_mpi_ft_enable": "1"})  # as mpirun --with-ft ulfm sets it
