"""Ranks that are killed, or stopped until the others give them up, under a service that goes on without them.

Checked: nobody else of the ranks or their fork servers goes, and the ranks are not started again; those that
are left come to a generation without the lost ones, which end; worker processes of a job that runs
on most ranks are the same ones before and after, but for those of the lost ranks.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from soaking.jobs import USER, Mix
from soaking.processes import Family, Wrong, rank_number, wait_until
from soaking.service import Service

#: ranks that are silent for longer are given up
RANK_TIMEOUT_S = 10.0
#: after so long, one that was stopped goes on, and finds out that it has been given up
STOP_S = 2.5 * RANK_TIMEOUT_S
CHANGE_DEADLINE_S = 60.0
#: under fewer, the service is started anew
LEAST = 2
#: logs are read to look
_LOOK_EVERY_S = 0.2
KILLS = ("any", "any", "first", "client's", "two")


@dataclass(slots=True)
class Lost:
    """A rank that is to end; `resumes_s`: when it goes on, if it was stopped."""

    pid: int
    resumes_s: float
    until_s: float


class Losses:
    """Whom we have taken from the service since its last start, and who has to be left."""

    def __init__(self, service: Service, clients: int, rng: random.Random, kills: Counter[str]) -> None:
        self._service = service
        self._clients = clients
        self._rng = rng
        self._kills = kills
        self._lost: list[Lost] = []
        self._left: set[int] = set()
        self._at_first = 0
        self.begin()

    def begin(self) -> None:
        """The service has just started."""
        self._left = set(Family.of(self._service.mark).ranks)
        self._at_first = len(self._left)

    @property
    def left(self) -> int:
        """How many ranks there are to be."""
        return len(self._left)

    @property
    def is_used_up(self) -> bool:
        return len(self._left) < LEAST and not self._lost

    # --- taking ranks -----------------------------------------------------------------------------

    def strike(self) -> list[int]:
        """Kill or stop one rank or two; who they were. One at least is left."""
        if len(self._left) < 2 or self._lost:
            return []
        kind = self._rng.choice(KILLS)
        victims = self._victims(kind)
        verb = "stop" if self._rng.random() < 0.25 else "kill"
        now_s = time.monotonic()
        for pid in victims:
            resumes_s = now_s + STOP_S if verb == "stop" else now_s
            self._service.note_kill(f"{verb} rank {rank_number(pid)}, process {pid} ({kind})")
            self._left.discard(pid)
            self._lost.append(Lost(pid, resumes_s, resumes_s + CHANGE_DEADLINE_S))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP if verb == "stop" else signal.SIGKILL)
        self._kills[f"{verb} {kind} rank" + "s" * (kind == "two")] += 1
        return victims

    def _victims(self, kind: str) -> list[int]:
        ranks = sorted(self._left, key=rank_number)
        match kind:
            case "first":
                return ranks[:1]
            case "client's":
                lock = self._service.box(self._rng.randrange(self._clients)) / ".lock"
                holder = int(lock.read_text().split()[0])
                return [holder] if holder in self._left else ranks[-1:]
            case "two" if len(ranks) > 2:
                return self._rng.sample(ranks, 2)
        return [self._rng.choice(ranks)]

    # --- what has to hold ---------------------------------------------------------------------------

    def look(self) -> None:
        """To be called again and again. Raises Wrong."""
        now_s = time.monotonic()
        for lost in self._lost[:]:
            if not os.path.exists(f"/proc/{lost.pid}"):
                self._lost.remove(lost)
            elif now_s > lost.until_s:
                raise Wrong(
                    f"rank {rank_number(lost.pid)} (process {lost.pid}) was given up and does not end"
                )
            elif now_s > lost.resumes_s:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(lost.pid, signal.SIGCONT)
        if gone := [pid for pid in self._left if not os.path.exists(f"/proc/{pid}")]:
            raise Wrong(f"ranks have gone that nobody killed: {gone}")

    def settle(self) -> None:
        """Wait until the lost ones have ended, and all others know."""

        def is_settled() -> bool:
            self._service.check_alive()
            self.look()
            return not self._lost

        wait_until(is_settled, "lost ranks end", STOP_S + CHANGE_DEADLINE_S)
        self._await_generation()

    def strike_under_one_job(self, mix: Mix) -> None:
        """Take ranks from a job that runs on most of them, and look at its worker processes."""
        self.settle()
        name = mix.begin_endless()
        self._await_started(name, max(1, len(self._left) // 2))  # a user may have a share only
        ended = self._processes_ended(name)
        if self.strike():
            self._await_generation()
            if self._processes_ended(name) > ended:
                raise Wrong("a change of the ranks has ended worker processes of others", f"{USER}.{name}")
        mix.end_endless(name)
        mix.collect_all(self.look)
        self.settle()

    def _processes_ended(self, name: str) -> int:
        """Of the job's workers."""
        return len(self._events_of(name, "terminated", "crashed"))

    def _events_of(self, name: str, *events: str) -> list[dict[str, Any]]:
        found = self._service.events("accepted", *events)
        jobs = {one["job"] for one in found if one.get("name") == name}
        return [one for one in found if one["event"] in events and one["job"] in jobs]

    def _await_started(self, name: str, count: int) -> None:
        def are_there() -> bool:
            self._service.check_alive()
            return len({one["index"] for one in self._events_of(name, "started")}) >= count

        wait_until(are_there, f"{count} workers of {name} run", CHANGE_DEADLINE_S, _LOOK_EVERY_S)

    def _await_generation(self) -> None:
        """All that are left have begun one of so many ranks."""

        def has_come() -> bool:
            if len(self._left) == self._at_first:
                return True
            self._service.check_alive()
            self.look()
            begun = [
                one for one in self._service.events("generation") if len(one["members"]) == len(self._left)
            ]
            latest = max((one["generation"] for one in begun), default=0)
            return sum(one["generation"] == latest for one in begun) >= len(self._left)

        wait_until(has_come, f"{len(self._left)} ranks go on", STOP_S + CHANGE_DEADLINE_S, _LOOK_EVERY_S)
