"""Workers' output goes to a bounded file for each job, whatever entries exist in its folder."""

import errno
import mmap
import os
import re
import resource
import signal
import socket
import sys
from pathlib import Path

import pytest
from foreign_files import Kind, found, put
from pool_rank import Make, Rank
from waiting import poll_until

from mallob_py.protocol import stimuli
from mallob_py.runtime.workers import output
from mallob_py.runtime.workers.links import WorkerLimits
from mallob_py.runtime.workers.output import OutputFiles, _Keeper
from mallob_py.service.telemetry.printed import Printed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "output"


@pytest.fixture
def rank(make: Make, folder: Path) -> Rank:
    return make(limits=WorkerLimits(output_dir=str(folder)))


def text_of(folder: Path, job: int) -> str:
    path = folder / f"{job}.log"
    return path.read_text() if path.exists() else ""


# --- output of workers ----------------------------------------------------------------------


def test_a_keeper_without_a_free_descriptor_takes_in_a_pipe_later(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    slots = mmap.mmap(-1, 8)
    slots.write((7).to_bytes(8, sys.byteorder))
    read_end, write_end = os.pipe()
    wake, wake_writer = os.pipe()
    with ours, theirs, slots:
        keeper = _Keeper(OutputFiles(str(tmp_path)), theirs, slots, wake)
        socket.send_fds(ours, [bytes(8)], [read_end])
        os.close(read_end)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            assert keeper.welcome()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.write(write_end, b"printed")  # BrokenPipeError if the pipe is lost
        assert keeper.welcome()
        os.write(wake_writer, b"!")
        keeper.run()
    assert text_of(tmp_path, 7) == "printed"
    for descriptor in (write_end, wake, wake_writer):
        os.close(descriptor)


def test_what_each_job_prints_is_in_its_file_when_it_has_ended(rank: Rank, folder: Path) -> None:
    for job in (1, 2, 3):  # all jobs run in the same process
        rank.start("PRINT", (job, job), text=f"of {job}")
        rank.hear(stimuli.WorkerAnswered, job)
    rank.until(lambda: all(text_of(folder, job).count("\n") == 3 for job in (1, 2, 3)))
    assert [text_of(folder, job) for job in (1, 2, 3)] == [f"of {job}\n" * 3 for job in (1, 2, 3)]


def test_who_prints_without_end_fills_no_disk_and_is_killed_as_usual(rank: Rank, folder: Path) -> None:
    rank.start("PRINT", (1, 1), text="0123456789", endless=True)
    rank.until(lambda: (folder / "1.1.log").exists())
    rank.start("PRINT", (2, 2), text="meanwhile")
    rank.until(lambda: text_of(folder, 2) == "meanwhile\n" * 3)
    rank.pool.terminate((1, 1))
    sizes = [path.stat().st_size for path in folder.iterdir()]
    assert sum(sizes) < 5 << 20
    assert not rank.of(stimuli.WorkerCrashed)


def test_what_a_killed_worker_has_printed_is_there(rank: Rank, folder: Path) -> None:
    rank.start("PRINT", (1, 1), text="last words", endless=True)
    rank.until(lambda: "last words" in text_of(folder, 1) or (folder / "1.1.log").exists())
    os.kill(rank.pid((1, 1)), signal.SIGKILL)
    rank.hear(stimuli.WorkerCrashed)


def test_what_was_printed_is_waited_for_also_where_standard_error_leads_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    theirs, ours = os.pipe()
    with mmap.mmap(-1, mmap.PAGESIZE) as slots:
        printed = output.Printed(slots, 0, ours)
        os.write(ours, b"two")
        monkeypatch.setattr(output.time, "sleep", lambda _: os.read(theirs, 2))
        printed.turn_to(1)
    os.close(ours)
    assert os.read(theirs, 3) == b""
    os.close(theirs)


def keepers(server_pid: int) -> list[int]:
    children = Path(f"/proc/{server_pid}/task/{server_pid}/children").read_text().split()
    return [int(pid) for pid in children if "mallob-py: output" in Path(f"/proc/{pid}/cmdline").read_text()]


def test_without_its_keeper_a_fork_server_begins_anew_with_another(rank: Rank, folder: Path) -> None:
    rank.start("PRINT", (1, 1), text="before")
    rank.hear(stimuli.WorkerAnswered)
    rank.start("SPIN", (2, 2))
    rank.hear(stimuli.WorkerStarted, 2)
    (keeper,) = poll_until(lambda: keepers(rank.server.pid), "there is a keeper")
    os.kill(keeper, signal.SIGKILL)
    rank.hear(stimuli.WorkerCrashed)
    rank.start("PRINT", (3, 3), text="after")
    rank.hear(stimuli.WorkerAnswered, 2)
    rank.until(lambda: text_of(folder, 3) == "after\n" * 3)


# --- files of printed output ----------------------------------------------------------------


def test_the_last_of_what_was_printed_is_kept(folder: Path) -> None:
    files = OutputFiles(str(folder), size_max_bytes=1000)
    for number in range(1000):
        files.add(7, b"%04d\n" % number)
    kept = (folder / "7.1.log").read_bytes() + (folder / "7.log").read_bytes()
    assert 1000 <= len(kept) <= 2010
    assert kept == b"".join(b"%04d\n" % number for number in range(1000))[-len(kept) :]


def test_the_oldest_files_go_and_only_ours(folder: Path) -> None:
    folder.mkdir()
    (folder / "my.log").write_text("precious")
    files = OutputFiles(str(folder), files_max=150)
    for job in range(1, 402):
        files.add(job, b"x")
        os.utime(folder / f"{job}.log", (job, job))
    numbers = {int(path.stem) for path in folder.glob("*.log") if path.stem != "my"}
    assert len(numbers) <= 250
    assert max(numbers) == 401
    assert (folder / "my.log").read_text() == "precious"
    files = OutputFiles(str(folder), folder_max_bytes=10)
    files.add(1000, b"y")
    assert len(list(folder.glob("*.log"))) <= 12


def test_output_goes_to_one_place_if_old_files_cannot_be_listed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def no_descriptor(*arguments: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "listdir", no_descriptor)
    OutputFiles(str(folder)).add(7, b"once")
    assert (text_of(folder, 7), capfd.readouterr().err) == ("once", "")


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("name", ["output", "output/7.log", "output/7.1.log"])
def test_strangers_in_the_place_of_our_files_are_let_be(
    tmp_path: Path, folder: Path, kind: Kind, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path / name, kind, tmp_path / "elsewhere")
    before = found(tmp_path)
    if name == "output/7.log" and kind is Kind.FILE:  # a file of this user counts as the service's own
        return
    files = OutputFiles(str(folder), size_max_bytes=10)
    if name == "output" and kind is Kind.FOLDER:
        (folder / "7.log").symlink_to(tmp_path / "precious")
    for _ in range(5):
        files.add(7, b"12345678\n")
    now = found(tmp_path)
    lost = {path: text for path, text in before.items() if now.get(path) != text}
    replaced = {folder / "7.1.log"} if name == "output/7.1.log" else set()
    assert lost.keys() <= replaced | {tmp_path}
    assert not (tmp_path / "precious").exists()
    if "1.log" not in name:
        assert capfd.readouterr().err.count("12345678") == 5


def test_a_file_with_another_name_and_a_socket_are_let_be(tmp_path: Path, folder: Path) -> None:
    folder.mkdir()
    (tmp_path / "precious").write_text("precious")
    os.link(tmp_path / "precious", folder / "7.log")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "8.log"))
        for job in (7, 8):
            OutputFiles(str(folder)).add(job, b"x")
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_folder_that_cannot_be_made_is_nobodys_loss(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    OutputFiles(str(tmp_path / "missing" / "output")).add(7, b"spoken\n")
    assert capfd.readouterr().err == "spoken\n"


# --- readers of the output ------------------------------------------------------------------


def test_a_reader_misses_nothing_while_files_are_set_aside(tmp_path: Path) -> None:
    files, printed = OutputFiles(str(tmp_path / "output"), size_max_bytes=500), Printed(tmp_path, 7)
    said, read = b"", b""
    for number in range(300):
        line = b"line %d\n" % number
        files.add(7, line)
        said += line
        if number % 7 == 0:
            read += printed.news()
    assert read + printed.news() == said
    assert re.fullmatch(rb"(line \d+\n)+", Printed(tmp_path, 7).news())


def test_a_reader_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "output").mkdir()
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "output" / "7.log").symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="link"):
        Printed(tmp_path, 7).news()
    assert Printed(tmp_path, 8).news() == b""
