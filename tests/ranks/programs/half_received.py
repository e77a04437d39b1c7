"""Rank 0 with a stand-in for MPI that completes operations at the program's command.

Later messages of the same sender do not overtake a half received message; messages of other senders do. If
MPI cannot hand over a message at once, the receiver is rung again when MPI has handed it over.
"""

from __future__ import annotations

from collections import deque

from mpi4py import MPI
from turns import join

from mallob_py.runtime.world.envelope import Channel
from mallob_py.runtime.world.mpi import leave


class Request:
    is_done = False

    def Test(self) -> bool:
        return self.is_done


class Message:
    """A message for this rank in MPI, which is complete when its `request` is done."""

    def __init__(self, source: int, data: bytes, request: Request | None = None) -> None:
        self.source, self.data, self.request = source, data, request or Request()

    def Recv(self, buffer: list) -> None:
        buffer[0][: len(self.data)] = self.data

    def Irecv(self, buffer: list) -> Request:
        buffer[0][:] = self.data
        return self.request


class Comm:
    """A communicator, and the status of the message that it found last."""

    def __init__(self, *messages: Message) -> None:
        self.messages = deque(messages)

    def Improbe(self, *_: object) -> Message | None:
        self.found = self.messages.popleft() if self.messages else None
        return self.found

    def Get_count(self, _: MPI.Datatype) -> int:
        return len(self.found.data)

    def Get_source(self) -> int:
        return self.found.source

    def Get_tag(self) -> int:
        return 0


transport = join()
if transport.rank == 0:
    inbox = transport._inboxes[Channel.CONTROL]
    bulk = transport._inboxes[Channel.BULK]
    real = inbox.comm, bulk.comm, transport._status
    large, small, second = Request(), Request(), Request()
    small.is_done = second.is_done = True
    bulk.comm = Comm()
    inbox.comm = transport._status = Comm(
        Message(1, b"1" * 100_000, large),
        Message(1, b"2", small),
        Message(2, b"3"),
        Message(1, b"4" * 50_000, second),
    )
    assert [arrival.data[:1] for arrival in transport.receive()] == [b"3"]
    assert transport.has_pending()
    large.is_done = True
    assert [bytes(arrival.data[:1]) for arrival in transport.receive()] == [b"1", b"2", b"4"]
    assert not transport.has_pending()
    inbox.comm, bulk.comm, transport._status = real

    rung: list[int] = []
    ring, transport.doorbell.ring = transport.doorbell.ring, rung.append
    late = Request()
    lane = transport._lanes[Channel.CONTROL][1]
    lane.in_flight.append((late, 0))
    transport._busy[Channel.CONTROL, 1] = lane
    transport.progress()
    transport.flush()
    assert rung == []
    late.is_done = True
    transport.progress()
    transport.flush()
    assert rung == [1]
    assert not transport.has_pending()
    transport.doorbell.ring = ring
    print("kept", flush=True)
leave(transport.rank, 0, closed=transport.close())
