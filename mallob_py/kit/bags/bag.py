"""The interface of a bag of tasks for its author: the tasks, and their result.

A bag holds tasks that any worker can do in any order: open nodes of a search tree, sources of a graph, chunks
of a sample. Tasks may make new tasks. `ledger` says how bags get from worker to worker, and why each task
counts exactly once.

Source: the global load balancing of X10 and its malleable successor, whose bags have the same methods.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Protocol


class BagError(Exception):
    """A bag breaks its contract; the message says how."""


class Bag(ABC):
    """Tasks to do, and the result of the tasks done in this bag.

    A bag is plain data and belongs to one worker. It must behave the same after `to_bytes` and back.

    A search for the best solution (branch and bound) also has `best` and `learn`: once one worker has found a
    solution, all others skip tasks that cannot lead to a better solution.
    """

    #: whether the number of tasks depends on the order in which they are done. Need not be set if the only
    #: reason is that solutions (`best`) make tasks needless
    counts_vary: ClassVar[bool] = False

    @abstractmethod
    def process(self, count: int) -> int:
        """Do some tasks.

        Args:
            count: the approximate greatest number of tasks to do.

        Returns:
            The number of tasks done; 0 only if the bag is empty. A task of more than some 10 ms may be done
            in parts: count each part as a task, and keep what is needed to go on.
        """

    @abstractmethod
    def split(self) -> Bag | None:
        """Move about half of the tasks into a new bag, and return it; None: a split is not worth its cost."""

    def split_into(self, parts: int) -> list[Bag]:
        """Move tasks into new bags for idle workers, so that all bags have about equally many tasks.

        Override this method if it can be cheaper or fairer than repeated `split`.

        Args:
            parts: the greatest number of bags to make.

        Returns:
            The new bags.
        """
        bags: list[Bag] = []
        while len(bags) < parts and (bag := self.split()) is not None:
            bags.append(bag)
        return bags

    @abstractmethod
    def merge(self, other: Bag) -> None:
        """Move all tasks of `other` into this bag. `other` has no result and is not used again."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Tell whether no tasks are left."""

    def expected_tasks(self) -> float:
        """Return the expected number of tasks left and of tasks that they will make; infinity: unknown.

        If the number is known, workers ask for more tasks before they run out, and do not send tasks that
        can be done in less time than they can be sent.
        """
        return math.inf

    def best(self) -> Any:
        """Return the best solution found or learnt: a number, or a tuple that begins with a number.

        The number is the quality: larger is better, unless the application sets `minimizes`. The remainder of
        the tuple is the solution: numbers, arrays, texts, tuples of them. None: no solution is known yet. A
        returned tuple must not change any more.
        """
        return None

    def learn(self, best: Any) -> None:  # noqa: B027 (without effect where there is no best)
        """Take over another worker's better solution; skip tasks that cannot lead to a better one."""

    def current_task(self) -> str:
        """Describe the task that is being done in a few words, for the job's reply if `process` raises."""
        return ""

    def take_result(self) -> Any:
        """Return the result of the tasks done since the last call, and forget the result.

        The result is a number, a numpy array, or a tuple of these; None, as here, if only the `best` counts.
        """
        return None

    @abstractmethod
    def to_bytes(self) -> bytes:
        """Return the tasks, without the result, as bytes to send or keep. Use flat arrays, not pickle."""


class Work(Protocol):
    """A job as its ledgers know it: its first bag, and how bags and results are made."""

    #: whether the solution with the smaller number is better
    minimizes: bool

    def first_bag(self) -> Bag:
        """Return a bag of all tasks. Each call must return an equal bag, because a lost job begins again."""
        ...

    def bag_from_bytes(self, data: bytes) -> Bag:
        """Return the bag that `Bag.to_bytes` wrote."""
        ...

    def fold(self, one: Any, other: Any) -> Any:
        """Combine two results. `fold` must be associative and commutative: results come in any order."""
        ...
