"""The messages of a job's workers to each other along their tree, as they pass through the PEs.

A message is for one stay of a worker in the tree. What comes before the worker's process runs waits for it,
and what it tells its parent before that has accepted it waits for the answer, which says in which stay the
parent is; what cannot be delivered goes back to its sender with a flag (race 10).
"""

from __future__ import annotations

from mallob_py.protocol.effects import DeliverMessage, Log, Outbox
from mallob_py.protocol.leaving import Leaver
from mallob_py.protocol.messages import UNKNOWN_INDEX, TreeMessage
from mallob_py.protocol.staff import Staff
from mallob_py.protocol.stimuli import WorkerMissed
from mallob_py.protocol.worker import Worker, WorkerState
from mallob_py.trees import parent_of

_INBOX_MAX = 1024
#: a PE's stays of one generation
STAY_BITS = 40


class TreeMessages:
    """The messages that the active worker of one PE, and workers that leave it, send and get.

    `number` names the process that sends; one that is gone, or suspended, says nothing.
    """

    def __init__(self, out: Outbox, staff: Staff, era: int) -> None:
        self._out = out
        self._staff = staff
        self._era = era

    def to_parent(self, number: int, data: bytes) -> None:
        if (worker := self._speaker(number)) is not None:
            self._send_to_parent(worker, data)

    def to_children(self, number: int, data: bytes) -> None:
        if (worker := self._staff.active_as(number)) is not None:
            for seat in worker.seats.taken():
                self._send(worker, seat.rank, seat.stay, seat.index, data)

    def to_worker(self, number: int, pe: int, stay: int, data: bytes) -> None:
        """To a worker whose address was learned from its messages, wherever it is in the tree."""
        if (worker := self._speaker(number)) is None:
            return
        if stay >> STAY_BITS == self._era:
            self._send(worker, pe, stay, UNKNOWN_INDEX, data)
        else:  # an address of a former generation: nobody is there any more
            self._bounce(worker, pe, stay, data)

    def _speaker(self, number: int) -> Worker | Leaver | None:
        return self._staff.active_as(number) or self._staff.leaving.get(number)

    def missed(self, it: WorkerMissed) -> None:
        """A process will not take this message: the sender shall know, unless its generation is over."""
        worker = self._staff.by_any_number(it.worker)
        if worker is None:
            return
        self._out.act(Log("dropped message", {"job": worker.job}))
        pe, stay = it.sender
        if stay >> STAY_BITS == self._era:
            message = TreeMessage(
                worker.job, worker.stay, worker.index, stay, it.source_index, it.returned, it.data
            )
            self._give_back(pe, message)

    def _send_to_parent(self, worker: Worker | Leaver, data: bytes) -> None:
        if worker.index == 0:
            return
        if worker.parent_stay >= 0:
            self._send(worker, worker.parent, worker.parent_stay, parent_of(worker.index), data)
        elif isinstance(worker, Worker) and len(worker.unsent) < _INBOX_MAX:
            worker.unsent.append(data)
        else:
            self._bounce(worker, worker.parent, worker.parent_stay, data)

    def _bounce(self, worker: Worker | Leaver, pe: int, stay: int, data: bytes) -> None:
        """No worker is at that address: as if the message had come back from there."""
        self._out.act(DeliverMessage(worker.number, UNKNOWN_INDEX, (pe, stay), data, True))

    def _send(self, worker: Worker | Leaver, rank: int, stay: int, index: int, data: bytes) -> None:
        assert stay >= 0, f"worker {worker.index} of job {worker.job} writes to nobody"
        message = TreeMessage(
            job=worker.job,
            target=stay,
            target_index=index,
            source=worker.stay,
            source_index=worker.index,
            returned=False,
            data=data,
        )
        self._out.send(rank, message)

    def receive(self, source: int, message: TreeMessage) -> None:
        worker, leaver = self._staff.active_in(message.target), self._staff.leaving.at(message.target)
        if worker is None or worker.job != message.job or worker.is_bereft:
            if leaver is not None and leaver.job == message.job:
                self._deliver(leaver, source, message)
            else:
                self._give_back(source, message)
        elif worker.state is WorkerState.RUNNING:
            self._deliver(worker, source, message)
        elif len(worker.inbox) < _INBOX_MAX:
            worker.inbox.append((source, message))
        else:
            self._give_back(source, message)

    def deliver_waiting(self, worker: Worker) -> None:
        """Its process runs."""
        for source, message in worker.inbox:
            self._deliver(worker, source, message)
        worker.inbox.clear()

    def send_waiting(self, worker: Worker) -> None:
        """Its parent has accepted it."""
        for data in worker.unsent:
            self._send_to_parent(worker, data)
        worker.unsent.clear()

    def give_back_waiting(self, worker: Worker) -> None:
        """It leaves, or its process does not come."""
        for source, message in worker.inbox:
            self._give_back(source, message)
        worker.inbox.clear()
        if worker.state is WorkerState.RUNNING:
            for data in worker.unsent:
                self._bounce(worker, worker.parent, worker.parent_stay, data)
        worker.unsent.clear()

    def _give_back(self, source: int, message: TreeMessage) -> None:
        """Undeliverable: its sender shall know. A returned message is not returned once more."""
        if not message.returned:
            self._out.send(source, message.back())

    def _deliver(self, worker: Worker | Leaver, source: int, message: TreeMessage) -> None:
        sender = (source, message.source)
        self._out.act(
            DeliverMessage(worker.number, message.source_index, sender, message.data, message.returned)
        )
