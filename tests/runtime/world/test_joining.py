"""A newcomer that no rank takes in; the test counts turns and time, and nothing really waits."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mallob_py.protocol.rank_messages import Peer
from mallob_py.runtime.world import joining
from mallob_py.runtime.world.failure_detector import process_here
from mallob_py.runtime.world.joining import Invitation, JoinError
from mallob_py.runtime.world.links import SECRET_BYTES, Links
from mallob_py.runtime.world.session_folder import PrivateFolder

SECRET = os.urandom(SECRET_BYTES)
PATIENCE_S = 10.0
TURNS_MAX = 100


class Time:
    """A stand-in for `time` and `select`, by which each turn takes a second."""

    def __init__(self, turn: Callable[[], object] = lambda: None) -> None:
        """`turn` is called in each turn."""
        self.turns = 0
        self._turn = turn

    def monotonic(self) -> float:
        return float(self.turns)

    def select(self, *_: object) -> None:
        self.turns += 1
        assert self.turns < TURNS_MAX, "it waits for ever"
        self._turn()


@pytest.fixture
def host() -> Iterator[Links]:
    """Yield the connections of the rank that has started the newcomer; this rank never runs."""
    links = Links(0)
    with tempfile.TemporaryDirectory() as short:  # the path of a socket has 107 characters at most
        folder = PrivateFolder.create(Path(short))
        links.listen(SECRET, folder.path, wide=False)
        yield links
        links.close()


def join(host: Links, time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "time", time)
    monkeypatch.setattr(joining, "select", time)
    invitation = Invitation(7, SECRET, Peer(0, 0, process_here(), host.place), 1, False, "session", 0.0)
    joining.join(invitation, None, PATIENCE_S)


def test_a_newcomer_to_whom_nobody_speaks_ends(host: Links, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the newcomer would stay for ever if its host hangs or has forgotten it."""
    time = Time()
    with pytest.raises(JoinError, match="rank 7 was not taken in"):
        join(host, time, monkeypatch)
    assert time.turns >= 3 * PATIENCE_S


def test_a_newcomer_ends_at_once_with_a_host_that_ends_in_order(
    host: Links, monkeypatch: pytest.MonkeyPatch
) -> None:
    def part() -> None:
        list(host.receive())
        assert host.has(7)
        host.part()
        host.flush()

    time = Time(part)
    with pytest.raises(JoinError, match="rank 0, which has started rank 7, has ended"):
        join(host, time, monkeypatch)
    assert time.turns == 1
    list(host.receive())
    assert host.has_parted(), "the host need not wait for the newcomer"
