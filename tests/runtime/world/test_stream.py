"""The messages of two ranks over connections that break at any byte."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reachable import reachable

from mallob_py.runtime.world.envelope import Channel, WireError
from mallob_py.runtime.world.links import ACKNOWLEDGED_BYTES, LAST, Stream


class Pair:
    """Two ends of a stream, and the bytes under way in each direction."""

    def __init__(self) -> None:
        self.ends = Stream(keeps=True), Stream(keeps=True)
        self.wires: list[bytearray] = [bytearray(), bytearray()]
        self.sent: list[list[tuple[int, bytes]]] = [[], []]
        self.found: list[list[tuple[int, bytes]]] = [[], []]

    def say(self, end: int, message: bytes) -> None:
        self.ends[end].put(Channel.CONTROL, message)
        self.sent[end].append((Channel.CONTROL, message))

    def write(self, end: int, size_max: int) -> None:
        stream = self.ends[end]
        stream.begin()
        data = b"".join(stream.begun)[:size_max]
        self.wires[end] += data
        stream.written(len(data))

    def read(self, end: int, size_max: int) -> None:
        """Let an end receive some of the bytes that the other end has written."""
        wire = self.wires[1 - end]
        data = bytes(wire[:size_max])
        del wire[:size_max]
        self.found[end] += self.ends[end].take(data)
        self.ends[end].say_received()

    def cut(self) -> None:
        """Lose all bytes under way, and connect both ends again."""
        for wire in self.wires:
            wire.clear()
        received = [each.received for each in self.ends]
        for end in (0, 1):
            assert self.ends[end].can_resume(received[1 - end])
            self.ends[end].resume(received[1 - end])

    def finish(self) -> None:
        while any(each.waiting_bytes for each in self.ends) or any(self.wires):
            for end in (0, 1):
                self.write(end, 1 << 20)
                self.read(1 - end, 1 << 20)


deeds = st.lists(
    st.one_of(
        st.tuples(st.just("say"), st.integers(0, 1), st.sampled_from([0, 1, 30, 9000, 40_000])),
        st.tuples(st.just("write"), st.integers(0, 1), st.integers(1, 30_000)),
        st.tuples(st.just("read"), st.integers(0, 1), st.integers(1, 30_000)),
        st.tuples(st.just("cut"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@given(deeds)
def test_no_cut_loses_a_message_or_has_one_come_twice(steps: list[tuple[str, int, int]]) -> None:
    pair = Pair()
    for what, end, size in steps:
        if what == "say":
            pair.say(end, os.urandom(size))
        elif what == "write":
            pair.write(end, size)
        elif what == "read":
            pair.read(end, size)
        else:
            pair.cut()
    pair.finish()
    assert pair.found == pair.sent[::-1]


def test_little_is_kept_of_what_has_come() -> None:
    pair = Pair()
    for _ in range(200):
        pair.say(0, bytes(1000))
        pair.finish()
    kept = reachable(pair.ends[0], lambda one: isinstance(one, bytes | bytearray))
    assert sum(map(len, kept)) <= ACKNOWLEDGED_BYTES + 1005


def test_a_stream_whose_peer_stands_before_what_is_kept_cannot_be_resumed() -> None:
    pair = Pair()
    pair.say(0, bytes(2 * ACKNOWLEDGED_BYTES))
    pair.finish()
    sender, receiver = pair.ends
    assert sender.can_resume(receiver.received)
    assert not sender.can_resume(receiver.received + 1)
    assert not sender.can_resume(0)


def test_a_resumption_by_a_connection_that_came_too_late_does_no_harm() -> None:
    """The receiver already has more bytes than it announced on the late connection."""
    pair = Pair()
    sender, receiver = pair.ends
    early = receiver.received
    pair.say(0, bytes(5000))
    pair.write(0, 3000)
    pair.read(1, 3000)
    sender.resume(early)  # the late connection; no bytes written to it arrive
    pair.write(0, 1000)
    pair.cut()
    pair.finish()
    assert pair.found[1] == pair.sent[0]


def test_a_count_that_was_said_before_a_resumption_does_no_harm() -> None:
    pair = Pair()
    pair.say(0, bytes(2 * ACKNOWLEDGED_BYTES))
    pair.write(0, 2 * ACKNOWLEDGED_BYTES)
    for _ in range(2):
        pair.read(1, ACKNOWLEDGED_BYTES - 7)
    pair.read(1, ACKNOWLEDGED_BYTES - 7)  # these bytes are not acknowledged
    pair.cut()
    pair.finish()
    assert pair.found[1] == pair.sent[0]


def test_what_is_given_up_leaves_no_half_frame() -> None:
    pair = Pair()
    pair.say(0, bytes(5000))
    pair.say(0, bytes(5000))
    pair.ends[0].begin()
    pair.write(0, 100)
    pair.say(0, b"dropped")
    pair.ends[0].forget_waiting()
    pair.say(0, b"the last")
    pair.cut()
    pair.finish()
    assert [len(each) for _, each in pair.found[1]] == [5000, 5000, 8]


@pytest.mark.parametrize("said", [b"\xff\xff\xff\xff\x00", b"\0\0\0\0\x07", b"\1\0\0\0\xfe\0"])
def test_what_no_rank_sends_is_refused(said: bytes) -> None:
    with pytest.raises(WireError):
        Stream(keeps=True).take(said)


def test_more_is_never_acknowledged_than_was_sent() -> None:
    receiver = Stream(keeps=True)
    with pytest.raises(WireError):
        receiver.take(b"\x08\0\0\0\xfe" + (7).to_bytes(8, "little"))


def test_the_last_word_is_told_as_such() -> None:
    pair = Pair()
    pair.ends[0].put(LAST, b"")
    pair.finish()
    assert pair.found[1] == [(LAST, b"")]
