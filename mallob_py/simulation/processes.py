"""Stand-ins for worker processes in virtual time: they start after a delay and never compute.

Answers and crashes of processes come from the caller; `fails` decides which steps fail.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import msgspec

from mallob_py.protocol import effects, stimuli
from mallob_py.simulation.network import Network


class Step(Enum):
    """The steps of a worker's process, one after the other."""

    FETCH = "fetch"
    START = "start"
    #: another PE of the host gives the worker a process
    GIVE = "give"


class Failing(Enum):
    """The failures of a step."""

    #: the host has no room for the description
    ROOM = "room"
    #: no rank can send the description
    SOURCE = "source"
    #: no process can be forked
    FORK = "fork"
    #: the process dies before it runs
    DEATH = "death"
    #: the process was lost in transit from another PE
    WAY = "way"

    @property
    def step(self) -> Step:
        if self is Failing.WAY:
            return Step.GIVE
        return Step.FETCH if self in (Failing.ROOM, Failing.SOURCE) else Step.START


#: longest wait for a process that another PE must give
GIVEN_WITHIN_S = 1.0


class Process:
    """A worker's process, as far as the protocol can tell."""

    def __init__(self, effect: effects.StartWorker) -> None:
        self.job = effect.job
        self.index = effect.index
        self.volume = effect.volume
        #: whether another PE must give the process
        self.is_awaited = effect.is_given
        self.is_started = False
        self.is_suspended = False
        self.is_leaving = False
        self.has_ended = False
        #: number of the process's moves to another PE
        self.moves = 0
        self.checkpoint: bytes | None = None
        self.children: tuple[int, ...] = ()
        self.heard: list[effects.DeliverMessage] = []


#: place and number of a worker
WorkerKey = tuple[int, int]


class Processes(dict[WorkerKey, Process]):
    """All processes of a cluster, by place and worker number. `tell` passes news of a process to its PE."""

    def __init__(self, network: Network, tell: Callable[[int, stimuli.AnyStimulus], None]) -> None:
        super().__init__()
        self._network = network
        self._delays = network.delays
        self._later = network.later
        self._tell = tell
        #: jobs whose workers leave in order
        self.orderly: set[int] = set()
        #: worker whose process must be passed on when it arrives -> worker that gets the process
        self._onward: dict[WorkerKey, WorkerKey] = {}
        #: (place, job, step) -> the failure of this step; None: it succeeds
        self.fails: Callable[[int, int, Step], Failing | None] = lambda place, job, step: None

    def of_job(self, job: int) -> list[tuple[WorkerKey, Process]]:
        return [(key, process) for key, process in self.items() if process.job == job]

    def is_one_awaited(self) -> bool:
        """Tell whether a worker in a tree waits for a process that another PE must give."""
        return any(process.is_awaited and not process.is_suspended for process in self.values())

    def running(self, job: int) -> list[WorkerKey]:
        """Return the job's running processes, root first."""
        found = [
            (process.index, key)
            for key, process in self.of_job(job)
            if process.is_started and not (process.is_suspended or process.has_ended)
        ]
        return [key for _, key in sorted(found)]

    def execute(self, place: int, effect: effects.AnyEffect) -> bool:
        """Execute an effect that concerns a process; return False for other effects."""
        match effect:
            case effects.StartWorker(worker):
                self._start(place, worker, effect)
            case effects.StartAnew(worker):
                self._begin_if_awaited(place, worker, self.get((place, worker)))
            case effects.SuspendWorker(worker):
                self[place, worker].is_suspended = True
            case effects.ResumeWorker(worker, index, volume):
                process = self[place, worker]
                process.is_suspended, process.index, process.volume = False, index, volume
                if process.is_started:
                    self._say_later(self._delays.process_resume_s(place), place, worker)
            case effects.LeaveWorker(worker):
                process = self[place, worker]
                assert process.is_started
                process.is_leaving = True
                delay_s = self._delays.process_start_s(place)
                self._later(delay_s, lambda: self._left(place, worker))
            case effects.TerminateWorker(worker):
                self.pop((place, worker), None)
            case effects.UpdateWorker(worker, volume, children):
                process = self[place, worker]
                process.volume, process.children = volume, children
            case effects.DeliverMessage(worker):
                self[place, worker].heard.append(effect)
            case effects.GiveCheckpoint(worker, data):
                self[place, worker].checkpoint = data
            case _:
                return False
        return True

    def end(self, place: int, news: stimuli.WorkerCrashed | stimuli.WorkerLost | stimuli.WorkerLeft) -> None:
        """End a process. It counts as present until its rank handles `news`, but sends nothing more."""
        process = self[place, news.worker]
        if not process.has_ended:
            process.has_ended = True
            self._tell(place, news)

    def _start(self, place: int, worker: int, effect: effects.StartWorker) -> None:
        assert (place, worker) not in self, f"worker {worker} started twice at place {place}"
        process = self[place, worker] = Process(effect)
        if process.is_awaited:
            at_latest_s = self._network.now + GIVEN_WITHIN_S
            self._network.at(at_latest_s, lambda: self._begin_if_awaited(place, worker, process))
        else:
            self._begin(place, worker, process)

    def _begin(self, place: int, worker: int, process: Process) -> None:
        process.is_awaited = False
        failing = self.fails(place, process.job, Step.START)
        delay_s = self._delays.process_start_s(place)
        self._later(delay_s, lambda: self._started(place, worker, process, failing))

    def _begin_if_awaited(self, place: int, worker: int, process: Process | None) -> None:
        """Begin a process here if it is still awaited, since no other PE has given it."""
        if process is not None and self.get((place, worker)) is process and process.is_awaited:
            self._begin(place, worker, process)

    def give(self, giver: int, effect: effects.GiveWorker, place: int) -> None:
        """Move a resting process to another place; on its way, the process is at neither place.

        If the process does not run yet, the receiver begins a new one; if it has not arrived here, it is
        passed on when it arrives.
        """
        given = self.pop((giver, effect.worker))
        assert given.is_suspended, "only a resting process may be given"
        receiver = place, effect.number
        if given.is_awaited:
            self._onward[giver, effect.worker] = receiver
        elif not given.is_started:
            process = self.get(receiver)
            self._later(
                self._delays.process_resume_s(place), lambda: self._begin_if_awaited(*receiver, process)
            )
        elif not given.has_ended and self.fails(place, given.job, Step.GIVE) is None:
            self._later(self._delays.process_resume_s(place), lambda: self._come(given, *receiver))

    def _come(self, given: Process, place: int, worker: int) -> None:
        if (onward := self._onward.pop((place, worker), None)) is not None:
            self._later(self._delays.process_resume_s(place), lambda: self._come(given, *onward))
            return
        process = self.get((place, worker))
        if process is not None and process.is_awaited and process.job == given.job:
            process.is_awaited = False
            process.moves = given.moves + 1
            process.is_started = True
            self._tell(place, stimuli.WorkerStarted(worker, process.job in self.orderly))

    def _started(self, place: int, worker: int, process: Process, failing: Failing | None) -> None:
        if self.get((place, worker)) is not process:
            return
        if failing is Failing.FORK:
            self.end(place, stimuli.WorkerLost(worker, "no fork"))
        elif failing is not None:
            self.end(place, stimuli.WorkerCrashed(worker, "exit status 1"))
        else:
            process.is_started = True
            if not process.is_suspended:
                self._tell(place, stimuli.WorkerStarted(worker, process.job in self.orderly))

    def _say_later(self, delay_s: float, place: int, worker: int) -> None:
        started = stimuli.WorkerStarted(worker, self[place, worker].job in self.orderly)
        self._later(delay_s, lambda: self._tell(place, started))

    def _left(self, place: int, worker: int) -> None:
        """Report that a leaving process has handed over its work, unless it has ended before."""
        if (process := self.get((place, worker))) is not None:
            for late in process.heard[-1:]:
                self._tell(place, stimuli.WorkerMissed(*msgspec.structs.astuple(late)))
            self.end(place, stimuli.WorkerLeft(worker))
