"""How many PEs a rank hosts where its user says "auto": its share of the cores of its host.

A core counts for a rank by one over the number of ranks that may use it. So ranks bound to
cores of their own get all of these, and unbound ranks get equal parts of the host.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

import msgspec


class CapacityOffer(msgspec.Struct, frozen=True):
    """What a rank tells all others at the start. `pes` None: its share of the cores."""

    pes: int | None
    threads: int
    host: int
    cores: frozenset[int]

    @staticmethod
    def here(pes: int | None, threads: int, host: int) -> CapacityOffer:
        return CapacityOffer(pes, threads, host, frozenset(os.sched_getaffinity(0)))


def capacities_of(offers: Sequence[CapacityOffer]) -> tuple[int, ...]:
    """Each rank's capacity, from what all ranks have told."""
    users = Counter((offer.host, core) for offer in offers for core in offer.cores)

    def share(offer: CapacityOffer) -> int:
        cores = sum(Fraction(1, users[offer.host, core]) for core in offer.cores)
        return max(1, int(cores / offer.threads))

    return tuple(share(offer) if offer.pes is None else offer.pes for offer in offers)
