"""What all studies share: named runs, tables with named rows and columns, and a figure for any table.

A study is a grid of runs, played in parallel (`Output.play`). Each cell of its table is a mean with its
interval, followed by the published number, marked (P).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from mallob_py.experiments.intervals import winner
from mallob_py.experiments.output import Table
from mallob_py.text_table import Cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = TypeVar("Row")
Column = TypeVar("Column")
#: form of a written cell: the number, half the width of its interval, and the published number
_WRITTEN = re.compile(r"(-?[\d.]+)(?: ± ([\d.]+))?.*?(?:\((-?[\d.]+) P\))?$")


class Run(msgspec.Struct, frozen=True):
    """One run of a study. Its name contains each field whose value is not the default."""

    def name(self) -> str:
        words = list[str]()
        for field in msgspec.structs.fields(self):
            value = getattr(self, field.name)
            if field.required:
                words.append(str(value))
            elif value != field.default:
                words.append(field.name if value is True else f"{field.name} {value}")
        return ", ".join(words)


def grid(
    title: str,
    corner: str,
    rows: Mapping[str, Row],
    columns: Mapping[str, Column],
    cell: Callable[[Row, Column], Cell],
) -> Table:
    """Return the table with a cell for each row and column."""
    lines = ((name, *(cell(row, column) for column in columns.values())) for name, row in rows.items())
    return Table(title, (corner, *columns), tuple(lines))


def with_winners(table: Table, values: Sequence[Mapping[str, Sequence[float]]]) -> Table:
    """Add a row with the winner of each column; `values`: for each column, row -> the values of the row."""
    ahead = ("ahead of all others", *(winner(column) or "none" for column in values))
    return Table(table.title, table.header, (*table.rows, ahead))


def beside(text: str, published: float | str | None) -> str:
    return text if published in (None, "") else f"{text} ({published} P)"


def draw(table: Table, figure: Figure) -> None:
    """Draw each row of a table as a line with intervals over the columns; crosses are published numbers."""
    axes = figure.subplots()
    for row in table.rows:
        points = {
            column: found
            for column, cell in zip(table.header[1:], row[1:], strict=True)
            if (found := _WRITTEN.match(str(cell)))
        }
        heights = [float(found[1]) for found in points.values()]
        halves = [float(found[2] or 0.0) for found in points.values()]
        line = axes.errorbar(list(points), heights, halves, fmt="o-", label=str(row[0]))
        said = {column: float(found[3]) for column, found in points.items() if found[3]}
        axes.plot(list(said), list(said.values()), "x", color=line[0].get_color(), markersize=9)
    axes.set(title=table.title)
    axes.tick_params(axis="x", labelsize="x-small")
    figure.legend(loc="outside lower center", ncols=3, fontsize="x-small")
