"""Records of the jobs that were running at each of several crashes in a row."""

from pathlib import Path
from unittest.mock import Mock

from mallob_py.runtime.world.mpi import Crash
from mallob_py.service.jobs.crashes import ACQUITTED_AFTER_S, RunningJobs
from mallob_py.service.service import Service

#: bound on crashes that no kill of a rank has caused
CRASHES_MAX = 3


def silent(_message: str) -> None:
    pass


def after_crash(folder: Path, crash: Crash = Crash.OF_ITSELF) -> RunningJobs:
    """Return the record that a service finds after a crash, at which the former service closed nothing."""
    return RunningJobs(folder, crash, silent)


def test_a_job_that_runs_at_every_crash_becomes_a_suspect_and_then_hopeless(tmp_path: Path) -> None:
    running = RunningJobs(tmp_path, None, silent)
    for crashes in range(CRASHES_MAX):
        assert running.crashes(7) == crashes
        assert running.crashes_max(7) == CRASHES_MAX
        assert running.is_suspect(7) == (crashes == CRASHES_MAX - 1)
        assert not running.is_hopeless(7)
        running.begin(7, 0.0)
        running = after_crash(tmp_path)
    assert running.is_hopeless(7)


def test_a_job_that_was_not_running_at_one_crash_is_counted_anew(tmp_path: Path) -> None:
    running = RunningJobs(tmp_path, None, silent)
    running.begin(7, 0.0)
    running = after_crash(tmp_path)
    assert running.crashes(7) == 1
    assert after_crash(tmp_path).crashes(7) == 0


def test_jobs_that_have_ended_are_not_blamed_and_their_places_are_used_again(tmp_path: Path) -> None:
    running = RunningJobs(tmp_path, None, silent)
    for job in range(1, 1001):
        running.begin(job, 0.0)
        if job % 100:
            running.end(job)
    assert (tmp_path / ".running").stat().st_size <= 11 * 16
    found = after_crash(tmp_path)
    assert [job for job in range(1, 1001) if found.crashes(job)] == list(range(100, 1001, 100))


def test_a_rank_that_ends_in_good_order_after_the_crash_of_another_blames_its_jobs(tmp_path: Path) -> None:
    running = RunningJobs(tmp_path, None, silent)
    running.begin(7, 0.0)
    running.close()
    assert after_crash(tmp_path).crashes(7) == 1


def test_handing_over_a_folder_blames_no_job(tmp_path: Path) -> None:
    """Otherwise a rank that leaves orderly would count as a crash against all jobs at work at its clients."""
    running = RunningJobs(tmp_path, None, silent)
    running.begin(7, 0.0)
    running.begin(8, 0.0)
    running.hand_over()
    found = after_crash(tmp_path, Crash.KILLED)
    assert (found.crashes(7), found.crashes(8)) == (0, 0)


def test_a_service_that_hands_its_folder_over_blames_no_job(tmp_path: Path) -> None:
    running = RunningJobs(tmp_path, None, silent)
    running.begin(7, 0.0)
    service = object.__new__(Service)  # the test needs only these parts of a service
    service._intake, service._directory, service._running = Mock(), Mock(), running
    service.hand_over()
    assert after_crash(tmp_path).crashes(7) == 0


def test_a_start_by_hand_blames_nobody(tmp_path: Path) -> None:
    RunningJobs(tmp_path, None, silent).begin(7, 0.0)
    assert RunningJobs(tmp_path, None, silent).crashes(7) == 0


def test_a_file_that_is_cut_off_gives_what_it_has(tmp_path: Path) -> None:
    running = RunningJobs(tmp_path, None, silent)
    running.begin(7, 0.0)
    running.begin(8, 0.0)
    with open(tmp_path / ".running", "r+b") as file:
        file.truncate(20)
    found = after_crash(tmp_path)
    assert (found.crashes(7), found.crashes(8)) == (1, 0)


def test_without_a_place_to_write_jobs_run_all_the_same_and_it_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    running = RunningJobs(tmp_path / "nowhere", None, said.append)
    running.begin(7, 0.0)
    running.end(7)
    running.close()
    assert len(said) == 1
    assert "No such file" in said[0]


def test_crashes_at_which_a_rank_was_killed_weigh_less(tmp_path: Path) -> None:
    running = RunningJobs(tmp_path, None, silent)
    suspect, hopeless, most = [], [], []
    for _ in range(8):
        running.begin(7, 0.0)
        running = after_crash(tmp_path, Crash.KILLED)
        suspect.append(running.is_suspect(7))
        hopeless.append(running.is_hopeless(7))
        most.append(running.crashes_max(7))
    # three trials, because kills are seldom the job's fault
    assert suspect == [False] * 4 + [True] * 3 + [False]
    assert hopeless == [False] * 7 + [True]
    assert most == [4, 5, 5, 6, 6, 7, 8, 8]


def test_a_job_that_only_waits_is_not_blamed(tmp_path: Path) -> None:
    running = RunningJobs(tmp_path, None, silent)
    running.begin(7, 0.0)  # job 7 is read
    running.rest(7)
    running.begin(8, 0.0)
    running.rest(8)
    running.begin(8, 1.0)  # job 8 has a worker again
    found = after_crash(tmp_path)
    assert (found.crashes(7), found.crashes(8)) == (0, 1)


def test_who_has_worked_for_long_is_acquitted_of_former_crashes(tmp_path: Path) -> None:
    running = RunningJobs(tmp_path, None, silent)
    for _ in range(2):
        running.begin(7, 0.0)
        running = after_crash(tmp_path)
    running.begin(7, 50.0)
    running.acquit(50.0 + ACQUITTED_AFTER_S - 1)
    assert running.is_suspect(7)
    running.acquit(50.0 + ACQUITTED_AFTER_S)
    assert running.crashes(7) == 0
    assert after_crash(tmp_path).crashes(7) == 1
