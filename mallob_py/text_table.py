"""Tables for people, by rich: numbers to the right, words to the left, a rule under the header."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

from rich.box import Box
from rich.console import Console
from rich.table import Table
from rich.text import Text

Cell = str | int | float | bool | None

#: blanks between columns, and a rule of each column's width under the header
RULED = Box("    \n    \n -  \n    \n    \n    \n    \n    \n", ascii=True)
_WIDE_ENOUGH = 100_000


def format_cell(value: Cell) -> str:
    """Text of a cell: three significant digits at least for floats, "-" for nothing."""
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    digits = 3 if abs(value) < 10 else 2 if abs(value) < 100 else 1
    return f"{value:.{digits}f}"


def empty_table() -> Table:
    """A table in our manner, still without columns."""
    return Table(box=RULED, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")


def format_table(header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Lines of a table, without trailing blanks or newline."""
    body = [list(row) for row in rows]
    table = empty_table()
    for column, title in enumerate(header):
        is_number = all(isinstance(row[column], int | float) or row[column] is None for row in body)
        table.add_column(Text(title), justify="right" if is_number else "left", no_wrap=True)
    for row in body:
        table.add_row(*(Text(format_cell(cell)) for cell in row))
    return plain(table)


def plain(table: Table) -> str:
    """The whole table as text, however wide, without colours, trailing blanks or newline."""
    console = Console(file=io.StringIO(), width=_WIDE_ENOUGH, color_system=None, emoji=False)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())
