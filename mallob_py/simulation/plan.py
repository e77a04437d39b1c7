"""Plans: what happens to a cluster, as data: its size, its settings, and timed events (`Deed`).

`draw_plan` makes a plan from a seed. A plan can be written to JSON, cut off, thinned out and played again
(`scenario.py`); playing it is deterministic. An event that needs a worker picks the worker by a hash of the
event's number, so the choice is the same when other events are left out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import msgspec

from mallob_py.protocol.config import Balancing, Config, Matching, Reuse
from mallob_py.simulation.delays import Delayed, DelayRanges, mixed
from mallob_py.simulation.desks import DeskPlan, FileTerms
from mallob_py.simulation.processes import Failing

_SIZES = (1, 2, 3, 4, 5, 7, 8, 13, 16, 31, 32, 64)
_LARGE_SIZES = (128, 256)
#: number of seeds of which one gets a large cluster
_LARGE_EVERY = 50
_NUMBERS_PER_JOB = 20
#: bound on the rank numbers in events; such a number counts modulo the number of ranks
_RANKS_MAX = 1 << 10
#: (matcher, number of random hops, whether requests are made in bulk), drawn for a plan
_MATCHERS = (
    (Matching.PREFIX_SUM, 0, True),
    (Matching.PREFIX_SUM, 0, True),
    (Matching.PREFIX_SUM, 0, False),
    (Matching.PREFIX_SUM, 3, True),
    (Matching.ROUTING_TREE, 0, True),
    (Matching.ROUTING_TREE, 0, True),
    (Matching.ROUTING_TREE, 5, True),
    (Matching.ROUTING_TREE, -1, True),
)

#: rank and number of a worker
WorkerKey: TypeAlias = tuple[int, int]


class Deed(msgspec.Struct, frozen=True, kw_only=True, tag_field="deed"):
    """An event of a job or a rank at time `at_s`; `number` identifies the event in all variants."""

    number: int
    at_s: float
    job: int


class Submit(Deed, frozen=True, kw_only=True, tag="submit"):
    """A user submits the job. 0: no limit. `near`: preferred PE for the root. `leaves`: leave in order."""

    rank: int
    priority: float = 1.0
    max_demand: int = 0
    wallclock_limit_s: float = 0.0
    cpu_limit_s: float = 0.0
    near: int | None = None
    leaves: bool = False
    growth_delay_s: float | None = None


class File(Submit, frozen=True, kw_only=True, tag="file"):
    """A user puts the job's file into the folder of a rank that has a desk."""

    file: FileTerms


class DiskFills(Deed, frozen=True, kw_only=True, tag="disk-fills"):
    """The disk of the rank's first folder is full for `for_s`: no reply can be written."""

    rank: int
    for_s: float


class Demand(Deed, frozen=True, kw_only=True, tag="demand"):
    """The application at the root wants this many workers."""

    workers: int


class Crash(Deed, frozen=True, kw_only=True, tag="crash"):
    """A process of the job dies, running or stopped."""


class Chat(Deed, frozen=True, kw_only=True, tag="chat"):
    """A running worker sends bytes to its parent and its children, and reports its use."""


class Find(Deed, frozen=True, kw_only=True, tag="find"):
    """A running worker finds a result."""


class Fail(Deed, frozen=True, kw_only=True, tag="fail"):
    """A running worker raises an error."""


class Drop(Deed, frozen=True, kw_only=True, tag="drop"):
    """The host of a suspended worker of the job is short of memory: its PE drops `count` such workers."""

    count: int


class Pause(Deed, frozen=True, kw_only=True, tag="pause"):
    """The host of a running worker of the job is short of memory: the worker is paused if that is allowed."""


class Unpause(Deed, frozen=True, kw_only=True, tag="unpause"):
    """There is memory again for a paused worker of the job."""


class Interrupt(Deed, frozen=True, kw_only=True, tag="interrupt"):
    """The user does not want the job any more."""


class SetBack(Deed, frozen=True, kw_only=True, tag="set-back"):
    """The job is given up as soon as it rests, and is submitted again at once."""


class Terms(Deed, frozen=True, kw_only=True, tag="terms"):
    """The job's priority, and the bound on its demand, change to these values."""

    priority: float
    max_demand: int


class Breakdown(Deed, frozen=True, kw_only=True, tag="breakdown"):
    """Give no process to the next `count` workers: of the job or, with `rank`, on that rank's host."""

    what: Failing
    count: int
    rank: int | None = None


#: job number in events that concern ranks
NO_JOB = 0


class RankDies(Deed, frozen=True, kw_only=True, tag="rank-dies"):
    """The rank's process ends without a message; the other ranks must notice."""

    rank: int


class RankHangs(Deed, frozen=True, kw_only=True, tag="rank-hangs"):
    """The rank does nothing for `for_s`, then goes on where it was."""

    rank: int
    for_s: float


class RankLeaves(Deed, frozen=True, kw_only=True, tag="rank-leaves"):
    """A user orders, at some rank, that the rank leaves."""

    rank: int


class RankDrains(Deed, frozen=True, kw_only=True, tag="rank-drains"):
    """A user orders that the rank drains: it starts nothing new, and leaves when empty or after `grace_s`.

    `is_told`: whether the order is given at another rank, which passes the order on.
    """

    rank: int
    grace_s: float
    is_told: bool = False


class RankAccused(Deed, frozen=True, kw_only=True, tag="rank-accused"):
    """Another rank takes this healthy rank as lost."""

    rank: int


class RanksJoin(Deed, frozen=True, kw_only=True, tag="ranks-join"):
    """A user orders, at some rank, that newcomers join."""

    capacities: tuple[int, ...]


class SystemEnds(Deed, frozen=True, kw_only=True, tag="system-ends"):
    """A user ends all ranks, by an order at some rank."""


Change: TypeAlias = RankDies | RankHangs | RankLeaves | RankDrains | RankAccused | RanksJoin

AnyDeed: TypeAlias = (
    Submit
    | File
    | DiskFills
    | Demand
    | Crash
    | Chat
    | Drop
    | Pause
    | Unpause
    | Find
    | Fail
    | Interrupt
    | SetBack
    | Terms
    | Breakdown
    | Change
    | SystemEnds
)


_Kind: TypeAlias = Callable[..., AnyDeed]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to a cluster, as data; with `special`, all delays except these are the shortest."""

    seed: int
    size: int
    config: Config
    delays: DelayRanges
    span_s: float
    deeds: tuple[AnyDeed, ...]
    special: tuple[Delayed, ...] | None = None
    #: silence after which another rank takes a rank as lost, and patience of ranks during a change of
    #: generation
    detect_s: float = 0.01
    patience_s: float = 1.0
    #: greatest number of PEs of a rank; 0: each PE is a rank of its own
    largest_capacity: int = 0
    #: whether messages between workers come back from hanging ranks
    is_congested: bool = False
    #: setting of desks, if jobs come as files
    desks: DeskPlan | None = None

    def capacities(self) -> list[int] | None:
        """Draw the ranks' capacities, mostly unequal ones; None: each PE is a rank."""
        left, capacities = self.size if self.largest_capacity else 0, []
        while left:
            drawn = 1 + mixed(self.seed, left) % self.largest_capacity
            capacities.append(min(drawn, left))
            left -= capacities[-1]
        return capacities or None

    def hosts(self) -> int:
        """Return the number of the ranks' hosts."""
        return 2 if mixed(self.seed, -2) % 3 == 0 else 1

    def pick(self, deed: Deed, workers: Iterable[WorkerKey]) -> WorkerKey | None:
        """Choose a worker for an event; if other workers come or go, the choice stays the same."""
        return min(workers, key=lambda worker: mixed(self.seed, deed.number, *worker), default=None)

    def cut_off(self, count: int) -> Plan:
        """Return the plan with only the first `count` events."""
        return msgspec.structs.replace(self, deeds=self.deeds[:count])

    @property
    def changes(self) -> list[Change]:
        """Return the events that concern ranks."""
        return [deed for deed in self.deeds if isinstance(deed, Change)]

    @property
    def last_deed_s(self) -> float:
        return self.deeds[-1].at_s if self.deeds else 0.0


def draw_plan(seed: int) -> Plan:
    """Draw jobs that arrive, change their demand, answer, crash, are interrupted or reach their limits."""
    choose = random.Random(f"plan {seed}")
    sizes = _LARGE_SIZES if seed % _LARGE_EVERY == _LARGE_EVERY - 1 else _SIZES
    size = choose.choice(sizes)
    longest_s = choose.choice((0.1e-3, 1e-3, 20e-3))
    span_s = choose.choice((0.01, 0.1, 1.0))
    matcher, random_hops, bulk_requests = choose.choice(_MATCHERS)
    config = Config(
        balancing=choose.choice(list(Balancing)),
        reuse=choose.choice(list(Reuse)),
        job_cache=choose.choice((0, 1, 4)),
        balancing_delay_s=choose.choice((0.0, 0.001, 0.01)),
        matching_delay_s=choose.choice((0.0, 0.0003, 0.005)),
        reuse_patience_s=choose.choice((0.0005, 0.005, 0.05)),
        matcher=matcher,
        random_hops=random_hops,
        bulk_requests=bulk_requests,
        **_draw_rests(random.Random(f"rests {seed}")),
        **_draw_graces(random.Random(f"graces {seed}"), longest_s),
        **_draw_slices(random.Random(f"slices {seed}"), longest_s, span_s),
    )
    delays = DelayRanges(
        message_s=(1e-5, longest_s),
        process_start_s=(0.0, longest_s),
        fetch_s=(0.0, longest_s),
        skew=choose.choice((1.0, 1.0, 8.0)),
    )
    clients = [choose.randrange(size) for _ in range(choose.choice((1, 1, 2, 4)))]
    deeds: list[AnyDeed] = []
    for job in range(1, choose.choice((1, 3, 10, 40)) + 1):
        near, leaves = _draw_near(seed, job, size), mixed(seed, job, -1) % 3 == 0
        deeds += _draw_deeds(choose, job, size, span_s, clients, near, leaves)
        deeds += _draw_terms(random.Random(f"terms {seed} {job}"), job, span_s)
        deeds += _draw_set_backs(random.Random(f"set back {seed} {job}"), job, span_s)
        deeds += _draw_shortages(random.Random(f"memory {seed} {job}"), job, span_s)
        deeds += _draw_breakdowns(random.Random(f"breakdown {seed} {job}"), job, span_s, size)
    deeds.sort(key=lambda deed: deed.at_s)
    return Plan(
        seed=seed,
        size=size,
        config=config,
        delays=delays,
        span_s=span_s,
        deeds=tuple(deeds),
        largest_capacity=choose.choice((0, 0, 2, 4, size)),
    )


def _draw_deeds(
    choose: random.Random,
    job: int,
    size: int,
    span_s: float,
    clients: Sequence[int],
    near: int | None,
    leaves: bool,
) -> list[AnyDeed]:
    """Draw the events of one job: its submission, some mishaps, and an end."""
    submission = Submit(
        number=_NUMBERS_PER_JOB * job,
        at_s=choose.uniform(0, span_s),
        job=job,
        rank=choose.choice(clients),
        priority=choose.choice((0.01, 0.5, 1.0, 1.0, 3.0)),
        max_demand=choose.choice((0, 0, 1, 2, 5)),
        wallclock_limit_s=choose.choice((0.0, 0.0, span_s / 3)),
        cpu_limit_s=choose.choice((0.0, 0.0, span_s)),
        near=near,
        leaves=leaves,
    )
    mishaps: tuple[_Kind, ...] = (Demand, Crash, Chat, Chat)
    ends: tuple[_Kind, ...] = (Find, Find, Fail, Interrupt)
    kinds = [choose.choice(mishaps) for _ in range(choose.choice((0, 1, 3)))] + [choose.choice(ends)]
    deeds: list[AnyDeed] = [submission]
    for number, kind in enumerate(kinds, submission.number + 1):
        at_s = submission.at_s + choose.uniform(0, span_s)
        if kind is Demand:
            deeds.append(Demand(number=number, at_s=at_s, job=job, workers=choose.randint(1, size)))
        else:
            deeds.append(kind(number=number, at_s=at_s, job=job))
    return deeds


def _draw_shortages(choose: random.Random, job: int, span_s: float) -> list[AnyDeed]:
    """Draw one or two shortages of memory for every second job, mostly with their ends."""
    deeds: list[AnyDeed] = []
    number = _NUMBERS_PER_JOB * job + 5
    for _ in range(choose.choice((0, 0, 1, 2))):
        at_s = choose.uniform(0, 2 * span_s)
        deeds.append(Drop(number=number, at_s=at_s, job=job, count=choose.choice((1, 1, 2, 4))))
        deeds.append(Pause(number=number + 1, at_s=at_s, job=job))
        number += 2
    if deeds and choose.random() < 0.8:
        deeds.append(Unpause(number=number, at_s=at_s + choose.uniform(0, span_s / 2), job=job))
    return deeds


def _draw_breakdowns(choose: random.Random, job: int, span_s: float, size: int) -> list[AnyDeed]:
    """Draw one or two breakdowns, of the job or of a host, for about every third job."""
    return [
        Breakdown(
            number=_NUMBERS_PER_JOB * job + 12 + count,
            at_s=choose.uniform(0, span_s),
            job=job,
            what=choose.choice(list(Failing)),
            count=choose.choice((1, 1, 2, 4, 12)),
            rank=choose.randrange(size) if choose.random() < 0.3 else None,
        )
        for count in range(choose.choice((0, 0, 0, 0, 1, 2)))
    ]


def _draw_rests(choose: random.Random) -> dict[str, Any]:
    """Draw how long hosts rest, and how many losses a job bears."""
    return {
        "rest_s": choose.choice((0.0, 0.001, 0.02)),
        "rest_max_s": choose.choice((0.02, 0.1)),
        "doubt_rest_s": choose.choice((0.0, 0.001, 0.01)),
        "losses_max": choose.choice((0, 1, 3)),
    }


def _draw_graces(choose: random.Random, longest_s: float) -> dict[str, Any]:
    """Draw how long leaving workers may take, and how many may leave at once."""
    return {
        "leave_grace_s": choose.choice((0.0, 0.5, 2.0)) * longest_s,
        "leavers_max": choose.choice((1, 2, 4)),
    }


def _draw_slices(choose: random.Random, longest_s: float, span_s: float) -> dict[str, Any]:
    """Draw whether jobs take turns if there are more jobs than PEs, and for how long.

    Some turns are too short for a job to find a PE.
    """
    slice_s = choose.choice((0.0, 3.0, 30.0, 1e5, 1e5)) * longest_s
    if slice_s:
        slice_s = max(slice_s, 0.02 * span_s)  # at most 50 turns in the span
    return {
        "slice_s": slice_s,
        "first_slice_s": slice_s * choose.choice((0.2, 1.0)),
        "residents": choose.choice((0, 1, 16)),
        "turn_patience_s": choose.choice((0.0, 1.0, 30.0)) * longest_s,
    }


def with_changes(plan: Plan) -> Plan:
    """Return the plan with ranks that come and go, most often several within a short time."""
    choose = random.Random(f"changes {plan.seed}")
    longest_s = plan.delays.message_s[1]
    deeds = [*plan.deeds, *_draw_changes(choose, plan.span_s)]
    return msgspec.structs.replace(
        plan,
        deeds=tuple(sorted(deeds, key=lambda deed: deed.at_s)),
        detect_s=choose.choice((0.1, 1.0, 5.0)) * longest_s,
        patience_s=30 * longest_s,
    )


def _draw_changes(choose: random.Random, span_s: float) -> list[AnyDeed]:
    deeds: list[AnyDeed] = []
    at_s = choose.uniform(0, span_s)
    for number in range(choose.choice((1, 3, 6))):
        at_s += choose.choice((0.0, 0.001, 0.1)) * span_s * choose.random()
        rank = choose.randrange(_RANKS_MAX)
        match choose.choice((RankDies, RankDies, RankHangs, RankLeaves, RankDrains, RanksJoin)):
            case kind if kind is RankHangs:
                for_s = choose.choice((0.01, 0.1, 1.0)) * span_s * choose.random()
                deeds.append(RankHangs(number=number, at_s=at_s, job=NO_JOB, rank=rank, for_s=for_s))
            case kind if kind is RanksJoin:
                capacities = tuple(choose.choice((1, 1, 3)) for _ in range(choose.choice((1, 1, 2))))
                deeds.append(RanksJoin(number=number, at_s=at_s, job=NO_JOB, capacities=capacities))
            case kind if kind is RankLeaves:
                deeds.append(RankLeaves(number=number, at_s=at_s, job=NO_JOB, rank=rank))
            case kind if kind is RankDrains:
                grace_s = choose.choice((0.0, 0.01, 0.3)) * span_s
                deeds.append(RankDrains(number=number, at_s=at_s, job=NO_JOB, rank=rank, grace_s=grace_s))
            case _:
                deeds.append(RankDies(number=number, at_s=at_s, job=NO_JOB, rank=rank))
    return deeds


def with_rarities(plan: Plan) -> Plan:
    """Return the plan with ranks that come and go, and with rare settings and mishaps.

    Several ranks die at once, a healthy rank is taken as lost, or all ranks are ended meanwhile.
    """
    choose = random.Random(f"rarities {plan.seed}")
    span_s, longest_s = plan.span_s, plan.delays.message_s[1]
    config = msgspec.structs.replace(
        plan.config,
        growth_delay_s=choose.choice((0.0, 0.0003, 10 * longest_s)),
        unannounced_max_s=choose.choice((0.0, 0.002, 10 * longest_s)),
        hops_max=choose.choice((1, 2, 64)),
        queries_max=choose.choice((0, 1, 4)),
        restarts_max=choose.choice((0, 1, 2)),
        succession_hold_s=choose.choice((0.0, longest_s, 0.25)),
        succession_patience_s=choose.choice((1.0, 60.0)),
    )
    deeds: list[AnyDeed] = list(plan.deeds)
    for place, deed in enumerate(deeds):
        if isinstance(deed, Submit) and choose.random() < 0.3:
            growth_delay_s = choose.choice((0.0, longest_s, span_s / 10))
            deeds[place] = msgspec.structs.replace(deed, growth_delay_s=growth_delay_s)
    deeds += (
        msgspec.structs.replace(deed, is_told=choose.random() < 0.7) if isinstance(deed, RankDrains) else deed
        for deed in _draw_changes(choose, span_s)
    )
    deeds += _draw_rarities(choose, span_s)
    return msgspec.structs.replace(
        plan,
        config=config,
        deeds=tuple(sorted(deeds, key=lambda deed: deed.at_s)),
        detect_s=choose.choice((0.1, 1.0, 5.0)) * longest_s,
        patience_s=30 * longest_s,
        is_congested=choose.random() < 0.5,
    )


def with_desks(plan: Plan) -> Plan:
    """Return the plan with job files of users with weights and limits; some wait, or cannot begin anew."""
    choose = random.Random(f"desks {plan.seed}")
    span_s, deeds = plan.span_s, list[AnyDeed]()
    users = ("a", "b", "c")[: choose.choice((1, 2, 3))]
    reads_s = choose.choice((0.0, span_s / 100, span_s / 10))
    for deed in plan.deeds:
        if isinstance(deed, Terms | SetBack):
            continue  # the desk changes terms and sets jobs back by itself
        if not isinstance(deed, Submit):
            deeds.append(deed)
            continue
        former = [one.job for one in deeds if isinstance(one, File) and one.rank == deed.rank]
        after = choose.sample(former, min(len(former), choose.choice((0, 0, 0, 1, 2))))
        needs = after[: choose.choice((0, 0, 1))]
        file = FileTerms(
            user=choose.choice(users),
            after=tuple(after[len(needs) :]),
            needs=tuple(needs),
            precursor=choose.choice(former) if former and choose.random() < 0.1 else 0,
            arrives_s=choose.choice((0.0, 0.0, 0.0, deed.at_s + span_s / 5)),
            reads_s=reads_s * choose.random(),
            stalls=choose.random() < 0.2,
            is_lasting=choose.random() < 0.15,
        )
        deeds.append(File(**{name: getattr(deed, name) for name in Submit.__struct_fields__}, file=file))
    if choose.random() < 0.5:
        deeds.append(
            DiskFills(
                number=_NUMBERS_PER_JOB // 2 + 5,
                at_s=choose.uniform(0, span_s),
                job=NO_JOB,
                rank=choose.randrange(plan.size),
                for_s=choose.choice((0.1, 1.0)) * span_s,
            )
        )
    desks = DeskPlan(
        window=choose.choice((0, plan.size + 1, plan.size + 4)),
        residents=choose.choice((None, 0, 1)),
        weights={user: choose.choice((0.5, 1.0, 3.0)) for user in users},
        limits={user: choose.choice((1, 2, 5)) for user in users if choose.random() < 0.3},
    )
    return msgspec.structs.replace(plan, deeds=tuple(sorted(deeds, key=lambda deed: deed.at_s)), desks=desks)


def _draw_rarities(choose: random.Random, span_s: float) -> list[AnyDeed]:
    """Draw some rare events, at random times when many other events may happen, too."""
    number, deeds = _NUMBERS_PER_JOB // 2, list[AnyDeed]()
    if choose.random() < 0.5:
        at_s = choose.uniform(0, 1.2 * span_s)
        first, step = choose.randrange(_RANKS_MAX), choose.choice((1, 2))
        for rank in range(first, first + step * choose.choice((2, 3, 4)), step):
            deeds.append(RankDies(number=number, at_s=at_s, job=NO_JOB, rank=rank))
            number += 1
    if choose.random() < 0.4:
        rank = choose.choice((0, choose.randrange(_RANKS_MAX)))
        at_s = choose.uniform(0, 1.2 * span_s)
        deeds.append(RankAccused(number=number, at_s=at_s, job=NO_JOB, rank=rank))
        number += 1
    if choose.random() < 0.3:
        at_s = choose.uniform(0, 1.5 * span_s)
        if choose.random() < 0.7:  # all ranks end while newcomers join
            deeds.append(RanksJoin(number=number, at_s=at_s, job=NO_JOB, capacities=(1,)))
            at_s += choose.choice((0.001, 0.01, 0.1)) * span_s * choose.random()
        deeds.append(SystemEnds(number=number + 1, at_s=at_s, job=NO_JOB))
    return deeds


def _draw_terms(choose: random.Random, job: int, span_s: float) -> list[AnyDeed]:
    """Draw one or two changes of terms for every fourth job."""
    return [
        Terms(
            number=_NUMBERS_PER_JOB * job + 10 + count,
            at_s=choose.uniform(0, 2 * span_s),
            job=job,
            priority=choose.choice((0.02, 0.5, 2.0)),
            max_demand=choose.choice((0, 1, 3, 7)),
        )
        for count in range(choose.choice((0, 0, 0, 0, 0, 0, 1, 2)))
    ]


def _draw_set_backs(choose: random.Random, job: int, span_s: float) -> list[AnyDeed]:
    """Draw for every second job one or two orders to give the job up and submit it again."""
    return [
        SetBack(number=_NUMBERS_PER_JOB * job + 14 + count, at_s=choose.uniform(0, 2 * span_s), job=job)
        for count in range(choose.choice((0, 0, 1, 2)))
    ]


def _draw_near(seed: int, job: int, size: int) -> int | None:
    """Draw a preferred PE, idle or busy, for the root of every third job."""
    return mixed(seed, job, size) % size if mixed(seed, job) % 3 == 0 else None
