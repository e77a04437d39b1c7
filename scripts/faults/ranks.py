"""The ranks of a service that goes on without some: killed, stopped until they are given up, added, drained.

Checked: nobody else of the ranks or their fork servers goes, and the ranks are not started again; orders are
carried out, or refused for a reason that there is; those that are left come to a generation of just them, and
the others end; worker processes of a job that runs on most ranks are the same ones before and after a loss,
but for those of the lost ranks.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.jobs import INTERRUPTED, Jobs
from faults.processes import Family, Wrong, inherits, lives, rank_number, wait_until
from faults.service import Service
from faults.strikes import PARTS, SOAK_RANKS, Target, draw, hit
from mallob_py.launchers import INVITED_VARIABLE
from mallob_py.log_events import LogEvent
from mallob_py.service.store.orders import Answer, Drain, Order, Resize, answer_to, give
from mallob_py.service.telemetry.status import read_status

#: those that join have a minute
JOIN_S = 60.0
#: more than at the start
FURTHER_MAX = 2
#: logs are read to look
_LOOK_EVERY_S = 0.2
#: what an order may be refused with if ranks are lost before it is carried out
_REFUSALS_OF_LOSSES = ("one rank has to stay", "one has to stay", "there is no rank", "now, before")
#: and if a disk is full meanwhile
_NO_ROOM = "No space left on device"


@dataclass(slots=True)
class Lost:
    """A rank that is to end; `resumes_s`: when it goes on, if it was stopped."""

    pid: int
    resumes_s: float
    until_s: float


@dataclass(slots=True)
class Ordered:
    """An order under way: so many ranks more (negative: fewer), and their processes that have gone since."""

    path: Path
    text: str
    by: int
    until_s: float
    #: ranks were lost when it was given, or since: it may come to less
    is_struck: bool
    gone: set[int] = field(default_factory=set)
    answer: Answer | None = None
    #: when that was there (since 1970)
    answered_s: float = 0.0
    #: not before then is looked whether all know of it
    look_s: float = 0.0

    @property
    def leavers(self) -> int:
        """The number of ranks that may still go."""
        return max(0, -self.by - len(self.gone))


def number_of(service: Service, pid: int) -> int:
    """As the ranks tell it; of one that has joined, none (-1) before that was told."""
    found = re.search(rf"rank (\d+) \(process {pid} on [^)]*\) has joined", service.output_of_life)
    return rank_number(pid) if found is None else int(found[1])


class Ranks:
    """Whom we have taken from the service since its last start, or added to it, and who has to be left."""

    def __init__(self, service: Service, timeout_s: float, rng: random.Random, deeds: Counter[str]) -> None:
        """`timeout_s`: a rank that is silent for longer is given up by the others."""
        #: after so long, one that was stopped goes on, and finds out that it has been given up
        self._stop_s = 2.5 * timeout_s
        self._change_deadline_s = 6 * timeout_s
        #: a rank that hangs has to be found out first
        self._loss_deadline_s = self._stop_s + self._change_deadline_s
        self._order_deadline_s = self._loss_deadline_s + JOIN_S
        self._service = service
        self._rng = rng
        #: what was done to ranks, for people
        self._deeds = deeds
        self._lost: list[Lost] = []
        self._ordered: Ordered | None = None
        #: jobs that ran while ranks were taken from them
        self._endless = 0
        self._left: set[int] = set()
        self._founders: frozenset[int] = frozenset()
        self.begin()

    def begin(self) -> None:
        """The service has just started."""
        self._left = set(Family.of(self._service.mark).ranks)
        self._founders = frozenset(self._left)

    @property
    def left(self) -> int:
        """The number of ranks that there are to be."""
        return len(self._left)

    @property
    def is_used_up(self) -> bool:
        """All that were there at the start are gone but the one that has to stay."""
        return self._spare_founders() < 1 and self._is_quiet

    @property
    def _is_quiet(self) -> bool:
        return not self._lost and self._ordered is None

    def _spare_founders(self) -> int:
        """The number of first ranks that may still go: one has to stay."""
        leavers = 0 if self._ordered is None else self._ordered.leavers
        return len(self._founders & self._left) - leavers - 1

    # --- taking ranks -----------------------------------------------------------------------------

    def strike(self) -> bool:
        """Kill or stop one rank or two, or kill one that is to join; whether there was anybody to take."""
        if self._lost:
            return False
        if self._ordered is not None and self._ordered.by > 0 and self._rng.random() < 0.3:
            return self._strike_newcomer()
        part = draw(SOAK_RANKS, self._rng)
        victims = PARTS[part](self._target(self._left))
        if not victims or len(self._founders & set(victims)) > self._spare_founders():
            return False
        verb = "stop" if self._rng.random() < 0.25 else "kill"
        self._left.difference_update(victims)
        self._take(victims, verb, part)
        return True

    def _target(self, ranks: set[int]) -> Target:
        family = Family.of(self._service.mark)
        return Target(self._service, family, sorted(ranks), self._rng, self._number_of)

    def _strike_newcomer(self) -> bool:
        """Kill one that may not have joined yet."""
        victims = PARTS["newcomer"](self._target(self._left | self._founders))
        if victims:
            self._take(victims, "kill", "newcomer")
        return bool(victims)

    def _take(self, pids: list[int], verb: str, part: str) -> None:
        now_s = time.monotonic()
        resumes_s = now_s + self._stop_s if verb == "stop" else now_s
        self._lost += [Lost(pid, resumes_s, resumes_s + self._change_deadline_s) for pid in pids]
        if self._ordered is not None:
            self._ordered.is_struck = True
        self._deeds[f"{verb} {part}"] += 1
        hit(self._service, verb, f"{part} of numbers {list(map(self._number_of, pids))}", pids)

    def _number_of(self, pid: int) -> int:
        return number_of(self._service, pid)

    def note_full_disk(self) -> None:
        """An order that is under way may be refused for it."""
        if self._ordered is not None:
            self._ordered.is_struck = True

    def lose_all_founders(self) -> None:
        """All that were there at the start: the service starts anew by itself."""
        victims = PARTS["first ranks"](self._target(self._left))
        before = self._left
        self._deeds["kill first ranks"] += 1
        hit(self._service, "kill", "first ranks", victims)
        self._service.await_start_by_itself()
        if left := [pid for pid in sorted(before) if lives(pid)]:
            raise Wrong(f"ranks {left} live, though all were started again")
        self.begin()

    # --- orders -------------------------------------------------------------------------------------

    def order(self) -> None:
        """More ranks, or fewer, unless an order is under way."""
        if self._ordered is not None or self._service.holds_replies_up:
            return
        rng, spare, is_settled = self._rng, self._spare_founders(), self._is_settled()
        order: Order
        match rng.choice(("more", "more", "fewer", "so many", "drain")):
            case "more":
                by = rng.randint(1, 2)
                order = Resize(by=by)
            case "fewer":
                by = -rng.randint(1, 2)
                order = Resize(by=by)
            case "so many" if is_settled:  # who is lost and not found out counts
                by = rng.choice((-2, -1, 1, 2))
                order = Resize(to=max(1, len(self._left) + by))
            case _:
                by = -1
                number = self._number_of(rng.choice(sorted(self._left)))
                order = Drain(str(number), rng.choice((0.0, 0.5, 3.0)))
                if number < 0:
                    return
        if -by > spare or len(self._left) + by > len(self._founders) + FURTHER_MAX:
            return
        path = give(self._service.api_dir, order)
        self._service.note(str(order))
        until_s = time.monotonic() + self._order_deadline_s
        self._ordered = Ordered(path, str(order), by, until_s, is_struck=not is_settled)
        self._deeds[type(order).__name__.lower() + ("" if isinstance(order, Drain) else f" {by:+}")] += 1

    def _look_after(self, ordered: Ordered) -> None:
        """Follow an order to its end: ranks of other hosts than the answer's may end a moment after it."""
        now_s = time.monotonic()
        if now_s > ordered.until_s:
            raise Wrong(f"{ordered.text} is not carried out; the answer: {ordered.answer}")
        if ordered.answer is None:
            if (answer := answer_to(ordered.path)) is None:
                return
            self._service.note(f"answer to {ordered.text}: {answer}")
            self._check(ordered, answer)
            ordered.answer, ordered.answered_s = answer, time.time()
        if now_s > ordered.look_s:
            ordered.look_s = now_s + _LOOK_EVERY_S
            # What is logged lags behind: it may still show the ranks before the order, with who is to end.
            status = read_status(self._service.api_dir)
            if status is None or status.time <= ordered.answered_s:
                return
            present = self._left | self._newcomers()
            if self._go_on(present, status.generation):
                self._left, self._ordered = present, None

    def _check(self, ordered: Ordered, answer: Answer) -> None:
        """Raises Wrong."""
        if ordered.is_struck:
            reasons = (*_REFUSALS_OF_LOSSES, _NO_ROOM)
            if answer.refusal and not any(text in answer.refusal for text in reasons):
                raise Wrong(f"{ordered.text} was refused: {answer.refusal}")
        elif answer.refusal or answer.after - answer.before != ordered.by:
            raise Wrong(f"{ordered.text}, and nobody was lost: {answer}")

    def _newcomers(self) -> set[int]:
        """Ranks that have come by the order under way, are about to, or will end in vain."""
        ranks = Family.of(self._service.mark).ranks
        # The fork server of one that is lost belongs to whoever adopts orphans, for a moment.
        return {pid for pid in ranks if inherits(pid, INVITED_VARIABLE)} - {one.pid for one in self._lost}

    # --- what has to hold ---------------------------------------------------------------------------

    def look(self) -> None:
        """To be called again and again. Raises Wrong."""
        now_s = time.monotonic()
        for lost in self._lost[:]:
            if not lives(lost.pid):
                self._lost.remove(lost)
            elif now_s > lost.until_s:
                raise Wrong(
                    f"rank {self._number_of(lost.pid)} (process {lost.pid}) was given up and does not end"
                )
            elif now_s > lost.resumes_s:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(lost.pid, signal.SIGCONT)
        gone = {pid for pid in self._left if not lives(pid)}
        if len(gone) > (0 if self._ordered is None else self._ordered.leavers):
            raise Wrong(f"ranks have gone that nobody killed: {sorted(gone)}")
        self._left -= gone
        if self._ordered is not None:
            self._ordered.gone |= gone
            self._look_after(self._ordered)

    def settle(self) -> None:
        """Wait until the lost ones have ended, orders are carried out, and all others know."""

        def is_settled() -> bool:
            self._service.check_alive()
            self.look()
            return self._is_quiet

        wait_until(
            is_settled, "lost ranks end", self._stop_s + self._change_deadline_s + self._order_deadline_s
        )
        self._await_generation()

    def strike_under_one_job(self, jobs: Jobs) -> None:
        """Take ranks from a job that runs on most of them, and look at its worker processes."""
        self.settle()
        self._endless += 1
        name = f"endless-{self._endless}"
        fields = {"application": "SLEEP", "priority": 1, "max-demand": len(self._left)}
        expected = jobs.add("endless", name, fields, (INTERRUPTED,))
        self._await_started(name, max(1, len(self._left) // 2))  # a user may have a share only
        ended = self._processes_ended(name)
        if self.strike():
            self._await_generation()
            # A user who may have a share of the PEs may have fewer of them now.
            is_bounded = bool(self._events_of(name, LogEvent.TERMS))
            if self._processes_ended(name) > ended and not is_bounded:
                raise Wrong("a change of the ranks has ended worker processes of others", expected.identity)
        if expected.path.exists():
            raise Wrong(f"ended by itself: {expected.path.read_text()}", expected.identity)
        jobs.interrupt(name)
        jobs.await_all(self.look)
        self.settle()

    def _processes_ended(self, name: str) -> int:
        """The number of worker processes of this job that have ended."""
        return len(self._events_of(name, LogEvent.TERMINATED, LogEvent.CRASHED))

    def _events_of(self, name: str, *events: str) -> list[dict[str, Any]]:
        found = self._service.events(LogEvent.ACCEPTED, *events)
        jobs = {one["job"] for one in found if one.get("name") == name}
        return [one for one in found if one["event"] in events and one["job"] in jobs]

    def _await_started(self, name: str, count: int) -> None:
        def are_there() -> bool:
            self._service.check_alive()
            return len({one["index"] for one in self._events_of(name, LogEvent.STARTED)}) >= count

        wait_until(are_there, f"{count} workers of {name} run", self._change_deadline_s, _LOOK_EVERY_S)

    def _await_generation(self) -> None:
        def has_come() -> bool:
            self._service.check_alive()
            self.look()
            return self._go_on(self._left)

        wait_until(
            has_come, "all ranks that are left go on", self._stop_s + self._change_deadline_s, _LOOK_EVERY_S
        )

    def _is_settled(self) -> bool:
        """Whether all that are left know of all that was done to them."""
        return self._is_quiet and self._go_on(self._left)

    def _go_on(self, present: set[int], since: int = 0) -> bool:
        """Whether the newest generation, `since` or later, is one of so many, and all have begun it."""
        begun = self._service.events(LogEvent.GENERATION)
        number = max((one["generation"] for one in begun), default=1)
        newest = [one for one in begun if one["generation"] == number]
        members = len(newest[0]["members"]) if newest else len(self._founders)
        starters = members - len(newest[0]["come"]) if newest else 0
        return number >= since and members == len(present) and len(newest) >= starters
