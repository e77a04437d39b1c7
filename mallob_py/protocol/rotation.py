"""Shares over time: with more jobs than PEs, volumes rotate so that each job gets its share of PE-seconds.

For n jobs on m PEs, n > m, the share of job j is f_j = min(d_j, alpha p_j) with sum m, without the lower
bound of one worker that P 2.3 has for n <= m. A job has floor(f_j) workers for good; the remaining PEs go,
one each, to the jobs that are farthest behind. A job's *lag* is what it deserved minus what it received, in
PE-seconds.

Every PE computes the same rotation, since it follows from the image, the epoch's events and the time in the
epoch: the root of the tree of ranks measures how long the last volumes were in force. So no clocks must
agree, and a slow PE only follows later. An epoch begins when there is news and, with more jobs than PEs, when
the next decision is due.

- **Turns.** A job keeps its PE until the period of `slice_s` seconds is over. The period is the same for all
  jobs, so that it costs one epoch. A *young* job, which has attained less than a slice, has shorter turns
  that double: `first_slice_s`, as much again, twice that, and so on. Most formulas end in the first turns. If
  all PEs are on one host, where moves cost little, a job that has attained four slices and deserves less than
  two fifths of a PE has turns of a half to a quarter of a slice. So it gets its share, up to a twentieth,
  within sixty slices, if it deserves at least a tenth of a PE.
- **The job that has had least is first.** A job that has attained less than four slices counts as farther
  behind than it is, by four seconds for each second that it lacks. So a new job runs at once, and a job that
  has had a tenth of a second comes before one that has had a second; beyond four slices only lags count. The
  time that jobs waited stays in their lags, and is forgotten slowly. So if new jobs come without end, long
  jobs still get a part of their share.
- **In debt, head starts count within the user only.** A user's debt is what the user's jobs received minus
  what they deserved, and is forgotten slowly: to a third in about 30 seconds. So a stream of one user's brief
  jobs cannot take the share of another user's long job.
- **Homes.** A resting job is suspended where it ran. Jobs are chosen such that they find the PEs of their
  suspended workers free (a matching of jobs and PEs: the choice by lag is greedy on a transversal matroid, so
  the best possible). A job moves only if all its homes are taken and it is farther behind than a running job
  by the cost of a move, or if a PE would be idle. On one host, where a job's process moves with the job, only
  the last PE is a home. Homes are advice: if a PE has lost the worker, another PE is asked.

Known theory: proportionate fairness (Baruah, Cohen, Plaxton, Varvel 1996), virtual time (stride scheduling,
Waldspurger 1995), least attained service (Nuyens and Wierman 2008).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import msgspec

from mallob_py.protocol.messages import JobEvent

_HOMES_MAX = 4
#: time constant, in PE-seconds per job, with which the lead of former jobs is forgotten
_MEMORY_S = 1.5
#: attained time, in slices, below which a job has a head start; seconds of lag that the head start adds per
#: second that the job lacks
_YOUNG_SLICES, _HEAD_START = 4, 4.0
#: time constant with which users' debts are forgotten, and PE-seconds up to which a debt does not matter
_DEBT_MEMORY_S, _LEAST_DEBT_S = 30.0, 1e-6
#: debts, in slices per PE that the user deserves: up to the first debt the head starts of the user's jobs
#: count in full among users, from the second debt on they count only among the user's own jobs
_DEBT_FREE, _DEBT_MAX = 1.0, 2.0
#: longest turn per PE that the job deserves, and shortest turn; both in slices
_SLICES_PER_SHARE, _LEAST_PART = 2.5, 0.25
#: greatest distance from a whole number at which a share is rounded
_ROUNDING = 1e-9
#: greatest number of jobs that change their homes so that one more job finds a home
_CHAIN_MAX = 16


class Slices(NamedTuple):
    """The length of turns, in seconds."""

    slice_s: float
    first_s: float

    @property
    def shortest_s(self) -> float:
        """The time within which due decisions are made together."""
        return self.first_s / 5


class Account(msgspec.Struct, frozen=True, gc=False):
    """One job's account in the rotation."""

    #: PE-seconds deserved minus received
    lag_s: float
    #: PE-seconds received while there were more jobs than PEs; of the time before, at most a slice counts
    attained_s: float
    #: attained time at which the job's turn is over; inf: the turn ends with the period
    until_s: float
    #: PEs where the job's root has been, in order
    homes: tuple[int, ...]
    #: whether the job has moved in this turn to a PE that is still unknown
    is_away: bool = False


class Rotation(msgspec.Struct, frozen=True):
    """The part of a PE's image that describes turns, kept once there have been more jobs than PEs."""

    accounts: Mapping[int, Account]
    #: job -> number of PEs that the job deserves, a fraction; empty unless there are more jobs than PEs
    shares: Mapping[int, float]
    #: job -> PE where the job's root must go on
    places: Mapping[int, int]
    period_left_s: float
    #: time for which these volumes hold without news; inf: there are not more jobs than PEs
    next_s: float
    #: whether processes move with their jobs
    is_one_host: bool = False
    #: user -> PE-seconds received minus deserved, while there were several users
    debts_s: Mapping[int, float] = {}

    @property
    def is_on(self) -> bool:
        """Tell whether there are more jobs than PEs."""
        return self.next_s < math.inf


OFF = Rotation({}, {}, {}, 0.0, math.inf)


class Since(NamedTuple):
    """The last epoch, and what has happened since: its volumes were in force for `elapsed_s`."""

    rotation: Rotation
    volumes: Mapping[int, int]
    #: jobs of the last epoch
    jobs: Mapping[int, JobEvent]
    #: news of the present epoch
    events: Sequence[JobEvent]
    elapsed_s: float
    #: whether processes move with their jobs
    is_one_host: bool = False


def back_in_s(rotation: Rotation, running: Collection[int], job: int, slices: Slices) -> float:
    """Estimate after how long a resting job gets its next turn, counted from the beginning of the epoch.

    The estimate assumes that no jobs come or end: at the end of each period the jobs farthest behind are
    next.
    """
    lag_s = rotation.accounts[job].lag_s
    before = sum(rotation.accounts[other].lag_s > lag_s for other in rotation.shares if other not in running)
    places = sum(share < 1.0 for other, share in rotation.shares.items() if other in running)
    turn_s = _turn_s(rotation.accounts[job], rotation.shares[job], slices, rotation.is_one_host)
    return _left_s(rotation.period_left_s, turn_s, slices) + before // max(1, places) * turn_s


def fair_shares(jobs: Mapping[int, JobEvent], size: int) -> dict[int, float]:
    """Return f_j = min(d_j, alpha p_j) with sum `size`, for demands that add up to `size` at least."""
    if len(jobs) >= size and len({event.priority for event in jobs.values()}) == 1:
        return dict.fromkeys(jobs, size / len(jobs))
    by_cap = sorted(jobs.values(), key=lambda event: (event.demand / event.priority, event.job))
    # sums of the priorities of each job and all later jobs
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
    """Return the rotation and the volumes for `jobs`, which are more than `size`."""
    before, volumes = since.rotation, since.volumes
    shares = fair_shares(jobs, size) if since.events or not before.is_on else before.shares
    whole = _whole_parts(shares, size)
    left = size - sum(whole.values())
    rests = shares
    if left < size:
        rests = {job: max(0.0, share - whole[job]) for job, share in shares.items()}
    accounts = _charged(since, jobs, slices, rests)
    period_left_s = before.period_left_s - since.elapsed_s if before.is_on else slices.slice_s
    is_new_period = period_left_s <= slices.shortest_s
    if is_new_period:
        period_left_s = slices.slice_s

    debts_s = _debts(since, jobs)
    starts = _head_starts(debts_s, jobs, shares, slices)
    turns = _turns(volumes, jobs, accounts, whole, rests, is_new_period, slices, starts)

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
        # a job that leaves in order, or whose process moves with the job, has only its last home left
        is_only_there = jobs[job].leaves or since.is_one_host
        homes = account.homes[-1:] if is_only_there else account.homes
        if volumes.get(job):  # a job with a volume stays where it is
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
            account = accounts[job] = _with_turn(account, turn_s, period_left_s, slices)
        next_s = min(next_s, (account.until_s - account.attained_s) / (whole[job] + 1))
    found = {job: count + (job in chosen) for job, count in whole.items() if count or job in chosen}
    taken = {job: place for job, place in places.taken().items() if job in chosen}
    next_s = max(next_s, slices.shortest_s)
    return Rotation(accounts, shares, taken, period_left_s, next_s, since.is_one_host, debts_s), found


def _whole_parts(shares: Mapping[int, float], size: int) -> dict[int, int]:
    """Return how many PEs each job has for good. At least one PE of `size` is left for turns."""
    if max(shares.values()) < 1.0 - _ROUNDING:
        return dict.fromkeys(shares, 0)
    whole = {job: int(share + _ROUNDING) for job, share in shares.items()}
    if sum(whole.values()) == size:  # other shares are too small for floats, but their jobs must begin
        whole[max(whole, key=lambda job: (shares[job], job))] -= 1
    return whole


class _Turns(NamedTuple):
    """The jobs that compete for the rotating PEs: `urgencies`, the most urgent first."""

    urgencies: list[tuple[float, float, int]]
    #: jobs whose turn is not over
    holding: set[int]
    #: smallest lag of the jobs with a PE
    least_lag_s: float


def _turns(
    volumes: Mapping[int, int],
    jobs: Mapping[int, JobEvent],
    accounts: Mapping[int, Account],
    whole: Mapping[int, int],
    rests: Mapping[int, float],
    is_new_period: bool,
    slices: Slices,
    starts: Mapping[int, float],
) -> _Turns:
    urgencies: list[tuple[float, float, int]] = []
    #: user in debt -> urgencies of the user's jobs with the full head start, and with the user's part of it
    of_debtors: dict[int, tuple[list[tuple[float, float, int]], list[float]]] = {}
    holding: set[int] = set()
    least_lag_s = math.inf
    young_s = _YOUNG_SLICES * slices.slice_s
    for job, rest in rests.items():
        if whole[job] and (rest <= _ROUNDING or whole[job] >= jobs[job].demand):
            continue
        account = accounts[job]
        urgency, head_start_s = account.lag_s, 0.0
        if account.attained_s < young_s:  # a young job counts as farther behind than it is
            head_start_s = _HEAD_START * (young_s - account.attained_s)
        if job in volumes:
            least_lag_s = min(least_lag_s, account.lag_s)
            if volumes[job] > whole[job] and not _is_over(account, is_new_period, slices):
                holding.add(job)
                urgency += slices.slice_s
        entry = (-urgency - head_start_s, -jobs[job].standing, job)
        if (user := jobs[job].user) in starts:
            entries, values = of_debtors.setdefault(user, ([], []))
            entries.append(entry)
            values.append(-urgency - starts[user] * head_start_s)
        else:
            urgencies.append(entry)
    for entries, values in of_debtors.values():  # the head start counts among the jobs of the user
        ranked = zip(sorted(values), sorted(entries), strict=True)
        urgencies += [(value, standing, job) for value, (_, standing, job) in ranked]
    urgencies.sort()
    return _Turns(urgencies, holding, 0.0 if least_lag_s == math.inf else least_lag_s)


def _debts(since: Since, jobs: Mapping[int, JobEvent]) -> Mapping[int, float]:
    """Return the debts of users, charged for the time since the last epoch, and slowly forgotten.

    A debt is kept while it matters. A debt below 0 is kept only while its user has jobs.
    """
    before = since.rotation
    debts_s = before.debts_s
    if before.is_on and len({event.user for event in since.jobs.values()}) > 1:
        debts_s = dict(debts_s)
        for job, event in since.jobs.items():
            had_s = (since.volumes.get(job, 0) - before.shares[job]) * since.elapsed_s
            debts_s[event.user] = debts_s.get(event.user, 0.0) + had_s
    if not debts_s:
        return debts_s
    kept = max(0.0, 1.0 - since.elapsed_s / _DEBT_MEMORY_S)
    present = {event.user for event in jobs.values()}
    return {
        user: debt_s * kept
        for user, debt_s in debts_s.items()
        if (abs(debt_s) if user in present else debt_s) > _LEAST_DEBT_S
    }


def _head_starts(
    debts_s: Mapping[int, float], jobs: Mapping[int, JobEvent], shares: Mapping[int, float], slices: Slices
) -> dict[int, float]:
    """Return the part of the head start that counts among users, for each user with too great a debt."""
    debtors = {user for user, debt_s in debts_s.items() if debt_s > _DEBT_FREE * slices.slice_s}
    if not debtors:
        return {}
    deserved: dict[int, float] = {}
    for job, share in shares.items():
        if (user := jobs[job].user) in debtors:
            deserved[user] = deserved.get(user, 0.0) + share
    starts = {}
    for user, share in deserved.items():
        debt = debts_s[user] / (slices.slice_s * max(1.0, share))
        if debt > _DEBT_FREE:
            starts[user] = max(0.0, (_DEBT_MAX - debt) / (_DEBT_MAX - _DEBT_FREE))
    return starts


def _patience_s(since: Since, slices: Slices) -> float:
    """Return how far a job must be behind others before it moves.

    Within a host the job keeps its process; on another host it begins anew, or from its checkpoint.
    """
    return 0.0 if since.is_one_host else slices.slice_s


def halted(since: Since, jobs: Mapping[int, JobEvent], slices: Slices) -> Rotation:
    """Stop the turns, since there are not more jobs than PEs.

    Users' debts are kept for later turns, and each account with a lag or without exactly a slice attained.
    """
    debts_s = _debts(since, jobs)
    kept = {job: jobs[job] for job in since.rotation.accounts if job in jobs}
    for event in since.events:
        if event.job in jobs and event.job not in since.jobs and not event.had_slice:
            kept[event.job] = event
    if not kept and not debts_s:
        return OFF
    accounts = {
        job: account
        for job, account in _charged(since, kept, slices, {}).items()
        if account.lag_s or account.attained_s != slices.slice_s
    }
    return Rotation(accounts, {}, {}, 0.0, math.inf, debts_s=debts_s) if accounts or debts_s else OFF


def _charged(
    since: Since, jobs: Mapping[int, JobEvent], slices: Slices, rests: Mapping[int, float]
) -> dict[int, Account]:
    """Return the accounts of `jobs`, also of new jobs, charged for the time since the last epoch.

    The lead of jobs that are gone passes to the other jobs, and is forgotten slowly.
    """
    before, volumes = since.rotation, since.volumes
    elapsed_s = since.elapsed_s if before.is_on else 0.0
    lags_s = _lags_s(since, jobs, rests) if elapsed_s else {}
    told = {event.job: event.root for event in since.events if event.root >= 0}
    accounts: dict[int, Account] = {}
    for job, event in jobs.items():
        former = before.accounts.get(job)
        if former is None:
            is_new = job not in since.jobs and not event.had_slice
            attained_s, until_s = (0.0, slices.first_s) if is_new else (slices.slice_s, math.inf)
            homes: tuple[int, ...] = () if event.root < 0 else (event.root,)
            accounts[job] = Account(lags_s.get(job, 0.0), attained_s, until_s, homes)
            continue
        attained_s, homes, is_away = former.attained_s, former.homes, former.is_away
        if elapsed_s:
            volume = volumes.get(job, 0)
            attained_s += volume * elapsed_s
            is_away = is_away and volume > 0
        elif attained_s < slices.slice_s:
            attained_s = min(slices.slice_s, attained_s + since.elapsed_s)
        if (root := told.get(job)) is not None and homes[-1:] != (root,):
            homes = (*(home for home in homes if home != root), root)[-_HOMES_MAX:]
            is_away = False
        accounts[job] = Account(lags_s.get(job, former.lag_s), attained_s, former.until_s, homes, is_away)
    return accounts


def _lags_s(since: Since, jobs: Mapping[int, JobEvent], rests: Mapping[int, float]) -> dict[int, float]:
    """Return the lags of `jobs` after an epoch with more jobs than PEs."""
    before, volumes, elapsed_s = since.rotation, since.volumes, since.elapsed_s
    lags_s = dict.fromkeys(jobs, 0.0)
    for job, account in before.accounts.items():
        if job in lags_s:
            lags_s[job] = account.lag_s + (before.shares[job] - volumes.get(job, 0)) * elapsed_s
    weight = math.fsum(rests.values())
    if weight > 0.0:
        forgotten = min(1.0, elapsed_s * sum(volumes.values()) / (_MEMORY_S * len(rests)))
        part = forgotten * math.fsum(lags_s.values()) / weight
        for job, rest in rests.items():
            lags_s[job] -= part * rest
    return lags_s


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
    """Return the length of a turn that begins with a period, for a job that has attained a slice or more."""
    if not is_one_host or account.attained_s < _YOUNG_SLICES * slices.slice_s:
        return slices.slice_s
    return slices.slice_s / math.ceil(1.0 / max(_SLICES_PER_SHARE * share, _LEAST_PART) - _ROUNDING)


def _left_s(period_left_s: float, turn_s: float, slices: Slices) -> float:
    """Return how long a turn that begins now lasts, so that many turns end at one time."""
    left_s = period_left_s % turn_s
    return left_s if left_s > slices.shortest_s else left_s + turn_s


class _Places:
    """The matching of jobs and homes (PEs where their roots have been), which grows by one job at a time."""

    def __init__(self) -> None:
        self._homes: dict[int, tuple[int, ...]] = {}
        self._holder: dict[int, int] = {}

    def take(self, job: int, homes: tuple[int, ...]) -> bool:
        """Find a home for one more job; for that, other jobs may be moved to another one of their homes."""
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
        """Return the home of each job for which `take` has found one."""
        return {job: home for home, job in self._holder.items()}
