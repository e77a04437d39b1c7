"""From one generation to the next: what a PE has, and its successor takes over.

The system's ranks have changed (`generation.py`), and the PEs of those that go on begin anew, under other
numbers. What lives in messages and agreements is dropped: requests, tokens, epochs, job trees. Kept is what
cannot be had again, or not at once:

- **Live jobs of a client** are published again, with the budgets used so far, the demand, the last checkpoint
  and the statistics. Their roots are asked for where they were.
- **Worker processes** of workers in a tree are stopped where they are, and with those that were suspended
  before they are the new PE's suspended workers. When the job is heard of, it tells the client of them
  (`Remember`), which passes it on along the new tree, so that the job's new workers are found there. A
  process so found has all that it had.
- **Those that leave in order** (`leaving.py`) go on doing so.
- **Last words**: a result, or an error that ends the job, which may have been on its way to the client.
  They cannot be asked for again, as the process is gone. They are said again when their job is heard of.

The client of a job may have been on a rank that is gone. Then what is kept of the job waits for it to be
submitted again, under the same number, by the heir of that rank (`generation.heir_of`), which takes over the
folder and with it the journal. What has not heard of its job within `Config.succession_patience_s` is let go:
the job has ended meanwhile, or is nobody's.

Addresses (PE, stay) that applications know of each other are of one generation: a message to an address of a
former one comes back to its sender, as if the receiver had left.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Set

from mallob_py.protocol.effects import Outbox
from mallob_py.protocol.messages import ResultFound, WorkerFailed
from mallob_py.protocol.placement import Succession

KEPT_MAX = 16
KEPT_BYTES_MAX = 64 << 20


class LastWords:
    """The words of this PE's workers that end a job and could not be said a second time.

    Whoever has said it to a client on another PE keeps it until everybody hears that the job is over. If the
    generation ends before that, it may have been dropped on its way, and is said again when
    the job is heard of. A job that was never published, since it was over so soon, leaves its last words here
    for some time: the oldest go when they are many or large, whose jobs would have to find them once more.
    What is larger than all may be is not kept.
    """

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
        if _size_bytes(words) > KEPT_BYTES_MAX:
            return
        self._said[words.job] = client, words
        self._size_bytes += _size_bytes(words)
        while len(self._said) > KEPT_MAX or self._size_bytes > KEPT_BYTES_MAX:
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
