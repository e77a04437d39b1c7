"""A batch scheduler, and the keepers of its jobs, use no CPU time in any state in which they wait."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from resting import await_rest, full_disk, no_descriptors
from test_live import Make, Scheduler, scheduler_maker
from waiting import poll_until

from mallob_py.malleable.sockets import connect

#: script that ignores SIGTERM, so that its keeper must wait for its end, too
_BODY = "trap '' TERM\nsleep 1000\n"


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    yield from scheduler_maker(tmp_path)


def _processes(scheduler: Scheduler) -> list[int]:
    assert scheduler.process is not None
    pid = scheduler.process.pid
    keepers = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, keepers)]


def test_a_scheduler_and_its_keepers_rest_whatever_they_wait_for(make: Make) -> None:
    scheduler = make()
    running = scheduler.submit("REQUIRED_TIME 600000; NODES 3", _BODY)
    scheduler.submit("REQUIRED_TIME 600000; NODES 4", _BODY)
    poll_until(lambda: scheduler.queue().running, scheduler.story)
    pid, *keepers = _processes(scheduler)
    await_rest(pid, *keepers)
    turns = scheduler.queue().turns
    with no_descriptors(pid):
        callers = [connect(str(scheduler.folder / "scheduler.sock"), 1.0) for _ in range(20)]
        await_rest(pid, *keepers)
        for each in callers:
            each.close()
    assert scheduler.queue().turns < turns + 1000
    assert scheduler.story().count("no connection can be accepted") == 1
    with full_disk(pid, *keepers):
        scheduler.cancel(running)
        for process in scheduler.processes_of(running):
            if process not in keepers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        await_rest(pid, *keepers)
    assert scheduler.ended(running)


def test_a_scheduler_whose_folder_is_gone_rests(make: Make, tmp_path: Path) -> None:
    scheduler = make()
    assert scheduler.process is not None
    job = scheduler.submit("REQUIRED_TIME 600000; NODES 3", f"echo begun\n{_BODY}")
    poll_until(lambda: scheduler.output(job), scheduler.story)
    scheduler.folder.rename(tmp_path / "elsewhere")
    await_rest(*_processes(scheduler))
    (tmp_path / "elsewhere").rename(scheduler.folder)
