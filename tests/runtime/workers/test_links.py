"""Signals to a worker reach all processes that it has started, and no others, on old and new kernels."""

import contextlib
import errno
import gc
import os
import resource
import select
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults.processes import state_of
from waiting import poll_until

from mallob_py.runtime import worker_wire as wire
from mallob_py.runtime.workers.fork_server import Server
from mallob_py.runtime.workers.links import ForkServer, LinkWatch, WorkerLink
from mallob_py.runtime.workers.process import AppRegistry, RankLink

PROGRAM = r"import os, signal; os.fork(); os.write(1, b'%d\n' % os.getpid()); signal.pause()"


class Group:
    """A process group: a worker process, and another process that it has started."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        command = [sys.executable, "-c", PROGRAM]
        self.leader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0)
        stack.callback(self.kill)
        assert self.leader.stdout is not None
        self.pids = [int(self.leader.stdout.readline()) for _ in range(2)]
        ours, theirs = socket.socketpair()
        stack.callback(theirs.close)
        forked = wire.Forked(1, self.leader.pid, 0)
        descriptors = ours.detach(), os.pidfd_open(self.leader.pid), os.eventfd(0)
        self.link = WorkerLink(forked, descriptors, 1 << 20)
        stack.callback(self.link.close)

    def states(self) -> list[str]:
        stats = [Path(f"/proc/{pid}/stat").read_text() for pid in self.pids]
        return [stat.rsplit(")", 1)[1].split()[0] for stat in stats]

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.leader.pid, signal.SIGKILL)
        self.leader.communicate()


@pytest.fixture(params=["this kernel", "an older kernel"])
def group(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Group]:
    if request.param == "an older kernel":
        send = signal.pidfd_send_signal

        def send_without_flags(pidfd: int, number: int, info: Any = None, flags: int = 0) -> None:
            if flags:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            send(pidfd, number)

        monkeypatch.setattr(signal, "pidfd_send_signal", send_without_flags)
    with contextlib.ExitStack() as stack:
        yield Group(stack)


def test_a_worker_stops_and_continues_with_all_that_it_started(group: Group) -> None:
    group.link.signal(signal.SIGSTOP)
    poll_until(lambda: group.states() == ["T", "T"])
    group.link.signal(signal.SIGCONT)
    poll_until(lambda: "T" not in group.states())


def test_a_killed_worker_is_dead_and_a_dead_one_is_not_signalled(group: Group) -> None:
    os.killpg(group.leader.pid, signal.SIGKILL)
    group.leader.wait()
    group.link.signal(signal.SIGSTOP)
    group.link.signal(signal.SIGKILL)


def test_a_server_that_cannot_be_replaced_now_can_be_replaced_later(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = ForkServer.start(running=ours)
    theirs.close()

    def no_descriptor(*arguments: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(socket, "socketpair", no_descriptor)
    for _ in range(2):
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            server.restart()
    server.stop()


def test_a_wake_up_is_over_when_it_has_been_seen() -> None:
    watch = LinkWatch()
    with contextlib.closing(watch):
        watch.wake()
        watch.wake()
        assert select.select([watch], [], [], 0)[0]
        assert list(watch.ready()) == []
        assert not select.select([watch], [], [], 0)[0]


def test_a_fork_server_looks_for_applications_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = list[float | None]()

    class Selector(selectors.DefaultSelector):
        def select(self, timeout: float | None = None) -> Any:
            waits.append(timeout)
            return super().select(timeout)

    monkeypatch.setattr(selectors, "DefaultSelector", Selector)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for each in wire.Configure((), None), wire.FindApplications():
        ours.send(wire.encode(each))
    ours.shutdown(socket.SHUT_WR)
    with ours, theirs:
        Server(theirs, AppRegistry({"A": "a:A"}), lambda *_: None).run()
    gc.unfreeze()
    assert waits[:3] == [None, None, 0.0]


def test_a_fork_server_outlives_a_process_that_it_cannot_hand_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ETOOMANYREFS, os.strerror(errno.ETOOMANYREFS))

    pids: list[int] = []
    fork = os.fork

    def noted() -> int:
        pids.append(fork())
        return pids[-1]

    monkeypatch.setattr(os, "fork", noted)
    monkeypatch.setattr(socket, "send_fds", refuse)
    gc.collect()
    opened = len(os.listdir("/proc/self/fd"))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.send(wire.encode(wire.Fork(2)))
    ours.shutdown(socket.SHUT_WR)
    with ours, theirs:
        Server(theirs, AppRegistry({}), lambda *_: signal.pause()).run()
        reports = [wire.decode_from_server(ours.recv(1000)) for _ in range(2)]
    assert reports == [wire.ForkFailed(os.strerror(errno.ETOOMANYREFS))] * 2
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == opened
    assert [Path(f"/proc/{pid}").exists() for pid in pids] == [False, False]


def test_a_waiting_worker_is_not_woken_when_its_rank_reads_what_it_sent() -> None:
    ours, theirs = socket.socketpair()
    if (pid := os.fork()) == 0:
        link = RankLink(theirs)
        link.send(wire.Demand(1))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
        link.receive()
        os._exit(resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before)
    poll_until(lambda: state_of(pid) == "S")
    ours.recv(1000)
    os.sched_yield()
    ours.send(wire.frame(wire.Quit()))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) <= 1
    ours.close()
    theirs.close()
