"""The pool as a machine: the test stands in for all processes, sockets and clocks."""

import random
import signal
from collections import Counter, deque

import pytest
from seeds import seeds

from mallob_py.kit.app import TreeMessage
from mallob_py.kit.payload import encode_description
from mallob_py.protocol import stimuli
from mallob_py.runtime import worker_wire as wire
from mallob_py.runtime.memory import Room
from mallob_py.runtime.workers.links import ServerPacket
from mallob_py.runtime.workers.pool import TAKE_UP_S, WorkerPool
from mallob_py.runtime.workers.starved import SPARED_MAX, MemoryKills, Starved
from mallob_py.runtime.workers.supply import PoolOptions
from mallob_py.runtime.workers.tasks import ReadDone, ReadFailed

DESCRIPTION = wire.Inline(encode_description("A", {}, {}))


class Link:
    """A stand-in for a process, which does what the test says."""

    def __init__(self, forked: wire.Forked) -> None:
        self.serial, self.pid, self.generation = forked.serial, forked.pid, forked.generation
        self.dead = self.closed = self.has_outgoing = self.is_given = False
        self.cpu_before_s = 0.0
        self.got: list[wire.ToWorker] = []
        self.signals: list[int] = []
        self.says: deque[wire.FromWorker] = deque()

    def send(self, message: wire.ToWorker) -> list[wire.Deliver]:
        self.got.append(message)
        return []

    def flush(self) -> None:
        pass

    def receive(self) -> tuple[list[wire.FromWorker], bool]:
        said = list(self.says)
        self.says.clear()
        return said, False

    def signal(self, number: signal.Signals) -> None:
        self.signals.append(number)

    def close_socket(self) -> None:
        self.closed = True

    close = close_socket

    @property
    def is_killed(self) -> bool:
        return signal.SIGKILL in self.signals


class Host:
    """Stand-ins for the fork server, ready descriptors and the clock."""

    def __init__(self, options: PoolOptions | None = None) -> None:
        self.now_s = 0.0
        self.closed = False
        self.asked: list[wire.ToServer] = []
        self.imports: list[str] = []
        self.reports: deque[ServerPacket] = deque()
        self.is_gone = False
        self.restarts = 0
        self.serials = 0
        self.seen: list[object] = []
        self.all_links: dict[int, Link] = {}
        self.pool = WorkerPool(self, options, self, self._link, lambda: self.now_s)

    def _link(self, forked: wire.Forked, descriptors: tuple[int, ...], limit_bytes: int) -> Link:
        link = self.all_links[forked.serial] = Link(forked)
        return link

    # used for the fork server and for the watch on links

    def fileno(self) -> int:
        return 0

    def send(self, message: wire.ToServer) -> None:
        self.asked.append(message)
        if isinstance(message, wire.Import):
            self.imports.append(message.application)

    def receive(self) -> ServerPacket | None:
        if self.is_gone:
            raise EOFError
        return self.reports.popleft() if self.reports else None

    def restart(self) -> None:
        self.is_gone = False
        self.restarts += 1
        self.imports.clear()

    def ready(self) -> list[tuple[Link | None, int]]:
        links = [(link, 1) for link in self.all_links.values() if link.says and not link.closed]
        return [(None, 1), *links]

    def watch(self, link: Link) -> None: ...

    def forget(self, link: Link) -> None: ...

    def watch_server(self, fd: int) -> None: ...

    def forget_server(self) -> None: ...

    def wake(self) -> None: ...

    # methods for the test

    def report(self, message: wire.FromServer) -> None:
        self.reports.append(ServerPacket(message, (3, 4) if isinstance(message, wire.Forked) else ()))

    def fork(self, generation: int = 0) -> None:
        """Report all requested processes as forked."""
        for request in self.asked:
            for _ in range(request.count if isinstance(request, wire.Fork) else 0):
                self.serials += 1
                self.report(wire.Forked(self.serials, 10**9 + self.serials, generation))
        self.asked.clear()

    def poll(self) -> list[object]:
        happened = self.pool.poll()
        self.seen += happened
        return happened

    def bury(self) -> None:
        """Report the ends of all killed processes."""
        for link in list(self.pool.processes.links.values()):
            if link.is_killed:
                self.report(wire.Exited(link.serial, "killed", 0.0))

    def later(self, generation: int = 0) -> None:
        """Let a second pass, in which the pool gets its spare processes back."""
        self.now_s += 1.0
        self.bury()
        self.poll()
        self.fork(generation)
        self.poll()

    def start(self, number: int, chain: int = 0) -> Link:
        """Start a worker; return its process."""
        self.pool.start((number, number), 0, 1, (), DESCRIPTION, chain, chain and number)
        self.fork()
        self.poll()
        last = ((link, link.got[-1]) for link in self.all_links.values() if link.got)
        link = next(link for link, message in last if isinstance(message, wire.Run) and message.job == number)
        link.says.append(wire.Started("A", False, number, number, 0.0))
        self.poll()
        return link

    def end(self, link: Link, private_bytes: int = 0) -> None:
        link.says += [wire.ResultFound(b"", 0, 0.0), wire.Idle(private_bytes)]
        self.poll()


@pytest.fixture
def host() -> Host:
    return Host()


def test_a_process_that_has_grown_is_not_used_again(host: Host) -> None:
    link = host.start(1)
    host.end(link, PoolOptions().reuse_limit_bytes + 1)
    assert link.is_killed
    assert link not in host.pool.processes.idle


def test_a_process_forked_before_an_import_is_not_used_again(host: Host) -> None:
    host.later()
    link = host.start(1)
    spares = list(host.pool.processes.idle)
    host.report(wire.Imported("A", 1))
    host.poll()
    assert all(spare.is_killed for spare in spares)
    host.end(link)
    assert link.is_killed
    assert host.pool.processes.idle == []


def test_a_process_forked_before_an_import_is_not_taken_if_it_is_told_of_later(host: Host) -> None:
    host.report(wire.Imported("A", 1))
    host.later(generation=0)
    assert host.pool.processes.idle == []
    assert all(link.is_killed for link in host.all_links.values())
    host.later(generation=1)
    assert len(host.pool.processes.idle) == 1


def test_no_more_processes_stand_ready_than_should(host: Host) -> None:
    links = [host.start(number) for number in range(5)]
    for link in links:
        host.end(link)
    assert len(host.pool.processes.idle) <= PoolOptions().warm + 1
    assert sum(link.is_killed for link in links) >= 3


def _stopped_before_they_run(host: Host, count: int) -> list[Link]:
    for job in range(1, count + 1):
        host.pool.start((job, job), 0, 1, (), DESCRIPTION)
    host.later()
    host.later()
    links = {link.got[0].job: link for link in host.all_links.values() if link.got}
    for job in range(1, count + 1):
        host.pool.suspend((job, job))
    return [links[job] for job in range(1, count + 1)]


def test_a_worker_that_is_stopped_before_it_runs_starts_first_one_at_a_time(host: Host) -> None:
    first, second = _stopped_before_they_run(host, 2)
    assert first.signals == []
    assert second.signals == [signal.SIGSTOP]
    first.says.append(wire.Started("A", False, 1, 1, 0.0))
    assert [type(event) for event in host.poll()] == [stimuli.WorkerStarted]
    assert first.signals == [signal.SIGSTOP]
    host.pool.resume((2, 2), 0, 1, ())
    host.pool.suspend((2, 2))
    assert second.signals == [signal.SIGSTOP, signal.SIGCONT], "now it may start"


def _run(host: Host, generation: int = 0) -> list[int]:
    """Fork all requested processes; return the jobs that have a process."""
    host.poll()
    host.fork(generation)
    host.poll()
    return [link.got[0].job for link in host.all_links.values() if link.got]


def test_where_turns_are_shorter_than_an_import_others_begin_after_it(host: Host) -> None:
    (first,) = _stopped_before_they_run(host, 1)
    host.pool.start((2, 2), 0, 1, (), DESCRIPTION)
    host.pool.start((3, 3), 0, 1, (), wire.Inline(encode_description("B", {}, {})))
    assert _run(host) == [1, 3], "the first one imports it now"
    first.says.append(wire.Started("A", True, 1, 1, 0.0))
    host.poll()
    assert wire.Import("A") in host.asked
    assert _run(host) == [1, 3], "now the fork server does"
    host.report(wire.Imported("A", 1))
    assert _run(host, 1) == [1, 3, 2]


def test_others_begin_if_the_process_that_imports_their_application_ends_or_takes_long(host: Host) -> None:
    first, second = _stopped_before_they_run(host, 2)
    host.pool.start((3, 3), 0, 1, (), DESCRIPTION)
    assert _run(host) == [1, 2]
    host.report(wire.Exited(first.serial, "killed", 0.0))
    assert _run(host) == [1, 2, 3]
    host.pool.resume((2, 2), 0, 1, ())
    host.pool.suspend((2, 2))
    assert second.signals[-1] == signal.SIGCONT, "it may start"
    host.pool.start((4, 4), 0, 1, (), DESCRIPTION)
    assert _run(host) == [1, 2, 3]
    host.now_s += TAKE_UP_S
    assert _run(host) == [1, 2, 3, 4]


def test_others_begin_at_once_if_the_fork_server_has_their_application(host: Host) -> None:
    host.start(9).says.append(wire.Imports("A", False))
    host.poll()
    _stopped_before_they_run(host, 1)
    host.pool.start((2, 2), 0, 1, (), DESCRIPTION)
    assert _run(host) == [9, 1, 2]


def test_a_start_that_takes_long_goes_on_when_its_worker_does(host: Host) -> None:
    (link,) = _stopped_before_they_run(host, 1)
    assert host.pool.next_deadline() <= host.now_s + TAKE_UP_S
    host.now_s += TAKE_UP_S
    host.poll()
    assert link.signals == [signal.SIGSTOP]
    assert host.pool.next_deadline() > host.now_s


def test_a_server_that_dies_has_crashed_its_workers_and_what_waits_goes_to_the_next(host: Host) -> None:
    host.start(1)
    host.pool.start((2, 2), 0, 1, (), DESCRIPTION)
    host.is_gone = True
    assert [type(event) for event in host.poll()] == [stimuli.WorkerCrashed]
    assert host.restarts == 1
    host.fork()
    host.poll()
    assert [link.got[0].job for link in host.all_links.values() if link.got][-1] == 2


def test_a_server_that_dies_again_and_again_is_given_up(host: Host) -> None:
    host.pool.start((1, 1), 0, 1, (), DESCRIPTION)
    seen: list[object] = []
    while not seen:
        host.is_gone = True
        seen = host.poll()
    assert [type(event) for event in seen] == [stimuli.WorkerLost]
    assert host.restarts == 3


def test_a_kept_process_that_does_not_turn_to_the_next_revision_is_replaced(host: Host) -> None:
    link = host.start(1, chain=9)
    host.end(link)
    host.pool.start((2, 2), 0, 1, (), DESCRIPTION, 9, 2)
    assert link.got[-1].job == 2
    host.now_s += TAKE_UP_S
    host.poll()
    assert link.is_killed
    host.fork()
    host.poll()
    (other,) = (
        each for each in host.all_links.values() if each.got and each.got[-1].job == 2 and each is not link
    )
    assert not other.is_killed


def _read(*, files: tuple[str, ...] = (), before: wire.Before | None = None) -> wire.Read:
    return wire.Read("A", files, b"", {}, "/nowhere", 100, before or wire.Before(1, None, ()))


def _has_to_read(link: Link) -> bool:
    return isinstance(link.got[-1], wire.Read)


def _ahead(host: Host, *says: wire.FromWorker) -> Link:
    """Return a process that has read the input of job 2 and begun to work on the job."""
    link = host.start(1, chain=9)
    host.end(link)
    host.pool.read(2, _read(), 9)
    (read,) = link.got[-1:]
    assert isinstance(read, wire.Read)
    assert read.then is not None
    link.says += [
        wire.InputRead(DESCRIPTION, True),
        wire.Started("A", False, 2, read.then.number, 0.0),
        *says,
    ]
    assert host.poll() == [ReadDone(2, DESCRIPTION)], "what it says of the job is kept until that is here"
    return link


def test_a_process_that_has_read_a_revision_goes_on_with_it_before_its_rank_says_so(host: Host) -> None:
    link = _ahead(host, wire.Demand(3))
    host.pool.start((2, 5), 0, 4, (7,), DESCRIPTION, 9, 1)
    assert link.got[-1] == wire.Update(0, 4, (7,))
    assert host.poll() == [stimuli.WorkerStarted(5), stimuli.WorkerDemands(5, 3)]
    link.says += [wire.ResultFound(b"", 0, 0.0), wire.Idle(0)]
    assert host.poll() == [stimuli.WorkerAnswered(5, b"", 0, 0.0)]
    host.pool.read(3, _read(), 9)
    assert _has_to_read(link), "it rests again"


def test_an_answer_that_came_before_its_job_was_begun_is_its_answer(host: Host) -> None:
    link = _ahead(host, wire.ResultFound(b"", 0, 0.0), wire.Idle(0))
    host.pool.start((2, 5), 0, 1, (), DESCRIPTION, 9, 1)
    assert host.poll() == [stimuli.WorkerStarted(5), stimuli.WorkerAnswered(5, b"", 0, 0.0)]
    assert _has_to_read(link), "there was nothing to tell it"
    assert link in host.pool.kept


def test_a_process_that_is_ahead_is_stopped_unless_its_job_begins_soon(host: Host) -> None:
    link = _ahead(host)
    assert host.pool.next_deadline() < 1.0
    host.now_s += 1.0
    host.poll()
    assert link.signals == [signal.SIGSTOP]
    host.now_s += 1.0
    host.poll()
    assert link.signals == [signal.SIGSTOP]
    host.pool.start((2, 5), 0, 1, (), DESCRIPTION, 9, 1)
    assert link.signals == [signal.SIGSTOP, signal.SIGCONT]
    assert host.poll() == [stimuli.WorkerStarted(5)]


@pytest.mark.parametrize(("job", "index"), [(3, 0), (2, 1)])
def test_a_process_that_is_ahead_of_another_job_is_of_no_use(host: Host, job: int, index: int) -> None:
    """The job that the process works on may have left the chain, and then its clauses are wrong."""
    link = _ahead(host, wire.ResultFound(b"", 0, 0.0), wire.Idle(0))
    host.pool.read(4, _read(), 9)
    host.pool.start((job, 5), index, 1, (), DESCRIPTION, 9, 1)
    assert link.is_killed
    assert _has_to_read(link), "nothing further was asked of it"


def test_a_process_that_is_ahead_and_dies_is_replaced(host: Host) -> None:
    link = _ahead(host)
    host.pool.start((2, 5), 0, 1, (), DESCRIPTION, 9, 1)
    link.signal(signal.SIGKILL)
    host.bury()
    assert [type(event) for event in host.poll()] == [stimuli.WorkerStarted, stimuli.WorkerCrashed]
    link = _ahead(host := Host())
    link.signal(signal.SIGKILL)
    host.bury()
    assert host.poll() == []
    host.start(2, chain=9)


def test_a_process_that_is_ahead_and_says_too_much_ends(host: Host) -> None:
    link = _ahead(host, *[wire.Demand(1)] * 1000)
    assert link.is_killed
    assert link not in host.pool.kept


def test_no_process_goes_ahead_while_another_works_here(host: Host) -> None:
    link = host.start(1, chain=9)
    host.end(link)
    host.start(5)
    host.pool.read(2, _read(), 9)
    (read,) = link.got[-1:]
    assert isinstance(read, wire.Read)
    assert read.then is None


def test_the_next_revision_is_read_by_the_process_that_rests_for_it_and_then_run_there(host: Host) -> None:
    link = host.start(1, chain=9)
    host.end(link)
    host.pool.read(2, _read(), 9)
    assert _has_to_read(link)
    link.says.append(wire.InputRead(DESCRIPTION))
    assert host.poll() == [ReadDone(2, DESCRIPTION)]
    host.pool.read(3, _read(), 9)
    link.says.append(wire.InputRefused("no", "literals"))
    assert host.poll() == [ReadFailed(3, "no", "literals")]
    host.pool.start((2, 2), 0, 1, (), DESCRIPTION, 9, 2)
    assert link.got[-1].job == 2


def test_a_revision_is_read_elsewhere_if_that_may_take_long_or_its_process_may_be_busy(host: Host) -> None:
    def reads_itself(read: wire.Read, chain: int = 9) -> bool:
        host.pool.read(2, read, chain)
        host.pool.cancel_read(2)
        return any(isinstance(message, wire.Read) for message in link.got)

    earlier = wire.EarlierInput("u.1", (b"/dev/stdin",), None, {})
    link = host.start(3, chain=7)
    host.pool.terminate((3, 3))
    assert not reads_itself(_read(), chain=7), "it was stopped in the middle of its work"
    link = host.start(1, chain=9)
    assert not reads_itself(_read()), "it is at work"
    host.end(link)
    assert not reads_itself(_read(files=(b"/dev/stdin",)))
    assert not reads_itself(_read(before=wire.Before(2, None, (earlier,))))
    assert not reads_itself(_read(), chain=8)
    assert reads_itself(_read())
    assert link.is_killed, "it may never end"


def test_a_kept_process_that_dies_while_it_reads_is_replaced_and_three_are_enough(host: Host) -> None:
    link = host.start(1, chain=9)
    host.end(link)
    host.pool.read(2, _read(), 9)
    readers = [link]
    for _ in range(3):
        readers[-1].signal(signal.SIGKILL)
        host.bury()
        host.poll()
        host.fork()
        host.poll()
        further = (each for each in host.all_links.values() if each.got and _has_to_read(each))
        readers += [each for each in further if each not in readers]
    assert len(readers) == 3
    (failed,) = host.seen[-1:]
    assert isinstance(failed, ReadFailed)
    assert (failed.request_id, failed.field) == (2, "application")


def test_a_chain_that_ends_while_its_process_reads_leaves_none(host: Host) -> None:
    link = host.start(1, chain=9)
    host.end(link)
    host.pool.read(2, _read(), 9)
    host.pool.kept.drop_chain(9)
    link.says.append(wire.InputRead(DESCRIPTION))
    assert host.poll() == [ReadDone(2, DESCRIPTION)]
    assert link.is_killed


def _readers(host: Host) -> list[Link]:
    return [link for link in host.all_links.values() if link.got and _has_to_read(link)]


def _read_first_of_four(host: Host) -> Link:
    for number in range(4):
        host.pool.read(number, _read())
    host.fork()
    host.poll()
    (first,) = _readers(host)
    return first


def test_one_input_is_read_until_the_fork_server_has_imported_the_application(host: Host) -> None:
    first = _read_first_of_four(host)
    first.says.append(wire.Imports(_read().application, True))
    host.poll()
    assert wire.Import(_read().application) in host.asked
    first.says += [wire.InputRead(DESCRIPTION), wire.Idle(0)]
    host.later()
    assert _readers(host) == [first]
    host.report(wire.Imported(_read().application, 1))
    host.later(generation=1)
    assert len(_readers(host)) == 4


def test_inputs_are_read_at_once_if_the_fork_server_has_the_application(host: Host) -> None:
    first = _read_first_of_four(host)
    first.says.append(wire.Imports(_read().application, False))
    host.later()
    assert len(_readers(host)) == 4


def test_inputs_do_not_wait_for_an_import_of_which_the_fork_server_has_died(host: Host) -> None:
    first = _read_first_of_four(host)
    first.says += [wire.Imports(_read().application, True), wire.InputRead(DESCRIPTION), wire.Idle(0)]
    host.poll()
    host.is_gone = True
    host.later()
    assert len(_readers(host)) == 4


def test_a_message_dropped_before_a_leaving_worker_took_others_is_missed_once(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = host.start(1)
    host.pool.leave((1, 1))
    first, second = (TreeMessage(1, data, sender=(3, 4)) for data in (b"", b"second"))
    for message in (first, second, first):  # equal messages count one by one
        host.pool.deliver((1, 1), message)
    dropped = next(message for message in link.got if isinstance(message, wire.Deliver))
    monkeypatch.setattr(link, "send", lambda message: [dropped])
    host.pool.deliver((1, 1), TreeMessage(1, b"last", sender=(3, 4)))
    link.says.append(wire.Left(0.0, taken=1))  # the second message
    host.poll()
    missed = [event.data for event in host.seen if isinstance(event, stimuli.WorkerMissed)]
    assert missed == [b"", b"", b"last"]


def test_a_process_that_offers_itself_without_having_had_a_task_gets_none(host: Host) -> None:
    host.later()
    (link,) = host.pool.processes.idle
    link.says.append(wire.Idle(0))
    host.poll()
    assert link.is_killed
    assert host.start(1) is not link


def _go_on(link: Link, ends: bool, private_bytes: int) -> None:
    """Have a process begin its last task and, if `ends`, end the task."""
    tasks = [message for message in link.got if isinstance(message, wire.Run | wire.Read)]
    if not tasks:
        return
    is_kept = any(isinstance(task, wire.Run) for task in tasks[:-1])
    run = task = tasks[-1]
    if isinstance(task, wire.Read):
        link.says.append(wire.InputRead(DESCRIPTION, task.then is not None))
        if task.then is None:
            link.says += [] if is_kept else [wire.Idle(private_bytes)]
            return
        run = task.then
    link.says.append(wire.Started("A", run.job % 3 == 0, run.job, run.number, 0.0))
    if ends:
        link.says += [wire.ResultFound(b"", 0, 0.0), wire.Idle(private_bytes)]


# --- a pool while memory is short --------------------------------------------------------------

GB = 1 << 30


class Memory:
    """The kernel's kills and the free memory on a simulated host of 16 GB."""

    def __init__(self, host: Host) -> None:
        self.kills = 0
        self.left_bytes = 10 * GB
        host.pool.starved = Starved(MemoryKills(lambda: self.kills), lambda: [Room(self.left_bytes, 16 * GB)])
        host.pool.starved.kills.look(0.0)
        self._host = host

    def kill(self, link: Link, peak_bytes: int, by_kernel: bool = True) -> list[object]:
        self.kills += by_kernel
        reason = "killed by signal 9 (SIGKILL)"
        self._host.report(wire.Exited(link.serial, reason, 0.0, True, peak_bytes))
        return self._host.poll()


def _at_work(host: Host, job: int) -> Link:
    links = [link for link in host.all_links.values() if link.got and not link.closed]
    return next(link for link in links if isinstance(run := link.got[0], wire.Run) and run.job == job)


def _tried(host: Host) -> list[int]:
    """Fork all requested processes; return the jobs that got a process."""
    before = {serial: len(link.got) for serial, link in host.all_links.items()}
    host.poll()
    host.fork()
    host.poll()
    new = (
        message for serial, link in host.all_links.items() for message in link.got[before.get(serial, 0) :]
    )
    return [message.job for message in new if isinstance(message, wire.Run)]


def test_a_worker_killed_for_want_of_memory_is_spared_and_rests_until_there_is_memory(host: Host) -> None:
    memory = Memory(host)
    host.start(1)
    story = "killed by signal 9 (SIGKILL) while memory was short; it had used 9216 MB"
    for deaths in range(1, 4):
        (crashed,) = memory.kill(_at_work(host, 1), 9 * GB)
        assert crashed == stimuli.WorkerCrashed(1, story, 0.0, True)
        host.pool.start((1, 1), 0, 1, (), DESCRIPTION)
        memory.left_bytes = 8 * GB
        for _ in range(20 * deaths):
            assert _tried(host) == []
            host.now_s += 1.0
        memory.left_bytes = 10 * GB
        assert _tried(host) == [1]


def test_of_the_workers_that_rest_the_smallest_goes_on_first_and_the_largest_last(host: Host) -> None:
    memory = Memory(host)
    for job in (1, 2, 3):
        host.start(job)
    for job, size in ((2, 9), (1, 5), (3, 1)):
        memory.kill(_at_work(host, job), size * GB)
        host.pool.start((job, 10 + job), 0, 1, (), DESCRIPTION)
    assert _tried(host) == []
    order: list[int] = []
    for _ in range(20):
        host.now_s = max(host.now_s + 0.1, host.pool.next_deadline())
        tried = _tried(host)
        assert len(tried) <= 1
        order += tried
    assert order == [3, 1, 2]


def test_a_worker_that_alone_takes_all_memory_dies_by_its_own_fault(host: Host) -> None:
    memory = Memory(host)
    (crashed,) = memory.kill(host.start(1), 15 * GB)
    assert isinstance(crashed, stimuli.WorkerCrashed)
    assert not crashed.is_spared
    assert "while memory was short; it had used 15360 MB" in crashed.reason


def test_a_worker_is_spared_a_few_times_only(host: Host) -> None:
    memory = Memory(host)
    spared = []
    for _ in range(SPARED_MAX + 2):
        host.pool.start((1, 1), 0, 1, (), DESCRIPTION)
        while not _tried(host):
            host.now_s += 1.0
        (crashed,) = memory.kill(_at_work(host, 1), 9 * GB)
        assert isinstance(crashed, stimuli.WorkerCrashed)
        spared.append(crashed.is_spared)
    assert spared == [True] * SPARED_MAX + [False] * 2


def test_a_worker_that_is_killed_while_there_is_memory_is_not_spared(host: Host) -> None:
    memory = Memory(host)
    memory.kill(host.start(1), 9 * GB)
    host.now_s += 10.0
    (crashed,) = memory.kill(host.start(2), 9 * GB, by_kernel=False)
    assert crashed == stimuli.WorkerCrashed(2, "killed by signal 9 (SIGKILL)", 0.0, False)
    host.pool.starved.kills.is_short = lambda: True
    (crashed,) = memory.kill(host.start(3), 9 * GB, by_kernel=False)
    assert isinstance(crashed, stimuli.WorkerCrashed)
    assert crashed.is_spared, "another program may kill in the kernel's place"


def test_a_starved_worker_rests_until_it_is_resumed_and_is_forgotten_when_it_ends(host: Host) -> None:
    memory = Memory(host)
    memory.kill(host.start(1), 9 * GB)
    host.pool.start((1, 11), 0, 1, (), DESCRIPTION)
    host.pool.suspend((1, 11))
    host.now_s += 1000.0
    assert _tried(host) == []
    host.pool.resume((1, 11), 0, 1, ())
    assert _tried(host) == [1]
    memory.kill(host.start(2), 9 * GB)
    host.pool.start((2, 12), 0, 1, (), DESCRIPTION)
    host.pool.terminate((2, 12))
    host.now_s += 1000.0
    assert _tried(host) == []


def test_reading_and_inspecting_rest_for_memory_as_well(host: Host) -> None:
    memory = Memory(host)
    host.pool.read(7, wire.Read("A", (), None, {}, "/nowhere", 0))
    host.pool.inspect_applications("A")
    host.report(wire.Applications(("A",)))
    for deaths in range(5):
        for _ in range(200):
            host.fork()
            host.now_s += 1.0
            assert host.poll() == []
        for link in host.all_links.values():
            if link.got and not link.closed:
                assert memory.kill(link, GB) == [], f"death {deaths}"
    asked = Counter(type(link.got[0]) for link in host.all_links.values() if link.got)
    assert asked == {wire.Read: 5, wire.Inspect: 5}


@pytest.mark.parametrize("seed", seeds(200))
def test_every_worker_ends_exactly_once_whatever_happens(seed: int) -> None:
    draw = random.Random(seed)
    host = Host(PoolOptions(warm=draw.randrange(3)))
    ends: Counter[int] = Counter()
    open_numbers: set[int] = set()
    reads_open: set[int] = set()
    finals = (stimuli.WorkerAnswered, stimuli.WorkerRaised, stimuli.WorkerCrashed, stimuli.WorkerLost)

    def take_in() -> None:
        host.poll()
        for event in host.seen:
            if isinstance(event, finals):
                ends[event.worker] += 1
                open_numbers.discard(event.worker)
            if isinstance(event, ReadDone | ReadFailed):
                reads_open.remove(event.request_id)
            if isinstance(event, ReadDone) and draw.random() < 0.8:
                one = event.request_id
                open_numbers.add(one)
                host.pool.start((one, one), draw.randrange(2), 1, (), DESCRIPTION, 5, one)
        host.seen.clear()

    def links() -> list[Link]:
        return [one for one in host.pool.processes.links.values() if not one.closed and not one.is_killed]

    for number in range(60):
        match draw.randrange(14):
            case 12 | 13:
                reads_open.add(number)
                host.pool.read(number, _read(), 5)
            case 0 | 1 | 2:
                open_numbers.add(number)
                host.pool.start((number, number), 0, 1, (), DESCRIPTION, draw.choice((0, 0, 5)), number)
            case 3 | 4:
                host.fork(host.pool.processes.generation)
            case 5 if open_numbers:
                one = draw.choice(sorted(open_numbers))
                host.pool.terminate((one, one))
                open_numbers.discard(one)
                ends[one] += 1
            case 6 if open_numbers:
                one = draw.choice(sorted(open_numbers))
                draw.choice((host.pool.suspend, lambda key: host.pool.resume(key, 0, 1, ())))((one, one))
            case 7 | 8 if live := links():
                link = draw.choice(live)
                _go_on(link, draw.random() < 0.7, draw.randrange(1 << 29))
            case 9 if live := links():
                host.report(wire.Exited(draw.choice(live).serial, "killed", 0.0))
            case 10:
                host.report(draw.choice((wire.ForkFailed("no"), wire.Imported("A", number))))
            case 11 if draw.random() < 0.2:
                host.is_gone = True
        host.now_s += draw.choice((0.0, 0.01, 2.0))
        take_in()
    # All remaining jobs can go on, and do.
    for _ in range(20):
        for one in sorted(open_numbers):
            host.pool.resume((one, one), 0, 1, ())
        while host.imports:
            host.report(wire.Imported(host.imports.pop(), host.pool.processes.generation + 1))
            host.poll()
        host.later(host.pool.processes.generation)
        for link in links():
            if link not in host.pool.processes.idle:
                _go_on(link, True, 0)
        take_in()
    assert open_numbers == reads_open == set()
    assert set(ends.values()) <= {1}


def _has_no_processes(monkeypatch: pytest.MonkeyPatch) -> tuple[Host, list[wire.Fork]]:
    """Return a host whose fork server answers each request at once that it cannot fork, and the requests."""
    host, requests = Host(), list[wire.Fork]()

    def send(message: wire.ToServer) -> None:
        if isinstance(message, wire.Fork):
            requests.append(message)
            host.report(wire.ForkFailed("no more processes"))
        elif isinstance(message, wire.FindApplications):
            host.report(wire.Applications(("A",)))

    monkeypatch.setattr(host, "send", send)
    return host, requests


def test_a_host_without_processes_is_asked_again_only_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    host, requests = _has_no_processes(monkeypatch)
    host.pool.read(1, wire.Read("A", (), None, {}, "/tmp/none", 0))
    while not host.seen:
        host.poll()
        host.now_s += 0.001
    assert 0 < len(requests) < 100
    assert any(isinstance(each, ReadFailed) for each in host.seen)


def test_who_waits_for_applications_tries_again_to_have_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    host, requests = _has_no_processes(monkeypatch)

    def select(*arguments: object) -> None:
        host.now_s += 0.001 if host.reports else max(0.001, float(str(arguments[-1])))

    monkeypatch.setattr("mallob_py.runtime.workers.pool.select.select", select)
    host.pool.wait_for_applications(timeout_s=1.0)
    assert 3 < len(requests) < 30


def test_who_inspects_applications_asks_for_their_names_and_asks_a_new_server_again() -> None:
    host = Host()
    assert wire.FindApplications() not in host.asked  # not asked before it is needed
    host.pool.inspect_applications()
    assert host.asked.count(wire.FindApplications()) == 1
    host.is_gone = True
    host.poll()
    assert host.asked.count(wire.FindApplications()) == 2
    host.report(wire.Applications(("NOOP",)))
    host.poll()
    host.is_gone = True
    host.poll()
    assert host.asked.count(wire.FindApplications()) == 2
