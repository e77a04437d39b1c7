"""The book of a job's calls: a pure state machine that says which call is where.

Theory of operation
-------------------
The client has the only book. Calls of one function form a *group*. Workers get calls in *batches* that take a
few milliseconds, once the duration of a call is known, and that shrink towards the end. A worker with short
calls has a second batch while it works on the first.

The first outcome of a call counts, later ones are dropped: each call counts once, however often it was sent.
A call is sent again

- if its worker is lost. The calls of a lost worker are then sent one by one, each to a worker without other
  calls. A call fails if it was the only call of `LOSSES_MAX` lost workers.
- if its worker is away (suspended because the job has fewer workers) and no other calls are left; calls of a
  function with short calls are sent again at once.
- if its worker was silent for `SILENT_S`; the worker then counts as away.
- if its worker gives the call back on request, because another call of the batch takes longer than expected.

No sockets, processes or clocks here.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

#: target duration of a batch
BATCH_S = 0.004
#: duration of calls below which a worker gets a second batch
PREFETCH_S = 0.02
#: greatest size of a batch, once the size of a call is known
BATCH_BYTES = 4 << 20
BATCH_CALLS_MAX = 5000
#: time after which a worker must give back a batch: OVERDUE_S plus OVERDUE_FACTOR times the expected duration
OVERDUE_S = 0.02
OVERDUE_FACTOR = 4.0
#: duration below which calls are repeated at once if their worker is away
SHORT_S = 0.5
#: silence after which a worker with calls counts as away
SILENT_S = 2.0
#: time since a worker went away, after which outcomes from the worker show that it is back
_STALE_S = 0.1
#: a call fails if it was the only call of this many lost workers
LOSSES_MAX = 3
#: weight of the newest value in a running mean
_WEIGHT = 0.3
#: greatest number of groups whose mean durations `Book.demand` takes into account
_GROUPS_LOOKED_AT = 50

_WAITING, _SENT, _DONE = 0, 1, 2


class Group:
    """Numbered calls of one function; calls may be added while the group is in use."""

    __slots__ = (
        "again",
        "alone",
        "chunk",
        "content",
        "is_ready",
        "is_whole",
        "left",
        "limit",
        "losses",
        "mean_bytes",
        "mean_s",
        "next",
        "state",
    )

    def __init__(
        self,
        content: Any,
        count: int = 0,
        *,
        chunk: int = 0,
        is_whole: bool = False,
        limit: int | None = None,
    ) -> None:
        """Create a group.

        `chunk`: calls per batch, 0: chosen by the book. `is_whole`: workers need not give back calls.
        `limit`: only calls with lower numbers may be sent (see `Book.extend`). The book does not read
        `content`.
        """
        self.content = content
        self.chunk = chunk
        self.is_whole = is_whole
        #: whether the group is in `Book._ready`
        self.is_ready = False
        self.state = bytearray(count)
        self.limit = count if limit is None else limit
        #: number of the first call never sent
        self.next = 0
        #: calls to be sent again, in batches
        self.again: deque[int] = deque()
        #: calls to be sent again, each alone
        self.alone: deque[int] = deque()
        #: number of calls without an outcome
        self.left = count
        self.losses: dict[int, int] = {}
        self.mean_s: float | None = None
        self.mean_bytes = 0.0

    @property
    def has_waiting(self) -> bool:
        return self.next < self.limit or bool(self.again) or bool(self.alone)


@dataclass(slots=True)
class Batch:
    """Calls sent to one worker; calls that were answered or given back are removed."""

    number: int
    group: Group
    calls: set[int]
    sent_s: float
    expected_s: float
    is_recalled: bool = False


@dataclass(slots=True)
class _Worker:
    batches: dict[int, Batch] = field(default_factory=dict)
    #: whether the worker is suspended, as far as is known
    is_away: bool = False
    away_s: float = 0.0
    heard_s: float = 0.0
    #: whether the worker has calls and was silent for `SILENT_S`
    is_silent: bool = False
    index: int = -1
    #: whether the worker has a call that may kill it, and therefore gets no further call
    is_alone: bool = False

    @property
    def calls(self) -> int:
        return sum(len(batch.calls) for batch in self.batches.values())

    @property
    def expected_s(self) -> float:
        return sum(batch.expected_s for batch in self.batches.values())


class Assignment(NamedTuple):
    worker: int
    batch: int
    group: Group
    calls: Sequence[int]


class Book:
    """The book of one job: which of its calls is where. A worker's number is never reused."""

    def __init__(self) -> None:
        #: groups with calls to send, in the order in which they are served
        self._ready: deque[Group] = deque()
        self._workers: dict[int, _Worker] = {}
        #: workers that may be given calls, as far as is known
        self._hungry: dict[int, None] = {}
        #: calls of workers that are away or silent, if the calls are long or of unknown duration
        self._doubtful: deque[tuple[Group, int]] = deque()
        self._batches = 0
        #: the job's volume, as last reported by its root
        self._volume = math.inf
        self.left = 0
        self.done = 0
        #: groups with calls without an outcome
        self._groups: dict[Group, None] = {}

    # --- calls ----------------------------------------------------------------------------------

    def add(self, group: Group, count: int = 0, *, is_first: bool = False) -> None:
        """Take in a new group, or `count` more calls of a known group; `is_first`: send these calls first."""
        if count:
            group.state += bytes(count)
            group.limit += count
            group.left += count
        else:
            count = group.left
        self.left += count
        if group.left:
            self._groups[group] = None
        self._make_ready(group, is_first)

    def extend(self, group: Group, limit: int) -> None:
        """Allow the calls with numbers below `limit` to be sent."""
        group.limit = max(group.limit, limit)
        if group.left:
            self._make_ready(group)

    def done_without_worker(self, group: Group, calls: Sequence[int]) -> list[int]:
        """Count cancelled or unsendable calls as done; return the calls that had no outcome before."""
        return self._settle(group, calls)

    def cancel_waiting(self, group: Group) -> list[int]:
        """Send no further call of the group; count the calls that no worker has as done, and return them."""
        group.again.clear()
        group.alone.clear()
        group.next = group.limit = len(group.state)
        return self._settle(group, [call for call, state in enumerate(group.state) if state == _WAITING])

    def cancel(self, group: Group) -> list[int]:
        """Drop the group; count its calls without an outcome as done, and return them."""
        group.again.clear()
        group.alone.clear()
        group.next = group.limit = len(group.state)
        return self._settle(group, [call for call, state in enumerate(group.state) if state != _DONE])

    def batches_of(self, group: Group, calls: Container[int] | None = None) -> list[tuple[int, int]]:
        """Return (worker, batch) numbers of a group's batches; `calls`: only of batches with one of these."""
        return [
            (number, batch.number)
            for number, worker in self._workers.items()
            for batch in worker.batches.values()
            if batch.group is group and (calls is None or any(call in calls for call in batch.calls))
        ]

    # --- workers -----------------------------------------------------------------------------------

    def join(self, worker: int, now: float) -> None:
        self._workers[worker] = _Worker(heard_s=now)
        self._hungry[worker] = None

    def place(self, worker: int, index: int, volume: int, now: float) -> None:
        """Note a worker's index. The index's former worker, and workers beyond the volume, count as away."""
        told = self._workers[worker]
        told.index = index
        if index == 0:
            self._volume = max(1, volume)
        for number, other in self._workers.items():
            if other.index >= self._volume or (number != worker and other.index == index):
                self._is_away(number, now)
            elif number == worker:
                self._is_here(number, now)

    def look_for_silent(self, now: float) -> None:
        """Have the calls of silent workers repeated by other workers, as if the silent workers were away."""
        for number, worker in self._workers.items():
            if worker.batches and not worker.is_silent and now > worker.heard_s + SILENT_S:
                worker.is_silent = True
                self._hungry.pop(number, None)
                if not worker.is_away:
                    self._doubt(worker)

    def lose(self, worker: int, is_to_blame: bool = True) -> list[tuple[Group, int]]:
        """Remove a lost worker; return the calls that fail, because too many workers were lost with them.

        `is_to_blame`: whether the worker's calls may be the cause of its loss.
        """
        lost = self._workers.pop(worker)
        self._hungry.pop(worker, None)
        failed: list[tuple[Group, int]] = []
        is_to_blame = is_to_blame and not lost.is_away
        is_sole = lost.calls == 1
        for batch in lost.batches.values():
            group = batch.group
            calls = [call for call in batch.calls if group.state[call] == _SENT]
            if is_to_blame and is_sole and calls:
                count = group.losses[calls[0]] = group.losses.get(calls[0], 0) + 1
                if count >= LOSSES_MAX:
                    failed += [(group, call) for call in self._settle(group, calls)]
                    continue
            self._put_back(group, calls, alone=is_to_blame)
        return failed

    def _is_here(self, number: int, now: float) -> None:
        worker = self._workers[number]
        worker.is_away = worker.is_silent = False
        worker.heard_s = now
        self._hungry[number] = None

    def _is_away(self, number: int, now: float) -> None:
        worker = self._workers[number]
        if worker.is_away:
            return
        worker.is_away, worker.away_s = True, now
        self._hungry.pop(number, None)
        self._doubt(worker)

    def _doubt(self, worker: _Worker) -> None:
        for batch in worker.batches.values():
            group = batch.group
            calls = [call for call in batch.calls if group.state[call] == _SENT]
            if group.mean_s is not None and group.mean_s < SHORT_S:
                self._put_back(group, calls)
            else:
                self._doubtful += ((group, call) for call in calls)

    # --- messages of workers ---------------------------------------------------------------------------

    def results(
        self, worker: int, batch_number: int, calls: Sequence[int], spent_s: float, now: float
    ) -> list[int]:
        """Take in outcomes of calls; return the calls that had no outcome before."""
        told = self._workers[worker]
        told.heard_s = now
        if told.is_silent or (told.is_away and now > told.away_s + _STALE_S):
            self._is_here(worker, now)
        batch = self._take_out(worker, batch_number, calls)
        if batch is None or not calls:
            return []
        group, mean_s = batch.group, spent_s / len(calls)
        group.mean_s = mean_s if group.mean_s is None else _mixed(group.mean_s, mean_s)
        return self._settle(group, calls)

    def given_back(self, worker: int, batch_number: int, calls: Sequence[int]) -> None:
        batch = self._take_out(worker, batch_number, calls)
        if batch is not None:
            self._put_back(batch.group, [call for call in calls if batch.group.state[call] == _SENT])

    def drop(self, worker: int, batch_number: int, calls: Sequence[int]) -> None:
        """Count calls of a batch that are not sent after all as done, and remove them from the batch."""
        batch = self._take_out(worker, batch_number, calls)
        if batch is not None:
            self._settle(batch.group, calls)

    def batch_of(self, worker: int, batch_number: int) -> Batch | None:
        found = self._workers.get(worker)
        return None if found is None else found.batches.get(batch_number)

    def _take_out(self, worker: int, batch_number: int, calls: Sequence[int]) -> Batch | None:
        batch = self.batch_of(worker, batch_number)
        if batch is None:
            return None
        told = self._workers[worker]
        before = len(batch.calls)
        batch.calls.difference_update(calls)
        batch.expected_s *= len(batch.calls) / before if before else 0.0
        if not batch.calls:
            del told.batches[batch_number]
            if not told.batches:
                told.is_alone = False
        if not told.is_away and not told.is_silent:
            self._hungry[worker] = None
        return batch

    def _settle(self, group: Group, calls: Sequence[int]) -> list[int]:
        state = group.state
        new = [call for call in calls if state[call] != _DONE]
        for call in new:
            state[call] = _DONE
        group.left -= len(new)
        if not group.left:
            self._groups.pop(group, None)
        self.left -= len(new)
        self.done += len(new)
        return new

    def _put_back(self, group: Group, calls: Sequence[int], alone: bool = False) -> None:
        for call in calls:
            group.state[call] = _WAITING
        (group.alone if alone else group.again).extend(sorted(calls))
        if calls:
            self._make_ready(group, is_first=True)

    def _make_ready(self, group: Group, is_first: bool = False) -> None:
        if group.is_ready:
            return
        group.is_ready = True
        if is_first:
            self._ready.appendleft(group)
        else:
            self._ready.append(group)

    # --- messages to send ------------------------------------------------------------------------------

    def assignments(self, now: float) -> Iterator[Assignment]:
        """Yield the batches to be sent now, and note the calls of each as sent."""
        for worker in tuple(self._hungry):
            while (made := self._next_batch(worker, now)) is not None:
                yield made
            if not self._ready and not self._doubtful:
                return

    def _next_batch(self, worker: int, now: float) -> Assignment | None:
        told = self._workers[worker]
        while True:
            while self._ready and not self._ready[0].has_waiting:
                self._ready.popleft().is_ready = False
            if not self._ready:
                return self._doubtful_batch(worker, now)
            if told.is_alone:
                return None
            group = self._ready[0]
            if told.batches:
                known_s = group.mean_s
                is_short = known_s is not None and known_s < PREFETCH_S
                if len(told.batches) > 1 or not is_short or told.expected_s >= BATCH_S or group.alone:
                    self._hungry.pop(worker, None)
                    return None
            if calls := self._take(group, told):
                return self._assigned(worker, group, calls, now)

    def _doubtful_batch(self, worker: int, now: float) -> Assignment | None:
        if self._workers[worker].batches:
            return None
        while self._doubtful:
            group, call = self._doubtful.popleft()
            if group.state[call] == _SENT and not self._has_at_work(group, call):
                return self._assigned(worker, group, [call], now)
        return None

    def _has_at_work(self, group: Group, call: int) -> bool:
        """Tell whether a worker that is neither away nor silent has the call."""
        return any(
            batch.group is group and call in batch.calls
            for worker in self._workers.values()
            if not worker.is_away and not worker.is_silent
            for batch in worker.batches.values()
        )

    def _take(self, group: Group, worker: _Worker) -> list[int]:
        state = group.state
        while group.alone:
            call = group.alone.popleft()
            if state[call] == _WAITING:
                worker.is_alone = True
                return [call]
        size = self._size(group)
        calls: list[int] = []
        while group.again and len(calls) < size:
            call = group.again.popleft()
            if state[call] == _WAITING:
                calls.append(call)
        while group.next < group.limit and len(calls) < size:
            end = min(group.limit, group.next + size - len(calls))
            calls += [call for call in range(group.next, end) if state[call] == _WAITING]
            group.next = end
        return calls

    def _size(self, group: Group) -> int:
        if group.chunk:
            return group.chunk
        if group.mean_s is None:
            return 1
        size = min(BATCH_CALLS_MAX, BATCH_S / max(group.mean_s, 1e-9))
        if group.mean_bytes:
            size = min(size, BATCH_BYTES / group.mean_bytes)
        workers = max(1, sum(not worker.is_away for worker in self._workers.values()))
        waiting = group.limit - group.next + len(group.again)
        return max(1, min(int(size), math.ceil(waiting / (2 * workers))))

    def _assigned(self, worker: int, group: Group, calls: Sequence[int], now: float) -> Assignment:
        for call in calls:
            group.state[call] = _SENT
        self._batches += 1
        expected_s = len(calls) * (group.mean_s or 0.0)
        batch = Batch(self._batches, group, set(calls), now, expected_s)
        self._workers[worker].batches[self._batches] = batch
        if group.mean_s is None or group.mean_s >= PREFETCH_S:
            self._hungry.pop(worker, None)
        return Assignment(worker, self._batches, group, calls)

    def note_bytes(self, group: Group, calls: int, size_bytes: int) -> None:
        """Note the size of a batch of `calls` calls, or of their results."""
        mean = size_bytes / max(1, calls)
        group.mean_bytes = mean if not group.mean_bytes else max(mean, _mixed(group.mean_bytes, mean))

    def recalls(self, now: float) -> dict[int, list[int]]:
        """Return worker -> batches whose calls the worker must give back unless they have begun."""
        found: dict[int, list[int]] = {}
        for number, worker in self._workers.items():
            if worker.is_away or worker.calls < 2:
                continue
            for batch in worker.batches.values():
                is_overdue = now > batch.sent_s + OVERDUE_S + OVERDUE_FACTOR * worker.expected_s
                if is_overdue and not batch.is_recalled and not batch.group.is_whole:
                    batch.is_recalled = True
                    found.setdefault(number, []).append(batch.number)
        return found

    @property
    def has_batches(self) -> bool:
        """Tell whether a worker has several calls, some of which it may have to give back."""
        return any(worker.calls > 1 for worker in self._workers.values())

    @property
    def running(self) -> int:
        """The number of workers with calls, and thus of running calls. Any thread may read it."""
        return sum(bool(worker.batches) and not worker.is_away for worker in tuple(self._workers.values()))

    @property
    def idle(self) -> list[int]:
        """The workers that are not away and have no calls."""
        return [number for number, one in self._workers.items() if not one.is_away and not one.batches]

    @property
    def has_waiting(self) -> bool:
        return any(group.has_waiting for group in self._ready)

    def demand(self, further: int = 0) -> int:
        """Return how many workers the open calls and `further` more can use; busy workers are kept."""
        counted, wanted = 0, 0.0
        for group in islice(self._groups, _GROUPS_LOOKED_AT):
            is_short = group.mean_s is not None and group.mean_s < PREFETCH_S
            wanted += group.left * (group.mean_s / BATCH_S if is_short and group.mean_s is not None else 1.0)
            counted += group.left
        wanted = math.ceil(wanted + self.left - counted + further)
        busy = (one.index + 1 for one in self._workers.values() if one.batches and not one.is_away)
        return max(1, int(wanted), *busy)


def _mixed(before: float, now: float) -> float:
    return (1 - _WEIGHT) * before + _WEIGHT * now
