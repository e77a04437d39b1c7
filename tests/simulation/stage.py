"""A race as a text: a few PEs, whose messages move one by one as the text says, and what they then want done.

Each line that begins a paragraph's step is a command; the lines below it, indented, are what came of it:
effects of PEs (`1: StartWorker job 1 index 0`) and messages that left (`1->0: Offer job 1 index 1`). Nothing
moves unless a command moves it, and time stands still but for `settle` and `wait`.

    pes 4 reuse=none       four PEs with these settings; delays are 0
    submit 0 job 1 ...     PE 0 is brought job 1, with parameters such as max_demand=3 (odd jobs are inline);
                           with leaves=true its workers leave in order
    deliver 2->0 Offer     the next message from PE 2 to PE 0, which must be an Offer
    drop 2->0 Offer        ... is thrown away
    epoch                  news of jobs and epochs, until there are none
    settle [but Offer ...] all messages but these kinds (and what is queued behind them), all processes and
                           descriptions, and time as far as somebody waits for it; tells nothing
    wait 1.0               time passes for those who wait for it
    started 1              the process asked for last at PE 1 runs
    crash 1, answer 1, raise 1, lost 1
                           the process of its active worker does; with a job (`answer 1 job 2`), that
                           of its suspended one
    demand 0 3             the worker at PE 0 could use 3
    say 0 down|up          it has something for its children, or its parent; `say 0 up leaving`: of the
                           first of those that leave
    miss 0                 the message that was delivered there last will not be taken by its process
    progress 0 100         it says that so much is done
    save 0 text            it has this checkpoint (`save 0 text leaving`: of the first of those that leave)
    restore 0              it begins and asks for the last checkpoint
    left 1                 the first of those that leave has left (`crash 1 leaving`: has died)
    fetched 1 job 2        the description is there
    unfetched 1 job 2      ... cannot be stored
    pause 1, unpause 1, end 1, drain 1, drop_past 1, rest 1 0.5, interrupt 0 job 1
    show                   who works for whom
    queued                 what is on its way
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from mallob_py.protocol.config import Config
from mallob_py.protocol.effects import (
    AnyEffect,
    DeliverMessage,
    FetchDescription,
    GiveCheckpoint,
    JobEnded,
    JobSaved,
    Log,
    Send,
    StartWorker,
)
from mallob_py.protocol.host_health import Fault
from mallob_py.protocol.messages import AnyMessage, Description, Epoch, Events
from mallob_py.protocol.pe import PE
from mallob_py.protocol.progress import Progress
from mallob_py.protocol.stimuli import (
    AnyStimulus,
    DescriptionHere,
    DescriptionMissing,
    Drain,
    DropPast,
    HostRests,
    JobInterrupted,
    JobParameters,
    JobSubmitted,
    PauseWorker,
    Received,
    SystemEnds,
    Tick,
    UnpauseWorker,
    WorkerAnswered,
    WorkerCrashed,
    WorkerDemands,
    WorkerLeft,
    WorkerLost,
    WorkerMissed,
    WorkerProgresses,
    WorkerRaised,
    WorkerSaves,
    WorkerStarted,
    WorkerToChildren,
    WorkerToParent,
    WorkerWantsCheckpoint,
)

_SETTLED_S = 0.05
_MOVES_MAX = 100_000
#: what is told of an effect or a message, in this order
_FIELDS = ("worker", "job", "index", "target_index", "returned", "lost", "outcome", "reason", "fault")

Command = Callable[["Stage", list[str]], Iterator[str]]


def play(script: str) -> str:
    """The same text with what comes out now below each command."""
    stage = Stage()
    lines: list[str] = []
    for line in script.splitlines():
        if line.startswith("  "):
            continue  # what came out when it was written
        lines.append(line)
        if line and not line.startswith("#"):
            lines += [f"  {told}" for told in stage.do(line.split())]
    return "\n".join(lines) + "\n"


class Stage:
    """The PEs of one text."""

    def __init__(self) -> None:
        self.now = 0.0
        self._pes: list[PE] = []
        self._ways: dict[tuple[int, int], deque[AnyMessage]] = {}
        self._orderly: set[int] = set()
        #: (PE, job, number)
        self._starting: list[tuple[int, int, int]] = []
        self._fetching: list[tuple[int, int]] = []
        #: to a process of that PE, last
        self._delivered: dict[int, DeliverMessage] = {}

    def do(self, words: list[str]) -> list[str]:
        """What comes of one command."""
        name, *arguments = words
        return list(getattr(self, f"_do_{name}")(*arguments))

    # --- commands -------------------------------------------------------------------------

    def _do_pes(self, size: str, *settings: str) -> Iterator[str]:
        delays = {"balancing_delay_s": 0.0, "matching_delay_s": 0.0}
        config = msgspec.convert(delays | _values(settings), Config)
        self._pes = [PE(number, int(size), config) for number in range(int(size))]
        return iter(())

    def _do_submit(self, pe: str, _job: str, job: str, *parameters: str) -> Iterator[str]:
        description = Description(1, b"x" if int(job) % 2 else None)
        values = _values(parameters)
        if values.pop("leaves", False):
            self._orderly.add(int(job))
        asked = msgspec.convert(values, JobParameters)
        return self._tell(int(pe), JobSubmitted(int(job), asked, description))

    def _do_deliver(self, way: str, kind: str) -> Iterator[str]:
        source, dest = map(int, way.split("->"))
        return self._tell(dest, Received(source, self._next(source, dest, kind)))

    def _do_drop(self, way: str, kind: str) -> Iterator[str]:
        source, dest = map(int, way.split("->"))
        self._next(source, dest, kind)
        return iter(())

    def _do_epoch(self) -> Iterator[str]:
        while True:
            self._tick_all()
            due = next((way for way, queue in self._queued() if isinstance(queue[0], Events | Epoch)), None)
            if due is None:
                return
            source, dest = due
            yield from self._tell(dest, Received(source, self._ways[due].popleft()))

    def _do_settle(self, *but: str) -> Iterator[str]:
        kinds, until_s = set(but[1:]), self.now + _SETTLED_S
        for _ in range(_MOVES_MAX):
            if not self._move(kinds):
                wanted_s = min(pe.deadline_s for pe in self._pes)
                if wanted_s > until_s:
                    return iter(())
                self.now = max(self.now, wanted_s)
                self._tick_all()
        raise AssertionError("it never comes to rest")

    def _do_wait(self, seconds: str) -> Iterator[str]:
        until_s = self.now + float(seconds)
        while (wanted_s := min(pe.deadline_s for pe in self._pes)) <= until_s:
            self.now = max(self.now, wanted_s)
            yield from self._ticks()
        self.now = until_s

    def _do_started(self, pe: str) -> Iterator[str]:
        starting = next(each for each in reversed(self._starting) if each[0] == int(pe))
        self._starting.remove(starting)
        return self._run(*starting)

    def _do_crash(self, pe: str, *job: str) -> Iterator[str]:
        return self._tell(int(pe), WorkerCrashed(self._number(pe, job), "killed"))

    def _do_answer(self, pe: str, *job: str) -> Iterator[str]:
        return self._tell(int(pe), WorkerAnswered(self._number(pe, job), f"of PE {pe}".encode()))

    def _do_raise(self, pe: str, *job: str) -> Iterator[str]:
        return self._tell(int(pe), WorkerRaised(self._number(pe, job), "an error"))

    def _do_lost(self, pe: str) -> Iterator[str]:
        return self._tell(int(pe), WorkerLost(self._number(pe, ()), "no fork"))

    def _do_demand(self, pe: str, workers: str) -> Iterator[str]:
        return self._tell(int(pe), WorkerDemands(self._number(pe, ()), int(workers)))

    def _do_say(self, pe: str, way: str, *whose: str) -> Iterator[str]:
        kind = {"up": WorkerToParent, "down": WorkerToChildren}[way]
        return self._tell(int(pe), kind(self._number(pe, whose), b"news"))

    def _do_miss(self, pe: str) -> Iterator[str]:
        return self._tell(int(pe), WorkerMissed(*msgspec.structs.astuple(self._delivered[int(pe)])))

    def _do_save(self, pe: str, text: str, *whose: str) -> Iterator[str]:
        return self._tell(int(pe), WorkerSaves(self._number(pe, whose), text.encode()))

    def _do_progress(self, pe: str, done: str) -> Iterator[str]:
        return self._tell(int(pe), WorkerProgresses(self._number(pe, ()), Progress(float(done))))

    def _do_restore(self, pe: str) -> Iterator[str]:
        return self._tell(int(pe), WorkerWantsCheckpoint(self._number(pe, ())))

    def _do_left(self, pe: str) -> Iterator[str]:
        return self._tell(int(pe), WorkerLeft(self._number(pe, ("leaving",))))

    def _do_fetched(self, pe: str, _job: str, job: str) -> Iterator[str]:
        return self._tell(int(pe), DescriptionHere(int(job)))

    def _do_unfetched(self, pe: str, _job: str, job: str) -> Iterator[str]:
        return self._tell(int(pe), DescriptionMissing(int(job), "no room", Fault.HOST))

    def _do_pause(self, pe: str) -> Iterator[str]:
        return self._tell(int(pe), PauseWorker())

    def _do_unpause(self, pe: str) -> Iterator[str]:
        return self._tell(int(pe), UnpauseWorker())

    def _do_end(self, pe: str) -> Iterator[str]:
        return self._tell(int(pe), SystemEnds())

    def _do_drain(self, pe: str) -> Iterator[str]:
        return self._tell(int(pe), Drain())

    def _do_drop_past(self, pe: str) -> Iterator[str]:
        return self._tell(int(pe), DropPast(1))

    def _do_rest(self, pe: str, seconds: str) -> Iterator[str]:
        return self._tell(int(pe), HostRests(self.now + float(seconds)))

    def _do_interrupt(self, pe: str, _job: str, job: str) -> Iterator[str]:
        return self._tell(int(pe), JobInterrupted(int(job)))

    def _do_show(self) -> Iterator[str]:
        for pe in self._pes:
            parts = []
            if (worker := pe.workers.active) is not None:
                children = " ".join(map(str, worker.seats.children()))
                with_children = f" with children {children}" if children else ""
                parts.append(f"job {worker.job} worker {worker.index} {worker.state.value}{with_children}")
            parts += [
                f"job {worker.job} worker {worker.index} {worker.state.value}"
                for worker in pe.workers.suspended.values()
            ]
            parts += [f"job {one.job} worker {one.index} leaving" for one in pe.workers.leaving]
            yield f"{pe.rank}: {', '.join(parts) or 'idle'}"

    def _do_queued(self) -> Iterator[str]:
        for (source, dest), queue in self._queued():
            for message in queue:
                yield f"{source}->{dest}: {_told(message)}"

    # --- what moves -----------------------------------------------------------------------

    def _tell(self, dest: int, stimulus: AnyStimulus) -> Iterator[str]:
        pe = self._pes[dest]
        pe.handle(stimulus, self.now)
        for effect in pe.take_effects():
            match effect:
                case Send(to, message):
                    self._ways.setdefault((dest, to), deque()).append(message)
                    yield f"{dest}->{to}: {_told(message)}"
                case StartWorker(worker, job):
                    self._starting.append((dest, job, worker))
                    yield f"{dest}: {_told(effect)}"
                case FetchDescription(job):
                    self._fetching.append((dest, job))
                    yield f"{dest}: {_told(effect)}"
                case Log():
                    pass
                case DeliverMessage():
                    self._delivered[dest] = effect
                    yield f"{dest}: {_told(effect)}"
                case _:
                    yield f"{dest}: {_told(effect)}"

    def _next(self, source: int, dest: int, kind: str) -> AnyMessage:
        queue = self._ways.get((source, dest))
        assert queue, f"nothing is on its way from {source} to {dest}"
        message = queue.popleft()
        assert type(message).__name__ == kind, f"the next one is {_told(message)}"
        return message

    def _queued(self) -> list[tuple[tuple[int, int], deque[AnyMessage]]]:
        return sorted((way, queue) for way, queue in self._ways.items() if queue)

    def _ticks(self) -> Iterator[str]:
        for pe in self._pes:
            if pe.deadline_s <= self.now:
                yield from self._tell(pe.rank, Tick())

    def _tick_all(self) -> None:
        deque(self._ticks(), maxlen=0)

    def _move(self, but: set[str]) -> bool:
        """One thing that is due; False if there is none."""
        for (source, dest), queue in self._queued():
            if type(queue[0]).__name__ not in but:
                deque(self._tell(dest, Received(source, queue.popleft())), maxlen=0)
                return True
        if self._fetching and "FetchDescription" not in but:
            rank, job = self._fetching.pop(0)
            deque(self._tell(rank, DescriptionHere(job)), maxlen=0)
            return True
        if self._starting and "StartWorker" not in but:
            deque(self._run(*self._starting.pop(0)), maxlen=0)
            return True
        return False

    def _run(self, pe: int, job: int, number: int) -> Iterator[str]:
        return self._tell(pe, WorkerStarted(number, job in self._orderly))

    def _number(self, pe: str, job: tuple[str, ...]) -> int:
        workers = self._pes[int(pe)].workers
        if job == ("leaving",):
            return next(iter(workers.leaving)).number
        worker = workers.suspended.get(int(job[1])) if job else workers.active
        assert worker is not None, f"there is no such worker at PE {pe}"
        return worker.number


def _values(words: tuple[str, ...]) -> dict[str, object]:
    def value(text: str) -> object:
        return text if text[0].isalpha() and text not in ("true", "false") else msgspec.json.decode(text)

    return {name: value(text) for name, text in (word.split("=") for word in words)}


def _told(thing: AnyEffect | AnyMessage) -> str:
    """Its kind, and what matters of it."""
    about = getattr(thing, "request", thing)
    words = [type(thing).__name__]
    for name in _FIELDS:
        value = getattr(about, name, None)
        if value is None or value is False or value == "" or value is math.inf:
            continue
        words.append(name if value is True else f"{name} {getattr(value, 'value', value)}")
    if isinstance(thing, Epoch):
        words += [f"{thing.epoch}:", *(f"job {event.job} demand {event.demand}" for event in thing.events)]
    if isinstance(thing, JobEnded) and thing.body is not None:
        words.append(f"result {thing.body.decode()}")
    if isinstance(thing, JobSaved):
        words.append(thing.checkpoint.decode())
    if isinstance(thing, GiveCheckpoint):
        words.append("nothing" if thing.data is None else thing.data.decode())
    return " ".join(words)
