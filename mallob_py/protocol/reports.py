"""What processes tell the client of their job, beside its result: use, demand, progress, checkpoints."""

from __future__ import annotations

from mallob_py.protocol.effects import GiveCheckpoint, Outbox
from mallob_py.protocol.interim import Interim
from mallob_py.protocol.messages import (
    Checkpoint,
    CheckpointGiven,
    CheckpointWanted,
    DemandChanged,
    Offered,
    Progressed,
    Used,
    WorkerFailed,
)
from mallob_py.protocol.progress import Progress
from mallob_py.protocol.staff import Staff
from mallob_py.protocol.succession import LastWords
from mallob_py.protocol.worker import Worker, WorkerState


class Reports:
    """Passes on what the processes of one PE say to clients. `number` names a process."""

    def __init__(self, out: Outbox, staff: Staff, last_words: LastWords) -> None:
        self._out = out
        self._staff = staff
        self._last_words = last_words

    def used(self, number: int, cpu_s: float, peak_bytes: int) -> None:
        if (worker := self._staff.by_any_number(number)) is not None:
            self._out.send(worker.client, Used(worker.job, cpu_s, peak_bytes))

    def raised(self, number: int, reason: str) -> None:
        """The application raised an error."""
        worker = self._staff.by_any_number(number)
        if worker is not None:
            self._last_words.say(worker.client, WorkerFailed(worker.job, worker.index, reason), self._out)

    def demanded(self, number: int, demand: int) -> None:
        worker = self._staff.by_number(number)
        if worker is not None and worker.index == 0:
            worker.demand = demand
            self._out.send(worker.client, DemandChanged(worker.job, demand))

    def progresses(self, number: int, progress: Progress) -> None:
        worker = self._staff.by_number(number)
        if worker is not None and worker.index == 0:
            worker.done = progress.done
            self._out.send(worker.client, Progressed(worker.job, progress))

    def offers(self, number: int, interim: Interim) -> None:
        """Heard of all workers, of those that leave or have been suspended, too: an answer is an answer."""
        if (worker := self._staff.by_any_number(number)) is not None:
            self._out.send(worker.client, Offered(worker.job, interim))

    def saves(self, number: int, data: bytes) -> None:
        """Heard of a root that leaves or has been suspended, too: nobody knows more of its job."""
        worker = self._staff.by_any_number(number)
        if worker is None or worker.index > 0:
            return
        self._out.send(worker.client, Checkpoint(worker.job, worker.stay, data))
        if isinstance(worker, Worker) and worker.done > worker.saved_done:
            worker.saved_done, worker.restarts = worker.done, 0

    def wants_checkpoint(self, number: int) -> None:
        worker = self._staff.active_as(number)
        if worker is not None and worker.index == 0:
            self._out.send(worker.client, CheckpointWanted(worker.job, worker.stay))

    def receive_checkpoint(self, message: CheckpointGiven) -> None:
        """A process that does not run now will ask once more."""
        worker = self._staff.active_in(message.stay)
        if worker is not None and worker.job == message.job and worker.state is WorkerState.RUNNING:
            self._out.act(GiveCheckpoint(worker.number, message.data))
