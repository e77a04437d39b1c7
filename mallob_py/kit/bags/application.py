"""Applications whose jobs are bags of tasks: authors write the bag, this module contains the worker."""

from __future__ import annotations

import math
import os
import select
import time
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from resource import RUSAGE_THREAD, getrusage, struct_rusage
from typing import IO, Any, ClassVar, NamedTuple

import msgspec
import numpy as np

from mallob_py.kit import app
from mallob_py.kit.bags.bag import Bag, BagError
from mallob_py.kit.bags.books import Counted
from mallob_py.kit.bags.incumbent import number_of
from mallob_py.kit.bags.laws import check_bag
from mallob_py.kit.bags.ledger import Ledger, Neighbours
from mallob_py.kit.bags.messages import decode, encode
from mallob_py.kit.declaration import DONE, UNKNOWN, BagDeclaration

#: environment variable that names the folder for logs of workers' books (`mallob-py run --log-loans`,
#: `scripts/loans.py`)
LOG_LOANS = "MALLOB_PY_LOG_LOANS"
_encode = msgspec.json.Encoder().encode

#: target duration of a chunk of tasks, after which the worker looks at messages; time in which another
#: process has the core does not count
_CHUNK_S = 0.002
#: target duration of a chunk while other processes use the core: messages then wait for the core anyway
_SHARED_CHUNK_S = 0.004
#: factor by which a chunk's duration may miss its target before the chunk is adapted
_CHUNK_TOLERANCE = 1.5
#: greatest factor by which a chunk grows at a time: a new worker adapts soon, but reads messages within
#: milliseconds even if tasks suddenly take longer
_CHUNK_GROWTH = 8.0
#: longest time between two whole rounds of `run`, even if no message comes and nothing is due
_ROUND_S = 0.1
_PARK_S = 1.0
#: time between checkpoints of the root
_CHECKPOINT_S = 1.0
#: time between checkpoints of a root that leaves
_LAST_CHECKPOINTS_S = 0.1
#: greatest share of the root's time that checkpoints take
_CHECKPOINT_SHARE = 0.01
#: time between checkpoints in the _TURNS_S after a pause of at least _REST_S: such a job runs in turn with
#: others, and its next turn may begin on another host, from a checkpoint
_TURN_CHECKPOINTS_S = 0.1
_TURNS_S = 10.0
_REST_S = 0.1
#: bag size [bytes] from which the reply contains a warning: sending such a bag takes as long as a chunk
LARGE_BAG_BYTES = 1 << 20


class BagApplication(BagDeclaration, app.Application):
    """A kind of job that is a bag of tasks. Subclasses must write `first_bag` and `bag_from_bytes`.

    The result is exact even if workers join, leave, are stopped or die (`kit.bags.ledger` says why).
    """

    #: configuration of a small job without input files. The process from which workers are forked runs the
    #: job once, to load what bags load at first use (kernels, modules). None: nothing is run
    rehearsal: ClassVar[Mapping[str, Any] | None] = None

    @abstractmethod
    def first_bag(self, payload: app.Payload, configuration: Mapping[str, Any]) -> Bag:
        """Return a bag of all tasks. Each call must return an equal bag, because a lost job begins again."""

    @abstractmethod
    def bag_from_bytes(self, data: bytes, payload: app.Payload, configuration: Mapping[str, Any]) -> Bag:
        """Return the bag that `Bag.to_bytes` wrote."""

    def fold(self, one: Any, other: Any) -> Any:
        """Combine two results. `fold` must be associative and commutative: results come in any order."""
        return one + other

    def fields(self, result: Any, configuration: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the reply's fields for a result (None: there was no task); by default, one field `value`."""
        return {"value": _plain(result)}

    def best_fields(self, best: Any, configuration: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the reply's fields for the best solution (`Bag.best`).

        By default, the field `value` is the solution's number, and the field `best` the remainder of a tuple.
        """
        fields = {"value": number_of(best)}
        return fields | {"best": _plain(best[1:])} if isinstance(best, tuple) else fields

    def read(self, job: app.JobInput) -> app.Payload:
        """Return an empty payload, for applications whose configuration says everything."""
        if job.files or job.literals is not None:
            raise app.InputError("this application takes no input; describe the job by its configuration")
        return {}

    def check_laws(self, payload: app.Payload, configuration: Mapping[str, Any]) -> str:
        return check_bag(self, configuration, payload)

    def prepare(self) -> None:
        if self.rehearsal is not None:
            _rehearse(self, self.rehearsal)

    def run(self, context: app.WorkerContext) -> app.Result | None:
        try:
            return BagWorker(self, context).run()
        except BagError as error:  # the author needs the message, not a traceback
            raise app.InputError(str(error), "application") from error


def _plain(value: Any) -> Any:
    """Convert a value to one that JSON can hold."""
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _told(application: BagApplication, configuration: Mapping[str, Any], found: Counted) -> dict[str, Any]:
    """Return the reply's fields for the tasks done so far."""
    fields: dict[str, Any] = {}
    if found.result is not None or found.best is None:
        fields.update(application.fields(found.result, configuration))
    if found.best is not None:
        fields.update(application.best_fields(found.best, configuration))
    return fields


def _rehearse(application: BagApplication, configuration: Mapping[str, Any]) -> None:
    """Let two ledgers (workers' accounts of tasks) do a small job as real workers would."""
    payload = application.read(app.JobInput(configuration=configuration))
    for array in payload.values():
        array.flags.writeable = False  # read-only, as in workers: compiled kernels depend on that
    work = _Work(application, payload, configuration)
    workers = [Ledger(work, seed) for seed in range(2)]
    root = workers[0]
    root.open_root(0.0)
    while not root.books.is_finished:
        for index, worker in enumerate(workers):
            worker.process(1 + worker.done_here, 0.0)
            worker.tick(0.0)
            sent, worker.outbox = worker.outbox, []
            for _, message in sent:
                workers[1 - index].receive((index, 0), decode(encode(message)), 0.0)
    books = root.books
    _told(application, configuration, Counted(books.done(), books.result(), books.best))


class _Work:
    def __init__(
        self, application: BagApplication, payload: app.Payload, configuration: Mapping[str, Any]
    ) -> None:
        self._application = application
        self._given = (payload, configuration)
        self.fold = application.fold
        self.minimizes = application.minimizes

    def first_bag(self) -> Bag:
        return _bag("first_bag", self._application.first_bag(*self._given))

    def bag_from_bytes(self, data: bytes) -> Bag:
        return _bag("bag_from_bytes", self._application.bag_from_bytes(data, *self._given))


def _bag(method: str, returned: Any) -> Bag:
    """Refuse what is no bag: None instead of a bag would count as a bag without tasks. Raises BagError."""
    if not isinstance(returned, Bag):
        raise BagError(f"{method} must return a Bag, not {returned!r:.80}")
    return returned


class _Spent(NamedTuple):
    """The time that a chunk took, and the time that it should take."""

    own_s: float
    right_s: float

    @classmethod
    def of(cls, passed_s: float, before: struct_rusage, after: struct_rusage) -> _Spent:
        if after.ru_nivcsw == before.ru_nivcsw:
            return cls(passed_s, _CHUNK_S)
        cpu_s = _cpu_s(before, after)
        if after.ru_nvcsw == before.ru_nvcsw:
            return cls(min(passed_s, cpu_s), _SHARED_CHUNK_S)
        # Another process took the core, and this worker also waited: how long each took is unknown.
        return cls(min(passed_s, max(cpu_s, _CHUNK_S)), _CHUNK_S)


def _cpu_s(before: struct_rusage, after: struct_rusage) -> float:
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


class BagWorker:
    """The worker's main loop around the ledger: messages of the job tree, and the clock."""

    def __init__(self, application: BagApplication, context: app.WorkerContext) -> None:
        self._application = application
        self._context = context
        work = _Work(application, context.payload, context.configuration)
        self.ledger = Ledger(work, int.from_bytes(os.urandom(8), "little"))
        #: this worker's index and its children's indices, as last reported to the ledger
        self._place: tuple[int, tuple[int, ...]] = (-1, ())
        #: number of tasks per chunk
        self.count = 1
        self._process = os.getpid()
        self._messages = select.poll()
        self._messages.register(context.fileno(), select.POLLIN)
        self._is_leaving = False
        #: time of the next checkpoint, at the root only
        self._checkpoint_s = math.inf
        #: time at which this root last went on after a pause
        self._rested_s = -math.inf
        #: number of the job's tasks done before this root began
        self._restored = 0
        #: the best solution that this root has offered
        self._offered: Any = None
        #: estimated number of the job's tasks, as of the last checkpoint; None: unknown
        self._total: float | None = None
        self._log: IO[bytes] | None = None
        if folder := os.environ.get(LOG_LOANS):
            path = Path(folder, f"{context.job}.{os.urandom(8).hex()}.jsonl")
            self._log = path.open("wb", buffering=0)
            self.ledger.books.log = []

    def run(self) -> app.Result | None:
        """Work until the job is done (return its result) or this worker has left (return None)."""
        ledger, context = self.ledger, self._context
        while True:
            now = time.monotonic()
            is_busy = ledger.books.has_work and not self._is_leaving
            due_s = min(ledger.next_deadline(), self._checkpoint_s)
            wait_s = 0.0 if is_busy else min(_PARK_S, max(0.0, due_s - now))
            for message in context.poll(wait_s):
                self.take(message)
            now = time.monotonic()
            if context.leaving:
                if not self._is_leaving:
                    self._is_leaving = True
                    ledger.leave(now)
                    self._save(now)
            elif self._place != (place := (context.index, context.children)):
                self._place = place
                self._settle_in(now)
            ledger.tick(now)
            self._flush()  # answers to other workers must not wait until tasks are done
            if not self._is_leaving:
                self.work(now)
            self._flush()
            if ledger.books.root is not None:
                done = ledger.books.done()
                total = None if self._total is None else max(1.0, done, self._total)
                context.report_progress(done, total, unit="tasks")
                if ledger.books.best is not self._offered and not ledger.books.is_finished:
                    self._offered = ledger.books.best
                    self._offer(Counted(done, None, ledger.books.best))
            if ledger.books.is_finished:
                return self._answer()
            has_left = self._is_leaving and ledger.has_left
            if has_left or now >= self._checkpoint_s:
                self._save(now)
            if has_left:
                return None

    def _settle_in(self, now: float) -> None:
        """Adapt to another index in the tree, or to other neighbours."""
        if self._context.index > 0:
            self.ledger.close_root()
            self._checkpoint_s = math.inf
        elif self.ledger.books.root is None:
            last = self._context.last_checkpoint()
            if self._context.leaving or self._context.index > 0:
                return  # without the checkpoint, the job would begin again from nothing, and report so
            self.ledger.open_root(now, last)
            self._restored = self.ledger.books.done()
            self._checkpoint_s = now + _CHECKPOINT_S
            if last is not None:  # in most cases, the job has paused and now continues on this rank
                self._has_rested(now)
        self.ledger.neighbours_changed(now)

    def _has_rested(self, now: float) -> None:
        self._rested_s = now
        self._checkpoint_s = min(self._checkpoint_s, now + _TURN_CHECKPOINTS_S)

    def _save(self, now: float) -> None:
        """Write a checkpoint if this is the root."""
        if self.ledger.books.root is None:
            return
        before_s = time.thread_time()  # the thread's CPU time, which excludes a pause
        data = self.ledger.books.checkpoint()
        self._total = self._expected_total()
        self._offer(self.ledger.books.counted(data))
        self._write_log()
        if len(data) <= app.CHECKPOINT_BYTES_MAX:
            self._context.checkpoint(data)
        period_s = _CHECKPOINT_S
        if self._is_leaving:
            period_s = _LAST_CHECKPOINTS_S
        elif now < self._rested_s + _TURNS_S:
            period_s = _TURN_CHECKPOINTS_S
        self._checkpoint_s = now + max(period_s, (time.thread_time() - before_s) / _CHECKPOINT_SHARE)

    def _expected_total(self) -> float | None:
        left = self.ledger.books.expected_left()
        return self.ledger.books.done() + left if math.isfinite(left) else None

    def _offer(self, found: Counted) -> None:
        """Offer the result so far as the answer of a job that is interrupted or reaches a limit."""
        if found.result is None and found.best is None:
            return
        fields = _told(self._application, self._context.configuration, found)
        fields |= {"tasks": found.tasks, "tasks_restored": self._restored}
        if self._total:
            fields["share_done"] = round(min(1.0, found.tasks / self._total), 4)
        value = None if found.best is None else number_of(found.best)
        self._context.offer(app.Result(UNKNOWN, fields=fields), value=value)

    def work(self, now: float) -> None:
        """Work in chunks until a message has come, a message must be sent, or a deadline is due."""
        ledger = self.ledger
        due_s = min(now + _ROUND_S, ledger.next_deadline(), self._checkpoint_s)
        usage = getrusage(RUSAGE_THREAD)
        if ledger.done_here == 0:
            self.count = ledger.chunk_tasks
        while ledger.process(self.count, now) > 0:
            if os.getpid() != self._process:
                return  # this is a child that `Bag.process` has forked; using the context ends it
            ended_s, usage_before, usage = time.monotonic(), usage, getrusage(RUSAGE_THREAD)
            self._adapt_count(_Spent.of(ended_s - now, usage_before, usage))
            if ended_s - now - _cpu_s(usage_before, usage) >= _REST_S and self._checkpoint_s < math.inf:
                self._has_rested(ended_s)
            now = ended_s
            if now >= due_s or ledger.outbox or not ledger.books.has_work or self._messages.poll(0):
                return

    def _adapt_count(self, spent: _Spent) -> None:
        """Adapt the number of tasks per chunk to the last chunk's duration."""
        factor = spent.right_s / max(spent.own_s, 1e-9)
        if factor > 1.0 and self.ledger.ran_dry:
            return  # the bag had fewer tasks than the chunk, so the duration says nothing
        if not 1 / _CHUNK_TOLERANCE <= factor <= _CHUNK_TOLERANCE:
            self.count = max(1, int(self.count * min(_CHUNK_GROWTH, factor)))

    def take(self, message: app.TreeMessage) -> None:
        now = time.monotonic()
        if message.returned:
            self.ledger.undelivered(message.sender, decode(message.data), now)
        else:
            self.ledger.receive(message.sender, decode(message.data), now)

    def _write_log(self) -> None:
        """Write the log. Must be called before messages are sent, so that receivers' entries come later."""
        if self._log is not None and self.ledger.books.log:
            self._log.write(b"".join(_encode(entry) + b"\n" for entry in self.ledger.books.log))
            self.ledger.books.log.clear()

    def _flush(self) -> None:
        self._write_log()
        outbox, self.ledger.outbox = self.ledger.outbox, []
        for dest, message in outbox:
            data = encode(message)
            if isinstance(dest, Neighbours):
                self._context.send_to_parent(data)
                self._context.send_to_children(data)
            else:
                self._context.send_to(dest, data)

    def _answer(self) -> app.Result:
        books = self.ledger.books
        found = Counted(books.done(), books.result(), books.best)
        fields = _told(self._application, self._context.configuration, found)
        self._write_log()
        counts: dict[str, Any] = {
            "tasks": found.tasks,
            "tasks_in_vain": books.wasted_in_all(),
            "tasks_restored": self._restored,
        }
        if books.largest_bag > LARGE_BAG_BYTES:
            counts["warning"] = (
                f"bags of up to {books.largest_bag / 1e6:.1f} MB were sent: put data that all tasks need into"
                " the payload (`read`), which workers share, and only references to it into tasks"
            )
        return app.Result(DONE, fields=fields | counts)
