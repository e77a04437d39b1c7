"""Tables for people, by rich: numbers to the right, words to the left, a rule under the header."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import Box
from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Column, Table
from rich.text import Span, Text

Cell = str | int | float | bool | None

#: blanks between columns, and a rule of each column's width under the header
RULED = Box("    \n    \n -  \n    \n    \n    \n    \n    \n", ascii=True)
_GAP = "  "


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
    return as_text(table).plain


def as_text(table: Table) -> Text:
    """The whole table in one text with its styles; rich itself would take seconds for thousands of rows.

    Cells hold one line each. A cell is cut only to the width that its column allows.
    """
    columns = [[_cut(cell, column) for cell in (column.header, *column.cells)] for column in table.columns]
    widths = [max(cell_len(cell.plain) for cell in cells) for cells in columns]
    rule = " ".join("-" * (width + 1) for width in widths)[:-1]
    text, spans = "", []
    for row in zip(*columns, strict=True):
        line, begin = "", len(text)
        for cell, column, width in zip(row, table.columns, widths, strict=True):
            blanks = " " * (width - cell_len(cell.plain))
            line += f"{_GAP if line else ''}{blanks if column.justify == 'right' else ''}"
            if cell.style:
                spans.append(Span(begin + len(line), begin + len(line) + len(cell.plain), cell.style))
            line += cell.plain + (blanks if column.justify != "right" else "")
        text += f"{line.rstrip()}\n" if begin else f"{line.rstrip()}\n{rule}\n"
    return Text(text.removesuffix("\n"), spans=spans, no_wrap=True)


def _cut(cell: RenderableType, column: Column) -> Text:
    """Return a cell, cut to the width that its column allows."""
    assert isinstance(cell, Text)
    if column.max_width is not None and cell_len(cell.plain) > column.max_width:
        cell.truncate(column.max_width, overflow="ellipsis")
    return cell
