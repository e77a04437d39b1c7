"""Clusters whose nodes are shared by jobs: amounts of several resources on each node, and what is free.

A job's `demand` is what each of its units needs on a node. Units of one or several jobs fit on a node
together if each resource suffices for all of them. A job without a demand has whole nodes.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray


class Cluster(msgspec.Struct, frozen=True):
    """The nodes of a machine: the resources' names, and by node the amounts of all resources."""

    resources: tuple[str, ...]
    capacities: tuple[tuple[float, ...], ...]


class Room:
    """The free resources of a cluster, by node and resource. Policies may change only a copy."""

    __slots__ = ("capacity", "left")

    def __init__(self, capacity: NDArray[np.float64], left: NDArray[np.float64] | None = None) -> None:
        self.capacity = capacity
        self.left = capacity.copy() if left is None else left

    def copy(self) -> Room:
        """Return a copy that may be changed."""
        return Room(self.capacity, self.left.copy())

    def units(self, demand: Sequence[float]) -> NDArray[np.float64]:
        """Return, by node, how many units with this demand fit there (whole numbers)."""
        return units_in(self.left, demand, self.capacity)

    def place(self, count: int, demand: Sequence[float]) -> list[int] | None:
        """Return nodes for `count` units, a node once for each of its units; None: not all units fit.

        Nodes with fewer kinds of resources that a unit does not need come first; among equal nodes, those
        with less free (best fit). So the other nodes keep room for later units.
        """
        units = self.units(demand)
        if units.sum() < count:
            return None
        nodes: list[int] = []
        for node in np.lexsort((self._shares_left(), self._needless(demand))).tolist():
            if units[node] > 0.0:
                nodes += [node] * min(int(units[node]), count - len(nodes))
                if len(nodes) == count:
                    break
        return nodes

    def _shares_left(self) -> NDArray[np.float64]:
        """Return, by node, the sum of the free shares of its resources."""
        shares = np.divide(self.left, self.capacity, out=np.zeros_like(self.left), where=self.capacity > 0.0)
        return np.asarray(shares.sum(axis=1))

    def _needless(self, demand: Sequence[float]) -> NDArray[np.int64]:
        """Return, by node, how many of the node's kinds of resources are not needed for this demand."""
        unneeded = [place for place, amount in enumerate(demand) if not amount]
        return np.asarray(np.count_nonzero(self.capacity[:, unneeded], axis=1))

    def has(self, nodes: Sequence[int], demand: Sequence[float]) -> bool:
        """Tell whether one unit fits on each of these nodes; a node listed n times must have room for n
        units.
        """
        counts = np.bincount(nodes, minlength=len(self.left))
        return bool((counts <= self.units(demand)).all())

    def take(self, nodes: Sequence[int], demand: Sequence[float]) -> None:
        if demand:
            np.subtract.at(self.left, nodes, demand)
        else:
            self.left[nodes] = 0.0

    def give(self, nodes: Sequence[int], demand: Sequence[float]) -> None:
        if demand:
            np.add.at(self.left, nodes, demand)
        else:
            self.left[nodes] = self.capacity[nodes]


def units_in(
    left: NDArray[np.float64], demand: Sequence[float], capacity: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return how many units fit into the free amounts `left`, an array whose last axis is the resource.

    The result is an array without this axis.
    """
    needed = [place for place, amount in enumerate(demand) if amount > 0.0]
    if not needed:
        idle: NDArray[np.bool_] = (left == capacity).all(axis=-1)
        return idle.astype(np.float64)
    units = np.floor(left[..., needed[0]] / demand[needed[0]])
    for place in needed[1:]:
        np.minimum(units, np.floor(left[..., place] / demand[place]), out=units)
    return units
