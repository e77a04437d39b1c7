"""Memory of a worker: peaks of its processes added up, shared pages once. CPU time: the sum over all
processes.
"""

import mmap
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from mallob_py.runtime import memory
from mallob_py.runtime.memory import (
    OwnPeak,
    cpu_seconds_of,
    forget_peak,
    own_cpu_seconds,
    own_usage,
    peak_bytes_of,
    private_bytes_of,
)

MB = 1 << 20


def filled(size_bytes: int) -> mmap.mmap:
    """Return new private memory with all its pages; the heap may have a hole that is in memory already."""
    memory = mmap.mmap(-1, size_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, size_bytes, mmap.PAGESIZE):
        memory[at] = 1
    return memory


@contextmanager
def child_after(work: Callable[[], object]) -> Iterator[int]:
    """Yield a child process that has done `work` and then waits."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        held = work()
        os.write(theirs, b"!")
        while held is not None:
            signal.pause()
        os._exit(0)
    try:
        assert os.read(ours, 1) == b"!"
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ours)
        os.close(theirs)


def test_the_peak_outlasts_the_memory() -> None:
    def take_and_free() -> bool:
        filled(80 * MB)
        return True

    with child_after(lambda: True) as idle, child_after(take_and_free) as pid:
        assert 70 * MB < peak_bytes_of(pid) - peak_bytes_of(idle) < 100 * MB


def test_a_peak_can_be_forgotten() -> None:
    def take_free_and_forget() -> bool:
        filled(80 * MB)
        forget_peak()
        return True

    with child_after(lambda: True) as idle, child_after(take_free_and_forget) as pid:
        assert abs(peak_bytes_of(pid) - peak_bytes_of(idle)) < 30 * MB


def test_a_peak_that_has_hardly_grown_does_not_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[int] = []
    peak = OwnPeak()
    for peak_kb in (10_000, 10_100, 10_199, 10_300, 10_400, 20_000):
        usage = SimpleNamespace(ru_maxrss=peak_kb)
        monkeypatch.setattr(resource, "getrusage", lambda _, usage=usage: usage)
        monkeypatch.setattr(memory, "forget_peak", lambda peak_kb=peak_kb: forgotten.append(peak_kb))
        peak.forget()
    assert forgotten == [10_000, 10_300, 20_000]


@pytest.mark.parametrize("has_child", [False, True])
def test_a_small_process_reads_files_for_its_usage_only_if_it_has_children(
    monkeypatch: pytest.MonkeyPatch, has_child: bool
) -> None:
    usage = SimpleNamespace(ru_maxrss=20_000, ru_utime=1.0, ru_stime=0.5)
    monkeypatch.setattr(resource, "getrusage", lambda _: usage)
    opened: list[str] = []
    really_open = os.open

    def noted_open(path: str, flags: int) -> int:
        opened.append(path)
        return really_open(path, flags)

    monkeypatch.setattr(os, "open", noted_open)
    if has_child:
        with child_after(lambda: True):
            used, _ = own_usage()
        assert opened
        assert used.private_bytes != 20_000 * 1024
    else:
        used, cpu_s = own_usage()
        assert opened == []
        assert used == (20_000 * 1024, 20_000 * 1024)
        assert cpu_s == 3.0


def test_processes_are_added_up_and_what_they_share_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "shared"
    path.write_bytes(bytes(60 * MB))

    def map_and_take(own_bytes: int) -> tuple[mmap.mmap, mmap.mmap]:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        assert mapped.find(b"x") < 0
        return filled(own_bytes), mapped

    def parent() -> object:
        held = map_and_take(40 * MB)
        inner = child_after(lambda: map_and_take(80 * MB))
        inner.__enter__()  # the test kills this process
        return held, inner

    with child_after(parent) as pid:
        (child,) = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        family_bytes, child_bytes = peak_bytes_of(pid), peak_bytes_of(child)
        os.kill(child, signal.SIGKILL)
        parent_bytes = peak_bytes_of(pid)
    assert family_bytes > child_bytes + 40 * MB
    assert family_bytes <= child_bytes + parent_bytes - 60 * MB


def test_a_process_that_is_gone_has_no_peak() -> None:
    with child_after(lambda: True) as pid:
        assert peak_bytes_of(pid) > 0
    assert peak_bytes_of(pid) == 0
    assert private_bytes_of(pid) == 0


def test_private_memory_is_that_of_all_processes_now_without_files(tmp_path: Path) -> None:
    path = tmp_path / "shared"
    path.write_bytes(bytes(60 * MB))

    def parent() -> object:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        assert mapped.find(b"x") < 0
        inner = child_after(lambda: filled(80 * MB))
        inner.__enter__()  # the test kills this process
        return mapped, inner

    with child_after(lambda: True) as idle, child_after(parent) as pid:
        (child,) = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        more_bytes = private_bytes_of(pid) - 2 * private_bytes_of(idle)
        os.kill(child, signal.SIGKILL)
    assert 70 * MB < more_bytes < 110 * MB


# --- CPU time: of a process, of its live children, and of ended children that were waited for

WORK_S = 0.2


def work() -> None:
    """Use WORK_S of CPU time, however long it takes."""
    end_s = time.process_time() + WORK_S
    while time.process_time() < end_s:
        pass


def work_in_a_child() -> None:
    if (pid := os.fork()) == 0:
        work()
        os._exit(0)
    os.waitpid(pid, 0)


def test_a_process_that_waits_uses_nothing() -> None:
    with child_after(lambda: True) as pid:
        assert cpu_seconds_of(pid) < WORK_S


def test_children_count_alive_and_dead() -> None:
    def work_everywhere() -> object:
        work()
        work_in_a_child()
        return child_after(lambda: work() or True).__enter__()

    with child_after(work_everywhere) as pid:
        assert cpu_seconds_of(pid) >= 3 * WORK_S - 0.05


def test_a_process_knows_its_own() -> None:
    before_s = own_cpu_seconds()
    work()
    work_in_a_child()
    with child_after(lambda: work() or True):
        assert own_cpu_seconds() - before_s >= 3 * WORK_S - 0.05


def test_of_a_process_that_is_gone_nothing_is_known() -> None:
    with child_after(lambda: True) as pid:
        pass
    assert cpu_seconds_of(pid) == 0.0


def test_a_child_that_another_thread_has_started_belongs_to_the_process() -> None:
    has_begun, may_end = threading.Event(), threading.Event()
    children = []

    def run() -> None:
        with child_after(lambda: filled(80 * MB)) as pid:
            children.append(pid)
            has_begun.set()
            may_end.wait()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert has_begun.wait(60.0)
        assert children[0] in memory.family(os.getpid())
        assert private_bytes_of(os.getpid()) > 80 * MB
    finally:
        may_end.set()
        thread.join()
