"""A worker's context, tested with a socket in place of the rank."""

import socket

import pytest

from mallob_py.kit.payload import encode_description
from mallob_py.runtime import worker_wire as wire
from mallob_py.runtime.workers.process import RankLink, _Context

RUN = wire.Run(0, 0, 0, 1, (), 1, wire.Inline(encode_description("", {}, {})))


def test_who_is_told_to_leave_does_not_wait_for_messages_first(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float | None] = []
    monkeypatch.setattr(RankLink, "wait", lambda link, timeout_s: waits.append(timeout_s))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        context = _Context(RankLink(theirs), RUN, 0.0)
        ours.sendall(wire.frame(wire.Leave()))
        assert context.poll(timeout_s=60) == []
        assert (context.leaving, waits) == (True, [])
        context.poll(timeout_s=1)  # messages are still received
        assert waits == [1]
