"""The other workers of a bag job that a worker knows and sends requests to."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from mallob_py.kit.bags.messages import Address

#: greatest number of workers remembered, and of workers named in a request or a loan
KNOWN_MAX = 256
TOLD = 4
#: greatest number of workers remembered as gone, because other workers may still name them
GONE_MAX = 256


class Others:
    """The other workers: `known` workers can be asked, `gone` workers have left."""

    def __init__(self, random: Random) -> None:
        self._random = random
        #: this worker's own address, once another worker has named it
        self._address: Address | None = None
        self.known: dict[Address, None] = {}
        self.gone: dict[Address, None] = {}

    def is_us(self, address: Address) -> None:
        """Note this worker's own address."""
        self._address = address
        self.known.pop(address, None)

    def heard(self, source: Address, tells_of_work: bool) -> None:
        """Record that a worker was heard from. Beyond KNOWN_MAX, only a worker with tasks is remembered."""
        self.gone.pop(source, None)
        if len(self.known) < KNOWN_MAX or tells_of_work:
            self.hear_of((source,))

    def hear_of(self, others: Iterable[Address]) -> None:
        """Remember workers. Beyond KNOWN_MAX, each new worker replaces a random one."""
        for other in others:
            if other != self._address and other not in self.known and other not in self.gone:
                if len(self.known) >= KNOWN_MAX:
                    del self.known[self._random.choice(list(self.known))]
                self.known[other] = None

    def has_gone(self, address: Address) -> None:
        """Never ask a worker again, even if other workers name it, unless the worker is heard from."""
        self.known.pop(address, None)
        self.gone[address] = None
        if len(self.gone) > GONE_MAX:
            del self.gone[next(iter(self.gone))]

    def some(self) -> tuple[Address, ...]:
        known = list(self.known)
        return tuple(self._random.sample(known, min(TOLD, len(known))))
