"""Brings the source distribution of python-sat, which holds CaDiCaL's releases as they were published.

    python fetch_sources.py FOLDER

puts it into FOLDER, unless it is there: from the folder that MALLOB_PY_ARCHIVES names, else by pip from where
pip takes packages. Its hash is checked either way. Exit code 2 and one line on standard error if there is none.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

VERSION = "1.9.dev17"
ARCHIVE = f"python_sat-{VERSION}.tar.gz"
SHA256 = "826e9ef8a8086f5139c05eb89aaa05ebfa72f8a622cd7be429d10a2b1cbb1955"


class NoSources(Exception):
    """The archive cannot be had, or is not the one that it should be. One line."""


def fetch(folder: Path) -> Path:
    """The archive in `folder`, with the right hash. Raises NoSources."""
    target = folder / ARCHIVE
    if target.is_file() and _hash_of(target) == SHA256:
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        found = _given(os.environ.get("MALLOB_PY_ARCHIVES", "")) or _downloaded(Path(name))
        if _hash_of(found) != SHA256:
            raise NoSources(f"{found} is not the release it should be: its SHA-256 is not {SHA256}")
        unfinished = Path(name, "unfinished")
        shutil.copyfile(found, unfinished)
        unfinished.replace(target)
    return target


def _given(folder: str) -> Path | None:
    if not folder:
        return None
    if not (path := Path(folder, ARCHIVE)).is_file():
        raise NoSources(f"MALLOB_PY_ARCHIVES={folder} holds no {ARCHIVE}")
    return path


def _downloaded(folder: Path) -> Path:
    # Of pip's options, since it would go on trying for minutes: who has no network is to know soon.
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--retries", "1", "--timeout", "30"]
    command += ["--no-deps", "--no-binary", "python-sat", "--dest", str(folder), f"python-sat=={VERSION}"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if not (path := folder / ARCHIVE).is_file():
        last = (finished.stderr.strip() or "pip brought something else").splitlines()[-1]
        raise NoSources(
            f"needs {ARCHIVE}, in which CaDiCaL is published, and pip cannot bring it ({last}); without network,"
            " name a folder that holds it: MALLOB_PY_ARCHIVES=DIR"
        )
    return path


def _hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    try:
        print(fetch(Path(sys.argv[1])))
    except (NoSources, OSError) as error:
        print(f"native: {error}", file=sys.stderr)
        sys.exit(2)
