"""The native solver's sources are published archives with known checksums; otherwise one line says what is
needed.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "native" / "fetch_sources.py"
DEADLINE_S = 120.0


def fetch(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), str(folder)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env={**os.environ, **environment},
        check=False,
    )


def assert_refused(finished: subprocess.CompletedProcess[str], *words: str) -> None:
    assert finished.returncode == 2
    assert finished.stderr.count("\n") == 1, finished.stderr
    for word in ("native: ", *words):
        assert word in finished.stderr


def test_without_a_place_to_take_packages_from_one_line_says_what_is_needed(tmp_path: Path) -> None:
    finished = fetch(tmp_path, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path), MALLOB_PY_ARCHIVES="")
    assert_refused(finished, "python_sat-", "MALLOB_PY_ARCHIVES=DIR")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_the_archive_is_named(tmp_path: Path) -> None:
    finished = fetch(tmp_path / "target", MALLOB_PY_ARCHIVES=str(tmp_path))
    assert_refused(finished, f"MALLOB_PY_ARCHIVES={tmp_path} holds no python_sat-")


def test_an_archive_with_another_hash_is_not_taken(tmp_path: Path) -> None:
    archive = tmp_path / f"python_sat-{_version()}.tar.gz"
    archive.write_bytes(b"something else")
    finished = fetch(tmp_path / "target", MALLOB_PY_ARCHIVES=str(tmp_path))
    assert_refused(finished, str(archive), "SHA-256")
    assert not (tmp_path / "target" / archive.name).exists()


def test_the_sources_are_of_the_release_that_is_installed() -> None:
    assert f'"python-sat=={_version()}"' in (ROOT / "pyproject.toml").read_text()
    assert _version() in (ROOT / "THIRD_PARTY.md").read_text()


def test_no_archive_is_kept_in_the_tree() -> None:
    assert not list((ROOT / "native").glob("*.tar*"))


def _version() -> str:
    match = re.search(r'^VERSION = "(.*)"$', SCRIPT.read_text(), re.MULTILINE)
    assert match is not None
    return match[1]
