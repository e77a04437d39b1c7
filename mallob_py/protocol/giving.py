"""Giving: a resting process goes on at another PE of its host, with its search.

With more jobs than PEs, a job's next turn may be at another PE than the last one (`rotation.py`). If its
root's process rests on the same host, the job need not begin anew: instead of starting a process, the new
root asks for the resting one (`ProcessWanted`). Then the new root gets the process, which no message carries,
or hears that there is none (`ProcessDenied`). The job's client knows best where the job rests, and names the
PE in the request for the root. A giver keeps nothing, as if the job had always been at the other PE. So
volumes, charges and rights to end the job do not change, and nothing must be undone.

- Only a resting process is given: a PE answers a question when it has reached the question's epoch. A process
  that does not run yet counts as none. A given process that has not arrived is passed on to the PE that wants
  it next.
- A process ends with the rank that forked it; in that case its job begins anew, or from its checkpoint.
- A worker waits for a given process as for a forked one; if none comes soon, since the giver or its message
  was lost, a new process is started.
- No process is requested for a job that has never rested.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mallob_py.protocol.effects import GiveWorker, Log, Outbox, StartAnew
from mallob_py.protocol.messages import ProcessDenied, ProcessWanted, Request
from mallob_py.protocol.worker import Happens

if TYPE_CHECKING:
    from mallob_py.protocol.distributed_balancing import AnyBalancer
    from mallob_py.protocol.worker_cache import WorkerCache


class Giving:
    """The processes that a PE requests from other PEs, and the processes that it gives."""

    def __init__(
        self, out: Outbox, balancer: AnyBalancer, cache: WorkerCache, update_token: Callable[[], None]
    ) -> None:
        self._out = out
        self._balancer = balancer
        self._cache = cache
        self._update_token = update_token
        #: function that tells whether a PE is on this host
        self.is_near: Callable[[int], bool] = lambda pe: False

    def giver(self, request: Request) -> tuple[int, int] | None:
        """Return (PE of the job's last root, present epoch); None if that PE is here or on another host."""
        last = request.rests_at
        is_to_give = last not in (-1, self._out.rank) and self.is_near(last)
        return (last, self._balancer.epoch) if is_to_give else None

    def receive_wanted(self, source: int, message: ProcessWanted) -> None:
        """Handle another PE's request for a resting process, since the job's next turn is at that PE."""
        worker = self._cache.workers.get(message.job)
        if worker is not None and worker.index == 0:
            self._out.act(GiveWorker(worker.number, source, message.number))
            self._out.act(Log("given", {"job": worker.job, "to": source}))
            self._cache.drop(worker, Happens.GIVEN)
            self._update_token()
        else:
            self._out.send(source, ProcessDenied(message.job, message.number))

    def receive_denied(self, message: ProcessDenied) -> None:
        """Start a process for the worker, if the worker still waits."""
        self._out.act(StartAnew(message.number))
