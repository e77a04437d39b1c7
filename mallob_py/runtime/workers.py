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
  WorkerCrashed, WorkerLost. Every read request ends by `cancel_read`, ReadDone or ReadFailed.
- A kept process that does not take up the next revision soon is replaced by a fresh one.
- Commands for a key that is unknown or over have no effect, for the end of a worker and a
  command for it may cross.
- A fork server that dies is replaced; its workers have crashed, tasks not yet given to a
  process go to the new one.
- `close()` leaves no process and no file of an unfinished read.
"""

from __future__ import annotations

import select
import signal
import time

import msgspec

from mallob_py.kit.app import TreeMessage
from mallob_py.runtime import worker_events as events
from mallob_py.runtime import worker_wire as wire
from mallob_py.runtime.cpu_time import cpu_seconds_of
from mallob_py.runtime.fork_server_link import ForkServer
from mallob_py.runtime.link_watch import WRITABLE
from mallob_py.runtime.memory import private_bytes_of
from mallob_py.runtime.process_news import ProcessNews, remove_file
from mallob_py.runtime.process_supply import PoolOptions
from mallob_py.runtime.task_flow import TAKE_UP_S, TaskFlow
from mallob_py.runtime.worker_events import Key, WorkerEvent
from mallob_py.runtime.worker_tasks import JobTask, ReadTask


class WorkerPool:
    """All worker processes of a rank. Closes its server with itself."""

    def __init__(self, server: ForkServer, options: PoolOptions | None = None) -> None:
        self._options = options or PoolOptions()
        self._flow = TaskFlow(server, self._options)
        self._news = ProcessNews(self._flow)

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
        if key in self._flow.jobs:
            raise ValueError(f"worker {key} runs already")
        job, context = key
        threads = self._options.threads
        run = wire.Run(job, context, index, volume, children, threads, description, chain, revision)
        task = self._flow.jobs[key] = JobTask(key, run)
        if chain and (kept := self._flow.kept.take(chain, index)) is not None:
            self._flow.go_on(task, kept)
        else:
            self._flow.enqueue(task)

    def suspend(self, key: Key) -> None:
        if (task := self._flow.jobs.get(key)) is not None and not task.suspended:
            task.suspended = True
            if task.link is None:
                self._flow.waiting.pop(task, None)
            else:
                task.link.signal(signal.SIGSTOP)

    def resume(self, key: Key, index: int, volume: int, children: tuple[int, ...]) -> None:
        """Continue a suspended worker, in the place it has now."""
        if (task := self._flow.jobs.get(key)) is None:
            return
        self.update(key, index, volume, children)
        task.suspended = False
        task.take_up_by_s = time.monotonic() + TAKE_UP_S
        if task.link is None:
            self._flow.wait(task)
            self._flow.assign()
        else:
            task.link.signal(signal.SIGCONT)

    def terminate(self, key: Key) -> None:
        """End a worker, whatever it does; no events of it follow."""
        is_working = key in self._flow.jobs
        task = self._flow.jobs.pop(key, None) or self._flow.lingering(key)
        if task is None:
            return
        if task.run.chain and task.link is not None and not task.link.dead:
            if is_working and not task.suspended:
                task.link.signal(signal.SIGSTOP)
            self._flow.keep(task, task.link, is_working or task.suspended)
        else:
            self._flow.abandon(task)

    def update(self, key: Key, index: int, volume: int, children: tuple[int, ...]) -> None:
        if (task := self._flow.jobs.get(key)) is None:
            return
        task.run = msgspec.structs.replace(task.run, index=index, volume=volume, children=children)
        if task.link is not None:
            self._flow.send(task, task.link, wire.Update(index, volume, children))

    def deliver(self, key: Key, message: TreeMessage) -> None:
        """Hand a message of another worker to this one, or report it as dropped."""
        if (task := self._flow.jobs.get(key)) is None:
            self._flow.post(events.MessageDropped(key, message))
            return
        if task.link is None:
            for dropped in task.keep(message, self._options.queue_limit_bytes):
                self._flow.post(events.MessageDropped(key, dropped))
            return
        self._flow.send(task, task.link, wire.Deliver(message.source, message.data, message.returned))

    def read(self, request_id: int, read: wire.Read) -> None:
        """Read an input in a process of its own; ReadDone or ReadFailed follows."""
        if request_id in self._flow.reads:
            raise ValueError(f"read {request_id} is under way already")
        try:
            wire.frame(read)
        except (OverflowError, TypeError, ValueError) as error:  # such as an integer beyond 64 bits
            self._flow.post(events.ReadFailed(request_id, f"cannot be passed on: {error}", "configuration"))
            return
        self._flow.reads[request_id] = ReadTask(request_id, read)
        self._flow.enqueue(self._flow.reads[request_id])

    def read_cpu_s(self, request_id: int) -> float:
        """How much CPU time a read has taken so far, or is about to have taken."""
        task = self._flow.reads.get(request_id)
        return cpu_seconds_of(task.link.pid) if task is not None and task.link is not None else 0.0

    def cancel_read(self, request_id: int) -> None:
        if (task := self._flow.reads.pop(request_id, None)) is not None:
            self._flow.abandon(task)
            if task.link is not None:
                self._flow.leftovers[task.link.serial] = task.read.path

    # --- applications -------------------------------------------------------

    def inspect_applications(self) -> None:
        """Import every application once, in a process of its own; ApplicationKnown for each."""
        self._flow.is_inspection_wanted = True
        if self._flow.names is not None:
            self._flow.inspect()

    @property
    def applications_complete(self) -> bool:
        """Whether `applications` holds all that are installed."""
        return self._flow.names is not None and self._flow.applications.keys() >= set(self._flow.names)

    def wait_for_applications(self, timeout_s: float = 60.0) -> dict[str, events.ApplicationKnown]:
        """Import every application once and tell what each is like. For start-up only: it blocks."""
        self.inspect_applications()
        deadline_s = time.monotonic() + timeout_s
        others: list[WorkerEvent] = []
        while not self.applications_complete and (left_s := deadline_s - time.monotonic()) > 0:
            select.select([self], [], [], left_s)
            others += [event for event in self.poll() if not isinstance(event, events.ApplicationKnown)]
        for event in others:
            self._flow.post(event)
        return self._flow.applications

    # --- processes ----------------------------------------------------------

    def pid_of(self, key: Key) -> int | None:
        """The worker's process, to account its memory by."""
        task = self._flow.jobs.get(key)
        return task.link.pid if task is not None and task.link is not None else None

    def cpu_seconds_of(self, key: Key) -> float | None:
        """CPU time that the worker has used so far; None if it does not run (yet)."""
        task = self._flow.jobs.get(key)
        if task is None or task.link is None or task.is_pending or task.cpu_before_s is None:
            return None
        return cpu_seconds_of(task.link.pid) - task.cpu_before_s

    def idle_pids(self) -> list[int]:
        """Processes that stand ready."""
        return [link.pid for link in self._flow.supply.idle]

    def busy_pids(self) -> list[int]:
        """Processes that have a task."""
        return [link.pid for link in self._flow.supply.links.values() if link.serial in self._flow.at_work]

    def kept_pids(self) -> list[int]:
        """Processes kept for the next revision of their job."""
        return self._flow.kept.pids()

    @property
    def generation(self) -> int:
        """How many applications the fork server has imported since it was started."""
        return self._flow.supply.generation

    @property
    def applications(self) -> dict[str, events.ApplicationKnown]:
        """What is known of applications so far (see `inspect_applications`)."""
        return self._flow.applications

    def next_deadline(self) -> float:
        """When `poll` is to be called at the latest, on `time.monotonic`."""
        return self._flow.next_deadline()

    def fileno(self) -> int:
        return self._flow.watch.fileno()

    # --- what has happened --------------------------------------------------

    def poll(self) -> list[WorkerEvent]:
        """What has happened since the last call."""
        now_s = time.monotonic()
        if now_s >= self._flow.supply.refill_at_s:
            self._flow.supply.refill(len(self._flow.waiting))
        if self._flow.pending or now_s >= self._flow.kept.next_deadline():
            self._flow.look_after_kept(now_s)
        if now_s >= self._flow.reads_under_way.look_at_s:
            self._flow.look_after_reads(now_s)
        for link, mask in self._flow.watch.ready():
            if link is None:
                self._news.hear_server()
                continue
            if mask & WRITABLE:
                link.flush()
                self._flow.watch.watch(link)
            if mask & ~WRITABLE:
                self._news.hear_worker(link)
        happened, self._flow.events = self._flow.events, []
        return happened

    def close(self) -> None:
        """End all processes and wait until they are gone (bounded)."""
        if self._flow.watch.closed:
            return
        self._flow.supply.close()
        for path in [*self._flow.leftovers.values(), *(task.read.path for task in self._flow.reads.values())]:
            remove_file(path)
        self._flow.reads.clear()
        self._flow.jobs.clear()
        self._flow.watch.close()

    # --- giving something back -----------------------------------------------

    def drop_chain(self, chain: int) -> None:
        """No further revision of this chain comes: keep nothing of it."""
        for link in self._flow.kept.drop_chain(chain):
            self._flow.supply.discard(link)

    def drop_kept(self, wanted_bytes: int) -> int:
        """Memory is short: let go of so much of what is kept, oldest first; what is expected to come free."""
        given_bytes = 0
        for link in self._flow.kept.drop_oldest(wanted_bytes):
            given_bytes += private_bytes_of(link.pid)
            self._flow.supply.discard(link)
        return given_bytes

    def keep_none_ready(self) -> None:
        """Memory is short: end spare processes, and have none until `keep_ready`."""
        self._flow.supply.keep_none_ready()

    def keep_ready(self) -> None:
        self._flow.supply.keep_ready()
