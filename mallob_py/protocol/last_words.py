"""What ends a job and could not be said a second time: a result, or the application's error.

Whoever has said it to a client on another PE keeps it until everybody hears that the job is over. If the
generation ends before that (`succession.py`), it may have been dropped on its way, and is said again when the
job is heard of. A job that was never published, since it was over so soon, leaves its last words here for
some time: the oldest go when they are many or large, whose jobs would have to find them once more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Set

from mallob_py.protocol.effects import Outbox
from mallob_py.protocol.messages import ResultFound, WorkerFailed
from mallob_py.protocol.succession import Succession

_KEPT_MAX = 16
_KEPT_BYTES_MAX = 64 << 20


class LastWords:
    """Those of the workers of one PE."""

    def __init__(self) -> None:
        #: by job: the client, and what it is told
        self._said: OrderedDict[int, tuple[int, ResultFound | WorkerFailed]] = OrderedDict()
        self._size_bytes = 0

    def jobs(self) -> Set[int]:
        return self._said.keys()

    def say(self, client: int, words: ResultFound | WorkerFailed, out: Outbox) -> None:
        """Tell the client, now and, if need be, once more."""
        out.send(client, words)
        if client == out.rank or words.job in self._said:
            return
        self._said[words.job] = client, words
        self._size_bytes += _size_bytes(words)
        while len(self._said) > _KEPT_MAX or self._size_bytes > _KEPT_BYTES_MAX:
            self.forget(next(iter(self._said)))

    def repeat(self, job: int, out: Outbox) -> None:
        """The job is live in a new generation."""
        if (said := self._said.get(job)) is not None:
            out.send(*said)

    def forget(self, job: int) -> None:
        """The job is over."""
        if (said := self._said.pop(job, None)) is not None:
            self._size_bytes -= _size_bytes(said[1])

    def take_over(self, former: LastWords, succession: Succession) -> None:
        for job, (client, words) in former._said.items():
            self._said[job] = succession.heir(client), words
        self._size_bytes = former._size_bytes


def _size_bytes(words: ResultFound | WorkerFailed) -> int:
    return len(words.body) if isinstance(words, ResultFound) else len(words.reason)
