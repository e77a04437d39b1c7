"""A worker's process goes on at another rank of its host: tests with two pools and real processes."""

import math
import os
import signal
import socket
from pathlib import Path

import pytest
from faults.processes import state_of
from pool_rank import KEY, Make, Rank, is_gone, result_of

from mallob_py.kit.app import TreeMessage
from mallob_py.kit.payload import encode_description
from mallob_py.protocol import stimuli
from mallob_py.runtime import worker_wire as wire
from mallob_py.runtime.memory import cpu_seconds_of
from mallob_py.runtime.workers.giving import Given, GivingSocket
from mallob_py.runtime.workers.pool import TAKE_UP_S

pytestmark = pytest.mark.usefixtures("patient")
#: key of the worker at the rank that takes the process
THERE = (KEY[0], 12)
DESCRIPTION = wire.Inline(b"")


class Host:
    """Two ranks on one host: rank 0 gives processes to rank 1."""

    def __init__(self, make: Make, folder: Path) -> None:
        self.giver, self.taker = make(), make()
        for number, rank in enumerate((self.giver, self.taker)):
            rank.pool.processes.exchange(GivingSocket(folder, number))

    def rest(self, application: str, index: int = 0) -> int:
        """Have a process run at the giver, then rest there."""
        count = len(self.giver.of(stimuli.WorkerStarted))
        description = wire.Inline(bytes(encode_description(application, {}, {})))
        self.giver.pool.start(KEY, index, 1, (), description)
        self.giver.hear(stimuli.WorkerStarted, count + 1)
        pid = self.giver.pid()
        self.giver.pool.suspend(KEY)
        self.giver.until(lambda: state_of(pid) == "T")
        return pid

    def await_it(self, index: int = 0) -> None:
        self.taker.pool.start(THERE, index, 3, (), DESCRIPTION, is_given=True)

    def give(self, told_cpu_s: float = 0.0) -> None:
        self.giver.pool.give(KEY, told_cpu_s, 1, THERE)

    def move(self, application: str) -> int:
        """Have a process go on at the taker."""
        count = len(self.taker.of(stimuli.WorkerStarted))
        pid = self.rest(application)
        self.await_it()
        self.give()
        self.taker.hear(stimuli.WorkerStarted, count + 1)
        assert self.taker.pid(THERE) == pid
        return pid


@pytest.fixture
def host(make: Make, tmp_path: Path) -> Host:
    return Host(make, tmp_path)


ANSWER = wire.Inline(bytes(encode_description("ANSWER", {}, {})))


def anew(host: Host) -> None:
    """Have a worker await a given process; if none comes, the worker gets a new process, and answers."""
    host.taker.pool.start(THERE, 0, 3, (), ANSWER, is_given=True)


def events_of(rank: Rank, worker: int) -> list[type]:
    return [type(event) for event in rank.seen if getattr(event, "worker", None) == worker]


def test_a_process_goes_on_at_another_rank_and_answers_there(host: Host) -> None:
    pid = host.move("ECHO")
    host.taker.pool.deliver(THERE, TreeMessage(0, b"end"))
    code, seen = result_of(host.taker.hear(stimuli.WorkerAnswered)[0])
    assert (code, seen) == (0, [0, 3]), "it knows its present place"
    assert [event.worker for event in host.taker.of(stimuli.WorkerAnswered)] == [THERE[1]]
    # this rank's server did not fork the process, so the process is not used again
    host.taker.until(lambda: is_gone(pid))
    host.giver.turn()
    assert stimuli.WorkerAnswered not in events_of(host.giver, KEY[1])
    assert stimuli.WorkerCrashed not in events_of(host.giver, KEY[1])
    assert host.giver.pool.pid_of(KEY) is None


def test_that_a_process_leaves_in_order_is_known_where_it_goes_on(host: Host) -> None:
    host.move("LEAVE")
    assert host.taker.of(stimuli.WorkerStarted) == [stimuli.WorkerStarted(THERE[1], leaves=True)]
    host.taker.pool.leave(THERE)
    host.taker.hear(stimuli.WorkerLeft)


def test_what_its_client_has_been_told_of_is_not_counted_again(host: Host) -> None:
    pid = host.rest("SPIN")
    used_s = cpu_seconds_of(pid)
    host.await_it()
    host.give(told_cpu_s=used_s)
    host.taker.hear(stimuli.WorkerStarted)
    here_s = host.taker.pool.cpu_seconds_of(THERE)
    assert here_s is not None
    assert here_s <= cpu_seconds_of(pid) - used_s + 0.05


def test_one_that_rests_again_before_it_has_come_goes_on_when_it_is_to(host: Host) -> None:
    pid = host.rest("ECHO")
    host.await_it()
    host.taker.pool.suspend(THERE)
    host.give()
    host.taker.hear(stimuli.WorkerStarted)
    assert state_of(pid) == "T"
    host.taker.pool.resume(THERE, 0, 3, ())
    host.taker.pool.deliver(THERE, TreeMessage(0, b"end"))
    host.taker.hear(stimuli.WorkerAnswered)


def test_one_that_is_wanted_elsewhere_before_it_has_come_goes_on_to_there(
    host: Host, make: Make, tmp_path: Path
) -> None:
    third, elsewhere = make(), (KEY[0], 13)
    third.pool.processes.exchange(GivingSocket(tmp_path, 2))
    pid = host.rest("ECHO")
    host.await_it()
    host.taker.pool.suspend(THERE)
    third.pool.start(elsewhere, 0, 3, (), DESCRIPTION, is_given=True)
    host.taker.pool.give(THERE, 0.0, 2, elsewhere)
    host.give()
    host.taker.turn()
    third.hear(stimuli.WorkerStarted)
    assert third.pid(elsewhere) == pid
    assert not host.taker.of(stimuli.WorkerStarted)


def _deliver_until_unsent(host: Host, further: int) -> int:
    """Send a resting process more messages than its socket holds; return their number."""
    (link,) = (one for one in host.giver.pool.processes.links.values() if one.pid == host.giver.pid())
    count = 0
    while not link.has_outgoing:
        count += 1
        host.giver.pool.deliver(KEY, TreeMessage(count, bytes(3000)))
    for number in range(further):
        host.giver.pool.deliver(KEY, TreeMessage(count + 1 + number, bytes(3000)))
    return count + further


def test_messages_on_their_way_arrive_in_order(host: Host) -> None:
    """The taker sends the messages that the giver had not sent completely."""
    pid = host.rest("ECHO", index=1)
    count = _deliver_until_unsent(host, 2)
    host.await_it(index=1)
    host.taker.pool.deliver(THERE, TreeMessage(count + 1, b"early"))
    host.give()
    host.taker.hear(stimuli.WorkerStarted)
    host.taker.pool.deliver(THERE, TreeMessage(count + 2, b"late"))
    told = host.taker.hear(stimuli.WorkerToParent, count + 2)
    assert [int(event.data.split(b":")[0]) for event in told] == list(range(1, count + 3))
    assert host.taker.pid(THERE) == pid


def test_a_process_with_too_much_on_its_way_is_not_given(host: Host) -> None:
    pid = host.rest("ECHO")
    _deliver_until_unsent(host, 20)
    anew(host)
    host.give()
    host.taker.hear(stimuli.WorkerAnswered)
    host.giver.until(lambda: is_gone(pid))


def test_a_process_that_ends_at_the_rank_that_has_it_has_crashed_there(host: Host) -> None:
    pid = host.move("SPIN")
    os.kill(pid, signal.SIGKILL)
    assert host.taker.hear(stimuli.WorkerCrashed)[0].worker == THERE[1]
    host.giver.turn()
    assert not host.giver.of(stimuli.WorkerCrashed)


def test_a_process_ends_with_the_rank_that_forked_it(host: Host) -> None:
    pid = host.move("SPIN")
    host.giver.pool.close()
    host.taker.hear(stimuli.WorkerCrashed)
    assert is_gone(pid)


def test_a_process_ends_with_the_rank_that_has_it_even_one_that_rests(host: Host) -> None:
    for rests in (False, True):
        pid = host.move("SPIN")
        if rests:
            host.taker.pool.suspend(THERE)
            host.taker.until(lambda pid=pid: state_of(pid) == "T")
        link = next(one for one in host.taker.pool.processes.links.values() if one.pid == pid)
        # The link is closed as by the kernel at the rank's end, but the descriptor's number stays in use, so
        # that the link's owner can close it.
        os.dup2(link.descriptors[1], link.descriptors[2])
        host.giver.until(lambda pid=pid: is_gone(pid))
        host.taker.hear(stimuli.WorkerCrashed, 1 + rests)


def test_a_process_goes_from_rank_to_rank_and_back(host: Host, make: Make, tmp_path: Path) -> None:
    pid = host.move("ECHO")
    third = make()
    third.pool.processes.exchange(GivingSocket(tmp_path, 2))
    third.pool.start((KEY[0], 5), 0, 1, (), DESCRIPTION, is_given=True)
    host.taker.pool.suspend(THERE)
    host.taker.pool.give(THERE, 0.0, 2, (KEY[0], 5))
    third.hear(stimuli.WorkerStarted)
    assert third.pid((KEY[0], 5)) == pid
    third.pool.suspend((KEY[0], 5))
    host.giver.pool.start((KEY[0], 9), 0, 1, (), DESCRIPTION, is_given=True)
    third.pool.give((KEY[0], 5), 0.0, 0, (KEY[0], 9))
    host.giver.until(lambda: len(host.giver.of(stimuli.WorkerStarted)) == 2)
    assert host.giver.pid((KEY[0], 9)) == pid
    host.giver.pool.terminate((KEY[0], 9))
    host.giver.until(lambda: is_gone(pid))


def test_one_for_whom_there_is_no_process_begins_anew(host: Host) -> None:
    anew(host)
    host.taker.pool.start_anew(THERE)
    host.taker.hear(stimuli.WorkerAnswered)


@pytest.mark.usefixtures("impatient")
def test_one_whose_process_does_not_come_begins_anew_after_a_while(host: Host) -> None:
    anew(host)
    assert host.taker.pool.next_deadline() < float("inf")
    host.taker.hear(stimuli.WorkerAnswered)


@pytest.mark.parametrize("why", ["it runs", "it is over", "nothing is known of it"])
def test_a_process_that_does_not_rest_is_not_given(host: Host, why: str) -> None:
    if why == "it runs":
        host.giver.run("SPIN")
        pid = host.giver.pid()
    elif why == "it is over":
        host.giver.run("ANSWER")
        host.giver.hear(stimuli.WorkerAnswered)
        pid = 0
    else:
        pid = 0
    anew(host)
    host.give()
    host.taker.hear(stimuli.WorkerAnswered)
    if pid:
        host.giver.until(lambda: is_gone(pid))


@pytest.mark.parametrize("when", ["it is terminated", "it has begun anew"])
def test_a_process_that_nobody_waits_for_any_more_ends(host: Host, when: str) -> None:
    pid = host.rest("SPIN")
    if when == "it is terminated":
        host.await_it()
        host.taker.pool.terminate(THERE)
    else:
        anew(host)
        host.taker.pool.start_anew(THERE)
    host.give()
    host.taker.until(lambda: is_gone(pid))


def test_a_process_for_a_rank_that_is_gone_ends(host: Host) -> None:
    pid = host.rest("SPIN")
    host.taker.pool.close()
    host.give()
    host.giver.until(lambda: is_gone(pid))


def test_more_processes_than_the_kernel_lets_wait_come_all_the_same(tmp_path: Path) -> None:
    """A process that cannot be sent keeps its descriptors, although the sender closes its own copies."""
    now_s = 0.0
    giver, taker = GivingSocket(tmp_path, 0, lambda: now_s), GivingSocket(tmp_path, 1)
    read_end, write_end = os.pipe()
    waiting = int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text())
    for number in range(3 * waiting + 5):
        lifeline = os.dup(write_end)
        giver.send(1, Given(7, number), (lifeline,))
        os.close(lifeline)
    os.close(write_end)
    come = []
    while giver.deadline_s < math.inf:
        while (packet := taker.receive()) is not None:
            come.append(packet)
        giver.turn(now_s := giver.deadline_s)
    while (packet := taker.receive()) is not None:
        come.append(packet)
    assert [given.number for given, _ in come] == list(range(3 * waiting + 5))
    for _, (lifeline,) in come:
        os.close(lifeline)
    assert os.read(read_end, 1) == b"", "nobody holds one of them any more"
    os.close(read_end)
    for one in (giver, taker):
        one.close()


def test_processes_for_a_rank_that_takes_none_end_after_a_while(tmp_path: Path) -> None:
    now_s = 0.0
    giver, taker = GivingSocket(tmp_path, 0, lambda: now_s), GivingSocket(tmp_path, 1)
    read_end, write_end = os.pipe()
    while giver.deadline_s == math.inf:
        giver.send(1, Given(7, 1))
    giver.send(1, Given(7, 2), (write_end,))
    os.close(write_end)
    while giver.deadline_s < math.inf:
        giver.turn(now_s := giver.deadline_s)
    assert now_s < 2 * TAKE_UP_S, "nobody waits for it any more"
    assert os.read(read_end, 1) == b""
    os.close(read_end)
    for one in (giver, taker):
        one.close()


def test_nonsense_in_the_socket_is_ignored(host: Host, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        for packet in (b"", b"\xff", b"\x90", b"x" * 60_000):
            other.sendto(packet, str(tmp_path / "given-1"))
    host.move("ECHO")


def test_a_worker_without_exchange_begins_at_once(rank: Rank) -> None:
    rank.pool.start(THERE, 0, 1, (), ANSWER, is_given=True)
    assert rank.pool.next_deadline() > TAKE_UP_S
    rank.hear(stimuli.WorkerAnswered)
