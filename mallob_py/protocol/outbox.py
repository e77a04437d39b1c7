"""Where all parts of one PE put what they want done."""

from __future__ import annotations

from collections import deque
from typing import Any

from mallob_py.protocol.effects import AnyEffect, Log, Send
from mallob_py.protocol.messages import AnyMessage


class Outbox:
    """Effects of one PE. Messages to its own rank never leave it: they wait in `to_self`."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.effects: list[AnyEffect] = []
        self.to_self: deque[AnyMessage] = deque()

    def send(self, dest: int, message: AnyMessage) -> None:
        if dest == self.rank:
            self.to_self.append(message)
        else:
            self.effects.append(Send(dest, message))

    def act(self, effect: AnyEffect) -> None:
        self.effects.append(effect)

    def log(self, event: str, **fields: Any) -> None:
        self.effects.append(Log(event, fields))
