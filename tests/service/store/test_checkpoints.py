"""Checkpoint files are whole or absent, are removed with their jobs, and never cost a job its reply."""

import os
import resource
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mallob_py.service.store.checkpoints import Checkpoints
from mallob_py.service.store.flush_policy import Buffered

JOB, OTHER = 7, 8


class Disk(Buffered):
    """A disk whose flushes take `flush_s`, and which records the flushed files."""

    def __init__(self) -> None:
        self.now = 0.0
        self.flush_s = 0.0
        self.flushed: list[str] = []

    def flush(self, paths: Iterable[str | Path]) -> None:
        self.now += self.flush_s
        self.flushed += [Path(path).name for path in paths]


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def complaints() -> list[str]:
    return []


def opened(folder: Path, disk: Disk, complaints: list[str], *live: int) -> Checkpoints:
    checkpoints = Checkpoints(folder, disk, complaints.append, lambda: disk.now)
    checkpoints.recover(live)
    return checkpoints


def test_the_next_service_finds_the_last_one(tmp_path: Path, disk: Disk, complaints: list[str]) -> None:
    before = opened(tmp_path, disk, complaints)
    before.save(JOB, b"first")
    before.save(JOB, b"last")
    after = opened(tmp_path, disk, complaints, JOB, OTHER)
    assert after.load(JOB) == b"last"
    assert after.load(OTHER) is None
    assert not complaints


def test_it_is_flushed_before_it_has_its_name_and_its_name_after(
    tmp_path: Path, disk: Disk, complaints: list[str]
) -> None:
    opened(tmp_path, disk, complaints).save(JOB, b"state")
    assert disk.flushed == [f"~{JOB}", "checkpoints"]


def test_those_of_jobs_that_are_over_go(tmp_path: Path, disk: Disk, complaints: list[str]) -> None:
    checkpoints = opened(tmp_path, disk, complaints)
    for job in (JOB, OTHER):
        checkpoints.save(job, b"state")
    checkpoints.remove(JOB)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [str(OTHER)]
    (tmp_path / "checkpoints" / f"~{JOB}").write_bytes(b"cut off")
    opened(tmp_path, disk, complaints)
    assert not list((tmp_path / "checkpoints").iterdir())


@pytest.mark.parametrize("kept", [0, 5, 23, 25, 27, 31])
def test_one_that_is_cut_off_is_not_used(
    tmp_path: Path, disk: Disk, complaints: list[str], kept: int
) -> None:
    opened(tmp_path, disk, complaints).save(JOB, b"state")
    path = tmp_path / "checkpoints" / str(JOB)
    content = path.read_bytes()
    assert kept < len(content)
    path.write_bytes(content[:kept])
    assert opened(tmp_path, disk, complaints, JOB).load(JOB) is None
    assert complaints == [f"{path} is damaged; its job begins anew"]


def test_one_with_a_changed_byte_is_not_used(tmp_path: Path, disk: Disk, complaints: list[str]) -> None:
    opened(tmp_path, disk, complaints).save(JOB, b"state")
    path = tmp_path / "checkpoints" / str(JOB)
    path.write_bytes(path.read_bytes().replace(b"state", b"stake"))
    assert opened(tmp_path, disk, complaints, JOB).load(JOB) is None


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def a_link_to_a_checkpoint(path: Path) -> None:
    elsewhere = path.parent.parent / "elsewhere"
    os.replace(path.with_name(str(OTHER)), elsewhere)
    path.symlink_to(elsewhere)


def a_folder(path: Path) -> None:
    path.mkdir()


def a_file_with_a_hole(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


@pytest.mark.parametrize(
    "put", [a_pipe, a_link_to_a_device, a_link_to_a_checkpoint, a_folder, a_file_with_a_hole]
)
@pytest.mark.timeout(20, method="signal")
def test_what_can_be_none_of_ours_is_not_read(
    put: Callable[[Path], None], tmp_path: Path, disk: Disk, complaints: list[str]
) -> None:
    opened(tmp_path, disk, complaints).save(OTHER, b"state")
    put(tmp_path / "checkpoints" / str(JOB))
    after = opened(tmp_path, disk, complaints, JOB, OTHER)
    with address_space(4 << 30):
        assert after.load(JOB) is None
    for complaint in complaints:
        assert complaint.startswith(f"cannot read {tmp_path}/checkpoints/{JOB}: ")


@contextmanager
def address_space(size_bytes: int) -> Iterator[None]:
    """Limit the memory of this process, so that endless reading ends with an error."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_where_one_is_written_a_link_is_not_followed(
    tmp_path: Path, disk: Disk, complaints: list[str]
) -> None:
    checkpoints = opened(tmp_path, disk, complaints)
    checkpoints.save(OTHER, b"other")
    theirs = tmp_path / "theirs"
    theirs.write_bytes(b"theirs")
    (tmp_path / "checkpoints" / f"~{JOB}").symlink_to(theirs)
    checkpoints.save(JOB, b"state")
    assert theirs.read_bytes() == b"theirs"
    assert opened(tmp_path, disk, complaints, JOB, OTHER).load(OTHER) == b"other"


def test_a_disk_that_takes_none_is_reported_once(tmp_path: Path, disk: Disk, complaints: list[str]) -> None:
    (tmp_path / "checkpoints").write_text("not a folder")
    checkpoints = opened(tmp_path / "nowhere", disk, complaints)
    checkpoints.save(JOB, b"state")
    checkpoints.save(OTHER, b"state")
    assert len(complaints) == 1
    assert "jobs go on without" in complaints[0]
    assert checkpoints.load(JOB) is None


def test_a_slow_disk_gets_fewer(tmp_path: Path, disk: Disk, complaints: list[str]) -> None:
    disk.flush_s = 0.5
    checkpoints = opened(tmp_path, disk, complaints)
    for turn in range(200):
        disk.now = max(disk.now, float(turn))
        checkpoints.save(JOB, b"%d" % turn)
    assert len(disk.flushed) / 2 <= 5


def test_many_jobs_share_the_time_for_writing(tmp_path: Path, disk: Disk, complaints: list[str]) -> None:
    disk.flush_s = 0.005
    checkpoints = opened(tmp_path, disk, complaints)
    for turn in range(200):
        disk.now = max(disk.now, turn / 10)
        for job in range(20):
            checkpoints.save(job, b"%d" % turn)
    assert len(disk.flushed) / 2 >= 20
    assert len(disk.flushed) * disk.flush_s <= 0.05 * disk.now


def test_the_last_one_that_a_slow_disk_was_spared_is_written_at_the_end(
    tmp_path: Path, disk: Disk, complaints: list[str]
) -> None:
    disk.flush_s = 0.5
    checkpoints = opened(tmp_path, disk, complaints)
    for data in (b"first", b"second", b"last"):
        checkpoints.save(JOB, data)
        checkpoints.save(OTHER, data)
    checkpoints.remove(OTHER)
    assert opened(tmp_path, disk, complaints, JOB).load(JOB) == b"first"
    checkpoints.close()
    after = opened(tmp_path, disk, complaints, JOB, OTHER)
    assert (after.load(JOB), after.load(OTHER)) == (b"last", None)


def test_the_last_one_that_a_slow_disk_was_spared_is_there_for_its_job(
    tmp_path: Path, disk: Disk, complaints: list[str]
) -> None:
    disk.flush_s = 0.5
    checkpoints = opened(tmp_path, disk, complaints)
    checkpoints.save(JOB, b"first")
    checkpoints.save(JOB, b"last")
    assert checkpoints.load(JOB) == b"last"
    checkpoints.remove(JOB)
    assert checkpoints.load(JOB) is None
