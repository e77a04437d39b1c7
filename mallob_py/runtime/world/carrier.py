"""The carrier: the part of a rank's transport that does not need MPI: hosts, lost ranks, links.

`Carrier` is the whole transport of a newcomer, which reaches all ranks by links (`links.py`). The transport
of a rank of MPI's world, `transport.Transport`, adds MPI. Both have the interface described in
`transport.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from mallob_py.runtime.world.envelope import Arrival, Channel
from mallob_py.runtime.world.links import MESSAGE_BYTES_MAX, Links
from mallob_py.runtime.world.session_folder import PrivateFolder

#: waiting bytes of one peer, and of all peers together, above which dispensable messages must not be sent; a
#: peer with at most the last number of waiting bytes may always get such messages
CONGESTED_BYTES, CONGESTED_TOGETHER_BYTES, UNCONGESTED_BYTES = 64 << 20, 256 << 20, 1 << 20
WAITING_BYTES_MAX = 4 << 30
_CLOSE_POLL_S = 0.0002
#: longest wait for the rank that removes the host's folder (if that rank ends before, another rank removes
#: the folder), and pause between checks
_KEEPER_S, _KEEPER_POLL_S = 1.0, 0.002
#: reason for the loss of a peer that does not read
DOES_NOT_READ = "does not take its messages any more"


class Carrier:
    """A transport that sends all messages by links, and holds its host's folder."""

    def __init__(self, rank: int, hosts: Mapping[int, int], folder: PrivateFolder, links: Links) -> None:
        self.rank = rank
        self.links = links
        #: folder shared by the ranks of this host
        self.folder = folder
        #: rank -> its host, named after the lowest rank that was ever on the host
        self.hosts = dict(hosts)
        self._lost: set[int] = set()
        self._lost_news: list[int] = []
        self._back: list[int] = []
        #: whether `take_lost` or `take_back` has ranks to return
        self.has_lost = False
        self._how_lost: dict[int, str] = {}
        self._heard: set[int] = set()
        self._closed = False
        self._dead: Callable[[], Iterable[int]] = tuple

    # --- hosts

    def keeper_of(self, rank: int) -> int | None:
        """Return the lowest rank on the host of `rank` that is not lost; None: all are lost."""
        lowest = self.hosts[rank]
        if lowest in self.hosts and lowest not in self._lost:  # `lowest` may have ended before we joined
            return lowest
        here = (each for each, host in self.hosts.items() if host == lowest and each not in self._lost)
        return min(here, default=None)

    def welcome(self, rank: int, host: int) -> None:
        """Record that `rank`, which is connected by a link, is on host `host`."""
        self.hosts[rank] = host

    # --- sending

    def send(self, dest: int, data: bytes) -> None:
        """Send on the control channel. `data` must not change afterwards."""
        if len(data) > MESSAGE_BYTES_MAX:
            raise ValueError(f"a control message of {len(data)} bytes")
        self._send_by_link(Channel.CONTROL, dest, data)

    def send_bulk(self, dest: int, data: bytes | bytearray | memoryview) -> None:
        """Send on the bulk channel. `data` must not change before it is sent."""
        self._send_by_link(Channel.BULK, dest, data)

    def _send_by_link(self, channel: Channel, dest: int, data: bytes | bytearray | memoryview) -> None:
        if dest not in self._lost and self.links.send(dest, channel, data) > WAITING_BYTES_MAX:
            self.lose(dest, DOES_NOT_READ)

    def is_congested(self, dest: int) -> bool:
        """Tell whether too many bytes wait for rank `dest` to send it dispensable messages."""
        waiting_bytes = self._waiting_bytes(dest)
        return waiting_bytes > UNCONGESTED_BYTES and (
            waiting_bytes > CONGESTED_BYTES
            or sum(map(self._waiting_bytes, self._others())) > CONGESTED_TOGETHER_BYTES
        )

    def _waiting_bytes(self, dest: int) -> int:
        """Return the number of bytes that wait for a peer."""
        return self.links.waiting_bytes(dest)

    def flush(self) -> float:
        """Send all messages queued since the last flush; return for how long links need no flush [s]."""
        return self.links.flush()

    # --- receiving

    def may_have_news(self) -> bool:
        """Return whether `receive` may have a message although no peer has rung the doorbell."""
        return True

    def receive(self) -> Iterator[Arrival]:
        """Yield the messages that have arrived; the caller may send meanwhile."""
        yield from self._receive_by_links()

    def _receive_by_links(self) -> Iterator[Arrival]:
        for arrival in self.links.receive():
            self._heard.add(arrival.source)
            yield arrival
        # Ended links are reported after all their messages.
        if self.links.ended:
            for peer, how in self.links.take_ended():
                self.lose(peer, how)
        if self.links.back:
            self._back += self.links.take_back()
            self.has_lost = True

    # --- parking

    def descriptors(self) -> tuple[int, ...]:
        """Return the descriptors to wait for; when the first is readable, `wake` must be called."""
        return (self.links.fileno(),)

    def wake(self) -> None:
        """Prepare to receive a message: the first descriptor is readable."""

    def park_timeout_s(self, wanted_s: float) -> float:
        """Flush; return how long the loop may wait for descriptors, at most `wanted_s`."""
        wanted_s = min(wanted_s, self.flush())
        return 0.0 if self._lost_news else wanted_s

    # --- failed peers

    def take_lost(self) -> list[int]:
        """Return the peers found to have failed since the last call."""
        news, self._lost_news, self.has_lost = self._lost_news, [], False
        return news

    def take_back(self) -> list[int]:
        """Return the lost peers that are connected again since the last call."""
        back, self._back = self._back, []
        return back

    def how_lost(self, peer: int) -> str:
        """Return how a peer that `take_lost` has returned was lost."""
        return self._how_lost.get(peer, "has failed")

    def take_heard(self) -> set[int]:
        """Return the peers heard from since the last call."""
        heard, self._heard = self._heard, set()
        return heard

    def give_up_on(self, peer: int) -> None:
        """Stop sending to a peer that other ranks have lost; `take_lost` does not report the peer."""
        self._lost.add(peer)
        self.links.give_up_on(peer)

    def lose(self, peer: int, how: str) -> None:
        """Stop sending to a peer that has ended or hangs; `take_lost` reports the peer once."""
        if peer not in self._lost:
            self.give_up_on(peer)
            self._lost_news.append(peer)
            self.has_lost = True
            self._how_lost[peer] = how

    def answer_lost(self, peer: int, data: bytes) -> None:
        """Answer a message from a peer that was given up on: the peer must learn that it was lost."""
        self.links.send(peer, Channel.CONTROL, data)

    # --- leaving

    def close(
        self,
        timeout_s: float = 10.0,
        then: Callable[[], object] = lambda: None,
        dead: Callable[[], Iterable[int]] = tuple,
    ) -> bool:
        """Finish all sends and meet the other ranks; messages that still arrive are dropped.

        All ranks must call `close`. `then`: called before this host's folder is removed. `dead`: returns
        the ranks whose processes have ended since its last call. Returns False if a peer has failed or was
        not met in time (the other ranks are met anyway): then MPI_Finalize might hang, so the process should
        end by `leave`.
        """
        if self._closed:
            return not self._lost
        self._closed = True
        self._dead = dead
        self.links.part()
        met = self._meet(time.monotonic() + timeout_s)
        then()
        self._hang_up()
        if (keeper := self.keeper_of(self.rank)) == self.rank:
            self.folder.remove()
        else:
            deadline_s = time.monotonic() + _KEEPER_S
            while keeper not in self._lost and self.folder.path.exists() and time.monotonic() < deadline_s:
                self._give_up_on_dead()
                time.sleep(_KEEPER_POLL_S)
            self.folder.leave()
        return met

    def leave(self, leavers: Iterable[int], timeout_s: float = 1.0) -> None:
        """Leave when this rank's messages have reached all ranks except `leavers`, which leave, too.

        The last rank of a host removes the host's folder, but not under a newcomer that has just joined it.
        """
        self._closed = True
        for each in leavers:
            if each != self.rank:
                self.give_up_on(each)
        self._flush_to_all(time.monotonic() + timeout_s)
        self._hang_up()
        self.folder.leave()

    def _give_up_on_dead(self) -> None:
        """Give up on ranks whose processes have ended."""
        for each in self._dead():
            self.give_up_on(each)

    def _others(self) -> Iterator[int]:
        return (each for each in self.hosts if each != self.rank)

    def _flush_to_all(self, deadline_s: float) -> None:
        while time.monotonic() < deadline_s:
            self.links.flush()
            if not any(map(self.links.waiting_bytes, self._others())):
                return
            time.sleep(_CLOSE_POLL_S)

    def _hang_up(self) -> None:
        self.links.close()

    def _meet(self, deadline_s: float) -> bool:
        while time.monotonic() < deadline_s:
            for _dropped in self.receive():
                pass
            self.flush()
            self._give_up_on_dead()
            if self.links.has_parted():
                return not self._lost
            time.sleep(_CLOSE_POLL_S)
        return False
