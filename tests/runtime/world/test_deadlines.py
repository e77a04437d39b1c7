"""Deadlines of calls that may block, and ranks without a launcher."""

import os
import signal
import subprocess
import sys

import pytest
from waiting import DEADLINE_S, growing

from mallob_py.runtime.world import deadlines
from mallob_py.runtime.world.deadlines import START_PATIENCE_S, Launcher, LauncherGone, start_patience_s

_BLOCKS = """
import ctypes, os, sys, time
from mallob_py.runtime.world import deadlines
deadlines._KERNEL_LATER_S = 0.2
with deadlines.at_most(float(sys.argv[1]), "Godot", exit_code=7):
    if sys.argv[2] == "locked":
        ctypes.PyDLL(None).pause()
    elif sys.argv[2] == "blocked":
        ctypes.CDLL(None).pause()
    elif sys.argv[2] == "raises":
        raise ValueError("no")
if sys.argv[2] == "in time":  # the timer is off
    import signal
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
"""


def run(patience_s: float, what: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _BLOCKS, str(patience_s), what],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_who_blocks_longer_is_ended_and_says_for_what() -> None:
    ended = run(0.1, "blocked")
    assert (ended.returncode, ended.stderr) == (
        7,
        "mallob-py: waited 0.1 s in vain for Godot; this rank ends\n",
    )


def test_who_keeps_pythons_lock_meanwhile_is_ended_by_the_kernel() -> None:
    # On a busy machine, the deadline may come before the lock is taken; the exit code is then 7.
    codes = (run(patience_s, "locked").returncode for patience_s in growing(0.1))
    assert next(code for code in codes if code != 7) == -signal.SIGALRM


def test_nothing_is_left_of_a_deadline_that_was_kept() -> None:
    assert run(60.0, "in time").returncode == 0


def test_who_fails_meanwhile_has_a_last_deadline_for_its_end() -> None:
    with pytest.raises(ValueError, match="as it is"), deadlines.at_most(60.0, "nothing"):
        raise ValueError("as it is")
    try:
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= deadlines.ABORT_PATIENCE_S
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def test_a_rank_without_the_process_that_has_started_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Launcher()
    launcher.check()
    monkeypatch.setattr(os, "getppid", lambda: 1)
    with pytest.raises(LauncherGone, match="that started this rank has ended"):
        launcher.check()


@pytest.mark.parametrize(
    ("told", "patience_s"),
    [("7.5", 7.5), ("", START_PATIENCE_S), ("0", START_PATIENCE_S), ("inf", START_PATIENCE_S)],
)
def test_the_patience_at_the_start_can_be_told(told: str, patience_s: float) -> None:
    assert start_patience_s({deadlines.START_PATIENCE_VARIABLE: told}) == patience_s
    assert start_patience_s({}) == START_PATIENCE_S
