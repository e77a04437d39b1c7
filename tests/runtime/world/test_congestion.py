"""Peers get only indispensable messages while too many bytes wait for them, or for all peers together."""

from typing import cast

import pytest

from mallob_py.runtime.world.carrier import (
    CONGESTED_BYTES,
    CONGESTED_TOGETHER_BYTES,
    UNCONGESTED_BYTES,
    Carrier,
)
from mallob_py.runtime.world.links import Links
from mallob_py.runtime.world.session_folder import PrivateFolder

PEERS = 64


class WaitingLinks:
    """Connections with these numbers of waiting bytes."""

    def __init__(self) -> None:
        self.bytes = dict.fromkeys(range(1, PEERS), 0)

    def waiting_bytes(self, peer: int) -> int:
        return self.bytes[peer]


@pytest.fixture
def links() -> WaitingLinks:
    return WaitingLinks()


@pytest.fixture
def carrier(links: WaitingLinks) -> Carrier:
    return Carrier(0, dict.fromkeys(range(PEERS), 0), cast(PrivateFolder, None), cast(Links, links))


def test_a_peer_for_which_much_waits_is_congested_and_others_are_not(
    carrier: Carrier, links: WaitingLinks
) -> None:
    links.bytes[5] = CONGESTED_BYTES
    assert not carrier.is_congested(5)
    links.bytes[5] += 1
    assert [peer for peer in range(1, PEERS) if carrier.is_congested(peer)] == [5]


def test_a_little_for_each_of_many_peers_is_much(carrier: Carrier, links: WaitingLinks) -> None:
    each = CONGESTED_TOGETHER_BYTES // (PEERS - 1)
    links.bytes = dict.fromkeys(range(1, PEERS), each)
    assert not any(map(carrier.is_congested, range(1, PEERS)))
    links.bytes = dict.fromkeys(range(1, PEERS), each + 1)
    assert all(map(carrier.is_congested, range(1, PEERS)))


def test_a_peer_that_takes_what_it_is_sent_is_not_kept_from_it_by_the_others(
    carrier: Carrier, links: WaitingLinks
) -> None:
    links.bytes = dict.fromkeys(range(1, PEERS), CONGESTED_BYTES)
    links.bytes[7] = UNCONGESTED_BYTES
    assert [peer for peer in range(1, PEERS) if not carrier.is_congested(peer)] == [7]
