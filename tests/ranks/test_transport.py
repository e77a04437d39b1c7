"""The transport under a real mpiexec: each test runs a small program of `programs/` as a world."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from waiting import DEADLINE_S

from mallob_py.runtime.launch import Flavour, find_launcher
from mallob_py.runtime.world import LaunchError

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).parents[2]


def _launcher_is_there() -> bool:
    try:
        find_launcher()
    except LaunchError:
        return False
    return True


pytestmark = pytest.mark.skipif(not _launcher_is_there(), reason="needs an mpiexec")

BARE = {"MALLOB_PY_DOORBELL": "off"}
TWO_PER_HOST = {"MALLOB_PY_RANKS_PER_HOST": "2"}


def run_world(ranks: int, program: str, *arguments: str, env: Mapping[str, str] | None = None) -> str:
    """Run a program on so many ranks and return what they printed; it must end with code 0."""
    code, out = run_world_anyhow(ranks, program, *arguments, env=env)
    assert code == 0, out
    return out


def run_world_anyhow(
    ranks: int,
    program: str,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
) -> tuple[int, str]:
    """Run a program on so many ranks; mpiexec's exit code and all output."""
    launcher = find_launcher()
    environment = dict(os.environ) | launcher.environment() | dict(env or {})
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), str(ROOT / "tests"), environment.get("PYTHONPATH", "")]
    )
    process = subprocess.Popen(
        [*launcher.command(ranks), *flags, sys.executable, str(PROGRAMS / program), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=DEADLINE_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, out + err


@pytest.mark.parametrize("ranks", [2, 4, 9])
def test_random_traffic_arrives_complete_and_in_order(ranks: int) -> None:
    out = run_world(ranks, "all_to_all.py", str(10_000 // ranks))
    assert out.count("complete") == ranks
    assert "closed" in out


@pytest.mark.parametrize("env", [TWO_PER_HOST, BARE], ids=["several hosts", "no doorbell"])
def test_random_traffic_arrives_complete_and_in_order_with(env: dict[str, str]) -> None:
    out = run_world(4, "all_to_all.py", "500", env=env)
    assert out.count("complete") == 4


@pytest.mark.parametrize("cells", ["64", "256"])
def test_a_flood_to_a_silent_rank_does_not_hold_up_messages_to_a_third(cells: str, tmp_path: Path) -> None:
    env = {"MPIR_CVAR_CH4_SHM_POSIX_IQUEUE_NUM_CELLS": cells}
    out = run_world(3, "flood.py", str(tmp_path / "marker"), env=env)
    assert "third rank answered" in out
    assert "flood arrived in order" in out


def test_big_messages_arrive_intact_on_the_bulk_channel() -> None:
    assert "all intact" in run_world(3, "big.py")


def test_ranks_of_one_machine_share_a_host() -> None:
    out = run_world(3, "facts.py")
    assert "0: [0, 0, 0] [0, 1, 2] True False" in out


def test_hosts_can_be_pretended_and_then_ring_by_udp() -> None:
    out = run_world(4, "facts.py", env=TWO_PER_HOST)
    assert "0: [0, 0, 2, 2] [0, 1] True True" in out
    assert "3: [0, 0, 2, 2] [2, 3] True True" in out


def test_a_rank_without_sockets_says_that_its_doorbell_is_not_available() -> None:
    out = run_world(2, "facts.py", env=BARE)
    assert "0: [0, 0] [0, 1] False False" in out


def test_a_world_of_one_works() -> None:
    assert "closed" in run_world(1, "facts.py")


@pytest.mark.parametrize("env", [{}, TWO_PER_HOST, BARE], ids=["unix", "udp", "no doorbell"])
def test_idle_ranks_answer_a_ping(env: dict[str, str]) -> None:
    ranks = 4 if env is TWO_PER_HOST else 2
    out = run_world(ranks, "idle_and_ping.py", "0.5", "50", env=env)
    print(out)  # CPU share and round trip, for reading only
    assert "round trip" in out


def test_sending_to_oneself_is_refused() -> None:
    assert "refused" in run_world(2, "send_to_self.py")


def test_a_closing_rank_that_is_alone_gives_up_in_bounded_time() -> None:
    assert "gave up" in run_world(2, "close_alone.py")


def test_sends_to_a_peer_given_up_on_are_dropped() -> None:
    assert "dropped" in run_world(2, "give_up.py")


@pytest.mark.skipif(
    not _launcher_is_there() or find_launcher().flavour is not Flavour.OPEN_MPI,
    reason="only Open MPI lets ranks survive others (--with-ft ulfm)",
)
def test_survivors_of_a_killed_rank_are_told_and_go_on(tmp_path: Path) -> None:
    _, out = run_world_anyhow(4, "peer_dies.py", str(tmp_path), flags=["--with-ft", "ulfm"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"], out
