"""Result files of jobs: written below one folder, always as new files, whatever entries exist there."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from other_user import NOBODY, needs_root

from mallob_py.kit.result_file import (
    ResultFileError,
    ResultsFolder,
    UnfinishedFile,
    confined_to,
    discard_unfinished,
    is_delivered,
    prepare_result_file,
)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "results"
    folder.mkdir()
    yield folder
    assert (tmp_path / "precious").read_text() == "as it was"


@pytest.fixture(autouse=True)
def precious(tmp_path: Path) -> Path:
    path = tmp_path / "precious"
    path.write_text("as it was")
    return path


def prepare(root: Path, path: str, job: str = "1") -> str:
    with confined_to(ResultsFolder(str(root), job)):
        return prepare_result_file(path)


def write(root: Path, path: str, text: str, prepared: str) -> None:
    file = UnfinishedFile(str(root / path), prepared)
    try:
        file.write(text.encode())
        file.deliver()
    finally:
        file.close()


def names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def finish(root: Path, path: str, job: str = "1") -> None:
    discard_unfinished(str(root / path), ResultsFolder(str(root), job))


@pytest.mark.parametrize("below", ["proof", "sub/proof"])
def test_a_result_is_written_below_the_folder(below: str, root: Path) -> None:
    (root / "sub").mkdir()
    for path in (below, str(root / below)):
        write(root, below, "a proof", prepare(root, path))
        assert (root / below).read_text() == "a proof"
        finish(root, below)
        assert names((root / below).parent) <= {"proof", "sub"}
        (root / below).unlink()


def test_a_folder_may_be_called_by_its_other_name(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.symlink_to(root)
    folder = ResultsFolder(str(other), "1")
    assert folder.resolve(f"{root}/proof") == folder.resolve(f"{other}/proof") == f"{other}/proof"
    write(other, "proof", "a proof", prepare(other, "proof"))
    assert (root / "proof").read_text() == "a proof"
    finish(other, "proof")


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("/etc/passwd", "outside of"),
        ("{root}", "outside of"),
        ("{root}-other/proof", "outside of"),
        ("{root}/../precious", "begin with"),
        ("../precious", "begin with"),
        ("sub/../../precious", "begin with"),
        ("", "empty"),
        ("proof/", "empty"),
        ("sub//proof", "empty"),
        (".hidden", "begin with"),
        (".proof.unfinished-1-0/x", "begin with"),
        ("pro\0of", "NUL"),
        ("none/proof", "No such file"),
        ("file/proof", "Not a directory"),
        ("out/proof", "symbolic links"),
        ("file", "exists already"),
        ("sub", "exists already"),
        ("link", "exists already"),
        ("n" * 250, "name too long"),
    ],
)
def test_what_leads_out_or_is_there_is_refused(
    path: str, problem: str, root: Path, tmp_path: Path, precious: Path
) -> None:
    (root / "sub").mkdir()
    (root / "file").touch()
    (root / "link").symlink_to(precious)
    (root / "out").symlink_to(tmp_path)
    before = names(root)
    with pytest.raises(ResultFileError, match=problem) as caught:
        prepare(root, path.format(root=root))
    assert "\n" not in str(caught.value)
    assert "\0" not in str(caught.value)
    assert names(root) == before


def test_nothing_that_appears_meanwhile_is_replaced(root: Path, precious: Path) -> None:
    for appear in (lambda path: path.write_text("of another job"), lambda path: path.symlink_to(precious)):
        prepared = prepare(root, "proof")
        appear(root / "proof")
        with pytest.raises(ResultFileError, match="exists already"):
            write(root, "proof", "too late", prepared)
        finish(root, "proof")
        assert names(root) == {"proof"}
        (root / "proof").unlink()


def test_a_folder_that_becomes_a_link_meanwhile_is_not_followed(root: Path, tmp_path: Path) -> None:
    (root / "sub").mkdir()
    prepared = prepare(root, "sub/proof")
    (root / "sub").rename(tmp_path / "moved")
    (root / "sub").symlink_to(tmp_path / "moved")
    with pytest.raises(ResultFileError):
        write(root, "sub/proof", "astray", prepared)
    assert "proof" not in names(tmp_path / "moved")


@needs_root
def test_a_folder_that_another_user_has_put_in_the_way_is_not_used(root: Path) -> None:
    prepared = prepare(root, "proof")
    (unfinished,) = root.iterdir()
    os.chown(unfinished, NOBODY, NOBODY)
    with pytest.raises(ResultFileError, match="belongs to another user"):
        UnfinishedFile(str(root / "proof"), prepared)


def test_unfinished_files_are_nobody_elses(root: Path) -> None:
    prepare(root, "proof")
    (unfinished,) = root.iterdir()
    assert unfinished.stat().st_mode & 0o777 == 0o700
    finish(root, "proof")


def test_two_jobs_of_one_name_the_first_to_deliver_has_it(root: Path) -> None:
    first, second = prepare(root, "proof", "1"), prepare(root, "proof", "2")
    write(root, "proof", "of the second", second)
    finish(root, "proof", "2")
    assert len(names(root)) == 2, "the first one's folder is still there"
    with pytest.raises(ResultFileError, match="exists already"):
        write(root, "proof", "of the first", first)
    finish(root, "proof", "1")
    assert names(root) == {"proof"}
    assert (root / "proof").read_text() == "of the second"


@pytest.fixture(params=[True, False], ids=["nameless", "named"])
def nameless(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Imitate file systems that support nameless files, and file systems that do not."""
    open_file = os.open

    def refuse_nameless(path: str, flags: int, mode: int = 0o777, dir_fd: int | None = None) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "not here")
        return open_file(path, flags, mode, dir_fd=dir_fd)

    if not request.param:
        monkeypatch.setattr(os, "open", refuse_nameless)


@pytest.mark.usefixtures("nameless")
def test_a_job_that_runs_again_after_a_crash_replaces_its_own_file_and_no_other(root: Path) -> None:
    folder = ResultsFolder(str(root), "1")
    write(root, "proof", "before the crash", prepare(root, "proof"))
    assert is_delivered(str(root / "proof"), folder)
    assert not is_delivered(str(root / "proof"), ResultsFolder(str(root), "11"))
    with pytest.raises(ResultFileError, match="exists already"):
        prepare(root, "proof", "11")
    prepared = prepare(root, "proof")
    assert not (root / "proof").exists(), "it could be taken for the new one"
    write(root, "proof", "after the crash", prepared)
    assert (root / "proof").read_text() == "after the crash"
    finish(root, "proof")
    assert names(root) == {"proof"}
    with pytest.raises(ResultFileError, match="exists already"):
        prepare(root, "proof")


@pytest.mark.usefixtures("nameless")
def test_an_unfinished_one_of_a_crash_is_removed_when_the_job_runs_again(root: Path) -> None:
    UnfinishedFile(str(root / "proof"), prepare(root, "proof")).write(b"half of a pro")
    write(root, "proof", "a proof", prepare(root, "proof"))
    assert len(names(root)) == 2
    finish(root, "proof")
    assert names(root) == {"proof"}


@pytest.mark.usefixtures("nameless")
def test_a_new_root_of_the_job_replaces_what_the_former_one_has_delivered(root: Path) -> None:
    prepared = prepare(root, "solutions")
    for text in ("of the first root", "of the second root", "of the third root"):
        write(root, "solutions", text, prepared)
        assert (root / "solutions").read_text() == text
        assert is_delivered(str(root / "solutions"), ResultsFolder(str(root), "1"))
    finish(root, "solutions")
    assert names(root) == {"solutions"}


def test_after_its_end_a_job_delivers_nothing(root: Path) -> None:
    file = UnfinishedFile(str(root / "proof"), prepare(root, "proof"))
    file.write(b"late")
    finish(root, "proof")
    with pytest.raises(ResultFileError):
        file.deliver()
    file.close()
    assert names(root) == set()
