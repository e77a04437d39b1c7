"""Messages among PEs in virtual time: events from a heap, delays from a model, no threads.

A PE is known by its *place*. The PEs of a rank share one event loop, known by the rank's address. Messages
between two places keep their order, as MPI's do; messages of different pairs may overtake each other. If
messages have a cost, an event loop handles one after another.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from mallob_py.protocol.rank_messages import AnyWireMessage
from mallob_py.protocol.rank_stimuli import Said
from mallob_py.simulation.delays import Delays

Action = Callable[[], object]
#: test of a message: (source place, destination place, message) -> whether the message must be held back
MessageTest = Callable[[int, int, AnyWireMessage], bool]

#: codes of events other than messages, in the field for the source of a message
_TICK, _WAKE, _ACTION = -1, -2, -3
#: number of events after which past deliveries are forgotten
_EVENTS_PER_CLEANING = 1 << 17


class Hold:
    """Messages that a script keeps back; later messages between the same places wait behind them."""

    def __init__(self, network: Network, test: MessageTest) -> None:
        self._network = network
        self.test = test
        self._held: list[tuple[int, int, Said]] = []
        self.is_open = False

    @property
    def messages(self) -> list[tuple[int, int, Any]]:
        """The held messages as (source, destination, message)."""
        return [(source, dest, said.message) for source, dest, said in self._held]

    def takes(self, source: int, dest: int, said: Said) -> bool:
        """Keep the message if it must wait; return whether it was kept."""
        if self.is_open or not (
            self.test(source, dest, said.message)
            or any((source, dest) == (held[0], held[1]) for held in self._held)
        ):
            return False
        self._held.append((source, dest, said))
        return True

    def release(self) -> None:
        """Send all kept messages, in their order, and keep no more."""
        held = self.drop()
        for source, dest, said in held:
            self._network.post(source, dest, said)

    def drop(self) -> list[tuple[int, int, Said]]:
        """Lose all kept messages, and keep no more."""
        self.is_open = True
        held, self._held = self._held, []
        return held


class Network(ABC):
    """A virtual clock, and events under way. Subclasses know the receivers of events."""

    def __init__(self, seed: int, delays: Delays) -> None:
        self.seed = seed
        self.delays = delays
        self.now = 0.0
        self.messages_sent = 0
        self._messages_received = 0
        self._heap: list[tuple[float, int, int, int, Any]] = []
        self._order = 0
        #: number of actions under way, for which `is_quiescent` waits
        self._under_way = 0
        self._last_delivery: dict[int, float] = {}
        self._holds: list[Hold] = []
        #: event loop of each PE, indexed by the PE's place
        self._loop_of: list[int] = []
        self._has_costs = bool(delays.handling_s or delays.sending_s or delays.local_s)
        #: time that each event loop takes for a message
        self._handling_s: list[float] = []
        self._sending_s: list[float] = []
        self._busy_until_s: list[float] = []
        self._next_tick_s: list[float] = []
        #: messages that wait for a busy event loop: (place, source, message)
        self._inboxes: dict[int, deque[tuple[int, int, Said]]] = {}

    @abstractmethod
    def deliver(self, dest: int, source: int, said: Said) -> None:
        """Deliver a message that has arrived."""

    @abstractmethod
    def tick(self, loop: int) -> None:
        """Tell an event loop that the time it asked for has come."""

    def add_loop(self, capacity: int, slowness: float) -> range:
        """Add an event loop; return the places of its PEs."""
        first = len(self._loop_of)
        self._loop_of += [len(self._handling_s)] * capacity
        self._handling_s.append(self.delays.handling_s * slowness)
        self._sending_s.append(self.delays.sending_s * slowness)
        self._busy_until_s.append(0.0)
        self._next_tick_s.append(math.inf)
        return range(first, first + capacity)

    def at(self, when_s: float, action: Action) -> None:
        """Run an action at that time; until then, the network may count as quiescent."""
        self._push(when_s, 0, _ACTION, action)

    def later(self, delay_s: float, action: Action) -> None:
        """Run an action after a delay; until then, the network is not quiescent."""

        def arrive() -> None:
            self._under_way -= 1
            action()

        self._under_way += 1
        self._push(self.now + delay_s, 0, _ACTION, arrive)

    def hold(self, test: MessageTest) -> Hold:
        """Hold back messages for which `test(source, dest, message)` is true."""
        hold = Hold(self, test)
        self._holds.append(hold)
        return hold

    def post(self, source: int, dest: int, said: Said) -> None:
        """Send a message as soon as its sender's event loop is ready."""
        loop = self._loop_of[source]
        when_s = self._busy_until_s[loop]
        if when_s < self.now:
            when_s = self.now
        if self._has_costs:
            when_s += self._sending_s[loop]
            self._busy_until_s[loop] = when_s
        for hold in self._holds:
            if hold.takes(source, dest, said):
                return
        self.messages_sent += 1
        when_s += self.delays.message_s(source, dest)
        pair = source << 32 | dest
        last_delivery = self._last_delivery
        if last_delivery.get(pair, 0.0) > when_s:
            when_s = last_delivery[pair]
        last_delivery[pair] = when_s
        self._order += 1
        heappush(self._heap, (when_s, self._order, dest, source, said))

    def occupy(self, loop: int, messages: int) -> None:
        """Keep an event loop busy with messages among its own PEs."""
        each_s = self.delays.local_s + self._handling_s[loop] + self._sending_s[loop]
        self._busy_until_s[loop] = max(self.now, self._busy_until_s[loop]) + messages * each_s

    def tick_at(self, loop: int, when_s: float) -> None:
        """Tell an event loop when that time has come, unless an earlier tick is due."""
        if when_s < self._next_tick_s[loop]:
            if when_s < self.now:
                when_s = self.now
            self._next_tick_s[loop] = when_s
            self._order += 1
            heappush(self._heap, (when_s, self._order, loop, _TICK, None))

    def is_quiescent(self) -> bool:
        """Tell whether nothing is under way or held back."""
        return (
            self.messages_sent == self._messages_received
            and self._under_way == 0
            and not any(hold.messages for hold in self._holds)
        )

    def run(
        self,
        until_s: float = math.inf,
        on_quiescent: Callable[[Any], None] | None = None,
        events_max: float = 1_000_000,
    ) -> int:
        """Do events up to `until_s`; return their number. At quiescent moments, `on_quiescent` is called."""
        count = 0
        quiet = False
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            if on_quiescent is None or self.messages_sent != self._messages_received:
                quiet = False
                self._step()
            else:
                if not quiet and heap[0][0] > self.now and self.is_quiescent():
                    quiet = True
                    on_quiescent(self)
                before = self.messages_sent, self._messages_received, self._under_way
                self._step()
                quiet = quiet and before == (self.messages_sent, self._messages_received, self._under_way)
            count += 1
            assert count < events_max, f"no end after {events_max} events (seed {self.seed})"
            if count % _EVENTS_PER_CLEANING == 0:
                self._forget_past_deliveries()
        if until_s < math.inf:
            self.now = max(self.now, until_s)
        if on_quiescent is not None and self.is_quiescent():
            on_quiescent(self)
        return count

    def settle(self, within_s: float = 5.0) -> None:
        """Run until quiescent, at most `within_s` of virtual time."""
        limit_s = self.now + within_s
        while not self.is_quiescent():
            due = bool(self._heap) and self._heap[0][0] <= limit_s
            assert due, f"no rest within {within_s} s (seed {self.seed})"
            self._step()

    def _push(self, when_s: float, place: int, source: int, item: Any) -> None:
        self._order += 1
        heappush(self._heap, (max(when_s, self.now), self._order, place, source, item))

    def _forget_past_deliveries(self) -> None:
        for pair in [pair for pair, when_s in self._last_delivery.items() if when_s <= self.now]:
            del self._last_delivery[pair]

    def _step(self) -> None:
        """Carry out the next event: a message, a tick, or an action."""
        when_s, _, place, source, item = heappop(self._heap)
        assert when_s >= self.now, "time goes back"
        self.now = when_s
        if source >= 0:
            if self._has_costs:
                loop = self._loop_of[place]
                if loop in self._inboxes or self._busy_until_s[loop] > when_s:
                    self._wait(loop, place, source, item)
                    return
                self._busy_until_s[loop] = when_s + self._handling_s[loop]
            self._messages_received += 1
            self.deliver(place, source, item)
        elif source == _TICK:
            self._come_to_tick(place)
        elif source == _WAKE:
            self._wake(place)
        else:
            item()

    def _come_to_tick(self, loop: int) -> None:
        if self._next_tick_s[loop] != self.now:
            return  # an earlier tick was delivered instead
        if self._has_costs:
            busy_until_s = self._busy_until_s[loop]
            if busy_until_s > self.now:
                self._next_tick_s[loop] = busy_until_s
                self._push(busy_until_s, loop, _TICK, None)
                return
            self._busy_until_s[loop] = self.now + self._handling_s[loop]
        self._next_tick_s[loop] = math.inf
        self.tick(loop)

    def _wait(self, loop: int, place: int, source: int, said: Said) -> None:
        """Have an arrived message wait for a busy event loop."""
        if loop not in self._inboxes:
            self._inboxes[loop] = deque()
            self._push(self._busy_until_s[loop], loop, _WAKE, None)
        self._inboxes[loop].append((place, source, said))

    def _wake(self, loop: int) -> None:
        """Have a formerly busy event loop take its next waiting message."""
        inbox = self._inboxes[loop]
        place, source, said = inbox.popleft()
        self._busy_until_s[loop] = self.now + self._handling_s[loop]
        self._messages_received += 1
        self.deliver(place, source, said)
        if inbox:
            self._push(self._busy_until_s[loop], loop, _WAKE, None)
        else:
            del self._inboxes[loop]
