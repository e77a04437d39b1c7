"""If the guard of a job on another node is killed, all processes of the job end, however they hide."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from faults.processes import lives
from waiting import DEADLINE_S, poll_until

from mallob_py.batch.live.launch import Launch
from mallob_py.batch.live.remote import Begin, Go, send

#: command whose processes leave the job's environment, its session and their parents
_HIDES = "(env -i setsid sh -c 'sleep 605 & echo $! > .left; mv .left left; sleep 606') & sleep 607"


@pytest.fixture
def outer(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Yield the process of a guard, started as by a keeper's remote shell; the guard's job runs."""
    command = [sys.executable, "-m", "mallob_py.batch.live.guard"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=2, stderr=subprocess.PIPE)
    assert process.stdin is not None
    launch = Launch([], str(tmp_path), {"PATH": os.environ["PATH"]}, 1000.0)
    send(process.stdin, Begin(launch, f"#!/bin/sh\n{_HIDES}\n", ""))
    send(process.stdin, Go())
    poll_until((tmp_path / "left").exists)
    yield process
    for stream in (process.stdin, process.stderr):
        assert stream is not None
        stream.close()
    process.wait(DEADLINE_S)
    with contextlib.suppress(ProcessLookupError):
        os.kill(_left(tmp_path), signal.SIGKILL)


def _left(folder: Path) -> int:
    return int((folder / "left").read_text())


def _guard_below(outer: int) -> int:
    return int(Path(f"/proc/{outer}/task/{outer}/children").read_text())


@pytest.mark.parametrize("victim", ["guard", "its parent"])
def test_what_hides_from_a_guard_that_is_killed_ends_with_it(
    victim: str, outer: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    left = _left(tmp_path)
    assert lives(left)
    os.kill(_guard_below(outer.pid) if victim == "guard" else outer.pid, signal.SIGKILL)
    poll_until(lambda: not lives(left))
    assert outer.wait(DEADLINE_S) == (1 if victim == "guard" else -signal.SIGKILL)


def test_a_guard_hears_what_its_parent_is_told(outer: subprocess.Popen[bytes], tmp_path: Path) -> None:
    outer.terminate()
    assert outer.wait(DEADLINE_S) == 0
    assert not lives(_left(tmp_path))
    assert outer.stderr is not None
    assert msgspec.json.decode(outer.stderr.read().splitlines()[-1])["status"]["ending"] == "cancelled"
