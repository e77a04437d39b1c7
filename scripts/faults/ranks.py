"""The ranks of a service: some are killed, stopped until the others give them up, added, or drained.

Checks: no other rank or fork server ends, and the ranks are not started again; orders are carried out, or
refused for a valid reason; the remaining ranks form a generation, and all other ranks end; a job on most
ranks keeps its worker processes after a loss, except those of lost ranks.
"""

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

#: time within which new ranks must join
JOIN_S = 60.0
#: greatest number of ranks beyond the number at the start
FURTHER_MAX = 2
#: time between two readings of logs
_LOOK_EVERY_S = 0.2
#: refusals of an order that are permitted if ranks are lost before it is carried out
_REFUSALS_OF_LOSSES = ("one rank has to stay", "one has to stay", "there is no rank", "now, before")
#: refusal that is permitted if a disk is full
_NO_ROOM = "No space left on device"


@dataclass(slots=True)
class Lost:
    """A rank that must end by `until_s`. `resumes_s`: time at which it continues if it was stopped."""

    pid: int
    resumes_s: float
    until_s: float


@dataclass(slots=True)
class Ordered:
    """A pending order for `by` more ranks (negative: fewer), and the processes that have ended since."""

    path: Path
    text: str
    by: int
    until_s: float
    #: whether losses or a full disk may have disturbed the order, so that it may be refused
    is_struck: bool
    gone: set[int] = field(default_factory=set)
    answer: Answer | None = None
    #: time of the answer [s since 1970]
    answered_s: float = 0.0
    #: earliest time of the next check whether all ranks know of the change
    look_s: float = 0.0

    @property
    def leavers(self) -> int:
        """Return the number of ranks that may still leave."""
        return max(0, -self.by - len(self.gone))


def number_of(service: Service, pid: int) -> int:
    """Return the number of the rank with this pid; -1 if it has joined and its number is not printed yet."""
    found = re.search(rf"rank (\d+) \(process {pid} on [^)]*\) has joined", service.output_of_life)
    return rank_number(pid) if found is None else int(found[1])


class Ranks:
    """The service's ranks that must remain, the ranks that must end, and the pending order."""

    def __init__(self, service: Service, timeout_s: float, rng: random.Random, deeds: Counter[str]) -> None:
        """Set the time limits. `timeout_s`: silence after which ranks give up another rank."""
        #: time after which a stopped rank continues, and learns that it was given up
        self._stop_s = 2.5 * timeout_s
        self._change_deadline_s = 6 * timeout_s
        #: time limit of a loss, which includes the detection of a hanging rank
        self._loss_deadline_s = self._stop_s + self._change_deadline_s
        self._order_deadline_s = self._loss_deadline_s + JOIN_S
        self._service = service
        self._rng = rng
        #: kind of fault or order -> how often it was done (printed at the end)
        self._deeds = deeds
        self._lost: list[Lost] = []
        self._ordered: Ordered | None = None
        #: number of jobs from which ranks were taken
        self._endless = 0
        #: pids of the ranks that must remain
        self._left: set[int] = set()
        #: pids of the initial ranks
        self._founders: frozenset[int] = frozenset()
        self.begin()

    def begin(self) -> None:
        """Record the ranks of a newly started service."""
        self._left = set(Family.of(self._service.mark).ranks)
        self._founders = frozenset(self._left)

    @property
    def left(self) -> int:
        """Return the number of ranks that must remain."""
        return len(self._left)

    @property
    def is_used_up(self) -> bool:
        """Tell whether all initial ranks have ended, except the one that must stay."""
        return self._spare_founders() < 1 and self._is_quiet

    @property
    def _is_quiet(self) -> bool:
        return not self._lost and self._ordered is None

    def _spare_founders(self) -> int:
        """Return the number of initial ranks that may still leave; one must stay."""
        leavers = 0 if self._ordered is None else self._ordered.leavers
        return len(self._founders & self._left) - leavers - 1

    # --- losses of ranks --------------------------------------------------------------------------

    def strike(self) -> bool:
        """Kill or stop one or two ranks, or kill a joining rank; return whether any rank was hit."""
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
        """Kill a rank that may not have joined yet."""
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
        """Record that the pending order may be refused because a disk is full."""
        if self._ordered is not None:
            self._ordered.is_struck = True

    def lose_all_founders(self) -> None:
        """Kill all initial ranks, and wait until the service has restarted by itself."""
        victims = PARTS["first ranks"](self._target(self._left))
        before = self._left
        self._deeds["kill first ranks"] += 1
        hit(self._service, "kill", "first ranks", victims)
        self._service.await_start_by_itself()
        if left := [pid for pid in sorted(before) if lives(pid)]:
            raise Wrong(f"ranks {left} still live, though all ranks were started again")
        self.begin()

    # --- orders -------------------------------------------------------------------------------------

    def order(self) -> None:
        """Order more or fewer ranks, unless an order is pending."""
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
            case "so many" if is_settled:  # a lost rank counts until its loss is noticed
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
        """Check whether an order is carried out. Ranks of other hosts may end a moment after the answer."""
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
            # The status is late: it may still show the ranks before the order, including leaving ranks.
            status = read_status(self._service.api_dir)
            if status is None or status.time <= ordered.answered_s:
                return
            present = self._left | self._newcomers()
            if self._go_on(present, status.generation):
                self._left, self._ordered = present, None

    def _check(self, ordered: Ordered, answer: Answer) -> None:
        """Raise Wrong unless the answer fits the order."""
        if ordered.is_struck:
            reasons = (*_REFUSALS_OF_LOSSES, _NO_ROOM)
            if answer.refusal and not any(text in answer.refusal for text in reasons):
                raise Wrong(f"{ordered.text} was refused: {answer.refusal}")
        elif answer.refusal or answer.after - answer.before != ordered.by:
            raise Wrong(f"{ordered.text}, while no rank was lost, got the answer {answer}")

    def _newcomers(self) -> set[int]:
        """Return the ranks that an order has started, even if they have not joined or will not."""
        ranks = Family.of(self._service.mark).ranks
        # A lost rank may count: its orphaned fork server makes the adopting process look like a rank.
        return {pid for pid in ranks if inherits(pid, INVITED_VARIABLE)} - {one.pid for one in self._lost}

    # --- checks -----------------------------------------------------------------------------------

    def look(self) -> None:
        """Check the ranks; must be called repeatedly. Raises Wrong."""
        now_s = time.monotonic()
        for lost in self._lost[:]:
            if not lives(lost.pid):
                self._lost.remove(lost)
            elif now_s > lost.until_s:
                raise Wrong(
                    f"rank {self._number_of(lost.pid)} (process {lost.pid}) was given up, but does not end"
                )
            elif now_s > lost.resumes_s:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(lost.pid, signal.SIGCONT)
        gone = {pid for pid in self._left if not lives(pid)}
        if len(gone) > (0 if self._ordered is None else self._ordered.leavers):
            raise Wrong(f"ranks have ended that nobody killed or drained: processes {sorted(gone)}")
        self._left -= gone
        if self._ordered is not None:
            self._ordered.gone |= gone
            self._look_after(self._ordered)

    def settle(self) -> None:
        """Wait until lost ranks have ended, orders are carried out, and all remaining ranks know of these
        changes.
        """

        def is_settled() -> bool:
            self._service.check_alive()
            self.look()
            return self._is_quiet

        wait_until(
            is_settled, "lost ranks end", self._stop_s + self._change_deadline_s + self._order_deadline_s
        )
        self._await_generation()

    def strike_under_one_job(self, jobs: Jobs) -> None:
        """Take ranks from a job that runs on most of them, and check its worker processes."""
        self.settle()
        self._endless += 1
        name = f"endless-{self._endless}"
        fields = {"application": "SLEEP", "priority": 1, "max-demand": len(self._left)}
        expected = jobs.add("endless", name, fields, (INTERRUPTED,))
        self._await_started(name, max(1, len(self._left) // 2))  # a user may be limited to a share of the PEs
        ended = self._processes_ended(name)
        if self.strike():
            self._await_generation()
            # A user who is limited to a share of the PEs may have fewer PEs after a loss.
            is_bounded = bool(self._events_of(name, LogEvent.TERMS))
            if self._processes_ended(name) > ended and not is_bounded:
                raise Wrong("a loss of ranks has ended worker processes of other ranks", expected.identity)
        if expected.path.exists():
            raise Wrong(f"ended by itself: {expected.path.read_text()}", expected.identity)
        jobs.interrupt(name)
        jobs.await_all(self.look)
        self.settle()

    def _processes_ended(self, name: str) -> int:
        """Return the number of ended worker processes of this job."""
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
        """Tell whether all remaining ranks know of all losses and additions."""
        return self._is_quiet and self._go_on(self._left)

    def _go_on(self, present: set[int], since: int = 0) -> bool:
        """Tell whether all these ranks have begun the newest generation, whose number is at least `since`."""
        begun = self._service.events(LogEvent.GENERATION)
        number = max((one["generation"] for one in begun), default=1)
        newest = [one for one in begun if one["generation"] == number]
        members = len(newest[0]["members"]) if newest else len(self._founders)
        starters = members - len(newest[0]["come"]) if newest else 0
        return number >= since and members == len(present) and len(newest) >= starters
