"""All-reductions along the job tree: every worker gives bytes, every worker gets the combination.

Asynchronous, and made for trees that change all the time: what clause sharing is built on.
Nothing here waits: the application polls its context and hands the messages on.

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
The root starts epoch e. What travels, with s for the sender's *call number*, unique to one
worker's part in one epoch:

    CALL(e, s)       down  take part: takes a snapshot of the children present, calls them, gives
    REMINDER(e, s)   down  to those who did not answer for a while
    GIVE(e, s)       up    own bytes combined with all that the called children gave
    ABSENT(e, s)     up    nothing will come from here
    RESULT(e, s)     down  what the root has got, along the same snapshots

    (none) --start, CALL--> COLLECTING --all children gave or are absent--> GIVEN --RESULT--> (none)
    COLLECTING, GIVEN --newer CALL or start--> COLLECTING      --own index changed--> (none)

- Who answers a call repeats its number and the index under which it was called. So an answer
  that is late, or that reaches another parent since the sender was re-placed while it was
  suspended, is told from the right one and ignored.
- A child counts as absent if it is no longer among the children, if a message to it came
  back, or if it says so. It says so if it does not know the call that it is reminded of: it
  has joined since, or stands in another place now, or its process was started anew.
- A worker gives at most once per epoch: called a second time, from another place, it is
  absent. Thus no contribution is counted twice.
- A worker learns of epochs by CALL only, so one that joins during an epoch takes part from
  the next one on.
- Messages may get lost (processes die, queues overflow): a reminder is answered by giving
  again; a lost RESULT is made good by the next epoch.
- The root may become another process: one that was started anew counts epochs from 1, one that
  had another place goes on from what it has seen. Workers that have seen later ones are absent
  and tell, and the root's next epoch is beyond what it was told. So a few epochs may be needed
  until all take part again.

Guarantees
- A result combines each contribution at most once, and contains that of every worker which
  stayed, with all its ancestors, and polled from start to finish (and had not seen a later epoch
  of another root process).
- An epoch ends unless a worker neither leaves nor polls; `start` gives up an unfinished one.
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
#: magic, channel, kind, epoch, call, index, newest
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
    """The outcome of `advance`; `messages` are not the reduction's, in their order."""

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
    """Our part in the present epoch."""

    epoch: int
    #: our number for those whom we call
    call: int
    #: our parent's number for us, 0 at the root
    parent_call: int
    waiting: set[int]
    #: latest epoch that a worker of our subtree has seen
    newest: int
    remind_s: float
    reminder_delay_s: float = _REMINDER_DELAY_S
    own: bytes = b""
    gifts: dict[int, bytes] = field(default_factory=dict)
    #: what we have given; None while we collect
    given: bytes | None = None


class TreeReduction:
    """One worker's side of the reductions of one `channel` (0 to 255; all workers the same).

    `contribute(epoch)` returns this worker's bytes; it is called once per epoch, after the
    children have been called. `combine(parts)` makes one of two or more parts; it must not
    depend on how they are grouped. Both run inside of `advance` or `start`, and may look at
    the context but not call this object.
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
        #: the latest epoch we have been called for: none up to it gets anything more from us
        self._seen = 0
        self._part: _Part | None = None
        self._finished: list[Finished] = []

    # --- for the application --------------------------------------------------------------

    @property
    def unfinished(self) -> int | None:
        """The epoch that we take part in and whose result is not there yet."""
        return self._part.epoch if self._part is not None else None

    def start(self) -> int:
        """Start an epoch and return its number; one that is unfinished is given up.

        For the root only. Which worker that is may change in `context.poll`, and only there.
        """
        if self._context.index != 0:
            raise ValueError(f"worker {self._context.index} cannot start a reduction: only the root can")
        self._index = 0
        epoch = self._seen + 1
        self._begin(epoch, parent_call=0)
        return epoch

    def advance(self, messages: Iterable[TreeMessage]) -> Advance:
        """Take in what `context.poll` returned. To be called now and then without messages, too."""
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
        """Take part until the job ends, instead of `context.park`, which would let others wait."""
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
        """Give, as soon as no part is waited for."""
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
                return  # its sender was called in another place
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
        """Also one that is not in our snapshot may give: it came between our look and our call."""
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
