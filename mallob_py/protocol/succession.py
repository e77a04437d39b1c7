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
  Nobody can ask for them again, as the process is gone. They are said again when their job is heard of.

The client of a job may have been on a rank that is gone. Then what is kept of the job waits for it to be
submitted again, under the same number, by the heir of that rank (`generation.heir_of`), which takes over the
folder and with it the journal. What has not heard of its job within `Config.succession_patience_s` is let go:
the job has ended meanwhile, or is nobody's.

Addresses (PE, stay) that applications know of each other are of one generation: a message to an address of a
former one comes back to its sender, as if the receiver had left.
"""

from __future__ import annotations

from mallob_py.protocol.generation import Generation, heir_of


class Succession:
    """Which PEs of `after` follow those of `before`."""

    def __init__(self, before: Generation, after: Generation) -> None:
        #: the number of the new generation, and how many PEs it has
        self.era = after.number
        self.size = sum(after.capacities)
        old, new = before.placement(), after.placement()
        ranks = {address: rank for rank, address in enumerate(after.members)}
        #: one rank is left, which so cannot leave
        self.is_alone = len(after.members) == 1
        self._successors: list[int | None] = []
        self._heirs: list[int] = []
        for rank, address in enumerate(before.members):
            heir = new.first_pe(ranks[heir_of(address, after.members)])
            follower = ranks.get(address)
            numbers = range(0) if follower is None else new.pes_of(follower)
            for slot in range(old.capacities[rank]):
                successor = numbers[slot] if slot < len(numbers) else None
                self._successors.append(successor)
                self._heirs.append(heir if successor is None else successor)

    def pe(self, former: int) -> int | None:
        """The number of a PE now; None if it is gone, or there was none of that number."""
        return self._successors[former] if former < len(self._successors) else None

    def heir(self, former: int) -> int:
        """The same; if it is gone, the PE that takes its clients over."""
        return self._heirs[former]
