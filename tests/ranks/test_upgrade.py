"""Folders as former versions left them: this version continues all jobs in them."""

import json
import shutil
from pathlib import Path

import pytest
from running import needs_mpiexec, poll_until, run, serving

from mallob_py.service import ServiceError
from mallob_py.service.store.directory import JobDirectory
from mallob_py.service.store.format_mark import FORMAT, format_of
from mallob_py.service.telemetry.groups import GroupWatch
from mallob_py.service.telemetry.history import read_history

#: folder with a sample of each format, made by scripts/format_sample.py (format 0: at commit ccea9fbc)
_KEPT = Path(__file__).parent / "formats"
_QUEENS_16 = 14772512


def test_a_folder_of_each_format_is_kept() -> None:
    assert {path.name for path in _KEPT.iterdir()} == {str(number) for number in range(FORMAT + 1)}


@needs_mpiexec
@pytest.mark.parametrize("number", range(FORMAT + 1))
def test_a_folder_of_an_older_version_is_taken_up_whole(number: int, tmp_path: Path) -> None:
    shutil.copytree(_KEPT / str(number), tmp_path / "api")
    box = tmp_path / "api/jobs.0"
    assert format_of(box) == number
    assert any(box.glob("checkpoints/*"))
    with serving(tmp_path, ranks=2) as service:
        replies = {
            name: service.reply(box / f"out/alice.{name}.json")
            for name in ("solved", "decided", "revised", "bag", "after", "untaken")
        }
        assert replies["bag"]["result"]["value"] == _QUEENS_16
        assert replies["bag"]["result"]["tasks_restored"] > 0
        others = {name: reply["result"]["resultstring"] for name, reply in replies.items() if name != "bag"}
        assert set(others.values()) == {"SAT"}, others
        revision = {"user": "alice", "name": "second", "application": "SAT", "incremental": True}
        service.drop(
            "second.json", json.dumps(revision | {"precursor": "alice.revised", "literals": [-1, 0]})
        )
        assert service.reply(box / "out/alice.second.json")["result"]["solution"] == [-1, 2]
        poll_until(lambda: len(read_history(tmp_path / "api")) == 7)
        groups = GroupWatch(tmp_path / "api").look()
        names = [job.name for group in groups.values() for job in group.results()]
        assert names == (["solved", "decided", "after"] if number else [])  # format 0 had no groups
        assert service.stop() == 0
        assert "damaged" not in service.output
    assert format_of(box) == FORMAT


def test_a_folder_of_a_newer_version_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    shutil.copytree(_KEPT / str(FORMAT), tmp_path / "api")
    box = tmp_path / "api/jobs.0"
    (box / ".format").write_text(f"mallob-py folder {FORMAT + 1}\n")
    before = sorted(path.name for path in (box / "journal").iterdir())
    with pytest.raises(ServiceError, match="is of format"):
        JobDirectory(tmp_path / "api")
    done = run("serve", "-n", "1", "--restarts", "0", "--api-dir", tmp_path / "api")
    (line,) = done.err.splitlines()
    assert done.code == 2
    assert f"is of format {FORMAT + 1}, and this mallob-py knows formats up to {FORMAT}: install" in line
    assert sorted(path.name for path in (box / "journal").iterdir()) == before
    (box / ".format").unlink()
    JobDirectory(tmp_path / "api").close()  # the refused start has released the lock


@pytest.mark.parametrize("text", ["", "mallob-py folder"])
def test_a_damaged_mark_counts_as_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "jobs.0").mkdir()
    (tmp_path / "jobs.0/.format").write_text(text)
    JobDirectory(tmp_path, tmp_dir=tmp_path).close()
    assert format_of(tmp_path / "jobs.0") == FORMAT
