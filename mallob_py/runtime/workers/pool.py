"""The worker processes of one rank, as its event loop uses them. Nothing here blocks.

Commands (`start`, `suspend`, `resume`, `leave`, `terminate`, `update`, `deliver`, `read`) return at once;
`fileno()` is readable when `poll()` has events to return (`tasks.WorkerEvent`).

The rank's fork server forks processes; `warm` of them are spare, so a start costs only a message. A process
is used again if its task ended by itself and the process has little memory. A terminated process is killed,
unless it was the worker of a chain of revisions: then it is kept for the next revision, for a while
(`KeptWorkers`). An application that a worker has imported without harm is imported by the server, too;
processes forked before that import are stale, and are not used again.

Guarantees
- Every started key ends by exactly one of: `terminate`, WorkerAnswered, WorkerRaised, WorkerCrashed,
  WorkerLost, WorkerLeft. Every read request ends by `cancel_read`, ReadDone or ReadFailed.
- When a process ends, its last messages, perhaps its result, are read before its end counts as a crash.
- A kept process that does not begin the next revision soon is replaced by a new process.
- Commands for an unknown or ended key have no effect, since a worker's end and a command for it may cross.
- A fork server that dies is replaced; its workers have crashed, and tasks without a process go to the new
  server.
- `close()` leaves no process and no file of an unfinished read.
"""

from __future__ import annotations

import math
import os
import select
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

import msgspec

from mallob_py.kit.app import TreeMessage
from mallob_py.protocol import stimuli
from mallob_py.runtime import worker_wire as wire
from mallob_py.runtime.memory import cpu_seconds_of
from mallob_py.runtime.processes import is_stopped
from mallob_py.runtime.workers.giving import Given
from mallob_py.runtime.workers.inspection import Inspection
from mallob_py.runtime.workers.kept import KeptWorker, KeptWorkers
from mallob_py.runtime.workers.links import ENDED, WRITABLE, ForkServer, LinkWatch, WorkerLink
from mallob_py.runtime.workers.starved import Starved
from mallob_py.runtime.workers.supply import PoolOptions, Processes
from mallob_py.runtime.workers.tasks import (
    FINAL_EVENTS,
    STALLED_MAX,
    ApplicationKnown,
    InspectTask,
    JobTask,
    Key,
    ReadFailed,
    ReadGoesOn,
    Reads,
    ReadStalled,
    ReadTask,
    Starter,
    Task,
    WorkerEvent,
    missed,
)

#: longest time for a kept process to begin its new task; after that, it is replaced
TAKE_UP_S = 1.0
#: worker number of a run that a kept process begins before the worker is started; longest time for such a run
AHEAD, _AHEAD_S = -1, 0.05
#: greatest number of workers remembered whose processes must be passed on; there never are more than a few
_ONWARD_MAX = 64
_FORK_AGAIN_S = 0.1
#: period of looking for workers that other programs have stopped by a signal
_STOPPED_S = 1.5


class WorkerPool:
    """All worker processes of a rank. `close` also ends the fork server."""

    def __init__(
        self,
        server: ForkServer,
        options: PoolOptions | None = None,
        watch: LinkWatch | None = None,
        make_link: Callable[..., WorkerLink] = WorkerLink,
        clock: Callable[[], float] = time.monotonic,
        starved: Starved | None = None,
    ) -> None:
        self._options = options = options or PoolOptions()
        self._clock = clock
        self._watch = watch or LinkWatch()
        self.processes = Processes(server, self._watch, options, make_link, clock)
        #: events since the last `poll`
        self._events: list[WorkerEvent] = []
        self._jobs: dict[Key, JobTask] = {}
        self._reads: dict[int, ReadTask] = {}
        #: tasks that need a process, in order (the dict is an ordered set)
        self._waiting: dict[Task, None] = {}
        self._reads_under_way = Reads(options.max_reads)
        #: serial of a process -> its task
        self._at_work: dict[int, Task] = {}
        #: serial of a process -> file to remove when this process, which may write it, has ended
        self._leftovers: dict[int, str] = {}
        self.kept = KeptWorkers(options.kept_max, options.kept_bytes_max, options.kept_s)
        #: tasks not begun yet that were handed to kept processes, or for which other ranks give processes
        self._pending: set[JobTask] = set()
        self._starter = Starter()
        #: worker whose process is still to come -> rank to which the process must be passed on, and the
        #: receiving worker
        self._onward: dict[Key, tuple[int, Key]] = {}
        self.inspection = Inspection()
        #: tasks that pause because their processes were killed when memory was short
        self.starved = starved or Starved()
        self._look_for_stopped_at_s = math.inf
        self._assign()

    # --- commands -----------------------------------------------------------

    def start(
        self,
        key: Key,
        index: int,
        volume: int,
        children: tuple[int, ...],
        description: wire.LocalDescription,
        chain: int = 0,
        revision: int = 0,
        is_given: bool = False,
        is_alone: bool = False,
    ) -> None:
        """Start a worker; WorkerStarted follows when its application runs.

        `is_given`: the worker's process runs already, and another rank will hand it over. `is_alone`: see
        `WorkerContext`.
        """
        if key in self._jobs:
            raise ValueError(f"worker {key} runs already")
        job, number = key
        threads = self._options.threads
        run = wire.Run(job, number, index, volume, children, threads, description, chain, revision, is_alone)
        task = self._jobs[key] = JobTask(key, run)
        self._look_for_stopped_at_s = min(self._look_for_stopped_at_s, self._clock() + _STOPPED_S)
        kept = self.kept.take(chain, index) if chain else None
        if kept is not None and kept.ahead_of and (kept.ahead_of, 0) != (job, index):
            self.processes.discard(kept.link)  # the input it has read may not be in the chain any more
            kept = None
        if kept is not None:
            self._go_on(task, kept)
        elif is_given and self.processes.giving is not None:
            task.is_pending = True
            task.take_up_by_s = self._clock() + TAKE_UP_S
            self._pending.add(task)
        else:
            self._enqueue(task)

    def start_anew(self, key: Key) -> None:
        """Start a new process for a worker, because no other rank gives it the process that it waits for."""
        if (task := self._jobs.get(key)) is not None and task.is_awaited:
            self._start_afresh(task)
            self._assign()

    def give(self, key: Key, told_cpu_s: float, rank: int, receiver: Key) -> None:
        """Give a suspended worker's process to another rank, for its worker `receiver`.

        `told_cpu_s`: the worker's CPU time that this rank has reported to the client.
        """
        task = self._jobs.pop(key, None)
        if task is not None and task.is_awaited:
            self._pending.discard(task)
            self._onward[key] = rank, receiver
            if len(self._onward) > _ONWARD_MAX:
                del self._onward[next(iter(self._onward))]
            return
        link = None if task is None else task.given_link()
        if task is None or link is None:
            if self.processes.giving is not None:
                self.processes.giving.send(rank, Given(*receiver))
            if task is not None:
                self._abandon(task)
            return
        del self._at_work[link.serial]
        before_s = (task.cpu_before_s or 0.0) + told_cpu_s
        told_s = task.cpu_told_s + told_cpu_s
        given = Given(*receiver, cpu_before_s=before_s, cpu_told_s=told_s, leaves=task.leaves)
        self.processes.give(link, rank, given)

    def suspend(self, key: Key) -> None:
        """Stop a worker's process wherever it is in its work.

        A worker whose application is not running yet may start it first, unless another worker does so:
        otherwise turns shorter than a start would pass without any work.
        """
        if (task := self._jobs.get(key)) is None or task.suspended:
            return
        task.suspended = True
        if task.link is None:
            self._waiting.pop(task, None)
            self.starved.leave_out(task)
        elif not (task.is_starting and self._starter.admits(task, self._clock() + TAKE_UP_S)):
            task.link.signal(signal.SIGSTOP)

    def resume(self, key: Key, index: int, volume: int, children: tuple[int, ...]) -> None:
        """Continue a suspended worker at its present place in the job tree."""
        if (task := self._jobs.get(key)) is None:
            return
        self.update(key, index, volume, children)
        task.suspended = False
        if task.link is not None:
            task.take_up_by_s = self._clock() + TAKE_UP_S
            task.link.signal(signal.SIGCONT)
        elif not task.is_awaited:
            self._wait(task)
        if self._waiting:
            self._assign()

    def give_checkpoint(self, key: Key, data: bytes | None) -> None:
        """Hand the last checkpoint to a worker that has asked for it."""
        if (task := self._jobs.get(key)) is not None and task.link is not None:
            self._send(task, task.link, wire.CheckpointGiven(data))

    def leave(self, key: Key) -> None:
        """Have a worker hand over its work; WorkerLeft follows."""
        if (task := self._jobs.get(key)) is not None and task.link is not None:
            task.late = []
            self._send(task, task.link, wire.Leave())

    def terminate(self, key: Key) -> None:
        """End a worker in any state; no event about it follows."""
        is_working = key in self._jobs
        task = self._jobs.pop(key, None)
        if task is None:  # the worker may still run after it has given its result
            tasks = (one for one in self._at_work.values() if isinstance(one, JobTask) and one.key == key)
            if (task := next(tasks, None)) is None:
                return
        if task.run.chain and task.link is not None and not task.link.dead:
            if is_working and not task.suspended:
                task.link.signal(signal.SIGSTOP)
            self._keep(task, task.link, is_working or task.suspended)
        else:
            self._abandon(task)

    def update(self, key: Key, index: int, volume: int, children: tuple[int, ...]) -> None:
        if (task := self._jobs.get(key)) is None:
            return
        task.run = msgspec.structs.replace(task.run, index=index, volume=volume, children=children)
        if task.link is not None:
            self._send(task, task.link, wire.Update(index, volume, children))

    def deliver(self, key: Key, message: TreeMessage) -> None:
        """Hand another worker's message to worker `key`, or report the message as dropped."""
        if (task := self._jobs.get(key)) is None:
            self._post(missed(key, message))
            return
        if task.link is None:
            for dropped in task.keep(message, self._options.queue_limit_bytes):
                self._post(missed(key, dropped))
            return
        order = wire.Deliver(message.source, message.sender, message.data, message.returned)
        if task.late is not None:
            task.late.append(order)
        self._send(task, task.link, order)

    def read(self, request_id: int, read: wire.Read, chain: int = 0) -> None:
        """Have a process read an input; ReadDone or ReadFailed follows.

        A process kept for the `chain` reads at once, if the input contains no files.
        """
        if request_id in self._reads:
            raise ValueError(f"read {request_id} is under way already")
        try:
            wire.frame(read)
        except (OverflowError, TypeError, ValueError) as error:  # such as integers beyond 64 bits
            self._post(ReadFailed(request_id, f"cannot be passed on: {error}", "configuration"))
            return
        task = self._reads[request_id] = ReadTask(request_id, read)
        before = read.before
        if (
            not chain
            or before is None
            or (read.files or before.inputs)
            or (kept := self.kept.take(chain, 0, at_rest=True)) is None
        ):
            self._enqueue(task)
            return
        task.link, task.kept, task.since_s = kept.link, kept, self._clock()
        works = any(isinstance(one, JobTask) and not one.suspended for one in self._at_work.values())
        if kept.index == 0 and not works:  # the process may begin the run right after reading
            place = 0, 1, (), self._options.threads, wire.Inline(b"")
            run = wire.Run(request_id, AHEAD, *place, chain, before.revision)
            task.read = read = msgspec.structs.replace(read, then=run)
        self._at_work[kept.link.serial] = task
        kept.link.send(read)
        self._watch.watch(kept.link)

    def read_used_s(self, request_id: int) -> tuple[float, float]:
        """Return for how long a read has had a process [s], and the read's CPU time so far [s]."""
        task = self._reads.get(request_id)
        if task is None or task.link is None:
            return 0.0, 0.0
        cpu_s = max(0.0, cpu_seconds_of(task.link.pid) - task.link.cpu_before_s)
        return max(0.0, self._clock() - task.since_s), cpu_s

    def cancel_read(self, request_id: int) -> None:
        if (task := self._reads.pop(request_id, None)) is not None:
            self._abandon(task)
            if task.link is not None:
                self._leftovers[task.link.serial] = task.read.path

    # --- applications -------------------------------------------------------

    def inspect_applications(self, only: str | None = None) -> None:
        """Import all applications, or only `only`, in worker processes; ApplicationKnown follows for each."""
        if (names := self.inspection.want(only)) is None:
            self.processes.find_applications()
        else:
            self._enqueue(InspectTask(names))

    def wait_for_applications(
        self, only: str | None = None, timeout_s: float = 60.0
    ) -> dict[str, wire.ApplicationTraits]:
        """Import applications once and return their traits. Only for a rank's start, since the call blocks.

        An application whose import takes longer than `timeout_s` (perhaps because it compiles) is returned
        with this problem instead of its traits.
        """
        if self.inspection.told:
            return self.inspection.told
        self.inspect_applications(only)
        deadline_s = self._clock() + timeout_s
        others: list[WorkerEvent] = []
        while not self.inspection.is_complete and (left_s := deadline_s - self._clock()) > 0:
            select.select([self], [], [], max(0.0, min(left_s, self.next_deadline() - self._clock())))
            others += [event for event in self.poll() if not isinstance(event, ApplicationKnown)]
        for event in others:
            self._post(event)
        return self.inspection.known_or_late(timeout_s)

    # --- processes ----------------------------------------------------------

    def pid_of(self, key: Key | int) -> int | None:
        """Return the process id of a worker, or of a read (`key`: its request); None: it has no process."""
        task = self._reads.get(key) if isinstance(key, int) else self._jobs.get(key)
        return task.link.pid if task is not None and task.link is not None else None

    def cpu_seconds_of(self, key: Key) -> float | None:
        """Return a worker's CPU time so far [s]; None: the worker does not run."""
        task = self._jobs.get(key)
        if task is None or task.link is None or task.is_pending or task.cpu_before_s is None:
            return None
        return cpu_seconds_of(task.link.pid) - task.cpu_before_s

    def next_deadline(self) -> float:
        """Return the time (`time.monotonic`) at which `poll` must be called."""
        take_up_s = min((task.take_up_by_s for task in self._pending if not task.suspended), default=math.inf)
        giving = self.processes.giving
        return min(
            self.processes.refill_at_s,
            math.inf if giving is None else giving.deadline_s,
            self.kept.deadline_s,
            take_up_s,
            self._starter.until_s,
            self._reads_under_way.look_at_s,
            self._look_for_stopped_at_s,
            self.starved.look_at_s,
        )

    def fileno(self) -> int:
        return self._watch.fileno()

    # --- events -------------------------------------------------------------

    def poll(self) -> list[WorkerEvent]:
        """Return the events since the last call."""
        now_s = self._clock()
        if now_s >= self.processes.refill_at_s:
            self.processes.refill(len(self._waiting))
        if (giving := self.processes.giving) is not None and now_s >= giving.deadline_s:
            giving.turn(now_s)
        if self._pending or now_s >= self.kept.deadline_s:
            self._look_after_kept(now_s)
        if now_s >= self._starter.until_s:
            self._starter.stop()
            self._assign()
        if now_s >= self._reads_under_way.look_at_s:
            self._look_after_reads(now_s)
        if now_s >= self._look_for_stopped_at_s:
            _wake_stopped(self._jobs.values())
            self._look_for_stopped_at_s = now_s + _STOPPED_S if self._jobs else math.inf
        if now_s >= self.starved.look_at_s and (rested := self.starved.awake(now_s)) is not None:
            self._enqueue(rested)
        for link, mask in self._watch.ready():
            if link is None:
                self._hear_server()
                self._hear_givers()
                continue
            if mask == ENDED:
                self._bury(link, _unseen("it ended at another rank's fork server"))
                continue
            if mask & WRITABLE:
                link.flush()
                self._watch.watch(link)
            if mask & ~WRITABLE:
                self._hear_worker(link)
        happened, self._events = self._events, []
        return happened

    def close(self) -> None:
        """End all processes, and wait a bounded time until they have ended."""
        if self._watch.closed:
            return
        self.processes.close()
        for path in [*self._leftovers.values(), *(task.read.path for task in self._reads.values())]:
            remove_file(path)
        self._reads.clear()
        self._jobs.clear()
        self._watch.close()

    # --- tasks and their processes -----------------------------------------

    def _post(self, event: WorkerEvent) -> None:
        """Add an event that a command has caused, and wake the loop, so that it calls `poll`."""
        self._events.append(event)
        self._watch.wake()

    def _send(self, task: JobTask, link: WorkerLink, message: wire.ToWorker) -> None:
        for dropped in link.send(message):
            if task.late is not None:  # `Left.taken` counts only messages that were sent
                task.late = [one for one in task.late if one is not dropped]
            self._post(missed(task.key, dropped))
        self._watch.watch(link)

    def _enqueue(self, task: Task) -> None:
        self._wait(task)
        if not self.processes.is_given_up or self._restart_server():
            self._assign()

    def _restart_server(self) -> bool:
        """Replace the fork server. If that is impossible, give up all waiting tasks."""
        try:
            self.processes.restart_server()
        except OSError as error:
            self._give_up_all(f"no worker process can be started: no fork server either: {error.strerror}")
            return False
        if self.inspection.is_waiting_for_names:
            self.processes.find_applications()
        return True

    def _give_up_all(self, text: str) -> None:
        """Give up all waiting tasks because there is no fork server; the next task tries to start one."""
        while self._waiting:
            task = next(iter(self._waiting))
            del self._waiting[task]
            self._give_up(task, text)
        self._watch.wake()

    def _wait(self, task: Task) -> None:
        """Queue a task; a suspended task is queued when it is resumed, a starved task after its pause."""
        match task:
            case JobTask(suspended=True):
                return
            case _ if self.starved.holds(task, self._clock()):
                return
            case ReadTask() if not self._reads_under_way.admits(task, self._clock()):
                return
        self._waiting[task] = None

    def _assign(self) -> None:
        """Give waiting tasks to idle processes, and have more processes forked if they are needed."""
        self._waiting |= dict.fromkeys(self._reads_under_way.following(self._clock()))
        ready = deque(self._waiting)
        if ready and any(task.suspended for task in self._jobs.values()):
            ready = self._reads_under_way.ready(ready, self._starter.starting)
        while ready and self.processes.idle:
            task = ready.popleft()
            del self._waiting[task]
            link = self.processes.idle.pop()
            task.link = link
            if isinstance(task, ReadTask):
                task.since_s = min(task.since_s, self._clock())
            self._at_work[link.serial] = task
            link.send(task.first_message())
            self._watch.watch(link)
            if isinstance(task, JobTask) and task.early:
                for message in task.take_early():
                    self._send(task, link, message)
        self.processes.top_up(len(ready))

    def _abandon(self, task: Task) -> None:
        if isinstance(task, ReadTask):
            self._end_read(task)
        if isinstance(task, JobTask):
            self._pending.discard(task)
        if task.link is None:
            self._waiting.pop(task, None)
            self.starved.leave_out(task)
            return
        self._at_work.pop(task.link.serial, None)
        self.processes.discard(task.link)

    def _end_read(self, task: ReadTask) -> None:
        """End a read, and begin the next one."""
        self._reads_under_way.end(task)
        self._waiting |= dict.fromkeys(self._reads_under_way.following(self._clock()))

    def _look_after_reads(self, now_s: float) -> None:
        """See that reads whose inputs do not arrive delay no other reads."""
        changes = self._reads_under_way.look(now_s)
        self._events += [ReadStalled(task.request_id) for task in changes.stalled]
        self._events += [ReadGoesOn(task.request_id) for task in changes.going_on]
        for task in changes.surplus:
            text = f"no more of the input comes, and {STALLED_MAX} other inputs stall, too; send it anew"
            self._conclude(task, ReadFailed(task.request_id, text, "files"))
            self._abandon(task)
            if task.link is not None:
                self._leftovers[task.link.serial] = task.read.path
        self._assign()

    # --- the ends of tasks ---------------------------------------------------------

    def _is_open(self, task: Task) -> bool:
        match task:
            case JobTask(key=key):
                return self._jobs.get(key) is task
            case ReadTask(request_id=request_id):
                return self._reads.get(request_id) is task
        return True

    def _conclude(self, task: Task, event: WorkerEvent) -> None:
        """Report an event of an open task, and close the task if the event ends it."""
        self._events.append(event)
        if isinstance(event, ApplicationKnown):
            self.inspection.note(event.traits)
        if not isinstance(event, FINAL_EVENTS):
            return
        match task:
            case JobTask(key=key):
                del self._jobs[key]
                if not isinstance(event, stimuli.WorkerCrashed):
                    self.starved.forget(task)
            case ReadTask(request_id=request_id, kept=kept):
                del self._reads[request_id]
                self.starved.forget(task)
                self._end_read(task)
                if kept is not None and task.link is not None and not task.link.dead:
                    del self._at_work[task.link.serial]
                    now_s, size_bytes = self._clock(), kept.size_bytes
                    gone = self.kept.keep(kept.link, kept.chain, kept.index, False, now_s, size_bytes)
                    self.processes.discard_all(gone)
                    if task.goes_on:
                        self.kept.going_ahead(task.link, request_id, now_s + _AHEAD_S)

    def _give_up(self, task: Task, text: str) -> None:
        for event in task.events_of_giving_up(text):
            self._conclude(task, event)

    # --- processes kept for the next revision -----------------------------------

    def _keep(
        self, task: JobTask, link: WorkerLink, is_stopped: bool, private_bytes: int | None = None
    ) -> None:
        self._at_work.pop(link.serial, None)
        self._pending.discard(task)
        run = task.run
        now_s = self._clock()
        gone = self.kept.keep(link, run.chain, run.index, is_stopped, now_s, private_bytes)
        self.processes.discard_all(gone)

    def _go_on(self, task: JobTask, kept: KeptWorker) -> None:
        """Give a kept process its task for the next revision."""
        task.link, task.is_pending = kept.link, True
        task.take_up_by_s = self._clock() + TAKE_UP_S
        self._at_work[kept.link.serial] = task
        self._pending.add(task)
        if kept.is_stopped:
            kept.link.signal(signal.SIGCONT)
        if not kept.ahead_of:
            self._send(task, kept.link, task.run)
            return
        if (run := task.run).volume != 1 or run.children:
            self._send(task, kept.link, wire.Update(run.index, run.volume, run.children))
        for message in kept.said:
            self._hear(kept.link, message)
        self._watch.wake()

    def _look_after_kept(self, now_s: float) -> None:
        self.kept.stop_late(now_s)
        self.processes.discard_all(self.kept.drop_expired(now_s))
        for task in [task for task in self._pending if not task.suspended and task.take_up_by_s <= now_s]:
            if task.link is not None:
                self.processes.discard(task.link)
            self._start_afresh(task)
            self._assign()

    def _start_afresh(self, task: JobTask) -> None:
        """Have a task wait for a new process: its kept process is useless, or no other rank gives one."""
        if task.link is not None:
            self._at_work.pop(task.link.serial, None)
        self._pending.discard(task)
        task.link, task.is_pending = None, False
        self._wait(task)

    # --- messages of worker processes ---------------------------------------

    def _hear_worker(self, link: WorkerLink) -> bool:
        """Take in a process's messages; return whether there were any."""
        try:
            messages, at_end = link.receive()
        except wire.BrokenStream:
            # A process that breaks the framing has damaged memory: kill it below, so that it is reported as
            # crashed.
            messages, at_end = [], True
        for message in messages:
            if not link.closed:
                self._hear(link, message)
        if at_end and not link.closed:
            link.signal(signal.SIGKILL)
            if link.is_given and not link.dead:
                self._bury(link, _unseen("its connection has ended"))
                return False
            self._watch.forget(link)
            link.close_socket()
            self.processes.forget_idle(link)
        return bool(messages)

    def _hear(self, link: WorkerLink, message: wire.FromWorker) -> None:
        task = self._at_work.get(link.serial)
        if task is None and link in self.kept:
            if not self.kept.hear(link, message):  # the process has sent too many messages
                self.kept.forget(link)
                self.processes.discard(link)
            return
        if isinstance(task, JobTask) and task.is_pending and not self._turns_to(task, message):
            return
        if isinstance(message, wire.Idle):
            link.cpu_before_s = message.cpu_s
            self._take_back(link, message.private_bytes)
            return
        if task is None or not self._is_open(task):
            return  # the message may be a second result
        if isinstance(message, wire.Imports | wire.Started):
            self._reads_under_way.note_import(message, self.processes.import_application)
        if isinstance(task, JobTask) and isinstance(message, wire.Left) and task.late:
            for late in task.late[message.taken :]:
                self._conclude(task, missed(task.key, late))
        if (event := task.event_of(message)) is not None:
            self._conclude(task, event)
        if isinstance(message, wire.Started) and isinstance(task, JobTask) and task.suspended:
            link.signal(signal.SIGSTOP)
        if isinstance(message, wire.Imports | wire.Started):
            self._assign()

    def _turns_to(self, task: JobTask, message: wire.FromWorker) -> bool:
        """Tell whether a kept process has begun its new task; earlier messages are about an old task."""
        keys = task.key, (task.key[0], AHEAD)
        if not isinstance(message, wire.Started) or (message.job, message.number) not in keys:
            return False
        task.is_pending = False
        self._pending.discard(task)
        return True

    def _take_back(self, link: WorkerLink, private_bytes: int) -> None:
        task = self._at_work.pop(link.serial, None)
        if task is None:  # only a damaged process sends this without a task
            self.processes.forget_idle(link)
            link.signal(signal.SIGKILL)
            return
        if isinstance(task, JobTask) and task.run.chain:
            self._keep(task, link, task.suspended, private_bytes)
            return
        if isinstance(task, JobTask) and task.suspended:
            link.signal(signal.SIGCONT)  # the process was stopped after its last message
        self.processes.take_back(link, private_bytes)
        self._assign()

    # --- processes given by other ranks of the host ------------------------

    def _hear_givers(self) -> None:
        """Continue processes that other ranks give; a process that is not awaited any more ends."""
        has_come = False
        while self.processes.giving is not None and (come := self.processes.giving.receive()) is not None:
            has_come = True
            given, descriptors = come
            if (onward := self._onward.pop((given.job, given.number), None)) is not None:
                self.processes.pass_on(given, descriptors, *onward)
                continue
            task = self._jobs.get((given.job, given.number))
            if task is None or not task.is_awaited:
                for descriptor in descriptors:
                    os.close(descriptor)
                continue
            if not descriptors:
                self._start_afresh(task)
                continue
            self._pending.discard(task)
            task.is_pending = False
            task.cpu_before_s, task.cpu_told_s = given.cpu_before_s, given.cpu_told_s
            task.leaves = given.leaves
            task.link = link = self.processes.adopt(given, descriptors)
            self._at_work[link.serial] = task
            self._send(task, link, wire.Update(task.run.index, task.run.volume, task.run.children))
            for message in task.take_early():
                self._send(task, link, message)
            if not task.suspended:
                link.signal(signal.SIGCONT)
            self._events.append(stimuli.WorkerStarted(task.number, task.leaves))
        if has_come:  # else a failed fork would be tried again at once
            self._assign()

    # --- reports of the fork server -----------------------------------------

    def _hear_server(self) -> None:
        try:
            while (news := self.processes.receive()) is not None:
                self._hear_news(news)
        except EOFError:
            self._replace_server()

    def _hear_news(self, news: wire.FromServer) -> None:
        match news:
            case wire.Applications(names):
                if wanted := self.inspection.name_all(names):
                    self._enqueue(InspectTask(wanted))
            case wire.Forked():
                self._assign()
            case wire.Imported(application=application):
                self._reads_under_way.know(application)
                self._assign()
            case wire.ForkFailed() if len(self.kept):
                self.processes.discard_all(self.kept.drop_all())
                self._assign()
            case wire.ForkFailed(reason):
                self._do_without(f"no worker process can be started: {reason}")
            case wire.Exited(serial):
                if (dead := self.processes.links.pop(serial, None)) is not None:
                    self._bury(dead, news)

    def _do_without(self, text: str) -> None:
        """Handle a failed fork: a worker is lost, so that another PE takes its place; other tasks wait on."""
        now_s = self._clock()
        workers = (task for task in self._waiting if isinstance(task, JobTask))
        task = next(workers, None) or next(iter(self._waiting), None)
        if task is None:
            return
        if not isinstance(task, JobTask) and task.waits_on(now_s):
            self.processes.refill_at_s = min(self.processes.refill_at_s, now_s + _FORK_AGAIN_S)
            return
        del self._waiting[task]
        self._give_up(task, text)

    def _bury(self, link: WorkerLink, end: wire.Exited) -> None:
        """Handle a process's end: read its last messages, then report an unfinished task."""
        link.dead = True
        while not link.closed and self._hear_worker(link):
            pass
        self.processes.release(link)
        if (leftover := self._leftovers.pop(link.serial, None)) is not None:
            remove_file(leftover)
        self.processes.forget_idle(link)
        self.kept.forget(link)
        task = self._at_work.pop(link.serial, None)
        if isinstance(task, JobTask) and task.is_pending:
            self._start_afresh(task)
        elif task is not None:
            self._report_crash(task, end)
        self._assign()

    def _report_crash(self, task: Task, end: wire.Exited) -> None:
        if not self._is_open(task):
            return
        is_spared, reason, now_s = False, end.reason, self._clock()
        if end.was_killed and self.starved.kills.explain(now_s):
            is_spared = self.starved.note_death(task, end.peak_bytes, now_s)
            used = f"; it had used {end.peak_bytes >> 20} MB" if end.peak_bytes else ""
            reason = f"{reason} while memory was short{used}"
        if isinstance(task, ReadTask):
            remove_file(task.read.path)
            if is_spared or task.other_readers.next_delay_s() is not None:
                task.link = task.kept = None
                self._wait(task)
                return
        if isinstance(task, InspectTask) and is_spared:
            self._wait(InspectTask(task.names))
            return
        if (event := task.event_of_crash(reason, end.cpu_s, is_spared)) is not None:
            self._conclude(task, event)
        if isinstance(task, InspectTask) and task.names:
            self._enqueue(InspectTask(task.names))

    def _replace_server(self) -> None:
        lost = self.processes.lose_server()
        self._reads_under_way.await_no_import()
        self._waiting |= dict.fromkeys(self._reads_under_way.following(self._clock()))
        for serial, task in list(self._at_work.items()):
            if isinstance(task, InspectTask):  # the application just imported is not at fault
                del self._at_work[serial]
                self._wait(InspectTask(task.names))
        for link in lost:
            self._bury(link, _unseen("its fork server ended"))
        if not self.processes.is_worth_a_restart:
            self._give_up_all("no worker process can be started: the fork server ends at once")
        elif self._restart_server():
            self._assign()


def _unseen(reason: str) -> wire.Exited:
    """Return the news of a process's end that no fork server reports, as if the process was killed."""
    return wire.Exited(0, reason, 0.0, was_killed=True)


def _wake_stopped(tasks: Iterable[JobTask]) -> None:
    """Continue processes that were stopped, but not by the pool: the application may have stopped them."""
    for task in tasks:
        if task.link is not None and not task.suspended and is_stopped(task.link.pid):
            task.link.signal(signal.SIGCONT)


def remove_file(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)
