import os
from pathlib import Path

from mallob_py.runtime.world.exit_file import ExitFile, Said
from mallob_py.runtime.world.mpi import EXIT_FILE_VARIABLE, RUNNING

#: time for which ranks may be silent; after half as long again, the launching process acts
TIMEOUT_S = 10.0


def written(file: ExitFile) -> Path:
    return Path(file.environment[EXIT_FILE_VARIABLE])


def test_ranks_that_never_came_up_have_said_nothing(tmp_path: Path) -> None:
    assert ExitFile(tmp_path, None).said() == Said(None, False)


def test_ranks_that_are_at_work_have_come_up_and_left_no_code(tmp_path: Path) -> None:
    file = ExitFile(tmp_path, None)
    written(file).write_bytes(RUNNING)
    assert file.said() == Said(None, True)
    written(file).write_text("20\n")
    assert file.said() == Said(20, True)


def test_ranks_that_were_at_work_have_come_up_whatever_a_full_disk_has_left_of_the_file(
    tmp_path: Path,
) -> None:
    file = ExitFile(tmp_path, None)
    os.utime(written(file))
    assert file.said() == Said(None, True)
    written(file).write_bytes(RUNNING[:4])
    assert file.said() == Said(None, True)


def test_ranks_that_were_seen_at_work_have_come_up_though_the_file_is_gone(tmp_path: Path) -> None:
    file = ExitFile(tmp_path, None)
    written(file).write_bytes(RUNNING)
    file.is_silent(0.0)
    written(file).unlink()
    assert file.said() == Said(None, True)


def test_ranks_may_make_the_file_that_the_launching_process_could_not(tmp_path: Path) -> None:
    file = ExitFile(tmp_path / "full", None)
    assert file.said() == Said(None, False)
    (tmp_path / "full").mkdir()
    written(file).touch()
    assert file.said() == Said(None, True)


def test_ranks_are_silent_when_the_file_does_not_change_any_more(tmp_path: Path) -> None:
    file = ExitFile(tmp_path, TIMEOUT_S)
    assert not any(file.is_silent(now) for now in range(100))  # the ranks have not started up
    written(file).write_bytes(RUNNING)
    heard = [100.0 + file.look_s * look for look in range(400)]
    silent = [file.is_silent(now) for now in heard]
    first = heard[silent.index(True)]
    assert 1.5 * TIMEOUT_S <= first - 100.0 <= 2 * TIMEOUT_S
    os.utime(written(file), ns=(1, 1))
    assert not file.is_silent(heard[-1] + file.look_s)


def test_without_a_limit_they_may_be_silent_for_ever(tmp_path: Path) -> None:
    file = ExitFile(tmp_path, None)
    written(file).write_bytes(RUNNING)
    assert not any(file.is_silent(float(now)) for now in range(1000))
