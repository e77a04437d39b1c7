"""The other workers of a bag job that one worker knows, to pass requests on to."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from mallob_py.kit.bags.messages import Address

#: others that are remembered, and how many of them are told with a request or a bag
KNOWN_MAX = 256
TOLD = 4
#: so many that have gone are not remembered again, though others still tell of them
GONE_MAX = 256


class Others:
    """Those that are there, as far as is known (`known`), and that are no longer there (`gone`)."""

    def __init__(self, random: Random) -> None:
        self._random = random
        #: ours, once we have heard it from others
        self._address: Address | None = None
        self.known: dict[Address, None] = {}
        self.gone: dict[Address, None] = {}

    def is_us(self, address: Address) -> None:
        """That is our own address."""
        self._address = address
        self.known.pop(address, None)

    def heard(self, source: Address, tells_of_work: bool) -> None:
        """It is there; whoever has work is worth to be remembered instead of another."""
        self.gone.pop(source, None)
        if len(self.known) < KNOWN_MAX or tells_of_work:
            self.hear_of((source,))

    def hear_of(self, others: Iterable[Address]) -> None:
        """Remember them, instead of any others if these are too many: so they come to be from everywhere."""
        for other in others:
            if other != self._address and other not in self.known and other not in self.gone:
                if len(self.known) >= KNOWN_MAX:
                    del self.known[self._random.choice(list(self.known))]
                self.known[other] = None

    def has_gone(self, address: Address) -> None:
        """It is not asked again, even if others tell of it."""
        self.known.pop(address, None)
        self.gone[address] = None
        if len(self.gone) > GONE_MAX:
            del self.gone[next(iter(self.gone))]

    def some(self) -> tuple[Address, ...]:
        known = list(self.known)
        return tuple(self._random.sample(known, min(TOLD, len(known))))
