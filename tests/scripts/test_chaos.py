"""Short forms of the campaigns of `scripts/chaos.py`; the long ones take minutes or hours."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from faults import foreign, soak
from faults.processes import Family, Wrong, proportional_bytes
from faults.ranks import number_of
from faults.service import Service
from waiting import DEADLINE_S

from mallob_py.runtime.world.launch import find_launcher
from mallob_py.runtime.world.mpi import LaunchError

ROOT = Path(__file__).parents[2]


def chaos(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "apps"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, ROOT / "scripts/chaos.py", *arguments],
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
        check=False,
        env=os.environ | {"PYTHONPATH": path, "TMPDIR": str(folder)},
    )


@pytest.fixture
def launcher() -> None:
    try:
        find_launcher()
    except LaunchError as error:
        pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.usefixtures("launcher")
def test_jobs_that_flow_in_while_all_is_killed_get_exactly_one_right_reply_each(tmp_path: Path) -> None:
    done = chaos(tmp_path, "kills", "--jobs", "40", "--kills", "4", "--stops", "0", "--ranks", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "one right reply each" in done.stdout
    assert "kill" in done.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("launcher")
def test_trees_are_counted_exactly_while_workers_come_go_and_are_killed_and_a_rank_and_the_service_too(
    tmp_path: Path,
) -> None:
    done = chaos(tmp_path, "trees", "T3", "QUEENS 12", "--losses", "1", "--restarts", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("exact") == 4, done.stdout  # for each tree, in its own line and in the table


def test_a_tree_that_there_is_not_is_refused_by_name(tmp_path: Path) -> None:
    done = chaos(tmp_path, "trees", "T4", "T17")
    assert done.returncode == 2
    assert "no tree is called 'T17'; known are UTS 8, " in done.stderr


def test_a_rank_that_stays_large_at_the_end_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Family, "of", lambda mark: Family([os.getpid()], [], []))
    size_bytes = proportional_bytes(os.getpid())
    assert size_bytes > 0
    monkeypatch.setattr(soak, "SHARED_BYTES", 0)
    monkeypatch.setattr(soak, "RANK_AT_END_MAX_BYTES", 2 * size_bytes)
    soak.check_size_at_end("mark")
    monkeypatch.setattr(soak, "RANK_AT_END_MAX_BYTES", size_bytes // 2)
    with pytest.raises(Wrong, match="less than"):
        soak.check_size_at_end("mark", deadline_s=0.0)


def test_what_becomes_of_the_files_of_others_is_noticed(tmp_path: Path) -> None:
    others = foreign.Foreign(tmp_path)
    others.check()
    (tmp_path / "api/jobs.0/status").write_text("ours")
    others.check()
    (tmp_path / "api/jobs.0/in/.foreign-file").write_text("ours")
    with pytest.raises(Wrong, match="foreign-file"):
        others.check()


def test_a_number_of_a_process_that_is_given_again_is_the_rank_of_this_life(tmp_path: Path) -> None:
    service = Service.__new__(Service)
    service.output_path = tmp_path / "output"
    told = "rank 6 (process 7 on vm) has joined; rank 8 (process 9 on vm) has joined. 8 ranks go on\n"
    service.output_path.write_text(told)
    service.begin_life()
    with open(service.output_path, "a") as file:
        file.write(told.replace("rank 6", "rank 3"))
    assert number_of(service, 7) == 3
