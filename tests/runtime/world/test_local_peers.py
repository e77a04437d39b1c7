import builtins
import errno
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import NoReturn

import pytest
from faults.processes import state_of
from waiting import DEADLINE_S, poll_until

from mallob_py.protocol.rank_messages import RankProcess
from mallob_py.runtime.world.failure_detector import LocalPeers, process_here


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])


def record_of(pid: int) -> RankProcess:
    """Return a process's record, as the process itself would announce it."""
    own = process_here()
    with open(f"/proc/{pid}/stat") as stat:
        began = int(stat.read().rsplit(")", 1)[1].split()[19])
    return RankProcess(pid, own.host, own.namespace, began)


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    started = [sleeper() for _ in range(2)]
    yield started
    for each in started:
        each.kill()
        each.wait()


def is_readable(peers: LocalPeers, timeout_s: float = 0.0) -> bool:
    return bool(select.select([peers], [], [], timeout_s)[0])


def test_the_death_of_a_rank_of_this_host_is_heard_of_once(processes: list[subprocess.Popen[bytes]]) -> None:
    records = [process_here(), *(record_of(each.pid) for each in processes)]
    peers = LocalPeers(0, dict(enumerate(records)), {0: 0, 1: 0, 2: 0})
    assert peers.take_dead() == []
    assert not is_readable(peers)
    processes[1].send_signal(signal.SIGKILL)
    assert is_readable(peers, DEADLINE_S)  # although no process has waited for the ended rank
    assert peers.take_dead() == [2]
    assert peers.take_dead() == []
    assert not is_readable(peers)
    peers.close()


def test_a_rank_that_hangs_can_be_ended_unless_it_is_on_another_host(
    processes: list[subprocess.Popen[bytes]],
) -> None:
    records = [process_here(), *(record_of(each.pid) for each in processes)]
    peers = LocalPeers(0, dict(enumerate(records)), {0: 0, 1: 0, 2: 2})
    for each in processes:
        each.send_signal(signal.SIGSTOP)
    peers.end(1)
    peers.end(2)
    assert processes[0].wait(DEADLINE_S) == -signal.SIGKILL
    poll_until(lambda: peers.take_dead() == [1])
    assert processes[1].poll() is None
    peers.close()


def test_a_rank_that_has_died_before_it_is_watched_is_dead_also_if_its_number_was_given_again(
    processes: list[subprocess.Popen[bytes]],
) -> None:
    reused = record_of(processes[0].pid)
    reused = RankProcess(reused.pid, reused.host, reused.namespace, reused.began - 1)
    gone = record_of(processes[1].pid)
    processes[1].kill()
    processes[1].wait()
    peers = LocalPeers(0, {0: process_here(), 1: reused, 2: gone}, {0: 0, 1: 0, 2: 0})
    assert peers.take_dead() == [1, 2]
    peers.end(1)
    assert processes[0].poll() is None
    peers.close()


def test_one_that_has_ended_before_it_is_watched_is_heard_of_though_nobody_has_waited_for_it(
    processes: list[subprocess.Popen[bytes]],
) -> None:
    process = record_of(processes[0].pid)
    processes[0].kill()
    poll_until(lambda: state_of(process.pid) == "Z")
    peers = LocalPeers(0, {0: process_here()}, {0: 0, 1: 0})
    peers.add(1, process, 0)
    assert is_readable(peers)
    assert peers.take_dead() == [1]
    peers.close()


def test_who_has_process_numbers_of_its_own_is_not_watched(processes: list[subprocess.Popen[bytes]]) -> None:
    foreign = record_of(processes[0].pid)
    foreign = RankProcess(os.getpid(), foreign.host, foreign.namespace + 1, foreign.began)
    peers = LocalPeers(0, {0: process_here(), 1: foreign}, {0: 0, 1: 0})
    assert peers.take_dead() == []
    peers.close()


def test_a_rank_for_which_there_is_no_descriptor_is_seen_until_its_process_has_ended(
    processes: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pidfd_open", _without_descriptors)
    peers = LocalPeers(0, {0: process_here(), 1: record_of(processes[0].pid)}, {0: 0, 1: 0})
    assert peers.is_seen(1)
    processes[0].kill()
    poll_until(lambda: not peers.is_seen(1))  # although no process has waited for the ended rank
    peers.close()


def test_a_rank_of_which_proc_cannot_be_read_now_is_not_taken_for_dead(
    processes: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pidfd of the other rank may have been the last free descriptor."""
    here, peer = process_here(), record_of(processes[0].pid)
    with monkeypatch.context() as patch:
        patch.setattr(builtins, "open", _without_descriptors)
        peers = LocalPeers(0, {0: here, 1: peer}, {0: 0, 1: 0})
        assert peers.take_dead() == []
        assert peers.is_seen(1)
    assert peers.is_seen(1)
    processes[0].kill()
    poll_until(lambda: not peers.is_seen(1))
    peers.close()


def test_a_rank_looks_up_its_own_namespace_once_for_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    here, looks = process_here(), list[str]()
    find = os.stat
    monkeypatch.setattr(os, "stat", lambda path: looks.append(path) or find(path))
    LocalPeers(0, dict.fromkeys(range(9), here), dict.fromkeys(range(9), 0)).close()
    assert looks == ["/proc/self/ns/pid"]


def _without_descriptors(*_: object, **__: object) -> NoReturn:
    raise OSError(errno.EMFILE, "Too many open files")
