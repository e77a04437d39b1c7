"""The transport under faults: each test runs a small program of `programs/` in an MPI world of its own.

Tests without faults are in tests/worlds, where all ranks of one world run them together.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from running import launcher_is_there, needs_mpiexec
from waiting import DEADLINE_S

from mallob_py.runtime.world.launch import Flavour, find_launcher

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).parents[2]

pytestmark = needs_mpiexec

IS_MPICH = launcher_is_there() and find_launcher().flavour is Flavour.HYDRA
BARE = {"MALLOB_PY_DOORBELL": "off"}
TWO_PER_HOST = {"MALLOB_PY_RANKS_PER_HOST": "2"}


def run_world(ranks: int, program: str, *arguments: str, env: Mapping[str, str] | None = None) -> str:
    """Run a program on `ranks` ranks and return their output; the program must end with code 0."""
    code, out = start_world(ranks, [str(PROGRAMS / program), *arguments], env)
    assert code == 0, out
    return out


def start_world(
    ranks: int, arguments: Sequence[str], env: Mapping[str, str] | None = None, flags: Sequence[str] = ()
) -> tuple[int, str]:
    """Run Python with these arguments on `ranks` ranks; return mpiexec's exit code and all output."""
    launcher = find_launcher()
    environment = dict(os.environ) | launcher.environment() | dict(env or {})
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), str(ROOT / "tests"), environment.get("PYTHONPATH", "")]
    )
    process = subprocess.Popen(
        [*launcher.command(ranks), *flags, sys.executable, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=2 * DEADLINE_S)  # waiting ranks keep cores busy
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, out + err


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_what_all_ranks_of_a_world_test_together(ranks: int) -> None:
    """Run tests/worlds by pytest-mpi; by hand: mpiexec -n 4 python -m pytest --with-mpi tests/worlds"""
    # Other plugins are not loaded: loading them in each rank would take longer than the tests.
    few = ["-p", "pytest_mpi", "-p", "pytest_timeout", "-p", "no:cacheprovider"]
    worlds = ["--confcutdir", str(ROOT / "tests/worlds"), str(ROOT / "tests/worlds")]
    code, out = start_world(
        ranks, ["-m", "pytest", "--with-mpi", *few, *worlds], {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    )
    assert code == 0, out
    assert out.count(" passed") == ranks, out


@pytest.mark.skipif(not IS_MPICH, reason="mpiexec of others may wait for a rank that has been stopped")
@pytest.mark.parametrize(
    ("moment", "said"),
    [("init", "other ranks to start"), ("collective", "a barrier"), ("finalize", "ranks to leave MPI")],
)
def test_a_rank_that_never_comes_is_not_waited_for_for_ever(moment: str, said: str) -> None:
    _, out = start_world(3, [str(PROGRAMS / "never_comes.py"), moment])
    assert f"s in vain for {said}" in out or f"s in vain for the other {said}" in out, out


@pytest.mark.skipif(not IS_MPICH, reason="mpiexec of others may wait for a rank that has been stopped")
def test_a_deadline_holds_where_mpi_keeps_pythons_lock() -> None:
    _, out = start_world(2, [str(PROGRAMS / "never_comes.py"), "init", "locked"])
    assert "signal 14" in out, out
    # No Python code has run that could have removed MPI's shared files.
    maps = ""
    for path in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            maps += path.read_text()
    for path in Path("/dev/shm").glob("mpich_shm_*"):
        if str(path) not in maps:
            path.unlink(missing_ok=True)


@pytest.mark.parametrize("cells", ["64", "256"])
def test_a_flood_to_a_silent_rank_does_not_hold_up_messages_to_a_third(cells: str, tmp_path: Path) -> None:
    env = {"MPIR_CVAR_CH4_SHM_POSIX_IQUEUE_NUM_CELLS": cells}
    out = run_world(3, "flood.py", str(tmp_path / "marker"), env=env)
    assert "third rank answered" in out
    assert "flood arrived in order" in out


@pytest.mark.parametrize("env", [{}, TWO_PER_HOST, BARE], ids=["unix", "udp", "no doorbell"])
def test_idle_ranks_answer_a_ping(env: dict[str, str]) -> None:
    out = run_world(4, "idle_and_ping.py", "0.5", "50", env=env)
    print(out)  # CPU share and round trip are only printed
    assert "round trip" in out


def test_a_closing_rank_that_is_alone_gives_up_in_bounded_time() -> None:
    assert "gave up" in run_world(2, "close_alone.py")


def test_a_closing_rank_does_not_wait_for_one_that_has_died() -> None:
    assert "gave up" in run_world(2, "close_alone.py", "dead")


def test_sends_to_a_peer_given_up_on_are_dropped() -> None:
    said = run_world(2, "give_up.py")
    assert "dropped" in said
    assert "rung" in said


def test_what_mpi_completes_late_keeps_its_place_and_is_rung_for_again() -> None:
    assert run_world(3, "half_received.py").split() == ["kept"]


def test_a_peer_for_whom_too_much_waits_is_lost() -> None:
    assert "lost" in run_world(2, "overflows.py")


@pytest.mark.skipif(
    not launcher_is_there() or find_launcher().flavour is not Flavour.OPEN_MPI,
    reason="only Open MPI lets ranks survive others (--with-ft ulfm)",
)
def test_survivors_of_a_killed_rank_are_told_and_go_on(tmp_path: Path) -> None:
    _, out = start_world(4, [str(PROGRAMS / "peer_dies.py"), str(tmp_path)], flags=["--with-ft", "ulfm"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"], out
