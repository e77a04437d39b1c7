"""The worker processes of one rank, as its event loop uses them. Nothing here blocks.

Commands (`start`, `suspend`, `resume`, `terminate`, `update`, `deliver`, `read`) return at
once; `fileno()` turns readable when something has happened, and `poll()` returns it as
events (`worker_events`).

Where processes come from: the rank's fork server forks them; `warm` of them stand ready
without a task, so that a start costs a message. A process whose task ended by itself, with
little memory of its own, is used again. One that is terminated is killed, unless it was the
worker of a chain of revisions: these are kept for the next one, for a while (`kept_workers`).

Guarantees
- Every started key ends by exactly one of: `terminate`, WorkerResult, WorkerFailed,
  WorkerCrashed. Every read request ends by `cancel_read`, ReadDone or ReadFailed.
- A kept process that does not take up the next revision soon is replaced by a fresh one.
- Commands for a key that is unknown or over have no effect, for the end of a worker and a
  command for it may cross.
- A fork server that dies is replaced; its workers have crashed, tasks not yet given to a
  process go to the new one.
- `close()` leaves no process and no file of an unfinished read.
"""

from __future__ import annotations

import math
import os
import select
import signal
import time
from contextlib import suppress

import msgspec

from mallob_py.app import TreeMessage
from mallob_py.runtime import worker_events as events
from mallob_py.runtime import worker_wire as wire
from mallob_py.runtime.fork_server_link import ForkServer
from mallob_py.runtime.kept_workers import KeptWorker, KeptWorkers
from mallob_py.runtime.link_watch import WRITABLE, LinkWatch
from mallob_py.runtime.memory import private_bytes_of
from mallob_py.runtime.process_supply import PoolOptions, ProcessSupply
from mallob_py.runtime.worker_events import Key, WorkerEvent
from mallob_py.runtime.worker_link import WorkerLink
from mallob_py.runtime.worker_tasks import FINAL_EVENTS, InspectTask, JobTask, ReadTask, Task

#: a kept process that has not turned to its new task by then is busy with something long
_TAKE_UP_S = 1.0


class WorkerPool:
    """All worker processes of a rank. Closes its server with itself."""

    def __init__(self, server: ForkServer, options: PoolOptions | None = None) -> None:
        self._options = options or PoolOptions()
        self._watch = LinkWatch()
        self._supply = ProcessSupply(server, self._watch, self._options)
        self._events: list[WorkerEvent] = []
        self._tasks: dict[int, Task] = {}  # by serial of the process
        self._waiting: list[Task] = []
        self._jobs: dict[Key, JobTask] = {}
        self._reads: dict[int, ReadTask] = {}
        #: files to remove when the process that may be writing them is gone
        self._leftovers: dict[int, str] = {}
        self._kept = KeptWorkers(self._options.kept_max, self._options.kept_bytes_max, self._options.kept_s)
        #: tasks given to kept processes that have not turned to them yet
        self._pending: set[JobTask] = set()
        self._names: tuple[str, ...] | None = None
        self._inspection_wanted = False
        #: what is known of applications so far (see `inspect_applications`)
        self.applications: dict[str, events.ApplicationKnown] = {}
        self._assign()

    # --- commands -----------------------------------------------------------

    def start(
        self,
        key: Key,
        index: int,
        volume: int,
        children: tuple[int, ...],
        description: wire.Description,
        chain: int = 0,
        revision: int = 0,
    ) -> None:
        """Run a worker; WorkerStarted follows when its application does."""
        if key in self._jobs:
            raise ValueError(f"worker {key} runs already")
        job, context = key
        threads = self._options.threads
        run = wire.Run(job, context, index, volume, children, threads, description, chain, revision)
        task = self._jobs[key] = JobTask(key, run)
        if chain and (kept := self._kept.take(chain, index)) is not None:
            self._continue(task, kept)
        else:
            self._enqueue(task)

    def suspend(self, key: Key) -> None:
        if (task := self._jobs.get(key)) is not None and not task.suspended:
            task.suspended = True
            if task.link is not None:
                task.link.signal(signal.SIGSTOP)

    def resume(self, key: Key, index: int, volume: int, children: tuple[int, ...]) -> None:
        """Continue a suspended worker, in the place it has now."""
        if (task := self._jobs.get(key)) is None:
            return
        self.update(key, index, volume, children)
        task.suspended = False
        task.take_up_by_s = time.monotonic() + _TAKE_UP_S
        if task.link is not None:
            task.link.signal(signal.SIGCONT)
        self._assign()

    def terminate(self, key: Key) -> None:
        """End a worker, whatever it does; no events of it follow."""
        is_working = key in self._jobs
        task = self._jobs.pop(key, None) or self._lingering(key)
        if task is None:
            return
        if task.run.chain and task.link is not None and not task.link.dead:
            if is_working and not task.suspended:
                task.link.signal(signal.SIGSTOP)
            self._keep(task, task.link, is_working or task.suspended)
        else:
            self._abandon(task)

    def _lingering(self, key: Key) -> JobTask | None:
        """A worker that has given its result and yet goes on."""
        tasks = self._tasks.values()
        return next((task for task in tasks if isinstance(task, JobTask) and task.key == key), None)

    def update(self, key: Key, index: int, volume: int, children: tuple[int, ...]) -> None:
        if (task := self._jobs.get(key)) is None:
            return
        task.run = msgspec.structs.replace(task.run, index=index, volume=volume, children=children)
        if task.link is not None:
            self._send(task, task.link, wire.Update(index, volume, children))

    def deliver(self, key: Key, message: TreeMessage) -> None:
        """Hand a message of another worker to this one, or report it as dropped."""
        if (task := self._jobs.get(key)) is None:
            self._post(events.MessageDropped(key, message))
            return
        if task.link is None:
            for dropped in task.keep(message, self._options.queue_limit_bytes):
                self._post(events.MessageDropped(key, dropped))
            return
        self._send(task, task.link, wire.Deliver(message.source, message.data, message.returned))

    def read(self, request_id: int, read: wire.Read) -> None:
        """Read an input in a process of its own; ReadDone or ReadFailed follows."""
        if request_id in self._reads:
            raise ValueError(f"read {request_id} is under way already")
        try:
            wire.frame(read)
        except (OverflowError, TypeError, ValueError) as error:  # such as an integer beyond 64 bits
            self._post(events.ReadFailed(request_id, f"cannot be passed on: {error}", "configuration"))
            return
        self._reads[request_id] = ReadTask(request_id, read)
        self._enqueue(self._reads[request_id])

    def cancel_read(self, request_id: int) -> None:
        if (task := self._reads.pop(request_id, None)) is not None:
            self._abandon(task)
            if task.link is not None:
                self._leftovers[task.link.serial] = task.read.path

    def inspect_applications(self) -> None:
        """Import every application once, in a process of its own; ApplicationKnown for each."""
        self._inspection_wanted = True
        if self._names is not None:
            self._inspect()

    @property
    def applications_complete(self) -> bool:
        """Whether `applications` holds all that are installed."""
        return self._names is not None and self.applications.keys() >= set(self._names)

    def wait_for_applications(self, timeout_s: float = 60.0) -> dict[str, events.ApplicationKnown]:
        """Import every application once and tell what each is like. For start-up only: it blocks."""
        self.inspect_applications()
        deadline_s = time.monotonic() + timeout_s
        others: list[WorkerEvent] = []
        while not self.applications_complete and (left_s := deadline_s - time.monotonic()) > 0:
            select.select([self], [], [], left_s)
            others += [event for event in self.poll() if not isinstance(event, events.ApplicationKnown)]
        for event in others:
            self._post(event)
        return self.applications

    def _inspect(self) -> None:
        self._inspection_wanted = False
        self._enqueue(InspectTask(list(self._names or ())))

    def pid_of(self, key: Key) -> int | None:
        """The worker's process, to account its CPU time and memory by."""
        task = self._jobs.get(key)
        return task.link.pid if task is not None and task.link is not None else None

    def idle_pids(self) -> list[int]:
        """Processes that stand ready."""
        return [link.pid for link in self._supply.idle]

    def busy_pids(self) -> list[int]:
        """Processes that have a task."""
        return [link.pid for link in self._supply.links.values() if link.serial in self._tasks]

    def kept_pids(self) -> list[int]:
        """Processes kept for the next revision of their job."""
        return self._kept.pids()

    @property
    def generation(self) -> int:
        """How many applications the fork server has imported since it was started."""
        return self._supply.generation

    def fileno(self) -> int:
        return self._watch.fileno()

    # --- what has happened --------------------------------------------------

    def poll(self) -> list[WorkerEvent]:
        """What has happened since the last call."""
        now_s = time.monotonic()
        if now_s >= self._supply.refill_at_s:
            self._supply.refill(len(self._ready_tasks()))
        if self._pending or now_s >= self._kept.next_deadline():
            self._look_after_kept(now_s)
        for link, mask in self._watch.ready():
            if link is None:
                self._hear_server()
                continue
            if mask & WRITABLE:
                link.flush()
                self._watch.watch(link)
            if mask & ~WRITABLE:
                self._hear_worker(link)
        happened, self._events = self._events, []
        return happened

    def close(self) -> None:
        """End all processes and wait until they are gone (bounded)."""
        if self._watch.closed:
            return
        self._supply.close()
        for path in [*self._leftovers.values(), *(task.read.path for task in self._reads.values())]:
            _remove_file(path)
        self._reads.clear()
        self._jobs.clear()
        self._watch.close()

    def _post(self, event: WorkerEvent) -> None:
        """Report an event that comes of a command: `poll` is to be called for it."""
        self._events.append(event)
        self._watch.wake()

    # --- tasks and processes ------------------------------------------------

    def _enqueue(self, task: Task) -> None:
        self._waiting.append(task)
        if self._supply.is_given_up:
            self._supply.restart_server()
        self._assign()

    def _assign(self) -> None:
        """Give waiting tasks to idle processes and see that enough of those are coming."""
        ready = self._ready_tasks()
        given, left = ready[: len(self._supply.idle)], ready[len(self._supply.idle) :]
        for task in given:
            self._waiting.remove(task)
            link = self._supply.idle.pop()
            task.link = link
            self._tasks[link.serial] = task
            link.send(task.first_message())
            self._watch.watch(link)
            if isinstance(task, JobTask):
                for message in task.take_early():
                    self.deliver(task.key, message)
        self._supply.top_up(len(left))

    def _ready_tasks(self) -> list[Task]:
        """Waiting tasks that should have a process now."""
        reads_left = self._options.max_reads - sum(task.link is not None for task in self._reads.values())
        ready: list[Task] = []
        for task in self._waiting:
            match task:
                case JobTask(suspended=True):
                    continue
                case ReadTask() if reads_left <= 0:
                    continue
                case ReadTask():
                    reads_left -= 1
            ready.append(task)
        return ready

    def next_deadline(self) -> float:
        """When `poll` is to be called at the latest, on `time.monotonic`."""
        take_up_s = min((task.take_up_by_s for task in self._pending if not task.suspended), default=math.inf)
        return min(self._supply.refill_at_s, self._kept.next_deadline(), take_up_s)

    def _abandon(self, task: Task) -> None:
        if task.link is None:
            self._waiting.remove(task)
            return
        self._tasks.pop(task.link.serial, None)
        if isinstance(task, JobTask):
            self._pending.discard(task)
        self._supply.discard(task.link)

    def _send(self, task: JobTask, link: WorkerLink, message: wire.ToWorker) -> None:
        for dropped in link.send(message):
            self._post(events.MessageDropped(task.key, dropped))
        self._watch.watch(link)

    # --- processes kept for the next revision -----------------------------------

    def drop_chain(self, chain: int) -> None:
        """No further revision of this chain comes: keep nothing of it."""
        for link in self._kept.drop_chain(chain):
            self._supply.discard(link)

    def drop_kept(self, wanted_bytes: int) -> int:
        """Memory is short: let go of so much of what is kept, oldest first; what is expected to come free."""
        given_bytes = 0
        for link in self._kept.drop_oldest(wanted_bytes):
            given_bytes += private_bytes_of(link.pid)
            self._supply.discard(link)
        return given_bytes

    def keep_none_ready(self) -> None:
        """Memory is short: end spare processes, and have none until `keep_ready`."""
        self._supply.keep_none_ready()

    def keep_ready(self) -> None:
        self._supply.keep_ready()

    def _keep(self, task: JobTask, link: WorkerLink, is_stopped: bool) -> None:
        self._tasks.pop(link.serial, None)
        self._pending.discard(task)
        run = task.run
        for dropped in self._kept.keep(link, run.chain, run.index, is_stopped, time.monotonic()):
            self._supply.discard(dropped)

    def _continue(self, task: JobTask, kept: KeptWorker) -> None:
        """Give a kept process the next revision."""
        task.link, task.is_pending = kept.link, True
        task.take_up_by_s = time.monotonic() + _TAKE_UP_S
        self._tasks[kept.link.serial] = task
        self._pending.add(task)
        if kept.is_stopped:
            kept.link.signal(signal.SIGCONT)
        self._send(task, kept.link, task.run)

    def _look_after_kept(self, now_s: float) -> None:
        for link in self._kept.drop_expired(now_s):
            self._supply.discard(link)
        for task in [task for task in self._pending if not task.suspended and task.take_up_by_s <= now_s]:
            assert task.link is not None
            self._supply.discard(task.link)
            self._start_afresh(task)
            self._assign()

    def _start_afresh(self, task: JobTask) -> None:
        """The process that was to go on with the chain is of no use: take another."""
        assert task.link is not None
        self._tasks.pop(task.link.serial, None)
        self._pending.discard(task)
        task.link, task.is_pending = None, False
        self._waiting.append(task)

    def _turns_to(self, task: JobTask, message: wire.FromWorker) -> bool:
        """Whether a kept process has come to its new task; what it says before concerns an old one."""
        if not isinstance(message, wire.Started) or (message.job, message.context) != task.key:
            return False
        task.is_pending = False
        self._pending.discard(task)
        return True

    # --- from worker processes ----------------------------------------------

    def _hear_worker(self, link: WorkerLink) -> bool:
        """Take in what a process says; False if that was nothing."""
        try:
            messages, at_end = link.receive()
        except wire.BrokenStream:
            # Killed, and with it reported as crashed: a process that talks nonsense has a
            # damaged memory.
            messages, at_end = [], True
        for message in messages:
            if not link.closed:
                self._hear(link, message)
        if at_end and not link.closed:
            link.signal(signal.SIGKILL)
            self._watch.forget(link)
            link.close_socket()
            self._supply.forget_idle(link)
        return bool(messages)

    def _hear(self, link: WorkerLink, message: wire.FromWorker) -> None:
        if link in self._kept:
            return  # the last words on a revision that is over
        task = self._tasks.get(link.serial)
        if isinstance(task, JobTask) and task.is_pending and not self._turns_to(task, message):
            return
        if isinstance(message, wire.Idle):
            self._take_back(link, message.private_bytes)
            return
        if task is None or not self._is_open(task):
            return  # such as a second result
        if isinstance(message, wire.Started) and message.newly_imported:
            self._supply.import_application(message.application)
        if (event := task.event_of(message)) is not None:
            self._conclude(task, event)

    def _is_open(self, task: Task) -> bool:
        match task:
            case JobTask(key=key):
                return self._jobs.get(key) is task
            case ReadTask(request_id=request_id):
                return self._reads.get(request_id) is task
        return True

    def _conclude(self, task: Task, event: WorkerEvent) -> None:
        """Report an event of a task that is open, and close the task if that was its end."""
        self._events.append(event)
        if isinstance(event, events.ApplicationKnown):
            self.applications[event.name] = event
        if not isinstance(event, FINAL_EVENTS):
            return
        match task:
            case JobTask(key=key):
                del self._jobs[key]
            case ReadTask(request_id=request_id):
                del self._reads[request_id]

    def _take_back(self, link: WorkerLink, private_bytes: int) -> None:
        task = self._tasks.pop(link.serial, None)
        if task is None:  # nothing to be done with: only a damaged process says so
            link.signal(signal.SIGKILL)
            return
        if isinstance(task, JobTask) and task.run.chain:
            self._keep(task, link, task.suspended)
            return
        if isinstance(task, JobTask) and task.suspended:
            link.signal(signal.SIGCONT)  # it was stopped after its last word
        self._supply.take_back(link, private_bytes)
        self._assign()

    # --- from the fork server -----------------------------------------------

    def _hear_server(self) -> None:
        try:
            while (news := self._supply.receive()) is not None:
                self._hear_news(news)
        except EOFError:
            self._replace_server()

    def _hear_news(self, news: wire.FromServer) -> None:
        match news:
            case wire.Applications(names):
                self._names = names
                if self._inspection_wanted:
                    self._inspect()
            case wire.Forked() | wire.Imported():
                self._assign()
            case wire.ForkFailed() if self._kept.pids():
                for link in self._kept.drop_all():
                    self._supply.discard(link)
                self._assign()
            case wire.ForkFailed(reason):
                for task in self._ready_tasks()[:1]:
                    self._waiting.remove(task)
                    self._give_up(task, f"no worker process can be started: {reason}")
            case wire.Exited(serial, reason):
                if (dead := self._supply.links.pop(serial, None)) is not None:
                    self._bury(dead, reason)

    def _bury(self, link: WorkerLink, reason: str) -> None:
        """A process is gone: hear its last words, then report an unfinished task."""
        link.dead = True
        while not link.closed and self._hear_worker(link):
            pass
        self._watch.forget(link)
        link.close()
        if (leftover := self._leftovers.pop(link.serial, None)) is not None:
            _remove_file(leftover)
        self._supply.forget_idle(link)
        self._kept.forget(link)
        task = self._tasks.pop(link.serial, None)
        if isinstance(task, JobTask) and task.is_pending:
            self._start_afresh(task)
        elif task is not None:
            self._report_crash(task, reason)
        self._assign()

    def _report_crash(self, task: Task, reason: str) -> None:
        if not self._is_open(task):
            return
        if isinstance(task, ReadTask):
            _remove_file(task.read.path)
        if (event := task.event_of_crash(reason)) is not None:
            self._conclude(task, event)
        if isinstance(task, InspectTask) and task.names:
            self._enqueue(InspectTask(task.names))

    def _give_up(self, task: Task, text: str) -> None:
        for event in task.events_of_giving_up(text):
            self._conclude(task, event)

    def _replace_server(self) -> None:
        lost = self._supply.lose_server()
        for serial, task in list(self._tasks.items()):
            if isinstance(task, InspectTask):  # not the fault of the application just imported
                del self._tasks[serial]
                self._waiting.append(InspectTask(task.names))
        for link in lost:
            self._bury(link, "its fork server ended")
        if self._supply.is_worth_a_restart:
            self._supply.restart_server()
            self._assign()
            return
        # The next task tries again.
        waiting, self._waiting = self._waiting, []
        for left in waiting:
            self._give_up(left, "no worker process can be started: the fork server ends at once")


def _remove_file(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)
