"""Launching a local MPI world: exit codes, signals, deaths, and refused launchers."""

import contextlib
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.processes import lives
from running import needs_mpiexec
from waiting import DEADLINE_S, poll_until

from mallob_py.launchers import EXIT_FILE_VARIABLE
from mallob_py.runtime.world import launch
from mallob_py.runtime.world import mpi as world
from mallob_py.runtime.world.launch import (
    Flavour,
    Launcher,
    StopRequests,
    find_launcher,
    launch_world,
    run_world,
)
from mallob_py.runtime.world.mpi import LaunchError, in_mpi_world, refuse_singletons

PROGRAM = Path(__file__).parent / "launch_program.py"
ROOT = Path(__file__).parents[3]


class Host:
    """A process that runs `launch_world`, and the ranks it has started."""

    def __init__(self, ranks: int, *arguments: str) -> None:
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), "host", str(ranks), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=dict(os.environ) | {"PYTHONPATH": path},
            start_new_session=True,
        )
        self.pids: list[int] = []

    def wait(self) -> int:
        self.output, _ = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode

    def await_ranks(self, ranks: int, folder: Path) -> None:
        poll_until(lambda: all((folder / str(rank)).exists() for rank in range(ranks)))
        self.pids = [int((folder / str(rank)).read_text()) for rank in range(ranks)]

    def clean_up(self) -> None:
        for pid in [self.process.pid, *self.pids]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.communicate(timeout=DEADLINE_S)


@contextlib.contextmanager
def hosted(ranks: int, *arguments: str) -> Iterator[Host]:
    host = Host(ranks, *arguments)
    try:
        yield host
    finally:
        host.clean_up()


@needs_mpiexec
@pytest.mark.parametrize("code", [0, 10, 20, 2])
def test_the_exit_code_of_rank_0_is_returned(code: int) -> None:
    with hosted(3, "code", str(code)) as host:
        assert host.wait() == code, host.output


@needs_mpiexec
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_lets_all_ranks_end_cleanly(number: int, tmp_path: Path) -> None:
    with hosted(3, "wait", str(tmp_path)) as host:
        host.await_ranks(3, tmp_path)
        host.process.send_signal(number)
        assert host.wait() == 0, host.output
        assert not any(lives(pid) for pid in host.pids)


@needs_mpiexec
def test_ctrl_c_in_a_terminal_stops_cleanly_although_it_hits_the_whole_group(tmp_path: Path) -> None:
    with hosted(2, "wait", str(tmp_path)) as host:
        host.await_ranks(2, tmp_path)
        os.killpg(host.process.pid, signal.SIGINT)
        assert host.wait() == 0, host.output


@needs_mpiexec
def test_ranks_end_when_the_launching_process_is_killed(tmp_path: Path) -> None:
    with hosted(2, "wait", str(tmp_path)) as host:
        host.await_ranks(2, tmp_path)
        host.process.kill()
        poll_until(lambda: not any(lives(pid) for pid in host.pids))


@needs_mpiexec
def test_a_second_ctrl_c_ends_ranks_that_do_not_listen(tmp_path: Path) -> None:
    with hosted(2, "stubborn", str(tmp_path)) as host:
        host.await_ranks(2, tmp_path)
        host.process.send_signal(signal.SIGINT)
        poll_until(lambda: host.process.poll() is not None or not _sigint_pending(host.process.pid))
        host.process.send_signal(signal.SIGINT)
        assert host.wait() == 128 + signal.SIGINT
        poll_until(lambda: not any(lives(pid) for pid in host.pids))


def _sigint_pending(pid: int) -> bool:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(("SigPnd", "ShdPnd")) and int(line.split()[1], 16) >> (signal.SIGINT - 1) & 1:
            return True
    return False


@needs_mpiexec
def test_a_crash_of_one_rank_is_not_taken_for_success() -> None:
    with hosted(2, "crash") as host:
        assert host.wait() not in (0, 10, 20)


def fake_mpiexec(folder: Path, body: str) -> Path:
    path = folder / "mpiexec"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def only_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the only folder on PATH; there is no mpiexec beside Python."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere" / "python"))
    return tmp_path


def test_without_mpiexec_the_error_says_what_to_install(only_path: Path) -> None:
    with pytest.raises(LaunchError, match="pip install mpich"):
        find_launcher()


@pytest.mark.parametrize(
    ("says", "flavour"),
    [
        ("mpirun (Open MPI) 5.0.11", Flavour.OPEN_MPI),
        ("mpiexec (OpenRTE) 4.1.4", Flavour.OPEN_MPI),
        ("HYDRA build details:", Flavour.HYDRA),
        ("Intel(R) MPI Library for Linux* OS", Flavour.HYDRA),
    ],
)
def test_the_flavour_of_mpiexec_is_what_it_says(says: str, flavour: Flavour, only_path: Path) -> None:
    fake_mpiexec(only_path, f"echo '{says}'")
    assert find_launcher().flavour is flavour


def test_an_mpiexec_that_does_not_run_is_reported(only_path: Path) -> None:
    path = only_path / "mpiexec"
    path.write_bytes(b"\0not a program")
    path.chmod(0o755)
    with pytest.raises(LaunchError, match="does not run"):
        find_launcher()


def test_the_signal_handlers_are_as_before_after_a_launch(
    only_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        launch, "find_launcher", lambda: Launcher(str(fake_mpiexec(only_path, "exit 3")), Flavour.HYDRA)
    )
    before = signal.getsignal(signal.SIGTERM)
    assert launch_world(2, ["whatever"]) == 3
    assert signal.getsignal(signal.SIGTERM) is before


def test_open_mpi_is_told_to_oversubscribe_and_not_to_bind() -> None:
    command = Launcher("mpiexec", Flavour.OPEN_MPI).command(4)
    assert command == ["mpiexec", "-n", "4", "--oversubscribe", "--bind-to", "none"]


@pytest.mark.parametrize("name", ["PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"])
def test_a_rank_of_any_launcher_knows_that_it_is_one(name: str) -> None:
    assert in_mpi_world({name: "0"})


def test_a_slurm_step_counts_as_a_world_only_with_several_tasks() -> None:
    assert in_mpi_world({"SLURM_STEP_NUM_TASKS": "4"})
    assert not in_mpi_world({"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"})


@pytest.mark.parametrize("name", ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_singletons_of_a_foreign_launcher_are_refused(name: str) -> None:
    with pytest.raises(LaunchError, match=r"4 processes.*MPICH's mpiexec.*srun --mpi=pmi2"):
        refuse_singletons(1, {name: "4"}, "MPICH Version: 5.0.2\n")
    with pytest.raises(LaunchError, match=r"Open MPI's mpiexec.*srun --mpi=pmix"):
        refuse_singletons(1, {name: "4"}, "Open MPI v5.0.11, package: x")


def test_a_sound_world_is_not_refused() -> None:
    refuse_singletons(4, {"PMI_SIZE": "4"}, "MPICH")
    refuse_singletons(1, {}, "MPICH")
    refuse_singletons(1, {"PMI_SIZE": "1"}, "MPICH")


def test_binding_to_one_of_several_cores_is_pointed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 4} if pid else {3})
    assert "bound to 1 of 8 cores" in (world.binding_warning() or "")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3, 4})
    assert world.binding_warning() is None


def test_a_launcher_that_is_bound_itself_causes_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3})
    assert world.binding_warning() is None


def test_a_rank_alone_that_launch_world_has_started_knows_that_it_is_one() -> None:
    assert in_mpi_world({EXIT_FILE_VARIABLE: "/tmp/x"})


def test_what_outlives_a_world_is_killed_before_the_launch_returns_and_nobody_else(tmp_path: Path) -> None:
    bystander = subprocess.Popen(["sleep", "60"])
    program = tmp_path / "leaves_one_behind.py"
    program.write_text(
        "import subprocess, sys\n"
        "sleeper = subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
        "open(sys.argv[1], 'w').write(str(sleeper.pid))\n"
    )
    try:
        assert launch_world(1, [str(program), str(tmp_path / "pid")]) == 0
        assert not lives(int((tmp_path / "pid").read_text()))
        assert lives(bystander.pid)
    finally:
        bystander.kill()
        bystander.wait()


def test_a_world_whose_rank_0_falls_silent_is_ended_by_force(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "hangs.py"
    program.write_text(
        "import os, signal\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"open(os.environ['{EXIT_FILE_VARIABLE}'], 'w').write('running\\n')\n"
        "while True: signal.pause()\n"
    )
    with StopRequests() as stops:
        end = run_world(1, [str(program)], os.environ, stops, rank_timeout_s=1.0)
    assert end.code is None
    assert end.had_come_up
    assert end.stopped_by is None
    assert end.exit_code == 128 + signal.SIGKILL
    assert "no rank answers any more" in capfd.readouterr().err
