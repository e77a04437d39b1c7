"""An executor in a notebook: a user's cells in a real kernel."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from running import needs_mpiexec, poll_until
from waiting import DEADLINE_S

pytest.importorskip("ipykernel", reason="ipykernel is not installed")

from jupyter_client import BlockingKernelClient, KernelManager

pytestmark = [needs_mpiexec, pytest.mark.slow]

_BEGIN = """
from mallob_py import Executor
executor = Executor(ranks=2)
print(executor._ranks._process.pid)
"""
_DEFINE = """
factor = {factor}
def scaled(number):
    return factor * number
list(executor.map(scaled, range(3)))
"""
_NEVER_ENDS = """
def never_ends(path):
    import pathlib, time
    pathlib.Path(path).touch()
    time.sleep(600)
{call}
"""
_IN_THE_LOOP = """
import asyncio
await asyncio.wrap_future(executor.submit(pow, 2, 10))
"""


class Notebook:
    """A kernel, and the output of its cells."""

    def __init__(self) -> None:
        self._manager = KernelManager()
        self._manager.start_kernel(stderr=sys.stderr)
        self._client: BlockingKernelClient = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=DEADLINE_S)

    def run(self, code: str, when: Callable[[], bool] | None = None) -> tuple[str, str]:
        """Return what a cell shows, and the name of its error; interrupt the cell once `when()` is true."""
        cell, shown, error = self._client.execute(code), [], ""
        if when is not None:
            poll_until(when, "the cell")
            self._manager.interrupt_kernel()
        while True:
            message: dict[str, Any] = self._client.get_iopub_msg(timeout=DEADLINE_S)
            content = message["content"]
            if message["parent_header"].get("msg_id") != cell:
                continue
            if message["msg_type"] == "stream":
                shown.append(content["text"])
            elif message["msg_type"] == "execute_result":
                shown.append(content["data"].get("text/html") or content["data"]["text/plain"])
            elif message["msg_type"] == "error":
                error = content["ename"]
            elif content.get("execution_state") == "idle":
                return "".join(shown), error

    def close(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel()


def test_a_day_in_a_notebook(tmp_path: Path) -> None:
    with contextlib.closing(Notebook()) as notebook:
        ranks = int(notebook.run(_BEGIN)[0])
        assert notebook.run(_DEFINE.format(factor=2)) == ("[0, 2, 4]", "")
        assert notebook.run(_DEFINE.format(factor=3)) == ("[0, 3, 6]", "")
        assert "<b>Executor of 2 ranks</b>" in notebook.run("executor")[0]
        assert notebook.run(_IN_THE_LOOP) == ("1024", "")
        assert notebook.run("executor.submit(int, 'x').result()") == ("", "ValueError")
        calls = {
            "map": "for one in executor.map(never_ends, [{path!r}] * 4): pass",
            "awaited": "future = executor.submit(never_ends, {path!r}); future.result()",
        }
        for name, call in calls.items():
            path = tmp_path / name
            cell = _NEVER_ENDS.format(call=call.format(path=str(path)))
            assert notebook.run(cell, when=path.exists) == ("", "KeyboardInterrupt")
        last = "future.cancel(), list(executor.map(abs, range(3)))"
        assert notebook.run(last) == ("(True, [0, 1, 2])", "")

    def are_over() -> bool:
        with contextlib.suppress(ProcessLookupError):
            os.kill(ranks, 0)
            return False
        return True

    poll_until(are_over, "the ranks have ended with their kernel")
