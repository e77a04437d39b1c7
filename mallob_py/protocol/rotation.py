"""Shares over time: with more jobs than PEs, volumes rotate so that each job gets its share of PE-seconds.

For n jobs on m PEs, n > m, the share of job j is f_j = min(d_j, alpha p_j) with sum m, without the lower
bound of one worker that P 2.3 has for n <= m. A job has floor(f_j) workers for good; the PEs that are left
go, one each, to the jobs that are farthest behind. A job's *lag* is what it deserved minus what it received,
in PE-seconds.

Everybody computes the same rotation, since it follows from the image, the epoch's events and the time that
the epoch itself carries: the root of the tree of ranks measures how long the last volumes were in force. So
no two clocks have to agree, and a slow PE only follows later. An epoch begins when there is news, and, while
there are more jobs than PEs, when the next decision is due.

- **Turns.** A job keeps its place until the period of `slice_s` seconds is over, for all at once, so that a
  period costs one epoch. A *young* job, which has attained less than a slice, has shorter turns that double:
  `first_slice_s`, as much again, twice that, and so on. Most formulas end in the first ones. Where all PEs
  are on one host, so that moves cost next to nothing, one that has attained four slices, and deserves less
  than two fifths of a PE, has turns of a half to a quarter of a slice: within sixty slices it gets its share
  but for a twentieth then, down to a tenth of a PE.
- **Who has had least so far is served first.** Up to four slices a job counts as if it were farther behind
  than it is, by four seconds for each that it has attained less. So a new job runs at once, and one that has
  had a tenth of a second before one that has had a second; among those beyond four slices only lags count.
  What they had to wait for stays in their lags, and is forgotten slowly. So if new jobs come without end,
  those that go on and on still get a part of what they deserve.
- **Homes.** A job that rests is suspended where it ran. Jobs are chosen such that they find the PEs of their
  suspended workers free (a matching of jobs and PEs: the choice by lag is greedy on a transversal matroid, so
  the best that can be had). A job moves only if all its homes are taken and it is farther behind than one of
  those that run, by as much as a move costs it, or if a PE would have nothing to do. On one host, where its
  process goes with it, only the last PE is a home. Homes are advice: if a PE does not have the worker any
  more, another one is asked for.

Known theory: proportionate fairness (Baruah, Cohen, Plaxton, Varvel 1996), virtual time (stride scheduling,
Waldspurger 1995), least attained service (Nuyens and Wierman 2008).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import msgspec

from mallob_py.protocol.messages import NEW_JOB, JobEvent

_HOMES_MAX = 4
#: how long a job with a whole PE remembers what jobs that are gone have had before it
_MEMORY_S = 1.5
#: up to how many slices a job is served before those that have attained more, and how much each second of
#: that weighs beside a second that they are behind
_YOUNG_SLICES, _HEAD_START = 4, 4.0
#: a turn is at most so many slices for each PE that a job deserves, but not less than this part of a slice
_SLICES_PER_SHARE, _LEAST_PART = 2.5, 0.25
#: shares that are this near to a whole number are one
_ROUNDING = 1e-9
#: how many jobs may change their homes so that one more finds its own
_CHAIN_MAX = 16


class Slices(NamedTuple):
    """The length of turns, in seconds."""

    slice_s: float
    first_s: float

    @property
    def shortest_s(self) -> float:
        """Decisions that are due within this time are made together."""
        return self.first_s / 5


class Account(msgspec.Struct, frozen=True, gc=False):
    """One job in the rotation."""

    #: PE-seconds deserved minus received
    lag_s: float
    #: PE-seconds received while there were more jobs than PEs
    attained_s: float
    #: what it has attained when its turn is over; inf: its turn ends with the period
    until_s: float
    #: PEs where its root has been, the last one last
    homes: tuple[int, ...]
    #: it is at another PE since its turn began, and nobody has told yet at which
    is_away: bool = False


class Rotation(msgspec.Struct, frozen=True):
    """The image's knowledge beside jobs and volumes, once there have been more jobs than PEs."""

    accounts: Mapping[int, Account]
    #: PEs that each job deserves, a fraction; empty while no more jobs than PEs are live
    shares: Mapping[int, float]
    #: the PE where a job's root is to go on
    places: Mapping[int, int]
    period_left_s: float
    #: how long these volumes are in force if there are no news; inf while no more jobs than PEs are live
    next_s: float
    #: processes go on wherever the next turns of their jobs are
    is_one_host: bool = False

    @property
    def is_on(self) -> bool:
        """Whether there are more jobs than PEs."""
        return self.next_s < math.inf


OFF = Rotation({}, {}, {}, 0.0, math.inf)


class Since(NamedTuple):
    """The last epoch, and what has happened since: its volumes have been in force for `elapsed_s`."""

    rotation: Rotation
    volumes: Mapping[int, int]
    #: the jobs of that epoch
    known: Collection[int]
    #: the news of the present epoch
    events: Sequence[JobEvent]
    elapsed_s: float
    #: processes go on wherever the next turns of their jobs are
    is_one_host: bool = False


def back_in_s(rotation: Rotation, running: Collection[int], job: int, slices: Slices) -> float:
    """When it is the turn again of a job that rests, about, from the beginning of the epoch on.

    That is if no others come or end: at the end of each period those farthest behind are next.
    """
    lag_s = rotation.accounts[job].lag_s
    before = sum(rotation.accounts[other].lag_s > lag_s for other in rotation.shares if other not in running)
    places = sum(share < 1.0 for other, share in rotation.shares.items() if other in running)
    turn_s = _turn_s(rotation.accounts[job], rotation.shares[job], slices, rotation.is_one_host)
    return _left_s(rotation.period_left_s, turn_s, slices) + before // max(1, places) * turn_s


def fair_shares(jobs: Mapping[int, JobEvent], size: int) -> dict[int, float]:
    """f_j = min(d_j, alpha p_j) with sum `size`, for demands that add up to `size` at least."""
    if len(jobs) >= size and len({event.priority for event in jobs.values()}) == 1:
        return dict.fromkeys(jobs, size / len(jobs))
    by_cap = sorted(jobs.values(), key=lambda event: (event.demand / event.priority, event.job))
    # priorities of each job and of all behind it
    behind = list(accumulate(event.priority for event in reversed(by_cap)))[::-1]
    shares: dict[int, float] = {}
    left = float(size)
    for event, priorities in zip(by_cap, behind, strict=True):
        share = min(float(event.demand), left * event.priority / priorities)
        shares[event.job] = share
        left -= share
    return {job: shares[job] for job in jobs}


def rotated(
    since: Since, jobs: Mapping[int, JobEvent], size: int, slices: Slices
) -> tuple[Rotation, dict[int, int]]:
    """The rotation and the volumes for `jobs`, which are more than `size`."""
    before, volumes = since.rotation, since.volumes
    shares = fair_shares(jobs, size) if since.events or not before.is_on else before.shares
    if max(shares.values()) < 1.0 - _ROUNDING:
        whole, left, rests = dict.fromkeys(shares, 0), size, shares
    else:
        whole = {job: int(share + _ROUNDING) for job, share in shares.items()}
        left = size - sum(whole.values())
        rests = {job: max(0.0, share - whole[job]) for job, share in shares.items()}
    accounts = _charged(since, jobs, slices, rests)
    period_left_s = before.period_left_s - since.elapsed_s if before.is_on else slices.slice_s
    is_new_period = period_left_s <= slices.shortest_s
    if is_new_period:
        period_left_s = slices.slice_s

    turns = _turns(volumes, jobs, accounts, whole, rests, is_new_period, slices)

    places = _Places()
    for job, count in whole.items():
        if count:
            places.take(job, accounts[job].homes[-1:])
    chosen: set[int] = set()
    passed: list[int] = []
    moved: list[int] = []
    for _, _, job in turns.urgencies:
        if len(chosen) == left:
            break
        account = accounts[job]
        # one that leaves in order, or whose process goes with it, has nothing left but where it was last
        is_only_there = jobs[job].leaves or since.is_one_host
        homes = account.homes[-1:] if is_only_there else account.homes
        if volumes.get(job):  # it stays where it is
            homes = () if account.is_away else homes[-1:]
        if whole[job] or not homes or places.take(job, homes):
            chosen.add(job)
        elif account.lag_s > turns.least_lag_s + _patience_s(since, slices) + _ROUNDING:
            chosen.add(job)
            moved.append(job)
        else:
            passed.append(job)
    moved += passed[: left - len(chosen)]
    chosen.update(moved)
    for job in moved:
        accounts[job] = msgspec.structs.replace(accounts[job], is_away=True)

    next_s = period_left_s
    for job in chosen:
        account = accounts[job]
        if job not in turns.holding:
            turn_s = _turn_s(account, shares[job], slices, since.is_one_host)
            account = _with_turn(account, turn_s, period_left_s, slices)
            accounts[job] = account
        next_s = min(next_s, (account.until_s - account.attained_s) / (whole[job] + 1))
    found = {job: count + (job in chosen) for job, count in whole.items() if count or job in chosen}
    taken = {job: place for job, place in places.taken().items() if job in chosen}
    next_s = max(next_s, slices.shortest_s)
    return Rotation(accounts, shares, taken, period_left_s, next_s, since.is_one_host), found


class _Turns(NamedTuple):
    """The jobs that want one of the PEs that go round: `urgencies`, the most urgent first."""

    urgencies: list[tuple[float, float, int]]
    #: jobs whose turn is not over
    holding: set[int]
    #: the least lag of those that have a PE
    least_lag_s: float


def _turns(
    volumes: Mapping[int, int],
    jobs: Mapping[int, JobEvent],
    accounts: Mapping[int, Account],
    whole: Mapping[int, int],
    rests: Mapping[int, float],
    is_new_period: bool,
    slices: Slices,
) -> _Turns:
    urgencies: list[tuple[float, float, int]] = []
    holding: set[int] = set()
    least_lag_s = math.inf
    young_s = _YOUNG_SLICES * slices.slice_s
    for job, rest in rests.items():
        if whole[job] and (rest <= _ROUNDING or whole[job] >= jobs[job].demand):
            continue
        account = accounts[job]
        urgency = account.lag_s
        if account.attained_s < young_s:  # it counts as farther behind than it is
            urgency += _HEAD_START * (young_s - account.attained_s)
        if job in volumes:
            least_lag_s = min(least_lag_s, account.lag_s)
            if volumes[job] > whole[job] and not _is_over(account, is_new_period, slices):
                holding.add(job)
                urgency += slices.slice_s
        urgencies.append((-urgency, -jobs[job].standing, job))
    urgencies.sort()
    return _Turns(urgencies, holding, 0.0 if least_lag_s == math.inf else least_lag_s)


def _patience_s(since: Since, slices: Slices) -> float:
    """How far a job has to be behind others before it moves.

    Within a host it keeps its process, elsewhere it begins anew, or where it was saved last.
    """
    return 0.0 if since.is_one_host else slices.slice_s


def halted(since: Since, jobs: Mapping[int, JobEvent], slices: Slices) -> Rotation:
    """There are no more jobs than PEs now; what each is behind is kept for the next time."""
    accounts = since.rotation.accounts
    if not accounts:
        return OFF
    kept = {job: event for job, event in jobs.items() if job in accounts}
    accounts = _charged(since, kept, slices, {})
    return Rotation(accounts, {}, {}, 0.0, math.inf) if accounts else OFF


def _charged(
    since: Since, jobs: Mapping[int, JobEvent], slices: Slices, rests: Mapping[int, float]
) -> dict[int, Account]:
    """The accounts of `jobs` after the time since the last epoch, those of new ones included.

    What those that are gone were ahead, the others are behind. That is forgotten by and by.
    """
    before, volumes = since.rotation, since.volumes
    elapsed_s = since.elapsed_s if before.is_on else 0.0
    lags_s = dict.fromkeys(jobs, 0.0)
    for job, account in before.accounts.items():
        if job in lags_s:
            owed_s = (before.shares[job] - volumes.get(job, 0)) * elapsed_s if elapsed_s else 0.0
            lags_s[job] = account.lag_s + owed_s
    weight = math.fsum(rests.values())
    if weight > 0.0:
        forgotten = min(1.0, elapsed_s * sum(volumes.values()) / (_MEMORY_S * len(rests)))
        part = forgotten * math.fsum(lags_s.values()) / weight
        for job, rest in rests.items():
            lags_s[job] -= part * rest
    told = {event.job: event.root for event in since.events if event.root >= 0}
    accounts: dict[int, Account] = {}
    for job, event in jobs.items():
        former = before.accounts.get(job)
        if former is None:
            attained_s = 0.0 if job not in since.known and event.root == NEW_JOB else slices.slice_s
            homes: tuple[int, ...] = () if event.root < 0 else (event.root,)
            accounts[job] = Account(lags_s[job], attained_s, math.inf, homes)
            continue
        attained_s, homes, is_away = former.attained_s, former.homes, former.is_away
        if elapsed_s:
            volume = volumes.get(job, 0)
            attained_s += volume * elapsed_s
            is_away = is_away and volume > 0
        if (root := told.get(job)) is not None and homes[-1:] != (root,):
            homes = (*(home for home in homes if home != root), root)[-_HOMES_MAX:]
            is_away = False
        accounts[job] = Account(lags_s[job], attained_s, former.until_s, homes, is_away)
    return accounts


def _is_over(account: Account, is_new_period: bool, slices: Slices) -> bool:
    if account.until_s == math.inf:
        return is_new_period
    return account.attained_s > account.until_s - slices.shortest_s


def _with_turn(account: Account, turn_s: float, period_left_s: float, slices: Slices) -> Account:
    until_s = math.inf
    if account.attained_s < slices.slice_s:
        until_s = account.attained_s + max(slices.first_s, account.attained_s)
    elif turn_s < slices.slice_s:
        until_s = account.attained_s + _left_s(period_left_s, turn_s, slices)
    return account if until_s == account.until_s else msgspec.structs.replace(account, until_s=until_s)


def _turn_s(account: Account, share: float, slices: Slices, is_one_host: bool) -> float:
    """Return the length of a turn that begins with a period, of a job that has attained a slice or more."""
    if not is_one_host or account.attained_s < _YOUNG_SLICES * slices.slice_s:
        return slices.slice_s
    return slices.slice_s / math.ceil(1.0 / max(_SLICES_PER_SHARE * share, _LEAST_PART) - _ROUNDING)


def _left_s(period_left_s: float, turn_s: float, slices: Slices) -> float:
    """When a turn that begins now ends, such that many end at once, and the last ones with the period."""
    left_s = period_left_s % turn_s
    return left_s if left_s > slices.shortest_s else left_s + turn_s


class _Places:
    """Which job goes on at which of its homes: a matching, which grows by one job at a time."""

    def __init__(self) -> None:
        self._homes: dict[int, tuple[int, ...]] = {}
        self._holder: dict[int, int] = {}

    def take(self, job: int, homes: tuple[int, ...]) -> bool:
        """Find a home for one more job; others may go to another one of theirs for it."""
        self._homes[job] = homes
        return self._place(job, set(), _CHAIN_MAX)

    def _place(self, job: int, seen: set[int], depth: int) -> bool:
        homes = self._homes[job]
        for home in reversed(homes):
            if home not in self._holder:
                self._holder[home] = job
                return True
        if depth == 0:
            return False
        for home in reversed(homes):
            if home not in seen:
                seen.add(home)
                if self._place(self._holder[home], seen, depth - 1):
                    self._holder[home] = job
                    return True
        return False

    def taken(self) -> dict[int, int]:
        """The home of each job that has found one."""
        return {job: home for home, job in self._holder.items()}
