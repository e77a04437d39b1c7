"""Folders of one session in places where every user may write: who may use them, and when they are
removed.
"""

import errno
import mmap
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from other_user import NOBODY, as_nobody, folder_for_all, needs_root
from waiting import DEADLINE_S

from mallob_py.runtime.world import session_folder
from mallob_py.runtime.world.carrier import Carrier
from mallob_py.runtime.world.links import Links
from mallob_py.runtime.world.mpi import LaunchError
from mallob_py.runtime.world.mpich_files import forget_shared, sweep_shared, unlink_if_same
from mallob_py.runtime.world.session_folder import PrivateFolder, sweep, temporary_folder

HOLD = """
import sys
from pathlib import Path
from mallob_py.runtime.world.session_folder import PrivateFolder
folder = PrivateFolder.create(Path(sys.argv[1]))
(folder.path / "file").write_text("of a session")
print(folder.path, flush=True)
sys.stdin.read()
"""


class Session:
    """Another process that holds a folder until it is killed."""

    def __init__(self, parent: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(parent)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.path = Path(self.process.stdout.readline().strip())

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    session = Session(tmp_path)
    yield session
    session.kill()


def test_nobody_else_may_enter_a_folder_nor_guess_its_name(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        one, other = PrivateFolder.create(tmp_path), PrivateFolder.create(tmp_path)
    finally:
        os.umask(previous)
    assert one.path.stat().st_mode & 0o777 == 0o700
    assert one.path.name.rsplit("-", 1)[1] != other.path.name.rsplit("-", 1)[1]
    for each in (one, other):
        each.remove()
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_killed_session_is_swept_and_that_of_a_living_one_is_not(
    session: Session, tmp_path: Path
) -> None:
    dead = Session(tmp_path)
    dead.kill()
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == [session.path]
    assert (session.path / "file").read_text() == "of a session"


def test_what_ranks_killed_in_mpi_init_have_left_is_swept_when_it_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launcher kills ranks within MPI_Init when another rank ends before it starts MPI."""
    prefix = str(tmp_path / "mpich_shm_")
    for name in ("young", "old", "mapped"):
        Path(prefix + name).write_bytes(b"ranks")
    for name in ("old", "mapped"):
        os.utime(prefix + name, (0, 0))
    monkeypatch.setattr(session_folder, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(session_folder, "sweep_shared", lambda: sweep_shared(prefix))
    with open(prefix + "mapped", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mpich_shm_mapped", "mpich_shm_young"]


def test_a_temporary_folder_is_made_once_those_of_killed_processes_are_gone(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    dead = Session(tmp_path)
    dead.kill()
    ours = temporary_folder()
    assert sorted(tmp_path.iterdir()) == sorted([session.path, ours.path])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("long" * 30)))
    short = temporary_folder(105)
    assert short.path.parent == Path("/tmp")
    for each in (ours, short):
        each.remove()


def test_a_folder_lives_as_long_as_one_process_that_has_joined_it(session: Session, tmp_path: Path) -> None:
    joined = PrivateFolder.join(session.path)
    session.kill()
    sweep(tmp_path)
    assert session.path.exists()
    joined.close()
    sweep(tmp_path)
    assert not session.path.exists()


def test_names_of_shared_files_go_but_not_what_has_come_in_their_place(tmp_path: Path) -> None:
    names = ["shared_1", "shared_replaced", "shared_gone", "another"]
    mapped = []
    for path in map(tmp_path.joinpath, names):
        path.write_bytes(b"of all")
        with path.open("r+b") as file:
            mapped.append(mmap.mmap(file.fileno(), 0))
    (tmp_path / "new").touch()
    (tmp_path / "new").rename(tmp_path / "shared_replaced")
    (tmp_path / "shared_gone").unlink()
    (tmp_path / "shared_unmapped").touch()
    forget_shared(str(tmp_path / "shared_"))
    assert {path.name for path in tmp_path.iterdir()} == {"shared_replaced", "shared_unmapped", "another"}
    assert mapped[0][:] == b"of all"
    unlink_if_same(str(tmp_path / "another"), (tmp_path / "shared_unmapped").stat().st_ino)
    assert (tmp_path / "another").exists()


def test_what_only_looks_like_a_folder_of_ours_stays(tmp_path: Path) -> None:
    name = "mallob-py.1-0123456789abcdef"
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    places = tmp_path / "places"
    places.mkdir()
    (places / name).symlink_to(outside)
    os.mkfifo(places / name.replace("1-", "2-"))
    (places / name.replace("1-", "3-")).write_text("a file")
    (places / "mallob-py.x").mkdir()
    sweep(places)
    assert len(list(places.iterdir())) == 4
    assert (outside / "precious").exists()


def test_a_folder_that_others_may_enter_is_not_joined(tmp_path: Path) -> None:
    folder = tmp_path / "mallob-py.1-0123456789abcdef"
    folder.mkdir(mode=0o755)
    with pytest.raises(PermissionError):
        PrivateFolder.join(folder)
    folder.chmod(0o700)
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(OSError, match="link"):
        PrivateFolder.join(tmp_path / "link")


@needs_root
def test_folders_of_another_user_are_neither_joined_nor_swept(tmp_path: Path) -> None:
    folder = tmp_path / "mallob-py.1-0123456789abcdef"
    folder.mkdir(mode=0o700)
    os.chown(folder, NOBODY, NOBODY)
    with pytest.raises(PermissionError):
        PrivateFolder.join(folder)
    sweep(tmp_path)
    assert folder.exists()


@needs_root
def test_another_user_can_neither_enter_nor_list_it_nor_send_to_a_socket_in_it() -> None:
    def attack() -> list[str]:
        refused = []
        for deed in (os.listdir, os.open):
            try:
                deed(folder.path) if deed is os.listdir else os.open(folder.path / "file", os.O_RDONLY)
            except PermissionError as error:
                refused.append(str(error.strerror))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
            try:
                stranger.sendto(b"!", str(folder.path / "bell"))
            except PermissionError as error:
                refused.append(str(error.strerror))
        return refused

    with folder_for_all() as temporary, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell:
        folder = PrivateFolder.create(temporary)
        (folder.path / "file").write_text("secret")
        bell.bind(str(folder.path / "bell"))
        os.chmod(folder.path / "bell", 0o777)
        assert as_nobody(attack) == ["Permission denied"] * 3
        folder.remove()


def test_ranks_that_come_to_a_host_at_the_same_time_meet_in_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_folder, "shared_folder", lambda: tmp_path)
    session = session_folder.new_session()
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda rank: session_folder.session_folder_here(session, rank), range(8)))
    assert len({folder.path for folder, _ in found}) == 1
    assert len({host for _, host in found}) == 1
    assert {session_folder.session_of(folder) for folder, _ in found} == {session}
    assert len(list(tmp_path.iterdir())) == 1
    other, host = session_folder.session_folder_here(session_folder.new_session(), 9)
    assert (other.path != found[0][0].path, host) == (True, 9)
    for folder, _ in [*found, (other, host)]:
        folder.close()


@needs_root
@pytest.mark.parametrize("has_fifo", [False, True])
def test_what_others_have_put_under_the_name_of_a_session_is_not_looked_into(
    has_fifo: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_folder.new_session()

    def attack() -> None:
        theirs = temporary / f"mallob-py.0-{session}"
        theirs.mkdir(mode=0o755)
        if has_fifo:
            os.mkfifo(theirs / ".host", 0o666)
        else:
            (theirs / ".host").write_text("7")

    with folder_for_all() as temporary, ThreadPoolExecutor(1) as thread:
        monkeypatch.setattr(session_folder, "shared_folder", lambda: temporary)
        as_nobody(attack)
        coming = thread.submit(session_folder.session_folder_here, session, 3)
        try:
            ours, host = coming.result(DEADLINE_S)
        except TimeoutError:
            # let the process that waits at this pipe go on
            os.close(os.open(temporary / f"mallob-py.0-{session}" / ".host", os.O_RDWR))
            raise
        assert (host, ours.path.stat().st_uid) == (3, os.geteuid())
        later, host = session_folder.session_folder_here(session, 4)
        assert (host, later.path) == (3, ours.path)
        assert session_folder.session_of(later) == session
        for folder in (ours, later):
            folder.close()


ENDS_LATE = """
import os, sys
from pathlib import Path
from mallob_py.runtime import processes
from mallob_py.runtime.world import session_folder
left_of = processes.left_of
processes.left_of = lambda *given: (print("waits", flush=True), left_of(*given))[1]
session_folder.SHARED_MEMORY, session_folder._ENDING_S = Path(sys.argv[1]), float(sys.argv[2])
with session_folder.nothing_left():
    reader, writer = os.pipe()
    if os.fork() == 0:
        if os.fork() == 0:  # it has lost its parent by then
            folder = session_folder.PrivateFolder.create(Path(sys.argv[1]))
            (folder.path / "memory").touch()
            os.write(writer, b"!")
            os.read(0, 1)
            folder.remove()
            Path(sys.argv[3]).touch()
            os._exit(0)
        os._exit(0)
    os.read(reader, 1)
    os.wait()
"""


@pytest.mark.parametrize("may_end", [True, False])
def test_a_rank_that_ends_after_its_world_may_and_leaves_no_folder(may_end: bool, tmp_path: Path) -> None:
    shared, done = tmp_path / "shared", tmp_path / "done"
    shared.mkdir()
    command = [sys.executable, "-c", ENDS_LATE, shared, str(DEADLINE_S if may_end else 0.001), done]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as world:
        assert world.stdout is not None
        assert world.stdin is not None
        assert world.stdout.readline() == b"waits\n"
        if may_end:
            world.stdin.close()
        assert world.wait(DEADLINE_S) == 0
    assert list(shared.iterdir()) == []
    assert done.exists() == may_end


def test_the_last_one_to_leave_a_folder_removes_it(tmp_path: Path) -> None:
    first = PrivateFolder.create(tmp_path)
    second = PrivateFolder.join(first.path)
    first.leave()
    assert second.path.is_dir()
    second.leave()
    assert not second.path.exists()


def test_the_last_known_rank_of_a_host_leaves_the_folder_to_one_that_it_does_not_know_yet(
    tmp_path: Path,
) -> None:
    mine = PrivateFolder.create(tmp_path)
    newcomers = PrivateFolder.join(mine.path)
    Carrier(5, {0: 0, 5: 5}, mine, Links(5)).leave((5,))
    assert newcomers.path.is_dir()
    Carrier(6, {0: 0, 6: 5}, newcomers, Links(6)).leave((6,))
    assert not newcomers.path.exists()


def test_a_start_without_room_in_shared_memory_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(session_folder, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(Path, "write_text", fails)
    with pytest.raises(LaunchError, match="No space left on device"):
        session_folder.open_for_forks()
    assert list(tmp_path.iterdir()) == []
