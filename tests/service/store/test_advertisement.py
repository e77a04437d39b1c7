"""The file that tells clients where the service is, in a folder with files of other users."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from other_user import as_nobody, folder_for_all, needs_root

from mallob_py.service.store.directory import JobDirectory

PREFIX = "edu.kit.iti.mallob.apipath."
#: program of a service that is killed while its file exists
KILLED = """
import os, signal, sys
from pathlib import Path
from mallob_py.service.store.directory import JobDirectory
JobDirectory(Path(sys.argv[1]), tmp_dir=Path(sys.argv[2]))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """Return a folder that stands for /tmp."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


def own_file(temporary: Path) -> Path:
    return temporary / f"{PREFIX}{os.getpid()}"


def names(temporary: Path) -> set[str]:
    return {path.name for path in temporary.iterdir()}


def test_the_folder_is_told_while_the_service_runs(tmp_path: Path, temporary: Path) -> None:
    directory = JobDirectory(tmp_path / "api", tmp_dir=temporary)
    earlier_name = temporary / f"mallob.apipath.{os.getpid()}"
    assert own_file(temporary).read_text() == earlier_name.read_text() == str(directory.path)
    assert names(temporary) == {own_file(temporary).name, earlier_name.name}
    directory.close()
    assert names(temporary) == set()


@pytest.mark.timeout(60)
def test_pipes_of_such_a_name_hold_nobody_up(tmp_path: Path, temporary: Path) -> None:
    """Opening a pipe would wait for its other end."""
    os.mkfifo(own_file(temporary))
    os.mkfifo(temporary / f"{PREFIX}1")
    directory = JobDirectory(tmp_path / "api", tmp_dir=temporary)
    assert own_file(temporary).read_text() == str(directory.path)
    directory.close()
    assert names(temporary) == {f"{PREFIX}1"}


def test_links_of_such_a_name_are_not_followed(tmp_path: Path, temporary: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("as it was")
    own_file(temporary).symlink_to(precious)
    (temporary / f"{PREFIX}1").symlink_to(precious)
    JobDirectory(tmp_path / "api", tmp_dir=temporary).close()
    assert precious.read_text() == "as it was"
    assert (temporary / f"{PREFIX}1").is_symlink()


def test_a_folder_of_such_a_name_is_a_complaint(tmp_path: Path, temporary: Path) -> None:
    own_file(temporary).mkdir()
    complaints: list[str] = []
    JobDirectory(tmp_path / "api", tmp_dir=temporary, log=complaints.append).close()
    assert len(complaints) == 1
    assert "clients must be told the api folder" in complaints[0]
    assert names(temporary) == {own_file(temporary).name}


@needs_root
@pytest.mark.timeout(60)
def test_what_another_user_has_put_there_stays_his() -> None:
    """The user `root` has made the file, and the user `nobody` runs the service."""

    def serve() -> list[str]:
        os.getpid = lambda: 77  # changed only in this process
        complaints: list[str] = []
        own = JobDirectory(temporary / "api", tmp_dir=temporary, log=complaints.append)
        own.close()
        return complaints

    with folder_for_all() as temporary:
        os.mkfifo(temporary / f"{PREFIX}77", 0o666)
        (temporary / f"{PREFIX}1").write_text(str(temporary / "api" / "jobs.0"))
        (complaint,) = as_nobody(serve)
        assert "clients must be told the api folder" in complaint
        assert names(temporary) == {"api", f"{PREFIX}1", f"{PREFIX}77"}


def test_files_of_killed_services_go_and_those_of_living_ones_and_of_the_original_stay(
    tmp_path: Path, temporary: Path
) -> None:
    living = JobDirectory(tmp_path / "living", tmp_dir=temporary)
    (temporary / f"{PREFIX}living").write_text(str(living.path))
    original = tmp_path / "original" / "jobs.0"
    original.mkdir(parents=True)
    (temporary / f"{PREFIX}original").write_text(str(original))
    for api in ("one", "other"):
        (temporary / f"{PREFIX}9999999").write_text(str(tmp_path / "gone" / "jobs.0"))
        subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / api), str(temporary)], check=False)
        assert f"{PREFIX}9999999" not in names(temporary)
    assert len(names(temporary)) == 6
    following = JobDirectory(tmp_path / "one", tmp_dir=temporary)
    own = {own_file(temporary).name, f"mallob.apipath.{os.getpid()}"}
    assert names(temporary) == own | {f"{PREFIX}living", f"{PREFIX}original"}
    following.close()
    living.close()
