"""Actions as another user; only root can change the user."""

import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")

T = TypeVar("T")


def as_nobody(do: Callable[[], T]) -> T:
    """Return the result of `do` in a process of the user nobody; raise the exception of `do` here."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        result: tuple[bool, object]
        try:
            result = True, do()
        except Exception as error:
            result = False, error
        with open(write_end, "wb") as pipe:
            pickle.dump(result, pipe)
        os._exit(0)
    os.close(write_end)
    with open(read_end, "rb") as pipe:
        is_good, value = pickle.load(pipe)
    os.waitpid(pid, 0)
    if not is_good:
        raise value
    return value  # type: ignore[no-any-return]


@contextmanager
def folder_for_all() -> Iterator[Path]:
    """Yield a folder like /tmp: every user may enter and write, and remove only own files."""
    folder = Path(tempfile.mkdtemp(prefix="mallob-py-test.", dir="/tmp"))
    folder.chmod(0o1777)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
