"""Interim results: the best answer and bound that a job's workers have offered so far.

Any worker may offer at any time. An offer travels to the job's client once and is stored only there; the
client keeps the best answer and the best bound, which may come from different workers. Offers may be lost,
repeated or late; the client's answer and bound never get worse. There is one exception: answers without a
value cannot be compared, so each of them replaces the one before.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

#: a value or a bound of an offer; integers from -2^63 to 2^64-1 stay exact
Number: TypeAlias = int | float


class Interim(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One offer, or the best of several.

    `body` is an encoded result, opaque to PEs; `value` its quality, None if answers cannot be compared.
    `bound`: value that no answer can beat. `minimizes`: smaller values are better. `label`: the value's name
    for people, such as "cost"; "": the value is not shown.
    """

    minimizes: bool = False
    label: str = ""
    value: Number | None = None
    bound: Number | None = None
    body: bytes | None = None

    def joined(self, other: Interim) -> Interim:
        """Return the better answer and bound of two offers; `self` if `other`, the later one, has neither."""
        has_answer = self.is_beaten_by(other)
        has_bound = other.bound is not None
        if other.bound is not None and self.bound is not None:
            has_bound = self._is_better(self.bound, other.bound)
        if not (has_answer or has_bound):
            return self
        bound = other.bound if has_bound else self.bound
        answer = other if has_answer else self
        return msgspec.structs.replace(answer, bound=bound)

    def is_beaten_by(self, other: Interim) -> bool:
        """Tell whether the later answer `other` replaces this answer."""
        if other.body is None:
            return False
        if self.value is None or other.value is None:
            return self.value is None
        return self._is_better(other.value, self.value)

    def _is_better(self, one: Number, other: Number) -> bool:
        """Tell whether value `one` is better than `other`. (Of two bounds, the worse value is better.)"""
        return one < other if self.minimizes else one > other
