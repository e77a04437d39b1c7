"""A worker's context, tested with a socket in place of the rank."""

import resource
import socket

import pytest

from mallob_py.kit.payload import encode_description
from mallob_py.runtime import worker_wire as wire
from mallob_py.runtime.workers.process import RankLink, _Context, _limit_memory

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


@pytest.mark.parametrize(("hard", "limit"), [(resource.RLIM_INFINITY, 500), (400, 400), (600, 500)])
def test_a_worker_begins_under_a_lower_limit_than_its_own(
    monkeypatch: pytest.MonkeyPatch, hard: int, limit: int
) -> None:
    limits = []
    monkeypatch.setattr(resource, "getrlimit", lambda number: (hard, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda number, both: limits.append(both))
    _limit_memory(500)
    assert limits == [(limit, limit)]
