"""The interface of a bag of tasks for its author: what the tasks are, and what their results come to.

A bag holds tasks that can be done in any order and by anybody: open nodes of a search tree, sources of a
graph, chunks of a sample. Tasks may make new ones. How bags get from worker to worker, and why each task
counts exactly once whatever comes, goes or dies meanwhile, is told in `ledger`.

Source: the global load balancing of X10 and its malleable successor, whose bags have the same parts.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Protocol


class BagError(Exception):
    """A bag does not do what it must; the text says what."""


class Bag(ABC):
    """Tasks to be done, and what those that were done here have come to.

    A bag is plain data and belongs to one worker. It must behave the same after `to_bytes` and back.

    A search for the best of something (branch and bound) also has `best` and `learn`: then what one worker
    has found spares all others tasks that cannot lead to anything better.
    """

    #: whether it depends on the order in which tasks are done how many there are. It does where bags have a
    #: `best`; say so where it does for another reason
    counts_vary: ClassVar[bool] = False

    @abstractmethod
    def process(self, count: int) -> int:
        """Do at most about `count` tasks and return how many were done; 0 only if the bag is empty.

        A task that takes longer than some 10 ms may be done in parts: return when a part is done (counted as
        a task), and keep what is needed to go on.
        """

    @abstractmethod
    def split(self) -> Bag | None:
        """Take about half of the tasks out into a bag of their own; None: it is not worth it."""

    def split_into(self, parts: int) -> list[Bag]:
        """Take tasks out into at most `parts` bags, for workers that all have nothing yet; an even start.

        To be written where it is cheaper or fairer than `split` again and again.
        """
        bags: list[Bag] = []
        while len(bags) < parts and (bag := self.split()) is not None:
            bags.append(bag)
        return bags

    @abstractmethod
    def merge(self, other: Bag) -> None:
        """Take in all tasks of `other`, which has no result and is not used any more."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Whether there is nothing to be done."""

    def expected_tasks(self) -> float:
        """Return about how many tasks are left, those included that these will make; infinity if unknown.

        Where it is known, workers ask for more before they have nothing left, and do not give away what is
        done sooner than sent.
        """
        return math.inf

    def best(self) -> Any:
        """The best solution that this bag knows, found or learnt: a number, or a tuple that begins with one.

        The number says how good it is: the larger the better, unless the application `minimizes`. The rest
        of the tuple is the solution itself: numbers, arrays, texts, tuples of these. None: there is none yet.
        A tuple that was given must not change any more.
        """
        return None

    def learn(self, best: Any) -> None:  # noqa: B027 (without effect where there is no best)
        """Another worker has a better one: from now on, do no task that cannot lead to a better one still."""

    def current_task(self) -> str:
        """Which task is at work, in a few words. It is asked for if `process` raises, for the job's reply."""
        return ""

    def take_result(self) -> Any:
        """Return the result of the tasks done since the last call. Then it starts anew.

        A number, a numpy array, or a tuple of these; None, as here, where nothing counts but the `best`.
        """
        return None

    @abstractmethod
    def to_bytes(self) -> bytes:
        """The tasks (not the result), to be sent or kept: flat arrays, nothing pickled."""


class Work(Protocol):
    """The knowledge of a ledger of a job: its first bag, and how bags and results are made."""

    #: whether of two solutions that bags know (`Bag.best`) the one with the smaller number is better
    minimizes: bool

    def first_bag(self) -> Bag:
        """All the work. The same each time: after a loss it may be asked for again."""
        ...

    def bag_from_bytes(self, data: bytes) -> Bag:
        """The inverse of `Bag.to_bytes`."""
        ...

    def fold(self, one: Any, other: Any) -> Any:
        """Return two results as one. Associative and commutative: results come in any order."""
        ...
