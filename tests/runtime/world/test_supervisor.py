"""When crashed ranks are started again, and when not."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from mallob_py.launchers import EXIT_FILE_VARIABLE
from mallob_py.restarts import RestartLimit
from mallob_py.runtime.world.launch import RESTART_WINDOW_S, StopRequests, run_world, supervise
from mallob_py.runtime.world.mpi import AFTER_CRASH_VARIABLE, Crash, WorldEnd

#: program of a single rank: notes its environment, reports that it is up if asked, ends by a code or signal
RANK = f"""
import os, sys
notes, says, how = sys.argv[1:]
with open(notes, "a") as file:
    print(os.environ.get("{AFTER_CRASH_VARIABLE}", "0"), file=file)
if says:
    with open(os.environ["{EXIT_FILE_VARIABLE}"], "w") as file:
        print(says, file=file)
os.kill(os.getpid(), -int(how)) if int(how) < 0 else sys.exit(int(how))
"""


def run(folder: Path, says: str, how: str, restarts_max: int) -> tuple[int, list[str]]:
    """Supervise the rank; return the exit code, and what each world was told about crashes."""
    program = folder / "rank.py"
    program.write_text(RANK)
    argv = [str(program), str(folder / "notes"), says, how]
    code = supervise(1, lambda ranks, env, stops: run_world(ranks, argv, env, stops), restarts_max)
    return code, (folder / "notes").read_text().split()


def test_restarts_come_later_and_later_and_are_limited() -> None:
    limit = RestartLimit(4, RESTART_WINDOW_S, (1.0, 30.0))
    assert [limit.next_delay_s(float(now)) for now in range(5)] == [1.0, 2.0, 4.0, 8.0, None]


def test_restarts_of_long_ago_do_not_count() -> None:
    limit = RestartLimit(1, RESTART_WINDOW_S, (1.0, 30.0))
    assert limit.next_delay_s(0.0) == 1.0
    assert limit.next_delay_s(RESTART_WINDOW_S - 1) is None
    assert limit.next_delay_s(RESTART_WINDOW_S) == 1.0


def test_no_delay_is_endless_and_none_is_too_large_for_the_clock() -> None:
    limit = RestartLimit(5000, RESTART_WINDOW_S, (1.0, 30.0))
    assert max(limit.next_delay_s(0.0) or 0.0 for _ in range(5000)) == 30.0


def test_ranks_that_were_at_work_and_left_no_exit_code_have_not_done_well() -> None:
    assert WorldEnd(None, had_come_up=True, returned=0, stopped_by=None).exit_code == 1
    assert WorldEnd(None, had_come_up=False, returned=0, stopped_by=None).exit_code == 0
    assert WorldEnd(0, had_come_up=True, returned=0, stopped_by=None).exit_code == 0


def test_ranks_that_crash_are_started_again_and_told_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, told = run(tmp_path, "running", "-9", 1)
    assert code == 128 + 9
    assert told == ["0", "killed"]
    said = capfd.readouterr().err
    assert "restart 1 in 1 s" in said
    assert "not started again after 1 restarts" in said


def test_ranks_are_told_whether_one_of_them_was_killed_or_ended_by_itself(tmp_path: Path) -> None:
    assert run(tmp_path, "running", "-11", 1)[1] == ["0", "1"]


@pytest.mark.parametrize(
    ("returned", "changes", "crash"),
    [
        (9, {}, Crash.KILLED),
        (137, {}, Crash.KILLED),
        (11, {}, Crash.OF_ITSELF),
        (1, {}, Crash.OF_ITSELF),
        (9, {"was_out_of_memory": True}, Crash.OF_ITSELF),
        (-9, {}, None),  # the launcher itself was killed
        (-9, {"was_silent": True}, Crash.OF_ITSELF),  # killed by this project's processes
        (255, {}, None),  # the launcher's proxy was killed
        (-9, {"has_launcher": False}, Crash.KILLED),
        (-6, {"has_launcher": False}, Crash.OF_ITSELF),
    ],
)
def test_a_launcher_that_was_killed_is_no_fault_of_the_ranks(
    returned: int, changes: dict[str, bool], crash: Crash | None
) -> None:
    assert WorldEnd(None, True, returned, None, **changes).crash is crash


@pytest.mark.parametrize("code", [0, 2, 10])
def test_ranks_that_say_how_they_end_are_not_started_again(code: int, tmp_path: Path) -> None:
    assert run(tmp_path, str(code), "0", 5) == (code, ["0"])


def test_ranks_that_never_came_up_are_not_started_again(tmp_path: Path) -> None:
    assert run(tmp_path, "", "2", 5) == (2, ["0"])


def test_a_world_that_ends_without_a_word_and_without_an_error_is_a_crash_all_the_same(
    tmp_path: Path,
) -> None:
    assert run(tmp_path, "running", "0", 0)[0] == 1


def test_nothing_is_printed_about_a_world_that_ends_well(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, "0", "0", 5)
    assert capfd.readouterr().err == ""


def test_silent_ranks_that_end_in_order_when_they_wake_are_started_again() -> None:
    ends = [WorldEnd(0, True, 0, None, was_silent=True), WorldEnd(0, True, 0, None)]
    told = []

    def run_next(ranks: int, env: Mapping[str, str], stops: StopRequests) -> WorldEnd:
        told.append(env.get(AFTER_CRASH_VARIABLE))
        return ends.pop(0)

    assert supervise(1, run_next, restarts_max=1) == 0
    assert told == [None, Crash.OF_ITSELF.value]
