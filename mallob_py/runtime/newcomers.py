"""Newcomers: the processes of ranks that this rank starts, and the address where it listens for them.

`protocol/growth.py` has the messages, and decides when newcomers join.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from mallob_py.protocol.rank_messages import Listen, Peer, Place
from mallob_py.protocol.rank_stimuli import RanksStarted
from mallob_py.runtime.notices import tell
from mallob_py.runtime.world import newcomer_process
from mallob_py.runtime.world.failure_detector import process_here
from mallob_py.runtime.world.joining import Invitation
from mallob_py.runtime.world.links import SECRET_BYTES, LinkError
from mallob_py.runtime.world.newcomer_process import NewcomerProcess, Site
from mallob_py.runtime.world.session_folder import session_of

if TYPE_CHECKING:
    from mallob_py.runtime.world.carrier import Carrier


class GrowthError(Exception):
    """Error: no rank can be added; the message says why."""


class Newcomers:
    """The live ranks that one rank has started."""

    def __init__(self, transport: Carrier, clock: Callable[[], float]) -> None:
        self._transport = transport
        self._clock = clock
        self._processes: dict[int, NewcomerProcess] = {}
        self._done: Callable[[Mapping[int, str]], None] = lambda problems: None

    def start(
        self,
        sites: Sequence[Site],
        bound: int,
        capacity: int,
        others: Sequence[int],
        done: Callable[[Mapping[int, str]], None],
    ) -> RanksStarted:
        """Start a rank on each site; the new ranks are numbered from `bound` on. Raises GrowthError.

        `capacity`: PEs of each new rank, unless its options say otherwise. `others`: the members except this
        rank.
        """
        transport = self._transport
        here = transport.hosts[transport.rank]
        wide = any(site.shell for site in sites) or any(transport.hosts[rank] != here for rank in others)
        call = Listen(bound + len(sites), os.urandom(SECRET_BYTES), wide=wide)
        if (place := self.listen(call)) is None:
            raise GrowthError(f"rank {transport.rank} cannot listen for new ranks")
        me = Peer(transport.rank, here, process_here(), place)
        folder, start_s = transport.folder, time.time() - self._clock()
        started: dict[int, NewcomerProcess] = {}
        try:
            for address, site in zip(range(bound, call.bound), sites, strict=True):
                invitation = Invitation(address, call.secret, me, capacity, wide, session_of(folder), start_s)
                started[address] = newcomer_process.start(
                    site, msgspec.msgpack.encode(invitation), folder.path / f"shell.{address}"
                )
            processes = tuple((rank, process_here(process.pid)) for rank, process in started.items())
        except OSError as error:
            for process in started.values():
                process.kill()
            raise GrowthError(f"a rank cannot be started: {error.strerror}") from error
        self._processes |= started
        self._done = done
        return RanksStarted(call, me, processes)

    def listen(self, call: Listen) -> Place | None:
        """Listen for newcomers; return the place where this rank listens; None: it cannot listen."""
        try:
            return self._transport.links.listen(call.secret, self._transport.folder.path, wide=call.wide)
        except LinkError as error:
            tell(str(error))
            return None

    def done(self, problems: Mapping[int, str]) -> None:
        """Report that all newcomers have joined or failed."""
        self._done(problems)

    def how_ended(self, rank: int) -> str:
        """Return how a rank's process ended, and forget the process."""
        process = self._processes.pop(rank, None)
        return "was lost" if process is None else process.how_ended()

    def kill(self, rank: int) -> None:
        """Kill a rank that this rank started, with all processes that it started here."""
        if (process := self._processes.get(rank)) is not None:
            process.kill()

    def wait(self, until_s: float) -> None:
        """Wait until all processes have ended, at most until `until_s`."""
        for process in self._processes.values():
            process.wait(until_s)
