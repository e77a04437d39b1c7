"""Symmetries of a formula, and clauses that exclude assignments that are symmetric to others.

A symmetry is a permutation of the literals that keeps negation and maps the formula's clauses to its clauses.
It maps models to models. So a search may look only for models that are the first, in some order, among all
assignments symmetric to them. `breaking_clauses` expresses a part of this restriction (lex-leaders, Crawford
et al. 1996): a formula with these clauses has a model if and only if the formula without them has one. The
clauses do not follow from the formula, so clauses learned with them must not be shared.

Symmetries are found as in saucy and bliss: colours of literals are refined by the colours around them until
they are stable; then one literal gets a colour of its own, and in a copy of the graph another literal of the
same former colour gets that colour; this is repeated until the colours determine a map. Colours are hashes of
the surroundings, so the map is checked on the clauses themselves.

Why the clauses are sound. Let the base b1, b2, ... be literals of different variables, and order assignments
by the values of b1, b2, ..., and then of the other variables, false before true. Let A be the first of the
assignments that are symmetric to a model. Then for each symmetry p, A does not come after A mapped by p.
Hence
(1) if A gives the first k literals of this order the same values as their images, then literal k + 1 implies
    its image in A;
(2) if p maps each of b1, ..., b(k-1) to itself, then bk implies its image in A.
Each clause says (1) or (2) for some p, and A satisfies all these clauses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mallob_sat.formula import Formula

Colours = NDArray[np.uint64]
Permutation = NDArray[np.int64]

#: greatest number of literals of a formula that is examined
LITERALS_MAX = 500_000
#: greatest number of literals whose colours are refined (about half a second), in all and before the first
#: symmetry
_WORK_MAX, _FIRST_WORK_MAX = 20_000_000, 5_000_000
#: greatest number of futile attempts from one literal, and in all; each symmetry found adds this number again
_FUTILE_MAX, _ALL_FUTILE_MAX = 5, 20
#: greatest number of literals of a lex-leader
_LEADER_LITERALS_MAX = 60
_MULTIPLIERS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def breaking_clauses(formula: Formula) -> list[list[int]]:
    """Return clauses that exclude symmetric assignments but not all models; []: no symmetries were found.

    The clauses may have new variables, with numbers above the formula's. The formula must have no empty
    clause.
    """
    if not 0 < formula.literals.size <= LITERALS_MAX:
        return []
    graph = _Graph(formula)
    finder = _Finder(graph)
    finder.run()
    return list(_clauses(finder, formula.n_vars))


def _mixed(numbers: Colours) -> Colours:
    mixed = (numbers ^ (numbers >> np.uint64(30))) * _MULTIPLIERS[1]
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MULTIPLIERS[2]
    return mixed ^ (mixed >> np.uint64(31))


class _Graph:
    """A formula as a graph of literals and clauses. Literal v has the number 2v - 2, its negation 2v - 1."""

    def __init__(self, formula: Formula) -> None:
        integers = formula.literals
        inside = integers[integers != 0].astype(np.int64)
        ends = np.flatnonzero(integers == 0)
        self.lengths = np.diff(ends, prepend=-1) - 1
        self.literals = 2 * np.abs(inside) - 2 + (inside < 0)
        self.starts = np.cumsum(self.lengths) - self.lengths
        self.size = 2 * formula.n_vars
        self.negation = np.arange(self.size) ^ 1
        order = np.argsort(self.literals, kind="stable")
        self._clauses = np.repeat(np.arange(self.lengths.size), self.lengths)[order]
        in_order = self.literals[order]
        self._begins = _begins(in_order)
        self._occurring = in_order[self._begins]
        occurs = np.zeros(self.size, np.bool_)
        occurs[self._occurring] = True
        self.occurs = occurs | occurs[self.negation]
        self.work = 0
        self._canonical = self._sorted(self.literals)

    def first_colours(self) -> Colours:
        """Return colours refined from equal ones; variables that do not occur have colours of their own."""
        return self.refined(np.where(self.occurs, 0, np.arange(1, self.size + 1)).astype(np.uint64))

    def refined(self, colours: Colours) -> Colours:
        """Refine colours by the colours around each literal until no colour is divided any more."""
        count = _begins(np.sort(colours)).size
        while True:
            self.work += self.literals.size + self.size
            around = _mixed(np.add.reduceat(_mixed(colours)[self.literals], self.starts))
            sums = np.zeros(self.size, np.uint64)
            sums[self._occurring] = np.add.reduceat(around[self._clauses], self._begins)
            colours = _mixed(colours * _MULTIPLIERS[0] + _mixed(colours[self.negation]) + sums)
            before, count = count, _begins(np.sort(colours)).size
            if count == before:
                return colours

    def is_symmetry(self, images: Permutation) -> bool:
        """Tell whether `images` is a permutation that maps negations to negations and clauses to clauses."""
        self.work += self.literals.size
        if not np.array_equal(images[self.negation], images ^ 1):
            return False
        if not np.array_equal(np.sort(images), np.arange(self.size)):
            return False
        tables = zip(self._canonical, self._sorted(images[self.literals]), strict=True)
        return all(np.array_equal(one, other) for one, other in tables)

    def _sorted(self, literals: Permutation) -> list[Permutation]:
        """Return the clauses of each length, sorted, so that equal sets of clauses give equal tables."""
        tables = []
        for length in np.flatnonzero(np.bincount(self.lengths)):
            rows = literals[self.starts[self.lengths == length][:, None] + np.arange(length)]
            rows.sort(axis=1)
            tables.append(rows[np.lexsort(rows.T)])
        return tables


@dataclass
class _Finder:
    """A search for symmetries, which yields a base.

    `orbits`: for each literal of the base, its images under symmetries that fix all earlier literals.
    """

    graph: _Graph
    base: list[int] = field(default_factory=list)
    orbits: list[list[int]] = field(default_factory=list)
    symmetries: list[Permutation] = field(default_factory=list)
    futile: int = 0

    def run(self) -> None:
        colours = self.graph.first_colours()
        while not self._is_over() and (cell := _cell(colours)) is not None:
            first = int(cell[0])
            path = _Path(self.graph, _marked(self.graph, colours, first))
            orbit = {first}
            found: list[Permutation] = []
            before = self.futile
            for other in cell[1:].tolist():
                if other in orbit:
                    continue
                if self._is_over() or self.futile - before >= _FUTILE_MAX * (1 + len(found)):
                    break
                symmetry = path.symmetry(_marked(self.graph, colours, other))
                if symmetry is not None and self._leaves_base(symmetry):
                    found.append(symmetry)
                    self.symmetries.append(symmetry)
                    orbit = _closed({first}, found)
                else:
                    self.futile += 1
            self.base.append(first)
            self.orbits.append(sorted(orbit - {first}))
            colours = path.colours

    def _is_over(self) -> bool:
        work_max = _WORK_MAX if self.symmetries else _FIRST_WORK_MAX
        return self.graph.work >= work_max or self.futile >= _ALL_FUTILE_MAX * (1 + len(self.symmetries))

    def _leaves_base(self, symmetry: Permutation) -> bool:
        return all(symmetry[literal] == literal for literal in self.base)


def _closed(orbit: set[int], symmetries: list[Permutation]) -> set[int]:
    fresh = list(orbit)
    while fresh:
        images = {int(symmetry[literal]) for literal in fresh for symmetry in symmetries}
        fresh = list(images - orbit)
        orbit |= images
    return orbit


def _marked(graph: _Graph, colours: Colours, literal: int) -> Colours:
    marked = colours.copy()
    marked[literal] = ~marked[literal]
    return graph.refined(marked)


def _cell(colours: Colours) -> NDArray[np.intp] | None:
    """Return the literals that have the most frequent colour; None: all literals have different colours."""
    in_order = np.sort(colours)
    begins = _begins(in_order)
    if begins.size == colours.size:
        return None
    counts = np.diff(begins, append=colours.size)
    return np.flatnonzero(colours == in_order[begins[np.argmax(counts)]])


def _begins(in_order: NDArray[Any]) -> NDArray[np.intp]:
    """Return where each value of a sorted array begins. The first call of `np.unique` would take 50 ms."""
    is_first = np.ones(in_order.size, np.bool_)
    is_first[1:] = in_order[1:] != in_order[:-1]
    return np.flatnonzero(is_first)


class _Path:
    """Colours after marking one literal after the other; they are computed when needed, and kept."""

    def __init__(self, graph: _Graph, colours: Colours) -> None:
        self._graph = graph
        self.colours = colours
        self._steps: list[tuple[Colours, int]] = []

    def symmetry(self, others: Colours) -> Permutation | None:
        """Return a symmetry that maps these colours to `others` if it is found without backtracking."""
        colours, depth = self.colours, 0
        while True:
            images = _images(colours, others)
            if images is None:
                return None
            if self._graph.is_symmetry(images):
                return images
            if depth == len(self._steps):
                cell = _cell(colours)
                if cell is None:
                    return None
                literal = int(cell[0])
                self._steps.append((_marked(self._graph, colours, literal), literal))
            marked, literal = self._steps[depth]
            candidates = np.flatnonzero(others == colours[literal])
            other = literal if literal in candidates else int(candidates[0])
            colours, others, depth = marked, _marked(self._graph, others, other), depth + 1
            if self._graph.work >= _WORK_MAX:
                return None


def _images(colours: Colours, others: Colours) -> Permutation | None:
    """Return the permutation from `colours` to `others`, in order within each colour; None: there is none."""
    order, order_of_others = np.argsort(colours, kind="stable"), np.argsort(others, kind="stable")
    if not np.array_equal(colours[order], others[order_of_others]):
        return None
    images = np.empty(colours.size, np.int64)
    images[order] = order_of_others
    return images


def _clauses(finder: _Finder, n_vars: int) -> Iterator[list[int]]:
    for first, orbit in zip(finder.base, finder.orbits, strict=True):
        for other in orbit:
            yield [-_literal(first), _literal(other)]
    variables = [literal >> 1 for literal in finder.base]
    rank = np.full(n_vars, len(variables))
    rank[variables] = np.arange(len(variables))
    positive = np.arange(n_vars) * 2
    positive[variables] = finder.base
    order = positive[np.argsort(rank, kind="stable")]
    new = n_vars
    for symmetry in finder.symmetries:
        moved = order[symmetry[order] != order][:_LEADER_LITERALS_MAX]
        equal: int | None = None
        for literal, image in zip(moved.tolist(), symmetry[moved].tolist(), strict=True):
            one, other = _literal(literal), _literal(image)
            so_far = [] if equal is None else [-equal]
            yield [*so_far, -one, other]
            if one == -other:
                break  # a literal never equals its negation, so further clauses would have no effect
            new += 1
            yield [*so_far, -one, new]
            yield [*so_far, other, new]
            equal = new


def _literal(number: int) -> int:
    return -(number >> 1) - 1 if number & 1 else (number >> 1) + 1
