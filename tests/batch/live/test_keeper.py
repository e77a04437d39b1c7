"""The cores of a job whose slots change while it runs."""

import contextlib
import os
import subprocess
import sys

import pytest

from mallob_py.batch.live import keeper


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_process_forked_while_others_are_bound_is_bound_too(monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = sorted(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        pids = []
        for _ in range(2):
            program = [sys.executable, "-S", "-c", "input()"]
            process = stack.enter_context(subprocess.Popen(program, stdin=subprocess.PIPE))
            stack.callback(process.kill)
            os.sched_setaffinity(process.pid, {first})
            pids.append(process.pid)
        seen = iter([pids[:1]])  # the second process, a child of the first, is missing in the first list
        monkeypatch.setattr(keeper, "descendants", lambda root: next(seen, pids))
        keeper.bind(0, others)
        assert [os.sched_getaffinity(pid) for pid in pids] == 2 * [set(others)]
