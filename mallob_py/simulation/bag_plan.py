"""A life of a bag job as data: its tree, its times, and what becomes of its workers when.

`draw_plan` makes one from a seed. As with plans of clusters (`plan.py`), a plan from which something is left
out plays like the whole one as far as that part does not matter: whatever is random follows from the seed
and from what it is about (a worker is named by its index and by how many had that seat before).
"""

from __future__ import annotations

import random
from enum import Enum

import msgspec


class Deed(Enum):
    """What happens to a job."""

    VOLUME = "volume"
    LEAVE = "leave"
    CRASH = "crash"
    STOP = "stop"
    CHANGE = "change"


class Event(msgspec.Struct, frozen=True):
    """The volume becomes `value`, or worker `value` (modulo the volume) leaves, dies or is stopped.

    Or the rank of that worker is lost, and a new generation begins (`protocol/succession.py`): the others are
    stopped, what is on its way gets lost, and they go on under new addresses, one with each place or another.
    """

    at_s: float
    deed: Deed
    value: int


class Slow(msgspec.Struct, frozen=True, order=True):
    """Message `number` from one worker to another, each given as its index and its turn on that seat."""

    source: tuple[int, int]
    dest: tuple[int, int]
    number: int


class BagPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A job, and what happens to it. With `slow`, only these messages are not as quick as can be."""

    seed: int
    #: of the tree whose nodes are the tasks
    depth: int
    task_s: float
    #: messages take so long on average, most of them less
    delay_s: float
    #: of messages whose receiver is gone, how many come back (the others are lost)
    come_back: float = 1.0
    #: of all messages, how many get lost without a word
    lost: float = 0.0
    #: how often the root's state goes to the client; None: only as the root leaves
    checkpoint_s: float | None = None
    settle_s: float = 1.0
    #: whether bags know about how many tasks are left
    is_measured: bool = False
    volume: int
    events: tuple[Event, ...] = ()
    slow: tuple[Slow, ...] | None = None


def to_json(plan: BagPlan) -> bytes:
    return msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n"


def from_json(text: bytes) -> BagPlan:
    """Raises msgspec.MsgspecError."""
    return msgspec.json.decode(text, type=BagPlan)


_COMMON_DEEDS = (Deed.VOLUME, Deed.LEAVE, Deed.CRASH, Deed.STOP)


def with_changes(plan: BagPlan) -> BagPlan:
    """The same life with some changes of generation."""
    choose = random.Random(f"bag changes {plan.seed}")
    last_s = plan.events[-1].at_s if plan.events else 0.1
    changes = (
        Event(choose.uniform(0, last_s), Deed.CHANGE, choose.randrange(plan.volume + 2))
        for _ in range(choose.choice((1, 3, 8)))
    )
    events = sorted((*plan.events, *changes), key=lambda event: event.at_s)
    return msgspec.structs.replace(plan, events=tuple(events))


def draw_plan(seed: int) -> BagPlan:
    """A random job with random events, many of them within a few milliseconds."""
    choose = random.Random(f"bag {seed}")
    volume_max = choose.choice((1, 2, 4, 9, 30))
    length_s = 10 ** choose.uniform(-1.5, 1)
    events = []
    for _ in range(choose.choice((0, 5, 20, 60))):
        deed = choose.choices(_COMMON_DEEDS, (4, 2, 2, 1))[0]
        value = choose.randint(1, volume_max) if deed is Deed.VOLUME else choose.randrange(volume_max)
        events.append(Event(choose.uniform(0, length_s), deed, value))
    return BagPlan(
        seed=seed,
        depth=choose.randint(0, 16),
        task_s=10 ** choose.uniform(-5, -3),
        delay_s=10 ** choose.uniform(-5, -1.5),
        come_back=choose.choice((1.0, 0.9, 0.0)),
        lost=choose.choice((0.0, 0.0, 0.01, 0.1)),
        checkpoint_s=choose.choice((0.05, 1.0, None)),
        settle_s=choose.choice((0.02, 0.2, 1.0)),
        volume=choose.randint(1, volume_max),
        events=tuple(sorted(events, key=lambda event: event.at_s)),
        is_measured=choose.random() < 0.5,
    )
