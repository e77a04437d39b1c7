"""Whether a process's loops wait without using CPU time: the kernel counts how often each thread waits.

A thread that is woken again and again waits more often than a loop that rests turns. A thread that
never waits is ready to run all the time, whether or not it gets a core. A busy machine changes neither fact.
"""

import contextlib
import itertools
import os
import resource
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from waiting import poll_until

from mallob_py.loop_rate import RESTS_BELOW

_WINDOW_S = 1.0
#: greatest share of the time during which a resting thread may run or be ready to run
_READY_MAX = 0.5


class _Seen(NamedTuple):
    waits: int
    ready_s: float


def _threads_of(pid: int) -> dict[int, _Seen]:
    found = {}
    for folder in Path(f"/proc/{pid}/task").glob("*"):
        try:
            words = (folder / "status").read_text().split()
            running_ns, delayed_ns, _ = (folder / "schedstat").read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread has just ended
        waits = int(words[words.index("voluntary_ctxt_switches:") + 1])
        found[int(folder.name)] = _Seen(waits, (int(running_ns) + int(delayed_ns)) * 1e-9)
    return found


def _restless(pids: Collection[int]) -> str:
    """Return the threads that do not rest now, with their rates of waits; "": all threads rest."""
    before = {pid: _threads_of(pid) for pid in pids}
    began_s = time.monotonic()
    time.sleep(_WINDOW_S)  # time over which the rate of waits is measured
    now = {pid: _threads_of(pid) for pid in pids}
    window_s = time.monotonic() - began_s
    found = []
    for pid, threads in now.items():
        for thread, (waits, ready_s) in threads.items():
            earlier = before[pid].get(thread, _Seen(0, 0.0))
            rate, ready = (waits - earlier.waits) / window_s, (ready_s - earlier.ready_s) / window_s
            if rate >= RESTS_BELOW or ready > _READY_MAX:
                found.append(f"thread {thread} of {pid}: {rate:.0f} waits a second, ready {ready:.0%}")
    return "; ".join(found)


def await_rest(*pids: int) -> None:
    """Wait until all loops of these processes rest, which shows that all events were handled."""
    last = [""]

    def all_rest() -> bool:
        last[0] = _restless(pids)
        return not last[0]

    poll_until(all_rest, lambda: last[0])


@contextlib.contextmanager
def limited(kind: int, *limits: tuple[int, int]) -> Iterator[None]:
    """Context manager that sets soft limits of this kind in processes: pairs of a process and its limit."""
    before = {pid: resource.prlimit(pid, kind) for pid, _ in limits}
    for pid, limit in limits:
        resource.prlimit(pid, kind, (limit, before[pid][1]))
    try:
        yield
    finally:
        for pid, (soft, hard) in before.items():
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, kind, (soft, hard))


def _lowest_free(pid: int) -> int:
    folder = Path(f"/proc/{pid}/fd")
    # without the descriptor that lists the folder
    taken = {int(name) for name in os.listdir(folder) if os.path.lexists(folder / name)}
    return next(number for number in itertools.count() if number not in taken)


def no_descriptors(*pids: int) -> contextlib.AbstractContextManager[None]:
    """Context manager in which these processes cannot open any file."""
    return limited(resource.RLIMIT_NOFILE, *((pid, _lowest_free(pid)) for pid in pids))


def full_disk(*pids: int) -> contextlib.AbstractContextManager[None]:
    """Context manager in which no file has room for anything that these processes write."""
    return limited(resource.RLIMIT_FSIZE, *((pid, 0) for pid in pids))
