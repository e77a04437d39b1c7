"""The interface of a bag of tasks for its author: the tasks, and their result.

A bag holds tasks that any worker can do in any order: open nodes of a search tree, sources of a graph, chunks
of a sample. Tasks may make new tasks. `ledger` says how bags get from worker to worker, and why each task
counts exactly once.

Source: the global load balancing of X10 and its malleable successor, whose bags have the same parts.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Protocol


class BagError(Exception):
    """A bag breaks its contract; the message says how."""


class Bag(ABC):
    """Tasks to do, and the result of those done here.

    A bag is plain data and belongs to one worker. It must behave the same after `to_bytes` and back.

    A search for the best (branch and bound) also has `best` and `learn`: a solution found by one worker
    spares all others the tasks that cannot lead to a better one.
    """

    #: whether the number of tasks depends on their order, for another reason than a `best`
    counts_vary: ClassVar[bool] = False

    @abstractmethod
    def process(self, count: int) -> int:
        """Do some tasks.

        Args:
            count: about the most tasks to do.

        Returns:
            The number of tasks done; 0 only if the bag is empty. A task of more than some 10 ms may be done
            in
            parts: count each part as a task, and keep what is needed to go on.
        """

    @abstractmethod
    def split(self) -> Bag | None:
        """Take about half of the tasks out into a new bag; None: a split is not worth its cost."""

    def split_into(self, parts: int) -> list[Bag]:
        """Take tasks out for an even start of idle workers.

        Override this method if it can be cheaper or fairer than repeated `split`.

        Args:
            parts: the most bags to make.

        Returns:
            The bags.
        """
        bags: list[Bag] = []
        while len(bags) < parts and (bag := self.split()) is not None:
            bags.append(bag)
        return bags

    @abstractmethod
    def merge(self, other: Bag) -> None:
        """Take in all tasks of `other`, which has no result and is not used again."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Tell whether no tasks are left."""

    def expected_tasks(self) -> float:
        """Return the expected number of tasks left, future ones included; infinity: unknown.

        If known, workers ask for more tasks in time, and do not send tasks that are done sooner than sent.
        """
        return math.inf

    def best(self) -> Any:
        """Return the best solution found or learnt: a number, or a tuple that begins with one.

        The number is the quality: larger is better, unless the application `minimizes`. The rest of the tuple
        is the solution: numbers, arrays, texts, tuples of these. None: there is none yet. A returned tuple
        must not change any more.
        """
        return None

    def learn(self, best: Any) -> None:  # noqa: B027 (without effect where there is no best)
        """Take over another worker's better solution, and skip tasks that cannot lead to a better one."""

    def current_task(self) -> str:
        """Describe the task at work in a few words, for the job's reply if `process` raises."""
        return ""

    def take_result(self) -> Any:
        """Return the result of the tasks done since the last call, and start again from none.

        A number, a numpy array, or a tuple of these; None, as here, if only the `best` counts.
        """
        return None

    @abstractmethod
    def to_bytes(self) -> bytes:
        """Return the tasks, without the result, as bytes to send or keep: flat arrays, nothing pickled."""


class Work(Protocol):
    """A job as its ledgers know it: its first bag, and how bags and results are made."""

    #: whether the solution with the smaller number is better
    minimizes: bool

    def first_bag(self) -> Bag:
        """Return all the work; the same at each call, since a loss may repeat it."""
        ...

    def bag_from_bytes(self, data: bytes) -> Bag:
        """Return the bag that `Bag.to_bytes` wrote."""
        ...

    def fold(self, one: Any, other: Any) -> Any:
        """Combine two results, associatively and commutatively: results come in any order."""
        ...
