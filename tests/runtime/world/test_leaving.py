"""Which rank's exit code becomes that of the world, and which rank reports if this rank hangs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mallob_py.launchers import EXIT_FILE_VARIABLE
from mallob_py.runtime.world.mpi import RUNNING

#: code after which a process cannot write any file
NO_ROOM = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
"""


def leave(rank: int, code: int, file: Path, *, speaker: int = 0, before: str = "") -> int:
    """Let a rank leave without meeting the others; return the exit code of its process."""
    program = f"from mallob_py.runtime.world.mpi import leave; leave({rank}, {code}, False, {speaker})"
    env = dict(os.environ) | {EXIT_FILE_VARIABLE: str(file)}
    return subprocess.run([sys.executable, "-c", before + program], env=env, check=False).returncode


def left_by(rank: int, code: int, file: Path, *, speaker: int = 0) -> str:
    """Let a rank leave without meeting the others; return the content of the exit file."""
    assert leave(rank, code, file, speaker=speaker) == 0
    return file.read_text()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "exit-code"
    path.write_bytes(RUNNING)
    return path


def test_the_code_of_the_rank_that_speaks_is_that_of_all(file: Path) -> None:
    assert left_by(0, 10, file) == "10\n"
    assert left_by(1, 0, file) == "10\n"


def test_where_the_rank_that_speaks_hangs_another_one_tells_how_it_ended(file: Path) -> None:
    assert left_by(1, 0, file) == "0\n"


def test_the_rank_that_speaks_is_right_even_if_it_comes_last(file: Path) -> None:
    left_by(1, 0, file)
    assert left_by(2, 10, file, speaker=2) == "10\n"


def test_no_file_is_made_where_the_world_never_came_up(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        left_by(1, 0, tmp_path / "exit-code")


def test_an_exit_code_that_cannot_be_written_is_that_of_the_process(file: Path) -> None:
    assert leave(0, 10, file, before=NO_ROOM) == 10
    assert file.read_bytes() == RUNNING
    assert leave(1, 10, file, before=NO_ROOM) == 0, "another rank speaks"
