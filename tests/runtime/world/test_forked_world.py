import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from waiting import DEADLINE_S

from mallob_py.runtime.processes import StopRequests
from mallob_py.runtime.world import forked_world, session_folder
from mallob_py.runtime.world.launch import Flavour, find_launcher
from mallob_py.runtime.world.mpi import LaunchError
from mallob_py.runtime.world.session_folder import sweep

PROGRAM = """
    import os, signal, sys, time
    from mallob_py.runtime.world import forked_world
    from mallob_py.runtime.world.forked_world import ForkedWorld, library_allows_forks
    from mallob_py.runtime.world.session_folder import nothing_left
    from mallob_py.runtime.processes import StopRequests

    forked_world.STOP_GRACE_S = 1.0

    first = os.getpid()

    def be_rank(control):
        if sys.argv[1] == "all":
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        if sys.argv[2] == "left behind":
            if os.fork() == 0:
                time.sleep(1000)
            return 0
        if sys.argv[2] == "fails":
            raise ValueError("early")
        if os.environ["PMI_RANK"] == sys.argv[1]:
            if sys.argv[2] == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            return int(sys.argv[2])
        from mallob_py.runtime.world.mpi import start_mpi
        start_mpi()
        if sys.argv[2] == "within MPI":
            mapped = [line.split()[-1] for line in open("/proc/self/maps")]
            print(next(path for path in mapped if "/mpich_shm_" in path), flush=True)
            if sys.argv[1] == "all":
                os.kill(first, signal.SIGKILL)
                time.sleep(30)
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    with StopRequests() as stops, nothing_left():
        assert library_allows_forks()
        print("ended", ForkedWorld(2, be_rank, stops, title="rank").wait().code)
"""


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def _is_mpich() -> bool:
    try:
        return find_launcher().flavour is Flavour.HYDRA
    except LaunchError:
        return False


@pytest.mark.skipif(not _is_mpich(), reason="needs MPICH")
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("code", [0, 2])
def test_a_rank_that_ends_before_it_joins_the_world_ends_the_other_that_waits_for_it(
    rank: int, code: int
) -> None:
    done = run([sys.executable, "-c", textwrap.dedent(PROGRAM), str(rank), str(code)])
    assert done.stdout.startswith("ended"), done.stderr


@pytest.mark.skipif(not _is_mpich(), reason="needs MPICH")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_before_all_are_at_work_is_told_of_in_one_line(rank: int) -> None:
    done = run([sys.executable, "-c", textwrap.dedent(PROGRAM), str(rank), "killed"])
    assert re.fullmatch(
        rf"mallob-py: rank {rank} \(process \d+\) was ended by SIGKILL; this ends the others\n", done.stderr
    )
    assert done.stdout.startswith("ended")


@pytest.mark.skipif(not _is_mpich(), reason="needs MPICH")
def test_why_a_rank_fails_before_it_joins_the_world_is_told() -> None:
    done = run([sys.executable, "-c", textwrap.dedent(PROGRAM), "none", "fails"])
    assert done.stdout == "ended None\n"
    assert "ValueError: early\n" in done.stderr


@pytest.mark.skipif(not _is_mpich(), reason="needs MPICH")
def test_ranks_that_would_soon_be_without_descriptors_are_not_started() -> None:
    limited = ["sh", "-c", 'ulimit -n 64 && exec "$@"', "sh"]
    done = run([*limited, sys.executable, "-m", "mallob_py", "solve", "-n", "2", "/dev/null"])
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch("mallob-py solve: a rank may need [0-9]+ file descriptors, 64 are .*\n", done.stderr)


LATE = """
    import os, signal, sys, time
    from pathlib import Path
    from mallob_py.runtime.processes import StopRequests
    from mallob_py.runtime.world.session_folder import nothing_left
    from mallob_py.runtime.world import guard
    from mallob_py.runtime.world.forked_world import ForkedWorld
    from mallob_py.runtime.world.mpi import RankLoss

    folder = Path(sys.argv[1])

    def be_rank(control):
        rank = int(os.environ["PMI_RANK"])
        if rank == 0:
            while not all((folder / f"{each}").exists() for each in (1, 2)):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        guard.may_be_lost()
        (folder / f"{rank}").touch()
        while os.getppid() == first and not (folder / "told").exists():
            time.sleep(0.01)
        return 0

    first = os.getpid()
    with nothing_left(), StopRequests() as stops:
        world = ForkedWorld(3, be_rank, stops, title="rank", rank_loss=RankLoss.SURVIVE)
        bury = world._bury
        world._bury = lambda descriptor: (bury(descriptor), (folder / "told").touch())
        print(world.wait().code)
"""


@pytest.mark.skipif(not _is_mpich(), reason="needs MPICH")
def test_those_at_work_go_on_without_a_rank_that_is_lost_before_it_says_that_it_is(tmp_path: Path) -> None:
    done = run([sys.executable, "-c", textwrap.dedent(LATE), str(tmp_path)])
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
    assert "the others go on" in done.stderr


@pytest.mark.skipif(not _is_mpich(), reason="needs MPICH")
def test_no_ranks_are_started_whose_shared_file_is_larger_than_files_may_be() -> None:
    limited = ["sh", "-c", 'ulimit -f 1000 && exec "$@"', "sh"]
    done = run([*limited, sys.executable, "-m", "mallob_py", "solve", "-n", "2", "/dev/null"])
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch("mallob-py solve: MPICH needs a file of [0-9]+ bytes for 2 ranks, .*\n", done.stderr)


def test_no_ranks_are_started_without_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (session_folder, forked_world):
        monkeypatch.setattr(module, "SHARED_MEMORY", tmp_path / "none")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(LaunchError, match="none, which cannot be written to: mount it"):
        forked_world.ForkedWorld(2, lambda _: 0, StopRequests(), title="rank")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not _is_mpich(), reason="needs MPICH")
def test_ranks_that_are_killed_within_mpi_leave_nothing_in_shared_memory() -> None:
    done = run([sys.executable, "-c", textwrap.dedent(PROGRAM), "none", "within MPI"])
    first, *_ = done.stdout.splitlines()
    assert first.startswith("/dev/shm/mpich_shm_")
    assert not Path(first).exists()


@pytest.mark.skipif(not _is_mpich(), reason="needs MPICH")
def test_what_is_left_when_all_are_killed_within_mpi_is_gone_with_the_next_start() -> None:
    """The process that has started the ranks is killed, and the ranks end with it."""
    done = run([sys.executable, "-c", textwrap.dedent(PROGRAM), "all", "within MPI"])
    assert done.returncode == -signal.SIGKILL
    first, *_ = done.stdout.splitlines()
    assert first.startswith("/dev/shm/mpich_shm_")
    sweep(Path("/dev/shm"))
    assert not Path(first).exists()


@pytest.mark.skipif(not _is_mpich(), reason="needs MPICH")
def test_what_ranks_leave_behind_holds_up_no_end() -> None:
    """A process left by a rank has the rank's open files, such as the pipe that reports the rank's end."""
    done = run([sys.executable, "-c", textwrap.dedent(PROGRAM), "none", "left behind"])
    assert done.stdout == "ended 0\n", done.stderr


def test_a_process_for_fork_servers_that_has_ended_is_told_of() -> None:
    program = """
        import os
        from mallob_py.runtime.world.forked_world import ForkedServers
        from mallob_py.runtime.world.mpi import LaunchError
        servers = ForkedServers(("NOOP",))
        servers._orders.shutdown(2)
        try:
            servers.open(1)
        except LaunchError as error:
            print(error)
    """
    done = run([sys.executable, "-c", textwrap.dedent(program)])
    assert done.stdout == "the process that was to start workers has ended\n", done.stderr


def test_what_ranks_and_their_fork_servers_both_need_is_imported_once() -> None:
    program = """
        import os, sys
        from mallob_py.runtime.world import forked_world
        loaded = "mallob_py.runtime.worker_wire"
        assert loaded not in sys.modules
        os.fork = lambda: print(loaded in sys.modules) or 1
        forked_world.ForkedServers(("NOOP",))
    """
    done = run([sys.executable, "-c", textwrap.dedent(program)])
    assert done.stdout == "True\n", done.stderr
