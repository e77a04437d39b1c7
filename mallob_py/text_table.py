"""Tables for people, made by rich: numbers are aligned right, words left, with a rule under the header."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import Box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Column, Table
from rich.text import Span, Text

Cell = str | int | float | bool | None

#: box with blanks between columns, and under the header a rule as wide as each column
RULED = Box("    \n    \n -  \n    \n    \n    \n    \n    \n", ascii=True)
_GAP = "  "


class Output(Console):
    """Standard output for tables; writing to a pipe without a reader raises BrokenPipeError."""

    def __init__(self) -> None:
        super().__init__(highlight=False, emoji=False, soft_wrap=True)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich would end the process with exit code 1


def format_cell(value: Cell) -> str:
    """Return the text of a cell: a float with one to three decimals, None as "-"."""
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    digits = 3 if abs(value) < 10 else 2 if abs(value) < 100 else 1
    return f"{value:.{digits}f}"


def empty_table() -> Table:
    """Return a table without columns in our style."""
    return Table(box=RULED, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")


def format_table(header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Return the lines of a table as one text, without trailing blanks or a last newline."""
    body = [list(row) for row in rows]
    table = empty_table()
    for column, title in enumerate(header):
        is_number = all(isinstance(row[column], int | float) or row[column] is None for row in body)
        table.add_column(Text(title), justify="right" if is_number else "left", no_wrap=True)
    for row in body:
        table.add_row(*(Text(format_cell(cell)) for cell in row))
    return as_text(table).plain


def as_text(table: Table) -> Text:
    """Return a whole table as one styled text; rich itself would take seconds for thousands of rows.

    Each cell must hold one line. A cell is cut only if it is wider than its column's `max_width`.
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
    """Return a cell, cut to its column's `max_width`."""
    assert isinstance(cell, Text)
    if column.max_width is not None and cell_len(cell.plain) > column.max_width:
        cell.truncate(column.max_width, overflow="ellipsis")
    return cell
