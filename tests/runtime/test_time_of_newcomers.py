"""The times that a rank gets when it is started to join."""

import os
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from mallob_py.protocol.rank_messages import Place
from mallob_py.runtime import newcomers, rank
from mallob_py.runtime.newcomers import Newcomers
from mallob_py.runtime.world.joining import Invitation
from mallob_py.runtime.world.newcomer_process import Site


def test_a_newcomers_clock_goes_with_its_hosts_whatever_the_time_of_day_was_set_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    invitations: list[Invitation] = []

    def start(site: Site, invitation: bytes, words: Path) -> SimpleNamespace:
        invitations.append(msgspec.msgpack.decode(invitation, type=Invitation))
        return SimpleNamespace(pid=os.getpid())

    monkeypatch.setattr(newcomers.newcomer_process, "start", start)
    monkeypatch.setattr(newcomers, "session_of", lambda folder: "session")
    carrier = SimpleNamespace(
        rank=0,
        hosts={0: 0},
        folder=SimpleNamespace(path=Path()),
        links=SimpleNamespace(listen=lambda secret, folder, wide: Place("socket")),
    )
    for module in (newcomers, rank):
        monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: 5000.0, monotonic=lambda: 7.0))
    starting = Newcomers(carrier, lambda: 100.0)  # type: ignore[arg-type]
    starting.start([Site("here")], 1, 1, [], lambda problems: None)
    assert rank.service_clock(invitations[0].start_s)() == 100.0
