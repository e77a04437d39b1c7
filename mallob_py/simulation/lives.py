"""The two kinds of plans that `fuzz.py` plays: plans of a cluster, and plans of a bag job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic

import msgspec

from mallob_py.protocol.config import Config
from mallob_py.simulation import bags, scenario
from mallob_py.simulation import plan as cluster_plan
from mallob_py.simulation.bags import BagPlan, Slow
from mallob_py.simulation.delays import Delayed, What, mixed
from mallob_py.simulation.plan import AnyDeed, Breakdown, Demand, DiskFills, File, Plan, Submit
from mallob_py.simulation.shrinking import AnyPlan, Failure, Shrinker, Shrunk, minimal, nearer_to

#: of this number of seeds, one gets a plan with changes of ranks, and one gets a plan with rarer changes
_CHANGES_EVERY = 3
_SIZES_TRIED = (1, 2, 3, 4, 5, 6, 7, 8, 10, 13, 16, 24, 32, 48, 64, 128)


@dataclass(frozen=True)
class Lives(Generic[AnyPlan]):
    """One kind of plans, and how plans of this kind are drawn, played and shrunk."""

    plan: type[AnyPlan]
    #: function that yields the whole plan of a seed, and variants of this plan
    plans_of: Callable[[int], Iterator[AnyPlan]]
    #: function that plays a plan to its end, or to a failure
    failure_of: Callable[[AnyPlan], Failure | None]
    shrinker: type[Shrinker[AnyPlan]]
    #: function that describes a plan's size in a few words
    size_of: Callable[[AnyPlan], str]
    #: function that plays a plan and describes its events up to the failure
    schedule_of: Callable[[AnyPlan], str]
    #: options with which commands play this kind of plans
    options: str = ""

    def shrink(self, plan: AnyPlan, failure: Failure, seconds_max: float = 60.0) -> Shrunk[AnyPlan]:
        """Return a small plan with a failure of the same kind, found within about `seconds_max`."""
        return self.shrinker(plan, failure, seconds_max).shrunk()

    def to_json(self, plan: AnyPlan) -> bytes:
        return msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n"

    def from_json(self, text: bytes) -> AnyPlan:
        """Parse a plan. Raises msgspec.MsgspecError."""
        return msgspec.json.decode(text, type=self.plan)


# --- clusters ------------------------------------------------------------------------------


def _plans_of_cluster(seed: int) -> Iterator[Plan]:
    """Yield a cluster's plan, drawn by the seed, and variants, such as the plan cut off at a random event.

    When a plan has been played, the cluster must come to rest in time (`scenario.py`).
    """
    whole = cluster_plan.draw_plan(seed)
    yield whole
    yield whole.cut_off(1 + mixed(seed) % len(whole.deeds))
    if seed % _CHANGES_EVERY == 0:
        yield cluster_plan.with_changes(whole)
    elif seed % _CHANGES_EVERY == 1:
        yield cluster_plan.with_rarities(whole)
    else:
        yield cluster_plan.with_desks(whole)
        yield cluster_plan.with_changes(cluster_plan.with_desks(whole))


def _size_of_cluster(plan: Plan) -> str:
    return f"{len(plan.deeds)} events on {plan.size} PEs"


class _ClusterShrinker(Shrinker[Plan]):
    """A shrinker that leaves out jobs, events, PEs and special settings, and finally shortens delays.

    In the end all messages except a few take the shortest time; the race lies in the order of these few.
    """

    def _steps(self) -> Iterable[Callable[[], None]]:
        return (
            self._end_early,
            self._drop_jobs,
            self._drop_deeds,
            self._use_fewer_pes,
            self._use_defaults,
            self._hasten,
        )

    def _failure_of(self, plan: Plan) -> Failure | None:
        return scenario.failure_of(plan)

    # --- fewer events -----------------------------------------------------------------------

    def _end_early(self) -> None:
        """Cut off all events after the failure, which comes earlier in some smaller plans."""
        deeds = self._plan.deeds
        self._try_with(deeds=tuple(deed for deed in deeds if deed.at_s <= self._failure.at_s))

    def _drop_jobs(self) -> None:
        def fails(jobs: Sequence[int]) -> bool:
            return self._try_with(deeds=tuple(deed for deed in deeds if deed.job in set(jobs)))

        deeds = self._plan.deeds
        minimal(sorted({deed.job for deed in deeds}), fails)

    def _drop_deeds(self) -> None:
        def fails(deeds: Sequence[AnyDeed]) -> bool:
            return self._try_with(deeds=tuple(deeds))

        minimal(self._plan.deeds, fails)

    # --- fewer PEs, default settings, shorter delays ----------------------------------------

    def _use_fewer_pes(self) -> None:
        for size in _SIZES_TRIED:
            if size >= self._plan.size:
                return
            deeds = tuple(_on_fewer_pes(deed, size) for deed in self._plan.deeds)
            if self._try_with(size=size, deeds=deeds):
                return

    def _use_defaults(self) -> None:
        """Set each setting of the cluster and of the jobs to its default, one at a time."""
        self._try_with(largest_capacity=0)
        for config in nearer_to(self._plan.config, Config()):
            self._try_with(config=msgspec.structs.replace(self._plan.config, **config))
        for place, deed in enumerate(self._plan.deeds):
            if isinstance(deed, Submit) and not isinstance(deed, File):
                plain = Submit(number=deed.number, at_s=deed.at_s, job=deed.job, rank=deed.rank)
                for fields in nearer_to(deed, plain):
                    deeds = list(self._plan.deeds)
                    deeds[place] = msgspec.structs.replace(deeds[place], **fields)
                    self._try_with(deeds=tuple(deeds))

    def _hasten(self) -> None:
        """Try the shortest delays: first for all messages between two ranks, then for single messages."""

        def fails_with(pairs: Sequence[tuple[What, int, int]]) -> bool:
            chosen = set(pairs)
            return self._try_with(special=tuple(each for each in special if each[:3] in chosen))

        def fails(few: Sequence[Delayed]) -> bool:
            return self._try_with(special=tuple(few))

        special = self._plan.special or ()
        if self._plan.special is None:
            played = scenario.Scenario(self._plan)
            scenario.failure_in(played)
            special = tuple(played.delays.all_so_far())
        minimal(sorted({each[:3] for each in special}, key=_by_rank), fails_with)
        if self._plan.special is not None:
            minimal(self._plan.special, fails)


def _by_rank(pair: tuple[What, int, int]) -> tuple[int, int, str]:
    what, source, dest = pair
    return source, dest, what.value


def _on_fewer_pes(deed: AnyDeed, size: int) -> AnyDeed:
    match deed:
        case DiskFills():
            return msgspec.structs.replace(deed, rank=deed.rank % size)
        case Submit():
            near = None if deed.near is None else deed.near % size
            return msgspec.structs.replace(deed, rank=deed.rank % size, near=near)
        case Breakdown(rank=int(rank)):
            return msgspec.structs.replace(deed, rank=rank % size)
        case Demand():
            return msgspec.structs.replace(deed, workers=min(deed.workers, size))
        case _:
            return deed


# --- bag jobs ------------------------------------------------------------------------------


def _plans_of_bag(seed: int) -> Iterator[BagPlan]:
    """Yield the plan of a single bag job (`bags.py`), and one variant that depends on the seed.

    Of three seeds, one adds changes of ranks, one makes the job a search with changes of ranks, one bounds
    the size of messages tightly.
    """
    whole = bags.draw_plan(seed)
    yield whole
    if seed % _CHANGES_EVERY == 0:
        yield bags.with_changes(whole)
    elif seed % _CHANGES_EVERY == 1:
        yield bags.as_search(whole)
    else:
        yield bags.with_bounds(whole)


def _size_of_bag(plan: BagPlan) -> str:
    return f"{len(plan.events)} events of a tree of depth {plan.depth}"


class _BagShrinker(Shrinker[BagPlan]):
    """A shrinker that leaves out events, levels of the tree, workers, settings, and at last delays."""

    def _steps(self) -> Iterable[Callable[[], None]]:
        return (self._end_early, self._drop_events, self._use_less, self._use_defaults, self._hasten)

    def _failure_of(self, plan: BagPlan) -> Failure | None:
        return bags.failure_of(plan)

    def _end_early(self) -> None:
        events = self._plan.events
        self._try_with(events=tuple(event for event in events if event.at_s <= self._failure.at_s))

    def _drop_events(self) -> None:
        def fails(events: Sequence[bags.Event]) -> bool:
            return self._try_with(events=tuple(events))

        minimal(self._plan.events, fails)

    def _use_less(self) -> None:
        for depth in range(self._plan.depth):
            if self._try_with(depth=depth):
                break
        for volume in range(1, self._plan.volume):
            if self._try_with(volume=volume):
                break

    def _use_defaults(self) -> None:
        present = self._plan
        plain = BagPlan(
            seed=present.seed,
            depth=present.depth,
            volume=present.volume,
            events=present.events,
            slow=present.slow,
            task_s=1e-3,
            delay_s=1e-3,
        )
        for fields in nearer_to(present, plain):
            self._try_with(**fields)

    def _hasten(self) -> None:
        """Try the shortest delays: first for all messages between two workers, then for single messages."""

        def fails_with(pairs: Sequence[tuple[object, object]]) -> bool:
            chosen = set(pairs)
            return self._try_with(slow=tuple(each for each in slow if (each.source, each.dest) in chosen))

        def fails(few: Sequence[Slow]) -> bool:
            return self._try_with(slow=tuple(few))

        slow = bags.messages_of(self._plan) if self._plan.slow is None else self._plan.slow
        minimal(sorted({(each.source, each.dest) for each in slow}), fails_with)
        if self._plan.slow is not None:
            minimal(self._plan.slow, fails)


CLUSTERS = Lives(
    Plan, _plans_of_cluster, scenario.failure_of, _ClusterShrinker, _size_of_cluster, scenario.schedule_of
)
BAGS = Lives(BagPlan, _plans_of_bag, bags.failure_of, _BagShrinker, _size_of_bag, bags.schedule_of, " --bags")
