"""Processes that rest at one PE and go on at another of the same host, search and all.

With more jobs than PEs a job's next turn may be at another PE than the last one (`rotation.py`). If its
root's process rests on the same host, it need not begin anew: where the new root would start a process, it
asks for that one (`ProcessWanted`), and gets it, outside of messages, or hears that there is none
(`ProcessDenied`). Where it rests the job's client knows best: the request for the root says it. Whoever has
given it keeps nothing: it is as if the job had always been at the other PE. So volumes, what is charged, and
who may end it stay as they are, and nothing is to be called back.

- Only a process that rests is given: whoever asks is answered in the epoch in which it asked, or later. One
  that does not run yet is as good as none. One that has not come itself goes on to where it is wanted next.
- A process ends with the rank that forked it. Its job begins anew then, or where it was saved last.
- A worker waits for its process as for one that is forked; if none comes soon, as the giver or its word may
  be lost, it starts one anew.
- A job that never had to rest is asked for nowhere.
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
    """Which processes a PE asks others for, and which ones it gives."""

    def __init__(
        self, out: Outbox, balancer: AnyBalancer, cache: WorkerCache, update_token: Callable[[], None]
    ) -> None:
        self._out = out
        self._balancer = balancer
        self._cache = cache
        self._update_token = update_token
        #: whether a PE is on this host
        self.is_near: Callable[[int], bool] = lambda pe: False

    def giver(self, request: Request) -> tuple[int, int] | None:
        """The PE where a job's root was last, if its process can be had from there; and the present epoch."""
        last = request.rests_at
        is_to_give = last not in (-1, self._out.rank) and self.is_near(last)
        return (last, self._balancer.epoch) if is_to_give else None

    def receive_wanted(self, source: int, message: ProcessWanted) -> None:
        """A job's next turn is at another PE of the host."""
        worker = self._cache.workers.get(message.job)
        if worker is not None and worker.index == 0:
            self._out.act(GiveWorker(worker.number, source, message.number))
            self._out.act(Log("given", {"job": worker.job, "to": source}))
            self._cache.drop(worker, Happens.GIVEN)
            self._update_token()
        else:
            self._out.send(source, ProcessDenied(message.job, message.number))

    def receive_denied(self, message: ProcessDenied) -> None:
        """The worker starts a process of its own, if it still waits."""
        self._out.act(StartAnew(message.number))
