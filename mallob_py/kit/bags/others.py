"""The workers of a bag job that a worker knows, to send requests to."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from mallob_py.kit.bags.messages import Address

#: most workers remembered, and most of them named in a request or a loan
KNOWN_MAX = 256
TOLD = 4
#: most departed workers remembered, which others may still name
GONE_MAX = 256


class Others:
    """The other workers: `known` workers are there, `gone` workers have left."""

    def __init__(self, random: Random) -> None:
        self._random = random
        #: our own address, once heard from other workers
        self._address: Address | None = None
        self.known: dict[Address, None] = {}
        self.gone: dict[Address, None] = {}

    def is_us(self, address: Address) -> None:
        """Note our own address."""
        self._address = address
        self.known.pop(address, None)

    def heard(self, source: Address, tells_of_work: bool) -> None:
        """Note that a worker is there; if there are too many, a worker with work replaces another worker."""
        self.gone.pop(source, None)
        if len(self.known) < KNOWN_MAX or tells_of_work:
            self.hear_of((source,))

    def hear_of(self, others: Iterable[Address]) -> None:
        """Remember workers, in place of random ones if there are too many, for a wide choice."""
        for other in others:
            if other != self._address and other not in self.known and other not in self.gone:
                if len(self.known) >= KNOWN_MAX:
                    del self.known[self._random.choice(list(self.known))]
                self.known[other] = None

    def has_gone(self, address: Address) -> None:
        """Stop asking a worker, even if other workers name it."""
        self.known.pop(address, None)
        self.gone[address] = None
        if len(self.gone) > GONE_MAX:
            del self.gone[next(iter(self.gone))]

    def some(self) -> tuple[Address, ...]:
        known = list(self.known)
        return tuple(self._random.sample(known, min(TOLD, len(known))))
