"""All-reductions along the job tree: every worker gives bytes, every worker gets the combination.

They work on trees that change all the time; clause sharing uses them. No function here waits except `park`:
the application polls its context and passes the messages to `advance`.

    reduction = TreeReduction(context, contribute=lambda epoch: mine(), combine=merge)
    while True:
        finished, messages = reduction.advance(context.poll(0.01))
        for epoch, data in finished:
            use(data)                      # the same data in every worker that takes part
        if context.index == 0 and reduction.unfinished is None and it_is_time():
            reduction.start()
        ...                                # `messages` are those of the application

Theory of operation
-------------------
The root starts epoch e. Each worker that takes part draws a *call number* s for its calls of this epoch.
Messages:

    CALL(e, s)       down  asks children to take part: a child notes and calls its own children, then gives
    REMINDER(e, s)   down  sent to the children if some did not answer for a while
    GIVE(e, s)       up    the sender's bytes combined with the bytes of all children that it called
    ABSENT(e, s)     up    the sender will give nothing in this epoch
    RESULT(e, s)     down  the combination of all bytes, for the children that were called

    (none) --start, CALL--> COLLECTING --all children gave or are absent--> GIVEN --RESULT--> (none)
    COLLECTING, GIVEN --newer CALL or start--> COLLECTING      --own index changed--> (none)

- An answer repeats the call number and the index that was called. So a late answer is recognised and ignored,
  also one that reaches another parent because the sender's index changed while it was suspended.
- A child is absent if it is no longer among the children, if a message to it came back, or if it sends
  ABSENT. It sends ABSENT if it does not know the call number of a reminder, because it joined after the call,
  has another index now, or has a new process.
- A worker gives at most once per epoch; if it is called again at another index, it is absent. So no
  contribution is counted twice.
- A worker learns of epochs by CALL only, so a worker that joins takes part from the next epoch on.
- Messages may be lost (processes die, queues overflow). A reminder makes the child give again; after a lost
  RESULT, the worker gets the result of the next epoch.
- The root may become another process. A new process counts epochs from 1; a worker that becomes the root
  counts on from the latest epoch it has seen. Workers that have seen later epochs answer ABSENT with their
  latest epoch, and the root's next epoch is later still. So it may take some epochs until all take part.

Guarantees
- A result combines each contribution at most once. It contains the contribution of each worker that stayed
  and polled from start to finish, as all its ancestors did, and had seen no later epoch of another root.
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
    """The outcome of `advance`: finished epochs, and the messages of the application, in order."""

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
    #: number of this worker's call to its children
    call: int
    #: number of the parent's call to this worker; 0 at the root
    parent_call: int
    #: indices of the children that have neither given nor are absent
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
        contribute: returns this worker's bytes for an epoch; called once per epoch, after calling the
            children.
        combine: combines two or more byte strings into one; the result must not depend on their grouping.
        channel: 0 to 255, equal in all workers.

    `contribute` and `combine` are called within `advance` or `start`; they must not call this object.
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
            raise ValueError(f"the channel is {channel}; it must be a number from 0 to {_CHANNELS - 1}")
        self._context = context
        self._contribute = contribute
        self._combine = combine
        self._channel = channel
        self._prefix = _MAGIC + bytes((channel,))
        self._clock = clock
        self._index = context.index
        #: latest epoch for which this worker was called; it gives nothing more for earlier epochs
        self._seen = 0
        self._part: _Part | None = None
        self._finished: list[Finished] = []

    # --- methods for the application ------------------------------------------------------

    @property
    def unfinished(self) -> int | None:
        """Return the epoch in which this worker takes part and whose result it lacks; None: no such epoch."""
        return self._part.epoch if self._part is not None else None

    def start(self) -> int:
        """Start an epoch; must be called at the root. An unfinished epoch is given up.

        Another worker becomes the root only within `context.poll`.

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
            The finished epochs, and the messages of the application.
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
        """Take part until the job ends. `context.park` would let other workers wait for this one in vain."""
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
        """Give this subtree's combination once no child's contribution is missing."""
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

    # --- arriving messages --------------------------------------------------------------------

    def _take(self, message: TreeMessage) -> None:
        _, _, kind, epoch, call, index, newest = _HEADER.unpack_from(message.data)
        if message.returned:
            if kind in (_Kind.CALL, _Kind.REMINDER):
                self._child_absent(message.source, call, 0)
        elif kind in (_Kind.GIVE, _Kind.ABSENT):
            if message.source != index:
                return  # the sender's index has changed since this worker called it
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
        """Take in a child's contribution, even if the child joined just before the call and is not noted."""
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

    # --- sent messages ------------------------------------------------------------------------

    def _call_children(self, kind: _Kind, part: _Part) -> None:
        if part.waiting:
            self._context.send_to_children(self._header(kind, part.epoch, part.call))

    def _give(self, part: _Part) -> None:
        assert part.given is not None
        header = self._header(_Kind.GIVE, part.epoch, part.parent_call, part.newest)
        self._context.send_to_parent(header + part.given)

    def _header(self, kind: _Kind, epoch: int, call: int, newest: int = 0) -> bytes:
        return _HEADER.pack(_MAGIC, self._channel, kind, epoch, call, self._index, newest)
