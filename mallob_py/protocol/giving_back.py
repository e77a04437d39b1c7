"""Giving back: what a PE gives up when its host is short of memory, its rank leaves, or the system ends.

**Short of memory** (which the PE's caller measures). First suspended workers are dropped, least recently used
first, as if the cache were full: queries for them are denied (race 7). Then the running worker, unless it is
a root, is *paused*: its process ends. It keeps its seat, like a worker whose process has died too often, and
its job goes on with the other workers. If the worker left the seat, its parent would send a request at once,
and this host, now idle, would probably take the request and use up memory again. When there is memory, a
paused worker gets a new process, which begins anew; when the job's volume drops to its index or below, it
leaves like any other worker.

**Draining.** A rank that will leave starts nothing new: its PEs offer no token, deny queries, and pass
requests on. Workers that leave in order hand over their work at once, and keep their seats without a process,
so workers below them stay. A root must first get back the tasks that it has lent to others: it sends its
children away, saves its job, and leaves the seat only when its process is gone, so that the next root, on
another rank, begins with all work done so far. A resting root saves its job, too. Other workers run on until
the rank leaves, also over a change of generation.
"""

from __future__ import annotations

from collections.abc import Callable

from mallob_py.protocol.config import Config
from mallob_py.protocol.effects import Log, Outbox
from mallob_py.protocol.messages import LeaveWanted, RootLeft
from mallob_py.protocol.staff import Staff
from mallob_py.protocol.tree_messages import TreeMessages
from mallob_py.protocol.worker import Happens, Worker, WorkerState
from mallob_py.protocol.worker_cache import WorkerCache


class GivingBack:
    """Pauses workers, and empties a PE in order. `update_token` is called when this PE may be free."""

    def __init__(
        self,
        out: Outbox,
        config: Config,
        staff: Staff,
        cache: WorkerCache,
        messages: TreeMessages,
        update_token: Callable[[], None],
    ) -> None:
        self._out = out
        self._config = config
        self._staff = staff
        self._cache = cache
        self._messages = messages
        self._update_token = update_token
        #: whether this PE's rank is to leave, so that nothing new starts here
        self.is_draining = False
        #: whether the system ends, so that paused workers get no new process
        self._is_ending = False
        #: whether this PE's rank is the only one left, so that it cannot leave
        self._is_last = False

    def take_over(self, former: GivingBack, is_last: bool) -> None:
        """Take over the state of a PE of the last generation; `is_last`: its rank is now the only one."""
        self._is_last = is_last
        self.is_draining = former.is_draining and not is_last

    # --- shortage of memory -----------------------------------------------------------------

    def past(self) -> list[int]:
        """Return the numbers of the suspended workers, the least valuable first."""
        return [worker.number for worker in self._cache.least_worth_first()]

    def drop_past(self, count: int) -> None:
        """Drop this many suspended workers."""
        for worker in self._cache.least_worth_first()[: max(0, count)]:
            self._cache.drop(worker)
        self._update_token()

    def pausable(self) -> int | None:
        """Return the number of the running worker, unless it is a root."""
        return None if (worker := self._pausable()) is None else worker.number

    def _pausable(self) -> Worker | None:
        worker = self._staff.active
        return None if worker is None or worker.index == 0 or not worker.is_at_work else worker

    def pause(self, now: float) -> None:
        """Pause the running worker if it is `pausable`: it keeps its seat without a process."""
        if (worker := self._pausable()) is not None:
            self._pause(worker, now)

    def _pause(self, worker: Worker, now: float) -> None:
        if worker.leaves_in_order:
            self._staff.leaving.add(worker, now)
            worker.happens(Happens.PAUSED_IN_ORDER, self._out)
        else:
            worker.happens(Happens.PAUSED, self._out)
        self._messages.give_back_waiting(worker)

    def has_paused(self) -> bool:
        """Tell whether a paused worker here should get a process as soon as there is memory."""
        is_worth_a_process = not self.is_draining and not self._is_ending
        return (
            is_worth_a_process
            and self._staff.active is not None
            and self._staff.active.state is WorkerState.PAUSED
        )

    def unpause(self, now: float) -> None:
        """Give a paused worker a new process."""
        worker = self._staff.active
        if worker is not None and self.has_paused():
            worker.happens(Happens.UNPAUSED, self._out)
            self._out.act(Log("unpaused", {"job": worker.job, "index": worker.index}))
            worker.asked_s = now
            worker.proceed(self._out)

    def leave_for_good(self, now: float) -> None:
        """Have the running worker hand over its work at the system's end, if it can."""
        self._is_ending = True
        if (worker := self._staff.active) is not None and worker.leaves_in_order:
            self._pause(worker, now)

    # --- draining -----------------------------------------------------------------------------

    def drain(self, now: float) -> None:
        """Start nothing new from now on; see the module's docstring."""
        if self._is_last:  # the order to drain came before the other ranks were gone
            return
        self.is_draining = True
        self._cache.holds = {
            job: until for job, until in self._cache.holds.items() if self._is_to_hand_over(job)
        }
        self.hand_over(now)
        self.save_resting_roots(now)
        self._update_token()

    def save_resting_roots(self, now: float) -> None:
        """Have resting roots save their jobs, a few at a time: the jobs' next turns are on other ranks."""
        if not self.is_draining:
            return
        for worker in list(filter(self._can_leave_from_rest, self._cache.workers.values())):
            if len(self._staff.leaving) >= self._config.leavers_max:
                break
            self._leave_from_rest(worker, now)

    @property
    def is_drained(self) -> bool:
        """Whether the PE drains, and no process here works or has work to hand over."""
        is_at_work = self._staff.active is not None and not self._staff.active.is_bereft
        is_waited_for = any(map(self._is_to_hand_over, self._cache.holds))
        is_waited_for |= any(map(self._can_leave_from_rest, self._cache.workers.values()))
        return self.is_draining and not (is_at_work or self._staff.leaving or is_waited_for)

    def _is_to_hand_over(self, job: int) -> bool:
        """Tell whether the job's suspended worker is to be resumed here, only to hand over its work."""
        return self._cache.goes_on(job) and self._cache.workers[job].leaves

    def hand_over(self, now: float) -> None:
        worker = self._staff.active
        if worker is None or not worker.leaves_in_order:
            return
        if worker.index == 0:
            worker.seats.dismiss(since_epoch=0)
        self._pause(worker, now)

    def saved_root(self) -> Worker | None:
        """Return a draining PE's root that has saved its job and got back the tasks that it had lent."""
        root = self._staff.active
        if root is None or root.index > 0 or root.accepted_epoch is None:
            return None
        has_left = all(one.job != root.job for one in self._staff.leaving)
        return root if root.state is WorkerState.PAUSED and has_left else None

    def receive_leave_wanted(self, source: int, message: LeaveWanted, now: float) -> None:
        """Have the root of a resting job save its work, since the job is given up."""
        worker = self._cache.workers.get(message.job)
        if worker is not None and self._can_leave_from_rest(worker):
            self._leave_from_rest(worker, now)
        else:
            self._out.send(source, RootLeft(message.job))

    def _can_leave_from_rest(self, worker: Worker) -> bool:
        is_root = worker.index == 0 and not worker.is_carried_over
        return is_root and worker.leaves and worker.state is WorkerState.SUSPENDED

    def _leave_from_rest(self, worker: Worker, now: float) -> None:
        del self._cache.workers[worker.job]
        self._cache.holds.pop(worker.job, None)
        self._staff.leaving.add(worker, now)
        worker.happens(Happens.LEFT_IN_ORDER, self._out)
        self._update_token()
