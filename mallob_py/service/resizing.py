"""Resizing: the owner's orders about the service's ranks, decided and carried out one after the other.

It runs on the first client's rank, which speaks for the service. If that rank leaves or is lost, the rank
that takes over its client goes on (`store/orders.py`).

Ranks that leave are chosen so that whole hosts become empty; on one host, the highest ranks are chosen. An
order is done when the processes of the leaving ranks on this host have ended.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from mallob_py.runtime.newcomers import GrowthError
from mallob_py.runtime.notices import tell
from mallob_py.runtime.rank import Rank
from mallob_py.runtime.remote_shell import is_host_name, shell_to
from mallob_py.runtime.world.failure_detector import host_name
from mallob_py.runtime.world.newcomer_process import Site
from mallob_py.service import ServiceError
from mallob_py.service.store.orders import (
    NO_ROOM,
    Answer,
    Departure,
    Drain,
    HostShare,
    Order,
    OrderFolder,
    Resize,
)

#: greatest number of ranks that join by one order: the rank that starts them does nothing else meanwhile, and
#: must not be taken for lost
FURTHER_MAX = 64
#: greatest number of digits of a rank's number
_DIGITS_MAX = 9
#: delay before an order that failed, as on a full disk, is tried again
_AGAIN_AFTER_S = 1.0


class Refusal(Exception):
    """An order cannot be carried out; the message gives the reason and the possibilities."""


def leavers_of(
    host_of: Mapping[int, int], count: int, stays: int, clients: Collection[int] = ()
) -> tuple[int, ...]:
    """Return `count` ranks to leave: ranks of small hosts first, so that many hosts become empty.

    `stays` is never chosen. Ranks of `clients` come last on their host, since moving a client is slow.
    """
    assert count < len(host_of), "one rank has to stay"
    hosts: dict[int, list[int]] = {}
    for rank in sorted(host_of, key=lambda rank: (rank in clients, -rank)):
        hosts.setdefault(host_of[rank], []).append(rank)
    by_size = sorted(hosts.values(), key=lambda ranks: (stays in ranks, len(ranks), -max(ranks)))
    chosen: list[int] = []
    for ranks in by_size:
        if len(ranks) <= count - len(chosen) and stays not in ranks:
            chosen += ranks
    for rank in (rank for ranks in by_size for rank in ranks if rank not in (*chosen, stays)):
        if len(chosen) == count:
            break
        chosen.append(rank)
    return tuple(sorted(chosen))


def spread(count: int, hosts: Sequence[HostShare]) -> list[str]:
    """Return a host for each of `count` ranks, in turn, within the hosts' bounds. Raises Refusal."""
    if (
        all(host.most is not None for host in hosts)
        and (most := sum(host.most or 0 for host in hosts)) < count
    ):
        raise Refusal(f"{count} further ranks are wanted, but the named hosts may have at most {most}")
    found: list[str] = []
    while len(found) < count:
        round_ = [host.name for host in hosts if host.most is None or found.count(host.name) < host.most]
        found += round_[: count - len(found)]
    return found


def check_hosts(order: Resize) -> None:
    """Check the hosts of an order, which other programs may have written. Raises Refusal."""
    for host in order.hosts:
        if not is_host_name(host.name) or (host.most is not None and host.most < 1):
            raise Refusal(f"{host.name!r} is no host name such as node2, or has a bound below one rank")
    if len({host.name for host in order.hosts}) < len(order.hosts):
        raise Refusal("a host is named twice")
    if any(not word or "\0" in word for word in order.remote_shell):
        raise Refusal(f"{order.remote_shell!r} is no command")


#: period of checking whether the processes of departed ranks have ended; most report their end earlier
_LOOK_S = 0.25


class _Aside(NamedTuple):
    """An order that is set aside until a time. Then its `answer` is written; None: the order is read anew."""

    until_s: float
    answer: Answer | None = None


class Resizing:
    """Carries out the orders that a service receives to change its ranks (see `runtime.rank.Orders`)."""

    def __init__(self, rank: Rank, folder: OrderFolder, clients: Sequence[int], must_stay: str = "") -> None:
        """`clients`: the ranks of all clients, kept up to date. `must_stay`: why this rank cannot leave, or
        "".
        """
        self._must_stay = must_stay
        self._rank = rank
        self._clients = clients
        self._folder = folder
        #: name of the order that is being carried out
        self._name = ""
        #: ranks that leave by this order; None: no ranks leave now
        self._departure: Departure | None = None
        #: for growth: time of the order (since 1970), and the former number of ranks
        self._growing: tuple[float, int] | None = None
        #: generation in which the leaving ranks were told to drain, and the ranks that have become empty in
        #: it
        self._told_in = 0
        self._ready: set[int] = set()
        self._is_ordered = False
        #: orders that failed, or that were refused and cannot be removed, by name
        self._aside: dict[str, _Aside] = {}
        self.deadline_s = -math.inf

    # --- calls of the event loop ----------------------------------------------------------

    def fileno(self) -> int | None:
        return self._folder.fileno()

    def turn(self, now: float) -> None:
        self.deadline_s = now + self._folder.poll_s
        for name, one in list(self._aside.items()):
            if one.answer is not None and one.until_s <= now:
                self._answer(name, one.answer)
        try:
            while self._growing is None and (self._departure is not None or self._take_next(now)):
                if self._departure is not None and not self._go_on():
                    break
        except OSError as error:
            self._departure = None
            self._put_off(self._name, None, error)
            self.deadline_s = -math.inf  # at once, since further orders may wait
        for name, one in self._aside.items():
            if one.until_s == -math.inf:
                self._aside[name] = one._replace(until_s=now + _AGAIN_AFTER_S)
        is_under_way = self._growing is not None or self._departure is not None
        if is_under_way:  # otherwise unread news would wake the loop without end
            self._folder.hear()
        due = [one.until_s for one in self._aside.values() if one.answer is not None or not is_under_way]
        self.deadline_s = min([self.deadline_s, *due])

    def drained(self, rank: int) -> None:
        self._ready.add(rank)
        self.deadline_s = -math.inf

    def world_changed(self) -> None:
        self.deadline_s = -math.inf

    def close(self) -> None:
        self._folder.close()

    # --- orders ------------------------------------------------------------------------------

    def _take_next(self, now: float) -> bool:
        """Begin with the oldest order; return False if there is none."""
        for gone in [each for each in self._aside if not self._folder.is_there(each)]:
            del self._aside[gone]
        while (name := self._folder.oldest(self._waiting(now))) is not None:
            self._name = name
            try:
                if (order := self._folder.read(name)) is None:
                    continue
                departure = self._decided(order)
            except (Refusal, GrowthError, ServiceError) as refusal:
                self._answer(name, Answer(str(refusal)))
                continue
            if departure is None:
                return True
            if departure is not order:
                self._folder.decide(name, departure)
            self._departure, self._told_in = departure, 0
            return True
        return False

    def _waiting(self, now: float) -> set[str]:
        """Return the names of the orders that must not be begun now."""
        return {name for name, one in self._aside.items() if one.answer is not None or one.until_s > now}

    def _put_off(self, name: str, answer: Answer | None, error: OSError) -> None:
        """Set an order aside until some time after this turn; report this once for each order."""
        if name not in self._aside:
            path = self._folder.path / name
            tell(f"the order {path} cannot be carried out now, and is tried again: {error}")
        self._aside[name] = _Aside(-math.inf, answer)

    def _answer(self, name: str, answer: Answer) -> None:
        """Write an answer, now or later. An answered order that cannot be removed does not begin again."""
        try:
            if answer.before:  # only an order that was carried out has this
                self._note_ranks()
            is_gone = self._folder.answer(name, answer)
        except OSError as error:
            self._put_off(name, answer, error)
            return
        self._aside.pop(name, None)
        if not is_gone:
            self._aside[name] = _Aside(math.inf)

    def _note_ranks(self) -> None:
        """Write down the number of ranks. Raises OSError if the disk is full."""
        home = self._rank.hosts[self._who_stays()]  # the host where the service starts its ranks
        ranks = sum(self._rank.hosts[rank] == home for rank in self._members)
        try:
            self._folder.note_ranks(ranks)
        except OSError as error:
            if error.errno in NO_ROOM:
                raise
            # Something else has the name of the file. The order's author must get an answer all the same.
            tell(
                f"{error.filename}: {error.strerror}; after a loss of all ranks, the service restarts with"
                " its former number of ranks"
            )

    def _decided(self, order: Order) -> Departure | None:
        """Decide which ranks leave; None: new ranks were started. Raises Refusal, GrowthError."""
        match order:
            case Departure():
                return order
            case Resize():
                check_hosts(order)
                more = self._further(order)
                if more > 0:
                    self._grow(more, order)
                    return None
                host_of = {rank: self._rank.hosts[rank] for rank in self._members}
                leaves, grace_s = leavers_of(host_of, -more, self._who_stays(), self._clients), 0.0
            case Drain(place, grace_s):
                if not 0.0 <= grace_s < math.inf:
                    raise Refusal(f"{grace_s:g} s is no valid time to wait")
                leaves = self._at(place)
        if leaves and not self._rank.node.survives:
            raise Refusal(
                "ranks of this service cannot leave while others go on; start it with --rank-loss survive"
            )
        return Departure(leaves, grace_s, len(self._members), self._rank.now())

    @property
    def _members(self) -> tuple[int, ...]:
        return self._rank.node.placement.members

    def _there_are(self) -> str:
        present = self._rank.node.placement
        return f"there {'is' if present.ranks == 1 else 'are'} {present.describe()}"

    def _further(self, order: Resize) -> int:
        """Return how many further ranks an order wants; negative: fewer."""
        present = len(self._members)
        wanted = present + (order.by or 0) if order.to is None else order.to
        if wanted < 1:
            raise Refusal(f"{self._there_are()}, and one has to stay")
        return wanted - present

    def _grow(self, count: int, order: Resize) -> None:
        """Start further ranks."""
        if count > FURTHER_MAX:
            raise Refusal(
                f"{count} further ranks are wanted, but at most {FURTHER_MAX} can join by one order"
            )
        here = host_name()
        hosts = [here] * count if not order.hosts else spread(count, order.hosts)
        shell = order.remote_shell or None
        sites = [
            Site(host) if host == here else Site(host, shell_to(host, os.environ, shell)) for host in hosts
        ]
        before = len(self._members)
        # The order is changed before ranks start: otherwise a retry of the order would start as many ranks
        # once more.
        self._folder.decide(self._name, replace(order, by=None, to=before + count))
        self._rank.grow(sites, self._has_grown)
        self._growing = self._rank.now(), before

    def _has_grown(self, problems: Mapping[int, str]) -> None:
        """Answer an order of growth, after all new ranks have joined or failed."""
        assert self._growing is not None
        ordered, before = self._growing
        self._growing = None
        self.deadline_s = -math.inf
        after, took_s = len(self._members), max(0.0, self._rank.now() - ordered)
        refusal = "; ".join(f"rank {rank} {why}" for rank, why in sorted(problems.items()))
        if refusal:
            refusal = f"{self._there_are()} now, before {before}; {refusal}"
        self._answer(self._name, Answer(refusal, before, after, took_s))

    def _who_stays(self) -> int:
        """Return a rank that the launcher started: other ranks hear of the launcher's signals from it."""
        founders = [rank for rank in self._members if rank in self._rank.node.founders.members]
        return self._rank.rank if self._rank.rank in founders or not founders else founders[0]

    def _at(self, place: str) -> tuple[int, ...]:
        """Return the ranks named by a number or a host."""
        is_number = place.isdecimal() and len(place) <= _DIGITS_MAX
        if is_number:
            found = [rank for rank in self._members if rank == int(place)]
            known = f"the ranks are {', '.join(map(str, self._members))}"
        else:
            news = self._rank.node.reports.of_ranks
            found = [rank for rank in self._members if rank in news and news[rank].host == place]
            known = f"the hosts are {', '.join(sorted({one.host for one in news.values()}))}"
        if not found:
            raise Refusal(f"there is no {'rank' if is_number else 'host'} {place}: {known}")
        if len(found) == len(self._members):
            raise Refusal("these are all ranks, and one has to stay; SIGTERM ends the service")
        if set(found) >= set(self._members) & set(self._rank.node.founders.members):
            raise Refusal(
                "one of the ranks with which the service started has to stay, to hear of the launcher's"
                " signals; end the service with SIGTERM, and start it anew on other hosts"
            )
        if self._must_stay and self._rank.rank in found:
            raise Refusal(f"rank {self._rank.rank} has to stay: {self._must_stay}")
        return tuple(found)

    # --- departures ---------------------------------------------------------------------------

    def _go_on(self) -> bool:
        """Continue the departure under way; return whether it is complete."""
        assert self._departure is not None
        if set(self._departure.leaves) >= set(self._members):
            self._have_one_stay(self._departure)
        departure = self._departure
        staying = [rank for rank in departure.leaves if rank in self._members]
        if not staying and any(map(self._rank.lookout.is_seen, departure.leaves)):
            self.deadline_s = min(self.deadline_s, self._rank.now() + _LOOK_S)
            return False
        if not staying:
            took_s = max(0.0, self._rank.now() - departure.ordered)
            refusal = ""
            if departure.stays is not None:
                refusal = f"rank {departure.stays} stays: all others are gone, and one has to stay"
            self._answer(self._name, Answer(refusal, departure.before, len(self._members), took_s))
            self._departure = None
            return True
        if self._told_in != self._rank.node.present.number:
            self._told_in = self._rank.node.present.number
            self._is_ordered = False
            self._ready.clear()
            now = self._rank.now()
            # The time of the order may come from another host, whose clock may be wrong.
            left_s = min(departure.ordered + departure.grace_s - now, departure.grace_s)
            for rank in staying:
                self._rank.have_drain(rank, now + max(0.0, left_s))
        if not self._is_ordered and self._ready.issuperset(staying):
            self._is_ordered = True
            self._rank.have_leave(staying)
        return False

    def _have_one_stay(self, departure: Departure) -> None:
        """Have one rank stay, since the rank that was to stay is lost."""
        stays = self._who_stays()
        leaves = tuple(rank for rank in departure.leaves if rank != stays)
        self._departure = replace(departure, leaves=leaves, grace_s=0.0, stays=stays)
        self._folder.decide(self._name, self._departure)
