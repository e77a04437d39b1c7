"""Small disks, and how a test fills them."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

SIZE_BYTES = 1 << 20


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Yield a file system of SIZE_BYTES in memory; skip the test where none may be made."""
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES}", "tmpfs", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        pytest.skip(f"no file system may be mounted here: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(folder: Path) -> Path:
    """Write a file until no room is left."""
    path = folder / "filling"
    with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return path
