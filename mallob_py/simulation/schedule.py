"""A plan that fails, as something to read: its settings, its deeds and its messages with their times.

Shown are the messages that a shrunk plan does not deliver as quickly as can be, since these are
the race, and the last messages before the failure.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from functools import partial

import msgspec

from mallob_py.protocol.config import Config
from mallob_py.protocol.messages import AnyMessage
from mallob_py.simulation.delays import Delayed, What
from mallob_py.simulation.failure import Failure, failure_in
from mallob_py.simulation.plan import AnyDeed, Plan
from mallob_py.simulation.scenario import Scenario

Receive = Callable[[int, AnyMessage, float], None]

_DELIVERIES_SHOWN = 40
_WIDTH_MAX = 150


class Sent(msgspec.Struct):
    """One message on its way."""

    at_s: float
    source: int
    dest: int
    number: int
    message: AnyMessage
    arrives_s: float = math.inf

    @property
    def key(self) -> Delayed:
        return Delayed(What.MESSAGE, self.source, self.dest, self.number)

    def __str__(self) -> str:
        text = f"{self.at_s:.6f} -> {self.arrives_s:.6f}   {self.source} to {self.dest}: {self.message}"
        return text if len(text) <= _WIDTH_MAX else text[: _WIDTH_MAX - 3] + "..."


class _Tap:
    """Writes down all messages of a scenario; those between two PEs arrive in the order they were sent in."""

    def __init__(self, scenario: Scenario) -> None:
        self._cluster = scenario.cluster
        self._counts: Counter[tuple[int, int]] = Counter()
        self._on_their_way: defaultdict[tuple[int, int], deque[Sent]] = defaultdict(deque)
        self.sent: list[Sent] = []
        self.delivered: list[Sent] = []
        self._cluster.hold(self._note_sent)
        for rank, pe in enumerate(self._cluster.pes):
            pe.receive = partial(self._note_received, rank, pe.receive)  # type: ignore[method-assign]

    def _note_sent(self, source: int, dest: int, message: AnyMessage) -> bool:
        pair = (source, dest)
        sent = Sent(self._cluster.now, source, dest, self._counts[pair], message)
        self._counts[pair] += 1
        self._on_their_way[pair].append(sent)
        self.sent.append(sent)
        return False

    def _note_received(
        self, dest: int, receive: Receive, source: int, message: AnyMessage, now: float
    ) -> None:
        sent = self._on_their_way[source, dest].popleft()
        sent.arrives_s = now
        self.delivered.append(sent)
        receive(source, message, now)


def schedule_of(plan: Plan) -> str:
    """Play the plan and tell what happens in it up to its failure."""
    scenario = Scenario(plan)
    tap = _Tap(scenario)
    failure = failure_in(scenario)
    lines = [_settings(plan), "deeds:", *(f"  {_deed(deed)}" for deed in plan.deeds)]
    if plan.special is not None:
        special = set(plan.special)
        lines.append(f"all takes the shortest time ({_shortest(plan)}) but:")
        lines += [f"  {each}" for each in tap.sent if each.key in special]
        lines += [f"  {_elsewhere(scenario, each)}" for each in special if each.what is not What.MESSAGE]
    lines.append(f"the last of {len(tap.delivered)} deliveries:")
    lines += [f"  {each}" for each in tap.delivered[-_DELIVERIES_SHOWN:]]
    lines.append(_end(failure))
    return "\n".join(lines)


def _end(failure: Failure | None) -> str:
    if failure is None:
        return "all invariants hold"
    return f"failure at {failure.at_s:.6f}: {failure.kind}"


def _settings(plan: Plan) -> str:
    default = Config()
    names = [
        name for name in Config.__struct_fields__ if getattr(plan.config, name) != getattr(default, name)
    ]
    changed = ", ".join(f"{name} {getattr(plan.config, name)}" for name in names)
    pes = f"{plan.size} PEs"
    if capacities := plan.capacities():
        pes += f" on ranks of {', '.join(map(str, capacities))}"
    return f"seed {plan.seed}, {pes}, settings: {changed or 'all default'}"


def _shortest(plan: Plan) -> str:
    delays = plan.delays
    return (
        f"messages {delays.message_s[0]:g} s, starts {delays.process_start_s[0]:g} s, "
        f"fetches {delays.fetch_s[0]:g} s"
    )


def _deed(deed: AnyDeed) -> str:
    fields = (field for field in msgspec.structs.fields(deed) if field.name not in ("number", "at_s", "job"))
    values = ((field.name, getattr(deed, field.name), field.default) for field in fields)
    about = ", ".join(f"{name} {value}" for name, value, default in values if value != default)
    return f"{deed.at_s:.6f}   job {deed.job}: {type(deed).__name__.lower()} {about}".rstrip()


def _elsewhere(scenario: Scenario, each: Delayed) -> str:
    delay_s = scenario.delays.delay_s(*each)
    return f"{each.what.value} number {each.number} on rank {each.source} takes {delay_s:.6f} s"
