"""Optimisation from Python: objectives and weighted formulas, and their optima.

An objective maps literals to integers; its value is the sum over the true literals. A weighted formula is
a path, or an object with `hard`, `soft` and `wght`, such as PySAT's `WCNF`; its objective is the weight of
the violated soft clauses.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from mallob_py.api.formulas import clauses_of, is_integer, literals_of, wcnf_text, weight_of, weighted_of
from mallob_py.api.settled import SettledOnce

_OPTIMUM, _SATISFIABLE, _UNSATISFIABLE = 30, 10, 20


@dataclass(frozen=True)
class Optimum:
    """The answer to an optimisation job."""

    #: True, False, or None: unknown, since the job ended early
    satisfiable: bool | None
    #: whether `value` is proved to be the best; otherwise it is the best found in time
    is_optimal: bool
    #: the objective's value in `model`; None without a model
    value: int | None
    #: literals of the model, the literal of variable v at index v - 1
    model: NDArray[np.int32] | None
    #: best bound proved: no solution has a better value
    bound: int | None
    reply: Mapping[str, Any]

    def __repr__(self) -> str:
        if self.value is None:
            return f"<Optimum {self.reply['result']['resultstring']}>"
        known = "optimal" if self.is_optimal else f"bound={self.bound}"
        return f"<Optimum value={self.value}, {known}>"


@dataclass(frozen=True)
class Task:
    """The input of an optimisation job: a path, or the text of a weighted formula.

    The objective's value is `offset` plus the formula's cost, or `offset` minus the cost if `is_negated`.
    """

    path: str | None
    text: bytes
    offset: int = 0
    is_negated: bool = False

    def value(self, cost: int | None) -> int | None:
        """Convert a cost of the formula into the objective's value."""
        if cost is None:
            return None
        return self.offset - cost if self.is_negated else self.offset + cost

    def optimum(self, reply: Mapping[str, Any], model: NDArray[np.int32]) -> Optimum:
        """Return the optimum in the job's reply; `model` is the reply's solution."""
        result = reply["result"]
        code, cost = result["resultcode"], result.get("cost")
        is_optimal = code == _OPTIMUM
        has_model = code in (_OPTIMUM, _SATISFIABLE)
        return Optimum(
            True if has_model else False if code == _UNSATISFIABLE else None,
            is_optimal,
            self.value(cost) if has_model else None,
            model if has_model else None,
            self.value(cost if is_optimal else result.get("bound")),
            reply,
        )


def minimizing(formula: Any, objective: Mapping[int, int] | None = None) -> Task:
    """Return a task that minimises the objective, or the weight of violated soft clauses.

    Args:
        formula: clauses, or a weighted formula if there is no objective.
        objective: the weight of each literal; None: the weight of violated soft clauses.

    Returns:
        A task for `Client.optimize`.

    Raises:
        ValueError: a clause, literal or weight is out of range.
        TypeError: `formula` is not a formula, or `objective` not a mapping of integers.
    """
    if objective is None:
        if isinstance(formula, str | os.PathLike):
            return Task(os.path.abspath(formula), b"")
        if isinstance(formula, bytes | bytearray | memoryview):
            return Task(None, bytes(formula))
        return Task(None, wcnf_text(*weighted_of(formula)))
    _check_objective(objective)
    soft, offset = [], 0
    for given, weight_given in objective.items():
        literal, weight = _integer(given, "literals"), _integer(weight_given, "weights")
        if weight > 0:
            soft.append((weight_of(weight), literals_of([-literal])))
        elif weight < 0:
            soft.append((weight_of(-weight), literals_of([literal])))
            offset += weight
    return Task(None, wcnf_text(clauses_of(formula), soft), offset)


def maximizing(formula: Any, objective: Mapping[int, int]) -> Task:
    """Return a task that maximises the objective subject to the clauses; arguments as for `minimizing`."""
    _check_objective(objective)
    task = minimizing(
        formula, {literal: -_integer(weight, "weights") for literal, weight in objective.items()}
    )
    return Task(task.path, task.text, -task.offset, is_negated=True)


def _check_objective(objective: object) -> None:
    if not isinstance(objective, Mapping):
        raise TypeError(f"an objective must be a mapping, {{literal: weight}}, not {objective!r:.40}")


def _integer(value: object, what: str) -> int:
    """Convert a value into Python's int, since numpy's may overflow when negated. Raises TypeError."""
    if not is_integer(value):
        raise TypeError(f"{what} must be integers, not {value!r:.40}")
    return int(cast(int, value))


class OptimumFuture(SettledOnce[Optimum]):
    """The future optimum of one optimisation job, called `name`."""

    def __init__(
        self, name: str, look: Callable[[], tuple[int | None, int | None]], cancel: Callable[[], bool]
    ) -> None:
        super().__init__()
        self.name = name
        self._look = look
        self._cancel = cancel

    @property
    def bounds(self) -> tuple[int | None, int | None]:
        """The best value so far and the best bound so far, each None if unknown.

        Both are those that the service published last: tenths of a second ago, at most some seconds.
        """
        if self.done() and not self.cancelled() and self.exception() is None:
            best = self.result()
            return best.value, best.bound
        return self._look()

    def cancel(self) -> bool:
        """End the job unless it has been answered."""
        return super().cancel() and self._cancel()
