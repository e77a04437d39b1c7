"""A message that no correct PE sends is an error that names the sender, also with `python -O`."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from mallob_py.protocol import PeerViolation, ProtocolViolation, messages
from mallob_py.protocol.config import Balancing, Config, Matching
from mallob_py.protocol.pe import PE
from mallob_py.protocol.stimuli import JobParameters, JobSubmitted, Received, Tick

ROUTING = Config(matcher=Matching.ROUTING_TREE)
DISTRIBUTED = Config(balancing=Balancing.DISTRIBUTED)
REQUEST = messages.Request(1, 0, 0, 1, 0, 0, (1,), 0, 0.0, None)


@pytest.mark.parametrize(
    ("config", "message", "what"),
    [
        (Config(), messages.Epoch(5, ()), "epoch 5 after epoch 0"),
        (DISTRIBUTED, messages.Epoch(1, ()), "another kind of balancing"),
        (Config(), messages.Supply(1, 1), "a supply from a PE that is not a child of PE 0"),
        (ROUTING, messages.IdleChange(1), "an idle count from a PE that is not a child of PE 0"),
        (Config(), messages.Waits(1), "no prefix sum sends Waits"),
        (ROUTING, messages.Grant(0, 1, 0, 1), "no routing tree sends Grant"),
        (Config(), REQUEST, "no PE understands Request"),
    ],
)
def test_a_message_that_its_sender_cannot_send_is_the_senders_fault(
    config: Config, message: messages.AnyMessage, what: str
) -> None:
    pe = PE(0, 3, config)
    pe.handle(Tick(), 0.0)
    with pytest.raises(PeerViolation, match=what) as caught:
        pe.handle(Received(1, message), 0.5)
    assert caught.value.source == 1
    assert f"0.500000 from 1: {type(message).__name__}" in str(caught.value)


def test_a_worker_that_is_accepted_twice_is_the_parents_fault() -> None:
    pe = PE(0, 2, Config())
    pe.handle(JobSubmitted(1, JobParameters(), messages.Description(1, b"x")), 0.0)
    worker = pe.workers.active
    assert worker is not None
    again = messages.Accepted(1, 0, worker.stay, 0, -1, (), None)
    with pytest.raises(PeerViolation, match="accepted twice"):
        pe.handle(Received(1, again), 0.1)


def test_an_assertion_of_our_own_is_nobody_elses_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    pe = PE(0, 2, Config())

    def fails(*_: object) -> None:
        raise AssertionError("ours")

    monkeypatch.setattr(pe.workers, "receive_token_back", fails)
    with pytest.raises(ProtocolViolation, match="ours") as caught:
        pe.handle(Received(1, messages.TokenReturned()), 0.0)
    assert not isinstance(caught.value, PeerViolation)


def test_the_peers_faults_are_found_without_assertions_as_well() -> None:
    program = (
        "from mallob_py.protocol.config import Config\n"
        "from mallob_py.protocol.messages import Epoch, Supply\n"
        "from mallob_py.protocol.pe import PE\n"
        "from mallob_py.protocol.stimuli import Received\n"
        "from mallob_py.protocol import PeerViolation\n"
        "for message in (Epoch(7, ()), Supply(1, 1)):\n"
        "    try:\n"
        "        PE(0, 3, Config()).handle(Received(1, message), 0.0)\n"
        "    except PeerViolation:\n"
        "        print('found')\n"
    )
    done = subprocess.run(
        [sys.executable, "-O", "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["found", "found"]


def changed(message: Any, **fields: Any) -> bytes:
    return messages.encode(msgspec.structs.replace(message, **fields))


@pytest.mark.parametrize(
    "make",
    [
        lambda: changed(REQUEST, path=()),
        lambda: changed(REQUEST, path=(-1,)),
        lambda: changed(REQUEST, subtree=-1),
        lambda: changed(REQUEST, count=0),
        lambda: changed(REQUEST, position=-2),
        lambda: messages.encode(messages.Grant(0, -1, 0, 1)),
        lambda: messages.encode(messages.MeetToken(-3)),
        lambda: messages.encode(messages.Offer(1, -1, 0, 0)),
        lambda: messages.encode(messages.Accepted(1, 1, 0, 0, 0, (messages.PastWorker(1, -1, 0),), None)),
        lambda: messages.encode(messages.Accepted(1, 1, 0, 0, 0, (), messages.Description(-1))),
        lambda: messages.encode(messages.Events(({"job": 1},))),  # type: ignore[arg-type]
        lambda: messages.encode(messages.VolumeQuestion(1, (), 7)),  # type: ignore[arg-type]
    ],
)
def test_values_that_no_message_has_are_refused_where_it_is_decoded(make: Callable[[], bytes]) -> None:
    assert messages.decode(messages.encode(REQUEST)) == REQUEST
    with pytest.raises(msgspec.ValidationError):
        messages.decode(make())
