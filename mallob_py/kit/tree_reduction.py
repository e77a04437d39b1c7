"""All-reductions along the job tree: every worker gives bytes, every worker gets the combination.

For trees that change all the time; clause sharing is built on it. Nothing here waits: the application polls
its context and hands the messages on.

    reduction = TreeReduction(context, contribute=lambda epoch: mine(), combine=merge)
    while True:
        finished, messages = reduction.advance(context.poll(0.01))
        for epoch, data in finished:
            use(data)                      # the same data in every worker that takes part
        if context.index == 0 and reduction.unfinished is None and it_is_time():
            reduction.start()
        ...                                # `messages` are the application's own

Theory of operation
-------------------
The root starts epoch e. Messages, with s for the sender's *call number*, unique to one worker's part in one
epoch:

    CALL(e, s)       down  take part: takes a snapshot of the children present, calls them, gives
    REMINDER(e, s)   down  to those who did not answer for a while
    GIVE(e, s)       up    own bytes combined with all that the called children gave
    ABSENT(e, s)     up    nothing will come from here
    RESULT(e, s)     down  what the root has got, along the same snapshots

    (none) --start, CALL--> COLLECTING --all children gave or are absent--> GIVEN --RESULT--> (none)
    COLLECTING, GIVEN --newer CALL or start--> COLLECTING      --own index changed--> (none)

- An answer repeats the call's number and the index that was called. So a late answer, or one that reaches
  another parent since the sender was re-placed while suspended, is recognised and ignored.
- A child is absent if it is no longer among the children, if a message to it came back, or if it says so. It
  says so if it does not know the call in a reminder: it has joined since, has another place now, or has a new
  process.
- A worker gives at most once per epoch; if called again, from another place, it is absent. So no contribution
  is counted twice.
- A worker learns of epochs by CALL only, so a worker that joins takes part from the next epoch on.
- Messages may be lost (processes die, queues overflow). A reminder is answered by giving again; a lost RESULT
  is made good by the next epoch.
- The root may become another process: a new process counts epochs from 1, a process from another place goes
  on from the epochs it has seen. Workers that have seen later epochs are absent and report these, and the
  root's next epoch is later. So all workers may take part only after a few epochs.

Guarantees
- A result combines each contribution at most once. It contains that of each worker which stayed, with all its
  ancestors, polled from start to finish, and had seen no later epoch of another root process.
- An epoch ends unless a worker neither leaves nor polls; `start` gives up an unfinished epoch.
- Contributions are combined in worker processes; ranks only pass them on.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from mallob_py.trees import parent_of

if TYPE_CHECKING:
    from mallob_py.kit.app import TreeMessage, WorkerContext

_MAGIC = b"\xf5TR"
#: header: magic, channel, kind, epoch, call, index, newest
_HEADER = struct.Struct("<3sBBQQIQ")
_PREFIX_BYTES = len(_MAGIC) + 1
_CHANNELS = 256

_REMINDER_DELAY_S = 0.5
_REMINDER_DELAY_MAX_S = 30.0
_PARK_POLL_S = 0.5


class Finished(NamedTuple):
    """The result of one epoch. Epochs grow from one to the next, not necessarily by 1."""

    epoch: int
    data: bytes


class Advance(NamedTuple):
    """The outcome of `advance`: finished epochs, and the messages that are not the reduction's, in order."""

    finished: list[Finished]
    messages: list[TreeMessage]


class _Kind(IntEnum):
    CALL = 1
    REMINDER = 2
    GIVE = 3
    ABSENT = 4
    RESULT = 5


@dataclass(slots=True)
class _Part:
    """This worker's part in the present epoch."""

    epoch: int
    #: number of our call to the children
    call: int
    #: number of our parent's call to us, 0 at the root
    parent_call: int
    waiting: set[int]
    #: latest epoch that a worker of our subtree has seen
    newest: int
    remind_s: float
    reminder_delay_s: float = _REMINDER_DELAY_S
    own: bytes = b""
    gifts: dict[int, bytes] = field(default_factory=dict)
    #: bytes given; None while COLLECTING
    given: bytes | None = None


class TreeReduction:
    """One worker's side of the reductions of one `channel`.

    Args:
        context: the worker's view of its job.
        contribute: returns this worker's bytes for an epoch; called once per epoch, after the children.
        combine: combines two or more parts to one; the result must not depend on their grouping. channel: 0
        to 255, equal in all workers.

    Both functions are called within `advance` or `start`; they may read the context, but not call this
    object.
    """

    def __init__(
        self,
        context: WorkerContext,
        contribute: Callable[[int], bytes],
        combine: Callable[[list[bytes]], bytes],
        channel: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 <= channel < _CHANNELS:
            raise ValueError(f"a channel is a number below {_CHANNELS}, not {channel}")
        self._context = context
        self._contribute = contribute
        self._combine = combine
        self._channel = channel
        self._prefix = _MAGIC + bytes((channel,))
        self._clock = clock
        self._index = context.index
        #: latest epoch of a call: earlier epochs get nothing more from us
        self._seen = 0
        self._part: _Part | None = None
        self._finished: list[Finished] = []

    # --- for the application --------------------------------------------------------------

    @property
    def unfinished(self) -> int | None:
        """Return the epoch in which this worker takes part and whose result is missing; None: no epoch."""
        return self._part.epoch if self._part is not None else None

    def start(self) -> int:
        """Start an epoch at the root, and give up an unfinished one.

        The root changes only within `context.poll`.

        Returns:
            The number of the epoch.
        """
        if self._context.index != 0:
            raise ValueError(f"worker {self._context.index} cannot start a reduction: only the root can")
        self._index = 0
        epoch = self._seen + 1
        self._begin(epoch, parent_call=0)
        return epoch

    def advance(self, messages: Iterable[TreeMessage]) -> Advance:
        """Take in messages; must be called regularly, also without messages.

        Args:
            messages: what `context.poll` returned.

        Returns:
            The epochs finished, and the messages that are not the reduction's.
        """
        if self._index != self._context.index:
            self._index = self._context.index
            self._part = None
        others: list[TreeMessage] = []
        for message in messages:
            if message.data[:_PREFIX_BYTES] == self._prefix:
                self._take(message)
            else:
                others.append(message)
        self._look_after_children()
        finished, self._finished = self._finished, []
        return Advance(finished, others)

    def park(self) -> NoReturn:
        """Take part until the job ends; `context.park` instead would make other workers wait."""
        while True:
            self.advance(self._context.poll(_PARK_POLL_S))

    # --- one epoch --------------------------------------------------------------------------

    def _begin(self, epoch: int, parent_call: int) -> None:
        self._seen = epoch
        part = self._part = _Part(
            epoch=epoch,
            call=int.from_bytes(os.urandom(8), "little") | 1,
            parent_call=parent_call,
            waiting=set(self._context.children),
            newest=epoch,
            remind_s=self._clock() + _REMINDER_DELAY_S,
        )
        self._call_children(_Kind.CALL, part)
        part.own = self._contribute(epoch)
        self._settle(part)

    def _settle(self, part: _Part) -> None:
        """Give once no part is missing."""
        if part.waiting or part.given is not None:
            return
        pieces = [part.own, *(part.gifts[index] for index in sorted(part.gifts))]
        part.given = self._combine(pieces) if len(pieces) > 1 else part.own
        part.gifts.clear()
        if self._index > 0:
            self._give(part)
            return
        self._seen = max(self._seen, part.newest)
        self._finish(part, part.given)

    def _finish(self, part: _Part, data: bytes) -> None:
        self._part = None
        self._context.send_to_children(self._header(_Kind.RESULT, part.epoch, part.call) + data)
        self._finished.append(Finished(part.epoch, data))

    def _look_after_children(self) -> None:
        part = self._part
        if part is None or not part.waiting:
            return
        part.waiting &= set(self._context.children)
        self._settle(part)
        now = self._clock()
        if part.waiting and now >= part.remind_s:
            part.reminder_delay_s = min(2 * part.reminder_delay_s, _REMINDER_DELAY_MAX_S)
            part.remind_s = now + part.reminder_delay_s
            self._call_children(_Kind.REMINDER, part)

    # --- messages in --------------------------------------------------------------------------

    def _take(self, message: TreeMessage) -> None:
        _, _, kind, epoch, call, index, newest = _HEADER.unpack_from(message.data)
        if message.returned:
            if kind in (_Kind.CALL, _Kind.REMINDER):
                self._child_absent(message.source, call, 0)
        elif kind in (_Kind.GIVE, _Kind.ABSENT):
            if message.source != index:
                return  # the sender was called in another place
            if kind == _Kind.GIVE:
                self._child_gave(index, call, newest, message.data[_HEADER.size :])
            else:
                self._child_absent(index, call, newest)
        elif self._index > 0 and message.source == parent_of(self._index):
            self._take_from_parent(_Kind(kind), epoch, call, message)

    def _take_from_parent(self, kind: _Kind, epoch: int, call: int, message: TreeMessage) -> None:
        part = self._part
        if part is not None and part.parent_call == call:
            if kind is _Kind.RESULT:
                self._finish(part, message.data[_HEADER.size :])
            elif kind is _Kind.REMINDER and part.given is not None:
                self._give(part)
        elif kind is _Kind.CALL and epoch > self._seen:
            self._begin(epoch, parent_call=call)
        elif kind is not _Kind.RESULT:
            self._context.send_to_parent(self._header(_Kind.ABSENT, epoch, call, self._seen))

    def _child_gave(self, index: int, call: int, newest: int, data: bytes) -> None:
        """Take in a child's part, even if the child joined between our snapshot and our call."""
        part = self._part
        if part is None or part.call != call or part.given is not None or index in part.gifts:
            return
        part.gifts[index] = data
        part.waiting.discard(index)
        part.newest = max(part.newest, newest)
        self._settle(part)

    def _child_absent(self, index: int, call: int, newest: int) -> None:
        part = self._part
        if part is None or part.call != call:
            return
        part.waiting.discard(index)
        part.newest = max(part.newest, newest)
        self._settle(part)

    # --- messages out -------------------------------------------------------------------------

    def _call_children(self, kind: _Kind, part: _Part) -> None:
        if part.waiting:
            self._context.send_to_children(self._header(kind, part.epoch, part.call))

    def _give(self, part: _Part) -> None:
        assert part.given is not None
        header = self._header(_Kind.GIVE, part.epoch, part.parent_call, part.newest)
        self._context.send_to_parent(header + part.given)

    def _header(self, kind: _Kind, epoch: int, call: int, newest: int = 0) -> bytes:
        return _HEADER.pack(_MAGIC, self._channel, kind, epoch, call, self._index, newest)
