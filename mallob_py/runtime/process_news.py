"""What worker processes and the fork server say, and what follows from it.

A process that ends is heard out first: its last words may be its result. Only then is it a crash.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from mallob_py.runtime import worker_wire as wire
from mallob_py.runtime.task_flow import TaskFlow
from mallob_py.runtime.worker_link import WorkerLink
from mallob_py.runtime.worker_tasks import READERS_MAX, InspectTask, JobTask, ReadTask, Task

_FORK_AGAIN_S = 0.1


class ProcessNews:
    """Takes in what comes from processes and turns it into events and new work of the task flow."""

    def __init__(self, flow: TaskFlow) -> None:
        self._flow = flow

    def hear_worker(self, link: WorkerLink) -> bool:
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
            self._flow.watch.forget(link)
            link.close_socket()
            self._flow.supply.forget_idle(link)
        return bool(messages)

    def _hear(self, link: WorkerLink, message: wire.FromWorker) -> None:
        if link in self._flow.kept:
            return  # the last words on a revision that is over
        task = self._flow.at_work.get(link.serial)
        if isinstance(task, JobTask) and task.is_pending and not self._turns_to(task, message):
            return
        if isinstance(message, wire.Idle):
            self._take_back(link, message.private_bytes)
            return
        if task is None or not self._flow.is_open(task):
            return  # such as a second result
        if isinstance(message, wire.Started) and message.newly_imported:
            self._flow.supply.import_application(message.application)
        if (event := task.event_of(message)) is not None:
            self._flow.conclude(task, event)

    def _turns_to(self, task: JobTask, message: wire.FromWorker) -> bool:
        """Whether a kept process has come to its new task; what it says before concerns an old one."""
        if not isinstance(message, wire.Started) or (message.job, message.context) != task.key:
            return False
        task.is_pending = False
        self._flow.pending.discard(task)
        return True

    def _take_back(self, link: WorkerLink, private_bytes: int) -> None:
        task = self._flow.at_work.pop(link.serial, None)
        if task is None:  # nothing to be done with: only a damaged process says so
            link.signal(signal.SIGKILL)
            return
        if isinstance(task, JobTask) and task.run.chain:
            self._flow.keep(task, link, task.suspended)
            return
        if isinstance(task, JobTask) and task.suspended:
            link.signal(signal.SIGCONT)  # it was stopped after its last word
        self._flow.supply.take_back(link, private_bytes)
        self._flow.assign()

    # --- from the fork server -----------------------------------------------

    def hear_server(self) -> None:
        try:
            while (news := self._flow.supply.receive()) is not None:
                self._hear_news(news)
        except EOFError:
            self._replace_server()

    def _hear_news(self, news: wire.FromServer) -> None:
        match news:
            case wire.Applications(names):
                self._flow.names = names
                if self._flow.is_inspection_wanted:
                    self._flow.inspect()
            case wire.Forked() | wire.Imported():
                self._flow.assign()
            case wire.ForkFailed() if self._flow.kept.pids():
                for link in self._flow.kept.drop_all():
                    self._flow.supply.discard(link)
                self._flow.assign()
            case wire.ForkFailed(reason):
                self._do_without(f"no worker process can be started: {reason}")
            case wire.Exited(serial, reason, cpu_s):
                if (dead := self._flow.supply.links.pop(serial, None)) is not None:
                    self._bury(dead, reason, cpu_s)

    def _do_without(self, text: str) -> None:
        """A fork has failed. A worker is lost, for another PE has its place; what must be done here waits."""
        flow, now_s = self._flow, time.monotonic()
        workers = (task for task in flow.waiting if isinstance(task, JobTask))
        task = next(workers, None) or next(iter(flow.waiting), None)
        if task is None:
            return
        if not isinstance(task, JobTask) and task.waits_on(now_s):
            flow.supply.refill_at_s = min(flow.supply.refill_at_s, now_s + _FORK_AGAIN_S)
            return
        del flow.waiting[task]
        flow.give_up(task, text)

    def _bury(self, link: WorkerLink, reason: str, cpu_s: float = 0.0) -> None:
        """A process is gone: hear its last words, then report an unfinished task."""
        link.dead = True
        while not link.closed and self.hear_worker(link):
            pass
        self._flow.watch.forget(link)
        link.close()
        if (leftover := self._flow.leftovers.pop(link.serial, None)) is not None:
            remove_file(leftover)
        self._flow.supply.forget_idle(link)
        self._flow.kept.forget(link)
        task = self._flow.at_work.pop(link.serial, None)
        if isinstance(task, JobTask) and task.is_pending:
            self._flow.start_afresh(task)
        elif task is not None:
            self._report_crash(task, reason, cpu_s)
        self._flow.assign()

    def _report_crash(self, task: Task, reason: str, cpu_s: float) -> None:
        if not self._flow.is_open(task):
            return
        if isinstance(task, ReadTask):
            remove_file(task.read.path)
            task.crashes += 1
            if task.crashes < READERS_MAX:
                task.link = None
                self._flow.waiting[task] = None
                return
        if (event := task.event_of_crash(reason, cpu_s)) is not None:
            self._flow.conclude(task, event)
        if isinstance(task, InspectTask) and task.names:
            self._flow.enqueue(InspectTask(task.names))

    def _replace_server(self) -> None:
        lost = self._flow.supply.lose_server()
        for serial, task in list(self._flow.at_work.items()):
            if isinstance(task, InspectTask):  # not the fault of the application just imported
                del self._flow.at_work[serial]
                self._flow.wait(InspectTask(task.names))
        for link in lost:
            self._bury(link, "its fork server ended")
        if not self._flow.supply.is_worth_a_restart:
            self._flow.give_up_all("no worker process can be started: the fork server ends at once")
        elif self._flow.restart_server():
            self._flow.assign()


def remove_file(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)
