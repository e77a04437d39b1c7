"""Tree messages: messages between a job's workers along their tree, on their way through the PEs.

A message is for one stay of a worker in the tree. Messages that arrive before the worker's process runs wait
for it. Messages to a parent wait until it has accepted the worker, since the acceptance names the parent's
stay. Undeliverable messages return to their sender with a flag (race 10).
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
#: number of bits for a PE's stays within a generation
STAY_BITS = 40


class TreeMessages:
    """The messages that the active worker of one PE, and its leaving workers, send and get.

    `number` names the sending process; messages of a process that is gone or suspended are ignored.
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
        """Send a message to a worker anywhere in the tree, by an address learned from its messages."""
        if (worker := self._speaker(number)) is None:
            return
        if stay >> STAY_BITS == self._era:
            self._send(worker, pe, stay, UNKNOWN_INDEX, data)
        else:  # the address is of an earlier generation; no worker has it now
            self._bounce(worker, pe, stay, data)

    def _speaker(self, number: int) -> Worker | Leaver | None:
        return self._staff.active_as(number) or self._staff.leaving.get(number)

    def missed(self, it: WorkerMissed) -> None:
        """Return a message that a process did not take, if the sender's generation is not over."""
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
        """Return a message to the worker here that sent it, since it cannot go to that address."""
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
        """Deliver waiting messages to a process that now runs."""
        for source, message in worker.inbox:
            self._deliver(worker, source, message)
        worker.inbox.clear()

    def send_waiting(self, worker: Worker) -> None:
        """Send waiting messages to a parent that has accepted the worker."""
        for data in worker.unsent:
            self._send_to_parent(worker, data)
        worker.unsent.clear()

    def give_back_waiting(self, worker: Worker) -> None:
        """Return waiting messages of a worker that leaves, or gets no process."""
        for source, message in worker.inbox:
            self._give_back(source, message)
        worker.inbox.clear()
        if worker.state is WorkerState.RUNNING:
            for data in worker.unsent:
                self._bounce(worker, worker.parent, worker.parent_stay, data)
        worker.unsent.clear()

    def _give_back(self, source: int, message: TreeMessage) -> None:
        """Return an undeliverable message to its sender; a returned message is dropped."""
        if not message.returned:
            self._out.send(source, message.back())

    def _deliver(self, worker: Worker | Leaver, source: int, message: TreeMessage) -> None:
        sender = (source, message.source)
        self._out.act(
            DeliverMessage(worker.number, message.source_index, sender, message.data, message.returned)
        )
