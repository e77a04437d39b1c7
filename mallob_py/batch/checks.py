"""Checks of a policy's orders: the same rules for simulated and for real jobs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from operator import attrgetter

from mallob_py.batch.job import Job, Kind
from mallob_py.batch.policy import Policy, PolicyError, Running, Share, View, Wake

_ID = attrgetter("id")
#: how many resizes in a row, beyond the machine's number of nodes, a job may get without working, while no
#: job arrives, starts or ends
_ROUNDS_MAX = 1000


class Checks:
    """The checks of one policy's actions against its view.

    An impossible action raises PolicyError, which names policy, job and time. `numbers`: job id -> number by
    which users know the job, if they differ.
    """

    def __init__(self, policy: Policy, view: View, numbers: Mapping[int, int] | None = None) -> None:
        self._policy = policy
        self._view = view
        self._numbers = numbers or {}
        #: job -> (state at the job's last resize: (work left [s], number of waiting jobs, number of running
        #: jobs), number of the job's resizes in this state)
        self._rounds: dict[int, tuple[tuple[float, int, int], int]] = {}

    def error(self, job: int, what: str) -> PolicyError:
        number = self._numbers.get(job, job)
        return PolicyError(f"{self._policy.name}: job {number} {what} (at {self._view.now_s:g} s)")

    def place_in_queue(self, job: int) -> int:
        """Return a job's place in the queue; the job must wait."""
        queue = self._view.queue
        place = bisect_left(queue, job, key=_ID)
        if place == len(queue) or queue[place].id != job:
            raise self.error(job, "is started, but is not in the queue")
        return place

    def startable(self, job: Job, nodes: int) -> None:
        """Check that a waiting job can run on this many nodes."""
        if not job.low <= nodes <= job.high:
            raise self.error(job.id, f"is started on {nodes} nodes; it can run on {job.low} to {job.high}")

    def resizable(self, job: int, kinds: tuple[Kind, ...]) -> Running:
        """Return the running job, which must be of one of these kinds and resizable now."""
        running = self._view.running.get(job)
        if running is None:
            raise self.error(job, "is resized, but does not run")
        if running.job.kind not in kinds:
            raise self.error(job, f"is resized, but is {running.job.kind.value}")
        if running.target is not None:
            raise self.error(job, "is resized, but its last resize is still pending")
        return running

    def new_size(self, job: Job, nodes: int) -> None:
        """Check that a running job can run on this many nodes."""
        if not job.low <= nodes <= job.high:
            raise self.error(job.id, f"is to run on {nodes} nodes; it can run on {job.low} to {job.high}")

    def no_round(self, job: int, left_s: float) -> None:
        """Check that a job is not resized again and again without working; `left_s`: its work left [s]."""
        state = left_s, len(self._view.queue), len(self._view.running)
        before, count = self._rounds.get(job, (state, 0))
        count = count + 1 if before == state else 1
        self._rounds[job] = state, count
        if count > _ROUNDS_MAX + self._view.nodes:
            raise self.error(job, f"is resized {count} times without working: decisions repeat")

    def mates(self, job: Job, share: Share) -> list[Running]:
        """Check a waiting job's `share`; return its mates, the running jobs whose nodes it is to share."""
        if not job.is_malleable:
            raise self.error(job.id, f"is to be a guest, but is {job.kind.value}")
        if not 0.0 < share.factor < 1.0:
            raise self.error(
                job.id, f"is to have the share {share.factor:g} of cores; it must lie between 0 and 1"
            )
        mates = [self._mate(mate) for mate in dict.fromkeys(share.mates)]
        nodes = sum(mate.size for mate in mates)
        if len(mates) < len(share.mates) or not job.low <= nodes <= job.high:
            raise self.error(
                job.id,
                f"is to share {nodes} nodes, or has a mate twice; it can run on {job.low} to {job.high}",
            )
        return mates

    def _mate(self, job: int) -> Running:
        running = self._view.running.get(job)
        if running is None:
            raise self.error(job, "is to be a mate, but does not run")
        if not running.job.is_malleable:
            raise self.error(job, f"is to be a mate, but is {running.job.kind.value}")
        if running.mates or running.guest is not None:
            raise self.error(job, "is to be a mate, but shares its nodes already")
        if running.target is not None:
            raise self.error(job, "is to be a mate, but its last resize is still pending")
        return running

    def take(self, free: list[int], job: int, wanted: int | tuple[int, ...]) -> list[int]:
        """Remove nodes from `free` and return them. `wanted`: the nodes, or how many of the last ones."""
        if isinstance(wanted, int):
            if not 0 < wanted <= len(free):
                raise self.error(job, f"is to get {wanted} nodes; {len(free)} are free")
            nodes = free[-wanted:]
            del free[-wanted:]
            return nodes
        chosen = set(wanted)
        if len(chosen) < len(wanted) or not chosen.issubset(free):
            raise self.error(job, f"is to get nodes that are not free, or one of them twice: {wanted}")
        free[:] = [node for node in free if node not in chosen]
        return list(wanted)

    def wake_s(self, wake: Wake) -> float:
        """Return the time [s] at which a policy wants to be woken; the time must lie in the future."""
        if wake.at_s <= self._view.now_s:
            raise PolicyError(
                f"{self._policy.name} wants to be woken at {wake.at_s:g} s, which has passed "
                f"(at {self._view.now_s:g} s)"
            )
        return wake.at_s


def count_of(wanted: int | tuple[int, ...]) -> int:
    """Return how many nodes an action wants; `wanted` is this number, or lists the nodes."""
    return wanted if isinstance(wanted, int) else len(wanted)
