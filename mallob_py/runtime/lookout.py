"""One rank's lookout for others: who is silent, whose process is gone, whether the launcher is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from mallob_py.protocol.rank_effects import Expect
from mallob_py.protocol.rank_messages import Beat
from mallob_py.runtime.world.failure_detector import LocalPeers, Ring

if TYPE_CHECKING:
    from mallob_py.runtime.world.carrier import Carrier
    from mallob_py.runtime.world.deadlines import Launcher


class Lookout:
    """`send` tells another rank something."""

    def __init__(
        self, transport: Carrier, ring: Ring, peers: LocalPeers | None, send: Callable[[int, Beat], None]
    ) -> None:
        self._transport = transport
        self.ring = ring
        self._peers = peers
        self._send = send
        self._launcher: Launcher | None = None

    def end_with(self, launcher: Launcher) -> None:
        """Have `beat` raise LauncherGone when this one has ended."""
        self._launcher = launcher

    def is_seen(self, rank: int) -> bool:
        """Whether the process of a rank is known to be there still; it never is on another host."""
        return self._peers is not None and self._peers.is_seen(rank)

    def beat(self, now: float, *, is_asked_to_end: bool) -> Iterator[int]:
        """Say that this rank is there; yields those that are silent. Raises LauncherGone."""
        if self._launcher is not None and not is_asked_to_end:
            self._launcher.check()
        ring = self.ring
        ring.heard(self._transport.take_heard())
        silent = ring.beat(now)
        if ring.next_rank != self._transport.rank:
            self._send(ring.next_rank, Beat())
        for rank in ring.sought:
            self._send(rank, Beat(answer=True))
        yield from silent

    def take_dead(self) -> Sequence[int]:
        """The ranks of this host whose processes have ended."""
        return self._peers.take_dead() if self._peers is not None else ()

    # --- changes -----------------------------------------------------------------------------

    def expect(self, it: Expect) -> None:
        """There may be a further rank."""
        self._transport.welcome(it.rank, it.host)
        if self._peers is not None:
            self._peers.add(it.rank, it.process, it.host)

    def go_on(self, members: Sequence[int]) -> None:
        self.ring.go_on(members)

    def bury(self, rank: int) -> None:
        """Nothing more is sent there; should it live and hang, its process must not."""
        self._transport.give_up_on(rank)
        self.ring.leave_out(rank)
        if self._peers is not None:
            self._peers.end(rank)
