"""Tasks and processes of one rank brought together: who works on what, what waits, what is kept.

A task waits until a process is free for it. The next revision of a chain goes to a process that was kept
of the chain, if there is one; should that not turn to it soon, the task waits for a fresh one.
"""

from __future__ import annotations

import math
import signal
import time

from mallob_py.runtime import worker_events as events
from mallob_py.runtime import worker_wire as wire
from mallob_py.runtime.fork_server_link import ForkServer
from mallob_py.runtime.kept_workers import KeptWorker, KeptWorkers
from mallob_py.runtime.link_watch import LinkWatch
from mallob_py.runtime.process_supply import PoolOptions, ProcessSupply
from mallob_py.runtime.reads import STALLED_MAX, Reads
from mallob_py.runtime.worker_events import Key, WorkerEvent
from mallob_py.runtime.worker_link import WorkerLink
from mallob_py.runtime.worker_tasks import FINAL_EVENTS, InspectTask, JobTask, ReadTask, Task

#: a kept process that has not turned to its new task by then is busy with something long
TAKE_UP_S = 1.0


class TaskFlow:
    """All open tasks of a rank, and the processes that they have."""

    def __init__(self, server: ForkServer, options: PoolOptions) -> None:
        self.options = options
        self.watch = LinkWatch()
        self.supply = ProcessSupply(server, self.watch, options)
        #: what has happened since it was last asked for
        self.events: list[WorkerEvent] = []
        self.jobs: dict[Key, JobTask] = {}
        self.reads: dict[int, ReadTask] = {}
        #: tasks that should have a process now, in the order in which they came (a dict is a set with one)
        self.waiting: dict[Task, None] = {}
        self.reads_under_way = Reads(options.max_reads)
        #: by serial of the process
        self.at_work: dict[int, Task] = {}
        #: files to remove when the process that may be writing them is gone
        self.leftovers: dict[int, str] = {}
        self.kept = KeptWorkers(options.kept_max, options.kept_bytes_max, options.kept_s)
        #: tasks given to kept processes that have not turned to them yet
        self.pending: set[JobTask] = set()
        #: names of all applications, once the fork server has told them
        self.names: tuple[str, ...] | None = None
        self.is_inspection_wanted = False
        #: what is known of applications so far
        self.applications: dict[str, events.ApplicationKnown] = {}
        self.assign()

    def post(self, event: WorkerEvent) -> None:
        """Report an event that comes of a command: `poll` is to be called for it."""
        self.events.append(event)
        self.watch.wake()

    def send(self, task: JobTask, link: WorkerLink, message: wire.ToWorker) -> None:
        for dropped in link.send(message):
            self.post(events.MessageDropped(task.key, dropped))
        self.watch.watch(link)

    def enqueue(self, task: Task) -> None:
        self.wait(task)
        if not self.supply.is_given_up or self.restart_server():
            self.assign()

    def restart_server(self) -> bool:
        """Replace the fork server. If that is not possible, all tasks that wait are given up."""
        try:
            self.supply.restart_server()
        except OSError as error:
            self.give_up_all(f"no worker process can be started: no fork server either: {error.strerror}")
            return False
        return True

    def give_up_all(self, text: str) -> None:
        """There is no fork server: nothing that waits can begin. The next task has another one tried."""
        while self.waiting:
            task = next(iter(self.waiting))
            del self.waiting[task]
            self.give_up(task, text)
        self.watch.wake()

    def wait(self, task: Task) -> None:
        """Give a task its place in the queue; a suspended one gets it when it is resumed."""
        match task:
            case JobTask(suspended=True):
                return
            case ReadTask() if not self.reads_under_way.admits(task, time.monotonic()):
                return
        self.waiting[task] = None

    def assign(self) -> None:
        """Give waiting tasks to idle processes and see that enough of those are coming."""
        while self.waiting and self.supply.idle:
            task = next(iter(self.waiting))
            del self.waiting[task]
            link = self.supply.idle.pop()
            task.link = link
            self.at_work[link.serial] = task
            link.send(task.first_message())
            self.watch.watch(link)
            if isinstance(task, JobTask):
                for message in task.take_early():
                    self.send(task, link, wire.Deliver(message.source, message.data, message.returned))
        self.supply.top_up(len(self.waiting))

    def abandon(self, task: Task) -> None:
        if isinstance(task, ReadTask):
            self.end_read(task)
        if task.link is None:
            self.waiting.pop(task, None)
            return
        self.at_work.pop(task.link.serial, None)
        if isinstance(task, JobTask):
            self.pending.discard(task)
        self.supply.discard(task.link)

    def end_read(self, task: ReadTask) -> None:
        """A read is over, or will not be: the next one has its turn."""
        self.reads_under_way.end(task)
        self._begin_reads()

    def _begin_reads(self) -> None:
        for following in self.reads_under_way.following(time.monotonic()):
            self.waiting[following] = None

    def look_after_reads(self, now_s: float) -> None:
        """Inputs that do not come keep no others from being read."""
        changes = self.reads_under_way.look(now_s)
        self.events += [events.ReadStalled(task.request_id) for task in changes.stalled]
        self.events += [events.ReadGoesOn(task.request_id) for task in changes.going_on]
        for task in changes.surplus:
            text = (
                f"nothing of the input has come while {STALLED_MAX} others did not come either; send it anew"
            )
            self.conclude(task, events.ReadFailed(task.request_id, text, "files"))
            self.abandon(task)
            if task.link is not None:
                self.leftovers[task.link.serial] = task.read.path
        self._begin_reads()
        self.assign()

    def inspect(self) -> None:
        self.is_inspection_wanted = False
        self.enqueue(InspectTask(list(self.names or ())))

    # --- the ends of tasks ---------------------------------------------------------

    def is_open(self, task: Task) -> bool:
        match task:
            case JobTask(key=key):
                return self.jobs.get(key) is task
            case ReadTask(request_id=request_id):
                return self.reads.get(request_id) is task
        return True

    def conclude(self, task: Task, event: WorkerEvent) -> None:
        """Report an event of a task that is open, and close the task if that was its end."""
        self.events.append(event)
        if isinstance(event, events.ApplicationKnown):
            self.applications[event.name] = event
        if not isinstance(event, FINAL_EVENTS):
            return
        match task:
            case JobTask(key=key):
                del self.jobs[key]
            case ReadTask(request_id=request_id):
                del self.reads[request_id]
                self.end_read(task)

    def give_up(self, task: Task, text: str) -> None:
        for event in task.events_of_giving_up(text):
            self.conclude(task, event)

    def lingering(self, key: Key) -> JobTask | None:
        """A worker that has given its result and yet goes on."""
        tasks = self.at_work.values()
        return next((task for task in tasks if isinstance(task, JobTask) and task.key == key), None)

    # --- processes kept for the next revision -----------------------------------

    def keep(self, task: JobTask, link: WorkerLink, is_stopped: bool) -> None:
        self.at_work.pop(link.serial, None)
        self.pending.discard(task)
        run = task.run
        for dropped in self.kept.keep(link, run.chain, run.index, is_stopped, time.monotonic()):
            self.supply.discard(dropped)

    def go_on(self, task: JobTask, kept: KeptWorker) -> None:
        """Give a kept process the next revision."""
        task.link, task.is_pending = kept.link, True
        task.take_up_by_s = time.monotonic() + TAKE_UP_S
        self.at_work[kept.link.serial] = task
        self.pending.add(task)
        if kept.is_stopped:
            kept.link.signal(signal.SIGCONT)
        self.send(task, kept.link, task.run)

    def look_after_kept(self, now_s: float) -> None:
        for link in self.kept.drop_expired(now_s):
            self.supply.discard(link)
        for task in [task for task in self.pending if not task.suspended and task.take_up_by_s <= now_s]:
            assert task.link is not None
            self.supply.discard(task.link)
            self.start_afresh(task)
            self.assign()

    def start_afresh(self, task: JobTask) -> None:
        """The process that was to go on with the chain is of no use: take another."""
        assert task.link is not None
        self.at_work.pop(task.link.serial, None)
        self.pending.discard(task)
        task.link, task.is_pending = None, False
        self.wait(task)

    # --- time ----------------------------------------------------------------------

    def next_deadline(self) -> float:
        """When `poll` is to be called at the latest, on `time.monotonic`."""
        take_up_s = min((task.take_up_by_s for task in self.pending if not task.suspended), default=math.inf)
        return min(
            self.supply.refill_at_s,
            self.kept.next_deadline(),
            take_up_s,
            self.reads_under_way.look_at_s,
        )
