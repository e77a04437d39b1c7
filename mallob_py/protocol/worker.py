"""A worker of one job on one PE: its states, and what may happen in each (P 3.2, 3.3).

`TRANSITIONS` is the whole table: from a state and a happening to the next state and the immediate action. If
it has no entry, `Worker.happens` raises an error with both names. Whether a worker has a process, runs, or
can be sent messages follows from its state alone.

A worker is in the tree from its adoption until it is suspended or gone: it asks for children, accepts them
and even starts before its parent has answered, so a tree grows by all its layers at once. If its parent
rejects it, it sends those children away. Messages beside the effects of the table:

    the parent    `Offer` at the adoption; `ChildLeft` from a lost worker, once it has been accepted
    the client    `RootStarted` when a root runs; `WorkerFailed` when a root has died too often
    other PEs     none: leaving with an epoch needs no message (`job_tree.py`)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum

from mallob_py.protocol import effects
from mallob_py.protocol.host_health import Fault
from mallob_py.protocol.job_tree import Seats
from mallob_py.protocol.messages import Description, PastWorker, ProcessWanted, RootStarted, TreeMessage


class WorkerState(Enum):
    def __new__(cls, text: str, has_process: bool = False) -> WorkerState:
        state = object.__new__(cls)
        state._value_ = text
        state.has_process = has_process
        return state

    #: whether a worker in this state has a process, or has ordered one
    has_process: bool

    #: in the tree; nothing is known here of the job's description
    UNDESCRIBED = "undescribed"
    #: the job's description has come without its content, which is on its way to this host
    FETCHING = "fetching"
    #: a process was ordered, but has not reported that it runs
    STARTING = "starting", True
    RUNNING = "running", True
    #: memory is short: in the tree, without a process until there is memory
    PAUSED = "paused"
    #: in the tree, without a process for good: the worker's processes died too often, or it could get none
    DEAD = "dead"
    #: without a process here: the worker gives its place back as soon as its parent has accepted it
    LOST = "lost"
    #: out of the tree, its process stopped before it reported that it runs
    STOPPED = "stopped", True
    #: out of the tree, its process stopped
    SUSPENDED = "suspended", True
    #: nothing of the worker is left here
    GONE = "gone"


class Happens(Enum):
    """The happenings of a worker that matter to its state: stimuli, messages and epochs."""

    #: the job's description has come with its content
    DESCRIBED = "is described"
    #: the job's description has come without its content, which must be fetched as a file
    DESCRIBED_ELSEWHERE = "is described elsewhere"
    FETCHED = "has its description"
    UNFETCHED = "cannot get its description"
    STARTED = "runs"
    #: the worker's process died, and a new process may be started
    DIED = "has died"
    #: the worker's process died once too often, and none of its processes has run
    DIED_UNRUN = "has died too often before it ran"
    #: the worker's process died once too often
    DIED_TOO_OFTEN = "has died too often"
    #: no process can be had for the worker
    UNFORKED = "cannot get a process"
    PAUSED = "is paused"
    UNPAUSED = "is unpaused"
    #: the lost worker keeps its place, since other workers in this place would be lost as well
    KEPT = "keeps its place"
    PAUSED_IN_ORDER = "is paused in order"
    #: the worker leaves the tree: its job shrinks, its parent rejects it, or it is lost
    LEFT = "leaves"
    LEFT_IN_ORDER = "leaves in order"
    #: the worker's PE adopts a worker of the same job
    READOPTED = "is adopted again"
    #: the worker's process goes on at another PE
    GIVEN = "is given away"
    #: the worker's job is over, or the cache has no room
    ENDED = "ends"


class Worker:
    """One worker of one job on this PE. `number` names its process, `stay` its present stay in the tree.

    `numbers` are the PE's unused numbers: no two processes have the same number.
    """

    def __init__(self, numbers: Iterator[int], job: int) -> None:
        self._numbers = numbers
        self.number = next(numbers)
        self.job = job
        self.index = -1
        self.stay = -1
        self.path: tuple[int, ...] = ()
        self.state = WorkerState.UNDESCRIBED
        self.seats: Seats
        self.description: Description | None = None
        #: epoch in which the parent accepted the worker; None: not accepted yet, as far as this PE knows
        self.accepted_epoch: int | None = None
        #: whether the acceptance came with the request, so that an `Accepted` may follow
        self.is_granted = False
        self.parent_stay = -1
        self.asked_s = 0.0
        self.volume = 1
        #: whether the worker is new in this stay rather than a past worker
        self.created = True
        #: number of restarts since a root last saved new progress
        self.restarts = 0
        #: reported progress, and the progress at the last checkpoint
        self.done = self.saved_done = 0.0
        #: a PE of this host that may have the worker's resting process, and the epoch here when the process
        #: is asked for
        self.giver: tuple[int, int] | None = None
        #: whether the worker has had a running process, in this stay or before
        self.has_run = False
        #: whether the worker's process leaves in order rather than being stopped or ended at once
        self.leaves = False
        #: number of earlier workers in the same seat that were lost, as reported by the parent
        self.losses = 0
        #: fault by which the worker is lost, with the reason
        self.loss: tuple[Fault, str] | None = None
        #: number of workers that the application could use, as last reported by a root
        self.demand: int | None = None
        #: whether the worker is from the last generation and has not been adopted since
        self.is_carried_over = False
        #: for a worker of the last generation: whether it was in the tree when that generation ended, below a
        #: parent that still exists
        self.is_awaited = False
        #: for a worker of the last generation: past workers below it (with epoch -1) and its children (with
        #: epoch 0); indices of lost children
        self.kept: tuple[PastWorker, ...] = ()
        self.gone: frozenset[int] = frozenset()
        #: messages that arrived before the process runs, with their senders' ranks
        self.inbox: list[tuple[int, TreeMessage]] = []
        #: messages to the worker's parent, which has not accepted the worker yet
        self.unsent: list[bytes] = []

    def keep_family(self) -> None:
        """Keep what this worker knows of workers below it in the tree, since the generation ends."""
        past = (PastWorker(one.index, one.rank, -1) for one in self.seats.past.take_all())
        children = (PastWorker(seat.index, seat.rank, 0) for seat in self.seats.taken())
        self.kept, self.gone = (*past, *children), frozenset()

    @property
    def client(self) -> int:
        return self.path[0]

    @property
    def parent(self) -> int:
        return self.path[-1]

    @property
    def leaves_in_order(self) -> bool:
        """Tell whether the worker's process would leave in order now."""
        return self.leaves and self.state is WorkerState.RUNNING

    @property
    def is_at_work(self) -> bool:
        """Tell whether the worker is in the tree with a process that runs or will run."""
        return self.state in _AT_WORK

    @property
    def is_bereft(self) -> bool:
        """Tell whether the worker is in the tree without a process, for good or for long."""
        return self.state in _BEREFT

    def happens(self, what: Happens, out: effects.Outbox, now: float = 0.0) -> None:
        """Change the state, and do the action that the table names. `now` matters to STARTED only."""
        transition = TRANSITIONS.get((self.state, what))
        assert transition is not None, (
            f"worker {self.index} of job {self.job} {what.value} while {self.state.value}"
        )
        self.state, act = transition
        if act is not None:
            act(self, out, now)

    def proceed(self, out: effects.Outbox) -> None:
        """Run as soon as the description is known, in most cases before the parent has answered."""
        if self.state.has_process:
            self.happens(Happens.READOPTED, out)
        elif self.description is not None:
            is_here = self.description.inline is not None
            self.happens(Happens.DESCRIBED if is_here else Happens.DESCRIBED_ELSEWHERE, out)

    def update_process(self, out: effects.Outbox) -> None:
        """Send the worker's process the volume and the children, if the process works."""
        if self.is_at_work:
            out.act(effects.UpdateWorker(self.number, self.volume, self.seats.children()))


_AT_WORK = (WorkerState.STARTING, WorkerState.RUNNING)
_BEREFT = (WorkerState.PAUSED, WorkerState.DEAD, WorkerState.LOST)


# --- actions of the table, for a worker that is in its new state already ----------------------


def _fetch(worker: Worker, out: effects.Outbox, now: float) -> None:
    assert worker.description is not None
    out.act(effects.FetchDescription(worker.job, worker.description, (worker.parent, worker.client)))


def _start(worker: Worker, out: effects.Outbox, now: float) -> None:
    assert worker.description is not None
    giver, worker.giver = worker.giver, None
    place = worker.index, worker.volume
    out.act(effects.StartWorker(worker.number, worker.job, *place, worker.description, giver is not None))
    if giver is not None:
        pe, epoch = giver
        out.send(pe, ProcessWanted(worker.job, worker.number, epoch))
    if worker.seats.children():
        worker.update_process(out)


def _restart(worker: Worker, out: effects.Outbox, now: float) -> None:
    worker.number = next(worker._numbers)
    _start(worker, out, now)


def _tell_start(worker: Worker, out: effects.Outbox, now: float) -> None:
    worker.has_run = True
    out.act(
        effects.Log("started", {"job": worker.job, "index": worker.index, "latency_s": now - worker.asked_s})
    )
    if worker.index == 0:
        out.send(worker.client, RootStarted(worker.job, worker.leaves))


def _suspend(worker: Worker, out: effects.Outbox, now: float) -> None:
    out.act(effects.SuspendWorker(worker.number))
    out.act(effects.Log("suspended", {"job": worker.job, "index": worker.index}))


def _leave(worker: Worker, out: effects.Outbox, now: float) -> None:
    out.act(effects.LeaveWorker(worker.number))


def _resume_to_leave(worker: Worker, out: effects.Outbox, now: float) -> None:
    out.act(effects.ResumeWorker(worker.number, worker.index, worker.index + 1))
    _leave(worker, out, now)


def _resume(worker: Worker, out: effects.Outbox, now: float) -> None:
    out.act(effects.ResumeWorker(worker.number, worker.index, worker.volume))
    worker.update_process(out)
    out.act(effects.Log("resumed", {"job": worker.job, "index": worker.index}))


def _terminate(worker: Worker, out: effects.Outbox, now: float) -> None:
    out.act(effects.TerminateWorker(worker.number))
    out.act(effects.Log("terminated", {"job": worker.job, "index": worker.index}))


def _pause(worker: Worker, out: effects.Outbox, now: float) -> None:
    _terminate(worker, out, now)
    _go_without(worker, out, now)


def _pause_in_order(worker: Worker, out: effects.Outbox, now: float) -> None:
    _leave(worker, out, now)
    _go_without(worker, out, now)


def _go_without(worker: Worker, out: effects.Outbox, now: float) -> None:
    worker.number = next(worker._numbers)  # a new number, so late messages of the old process are void
    out.act(effects.Log("paused", {"job": worker.job, "index": worker.index}))


Act = Callable[[Worker, effects.Outbox, float], None]

#: (state, happening) -> (next state, immediate action)
TRANSITIONS: dict[tuple[WorkerState, Happens], tuple[WorkerState, Act | None]] = {
    (WorkerState.UNDESCRIBED, Happens.DESCRIBED): (WorkerState.STARTING, _start),
    (WorkerState.UNDESCRIBED, Happens.DESCRIBED_ELSEWHERE): (WorkerState.FETCHING, _fetch),
    (WorkerState.UNDESCRIBED, Happens.LEFT): (WorkerState.GONE, None),
    (WorkerState.UNDESCRIBED, Happens.ENDED): (WorkerState.GONE, None),
    #
    (WorkerState.FETCHING, Happens.FETCHED): (WorkerState.STARTING, _start),
    (WorkerState.FETCHING, Happens.UNFETCHED): (WorkerState.LOST, None),
    (WorkerState.FETCHING, Happens.LEFT): (WorkerState.GONE, None),
    (WorkerState.FETCHING, Happens.ENDED): (WorkerState.GONE, None),
    #
    (WorkerState.STARTING, Happens.STARTED): (WorkerState.RUNNING, _tell_start),
    (WorkerState.STARTING, Happens.DIED): (WorkerState.STARTING, _restart),
    (WorkerState.STARTING, Happens.DIED_UNRUN): (WorkerState.LOST, None),
    (WorkerState.STARTING, Happens.DIED_TOO_OFTEN): (WorkerState.DEAD, None),
    (WorkerState.STARTING, Happens.UNFORKED): (WorkerState.LOST, None),
    (WorkerState.STARTING, Happens.PAUSED): (WorkerState.PAUSED, _pause),
    (WorkerState.STARTING, Happens.LEFT): (WorkerState.STOPPED, _suspend),
    (WorkerState.STARTING, Happens.ENDED): (WorkerState.GONE, _terminate),
    #
    # A resumed process may report again that it runs.
    (WorkerState.RUNNING, Happens.STARTED): (WorkerState.RUNNING, None),
    (WorkerState.RUNNING, Happens.DIED): (WorkerState.STARTING, _restart),
    (WorkerState.RUNNING, Happens.DIED_TOO_OFTEN): (WorkerState.DEAD, None),
    (WorkerState.RUNNING, Happens.UNFORKED): (WorkerState.LOST, None),
    (WorkerState.RUNNING, Happens.PAUSED): (WorkerState.PAUSED, _pause),
    (WorkerState.RUNNING, Happens.PAUSED_IN_ORDER): (WorkerState.PAUSED, _pause_in_order),
    (WorkerState.RUNNING, Happens.LEFT): (WorkerState.SUSPENDED, _suspend),
    # The process goes on in `leaving.py`.
    (WorkerState.RUNNING, Happens.LEFT_IN_ORDER): (WorkerState.GONE, _leave),
    (WorkerState.RUNNING, Happens.ENDED): (WorkerState.GONE, _terminate),
    #
    (WorkerState.PAUSED, Happens.UNPAUSED): (WorkerState.UNDESCRIBED, None),
    (WorkerState.PAUSED, Happens.LEFT): (WorkerState.GONE, None),
    (WorkerState.PAUSED, Happens.ENDED): (WorkerState.GONE, None),
    #
    (WorkerState.DEAD, Happens.LEFT): (WorkerState.GONE, None),
    (WorkerState.DEAD, Happens.ENDED): (WorkerState.GONE, None),
    #
    (WorkerState.LOST, Happens.KEPT): (WorkerState.DEAD, None),
    (WorkerState.LOST, Happens.LEFT): (WorkerState.GONE, None),
    (WorkerState.LOST, Happens.ENDED): (WorkerState.GONE, None),
    #
    (WorkerState.STOPPED, Happens.READOPTED): (WorkerState.STARTING, _resume),
    # The process ran, but was stopped before its report was sent or had arrived.
    (WorkerState.STOPPED, Happens.STARTED): (WorkerState.SUSPENDED, _tell_start),
    (WorkerState.STOPPED, Happens.GIVEN): (WorkerState.GONE, None),
    (WorkerState.STOPPED, Happens.DIED): (WorkerState.GONE, None),
    (WorkerState.STOPPED, Happens.UNFORKED): (WorkerState.GONE, None),
    (WorkerState.STOPPED, Happens.ENDED): (WorkerState.GONE, _terminate),
    #
    (WorkerState.SUSPENDED, Happens.READOPTED): (WorkerState.RUNNING, _resume),
    (WorkerState.SUSPENDED, Happens.STARTED): (WorkerState.SUSPENDED, None),
    (WorkerState.SUSPENDED, Happens.GIVEN): (WorkerState.GONE, None),
    (WorkerState.SUSPENDED, Happens.LEFT_IN_ORDER): (WorkerState.GONE, _resume_to_leave),
    (WorkerState.SUSPENDED, Happens.DIED): (WorkerState.GONE, None),
    (WorkerState.SUSPENDED, Happens.UNFORKED): (WorkerState.GONE, None),
    (WorkerState.SUSPENDED, Happens.ENDED): (WorkerState.GONE, _terminate),
}
