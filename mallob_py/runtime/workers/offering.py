"""Offering: a worker process passes the answers and bounds that its application offers on to its rank.

An application may offer as often as it likes. Its rank hears the best offer, at most every OFFER_PERIOD_S,
and more rarely if answers are large; until then, a better offer replaces a waiting one. The best offer is
repeated every few seconds, because a client that knew it may be lost; answers without a value are not
repeated, since only the last one counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from mallob_py.kit.app import OFFER_BYTES_MAX, OFFER_PERIOD_S, Result, check_offer
from mallob_py.kit.declaration import Declaration
from mallob_py.protocol.interim import Interim, Number

LABEL_MAX = 20
REPEAT_PERIOD_S = 5.0
#: highest rate of one worker's offers, and of its repeated offers [bytes/s]
_BYTES_PER_S, _REPEATED_BYTES_PER_S = 20e6, 1e6
#: placeholder for a result that is not encoded yet
_UNENCODED = b""


class Offering:
    """The offers of one run. All times are in seconds on the same clock."""

    def __init__(self, encode: Callable[[Result], bytes], send: Callable[[Interim], None]) -> None:
        self._encode = encode
        self._send = send
        #: the application's declaration
        self._declared: Declaration | type[Declaration] = Declaration
        #: the best offer; its body is a placeholder until `_result` is encoded
        self._best: Interim | None = None
        self._result: Result | None = None
        self._is_news = False
        self._may_send_s = self._repeat_s = -math.inf
        #: time when `turn` must be called
        self.due_s = math.inf

    def declare(self, declaration: Declaration) -> None:
        self._declared = declaration

    def offer(self, result: Result | None, value: Number | None, bound: Number | None, now: float) -> None:
        """Take an offer of the application. Raises ValueError or TypeError if the offer is not allowed."""
        check_offer(result, value, bound)
        body = None if result is None else _UNENCODED
        declared = self._declared
        offered = Interim(declared.minimizes, declared.value_label[:LABEL_MAX], value, bound, body)
        known = offered if self._best is None else self._best
        best = known.joined(offered)
        if best is self._best:
            return
        if known is offered or known.is_beaten_by(offered):
            self._result = result
        self._best = best
        self._is_news = True
        self.due_s = self._may_send_s
        self.turn(now)

    def turn(self, now: float) -> None:
        """Pass on the best offer if that is due."""
        if now < self.due_s or self._best is None:
            return
        self.flush()
        size = len(self._best.body or b"")
        self._may_send_s = now + max(OFFER_PERIOD_S, size / _BYTES_PER_S)
        is_comparable = self._best.value is not None or self._best.body is None
        self.due_s = now + max(REPEAT_PERIOD_S, size / _REPEATED_BYTES_PER_S) if is_comparable else math.inf

    def flush(self) -> None:
        """Pass on the best offer."""
        if self._best is None:
            return
        if self._result is not None:
            body = self._encode(self._result)
            if len(body) > OFFER_BYTES_MAX:
                raise ValueError(f"an offer has {len(body)} bytes; the limit is {OFFER_BYTES_MAX}")
            self._best = msgspec.structs.replace(self._best, body=body)
            self._result = None
        self._is_news = False
        self._send(self._best)

    def flush_news(self) -> None:
        """Pass on the best offer unless it was passed on already; called at the end of the run."""
        if self._is_news:
            self.flush()
