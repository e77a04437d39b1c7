"""A bag whose tasks sleep, so that it takes the same time on a busy and on an idle machine.

With the key `until`, tasks sleep until the file of this name exists, and then hardly at all, so that a test
has as much time as it needs while the bag is at work.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from mallob_py.kit import Payload
from mallob_py.kit.bags import Bag, BagApplication

#: duration of a sleep before the awaited file exists
_LONG_NAP_S = 0.1


class Naps(Bag):
    """A bag that sleeps for each number and sums up the numbers."""

    def __init__(self, numbers: list[int], nap_s: float, until: str = "") -> None:
        self.numbers, self._nap_s, self._until = numbers, nap_s, until
        self._sum = 0

    def process(self, count: int) -> int:
        nap_s = self._nap_s
        if self._until and not os.path.exists(self._until):
            count, nap_s = 1, _LONG_NAP_S
        taken, self.numbers = self.numbers[:count], self.numbers[count:]
        time.sleep(len(taken) * nap_s)
        self._sum += sum(taken)
        return len(taken)

    def split(self) -> Naps | None:
        if len(self.numbers) < 2:
            return None
        given, self.numbers = self.numbers[::2], self.numbers[1::2]
        return Naps(given, self._nap_s, self._until)

    def merge(self, other: Bag) -> None:
        assert isinstance(other, Naps)
        self.numbers += other.numbers

    def is_empty(self) -> bool:
        return not self.numbers

    def take_result(self) -> int:
        taken, self._sum = self._sum, 0
        return taken

    def to_bytes(self) -> bytes:
        return np.array(self.numbers, dtype=np.int64).tobytes()


class NapsApplication(BagApplication):
    name = "NAPS"

    def first_bag(self, payload: Payload, configuration: Mapping[str, Any]) -> Bag:
        return _naps(list(range(configuration["naps"])), configuration)

    def bag_from_bytes(self, data: bytes, payload: Payload, configuration: Mapping[str, Any]) -> Bag:
        return _naps(np.frombuffer(data, dtype=np.int64).tolist(), configuration)


def _naps(numbers: list[int], configuration: Mapping[str, Any]) -> Naps:
    return Naps(numbers, configuration["nap_s"], configuration.get("until", ""))


class LargeNaps(Naps):
    """A bag whose numbers are each sent with many further bytes."""

    def __init__(self, numbers: list[int], nap_s: float, bytes_each: int) -> None:
        super().__init__(numbers, nap_s)
        self._bytes_each = bytes_each

    def split(self) -> LargeNaps | None:
        given = super().split()
        return None if given is None else LargeNaps(given.numbers, self._nap_s, self._bytes_each)

    def to_bytes(self) -> bytes:
        return super().to_bytes() + bytes(len(self.numbers) * self._bytes_each)


class LargeNapsApplication(BagApplication):
    name = "LARGE"

    def first_bag(self, payload: Payload, configuration: Mapping[str, Any]) -> Bag:
        return LargeNaps(
            list(range(configuration["naps"])), configuration["nap_s"], configuration["bytes_each"]
        )

    def bag_from_bytes(self, data: bytes, payload: Payload, configuration: Mapping[str, Any]) -> Bag:
        bytes_each = configuration["bytes_each"]
        count = len(data) // (8 + bytes_each)
        numbers = np.frombuffer(data, dtype=np.int64, count=count).tolist()
        return LargeNaps(numbers, configuration["nap_s"], bytes_each)


class ForkingNaps(Naps):
    """A bag that forks in each chunk; the child process returns from the chunk, too."""

    def process(self, count: int) -> int:
        done = super().process(count)
        os.fork()
        return done


class ForksApplication(NapsApplication):
    name = "FORKS"

    def first_bag(self, payload: Payload, configuration: Mapping[str, Any]) -> Bag:
        return ForkingNaps(list(range(configuration["naps"])), configuration["nap_s"])
